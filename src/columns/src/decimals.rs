//! Doubles as integers. Sensors send numbers of few digits: 21.37 is 2137 hundredths, and the
//! integers of a day take half the bytes of its doubles. A double is taken as `n / 10^digits` only if
//! this division gives the same bits, so -0.0, 0.1 + 0.2 and numbers of more digits stay doubles.

/// The most digits after the point. One division gives the nearest double of a decimal number as
/// long as both numbers are exact: integers up to 2^53, powers of ten up to 10^22.
pub(crate) const DIGITS_MAX: u8 = 9;
/// Up to this many digits are tried before the largest number is. A double with all its digits fails
/// there, after five divisions instead of ten.
const DIGITS_USUAL: u8 = 3;
const POWERS: [f64; DIGITS_MAX as usize + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const EXACT_MAX: f64 = (1u64 << 53) as f64;

/// Bits of a double that is not taken, and of each digit of one that is.
const DOUBLE_BITS: usize = 64;
const DIGIT_BITS: usize = 3;

/// The integer of which the double is the part that [`join`] makes of it.
pub(crate) fn split(value: f64, digits: u8) -> Option<i64> {
    let nearest = (value * POWERS[usize::from(digits)]).round_ties_even();
    // False for NaN.
    let is_exact = nearest.abs() <= EXACT_MAX;
    let n = nearest as i64;
    (is_exact && join(n, digits).to_bits() == value.to_bits()).then_some(n)
}

/// `n / 10^digits`.
pub(crate) fn join(n: i64, digits: u8) -> f64 {
    n as f64 / POWERS[usize::from(digits)]
}

/// The number of digits with which the values take the fewest bytes; `None`: as doubles.
pub(crate) fn digits(values: &[f64]) -> Option<u8> {
    let mut counts = [0; POWERS.len()];
    for value in values {
        if let Some(digits) = digits_of(*value) {
            counts[usize::from(digits)] += 1;
        }
    }
    let mut best = (DOUBLE_BITS * values.len(), None);
    let mut taken = 0;
    for (digits, count) in counts.iter().enumerate() {
        taken += count;
        let left = values.len() - taken;
        // Two bits of each value: which of them are doubles.
        let which = if left > 0 { 2 * values.len() } else { 0 };
        let bits = left * DOUBLE_BITS + taken * (digits + 1) * DIGIT_BITS + which;
        if taken > 0 && bits < best.0 {
            best = (bits, Some(digits as u8));
        }
    }
    best.1
}

fn digits_of(value: f64) -> Option<u8> {
    let fits = |digits: &u8| split(value, *digits).is_some();
    (0..=DIGITS_USUAL).find(fits).or_else(|| {
        let rest = DIGITS_USUAL + 1..=DIGITS_MAX;
        fits(&DIGITS_MAX).then(|| rest.into_iter().find(fits))?
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_digits_are_those_of_most_values() {
        assert_eq!(digits(&[21.0, 22.5, 21.37]), Some(2));
        assert_eq!(digits(&[21.0, 22.0]), Some(0));
        assert_eq!(digits(&[0.1 + 0.2, 1.0 / 3.0]), None);
        let mut many = vec![21.37; 100];
        many.extend([-0.0, f64::INFINITY, f64::NAN, 1e300, 0.1 + 0.2, 51.1234567]);
        assert_eq!(digits(&many), Some(2), "a few that have more");
        assert_eq!(digits(&[51.1234567, 51.1234568]), Some(7));
        assert_eq!(split(-0.0, 0), None);
        assert_eq!(split(9_007_199_254_740_993.0, 0), Some(1 << 53));
    }

    proptest! {
        #[test]
        fn a_decimal_number_is_its_nearest_double(n in -(1i64 << 53)..=1 << 53, digits in 0..=DIGITS_MAX) {
            let text = format!("{n}e-{digits}");
            let value: f64 = text.parse().unwrap();
            prop_assert_eq!(join(n, digits).to_bits(), value.to_bits());
            prop_assert!(n.abs() > 1 << 50 || split(value, digits) == Some(n));
        }
    }
}
