//! The collections on real servers: the detected mode, refusals and their advice, which changes
//! follow the settings, which privileges are needed, and that both storage modes of a bucket give
//! the same results.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::support::mongod::{Kind, Mongod, unique_database};
use futures_util::TryStreamExt;
use hourbucket::config::{self, StoreMode};
use hourbucket::model::Span;
use hourbucket::store::mongo::{MongoStore, ReadingsLocation, raw_readings_pipeline};
use hourbucket::store::{PrepareError, PreparedStore, Store};
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Client, Database};

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

    /// Prepares, and expects a permanent error that contains all `parts`.
    async fn refused(&self, parts: &[&str]) {
        let error = self.prepare().await.unwrap_err();
        assert!(!error.transient, "{error}");
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
async fn a_collection_that_does_not_fit_is_refused_and_not_changed() {
    let mut rig = Rig::new("plain").await;
    let plain = rig.db.collection::<Document>("sensor_readings");
    plain.insert_one(doc! { "mine": true }).await.unwrap();
    for mode in MODES {
        rig.settings.mode = mode;
        rig.refused(&[
            "plain collection",
            "rename or drop sensor_readings",
            "store.mode = \"bucket\"",
        ])
        .await;
        let error = rig.store().await.inspect().await.unwrap_err().to_string();
        assert!(error.contains("plain collection"), "{error}");
    }
    assert_eq!(plain.count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(
        rig.names().await,
        ["sensor_readings"],
        "nothing was created before the refusal"
    );
    rig.settings.mode = StoreMode::Bucket;
    let store = rig.store().await;
    let prepared = store.prepare().await.unwrap();
    assert_eq!(
        (store.mode(), prepared.mode_reason.as_str()),
        ("bucket", "store.mode is bucket (replica set rs0)")
    );
    assert!(
        prepared.warnings.is_empty(),
        "the faults are those of time-series: {prepared:?}"
    );

    let rig = Rig::new("a_view").await;
    let view = doc! { "create": "sensor_readings", "viewOn": "x", "pipeline": [] };
    rig.db.run_command(view).await.unwrap();
    rig.refused(&["there is a view of that name", "store.mode = \"bucket\""])
        .await;

    for (fields, text) in [
        (
            doc! { "timeField": "time", "metaField": "meta" },
            "its time field is `time`",
        ),
        (
            doc! { "timeField": "ts", "metaField": "tags" },
            "meta field `tags`",
        ),
        (doc! { "timeField": "ts" }, "meta field none"),
    ] {
        let mut rig = Rig::new("other_fields").await;
        rig.db
            .run_command(doc! { "create": "sensor_readings", "timeseries": fields })
            .await
            .unwrap();
        for mode in MODES {
            rig.settings.mode = mode;
            rig.refused(&[
                text,
                "`ts` and `meta`",
                "rename or drop",
                "store.mode = \"bucket\"",
            ])
            .await;
        }
    }
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
async fn missing_privileges_are_named_and_few_are_needed_after_init() {
    let mongod = Mongod::start_kind(Kind {
        users: true,
        ..Kind::default()
    });
    let mut rig = Rig::on(&mongod, "rights").await;
    let name = rig.db.name().to_owned();
    mongod.add_user("reader", vec![doc! { "role": "read", "db": &name }]);
    mongod.add_user("writer", vec![doc! { "role": "readWrite", "db": &name }]);
    let root = rig.settings.uri.clone();
    let as_user = |user: &str| config::Secret::new(mongod.uri_as(user));
    rig.settings.uri = as_user("reader");
    for mode in MODES {
        rig.settings.mode = mode;
        rig.refused(&[
            "createCollection",
            "role readWrite",
            "hourbucket init",
            "store.mode = \"bucket\"",
        ])
        .await;
    }
    rig.settings.mode = StoreMode::Bucket;
    rig.refused(&["readWrite", "hourbucket init"]).await;
    assert!(rig.names().await.is_empty());

    // Created by a user with all privileges, used by one with few.
    rig.settings = config::Store {
        uri: root.clone(),
        mode: StoreMode::Auto,
        ..rig.settings
    };
    rig.prepare().await.unwrap();
    rig.settings.uri = as_user("writer");
    let store = rig.store().await;
    let prepared = store.prepare().await.unwrap();
    assert_eq!(
        (store.mode(), prepared.changes.len()),
        ("timeseries", 0),
        "{prepared:?}"
    );
    // Operations that need more privileges report that.
    rig.settings.retention = Some(Duration::from_secs(DAY_S));
    rig.refused(&["retention", "dbAdmin", "hourbucket init"])
        .await;
    // On an empty database readWrite is enough.
    rig.settings = config::Store {
        uri: root,
        retention: None,
        ..rig.settings
    };
    rig.db.drop().await.unwrap();
    rig.settings.uri = as_user("writer");
    assert!(!rig.prepare().await.unwrap().changes.is_empty());
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
async fn another_span_and_a_newer_version_are_refused_before_anything_is_changed() {
    let mut rig = Rig::new("span").await;
    rig.prepare().await.unwrap();
    let names = rig.names().await;
    rig.span = Span::from_ms(15 * 60_000).unwrap();
    rig.settings.retention = Some(Duration::from_secs(DAY_S));
    let advice = [
        "was written with bucket.span = \"1h\"",
        "bucket.span is \"15m\"",
        "use another store.database",
    ];
    rig.refused(&advice).await;
    let error = rig.store().await.inspect().await.unwrap_err().to_string();
    assert!(advice.iter().all(|part| error.contains(part)), "{error}");
    assert_eq!(
        rig.indexes("sensor_buckets").await.len(),
        2,
        "the retention was not set"
    );
    assert_eq!(rig.names().await, names);
    rig.span = Span::HOUR;
    let meta = rig.db.collection::<Document>("hourbucket_meta");
    meta.update_one(doc! { "_id": "schema" }, doc! { "$set": { "version": 2 } })
        .await
        .unwrap();
    rig.refused(&[
        "newer hourbucket",
        "schema version 2",
        "this one supports 1",
    ])
    .await;
    assert_eq!(rig.indexes("sensor_buckets").await.len(), 2);

    // Written before the metadata existed: the pages show the span.
    let mut rig = Rig::new("span_legacy").await;
    let date = DateTime::from_millis;
    let page = doc! { "schema_version": 1, "bucket_start": date(START_MS), "bucket_end": date(START_MS + 900_000) };
    rig.db
        .collection::<Document>("sensor_buckets")
        .insert_one(page)
        .await
        .unwrap();
    rig.refused(&[
        "was written with bucket.span = \"15m\"",
        "bucket.span is \"1h\"",
    ])
    .await;
    assert_eq!(rig.names().await, ["sensor_buckets"]);
    rig.span = Span::from_ms(900_000).unwrap();
    rig.prepare().await.unwrap();
    rig.db
        .collection::<Document>("sensor_buckets")
        .delete_many(doc! {})
        .await
        .unwrap();
    rig.span = Span::HOUR;
    rig.refused(&["was written with bucket.span = \"15m\""])
        .await;
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
                error.transient || error.detail.contains("bucket.span"),
                "{error}"
            ),
        }
    }
    assert_eq!(good.len(), 1, "both spans were accepted: {good:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn checking_changes_nothing_and_warns() {
    let rig = Rig::new("inspect").await;
    let (text, warnings) = rig.store().await.inspect().await.unwrap();
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
        text.contains("MongoDB 6.0.5"),
        "{warnings:?}"
    );
    assert!(rig.names().await.is_empty());
    rig.prepare().await.unwrap();
    let (text, _) = rig.store().await.inspect().await.unwrap();
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
    let (text, warnings) = rig.store().await.inspect().await.unwrap();
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

#[test]
fn sharding_is_refused_without_a_mongos() {
    let mongod = Mongod::shared();
    let database = unique_database("shard");
    let dir = tempfile::tempdir().unwrap();
    let init = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .arg("init")
            .args(arguments)
            .current_dir(dir.path())
            .env("HOURBUCKET_STORE__URI", mongod.uri())
            .env("HOURBUCKET_STORE__DATABASE", &database)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (code, text) = init(&["--shard"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("replica set rs0") && text.contains("mongos"),
        "{text}"
    );
    let names = support::block_on(async {
        let client = Client::with_uri_str(mongod.uri()).await.unwrap();
        client
            .database(&database)
            .list_collection_names()
            .await
            .unwrap()
    });
    assert!(names.is_empty(), "{names:?}");
    let (code, text) = init(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("created time-series collection sensor_readings") && text.contains("ready: "),
        "{text}"
    );
}

/// The command that a mongos sends to a shard before it shards a collection with data; a replica
/// set answers it too.
#[tokio::test(flavor = "multi_thread")]
async fn the_collections_have_the_indexes_that_their_shard_keys_need() {
    let rig = Rig::new("shard_keys").await;
    rig.prepare().await.unwrap();
    insert(&rig, "S1", true, &[START_MS]).await;
    let supports = async |collection: &str, key: Document| {
        let check = doc! { "checkShardingIndex": format!("{}.{collection}", rig.db.name()), "keyPattern": key };
        rig.db.run_command(check).await.is_ok()
    };
    assert!(
        supports(
            "system.buckets.sensor_readings",
            doc! { "meta.sensor_id": 1 }
        )
        .await
    );
    let pages = doc! { "sensor_id": 1, "bucket_start": 1 };
    assert!(
        !supports("sensor_buckets", pages.clone()).await,
        "`init --shard` does not need to create an index"
    );
    let index = doc! { "createIndexes": "sensor_buckets", "indexes": [{ "key": pages.clone(), "name": "shard_key" }] };
    rig.db.run_command(index).await.unwrap();
    assert!(supports("sensor_buckets", pages).await);
}

/// Readings of a sensor around two hours: `(ts, values)`, not in order, with one `ts` twice with
/// different values.
fn readings() -> Vec<(i64, Document)> {
    let mut readings: Vec<(i64, Document)> = (0..150)
        .map(|i| {
            let mut values = doc! { "temp": f64::from(i) / 2.0, "n": i64::from(i) };
            if i % 7 == 0 {
                values.insert("state", "on");
                values.insert("open", i % 2 == 0);
            }
            (START_MS + i64::from(i) * 60_000 - 20 * 60_000, values)
        })
        .collect();
    readings.push((START_MS, doc! { "temp": -1.5 }));
    readings.swap(3, 90);
    readings
}

/// The documents of one hour: its summary in both modes.
fn bucket(sensor: &str, start_ms: i64, page: i32, readings: &[(i64, Document)]) -> Document {
    let date = |ms| Bson::DateTime(DateTime::from_millis(ms));
    let times = readings.iter().map(|(ts, _)| *ts);
    let temps: Vec<f64> = readings
        .iter()
        .filter_map(|(_, v)| v.get_f64("temp").ok())
        .collect();
    let summary = doc! { "temp": {
        "min": temps.iter().copied().fold(f64::INFINITY, f64::min),
        "max": temps.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "sum": temps.iter().sum::<f64>(),
        "count": temps.len() as i32,
    } };
    doc! {
        "_id": { "sensor_id": sensor, "bucket_start": date(start_ms), "page": page },
        "schema_version": 1, "sensor_id": sensor,
        "bucket_start": date(start_ms), "bucket_end": date(start_ms + HOUR_MS), "page": page,
        "count": readings.len() as i32,
        "first_ts": date(times.clone().min().unwrap()), "last_ts": date(times.max().unwrap()),
        "summary": summary,
    }
}

/// Writes the readings of the hours in `hours` in one mode.
async fn insert(rig: &Rig, sensor: &str, native: bool, hours: &[i64]) {
    let mut by_hour = BTreeMap::<i64, Vec<(i64, Document)>>::new();
    for (ts, values) in readings() {
        by_hour
            .entry(Span::HOUR.floor(ts).0)
            .or_default()
            .push((ts, values));
    }
    let date = |ms| Bson::DateTime(DateTime::from_millis(ms));
    let reading = |(ts, values): &(i64, Document), mut head: Document| {
        head.insert("ts", date(*ts));
        head.extend(values.clone());
        head
    };
    for (start_ms, readings) in by_hour.iter().filter(|(start, _)| hours.contains(start)) {
        let buckets = rig.db.collection::<Document>("sensor_buckets");
        if native {
            let mut document = bucket(sensor, *start_ms, 0, readings);
            document.insert("storage", "timeseries");
            buckets.insert_one(document).await.unwrap();
            let meta = doc! { "meta": { "sensor_id": sensor, "tags": { "site": "north" } } };
            let measurements = readings.iter().map(|r| reading(r, meta.clone()));
            rig.db
                .collection("sensor_readings")
                .insert_many(measurements)
                .await
                .unwrap();
        } else {
            for (page, readings) in readings.chunks(40).enumerate() {
                let mut document = bucket(sensor, *start_ms, page as i32, readings);
                let stored: Vec<Document> = readings.iter().map(|r| reading(r, doc! {})).collect();
                document.insert("readings", stored);
                document.insert("has_overflow", true);
                buckets.insert_one(document).await.unwrap();
            }
        }
    }
}

/// The result of the documented query, without the sensor; sorted by `ts` as required, and by
/// `temp` within one `ts`.
async fn rows(
    rig: &Rig,
    storage_mode: ReadingsLocation,
    sensor: &str,
    from_ms: i64,
    to_ms: i64,
) -> Vec<Document> {
    let collection = if storage_mode == ReadingsLocation::Measurements {
        "sensor_readings"
    } else {
        "sensor_buckets"
    };
    let mut rows = rig
        .aggregate(
            collection,
            raw_readings_pipeline(storage_mode, sensor, from_ms, to_ms, Span::HOUR),
        )
        .await;
    let ts = |row: &Document| row.get_datetime("ts").unwrap().timestamp_millis();
    assert!(rows.is_sorted_by_key(ts), "{rows:?}");
    for row in &mut rows {
        assert_eq!(row.remove("sensor_id"), Some(Bson::from(sensor)));
    }
    rows.sort_by_cached_key(|row| (ts(row), row.get("temp").unwrap().to_string()));
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn both_modes_give_the_same_rows() {
    let rig = Rig::new("forms").await;
    rig.prepare().await.unwrap();
    let hours = [
        START_MS - HOUR_MS,
        START_MS,
        START_MS + HOUR_MS,
        START_MS + 2 * HOUR_MS,
    ];
    insert(&rig, "pages", false, &hours).await;
    insert(&rig, "native", true, &hours).await;
    // A change of mode, and a change back.
    insert(&rig, "mixed", false, &hours[..2]).await;
    insert(&rig, "mixed", true, &hours[2..3]).await;
    insert(&rig, "mixed", false, &hours[3..]).await;

    let begin = START_MS - 20 * 60_000;
    let end = START_MS + 130 * 60_000;
    for (from_ms, to_ms) in [
        (begin, end),
        (START_MS + 1, START_MS + HOUR_MS),
        (START_MS, START_MS + 1),
        (end, end + 5),
    ] {
        let expected = readings()
            .iter()
            .filter(|(ts, _)| (from_ms..to_ms).contains(ts))
            .count();
        let pages = rows(&rig, ReadingsLocation::Pages, "pages", from_ms, to_ms).await;
        assert_eq!(pages.len(), expected, "{from_ms}..{to_ms}");
        let native = rows(
            &rig,
            ReadingsLocation::Measurements,
            "native",
            from_ms,
            to_ms,
        )
        .await;
        assert_eq!(native, pages, "{from_ms}..{to_ms}");
        for sensor in ["pages", "native", "mixed"] {
            let both = rows(&rig, ReadingsLocation::Both, sensor, from_ms, to_ms).await;
            assert_eq!(both, pages, "{sensor} {from_ms}..{to_ms}");
        }
    }

    // The query for both modes does not need sensor_readings, so it works on servers without
    // time-series collections.
    let old = Rig::on(Mongod::shared_v44(), "forms_v44").await;
    old.prepare().await.unwrap();
    insert(&old, "pages", false, &hours).await;
    let pages = rows(&rig, ReadingsLocation::Pages, "pages", begin, end).await;
    for storage_mode in [ReadingsLocation::Pages, ReadingsLocation::Both] {
        assert_eq!(
            rows(&old, storage_mode, "pages", begin, end).await,
            pages,
            "{storage_mode:?} on 4.4"
        );
    }

    let summaries = |sensor: &'static str| {
        let pipeline = vec![
            doc! { "$match": { "sensor_id": sensor } },
            doc! { "$unset": "sensor_id" },
            doc! { "$sort": { "bucket_start": 1 } },
        ];
        rig.aggregate("sensor_summaries", pipeline)
    };
    let pages = summaries("pages").await;
    assert_eq!(pages.len(), 4);
    let first = pages[1]
        .get_document("summary")
        .unwrap()
        .get_document("temp")
        .unwrap();
    assert_eq!(
        (
            first.get_f64("min").unwrap(),
            first.get_i32("count").unwrap()
        ),
        (-1.5, 61)
    );
    assert!(first.get_f64("avg").unwrap() > 0.0);
    assert_eq!(summaries("native").await, pages);
    assert_eq!(summaries("mixed").await, pages);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queries_for_readings_use_an_index() {
    let rig = Rig::new("explain").await;
    rig.prepare().await.unwrap();
    for i in 0..20 {
        for native in [false, true] {
            insert(
                &rig,
                ["pages", "native"][usize::from(native)],
                native,
                &[START_MS - HOUR_MS + i * HOUR_MS],
            )
            .await;
        }
    }
    for (storage_mode, collection) in [
        (ReadingsLocation::Pages, "sensor_buckets"),
        (ReadingsLocation::Measurements, "sensor_readings"),
        (ReadingsLocation::Both, "sensor_buckets"),
    ] {
        let pipeline = raw_readings_pipeline(
            storage_mode,
            "native",
            START_MS,
            START_MS + HOUR_MS,
            Span::HOUR,
        );
        let explain = doc! {
            "explain": { "aggregate": collection, "pipeline": pipeline, "cursor": {} }, "verbosity": "queryPlanner",
        };
        let plan = rig.db.run_command(explain).await.unwrap().to_string();
        assert!(
            plan.contains("IXSCAN") && !plan.contains("COLLSCAN"),
            "{storage_mode:?}: {plan}"
        );
    }
}
