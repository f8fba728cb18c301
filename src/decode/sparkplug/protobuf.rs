//! Reads the Protocol Buffers wire format: consecutive fields, borrowed from the payload.
//!
//! It is written by hand because a generated type would be all or nothing: a metric whose name is not UTF-8 would
//! reject its whole message, and every name would be copied.

/// Bytes that are not a Protocol Buffers message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// A field's value on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    /// The number and value of the next field; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let n = self.varint()?;
                let taken = usize::try_from(n).ok().and_then(|n| self.rest.split_at_checked(n));
                let (taken, rest) = taken.ok_or(Malformed("it ends inside a field"))?;
                self.rest = rest;
                Wire::Bytes(taken)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(Malformed("a field with a wire type that Sparkplug does not use")),
        };
        match key >> 3 {
            0 => Err(Malformed("a field with the number 0")),
            number => Ok(Some((number, value))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed("it ends inside a field"))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// At most ten bytes of seven bits each.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let [byte] = self.array()?;
            // The tenth byte contributes one bit; its other bits are dropped, as in other readers.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("a number of more than ten bytes"))
    }
}

/// Appends a varint field.
pub(super) fn put_varint(number: u8, value: u64, out: &mut Vec<u8>) {
    out.push(number << 3);
    varint(value, out);
}

/// Appends a field of bytes.
pub(super) fn put_bytes(number: u8, value: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = vec![];
        for value in [0, 1, 127, 128, 300, u64::MAX] {
            put_varint(3, value, &mut bytes);
        }
        put_bytes(15, b"abc", &mut bytes);
        bytes.extend([0x4d, 1, 0, 0, 0, 0x51, 2, 0, 0, 0, 0, 0, 0, 0]);
        let mut fields = Fields::new(&bytes);
        for value in [0, 1, 127, 128, 300, u64::MAX] {
            assert_eq!(fields.next(), Ok(Some((3, Wire::Varint(value)))));
        }
        assert_eq!(fields.next(), Ok(Some((15, Wire::Bytes(b"abc")))));
        assert_eq!(fields.next(), Ok(Some((9, Wire::Fixed32(1)))));
        assert_eq!(fields.next(), Ok(Some((10, Wire::Fixed64(2)))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn what_is_no_message_is_said() {
        for bytes in [&[0x80][..], &[0x08], &[0x12, 5, 1], &[0x0d, 1], &[0x0b], &[0x07], &[0x00, 0], &[0xff; 11]] {
            assert!(Fields::new(bytes).next().is_err(), "{bytes:x?}");
        }
    }
}
