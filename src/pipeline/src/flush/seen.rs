//! What the last answers of the store say about it. Shared by all stages that send commands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use store::{PageWriteResult, StoreError, StoreErrorKind};

/// What the answers to page writes show about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PagesShow {
    /// It stores pages.
    Stored,
    /// It does not.
    Failed(StoreError),
    /// Conflicts and rejects show neither: no page was changed.
    Nothing,
}

impl PagesShow {
    pub(super) fn from_answers(written: &Result<Vec<PageWriteResult>, StoreError>) -> PagesShow {
        let answers = match written {
            Ok(answers) => answers,
            Err(error) => return PagesShow::Failed(error.clone()),
        };
        let is_done = |answer: &PageWriteResult| matches!(answer, PageWriteResult::Done { .. });
        if answers.iter().any(is_done) {
            return PagesShow::Stored;
        }
        let failed = answers.iter().find_map(|answer| match answer {
            PageWriteResult::Unknown { detail } => Some(PagesShow::Failed(StoreError::Unknown {
                kind: StoreErrorKind::Command,
                detail: detail.clone(),
            })),
            _ => None,
        });
        failed.unwrap_or(PagesShow::Nothing)
    }
}

#[derive(Debug)]
pub(super) struct StoreSeen {
    origin: Instant,
    /// When the store last answered: milliseconds after `origin`; 0 before the first answer.
    answered_ms: AtomicU64,
    /// When it last confirmed a page write, of any bucket; 0 before the first.
    page_written_ms: AtomicU64,
    /// A page write has failed, for whatever reason, and none was confirmed since.
    page_writes_fail: AtomicBool,
    /// The error of the last dead letters, unless they were stored.
    dead_letters_fail: Mutex<Option<String>>,
}

impl StoreSeen {
    pub(super) fn new() -> StoreSeen {
        StoreSeen {
            origin: Instant::now(),
            answered_ms: AtomicU64::new(0),
            page_written_ms: AtomicU64::new(0),
            page_writes_fail: AtomicBool::new(false),
            dead_letters_fail: Mutex::default(),
        }
    }

    pub(super) fn answer(&self) {
        self.note_now(&self.answered_ms);
    }

    /// How long ago the store last answered.
    pub(super) fn answered_ago(&self) -> Option<Duration> {
        self.ago(&self.answered_ms)
    }

    pub(super) fn pages(&self, show: &PagesShow) {
        match show {
            PagesShow::Stored => {
                self.note_now(&self.page_written_ms);
                self.page_writes_fail.store(false, Ordering::Relaxed);
            }
            PagesShow::Failed(_) => self.page_writes_fail.store(true, Ordering::Relaxed),
            PagesShow::Nothing => {}
        }
    }

    /// How long ago the store last confirmed a page write.
    pub(super) fn page_written_ago(&self) -> Option<Duration> {
        self.ago(&self.page_written_ms)
    }

    pub(super) fn page_writes_fail(&self) -> bool {
        self.page_writes_fail.load(Ordering::Relaxed)
    }

    pub(super) fn dead_letters(&self, error: Option<&StoreError>) {
        *self.dead_letters_error() = error.map(StoreError::to_string);
    }

    pub(super) fn dead_letters_fail(&self) -> Option<String> {
        self.dead_letters_error().clone()
    }

    fn dead_letters_error(&self) -> MutexGuard<'_, Option<String>> {
        self.dead_letters_fail
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.origin.elapsed().as_millis() as u64
    }

    fn note_now(&self, at_ms: &AtomicU64) {
        at_ms.fetch_max(self.now_ms().max(1), Ordering::Relaxed);
    }

    fn ago(&self, at_ms: &AtomicU64) -> Option<Duration> {
        let at_ms = at_ms.load(Ordering::Relaxed);
        let ago_ms = self.now_ms().saturating_sub(at_ms);
        (at_ms > 0).then_some(Duration::from_millis(ago_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stored_page_shows_that_the_store_writes() {
        let unknown = || PageWriteResult::Unknown {
            detail: "OutOfDiskSpace (14031)".to_owned(),
        };
        let done = PageWriteResult::Done { count: 1 };
        let rejected = PageWriteResult::Rejected {
            detail: String::new(),
        };
        let failed = PagesShow::Failed(StoreError::Unknown {
            kind: StoreErrorKind::Command,
            detail: "OutOfDiskSpace (14031)".to_owned(),
        });
        let seen = StoreSeen::new();
        for (answers, show, fail) in [
            (vec![PageWriteResult::Conflict], PagesShow::Nothing, false),
            (vec![unknown(), unknown()], failed.clone(), true),
            (
                vec![PageWriteResult::Conflict, unknown()],
                failed.clone(),
                true,
            ),
            (
                vec![PageWriteResult::Conflict, rejected],
                PagesShow::Nothing,
                true,
            ),
            (vec![unknown(), done], PagesShow::Stored, false),
        ] {
            let shown = PagesShow::from_answers(&Ok(answers));
            assert_eq!(shown, show);
            seen.pages(&shown);
            assert_eq!(seen.page_writes_fail(), fail, "{show:?}");
        }
    }
}
