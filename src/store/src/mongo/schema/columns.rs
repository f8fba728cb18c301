//! The collections of days in columns, and the view `sensor_rich_hours`: a row for each hour of
//! `sensor_day_hours` that has a value.
//!
//! The view takes the arrays of a day apart. A filter on `sensor_id`, `day` or tags is applied to the
//! days before, with their index; one on `bucket_start` to the rows.

use mongodb::bson::{Bson, Document, doc};

use crate::mongo::schema::collections::{Ttl, validated, view};
use crate::mongo::schema::days::{Kept, expire_s, quotients};
use crate::mongo::setup::{SchemaError, Setup};
use model::Span;
use model::collections::{COLUMNS, DAY_HOURS, RICH_HOURS};

/// Creates missing objects, and updates different ones. Returns one line per change.
///
/// # Errors
/// The first step that failed.
pub(crate) async fn prepare(
    setup: &Setup<'_>,
    kept: Kept,
    span: Span,
) -> Result<Vec<String>, SchemaError> {
    let found = setup.list(&[COLUMNS, DAY_HOURS, RICH_HOURS]).await?;
    let mut done = vec![];
    done.extend(validated(setup, &found, COLUMNS, columns_validator()).await?);
    done.extend(validated(setup, &found, DAY_HOURS, hours_validator()).await?);
    let key = doc! { "sensor_id": 1, "day": 1, "part": 1 };
    let index = doc! { "key": key, "name": "sensor_day_part" };
    setup.create_index(COLUMNS, index).await?;
    let index = doc! { "key": { "sensor_id": 1, "day": 1 }, "name": "sensor_day" };
    setup.create_index(DAY_HOURS, index).await?;
    for (collection, name) in [(COLUMNS, "columns_ttl"), (DAY_HOURS, "hours_ttl")] {
        let ttl = Ttl {
            collection,
            field: "day",
            name,
            only: None,
        };
        done.extend(ttl.set(setup, expire_s(kept)).await?);
    }
    done.extend(view(setup, &found, RICH_HOURS, DAY_HOURS, rich_hours(span)).await?);
    Ok(done)
}

/// The longest day.
const DAY_MAX_MS: i64 = 25 * 60 * 60 * 1000;

/// The pipeline of the view. Accepts any stored content: an expression that fails would abort the query
/// for all sensors.
fn rich_hours(span: Span) -> Vec<Document> {
    let is = |value: &str, kind: &str| doc! { "$eq": [{ "$type": value }, kind] };
    // An object as an array of names and values; nothing of what is none.
    let pairs = |of: &str| doc! { "$cond": [is(of, "object"), { "$objectToArray": of }, []] };
    let entry = |array: &str| {
        let entry = doc! { "$ifNull": [{ "$arrayElemAt": [array, "$at"] }, Bson::Null] };
        doc! { "$cond": [is(array, "array"), entry, Bson::Null] }
    };
    // The pairs of an object with other values, without those that the hour does not have.
    let each = |of: &str, name: &str, value: Document| {
        let pair = doc! { "k": format!("$${name}.k"), "v": value };
        let all = doc! { "$map": { "input": pairs(of), "as": name, "in": pair } };
        let nothing = doc! { "$literal": [Bson::Null, {}, { "count": 0 }] };
        let has_value = doc! { "$not": [{ "$in": ["$$e.v", nothing] }] };
        let some = doc! { "$filter": { "input": all, "as": "e", "cond": has_value } };
        doc! { "$arrayToObject": some }
    };
    let states = each("$$a.v", "s", entry("$$s.v"));
    let value = doc! { "$cond": [is("$$a.v", "object"), states, entry("$$a.v")] };
    let hour = each("$$f.v", "a", value);
    let with_quotients = doc! { "$let": {
        "vars": { "hour": hour }, "in": { "$mergeObjects": ["$$hour", quotients("$$hour")] },
    } };
    let span_ms = span.ms();
    let hours = (DAY_MAX_MS + span_ms - 1) / span_ms;
    let into_ms = doc! { "$multiply": ["$at", span_ms] };
    vec![
        doc! { "$set": { "at": { "$range": [0, hours as i32] } } },
        doc! { "$unwind": "$at" },
        doc! { "$project": {
            "_id": 0, "sensor_id": 1, "day": 1, "tags": 1, "bucket_start": { "$add": ["$day", into_ms] },
            "fields": each("$fields", "f", with_quotients), "fields_truncated": 1,
        } },
        doc! { "$match": { "fields": { "$ne": {} } } },
    ]
}

fn columns_validator() -> Document {
    let entry = doc! {
        "bsonType": "object",
        "required": ["kind", "data"],
        "properties": {
            "kind": { "enum": ["double", "int", "bool", "text"] },
            "data": { "bsonType": "binData" },
            "present": { "bsonType": "binData" },
            "ints": { "bsonType": "binData" },
            "dictionary": { "bsonType": "array" },
            "others": { "bsonType": "array" },
        },
    };
    of_day(
        &["part", "ts", "columns"],
        doc! {
            "part": { "bsonType": ["int", "long"], "minimum": 0 },
            "ts": { "bsonType": "binData" },
            "columns": { "bsonType": "object", "additionalProperties": entry },
            "set": { "bsonType": "object" },
        },
    )
}

fn hours_validator() -> Document {
    let fields = doc! { "bsonType": "object", "additionalProperties": { "bsonType": "object" } };
    of_day(
        &["fields"],
        doc! { "fields": fields, "fields_truncated": { "bsonType": "bool" } },
    )
}

/// The schema of a document of a sensor and day, with these keys of its own.
fn of_day(required: &[&str], properties: Document) -> Document {
    let mut all = doc! {
        "_id": { "bsonType": "object", "required": ["sensor_id", "day"] },
        "schema_version": { "bsonType": ["int", "long"], "minimum": 1 },
        "sensor_id": { "bsonType": "string", "minLength": 1 },
        "day": { "bsonType": "date" },
        "tags": { "bsonType": "object" },
        "count": { "bsonType": ["int", "long"], "minimum": 0 },
        "first_ts": { "bsonType": "date" },
        "last_ts": { "bsonType": "date" },
    };
    all.extend(properties);
    let common = [
        "_id",
        "schema_version",
        "sensor_id",
        "day",
        "count",
        "first_ts",
        "last_ts",
    ];
    let required: Vec<&str> = common.iter().chain(required).copied().collect();
    doc! { "$jsonSchema": { "bsonType": "object", "required": required, "properties": all } }
}
