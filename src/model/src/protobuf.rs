//! The Protocol Buffers wire format (protobuf.dev, "Encoding"): the only reader of it, for OTLP,
//! remote write and read, and Sparkplug B, and the writer of the few messages that the service
//! sends.
//!
//! **Design.** [`Fields`] walks over one message and returns each field as its number and a
//! [`FieldValue`] that borrows from the payload. It knows no schema: a decoder matches on the field
//! number, and reads a message inside a field with another [`Fields`]. So the decoder decides what
//! a wrong type means, and a malformed submessage can reject only itself. A generated decoder is
//! not used, because its structures take about fifty times the bytes of a hostile body (an empty
//! message has two bytes), it copies every name, and one name that is not UTF-8 rejects the whole
//! message.
//!
//! **Limits.** Nothing is allocated and nothing recurses. Every length is compared with the
//! remaining bytes before it is used. The first error ends the message: its fields before the error
//! were already returned, and the decoder decides whether they count.
//!
//! **Accepted input.**
//! - Field numbers from 1 to [`NUMBER_MAX`].
//! - Varints of at most ten bytes whose value fits 64 bits. Leading zero groups are allowed, as the
//!   specification requires. Some readers drop the bits beyond 64; here they are an error, because
//!   no encoder writes them.
//! - Groups (wire types 3 and 4), which are deprecated but valid, are skipped up to their end tag:
//!   neither format defines any, and an unknown field must not make a message unreadable. They may
//!   be nested [`GROUP_DEPTH_MAX`] levels deep.
//! - The wire types 6 and 7 do not exist and are an error, because the length of such a field is
//!   unknown.
//! - Packed fields are [`FieldValue::Bytes`]; [`packed`] reads varints out of them.

/// The largest field number: 29 bits.
const NUMBER_MAX: u64 = (1 << 29) - 1;

/// The deepest nesting of skipped groups, the limit that other readers have for nested messages.
const GROUP_DEPTH_MAX: usize = 100;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const GROUP_START: u64 = 3;
const GROUP_END: u64 = 4;
const FIXED32: u64 = 5;

/// Why a message is not well-formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum Malformed {
    #[error("expected a message or text, found a number")]
    ExpectedBytes,
    #[error("a text that is not UTF-8")]
    NotUtf8,
    #[error("expected a 64-bit number, found another type")]
    ExpectedFixed64,
    #[error("expected a varint, found another type")]
    ExpectedVarint,
    #[error("the end of a group that was not started")]
    GroupNotStarted,
    #[error("the end of another group than the one that is open")]
    OtherGroup,
    #[error("groups nested more than 100 levels deep")]
    GroupsTooDeep,
    #[error("a field with the number 0")]
    FieldNumberZero,
    #[error("a field number of more than 29 bits")]
    FieldNumberTooLarge,
    #[error("a field of unknown type")]
    UnknownType,
    #[error("it ends inside a field")]
    EndsInsideField,
    #[error("it ends inside a number")]
    EndsInsideNumber,
    #[error("a varint of more than 64 bits")]
    VarintTooLarge,
    #[error("a varint of more than ten bytes")]
    VarintTooLong,
}

/// The value of a field, as the wire format defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<'d> {
    /// An integer, a boolean or an enum, as 64 bits; zigzag is not decoded.
    Varint(u64),
    /// A fixed64, a sfixed64, or the bits of a double.
    Fixed64(u64),
    /// A message, a text, bytes, or packed numbers.
    Bytes(&'d [u8]),
    /// A fixed32, a sfixed32, or the bits of a float.
    Fixed32(u32),
}

impl<'d> FieldValue<'d> {
    /// A message, or bytes.
    pub fn bytes(self) -> Result<&'d [u8], Malformed> {
        match self {
            FieldValue::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::ExpectedBytes),
        }
    }

    /// A text; an error if it is not UTF-8.
    pub fn text(self) -> Result<&'d str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::NotUtf8)
    }

    /// The bits of a fixed64, a sfixed64 or a double.
    pub fn fixed64(self) -> Result<u64, Malformed> {
        match self {
            FieldValue::Fixed64(v) => Ok(v),
            _ => Err(Malformed::ExpectedFixed64),
        }
    }

    /// A double; on the wire it has the type of a fixed64.
    pub fn double(self) -> Result<f64, Malformed> {
        self.fixed64().map(f64::from_bits)
    }

    /// The bits of an integer, a boolean or an enum; zigzag is not decoded.
    pub fn varint(self) -> Result<u64, Malformed> {
        match self {
            FieldValue::Varint(v) => Ok(v),
            _ => Err(Malformed::ExpectedVarint),
        }
    }
}

/// The fields of a message, in order; ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'d> {
    rest: &'d [u8],
}

impl<'d> Fields<'d> {
    /// `message`: its bytes, without the length before a message that is inside another one.
    pub fn new(message: &'d [u8]) -> Fields<'d> {
        Fields { rest: message }
    }

    /// The next field that is not a group; `None` if only groups are left.
    fn field(&mut self) -> Result<Option<(u32, FieldValue<'d>)>, Malformed> {
        while !self.rest.is_empty() {
            match self.tag()? {
                (number, GROUP_START) => self.skip_group(number)?,
                (_, GROUP_END) => return Err(Malformed::GroupNotStarted),
                (number, wire_type) => return Ok(Some((number, self.value(wire_type)?))),
            }
        }
        Ok(None)
    }

    /// Field number and wire type.
    fn tag(&mut self) -> Result<(u32, u64), Malformed> {
        let tag = self.varint()?;
        match tag >> 3 {
            0 => Err(Malformed::FieldNumberZero),
            number @ 1..=NUMBER_MAX => Ok((number as u32, tag & 7)),
            _ => Err(Malformed::FieldNumberTooLarge),
        }
    }

    fn value(&mut self, wire_type: u64) -> Result<FieldValue<'d>, Malformed> {
        Ok(match wire_type {
            VARINT => FieldValue::Varint(self.varint()?),
            FIXED64 => FieldValue::Fixed64(u64::from_le_bytes(self.array()?)),
            BYTES => {
                let len = self.varint()?;
                FieldValue::Bytes(self.take(len)?)
            }
            FIXED32 => FieldValue::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(Malformed::UnknownType),
        })
    }

    /// Skips a group whose start tag was read, up to its end tag.
    #[cold]
    fn skip_group(&mut self, number: u32) -> Result<(), Malformed> {
        // The numbers of the open groups: a group ends with the number that it started with.
        let mut open = [0; GROUP_DEPTH_MAX];
        open[0] = number;
        let mut depth = 1;
        while depth > 0 {
            match self.tag()? {
                (number, GROUP_START) => {
                    *open.get_mut(depth).ok_or(Malformed::GroupsTooDeep)? = number;
                    depth += 1;
                }
                (number, GROUP_END) if number == open[depth - 1] => depth -= 1,
                (_, GROUP_END) => return Err(Malformed::OtherGroup),
                (_, wire_type) => drop(self.value(wire_type)?),
            }
        }
        Ok(())
    }

    fn take(&mut self, len: u64) -> Result<&'d [u8], Malformed> {
        let split = usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len));
        let (taken, rest) = split.ok_or(Malformed::EndsInsideField)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Malformed::EndsInsideNumber)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Ten bytes have 70 bits, so only the lowest bit of the tenth may be set.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        let [last] = self.array()?;
        match last {
            0 | 1 => Ok(value | u64::from(last) << 63),
            2..0x80 => Err(Malformed::VarintTooLarge),
            0x80.. => Err(Malformed::VarintTooLong),
        }
    }
}

impl<'d> Iterator for Fields<'d> {
    type Item = Result<(u32, FieldValue<'d>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.field().transpose();
        if let Some(Err(_)) = field {
            self.rest = &[];
        }
        field
    }
}

/// The numbers of a packed field of varints.
pub fn packed(bytes: &[u8]) -> impl Iterator<Item = Result<u64, Malformed>> {
    let mut fields = Fields { rest: bytes };
    std::iter::from_fn(move || {
        let next = (!fields.rest.is_empty()).then(|| fields.varint());
        if matches!(next, Some(Err(_))) {
            fields.rest = &[];
        }
        next
    })
}

/// Appends a varint field.
pub fn put_varint(number: u32, value: u64, out: &mut Vec<u8>) {
    put_tag(number, VARINT, out);
    put_number(value, out);
}

/// Appends a field of bytes, a text or a message.
pub fn put_bytes(number: u32, value: &[u8], out: &mut Vec<u8>) {
    put_length(number, value.len(), out);
    out.extend_from_slice(value);
}

/// Appends the tag and the length of a field of bytes; its bytes must follow.
pub fn put_length(number: u32, bytes: usize, out: &mut Vec<u8>) {
    put_tag(number, BYTES, out);
    put_number(bytes as u64, out);
}

/// Appends a double.
pub fn put_double(number: u32, value: f64, out: &mut Vec<u8>) {
    put_tag(number, FIXED64, out);
    out.extend_from_slice(&value.to_bits().to_le_bytes());
}

fn put_tag(number: u32, wire_type: u64, out: &mut Vec<u8>) {
    put_number(u64::from(number) << 3 | wire_type, out);
}

/// Appends a varint without a tag.
pub fn put_number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u32, FieldValue<'_>)>, Malformed> {
        Fields::new(message).collect()
    }

    #[test]
    fn fields_of_every_kind_are_read() {
        let message = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x02, b'h', b'i'],
            &[0x19, 1, 0, 0, 0, 0, 0, 0, 0],
            &[0x25, 2, 0, 0, 0],
            &[0x82, 0x7d, 0x00],
            &[0xf8, 0xff, 0xff, 0xff, 0x0f, 0x07],
        ]
        .concat();
        let expected = [
            (1, FieldValue::Varint(150)),
            (2, FieldValue::Bytes(b"hi")),
            (3, FieldValue::Fixed64(1)),
            (4, FieldValue::Fixed32(2)),
            (2000, FieldValue::Bytes(b"")),
            ((1 << 29) - 1, FieldValue::Varint(7)),
        ];
        assert_eq!(all(&message).unwrap(), expected);
        assert_eq!(all(&[]).unwrap(), []);
    }

    #[test]
    fn varints_may_have_leading_zeros_but_no_more_than_64_bits() {
        let one = |bytes: &[u8]| {
            all(&[&[0x08], bytes].concat()).map(|fields| fields[0].1.varint().unwrap())
        };
        assert_eq!(one(&[0x00]), Ok(0));
        assert_eq!(one(&[0x80, 0x00]), Ok(0));
        assert_eq!(
            one(&[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]),
            Ok(1)
        );
        assert_eq!(one(&[&[0xff; 9][..], &[0x01]].concat()), Ok(u64::MAX));
        assert_eq!(one(&[&[0x80; 9][..], &[0x01]].concat()), Ok(1 << 63));
        for last in [0x02, 0x03, 0x7f] {
            assert_eq!(
                one(&[&[0xff; 9][..], &[last]].concat()),
                Err(Malformed::VarintTooLarge)
            );
        }
        assert_eq!(
            one(&[&[0xff; 10][..], &[0x01]].concat()),
            Err(Malformed::VarintTooLong)
        );
        assert_eq!(
            one(&[&[0x80; 10][..], &[0x00]].concat()),
            Err(Malformed::VarintTooLong)
        );
        assert_eq!(one(&[0xff; 9]), Err(Malformed::EndsInsideNumber));
    }

    #[test]
    fn groups_are_skipped() {
        // Group 1 holds a varint, and group 2 with bytes that look like end tags.
        let group = [0x0b, 0x08, 0x01, 0x13, 0x1a, 0x02, 0x14, 0x0c, 0x14, 0x0c];
        let message = [&[0x08, 0x05][..], &group, &[0x10, 0x06], &group].concat();
        assert_eq!(
            all(&message).unwrap(),
            [(1, FieldValue::Varint(5)), (2, FieldValue::Varint(6))]
        );
        let nested = |n: usize| [vec![0x0b; n], vec![0x0c; n]].concat();
        assert_eq!(all(&nested(GROUP_DEPTH_MAX)), Ok(vec![]));
        assert_eq!(
            all(&nested(GROUP_DEPTH_MAX + 1)),
            Err(Malformed::GroupsTooDeep)
        );
        assert_eq!(all(&vec![0x0b; 1_000_000]), Err(Malformed::GroupsTooDeep));
    }

    #[test]
    fn the_reason_of_each_error() {
        for (message, why) in [
            (&[0x80][..], Malformed::EndsInsideNumber),
            (&[0x08], Malformed::EndsInsideNumber),
            (&[0x19, 1, 2, 3, 4, 5, 6, 7], Malformed::EndsInsideNumber),
            (&[0x25, 1, 2, 3], Malformed::EndsInsideNumber),
            (&[0x12], Malformed::EndsInsideNumber),
            (&[0x12, 0x02, b'a'], Malformed::EndsInsideField),
            (
                &[
                    0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
                ],
                Malformed::EndsInsideField,
            ),
            (&[0x00, 0x00], Malformed::FieldNumberZero),
            (&[0x02, 0x00], Malformed::FieldNumberZero),
            (
                &[0x80, 0x80, 0x80, 0x80, 0x10, 0x00],
                Malformed::FieldNumberTooLarge,
            ),
            (
                &[0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0x00],
                Malformed::FieldNumberTooLarge,
            ),
            (&[0x0e, 0x00], Malformed::UnknownType),
            (&[0x0f, 0x00], Malformed::UnknownType),
            (&[0x0c], Malformed::GroupNotStarted),
            (&[0x0b], Malformed::EndsInsideNumber),
            (&[0x0b, 0x08], Malformed::EndsInsideNumber),
            (&[0x0b, 0x14], Malformed::OtherGroup),
            (&[0x0b, 0x13, 0x0c], Malformed::OtherGroup),
            (&[0x0b, 0x0e, 0x0c], Malformed::UnknownType),
            (&[0x0b, 0x03, 0x0c], Malformed::FieldNumberZero),
        ] {
            // An error ends the message, and leaves the fields before it as they are.
            let message = [&[0x10, 0x07], message].concat();
            let mut fields = Fields::new(&message);
            assert_eq!(fields.next(), Some(Ok((2, FieldValue::Varint(7)))));
            assert_eq!(fields.next(), Some(Err(why)), "{message:x?}");
            assert_eq!(fields.next(), None);
        }
    }

    #[test]
    fn a_value_of_another_type_is_an_error() {
        let of_each = [
            FieldValue::Varint(1),
            FieldValue::Fixed64(1),
            FieldValue::Bytes(b"\xff"),
            FieldValue::Fixed32(1),
        ];
        for value in of_each {
            assert_eq!(
                value.varint().is_ok(),
                matches!(value, FieldValue::Varint(_))
            );
            assert_eq!(
                value.fixed64().is_ok(),
                matches!(value, FieldValue::Fixed64(_))
            );
            assert_eq!(value.bytes().is_ok(), matches!(value, FieldValue::Bytes(_)));
            assert!(value.text().is_err());
        }
        assert_eq!(FieldValue::Bytes(b"\xff").text(), Err(Malformed::NotUtf8));
        assert_eq!(FieldValue::Bytes("ü".as_bytes()).text(), Ok("ü"));
    }

    /// A field to write, or a group of fields.
    #[derive(Debug, Clone)]
    enum Written {
        /// With up to this number of leading zero groups.
        Varint(u64, usize),
        Fixed64(u64),
        Bytes(Vec<u8>),
        Fixed32(u32),
        Group(Vec<(u32, Written)>),
    }

    fn write(fields: &[(u32, Written)], out: &mut Vec<u8>) {
        for (number, field) in fields {
            match field {
                Written::Varint(v, zeros) => {
                    let start = out.len();
                    put_varint(*number, *v, out);
                    let mut tag = vec![];
                    put_tag(*number, VARINT, &mut tag);
                    for _ in 0..(*zeros).min(10 - (out.len() - start - tag.len())) {
                        *out.last_mut().unwrap() |= 0x80;
                        out.push(0);
                    }
                }
                Written::Bytes(bytes) => put_bytes(*number, bytes, out),
                Written::Fixed64(v) => {
                    put_tag(*number, FIXED64, out);
                    out.extend(v.to_le_bytes());
                }
                Written::Fixed32(v) => {
                    put_tag(*number, FIXED32, out);
                    out.extend(v.to_le_bytes());
                }
                Written::Group(fields) => {
                    put_tag(*number, GROUP_START, out);
                    write(fields, out);
                    put_tag(*number, GROUP_END, out);
                }
            }
        }
    }

    /// The fields that a reader returns.
    fn expected(fields: &[(u32, Written)]) -> Vec<(u32, FieldValue<'_>)> {
        let value = |field| match field {
            &Written::Varint(v, _) => Some(FieldValue::Varint(v)),
            &Written::Fixed64(v) => Some(FieldValue::Fixed64(v)),
            &Written::Fixed32(v) => Some(FieldValue::Fixed32(v)),
            Written::Bytes(bytes) => Some(FieldValue::Bytes(bytes)),
            Written::Group(_) => None,
        };
        fields
            .iter()
            .filter_map(|(number, field)| Some((*number, value(field)?)))
            .collect()
    }

    fn message() -> impl Strategy<Value = Vec<(u32, Written)>> {
        let number = prop_oneof![4 => 1u32..20, 1 => 1..=NUMBER_MAX as u32];
        let varint = prop_oneof![any::<u64>(), 0..300u64, (0..64u32).prop_map(|bit| 1 << bit)];
        let field = prop_oneof![
            (varint, prop_oneof![3 => Just(0usize), 1 => 0..10usize])
                .prop_map(|(v, zeros)| Written::Varint(v, zeros)),
            any::<u64>().prop_map(Written::Fixed64),
            any::<u32>().prop_map(Written::Fixed32),
            prop::collection::vec(any::<u8>(), 0..200).prop_map(Written::Bytes),
        ];
        let field = field.prop_recursive(4, 12, 4, {
            let number = number.clone();
            move |inner| {
                prop::collection::vec((number.clone(), inner), 0..4).prop_map(Written::Group)
            }
        });
        prop::collection::vec((number, field), 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read(fields in message()) {
            let mut bytes = vec![];
            write(&fields, &mut bytes);
            prop_assert_eq!(all(&bytes), Ok(expected(&fields)));
        }

        /// Cut anywhere, the fields before the cut are the same, and a cut inside a field is an
        /// error.
        #[test]
        fn a_cut_message_keeps_the_fields_before_the_cut(fields in message(), at in any::<prop::sample::Index>()) {
            let mut bytes = vec![];
            write(&fields, &mut bytes);
            let cut = at.index(bytes.len() + 1);
            let mut read: Vec<_> = Fields::new(&bytes[..cut]).collect();
            let failed = read.pop_if(|last| last.is_err()).is_some();
            let read: Vec<_> = read.into_iter().map(Result::unwrap).collect();
            prop_assert_eq!(&read[..], &expected(&fields)[..read.len()]);
            prop_assert_eq!(failed, !is_between(&fields, cut));
        }

        /// Any bytes end, and every value is inside of them.
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let fields: Vec<_> = Fields::new(&bytes).collect();
            prop_assert!(fields.len() <= bytes.len() / 2 + 1);
            for (number, value) in fields.into_iter().flatten() {
                prop_assert!((1..=NUMBER_MAX as u32).contains(&number));
                if let FieldValue::Bytes(part) = value {
                    prop_assert!(bytes.as_ptr_range().start <= part.as_ptr());
                    prop_assert!(part.as_ptr_range().end <= bytes.as_ptr_range().end);
                }
            }
        }
    }

    /// Whether a cut is between two fields.
    fn is_between(fields: &[(u32, Written)], cut: usize) -> bool {
        (0..=fields.len()).any(|n| {
            let mut bytes = vec![];
            write(&fields[..n], &mut bytes);
            bytes.len() == cut
        })
    }
}
