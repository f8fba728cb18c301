//! The believed state of the stored bucket: its last page, and how much room that page's summary
//! has left. Pure.
//!
//! **The summary's size.** A page's summary has a limit in bytes
//! ([`super::PageLimits::summary_bytes`]; `half` below is half of it). Its size is estimated from
//! above: each statement adds the bytes of its fields as if all of them were new. For fields that
//! repeat this becomes far too much after some time. So beyond `half` the page's head is loaded
//! once, which returns the exact size.
//! - At most `half`: the estimate starts again from there, and can grow by at least `half`. So
//!   there is at most one load per `half` bytes of names written.
//! - More: the next statement fills the page as far as there is room, and seals it. The rest goes
//!   to the next page.
//!
//! An exact size is not requested again before the next write, so this rule never causes one load
//! after another.
//!
//! **The page's gate** ([`Gate`]). The second append to a page opens it: a page of one or two
//! statements needs none. After a load, the next append compares the page's fields and opens the
//! gate again, so nothing depends on what a gate in the store looks like. After an append through
//! the gate that is refused, for whatever reason, the bucket is loaded; so the same statement is
//! never refused by the gate twice.

use super::super::dedup::Position;
use super::PageLimits;
use model::{Gate, PageKind, PageWrite, StorageMode, summary};
use store::LoadedBucket;

/// The believed state of the stored bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredState {
    /// Unknown: load before writing.
    Unknown,
    /// Not stored yet.
    New,
    /// Its last page.
    Page {
        page: u32,
        /// The version: readings in the page.
        count: u32,
        /// Upper bound of its readings as a BSON array. A page has less than 16 MiB.
        bytes: u32,
        sealed: bool,
        summary: SummaryBytes,
        /// Of the next append, unless it seals the page.
        gate: Gate,
    },
}

impl StoredState {
    pub(super) fn from_loaded(bucket: &LoadedBucket) -> StoredState {
        let Some(last) = bucket.pages.last() else {
            return StoredState::New;
        };
        StoredState::Page {
            page: bucket.pages.len() as u32 - 1,
            count: last.count,
            bytes: u32::try_from(last.bytes).unwrap_or(u32::MAX),
            sealed: last.sealed,
            summary: SummaryBytes::known(last.summary_bytes),
            gate: Gate::Opens,
        }
    }

    /// The position (page, count) after the last reading that is known to be stored.
    pub(super) fn end(self) -> Position {
        match self {
            StoredState::Unknown | StoredState::New => (0, 0),
            StoredState::Page { page, count, .. } => (page, count),
        }
    }

    /// Whether both are the same version of the same page.
    pub(super) fn is_same_page(self, other: StoredState) -> bool {
        match (self, other) {
            (StoredState::Page { sealed: a, .. }, StoredState::Page { sealed: b, .. }) => {
                a == b && self.end() == other.end()
            }
            _ => false,
        }
    }

    /// The state after the store has accepted `write`, whose readings take `bytes` as an array.
    /// `count`: readings in the page now.
    pub(super) fn after(self, write: &PageWrite, bytes: u64, count: u32) -> StoredState {
        let as_believed = count == write.count_after();
        let before = match (write.kind, self) {
            (PageKind::Append { .. }, StoredState::Page { bytes, .. }) if as_believed => {
                u64::from(bytes)
            }
            _ => 0,
        };
        let written = summary::stored_bytes(write.rows.fields(), &write.summary);
        let summary = match (write.kind, self) {
            (PageKind::Append { .. }, StoredState::Page { summary, .. }) if as_believed => {
                summary.plus(written)
            }
            // A new page; or the append has created a page again that had been deleted.
            _ => SummaryBytes::known(written),
        };
        StoredState::Page {
            page: write.page,
            count,
            bytes: match write.storage_mode {
                StorageMode::TimeSeries => 0,
                StorageMode::Bucket => u32::try_from(before + bytes).unwrap_or(u32::MAX),
            },
            sealed: write.seal,
            summary,
            gate: match write.kind {
                PageKind::Create => Gate::Closes,
                PageKind::Append { gate, .. } if as_believed => {
                    gate.opened().map_or(Gate::Opens, Gate::Passes)
                }
                PageKind::Append { .. } => Gate::Opens,
            },
        }
    }
}

/// Bytes of a page's summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SummaryBytes {
    at_most: u32,
    /// `at_most` is the exact size.
    is_known: bool,
}

impl SummaryBytes {
    pub(super) const NONE: SummaryBytes = SummaryBytes {
        at_most: 0,
        is_known: true,
    };

    fn known(bytes: u64) -> SummaryBytes {
        SummaryBytes {
            at_most: u32::try_from(bytes).unwrap_or(u32::MAX),
            is_known: true,
        }
    }

    fn plus(self, bytes: u64) -> SummaryBytes {
        let more = u32::try_from(bytes).unwrap_or(u32::MAX);
        SummaryBytes {
            at_most: self.at_most.saturating_add(more),
            is_known: self.is_known && more == 0,
        }
    }

    /// Whether the exact size is needed before more is written to the page.
    pub(super) fn must_be_looked_up(self, limits: PageLimits) -> bool {
        !self.is_known && self.beyond_half(limits)
    }

    /// Whether the next statement is the page's last.
    pub(super) fn is_full(self, limits: PageLimits) -> bool {
        self.is_known && self.beyond_half(limits)
    }

    fn beyond_half(self, limits: PageLimits) -> bool {
        u64::from(self.at_most) > limits.summary_bytes / 2
    }

    /// Bytes that the next statement's summary may have.
    pub(super) fn room(self, limits: PageLimits) -> u64 {
        limits.summary_bytes.saturating_sub(u64::from(self.at_most))
    }
}
