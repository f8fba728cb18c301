//! Reads whole stored buckets, however damaged, for `reconcile` and `convert`. Not used by ingest.
//! All reads are from the primary, with read concern majority or as a snapshot: what they return is
//! not rolled back.
//!
//! Memory: one bucket at a time, its readings in compact form (about 30 bytes each with two
//! numbers).

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::ReadConcern;
use mongodb::{Collection, Cursor};

use crate::maintain::{BucketMeasurements, MaintainError, Selection, StoredBucket, StoredPage};
use crate::mongo::connection::Connection;
use crate::mongo::detected::Detected;
use crate::mongo::document::{between, entries, from_primary, int, storage_mode_of, value_of};
use crate::mongo::error::describe;
use crate::mongo::pack::CONVERTED;
use crate::mongo::setup::{Listing, first_batch};
use model::collections::{BUCKETS, READINGS};
use model::{BucketKey, BucketStart, FieldSummary, Number, RowFlags, Rows, ValueRef};

/// Maximum values per reading that [`Rows`] can hold.
const VALUES_MAX: usize = 255;

/// Both collections with the options of the maintenance commands.
#[derive(Debug, Clone)]
pub(crate) struct Collections {
    pub(crate) buckets: Collection<RawDocumentBuf>,
    pub(crate) measurements: Collection<RawDocumentBuf>,
    /// `bucket.span` in milliseconds.
    pub(crate) span_ms: i64,
}

/// The state of the time-series collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MeasurementsFound {
    /// It does not exist, or it is not as hourbucket creates it.
    Absent,
    /// It exists; `expire_s`: its `expireAfterSeconds`.
    There { expire_s: Option<i64> },
}

/// Converts a driver error, prefixed with the failed step.
pub(crate) fn failed(what: &'static str) -> impl Fn(mongodb::error::Error) -> MaintainError {
    move |error| MaintainError::Server(format!("{what}: {}", describe(&error)))
}

/// Inspects the time-series collection, and how the server can read it, for commands that do not
/// prepare the database. Queries are possible afterwards.
pub(crate) async fn find_measurements(
    connection: &Connection,
    detected: &Detected,
) -> Result<MeasurementsFound, MaintainError> {
    let db = connection.db();
    let hello = db.run_command(doc! { "hello": 1 }).await;
    detected.note_server(&hello.map_err(failed("reading the topology"))?);
    let list = doc! { "listCollections": 1, "filter": { "name": READINGS } };
    let found = db.run_command(list).await;
    let found = Listing(first_batch(
        &found.map_err(failed("listing the collections"))?,
    ));
    let options = found.options(READINGS);
    let series = options.and_then(|o| o.get_document("timeseries").ok());
    let fields = series.map(|s| (s.get_str("timeField").ok(), s.get_str("metaField").ok()));
    let is_there = fields == Some((Some("ts"), Some("meta")));
    if is_there {
        detected.note_measurements();
    }
    // These commands begin no bucket.
    detected.choose(detected.storage_mode());
    if !is_there {
        return Ok(MeasurementsFound::Absent);
    }
    let expire = options.and_then(|o| o.get("expireAfterSeconds"));
    let expire_s = expire.and_then(|e| {
        e.as_i64()
            .or(e.as_i32().map(i64::from))
            .or(e.as_f64().map(|f| f as i64))
    });
    Ok(MeasurementsFound::There { expire_s })
}

pub(crate) fn selected(selection: &Selection) -> Document {
    let mut filter = doc! { "bucket_start": between(selection.from_ms, selection.to_ms) };
    if !selection.sensors.is_empty() {
        filter.insert("sensor_id", doc! { "$in": &selection.sensors });
    }
    filter
}

pub(crate) fn of_bucket(key: &BucketKey) -> Document {
    doc! { "sensor_id": &*key.sensor_id, "bucket_start": DateTime::from_millis(key.start.0) }
}

/// The filter for the measurements of one bucket.
pub(crate) fn measured_in(key: &BucketKey, end_ms: i64) -> Document {
    doc! { "meta.sensor_id": &*key.sensor_id, "ts": between(key.start.0, end_ms) }
}

pub(crate) fn page_id(key: &BucketKey, page: u32) -> Document {
    doc! { "sensor_id": &*key.sensor_id, "bucket_start": DateTime::from_millis(key.start.0), "page": page as i32 }
}

impl Collections {
    /// With the read and write concern of the maintenance commands.
    pub(crate) fn new(connection: &Connection, detected: &Detected) -> Collections {
        let mut majority = from_primary(ReadConcern::majority());
        majority.write_concern = Some(connection.options().write_concern.driver());
        Collections {
            buckets: connection.db().collection_with_options(BUCKETS, majority),
            measurements: detected.measurements(connection),
            span_ms: connection.span().ms(),
        }
    }

    /// Reads one bucket without its measurements. The pages are read from the last to the first. A
    /// page is sealed before the next one is created, so in this order a correctly written page is
    /// never seen unsealed if it has a successor.
    pub(crate) async fn read_documents(
        &self,
        key: &BucketKey,
    ) -> Result<StoredBucket, MaintainError> {
        let what = failed("reading a bucket");
        let mut cursor = self
            .buckets
            .find(of_bucket(key))
            .sort(doc! { "page": -1 })
            .await
            .map_err(&what)?;
        let mut bucket = self.empty(key.clone());
        while let Some(found) = cursor.try_next().await.map_err(&what)? {
            if let Some((_, end_ms, page)) = self.parse(&found) {
                bucket.end_ms = end_ms;
                bucket.pages.insert(0, page);
            }
        }
        Ok(bucket)
    }

    /// Reads one bucket and its measurements, in either storage mode. The documents first: they are
    /// written after their measurements, so a document never counts one that is missing here.
    pub(crate) async fn read_bucket(&self, key: &BucketKey) -> Result<StoredBucket, MaintainError> {
        let mut bucket = self.read_documents(key).await?;
        bucket.measured = Some(self.read_measurements(key, bucket.end_ms).await?);
        Ok(bucket)
    }

    fn empty(&self, key: BucketKey) -> StoredBucket {
        StoredBucket {
            end_ms: key.start.0 + self.span_ms,
            key,
            pages: vec![],
            measured: None,
        }
    }

    /// Reads the measurements of a bucket that ends then, ordered by time.
    pub(crate) async fn read_measurements(
        &self,
        key: &BucketKey,
        end_ms: i64,
    ) -> Result<BucketMeasurements, MaintainError> {
        let what = failed("reading measurements");
        let mut cursor = self
            .measurements
            .find(measured_in(key, end_ms))
            .sort(doc! { "ts": 1 })
            .await
            .map_err(&what)?;
        let mut measured = BucketMeasurements::default();
        while cursor.advance().await.map_err(&what)? {
            let found = cursor.current();
            if !push(&mut measured.rows, found, &["_id", "ts", "meta"]) {
                measured.unreadable += 1;
            }
            if let Ok(meta) = found.get_document("meta") {
                measured.tags = tags_of(meta);
            }
        }
        Ok(measured)
    }

    /// Streams all selected buckets, sensor by sensor in index order, without measurements.
    pub(crate) async fn stream(&self, selection: &Selection) -> Result<Stream<'_>, MaintainError> {
        let sort = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
        let cursor = self.buckets.find(selected(selection)).sort(sort).await;
        Ok(Stream {
            of: self,
            cursor: cursor.map_err(failed("reading the buckets"))?,
            next: None,
        })
    }

    /// Parses a document of `sensor_buckets` into its bucket, the bucket's end, and the page.
    /// `None` if its id is not one that hourbucket writes.
    pub(crate) fn parse(&self, found: &RawDocument) -> Option<(BucketKey, i64, StoredPage)> {
        let key = key_of(found)?;
        let number = |name: &str| found.get(name).ok().flatten().and_then(int);
        let time = |name: &str| found.get_datetime(name).ok().map(|d| d.timestamp_millis());
        let mut rows = Rows::default();
        let mut unreadable = 0;
        for element in found.get_array("readings").into_iter().flatten() {
            let reading = element.ok().and_then(|e| e.as_document());
            if !reading.is_some_and(|r| push(&mut rows, r, &["ts"])) {
                unreadable += 1;
            }
        }
        let page = StoredPage {
            page: u32::try_from(number("page")?).ok()?,
            storage_mode: storage_mode_of(found),
            count: number("count"),
            sealed: found.get_bool("has_overflow").unwrap_or(false),
            first_ts_ms: time("first_ts"),
            last_ts_ms: time("last_ts"),
            summary: found
                .get_document("summary")
                .map(summary_of)
                .unwrap_or_default(),
            tags: found.get_document("tags").map(entries).unwrap_or_default(),
            rows,
            unreadable,
            readings_removed: found.get_bool("readings_removed").unwrap_or(false),
            was_converted: found.get_bool(CONVERTED).unwrap_or(false),
        };
        let end_ms = time("bucket_end").unwrap_or(key.start.0 + self.span_ms);
        Some((key, end_ms, page))
    }
}

/// The bucket of a document of `sensor_buckets`, or of its projection.
pub(crate) fn key_of(found: &RawDocument) -> Option<BucketKey> {
    let sensor_id = found.get_str("sensor_id").ok()?.into();
    Some(BucketKey {
        sensor_id,
        start: BucketStart(found.get_datetime("bucket_start").ok()?.timestamp_millis()),
    })
}

pub(crate) struct Stream<'a> {
    of: &'a Collections,
    cursor: Cursor<RawDocumentBuf>,
    next: Option<(BucketKey, i64, StoredPage)>,
}

impl Stream<'_> {
    pub(crate) async fn next(&mut self) -> Result<Option<StoredBucket>, MaintainError> {
        let mut bucket: Option<StoredBucket> = self.next.take().map(|page| self.begin(page));
        while let Some(found) = self
            .cursor
            .try_next()
            .await
            .map_err(failed("reading the buckets"))?
        {
            let Some(page) = self.of.parse(&found) else {
                continue;
            };
            match bucket.as_mut() {
                None => bucket = Some(self.begin(page)),
                Some(open) if open.key == page.0 => open.pages.push(page.2),
                Some(_) => {
                    self.next = Some(page);
                    break;
                }
            }
        }
        Ok(bucket)
    }

    fn begin(&self, (key, end_ms, page): (BucketKey, i64, StoredPage)) -> StoredBucket {
        StoredBucket {
            end_ms,
            pages: vec![page],
            ..self.of.empty(key)
        }
    }
}

/// Adds a stored reading. Returns `false`, and adds nothing, for a document that hourbucket cannot
/// have written.
pub(crate) fn push(rows: &mut Rows, reading: &RawDocument, skip: &[&str]) -> bool {
    let Ok(ts) = reading.get_datetime("ts") else {
        return false;
    };
    let mut values = vec![];
    for element in reading {
        let Ok((name, value)) = element else {
            return false;
        };
        let name = name.as_str();
        if skip.contains(&name) {
            continue;
        }
        let Some(value) = value_of(value) else {
            return false;
        };
        values.push((name, value));
    }
    if values.len() > VALUES_MAX {
        return false;
    }
    rows.push_named(ts.timestamp_millis(), RowFlags::default(), &values);
    true
}

pub(crate) fn summary_of(summary: &RawDocument) -> BTreeMap<String, Option<FieldSummary>> {
    let num = |of: &RawDocument, name: &str| match of.get(name).ok()?? {
        RawBsonRef::Double(v) => Some(Number::Double(v)),
        RawBsonRef::Int64(v) => Some(Number::Int(v)),
        RawBsonRef::Int32(v) => Some(Number::Int(i64::from(v))),
        _ => None,
    };
    let field = |value: RawBsonRef<'_>| {
        let of = value.as_document()?;
        let count = u32::try_from(of.get("count").ok()?.and_then(int)?).ok()?;
        Some(FieldSummary {
            min: num(of, "min")?,
            max: num(of, "max")?,
            sum: num(of, "sum")?,
            count,
        })
    };
    summary
        .iter()
        .filter_map(Result::ok)
        .map(|(name, value)| (name.as_str().to_owned(), field(value)))
        .collect()
}

fn tags_of(meta: &RawDocument) -> BTreeMap<String, String> {
    meta.get_document("tags").map(entries).unwrap_or_default()
}

/// A value as BSON; integers stay integers.
pub(crate) fn value_bson(value: ValueRef<'_>) -> Bson {
    match value {
        ValueRef::Double(v) => Bson::Double(v),
        ValueRef::Int(v) => Bson::Int64(v),
        ValueRef::Bool(v) => Bson::Boolean(v),
        ValueRef::Str(v) => Bson::from(v),
    }
}
