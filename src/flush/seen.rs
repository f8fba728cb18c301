//! What the last answers of the store say about it. Shared by all stages that send commands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::store::{PageWriteResult, StoreError, StoreErrorKind};

#[derive(Debug)]
pub(super) struct StoreSeen {
    origin: Instant,
    /// When the store last answered: milliseconds after `origin`; 0 before the first answer.
    answered_ms: AtomicU64,
    /// When it last confirmed a page write, of any bucket; 0 before the first.
    page_written_ms: AtomicU64,
    /// The last page write failed, for whatever reason.
    page_writes_fail: AtomicBool,
    /// The last page write was refused for missing rights.
    page_writes_refused: AtomicBool,
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
            page_writes_refused: AtomicBool::new(false),
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

    pub(super) fn pages(&self, written: &Result<Vec<PageWriteResult>, StoreError>) {
        let is_done = |answer: &PageWriteResult| matches!(answer, PageWriteResult::Done { .. });
        if written
            .as_ref()
            .is_ok_and(|answers| answers.iter().any(is_done))
        {
            self.note_now(&self.page_written_ms);
        }
        let is_refused = |error: &StoreError| error.kind() == StoreErrorKind::Unauthorized;
        let refused = written.as_ref().is_err_and(is_refused);
        self.page_writes_refused.store(refused, Ordering::Relaxed);
        self.page_writes_fail
            .store(written.is_err(), Ordering::Relaxed);
    }

    /// How long ago the store last confirmed a page write.
    pub(super) fn page_written_ago(&self) -> Option<Duration> {
        self.ago(&self.page_written_ms)
    }

    pub(super) fn page_writes_fail(&self) -> bool {
        self.page_writes_fail.load(Ordering::Relaxed)
    }

    pub(super) fn page_writes_refused(&self) -> bool {
        self.page_writes_refused.load(Ordering::Relaxed)
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
