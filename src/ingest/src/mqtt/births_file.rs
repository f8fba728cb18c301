//! The file that keeps the births of Sparkplug B nodes over a restart, one for each broker, next to
//! the journal.
//!
//! It is written at most every [`EVERY_MS`] while births change, and at the end: to a temporary file,
//! synced, renamed, and the directory synced. A crash therefore leaves the old file or the new one.
//! A file that is damaged, or missing, costs rebirths only. Its size is bounded by
//! [`decode::sparkplug::BYTES_MAX`].

use std::io;
use std::path::{Path, PathBuf};

use tokio::task::{JoinHandle, spawn_blocking};
use xxhash_rust::xxh3::xxh3_64;

use super::collect::Collector;
use config::Mqtt;
use decode::sparkplug::Sparkplug;
use journal::fs::replace_file;

/// The shortest time between two writes.
const EVERY_MS: u64 = 5_000;

/// The file of one broker, or none.
pub(super) struct BirthsFile {
    /// For messages.
    broker: String,
    /// `None`: births are not kept.
    path: Option<PathBuf>,
    /// [`Sparkplug::changes`] of the kept births.
    kept: u64,
    /// Since when a write may start.
    due_ms: u64,
    /// The write in progress.
    write: Option<JoinHandle<()>>,
}

impl BirthsFile {
    pub(super) fn new(broker: String, path: Option<PathBuf>) -> BirthsFile {
        BirthsFile {
            broker,
            path,
            kept: 0,
            due_ms: 0,
            write: None,
        }
    }

    /// Reads the kept births. Damaged ones are ignored.
    pub(super) async fn restore(&mut self, collector: &mut Collector) {
        let Some(path) = self.path.clone() else {
            return;
        };
        let file = path.clone();
        let problem = match spawn_blocking(move || read_births(&file)).await {
            Ok(Ok(None)) | Err(_) => return,
            Ok(Ok(Some(bytes))) => collector
                .restore_births(&bytes)
                .err()
                .map(|error| error.to_string()),
            Ok(Err(error)) => Some(error.to_string()),
        };
        self.kept = collector.births().changes();
        if let Some(problem) = problem {
            let broker = &self.broker;
            let path = path.display();
            tracing::warn!(%broker, %path, problem, "kept Sparkplug births ignored; nodes will be \
                asked for new ones");
        }
    }

    /// Starts to write the births if they have changed, unless that is in progress or was done just
    /// now.
    pub(super) fn keep(&mut self, births: &Sparkplug, now_ms: u64) {
        if now_ms >= self.due_ms && self.start_write(births) {
            self.due_ms = now_ms + EVERY_MS;
        }
    }

    /// Writes the births a last time.
    pub(super) async fn keep_finally(&mut self, births: &Sparkplug) {
        self.written().await;
        self.start_write(births);
        self.written().await;
    }

    async fn written(&mut self) {
        if let Some(write) = self.write.take() {
            let _ = write.await;
        }
    }

    fn start_write(&mut self, births: &Sparkplug) -> bool {
        let changes = births.changes();
        let busy = self
            .write
            .as_ref()
            .is_some_and(|write| !write.is_finished());
        let Some(path) = self.path.clone() else {
            return false;
        };
        if changes == self.kept || busy {
            return false;
        }
        self.kept = changes;
        let bytes = births.to_bytes();
        let broker = self.broker.clone();
        self.write = Some(spawn_blocking(move || {
            if let Err(error) = replace_file(&path, &bytes) {
                tracing::warn!(%broker, path = %path.display(), %error, "cannot keep Sparkplug \
                    births");
            }
        }));
        true
    }
}

/// The file of a broker's births.
pub fn births_path(dir: &Path, broker: &Mqtt) -> PathBuf {
    let identity = format!("{}\0{}", broker.url, broker.client_id);
    dir.join(format!("births-{:016x}", xxh3_64(identity.as_bytes())))
}

/// The content; `None` if there is no file.
///
/// # Errors
/// The file cannot be read.
pub fn read_births(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => bytes.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("births-1");
        assert_eq!(read_births(&path).unwrap(), None);
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(read_births(&path).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
}
