//! Tracks which entries are stored, and keeps the newest entries in memory for the follower. Pure:
//! no lock, IO or clock.
//!
//! The follower hands out entries in *chunks*: ranges of sequences that share one acknowledgement,
//! so that its cost is paid once for many entries. Segments are removed from the front only. So
//! only the first sequence that may be unstored matters: the start of the oldest outstanding chunk,
//! or else of the next entry. Chunks may complete in any order. A dropped chunk never completes and
//! blocks the removal permanently.
//!
//! **A replay starts earlier** ([`Tracker::replay_from`]). A reading without a timestamp gets its
//! receipt time. If two such readings of one millisecond are equal, both are kept. After a crash,
//! only counting both shows how many of them are stored. So a stored entry is also replayed if an
//! unstored one may hold a twin (an equal reading) of one of its readings. That is possible if
//! - their receipt times overlap (known exactly for every entry that was handed out), and
//! - the same process appended the unstored one at most [`MOMENT_MS`] after the stored one.
//!   Readings received in one millisecond are journaled within this time, unless the wall clock is
//!   set back by more in between.
//!
//! For an entry that is not handed out, or not yet journaled, the receipt times count as
//! overlapping. The time between two entries is measured on the monotonic clock of the process that
//! appended them. So no change of the wall clock keeps a segment longer or starts a replay later.
//! If disk space is short, the rule is suspended for the oldest segment ([`Tracker::give_up`]). A
//! crash may then mistake an unstored reading with a receipt time for its stored twin.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{DeadLetter, ReadingBatch, ReceiptTimes};

/// Readings received in the same millisecond are appended within this time (ms). It covers
/// `http.queue_timeout`, a slow fdatasync, and small corrections of the wall clock (a leap second).
const MOMENT_MS: u64 = 5000;

/// The append time of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Appended {
    /// Identifies the process; see `segment`.
    pub(super) run: u32,
    /// Monotonic clock of that process (ms).
    pub(super) mono_ms: u64,
    /// Milliseconds since 1970.
    pub(super) wall_ms: i64,
}

impl Appended {
    /// Whether this append, which is not before `earlier`, is within [`MOMENT_MS`] of it.
    fn in_moment_of(&self, earlier: &Appended) -> bool {
        self.run == earlier.run && self.mono_ms <= earlier.mono_ms.saturating_add(MOMENT_MS)
    }
}

/// Entries that share one acknowledgement, all of one run.
#[derive(Debug)]
struct Chunk {
    /// The sequence after the last entry.
    end: u64,
    /// Append times of the first and the last entry.
    first_at: Appended,
    last_at: Appended,
    receipt_times: ReceiptTimes,
}

/// The outstanding and the stored chunks.
#[derive(Debug)]
pub(super) struct Tracker {
    /// The first sequence that was not handed out.
    next: u64,
    /// Append time of the entry at `next`, or an earlier time.
    next_at: Appended,
    /// The outstanding chunks, by first sequence.
    out: BTreeSet<u64>,
    /// The outstanding chunks and the stored ones that a replay may need, by first sequence.
    chunks: BTreeMap<u64, Chunk>,
}

impl Tracker {
    /// No chunk is outstanding; `next` was appended at `next_at`.
    pub(super) fn new(next: u64, next_at: Appended) -> Tracker {
        Tracker {
            next,
            next_at,
            out: BTreeSet::new(),
            chunks: BTreeMap::new(),
        }
    }

    /// The first sequence that was not handed out.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Hands out the entry that ends before `end`, as the first of a chunk. Returns the key of the
    /// chunk for [`Tracker::stored`].
    pub(super) fn hand_out(&mut self, end: u64, at: Appended, receipt_times: ReceiptTimes) -> u64 {
        let first = self.next;
        self.put(first, end, at, receipt_times);
        (self.next, self.next_at) = (end, at);
        first
    }

    /// Adds the entry that ends before `end` to the newest chunk, which is not stored.
    pub(super) fn extend(&mut self, end: u64, at: Appended, receipt_times: ReceiptTimes) {
        (self.next, self.next_at) = (end, at);
        if let Some(mut chunk) = self.chunks.last_entry() {
            let chunk = chunk.get_mut();
            (chunk.end, chunk.last_at) = (end, at);
            chunk.receipt_times.join(receipt_times);
        }
    }

    /// Leaves the entries from the next one up to `end` for later: they are outstanding as one chunk,
    /// of which [`Tracker::hand_out_left`] takes the first ones. Returns its key; `None` if there are
    /// none.
    pub(super) fn leave(&mut self, end: u64) -> Option<u64> {
        let first = self.next;
        if first >= end {
            return None;
        }
        self.put(first, end, self.next_at, ReceiptTimes::ANY);
        self.next = end;
        Some(first)
    }

    /// Hands out the entry that ends before `end`, as the first of a chunk, of what is left from
    /// `first` on. The rest has the key `end`; the chunk has the key `first`.
    pub(super) fn hand_out_left(
        &mut self,
        first: u64,
        end: u64,
        at: Appended,
        receipt_times: ReceiptTimes,
    ) {
        let left = self.put(first, end, at, receipt_times);
        if let Some(left) = left.filter(|left| end < left.end) {
            self.put(end, left.end, at, ReceiptTimes::ANY);
        }
    }

    /// Adds the entry that ends before `end` to the chunk that was handed out last of what is left.
    pub(super) fn extend_left(
        &mut self,
        first: u64,
        end: u64,
        at: Appended,
        receipt_times: ReceiptTimes,
    ) {
        let Some(chunk) = self.chunks.get_mut(&first) else {
            return;
        };
        let rest = std::mem::replace(&mut chunk.end, end);
        chunk.last_at = at;
        chunk.receipt_times.join(receipt_times);
        self.out.remove(&rest);
        let left = self.chunks.remove(&rest);
        if let Some(left) = left.filter(|left| end < left.end) {
            self.put(end, left.end, at, ReceiptTimes::ANY);
        }
    }

    /// The rest of what is left has no entries.
    pub(super) fn end_left(&mut self, first: u64) {
        self.out.remove(&first);
        self.chunks.remove(&first);
    }

    /// An outstanding chunk. `at`: when its first entry was appended, or, in a backlog that was left, an
    /// earlier time. Returns what had this key.
    fn put(
        &mut self,
        first: u64,
        end: u64,
        at: Appended,
        receipt_times: ReceiptTimes,
    ) -> Option<Chunk> {
        self.out.insert(first);
        let chunk = Chunk {
            end,
            first_at: at,
            last_at: at,
            receipt_times,
        };
        self.chunks.insert(first, chunk)
    }

    /// Skips sequences without entries.
    pub(super) fn skip_to(&mut self, end: u64) {
        self.next = self.next.max(end);
    }

    /// The whole chunk is stored.
    pub(super) fn stored(&mut self, first: u64) {
        self.out.remove(&first);
    }

    /// Sets the append time of the first entry that is not handed out.
    pub(super) fn first_in_line(&mut self, at: Appended) {
        self.next_at = at;
    }

    /// Everything before this sequence is stored.
    pub(super) fn unstored_from(&self) -> u64 {
        self.out.first().copied().unwrap_or(self.next)
    }

    /// Start of a replay: everything before this sequence is stored and holds no reading equal to
    /// an unstored one. Never decreases.
    pub(super) fn replay_from(&self) -> u64 {
        self.chunks
            .first_key_value()
            .map_or(self.next, |(&first, _)| first)
    }

    /// Drops the stored chunks that no replay needs. `end` is the end of the journal. `now` is the
    /// earliest time of future appends; `None` if there will be none.
    pub(super) fn forget(&mut self, end: u64, now: Option<Appended>) {
        let line = if self.next < end {
            Some(self.next_at)
        } else {
            now
        };
        let out = &self.out;
        let chunks = &self.chunks;
        let useless = |(first, chunk): (&u64, &Chunk)| {
            let unknown = || line.is_some_and(|line| line.in_moment_of(&chunk.last_at));
            let later = || out.range(first..).map(|later| &chunks[later]);
            let has_equal = || {
                later()
                    .take_while(|later| later.first_at.in_moment_of(&chunk.last_at))
                    .any(|later| later.receipt_times.overlap(&chunk.receipt_times))
            };
            let needed = !chunk.receipt_times.is_empty() && (unknown() || has_equal());
            (!needed && !out.contains(first)).then_some(*first)
        };
        let useless: Vec<u64> = chunks.iter().filter_map(useless).collect();
        for first in useless {
            self.chunks.remove(&first);
        }
    }

    /// Drops the chunks before this sequence even if a replay needs them. Does nothing if not all
    /// of them are stored.
    pub(super) fn give_up(&mut self, before: u64) {
        if before > self.unstored_from() {
            return;
        }
        let kept = self.chunks.split_off(&before);
        let partly_stored = std::mem::replace(&mut self.chunks, kept)
            .pop_last()
            .filter(|(_, chunk)| chunk.end > before);
        self.chunks
            .extend(partly_stored.map(|(_, chunk)| (before, chunk)));
    }

    /// Append time of the oldest unstored entry; `end` is the end of the journal.
    pub(super) fn oldest(&self, end: u64) -> Option<Appended> {
        let waiting = (self.next < end).then_some(self.next_at);
        self.out
            .first()
            .map(|first| self.chunks[first].first_at)
            .or(waiting)
    }
}

/// The content of an entry.
#[derive(Debug, Clone)]
pub enum EntryKind {
    /// Readings to route to the shards.
    Readings(Arc<ReadingBatch>),
    /// Dead letters to store.
    Dead(Vec<DeadLetter>),
}

impl EntryKind {
    /// The receipt times that its readings use as time.
    pub(super) fn receipt_times(&self) -> ReceiptTimes {
        match self {
            EntryKind::Readings(batch) => batch.receipt_times(),
            EntryKind::Dead(_) => ReceiptTimes::default(),
        }
    }
}

/// The end of a frame in the segments, where the follower continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

#[derive(Debug)]
pub(super) struct TrackedEntry {
    pub(super) seq: u64,
    pub(super) kind: EntryKind,
    pub(super) at: Appended,
    pub(super) bytes: usize,
    /// The end of its frame.
    pub(super) place: Place,
}

/// The newest entries, without a gap up to the end of the journal. Evicts the oldest above
/// `bytes_max`.
#[derive(Debug)]
pub(super) struct Tail {
    items: VecDeque<TrackedEntry>,
    bytes: usize,
    bytes_max: usize,
}

impl Tail {
    pub(super) fn new(bytes_max: usize) -> Tail {
        Tail {
            items: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
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
            let Some(oldest) = self.items.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes;
        }
    }

    /// Drops the entries before `seq`, which were read from the segments. Then takes the next ones:
    /// at least one if there is any, until `bytes` are reached.
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
