//! The format: a segment's header and its frames, as bytes. Pure; the IO is elsewhere.
//!
//! A segment file is one page of header and then frames, each at a multiple of eight bytes, up to the first place that
//! holds none. Behind it are zeros (space reserved and not used) or, in a *recycled* file, whatever the segments hold that
//! were in it before. All numbers little-endian.
//!
//! Header, twice in its page ([`HEADER_COPY_AT`]) because the frames cannot be verified without the salt: magic (8),
//! format version (u32), CRC32C of what follows (u32), number (u64), first sequence (u64), salt (u32), flags (u32; 1:
//! recycled), time of creation (i64 ms). The page is synced before the file gets its name and not written again before
//! the file has durably lost it.
//!
//! Frame: payload length (u32), CRC32C (u32) of all that follows, sequence (u64), time of append (i64 ms), group start
//! (u64), records (u32), kind (u8), zeros (3), payload, zeros up to a multiple of eight.
//!
//! - The CRC starts from the segment's salt: what a file left on the disk before this one, and what a sender puts into a
//!   payload to look like a frame, does not pass. The salts of one process are a random number and the numbers that
//!   follow it, and only its own files are recycled, so no two segments that were ever in one file have the same salt.
//!   That is certainty and not luck: of the same bytes, a CRC that starts elsewhere ends elsewhere.
//! - The *group start* is the offset at which the write began that the frame was part of. Everything before it had been
//!   synced when the frame was written. So a sound frame proves that all bytes before its group start were durable once,
//!   which tells damage from a torn tail (see `recovery`).

use std::ops::Range;

use crate::model::{DeadLetter, ReadingBatch};

/// Length of the header's page, where the first frame begins.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Where the header stands for the second time: in another sector.
pub(super) const HEADER_COPY_AT: usize = 2048;
/// Length of a frame without its payload.
pub(super) const FRAME_HEAD_BYTES: usize = 40;
/// The format that this build writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 2;
/// The longest payload: far above what a body may be, far below what the length field holds.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

const MAGIC: [u8; 8] = *b"hbjournl";
const HEADER_USED: usize = 48;
const FLAG_RECYCLED: u32 = 1;

/// What a segment says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Its number; the next segment has the next one.
    pub number: u64,
    /// The sequence of its first frame, and one more than that of the last frame before it.
    pub first_seq: u64,
    /// Where every CRC in it starts.
    pub salt: u32,
    /// Whether frames of an earlier segment may be behind its own.
    pub recycled: bool,
    /// When it was made, milliseconds since 1970.
    pub created_ms: i64,
}

/// What is wrong with a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The file is shorter than a header, or begins with something else.
    #[error("this is not a journal segment")]
    Magic,
    /// Another format.
    #[error("it has format version {0}, and this hourbucket reads version {FORMAT_VERSION} only")]
    Version(u32),
    /// The checksum does not match.
    #[error("the checksum of its header does not match")]
    Crc,
}

impl Header {
    /// The whole page.
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
    /// What is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Header, HeaderFault> {
        let bytes = bytes.get(..HEADER_USED).filter(|b| b[..8] == MAGIC).ok_or(HeaderFault::Magic)?;
        let mut fields = Fields(&bytes[8..]);
        let (version, crc) = fields.u32().zip(fields.u32()).ok_or(HeaderFault::Magic)?;
        if version != FORMAT_VERSION {
            return Err(HeaderFault::Version(version));
        }
        if crc32c::crc32c(fields.0) != crc {
            return Err(HeaderFault::Crc);
        }
        let mut number = || fields.u64().ok_or(HeaderFault::Magic);
        let (number, first_seq, salt_and_flags, created_ms) = (number()?, number()?, number()?, number()? as i64);
        let (salt, flags) = (salt_and_flags as u32, (salt_and_flags >> 32) as u32);
        Ok(Header { number, first_seq, salt, recycled: flags & FLAG_RECYCLED != 0, created_ms })
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A batch of readings, in the form of [`ReadingBatch::encode`].
    Readings,
    /// Dead letters, in the form of [`encode_dead`].
    Dead,
    /// Nothing: the sequences from its own up to the one in its payload (u64, exclusive) were lost to damage, and an
    /// operator took them out with `hourbucket journal salvage`.
    Gap,
}

impl FrameKind {
    fn to_byte(self) -> u8 {
        match self {
            FrameKind::Readings => 1,
            FrameKind::Dead => 2,
            FrameKind::Gap => 3,
        }
    }

    fn from_byte(byte: u8) -> Option<FrameKind> {
        [FrameKind::Readings, FrameKind::Dead, FrameKind::Gap].into_iter().find(|kind| kind.to_byte() == byte)
    }
}

/// A frame's head, without length and CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// The sequence; each frame of the journal has the next one.
    pub seq: u64,
    /// When it was appended, milliseconds since 1970.
    pub wall_ms: i64,
    /// Where the write began that it was part of; see the module.
    pub group_start: u64,
    /// Readings or letters in it.
    pub records: u32,
    /// What they are.
    pub kind: FrameKind,
}

/// A sound frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame<'a> {
    /// Its head.
    pub head: FrameHead,
    /// What it holds.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The sequence after it.
    pub(super) fn next_seq(&self) -> u64 {
        match self.head.kind {
            FrameKind::Gap => Fields(self.payload).u64().unwrap_or(0).max(self.head.seq),
            FrameKind::Readings | FrameKind::Dead => self.head.seq + 1,
        }
    }

    /// Bytes from its start to the next one's.
    pub(super) fn span(&self) -> u64 {
        frame_span(self.payload.len())
    }
}

/// Bytes from the start of a frame with a payload of this length to the next one's.
pub(super) fn frame_span(payload_bytes: usize) -> u64 {
    (FRAME_HEAD_BYTES + payload_bytes).next_multiple_of(8) as u64
}

/// Why there is no sound frame at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Zeros, or the end of the file.
    #[error("the frames end here, and more were written after them")]
    Ends,
    /// Longer than the rest of the segment.
    #[error("the frame's length of {0} bytes does not fit into the segment")]
    Length(u32),
    /// The checksum does not match.
    #[error("the frame's checksum does not match")]
    Crc,
    /// A sound frame of a kind that this build does not know.
    #[error("the frame has the unknown kind {0}")]
    Kind(u8),
    /// A sound frame with another sequence than the one that comes here.
    #[error("the frame has sequence {found}, and {expected} comes here")]
    Sequence {
        /// What comes here.
        expected: u64,
        /// What stands here.
        found: u64,
    },
    /// A sound frame whose payload cannot be read.
    #[error("the frame's payload cannot be read")]
    Payload,
}

/// Starts a frame: leaves room for the head and returns where it is, for [`finish_frame`].
pub(super) fn begin_frame(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.resize(at + FRAME_HEAD_BYTES, 0);
    at
}

/// Ends the payload that began with [`begin_frame`] at `at`, and says where its frame is.
pub(super) fn end_frame(out: &mut Vec<u8>, at: usize) -> Range<usize> {
    let end = out.len();
    out.resize(end.next_multiple_of(8), 0);
    at..end
}

/// Fills in the head and the CRC of a frame once its place is known.
pub(super) fn seal_frame(frame: &mut [u8], head: FrameHead, salt: u32) {
    let payload_bytes = (frame.len() - FRAME_HEAD_BYTES) as u32;
    frame[0..4].copy_from_slice(&payload_bytes.to_le_bytes());
    frame[8..16].copy_from_slice(&head.seq.to_le_bytes());
    frame[16..24].copy_from_slice(&head.wall_ms.to_le_bytes());
    frame[24..32].copy_from_slice(&head.group_start.to_le_bytes());
    frame[32..36].copy_from_slice(&head.records.to_le_bytes());
    frame[36..40].copy_from_slice(&[head.kind.to_byte(), 0, 0, 0]);
    let crc = frame_crc(salt, payload_bytes, &frame[8..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The length is part of it: as the seed's other half, since it stands before the CRC.
fn frame_crc(salt: u32, payload_bytes: u32, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(salt, &payload_bytes.to_le_bytes()), rest)
}

/// What the head of a frame says, before anything is verified.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawHead {
    pub(super) payload_bytes: u32,
    crc: u32,
    pub(super) seq: u64,
    wall_ms: i64,
    pub(super) group_start: u64,
    records: u32,
    kind: u8,
    pub(super) reserved: [u8; 3],
}

impl RawHead {
    /// `None` where `bytes` is shorter than a head or all of it is zeros.
    pub(super) fn read(bytes: &[u8]) -> Option<RawHead> {
        let bytes = bytes.get(..FRAME_HEAD_BYTES)?;
        if bytes.iter().all(|&b| b == 0) {
            return None;
        }
        let mut fields = Fields(bytes);
        Some(RawHead {
            payload_bytes: fields.u32()?,
            crc: fields.u32()?,
            seq: fields.u64()?,
            wall_ms: fields.u64()? as i64,
            group_start: fields.u64()?,
            records: fields.u32()?,
            kind: bytes[36],
            reserved: [bytes[37], bytes[38], bytes[39]],
        })
    }

    /// Verifies the frame in `bytes`, which is its head and payload.
    pub(super) fn verify(self, bytes: &[u8], salt: u32) -> Result<Frame<'_>, FrameFault> {
        if frame_crc(salt, self.payload_bytes, &bytes[8..]) != self.crc {
            return Err(FrameFault::Crc);
        }
        let kind = FrameKind::from_byte(self.kind).ok_or(FrameFault::Kind(self.kind))?;
        let (seq, wall_ms, group_start, records) = (self.seq, self.wall_ms, self.group_start, self.records);
        let head = FrameHead { seq, wall_ms, group_start, records, kind };
        Ok(Frame { head, payload: &bytes[FRAME_HEAD_BYTES..] })
    }
}

/// Appends dead letters: number (u32), then each one's time (i64) and its five texts, each with its length (u32).
pub(super) fn encode_dead(letters: &[DeadLetter], out: &mut Vec<u8>) {
    out.extend_from_slice(&(letters.len() as u32).to_le_bytes());
    for letter in letters {
        out.extend_from_slice(&letter.received_at_ms.to_le_bytes());
        let DeadLetter { source, topic, payload, reason, detail, .. } = letter;
        for bytes in [source.as_bytes(), topic.as_bytes(), payload, reason.as_bytes(), detail.as_bytes()] {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
    }
}

/// Reads what [`encode_dead`] wrote; `None` where it is not whole.
pub(super) fn decode_dead(bytes: &[u8]) -> Option<Vec<DeadLetter>> {
    let mut fields = Fields(bytes);
    let count = fields.u32()?;
    let mut letters = Vec::new();
    for _ in 0..count {
        letters.push(DeadLetter {
            received_at_ms: fields.u64()? as i64,
            source: fields.text()?,
            topic: fields.text()?,
            payload: fields.bytes()?.to_vec(),
            reason: fields.text()?,
            detail: fields.text()?,
        });
    }
    fields.0.is_empty().then_some(letters)
}

/// What a frame's payload decodes to.
#[derive(Debug)]
pub(super) enum Payload {
    Readings(ReadingBatch),
    Dead(Vec<DeadLetter>),
    Gap,
}

impl Payload {
    pub(super) fn decode(frame: &Frame<'_>) -> Result<Payload, FrameFault> {
        let payload = match frame.head.kind {
            FrameKind::Readings => ReadingBatch::decode(frame.payload).map(Payload::Readings),
            FrameKind::Dead => decode_dead(frame.payload).map(Payload::Dead),
            FrameKind::Gap => Some(Payload::Gap),
        };
        payload.ok_or(FrameFault::Payload)
    }
}

/// Takes little-endian fields off the front.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        let at = begin_frame(&mut out);
        out.extend_from_slice(payload);
        let range = end_frame(&mut out, at);
        let head = FrameHead { seq: 7, wall_ms: -1, group_start: 4096, records: 1, kind };
        seal_frame(&mut out[range.clone()], head, 99);
        out.truncate(range.end);
        out
    }

    fn parse(bytes: &[u8], salt: u32) -> Result<Frame<'_>, FrameFault> {
        RawHead::read(bytes).ok_or(FrameFault::Ends)?.verify(bytes, salt)
    }

    #[test]
    fn no_bit_of_a_frame_can_change_unseen() {
        let bytes = sealed(FrameKind::Readings, b"payload");
        assert_eq!(parse(&bytes, 99).unwrap().payload, b"payload");
        assert_eq!(parse(&bytes, 98).unwrap_err(), FrameFault::Crc, "another segment's salt");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad, 99).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_is_read_from_either_place_and_another_version_is_named() {
        let header = Header { number: 3, first_seq: 12, salt: u32::MAX, recycled: true, created_ms: 5 };
        let fresh = Header { recycled: false, ..header };
        assert_eq!(Header::decode(&fresh.encode()), Ok(fresh));
        let mut page = header.encode();
        assert_eq!(Header::decode(&page), Ok(header));
        assert_eq!(Header::decode(&page[HEADER_COPY_AT..]), Ok(header));
        page[20] ^= 1;
        assert_eq!(Header::decode(&page), Err(HeaderFault::Crc));
        page[8] = 9;
        let fault = Header::decode(&page).unwrap_err();
        assert_eq!(fault, HeaderFault::Version(9));
        assert!(fault.to_string().contains("version 9"), "{fault}");
        assert_eq!(Header::decode(b"short"), Err(HeaderFault::Magic));
    }

    #[test]
    fn dead_letters_come_back_and_no_part_of_them_passes_for_the_whole() {
        let letter = DeadLetter {
            received_at_ms: -5,
            source: "mqtt".into(),
            topic: "a/ü".into(),
            payload: vec![0, 255],
            reason: "bad_json".into(),
            detail: String::new(),
        };
        let mut bytes = vec![];
        encode_dead(&[letter.clone(), letter.clone()], &mut bytes);
        assert_eq!(decode_dead(&bytes).unwrap(), [letter.clone(), letter]);
        for cut in 0..bytes.len() {
            assert!(decode_dead(&bytes[..cut]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn a_gap_leads_to_the_sequence_in_it() {
        let bytes = sealed(FrameKind::Gap, &30u64.to_le_bytes());
        let frame = parse(&bytes, 99).unwrap();
        assert_eq!((frame.next_seq(), frame.span()), (30, 48));
    }
}
