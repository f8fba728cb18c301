//! Numbers in pco's standalone format: the same bytes for the same numbers, on every machine.
//!
//! pco can choose mode and delta encoding itself, but then it adds doubles in the order of a hash
//! table and takes logarithms from the platform's library, so the bytes may differ between two runs.
//! The choice made here uses integers only, and takes a twentieth of the time. With a given choice,
//! pco calculates with integers and the four operations, which are exact to the bit everywhere.
//!
//! What is read back is checked before pco sees it: the number of values must be the expected one,
//! and the modes that allocate memory by a length in the bytes (a dictionary, a window) are refused.
//! So damaged bytes cost at most the memory of the values that they are expected to hold.

use pco::data_types::{Number, NumberType};
use pco::standalone::{DecompressorItem, FileDecompressor, simple_compress};
use pco::{ChunkConfig, DeltaSpec, FULL_BATCH_N, ModeSpec};

use super::Fault;
use super::decimals::decimals;

/// The level up to which more time makes the bytes notably fewer. 8, pco's default, saves 1 % of a
/// day at double the time.
const LEVEL: usize = 5;
/// Differences are taken up to this many times.
const ORDER_MAX: usize = 2;
/// Differences that are looked at to find the usual one.
const SAMPLES: usize = 15;
/// The least common divisor that is worth its description: ten bits of it are a second in ms.
const DIVISOR_MIN: u64 = 64;

/// Modes and delta encodings, as pco writes them in four bits each.
const CLASSIC: u8 = 0;
const INT_MULT: u8 = 1;
const FLOAT_MULT: u8 = 2;
const CONSECUTIVE: u8 = 1;

/// Encodes integers as the narrowest type of pco that holds them: the description of a column of
/// few bytes is mostly the bounds of its bins.
pub(crate) fn encode_ints(values: &[i64]) -> Vec<u8> {
    let config = config(values)
        .with_mode_spec(divisor(values).map_or(ModeSpec::Classic, ModeSpec::TryIntMult));
    if let Some(narrow) = narrow::<i16>(values) {
        compress(&narrow, &config)
    } else if let Some(narrow) = narrow::<i32>(values) {
        compress(&narrow, &config)
    } else {
        compress(values, &config)
    }
}

/// Encodes doubles, bit by bit: decimal numbers of few digits as multiples of their unit.
pub(crate) fn encode_doubles(values: &[f64]) -> Vec<u8> {
    let config = match decimals(values) {
        Some(decimals) => {
            config(&decimals.multiples).with_mode_spec(ModeSpec::TryFloatMult(decimals.unit))
        }
        None => config(&values.iter().map(|v| order_of_bits(*v)).collect::<Vec<_>>()),
    };
    compress(values, &config)
}

/// Decodes the first `upto` of `count` integers, or some more.
pub(crate) fn decode_ints(bytes: &[u8], count: usize, upto: usize) -> Result<Vec<i64>, Fault> {
    let file = File::open(bytes, count)?;
    Ok(match file.number_type {
        NumberType::I16 => widen(file.decode::<i16>(upto)?),
        NumberType::I32 => widen(file.decode::<i32>(upto)?),
        _ => file.decode::<i64>(upto)?,
    })
}

/// Decodes the first `upto` of `count` doubles, or some more.
pub(crate) fn decode_doubles(bytes: &[u8], count: usize, upto: usize) -> Result<Vec<f64>, Fault> {
    File::open(bytes, count)?.decode(upto)
}

fn compress<T: Number>(values: &[T], config: &ChunkConfig) -> Vec<u8> {
    simple_compress(values, config).expect("pco takes this configuration, and 1 to 2^24 values")
}

fn config(values: &[i64]) -> ChunkConfig {
    ChunkConfig::default()
        .with_compression_level(LEVEL)
        .with_mode_spec(ModeSpec::Classic)
        .with_delta_spec(DeltaSpec::TryConsecutive(delta_order(values)))
}

fn narrow<T: TryFrom<i64>>(values: &[i64]) -> Option<Vec<T>> {
    values.iter().map(|v| T::try_from(*v).ok()).collect()
}

fn widen<T: Into<i64>>(values: Vec<T>) -> Vec<i64> {
    values.into_iter().map(Into::into).collect()
}

/// An integer that is ordered as the double is.
fn order_of_bits(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// How many times differences are taken: as often as makes the numbers shortest.
fn delta_order(values: &[i64]) -> usize {
    (0..=ORDER_MAX)
        .min_by_key(|order| bits_needed(values, *order))
        .unwrap_or(0)
}

/// Bits of the differences of this order without what they have in common.
fn bits_needed(values: &[i64], order: usize) -> u64 {
    let count = values.len().saturating_sub(order);
    if count == 0 {
        return u64::MAX;
    }
    let difference = |i: usize| match order {
        0 => values[i],
        1 => values[i + 1].wrapping_sub(values[i]),
        _ => (values[i + 2].wrapping_sub(values[i + 1]))
            .wrapping_sub(values[i + 1].wrapping_sub(values[i])),
    };
    let mut samples: [i64; SAMPLES] = std::array::from_fn(|i| difference(i * count / SAMPLES));
    samples.sort_unstable();
    let usual = samples[SAMPLES / 2];
    let bits = |i| {
        64 - difference(i)
            .wrapping_sub(usual)
            .unsigned_abs()
            .leading_zeros()
    };
    let head = 64 * order as u64;
    head + (0..count).map(|i| u64::from(bits(i))).sum::<u64>()
}

/// The common divisor of all differences, if it makes enough of them shorter: times in seconds are
/// multiples of 1000.
fn divisor(values: &[i64]) -> Option<u64> {
    let mut divisor = 0;
    let mut irregular = 0;
    let mut before = 0;
    for pair in values.windows(2) {
        let difference = pair[1].wrapping_sub(pair[0]);
        irregular += usize::from(difference != before);
        before = difference;
        divisor = common_divisor(divisor, difference.unsigned_abs());
        if (1..DIVISOR_MIN).contains(&divisor) {
            return None;
        }
    }
    (divisor > 0 && irregular > values.len() / 8).then_some(divisor)
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A file of pco with one chunk that [`compress`] can have written.
struct File<'a> {
    file: FileDecompressor,
    /// From the chunk on.
    rest: &'a [u8],
    number_type: NumberType,
    count: usize,
}

impl<'a> File<'a> {
    fn open(bytes: &'a [u8], count: usize) -> Result<File<'a>, Fault> {
        let (file, rest) = FileDecompressor::new(bytes)?;
        let number_type = file
            .peek_number_type_or_termination(rest)?
            .ok_or(Fault::Incomplete)?;
        // A chunk: type, number of values less one, mode, the mode's base, delta encoding.
        let &[_, n0, n1, n2, mode, ..] = rest else {
            return Err(Fault::Incomplete);
        };
        let found = u32::from_le_bytes([n0, n1, n2, 0]) as usize + 1;
        if found != count {
            return Err(Fault::Count { found, count });
        }
        let base_bytes = match (mode & 0xF, number_type) {
            (CLASSIC, _) => 0,
            (INT_MULT, NumberType::I16) => size_of::<i16>(),
            (INT_MULT, NumberType::I32) => size_of::<i32>(),
            (INT_MULT, NumberType::I64) => size_of::<i64>(),
            (FLOAT_MULT, NumberType::F64) => size_of::<f64>(),
            _ => return Err(Fault::Foreign),
        };
        match rest.get(4 + base_bytes) {
            Some(byte) if byte >> 4 <= CONSECUTIVE => {}
            Some(_) => return Err(Fault::Foreign),
            None => return Err(Fault::Incomplete),
        }
        Ok(File {
            file,
            rest,
            number_type,
            count,
        })
    }

    fn decode<T: Number>(self, upto: usize) -> Result<Vec<T>, Fault> {
        let DecompressorItem::Chunk(mut chunk) = self.file.chunk_decompressor(self.rest)? else {
            return Err(Fault::Foreign);
        };
        let mut values = vec![T::default(); upto.next_multiple_of(FULL_BATCH_N).min(self.count)];
        let progress = chunk.read(&mut values)?;
        if progress.finished && chunk.into_src() != [0] {
            return Err(Fault::Foreign);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(values: &[i64]) -> usize {
        let bytes = encode_ints(values);
        assert_eq!(
            decode_ints(&bytes, values.len(), values.len()).unwrap(),
            values
        );
        assert_eq!(bytes, pco_again(values), "the same bytes again");
        bytes.len()
    }

    fn pco_again(values: &[i64]) -> Vec<u8> {
        std::thread::scope(|scope| scope.spawn(|| encode_ints(values)).join().unwrap())
    }

    fn doubles_round_trip(values: &[f64]) {
        let bytes = encode_doubles(values);
        let read = decode_doubles(&bytes, values.len(), values.len()).unwrap();
        assert!(
            read.iter()
                .map(|v| v.to_bits())
                .eq(values.iter().map(|v| v.to_bits()))
        );
        let some = decode_doubles(&bytes, values.len(), 1).unwrap();
        assert_eq!(some[0].to_bits(), values[0].to_bits());
    }

    #[test]
    fn differences_are_taken_where_they_make_numbers_shorter() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut noise: Vec<i64> = (0..500).map(|_| random.i64(0..300)).collect();
        assert_eq!(delta_order(&noise), 0);
        let mut sum = 1 << 40;
        for value in &mut noise {
            sum += 60_000 + *value;
            *value = sum;
        }
        assert_eq!(delta_order(&noise), 1);
        for value in &mut noise {
            sum += *value;
            *value = sum;
        }
        assert_eq!(delta_order(&noise), 2);
        assert_eq!([&[][..], &[5], &[5, 9]].map(delta_order), [0, 0, 0]);
    }

    #[test]
    fn times_of_whole_seconds_lose_their_zeros() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut at_ms = 1_709_290_800_000;
        let mut times = || {
            at_ms += 1000 * random.i64(1..400);
            at_ms
        };
        let seconds: Vec<i64> = (0..1000).map(|_| times()).collect();
        assert_eq!(divisor(&seconds), Some(1000));
        let bytes = round_trip(&seconds);
        assert!(bytes < 1300, "{bytes}: 8.6 bits each");
        let steady: Vec<i64> = (0..1000).map(|i| i * 60_000).collect();
        assert_eq!(divisor(&steady), None, "nothing is left to be shortened");
        assert!(round_trip(&steady) < 50);
    }

    #[test]
    fn a_file_of_another_mode_is_refused_before_it_is_read() {
        let values: Vec<i64> = (0..1000).map(|i| (i % 7) * 1_000_003).collect();
        for config in [
            ChunkConfig::default().with_mode_spec(ModeSpec::TryDict),
            ChunkConfig::default().with_delta_spec(DeltaSpec::TryLookback),
        ] {
            let bytes = simple_compress(&values, &config).unwrap();
            assert!(matches!(
                decode_ints(&bytes, 1000, 1000),
                Err(Fault::Foreign)
            ));
        }
        let bytes = encode_ints(&values);
        assert!(matches!(
            decode_ints(&bytes, 999, 999),
            Err(Fault::Count {
                found: 1000,
                count: 999
            })
        ));
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode_ints(&longer, 1000, 1000).is_err());
        assert!(decode_doubles(&bytes, 1000, 1000).is_err());
    }

    proptest! {
        #[test]
        fn integers_come_back(
            values in prop::collection::vec(any::<i64>(), 1..600),
            shift in 0u32..64,
        ) {
            round_trip(&values.iter().map(|v| v >> shift).collect::<Vec<_>>());
            round_trip(&values.iter().map(|v| (v >> shift).wrapping_mul(1000)).collect::<Vec<_>>());
        }

        #[test]
        fn doubles_come_back_bit_by_bit(bits in prop::collection::vec(any::<u64>(), 1..600)) {
            doubles_round_trip(&bits.iter().map(|b| f64::from_bits(*b)).collect::<Vec<_>>());
        }

        #[test]
        fn decimal_numbers_come_back_bit_by_bit(
            numbers in prop::collection::vec((any::<i64>(), 0u32..64), 1..600),
            digits in 0..10,
            others in prop::collection::vec(any::<u64>(), 0..4),
        ) {
            let decimal = |(n, shift): &(i64, u32)| format!("{}e-{digits}", n >> shift).parse().unwrap();
            let mut values: Vec<f64> = numbers.iter().map(decimal).collect();
            doubles_round_trip(&values);
            values.extend(others.iter().map(|b| f64::from_bits(*b)));
            values.push(-0.0);
            doubles_round_trip(&values);
        }
    }
}
