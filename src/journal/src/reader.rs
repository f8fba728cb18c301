//! Reads the frames of one segment in order, with a bounded buffer. Recovery, the follower and the
//! tools all use this reader, so there is only one definition of a valid frame.

use std::io;
use std::sync::Arc;

use super::fs::{FsFile, read_full_at};
use super::segment::{
    Coding, FRAME_HEAD_BYTES, Frame, FrameFault, HEADER_BYTES, RawHead, frame_span,
};

/// Bytes per read. For a longer frame the buffer grows to its length.
const BUFFER_BYTES: usize = 1 << 20;

/// A new file is mostly zeros. No frame begins in so many of them that a head fits, so the search
/// skips them together. The length minus that of a head is a multiple of eight.
static ZEROS: [u8; 4096] = [0; 4096];

/// The result of reading at a place.
pub(super) enum Step<'a> {
    /// A valid frame and its offset.
    Frame(u64, Frame<'a>),
    /// There is no valid frame.
    Fault(FrameFault),
}

/// Iterates over the frames of a segment.
pub(super) struct FrameReader {
    file: Arc<dyn FsFile>,
    coding: Coding,
    /// Start of the next frame.
    offset: u64,
    /// Reading stops here (exclusive).
    limit: u64,
    buf: Vec<u8>,
    /// `buf[start..end]` holds the bytes of the file from `offset` on.
    start: usize,
    end: usize,
}

impl FrameReader {
    /// Reads from `offset` to `limit`: the end of the file, or of its synced part.
    pub(super) fn new(
        file: Arc<dyn FsFile>,
        coding: Coding,
        offset: u64,
        limit: u64,
    ) -> FrameReader {
        FrameReader {
            file,
            coding,
            offset,
            limit,
            buf: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// Start of the next frame.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Another reader of the same segment, from `offset` on.
    pub(super) fn again(&self, offset: u64) -> FrameReader {
        FrameReader::new(self.file.clone(), self.coding, offset, self.limit)
    }

    /// Raises the limit after more was synced.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The next frame. A fault does not advance the position, so the next call returns it again.
    pub(super) fn next(&mut self) -> io::Result<Step<'_>> {
        self.fill(FRAME_HEAD_BYTES)?;
        let Some(head) = RawHead::parse(&self.buf[self.start..self.end]) else {
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

    /// Ensures that the buffer has at least `need` bytes, if the segment has them before the limit.
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

/// The content after a place without a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beyond {
    /// Offset of the next wanted frame.
    pub(super) frame_at: Option<u64>,
    /// End of the last eight bytes, before that frame or the limit, that are not all zeros; 0 if
    /// all are zeros.
    pub(super) written_to: u64,
}

/// Searches for the next valid frame at or after `from` (at multiples of eight), with a sequence of
/// at least `seq_from`, for which `wanted` returns true. Here only the salt and the CRC distinguish
/// a frame from a payload, so a head must be plausible before its CRC is computed. That keeps the
/// search linear.
pub(super) fn find_frame(
    reader: &FrameReader,
    from: u64,
    seq_from: u64,
    wanted: impl Fn(u64, &RawHead) -> bool,
) -> io::Result<Beyond> {
    let file = &reader.file;
    let coding = reader.coding;
    let limit = reader.limit;
    let mut window = vec![0; BUFFER_BYTES];
    let mut at = from.max(HEADER_BYTES);
    let mut written_to = 0;
    while at < limit {
        let want = window.len().min((limit - at) as usize);
        let have = read_full_at(&**file, &mut window[..want], at)?;
        if have == 0 {
            break;
        }
        // Considers heads that lie wholly in this window; the next window starts at the first one
        // that does not.
        let step = if have < window.len() {
            have
        } else {
            have - FRAME_HEAD_BYTES
        };
        let mut next = 0;
        while next < step {
            let rest = &window[next..have];
            let offset = at + next as u64;
            if rest.starts_with(&ZEROS) {
                next += ZEROS.len() - FRAME_HEAD_BYTES;
                continue;
            }
            next += 8;
            let word = &rest[..rest.len().min(8)];
            if word.iter().any(|&b| b != 0) {
                written_to = offset + word.len() as u64;
            }
            let Some(head) = RawHead::parse(rest) else {
                continue;
            };
            let whole = FRAME_HEAD_BYTES + head.payload_bytes as usize;
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
            if read_full_at(&**file, &mut bytes, offset)? == whole
                && head.verify(&bytes, coding).is_ok()
            {
                return Ok(Beyond {
                    frame_at: Some(offset),
                    written_to,
                });
            }
        }
        at += step as u64;
    }
    Ok(Beyond {
        frame_at: None,
        written_to,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fs::{Fs, RealFs};
    use super::super::segment::{FrameHead, FrameKind, seal_frame};
    use super::*;

    #[test]
    fn a_frame_is_found_after_zeros_of_any_length() {
        let coding = Coding { salt: 7, run: 1 };
        let head = FrameHead {
            seq: 5,
            wall_ms: 1,
            mono_ms: 1,
            group_start: HEADER_BYTES,
            records: 1,
            kind: FrameKind::Readings,
        };
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("segment");
        let first = HEADER_BYTES as usize;
        let skipped = ZEROS.len() - FRAME_HEAD_BYTES;
        // Every place near the end of the zeros that are skipped together, twice, and of a read.
        let places = [
            first,
            first + skipped,
            first + 2 * skipped,
            first + BUFFER_BYTES,
        ];
        for near in places {
            for at in (near.saturating_sub(96).max(first)..near + 96).step_by(8) {
                let mut bytes = vec![0; at + 64];
                seal_frame(&mut bytes[at..], head, coding);
                bytes.resize(at + 3 * ZEROS.len(), 0);
                let size = bytes.len() as u64;
                std::fs::write(&path, bytes).expect("space");
                let file = RealFs.open(&path, false).expect("a file");
                let reader = FrameReader::new(file, coding, HEADER_BYTES, size);
                let search = |wanted: bool| {
                    find_frame(&reader, HEADER_BYTES, 5, |_, _| wanted).expect("readable")
                };
                let found = search(true);
                assert_eq!(found.frame_at, Some(at as u64));
                assert_eq!(found.written_to, at as u64 + 8);
                let not_wanted = search(false);
                assert_eq!(not_wanted.frame_at, None);
                // The last of the head's bytes that are not zeros: its time and kind.
                assert_eq!(not_wanted.written_to, at as u64 + FRAME_HEAD_BYTES as u64);
            }
        }
    }
}
