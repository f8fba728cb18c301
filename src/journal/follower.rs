//! The journal in order, for the router: from memory near the tail, from the segments behind it.
//!
//! A consumer that stops asking stops nothing but itself: the tail in memory forgets its oldest entries, and the
//! follower reads them from the segments when it is asked again. Memory: one chunk being given out, one being read
//! ahead, and the tail.
//!
//! TODO(issue 5): near the tail each batch is a chunk of its own, and every reading of it then costs its bucket a part of
//! an acknowledgement (17 % of the service's time in the gateway scenario). Keep a chunk open for 1 MiB or 100 ms of
//! entries, and keep the last one's identity inline in `ack::Acks`.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::error::{Broken, Damage};
use super::reader::{FrameReader, Step};
use super::segment::{HEADER_BYTES, Payload};
use super::shared::{SegmentInfo, Shared};
use super::tracker::{EntryKind, Item, Place};
use crate::ack::Ack;

/// Entries behind one acknowledgement, in bytes, and taken from the tail at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Read from the segments at once; a larger entry is read whole.
const READ_BYTES: usize = 1 << 20;

/// An entry of the journal.
#[derive(Debug)]
pub struct Entry {
    /// Its sequence: each entry's is higher than that of the one before.
    pub seq: u64,
    /// What it holds.
    pub kind: EntryKind,
    /// To be delivered when everything of it is stored. Entries share one acknowledgement by chunks; giving one up
    /// (dropping it) is reported as [`Broken::NotDelivered`], keeps its segment, and it is replayed at the next start.
    pub ack: Ack,
    /// Whether it was in the journal before this start, and so may be stored already.
    pub replayed: bool,
    /// When it was appended, milliseconds since 1970.
    pub wall_ms: i64,
}

/// Entries read from the segments.
struct Chunk {
    items: Vec<Item>,
    /// Where the next one begins.
    next_seq: u64,
    place: Place,
    reader: Option<SegmentReader>,
}

/// A reader and the segment it is in.
struct SegmentReader {
    segment: u64,
    frames: FrameReader,
}

enum Pulled {
    Ready,
    Behind,
    Nothing,
    Ended,
}

/// Gives the entries, each once. There is one a journal.
pub struct Follower {
    shared: Arc<Shared>,
    next_seq: u64,
    place: Place,
    ready: VecDeque<Entry>,
    reader: Option<SegmentReader>,
    reading: Option<JoinHandle<Result<Chunk, Broken>>>,
    failed: bool,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("next_seq", &self.next_seq).finish_non_exhaustive()
    }
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, next_seq: u64, place: Place) -> Follower {
        Follower { shared, next_seq, place, ready: VecDeque::new(), reader: None, reading: None, failed: false }
    }

    /// The next entry; waits for it. `None` when the journal is closed and everything was given, or when it cannot be
    /// read back ([`Broken`] was reported then). Cancelling the future loses nothing.
    pub async fn next(&mut self) -> Option<Entry> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(entry);
            }
            if let Some(reading) = &mut self.reading {
                let chunk = reading.await.unwrap_or(Err(Broken::Panicked));
                self.reading = None;
                self.took(chunk);
                if self.behind() {
                    self.read_ahead();
                }
                continue;
            }
            match self.pull() {
                Pulled::Ready => {}
                Pulled::Behind => self.read_ahead(),
                Pulled::Nothing => self.shared.data.notified().await,
                Pulled::Ended => return None,
            }
        }
    }

    /// The next entry if there is one, without waiting; reads in this thread. For tests and simulations; not to be
    /// mixed with [`Follower::next`].
    pub fn next_now(&mut self) -> Option<Entry> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(entry);
            }
            match self.pull() {
                Pulled::Ready => {}
                Pulled::Behind => {
                    let chunk = read_chunk(&self.shared, self.next_seq, self.place, self.reader.take());
                    self.took(chunk);
                }
                Pulled::Nothing | Pulled::Ended => return None,
            }
        }
    }

    /// Takes what the tail has.
    fn pull(&mut self) -> Pulled {
        if self.failed {
            return Pulled::Ended;
        }
        let items = {
            let mut state = self.shared.state();
            if self.next_seq >= state.synced_to {
                return if state.closed { Pulled::Ended } else { Pulled::Nothing };
            }
            if state.tail.first_seq().is_none_or(|first| first > self.next_seq) {
                return Pulled::Behind;
            }
            state.tail.take(self.next_seq, CHUNK_BYTES)
        };
        if let Some(last) = items.last() {
            (self.next_seq, self.place) = (last.seq + 1, last.place);
        }
        self.hand_out(items);
        Pulled::Ready
    }

    /// Whether the next entry has to be read.
    fn behind(&self) -> bool {
        let state = self.shared.state();
        let in_tail = state.tail.first_seq().is_some_and(|first| first <= self.next_seq);
        !self.failed && self.next_seq < state.synced_to && !in_tail
    }

    /// Reads the next chunk while the one before is given out.
    fn read_ahead(&mut self) {
        let (shared, next_seq, place, reader) = (self.shared.clone(), self.next_seq, self.place, self.reader.take());
        self.reading = Some(tokio::task::spawn_blocking(move || read_chunk(&shared, next_seq, place, reader)));
    }

    fn took(&mut self, chunk: Result<Chunk, Broken>) {
        match chunk {
            Ok(chunk) => {
                (self.next_seq, self.place, self.reader) = (chunk.next_seq, chunk.place, chunk.reader);
                let mut part = Vec::new();
                let mut bytes = 0;
                for item in chunk.items {
                    bytes += item.bytes;
                    part.push(item);
                    if bytes >= CHUNK_BYTES {
                        self.hand_out(std::mem::take(&mut part));
                        bytes = 0;
                    }
                }
                self.hand_out(part);
                // Gaps at the end of what was read hold nothing up.
                self.shared.state().tracker.skip_to(self.next_seq);
            }
            Err(broken) => {
                self.failed = true;
                self.shared.break_for(&broken);
            }
        }
    }

    /// Puts entries behind one acknowledgement.
    fn hand_out(&mut self, items: Vec<Item>) {
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return };
        let chunk = {
            let mut state = self.shared.state();
            state.tracker.skip_to(first.seq);
            state.tracker.hand_out(last.seq + 1, first.wall_ms, last.wall_ms)
        };
        let ack = self.shared.chunk_ack(chunk);
        let new_from = self.shared.replay.1;
        self.ready.extend(items.into_iter().map(|item| Entry {
            seq: item.seq,
            replayed: item.seq < new_from,
            kind: item.kind,
            ack: ack.clone(),
            wall_ms: item.wall_ms,
        }));
        ack.delivered();
    }
}

/// The segment that holds the frame at `place`, or the next one where `place` is at the end of its segment.
fn locate(shared: &Shared, place: Place) -> Option<(SegmentInfo, u64)> {
    let state = shared.state();
    let here = state.segments.iter().find(|s| s.number == place.segment && place.offset < s.data_end);
    let next = || state.segments.iter().find(|s| s.number > place.segment).map(|s| (s.clone(), HEADER_BYTES));
    here.map(|s| (s.clone(), place.offset)).or_else(next)
}

/// Reads the entries from `next_seq` on, whose frame is at `place`, as far as they are synced. Blocks.
fn read_chunk(
    shared: &Shared,
    mut next_seq: u64,
    mut place: Place,
    mut reader: Option<SegmentReader>,
) -> Result<Chunk, Broken> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    while bytes < READ_BYTES {
        let Some((segment, offset)) = locate(shared, place) else { break };
        let path = segment.path.clone();
        let read_error = |source| Broken::Read { path: path.clone(), source };
        let mut frames = match reader.take() {
            Some(r) if r.segment == segment.number && r.frames.offset() == offset => r.frames,
            _ => {
                let file = shared.fs.open(&segment.path, false).map_err(read_error)?;
                FrameReader::new(file, segment.salt, offset, segment.data_end)
            }
        };
        frames.set_limit(segment.data_end);
        while bytes < READ_BYTES && frames.offset() < segment.data_end {
            let at = frames.offset();
            let damaged =
                |fault| Broken::Damaged(Damage::Frame { path: path.clone(), offset: at, seq: next_seq, fault });
            let (frame, end) = match frames.next().map_err(read_error)? {
                Step::Frame(_, frame) => (frame, at + frame.span()),
                Step::Fault(fault) => return Err(damaged(fault)),
            };
            let (expected, found) = (next_seq, frame.head.seq);
            if found != expected && !(found < expected && frame.next_seq() > expected) {
                return Err(damaged(super::segment::FrameFault::Sequence { expected, found }));
            }
            let kind = match Payload::decode(&frame).map_err(damaged)? {
                Payload::Readings(batch) => Some(EntryKind::Readings(Arc::new(batch))),
                Payload::Dead(letters) => Some(EntryKind::Dead(letters)),
                Payload::Gap => None,
            };
            bytes += frame.payload.len();
            next_seq = frame.next_seq();
            place = Place { segment: segment.number, offset: end };
            let (seq, wall_ms, bytes) = (found, frame.head.wall_ms, frame.payload.len());
            items.extend(kind.map(|kind| Item { seq, kind, wall_ms, bytes, place }));
        }
        place = Place { segment: segment.number, offset: frames.offset() };
        reader = Some(SegmentReader { segment: segment.number, frames });
    }
    Ok(Chunk { items, next_seq, place, reader })
}
