//! Which entries are stored, and the entries kept in memory for the follower. Pure: no lock, IO or clock.
//!
//! The follower hands entries out in *chunks*, runs of sequences behind one acknowledgement, so that the cost is paid
//! once for many entries and not once for a reading. Segments are removed from the front only, so all that matters is the
//! first sequence that may be unstored: the begin of the oldest chunk that is out, or else of what comes next. Chunks
//! may be resolved in any order; one that was given up is never resolved and holds the line for good.
//!
//! A replay begins a moment earlier than that ([`Tracker::replay_from`]): a reading without a time of its own may have an
//! equal one of the same millisecond in an entry before it, and which of two pending ones is stored already can only be
//! told by counting both.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::model::{DeadLetter, ReadingBatch};

/// What is out and what is stored.
#[derive(Debug)]
pub(super) struct Tracker {
    /// The first sequence that was not handed out.
    next: u64,
    /// The chunks that are out: first sequence to the time of append of their first entry.
    out: BTreeMap<u64, i64>,
    /// When the entry at `next` was appended, or earlier.
    next_wall_ms: i64,
    /// Chunks of the last moment, stored or not: first sequence, and when their last entry was appended.
    recent: VecDeque<(u64, i64)>,
}

/// Readings are journaled in the order in which they were received, give or take this (ms). Where disk space is short it
/// is given up.
const MOMENT_MS: i64 = 250;

impl Tracker {
    /// Nothing is out; `next` was appended at `next_wall_ms`.
    pub(super) fn new(next: u64, next_wall_ms: i64) -> Tracker {
        Tracker { next, out: BTreeMap::new(), next_wall_ms, recent: VecDeque::new() }
    }

    /// The first sequence that was not handed out.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The entries up to `end` go out; the first and last of them were appended at these times. Returns what the chunk
    /// is called in [`Tracker::stored`].
    pub(super) fn hand_out(&mut self, end: u64, first_wall_ms: i64, last_wall_ms: i64) -> u64 {
        let first = self.next;
        self.out.insert(first, first_wall_ms);
        self.recent.push_back((first, last_wall_ms));
        self.next = end;
        self.next_wall_ms = last_wall_ms;
        first
    }

    /// The entries up to `end` go out with the chunk that was handed out last, and is not stored.
    pub(super) fn extend(&mut self, end: u64, last_wall_ms: i64) {
        self.next = end;
        self.next_wall_ms = last_wall_ms;
        if let Some((_, wall_ms)) = self.recent.back_mut() {
            *wall_ms = last_wall_ms.max(*wall_ms);
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
    pub(super) fn first_in_line(&mut self, wall_ms: i64) {
        self.next_wall_ms = wall_ms;
    }

    /// Everything before this sequence is stored.
    pub(super) fn unstored_from(&self) -> u64 {
        self.out.first_key_value().map_or(self.next, |(&first, _)| first)
    }

    /// Where a replay would begin: everything before this sequence is stored, and nothing that is not stored was received
    /// in the same moment.
    pub(super) fn replay_from(&self) -> u64 {
        self.recent.front().map_or(self.unstored_from(), |(first, _)| *first.min(&self.unstored_from()))
    }

    /// Forgets the stored chunks that end a moment before the oldest unstored entry, or before now where there is none.
    pub(super) fn forget(&mut self, end: u64, now_wall_ms: i64) {
        let line = self.oldest_wall_ms(end).map_or(now_wall_ms, |oldest| oldest.min(now_wall_ms));
        let unstored = self.unstored_from();
        while self
            .recent
            .front()
            .is_some_and(|(first, last_ms)| *first < unstored && last_ms.saturating_add(MOMENT_MS) < line)
        {
            self.recent.pop_front();
        }
    }

    /// When the oldest unstored entry was appended; `end` is the end of what is journaled.
    pub(super) fn oldest_wall_ms(&self, end: u64) -> Option<i64> {
        let waiting = (self.next < end).then_some(self.next_wall_ms);
        self.out.first_key_value().map(|(_, &wall_ms)| wall_ms).or(waiting)
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

/// The end of a frame in the segments, where the follower reads on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// An entry on its way to the follower.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) seq: u64,
    pub(super) kind: EntryKind,
    pub(super) wall_ms: i64,
    pub(super) bytes: usize,
    /// The end of its frame.
    pub(super) place: Place,
}

/// The newest entries, without a gap up to the end of the journal; the oldest give way when there are too many bytes.
#[derive(Debug)]
pub(super) struct Tail {
    items: VecDeque<Item>,
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
    pub(super) fn push(&mut self, item: Item) {
        self.bytes += item.bytes;
        self.items.push_back(item);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.items.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }

    /// Forgets the entries before `seq`, which were read from the segments, and takes the next ones: at least one if
    /// there is any, and no more after `bytes`.
    pub(super) fn take(&mut self, seq: u64, bytes: usize) -> Vec<Item> {
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
mod tests {
    use super::*;

    #[test]
    fn the_line_moves_only_over_stored_chunks_and_never_over_one_given_up() {
        let mut tracker = Tracker::new(10, 100);
        assert_eq!((tracker.unstored_from(), tracker.oldest_wall_ms(10)), (10, None));
        assert_eq!(tracker.oldest_wall_ms(11), Some(100));
        let (a, b, c) =
            (tracker.hand_out(20, 100, 110), tracker.hand_out(21, 110, 110), tracker.hand_out(30, 120, 130));
        tracker.stored(c);
        assert_eq!((tracker.unstored_from(), tracker.oldest_wall_ms(30)), (10, Some(100)));
        tracker.stored(a);
        assert_eq!((tracker.unstored_from(), tracker.oldest_wall_ms(30)), (20, Some(110)));
        tracker.hand_out(31, 140, 140);
        assert_eq!(tracker.unstored_from(), b);
        tracker.stored(b);
        assert_eq!(tracker.unstored_from(), 30);
    }

    #[test]
    fn a_replay_begins_a_moment_before_what_is_not_stored() {
        let mut tracker = Tracker::new(10, 1000);
        let chunks = [(20, 1000, 1010), (30, 1010, 1500), (40, 1500, 1760), (50, 1760, 1770)];
        let all: Vec<u64> = chunks.map(|(end, first, last)| tracker.hand_out(end, first, last)).to_vec();
        assert_eq!(tracker.replay_from(), 10);
        all[..3].iter().for_each(|chunk| tracker.stored(*chunk));
        tracker.forget(50, 9999);
        assert_eq!(
            (tracker.unstored_from(), tracker.replay_from()),
            (40, 30),
            "the third chunk ends in the moment of the fourth"
        );
        tracker.stored(all[3]);
        tracker.forget(50, 1800);
        assert_eq!(tracker.replay_from(), 30);
        tracker.forget(50, 3000);
        assert_eq!(tracker.replay_from(), 50);
    }

    #[test]
    fn the_tail_forgets_the_oldest_and_gives_the_rest_in_order() {
        let item = |seq| Item {
            seq,
            kind: EntryKind::Dead(vec![]),
            wall_ms: 0,
            bytes: 10,
            place: Place { segment: 1, offset: 0 },
        };
        let mut tail = Tail::new(35);
        (1..=5).for_each(|seq| tail.push(item(seq)));
        assert_eq!(tail.first_seq(), Some(3));
        let seqs = |items: Vec<Item>| items.iter().map(|item| item.seq).collect::<Vec<_>>();
        assert_eq!(seqs(tail.take(4, 1)), [4]);
        assert_eq!(seqs(tail.take(5, 100)), [5]);
        tail.push(Item { bytes: 36, ..item(6) });
        assert_eq!((tail.first_seq(), tail.bytes), (None, 0), "one larger than all of it is read from its segment");
    }
}
