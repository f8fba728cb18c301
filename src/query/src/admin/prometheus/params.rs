//! The parameters of Prometheus' HTTP API: of the query string and of a form, with its formats of
//! times and durations.

use axum::http::Uri;
use chrono::DateTime;

use super::answer::PrometheusError;

/// Times beyond these have no date: years -9999 to 9999, in ms.
const TIME_MS_MAX: f64 = 3e14;
/// A duration of 3,000 years, in ms.
const DURATION_MS_MAX: f64 = 1e14;

/// The parameters of a request; the form's come before those of the query string.
#[derive(Debug, Default)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    pub(super) fn new(uri: &Uri, form: &[u8]) -> Result<Params, PrometheusError> {
        let mut all = vec![];
        let form = std::str::from_utf8(form)
            .map_err(|_| PrometheusError::bad_data("the form is not valid UTF-8"))?;
        for part in form
            .split('&')
            .chain(uri.query().unwrap_or_default().split('&'))
            .filter(|part| !part.is_empty())
        {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = String::from_utf8_lossy(&decoded(name)).into_owned();
            let value = String::from_utf8(decoded(value));
            let value = value.map_err(|_| invalid(&name, "invalid UTF-8"))?;
            all.push((name, value));
        }
        Ok(Params(all))
    }

    /// The first of this name; `None` if it is empty or not given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// The selectors of `match[]`.
    pub(super) fn selectors(&self) -> Vec<&str> {
        let given = self.0.iter().filter(|(name, _)| name == "match[]");
        given.map(|(_, text)| text.as_str()).collect()
    }

    pub(super) fn time(&self, name: &str) -> Result<Option<i64>, PrometheusError> {
        self.get(name)
            .map(|text| time(text).map_err(|problem| invalid(name, &problem)))
            .transpose()
    }

    pub(super) fn required_time(&self, name: &str) -> Result<i64, PrometheusError> {
        time(self.get(name).unwrap_or_default()).map_err(|problem| invalid(name, &problem))
    }

    pub(super) fn duration_ms(&self, name: &str) -> Result<Option<i64>, PrometheusError> {
        self.get(name)
            .map(|text| duration(text).map_err(|problem| invalid(name, &problem)))
            .transpose()
    }

    /// The step of a range query.
    pub(super) fn step_ms(&self) -> Result<i64, PrometheusError> {
        match duration(self.get("step").unwrap_or_default()) {
            Ok(step) if step > 0 => Ok(step),
            Ok(_) => Err(invalid(
                "step",
                "zero or negative query resolution step widths are not accepted. Try a positive \
                 integer",
            )),
            Err(problem) => Err(invalid("step", &problem)),
        }
    }

    /// 0: no limit.
    pub(super) fn limit(&self) -> Result<usize, PrometheusError> {
        let Some(text) = self.get("limit") else {
            return Ok(0);
        };
        match text.parse::<i64>() {
            Ok(limit) if limit >= 0 => Ok(limit as usize),
            Ok(_) => Err(invalid("limit", "limit must be non-negative")),
            Err(_) => Err(invalid(
                "limit",
                &format!("cannot parse {text:?} to a number"),
            )),
        }
    }
}

pub(super) fn invalid(name: &str, problem: &str) -> PrometheusError {
    PrometheusError::bad_data(format!("invalid parameter {name:?}: {problem}"))
}

fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let digit = |i: usize| tail.get(i).and_then(|b| char::from(*b).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            (b'+', ..) => bytes.push(b' '),
            (other, ..) => bytes.push(*other),
        }
    }
    bytes
}

/// Seconds since 1970 or RFC 3339, in ms.
type Parsed = Result<i64, std::borrow::Cow<'static, str>>;

fn time(text: &str) -> Parsed {
    let ms = match text.parse::<f64>() {
        // As Prometheus rounds: only the fraction.
        Ok(seconds) => Some(seconds.trunc() * 1000.0 + (seconds.fract() * 1000.0).round())
            .filter(|ms| ms.abs() <= TIME_MS_MAX)
            .map(|ms| ms as i64),
        Err(_) => DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|time| time.timestamp_millis()),
    };
    ms.ok_or_else(|| format!("cannot parse {text:?} to a valid timestamp").into())
}

/// Seconds, or units from the largest: `1h30m`.
fn duration(text: &str) -> Parsed {
    const UNITS: [(&str, f64); 7] = [
        ("y", 31_536_000_000.0),
        ("w", 604_800_000.0),
        ("d", 86_400_000.0),
        ("h", 3_600_000.0),
        ("m", 60_000.0),
        ("s", 1000.0),
        ("ms", 1.0),
    ];
    let wrong = || format!("cannot parse {text:?} to a valid duration").into();
    if let Ok(seconds) = text.parse::<f64>() {
        let ms = seconds * 1000.0;
        return if ms.abs() <= DURATION_MS_MAX {
            Ok(ms as i64)
        } else {
            Err(wrong())
        };
    }
    let mut rest = text;
    let mut total = 0.0;
    let mut next = 0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let unit_end = rest[digits..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |at| digits + at);
        let unit = UNITS
            .iter()
            .position(|(name, _)| *name == &rest[digits..unit_end])
            .filter(|unit| *unit >= next);
        let (Some(unit), Ok(number)) = (unit, rest[..digits].parse::<f64>()) else {
            return Err(wrong());
        };
        total += number * UNITS[unit].1;
        (rest, next) = (&rest[unit_end..], unit + 1);
    }
    if text.is_empty() || total > DURATION_MS_MAX {
        Err(wrong())
    } else {
        Ok(total as i64)
    }
}

/// A label name as Prometheus escapes it in a path: `U__`, then `_` for itself doubled and
/// `_<hex>_` for other characters.
pub(super) fn unescaped(name: &str) -> String {
    let Some(escaped) = name.strip_prefix("U__") else {
        return name.to_owned();
    };
    let mut out = String::new();
    let mut rest = escaped;
    while let Some(at) = rest.find('_') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('_') {
            out.push('_');
            rest = after;
            continue;
        }
        let hex = tail.split_once('_').and_then(|(hex, after)| {
            Some((
                u32::from_str_radix(hex, 16).ok().and_then(char::from_u32)?,
                after,
            ))
        });
        // Not escaped by these rules: taken as it is.
        let Some((c, after)) = hex else {
            return name.to_owned();
        };
        out.push(c);
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_durations_have_prometheus_forms() {
        for (text, ms) in [
            ("1.5", 1500),
            ("-2", -2000),
            ("1970-01-01T00:00:01.25Z", 1250),
            ("1e3", 1_000_000),
            ("1711584000.0005", 1_711_584_000_000),
            ("-1.0005", -1000),
            ("1.0006", 1001),
        ] {
            assert_eq!(time(text), Ok(ms), "{text}");
        }
        for (text, ms) in [
            ("15", 15_000),
            ("0.5", 500),
            ("1h30m", 5_400_000),
            ("1d2ms", 86_400_002),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(ms), "{text}");
        }
        for text in ["", "x", "NaN", "inf", "1e300"] {
            assert!(time(text).is_err() && duration(text).is_err(), "{text}");
        }
        for text in ["1m1h", "1m1m", "1.5h", "h", "99999999999y"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parameters_come_from_the_form_and_the_query_string() {
        let uri: Uri = "/x?query=a%2Bb+c&match[]=up&limit=5&time=".parse().unwrap();
        let params = Params::new(&uri, b"query=%7Bx%3D%22%C3%A9%22%7D&match%5B%5D=temp");
        let params = params.unwrap();
        assert_eq!(params.get("query"), Some("{x=\"é\"}"));
        assert_eq!(params.selectors(), ["temp", "up"]);
        assert_eq!(
            (params.limit().unwrap(), params.time("time").unwrap()),
            (5, None)
        );
        let of = |uri: &str| Params::new(&uri.parse().unwrap(), b"");
        let given = of("/x?query=a%2Bb+c&query=d").unwrap();
        assert_eq!(given.get("query"), Some("a+b c"));
        assert!(of("/x?limit=-1").unwrap().limit().is_err());
        assert!(of("/x?step=0").unwrap().step_ms().is_err());
        let refused = of("/x?query=%22%ff%22").unwrap_err().to_string();
        assert_eq!(refused, "invalid parameter \"query\": invalid UTF-8");
        assert!(Params::new(&uri, b"query=\xff").is_err());
    }

    #[test]
    fn escaped_names_of_labels_are_resolved() {
        for (escaped, name) in [
            ("site", "site"),
            ("U__http_2e_status", "http.status"),
            ("U__a__b", "a_b"),
            ("U___1f600_", "😀"),
            ("U__bad_zz_", "U__bad_zz_"),
        ] {
            assert_eq!(unescaped(escaped), name);
        }
    }
}
