//! Reads dead letters of the journal again that the follower has returned, for a router that had no
//! room for them. Their acknowledgement keeps their segments.

use std::sync::Arc;

use super::error::JournalFailure;
use super::read_back::{Position, ReadLimits, SegmentReader, read_back};
use super::shared::Shared;
use super::tracker::EntryKind;
use model::DeadLetter;

/// Reads entries from the segments, in order.
pub struct SecondReader {
    shared: Arc<Shared>,
    reader: Option<SegmentReader>,
}

impl std::fmt::Debug for SecondReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecondReader").finish_non_exhaustive()
    }
}

impl SecondReader {
    pub(super) fn new(shared: Arc<Shared>) -> SecondReader {
        SecondReader {
            shared,
            reader: None,
        }
    }

    /// The dead letters from `from` up to the entry `last_seq`, by entry, about 1 MiB of them, and
    /// where the rest begins; `None` there if that is all.
    ///
    /// # Errors
    /// The journal cannot be read. It is reported, and ends the service.
    pub async fn dead_letters(
        &mut self,
        from: Position,
        last_seq: u64,
    ) -> Result<(Vec<Vec<DeadLetter>>, Option<Position>), JournalFailure> {
        let mut blocking = SecondReader {
            shared: self.shared.clone(),
            reader: self.reader.take(),
        };
        let read = tokio::task::spawn_blocking(move || {
            let read = blocking.dead_letters_now(from, last_seq);
            (blocking.reader, read)
        });
        let (reader, read) = read.await.unwrap_or((None, Err(JournalFailure::Panicked)));
        self.reader = reader;
        read
    }

    /// Like [`SecondReader::dead_letters`], in the calling thread.
    ///
    /// # Errors
    /// See [`SecondReader::dead_letters`].
    pub fn dead_letters_now(
        &mut self,
        from: Position,
        last_seq: u64,
    ) -> Result<(Vec<Vec<DeadLetter>>, Option<Position>), JournalFailure> {
        let limits = ReadLimits {
            last_seq,
            dead_only: true,
        };
        let read = read_back(&self.shared, from, self.reader.take(), limits)
            .and_then(|read| {
                // Their acknowledgement keeps the segments, so there is something to read.
                let first_seq = from.next_seq;
                let is_stuck = read.next.next_seq == first_seq;
                (!is_stuck)
                    .then_some(read)
                    .ok_or(JournalFailure::NotDelivered { first_seq })
            })
            .inspect_err(|failure| self.shared.break_for(failure))?;
        self.reader = read.reader;
        let dead_letters = read.items.into_iter().filter_map(|item| match item.kind {
            EntryKind::Dead(dead_letters) => Some(dead_letters),
            EntryKind::Readings(_) => None,
        });
        let has_more = read.next.next_seq <= last_seq;
        Ok((dead_letters.collect(), has_more.then_some(read.next)))
    }

    /// Whether the journal is three quarters full, mostly of entries that the follower has handed
    /// over: they wait for an older one that is not stored.
    pub fn is_crowded(&self) -> bool {
        self.shared.is_crowded()
    }
}
