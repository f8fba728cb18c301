//! Which entries are stored, and the entries kept in memory for the follower. Pure: no lock, IO or clock.
//!
//! The follower hands entries out in *chunks*, runs of sequences behind one acknowledgement, so that the cost is paid
//! once for many entries and not once for a reading. Segments are removed from the front only, so all that matters is the
//! first sequence that may be unstored: the begin of the oldest chunk that is out, or else of what comes next. Chunks
//! may be resolved in any order; one that was given up is never resolved and holds the line for good.
//!
//! **A replay begins earlier than that** ([`Tracker::replay_from`]). A reading without a time of its own gets the time of
//! receipt. Two equal ones of one millisecond are both kept, and after a crash only counting both tells how many of them
//! are stored. So an entry that is stored is replayed too if an unstored one may hold the twin of one of its readings.
//! That is so if
//! - their times of receipt overlap (they are known exactly of every entry that was handed out), and
//! - the unstored one was appended by the same process at most [`MOMENT_MS`] after it: what is received in one
//!   millisecond is journaled in one moment, unless the wall clock is set back by more than that in between.
//!
//! An entry that is not handed out, or not even journaled, is taken for one whose times overlap. The distance between two
//! entries is taken on the monotonic clock of the process that appended them. So what a wall clock does, by any amount
//! and in either direction, neither keeps a segment longer nor begins a replay later. Where disk space is short, the rule
//! is given up for the oldest segment ([`Tracker::give_up`]): then a crash may take an unstored reading with the time of
//! receipt for its stored twin.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::model::{DeadLetter, ReadingBatch, ReceiptTimes};

/// Readings received in the same millisecond are appended within this (ms): `http.queue_timeout`, a slow fdatasync, and
/// small corrections of the wall clock (a leap second) together.
const MOMENT_MS: u64 = 5000;

/// When an entry was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Appended {
    /// By which process: see `segment`.
    pub(super) run: u32,
    /// On the monotonic clock of that process (ms).
    pub(super) mono_ms: u64,
    /// Milliseconds since 1970.
    pub(super) wall_ms: i64,
}

impl Appended {
    /// Whether this, which is not before `earlier`, is in the same moment.
    fn in_moment_of(&self, earlier: &Appended) -> bool {
        self.run == earlier.run && self.mono_ms <= earlier.mono_ms.saturating_add(MOMENT_MS)
    }
}

/// Entries behind one acknowledgement, all of one run.
#[derive(Debug)]
struct Chunk {
    /// Exclusive.
    end: u64,
    /// The first and the last of them.
    first_at: Appended,
    last_at: Appended,
    receipt_times: ReceiptTimes,
}

/// What is out and what is stored.
#[derive(Debug)]
pub(super) struct Tracker {
    /// The first sequence that was not handed out.
    next: u64,
    /// When the entry at `next` was appended, or earlier.
    next_at: Appended,
    /// The chunks that are out, by their first sequences.
    out: BTreeSet<u64>,
    /// Those, and the stored ones that a replay may need; by their first sequences.
    chunks: BTreeMap<u64, Chunk>,
}

impl Tracker {
    /// Nothing is out; `next` was appended at `next_at`.
    pub(super) fn new(next: u64, next_at: Appended) -> Tracker {
        Tracker { next, next_at, out: BTreeSet::new(), chunks: BTreeMap::new() }
    }

    /// The first sequence that was not handed out.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The entry that ends before `end` goes out, first of a chunk. Returns what the chunk is called in
    /// [`Tracker::stored`].
    pub(super) fn hand_out(&mut self, end: u64, at: Appended, receipt_times: ReceiptTimes) -> u64 {
        let first = self.next;
        self.out.insert(first);
        self.chunks.insert(first, Chunk { end, first_at: at, last_at: at, receipt_times });
        (self.next, self.next_at) = (end, at);
        first
    }

    /// The entry that ends before `end` goes out with the chunk that was handed out last, and is not stored.
    pub(super) fn extend(&mut self, end: u64, at: Appended, receipt_times: ReceiptTimes) {
        (self.next, self.next_at) = (end, at);
        if let Some(mut chunk) = self.chunks.last_entry() {
            let chunk = chunk.get_mut();
            (chunk.end, chunk.last_at) = (end, at);
            chunk.receipt_times.join(receipt_times);
        }
    }

    /// Sequences without entries are passed over.
    pub(super) fn skip_to(&mut self, end: u64) {
        self.next = self.next.max(end);
    }

    /// All of a chunk is stored.
    pub(super) fn stored(&mut self, first: u64) {
        self.out.remove(&first);
    }

    /// Entries appended at this time are the first that are not handed out.
    pub(super) fn first_in_line(&mut self, at: Appended) {
        self.next_at = at;
    }

    /// Everything before this sequence is stored.
    pub(super) fn unstored_from(&self) -> u64 {
        self.out.first().copied().unwrap_or(self.next)
    }

    /// Where a replay would begin: everything before this sequence is stored, and holds no twin of what is not. It never
    /// goes back.
    pub(super) fn replay_from(&self) -> u64 {
        self.chunks.first_key_value().map_or(self.next, |(&first, _)| first)
    }

    /// Lets go of the stored chunks that no replay needs. `end` is the end of what is journaled, `now` the earliest time at
    /// which more may be appended, if any may.
    pub(super) fn forget(&mut self, end: u64, now: Option<Appended>) {
        let line = if self.next < end { Some(self.next_at) } else { now };
        let (out, chunks) = (&self.out, &self.chunks);
        let useless = |(first, chunk): (&u64, &Chunk)| {
            let unknown = || line.is_some_and(|line| line.in_moment_of(&chunk.last_at));
            let later = || out.range(first..).map(|later| &chunks[later]);
            let twin = || {
                later()
                    .take_while(|later| later.first_at.in_moment_of(&chunk.last_at))
                    .any(|later| later.receipt_times.overlap(&chunk.receipt_times))
            };
            let needed = !chunk.receipt_times.is_empty() && (unknown() || twin());
            (!needed && !out.contains(first)).then_some(*first)
        };
        let useless: Vec<u64> = chunks.iter().filter_map(useless).collect();
        for first in useless {
            self.chunks.remove(&first);
        }
    }

    /// Lets go of what is stored before this sequence whether a replay needs it or not; nothing where that is not all.
    pub(super) fn give_up(&mut self, before: u64) {
        if before > self.unstored_from() {
            return;
        }
        let kept = self.chunks.split_off(&before);
        let straddles = std::mem::replace(&mut self.chunks, kept).pop_last().filter(|(_, chunk)| chunk.end > before);
        self.chunks.extend(straddles.map(|(_, chunk)| (before, chunk)));
    }

    /// When the oldest unstored entry was appended; `end` is the end of what is journaled.
    pub(super) fn oldest(&self, end: u64) -> Option<Appended> {
        let waiting = (self.next < end).then_some(self.next_at);
        self.out.first().map(|first| self.chunks[first].first_at).or(waiting)
    }
}

/// What an entry holds.
#[derive(Debug, Clone)]
pub enum EntryKind {
    /// Readings.
    Readings(Arc<ReadingBatch>),
    /// Messages to keep as dead letters.
    Dead(Vec<DeadLetter>),
}

impl EntryKind {
    /// The times of receipt of its readings.
    pub(super) fn receipt_times(&self) -> ReceiptTimes {
        match self {
            EntryKind::Readings(batch) => batch.receipt_times(),
            EntryKind::Dead(_) => ReceiptTimes::default(),
        }
    }
}

/// The end of a frame in the segments, where the follower reads on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// An entry on its way to the follower.
#[derive(Debug)]
pub(super) struct TrackedEntry {
    pub(super) seq: u64,
    pub(super) kind: EntryKind,
    pub(super) at: Appended,
    pub(super) bytes: usize,
    /// The end of its frame.
    pub(super) place: Place,
}

/// The newest entries, without a gap up to the end of the journal; the oldest give way when there are too many bytes.
#[derive(Debug)]
pub(super) struct Tail {
    items: VecDeque<TrackedEntry>,
    bytes: usize,
    bytes_max: usize,
}

impl Tail {
    pub(super) fn new(bytes_max: usize) -> Tail {
        Tail { items: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// The sequence of the oldest entry held.
    pub(super) fn first_seq(&self) -> Option<u64> {
        self.items.front().map(|item| item.seq)
    }

    /// Adds the next entry.
    pub(super) fn push(&mut self, item: TrackedEntry) {
        self.bytes += item.bytes;
        self.items.push_back(item);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.items.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }

    /// Forgets the entries before `seq`, which were read from the segments, and takes the next ones: at least one if
    /// there is any, and no more after `bytes`.
    pub(super) fn take(&mut self, seq: u64, bytes: usize) -> Vec<TrackedEntry> {
        let mut taken = Vec::new();
        let mut left = bytes;
        while let Some(item) = self.items.pop_front() {
            self.bytes -= item.bytes;
            if item.seq < seq {
                continue;
            }
            left = left.saturating_sub(item.bytes);
            taken.push(item);
            if left == 0 {
                break;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests;
