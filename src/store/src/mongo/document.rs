//! How stored pages, readings and measurements are read from BSON.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, DateTime, Document, RawBsonRef, RawDocument, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};

use crate::LoadedPage;
use crate::mongo::pack::SERIES;
use model::{FieldSummary, Number, ReadingKey, StorageMode, ValueRef};

/// Measurements per cursor batch: about 2 MiB, so that each batch arrives in time however many
/// there are.
pub(super) const MEASUREMENTS_PER_BATCH: u32 = 20_000;

/// The bytes of a page's summary, for a projection; 0 if it has none.
pub(super) fn summary_bytes() -> Document {
    doc! { "$bsonSize": { "$cond": [{ "$eq": [{ "$type": "$summary" }, "object"] }, "$summary", {}] } }
}

/// A page, as far as the projection has it.
pub(super) fn page_of(found: &RawDocument) -> LoadedPage {
    let number = |name: &str| found.get(name).ok().flatten().and_then(int).unwrap_or(0);
    let keys = match found.get_array("readings") {
        Ok(readings) => readings
            .into_iter()
            .filter_map(|r| key_of(r.ok()?.as_document()?))
            .collect(),
        Err(_) => vec![],
    };
    LoadedPage {
        count: number("count") as u32,
        sealed: found.get_bool("has_overflow").unwrap_or(false),
        first_ts_ms: found
            .get_datetime("first_ts")
            .map(|d| d.timestamp_millis())
            .unwrap_or(i64::MAX),
        last_ts_ms: found
            .get_datetime("last_ts")
            .map(|d| d.timestamp_millis())
            .unwrap_or(i64::MIN),
        bytes: number("bytes")
            .saturating_sub(number("summary_bytes"))
            .max(0) as u64,
        summary_bytes: number("summary_bytes") as u64,
        keys,
        readings_removed: found.get_bool("readings_removed").unwrap_or(false),
    }
}

/// The identity of a stored reading or measurement.
pub(super) fn key_of(reading: &RawDocument) -> Option<ReadingKey> {
    Some(ReadingKey::new(
        reading.get_datetime("ts").ok()?.timestamp_millis(),
        values(reading),
    ))
}

/// The values of a stored reading or measurement, by name.
pub(super) fn values(reading: &RawDocument) -> impl Iterator<Item = (&str, ValueRef<'_>)> {
    reading.into_iter().filter_map(|element| {
        let (name, value) = element.ok()?;
        Some((name.as_str(), value_of(value)?))
    })
}

/// A stored value; `None` for `ts`, `meta` and `_id`, and for a value that another program wrote:
/// hourbucket writes these kinds only.
pub(super) fn value_of(value: RawBsonRef<'_>) -> Option<ValueRef<'_>> {
    match value {
        RawBsonRef::Double(v) => Some(ValueRef::Double(v)),
        RawBsonRef::Int64(v) => Some(ValueRef::Int(v)),
        RawBsonRef::Int32(v) => Some(ValueRef::Int(i64::from(v))),
        RawBsonRef::Boolean(v) => Some(ValueRef::Bool(v)),
        RawBsonRef::String(v) => Some(ValueRef::Str(v)),
        _ => None,
    }
}

/// An integer of either width, or a whole double.
pub(super) fn int(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(v) => Some(i64::from(v)),
        RawBsonRef::Int64(v) => Some(v),
        RawBsonRef::Double(v) => Some(v as i64),
        _ => None,
    }
}

/// The same of a document's field.
pub(super) fn int_of(document: &Document, name: &str) -> Option<i64> {
    match document.get(name)? {
        Bson::Int32(v) => Some(i64::from(*v)),
        Bson::Int64(v) => Some(*v),
        Bson::Double(v) => Some(*v as i64),
        _ => None,
    }
}

/// The filter for the measurements of some sensors in `from_ms..to_ms`.
pub(super) fn measurements_of(sensors: &[&str], from_ms: i64, to_ms: i64) -> Document {
    doc! { "meta.sensor_id": { "$in": sensors }, "ts": between(from_ms, to_ms) }
}

/// Which measurements or pages begin in `from_ms..to_ms`.
pub(super) fn between(from_ms: i64, to_ms: i64) -> Document {
    doc! { "$gte": DateTime::from_millis(from_ms), "$lt": DateTime::from_millis(to_ms) }
}

/// The condition on a flag of a page, which is missing or `true`.
pub(super) fn is_set(value: bool) -> Bson {
    match value {
        true => Bson::Boolean(true),
        false => Bson::from(doc! { "$ne": true }),
    }
}

/// Where the readings of a bucket are, by one of its documents.
pub(super) fn storage_mode_of(found: &RawDocument) -> StorageMode {
    match found.get_str("storage") {
        Ok(SERIES) => StorageMode::TimeSeries,
        _ => StorageMode::Bucket,
    }
}

/// The summary of fields in a document. Integers stay integers.
pub(super) fn summary_document<'a>(
    fields: impl IntoIterator<Item = (&'a String, &'a FieldSummary)>,
) -> Document {
    let number = |n: Number| match n {
        Number::Int(v) => Bson::Int64(v),
        Number::Double(v) => Bson::Double(v),
    };
    let field = |(name, s): (&'a String, &'a FieldSummary)| {
        let count = i32::try_from(s.count).map_or(Bson::Int64(i64::from(s.count)), Bson::Int32);
        let of = doc! { "min": number(s.min), "max": number(s.max), "sum": number(s.sum), "count": count };
        (name.clone(), Bson::from(of))
    };
    fields.into_iter().map(field).collect()
}

/// The tags of a document.
pub(super) fn entries(tags: &RawDocument) -> BTreeMap<String, String> {
    let entry = |(name, value): (&mongodb::bson::raw::CStr, RawBsonRef<'_>)| {
        Some((name.as_str().to_owned(), value.as_str()?.to_owned()))
    };
    tags.iter()
        .filter_map(Result::ok)
        .filter_map(entry)
        .collect()
}

pub(super) fn tags_document(tags: &BTreeMap<String, String>) -> Document {
    tags.iter()
        .map(|(name, value)| (name.clone(), Bson::from(value)))
        .collect()
}

/// A collection that is read on the primary.
pub(super) fn from_primary(concern: ReadConcern) -> CollectionOptions {
    CollectionOptions::builder()
        .read_concern(concern)
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build()
}
