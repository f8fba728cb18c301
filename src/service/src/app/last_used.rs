//! Keeps when senders and readers were last accepted in a file next to the journal ([`LastUsed`]):
//! once a minute if it changed, and at the end. Ingest is not involved: it notes a time in memory,
//! and this reads it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use config::Config;
use model::Clock;
use net::access::{LAST_USED_FILE, LastUsed, Usages};

/// The shortest time between two writes.
const EVERY: Duration = Duration::from_secs(60);

/// The file and its contents.
pub(super) struct LastUsedFile {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    usages: Usages,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The contents last read or written; `None`: the file was not read yet.
    kept: Option<LastUsed>,
    /// The failure was logged.
    is_failing: bool,
}

impl LastUsedFile {
    /// Nothing is read or written yet.
    pub(super) fn new(config: &Config, clock: Arc<dyn Clock>, usages: Usages) -> Arc<LastUsedFile> {
        let path = config.journal.dir.join(LAST_USED_FILE);
        Arc::new(LastUsedFile {
            path,
            clock,
            usages,
            state: Mutex::default(),
        })
    }

    /// Updates the file until the service ends.
    pub(super) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.update().await;
        }
    }

    /// Writes the file if a time has changed.
    pub(super) async fn update(&self) {
        let mut state = self.state.lock().await;
        let before = match &state.kept {
            Some(kept) => kept.clone(),
            None => self.load_earlier().await,
        };
        let mut now = before.clone();
        self.usages.note_last_uses(&mut now);
        now.limit();
        // The first file says since when it knows. Without tokens and the like there is nothing to
        // know.
        let is_first = state.kept.is_none() && !self.usages.is_empty();
        if now == before && !is_first {
            state.kept = Some(now);
            return;
        }
        let path = self.path.clone();
        let written = now.clone();
        let result = tokio::task::spawn_blocking(move || written.write(&path)).await;
        match result.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {
                *state = State {
                    kept: Some(now),
                    is_failing: false,
                }
            }
            // With `ack = "stored"` there need not be a journal.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if state.is_failing => {
                tracing::debug!(%error, "cannot keep when tokens were last used")
            }
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%error, %path, "cannot keep when tokens were last used; trying \
                    again each minute");
                state.is_failing = true;
            }
        }
    }

    /// What an earlier process has left.
    async fn load_earlier(&self) -> LastUsed {
        let path = self.path.clone();
        let now_s = self.clock.now().wall_ms / 1000;
        let read = tokio::task::spawn_blocking(move || LastUsed::load(&path)).await;
        read.unwrap_or_else(|error| Err(io::Error::other(error))).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let path = self.path.display();
                tracing::warn!(%error, %path, "cannot read when tokens were last used; beginning \
                    again");
            }
            LastUsed::new(now_s)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use model::SystemClock;

    /// A service's file in this folder.
    fn file(dir: &Path) -> (Arc<LastUsedFile>, Usages) {
        let mut config = Config::default();
        let usages = Usages::default();
        config.journal.dir = dir.to_owned();
        (
            LastUsedFile::new(&config, Arc::new(SystemClock::new()), usages.clone()),
            usages,
        )
    }

    #[tokio::test]
    async fn uses_are_written_if_there_are_any_and_kept_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LAST_USED_FILE);
        let (one, usages) = file(dir.path());
        one.update().await;
        assert!(!path.exists(), "no sender is known");
        let a = usages.find_or_add("a");
        let b = usages.find_or_add("b");
        a.note_used(1_763_856_000_999);
        one.update().await;
        let read = LastUsed::load(&path).unwrap();
        assert_eq!(
            (read.find("a").as_deref(), read.find("b")),
            (Some("2025-11-23T00:00:00Z"), None)
        );
        std::fs::remove_file(&path).unwrap();
        one.update().await;
        assert!(!path.exists(), "nothing has changed");
        b.note_used(1_763_856_060_000);
        one.update().await;
        let (two, usages) = file(dir.path());
        usages.find_or_add("a").note_used(1_763_856_120_000);
        two.update().await;
        let read = LastUsed::load(&path).unwrap();
        assert_eq!(read.find("a").as_deref(), Some("2025-11-23T00:02:00Z"));
        assert_eq!(
            read.find("b").as_deref(),
            Some("2025-11-23T00:01:00Z"),
            "of the process before"
        );
    }

    #[tokio::test]
    async fn a_first_file_says_since_when_it_knows_and_a_damaged_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LAST_USED_FILE);
        std::fs::write(&path, "{").unwrap();
        let (one, usages) = file(dir.path());
        usages.find_or_add("a");
        one.update().await;
        let read = LastUsed::load(&path).unwrap();
        assert!(
            read.is_empty() && read.unused_since().starts_with("20"),
            "{read:?}"
        );
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let (one, usages) = file(&gone);
        usages.find_or_add("a").note_used(1_763_856_000_000);
        one.update().await;
        std::fs::create_dir(&gone).unwrap();
        std::fs::create_dir(gone.join("last-used.new")).unwrap();
        one.update().await;
        assert!(one.state.lock().await.is_failing);
        std::fs::remove_dir(gone.join("last-used.new")).unwrap();
        one.update().await;
        assert!(
            LastUsed::load(&gone.join(LAST_USED_FILE))
                .unwrap()
                .find("a")
                .is_some(),
            "it is written when it can be"
        );
    }
}
