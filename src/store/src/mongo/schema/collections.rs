//! Creates the collections with their validator, indexes, retention and view if they are missing,
//! and updates them if they differ. Every step can be repeated, also by several instances
//! concurrently.
//!
//! Objects that are already correct are not changed, not even to the same value. `collMod` takes a
//! lock and needs a privilege (`dbAdmin`) that the service's own user does not need once `init` has
//! been run.
//!
//! **Retention.** Pages and summaries expire `store.retention` after the end of their bucket (TTL
//! on `bucket_end`). Measurements expire by their own time, which may be a whole span before that
//! end, so they are kept a span longer. So a summary never counts expired measurements, and
//! `reconcile` finds no difference while an hour expires. With `store.retention_readings` they
//! expire before their summaries ([`crate::retention`]).

use mongodb::bson::{Bson, Document, doc};

use crate::mongo::dead_letters::of_senders;
use crate::mongo::schema::detect::{META_FIELD, TIME_FIELD, fits};
use crate::mongo::schema::view::summaries_pipeline;
use crate::mongo::setup::{
    Failure, INDEX_OPTIONS_CONFLICT, Listing, NAMESPACE_EXISTS, SchemaError, Setup,
};
use crate::mongo::write::remove_readings::{REMOVAL_INDEX, removal_key};
use model::Span;
use model::collections::{BUCKETS, DEAD_LETTERS, READINGS, SUMMARIES};

/// Retention periods in seconds; `None`: forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// Pages and summaries, after the end of their bucket.
    pub(crate) buckets_s: Option<i64>,
    /// Measurements, if they are removed before their summaries; the margin is included.
    pub(crate) measurements_s: Option<i64>,
    /// Whether pages lose their readings before their summaries.
    pub(crate) removes_readings: bool,
    /// Dead letters, after their receipt.
    pub(crate) dead_letters_s: i64,
}

/// The server refuses an `expireAfterSeconds` that reaches back before 1970 (only in time-series
/// collections: InvalidOptions 72, seen on 6.0.5). 47 years never do.
const READINGS_S_MAX: i64 = 1_500_000_000;

impl Retention {
    /// Retention of measurements, after their own time (see above). A longer one than the server
    /// supports becomes unlimited, never shorter.
    pub(crate) fn readings_s(self, span: Span) -> Option<i64> {
        let kept_s = self.measurements_s.into_iter().chain(self.buckets_s).min();
        kept_s
            .map(|s| s.saturating_add(span.ms() / 1000))
            .filter(|s| *s <= READINGS_S_MAX)
    }
}

/// Prepares everything except the time-series collection itself, which [`super::detect`] creates.
/// Returns one line per object that was created or changed.
///
/// # Errors
/// The first step that failed.
pub(crate) async fn prepare(
    setup: &Setup<'_>,
    span: Span,
    keep: Retention,
) -> Result<Vec<String>, SchemaError> {
    let found = setup
        .list(&[BUCKETS, READINGS, DEAD_LETTERS, SUMMARIES])
        .await?;
    let mut done = vec![];
    done.extend(validated(setup, &found, BUCKETS, validator()).await?);
    let key = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
    setup
        .create_index(BUCKETS, doc! { "key": key, "name": "sensor_bucket_page" })
        .await?;
    let ttl = Ttl {
        collection: BUCKETS,
        field: "bucket_end",
        name: "bucket_end_ttl",
        only: None,
    };
    done.extend(ttl.set(setup, keep.buckets_s).await?);
    done.extend(removal_index(setup, keep.removes_readings).await?);
    // Also if this run writes pages: measurements of an earlier mode are not kept longer than the
    // rest.
    if found.get(READINGS).is_some_and(|f| fits(f).is_ok()) {
        let key = doc! { format!("{META_FIELD}.sensor_id"): 1, TIME_FIELD: -1 };
        setup
            .create_index(READINGS, doc! { "key": key, "name": "sensor_reading" })
            .await?;
        done.extend(readings_retention(setup, &found, keep.readings_s(span)).await?);
    }
    done.extend(setup.create_missing(&found, DEAD_LETTERS, &doc! {}).await?);
    // One index in the order of receipt, and a partial one with only those that expire and can be
    // evicted ([`crate::mongo::dead_letters`]).
    let key = doc! { "received_at": 1, "_id": 1 };
    setup
        .create_index(DEAD_LETTERS, doc! { "key": key, "name": "letter_received" })
        .await?;
    let ttl = Ttl {
        collection: DEAD_LETTERS,
        field: "received_at",
        name: "sender_letters_ttl",
        only: Some(of_senders()),
    };
    done.extend(ttl.set(setup, Some(keep.dead_letters_s)).await?);
    done.extend(view(setup, &found, SUMMARIES, BUCKETS, summaries_pipeline()).await?);
    Ok(done)
}

/// Creates a collection with its validator, or updates the validator. Returns a line if this
/// changed something.
pub(super) async fn validated(
    setup: &Setup<'_>,
    found: &Listing,
    name: &str,
    validator: Document,
) -> Result<Option<String>, SchemaError> {
    let wanted = doc! { "validator": validator, "validationLevel": "moderate" };
    if let Some(created) = setup.create_missing(found, name, &wanted).await? {
        return Ok(Some(created));
    }
    let is_as = |(option, value): (&String, &Bson)| {
        found
            .options(name)
            .is_some_and(|o| o.get(option) == Some(value))
    };
    if wanted.iter().all(is_as) {
        return Ok(None);
    }
    let mut update = doc! { "collMod": name };
    update.extend(wanted);
    let step = format!("updating the validator of {name} (collMod)");
    setup.change(update).await.map_err(|f| f.at(step))?;
    Ok(Some(format!("updated the validator of {name}")))
}

/// A TTL index.
pub(super) struct Ttl {
    pub(super) collection: &'static str,
    /// The time that the retention begins with.
    pub(super) field: &'static str,
    pub(super) name: &'static str,
    /// Only these documents; `None`: all.
    pub(super) only: Option<Document>,
}

impl Ttl {
    /// Creates, changes or drops it (`None`). Returns a line if this changed something.
    pub(super) async fn set(
        self,
        setup: &Setup<'_>,
        seconds: Option<i64>,
    ) -> Result<Option<String>, SchemaError> {
        let Ttl {
            collection,
            field,
            name,
            only,
        } = self;
        let step = format!("setting the retention of {collection}");
        let Some(seconds) = seconds else {
            let dropped = setup.drop_index(collection, name).await;
            let dropped = dropped.map_err(|f| f.at(step))?;
            return Ok(dropped.then(|| format!("{collection} is now kept for ever")));
        };
        let mut index = doc! { "key": { field: 1 }, "name": name, "expireAfterSeconds": seconds };
        if let Some(only) = only {
            index.insert("partialFilterExpression", only);
        }
        let create = doc! { "createIndexes": collection, "indexes": [index] };
        match setup.change(create).await {
            Ok(reply) if reply.get("numIndexesBefore") == reply.get("numIndexesAfter") => {
                return Ok(None);
            }
            Ok(_) => {}
            Err(Failure {
                code: Some(INDEX_OPTIONS_CONFLICT),
                ..
            }) => {
                let index = doc! { "keyPattern": { field: 1 }, "expireAfterSeconds": seconds };
                let change = doc! { "collMod": collection, "index": index };
                setup.change(change).await.map_err(|f| f.at(step))?;
            }
            Err(failure) => return Err(failure.at(step)),
        }
        Ok(Some(format!(
            "retention of {collection}: {seconds} s after {field}"
        )))
    }
}

/// Creates or drops the index that finds the oldest pages with readings. Documents of time-series
/// buckets have a `storage`, so the removal never reads them again, however many there are.
async fn removal_index(setup: &Setup<'_>, wanted: bool) -> Result<Option<String>, SchemaError> {
    if wanted {
        let index_of_pages = doc! { "key": removal_key(), "name": REMOVAL_INDEX };
        setup.create_index(BUCKETS, index_of_pages).await?;
        return Ok(None);
    }
    let dropped = setup.drop_index(BUCKETS, REMOVAL_INDEX).await;
    let step = || format!("dropping the index {REMOVAL_INDEX} of {BUCKETS}");
    Ok(dropped.map_err(|f| f.at(step()))?.then(|| {
        format!("dropped index {REMOVAL_INDEX} on {BUCKETS} (store.retention_readings is not set)")
    }))
}

/// Sets the retention of measurements. Returns a line if this changed something.
async fn readings_retention(
    setup: &Setup<'_>,
    found: &Listing,
    seconds: Option<i64>,
) -> Result<Option<String>, SchemaError> {
    let now = match found
        .options(READINGS)
        .and_then(|o| o.get("expireAfterSeconds"))
    {
        Some(Bson::Int32(s)) => Some(i64::from(*s)),
        Some(Bson::Int64(s)) => Some(*s),
        Some(Bson::Double(s)) => Some(*s as i64),
        _ => None,
    };
    if now == seconds {
        return Ok(None);
    }
    let wanted = seconds.map_or_else(|| Bson::from("off"), Bson::from);
    let change = doc! { "collMod": READINGS, "expireAfterSeconds": wanted };
    setup
        .change(change)
        .await
        .map_err(|f| f.at(format!("setting the retention of {READINGS} (collMod)")))?;
    Ok(Some(match seconds {
        Some(s) => format!("retention of {READINGS}: {s} s after {TIME_FIELD}"),
        None => format!("{READINGS} is now kept for ever"),
    }))
}

/// Creates or updates the view. Returns a line if this changed something.
pub(super) async fn view(
    setup: &Setup<'_>,
    found: &Listing,
    name: &str,
    on: &str,
    pipeline: Vec<Document>,
) -> Result<Option<String>, SchemaError> {
    let wanted = doc! { "viewOn": on, "pipeline": pipeline };
    let Some(options) = found.options(name) else {
        let mut create = doc! { "create": name };
        create.extend(wanted);
        return match setup.change(create).await {
            Ok(_) => Ok(Some(format!("created view {name}"))),
            Err(Failure {
                code: Some(NAMESPACE_EXISTS),
                ..
            }) => Ok(None),
            Err(failure) => Err(failure.at(format!("creating the view {name}"))),
        };
    };
    if wanted
        .iter()
        .all(|(key, value)| options.get(key) == Some(value))
    {
        return Ok(None);
    }
    let mut change = doc! { "collMod": name };
    change.extend(wanted);
    setup
        .change(change)
        .await
        .map_err(|f| f.at(format!("updating the view {name} (collMod)")))?;
    Ok(Some(format!("updated view {name}")))
}

/// The schema of a field's summary.
pub(super) fn summary_of_field() -> Document {
    let number = doc! { "bsonType": ["int", "long"], "minimum": 0 };
    doc! {
        "bsonType": "object",
        "required": ["min", "max", "sum", "count"],
        "properties": {
            "min": { "bsonType": "number" }, "max": { "bsonType": "number" },
            "sum": { "bsonType": "number" }, "count": number,
        },
    }
}

/// The schema of a page (docs/design.md, section 3). `moderate`: invalid existing documents can
/// still be updated.
fn validator() -> Document {
    let number = doc! { "bsonType": ["int", "long"], "minimum": 0 };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": [
            "_id", "schema_version", "sensor_id", "bucket_start", "bucket_end", "page", "count", "first_ts", "last_ts",
            "summary",
        ],
        "properties": {
            "_id": {
                "bsonType": "object",
                "required": ["sensor_id", "bucket_start", "page"],
            },
            "schema_version": { "bsonType": ["int", "long"], "minimum": 1 },
            "sensor_id": { "bsonType": "string", "minLength": 1 },
            "bucket_start": { "bsonType": "date" },
            "bucket_end": { "bsonType": "date" },
            "page": number.clone(),
            "tags": { "bsonType": "object" },
            "count": number,
            "first_ts": { "bsonType": "date" },
            "last_ts": { "bsonType": "date" },
            "summary": { "bsonType": "object", "additionalProperties": summary_of_field() },
            // Elements are not validated: checking a thousand readings again at every append would
            // cost more than the append.
            "readings": { "bsonType": "array" },
            "has_overflow": { "bsonType": "bool" },
            // The readings were removed (store.retention_readings).
            "readings_removed": { "bsonType": "bool" },
            // Absent: the readings are in this document. Present: they are measurements in
            // sensor_readings.
            "storage": { "enum": ["timeseries"] },
            // The measurements were pages before (hourbucket convert).
            "converted": { "bsonType": "bool" },
        },
    } }
}
