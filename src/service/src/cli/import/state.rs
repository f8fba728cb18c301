//! What an import remembers of a file, so that a later run continues where this one ended.
//!
//! It is only a hint: each record is stored once, however often it is sent, because the service
//! recognises a reading that it has stored. So the file is written after the service has
//! acknowledged, and may be lost.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::source::{OpenFile, SourceError};

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
    /// The service that has acknowledged it.
    pub(super) url: String,
    /// See [`OpenFile::fingerprint`].
    pub(super) fingerprint: String,
    /// Bytes and lines of the content before which every record is acknowledged.
    pub(super) offset: u64,
    pub(super) lines: u64,
    /// The lines before those that the counts are about.
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
    #[error(
        "another import of this file is running (it holds {}); wait until it has ended",
        .0.display()
    )]
    Held(PathBuf),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(
        "the part that was imported before has changed, or was cut off; to import the file as it \
         is now, add --restart"
    )]
    Changed,
}

/// The file of a state. One import holds it at a time: two of them would send the same records, and
/// the state of one would replace that of the other.
pub(super) struct StateFile {
    path: PathBuf,
    /// Open, and locked until it is closed.
    held: File,
}

impl StateFile {
    /// The state of a file, in `dir` or next to the file. One that does not exist is created, empty.
    pub(super) fn hold(file: &Path, dir: Option<&Path>) -> Result<StateFile, StateError> {
        let path = path_of(file, dir).map_err(io_error(file))?;
        loop {
            let held = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(io_error(&path))?;
            match held.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(StateError::Held(path)),
                Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
            }
            let locked = held.metadata().map_err(io_error(&path))?;
            match std::fs::metadata(&path) {
                Ok(named) if (locked.dev(), locked.ino()) == (named.dev(), named.ino()) => {
                    return Ok(StateFile { path, held });
                }
                // Another import has put a new file in its place since it was opened.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error(&path)(error)),
            }
        }
    }

    /// The state from which an import of `file` continues. `None`: from the start.
    pub(super) fn load(&self, file: &OpenFile) -> Result<Option<State>, StateError> {
        let Some(state) = read_state(&self.path)? else {
            return Ok(None);
        };
        match file.fingerprint(state.offset)?.as_ref() == Some(&state.fingerprint) {
            true => Ok(Some(state)),
            false => Err(StateError::Changed),
        }
    }

    /// Replaces the file as a whole.
    pub(super) fn save(&mut self, state: &State) -> Result<(), StateError> {
        let mut new = self.path.as_os_str().to_owned();
        new.push(".new");
        let write = || {
            let mut file = File::create(&new)?;
            // It must be locked before it has the name of the state. No other import has it, since
            // only the one that holds the state writes.
            file.lock()?;
            file.write_all(&serde_json::to_vec_pretty(state)?)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)?;
            Ok(file)
        };
        self.held = write().map_err(io_error(&self.path))?;
        Ok(())
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Io {
        path: path.clone(),
        error,
    }
}

/// The path of a file's state.
fn path_of(file: &Path, dir: Option<&Path>) -> io::Result<PathBuf> {
    let Some(dir) = dir else {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".import");
        return Ok(file.with_file_name(name));
    };
    // Files of different directories may have the same name.
    let file = file.canonicalize()?;
    let hash = xxh3_64(file.as_os_str().as_bytes());
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{hash:016x}.import"));
    Ok(dir.join(name))
}

/// `None`: there is none, or nothing was acknowledged.
fn read_state(path: &Path) -> Result<Option<State>, StateError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(path)(error)),
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    let state: State =
        serde_json::from_slice(&bytes).map_err(|_| StateError::Content(path.to_owned()))?;
    Ok(Some(state).filter(|state| state.offset > 0))
}

impl State {
    /// Begins a run. Its counts start at zero, unless the run before did not reach the end: then they
    /// continue, because that run has not reported its rejects.
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
        // Standard input cannot be read again by another run.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> OpenFile {
        OpenFile::new(path).unwrap()
    }

    #[test]
    fn a_state_is_held_by_one_import_while_it_is_replaced_and_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.csv");
        std::fs::write(&file, "a\n").unwrap();
        let is_held = || matches!(StateFile::hold(&file, None), Err(StateError::Held(_)));
        let mut first = StateFile::hold(&file, None).unwrap();
        assert!(is_held());
        assert_eq!(first.load(&open(&file)).unwrap(), None, "empty");
        let state = State {
            offset: 2,
            lines: 1,
            fingerprint: open(&file).fingerprint(2).unwrap().unwrap(),
            ..State::default()
        };
        for _ in 0..2 {
            first.save(&state).unwrap();
            assert!(is_held());
        }
        drop(first);
        let second = StateFile::hold(&file, None).unwrap();
        assert_eq!(second.load(&open(&file)).unwrap(), Some(state));
    }

    #[test]
    fn files_with_one_name_have_states_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let states = dir.path().join("states");
        let files = ["a", "b"].map(|name| dir.path().join(name).join("d.csv"));
        for (file, text) in files.iter().zip(["a\n", "b\n"]) {
            std::fs::create_dir(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        std::fs::create_dir(&states).unwrap();
        let mut held = files
            .each_ref()
            .map(|file| StateFile::hold(file, Some(&states)).unwrap());
        let saved = files.each_ref().map(|file| State {
            offset: 2,
            lines: 1,
            fingerprint: open(file).fingerprint(2).unwrap().unwrap(),
            ..State::default()
        });
        for (held, state) in held.iter_mut().zip(&saved) {
            held.save(state).unwrap();
        }
        for ((held, file), state) in held.iter().zip(&files).zip(saved) {
            assert_eq!(held.load(&open(file)).unwrap(), Some(state));
        }
    }
}
