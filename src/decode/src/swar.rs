//! Reads text eight bytes at a time, in one register (*SWAR*: SIMD within a register).
//!
//! Values and ids of a few bytes are most of a payload. A loop over their bytes ends after another
//! number of steps each time, which the processor cannot predict. Here the usual ones take one step.

use super::decimal::POWERS_OF_TEN;

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);

/// The eight bytes at `at`, the first one lowest; `None` if fewer are left.
#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let chunk = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*chunk))
}

/// The highest bit of each byte that is less than `limit` (up to 128). Of several bits only the
/// lowest is certain, because a subtraction borrows from the next byte.
#[inline]
fn less(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGHS
}

/// The number of bytes below the lowest of these highest bits; 8 without any.
#[inline]
fn bytes_before(high_bits: u64) -> usize {
    high_bits.trailing_zeros() as usize / 8
}

/// The offset of the first byte from `at` on that is less than `limit` (up to 128) or one of `set`;
/// the length if there is none.
#[inline]
pub(super) fn find<const N: usize>(bytes: &[u8], at: usize, limit: u8, set: [u8; N]) -> usize {
    let mut at = at;
    while let Some(word) = word(bytes, at) {
        let equal = |b: u8| less(word ^ (ONES * u64::from(b)), 1);
        let found = set
            .iter()
            .fold(less(word, limit), |found, b| found | equal(*b));
        at += bytes_before(found);
        if found != 0 {
            return at;
        }
    }
    let rest = bytes.get(at..).unwrap_or_default();
    let n = rest.iter().position(|b| *b < limit || set.contains(b));
    at + n.unwrap_or(rest.len())
}

/// The decimal digits at `at` as a number, and their end: at most 19 digits, which always fit 64
/// bits.
#[inline]
pub(super) fn digits(bytes: &[u8], at: usize) -> (u64, usize) {
    let mut n = 0;
    let mut end = at;
    // Three words may have more than 19 digits.
    while end - at <= 8
        && let Some(word) = word(bytes, end)
    {
        let values = word ^ (ONES * u64::from(b'0'));
        // Adding 0x76 carries every byte above 9 into its highest bit.
        let others = (values.wrapping_add(ONES * 0x76) | values) & HIGHS;
        let count = bytes_before(others);
        if count == 0 {
            return (n, end);
        }
        n = n * POWERS_OF_TEN[count] + eight_digits(values << (64 - 8 * count));
        end += count;
        if count < 8 {
            return (n, end);
        }
    }
    while let Some(digit) = bytes
        .get(end)
        .map(|b| b.wrapping_sub(b'0'))
        .filter(|d| *d < 10)
        && end - at < 19
    {
        n = n * 10 + u64::from(digit);
        end += 1;
    }
    (n, end)
}

/// The number that eight digits make, the most significant one in the lowest byte: pairs of digits,
/// then pairs of pairs, then all.
#[inline]
fn eight_digits(values: u64) -> u64 {
    const PAIRS: u64 = 0x0000_00FF_0000_00FF;
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let first = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let second = ((pairs >> 16) & PAIRS).wrapping_mul(1 + (10_000 << 32));
    first.wrapping_add(second) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_end_at_any_other_byte_and_after_nineteen() {
        let number = b"9876543210123456789012";
        for count in 0..number.len() {
            for other in (0..=255u8).filter(|b| !b.is_ascii_digit()) {
                for after in [&b""[..], b"7", b"\xFF1234567", b"12345678901234567890"] {
                    let text = [b"-", &number[..count], &[other], after].concat();
                    let taken = count.min(19);
                    let value = number[..taken]
                        .iter()
                        .fold(0, |n, b| n * 10 + u64::from(b - b'0'));
                    assert_eq!(digits(&text, 1), (value, 1 + taken), "{text:?}");
                }
            }
            let taken = count.min(19);
            assert_eq!(digits(&number[..count], 0).1, taken);
        }
        assert_eq!(digits(b"12", 2), (0, 2));
    }

    #[test]
    fn the_first_byte_of_a_set_is_found() {
        let set = [b'"', b'\\', b'\n'];
        for limit in [0, 0x20] {
            for len in 0..20 {
                for b in 0..=255u8 {
                    for place in 0..len {
                        // The bytes after the place are all found, and must not hide it.
                        let mut text = vec![0xDC; place];
                        text.push(b);
                        text.resize(len, b'\\');
                        let bytes = text.iter().enumerate();
                        let first = bytes.skip(1).find(|(_, b)| **b < limit || set.contains(b));
                        let first = first.map_or(len.max(1), |(i, _)| i);
                        assert_eq!(find(&text, 1, limit, set), first, "{text:?}");
                    }
                }
            }
        }
    }
}
