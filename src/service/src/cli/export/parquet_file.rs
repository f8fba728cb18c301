//! Writes Parquet: a row for each reading, a column for each field.
//!
//! `sensor_id` and `ts` are in every row, all other columns are optional. A tag has a column of texts.
//! All numbers of a field are one column of doubles, so that a query needs no other, whatever the
//! sensors send. `<field>_int` has those that were sent as integers, exactly: with it a reading comes
//! back as it was. A field with booleans or texts besides has `<field>_bool` and `<field>_text`. Which
//! column is of which field is in the metadata under [`KEY`].
//!
//! One group is a row group. Rows are ordered by sensor and time, so the statistics of a row group
//! tell a reader whether it has a sensor.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use model::ValueRef;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{
    SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter,
};
use parquet::schema::types::{ColumnPath, Type};

use super::group::{Column, Kind, Readings};

/// The key of the metadata, a JSON array: kind and name of each column behind the first two.
pub(in crate::cli) const KEY: &str = "hourbucket.columns";
/// The columns of every file.
pub(super) const SENSOR_ID: &str = "sensor_id";
pub(super) const TS: &str = "ts";

/// A file that is being written.
pub(super) struct ParquetFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// Definition levels.
    levels: Vec<i16>,
}

impl<W: Write + Send> ParquetFile<W> {
    pub(super) fn new(out: W, columns: &BTreeSet<Column>) -> Result<Self, ParquetError> {
        let columns: Vec<Column> = columns.iter().cloned().collect();
        let column = |(name, (kind, _)): (String, &Column)| {
            let (physical, logical) = match kind {
                Kind::Tag | Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Kind::Number => (Physical::DOUBLE, None),
                Kind::Int => (Physical::INT64, None),
                Kind::Bool => (Physical::BOOLEAN, None),
            };
            primitive(&name, physical, logical, Repetition::OPTIONAL)
        };
        let text = Some(LogicalType::String);
        let time = LogicalType::timestamp(true, TimeUnit::MILLIS);
        let mut fields = vec![
            primitive(SENSOR_ID, Physical::BYTE_ARRAY, text, Repetition::REQUIRED)?,
            primitive(TS, Physical::INT64, Some(time), Repetition::REQUIRED)?,
        ];
        for field in names(&columns).into_iter().zip(&columns).map(column) {
            fields.push(field?);
        }
        let schema = Type::group_type_builder("readings").with_fields(fields);
        let described: Vec<_> = columns.iter().map(|(kind, name)| (kind, &**name)).collect();
        let described = serde_json::to_string(&described)
            .map_err(|error| ParquetError::External(Box::new(error)))?;
        let sorted = |column_idx| SortingColumn {
            column_idx,
            descending: false,
            nulls_first: false,
        };
        let ts = ColumnPath::from(TS);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
            .set_column_dictionary_enabled(ts.clone(), false)
            .set_column_encoding(ts, Encoding::DELTA_BINARY_PACKED)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_sorting_columns(Some(vec![sorted(0), sorted(1)]))
            .set_created_by(concat!("hourbucket ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![KeyValue::new(KEY.to_owned(), described)]));
        let properties = Arc::new(properties.build());
        Ok(ParquetFile {
            writer: SerializedFileWriter::new(out, Arc::new(schema.build()?), properties)?,
            columns,
            levels: vec![],
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    pub(super) fn finish(self) -> Result<W, ParquetError> {
        self.writer.into_inner()
    }

    /// Writes a row group.
    pub(super) fn write(&mut self, all: &[Readings<'_>]) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        let mut ids = vec![];
        let mut ts: Vec<i64> = vec![];
        for readings in all {
            let times = readings.decoded.times();
            ts.extend(times);
            ids.resize(ts.len(), ByteArray::from(&**readings.sensor_id));
        }
        write_values::<ByteArrayType, _>(&mut group, &ids, None)?;
        write_values::<Int64Type, _>(&mut group, &ts, None)?;
        drop((ids, ts));
        for column in &self.columns {
            write_column(&mut group, column, all, &mut self.levels)?;
        }
        group.close()?;
        Ok(())
    }
}

fn primitive(
    name: &str,
    physical: Physical,
    logical: Option<LogicalType>,
    repetition: Repetition,
) -> Result<Arc<Type>, ParquetError> {
    let column = Type::primitive_type_builder(name, physical)
        .with_logical_type(logical)
        .with_repetition(repetition);
    Ok(Arc::new(column.build()?))
}

/// The names of the columns, of which no two differ only in case: DuckDB ignores it. A field's numbers
/// have its name, or else its texts, or else its booleans; the others get their kind behind it. A tag
/// has its name if no field has it.
pub(super) fn names(columns: &[Column]) -> Vec<String> {
    let mut names = vec![String::new(); columns.len()];
    let mut taken: BTreeSet<String> = [SENSOR_ID, TS].map(str::to_owned).into();
    let mut with_name: BTreeSet<&str> = BTreeSet::new();
    let mut take = |wanted: String, at: usize| {
        let mut name = wanted;
        while !taken.insert(name.to_lowercase()) {
            name.push('_');
        }
        names[at] = name;
    };
    let mut others = vec![];
    // In the order of the kinds, so numbers come first.
    for (at, (kind, name)) in columns.iter().enumerate() {
        let is_first = !matches!(kind, Kind::Tag | Kind::Int) && with_name.insert(name);
        match is_first {
            true => take(name.to_string(), at),
            false => others.push((at, kind, name)),
        }
    }
    for (at, kind, name) in others {
        match kind {
            Kind::Tag if !with_name.contains(&**name) => take(name.to_string(), at),
            Kind::Tag => take(format!("{name}_tag"), at),
            Kind::Int => take(format!("{name}_int"), at),
            Kind::Text => take(format!("{name}_text"), at),
            Kind::Number | Kind::Bool => take(format!("{name}_bool"), at),
        }
    }
    names
}

type Group<'w, W> = SerializedRowGroupWriter<'w, W>;

fn next_column<'g, W: Write + Send>(
    group: &'g mut Group<'_, W>,
) -> Result<SerializedColumnWriter<'g>, ParquetError> {
    let next = group.next_column()?;
    next.ok_or_else(|| ParquetError::General("the schema has fewer columns".to_owned()))
}

fn write_values<T: DataType, W: Write + Send>(
    group: &mut Group<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = next_column(group)?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

fn write_column<W: Write + Send>(
    group: &mut Group<'_, W>,
    (kind, name): &Column,
    all: &[Readings<'_>],
    levels: &mut Vec<i16>,
) -> Result<(), ParquetError> {
    levels.clear();
    match kind {
        Kind::Tag => {
            let mut values = vec![];
            for readings in all {
                let n = readings.decoded.times().len();
                let tag = readings.tags.get(&**name);
                levels.resize(levels.len() + n, i16::from(tag.is_some()));
                if let Some(tag) = tag {
                    values.resize(values.len() + n, ByteArray::from(&**tag));
                }
            }
            write_values::<ByteArrayType, _>(group, &values, Some(levels))
        }
        Kind::Number => {
            let number = |value: ValueRef<'_>| Some(value.num()?.as_f64());
            let values = collect(name, all, levels, number);
            write_values::<DoubleType, _>(group, &values, Some(levels))
        }
        Kind::Int => {
            let values = collect(name, all, levels, |value| match value {
                ValueRef::Int(v) => Some(v),
                _ => None,
            });
            write_values::<Int64Type, _>(group, &values, Some(levels))
        }
        Kind::Bool => {
            let values = collect(name, all, levels, |value| match value {
                ValueRef::Bool(v) => Some(v),
                _ => None,
            });
            write_values::<BoolType, _>(group, &values, Some(levels))
        }
        Kind::Text => {
            // Many readings have the text of the reading before: they share its bytes.
            let mut held: Option<(String, ByteArray)> = None;
            let values = collect(name, all, levels, |value| match (value, &held) {
                (ValueRef::Str(text), Some((same, bytes))) if text == same => Some(bytes.clone()),
                (ValueRef::Str(text), _) => {
                    let bytes = ByteArray::from(text);
                    held = Some((text.to_owned(), bytes.clone()));
                    Some(bytes)
                }
                _ => None,
            });
            write_values::<ByteArrayType, _>(group, &values, Some(levels))
        }
    }
}

/// The values of a field that `take` wants, and a level for each reading: whether it has one.
fn collect<T>(
    name: &str,
    all: &[Readings<'_>],
    levels: &mut Vec<i16>,
    mut take: impl FnMut(ValueRef<'_>) -> Option<T>,
) -> Vec<T> {
    let mut values = vec![];
    for readings in all {
        match readings.decoded.field(name) {
            Some(field) => {
                for value in field {
                    let value = value.and_then(&mut take);
                    levels.push(i16::from(value.is_some()));
                    values.extend(value);
                }
            }
            None => levels.resize(levels.len() + readings.decoded.times().len(), 0),
        }
    }
    values
}
