//! Reads entries back from the segments: those that are no longer in the tail, and dead letters that
//! are read again.

use std::io;
use std::sync::Arc;

use super::error::{Damage, JournalFailure};
use super::reader::{FrameReader, Step};
use super::segment::{Frame, FrameFault, FrameKind, HEADER_BYTES, Payload};
use super::segment_files::SegmentInfo;
use super::shared::Shared;
use super::tracker::{EntryKind, Place, TrackedEntry};

/// Bytes read from the segments per call. A larger entry is read whole.
const READ_BYTES: usize = 1 << 20;

/// Where an entry begins: the sequence after the entry before it, and the end of that one's frame.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    pub(super) next_seq: u64,
    pub(super) place: Place,
}

/// Entries read from the segments.
pub(super) struct Read {
    pub(super) items: Vec<TrackedEntry>,
    /// Where the next entry begins.
    pub(super) next: Position,
    pub(super) reader: Option<SegmentReader>,
}

/// What is read of the segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadLimits {
    /// Nothing after this sequence.
    pub(super) last_seq: u64,
    /// No readings.
    pub(super) dead_only: bool,
}

impl ReadLimits {
    pub(super) const ALL: ReadLimits = ReadLimits {
        last_seq: u64::MAX,
        dead_only: false,
    };
}

/// A segment that is being read.
pub(super) struct SegmentReader {
    segment: u64,
    frames: FrameReader,
}

/// The segment that holds the frame at `place`, or the next one if `place` is the end of its
/// segment.
fn locate(shared: &Shared, place: Place) -> Option<(SegmentInfo, u64)> {
    let state = shared.state();
    let here = state
        .segments
        .iter()
        .find(|s| s.number == place.segment && place.offset < s.data_end);
    let next = || {
        state
            .segments
            .iter()
            .find(|s| s.number > place.segment)
            .map(|s| (s.clone(), HEADER_BYTES))
    };
    here.map(|s| (s.clone(), place.offset)).or_else(next)
}

/// The synced frames of a segment from `offset` on. Continues the previous reader if it is there.
fn frames_from(
    shared: &Shared,
    segment: &SegmentInfo,
    offset: u64,
    previous: Option<SegmentReader>,
) -> io::Result<FrameReader> {
    let mut frames = match previous {
        Some(r) if r.segment == segment.number && r.frames.offset() == offset => r.frames,
        _ => {
            let file = shared.fs.open(&segment.path, false)?;
            FrameReader::new(file, segment.coding, offset, segment.data_end)
        }
    };
    frames.set_limit(segment.data_end);
    Ok(frames)
}

/// The entry of a frame; `None` if it has none, or if it is not wanted.
fn entry_kind(frame: &Frame<'_>, limits: ReadLimits) -> Result<Option<EntryKind>, FrameFault> {
    if limits.dead_only && frame.head.kind != FrameKind::Dead {
        return Ok(None);
    }
    Ok(match Payload::decode(frame)? {
        Payload::Readings(batch) => Some(EntryKind::Readings(Arc::new(batch))),
        Payload::Dead(dead_letters) => Some(EntryKind::Dead(dead_letters)),
        Payload::Gap => None,
    })
}

/// Reads the synced entries from this position on, about 1 MiB. Blocks.
pub(super) fn read_back(
    shared: &Shared,
    from: Position,
    mut reader: Option<SegmentReader>,
    limits: ReadLimits,
) -> Result<Read, JournalFailure> {
    let Position {
        mut next_seq,
        mut place,
    } = from;
    let mut items = Vec::new();
    let mut bytes = 0;
    let wants_more = |bytes, next_seq| bytes < READ_BYTES && next_seq <= limits.last_seq;
    while wants_more(bytes, next_seq) {
        let Some((segment, offset)) = locate(shared, place) else {
            break;
        };
        let path = segment.path.clone();
        let read_error = |source| JournalFailure::Read {
            path: path.clone(),
            source,
        };
        let mut frames =
            frames_from(shared, &segment, offset, reader.take()).map_err(read_error)?;
        while wants_more(bytes, next_seq) && frames.offset() < segment.data_end {
            let at = frames.offset();
            let damaged = |fault| {
                JournalFailure::Damaged(Damage::Frame {
                    path: path.clone(),
                    offset: at,
                    seq: next_seq,
                    fault,
                })
            };
            let (frame, end) = match frames.next().map_err(read_error)? {
                Step::Frame(_, frame) => (frame, at + frame.span()),
                Step::Fault(fault) => return Err(damaged(fault)),
            };
            let expected = next_seq;
            let found = frame.head.seq;
            if found != expected && !(found < expected && frame.next_seq() > expected) {
                return Err(damaged(FrameFault::Sequence { expected, found }));
            }
            let kind = entry_kind(&frame, limits).map_err(damaged)?;
            bytes += frame.payload.len();
            next_seq = frame.next_seq();
            place = Place {
                segment: segment.number,
                offset: end,
            };
            let seq = found;
            let at = segment.coding.appended(&frame.head);
            let bytes = frame.payload.len();
            items.extend(kind.map(|kind| TrackedEntry {
                seq,
                kind,
                at,
                bytes,
                place,
            }));
        }
        place = Place {
            segment: segment.number,
            offset: frames.offset(),
        };
        reader = Some(SegmentReader {
            segment: segment.number,
            frames,
        });
    }
    Ok(Read {
        items,
        next: Position { next_seq, place },
        reader,
    })
}
