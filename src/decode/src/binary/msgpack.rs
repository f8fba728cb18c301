//! Reads MessagePack, one head at a time
//! (<https://github.com/msgpack/msgpack/blob/master/spec.md>).

use super::source::{Bytes, Head, Malformed, MalformedKind, Source};
use crate::{RejectReason, decimal};

/// The extension type of timestamps.
const TIMESTAMP: i8 = -1;

#[derive(Debug)]
pub(super) struct MessagePack<'de>(Bytes<'de>);

impl<'de> MessagePack<'de> {
    pub(super) fn new(bytes: &'de [u8]) -> MessagePack<'de> {
        MessagePack(Bytes::new(bytes))
    }

    fn u8(&mut self) -> Result<u64, Malformed> {
        self.0.array::<1>().map(|b| u64::from(b[0]))
    }

    fn u16(&mut self) -> Result<u64, Malformed> {
        self.0.array().map(u16::from_be_bytes).map(u64::from)
    }

    fn u32(&mut self) -> Result<u64, Malformed> {
        self.0.array().map(u32::from_be_bytes).map(u64::from)
    }

    fn extension(&mut self, len: u64) -> Result<Head<'de>, Malformed> {
        let [kind] = self.0.array()?;
        let bytes = self.0.take(len)?;
        let time = if kind.cast_signed() == TIMESTAMP {
            timestamp(bytes)
        } else {
            None
        };
        Ok(time.map_or(Head::Other("an extension"), Head::Time))
    }
}

impl<'de> Source<'de> for MessagePack<'de> {
    const NAME: &'static str = "MessagePack";
    const REASON: RejectReason = RejectReason::InvalidMsgpack;

    fn head(&mut self) -> Result<Head<'de>, Malformed> {
        let [first] = self.0.array()?;
        let low = |mask: u8| u64::from(first & mask);
        Ok(match first {
            0x00..=0x7f => Head::Int(i128::from(first)),
            0x80..=0x8f => Head::Map(Some(low(15))),
            0x90..=0x9f => Head::Array(Some(low(15))),
            0xa0..=0xbf => Head::Text(self.0.take(low(31))?),
            0xc0 => Head::Null,
            0xc1 => return Err(self.0.malformed(MalformedKind::NeverUsed)),
            0xc2 => Head::Bool(false),
            0xc3 => Head::Bool(true),
            0xc4 => {
                let n = self.u8()?;
                Head::Bytes(self.0.take(n)?)
            }
            0xc5 => {
                let n = self.u16()?;
                Head::Bytes(self.0.take(n)?)
            }
            0xc6 => {
                let n = self.u32()?;
                Head::Bytes(self.0.take(n)?)
            }
            0xc7 => {
                let n = self.u8()?;
                self.extension(n)?
            }
            0xc8 => {
                let n = self.u16()?;
                self.extension(n)?
            }
            0xc9 => {
                let n = self.u32()?;
                self.extension(n)?
            }
            0xca => Head::Double(decimal::shortest(f32::from_be_bytes(self.0.array()?))),
            0xcb => Head::Double(f64::from_be_bytes(self.0.array()?)),
            0xcc => Head::Int(i128::from(self.u8()?)),
            0xcd => Head::Int(i128::from(self.u16()?)),
            0xce => Head::Int(i128::from(self.u32()?)),
            0xcf => Head::Int(i128::from(u64::from_be_bytes(self.0.array()?))),
            0xd0 => Head::Int(i128::from(i8::from_be_bytes(self.0.array()?))),
            0xd1 => Head::Int(i128::from(i16::from_be_bytes(self.0.array()?))),
            0xd2 => Head::Int(i128::from(i32::from_be_bytes(self.0.array()?))),
            0xd3 => Head::Int(i128::from(i64::from_be_bytes(self.0.array()?))),
            0xd4..=0xd8 => self.extension(1 << (first - 0xd4))?,
            0xd9 => {
                let n = self.u8()?;
                Head::Text(self.0.take(n)?)
            }
            0xda => {
                let n = self.u16()?;
                Head::Text(self.0.take(n)?)
            }
            0xdb => {
                let n = self.u32()?;
                Head::Text(self.0.take(n)?)
            }
            0xdc => Head::Array(Some(self.u16()?)),
            0xdd => Head::Array(Some(self.u32()?)),
            0xde => Head::Map(Some(self.u16()?)),
            0xdf => Head::Map(Some(self.u32()?)),
            0xe0..=0xff => Head::Int(i128::from(first.cast_signed())),
        })
    }

    fn eat_break(&mut self) -> bool {
        false
    }

    fn at(&self) -> usize {
        self.0.at
    }

    fn is_at_end(&self) -> bool {
        self.0.peek().is_none()
    }
}

/// Nanoseconds since 1970 from one of the three lengths of a timestamp.
fn timestamp(bytes: &[u8]) -> Option<i128> {
    let (seconds, nanos) = match bytes.len() {
        4 => (i128::from(u32::from_be_bytes(*bytes.first_chunk()?)), 0),
        8 => {
            let both = u64::from_be_bytes(*bytes.first_chunk()?);
            (i128::from(both & 0x3_ffff_ffff), both >> 34)
        }
        12 => {
            let nanos = u64::from(u32::from_be_bytes(*bytes.first_chunk()?));
            (i128::from(i64::from_be_bytes(*bytes.last_chunk()?)), nanos)
        }
        _ => return None,
    };
    (nanos < 1_000_000_000).then(|| seconds * 1_000_000_000 + i128::from(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Result<Head<'_>, MalformedKind> {
        let mut source = MessagePack::new(bytes);
        let head = source.head().map_err(|e| e.kind)?;
        assert!(source.is_at_end(), "{bytes:x?}");
        Ok(head)
    }

    #[test]
    fn heads_match_the_specification() {
        for (bytes, head) in [
            (&[0x7f][..], Head::Int(127)),
            (&[0xe0], Head::Int(-32)),
            (&[0xff], Head::Int(-1)),
            (&[0xcc, 0xff], Head::Int(255)),
            (&[0xcd, 1, 0], Head::Int(256)),
            (&[0xce, 0xff, 0xff, 0xff, 0xff], Head::Int(u32::MAX.into())),
            (
                &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                Head::Int(u64::MAX.into()),
            ),
            (&[0xd0, 0x80], Head::Int(-128)),
            (&[0xd1, 0x80, 0], Head::Int(-32768)),
            (&[0xd2, 0x80, 0, 0, 0], Head::Int(i32::MIN.into())),
            (
                &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0],
                Head::Int(i64::MIN.into()),
            ),
            (&[0xca, 0x41, 0xac, 0, 0], Head::Double(21.5)),
            (&[0xca, 0x41, 0xb3, 0x33, 0x33], Head::Double(22.4)),
            (&[0xcb, 0x40, 0x35, 0x80, 0, 0, 0, 0, 0], Head::Double(21.5)),
            (&[0xa1, b'a'], Head::Text(b"a")),
            (&[0xd9, 1, b'a'], Head::Text(b"a")),
            (&[0xda, 0, 1, b'a'], Head::Text(b"a")),
            (&[0xdb, 0, 0, 0, 1, b'a'], Head::Text(b"a")),
            (&[0xc4, 1, 7], Head::Bytes(&[7])),
            (&[0xc5, 0, 1, 7], Head::Bytes(&[7])),
            (&[0xc6, 0, 0, 0, 1, 7], Head::Bytes(&[7])),
            (&[0x92], Head::Array(Some(2))),
            (&[0xdc, 1, 0], Head::Array(Some(256))),
            (&[0xdd, 0, 1, 0, 0], Head::Array(Some(65536))),
            (&[0x8f], Head::Map(Some(15))),
            (&[0xde, 0, 16], Head::Map(Some(16))),
            (&[0xdf, 0, 0, 0, 1], Head::Map(Some(1))),
            (&[0xc0], Head::Null),
            (&[0xc2], Head::Bool(false)),
            (&[0xc3], Head::Bool(true)),
            (&[0xd4, 5, 0], Head::Other("an extension")),
            (&[0xc7, 0, 5], Head::Other("an extension")),
            (&[0xd6, 0xff, 0, 0, 0, 1], Head::Time(1_000_000_000)),
            (
                &[0xd7, 0xff, 0, 0, 0, 4, 0, 0, 0, 1],
                Head::Time(1_000_000_001),
            ),
            (
                &[
                    0xc7, 12, 0xff, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                ],
                Head::Time(-999_999_999),
            ),
            (
                &[0xd7, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1],
                Head::Other("an extension"),
            ),
            (&[0xd4, 0xff, 0], Head::Other("an extension")),
        ] {
            assert_eq!(one(bytes), Ok(head), "{bytes:x?}");
        }
        assert_eq!(one(&[0xc1]), Err(MalformedKind::NeverUsed));
        for bytes in [
            &[][..],
            &[0xa2, b'a'],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xd6, 0xff, 0],
            &[0xcd, 1],
        ] {
            assert_eq!(
                one(bytes),
                Err(MalformedKind::EndsInsideValue),
                "{bytes:x?}"
            );
        }
    }
}
