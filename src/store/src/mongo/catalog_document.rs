//! Entries of the catalogue as documents of `sensor_catalog`, and the statements and filters for
//! them.
//!
//! ```text
//! { _id: "S1", tags: { site: "north" }, tags_ts: ISODate(…), labels: ["site=north"],
//!   fields: { temp: ["number"] }, field_names: ["temp"], first_ts: ISODate(…), last_ts: ISODate(…),
//!   last_arrival: ISODate(…), created: ISODate(…) }
//! ```
//!
//! `labels` and `field_names` repeat tags and fields as arrays; [`super::catalog`] has their
//! indexes.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, DateTime, Document, RawDocument, doc};

use super::elements::{Element, Elements};
use crate::catalog::{CatalogEntry, CatalogQuery, after_prefix};
use model::SensorId;
use model::catalog::{CATALOG_STEP_MS, CatalogUpdate, FieldKinds};

/// In `field_names` of an entry that lacks some: it matches every field.
const TRUNCATED: Bson = Bson::Boolean(true);

pub(super) fn date(ts_ms: i64) -> Bson {
    Bson::DateTime(DateTime::from_millis(ts_ms))
}

fn labels(tags: &BTreeMap<String, String>) -> Vec<String> {
    tags.iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn kinds(kinds: FieldKinds) -> Bson {
    Bson::Array(kinds.names().map(Bson::from).collect())
}

pub(super) fn document_of(entry: &CatalogEntry) -> Document {
    let fields: Document = entry
        .fields
        .iter()
        .map(|(name, held)| (name.clone(), kinds(*held)))
        .collect();
    let mut names: Vec<Bson> = entry.fields.keys().map(Bson::from).collect();
    names.extend(entry.is_truncated.then_some(TRUNCATED));
    let tags: Document = entry
        .tags
        .iter()
        .map(|(name, value)| (name.clone(), Bson::from(value)))
        .collect();
    let mut document = doc! { "_id": &*entry.sensor_id, "tags": tags };
    if let Some(ts_ms) = entry.tags_ts_ms {
        document.insert("tags_ts", date(ts_ms));
    }
    document.insert("labels", labels(&entry.tags));
    document.insert("fields", fields);
    document.insert("field_names", names);
    if entry.is_truncated {
        document.insert("fields_truncated", true);
    }
    document.insert("first_ts", date(entry.first_ts_ms));
    document.insert("last_ts", date(entry.last_ts_ms));
    document.insert("last_arrival", date(entry.arrived_ms));
    document.insert("created", date(entry.created_ms));
    document
}

/// The statement that adds an update to this stored entry.
pub(super) fn statement(entry: &CatalogEntry, update: &CatalogUpdate) -> Document {
    let mut merged = entry.clone();
    merged.merge(update);
    let mut query = doc! { "_id": &*entry.sensor_id };
    let mut set = Document::new();
    if let Some((ts_ms, tags)) = entry.newer_tags(update) {
        query.insert("tags_ts", entry.tags_ts_ms.map_or(Bson::Null, date));
        set.insert(
            "tags",
            tags.iter()
                .map(|(name, value)| (name.clone(), Bson::from(value)))
                .collect::<Document>(),
        );
        set.insert("tags_ts", date(ts_ms));
        set.insert("labels", labels(tags));
    }
    if merged.is_truncated {
        set.insert("fields_truncated", true);
    }
    let mut add = Document::new();
    let mut names = vec![];
    names.extend(merged.is_truncated.then_some(TRUNCATED));
    for name in update.fields.keys() {
        if let Some(now) = merged
            .fields
            .get(&**name)
            .filter(|now| entry.fields.get(&**name) != Some(*now))
        {
            add.insert(format!("fields.{name}"), doc! { "$each": kinds(*now) });
            names.push(Bson::from(&**name));
        }
    }
    if !names.is_empty() {
        add.insert("field_names", doc! { "$each": names });
    }
    let mut change = doc! {
        "$min": { "first_ts": date(update.first_ts_ms), "created": date(update.created_ms) },
        "$max": { "last_ts": date(update.last_ts_ms), "last_arrival": date(update.arrived_ms) },
        "$unset": { "expires": "" },
    };
    if !set.is_empty() {
        change.insert("$set", set);
    }
    if !add.is_empty() {
        change.insert("$addToSet", add);
    }
    doc! { "q": query, "u": change }
}

/// `None` without an id.
pub(super) fn entry_of(document: &RawDocument) -> Option<CatalogEntry> {
    let id = Elements::new(document).find(|element| element.name == b"_id")?;
    let mut entry = CatalogEntry {
        sensor_id: SensorId::from(id.text()?),
        tags: BTreeMap::new(),
        tags_ts_ms: None,
        fields: BTreeMap::new(),
        is_truncated: false,
        first_ts_ms: i64::MAX,
        last_ts_ms: i64::MIN,
        arrived_ms: i64::MIN,
        created_ms: i64::MAX,
    };
    for element in Elements::new(document) {
        let time_ms = |absent| element.time_ms().unwrap_or(absent);
        match element.name {
            b"tags" => {
                let tags = element
                    .elements()
                    .filter_map(|tag| Some((tag.key()?, tag.text()?)));
                entry.tags = tags
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect();
            }
            b"tags_ts" => entry.tags_ts_ms = element.time_ms(),
            b"fields" => {
                let fields = element.elements().filter_map(|field| {
                    let held = field.elements().filter_map(Element::text);
                    let kinds = held.fold(FieldKinds::default(), |all, kind| {
                        all.with(FieldKinds::named(kind))
                    });
                    Some((field.key()?.to_owned(), kinds))
                });
                entry.fields = fields.collect();
            }
            b"fields_truncated" => entry.is_truncated = element.is_true(),
            b"first_ts" => entry.first_ts_ms = time_ms(i64::MAX),
            b"last_ts" => entry.last_ts_ms = time_ms(i64::MIN),
            b"last_arrival" => entry.arrived_ms = time_ms(i64::MIN),
            b"created" => entry.created_ms = time_ms(i64::MAX),
            _ => {}
        }
    }
    Some(entry)
}

/// The ids with this prefix.
fn range(prefix: &str) -> Document {
    match after_prefix(prefix) {
        Some(end) => doc! { "_id": { "$gte": prefix, "$lt": end } },
        None => doc! { "_id": { "$gte": prefix } },
    }
}

pub(super) fn filter(q: &CatalogQuery, ids: Option<&[SensorId]>) -> Document {
    let mut all: Vec<Document> = vec![];
    if let Some(ids) = ids {
        all.push(doc! { "_id": { "$in": ids.iter().map(|id| &**id).collect::<Vec<&str>>() } });
    }
    match &*q.prefixes {
        [all_ids] if all_ids.is_empty() => {}
        [] => all.push(doc! { "_id": { "$in": [] } }),
        prefixes => all.push(doc! { "$or": prefixes.iter().map(|p| range(p)).collect::<Vec<_>>() }),
    }
    if let Some((from_ms, to_ms)) = q.arrived_ms {
        all.push(doc! { "last_arrival": { "$gte": date(from_ms), "$lt": date(to_ms) } });
    }
    if let Some(after) = &q.after {
        all.push(doc! { "_id": { "$gt": &**after } });
    }
    all.extend(
        q.tags
            .iter()
            .map(|(name, value)| doc! { "labels": format!("{name}={value}") }),
    );
    // A label does not show where the name ends if one of both contains `=`.
    let ambiguous = q
        .tags
        .iter()
        .filter(|(name, value)| name.contains('=') || value.contains('='));
    all.extend(ambiguous.map(|(name, value)| doc! { format!("tags.{name}"): value }));
    if let Some(field) = &q.field {
        all.push(doc! { "field_names": { "$in": [Bson::from(field), TRUNCATED] } });
    }
    if let Some((from_ms, to_ms)) = q.overlaps_ms {
        all.push(doc! { "last_ts": { "$gte": date(from_ms.saturating_sub(CATALOG_STEP_MS)) } });
        all.push(doc! { "first_ts": { "$lt": date(to_ms.saturating_add(CATALOG_STEP_MS)) } });
    }
    match all.is_empty() {
        true => doc! {},
        false => doc! { "$and": all },
    }
}
