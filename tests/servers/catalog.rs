//! The catalogue (`src/store/catalog.rs`): its part of the store's contract, two instances
//! together, and the indexes.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use hourbucket::config;
use hourbucket::model::batch::Tags;
use hourbucket::model::catalog::{CATALOG_FIELDS_MAX, CATALOG_STEP_MS};
use hourbucket::model::summary::summarise;
use hourbucket::model::{
    BucketStart, CatalogUpdate, FieldKinds, PageKind, PageWrite, RowFlags, Rows, SensorId, Span,
    StorageMode, ValueRef,
};
use hourbucket::store::catalog::{CatalogEntry, CatalogFill, CatalogQuery};
use hourbucket::store::fill_catalog::fill_some;
use hourbucket::store::memory::MemoryStore;
use hourbucket::store::mongo::{CATALOG, MongoStore};
use hourbucket::store::{PageWriteResult, Store};
use mongodb::bson::{Bson, DateTime, Document, doc};

const HOUR: i64 = 3_600_000;
const DAY: i64 = CATALOG_STEP_MS;

async fn open(uri: String, database: &str) -> (MongoStore, mongodb::Database) {
    let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
    let defaults = config::Config::default().store;
    let settings = config::Store {
        uri: config::Secret::new(uri),
        database: database.into(),
        ..defaults
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    (store, client.database(database))
}

fn tags(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn update(
    sensor: &str,
    ts_ms: i64,
    fields: &[(&str, FieldKinds)],
    site: Option<&str>,
) -> CatalogUpdate {
    CatalogUpdate {
        sensor_id: sensor.into(),
        tags: site.map(|site| (ts_ms, tags(&[("site", site)]))),
        fields: fields
            .iter()
            .map(|(name, kinds)| (Arc::from(*name), *kinds))
            .collect(),
        first_ts_ms: ts_ms,
        last_ts_ms: ts_ms,
        arrived_ms: ts_ms,
    }
}

async fn merge(store: &dyn Store, updates: &[CatalogUpdate]) {
    assert_eq!(
        store
            .merge_catalog(&updates.iter().collect::<Vec<_>>())
            .await
            .unwrap(),
        0
    );
}

async fn find(store: &dyn Store, query: CatalogQuery) -> Vec<String> {
    let found = store.find_catalog(&query).await.unwrap();
    found
        .iter()
        .map(|entry| entry.sensor_id.to_string())
        .collect()
}

async fn entry(store: &dyn Store, sensor: &str) -> CatalogEntry {
    let query = CatalogQuery {
        sensor_ids: Some(vec![sensor.into()]),
        ..CatalogQuery::default()
    };
    store.find_catalog(&query).await.unwrap().remove(0)
}

/// The catalogue's part of the store's contract.
pub(crate) async fn contract(store: &dyn Store) {
    merges(store).await;
    finds(store).await;
    counts(store).await;
    is_bounded(store).await;
}

async fn merges(store: &dyn Store) {
    let number = FieldKinds::NUMBER;
    let text = FieldKinds::TEXT;
    merge(
        store,
        &[update("cat/1", 5 * DAY, &[("temp", number)], Some("north"))],
    )
    .await;
    let first = entry(store, "cat/1").await;
    assert_eq!(
        (first.first_ts_ms, first.last_ts_ms, first.arrived_ms),
        (5 * DAY, 5 * DAY, 5 * DAY)
    );
    assert_eq!(
        (first.tags, first.tags_ts_ms),
        (tags(&[("site", "north")]), Some(5 * DAY))
    );
    assert_eq!(first.fields, BTreeMap::from([("temp".to_owned(), number)]));
    // Several of one sensor in one call; and names that are special in a path or a filter.
    let all = [
        update(
            "cat/1",
            9 * DAY,
            &[("temp", text), ("0", number)],
            Some("south"),
        ),
        update(
            "cat/1",
            DAY,
            &[("a$b", FieldKinds::BOOL), ("x y=\"ü\"", number)],
            Some("west"),
        ),
    ];
    merge(store, &all).await;
    let both = entry(store, "cat/1").await;
    assert_eq!(
        (both.first_ts_ms, both.last_ts_ms, both.arrived_ms),
        (DAY, 9 * DAY, 9 * DAY)
    );
    assert_eq!(
        (both.tags.clone(), both.tags_ts_ms),
        (tags(&[("site", "south")]), Some(9 * DAY)),
        "the newest"
    );
    assert_eq!(
        (both.fields["temp"], both.fields["a$b"], both.fields.len()),
        (number.with(text), FieldKinds::BOOL, 4)
    );
    merge(store, &all).await;
    merge(
        store,
        &[update("cat/1", 3 * DAY, &[("temp", number)], Some("east"))],
    )
    .await;
    assert_eq!(entry(store, "cat/1").await, both, "nothing new");
    merge(
        store,
        &[update("cat/1", 9 * DAY, &[("temp", number)], None)],
    )
    .await;
    assert_eq!(
        entry(store, "cat/1").await.tags,
        both.tags,
        "a sender without tags does not remove them"
    );
    merge(store, &[update("cat/1", 10 * DAY, &[], Some("far"))]).await;
    assert_eq!(entry(store, "cat/1").await.tags, tags(&[("site", "far")]));
}

async fn counts(store: &dyn Store) {
    let before = store.count_catalog((0, 1)).await.unwrap().known;
    let mut all: Vec<CatalogUpdate> = (0..30)
        .map(|i| {
            update(
                &format!("count/{i:02}"),
                500 * DAY,
                &[("temp", FieldKinds::NUMBER)],
                None,
            )
        })
        .collect();
    for (i, update) in all.iter_mut().enumerate() {
        update.arrived_ms = 700 * DAY + i as i64;
    }
    merge(store, &all).await;
    let range = (700 * DAY + 3, 700 * DAY + 28);
    let counts = store.count_catalog(range).await.unwrap();
    assert_eq!(
        (counts.known, counts.arrived, counts.latest.len()),
        (before + 30, 25, 20)
    );
    let latest: Vec<_> = counts
        .latest
        .iter()
        .map(|e| (&*e.sensor_id, e.last_ts_ms, e.arrived_ms))
        .take(2)
        .collect();
    assert_eq!(
        latest,
        [
            ("count/27", 500 * DAY, range.1 - 1),
            ("count/26", 500 * DAY, range.1 - 2)
        ]
    );
    let some = CatalogQuery {
        arrived_ms: Some(range),
        prefix: "count/2".into(),
        ..CatalogQuery::default()
    };
    let expected: Vec<String> = (20..28).map(|i| format!("count/{i}")).collect();
    assert_eq!(find(store, some.clone()).await, expected);
    let rest = CatalogQuery {
        after: Some("count/25".into()),
        limit: 1,
        ..some
    };
    assert_eq!(find(store, rest).await, ["count/26"]);
    // An older arrival changes nothing, a newer one does.
    for (arrived_ms, count) in [(1, 25), (800 * DAY, 24)] {
        merge(
            store,
            &[CatalogUpdate {
                arrived_ms,
                ..all[5].clone()
            }],
        )
        .await;
        assert_eq!(store.count_catalog(range).await.unwrap().arrived, count);
    }
    assert_eq!(store.note_running(5000).await.unwrap(), None);
    assert_eq!(
        store.note_running(3000).await.unwrap(),
        Some(5000),
        "another instance's clock is behind"
    );
    assert_eq!(store.note_running(6000).await.unwrap(), Some(5000));
}

async fn finds(store: &dyn Store) {
    let mut all: Vec<CatalogUpdate> = (0..40)
        .map(|i| {
            let field = if i % 4 == 0 { "rare" } else { "often" };
            let site = if i % 2 == 0 { "even" } else { "odd" };
            update(
                &format!("find/{i:02}"),
                100 * DAY + i * HOUR,
                &[(field, FieldKinds::NUMBER)],
                Some(site),
            )
        })
        .collect();
    all[4].tags = Some((0, tags(&[("site", "even"), ("a=b", "c"), ("n", "1")])));
    all[5].tags = Some((0, tags(&[("a", "b=c")])));
    merge(store, &all).await;
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let of = |tags: Vec<(String, String)>, field: Option<&str>| CatalogQuery {
        tags,
        field: field.map(ToOwned::to_owned),
        ..CatalogQuery::default()
    };
    assert_eq!(
        find(store, of(vec![tag("site", "even")], None)).await.len(),
        20
    );
    let rare = find(store, of(vec![tag("site", "even")], Some("rare"))).await;
    assert_eq!(
        rare,
        (0..10)
            .map(|i| format!("find/{:02}", i * 4))
            .collect::<Vec<_>>(),
        "in order"
    );
    assert_eq!(
        find(store, of(vec![tag("site", "odd")], Some("rare"))).await,
        [] as [&str; 0]
    );
    assert_eq!(
        find(store, of(vec![tag("site", "even"), tag("n", "1")], None)).await,
        ["find/04"]
    );
    assert_eq!(
        find(store, of(vec![tag("a=b", "c")], None)).await,
        ["find/04"]
    );
    assert_eq!(
        find(store, of(vec![tag("a", "b=c")], None)).await,
        ["find/05"]
    );
    assert_eq!(find(store, of(vec![], Some("none"))).await, [] as [&str; 0]);
    let page = CatalogQuery {
        limit: 3,
        after: Some("find/08".into()),
        ..of(vec![], Some("rare"))
    };
    assert_eq!(find(store, page).await, ["find/12", "find/16", "find/20"]);
    let ids: Vec<SensorId> = ["find/07", "no such", "find/04", "find/07"]
        .map(SensorId::from)
        .into();
    let some = CatalogQuery {
        sensor_ids: Some(ids),
        ..CatalogQuery::default()
    };
    assert_eq!(
        find(store, some.clone()).await,
        ["find/04", "find/07"],
        "each once"
    );
    assert_eq!(
        find(
            store,
            CatalogQuery {
                limit: 1,
                ..some.clone()
            }
        )
        .await,
        ["find/04"]
    );
    assert_eq!(
        find(
            store,
            CatalogQuery {
                limit: 0,
                ..some.clone()
            }
        )
        .await,
        [] as [&str; 0]
    );
    assert_eq!(
        find(
            store,
            CatalogQuery {
                after: Some("find/04".into()),
                ..some
            }
        )
        .await,
        ["find/07"]
    );
    // Times are precise to a day: the range is extended by one at both ends.
    let within = |from_ms: i64, to_ms: i64| CatalogQuery {
        overlaps_ms: Some((from_ms, to_ms)),
        ..of(vec![], Some("often"))
    };
    let ends = (100 * DAY + HOUR, 100 * DAY + 39 * HOUR);
    assert_eq!(
        find(store, within(ends.1 + DAY, i64::MAX)).await,
        ["find/39"]
    );
    assert_eq!(
        find(store, within(ends.1 + DAY + 1, i64::MAX)).await.len(),
        0
    );
    assert_eq!(
        find(store, within(i64::MIN, ends.0 - DAY + 1)).await,
        ["find/01"]
    );
    assert_eq!(find(store, within(i64::MIN, ends.0 - DAY)).await.len(), 0);
}

/// A sender whose field names never repeat.
async fn is_bounded(store: &dyn Store) {
    const STEP: usize = 1000;
    for from in (0..CATALOG_FIELDS_MAX + 2 * STEP).step_by(STEP) {
        let names: Vec<String> = (from..from + STEP).map(|i| format!("{i:0>128}")).collect();
        let fields: Vec<(&str, FieldKinds)> = names
            .iter()
            .map(|name| (name.as_str(), FieldKinds::NUMBER))
            .collect();
        merge(store, &[update("hostile", from as i64, &fields, None)]).await;
    }
    let full = entry(store, "hostile").await;
    assert_eq!(
        (full.fields.len(), full.is_truncated),
        (CATALOG_FIELDS_MAX, true)
    );
    let query = CatalogQuery {
        field: Some("beyond the limit".into()),
        ..CatalogQuery::default()
    };
    assert_eq!(
        find(store, query).await,
        ["hostile"],
        "it may have any field"
    );
}

#[tokio::test]
async fn the_memory_stores_catalogue_keeps_the_contract() {
    contract(&MemoryStore::new()).await;
}

#[tokio::test]
async fn mongodb_4_4_keeps_the_catalogues_contract() {
    contract(
        &open(Mongod::shared_v44().uri(), &unique_database("catalog44"))
            .await
            .0,
    )
    .await;
}

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

/// A page as an earlier version wrote it: without an entry.
fn page(
    sensor: &str,
    start_ms: i64,
    storage_mode: StorageMode,
    values: &[(&str, ValueRef<'_>)],
) -> PageWrite {
    let mut rows = Rows::default();
    rows.push_named(start_ms + 1000, RowFlags::default(), values);
    let summary = summarise(&rows);
    PageWrite {
        sensor_id: sensor.into(),
        start: BucketStart(start_ms),
        page: 0,
        kind: PageKind::Create,
        storage_mode,
        seal: false,
        tags: Some(Arc::new(Tags::from_canonical(b"\x04site\x05\x00north"))),
        rows: rows.into(),
        summary,
        catalog: None,
    }
}

#[tokio::test]
async fn the_catalogue_of_an_older_database_is_filled_once_and_continues_after_a_restart() {
    let uri = Mongod::shared().uri();
    let database = unique_database("catalog_fill");
    let (store, db) = open(uri.clone(), &database).await;
    assert!(store.is_catalog_complete(), "an empty database");
    let start_ms = 400_000 * HOUR;
    for i in 0..100 {
        let mode = if i % 2 == 0 {
            StorageMode::Bucket
        } else {
            StorageMode::TimeSeries
        };
        let sensor = format!("old/{i:03}");
        let first = [
            ("temp", ValueRef::Double(1.0)),
            ("on", ValueRef::Bool(true)),
        ];
        let writes = [
            page(&sensor, start_ms, mode, &first),
            page(
                &sensor,
                start_ms + 100 * HOUR,
                mode,
                &[("temp", ValueRef::Str("n/a"))],
            ),
        ];
        for written in store.write(&writes).await.unwrap() {
            assert!(
                matches!(written, PageWriteResult::Done { .. }),
                "{written:?}"
            );
        }
    }
    let meta = db.collection::<Document>("hourbucket_meta");
    meta.delete_one(doc! { "_id": "catalog" }).await.unwrap();
    let (store, _) = open(uri.clone(), &database).await;
    assert!(!store.is_catalog_complete());
    let from = store.catalog_fill().await.unwrap();
    assert_eq!(from, CatalogFill::default());
    let part = fill_some(&store, &from).await.unwrap();
    assert!(
        !part.is_complete && !store.is_catalog_complete() && part.after.is_some(),
        "{part:?}"
    );
    let filled = store
        .find_catalog(&CatalogQuery::default())
        .await
        .unwrap()
        .len();
    assert!((1..100).contains(&filled), "{filled}");
    // Another process continues.
    let (store, _) = open(uri.clone(), &database).await;
    let mut fill = store.catalog_fill().await.unwrap();
    assert_eq!(fill, part);
    while !fill.is_complete {
        fill = fill_some(&store, &fill).await.unwrap();
    }
    assert!(store.is_catalog_complete() && open(uri, &database).await.0.is_catalog_complete());
    let all = store.find_catalog(&CatalogQuery::default()).await.unwrap();
    assert_eq!(all.len(), 100);
    let fields = [
        ("on", FieldKinds::BOOL),
        ("temp", FieldKinds::NUMBER.with(FieldKinds::TEXT)),
    ];
    for entry in all {
        assert_eq!(
            entry.fields,
            BTreeMap::from(fields.map(|(name, kinds)| (name.to_owned(), kinds))),
            "{}",
            entry.sensor_id
        );
        assert_eq!(
            entry.tags,
            tags(&[("site", "north")]),
            "{}",
            entry.sensor_id
        );
        assert_eq!(
            (entry.first_ts_ms, entry.last_ts_ms),
            (start_ms + 1000, start_ms + 100 * HOUR + 1000)
        );
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
    let held = page(
        "held",
        100 * DAY,
        StorageMode::Bucket,
        &[("temp", ValueRef::Int(1))],
    );
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
