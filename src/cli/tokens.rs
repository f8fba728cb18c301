//! The commands `tokens add`, `list`, `revoke` and `rotate`: they edit a tokens file and keep its comments.
//!
//! A change is written to a new file next to the old one, synced, and renamed over it, so that a service that reloads
//! meanwhile reads the one or the other. A lock on the file keeps two commands from overwriting each other's change. A
//! change that would make the file unusable is refused, and so is one of a file that is unusable already.
//!
//! A secret is made here, printed once to standard output, and not kept: the file has its hash.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use rustix::fs::{FlockOperation, fchown, flock};
use rustix::process::{Gid, Uid};
use toml_edit::{Array, ArrayOfTables, Datetime, DocumentMut, Item, Table, TomlError, value};

use super::output::{fail, print_line};
use crate::access::{GrantDefaults, Tokens, TokensError, hash_secret};
use crate::config::{self, Config};

/// Random bytes of a secret.
const SECRET_BYTES: usize = 24;
/// In errors, in place of the setting that names the file.
const KEY: &str = "tokens";

#[derive(Subcommand)]
pub(crate) enum TokensCommand {
    /// Add a token and print it: id.secret. The secret is not shown again
    Add {
        /// 1 to 64 of A-Z, a-z, 0-9, - and _
        id: String,
        #[command(flatten)]
        rules: Rules,
        #[command(flatten)]
        file: TokensFile,
    },
    /// List the tokens with their rules; exit code 1 if the file cannot be used
    List {
        /// One JSON array
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        file: TokensFile,
    },
    /// Remove a token
    Revoke {
        id: String,
        #[command(flatten)]
        file: TokensFile,
    },
    /// Give a token a new secret and print it; its rules stay
    Rotate {
        id: String,
        #[command(flatten)]
        file: TokensFile,
    },
}

#[derive(Args)]
pub(crate) struct TokensFile {
    /// The tokens file; default: http.tokens_file, or listen.mqtt.tokens_file, of the configuration
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Rules {
    /// A pattern of sensors that it may write, such as '{id}-*'; can be repeated; default: all
    #[arg(long, value_name = "PATTERN")]
    write: Vec<String>,
    /// It may not write
    #[arg(long, conflicts_with = "write")]
    no_write: bool,
    /// A pattern of sensors that it may read; can be repeated; default: all
    #[arg(long, value_name = "PATTERN")]
    read: Vec<String>,
    /// It may not read
    #[arg(long, conflicts_with = "read")]
    no_read: bool,
    /// Only over this protocol, http or mqtt; can be repeated
    #[arg(long, value_name = "PROTOCOL")]
    via: Vec<String>,
    /// Not valid from this time on: RFC 3339 with an offset, or a date
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// For people
    #[arg(long)]
    note: Option<String>,
    /// Readings per second
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
}

/// Why a command has changed nothing.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Config(#[from] config::ConfigErrors),
    #[error("no tokens file is configured; set http.tokens_file, or name the file with --file")]
    NoFile,
    #[error("http.tokens_file and listen.mqtt.tokens_file are different files; name the one that is meant with --file")]
    TwoFiles,
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("a token with the id {0} exists; remove it first, or give it a new secret with `tokens rotate`")]
    Exists(String),
    #[error("there is no token with the id {0}")]
    Unknown(String),
    #[error("`tokens` is not written as [[tokens]] tables; this command edits only those")]
    NotTables,
    #[error("--expires: expected a date and time such as 2027-01-31T12:00:00Z, or a date")]
    Expires,
    /// The text of the library quotes the file.
    #[error("not valid TOML")]
    Syntax,
}

impl From<TomlError> for CommandError {
    fn from(_: TomlError) -> CommandError {
        CommandError::Syntax
    }
}

/// Runs a `tokens` command.
pub(crate) fn run(command: &TokensCommand, config: Option<&Path>) -> ExitCode {
    let done = match command {
        TokensCommand::Add { id, rules, file } => file.path(config).and_then(|path| add(&path, id, rules)),
        TokensCommand::List { json, file } => file.path(config).and_then(|path| list(&path, *json)),
        TokensCommand::Revoke { id, file } => file.path(config).and_then(|path| revoke(&path, id)),
        TokensCommand::Rotate { id, file } => file.path(config).and_then(|path| rotate(&path, id)),
    };
    match done {
        Ok(lines) => {
            lines.iter().for_each(|line| print_line(line));
            if !matches!(command, TokensCommand::List { .. }) {
                eprintln!("hourbucket: the file is changed; it applies when the service reloads (SIGHUP)");
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(error),
    }
}

impl TokensFile {
    fn path(&self, config: Option<&Path>) -> Result<PathBuf, CommandError> {
        if let Some(path) = &self.file {
            return Ok(path.clone());
        }
        let Config { http, listen, .. } = config::load(config, config::environment())?.config;
        match (http.tokens_file, listen.mqtt.tokens_file) {
            (Some(http), Some(mqtt)) if http != mqtt => Err(CommandError::TwoFiles),
            (Some(path), _) | (None, Some(path)) => Ok(path),
            (None, None) => Err(CommandError::NoFile),
        }
    }
}

fn add(path: &Path, id: &str, rules: &Rules) -> Result<Vec<String>, CommandError> {
    let secret = new_secret(path)?;
    let entry = entry(id, &secret, rules)?;
    edit(path, true, |tokens| {
        if position(tokens, id).is_some() {
            return Err(CommandError::Exists(id.to_owned()));
        }
        tokens.push(entry);
        Ok(())
    })?;
    Ok(vec![format!("{id}.{secret}")])
}

fn revoke(path: &Path, id: &str) -> Result<Vec<String>, CommandError> {
    edit(path, false, |tokens| {
        let at = position(tokens, id).ok_or_else(|| CommandError::Unknown(id.to_owned()))?;
        remove(tokens, at);
        Ok(())
    })?;
    Ok(vec![])
}

/// Removes an entry with the comment directly above it. A comment that a blank line separates, such as the head of the
/// file, stays.
fn remove(tokens: &mut ArrayOfTables, at: usize) {
    let above = |tokens: &ArrayOfTables, at| {
        let prefix = tokens.get(at).and_then(|table| table.decor().prefix()?.as_str());
        prefix.unwrap_or_default().to_owned()
    };
    let removed = above(tokens, at);
    tokens.remove(at);
    let separate = removed.rfind("\n\n").map_or("", |end| &removed[..=end]);
    let next = above(tokens, at);
    if let Some(table) = tokens.get_mut(at) {
        table.decor_mut().set_prefix(format!("{separate}{next}"));
    }
}

fn rotate(path: &Path, id: &str) -> Result<Vec<String>, CommandError> {
    let secret = new_secret(path)?;
    edit(path, false, |tokens| {
        let at = position(tokens, id).ok_or_else(|| CommandError::Unknown(id.to_owned()))?;
        if let Some(table) = tokens.get_mut(at) {
            table["sha256"] = value(hash_secret(&secret));
        }
        Ok(())
    })?;
    Ok(vec![format!("{id}.{secret}")])
}

fn list(path: &Path, json: bool) -> Result<Vec<String>, CommandError> {
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    Tokens::parse(KEY, &text, path, &GrantDefaults::unlimited())?;
    let table: toml::Table = text.parse().map_err(|_| CommandError::Syntax)?;
    let entries = table.get("tokens").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let shown = entries.iter().filter_map(toml::Value::as_table).map(|entry| {
        // Everything but the hash.
        entry.iter().filter(|(key, _)| *key != "sha256").map(|(key, value)| (key.clone(), shown(value))).collect()
    });
    let shown: Vec<serde_json::Map<String, serde_json::Value>> = shown.collect();
    if json {
        return Ok(vec![serde_json::Value::from_iter(shown).to_string()]);
    }
    let line = |mut entry: serde_json::Map<String, serde_json::Value>| {
        let id = entry.remove("id").unwrap_or_default();
        let rules: Vec<String> = entry.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{:24} {}", id.as_str().unwrap_or_default(), rules.join(", ")).trim_end().to_owned()
    };
    Ok(shown.into_iter().map(line).collect())
}

fn shown(value: &toml::Value) -> serde_json::Value {
    match value {
        toml::Value::Datetime(time) => time.to_string().into(),
        other => serde_json::to_value(other).unwrap_or_default(),
    }
}

/// A new entry of the file.
fn entry(id: &str, secret: &str, rules: &Rules) -> Result<Table, CommandError> {
    let mut table = Table::new();
    table["id"] = value(id);
    table["sha256"] = value(hash_secret(secret));
    for (key, patterns, is_none) in
        [("write", &rules.write, rules.no_write), ("read", &rules.read, rules.no_read), ("via", &rules.via, false)]
    {
        if is_none || !patterns.is_empty() {
            table[key] = value(Array::from_iter(patterns));
        }
    }
    if let Some(expires) = &rules.expires {
        table["expires"] = value(expires.parse::<Datetime>().map_err(|_| CommandError::Expires)?);
    }
    if let Some(note) = &rules.note {
        table["note"] = value(note);
    }
    if let Some(rate) = rules.rate {
        table["rate"] = value(i64::from(rate));
    }
    Ok(table)
}

fn position(tokens: &ArrayOfTables, id: &str) -> Option<usize> {
    tokens.iter().position(|table| table.get("id").and_then(Item::as_str) == Some(id))
}

fn new_secret(path: &Path) -> Result<String, CommandError> {
    let mut bytes = [0; SECRET_BYTES];
    let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.map_err(io("make a secret for", path))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn io(doing: &'static str, path: &Path) -> impl Fn(std::io::Error) -> CommandError {
    let path = path.to_owned();
    move |source| CommandError::Io { doing, path: path.clone(), source }
}

/// Changes the tokens of a file. `may_create`: it need not exist.
fn edit(
    path: &Path,
    may_create: bool,
    change: impl FnOnce(&mut ArrayOfTables) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut file = locked(path, may_create)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(io("read", path))?;
    let edited = edited(path, &text, change);
    if edited.is_err() && text.is_empty() && may_create {
        // It was made for this change.
        let _ = std::fs::remove_file(path);
    }
    replace(path, &file, &edited?).map_err(io("replace", path))
}

/// The text of a file after a change.
fn edited(
    path: &Path,
    text: &str,
    change: impl FnOnce(&mut ArrayOfTables) -> Result<(), CommandError>,
) -> Result<String, CommandError> {
    if !text.trim().is_empty() {
        Tokens::parse(KEY, text, path, &GrantDefaults::unlimited())?;
    }
    let mut document: DocumentMut = text.parse()?;
    let tokens = document.entry("tokens").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    change(tokens.as_array_of_tables_mut().ok_or(CommandError::NotTables)?)?;
    let text = document.to_string();
    Tokens::parse(KEY, &text, path, &GrantDefaults::unlimited())?;
    Ok(text)
}

/// Opens the file and waits until no other command has it.
fn locked(path: &Path, may_create: bool) -> Result<File, CommandError> {
    loop {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(may_create).mode(0o600).open(path).map_err(io("open", path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(std::io::Error::from).map_err(io("lock", path))?;
        // The command before may have put another file in its place.
        let (held, named) = (file.metadata(), std::fs::metadata(path));
        let (held, named) = (held.map_err(io("open", path))?, named.map_err(io("open", path))?);
        if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
            return Ok(file);
        }
    }
}

/// Puts a file with this text in the place of another one, with its owner and mode.
fn replace(path: &Path, old: &File, text: &str) -> std::io::Result<()> {
    // A link stays; the file that it names is replaced.
    let path = path.canonicalize()?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = folder.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let meta = old.metadata()?;
        let own = file.metadata()?;
        if (meta.uid(), meta.gid()) != (own.uid(), own.gid()) {
            fchown(&file, Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())))?;
        }
        file.set_permissions(std::fs::Permissions::from_mode(meta.mode() & 0o777))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: TokensCommand,
    }

    /// Runs a command line on a file; returns what it prints.
    fn tokens(path: &Path, line: &str) -> Result<Vec<String>, String> {
        let words = ["tokens"].into_iter().chain(line.split_whitespace());
        let done = match Line::try_parse_from(words).map_err(|error| error.to_string())?.command {
            TokensCommand::Add { id, rules, .. } => add(path, &id, &rules),
            TokensCommand::List { json, .. } => list(path, json),
            TokensCommand::Revoke { id, .. } => revoke(path, &id),
            TokensCommand::Rotate { id, .. } => rotate(path, &id),
        };
        done.map_err(|error| error.to_string())
    }

    fn load(path: &Path) -> Tokens {
        Tokens::load(KEY, path, &GrantDefaults::unlimited()).unwrap()
    }

    fn of(path: &Path, printed: &str) -> Option<std::sync::Arc<crate::access::Grant>> {
        load(path).of_text(printed).cloned()
    }

    #[test]
    fn a_token_is_added_rotated_and_revoked_and_the_rest_of_the_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        let first = tokens(&path, "add gw1").unwrap().remove(0);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!((&first[..4], first.len()), ("gw1.", 4 + 2 * SECRET_BYTES));
        let with_comment = format!("# Ours.\n\n# Of gw1.\n{}", std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, with_comment).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let line =
            "add gw2 --write {id}-* --write x --no-read --via mqtt --expires 2999-01-31T00:00:00Z --note n --rate 5";
        let second = tokens(&path, line).unwrap().remove(0);
        let grant = of(&path, &second).unwrap();
        assert!(grant.write.as_ref().unwrap().matches("gw2-1") && grant.read.as_ref().unwrap().is_none());
        assert_eq!((grant.via.http, grant.quota.readings_per_second), (false, Some(5)));
        let rotated = tokens(&path, "rotate gw2").unwrap().remove(0);
        assert!(rotated != second && of(&path, &second).is_none());
        assert!(of(&path, &rotated).unwrap().write.is_some(), "the rules stay");
        tokens(&path, "revoke gw1").unwrap();
        assert!(of(&path, &first).is_none() && of(&path, &rotated).is_some());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no other file is left");
        let third = tokens(&path, "add gw3").unwrap().remove(0);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# Ours.\n\n[[tokens]]\nid = \"gw2\"\n"), "{text}");
        assert!(!text.contains(third.split_once('.').unwrap().1), "the secret is not kept");
    }

    #[test]
    fn the_list_shows_rules_and_no_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        tokens(&path, "add gw1 --write a* --expires 2999-01-31").unwrap();
        tokens(&path, "add gw2").unwrap();
        let lines = tokens(&path, "list").unwrap();
        assert!(lines[0].starts_with("gw1 ") && lines[0].contains(r#"write = ["a*"]"#), "{lines:?}");
        assert!(lines[0].contains(r#"expires = "2999-01-31""#) && lines[1] == "gw2", "{lines:?}");
        let json: serde_json::Value = serde_json::from_str(&tokens(&path, "list --json").unwrap()[0]).unwrap();
        assert_eq!(json[0], serde_json::json!({"id": "gw1", "write": ["a*"], "expires": "2999-01-31"}));
        assert_eq!(json[1], serde_json::json!({"id": "gw2"}));
    }

    #[test]
    fn a_change_that_cannot_be_is_refused_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        tokens(&path, "add gw1").unwrap();
        let before = std::fs::read_to_string(&path).unwrap();
        for (line, error) in [
            ("add gw1", "exists"),
            ("add gw.1", "id must be 1 to 64"),
            ("add gw2 --write **********", "`*`"),
            ("add gw2 --via coap", "via must be"),
            ("add gw2 --expires tomorrow", "--expires"),
            ("add gw2 --expires 2027-01-31T12:00:00", "expires must be"),
            ("add gw2 --write a --no-write", "cannot be used with"),
            ("revoke gw2", "no token with the id gw2"),
            ("rotate gw2", "no token with the id gw2"),
            ("revoke gw1", "no [[tokens]] table"),
        ] {
            let refused = tokens(&path, line).unwrap_err();
            assert!(refused.contains(error), "{line}: {refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), before, "{line}");
        }
        std::fs::write(&path, "[[tokens]]\nid = \"gw1\"\nsha256 = \"hunter2\"\n").unwrap();
        let refused = tokens(&path, "add gw2").unwrap_err();
        assert!(refused.contains("entry 1 (gw1)") && !refused.contains("hunter2"), "{refused}");
        let none = dir.path().join("none.toml");
        assert!(tokens(&none, "revoke gw1").unwrap_err().contains("cannot open"));
        assert!(tokens(&none, "add gw.1").is_err() && !none.exists());
    }

    #[test]
    fn commands_at_the_same_time_lose_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        std::thread::scope(|scope| {
            for n in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for i in 0..5 {
                        tokens(path, &format!("add gw{n}-{i}")).unwrap();
                    }
                });
            }
        });
        assert_eq!(load(&path).len(), 40);
    }
}
