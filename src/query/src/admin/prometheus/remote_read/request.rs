//! Parses the request of remote read: `prometheus.ReadRequest` (prompb/remote.proto) in a block of
//! snappy. Pure.

use crate::promql::{Matcher, PromqlError, SelectorRequest};
use model::protobuf::{FieldValue, Fields, Malformed, packed};
use net::http::encoding::{DecompressError, Encoding};

/// Bytes of a request, as sent and decompressed: queries are matchers and times. Prometheus accepts
/// 32 MiB.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// Queries of one request; Prometheus sends one for each selector, or one request each.
const QUERIES_MAX: usize = 1000;
/// Matchers of all queries.
const MATCHERS_MAX: usize = 10_000;
/// Regular expressions of all queries, and bytes of each: the limits of a PromQL query.
const REGEX_MAX: usize = 200;
const REGEX_BYTES_MAX: usize = 128 << 10;
/// Times beyond these have no date; sums with them must not overflow.
const TIME_MS_MAX: i64 = 300_000_000_000_000;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the request has more than {BODY_BYTES_MAX} bytes when decompressed")]
    TooLarge,
    #[error("the request must be a block of snappy: {0}")]
    Snappy(std::io::Error),
    #[error("the request is not a prometheus.ReadRequest: {0}")]
    Malformed(#[from] Malformed),
    #[error("the request has more than {max} {what}")]
    TooMany { max: usize, what: &'static str },
    #[error("invalid matcher type")]
    MatcherType,
    #[error(
        "a matcher has a regular expression of {0} bytes; at most {REGEX_BYTES_MAX} are allowed"
    )]
    LongRegex(usize),
    #[error(transparent)]
    Matcher(#[from] PromqlError),
    #[error("server does not support any of the requested response types; supported: SAMPLES")]
    ResponseType,
}

/// `ReadRequest.ResponseType.SAMPLES`, the form of every answer.
const SAMPLES: u64 = 0;

#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) queries: Vec<SelectorRequest>,
}

/// What all queries of a request may have together.
#[derive(Default)]
struct Counted {
    queries: usize,
    matchers: usize,
    regexes: usize,
}

fn counted(count: &mut usize, max: usize, what: &'static str) -> Result<(), RequestError> {
    *count += 1;
    if *count > max {
        Err(RequestError::TooMany { max, what })
    } else {
        Ok(())
    }
}

impl ReadRequest {
    pub(super) fn parse(body: &[u8]) -> Result<ReadRequest, RequestError> {
        let message = Encoding::Snappy
            .inflate(body, BODY_BYTES_MAX as u64)
            .map_err(|error| match error {
                DecompressError::TooLarge => RequestError::TooLarge,
                DecompressError::Corrupt(error) => RequestError::Snappy(error),
            })?;
        let mut queries = vec![];
        let mut accepted = vec![];
        let mut total = Counted::default();
        for field in Fields::new(&message) {
            match field? {
                (1, query) => {
                    counted(&mut total.queries, QUERIES_MAX, "queries")?;
                    queries.push(parse_query(query.bytes()?, &mut total)?);
                }
                (2, FieldValue::Bytes(several)) => {
                    for response in packed(several) {
                        accepted.push(response?);
                    }
                }
                (2, one) => accepted.push(one.varint()?),
                _ => {}
            }
        }
        // Without a list, samples.
        if !accepted.is_empty() && !accepted.contains(&SAMPLES) {
            return Err(RequestError::ResponseType);
        }
        Ok(ReadRequest { queries })
    }
}

/// A query's times are both inclusive. Its hints are not needed: without them the answer has more
/// samples, not others.
fn parse_query(message: &[u8], total: &mut Counted) -> Result<SelectorRequest, RequestError> {
    let mut start_ms = 0;
    let mut end_ms = 0;
    let mut matchers = vec![];
    for field in Fields::new(message) {
        match field? {
            (1, time) => start_ms = time.varint()? as i64,
            (2, time) => end_ms = time.varint()? as i64,
            (3, matcher) => {
                counted(&mut total.matchers, MATCHERS_MAX, "matchers")?;
                matchers.push(parse_matcher(matcher.bytes()?, total)?);
            }
            _ => {}
        }
    }
    let after_ms = start_ms.clamp(-TIME_MS_MAX, TIME_MS_MAX) - 1;
    let to_ms = end_ms.clamp(-TIME_MS_MAX, TIME_MS_MAX);
    Ok(SelectorRequest::of_samples(matchers, after_ms, to_ms))
}

fn parse_matcher(message: &[u8], total: &mut Counted) -> Result<Matcher, RequestError> {
    let mut kind = 0;
    let mut name = "";
    let mut value = "";
    for field in Fields::new(message) {
        match field? {
            (1, number) => kind = number.varint()?,
            (2, text) => name = text.text()?,
            (3, text) => value = text.text()?,
            _ => {}
        }
    }
    if kind == 2 || kind == 3 {
        counted(&mut total.regexes, REGEX_MAX, "regular expressions")?;
        if value.len() > REGEX_BYTES_MAX {
            return Err(RequestError::LongRegex(value.len()));
        }
    }
    let name = name.to_owned();
    let value = value.to_owned();
    match kind {
        0 => Ok(Matcher::equal(name, value)),
        1 => Ok(Matcher::not_equal(name, value)),
        2 | 3 => Ok(Matcher::regex(name, value, kind == 2)?),
        _ => Err(RequestError::MatcherType),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::AnsweredBy;
    use model::protobuf::{put_bytes, put_varint};

    fn field(number: u32, value: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        put_bytes(number, value, &mut out);
        out
    }

    fn matcher(kind: u64, name: &str, value: &str) -> Vec<u8> {
        let mut out = vec![];
        put_varint(1, kind, &mut out);
        put_bytes(2, name.as_bytes(), &mut out);
        put_bytes(3, value.as_bytes(), &mut out);
        field(3, &out)
    }

    fn query(start_ms: i64, end_ms: i64, matchers: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![];
        put_varint(1, start_ms as u64, &mut out);
        put_varint(2, end_ms as u64, &mut out);
        out.extend(matchers.concat());
        // Hints.
        put_bytes(4, &[0x08, 0x01], &mut out);
        field(1, &out)
    }

    fn parse(message: &[u8]) -> Result<ReadRequest, RequestError> {
        ReadRequest::parse(&snap::raw::Encoder::new().compress_vec(message).unwrap())
    }

    fn refused(message: &[u8]) -> String {
        parse(message).unwrap_err().to_string()
    }

    #[test]
    fn queries_have_matchers_of_all_kinds_and_inclusive_times() {
        let all = [
            matcher(0, "a", "1"),
            matcher(1, "b", "2"),
            matcher(2, "c", "3.*"),
            matcher(3, "d", "4|5"),
        ];
        let request =
            parse(&[query(-5, 7, &all), query(i64::MIN, i64::MAX, &[])].concat()).unwrap();
        let [first, second] = &request.queries[..] else {
            panic!("{request:?}")
        };
        assert_eq!(
            (first.after_ms(), first.to_ms(), first.answered_by),
            (-6, 7, AnsweredBy::Samples)
        );
        let shown: Vec<String> = first.matchers.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [r#"a="1""#, r#"b!="2""#, r#"c=~"3.*""#, r#"d!~"4|5""#]
        );
        assert!(second.matchers.is_empty() && second.after_ms() < second.to_ms());
        assert_eq!(parse(&[]).unwrap().queries.len(), 0);
    }

    #[test]
    fn a_request_that_accepts_no_samples_is_refused() {
        for (accepted, is_served) in [
            (&[][..], true),
            (&[1, 0], true),
            (&[0, 1], true),
            (&[9, 0], true),
            (&[1], false),
            (&[9], false),
        ] {
            let packed = field(2, accepted);
            let mut single = vec![];
            accepted
                .iter()
                .for_each(|n| put_varint(2, u64::from(*n), &mut single));
            for message in [packed, single] {
                match parse(&message) {
                    Ok(_) => assert!(is_served, "{accepted:?}"),
                    Err(error) => assert!(
                        !is_served && matches!(error, RequestError::ResponseType),
                        "{accepted:?}: {error}"
                    ),
                }
            }
        }
    }

    #[test]
    fn a_request_that_is_damaged_or_too_large_is_refused() {
        assert!(
            ReadRequest::parse(b"\xff\xff\xff")
                .unwrap_err()
                .to_string()
                .contains("snappy")
        );
        assert!(
            ReadRequest::parse(b"")
                .unwrap_err()
                .to_string()
                .contains("snappy")
        );
        // A block that says it has 4 GB.
        assert!(matches!(
            ReadRequest::parse(b"\xff\xff\xff\xff\x0f\x00"),
            Err(RequestError::TooLarge)
        ));
        assert!(matches!(
            parse(&vec![0; BODY_BYTES_MAX + 1]),
            Err(RequestError::TooLarge)
        ));
        assert!(refused(&[0x0a, 0x05, 0x01]).contains("it ends inside a field"));
        assert!(refused(&query(0, 1, &[field(3, &[0x12, 0x01, 0xff])])).contains("UTF-8"));
        assert!(refused(&query(0, 1, &[matcher(4, "a", "b")])).contains("matcher type"));
        assert!(refused(&query(0, 1, &[matcher(2, "a", "(")])).contains("regexp"));
        assert!(refused(&query(0, 1, &[matcher(2, "a", "(x{1000}){1000}")])).contains("simpler"));
        assert!(
            refused(&query(0, 1, &[matcher(3, "a", &"x".repeat(200_000))]))
                .contains("200000 bytes")
        );
        let many = vec![matcher(2, "a", "b.*"); REGEX_MAX + 1];
        assert!(refused(&query(0, 1, &many)).contains("200 regular expressions"));
        let many = vec![matcher(0, "", ""); MATCHERS_MAX + 1];
        assert!(refused(&query(0, 1, &many)).contains("10000 matchers"));
        assert!(
            refused(&vec![query(0, 1, &[]); QUERIES_MAX + 1].concat()).contains("1000 queries")
        );
    }
}
