//! The catalogue (`src/store/src/catalog.rs`) in MongoDB: two instances together, the indexes,
//! and how entries of sensors without buckets expire.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use model::batch::Tags;
use model::summary::summarise;
use model::{
    BucketStart, CatalogUpdate, FieldKinds, PageKind, PageWrite, RowFlags, Rows, Span, StorageMode,
    ValueRef,
};
use mongodb::bson::{Bson, DateTime, Document, doc};
use store::Store;
use store::catalog::CatalogQuery;
use store::mongo::{CATALOG, MongoStore};
use testkit::memory_store::MemoryStore;

use super::catalog_contract::{DAY, HOUR, find, merge, open, update};

/// Two instances merge the same sensors in different orders: both orders give the entries of the
/// memory store.
#[tokio::test]
async fn two_instances_agree_on_every_entry() {
    let database = unique_database("catalog2");
    let uri = Mongod::shared().uri();
    let stores = [
        open(uri.clone(), &database).await.0,
        open(uri, &database).await.0,
    ];
    let updates: Vec<CatalogUpdate> = (0..600i64)
        .map(|i| {
            let field = format!("f{}", i % 7);
            let kind = FieldKinds::ALL[(i % 3) as usize].0;
            let site = format!("site {}", i % 11);
            // Days apart, so that no update is within the precision of another.
            update(
                &format!("s{}", i % 13),
                (i * 7919 % 600) * 2 * DAY,
                &[(&field, kind)],
                Some(&site),
            )
        })
        .collect();
    let run = |store: MongoStore, mut updates: Vec<CatalogUpdate>, reverse: bool| async move {
        if reverse {
            updates.reverse();
        }
        for some in updates.chunks(9) {
            // An error: the other instance was faster in every round. The flush stage waits and
            // tries again.
            while store
                .merge_catalog(&some.iter().collect::<Vec<_>>())
                .await
                .is_err()
            {}
        }
    };
    let [a, b] = stores.clone();
    let a = tokio::spawn(run(a, updates.clone(), false));
    let b = tokio::spawn(run(b, updates.clone(), true));
    a.await.unwrap();
    b.await.unwrap();
    let memory = MemoryStore::new();
    merge(&memory, &updates).await;
    let all = CatalogQuery::default();
    let stored = stores[0].find_catalog(&all).await.unwrap();
    let expected = memory.find_catalog(&all).await.unwrap();
    assert_eq!(expected.len(), 13);
    for (stored, expected) in stored.iter().zip(&expected) {
        assert_eq!(stored, expected);
    }
}

/// Every stage of a plan.
fn stages(plan: &Document, names: &mut Vec<String>) {
    names.extend(plan.get_str("stage").map(ToOwned::to_owned));
    names.extend(plan.get_str("indexName").map(ToOwned::to_owned));
    for (_, value) in plan {
        match value {
            Bson::Document(inner) => stages(inner, names),
            Bson::Array(list) => list
                .iter()
                .filter_map(Bson::as_document)
                .for_each(|inner| stages(inner, names)),
            _ => {}
        }
    }
}

async fn entries_are_found_by_index(uri: String) {
    let (store, db) = open(uri, &unique_database("catalog_index")).await;
    let fields = |i: i64| if i % 100 == 0 { "rare" } else { "often" };
    let all: Vec<CatalogUpdate> = (0..5000)
        .map(|i| {
            update(
                &format!("{i:05}"),
                i,
                &[(fields(i), FieldKinds::NUMBER)],
                Some(&format!("site {}", i % 50)),
            )
        })
        .collect();
    merge(&store, &all).await;
    for (filter, index, examined) in [
        (doc! { "labels": "site 7" }, None, 0),
        (
            doc! { "labels": "site=site 7", "_id": { "$gt": "01000" } },
            Some("label_sensor"),
            20,
        ),
        (
            doc! { "field_names": { "$in": ["rare", true] } },
            Some("field_sensor"),
            22,
        ),
        (
            doc! { "$and": [{ "labels": "site=site 0" }, { "field_names": { "$in": ["rare", true] } }] },
            None,
            60,
        ),
        (
            doc! { "_id": { "$gte": "0200", "$lt": "0201" } },
            Some("_id_"),
            20,
        ),
    ] {
        let find = doc! { "find": CATALOG, "filter": &filter, "sort": { "_id": 1 }, "limit": 20 };
        let explained = db
            .run_command(doc! { "explain": find, "verbosity": "executionStats" })
            .await
            .unwrap();
        let mut names = vec![];
        stages(
            explained
                .get_document("queryPlanner")
                .unwrap()
                .get_document("winningPlan")
                .unwrap(),
            &mut names,
        );
        assert!(
            !names.iter().any(|n| n == "SORT" || n == "COLLSCAN"),
            "{filter}: {names:?}"
        );
        assert!(
            index.is_none_or(|index| names.iter().any(|name| name == index)),
            "{filter}: {names:?}"
        );
        let run = explained
            .get_document("executionStats")
            .unwrap()
            .get_i32("totalDocsExamined")
            .unwrap();
        assert!(run <= examined, "{filter}: {run} documents, {names:?}");
    }
}

/// Silent sensors are counted without reading a document.
async fn silent_sensors_are_counted_by_index(uri: String) {
    let (store, db) = open(uri, &unique_database("catalog_count")).await;
    let all: Vec<CatalogUpdate> = (0..3000)
        .map(|i| update(&format!("{i:05}"), i * HOUR, &[], None))
        .collect();
    merge(&store, &all).await;
    let range = doc! { "last_arrival": { "$gte": DateTime::from_millis(HOUR), "$lt": DateTime::from_millis(11 * HOUR) } };
    let count = doc! { "aggregate": CATALOG, "pipeline": [{ "$match": range }, { "$count": "n" }], "hint": "arrival", "cursor": {} };
    let explained = db
        .run_command(doc! { "explain": count, "verbosity": "executionStats" })
        .await
        .unwrap();
    let text = explained.to_string();
    assert!(
        text.contains("\"totalDocsExamined\": 0") && text.contains("\"totalKeysExamined\": 1"),
        "{text}"
    );
    assert!(!text.contains("COLLSCAN"), "{text}");
}

#[tokio::test]
async fn silent_sensors_are_counted_without_reading_documents() {
    silent_sensors_are_counted_by_index(Mongod::shared().uri()).await;
}

#[tokio::test]
async fn silent_sensors_are_counted_without_reading_documents_of_4_4() {
    silent_sensors_are_counted_by_index(Mongod::shared_v44().uri()).await;
}

#[tokio::test]
async fn queries_by_tag_and_field_use_the_indexes() {
    entries_are_found_by_index(Mongod::shared().uri()).await;
}

#[tokio::test]
async fn queries_by_tag_and_field_use_the_indexes_of_4_4() {
    entries_are_found_by_index(Mongod::shared_v44().uri()).await;
}

/// A page without an entry.
fn page(sensor: &str, start_ms: i64) -> PageWrite {
    let mut rows = Rows::default();
    let values = [("temp", ValueRef::Int(1))];
    rows.push_named(start_ms + 1000, RowFlags::default(), &values);
    let summary = summarise(&rows);
    PageWrite {
        sensor_id: sensor.into(),
        start: BucketStart(start_ms),
        page: 0,
        kind: PageKind::Create,
        storage_mode: StorageMode::Bucket,
        seal: false,
        tags: Some(Arc::new(Tags::from_canonical(b"\x04site\x05\x00north"))),
        rows: rows.into(),
        summary,
        catalog: None,
    }
}

#[tokio::test]
async fn the_entry_of_a_sensor_without_buckets_goes_after_a_week_unless_it_reports_again() {
    let uri = Mongod::shared().uri();
    let database = unique_database("catalog_expire");
    let defaults = config::Config::default().store;
    let settings = config::Store {
        uri: config::Secret::new(uri),
        database,
        retention: Some(Duration::from_secs(24_000 * 86_400)),
        ..defaults
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    let retention_ms = 24_000 * DAY;
    let fields = [("temp", FieldKinds::NUMBER)];
    let all = ["gone", "held", "back"].map(|sensor| update(sensor, 100 * DAY, &fields, None));
    merge(&store, &all).await;
    // Its bucket is still there; the server removes expired ones by its own clock, which says that
    // it is not.
    let held = page("held", 100 * DAY);
    store.write(&[held]).await.unwrap();
    let now_ms = 200 * DAY + retention_ms;
    let ids = async || find(&store, CatalogQuery::default()).await;
    assert_eq!(
        store
            .expire_catalog(101 * DAY + retention_ms)
            .await
            .unwrap(),
        0,
        "not old enough"
    );
    assert_eq!(
        store.expire_catalog(now_ms).await.unwrap(),
        0,
        "only marked"
    );
    assert_eq!(
        store.expire_catalog(now_ms + 6 * DAY).await.unwrap(),
        0,
        "not for a week yet"
    );
    merge(&store, &all[2..]).await;
    assert_eq!(store.expire_catalog(now_ms + 8 * DAY).await.unwrap(), 1);
    assert_eq!(ids().await, ["back", "held"]);
    assert_eq!(
        store.expire_catalog(now_ms + 16 * DAY).await.unwrap(),
        1,
        "it did not report again after that"
    );
    assert_eq!(ids().await, ["held"]);
}
