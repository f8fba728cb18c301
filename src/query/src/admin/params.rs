//! Parses the parameters of the read API. Pure.

use std::ops::RangeInclusive;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use chrono::DateTime;

use super::answer::ApiError;

const HOUR_MS: i64 = 3_600_000;
/// Without `to`, readings up to an hour ahead of now are included, because clocks of sensors may be
/// ahead.
const AHEAD_MS: i64 = HOUR_MS;
/// Times that RFC 3339 and MongoDB dates can represent: 1 January 0001 to 31 December 9999.
const TIMES_MS: RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// The response format of readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Ndjson,
    Csv,
    /// CSV in which a spreadsheet finds no formula.
    CsvExcel,
}

/// A number within `range`; `usual` if it is not given.
pub(super) fn bounded(
    name: &'static str,
    text: Option<&str>,
    usual: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(usual) };
    let number = text
        .parse()
        .ok()
        .filter(|n| range.contains(n) && text.bytes().all(|b| b.is_ascii_digit()));
    number.ok_or_else(|| {
        ApiError::parameter(
            name,
            format!(
                "expected a number from {} to {}",
                range.start(),
                range.end()
            ),
        )
    })
}

/// A time: RFC 3339, or seconds, milliseconds, microseconds or nanoseconds since 1970 by their
/// magnitude. Rounded up to a millisecond: readings are at whole ones, and as a bound, inclusive or
/// exclusive, a time between two of them means the same as the next one.
pub(super) fn time(name: &'static str, text: &str) -> Result<i64, ApiError> {
    let wrong = || {
        ApiError::parameter(
            name,
            "expected a time such as 2026-03-01T10:00:00Z, or a number since 1970",
        )
    };
    let ms = match text.parse::<f64>() {
        Ok(number) if number.is_finite() => of_number(text, number),
        _ => DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|t| t.timestamp_millis() + i64::from(t.timestamp_subsec_nanos() % 1_000_000 > 0)),
    };
    ms.filter(|ms| TIMES_MS.contains(ms)).ok_or_else(wrong)
}

fn of_number(text: &str, number: f64) -> Option<i64> {
    // Integers are kept exact: nanoseconds do not fit a double.
    let whole = text.parse::<i64>().ok();
    match number.abs() {
        // A double has seconds of this century to the microsecond, but not exactly.
        n if n < 1e11 => Some(whole.map_or_else(
            || divided_up((number * 1e6).round() as i64, 1000),
            |w| w * 1000,
        )),
        n if n < 1e14 => Some(whole.unwrap_or(number.ceil() as i64)),
        n if n < 1e17 => Some(divided_up(whole.unwrap_or(number.ceil() as i64), 1000)),
        n if n < 9.2e18 => Some(divided_up(whole.unwrap_or(number as i64), 1_000_000)),
        _ => None,
    }
}

fn divided_up(number: i64, by: i64) -> i64 {
    number.div_euclid(by) + i64::from(number.rem_euclid(by) > 0)
}

/// From and to. Default: the last 24 hours.
pub(super) fn window_of(
    from: Option<&str>,
    to: Option<&str>,
    now_ms: i64,
) -> Result<(i64, i64), ApiError> {
    let from = from.map(|text| time("from", text)).transpose()?;
    let to = to.map(|text| time("to", text)).transpose()?;
    let to_ms = to.unwrap_or(now_ms + AHEAD_MS);
    let from_ms = from.unwrap_or(to.unwrap_or(now_ms) - 24 * HOUR_MS);
    if from_ms > to_ms {
        return Err(ApiError::parameter("from", "must not be later than `to`"));
    }
    Ok((from_ms, to_ms))
}

/// The parameter `format` if given, else the header Accept; and the parameter `csv`.
pub(super) fn format_of(
    named: Option<&str>,
    csv: Option<&str>,
    headers: &HeaderMap,
) -> Result<Format, ApiError> {
    match (csv, format_alone(named, headers)?) {
        (None, format) => Ok(format),
        (Some("excel"), Format::Csv) => Ok(Format::CsvExcel),
        (Some("excel"), _) => Err(ApiError::parameter(
            "csv",
            "applies only to CSV; add format=csv",
        )),
        (Some(_), _) => Err(ApiError::parameter("csv", "expected excel")),
    }
}

fn format_alone(named: Option<&str>, headers: &HeaderMap) -> Result<Format, ApiError> {
    match named {
        Some("json") => return Ok(Format::Json),
        Some("ndjson") => return Ok(Format::Ndjson),
        Some("csv") => return Ok(Format::Csv),
        Some(_) => {
            return Err(ApiError::parameter(
                "format",
                "expected json, ndjson or csv",
            ));
        }
        None => {}
    }
    Ok(preferred(headers))
}

/// The media types of a format in the header Accept. JSON is first: it is the answer to `*/*`.
const MEDIA_TYPES: [(Format, &[&str]); 3] = [
    (Format::Json, &["application/json"]),
    (
        Format::Ndjson,
        &[
            "application/x-ndjson",
            "application/ndjson",
            "application/jsonl",
        ],
    ),
    (Format::Csv, &["text/csv"]),
];

/// The format with the highest weight in the header Accept (RFC 9110 §12.5.1); of several, the one
/// that is named first. JSON if none is acceptable: readers that accept something else only, such
/// as `text/html`, are better served with it than with an error.
fn preferred(headers: &HeaderMap) -> Format {
    let ranges: Vec<(&str, f32)> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(weighted)
        .collect();
    let mut best = (Format::Json, 0.0, 0);
    for (format, names) in MEDIA_TYPES {
        // The weight of the most specific range applies.
        let matched = ranges
            .iter()
            .enumerate()
            .filter_map(|(at, (range, weight))| Some((specificity(range, names)?, at, *weight)))
            .max_by_key(|(specificity, at, _)| (*specificity, std::cmp::Reverse(*at)));
        let Some((_, at, weight)) = matched else {
            continue;
        };
        let (_, best_weight, best_at) = best;
        if weight > best_weight || (weight == best_weight && weight > 0.0 && at < best_at) {
            best = (format, weight, at);
        }
    }
    best.0
}

/// A range of media types and its weight, the parameter `q`.
pub(super) fn weighted(part: &str) -> (&str, f32) {
    let (range, parameters) = part.split_once(';').unwrap_or((part, ""));
    let weight = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_weight = name.trim().eq_ignore_ascii_case("q");
        is_weight.then(|| value.trim().parse().unwrap_or(0.0))
    });
    (range.trim(), weight.unwrap_or(1.0))
}

/// How exactly a range names one of these types; `None`: not at all.
fn specificity(range: &str, names: &[&str]) -> Option<u8> {
    let (kind, rest) = range.split_once('/')?;
    let of = |name: &&str| match name.split_once('/') {
        _ if name.eq_ignore_ascii_case(range) => Some(2),
        Some((own, _)) if rest == "*" && own.eq_ignore_ascii_case(kind) => Some(1),
        _ if range == "*/*" => Some(0),
        _ => None,
    };
    names.iter().filter_map(of).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        let at = 1_709_287_200_123;
        for text in [
            "2024-03-01T10:00:00.123Z",
            "2024-03-01T11:00:00.123+01:00",
            "1709287200.123",
            "1709287200123",
            "1709287200123000",
            "1709287200123000000",
            // Rounded up.
            "2024-03-01T10:00:00.122001Z",
            "1709287200.1225",
            "1709287200122.5",
            "1709287200122001",
            "1709287200122000001",
        ] {
            assert_eq!(time("from", text).unwrap(), at, "{text}");
        }
        assert_eq!(time("to", "1969-12-31T23:59:59.9985Z").unwrap(), -1);
        assert_eq!(time("to", "-0.0015").unwrap(), -1);
        assert_eq!(time("from", "-1").unwrap(), -1000);
        assert_eq!(time("from", "0").unwrap(), 0);
        for text in [
            "",
            "yesterday",
            "nan",
            "inf",
            "1e300",
            "2024-03-01",
            "9.3e18",
            "99999-01-01T00:00:00Z",
        ] {
            assert!(time("from", text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_window_is_a_day_where_nothing_is_said() {
        let day = 24 * HOUR_MS;
        assert_eq!(
            window_of(None, None, 2 * day).unwrap(),
            (day, 2 * day + AHEAD_MS)
        );
        assert_eq!(window_of(None, Some("172800"), 9).unwrap(), (day, 2 * day));
        assert_eq!(
            window_of(Some("5"), None, day).unwrap(),
            (5000, day + AHEAD_MS)
        );
        assert!(window_of(Some("6"), Some("5"), 0).is_err());
    }

    #[test]
    fn a_spreadsheet_gets_csv_of_its_own() {
        let headers =
            |accept: &'static str| HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
        assert_eq!(
            format_of(Some("csv"), None, &HeaderMap::new()).unwrap(),
            Format::Csv
        );
        assert_eq!(
            format_of(Some("csv"), Some("excel"), &HeaderMap::new()).unwrap(),
            Format::CsvExcel
        );
        assert_eq!(
            format_of(None, Some("excel"), &headers("text/csv")).unwrap(),
            Format::CsvExcel
        );
        for (format, csv) in [
            (Some("csv"), ""),
            (Some("csv"), "Excel"),
            (Some("json"), "excel"),
            (None, "excel"),
        ] {
            assert!(
                format_of(format, Some(csv), &HeaderMap::new()).is_err(),
                "{format:?} {csv}"
            );
        }
    }

    #[test]
    fn the_format_with_the_highest_weight_is_chosen() {
        for (accept, format) in [
            ("", Format::Json),
            ("*/*", Format::Json),
            ("text/html", Format::Json),
            ("text/html,application/xml;q=0.9,*/*;q=0.8", Format::Json),
            ("text/csv", Format::Csv),
            ("TEXT/CSV", Format::Csv),
            ("text/*", Format::Csv),
            ("text/csv; charset=utf-8; header=present", Format::Csv),
            ("application/jsonl", Format::Ndjson),
            ("text/csv, application/json", Format::Csv),
            ("application/json, text/csv", Format::Json),
            ("text/csv;q=0, application/json", Format::Json),
            ("text/csv;q=0", Format::Json),
            ("application/json;q=0.1, text/csv;q=0.9", Format::Csv),
            (
                "text/csv; Q=0.2, application/x-ndjson ;q=0.3",
                Format::Ndjson,
            ),
            ("application/json;q=0, */*", Format::Ndjson),
            ("*/*;q=0.1, text/csv;q=0.2", Format::Csv),
            ("*/*, text/csv;q=0.2", Format::Json),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(format_of(None, None, &headers).unwrap(), format, "{accept}");
        }
    }

    #[test]
    fn numbers_keep_to_their_range() {
        assert_eq!(bounded("limit", None, 7, 1..=9).unwrap(), 7);
        assert_eq!(bounded("limit", Some("9"), 7, 1..=9).unwrap(), 9);
        for text in ["0", "10", "-1", "+1", "1.0", "", "x"] {
            assert!(bounded("limit", Some(text), 7, 1..=9).is_err(), "{text}");
        }
    }
}
