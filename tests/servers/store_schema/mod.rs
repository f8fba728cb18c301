//! The collections on real servers: the detected mode, which changes follow the settings, and what
//! is checked and warned about. See also [`refusals`] and [`queries`].

#![allow(clippy::unwrap_used, reason = "a test")]

mod queries;
mod refusals;

use crate::support;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::mongod::{Kind, Mongod, unique_database};
use config::StoreMode;
use futures_util::TryStreamExt;
use model::Span;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Database};
use store::mongo::MongoStore;
use store::{PrepareError, PrepareErrorEnd, PreparedStore, Store};

const DAY_S: u64 = 86_400;
const HOUR_MS: i64 = 3_600_000;
/// 2024-03-01T10:00:00Z
const START_MS: i64 = 1_709_287_200_000;
const MODES: [StoreMode; 2] = [StoreMode::Auto, StoreMode::Timeseries];

/// The database of a test, and the settings to open it with.
struct Rig {
    settings: config::Store,
    span: Span,
    db: Database,
}

impl Rig {
    async fn new(test: &str) -> Rig {
        Rig::on(Mongod::shared(), test).await
    }

    async fn on(mongod: &Mongod, test: &str) -> Rig {
        let uri = mongod.uri();
        let db = Client::with_uri_str(&uri)
            .await
            .unwrap()
            .database(&unique_database(test));
        let settings = config::Store {
            uri: config::Secret::new(uri),
            database: db.name().to_owned(),
            ..config::Config::default().store
        };
        Rig {
            settings,
            span: Span::HOUR,
            db,
        }
    }

    async fn store(&self) -> MongoStore {
        MongoStore::new(&self.settings, self.span, Duration::from_secs(DAY_S))
            .await
            .unwrap()
    }

    async fn prepare(&self) -> Result<PreparedStore, PrepareError> {
        self.store().await.prepare().await
    }

    /// Prepares, and expects an error that contains all `parts` and does not pass by itself.
    async fn refused(&self, parts: &[&str]) {
        let error = self.prepare().await.unwrap_err();
        assert!(!may_pass(&error), "{error}");
        for part in parts {
            assert!(error.detail.contains(part), "`{part}` is not in: {error}");
        }
    }

    /// The entry of `listCollections`.
    async fn entry(&self, name: &str) -> Option<Document> {
        let list = doc! { "listCollections": 1, "filter": { "name": name } };
        let reply = self.db.run_command(list).await.unwrap();
        let batch = reply
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        batch.first().map(|d| d.as_document().unwrap().clone())
    }

    async fn names(&self) -> Vec<String> {
        let mut names = self.db.list_collection_names().await.unwrap();
        names.sort();
        names
    }

    async fn aggregate(&self, collection: &str, pipeline: Vec<Document>) -> Vec<Document> {
        let cursor = self
            .db
            .collection::<Document>(collection)
            .aggregate(pipeline)
            .await
            .unwrap();
        cursor.try_collect().await.unwrap()
    }

    async fn indexes(&self, collection: &str) -> Vec<Document> {
        let reply = self
            .db
            .run_command(doc! { "listIndexes": collection })
            .await
            .unwrap();
        let batch = reply
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        batch
            .iter()
            .map(|d| d.as_document().unwrap().clone())
            .collect()
    }
}

fn may_pass(error: &PrepareError) -> bool {
    matches!(error.end, PrepareErrorEnd::MayPass(_))
}

fn number(value: Option<&Bson>) -> Option<i64> {
    match value? {
        Bson::Int32(n) => Some(i64::from(*n)),
        Bson::Int64(n) => Some(*n),
        Bson::Double(n) => Some(*n as i64),
        other => panic!("no number: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn native_time_series_is_detected_by_creating_and_preparing_is_repeatable() {
    for mode in MODES {
        let mut rig = Rig::new("native").await;
        rig.settings.mode = mode;
        let store = rig.store().await;
        assert_eq!(
            store.mode(),
            if mode == StoreMode::Auto {
                "bucket"
            } else {
                "timeseries"
            },
            "before it is known"
        );
        let prepared = store.prepare().await.unwrap();
        assert_eq!(store.mode(), "timeseries");
        assert_eq!(store.clone().mode(), "timeseries", "a clone knows it too");
        assert!(
            prepared
                .mode_reason
                .contains("sensor_readings is a native time-series collection"),
            "{prepared:?}"
        );
        assert!(
            prepared
                .changes
                .contains(&"created time-series collection sensor_readings".to_owned())
        );
        let entry = rig.entry("sensor_readings").await.unwrap();
        assert_eq!(entry.get_str("type").unwrap(), "timeseries");
        let options = entry.get_document("options").unwrap();
        let fields = doc! {
            "timeField": "ts", "metaField": "meta", "granularity": "seconds", "bucketMaxSpanSeconds": 3600,
        };
        assert_eq!(options.get_document("timeseries").unwrap(), &fields);
        assert!(
            options.to_string().contains("block_compressor=zstd"),
            "{options}"
        );
        let index = doc! { "meta.sensor_id": 1, "ts": -1 };
        assert!(
            rig.indexes("sensor_readings")
                .await
                .iter()
                .any(|i| *i.get_document("key").unwrap() == index)
        );
        let meta = rig
            .db
            .collection::<Document>("hourbucket_meta")
            .find_one(doc! {})
            .await
            .unwrap()
            .unwrap();
        let expected = doc! {
            "_id": "schema", "version": 1, "span_ms": HOUR_MS, "created_by": env!("CARGO_PKG_VERSION"),
        };
        assert_eq!(meta, expected);
        let again = rig.prepare().await.unwrap();
        assert!(again.changes.is_empty(), "{:?}", again.changes);
        // The server of the tests has a known fault.
        if again.server_version == "6.0.5" {
            assert!(
                again
                    .warnings
                    .iter()
                    .any(|w| w.contains("CVE-2026-8053") && w.contains("6.0.28")),
                "{again:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn longer_spans_get_coarser_buckets_of_the_server() {
    let mut rig = Rig::new("granularity").await;
    rig.span = Span::from_ms(6 * HOUR_MS).unwrap();
    rig.prepare().await.unwrap();
    let options = rig
        .entry("sensor_readings")
        .await
        .unwrap()
        .get_document("options")
        .unwrap()
        .clone();
    let timeseries = options.get_document("timeseries").unwrap();
    assert_eq!(timeseries.get_str("granularity").unwrap(), "minutes");
    assert_eq!(timeseries.get_i32("bucketMaxSpanSeconds").unwrap(), 86_400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emulation_that_creates_a_plain_collection_gets_bucket_mode() {
    let mut rig = Rig::new("emulation").await;
    rig.settings.uri = config::Secret::new(support::emulation::start(Mongod::shared().port()));
    rig.settings.mode = StoreMode::Timeseries;
    rig.refused(&[
        "it created a plain collection instead, which was removed",
        "set store.mode to auto or bucket",
    ])
    .await;
    assert!(rig.names().await.is_empty());
    rig.settings.mode = StoreMode::Auto;
    let store = rig.store().await;
    let prepared = store.prepare().await.unwrap();
    assert_eq!(store.mode(), "bucket");
    assert!(
        prepared
            .mode_reason
            .contains("it created a plain collection instead, which was removed"),
        "{prepared:?}"
    );
    assert!(rig.entry("sensor_readings").await.is_none());
    // An existing collection belongs to someone else, empty or not.
    rig.db.create_collection("sensor_readings").await.unwrap();
    rig.refused(&["plain collection"]).await;
    assert!(rig.entry("sensor_readings").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manually_created_collection_is_used_and_updated() {
    let rig = Rig::new("by_hand").await;
    let fields = doc! { "timeField": "ts", "metaField": "meta", "granularity": "hours" };
    rig.db
        .run_command(doc! { "create": "sensor_readings", "timeseries": fields })
        .await
        .unwrap();
    rig.db
        .run_command(doc! { "create": "sensor_buckets", "validator": { "old": true } })
        .await
        .unwrap();
    let view = doc! { "create": "sensor_summaries", "viewOn": "sensor_buckets", "pipeline": [] };
    rig.db.run_command(view).await.unwrap();
    let prepared = rig.prepare().await.unwrap();
    for change in [
        "updated the validator of sensor_buckets",
        "updated view sensor_summaries",
    ] {
        assert!(
            prepared.changes.contains(&change.to_owned()),
            "{change}: {prepared:?}"
        );
    }
    let index = doc! { "meta.sensor_id": 1, "ts": -1 };
    assert!(
        rig.indexes("sensor_readings")
            .await
            .iter()
            .any(|i| *i.get_document("key").unwrap() == index)
    );
    assert!(rig.prepare().await.unwrap().changes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_with_the_same_keys_and_another_name_is_used() {
    let mut rig = Rig::new("indexes").await;
    rig.settings.retention_readings = Some(Duration::from_secs(365 * DAY_S));
    rig.settings.retention = Some(Duration::from_secs(730 * DAY_S));
    let fields = doc! { "timeField": "ts", "metaField": "meta" };
    rig.db
        .run_command(doc! { "create": "sensor_readings", "timeseries": fields })
        .await
        .unwrap();
    // As mongosh names and types them.
    for (collection, name, key) in [
        (
            "sensor_readings",
            "meta.sensor_id_1_ts_-1",
            doc! { "meta.sensor_id": 1, "ts": -1.0 },
        ),
        (
            "sensor_buckets",
            "sensor_id_1_bucket_start_-1_page_1",
            doc! { "sensor_id": 1.0, "bucket_start": -1.0, "page": 1.0 },
        ),
        (
            "sensor_buckets",
            "mine",
            doc! { "storage": 1, "readings_removed": 1, "bucket_end": 1 },
        ),
        (
            "sensor_catalog",
            "last_arrival_1",
            doc! { "last_arrival": 1 },
        ),
        (
            "dead_letters",
            "received",
            doc! { "received_at": 1, "_id": 1 },
        ),
    ] {
        let index = doc! { "key": key, "name": name };
        rig.db
            .run_command(doc! { "createIndexes": collection, "indexes": [index] })
            .await
            .unwrap();
    }
    rig.prepare().await.unwrap();
    let store = rig.store().await;
    store.prepare().await.unwrap();
    let removed = store.remove_readings(START_MS, 25).await.unwrap();
    assert_eq!(removed.found, 0);
    assert_eq!(store.count_catalog((0, START_MS)).await.unwrap().known, 0);

    let rig = Rig::new("name").await;
    let index = doc! { "key": { "x": 1 }, "name": "sensor_bucket_page" };
    rig.db
        .run_command(doc! { "createIndexes": "sensor_buckets", "indexes": [index] })
        .await
        .unwrap();
    rig.refused(&["db.sensor_buckets.dropIndex(\"sensor_bucket_page\")"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_follows_the_setting_in_both_collections() {
    let mut rig = Rig::new("retention").await;
    // 24855 days is the maximum of the setting, and more than a time-series collection supports.
    // The mode in which measurements were written, and a later mode in which they are still stored.
    for mode in [StoreMode::Auto, StoreMode::Bucket] {
        for days in [Some(30), Some(7), None, Some(24_855), None] {
            rig.settings = config::Store {
                mode,
                retention: days.map(|d| Duration::from_secs(d * DAY_S)),
                ..rig.settings.clone()
            };
            let changes = rig.prepare().await.unwrap().changes;
            let kept_s = days.map(|d| (d * DAY_S) as i64);
            let entry = rig.entry("sensor_readings").await.unwrap();
            let readings = number(
                entry
                    .get_document("options")
                    .unwrap()
                    .get("expireAfterSeconds"),
            );
            assert_eq!(
                readings,
                kept_s.filter(|_| days != Some(24_855)).map(|s| s + 3600),
                "{mode:?} {days:?}"
            );
            let indexes = rig.indexes("sensor_buckets").await;
            let ttl = indexes
                .iter()
                .find(|i| i.get_str("name").unwrap() == "bucket_end_ttl");
            assert_eq!(
                number(ttl.and_then(|i| i.get("expireAfterSeconds"))),
                kept_s,
                "{mode:?} {days:?}"
            );
            let lines = changes
                .iter()
                .filter(|c| c.contains("retention of sensor_") || c.contains("for ever"));
            assert!(lines.count() >= 1, "{mode:?} {days:?}: {changes:?}");
            assert!(rig.prepare().await.unwrap().changes.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_start_together_agree_on_mode_and_span() {
    let rig = Rig::new("race").await;
    let quarter = Span::from_ms(900_000).unwrap();
    let starts = (0..12).map(|i| {
        let settings = rig.settings.clone();
        let span = if i % 2 == 0 { Span::HOUR } else { quarter };
        tokio::spawn(async move {
            let store = MongoStore::new(&settings, span, Duration::from_secs(DAY_S))
                .await
                .unwrap();
            let prepared = store.prepare().await;
            (span, store.mode(), prepared)
        })
    });
    let mut good = BTreeMap::<i64, u32>::new();
    for start in starts.collect::<Vec<_>>() {
        match start.await.unwrap() {
            (span, mode, Ok(_)) => {
                assert_eq!(mode, "timeseries");
                *good.entry(span.ms()).or_default() += 1;
            }
            (_, _, Err(error)) => assert!(
                may_pass(&error) || error.detail.contains("bucket.span"),
                "{error}"
            ),
        }
    }
    assert_eq!(good.len(), 1, "both spans were accepted: {good:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn checking_changes_nothing_and_warns() {
    let rig = Rig::new("inspect").await;
    let (text, warnings) = rig.store().await.schema().inspect().await.unwrap();
    for part in [
        "MongoDB ",
        "replica set rs0",
        "collections will be created",
        "sensor_readings will be created",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        warnings.iter().any(|w| w.contains("CVE-2026-8053")),
        ["5.0.32", "6.0.5", "6.0.27"]
            .iter()
            .any(|faulty| text.contains(&format!("MongoDB {faulty}"))),
        "{warnings:?}"
    );
    assert!(rig.names().await.is_empty());
    rig.prepare().await.unwrap();
    let (text, _) = rig.store().await.schema().inspect().await.unwrap();
    assert!(
        text.contains("collections exist, sensor_readings is a native time-series collection"),
        "{text}"
    );
    let mut rig = rig;
    rig.settings = config::Store {
        mode: StoreMode::Bucket,
        write_concern: "1".into(),
        ..rig.settings
    };
    let (text, warnings) = rig.store().await.schema().inspect().await.unwrap();
    assert!(text.contains("store.mode is bucket"), "{text}");
    assert!(
        matches!(&warnings[..], [w] if w.contains("store.write_concern is not majority")),
        "{warnings:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_server_is_used_with_a_warning() {
    let mongod = Mongod::start_kind(Kind {
        standalone: true,
        ..Kind::default()
    });
    let rig = Rig::on(&mongod, "standalone").await;
    let prepared = rig.prepare().await.unwrap();
    assert!(
        prepared.warnings.iter().any(|w| w.contains("standalone")),
        "{prepared:?}"
    );
    assert!(
        prepared.mode_reason.ends_with("(standalone)"),
        "{prepared:?}"
    );
}
