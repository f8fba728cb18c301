//! Reads CBOR (RFC 8949), one head at a time.

use super::source::{Bytes, Head, Malformed, MalformedKind, Source};
use crate::{RejectReason, decimal};

const BREAK: u8 = 0xff;

#[derive(Debug)]
pub(crate) struct Cbor<'de>(Bytes<'de>);

impl<'de> Cbor<'de> {
    pub(crate) fn new(bytes: &'de [u8]) -> Cbor<'de> {
        Cbor(Bytes::new(bytes))
    }

    /// The argument of a head; `None` for an indefinite length.
    fn argument(&mut self, info: u8) -> Result<Option<u64>, Malformed> {
        let bytes = &mut self.0;
        Ok(Some(match info {
            0..=23 => u64::from(info),
            24 => u64::from(bytes.array::<1>()?[0]),
            25 => u64::from(u16::from_be_bytes(bytes.array()?)),
            26 => u64::from(u32::from_be_bytes(bytes.array()?)),
            27 => u64::from_be_bytes(bytes.array()?),
            31 => return Ok(None),
            _ => return Err(bytes.malformed(MalformedKind::ReservedLength)),
        }))
    }

    fn simple(&mut self, info: u8) -> Result<Head<'de>, Malformed> {
        let bytes = &mut self.0;
        Ok(match info {
            20 => Head::Bool(false),
            21 => Head::Bool(true),
            22 | 23 => Head::Null,
            24 if bytes.array::<1>()?[0] < 32 => {
                return Err(bytes.malformed(MalformedKind::LongSimple));
            }
            0..=19 | 24 => Head::Other("an unassigned simple value"),
            25 => Head::Double(half(u16::from_be_bytes(bytes.array()?))),
            26 => Head::Double(decimal::shortest(f32::from_be_bytes(bytes.array()?))),
            27 => Head::Double(f64::from_be_bytes(bytes.array()?)),
            31 => Head::Break,
            _ => return Err(bytes.malformed(MalformedKind::ReservedSimple)),
        })
    }
}

impl<'de> Source<'de> for Cbor<'de> {
    const NAME: &'static str = "CBOR";
    const REASON: RejectReason = RejectReason::InvalidCbor;

    fn head(&mut self) -> Result<Head<'de>, Malformed> {
        let [first] = self.0.array()?;
        let major = first >> 5;
        let info = first & 31;
        if major == 7 {
            return self.simple(info);
        }
        let argument = self.argument(info)?;
        Ok(match (major, argument) {
            (0, Some(n)) => Head::Int(i128::from(n)),
            (1, Some(n)) => Head::Int(-1 - i128::from(n)),
            (2, Some(n)) => Head::Bytes(self.0.take(n)?),
            (3, Some(n)) => Head::Text(self.0.take(n)?),
            (2 | 3, None) => Head::Chunked { text: major == 3 },
            (4, n) => Head::Array(n),
            (5, n) => Head::Map(n),
            (6, Some(n)) => Head::Tag(n),
            _ => return Err(self.0.malformed(MalformedKind::NoArgument)),
        })
    }

    fn eat_break(&mut self) -> bool {
        let is_break = self.0.peek() == Some(BREAK);
        self.0.at += usize::from(is_break);
        is_break
    }

    fn at(&self) -> usize {
        self.0.at
    }

    fn is_at_end(&self) -> bool {
        self.0.peek().is_none()
    }
}

/// A 16-bit number: sign, 5 bits of exponent, 10 of mantissa (RFC 8949 appendix D).
fn half(bits: u16) -> f64 {
    let exponent = i32::from(bits >> 10 & 31);
    let mantissa = f64::from(bits & 0x3ff);
    let abs = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (mantissa + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { abs } else { -abs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Result<Head<'_>, MalformedKind> {
        let mut cbor = Cbor::new(bytes);
        let head = cbor.head().map_err(|e| e.kind)?;
        assert!(cbor.is_at_end(), "{bytes:x?}");
        Ok(head)
    }

    /// Examples from RFC 8949, appendix A.
    #[test]
    fn heads_match_the_standard() {
        for (bytes, head) in [
            (&[0x00][..], Head::Int(0)),
            (&[0x17], Head::Int(23)),
            (&[0x18, 0x18], Head::Int(24)),
            (&[0x19, 0x03, 0xe8], Head::Int(1000)),
            (
                &[0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                Head::Int(u64::MAX.into()),
            ),
            (
                &[0x3b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                Head::Int(-1 - i128::from(u64::MAX)),
            ),
            (&[0x20], Head::Int(-1)),
            (&[0x39, 0x03, 0xe7], Head::Int(-1000)),
            (&[0xf9, 0x00, 0x00], Head::Double(0.0)),
            (&[0xf9, 0x3c, 0x00], Head::Double(1.0)),
            (&[0xf9, 0x3e, 0x00], Head::Double(1.5)),
            (&[0xf9, 0x7b, 0xff], Head::Double(65504.0)),
            (&[0xf9, 0x00, 0x01], Head::Double(5.960464477539063e-8)),
            (&[0xf9, 0x04, 0x00], Head::Double(0.00006103515625)),
            (&[0xf9, 0xc4, 0x00], Head::Double(-4.0)),
            (&[0xf9, 0x7c, 0x00], Head::Double(f64::INFINITY)),
            (&[0xf9, 0xfc, 0x00], Head::Double(f64::NEG_INFINITY)),
            (&[0xfa, 0x47, 0xc3, 0x50, 0x00], Head::Double(100000.0)),
            (&[0xfa, 0x41, 0xb3, 0x33, 0x33], Head::Double(22.4)),
            (
                &[0xfb, 0x3f, 0xf1, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9a],
                Head::Double(1.1),
            ),
            (&[0xf4], Head::Bool(false)),
            (&[0xf5], Head::Bool(true)),
            (&[0xf6], Head::Null),
            (&[0xf7], Head::Null),
            (&[0xf0], Head::Other("an unassigned simple value")),
            (&[0xf8, 0xff], Head::Other("an unassigned simple value")),
            (&[0xc0], Head::Tag(0)),
            (&[0xd9, 0xd9, 0xf7], Head::Tag(55_799)),
            (&[0x44, 1, 2, 3, 4], Head::Bytes(&[1, 2, 3, 4])),
            (&[0x62, 0xc3, 0xbc], Head::Text("ü".as_bytes())),
            (&[0x83], Head::Array(Some(3))),
            (&[0x9f], Head::Array(None)),
            (&[0xa1], Head::Map(Some(1))),
            (&[0xbf], Head::Map(None)),
            (&[0x5f], Head::Chunked { text: false }),
            (&[0x7f], Head::Chunked { text: true }),
            (&[0xff], Head::Break),
        ] {
            assert_eq!(one(bytes), Ok(head), "{bytes:x?}");
        }
        assert!(matches!(one(&[0xf9, 0x7e, 0x00]), Ok(Head::Double(v)) if v.is_nan()));
    }

    #[test]
    fn malformed_payloads_are_reported() {
        for (bytes, kind) in [
            (&[][..], MalformedKind::EndsInsideValue),
            (&[0x18], MalformedKind::EndsInsideValue),
            (&[0x1b, 0, 0, 0], MalformedKind::EndsInsideValue),
            (&[0x62, b'a'], MalformedKind::EndsInsideValue),
            (
                &[0x7b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                MalformedKind::EndsInsideValue,
            ),
            (&[0xfb, 0, 0], MalformedKind::EndsInsideValue),
            (&[0x1c], MalformedKind::ReservedLength),
            (&[0x3f], MalformedKind::NoArgument),
            (&[0xdf], MalformedKind::NoArgument),
            (&[0xf8, 0x14], MalformedKind::LongSimple),
            (&[0xfc], MalformedKind::ReservedSimple),
        ] {
            assert_eq!(one(bytes), Err(kind), "{bytes:x?}");
        }
    }
}
