//! The collections of days in columns.

use mongodb::bson::{Document, doc};

use crate::mongo::schema::collections::{Ttl, validated};
use crate::mongo::schema::days::{Kept, expire_s};
use crate::mongo::setup::{SchemaError, Setup};
use model::collections::{COLUMNS, DAY_HOURS};

/// Creates missing objects, and updates different ones. Returns one line per change.
///
/// # Errors
/// The first step that failed.
pub(crate) async fn prepare(setup: &Setup<'_>, kept: Kept) -> Result<Vec<String>, SchemaError> {
    let found = setup.list(&[COLUMNS, DAY_HOURS]).await?;
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
    Ok(done)
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
