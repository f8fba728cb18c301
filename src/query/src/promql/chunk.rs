//! Samples in Prometheus' XOR chunks (`tsdb/chunkenc/xor.go`), which remote read streams. Pure.
//!
//! A chunk is the number of samples (two bytes, big-endian) and a stream of bits. The first sample
//! has its time as a zigzag varint and the 64 bits of its value; the second has the distance in
//! time as a varint; each further one has the change of that distance, in one of five sizes. Each
//! value after the first is the XOR with the value before: one bit if it is zero, else its
//! significant bits, in the window of those before if they fit into it.

use super::series::Sample;

/// Samples of one chunk; Prometheus makes them as large. A chunk can have 65,535.
pub const CHUNK_SAMPLES_MAX: usize = 120;

/// The most leading zeros that the five bits of their number can hold.
const LEADING_MAX: u32 = 31;

/// The chunk of these samples, ordered by time: at most [`CHUNK_SAMPLES_MAX`], others are left out.
pub fn xor_chunk(samples: &[Sample]) -> Vec<u8> {
    let samples = &samples[..samples.len().min(CHUNK_SAMPLES_MAX)];
    let mut bits = Bits {
        bytes: (samples.len() as u16).to_be_bytes().to_vec(),
        free: 0,
    };
    let mut values = Values {
        last: 0,
        window: None,
    };
    let mut last_ms = 0i64;
    let mut distance = 0i64;
    for (i, sample) in samples.iter().enumerate() {
        let next = sample.ts_ms.wrapping_sub(last_ms);
        match i {
            0 => {
                bits.varint((sample.ts_ms << 1 ^ sample.ts_ms >> 63) as u64);
                values.last = sample.value.to_bits();
                bits.push(values.last, 64);
            }
            1 => bits.varint(next as u64),
            _ => bits.change(next.wrapping_sub(distance)),
        }
        if i > 0 {
            distance = next;
            values.push(sample.value.to_bits(), &mut bits);
        }
        last_ms = sample.ts_ms;
    }
    bits.bytes
}

struct Bits {
    bytes: Vec<u8>,
    /// Unused low bits of the last byte.
    free: u32,
}

impl Bits {
    /// The lowest `count` bits, the highest of them first.
    fn push(&mut self, value: u64, count: u32) {
        let mut left = count;
        while left > 0 {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            let taken = left.min(self.free);
            let part = (value >> (left - taken)) as u8 & (0xff >> (8 - taken));
            (left, self.free) = (left - taken, self.free - taken);
            if let Some(last) = self.bytes.last_mut() {
                *last |= part << self.free;
            }
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value & 0x7f | 0x80, 8);
            value >>= 7;
        }
        self.push(value, 8);
    }

    /// The change of the distance in time. A size of `n` bits holds from `-(2^(n-1) - 1)` to
    /// `2^(n-1)`.
    fn change(&mut self, change: i64) {
        let fits = |bits: u32| -((1 << (bits - 1)) - 1) <= change && change <= 1 << (bits - 1);
        let (prefix, prefix_bits, bits) = match () {
            () if change == 0 => return self.push(0, 1),
            () if fits(14) => (0b10, 2, 14),
            () if fits(17) => (0b110, 3, 17),
            () if fits(20) => (0b1110, 4, 20),
            () => (0b1111, 4, 64),
        };
        self.push(prefix, prefix_bits);
        self.push(change as u64, bits);
    }
}

struct Values {
    last: u64,
    /// Leading and trailing zeros of the bits that were written last.
    window: Option<(u32, u32)>,
}

impl Values {
    fn push(&mut self, value: u64, bits: &mut Bits) {
        let xor = value ^ self.last;
        self.last = value;
        if xor == 0 {
            return bits.push(0, 1);
        }
        let leading = xor.leading_zeros().min(LEADING_MAX);
        let trailing = xor.trailing_zeros();
        match self.window {
            Some((lead, trail)) if leading >= lead && trailing >= trail => {
                bits.push(0b10, 2);
                bits.push(xor >> trail, 64 - lead - trail);
            }
            _ => {
                self.window = Some((leading, trailing));
                let significant = 64 - leading - trailing;
                bits.push(0b11, 2);
                bits.push(u64::from(leading), 5);
                // 64 does not fit into six bits; it is written as 0, which does not occur.
                bits.push(u64::from(significant), 6);
                bits.push(xor >> trailing, significant);
            }
        }
    }
}
