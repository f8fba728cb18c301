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
use crate::mongo::names::{BUCKETS, DEAD_LETTERS, READINGS, REMOVAL_INDEX, SUMMARIES, removal_key};
use crate::mongo::schema::detect::{META_FIELD, TIME_FIELD, fits};
use crate::mongo::schema::view::summaries_pipeline;
use crate::mongo::setup::{
    Failure, INDEX_NOT_FOUND, INDEX_OPTIONS_CONFLICT, Listing, NAMESPACE_EXISTS,
    NAMESPACE_NOT_FOUND, SchemaError, Setup,
};
use model::Span;

/// Retention periods in seconds; `None`: forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// Pages and summaries, after the end of their bucket.
    pub(crate) buckets_s: Option<i64>,
    /// Measurements, if they are removed before their summaries; the margin is included.
    pub(crate) measurements_s: Option<i64>,
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
    done.extend(
        ttl(
            setup,
            BUCKETS,
            "bucket_end",
            "bucket_end_ttl",
            keep.buckets_s,
            None,
        )
        .await?,
    );
    done.extend(removal_index(setup, keep.measurements_s.is_some()).await?);
    // Also if this run writes pages: measurements of an earlier mode are not kept longer than the
    // rest.
    if found.get(READINGS).is_some_and(|f| fits(f).is_ok()) {
        let key = doc! { format!("{META_FIELD}.sensor_id"): 1, TIME_FIELD: -1 };
        setup
            .create_index(READINGS, doc! { "key": key, "name": "sensor_reading" })
            .await?;
        done.extend(readings_retention(setup, &found, keep.readings_s(span)).await?);
    }
    if found.get(DEAD_LETTERS).is_none()
        && made(setup.create(DEAD_LETTERS, &doc! {}).await, DEAD_LETTERS)?
    {
        done.push(format!("created collection {DEAD_LETTERS}"));
    }
    done.extend(dead_letters(setup, keep.dead_letters_s).await?);
    done.extend(view(setup, &found, SUMMARIES, BUCKETS, summaries_pipeline()).await?);
    Ok(done)
}

/// Whether this process created the collection; another instance may have created it first.
pub(super) fn made(created: Result<(), Failure>, name: &str) -> Result<bool, SchemaError> {
    match created {
        Ok(()) => Ok(true),
        Err(Failure {
            code: Some(NAMESPACE_EXISTS),
            ..
        }) => Ok(false),
        Err(failure) => Err(failure.at(format!("creating collection {name}"))),
    }
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
    if found.get(name).is_none() && made(setup.create(name, &wanted).await, name)? {
        return Ok(Some(format!("created collection {name}")));
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

/// Creates, changes or drops the TTL index on `field` according to `seconds`, for the documents
/// `of` or all. Returns a line if this changed something.
pub(super) async fn ttl(
    setup: &Setup<'_>,
    collection: &str,
    field: &str,
    name: &str,
    seconds: Option<i64>,
    of: Option<Document>,
) -> Result<Option<String>, SchemaError> {
    let step = format!("setting the retention of {collection}");
    let Some(seconds) = seconds else {
        return match setup
            .change(doc! { "dropIndexes": collection, "index": name })
            .await
        {
            Ok(_) => Ok(Some(format!("{collection} is now kept for ever"))),
            Err(Failure {
                code: Some(INDEX_NOT_FOUND | NAMESPACE_NOT_FOUND),
                ..
            }) => Ok(None),
            Err(failure) => Err(failure.at(step)),
        };
    };
    let line = |to: i64| Some(format!("retention of {collection}: {to} s after {field}"));
    let mut index = doc! { "key": { field: 1 }, "name": name, "expireAfterSeconds": seconds };
    if let Some(of) = of {
        index.insert("partialFilterExpression", of);
    }
    match setup
        .change(doc! { "createIndexes": collection, "indexes": [index] })
        .await
    {
        Ok(reply) if reply.get("numIndexesBefore") == reply.get("numIndexesAfter") => Ok(None),
        Ok(_) => Ok(line(seconds)),
        Err(Failure {
            code: Some(INDEX_OPTIONS_CONFLICT),
            ..
        }) => {
            let index = doc! { "keyPattern": { field: 1 }, "expireAfterSeconds": seconds };
            setup
                .change(doc! { "collMod": collection, "index": index })
                .await
                .map_err(|f| f.at(step))?;
            Ok(line(seconds))
        }
        Err(failure) => Err(failure.at(step)),
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
    match setup
        .change(doc! { "dropIndexes": BUCKETS, "index": REMOVAL_INDEX })
        .await
    {
        Ok(_) => Ok(Some(format!(
            "dropped index {REMOVAL_INDEX} on {BUCKETS} (store.retention_readings is not set)"
        ))),
        Err(Failure {
            code: Some(INDEX_NOT_FOUND | NAMESPACE_NOT_FOUND),
            ..
        }) => Ok(None),
        Err(failure) => Err(failure.at(format!("dropping the index {REMOVAL_INDEX} of {BUCKETS}"))),
    }
}

/// The indexes of dead letters: one in the order of receipt, and a partial one with only those that
/// expire and can be evicted ([`crate::mongo::dead_letters`]). Earlier versions had one
/// index for both, with which dead letters with acknowledged readings expired too.
async fn dead_letters(setup: &Setup<'_>, seconds: i64) -> Result<Vec<String>, SchemaError> {
    const BEFORE: &str = "received_at_ttl";
    let step = format!("listing the indexes of {DEAD_LETTERS}");
    let found = setup
        .ask(doc! { "listIndexes": DEAD_LETTERS })
        .await
        .map_err(|f| f.at(step))?;
    let all = found
        .get_document("cursor")
        .and_then(|c| c.get_array("firstBatch"))
        .map(Vec::as_slice);
    let is_before = |index: &Bson| {
        index
            .as_document()
            .is_some_and(|i| i.get_str("name").is_ok_and(|name| name == BEFORE))
    };
    if all.unwrap_or_default().iter().any(is_before) {
        ttl(setup, DEAD_LETTERS, "received_at", BEFORE, None, None).await?;
    }
    let key = doc! { "received_at": 1, "_id": 1 };
    setup
        .create_index(DEAD_LETTERS, doc! { "key": key, "name": "letter_received" })
        .await?;
    let name = "sender_letters_ttl";
    let of = Some(of_senders());
    Ok(
        ttl(setup, DEAD_LETTERS, "received_at", name, Some(seconds), of)
            .await?
            .into_iter()
            .collect(),
    )
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
        },
    } }
}
