//! Databases that are refused before anything in them is changed, with advice: other collections,
//! missing privileges, another span, a newer version, no mongos.

use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::mongod::{Kind, Mongod, unique_database};
use config::StoreMode;
use model::{Span, Zone};
use mongodb::Client;
use mongodb::bson::{DateTime, Document, doc};
use store::Store;
use store::mongo::{OptionalIndexes, RollupSchema};

use super::{DAY_S, MODES, Rig, START_MS, may_pass};

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
        let error = rig
            .store()
            .await
            .schema()
            .inspect()
            .await
            .unwrap_err()
            .to_string();
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
async fn a_name_that_something_else_has_is_refused_before_anything_is_created() {
    let view = |name: &str| doc! { "create": name, "viewOn": "x", "pipeline": [] };
    let series = |name: &str| doc! { "create": name, "timeseries": { "timeField": "ts" } };
    let plain = [
        "sensor_buckets",
        "dead_letters",
        "hourbucket_meta",
        "sensor_catalog",
        "sensor_latest",
        "sensor_days",
        "rollup_pending",
    ];
    let mut others = vec![
        (
            doc! { "create": "sensor_summaries" },
            "is a plain collection",
        ),
        (
            doc! { "create": "sensor_day_summaries" },
            "is a plain collection",
        ),
        (
            doc! { "create": "sensor_buckets", "capped": true, "size": 100_000 },
            "is a capped collection",
        ),
    ];
    for name in plain {
        others.push((view(name), "is a view"));
        others.push((series(name), "is a time-series collection"));
    }
    let rig = Rig::new("kinds").await;
    let rollup = RollupSchema {
        zone: Zone::UTC,
        days: Some(None),
        columns: Some(None),
    };
    let optional = OptionalIndexes {
        latest: true,
        tags_index: false,
    };
    for (create, is) in others {
        let name = create.get_str("create").unwrap().to_owned();
        rig.db.run_command(create.clone()).await.unwrap();
        let store = rig
            .store()
            .await
            .with_latest_and_tags(optional)
            .with_rollup(Some(rollup));
        let checked = store.schema().inspect().await.unwrap_err().to_string();
        let prepared = store.prepare().await.unwrap_err();
        assert!(!may_pass(&prepared), "{prepared}");
        for text in [checked, prepared.detail] {
            for part in [&name, is, "drop", "store.database"] {
                assert!(text.contains(part), "`{part}` is not in: {text}");
            }
        }
        let mut names = rig.names().await;
        names.retain(|name| !name.starts_with("system."));
        assert_eq!(names, [name], "nothing was created before the refusal");
        rig.db.drop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_refuse_or_remove_documents_is_refused_with_the_remedy() {
    let collated =
        |name: &str| doc! { "create": name, "collation": { "locale": "en", "strength": 2 } };
    let index = |name: &str, key: Document, option: Document| {
        let mut index = doc! { "key": key, "name": "mine" };
        index.extend(option);
        doc! { "createIndexes": name, "indexes": [index] }
    };
    let unique = || doc! { "unique": true };
    let expires = || doc! { "expireAfterSeconds": 3600 };
    let rig = Rig::new("foreign").await;
    for (command, name, parts) in [
        (
            collated("sensor_buckets"),
            "sensor_buckets",
            ["collation", "rename or drop"],
        ),
        (
            collated("sensor_catalog"),
            "sensor_catalog",
            ["collation", "store.database"],
        ),
        (
            collated("sensor_aliases"),
            "sensor_aliases",
            ["collation", "store.database"],
        ),
        (
            index("sensor_aliases", doc! { "sensor_id": 1 }, unique()),
            "sensor_aliases",
            ["unique", "db.sensor_aliases.dropIndex(\"mine\")"],
        ),
        (
            index(
                "sensor_buckets",
                doc! { "sensor_id": 1, "bucket_start": 1 },
                unique(),
            ),
            "sensor_buckets",
            ["unique", "db.sensor_buckets.dropIndex(\"mine\")"],
        ),
        (
            index("sensor_catalog", doc! { "tags.serial": 1 }, unique()),
            "sensor_catalog",
            ["unique", "db.sensor_catalog.dropIndex(\"mine\")"],
        ),
        (
            index("sensor_buckets", doc! { "first_ts": 1 }, expires()),
            "sensor_buckets",
            ["3600 s after first_ts", "store.retention"],
        ),
        (
            index("hourbucket_meta", doc! { "at": 1 }, expires()),
            "hourbucket_meta",
            ["3600 s after at", "dropIndex"],
        ),
        (
            doc! { "create": "dead_letters", "validator": { "mine": true } },
            "dead_letters",
            ["validator", "collMod"],
        ),
    ] {
        rig.db.run_command(command.clone()).await.unwrap();
        let checked = rig
            .store()
            .await
            .schema()
            .inspect()
            .await
            .unwrap_err()
            .to_string();
        rig.refused(&[&[name, "nothing was changed"][..], &parts].concat())
            .await;
        for part in parts {
            assert!(checked.contains(part), "`{part}` is not in: {checked}");
        }
        assert_eq!(
            rig.names().await,
            [name],
            "nothing was created before the refusal"
        );
        rig.db.drop().await.unwrap();
    }
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
    let error = rig
        .store()
        .await
        .schema()
        .inspect()
        .await
        .unwrap_err()
        .to_string();
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
