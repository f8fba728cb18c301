//! Sizes and durations in the notation that people use: `512MiB`, `10MB`, `8388608`, `1.5GiB`;
//! `15s`, `250ms`, `1h30m`, `365d`.
//!
//! Numbers are parsed digit by digit with integer arithmetic, so that `0.1GB` is exactly
//! 100,000,000 bytes, without the rounding of binary fractions. Parts of a byte or of a millisecond
//! are rounded down.

use std::time::Duration;

/// One KiB in bytes.
pub(super) const KIB: u64 = 1024;
/// One MiB in bytes.
pub(super) const MIB: u64 = 1024 * KIB;
/// One GiB in bytes.
pub(super) const GIB: u64 = 1024 * MIB;
/// One TiB in bytes.
pub(super) const TIB: u64 = 1024 * GIB;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Largest first, because [`write_size`] picks the largest unit that divides. Parsing ignores case.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1024 * GIB),
    ("TB", 1_000_000_000_000),
    ("GiB", GIB),
    ("GB", 1_000_000_000),
    ("MiB", MIB),
    ("MB", 1_000_000),
    ("KiB", KIB),
    ("kB", 1000),
    ("B", 1),
];

/// In milliseconds, largest first. Months and years are missing because they have no fixed length.
const DURATIONS: [(&str, u64); 6] = [
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Parses a size in bytes; `None` if the text is not a size or overflows.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text.trim())?;
    let unit = unit.trim_start();
    if unit.is_empty() {
        return number.parse().ok();
    }
    let (_, factor) = SIZES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    times(number, *factor)
}

/// Parses a duration: one or more numbers, each with its unit; `None` if the text is not a duration
/// or overflows.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total_ms: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest)?;
        let after = after.trim_start();
        let unit_end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let (_, factor) = DURATIONS.iter().find(|(name, _)| *name == unit)?;
        total_ms = total_ms.checked_add(times(number, *factor)?)?;
        rest = next.trim_start();
    }
    (!text.trim().is_empty()).then(|| Duration::from_millis(total_ms))
}

/// Formats a size so that [`parse_size`] returns the same one.
pub(super) fn write_size(bytes: u64) -> String {
    match SIZES
        .iter()
        .find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor))
    {
        Some((name, factor)) if *factor > 1 => format!("{}{name}", bytes / factor),
        _ => bytes.to_string(),
    }
}

/// Formats a duration of whole milliseconds so that [`parse_duration`] returns the same one. Days
/// are not converted to weeks.
pub fn write_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, factor) in DURATIONS.iter().filter(|(name, _)| *name != "w") {
        if rest >= *factor {
            text.push_str(&format!("{}{name}", rest / factor));
            rest %= factor;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// Splits a leading number with at most one decimal point from the rest.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    (!whole.is_empty() && !fraction.is_empty() && !fraction.contains('.')).then_some((number, rest))
}

/// Multiplies a decimal number by a factor, rounded down.
fn times(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // More digits are not plausible, and would overflow the arithmetic below.
    if fraction.len() > 15 {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let part: u128 = fraction.parse().ok()?;
    let part = part * u128::from(factor) / 10_u128.pow(fraction.len() as u32);
    u64::try_from(whole.checked_mul(u128::from(factor))?.checked_add(part)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes() {
        for (text, bytes) in [
            ("8388608", 8_388_608),
            ("512MiB", 512 * MIB),
            ("512mib", 512 * MIB),
            ("16 GiB", 16 * GIB),
            ("1.5GiB", 3 * GIB / 2),
            ("0.1GB", 100_000_000),
            ("10MB", 10_000_000),
            ("10kB", 10_000),
            ("10KB", 10_000),
            ("2TiB", 2048 * GIB),
            ("7B", 7),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_invalid_sizes() {
        for text in [
            "",
            "MiB",
            "1.5",
            "-1",
            "+1",
            "1M",
            "1.2.3MiB",
            ".5MiB",
            "1.MiB",
            "5 apples",
            "99999999TiB",
            "1e6",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn parses_durations() {
        for (text, ms) in [
            ("15s", 15_000),
            ("250ms", 250),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("0.5s", 500),
            ("365d", 365 * 86_400_000),
            ("2w", 14 * 86_400_000),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(ms)),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_invalid_durations() {
        for text in [
            "",
            " ",
            "15",
            "s",
            "15 sec",
            "1y",
            "1M",
            "-1s",
            "1h30",
            "s1",
            "99999999999999999999w",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for bytes in [0, 1, 1000, 1024, 1_048_576, 1_048_577, 10_000_000, u64::MAX] {
            assert_eq!(parse_size(&write_size(bytes)), Some(bytes), "{bytes}");
        }
        for ms in [
            0,
            1,
            999,
            1000,
            1500,
            5_400_000,
            365 * 86_400_000,
            86_400_001,
        ] {
            let duration = Duration::from_millis(ms);
            assert_eq!(
                parse_duration(&write_duration(duration)),
                Some(duration),
                "{ms}"
            );
        }
        assert_eq!(write_size(8_388_608), "8MiB");
        assert_eq!(write_duration(Duration::from_secs(365 * 86_400)), "365d");
        assert_eq!(write_duration(Duration::from_secs(90)), "1m30s");
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_any_text(text in "[0-9.a-zA-Z +-]{0,40}") {
            let _ = (parse_size(&text), parse_duration(&text));
        }
    }
}
