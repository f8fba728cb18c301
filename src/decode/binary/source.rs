//! What the readers of CBOR and MessagePack share: the heads of values, and the bytes that they are read from.

use crate::decode::RejectReason;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::decode) enum Head<'de> {
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

/// A payload that is not well-formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) struct Malformed {
    pub(in crate::decode) at: usize,
    pub(in crate::decode) what: &'static str,
}

/// Reads heads in one of the formats.
pub(in crate::decode) trait Source<'de> {
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

    pub(super) fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    pub(super) fn take(&mut self, n: u64) -> Result<&'de [u8], Malformed> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(n).ok().and_then(|n| rest.get(..n));
        let taken = taken.ok_or_else(|| self.malformed("the payload ends inside a value"))?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.bytes[self.at..].first_chunk::<N>().copied();
        let taken = taken.ok_or_else(|| self.malformed("the payload ends inside a value"))?;
        self.at += N;
        Ok(taken)
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}
