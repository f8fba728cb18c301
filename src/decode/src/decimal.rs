//! Fast conversion of the decimals that sensors usually send; other numbers use the standard
//! library.

/// Integers below this convert to a double without loss.
const EXACT_MAX: u64 = 1 << 53;
/// Powers of ten that convert to a double without loss, for up to 18 digits.
const POWERS: [f64; 19] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18,
];

/// The same powers as integers.
pub(super) const POWERS_OF_TEN: [u64; 19] = {
    let mut powers = [1; 19];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// The double with the shortest decimal that is this float32: 22.4 instead of 22.399999618530273,
/// as the sender shows it.
pub(super) fn shortest(v: f32) -> f64 {
    let exact = f64::from(v);
    // Up to here integers have no shorter decimal.
    if v.fract() == 0.0 && v.abs() < 16_777_216.0 {
        return exact;
    }
    format!("{v:e}").parse().unwrap_or(exact)
}

/// The double nearest to `digits` with a decimal point before the last `decimals` of them. Digits
/// and power of ten are exact, so that one division rounds correctly. `None` if they are not exact;
/// then use the library.
pub(super) fn exact(digits: u64, decimals: usize) -> Option<f64> {
    let power = POWERS.get(decimals).filter(|_| digits < EXACT_MAX)?;
    // A division takes as long as reading the digits.
    Some(if decimals == 0 {
        digits as f64
    } else {
        digits as f64 / power
    })
}
