//! Reads the frames of one segment in order, with a bounded buffer. The only code that reads frames: recovery, the
//! follower and the tools all come through here, so there is one notion of what a sound frame is.

use std::io;
use std::sync::Arc;

use super::fs::{FsFile, read_full_at};
use super::segment::{Coding, FRAME_HEAD_BYTES, Frame, FrameFault, HEADER_BYTES, RawHead, frame_span};

/// Read at once; a longer frame makes the buffer grow to its own length.
const BUFFER_BYTES: usize = 1 << 20;

/// What stands at a place.
pub(super) enum Step<'a> {
    /// A sound frame, and where it begins.
    Frame(u64, Frame<'a>),
    /// None.
    Fault(FrameFault),
}

/// Goes through a segment frame by frame.
pub(super) struct FrameReader {
    file: Arc<dyn FsFile>,
    coding: Coding,
    /// Where the next frame begins.
    offset: u64,
    /// Nothing is read from here on.
    limit: u64,
    buf: Vec<u8>,
    /// `buf[start..end]` is what the file holds from `offset` on.
    start: usize,
    end: usize,
}

impl FrameReader {
    /// Reads from `offset` to `limit`, which is the end of the file or of what is known to be synced.
    pub(super) fn new(file: Arc<dyn FsFile>, coding: Coding, offset: u64, limit: u64) -> FrameReader {
        FrameReader { file, coding, offset, limit, buf: Vec::new(), start: 0, end: 0 }
    }

    /// Where the next frame begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Another one of the same segment, from `offset` on.
    pub(super) fn again(&self, offset: u64) -> FrameReader {
        FrameReader::new(self.file.clone(), self.coding, offset, self.limit)
    }

    /// More may be read than before.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The next frame. After a fault the place stays, and the same fault comes again.
    pub(super) fn next(&mut self) -> io::Result<Step<'_>> {
        self.fill(FRAME_HEAD_BYTES)?;
        let Some(head) = RawHead::read(&self.buf[self.start..self.end], self.coding.version) else {
            return Ok(Step::Fault(FrameFault::Ends));
        };
        let whole = FRAME_HEAD_BYTES + head.payload_bytes as usize;
        if whole as u64 > self.limit - self.offset {
            return Ok(Step::Fault(FrameFault::Length(head.payload_bytes)));
        }
        self.fill(whole)?;
        let Some(bytes) = self.buf[..self.end].get(self.start..self.start + whole) else {
            return Ok(Step::Fault(FrameFault::Length(head.payload_bytes)));
        };
        match head.verify(bytes, self.coding) {
            Ok(frame) => {
                let at = self.offset;
                let span = frame_span(head.payload_bytes as usize).min(self.limit - at);
                self.offset += span;
                self.start = (self.start + span as usize).min(self.end);
                Ok(Step::Frame(at, frame))
            }
            Err(fault) => Ok(Step::Fault(fault)),
        }
    }

    /// Has at least `need` bytes in the buffer, if the segment has them before the limit.
    fn fill(&mut self, need: usize) -> io::Result<()> {
        if self.end - self.start >= need {
            return Ok(());
        }
        self.buf.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let left = usize::try_from(self.limit - self.offset).unwrap_or(usize::MAX);
        let want = need.max(BUFFER_BYTES).min(left);
        if self.buf.len() < want {
            self.buf.resize(want, 0);
        }
        if want > self.end {
            let from = self.offset + self.end as u64;
            self.end += read_full_at(&*self.file, &mut self.buf[self.end..want], from)?;
        }
        Ok(())
    }
}

/// What comes after a place without a sound frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beyond {
    /// Where the next sound frame begins that was asked for.
    pub(super) frame_at: Option<u64>,
    /// Where the last eight bytes end, up to there or to the limit, that are not all zeros; 0 if all are.
    pub(super) written_to: u64,
}

/// Looks for the next sound frame at or after `from` (at multiples of eight) with a sequence above `seq_from` that
/// passes `wanted` (its offset and head). Nothing but the salt and the CRC stands between a payload and a frame here, so
/// a head must be plausible before its CRC is computed; that keeps the search linear.
pub(super) fn find_frame(
    reader: &FrameReader,
    from: u64,
    seq_from: u64,
    wanted: impl Fn(u64, &RawHead) -> bool,
) -> io::Result<Beyond> {
    let (file, coding, limit) = (&reader.file, reader.coding, reader.limit);
    let mut window = vec![0; BUFFER_BYTES];
    let mut at = from.max(HEADER_BYTES);
    let mut written_to = 0;
    while at < limit {
        let want = window.len().min((limit - at) as usize);
        let have = read_full_at(&**file, &mut window[..want], at)?;
        if have == 0 {
            break;
        }
        // Heads that begin in this window and end in it; the next window starts where they no longer do.
        let step = if have < window.len() { have } else { have - FRAME_HEAD_BYTES };
        for i in (0..step).step_by(8) {
            if window[i..have.min(i + 8)].iter().any(|&b| b != 0) {
                written_to = at + have.min(i + 8) as u64;
            }
            let Some(head) = RawHead::read(&window[i..have], coding.version) else { continue };
            let (offset, whole) = (at + i as u64, FRAME_HEAD_BYTES + head.payload_bytes as usize);
            let apart = (offset - from) / FRAME_HEAD_BYTES as u64 + 1;
            let plausible = head.zeros
                && head.seq >= seq_from
                && head.seq - seq_from <= apart + (1 << 32)
                && head.group_start <= offset
                && whole as u64 <= limit - offset;
            if !plausible || !wanted(offset, &head) {
                continue;
            }
            let mut bytes = vec![0; whole];
            if read_full_at(&**file, &mut bytes, offset)? == whole && head.verify(&bytes, coding).is_ok() {
                return Ok(Beyond { frame_at: Some(offset), written_to });
            }
        }
        at += step as u64;
    }
    Ok(Beyond { frame_at: None, written_to })
}
