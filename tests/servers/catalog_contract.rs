//! The catalogue's part of the store's contract (`src/store/src/catalog.rs`): entries are merged, found,
//! counted and bounded. `store_contract` runs it with the other parts.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use model::catalog::{CATALOG_FIELDS_MAX, CATALOG_STEP_MS};
use model::{CatalogUpdate, FieldKinds, SensorId, Span};
use store::Store;
use store::catalog::{CatalogEntry, CatalogQuery};
use store::mongo::MongoStore;
use testkit::memory_store::MemoryStore;

pub(super) const HOUR: i64 = 3_600_000;
pub(super) const DAY: i64 = CATALOG_STEP_MS;

pub(super) async fn open(uri: String, database: &str) -> (MongoStore, mongodb::Database) {
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

pub(super) fn tags(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn update(
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
        created_ms: ts_ms,
    }
}

pub(super) async fn merge(store: &dyn Store, updates: &[CatalogUpdate]) {
    assert_eq!(
        store
            .merge_catalog(&updates.iter().collect::<Vec<_>>())
            .await
            .unwrap(),
        0
    );
}

pub(super) async fn find(store: &dyn Store, query: CatalogQuery) -> Vec<String> {
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
        update.created_ms = 900 * DAY - i as i64;
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
    let newest = |counts: store::catalog::CatalogCounts| -> Vec<_> {
        let first = counts.newest.into_iter().take(2);
        first
            .map(|e| (e.sensor_id.to_string(), e.created_ms))
            .collect()
    };
    let expected = [("count/00", 900 * DAY), ("count/01", 900 * DAY - 1)];
    let expected = expected.map(|(sensor, at_ms)| (sensor.to_owned(), at_ms));
    assert_eq!(newest(counts), expected, "by when the entry was created");
    let some = CatalogQuery {
        arrived_ms: Some(range),
        prefixes: vec!["count/2".into()],
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
    let several = CatalogQuery {
        prefixes: vec!["count/03".into(), "count/2".into(), "none".into()],
        after: Some("count/24".into()),
        ..CatalogQuery::default()
    };
    let expected: Vec<String> = (25..30).map(|i| format!("count/{i}")).collect();
    assert_eq!(find(store, several.clone()).await, expected);
    let first = CatalogQuery {
        after: None,
        limit: 2,
        ..several
    };
    assert_eq!(find(store, first.clone()).await, ["count/03", "count/20"]);
    let none = CatalogQuery {
        prefixes: vec![],
        ..first
    };
    assert_eq!(find(store, none).await, [] as [&str; 0]);
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
    finds_by_tag_and_field(store).await;
    finds_by_sensor_id(store).await;
    finds_by_time(store).await;
}

fn query(tags: Vec<(String, String)>, field: Option<&str>) -> CatalogQuery {
    CatalogQuery {
        tags,
        field: field.map(ToOwned::to_owned),
        ..CatalogQuery::default()
    }
}

async fn finds_by_tag_and_field(store: &dyn Store) {
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        find(store, query(vec![tag("site", "even")], None))
            .await
            .len(),
        20
    );
    let rare = find(store, query(vec![tag("site", "even")], Some("rare"))).await;
    assert_eq!(
        rare,
        (0..10)
            .map(|i| format!("find/{:02}", i * 4))
            .collect::<Vec<_>>(),
        "in order"
    );
    assert_eq!(
        find(store, query(vec![tag("site", "odd")], Some("rare"))).await,
        [] as [&str; 0]
    );
    assert_eq!(
        find(store, query(vec![tag("site", "even"), tag("n", "1")], None)).await,
        ["find/04"]
    );
    assert_eq!(
        find(store, query(vec![tag("a=b", "c")], None)).await,
        ["find/04"]
    );
    assert_eq!(
        find(store, query(vec![tag("a", "b=c")], None)).await,
        ["find/05"]
    );
    assert_eq!(
        find(store, query(vec![], Some("none"))).await,
        [] as [&str; 0]
    );
    let page = CatalogQuery {
        limit: 3,
        after: Some("find/08".into()),
        ..query(vec![], Some("rare"))
    };
    assert_eq!(find(store, page).await, ["find/12", "find/16", "find/20"]);
}

async fn finds_by_sensor_id(store: &dyn Store) {
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
}

/// Times are precise to a day: the range is extended by one at both ends.
async fn finds_by_time(store: &dyn Store) {
    let within = |from_ms: i64, to_ms: i64| CatalogQuery {
        overlaps_ms: Some((from_ms, to_ms)),
        ..query(vec![], Some("often"))
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
