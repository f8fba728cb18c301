//! The share of the journal that one sender uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unstored bytes of one sender in the journal. Ingest names it, and the journal counts.
#[derive(Debug, Clone, Default)]
pub struct JournalAccount(Arc<AtomicU64>);

impl JournalAccount {
    /// Bytes of the sender that are journaled and not stored.
    pub fn unstored_bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts journaled bytes.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Counts stored bytes, which were added before.
    pub fn subtract(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Distinguishes accounts while they live.
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}
