//! The on-disk format of a segment: its header and its frames. Pure; IO is in other modules.
//!
//! A segment file has one page of header and then frames, each at a multiple of eight bytes, up to
//! the first place without a frame. Then follow zeros (reserved, unused space) or, in a *recycled*
//! file, bytes of earlier segments. All numbers are little-endian.
//!
//! Header, twice in its page ([`HEADER_COPY_AT`]) because the frames cannot be verified without the
//! salt: magic (8), format version (u32), CRC32C of the rest (u32), number (u64), first sequence
//! (u64), salt (u32), flags (u32; 1: recycled), creation time (i64 ms). The page is synced before
//! the file is renamed to `*.seg`. It is not written again before the removal of that name is
//! durable.
//!
//! Frame: payload length (u32), CRC32C (u32) of the rest, sequence (u64), append time (i64 ms since
//! 1970), group start (u32, in units of eight bytes), records (u32), append time on the process's
//! monotonic clock (ms, 40 bits: 34 years), kind (u8), zeros (2), payload, zeros up to a multiple
//! of eight.
//!
//! - The CRC starts from the segment's salt. So neither old bytes on the disk nor a payload that
//!   imitates a frame pass the check. The salts of one process are a random number and its
//!   successors, and only files of the same process are recycled. So two segments that used the
//!   same file never have the same salt. This is certain, not just likely: for the same bytes, CRCs
//!   with different starting values differ.
//! - The *group start* is the offset at which the frame's write started. Everything before it had
//!   been synced when the frame was written. So a valid frame proves that all bytes before its
//!   group start were once durable. This distinguishes damage from a torn tail (see `recovery`).
//! - A *synced frame* proves the same for the last group. It is written after the group, after its
//!   fdatasync and before its acknowledgements, and is not synced itself. If the process ends, it
//!   is in the page cache. If the machine stops, it exists if the kernel had written it back. It
//!   has no entries: its sequence is that of the next entry, and the next group overwrites it. A
//!   copy in another sector ([`synced_copy_at`]) survives damage that hits the end of the group.
//! - A *key frame* precedes an entry and belongs to it: the key of its request (see `keys`). It has
//!   the sequence of the entry, and does not count as one.
//! - The *run* of a segment is its salt minus its number. It is the same for all segments of a
//!   process. Monotonic times are compared only within a run.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::keys::RequestKey;
use super::tracker::Appended;
use model::{DeadLetter, ReadingBatch};

/// Length of the header's page; offset of the first frame.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Offset of the second copy of the header, in another sector.
pub(super) const HEADER_COPY_AT: usize = 2048;
/// Length of a frame without payload.
pub(super) const FRAME_HEAD_BYTES: usize = 40;
/// The format version of a segment.
const FORMAT_VERSION: u32 = 3;
/// The largest sector size of disks. The copy of a synced frame is in another sector.
const SECTOR_BYTES: u64 = 4096;
/// The unit of a group start.
const ALIGN: u64 = 8;
const MONO_MASK: u64 = (1 << 40) - 1;
/// The maximum payload: far above the limit of a body, far below the limit of the length field.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

const MAGIC: [u8; 8] = *b"hbjournl";
const HEADER_USED: usize = 48;
const FLAG_RECYCLED: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Numbers of consecutive segments are consecutive.
    pub number: u64,
    /// The sequence of its first frame; the previous segment ends before it.
    pub first_seq: u64,
    /// Starting value of every CRC in the segment.
    pub(crate) salt: u32,
    /// Whether frames of an earlier segment may follow its own.
    pub recycled: bool,
    /// Creation time, in milliseconds since 1970.
    pub created_ms: i64,
}

/// The fault of a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The file is shorter than a header, or starts with other bytes.
    #[error("not a journal segment")]
    Magic,
    /// Another format version.
    #[error("unsupported format version {0}; this hourbucket reads version {FORMAT_VERSION}")]
    Version(u32),
    /// The checksum of the header does not match.
    #[error("header checksum mismatch")]
    Crc,
}

/// The encoding of a segment's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coding {
    /// Starting value of every CRC.
    pub(crate) salt: u32,
    /// Identifies the process that wrote it; see the module.
    pub run: u32,
}

impl Coding {
    pub(super) fn appended(&self, head: &FrameHead) -> Appended {
        Appended {
            run: self.run,
            mono_ms: head.mono_ms,
            wall_ms: head.wall_ms,
        }
    }
}

impl Header {
    /// The encoding of its frames.
    pub(super) fn coding(&self) -> Coding {
        Coding {
            salt: self.salt,
            run: self.salt.wrapping_sub(self.number as u32),
        }
    }

    /// The whole header page.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEADER_USED - 16);
        body.extend_from_slice(&self.number.to_le_bytes());
        body.extend_from_slice(&self.first_seq.to_le_bytes());
        body.extend_from_slice(&self.salt.to_le_bytes());
        body.extend_from_slice(&(if self.recycled { FLAG_RECYCLED } else { 0 }).to_le_bytes());
        body.extend_from_slice(&self.created_ms.to_le_bytes());
        let mut page = vec![0; HEADER_BYTES as usize];
        for at in [0, HEADER_COPY_AT] {
            page[at..at + 8].copy_from_slice(&MAGIC);
            page[at + 8..at + 12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
            page[at + 12..at + 16].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
            page[at + 16..at + HEADER_USED].copy_from_slice(&body);
        }
        page
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// The header is invalid or of another format.
    pub(super) fn decode(bytes: &[u8]) -> Result<Header, HeaderFault> {
        let bytes = bytes
            .get(..HEADER_USED)
            .filter(|b| b[..8] == MAGIC)
            .ok_or(HeaderFault::Magic)?;
        let mut fields = Fields(&bytes[8..]);
        let (version, crc) = fields.u32().zip(fields.u32()).ok_or(HeaderFault::Magic)?;
        if version != FORMAT_VERSION {
            return Err(HeaderFault::Version(version));
        }
        if crc32c::crc32c(fields.0) != crc {
            return Err(HeaderFault::Crc);
        }
        let mut next = || fields.u64().ok_or(HeaderFault::Magic);
        let number = next()?;
        let first_seq = next()?;
        let salt_and_flags = next()?;
        let created_ms = next()? as i64;
        let salt = salt_and_flags as u32;
        let flags = (salt_and_flags >> 32) as u32;
        Ok(Header {
            number,
            first_seq,
            salt,
            recycled: flags & FLAG_RECYCLED != 0,
            created_ms,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A batch of readings, encoded by [`ReadingBatch::encode`].
    Readings,
    /// Dead letters, encoded by [`encode_dead`].
    Dead,
    /// No entries: the sequences from its own up to the one in its payload (u64, exclusive) were
    /// lost to damage, and an operator ran `hourbucket journal salvage`.
    Gap,
    /// No entries: everything before its group start was synced, and all sequences before its own
    /// exist; see the module.
    Synced,
    /// No entries: the [`RequestKey`] of the next frame, if that has the same sequence.
    Key,
}

impl FrameKind {
    fn to_byte(self) -> u8 {
        match self {
            FrameKind::Readings => 1,
            FrameKind::Dead => 2,
            FrameKind::Gap => 3,
            FrameKind::Synced => 4,
            FrameKind::Key => 5,
        }
    }

    fn from_byte(byte: u8) -> Option<FrameKind> {
        let all = [
            FrameKind::Readings,
            FrameKind::Dead,
            FrameKind::Gap,
            FrameKind::Synced,
            FrameKind::Key,
        ];
        all.into_iter().find(|kind| kind.to_byte() == byte)
    }
}

/// The head of a frame, without length and CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// Sequences of consecutive frames are consecutive.
    pub seq: u64,
    /// Append time, in milliseconds since 1970.
    pub wall_ms: i64,
    /// Append time on the monotonic clock of its run.
    pub mono_ms: u64,
    /// Offset at which its write started; see the module.
    pub(crate) group_start: u64,
    /// Number of readings or dead letters.
    pub records: u32,
    /// The content.
    pub kind: FrameKind,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Frame<'a> {
    pub head: FrameHead,
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The sequence after it.
    pub(super) fn next_seq(&self) -> u64 {
        match self.head.kind {
            FrameKind::Gap => Fields(self.payload).u64().unwrap_or(0).max(self.head.seq),
            FrameKind::Readings | FrameKind::Dead => self.head.seq + 1,
            FrameKind::Synced | FrameKind::Key => self.head.seq,
        }
    }

    /// Bytes from its start to the next frame.
    pub(super) fn span(&self) -> u64 {
        frame_span(self.payload.len())
    }
}

/// Bytes from the start of a frame with a payload of this length to the next frame.
pub(super) fn frame_span(payload_bytes: usize) -> u64 {
    (FRAME_HEAD_BYTES + payload_bytes).next_multiple_of(8) as u64
}

/// Why there is no valid frame at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Zeros, or the end of the file.
    #[error("the frames end here, but later frames were written")]
    Ends,
    /// Longer than the rest of the segment.
    #[error("the frame length of {0} bytes exceeds the segment")]
    Length(u32),
    /// The checksum does not match.
    #[error("frame checksum mismatch")]
    Crc,
    /// A valid frame of a kind unknown to this build.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A valid frame with an unexpected sequence.
    #[error("the frame has sequence {found}; expected {expected}")]
    Sequence {
        /// The sequence after the previous frame.
        expected: u64,
        /// The sequence in the frame.
        found: u64,
    },
    /// A valid frame whose payload cannot be decoded.
    #[error("cannot decode the payload of the frame")]
    Payload,
}

/// Starts a frame: reserves space for the head and returns its offset, for [`end_frame`].
pub(super) fn begin_frame(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.resize(at + FRAME_HEAD_BYTES, 0);
    at
}

/// Ends the frame that [`begin_frame`] started at `at`, and returns its range.
pub(super) fn end_frame(out: &mut Vec<u8>, at: usize) -> Range<usize> {
    let end = out.len();
    out.resize(end.next_multiple_of(8), 0);
    at..end
}

/// Fills in the head and the CRC of a frame once its position is known.
pub(super) fn seal_frame(frame: &mut [u8], head: FrameHead, coding: Coding) {
    let payload_bytes = (frame.len() - FRAME_HEAD_BYTES) as u32;
    frame[0..4].copy_from_slice(&payload_bytes.to_le_bytes());
    frame[8..16].copy_from_slice(&head.seq.to_le_bytes());
    frame[16..24].copy_from_slice(&head.wall_ms.to_le_bytes());
    // Fits: a segment has at most 5 GiB (`journal.segment_bytes` is at most 4 GiB, a message at most
    // 1 GiB).
    frame[24..28].copy_from_slice(&((head.group_start / ALIGN) as u32).to_le_bytes());
    frame[28..32].copy_from_slice(&head.records.to_le_bytes());
    let time_and_kind = (head.mono_ms & MONO_MASK) | u64::from(head.kind.to_byte()) << 40;
    frame[32..40].copy_from_slice(&time_and_kind.to_le_bytes());
    let crc = frame_crc(coding.salt, payload_bytes, &frame[8..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Encodes a synced frame; the same bytes are used for its copy.
pub(super) fn synced_frame(head: FrameHead, coding: Coding) -> [u8; FRAME_HEAD_BYTES] {
    let mut frame = [0; FRAME_HEAD_BYTES];
    seal_frame(
        &mut frame,
        FrameHead {
            records: 0,
            kind: FrameKind::Synced,
            ..head
        },
        coding,
    );
    frame
}

/// Offset of the copy of the synced frame at `at`.
pub(super) fn synced_copy_at(at: u64) -> u64 {
    (at + FRAME_HEAD_BYTES as u64).next_multiple_of(SECTOR_BYTES)
}

/// The CRC covers the length first, which precedes the CRC in the frame, and then the rest.
fn frame_crc(salt: u32, payload_bytes: u32, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c_append(salt, &payload_bytes.to_le_bytes()),
        rest,
    )
}

/// The head of a frame before verification.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawHead {
    pub(super) payload_bytes: u32,
    crc: u32,
    pub(super) seq: u64,
    wall_ms: i64,
    mono_ms: u64,
    pub(super) group_start: u64,
    records: u32,
    kind: u8,
    /// Whether the zero bytes are zero.
    pub(super) zeros: bool,
}

impl RawHead {
    /// `None` if `bytes` is shorter than a head, or if the head is all zeros.
    pub(super) fn parse(bytes: &[u8]) -> Option<RawHead> {
        let bytes = bytes.get(..FRAME_HEAD_BYTES)?;
        if bytes.iter().all(|&b| b == 0) {
            return None;
        }
        let mut fields = Fields(bytes);
        let payload_bytes = fields.u32()?;
        let crc = fields.u32()?;
        let seq = fields.u64()?;
        let wall_ms = fields.u64()? as i64;
        let group_start = u64::from(fields.u32()?) * ALIGN;
        let records = fields.u32()?;
        let time_and_kind = fields.u64()?;
        Some(RawHead {
            payload_bytes,
            crc,
            seq,
            wall_ms,
            mono_ms: time_and_kind & MONO_MASK,
            group_start,
            records,
            kind: (time_and_kind >> 40) as u8,
            zeros: time_and_kind >> 48 == 0,
        })
    }

    /// Whether its kind is that of a synced frame.
    pub(super) fn is_synced(&self) -> bool {
        self.kind == FrameKind::Synced.to_byte()
    }

    /// Verifies the frame; `bytes` holds its head and payload.
    pub(crate) fn verify(self, bytes: &[u8], coding: Coding) -> Result<Frame<'_>, FrameFault> {
        if frame_crc(coding.salt, self.payload_bytes, &bytes[8..]) != self.crc {
            return Err(FrameFault::Crc);
        }
        let kind = FrameKind::from_byte(self.kind).ok_or(FrameFault::Kind(self.kind))?;
        let RawHead {
            seq,
            wall_ms,
            mono_ms,
            group_start,
            records,
            ..
        } = self;
        let head = FrameHead {
            seq,
            wall_ms,
            mono_ms,
            group_start,
            records,
            kind,
        };
        Ok(Frame {
            head,
            payload: &bytes[FRAME_HEAD_BYTES..],
        })
    }
}

/// Encodes dead letters: count (u32), then for each its time (i64) and five texts, each with its
/// length (u32).
pub(super) fn encode_dead(dead_letters: &[DeadLetter], out: &mut Vec<u8>) {
    out.extend_from_slice(&(dead_letters.len() as u32).to_le_bytes());
    for dead_letter in dead_letters {
        out.extend_from_slice(&dead_letter.received_at_ms.to_le_bytes());
        let DeadLetter {
            source,
            topic,
            payload,
            reason,
            detail,
            ..
        } = dead_letter;
        for bytes in [
            source.as_bytes(),
            topic.as_bytes(),
            payload,
            reason.as_bytes(),
            detail.as_bytes(),
        ] {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
    }
}

/// Decodes the bytes of [`encode_dead`]; `None` if they are incomplete or invalid.
pub(super) fn decode_dead(bytes: &[u8]) -> Option<Vec<DeadLetter>> {
    let mut fields = Fields(bytes);
    let count = fields.u32()?;
    let mut dead_letters = Vec::new();
    for _ in 0..count {
        dead_letters.push(DeadLetter {
            received_at_ms: fields.u64()? as i64,
            source: fields.text()?,
            topic: fields.text()?,
            payload: fields.bytes()?.to_vec(),
            reason: fields.text()?,
            detail: fields.text()?,
        });
    }
    fields.0.is_empty().then_some(dead_letters)
}

/// The decoded payload of a frame.
#[derive(Debug)]
pub(super) enum Payload {
    Readings(ReadingBatch),
    Dead(Vec<DeadLetter>),
    /// No entry: lost sequences, or a key.
    Gap,
}

impl Payload {
    pub(crate) fn decode(frame: &Frame<'_>) -> Result<Payload, FrameFault> {
        let payload = match frame.head.kind {
            FrameKind::Readings => ReadingBatch::decode(frame.payload).map(Payload::Readings),
            FrameKind::Dead => decode_dead(frame.payload).map(Payload::Dead),
            FrameKind::Key => RequestKey::decode(frame.payload).map(|_| Payload::Gap),
            FrameKind::Gap | FrameKind::Synced => Some(Payload::Gap),
        };
        payload.ok_or(FrameFault::Payload)
    }
}

/// Reads little-endian fields from the front.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()? as usize;
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}
