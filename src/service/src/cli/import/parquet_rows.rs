//! Rows of the Parquet files that `hourbucket export` writes, as readings in the native format.
//!
//! The metadata of the file say what each column is ([`KEY`]). A row group is read a few rows at a time,
//! from all columns; so memory is a page of each column.

use std::collections::BTreeMap;
use std::io::{self, Error, ErrorKind};

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde::Serialize;

use super::source::{Input, SourceError};
use super::{Record, Records};
use crate::cli::export::{KEY, Kind};

/// Rows that are read together.
const ROWS_AT_ONCE: usize = 256;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParquetFault {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(
        "Parquet cannot be read from standard input, because it begins at its end; name a file"
    )]
    Standard,
    #[error("{0}")]
    Parquet(#[from] ParquetError),
    #[error(
        "the file is not one of `hourbucket export`; convert it, such as with DuckDB: COPY (SELECT … \
         AS sensor_id, … AS ts, … FROM 'file.parquet') TO 'file.csv'"
    )]
    Foreign,
}

/// The rows of a file.
pub(super) struct ParquetRows {
    file: SerializedFileReader<std::fs::File>,
    pub(super) rows: u64,
    /// By name: the columns of each kind.
    fields: Vec<(Vec<u8>, BTreeMap<Kind, usize>)>,
    tags: Vec<(Vec<u8>, usize)>,
    /// The next row group, and the columns of the open one.
    group: usize,
    columns: Vec<Column>,
    /// Rows before the next one, in the file and in the open group.
    row: u64,
    left: u64,
    /// Of the rows that were read together.
    buffered: usize,
}

/// A column of the open row group.
struct Column {
    reader: ColumnReader,
    is_optional: bool,
    /// Whether each row that was read has a value.
    levels: Vec<i16>,
    values: Values,
    /// The place of the next row in `levels`, and that of the next value.
    next: (usize, usize),
}

enum Values {
    Texts(Vec<ByteArray>),
    Doubles(Vec<f64>),
    Ints(Vec<i64>),
    Bools(Vec<bool>),
}

/// A value of a row.
#[derive(Serialize)]
#[serde(untagged)]
enum Cell<'c> {
    Text(&'c str),
    Double(f64),
    Int(i64),
    Bool(bool),
}

/// Opens a file behind so many rows.
pub(super) fn open(input: &Input, rows_before: u64) -> Result<ParquetRows, ParquetFault> {
    let file = input.file().ok_or(ParquetFault::Standard)?.clone_file()?;
    let file = SerializedFileReader::new(file)?;
    let metadata = file.metadata();
    let described = metadata.file_metadata().key_value_metadata();
    let described = described
        .and_then(|pairs| pairs.iter().find(|pair| pair.key == KEY)?.value.as_deref())
        .and_then(|json| serde_json::from_str::<Vec<(Kind, String)>>(json).ok())
        .filter(|columns| {
            columns.len() + 2 == metadata.file_metadata().schema_descr().num_columns()
        })
        .ok_or(ParquetFault::Foreign)?;
    let mut fields: BTreeMap<String, BTreeMap<Kind, usize>> = BTreeMap::new();
    let mut tags = vec![];
    for (at, (kind, name)) in described.into_iter().enumerate() {
        match kind {
            Kind::Tag => tags.push((key(&name), at + 2)),
            _ => drop(fields.entry(name).or_default().insert(kind, at + 2)),
        }
    }
    let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or_default();
    let mut opened = ParquetRows {
        rows,
        fields: fields
            .into_iter()
            .map(|(name, of)| (key(&name), of))
            .collect(),
        tags,
        group: 0,
        columns: vec![],
        row: 0,
        left: 0,
        buffered: 0,
        file,
    };
    opened.skip(rows_before)?;
    Ok(opened)
}

/// A name as the key of a member.
fn key(name: &str) -> Vec<u8> {
    let mut key = serde_json::Value::from(name).to_string().into_bytes();
    key.push(b':');
    key
}

impl ParquetRows {
    fn skip(&mut self, rows: u64) -> Result<(), ParquetError> {
        while self.row < rows && self.open_group()? {
            let skipped = self.left.min(rows - self.row);
            if skipped < self.left {
                for column in &mut self.columns {
                    column.skip(skipped as usize)?;
                }
            }
            self.row += skipped;
            self.left -= skipped;
        }
        Ok(())
    }

    /// Opens the next group with rows, if the open one has none left; `false` at the end.
    fn open_group(&mut self) -> Result<bool, ParquetError> {
        while self.left == 0 {
            if self.group == self.file.num_row_groups() {
                return Ok(false);
            }
            let group = self.file.get_row_group(self.group)?;
            self.group += 1;
            self.left = u64::try_from(group.metadata().num_rows()).unwrap_or_default();
            self.buffered = 0;
            let column = |at| {
                let descr = group.metadata().column(at).column_descr();
                Column::new(group.get_column_reader(at)?, descr.max_def_level() > 0)
            };
            let columns = (0..group.num_columns()).map(column);
            self.columns = columns.collect::<Result<_, ParquetError>>()?;
        }
        Ok(true)
    }

    /// Appends the next row as a line.
    fn append(&mut self, out: &mut Vec<u8>) -> Result<(), ParquetError> {
        if self.buffered == 0 {
            self.buffered = ROWS_AT_ONCE.min(self.left as usize);
            for column in &mut self.columns {
                column.read_rows(self.buffered)?;
            }
        }
        self.buffered -= 1;
        self.left -= 1;
        self.row += 1;
        let mut row: Vec<Option<Cell<'_>>> = Vec::with_capacity(self.columns.len());
        for column in &mut self.columns {
            row.push(column.next()?);
        }
        let (Some(sensor_id), Some(Cell::Int(ts))) = (&row[0], &row[1]) else {
            return Err(damaged("a row lacks its sensor or its time"));
        };
        out.extend_from_slice(b"{\"sensor_id\":");
        json(out, sensor_id)?;
        out.extend_from_slice(format!(",\"ts\":{ts},\"ts_unit\":\"ms\",\"values\":{{").as_bytes());
        let values = self.fields.iter().filter_map(|(key, columns)| {
            // An integer is also among the numbers.
            let of = |kind| row[*columns.get(&kind)?].as_ref();
            let kinds = [Kind::Int, Kind::Number, Kind::Text, Kind::Bool];
            Some((key, kinds.into_iter().find_map(of)?))
        });
        members(out, values)?;
        let tags = self.tags.iter();
        let mut tags = tags
            .filter_map(|(key, at)| Some((key, row[*at].as_ref()?)))
            .peekable();
        if tags.peek().is_some() {
            out.extend_from_slice(b"},\"tags\":{");
            members(out, tags)?;
        }
        out.extend_from_slice(b"}}\n");
        Ok(())
    }
}

fn members<'m>(
    out: &mut Vec<u8>,
    members: impl Iterator<Item = (&'m Vec<u8>, &'m Cell<'m>)>,
) -> Result<(), ParquetError> {
    for (n, (key, cell)) in members.enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend_from_slice(key);
        json(out, cell)?;
    }
    Ok(())
}

fn json(out: &mut Vec<u8>, cell: &Cell<'_>) -> Result<(), ParquetError> {
    serde_json::to_writer(out, cell).map_err(|error| ParquetError::External(Box::new(error)))
}

fn damaged(text: &str) -> ParquetError {
    ParquetError::General(text.to_owned())
}

impl Column {
    fn new(reader: ColumnReader, is_optional: bool) -> Result<Column, ParquetError> {
        let values = match &reader {
            ColumnReader::ByteArrayColumnReader(_) => Values::Texts(vec![]),
            ColumnReader::DoubleColumnReader(_) => Values::Doubles(vec![]),
            ColumnReader::Int64ColumnReader(_) => Values::Ints(vec![]),
            ColumnReader::BoolColumnReader(_) => Values::Bools(vec![]),
            _ => {
                return Err(damaged(
                    "a column has a type that `hourbucket export` does not write",
                ));
            }
        };
        Ok(Column {
            reader,
            is_optional,
            levels: vec![],
            values,
            next: (0, 0),
        })
    }

    fn skip(&mut self, rows: usize) -> Result<(), ParquetError> {
        match &mut self.reader {
            ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows),
            _ => Ok(0),
        }?;
        Ok(())
    }

    /// Reads the next rows, in place of the last ones.
    fn read_rows(&mut self, rows: usize) -> Result<(), ParquetError> {
        self.next = (0, 0);
        self.levels.clear();
        let levels = &mut self.levels;
        let read = match (&mut self.reader, &mut self.values) {
            (ColumnReader::ByteArrayColumnReader(reader), Values::Texts(values)) => {
                read_values(reader, rows, levels, values)
            }
            (ColumnReader::DoubleColumnReader(reader), Values::Doubles(values)) => {
                read_values(reader, rows, levels, values)
            }
            (ColumnReader::Int64ColumnReader(reader), Values::Ints(values)) => {
                read_values(reader, rows, levels, values)
            }
            (ColumnReader::BoolColumnReader(reader), Values::Bools(values)) => {
                read_values(reader, rows, levels, values)
            }
            _ => Ok(0),
        }?;
        if !self.is_optional {
            self.levels.resize(rows, 1);
        }
        match read == rows {
            true => Ok(()),
            false => Err(damaged("a column has fewer rows than its row group")),
        }
    }

    fn next(&mut self) -> Result<Option<Cell<'_>>, ParquetError> {
        let (row, value) = self.next;
        let has_value = self.levels.get(row).is_some_and(|level| *level > 0);
        self.next = (row + 1, value + usize::from(has_value));
        if !has_value {
            return Ok(None);
        }
        let cell = match &self.values {
            Values::Texts(values) => match values.get(value) {
                Some(text) => Some(Cell::Text(text.as_utf8()?)),
                None => None,
            },
            Values::Doubles(values) => values.get(value).map(|v| Cell::Double(*v)),
            Values::Ints(values) => values.get(value).map(|v| Cell::Int(*v)),
            Values::Bools(values) => values.get(value).map(|v| Cell::Bool(*v)),
        };
        Ok(cell)
    }
}

fn read_values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    levels: &mut Vec<i16>,
    values: &mut Vec<T::T>,
) -> Result<usize, ParquetError> {
    values.clear();
    Ok(reader.read_records(rows, Some(levels), None, values)?.0)
}

impl Records for ParquetRows {
    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<Record>> {
        let mut next = || {
            let has_next = self.open_group()?;
            if has_next {
                self.append(out)?;
            }
            Ok(has_next)
        };
        let has_next =
            next().map_err(|error: ParquetError| Error::new(ErrorKind::InvalidData, error))?;
        Ok(has_next.then_some(Record {
            line: self.row,
            end: (self.row, self.row),
            reject: None,
        }))
    }
}
