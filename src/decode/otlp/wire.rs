//! Reads the protobuf wire format (protobuf.dev, "Encoding"), field by field. It allocates nothing, and checks every
//! length against the remaining bytes.
//!
//! It is written by hand because the structures of a generated decoder take about fifty times the bytes of a hostile
//! body (an empty message has two bytes), and a single pass needs none of them.

/// A message that is not well-formed, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) struct Malformed(pub(in crate::decode) &'static str);

/// The value of a field, as the wire format defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) enum Field<'d> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'d [u8]),
    Fixed32(u32),
}

impl<'d> Field<'d> {
    /// A message, or bytes.
    pub(in crate::decode) fn bytes(self) -> Result<&'d [u8], Malformed> {
        match self {
            Field::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("expected a message or text, found a number")),
        }
    }

    pub(in crate::decode) fn text(self) -> Result<&'d str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }

    pub(in crate::decode) fn fixed64(self) -> Result<u64, Malformed> {
        match self {
            Field::Fixed64(v) => Ok(v),
            _ => Err(Malformed("expected a 64-bit number, found another type")),
        }
    }

    pub(in crate::decode) fn varint(self) -> Result<u64, Malformed> {
        match self {
            Field::Varint(v) => Ok(v),
            _ => Err(Malformed("expected a varint, found another type")),
        }
    }
}

/// The fields of a message, in order.
#[derive(Debug, Clone, Copy)]
pub(in crate::decode) struct Fields<'d>(pub(in crate::decode) &'d [u8]);

impl<'d> Fields<'d> {
    /// Reads number and value of the next field.
    fn field(&mut self) -> Result<(u64, Field<'d>), Malformed> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.take(usize::try_from(len).unwrap_or(usize::MAX))?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(Malformed("a group or a field of unknown type")),
        };
        match tag >> 3 {
            0 => Err(Malformed("a field with the number 0")),
            number => Ok((number, field)),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'d [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("it ends inside a field"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends inside a number"))?;
        self.0 = rest;
        Ok(*taken)
    }

    /// At most ten bytes; only one bit of the tenth counts.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a varint of more than ten bytes"))
    }
}

impl<'d> Iterator for Fields<'d> {
    type Item = Result<(u64, Field<'d>), Malformed>;

    /// Ends after the first error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u64, Field<'_>)>, Malformed> {
        Fields(bytes).collect()
    }

    #[test]
    fn fields_of_every_kind_are_read() {
        let bytes = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x02, b'h', b'i'],
            &[0x19, 1, 0, 0, 0, 0, 0, 0, 0],
            &[0x25, 2, 0, 0, 0],
            &[0x82, 0x7d, 0x00],
        ]
        .concat();
        let expected = [
            (1, Field::Varint(150)),
            (2, Field::Bytes(b"hi")),
            (3, Field::Fixed64(1)),
            (4, Field::Fixed32(2)),
            (2000, Field::Bytes(b"")),
        ];
        assert_eq!(all(&bytes).unwrap(), expected);
        let most = [&[0x08][..], &[0xff; 9], &[0x01]].concat();
        assert_eq!(all(&most).unwrap(), [(1, Field::Varint(u64::MAX))]);
    }

    #[test]
    fn what_is_not_well_formed_is_an_error_and_the_end() {
        for bytes in [
            &[0x08][..],
            &[0x12, 0x05, b'a'],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x19, 1, 2],
            &[0x0b],
            &[0x0e, 0],
            &[0x00, 0x00],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ] {
            assert!(all(bytes).is_err(), "{bytes:x?}");
            let mut fields = Fields(bytes);
            fields.by_ref().count();
            assert!(fields.next().is_none());
        }
        assert!(Field::Varint(1).bytes().is_err() && Field::Bytes(b"\xff").text().is_err());
        assert!(Field::Fixed32(1).fixed64().is_err() && Field::Fixed32(1).varint().is_err());
    }
}
