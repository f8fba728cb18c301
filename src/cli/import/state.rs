//! What an import remembers of a file, so that a later run continues where this one ended.
//!
//! It is only a hint: each record is stored once, however often it is sent, because the service
//! recognises a reading that it has stored. So the file is written after the service has
//! acknowledged, and may be lost.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Rejected records with the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Rejected {
    pub(super) records: u64,
    /// Line and detail of the one with the lowest line.
    pub(super) line: u64,
    pub(super) detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// The options that decide what a record means.
    pub(super) options: String,
    /// See [`super::source::fingerprint`].
    pub(super) fingerprint: String,
    /// Bytes and lines of the content before which every record is acknowledged.
    pub(super) offset: u64,
    pub(super) lines: u64,
    /// The lines before those that the counts are about.
    #[serde(default)]
    pub(super) counted_after: u64,
    pub(super) accepted: u64,
    pub(super) rejected: BTreeMap<String, Rejected>,
    /// The end of the file was reached.
    pub(super) complete: bool,
    /// The last line that was read. One without an end comes after `lines`.
    #[serde(skip)]
    pub(super) last_line: u64,
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{}: not the state of an import; remove it, or use --restart", .0.display())]
    Content(PathBuf),
}

impl State {
    /// The path of a file's state: in `dir`, or next to the file.
    pub(super) fn path(file: &Path, dir: Option<&Path>) -> PathBuf {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".import");
        match dir {
            Some(dir) => dir.join(name),
            None => file.with_file_name(name),
        }
    }

    /// `None`: there is none.
    pub(super) fn load(path: &Path) -> Result<Option<State>, StateError> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|_| StateError::Content(path.to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StateError::Io {
                path: path.to_owned(),
                error,
            }),
        }
    }

    /// Replaces the file as a whole.
    pub(super) fn save(&self, path: &Path) -> Result<(), StateError> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let write = || {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            std::fs::rename(&new, path)
        };
        write().map_err(|error| StateError::Io {
            path: path.to_owned(),
            error,
        })
    }

    /// Begins a run with counts of its own. Those of a run that did not reach the end go on: its
    /// rejects were not reported.
    pub(super) fn begin(&mut self) {
        if self.complete {
            (self.accepted, self.counted_after) = (0, self.lines);
            self.rejected.clear();
        }
        self.complete = false;
        self.last_line = self.lines;
    }

    /// Counts, and the rejects by reason.
    pub(super) fn summary(&self, path: &Path) -> String {
        let rejected: u64 = self.rejected.values().map(|r| r.records).sum();
        let after = match self.counted_after {
            0 => String::new(),
            line => format!(" after line {line}"),
        };
        let mut lines = vec![format!(
            "{}: {} lines{after}: {} readings accepted (those already stored included), {rejected} \
             rejected",
            path.display(),
            self.last_line.saturating_sub(self.counted_after),
            self.accepted
        )];
        for (
            reason,
            Rejected {
                records,
                line,
                detail,
            },
        ) in &self.rejected
        {
            lines.push(format!(
                "  {records} {reason}, first on line {line}: {detail}"
            ));
        }
        // Of standard input there is no next run.
        if self.last_line > self.lines && path.as_os_str() != "-" {
            let line = self.lines + 1;
            lines.push(format!(
                "  line {line} has no line end; the next run reads it again"
            ));
        }
        lines.join("\n")
    }

    pub(super) fn reject(&mut self, reason: &str, line: u64, detail: &str) {
        let rejected = self.rejected.entry(reason.to_owned()).or_default();
        // Those that the service rejects and those that are not sent are counted one after the
        // other.
        if rejected.records == 0 || line < rejected.line {
            (rejected.line, rejected.detail) = (line, detail.to_owned());
        }
        rejected.records += 1;
    }
}
