//! How many digits the doubles of a column have. Sensors send numbers of few digits: 21.37 is 2137
//! hundredths. pco stores such a double as a multiple of 0.01 and, where the product is not the
//! nearest double, what is missing to it; so it comes back with all its bits.

/// The most digits after the point that are tried.
const DIGITS_MAX: usize = 9;
/// Up to this many digits are tried before the largest number is. A double with all its digits fails
/// there, after five divisions instead of ten.
const DIGITS_USUAL: usize = 3;
const POWERS: [f64; DIGITS_MAX + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// The parts that a double can be a multiple of: the nearest doubles of 10^-digits.
const UNITS: [f64; DIGITS_MAX + 1] = [1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9];
/// Integers up to here are exact, and so is the division of one by a power of ten that [`POWERS`] has.
const EXACT_MAX: f64 = (1u64 << 53) as f64;
/// One in so many doubles may have more digits than the others.
const RARE: usize = 16;

/// The unit of decimal numbers, and of each double how many of them it nearly is.
#[derive(Debug, PartialEq)]
pub(crate) struct Decimals {
    /// 1, 0.1, 0.01, and so on.
    pub(crate) unit: f64,
    /// By value.
    pub(crate) multiples: Vec<i64>,
}

/// The doubles as decimal numbers, if nearly all have few digits.
pub(crate) fn decimals(values: &[f64]) -> Option<Decimals> {
    let rare = values.len() / RARE;
    let mut counts = [0; POWERS.len()];
    let mut others = 0;
    for value in values {
        match digits(*value) {
            Some(digits) => counts[digits] += 1,
            None => others += 1,
        }
        if others > rare {
            return None;
        }
    }
    // The fewest digits that all but a few values have.
    let mut longer = values.len();
    let digits = counts.iter().position(|count| {
        longer -= count;
        longer <= rare
    })?;
    let multiple = |value: &f64| {
        let multiple = (value * POWERS[digits]).round_ties_even();
        // False for NaN.
        (multiple.abs() <= EXACT_MAX).then_some(multiple as i64)
    };
    Some(Decimals {
        unit: UNITS[digits],
        multiples: values.iter().map(multiple).collect::<Option<_>>()?,
    })
}

/// The fewest digits after the point of a decimal number whose nearest double this is.
fn digits(value: f64) -> Option<usize> {
    let fits = |digits: &usize| {
        let n = (value * POWERS[*digits]).round_ties_even();
        n.abs() <= EXACT_MAX && n / POWERS[*digits] == value
    };
    (0..=DIGITS_USUAL).find(fits).or_else(|| {
        let rest = DIGITS_USUAL + 1..=DIGITS_MAX;
        fits(&DIGITS_MAX).then(|| rest.into_iter().find(fits))?
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unit(values: &[f64]) -> Option<f64> {
        decimals(values).map(|decimals| decimals.unit)
    }

    #[test]
    fn the_digits_are_those_of_nearly_all_values() {
        assert_eq!(unit(&[21.0, 22.5, 21.37]), Some(0.01));
        assert_eq!(unit(&[21.0, 22.0, -0.0]), Some(1.0));
        assert_eq!(unit(&[0.1 + 0.2, 1.0 / 3.0]), None);
        let mut many = vec![21.37; 100];
        many.extend([0.1 + 0.2, 51.1234567]);
        assert_eq!(unit(&many), Some(0.01), "two that have more");
        assert_eq!(decimals(&many).map(|d| d.multiples[101]), Some(5112));
        many.push(f64::INFINITY);
        assert_eq!(unit(&many), None, "not a multiple of anything");
        assert_eq!(unit(&[51.1234567, 51.1234568]), Some(1e-7));
    }

    proptest! {
        #[test]
        fn a_decimal_number_is_recognised(n in -(1i64 << 23)..=1 << 23, digits in 0..=DIGITS_MAX) {
            let value: f64 = format!("{n}e-{digits}").parse().unwrap();
            let found = decimals(&[value]).unwrap();
            prop_assert!(found.unit >= UNITS[digits]);
            prop_assert_eq!(found.multiples[0] as f64 * (found.unit / UNITS[digits]).round(), n as f64);
        }
    }
}
