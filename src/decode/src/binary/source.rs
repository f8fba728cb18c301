//! The common parts of the readers of CBOR and MessagePack: the heads of values, and the bytes that
//! they are read from.

use crate::RejectReason;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Head<'de> {
    /// Null, nil, undefined.
    Null,
    Bool(bool),
    /// CBOR has integers of 65 bits, including the sign.
    Int(i128),
    Double(f64),
    /// A text that is not yet checked for UTF-8.
    Text(&'de [u8]),
    Bytes(&'de [u8]),
    /// A text or bytes in chunks, which follow up to a break.
    Chunked {
        text: bool,
    },
    /// The number of values that follow; `None`: up to a break.
    Array(Option<u64>),
    /// The number of pairs that follow; `None`: up to a break.
    Map(Option<u64>),
    /// Defines the meaning of the next value.
    Tag(u64),
    Break,
    /// MessagePack's timestamp, in nanoseconds since 1970.
    Time(i128),
    /// A value of an unsupported type, with its name.
    Other(&'static str),
}

/// A payload that is not well-formed, with the offset at which that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {kind}")]
pub(crate) struct Malformed {
    pub(crate) at: usize,
    pub(crate) kind: MalformedKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedKind {
    #[error("the payload ends inside a value")]
    EndsInsideValue,
    #[error("a reserved length (RFC 8949 §3)")]
    ReservedLength,
    #[error("a simple value in a longer encoding than allowed")]
    LongSimple,
    #[error("a reserved simple value (RFC 8949 §3.3)")]
    ReservedSimple,
    #[error("an integer or tag without its argument")]
    NoArgument,
    #[error("the byte c1, which is never used")]
    NeverUsed,
    #[error("expected a value, found a break")]
    Break,
    #[error("expected a value, found a tag or break")]
    TagOrBreak,
    #[error("a chunk of a text or of bytes has another type")]
    ChunkType,
    #[error("nested too deeply to find its end")]
    TooDeep,
}

/// Reads heads in one of the formats.
pub(crate) trait Source<'de> {
    /// The name of the format, and the reason of rejects for malformed payloads.
    const NAME: &'static str;
    const REASON: RejectReason;

    /// Reads the next head.
    fn head(&mut self) -> Result<Head<'de>, Malformed>;
    /// Skips a break, if one is next.
    fn eat_break(&mut self) -> bool;
    /// The number of bytes read.
    fn at(&self) -> usize;
    /// Whether all bytes are read.
    fn is_at_end(&self) -> bool;
}

/// Bytes that are read from the front; errors have the offset.
#[derive(Debug)]
pub(super) struct Bytes<'de> {
    bytes: &'de [u8],
    pub(super) at: usize,
}

impl<'de> Bytes<'de> {
    pub(super) fn new(bytes: &'de [u8]) -> Bytes<'de> {
        Bytes { bytes, at: 0 }
    }

    pub(super) fn malformed(&self, kind: MalformedKind) -> Malformed {
        Malformed { at: self.at, kind }
    }

    pub(super) fn take(&mut self, n: u64) -> Result<&'de [u8], Malformed> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(n).ok().and_then(|n| rest.get(..n));
        let taken = taken.ok_or_else(|| self.malformed(MalformedKind::EndsInsideValue))?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.bytes[self.at..].first_chunk::<N>().copied();
        let taken = taken.ok_or_else(|| self.malformed(MalformedKind::EndsInsideValue))?;
        self.at += N;
        Ok(taken)
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}
