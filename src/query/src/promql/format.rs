//! Numbers and times as Prometheus writes them.

use std::fmt::Write as _;

/// A number as the API has it: `+Inf`, `-Inf`, `NaN`, otherwise the shortest digits that give the
/// same number, with an exponent below 1e-6 and from 1e21 on.
pub(crate) fn api_number(value: f64) -> String {
    let size = value.abs();
    if value.is_finite() && size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    number(value)
}

/// As [`api_number`], without an exponent: the value of a label.
pub fn number(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        v => v.to_string(),
    }
}

/// A time in seconds since 1970, with three decimals if it is not a whole second.
pub(crate) fn push_time(out: &mut String, ts_ms: i64) {
    let (sign, ms) = if ts_ms < 0 {
        ("-", ts_ms.unsigned_abs())
    } else {
        ("", ts_ms.unsigned_abs())
    };
    let _ = match ms % 1000 {
        0 => write!(out, "{sign}{}", ms / 1000),
        rest => write!(out, "{sign}{}.{rest:03}", ms / 1000),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_written_as_by_prometheus() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (-1.5e300, "-1.5e+300"),
            (1e-6, "0.000001"),
            (1e-7, "1e-07"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(api_number(value), text);
        }
        assert_eq!(number(1e21), "1000000000000000000000");
        for (ms, text) in [
            (0, "0"),
            (1_500, "1.500"),
            (-1, "-0.001"),
            (-2_000, "-2"),
            (1_700_000_000_007, "1700000000.007"),
        ] {
            let mut out = String::new();
            push_time(&mut out, ms);
            assert_eq!(out, text);
        }
    }
}
