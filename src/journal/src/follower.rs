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
    /// The follower's part. The chunk does not count as stored while it is held.
    ack: Ack,
    bytes: usize,
    first_at: Appended,
}

enum Pulled {
    Ready,
    NotInTail,
    Nothing,
    Ended,
}

/// Returns the entries, each once. A journal has exactly one follower.
pub struct Follower {
    shared: Arc<Shared>,
    next: Position,
    ready: VecDeque<JournalEntry>,
    reader: Option<SegmentReader>,
    reading: Option<JoinHandle<Result<Read, JournalFailure>>>,
    open: Option<Open>,
    chunk_bytes: usize,
    failed: bool,
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
        }
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
        let handed_to = self
            .ready
            .front()
            .map_or(self.next.next_seq, |entry| entry.seq);
        self.shared.handed_to.store(handed_to, Ordering::Release);
        self.ready.pop_front()
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
                    let chunk = read_back(&self.shared, self.next, reader, ReadLimits::ALL);
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
        self.reading = Some(tokio::task::spawn_blocking(move || {
            read_back(&shared, next, reader, ReadLimits::ALL)
        }));
    }

    fn take_chunk(&mut self, read: Result<Read, JournalFailure>) {
        match read {
            Ok(read) => {
                self.reader = read.reader;
                self.hand_out(read.items);
                self.next = read.next;
                // Skips gaps at the end, which have no entries to acknowledge.
                self.shared.state().tracker.skip_to(self.next.next_seq);
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
        state.tracker.skip_to(item.seq);
        if let Some(open) = &mut self.open {
            state
                .tracker
                .extend(item.seq + 1, item.at, item.kind.receipt_times());
            open.bytes += item.bytes;
            return open.ack.clone();
        }
        let chunk = state
            .tracker
            .hand_out(item.seq + 1, item.at, item.kind.receipt_times());
        drop(state);
        let ack = self.shared.chunk_ack(chunk);
        self.open = Some(Open {
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
