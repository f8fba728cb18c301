//! Reads the journal in order, for the router: from the tail in memory, or from the segments if it
//! lags.
//!
//! A consumer that stops reading blocks no other part. The tail in memory evicts its oldest
//! entries, and the follower later reads them from the segments. Memory use: the tail, and two
//! reads of about 1 MiB, one being returned and one being read ahead.
//!
//! Entries are returned in *chunks* that share one acknowledgement. A chunk stays open for a while,
//! so that all readings of a sensor in it cost their bucket one part of an acknowledgement. It is
//! closed when it is large or old, or when no entries follow. After a crash the replay starts at
//! the oldest chunk that is not completely stored. So it may start earlier than necessary by the
//! age of a chunk.
//!
//! A consumer that wants what is new first leaves its backlog to a second follower
//! ([`Follower::leave_backlog`]), which reads the segments up to where the first one goes on. Both hand
//! out chunks, so segments are removed as the backlog shrinks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::error::JournalFailure;
use super::read_back::{Position, Read, ReadLimits, SegmentReader, read_back};
use super::second_reader::SecondReader;
use super::shared::Shared;
use super::tracker::{Appended, EntryKind, Place, TrackedEntry};
use model::ack::Ack;

/// Bytes taken from the tail per call.
const PULL_BYTES: usize = 64 << 10;
/// Limits of a chunk: its bytes (at most a quarter of a segment), and the time between its first
/// and last entry.
const CHUNK_BYTES: usize = 8 << 20;
const CHUNK_MS: u64 = 250;
/// A chunk is closed if no entry follows within this time.
const CHUNK_IDLE: Duration = Duration::from_millis(50);

/// An entry of the journal, as returned by [`Follower::next`].
#[derive(Debug)]
pub struct JournalEntry {
    /// Strictly increasing from entry to entry.
    pub seq: u64,
    /// Readings or dead letters.
    pub kind: EntryKind,
    /// Deliver it when everything in the entry is stored. The entries of a chunk share one
    /// acknowledgement. Dropping it is reported as [`JournalFailure::NotDelivered`]; its segment is
    /// kept and replayed at the next start.
    pub ack: Ack,
    /// Whether the entry was in the journal before this start, and so may already be stored.
    pub replayed: bool,
    /// Time of the append, in milliseconds since 1970.
    pub wall_ms: i64,
    /// Where it begins, for [`SecondReader`].
    pub position: Position,
}

/// The chunk that receives further entries.
struct Open {
    /// Its key in the tracker.
    first: u64,
    /// The follower's part. The chunk does not count as stored while it is held.
    ack: Ack,
    bytes: usize,
    first_at: Appended,
}

/// What a follower returns of a backlog that was left.
#[derive(Debug)]
struct Left {
    /// The key of the rest in the tracker.
    first: u64,
    /// The sequence after the last entry.
    end: u64,
}

enum Pulled {
    Ready,
    NotInTail,
    Nothing,
    Ended,
}

/// Returns the entries, each once. A journal has one follower, and one for each backlog that this one
/// has left ([`Follower::leave_backlog`]).
pub struct Follower {
    shared: Arc<Shared>,
    next: Position,
    ready: VecDeque<JournalEntry>,
    reader: Option<SegmentReader>,
    reading: Option<JoinHandle<Result<Read, JournalFailure>>>,
    open: Option<Open>,
    chunk_bytes: usize,
    failed: bool,
    /// `None`: it follows the end of the journal.
    left: Option<Left>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("next_seq", &self.next.next_seq)
            .finish_non_exhaustive()
    }
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, next_seq: u64, place: Place) -> Follower {
        let chunk_bytes = CHUNK_BYTES.min(shared.segment_bytes as usize / 4);
        let ready = VecDeque::new();
        Follower {
            shared,
            next: Position { next_seq, place },
            ready,
            reader: None,
            reading: None,
            open: None,
            chunk_bytes,
            failed: false,
            left: None,
        }
    }

    /// Continues with what is journaled from now on. Returns a follower of everything before that was
    /// not returned; `None` if there is nothing, or if entries that are ready must be taken first.
    /// Those of the backlog stay in the journal until they are acknowledged.
    pub fn leave_backlog(&mut self) -> Option<Follower> {
        if self.failed || self.left.is_some() || !self.ready.is_empty() {
            return None;
        }
        self.close_chunk();
        let mut state = self.shared.state();
        let end = state.synced_to;
        let newest = state.segments.back()?;
        let place = Place {
            segment: newest.number,
            offset: newest.data_end,
        };
        let first = state.tracker.leave(end)?;
        drop(state);
        let mut backlog = Follower::new(self.shared.clone(), self.next.next_seq, self.next.place);
        backlog.left = Some(Left { first, end });
        // What is being read is of the backlog.
        self.reading = None;
        self.reader = None;
        self.next = Position {
            next_seq: end,
            place,
        };
        Some(backlog)
    }

    /// Of a backlog: whether everything before what it returns next is stored.
    pub fn is_oldest(&self) -> bool {
        let unstored_from = self.shared.state().tracker.unstored_from();
        self.left
            .as_ref()
            .is_some_and(|left| unstored_from >= left.first)
    }

    /// Reads dead letters again that were returned.
    pub fn second_reader(&self) -> SecondReader {
        SecondReader::new(self.shared.clone())
    }

    /// Waits for the next entry. `None` if the journal is closed and all entries were returned, or
    /// if it cannot be read back (then a [`JournalFailure`] was reported). Cancel-safe.
    pub async fn next(&mut self) -> Option<JournalEntry> {
        loop {
            if let Some(entry) = self.next_ready() {
                return Some(entry);
            }
            if let Some(reading) = &mut self.reading {
                let chunk = reading.await.unwrap_or(Err(JournalFailure::Panicked));
                self.reading = None;
                self.take_chunk(chunk);
                if self.must_read_segment() {
                    self.read_ahead();
                }
                continue;
            }
            match self.pull() {
                Pulled::Ready => {}
                Pulled::NotInTail => self.read_ahead(),
                Pulled::Nothing => self.wait().await,
                Pulled::Ended => {
                    self.close_chunk();
                    return None;
                }
            }
        }
    }

    /// The next entry that is ready. That it is requested shows that those before it are handed over.
    fn next_ready(&mut self) -> Option<JournalEntry> {
        if self.left.is_none() {
            let handed_to = self
                .ready
                .front()
                .map_or(self.next.next_seq, |entry| entry.seq);
            self.shared.handed_to.store(handed_to, Ordering::Release);
        }
        self.ready.pop_front()
    }

    /// What is read from the segments.
    fn limits(&self) -> ReadLimits {
        let last_seq = self.left.as_ref().map_or(u64::MAX, |left| left.end - 1);
        ReadLimits {
            last_seq,
            ..ReadLimits::ALL
        }
    }

    /// Waits for entries, and closes the open chunk after [`CHUNK_IDLE`].
    async fn wait(&mut self) {
        let more = self.shared.data.notified();
        if self.open.is_none() {
            more.await;
        } else if tokio::time::timeout(CHUNK_IDLE, more).await.is_err() {
            self.close_chunk();
        }
    }

    /// The next entry if there is one; does not wait, and reads in the calling thread. For tests
    /// and simulations. Do not mix with [`Follower::next`].
    pub fn next_now(&mut self) -> Option<JournalEntry> {
        loop {
            if let Some(entry) = self.next_ready() {
                return Some(entry);
            }
            match self.pull() {
                Pulled::Ready => {}
                Pulled::NotInTail => {
                    let reader = self.reader.take();
                    let chunk = read_back(&self.shared, self.next, reader, self.limits());
                    self.take_chunk(chunk);
                }
                Pulled::Nothing | Pulled::Ended => {
                    self.close_chunk();
                    return None;
                }
            }
        }
    }

    /// Takes entries from the tail.
    fn pull(&mut self) -> Pulled {
        if self.failed {
            return Pulled::Ended;
        }
        let next_seq = self.next.next_seq;
        if let Some(left) = &self.left {
            return if next_seq < left.end {
                Pulled::NotInTail
            } else {
                Pulled::Ended
            };
        }
        let items = {
            let mut state = self.shared.state();
            if next_seq >= state.synced_to {
                return if state.closed {
                    Pulled::Ended
                } else {
                    Pulled::Nothing
                };
            }
            if state.tail.first_seq().is_none_or(|first| first > next_seq) {
                return Pulled::NotInTail;
            }
            state.tail.take(next_seq, PULL_BYTES)
        };
        self.hand_out(items);
        Pulled::Ready
    }

    /// Whether the next entry must be read from a segment.
    fn must_read_segment(&self) -> bool {
        if let Some(left) = &self.left {
            return !self.failed && self.next.next_seq < left.end;
        }
        let state = self.shared.state();
        let in_tail = state
            .tail
            .first_seq()
            .is_some_and(|first| first <= self.next.next_seq);
        !self.failed && self.next.next_seq < state.synced_to && !in_tail
    }

    /// Reads the next entries while the previous ones are returned.
    fn read_ahead(&mut self) {
        let shared = self.shared.clone();
        let next = self.next;
        let reader = self.reader.take();
        let limits = self.limits();
        self.reading = Some(tokio::task::spawn_blocking(move || {
            read_back(&shared, next, reader, limits)
        }));
    }

    fn take_chunk(&mut self, read: Result<Read, JournalFailure>) {
        match read {
            // The tracker keeps the segments of a backlog, so there is something to read.
            Ok(read) if self.left.is_some() && read.next.next_seq == self.next.next_seq => {
                let first_seq = self.next.next_seq;
                self.failed = true;
                self.shared
                    .break_for(&JournalFailure::NotDelivered { first_seq });
            }
            Ok(read) => {
                self.reader = read.reader;
                self.hand_out(read.items);
                self.next = read.next;
                // Skips gaps at the end, which have no entries to acknowledge.
                let mut state = self.shared.state();
                match &self.left {
                    None => state.tracker.skip_to(self.next.next_seq),
                    Some(left) if left.first < left.end && self.next.next_seq >= left.end => {
                        state.tracker.end_left(left.first);
                    }
                    Some(_) => {}
                }
            }
            Err(broken) => {
                self.failed = true;
                self.shared.break_for(&broken);
            }
        }
    }

    /// Adds the next entries to the open chunk, or to a new one.
    fn hand_out(&mut self, items: Vec<TrackedEntry>) {
        let new_from = self.shared.replay.1;
        for item in items {
            let ack = self.chunk_for(&item);
            let replayed = item.seq < new_from;
            let next = Position {
                next_seq: item.seq + 1,
                place: item.place,
            };
            let position = std::mem::replace(&mut self.next, next);
            self.ready.push_back(JournalEntry {
                seq: item.seq,
                replayed,
                kind: item.kind,
                ack,
                wall_ms: item.at.wall_ms,
                position,
            });
        }
    }

    /// A part of the acknowledgement of the entry's chunk.
    fn chunk_for(&mut self, item: &TrackedEntry) -> Ack {
        let in_time = |first: &Appended| {
            let apart_ms = item.at.mono_ms.checked_sub(first.mono_ms);
            first.run == item.at.run && apart_ms.is_some_and(|ms| ms < CHUNK_MS)
        };
        let continues = self
            .open
            .as_ref()
            .is_some_and(|o| o.bytes < self.chunk_bytes && in_time(&o.first_at));
        if !continues {
            self.close_chunk();
        }
        let mut state = self.shared.state();
        let tracker = &mut state.tracker;
        let end = item.seq + 1;
        let at = item.at;
        let times = item.kind.receipt_times();
        if self.left.is_none() {
            tracker.skip_to(item.seq);
        }
        let rest = self
            .left
            .as_mut()
            .map(|left| std::mem::replace(&mut left.first, end));
        if let Some(open) = &mut self.open {
            match rest {
                None => tracker.extend(end, at, times),
                Some(_) => tracker.extend_left(open.first, end, at, times),
            }
            open.bytes += item.bytes;
            return open.ack.clone();
        }
        let first = match rest {
            None => tracker.hand_out(end, at, times),
            Some(first) => {
                tracker.hand_out_left(first, end, at, times);
                first
            }
        };
        drop(state);
        let ack = self.shared.chunk_ack(first);
        self.open = Some(Open {
            first,
            ack: ack.clone(),
            bytes: item.bytes,
            first_at: item.at,
        });
        ack
    }

    fn close_chunk(&mut self) {
        if let Some(open) = self.open.take() {
            open.ack.delivered();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.close_chunk();
    }
}
