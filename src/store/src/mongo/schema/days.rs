//! The collections of days: marks, the daily rollup with its view, and columns ([`super::columns`]).
//! The zone of the days is recorded once:
//!
//! ```text
//! hourbucket_meta: { _id: "rollup", zone: "Europe/Berlin" }
//! ```

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use crate::mongo::schema::collections::{Ttl, summary_of_field, validated, view};
use crate::mongo::schema::columns;
use crate::mongo::setup::{SchemaError, Setup};
use model::collections::{COLUMNS, DAY_HOURS, DAY_SUMMARIES, DAYS, META, PENDING_DAYS};
use model::{Span, Zone};

/// The settings of days that a database depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollupSchema {
    /// `rollup.zone`
    pub zone: Zone,
    /// With `rollup.days`: `rollup.retention`.
    pub days: Option<Kept>,
    /// With `columns.enabled`: `columns.retention`.
    pub columns: Option<Kept>,
}

/// How long days are kept; `None`: forever.
pub type Kept = Option<Duration>;

/// The id of the document.
const ID: &str = "rollup";
/// The longest day; the TTL index is on the start of the day.
const DAY_MAX_S: i64 = 25 * 60 * 60;

/// How many seconds after its start a day expires.
pub(super) fn expire_s(kept: Kept) -> Option<i64> {
    let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    kept.map(|d| {
        let seconds = seconds(d).saturating_add(DAY_MAX_S);
        seconds.min(i64::from(i32::MAX))
    })
}

/// Creates missing objects, and updates different ones. Returns one line per change.
///
/// # Errors
/// The first step that failed, or that the database has days of another zone.
pub(crate) async fn prepare(
    setup: &Setup<'_>,
    rollup: RollupSchema,
    span: Span,
) -> Result<Vec<String>, SchemaError> {
    let mut done = vec![];
    record_zone(setup, rollup.zone).await?;
    let found = setup.list(&[DAYS, PENDING_DAYS, DAY_SUMMARIES]).await?;
    done.extend(setup.create_missing(&found, PENDING_DAYS, &doc! {}).await?);
    let key = doc! { "sensor_id": 1 };
    setup
        .create_index(PENDING_DAYS, doc! { "key": key, "name": "sensor" })
        .await?;
    if let Some(kept) = rollup.days {
        done.extend(validated(setup, &found, DAYS, validator()).await?);
        let key = doc! { "sensor_id": 1, "day": 1 };
        setup
            .create_index(DAYS, doc! { "key": key, "name": "sensor_day" })
            .await?;
        let ttl = Ttl {
            collection: DAYS,
            field: "day",
            name: "day_ttl",
            only: None,
        };
        done.extend(ttl.set(setup, expire_s(kept)).await?);
        done.extend(view(setup, &found, DAY_SUMMARIES, DAYS, vec![averages()]).await?);
    }
    if let Some(kept) = rollup.columns {
        done.extend(columns::prepare(setup, kept, span).await?);
    }
    Ok(done)
}

/// Refuses a database with days of another zone. Changes nothing.
///
/// # Errors
/// What does not match, and what to do.
pub(crate) async fn check(setup: &Setup<'_>, zone: Zone) -> Result<(), SchemaError> {
    let find = doc! {
        "find": META, "filter": { "_id": ID }, "limit": 1, "readConcern": { "level": "majority" },
    };
    let step = "reading the zone of the days (hourbucket_meta)";
    match setup.first(find).await.map_err(|f| f.at(step))? {
        Some(recorded) => fits(&recorded, zone, setup, step),
        None => Ok(()),
    }
}

/// Records the zone, or refuses another one.
async fn record_zone(setup: &Setup<'_>, zone: Zone) -> Result<(), SchemaError> {
    let step = "recording the zone of the days (hourbucket_meta)";
    let (recorded, _) = setup
        .find_or_insert(ID, doc! { "zone": zone.name() })
        .await
        .map_err(|f| f.at(step))?;
    fits(&recorded, zone, setup, step)
}

/// Days of two zones overlap.
fn fits(recorded: &Document, zone: Zone, setup: &Setup<'_>, step: &str) -> Result<(), SchemaError> {
    let found = recorded.get_str("zone").unwrap_or_default();
    if found == zone.name() {
        return Ok(());
    }
    let detail = format!(
        "database {} has days of the zone \"{found}\", but rollup.zone is \"{}\": set rollup.zone \
         = \"{found}\"; or stop every instance, drop {DAYS}, {COLUMNS}, {DAY_HOURS} and \
         {PENDING_DAYS}, remove the document {{ _id: \"rollup\" }} from {META}, start again, and \
         fill the past with `hourbucket init --rollup-from DATE` and `--columns-from DATE`",
        setup.db.name(),
        zone.name()
    );
    Err(SchemaError::permanent(step, detail))
}

/// Adds the average to each field, and more to those of the whole day. Accepts any stored content, like
/// the view of hours.
fn averages() -> Document {
    let average = doc! { "$cond": [
        { "$gt": ["$$f.v.count", 0] }, { "$divide": ["$$f.v.sum", "$$f.v.count"] }, Bson::Null,
    ] };
    let field = doc! { "k": "$$f.k", "v": {
        "min": "$$f.v.min", "max": "$$f.v.max", "sum": "$$f.v.sum", "count": "$$f.v.count", "avg": average,
    } };
    let fields = doc! { "$objectToArray": { "$ifNull": ["$summary", {}] } };
    doc! { "$project": {
        "_id": 0, "sensor_id": 1, "day": 1, "tags": 1, "count": 1, "first_ts": 1, "last_ts": 1,
        "summary": { "$arrayToObject": { "$map": { "input": fields, "as": "f", "in": field } } },
        "summary_truncated": 1, "fields": rich_fields(),
    } }
}

/// What is a quotient of two entries of a field: absent where nothing is counted or covered.
pub(super) fn quotients(field: &str) -> Document {
    let of = |name: &str| format!("{field}.{name}");
    let ratio = |a: &str, b: &str| doc! { "$divide": [of(a), of(b)] };
    let of_some = |number: &str, value: Document| {
        doc! { "$cond": [{ "$gt": [of(number), 0] }, value, "$$REMOVE"] }
    };
    doc! {
        "stddev": of_some("count", doc! { "$sqrt": ratio("sum_sq", "count") }),
        "time_weighted_avg": of_some("covered_ms", ratio("integral", "covered_ms")),
    }
}

/// The fields of the whole day with what is a quotient of two of their entries; absent if the day has none.
fn rich_fields() -> Document {
    let field = doc! { "k": "$$f.k", "v": { "$mergeObjects": ["$$f.v", quotients("$$f.v")] } };
    let fields =
        doc! { "$map": { "input": { "$objectToArray": "$fields" }, "as": "f", "in": field } };
    let is_there = doc! { "$eq": [{ "$type": "$fields" }, "object"] };
    doc! { "$cond": [is_there, { "$arrayToObject": fields }, "$$REMOVE"] }
}

fn validator() -> Document {
    let number = doc! { "bsonType": ["int", "long"], "minimum": 0 };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": ["_id", "schema_version", "sensor_id", "day", "count", "first_ts", "last_ts", "summary"],
        "properties": {
            "_id": { "bsonType": "object", "required": ["sensor_id", "day"] },
            "schema_version": { "bsonType": ["int", "long"], "minimum": 1 },
            "sensor_id": { "bsonType": "string", "minLength": 1 },
            "day": { "bsonType": "date" },
            "tags": { "bsonType": "object" },
            "count": number,
            "first_ts": { "bsonType": "date" },
            "last_ts": { "bsonType": "date" },
            "summary": { "bsonType": "object", "additionalProperties": summary_of_field() },
            "summary_truncated": { "bsonType": "bool" },
            "fields": { "bsonType": "object", "additionalProperties": { "bsonType": "object" } },
        },
    } }
}
