//! The commands `tokens add`, `list`, `revoke` and `rotate`: they edit a tokens file and keep its
//! comments.
//!
//! A change is written to a new file next to the old one, synced, and renamed over it, so that a
//! service that reloads meanwhile reads either the old or the new one. A lock on the file keeps two
//! commands from overwriting each other's change. A change that would make the file unusable is
//! refused, and so is a change to an unusable file.
//!
//! A secret is made here, printed once to standard output, and not kept: the file has its hash.
//!
//! `list` also shows when each token was last used, which the service keeps in a separate file next
//! to its journal.

mod error;
mod list;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use rustix::fs::{FlockOperation, fchown, flock};
use rustix::process::{Gid, Uid};
use toml_edit::{Array, ArrayOfTables, Datetime, DocumentMut, Item, Table, value};

use self::error::{CommandError, KEY, io};
use self::list::{list, read_last_used};
use super::output::{fail, print_if_read, print_line};
use config::{Config, ConfigErrors, Loaded};
use net::access::{GrantDefaults, Tokens, hash_secret};

/// Random bytes of a secret.
const SECRET_BYTES: usize = 24;

#[derive(Subcommand)]
pub(crate) enum TokensCommand {
    /// Add a token and print it: id.secret. The secret is not shown again
    Add {
        /// 1 to 64 of A-Z, a-z, 0-9, - and _
        id: String,
        /// The entry is for the client certificate with this name, and has no secret; the id may
        /// have 128 characters, also . : @ / | + =
        #[arg(long)]
        certificate: bool,
        #[command(flatten)]
        rules: Rules,
        #[command(flatten)]
        file: TokensFile,
    },
    /// List the tokens with their rules and when they were last used; exit code 1 if the file
    /// cannot be used
    List {
        /// One JSON array
        #[arg(long)]
        json: bool,
        /// Also those that were used and have no entry: names in JWTs and client certificates, and
        /// revoked tokens
        #[arg(long)]
        all: bool,
        /// Where a service keeps when they were last used; can be repeated, for several services;
        /// default: last-used.json in journal.dir of the configuration
        #[arg(long, value_name = "PATH")]
        last_used: Vec<PathBuf>,
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

#[derive(Args, Default)]
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
    /// It is of an instance that forwards what others have sent to it, also history
    #[arg(long)]
    forward: bool,
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

/// Runs a `tokens` command.
pub(crate) fn run(command: &TokensCommand, config: Option<&Path>) -> ExitCode {
    let done = match command {
        TokensCommand::Add {
            id,
            certificate: true,
            rules,
            file,
        } => file
            .new_path(config)
            .and_then(|path| add_certificate(&path, id, rules)),
        TokensCommand::Add {
            id, rules, file, ..
        } => file.new_path(config).and_then(|path| add(&path, id, rules)),
        TokensCommand::List {
            json,
            all,
            last_used,
            file,
        } => file.path(config).and_then(|path| {
            let last_used = read_last_used(last_used, config);
            list(&path, *json, *all, last_used.as_ref())
        }),
        TokensCommand::Revoke { id, file } => file.path(config).and_then(|path| revoke(&path, id)),
        TokensCommand::Rotate { id, file } => file.path(config).and_then(|path| rotate(&path, id)),
    };
    match done {
        Ok(lines) => {
            if !matches!(command, TokensCommand::List { .. }) {
                eprintln!(
                    "hourbucket: the file is changed; it applies when the service reloads (SIGHUP)"
                );
            }
            match command {
                TokensCommand::Add { id, .. } | TokensCommand::Rotate { id, .. } => {
                    print_token(id, &lines)
                }
                _ => {
                    lines.iter().for_each(|line| print_line(line));
                    ExitCode::SUCCESS
                }
            }
        }
        Err(error) => fail(error),
    }
}

/// Prints a new token. A closed pipe is an error here, since the secret is lost with it.
fn print_token(id: &str, lines: &[String]) -> ExitCode {
    for line in lines {
        let lost = match print_if_read(line) {
            Ok(true) => continue,
            Ok(false) => "standard output: its reader has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        return fail(format!(
            "the secret of {id} could not be printed, and is lost; make a new one with `hourbucket \
             tokens rotate {id}`: {lost}"
        ));
    }
    ExitCode::SUCCESS
}

impl TokensFile {
    fn path(&self, config: Option<&Path>) -> Result<PathBuf, CommandError> {
        self.path_with(|| config::load(config, config::environment()))
    }

    /// The same for a command that creates the file.
    fn new_path(&self, config: Option<&Path>) -> Result<PathBuf, CommandError> {
        self.path_with(|| config::load_for_new_tokens(config, config::environment()))
    }

    fn path_with(
        &self,
        load: impl FnOnce() -> Result<Loaded, ConfigErrors>,
    ) -> Result<PathBuf, CommandError> {
        if let Some(path) = &self.file {
            return Ok(path.clone());
        }
        let Config { http, listen, .. } = load()?.config;
        match (http.tokens_file, listen.mqtt.tokens_file) {
            (Some(http), Some(mqtt)) if http != mqtt => Err(CommandError::TwoFiles),
            (Some(path), _) | (None, Some(path)) => Ok(path),
            (None, None) => Err(CommandError::NoFile),
        }
    }
}

/// Adds a token without rules, for `init config`, and returns it; `None` if that failed, which is
/// printed.
pub(super) fn add_first(path: &Path, id: &str) -> Option<String> {
    match add(path, id, &Rules::default()) {
        Ok(lines) => lines.into_iter().next(),
        Err(error) => {
            fail(error);
            None
        }
    }
}

fn add(path: &Path, id: &str, rules: &Rules) -> Result<Vec<String>, CommandError> {
    let secret = new_secret(path)?;
    push(path, id, entry(id, Some(&secret), rules)?)?;
    Ok(vec![format!("{id}.{secret}")])
}

/// Adds an entry for a client certificate, which has no secret to print.
fn add_certificate(path: &Path, id: &str, rules: &Rules) -> Result<Vec<String>, CommandError> {
    push(path, id, entry(id, None, rules)?)?;
    Ok(vec![])
}

fn push(path: &Path, id: &str, entry: Table) -> Result<(), CommandError> {
    edit(path, true, |tokens| {
        if position(tokens, id).is_some() {
            return Err(CommandError::Exists(id.to_owned()));
        }
        tokens.push(entry);
        Ok(())
    })
}

fn revoke(path: &Path, id: &str) -> Result<Vec<String>, CommandError> {
    edit(path, false, |tokens| {
        let at = position(tokens, id).ok_or_else(|| CommandError::Unknown(id.to_owned()))?;
        if tokens.len() == 1 {
            return Err(CommandError::Last(id.to_owned()));
        }
        remove(tokens, at);
        Ok(())
    })?;
    Ok(vec![])
}

/// Removes an entry with the comment directly above it. A comment that a blank line separates, such
/// as the head of the file, stays.
fn remove(tokens: &mut ArrayOfTables, at: usize) {
    let above = |tokens: &ArrayOfTables, at| {
        let prefix = tokens
            .get(at)
            .and_then(|table| table.decor().prefix()?.as_str());
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
            if !table.contains_key("sha256") {
                return Err(CommandError::Certificate(id.to_owned()));
            }
            table["sha256"] = value(hash_secret(&secret));
        }
        Ok(())
    })?;
    Ok(vec![format!("{id}.{secret}")])
}

/// A new entry of the file; without a secret it is for a client certificate.
fn entry(id: &str, secret: Option<&str>, rules: &Rules) -> Result<Table, CommandError> {
    let mut table = Table::new();
    table["id"] = value(id);
    match secret {
        Some(secret) => table["sha256"] = value(hash_secret(secret)),
        None => table["certificate"] = value(true),
    }
    for (key, patterns, is_none) in [
        ("write", &rules.write, rules.no_write),
        ("read", &rules.read, rules.no_read),
        ("via", &rules.via, false),
    ] {
        if is_none || !patterns.is_empty() {
            table[key] = value(Array::from_iter(patterns));
        }
    }
    if rules.forward {
        table["forward"] = value(true);
    }
    if let Some(expires) = &rules.expires {
        table["expires"] = value(
            expires
                .parse::<Datetime>()
                .map_err(|_| CommandError::Expires)?,
        );
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
    tokens
        .iter()
        .position(|table| table.get("id").and_then(Item::as_str) == Some(id))
}

fn new_secret(path: &Path) -> Result<String, CommandError> {
    let mut bytes = [0; SECRET_BYTES];
    let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.map_err(io("make a secret for", path))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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
    let tokens = document
        .entry("tokens")
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    change(
        tokens
            .as_array_of_tables_mut()
            .ok_or(CommandError::NotTables)?,
    )?;
    let text = document.to_string();
    Tokens::parse(KEY, &text, path, &GrantDefaults::unlimited())?;
    Ok(text)
}

/// Opens the file and waits until no other command has it.
fn locked(path: &Path, may_create: bool) -> Result<File, CommandError> {
    loop {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(may_create)
            .mode(0o600)
            .open(path)
            .map_err(io("open", path))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(std::io::Error::from)
            .map_err(io("lock", path))?;
        let held = file.metadata().map_err(io("open", path))?;
        match std::fs::metadata(path) {
            Ok(named) if (held.dev(), held.ino()) == (named.dev(), named.ino()) => return Ok(file),
            // The command before has put another file in its place, or has removed the one that it
            // made for itself.
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io("open", path)(error)),
        }
    }
}

/// Puts a file with this text in the place of another one, with its owner and mode. The lock on the
/// old one must be held.
fn replace(path: &Path, old: &File, text: &str) -> std::io::Result<()> {
    // A link stays; the file that it names is replaced.
    let path = path.canonicalize()?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = folder.join(format!(".{name}.new"));
    // Because of the lock, it is what a killed command has left.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let meta = old.metadata()?;
        let own = file.metadata()?;
        if (meta.uid(), meta.gid()) != (own.uid(), own.gid()) {
            fchown(
                &file,
                Some(Uid::from_raw(meta.uid())),
                Some(Gid::from_raw(meta.gid())),
            )?;
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
mod tests;
