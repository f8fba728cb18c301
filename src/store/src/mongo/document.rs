//! How stored pages, readings and measurements are read from BSON.

use mongodb::action::Find;
use mongodb::bson::{DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};

use crate::LoadedPage;
use model::{ReadingKey, ValueRef};

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

/// The filter for the measurements of some sensors in `from_ms..to_ms`.
pub(super) fn measurements_of(sensors: &[&str], from_ms: i64, to_ms: i64) -> Document {
    let from = DateTime::from_millis(from_ms);
    let to = DateTime::from_millis(to_ms);
    doc! { "meta.sensor_id": { "$in": sensors }, "ts": { "$gte": from, "$lt": to } }
}

/// A collection that is read on the primary.
pub(super) fn from_primary(concern: ReadConcern) -> CollectionOptions {
    CollectionOptions::builder()
        .read_concern(concern)
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build()
}

/// For reads that a write depends on: data that a majority has, from the primary.
pub(super) fn majority_from_primary(find: Find<'_, RawDocumentBuf>) -> Find<'_, RawDocumentBuf> {
    find.read_concern(ReadConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
}
