//! The readings that this instance has accepted and not stored.

use std::sync::Arc;

use super::stages::Stages;
use journal::{Journal, JournalHandle};
use pipeline::route::oldest::Oldest;

/// Knows which readings are not stored, with a journal and without one.
#[derive(Clone)]
pub(super) struct Unstored {
    journal: Option<JournalHandle>,
    oldest: Arc<Oldest>,
}

/// The unstored readings at one moment.
pub(super) struct Backlog {
    /// The age of the oldest unstored reading in milliseconds; `None` if all are stored.
    pub(super) age_ms: Option<u64>,
    /// Whether all that an earlier process has left in the journal was handed to the shards.
    pub(super) is_replayed: bool,
}

impl Unstored {
    pub(super) fn of(stages: &Stages) -> Unstored {
        Unstored {
            journal: stages.journal.as_ref().map(Journal::handle),
            oldest: stages.oldest.clone(),
        }
    }

    /// `mono_ms`: the monotonic clock.
    pub(super) fn backlog(&self, mono_ms: u64) -> Backlog {
        match self.journal.as_ref().map(JournalHandle::stats) {
            Some(stats) => Backlog {
                age_ms: stats.oldest_unstored_age_ms,
                is_replayed: stats.replay_done >= stats.replay_total,
            },
            None => Backlog {
                age_ms: self
                    .oldest
                    .since_ms()
                    .map(|since_ms| mono_ms.saturating_sub(since_ms)),
                is_replayed: true,
            },
        }
    }
}
