//! Rows of CSV as readings in the native format, by a mapping of columns.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, NaiveDate, NaiveDateTime};
use chrono_tz::Tz;
use clap::Args;
use csv::ByteRecord;
use serde_json::{Map, Value};

use super::csv_reader::{Limited, io_error, not_closed, reader};
use super::lines::Lines;
use super::source::{BOM, Input, SourceError};
use super::{LocalReject, Record, Records};
use decode::time;

// What a header may say about its column, as `hourbucket export` writes it: an annotation behind the
// name, as in InfluxDB's extended annotated CSV.

/// The column has a tag.
pub(in crate::cli) const TAG: &str = "|tag";
/// The column has texts, whatever they look like; a backslash in front of one is not part of it.
pub(in crate::cli) const STRING: &str = "|string";
/// The column has values as other columns, but its name could be mistaken.
pub(in crate::cli) const VALUE: &str = "|value";

/// Texts of a cell without a value, in lower case.
const NO_VALUE: [&str; 10] = [
    "",
    "null",
    "nan",
    "na",
    "n/a",
    "none",
    "nil",
    "unavailable",
    "unknown",
    "\\n",
];
const SENSOR_NAMES: [&str; 4] = ["sensor_id", "sensor", "device_id", "device"];
const TIME_NAMES: [&str; 5] = ["ts", "time", "timestamp", "datetime", "date"];

/// The name without its annotation, and the annotation; empty if it has none.
fn split_annotation(name: &str) -> (&str, &'static str) {
    for annotation in [TAG, STRING, VALUE] {
        if let Some(name) = name.strip_suffix(annotation) {
            return (name, annotation);
        }
    }
    (name, "")
}

/// Whether a field needs no annotation.
pub(in crate::cli) fn is_plain(name: &str) -> bool {
    !name.contains('|') && name == name.trim() && !matches!(name, "" | "sensor_id" | "ts")
}

/// Which column is what. A column is its name, or its number from 1.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "CSV")]
pub(super) struct CsvArgs {
    /// The separator of columns: one character, or tab [default: a comma; for .tsv a tab]
    #[arg(long, value_name = "CHAR")]
    delimiter: Option<String>,
    /// The first row is data; columns have numbers only, and --value needs names (COLUMN=NAME)
    #[arg(long)]
    no_header: bool,
    /// Lines before the header
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_lines: u64,
    /// The column of the sensor id [default: sensor_id, sensor, device_id or device]
    #[arg(long, value_name = "COLUMN")]
    sensor: Option<String>,
    /// The column of the time; repeated (date and time), they are joined by a space [default: ts,
    /// time, timestamp, datetime or date]
    #[arg(long, value_name = "COLUMN")]
    time: Vec<String>,
    /// How the time is written, such as '%d.%m.%Y %H:%M:%S' [default: RFC 3339 and its variants, or
    /// a number]
    #[arg(long, value_name = "FORMAT")]
    time_format: Option<String>,
    /// The time zone of times without an offset, such as Europe/Berlin [default: limits.zone of the
    /// service]
    #[arg(long, value_name = "ZONE", value_parser = zone)]
    zone: Option<Tz>,
    /// A column of values, and its field if it is not the column's name; can be repeated [default:
    /// all other columns]
    #[arg(long = "value", value_name = "COLUMN[=FIELD]")]
    values: Vec<String>,
    /// For one value per row: the column with the name of the field; --value is then the column of
    /// its value
    #[arg(long = "field", value_name = "COLUMN", requires = "values")]
    field: Option<String>,
    /// A column of tags; can be repeated
    #[arg(long = "tag", value_name = "COLUMN[=TAG]")]
    tags: Vec<String>,
    /// Numbers are written 1.234,5
    #[arg(long)]
    decimal_comma: bool,
    /// The file is in ISO 8859-1, not UTF-8
    #[arg(long)]
    latin1: bool,
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected an IANA time zone such as Europe/Berlin")]
struct InvalidZone;

fn zone(name: &str) -> Result<Tz, InvalidZone> {
    name.parse().map_err(|_| InvalidZone)
}

/// Why the mapping does not fit the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum MappingError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{0}")]
    Csv(#[from] io::Error),
    #[error("--delimiter: expected one ASCII character, or tab")]
    Delimiter,
    #[error("there is no column {column} ({option}); the header has: {columns}{hint}")]
    Column {
        option: &'static str,
        column: String,
        columns: String,
        hint: &'static str,
    },
    #[error(
        "the column of the {what} is not known; name it with {option}; the header has: \
         {columns}{hint}"
    )]
    Unknown {
        what: &'static str,
        option: &'static str,
        columns: String,
        hint: &'static str,
    },
    #[error(
        "the name of column {number} ({name}) is not UTF-8; is the file in ISO 8859-1 (--latin1)?"
    )]
    NameNotUtf8 { number: usize, name: String },
    #[error(
        "columns {} and {} have the same name, {name}; rename one, or use numbers \
         (--no-header, with the header among --skip-lines)", numbers.0, numbers.1
    )]
    NameTwice {
        name: String,
        numbers: (usize, usize),
    },
    #[error("--time-format without an offset (%z) needs --zone")]
    Zone,
    #[error("with --field, expected one --value: the column of the value")]
    LongValue,
}

/// Columns by index.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    columns: usize,
    sensor: Option<usize>,
    time: Vec<usize>,
    /// Column and field.
    values: Vec<(usize, String)>,
    field: Option<usize>,
    tags: Vec<(usize, String)>,
    /// Columns of texts.
    texts: Vec<(usize, String)>,
    args: CsvArgs,
}

/// The rows of a file.
pub(super) struct Rows {
    reader: csv::Reader<Limited>,
    taken: Arc<AtomicU64>,
    base: (u64, u64),
    mapping: Mapping,
    record: ByteRecord,
}

impl CsvArgs {
    fn delimiter(&self, file: Option<&Path>) -> Result<u8, MappingError> {
        let is_tsv = file.is_some_and(|path| path.to_string_lossy().contains(".tsv"));
        match self.delimiter.as_deref() {
            None if is_tsv => Ok(b'\t'),
            None => Ok(b','),
            Some("tab" | "\\t" | "\t") => Ok(b'\t'),
            Some(text) if text.len() == 1 && text.is_ascii() && !text.contains(['"', '\n']) => {
                Ok(text.as_bytes()[0])
            }
            Some(_) => Err(MappingError::Delimiter),
        }
    }

    fn text<'t>(&self, bytes: &'t [u8]) -> Option<Cow<'t, str>> {
        if self.latin1 {
            return Some(bytes.iter().map(|b| char::from(*b)).collect());
        }
        std::str::from_utf8(bytes).ok().map(Cow::Borrowed)
    }
}

/// Opens a file at `start` (offset and lines before it; the zero offset is its beginning) and reads
/// its header. `has_sensor`: the sensor is given in another way.
pub(super) fn open(
    input: &Input,
    start: (u64, u64),
    args: &CsvArgs,
    has_sensor: bool,
) -> Result<Rows, MappingError> {
    let delimiter = args.delimiter(input.path())?;
    let mut head = Lines::new(input.open(0, false)?, 0, None);
    head.skip(args.skip_lines)?;
    let mut base = head.position();
    let (mut header, _) = reader(input.open(base.0, false)?, delimiter);
    let mut record = ByteRecord::new();
    let has_first = header.read_byte_record(&mut record).map_err(io_error)?;
    if has_first && header.get_ref().is_within_quotes() {
        return Err(not_closed(base.1 + 1).into());
    }
    let names: Vec<String> = match args.no_header {
        true => (1..=record.len()).map(|n| n.to_string()).collect(),
        false => names(&record, args)?,
    };
    let mapping = mapping(&names, args, has_sensor)?;
    if !args.no_header {
        let position = header.position();
        base = (base.0 + position.byte(), base.1 + position.line() - 1);
    }
    let base = if start.0 > 0 { start } else { base };
    let (reader, taken) = reader(input.open(base.0, true)?, delimiter);
    // A file without rows after its header begins with a byte order mark at most.
    Ok(Rows {
        reader,
        taken,
        base,
        mapping,
        record,
    })
}

/// The names of the columns as the header has them. A column without a name is not stored.
fn names(header: &ByteRecord, args: &CsvArgs) -> Result<Vec<String>, MappingError> {
    let mut names: Vec<String> = Vec::with_capacity(header.len());
    for (at, bytes) in header.iter().enumerate() {
        let Some(text) = args.text(bytes) else {
            return Err(MappingError::NameNotUtf8 {
                number: at + 1,
                name: String::from_utf8_lossy(bytes).trim().to_owned(),
            });
        };
        let name = match split_annotation(&text) {
            (_, "") => text.trim().to_owned(),
            _ => text.into_owned(),
        };
        let same = names.iter().position(|n| *n == name && !n.is_empty());
        if let Some(first) = same {
            return Err(MappingError::NameTwice {
                name,
                numbers: (first + 1, at + 1),
            });
        }
        names.push(name);
    }
    Ok(names)
}

/// The names of the columns.
struct Header<'a> {
    names: &'a [String],
}

impl Header<'_> {
    fn columns(&self) -> String {
        self.names.join(", ")
    }

    fn hint(&self) -> &'static str {
        match self.names {
            [only] if only.contains(';') => "; add --delimiter ';'",
            [only] if only.contains('\t') => "; add --delimiter tab",
            _ => "",
        }
    }

    fn find(&self, option: &'static str, column: &str) -> Result<usize, MappingError> {
        let by_number = || {
            column
                .parse()
                .ok()
                .filter(|n| (1..=self.names.len()).contains(n))
                .map(|n: usize| n - 1)
        };
        self.names
            .iter()
            .position(|name| name == column)
            .or_else(by_number)
            .ok_or_else(|| MappingError::Column {
                option,
                column: column.to_owned(),
                columns: self.columns(),
                hint: self.hint(),
            })
    }

    /// The column with one of these names, which need no option.
    fn usual(
        &self,
        known: &[&str],
        what: &'static str,
        option: &'static str,
    ) -> Result<usize, MappingError> {
        let found = known.iter().find_map(|usual| {
            self.names
                .iter()
                .position(|name| name.eq_ignore_ascii_case(usual))
        });
        found.ok_or_else(|| MappingError::Unknown {
            what,
            option,
            columns: self.columns(),
            hint: self.hint(),
        })
    }

    /// The columns of an option (`COLUMN` or `COLUMN=NAME`), each with its name.
    fn named(
        &self,
        option: &'static str,
        list: &[String],
    ) -> Result<Vec<(usize, String)>, MappingError> {
        let one = |spec: &String| {
            let (column, name) = match (self.find(option, spec), spec.rsplit_once('=')) {
                (Err(_), Some((column, name))) => (self.find(option, column)?, name.to_owned()),
                (found, _) => (found?, spec.clone()),
            };
            Ok((
                column,
                if name == (column + 1).to_string() {
                    self.names[column].clone()
                } else {
                    name
                },
            ))
        };
        list.iter().map(one).collect()
    }
}

fn mapping(names: &[String], args: &CsvArgs, has_sensor: bool) -> Result<Mapping, MappingError> {
    let header = Header { names };
    let sensor = match &args.sensor {
        Some(column) => Some(header.find("--sensor", column)?),
        None if has_sensor => None,
        None => Some(header.usual(&SENSOR_NAMES, "sensor id", "--sensor or --sensor-id")?),
    };
    let mut time: Vec<usize> = args
        .time
        .iter()
        .map(|column| header.find("--time", column))
        .collect::<Result<_, _>>()?;
    if time.is_empty() {
        time.push(header.usual(&TIME_NAMES, "time", "--time")?);
    }
    let mut tags = header.named("--tag", &args.tags)?;
    let mut texts = vec![];
    let mut values = header.named("--value", &args.values)?;
    let field = args
        .field
        .as_ref()
        .map(|column| header.find("--field", column))
        .transpose()?;
    if field.is_some() && values.len() != 1 {
        return Err(MappingError::LongValue);
    }
    if values.is_empty() {
        let other = |i: &usize| {
            Some(*i) != sensor
                && !time.contains(i)
                && !tags.iter().any(|(t, _)| t == i)
                && !names[*i].is_empty()
        };
        let others: Vec<usize> = (0..names.len()).filter(other).collect();
        for i in others {
            let (name, annotation) = split_annotation(&names[i]);
            let columns = match annotation {
                TAG => &mut tags,
                STRING => &mut texts,
                _ => &mut values,
            };
            columns.push((i, name.to_owned()));
        }
    }
    let has_offset = args
        .time_format
        .as_ref()
        .is_none_or(|f| ["%z", "%:z", "%#z", "%s"].iter().any(|o| f.contains(o)));
    if !has_offset && args.zone.is_none() {
        return Err(MappingError::Zone);
    }
    Ok(Mapping {
        columns: names.len(),
        sensor,
        time,
        values,
        field,
        tags,
        texts,
        args: args.clone(),
    })
}

impl Rows {
    /// The offset and the number of lines before the next row.
    fn position(&self) -> (u64, u64) {
        let at = self.reader.position();
        (self.base.0 + at.byte(), self.base.1 + at.line() - 1)
    }
}

impl Records for Rows {
    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<Record>> {
        let before = loop {
            let before = self.position();
            self.taken.store(0, Ordering::Relaxed);
            let read = self
                .reader
                .read_byte_record(&mut self.record)
                .map_err(io_error)
                .map_err(|error| {
                    let line = before.1 + 1;
                    io::Error::new(error.kind(), format!("line {line}: {error}"))
                })?;
            if !read {
                return Ok(None);
            }
            if self.record.as_slice() != b"\r" {
                break before;
            }
        };
        let line = self.base.1 + self.record.position().map_or(0, csv::Position::line);
        if self.reader.get_ref().is_within_quotes() {
            return Err(not_closed(before.1 + 1));
        }
        let end = if self.reader.get_ref().lacks_end() {
            before
        } else {
            self.position()
        };
        let reject = match self.mapping.reading(&self.record) {
            Ok(reading) => {
                out.extend_from_slice(Value::Object(reading).to_string().as_bytes());
                out.push(b'\n');
                None
            }
            Err(reject) => Some(reject),
        };
        Ok(Some(Record { line, end, reject }))
    }
}

impl Mapping {
    fn reading(&self, row: &ByteRecord) -> Result<Map<String, Value>, LocalReject> {
        if row.len() != self.columns {
            let detail = format!(
                "the row has {} columns, the header {}",
                row.len(),
                self.columns
            );
            return Err(LocalReject {
                reason: "wrong_columns",
                detail,
            });
        }
        let mut reading = Map::new();
        if let Some(sensor) = self.sensor {
            reading.insert("sensor_id".into(), self.cell(row, sensor)?.into());
        }
        self.time(row, &mut reading)?;
        let mut values = Map::new();
        for (column, name) in &self.values {
            let name = match self.field {
                Some(field) => self.cell(row, field)?,
                None => name.clone(),
            };
            if let Some(value) = self.value(&self.cell(row, *column)?) {
                values.insert(name, value);
            }
        }
        for (column, name) in &self.texts {
            let text = self.text(row, *column)?;
            if !text.is_empty() {
                let text = text.strip_prefix('\\').unwrap_or(&text);
                values.insert(name.clone(), text.into());
            }
        }
        reading.insert("values".into(), values.into());
        let mut tags = Map::new();
        for (column, name) in &self.tags {
            let text = self.cell(row, *column)?;
            if !text.is_empty() {
                tags.insert(name.clone(), text.into());
            }
        }
        if !tags.is_empty() {
            reading.insert("tags".into(), tags.into());
        }
        Ok(reading)
    }

    fn cell(&self, row: &ByteRecord, column: usize) -> Result<String, LocalReject> {
        Ok(self.text(row, column)?.trim().to_owned())
    }

    /// With spaces around it.
    fn text<'r>(&self, row: &'r ByteRecord, column: usize) -> Result<Cow<'r, str>, LocalReject> {
        let bytes = row.get(column).unwrap_or_default();
        // Joined files have one in their midst.
        let bytes = match column {
            0 => bytes.strip_prefix(BOM).unwrap_or(bytes),
            _ => bytes,
        };
        self.args.text(bytes).ok_or_else(|| LocalReject {
            reason: "invalid_utf8",
            detail: format!(
                "column {} is not UTF-8; is the file in ISO 8859-1 (--latin1)?",
                column + 1
            ),
        })
    }

    /// Adds the time, converted if the command line says how.
    fn time(&self, row: &ByteRecord, reading: &mut Map<String, Value>) -> Result<(), LocalReject> {
        let parts: Vec<String> = self
            .time
            .iter()
            .map(|column| self.cell(row, *column))
            .collect::<Result<_, _>>()?;
        let text = parts.join(" ").trim().to_owned();
        if text.is_empty() {
            return Err(LocalReject {
                reason: "missing_timestamp",
                detail: "the row has no time".into(),
            });
        }
        let ms = match (&self.args.time_format, self.args.zone) {
            (None, Some(zone)) => time::parse_in(&text, zone),
            (None, None) => None,
            (Some(format), zone) => match formatted(&text, format, zone) {
                Some(ms) => Some(ms),
                None => {
                    let detail =
                        format!("the time {text:?} is not written as --time-format {format:?}");
                    return Err(LocalReject {
                        reason: "bad_timestamp",
                        detail,
                    });
                }
            },
        };
        match ms {
            Some(ms) => {
                reading.insert("ts".into(), ms.into());
                reading.insert("ts_unit".into(), "ms".into());
            }
            // The service reads it by its own rules.
            None => {
                reading.insert("ts".into(), text.into());
            }
        }
        Ok(())
    }

    /// The value of a cell; `None` if it is empty or a word such as `NaN`.
    fn value(&self, text: &str) -> Option<Value> {
        if NO_VALUE.contains(&text.to_ascii_lowercase().as_str()) {
            return None;
        }
        match text {
            "true" | "True" | "TRUE" => return Some(true.into()),
            "false" | "False" | "FALSE" => return Some(false.into()),
            _ => {}
        }
        let number = match self.args.decimal_comma {
            true => with_decimal_point(text),
            false => text.to_owned(),
        };
        let is_number = number
            .bytes()
            .all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        if !is_number {
            return Some(text.into());
        }
        let integer = number.parse::<i64>().ok().map(Value::from);
        let double = || {
            number
                .parse::<f64>()
                .ok()
                .filter(|v| v.is_finite())
                .map(Value::from)
        };
        Some(integer.or_else(double).unwrap_or_else(|| text.into()))
    }
}

/// A number with a decimal comma, in the usual form: 1.234,5 and 1.234 become 1234.5 and 1234. A
/// point that cannot separate thousands (1.5, 0.123) remains a decimal point.
fn with_decimal_point(text: &str) -> String {
    let mut groups = text.trim_start_matches(['+', '-']).split('.');
    let first = groups.next().unwrap_or_default();
    let separates_thousands = matches!(first.len(), 1..=3)
        && !first.starts_with('0')
        && groups.all(|group| group.len() == 3 && group.bytes().all(|b| b.is_ascii_digit()));
    if text.contains(',') || separates_thousands {
        return text.replace('.', "").replace(',', ".");
    }
    text.to_owned()
}

/// Milliseconds since 1970 of a time in a format of chrono.
fn formatted(text: &str, format: &str, zone: Option<Tz>) -> Option<i64> {
    if let Ok(time) = DateTime::parse_from_str(text, format) {
        return Some(time.timestamp_millis());
    }
    let local = NaiveDateTime::parse_from_str(text, format).or_else(|_| {
        NaiveDate::parse_from_str(text, format).map(|date| date.and_time(chrono::NaiveTime::MIN))
    });
    let local_ms = local.ok()?.and_utc().timestamp_millis();
    match zone {
        Some(zone) => time::in_zone(local_ms, zone),
        // %s: seconds since 1970.
        None => Some(local_ms),
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
