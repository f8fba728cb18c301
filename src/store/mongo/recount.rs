//! A time-series bucket's summary, made anew from its measurements.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, DateTime, Document, RawDocument, doc};
use mongodb::error::Error;

use super::error::concern_error;
use super::load::{int, selection, values};
use super::pack::{BUCKETS, SCHEMA_VERSION, SERIES};
use super::series::Series;
use crate::model::{BucketKey, FieldSummary, Num, RowFlags, Rows, summary};

/// Where somebody was faster, it is done again, this often.
const TRIES_MAX: usize = 20;
/// Measurements added up at once.
const ROWS_MAX: usize = 10_000;
const DUPLICATE_KEY: i32 = 11000;

/// The filter for the measurements of some sensors in `from_ms..to_ms`.
pub(super) fn measurements_of(sensors: &[&str], from_ms: i64, to_ms: i64) -> Document {
    let (from, to) = (DateTime::from_millis(from_ms), DateTime::from_millis(to_ms));
    doc! { "meta.sensor_id": { "$in": sensors }, "ts": { "$gte": from, "$lt": to } }
}

/// All measurements of a bucket, added up.
#[derive(Default)]
struct Total {
    count: u32,
    first_ts_ms: i64,
    last_ts_ms: i64,
    fields: BTreeMap<String, FieldSummary>,
    /// Of the last one that has any.
    tags: Document,
}

impl Total {
    fn add(&mut self, rows: &Rows) {
        if rows.is_empty() {
            return;
        }
        let (first, last) = (rows.first_ts_ms(), rows.last_ts_ms());
        (self.first_ts_ms, self.last_ts_ms) = match self.count {
            0 => (first, last),
            _ => (self.first_ts_ms.min(first), self.last_ts_ms.max(last)),
        };
        self.count += rows.len() as u32;
        for (name, part) in summary::by_name(rows.fields(), &summary::summarise(rows)) {
            let merged = self.fields.get(&name).map_or(part, |sum| sum.merge(part));
            self.fields.insert(name, merged);
        }
    }

    /// The fields of the bucket's document that follow from its measurements.
    fn fields(&self) -> Document {
        let num = |n: Num| match n {
            Num::Int(v) => Bson::Int64(v),
            Num::Double(v) => Bson::Double(v),
        };
        let field = |(name, s): (&String, &FieldSummary)| {
            let of = doc! { "min": num(s.min), "max": num(s.max), "sum": num(s.sum), "count": s.count as i32 };
            (name.clone(), Bson::from(of))
        };
        doc! {
            "count": self.count as i32,
            "first_ts": DateTime::from_millis(self.first_ts_ms),
            "last_ts": DateTime::from_millis(self.last_ts_ms),
            "summary": self.fields.iter().map(field).collect::<Document>(),
        }
    }
}

/// Makes the summary anew, gated by the count that it had; returns how many measurements there are. Where there are none
/// nothing is changed: retention may have taken them and not yet the summary.
pub(super) async fn recount(series: &Series, bucket: &BucketKey) -> mongodb::error::Result<u32> {
    for _ in 0..TRIES_MAX {
        let before = head(series, bucket).await?;
        let total = add_up(series, bucket).await?;
        if total.count == 0 || set(series, bucket, before, &total).await? {
            return Ok(total.count);
        }
    }
    let text = format!("the summary of a bucket at {} changes faster than it is recounted", bucket.start.0);
    Err(Error::custom(text))
}

fn id(bucket: &BucketKey) -> Document {
    doc! { "sensor_id": &*bucket.sensor_id, "bucket_start": DateTime::from_millis(bucket.start.0), "page": 0 }
}

/// The count of the summary that is stored.
async fn head(series: &Series, bucket: &BucketKey) -> mongodb::error::Result<Option<i64>> {
    let filter = doc! { "_id": id(bucket), "sensor_id": &*bucket.sensor_id };
    let buckets = series.db.collection(BUCKETS);
    let mut found = selection(buckets.find(filter).projection(doc! { "count": 1, "storage": 1 })).await?;
    let Some(found) = found.try_next().await? else { return Ok(None) };
    if found.get_str("storage").is_ok_and(|s| s == SERIES) {
        return Ok(found.get("count").ok().flatten().and_then(int));
    }
    // Another instance, with another store.mode. A load finds the form and goes on in it.
    Err(Error::custom("the bucket holds pages, not measurements"))
}

async fn add_up(series: &Series, bucket: &BucketKey) -> mongodb::error::Result<Total> {
    let (from_ms, to_ms) = (bucket.start.0, series.options.span.end(bucket.start));
    let filter = measurements_of(&[&bucket.sensor_id], from_ms, to_ms);
    let mut cursor = selection(series.readings.find(filter)).await?;
    let (mut total, mut rows) = (Total::default(), Rows::default());
    while let Some(document) = cursor.try_next().await? {
        add_row(&mut rows, &document);
        if let Some(tags) = document.get_document("meta").ok().and_then(|m| m.get_document("tags").ok())
            && !tags.is_empty()
        {
            total.tags = tags.try_into().unwrap_or_default();
        }
        if rows.len() >= ROWS_MAX {
            total.add(&std::mem::take(&mut rows));
        }
    }
    total.add(&rows);
    Ok(total)
}

fn add_row(rows: &mut Rows, document: &RawDocument) {
    let Ok(ts) = document.get_datetime("ts") else { return };
    let values: Vec<_> = values(document).collect();
    rows.push_named(ts.timestamp_millis(), RowFlags::default(), &values);
}

/// Sets the summary; `false` where it is not what it was.
async fn set(series: &Series, bucket: &BucketKey, before: Option<i64>, total: &Total) -> mongodb::error::Result<bool> {
    let concern = series.options.document();
    let Some(count) = before else {
        let mut document = doc! {
            "_id": id(bucket),
            "schema_version": SCHEMA_VERSION,
            "sensor_id": &*bucket.sensor_id,
            "bucket_start": DateTime::from_millis(bucket.start.0),
            "bucket_end": DateTime::from_millis(series.options.span.end(bucket.start)),
            "page": 0,
            "tags": &total.tags,
            "storage": SERIES,
        };
        document.extend(total.fields());
        let insert = doc! { "insert": BUCKETS, "documents": [document], "writeConcern": concern };
        let reply = series.db.run_command(insert).await?;
        return done(&reply);
    };
    let filter = doc! {
        "_id": id(bucket), "sensor_id": &*bucket.sensor_id, "bucket_start": DateTime::from_millis(bucket.start.0),
        "count": count, "storage": SERIES,
    };
    let update = doc! { "q": filter, "u": { "$set": total.fields() }, "hint": "_id_" };
    let update = doc! { "update": BUCKETS, "updates": [update], "writeConcern": concern };
    done(&series.db.run_command(update).await?)
}

/// Whether a command of one statement did something; an error where nobody knows.
fn done(reply: &Document) -> mongodb::error::Result<bool> {
    if let Some(error) = concern_error(reply) {
        return Err(Error::custom(error));
    }
    let first = reply.get_array("writeErrors").ok().and_then(|e| e.first()).and_then(|e| e.as_document());
    match first {
        None => Ok(reply.get_i32("n").unwrap_or(0) > 0),
        Some(error) if error.get_i32("code").is_ok_and(|c| c == DUPLICATE_KEY) => Ok(false),
        Some(error) => Err(Error::custom(error.get_str("errmsg").unwrap_or("refused").to_owned())),
    }
}
