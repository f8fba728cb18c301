//! Reads the declared keys from the raw tree, and collects all problems instead of stopping at the
//! first. A key that is left in the end is unknown.
//!
//! A setting whose value is missing or bad keeps its default, so that reading continues. Therefore
//! [`Report::impossible`] reports nothing about keys that are already known to be bad.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::declare::{Key, List, Value, Visit, Visitor};
use super::describe::join;
use super::error::Problem;
use super::mapping::{self, Mapping};
use super::suggest::{self, pattern};
use super::tree::{Entries, Node, Origin, Raw};
use super::units::write_size;

/// The largest secret or token file to read: a password of a megabyte is a mistake.
const SECRET_MAX_BYTES: u64 = 1024 * 1024;

/// The problems so far, and the keys that were read.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
    /// Every key that was looked for, without list indexes, in that order.
    known: Vec<String>,
    /// The origin of each value that is set.
    origins: BTreeMap<String, Origin>,
    /// Keys whose value was refused, so that the default is used instead.
    unusable: BTreeSet<String>,
    /// Keys whose value is in a file that a `…_FILE` variable names, and that file.
    pub(super) value_files: Vec<(String, PathBuf)>,
    /// A `tokens_file` need not exist.
    pub(super) may_lack_tokens: bool,
    /// Keys that nothing has looked for.
    left_over: Vec<(String, Origin)>,
}

/// The problem with a value, and advice.
pub(super) struct Bad {
    what: String,
    advice: String,
}

impl Bad {
    pub(super) fn new(what: impl Display, advice: impl Into<String>) -> Bad {
        Bad {
            what: what.to_string(),
            advice: advice.into(),
        }
    }
}

impl Report {
    pub(super) fn for_new_tokens() -> Report {
        Report {
            may_lack_tokens: true,
            ..Report::default()
        }
    }

    /// Reports a bad value, which the default replaces.
    pub(super) fn bad(&mut self, key: &str, bad: Bad) {
        self.unusable.insert(key.to_owned());
        self.note(key, bad);
    }

    /// Reports values that are valid by themselves but not together. Does nothing if one of them is
    /// already known to be bad.
    pub(super) fn impossible(
        &mut self,
        keys: &[&str],
        what: impl Display,
        advice: impl Into<String>,
    ) {
        if !keys.iter().any(|key| self.unusable.contains(*key)) {
            // Point at the first key that is set explicitly.
            let key = keys
                .iter()
                .find(|key| self.is_set(key))
                .or(keys.first())
                .copied()
                .unwrap_or_default();
            self.note(key, Bad::new(what, advice));
        }
    }

    fn note(&mut self, key: &str, bad: Bad) {
        let origin = self
            .origins
            .get(key)
            .map(Origin::to_string)
            .unwrap_or_default();
        self.problems.push(Problem {
            key: key.to_owned(),
            origin,
            what: bad.what,
            advice: bad.advice,
        });
    }

    /// Whether the file or the environment sets the key.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Whether the value of a key was not refused.
    pub(super) fn is_usable(&self, key: &str) -> bool {
        !self.unusable.contains(key)
    }

    /// Turns the unread keys into problems, each with the key that was probably meant.
    pub(super) fn finish(&mut self) {
        for (key, origin) in std::mem::take(&mut self.left_over) {
            let advice = suggest::for_key(&key, &origin, &self.known);
            self.problems.push(Problem {
                key,
                origin: origin.to_string(),
                what: "no such key".into(),
                advice,
            });
        }
    }
}

/// The keys of one section (or the whole file), read one by one.
pub(super) struct Reader<'a> {
    path: String,
    entries: Entries,
    pub(super) report: &'a mut Report,
}

impl<'a> Reader<'a> {
    pub(super) fn new(path: String, entries: Entries, report: &'a mut Report) -> Reader<'a> {
        Reader {
            path,
            entries,
            report,
        }
    }

    /// The full name of a key of this section.
    pub(super) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Reads one section, and records what is left of it.
    pub(super) fn read(path: String, entries: Entries, report: &mut Report, keys: Visit<'_>) {
        let mut reader = Reader::new(path, entries, report);
        keys(&mut reader);
        reader.end();
    }

    /// Records unread keys. Call it after every key has been read.
    pub(super) fn end(self) {
        for (key, node) in &self.entries {
            let path = self.path_of(key);
            // A misspelt section is one problem. If it came from variables, it is reported once per
            // variable.
            match (&node.value, &node.origin) {
                (Raw::Table(entries), Origin::Env(_)) => {
                    Reader::new(path, entries.clone(), &mut *self.report).end();
                }
                _ => self.report.left_over.push((path, node.origin.clone())),
            }
        }
    }

    /// The keys of a section; a problem if it is none.
    fn table(&mut self, path: &str, node: Node, advice: String) -> Option<Entries> {
        self.report.origins.insert(path.to_owned(), node.origin);
        match node.value {
            Raw::Table(entries) => Some(entries),
            other => {
                let what = format!("expected a section, found {}", other.kind());
                self.report.bad(path, Bad::new(what, advice));
                None
            }
        }
    }

    /// A section below this one; empty if it is missing.
    fn below(&mut self, path: &str, name: &str) -> Entries {
        let advice = format!("write [{path}] with its keys below");
        let node = self.entries.remove(name);
        let entries = node.and_then(|node| self.table(path, node, advice));
        entries.unwrap_or_default()
    }

    /// The named sections below this one: name, path and keys of each.
    pub(super) fn named(&mut self, key: &str) -> Vec<(String, String, Entries)> {
        let path = self.path_of(key);
        let mut sections = Vec::new();
        for (name, node) in self.below(&format!("{path}.NAME"), key) {
            let path = format!("{path}.{name}");
            let advice = format!("write [{path}] with its keys below");
            if let Some(entries) = self.table(&path, node, advice) {
                sections.push((name, path, entries));
            }
        }
        sections
    }

    /// The elements of a list of sections, each with its path.
    pub(super) fn sections(&mut self, key: &str) -> Vec<(String, Entries)> {
        let path = self.path_of(key);
        let advice = format!("write [[{}]], once for each", pattern(&path));
        let Some(node) = self.entries.remove(key) else {
            return Vec::new();
        };
        self.report.origins.insert(path.clone(), node.origin);
        let Raw::List(items) = node.value else {
            let what = format!("expected a list of sections, found {}", node.value.kind());
            self.report.bad(&path, Bad::new(what, advice));
            return Vec::new();
        };
        let mut sections = Vec::with_capacity(items.len());
        for (i, item) in items.into_iter().enumerate() {
            let path = format!("{path}[{i}]");
            if let Some(entries) = self.table(&path, item, advice.clone()) {
                sections.push((path, entries));
            }
        }
        sections
    }

    /// Removes a value from the tree. If a `…_FILE` variable is set, reads the value from the file
    /// that it names.
    fn take(&mut self, key: &str) -> Option<Node> {
        let path = self.path_of(key);
        self.report.known.push(pattern(&path));
        let node = self.entries.remove(key);
        let node = match self.take_pointer(key) {
            Some(pointer) => self.follow(&path, node, pointer),
            None => node,
        };
        if let Some(node) = &node {
            self.report.origins.insert(path, node.origin.clone());
        }
        node
    }

    /// `<key>_file`, only if the environment sets it: in the file, keys with this ending are
    /// independent keys.
    fn take_pointer(&mut self, key: &str) -> Option<Node> {
        let pointer = format!("{key}_file");
        matches!(self.entries.get(&pointer)?.origin, Origin::Env(_))
            .then(|| self.entries.remove(&pointer))
            .flatten()
    }

    fn follow(&mut self, path: &str, direct: Option<Node>, pointer: Node) -> Option<Node> {
        if let Some(Node {
            origin: Origin::Env(name),
            ..
        }) = &direct
        {
            let what = format!("set twice, by {name} and by {}", pointer.origin);
            self.report
                .bad(path, Bad::new(what, "remove one of the two"));
            return direct;
        }
        let file = Path::new(pointer.text().unwrap_or_default());
        let text = match read_secret(file) {
            Ok(text) => text,
            Err(error) => {
                self.report.origins.insert(path.to_owned(), pointer.origin);
                self.report.bad(path, error.into());
                return None;
            }
        };
        self.report
            .value_files
            .push((path.to_owned(), file.to_owned()));
        Some(Node {
            origin: pointer.origin,
            value: Raw::Text(text),
        })
    }
}

/// Reads each key into the value of its declaration.
impl Visitor for Reader<'_> {
    fn key(&mut self, key: &Key, value: &mut dyn Value) {
        let path = self.path_of(key.name);
        let node = self.take(key.name);
        let read = match node {
            Some(node) => value.read(&node),
            None if key.is_required && !self.report.is_set(&path) => {
                let example = key.example.unwrap_or_default();
                let advice = format!("write for example {} = {example}", key.name);
                Err(Bad::new("missing", advice))
            }
            None => Ok(()),
        };
        let may_be_missing = key.name == "tokens_file" && self.report.may_lack_tokens;
        let read = read.and_then(|()| match value.file() {
            Some(file) => readable(&file, may_be_missing),
            None => Ok(()),
        });
        if let Err(bad) = read {
            self.report.bad(&path, bad);
        }
    }

    fn section(&mut self, key: &Key, keys: Visit<'_>) {
        let path = self.path_of(key.name);
        let entries = self.below(&path, key.name);
        Reader::read(path, entries, self.report, keys);
    }

    fn list(&mut self, key: &Key, list: &mut dyn List) {
        for (path, entries) in self.sections(key.name) {
            let i = list.len();
            list.push();
            Reader::read(path, entries, self.report, &mut |reader| {
                list.visit(i, reader);
            });
        }
    }

    fn formats(&mut self, _: &Key, formats: &mut Vec<Arc<Mapping>>) {
        *formats = mapping::read_formats(self);
    }
}

/// Whether a file can be read now.
fn readable(path: &Path, may_be_missing: bool) -> Result<(), Bad> {
    let what = match std::fs::File::open(path).and_then(|file| file.metadata()) {
        Ok(found) if found.is_dir() => format!("{} is a directory", path.display()),
        Ok(_) => return Ok(()),
        Err(e) if may_be_missing && e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => format!("{} cannot be read: {e}", path.display()),
    };
    Err(Bad::new(what, PATH_ADVICE))
}

pub(super) const PATH_ADVICE: &str =
    "name a readable file; a path without a leading / is relative to the working directory";

/// Why a file that holds a secret cannot be used. The text contains nothing of the file.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The error of the call.
        source: std::io::Error,
    },
    /// A secret is never that large.
    #[error("{} is larger than {}", path.display(), write_size(SECRET_MAX_BYTES))]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file contains no secret.
    #[error("{} is empty", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
}

impl From<SecretFileError> for Bad {
    fn from(error: SecretFileError) -> Bad {
        let advice = match error {
            SecretFileError::Read { .. } | SecretFileError::TooLarge { .. } => PATH_ADVICE,
            SecretFileError::Empty { .. } => "write the value into the file",
        };
        Bad::new(error, advice)
    }
}

/// Reads a secret from a file, without the line ending that editors and `echo` append.
pub(super) fn read_secret(path: &Path) -> Result<String, SecretFileError> {
    let unreadable = |source| SecretFileError::Read {
        path: path.to_owned(),
        source,
    };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > SECRET_MAX_BYTES {
        return Err(SecretFileError::TooLarge {
            path: path.to_owned(),
        });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| {
        text.strip_suffix('\r').unwrap_or(text)
    });
    if text.is_empty() {
        return Err(SecretFileError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(text.to_owned())
}

/// The problem of a value of the wrong type or form.
pub(super) fn wrong(node: &Node, advice: &str) -> Bad {
    Bad::new(format!("{} is not understood", excerpt(node)), advice)
}

pub(super) fn out_of_range(node: &Node, advice: &str) -> Bad {
    Bad::new(format!("{} is out of range", excerpt(node)), advice)
}

/// A value for a message, cut if it is long. Never used for secrets.
fn excerpt(node: &Node) -> String {
    match &node.value {
        Raw::Text(text) => quoted(text),
        Raw::Integer(n) => n.to_string(),
        Raw::Flag(flag) => flag.to_string(),
        Raw::Fraction(text) => text.clone(),
        other => other.kind().to_owned(),
    }
}

/// A text for a message, cut if it is long. Never used for secrets.
pub(super) fn quoted(text: &str) -> String {
    let start: String = text.chars().take(100).collect();
    format!("\"{}\"", start.escape_debug())
}

/// The advice `write "a", "b" or "c"`.
pub(super) fn one_of(names: impl IntoIterator<Item = impl Display>) -> String {
    let names: Vec<String> = names
        .into_iter()
        .map(|name| format!("\"{name}\""))
        .collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("write {} or {last}", rest.join(", ")),
        _ => format!("write {}", names.concat()),
    }
}
