//! The directory of an export: its finished files, and where an interrupted run continues.
//!
//! `export.json` has the parameters, the finished files and the place behind them. A file gets its
//! name when it is complete and durable; then `export.json` is replaced. After a crash in between, the
//! next run writes that file again, under the same name. What earlier runs have not finished is in a
//! file whose name begins with a dot, which is begun again.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::group::Place;

/// Its name in the directory.
const STATE: &str = "export.json";
/// Bytes that are written together.
const BUFFER_BYTES: usize = 256 << 10;

/// What decides the content of the files, by its option.
pub(super) type Parameters = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) parameters: Parameters,
    /// Days that begin before this time (ms since 1970) are complete; `None`: none.
    pub(super) day_ms: Option<i64>,
    /// Where the day that begins then continues; `None`: at its start.
    pub(super) place: Option<Place>,
    pub(super) is_complete: bool,
    pub(super) readings: u64,
    /// Readings that were counted and are stored nowhere.
    pub(super) lost: u64,
    pub(super) files: Vec<String>,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: not the state of an export; use another directory", .0.display())]
    Content(PathBuf),
    #[error(
        "{} has an export with other parameters ({differences}); repeat them, or use another \
         directory", path.display()
    )]
    OtherParameters { path: PathBuf, differences: String },
    #[error("another export into {} is running; wait until it has ended", .0.display())]
    Held(PathBuf),
    #[error(
        "{} has files that are of no export; use another directory, or remove them", .0.display()
    )]
    NotEmpty(PathBuf),
}

/// The directory, locked until it is closed.
pub(super) struct Directory {
    path: PathBuf,
    held: File,
}

impl Directory {
    /// Creates it if it is missing.
    pub(super) fn hold(path: &Path) -> Result<Directory, StateError> {
        std::fs::create_dir_all(path).map_err(failed(path))?;
        let held = File::open(path).map_err(failed(path))?;
        match held.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::Held(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(path)(error)),
        }
        let path = path.to_owned();
        Ok(Directory { path, held })
    }

    /// The state of an export with these parameters: of an earlier run, or a new one.
    pub(super) fn load(&self, parameters: Parameters) -> Result<State, StateError> {
        let path = self.path.join(STATE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A run that was killed as it began has left only this.
                let partial = format!(".{STATE}.partial");
                let is_other = |entry: &io::Result<std::fs::DirEntry>| {
                    entry
                        .as_ref()
                        .map_or(true, |entry| entry.file_name() != *partial)
                };
                let entries = std::fs::read_dir(&self.path).map_err(failed(&self.path))?;
                let mut entries = entries.filter(is_other);
                let state = State {
                    parameters,
                    ..State::default()
                };
                return match entries.next() {
                    Some(_) => Err(StateError::NotEmpty(self.path.clone())),
                    None => self.save(&state).map(|()| state),
                };
            }
            Err(error) => return Err(failed(&path)(error)),
        };
        let state: State =
            serde_json::from_slice(&bytes).map_err(|_| StateError::Content(path.clone()))?;
        if state.parameters != parameters {
            let of = |parameters: &Parameters, name: &String| {
                parameters.get(name).cloned().unwrap_or_default()
            };
            let names = state.parameters.keys().chain(parameters.keys());
            let mut differences: Vec<String> = names
                .filter(|name| state.parameters.get(*name) != parameters.get(*name))
                .map(|name| format!("{name} {}", of(&state.parameters, name)))
                .collect();
            differences.sort_unstable();
            differences.dedup();
            return Err(StateError::OtherParameters {
                path: self.path.clone(),
                differences: differences.join(", "),
            });
        }
        Ok(state)
    }

    /// Replaces the state as a whole.
    pub(super) fn save(&self, state: &State) -> Result<(), StateError> {
        let (mut out, file) = self.create(STATE)?;
        let written = serde_json::to_writer_pretty(&mut out, state).map_err(io::Error::from);
        written.map_err(failed(&file.partial))?;
        self.finish(out, &file)
    }

    /// Begins a file, which gets its name when it is finished.
    pub(super) fn create(&self, name: &str) -> Result<(Out, NewFile), StateError> {
        let partial = self.path.join(format!(".{name}.partial"));
        let path = self.path.join(name);
        let file = File::create(&partial).map_err(failed(&partial))?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok((out, NewFile { partial, path }))
    }

    /// Gives a file its name, durably.
    pub(super) fn finish(&self, mut out: Out, file: &NewFile) -> Result<(), StateError> {
        let mut finish = || {
            out.flush()?;
            out.get_ref().sync_all()?;
            std::fs::rename(&file.partial, &file.path)?;
            self.held.sync_all()
        };
        finish().map_err(failed(&file.partial))
    }

    /// Removes what an interrupted run may have left under this name.
    pub(super) fn remove(&self, name: &str) -> Result<(), StateError> {
        for name in [name, &format!(".{name}.partial")] {
            let path = self.path.join(name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed(&path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Where a file is written.
pub(super) type Out = BufWriter<File>;

/// The names of a file that is being written.
pub(super) struct NewFile {
    pub(super) partial: PathBuf,
    path: PathBuf,
}

fn failed(path: &Path) -> impl Fn(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Io {
        path: path.clone(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(format: &str) -> Parameters {
        [("--format".to_owned(), format.to_owned())].into()
    }

    #[test]
    fn a_directory_has_one_export_which_one_run_continues() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let directory = Directory::hold(&path).unwrap();
        let again = Directory::hold(&path).err().unwrap();
        assert!(matches!(again, StateError::Held(_)), "{again}");
        let mut state = directory.load(parameters("csv")).unwrap();
        state.readings = 7;
        directory.save(&state).unwrap();
        drop(directory);
        let directory = Directory::hold(&path).unwrap();
        assert_eq!(directory.load(parameters("csv")).unwrap(), state);
        let other = directory.load(parameters("parquet")).unwrap_err();
        assert!(other.to_string().contains("(--format csv)"), "{other}");
        std::fs::write(path.join(STATE), "{}x").unwrap();
        let damaged = directory.load(parameters("csv")).unwrap_err();
        assert!(matches!(damaged, StateError::Content(_)), "{damaged}");
        std::fs::remove_file(path.join(STATE)).unwrap();
        std::fs::write(path.join(".export.json.partial"), "{").unwrap();
        assert_eq!(directory.load(parameters("csv")).unwrap().readings, 0);
        std::fs::remove_file(path.join(STATE)).unwrap();
        std::fs::write(path.join("2024-03-01-000.csv"), "").unwrap();
        let foreign = directory.load(parameters("csv")).unwrap_err();
        assert!(matches!(foreign, StateError::NotEmpty(_)), "{foreign}");
    }

    #[test]
    fn a_file_has_its_name_when_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::hold(dir.path()).unwrap();
        let (mut out, file) = directory.create("a").unwrap();
        out.write_all(b"x").unwrap();
        let path = dir.path().join("a");
        assert!(!path.exists());
        directory.finish(out, &file).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        directory.remove("a").unwrap();
        directory.remove("a").unwrap();
        assert!(!path.exists());
    }
}
