//! Writes NDJSON and CSV, which `hourbucket import` reads back without an option.
//!
//! NDJSON has the readings in the native format. CSV has a column for each field, and its headers say
//! what a cell alone does not, as in InfluxDB's extended annotated CSV: `<tag>|tag`, and
//! `<field>|string` with the texts of a field, which may look like numbers. An empty cell has no
//! value, so an empty text, and one that begins with a backslash, get a backslash in front.

use std::collections::BTreeSet;
use std::io::{self, Write};

use chrono::DateTime;
use model::{DAY_MS, ValueRef};

use super::group::{Column, Kind, Readings};
use super::parquet_file::{SENSOR_ID, TS};
use crate::cli::import::rows::{STRING, TAG, VALUE, is_plain};

/// A file in one of these formats.
pub(super) struct TextFile<W: Write> {
    out: W,
    /// `None`: NDJSON.
    columns: Option<Vec<Column>>,
    /// The row that is being written.
    row: Vec<u8>,
    bytes: u64,
    dates: Dates,
}

impl<W: Write> TextFile<W> {
    pub(super) fn ndjson(out: W) -> TextFile<W> {
        TextFile {
            out,
            columns: None,
            row: vec![],
            bytes: 0,
            dates: Dates::default(),
        }
    }

    pub(super) fn csv(out: W, columns: &BTreeSet<Column>) -> io::Result<TextFile<W>> {
        let mut file = TextFile::ndjson(out);
        let columns: Vec<Column> = columns.iter().cloned().collect();
        file.row.extend_from_slice(SENSOR_ID.as_bytes());
        file.row.push(b',');
        file.row.extend_from_slice(TS.as_bytes());
        for (kind, name) in &columns {
            file.row.push(b',');
            let annotation = match kind {
                Kind::Tag => TAG,
                Kind::Text => STRING,
                _ if is_plain(name) => "",
                _ => VALUE,
            };
            cell(&mut file.row, &format!("{name}{annotation}"));
        }
        file.end_row()?;
        file.columns = Some(columns);
        Ok(file)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn finish(self) -> W {
        self.out
    }

    pub(super) fn write(&mut self, all: &[Readings<'_>]) -> io::Result<()> {
        let columns = self.columns.take();
        for readings in all {
            match &columns {
                Some(columns) => self.write_csv(columns, readings)?,
                None => self.write_ndjson(readings)?,
            }
        }
        self.columns = columns;
        Ok(())
    }

    fn write_ndjson(&mut self, readings: &Readings<'_>) -> io::Result<()> {
        let mut head = b"{\"sensor_id\":".to_vec();
        serde_json::to_writer(&mut head, &**readings.sensor_id)?;
        head.extend_from_slice(b",\"ts\":\"");
        let mut tail = b"}".to_vec();
        if !readings.tags.is_empty() {
            tail.extend_from_slice(b",\"tags\":");
            serde_json::to_writer(&mut tail, readings.tags)?;
        }
        tail.push(b'}');
        let fields = readings.decoded.fields().map(|(name, values)| {
            let mut key = serde_json::to_vec(name)?;
            key.push(b':');
            Ok::<_, io::Error>((key, values))
        });
        let mut fields = fields.collect::<io::Result<Vec<_>>>()?;
        for ts_ms in readings.decoded.times() {
            self.row.extend_from_slice(&head);
            self.dates.write(&mut self.row, *ts_ms);
            self.row.extend_from_slice(b"\",\"values\":{");
            let mut is_first = true;
            for (key, values) in &mut fields {
                let Some(value) = values.next().flatten() else {
                    continue;
                };
                if !std::mem::take(&mut is_first) {
                    self.row.push(b',');
                }
                self.row.extend_from_slice(key);
                serde_json::to_writer(&mut self.row, &value)?;
            }
            self.row.extend_from_slice(&tail);
            self.end_row()?;
        }
        Ok(())
    }

    fn write_csv(&mut self, columns: &[Column], readings: &Readings<'_>) -> io::Result<()> {
        let mut head = vec![];
        cell(&mut head, readings.sensor_id);
        head.push(b',');
        let tag = |name: &str| readings.tags.get(name).map_or("", String::as_str);
        let mut columns: Vec<_> = columns
            .iter()
            .map(|(kind, name)| match kind {
                Kind::Tag => (*kind, tag(name), None),
                _ => (*kind, "", readings.decoded.field(name)),
            })
            .collect();
        for ts_ms in readings.decoded.times() {
            self.row.extend_from_slice(&head);
            self.dates.write(&mut self.row, *ts_ms);
            for (kind, tag, values) in &mut columns {
                self.row.push(b',');
                let value = values.as_mut().and_then(Iterator::next).flatten();
                match (kind, value) {
                    (Kind::Tag, _) => cell(&mut self.row, tag),
                    (Kind::Text, Some(ValueRef::Str(text))) => {
                        match text.is_empty() || text.starts_with('\\') {
                            true => cell(&mut self.row, &format!("\\{text}")),
                            false => cell(&mut self.row, text),
                        }
                    }
                    (Kind::Text, _) | (_, None | Some(ValueRef::Str(_))) => {}
                    (_, Some(value)) => serde_json::to_writer(&mut self.row, &value)?,
                }
            }
            self.end_row()?;
        }
        Ok(())
    }

    fn end_row(&mut self) -> io::Result<()> {
        self.row.push(b'\n');
        self.bytes += self.row.len() as u64;
        let written = self.out.write_all(&self.row);
        self.row.clear();
        written
    }
}

/// Appends a cell of CSV, in quotes if it needs them.
fn cell(out: &mut Vec<u8>, text: &str) {
    if !text.contains([',', '"', '\n', '\r']) {
        return out.extend_from_slice(text.as_bytes());
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}

/// Writes times as RFC 3339 in UTC, and remembers the date of the last one.
#[derive(Default)]
struct Dates {
    day: Option<i64>,
    date: String,
}

impl Dates {
    fn write(&mut self, out: &mut Vec<u8>, ts_ms: i64) {
        let day = ts_ms.div_euclid(DAY_MS);
        if self.day != Some(day) {
            let date = DateTime::from_timestamp_millis(ts_ms).unwrap_or_default();
            self.date = date.format("%Y-%m-%dT").to_string();
            self.day = Some(day);
        }
        let mut rest = ts_ms.rem_euclid(DAY_MS) as u32;
        out.extend_from_slice(self.date.as_bytes());
        for (unit_ms, digits, end) in [
            (3_600_000, 2, b':'),
            (60_000, 2, b':'),
            (1000, 2, b'.'),
            (1, 3, b'Z'),
        ] {
            let n = rest / unit_ms;
            rest %= unit_ms;
            if digits == 3 {
                out.push(b'0' + (n / 100) as u8);
            }
            out.extend_from_slice(&[b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8, end]);
        }
    }
}
