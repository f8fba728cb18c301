//! What only a real MongoDB has: the documents, the view, the validator, the indexes.

use std::sync::Arc;
use std::time::Duration;

use crate::support::mongod::unique_database;
use futures_util::TryStreamExt;
use model::batch::Tags;
use model::{BatchBuilder, PageKind, PageWrite, Span, Value};
use mongodb::bson::{Bson, DateTime, Document, doc};
use store::Store;
use store::mongo::MongoStore;

use super::{HOUR, START, append, mongo, mongo_v44, page, reading, settings, temps, write};

#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_the_documented_form() {
    let (store, db) = mongo("document").await;
    let mut builder = BatchBuilder::new(10);
    builder.value("x", model::ValueRef::Int(1)).unwrap();
    builder
        .commit("S1", 0, false, &[("floor", "2"), ("site", "north")])
        .unwrap();
    let batch = builder.finish();
    let tags = Arc::new(Tags::from_canonical(batch.iter().next().unwrap().1.tags));
    let readings = [
        reading(
            START.0,
            &[("humid", Value::Int(60)), ("temp", Value::Double(22.5))],
        ),
        reading(
            START.0 + 60_000,
            &[
                ("humid", Value::Int(58)),
                ("on", Value::Bool(true)),
                ("temp", Value::Double(23.0)),
            ],
        ),
    ];
    let first = PageWrite {
        tags: Some(tags),
        ..page("S1", 0, PageKind::Create, false, &readings[..1])
    };
    write(&store, first).await;
    write(&store, append("S1", 1, true, &readings[1..])).await;
    let found = db
        .collection::<Document>("sensor_buckets")
        .find_one(doc! {})
        .await
        .unwrap()
        .unwrap();
    let date = |ms| Bson::DateTime(DateTime::from_millis(ms));
    let expected = doc! {
        "_id": { "sensor_id": "S1", "bucket_start": date(START.0), "page": 0 },
        "schema_version": 1,
        "sensor_id": "S1",
        "bucket_start": date(START.0),
        "bucket_end": date(START.0 + HOUR),
        "page": 0,
        "tags": { "floor": "2", "site": "north" },
        "count": 2,
        "first_ts": date(START.0),
        "last_ts": date(START.0 + 60_000),
        "summary": {
            "humid": { "min": 58i64, "max": 60i64, "sum": 118i64, "count": 2 },
            "temp": { "min": 22.5, "max": 23.0, "sum": 45.5, "count": 2 },
        },
        "readings": [
            { "ts": date(START.0), "humid": 60i64, "temp": 22.5 },
            { "ts": date(START.0 + 60_000), "humid": 58i64, "on": true, "temp": 23.0 },
        ],
        "has_overflow": true,
    };
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_merges_pages_and_finds_a_sensor_by_its_index() {
    let (store, db) = mongo("view").await;
    view(&store, &db).await;
    let (store, db) = mongo_v44("view_v44").await;
    view(&store, &db).await;
}

async fn view(store: &MongoStore, db: &mongodb::Database) {
    let all = temps(0..10);
    write(store, page("S1", 0, PageKind::Create, true, &all[..6])).await;
    write(store, page("S1", 1, PageKind::Create, false, &all[6..])).await;
    write(
        store,
        page(
            "S2",
            0,
            PageKind::Create,
            false,
            &[reading(START.0, &[("state", Value::Str("on".into()))])],
        ),
    )
    .await;
    let others: Vec<_> = (0..500)
        .map(|i| page(&format!("x{i}"), 0, PageKind::Create, false, &all[..2]))
        .collect();
    store.write(&others).await.unwrap();
    let view = db.collection::<Document>("sensor_summaries");
    let rows = |filter| async {
        view.find(filter)
            .await
            .unwrap()
            .try_collect::<Vec<_>>()
            .await
            .unwrap()
    };
    let row = rows(doc! { "sensor_id": "S1", "bucket_start": DateTime::from_millis(START.0) })
        .await
        .remove(0);
    assert_eq!(
        row.keys().collect::<std::collections::BTreeSet<_>>().len(),
        6,
        "{row}"
    );
    assert_eq!(row.get_i32("count").unwrap(), 10);
    assert_eq!(
        row.get_datetime("last_ts").unwrap().timestamp_millis(),
        START.0 + 9000
    );
    let summary = row.get_document("summary").unwrap();
    let temp = doc! { "min": 0.0, "max": 4.5, "sum": 22.5, "count": 10, "avg": 2.25 };
    assert_eq!(summary.get_document("temp").unwrap(), &temp);
    assert_eq!(
        summary.get_document("n").unwrap(),
        &doc! { "min": 0i64, "max": 9i64, "sum": 45i64, "count": 10, "avg": 4.5 }
    );
    assert!(
        rows(doc! { "sensor_id": "S2" }).await[0]
            .get_document("summary")
            .unwrap()
            .is_empty()
    );
    assert_eq!(rows(doc! {}).await.len(), 502);
    let explain = doc! {
        "explain": { "find": "sensor_summaries", "filter": { "sensor_id": "S1" } }, "verbosity": "executionStats",
    };
    let plan = db.run_command(explain).await.unwrap().to_string();
    assert!(
        plan.contains("IXSCAN") && !plan.contains("COLLSCAN"),
        "the view reads everything for one sensor: {plan}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn preparing_is_repeatable_follows_the_retention_and_refuses_other_documents() {
    let name = unique_database("prepare");
    let settings = settings(&name);
    let client = mongodb::Client::with_uri_str(settings.uri.reveal())
        .await
        .unwrap();
    let db = client.database(&name);
    for (days, ttl) in [
        (None, None),
        (Some(30), Some(30 * 86_400)),
        (Some(7), Some(7 * 86_400)),
        (None, None),
    ] {
        let settings = config::Store {
            retention: days.map(|d| Duration::from_secs(d * 86_400)),
            ..settings.clone()
        };
        let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(86_400))
            .await
            .unwrap();
        store.prepare().await.unwrap();
        let indexes = db
            .run_command(doc! { "listIndexes": "sensor_buckets" })
            .await
            .unwrap();
        let batch = indexes
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .clone();
        let expire = batch.iter().find_map(|i| {
            let seconds = i.as_document()?.get("expireAfterSeconds")?;
            seconds
                .as_i64()
                .or(seconds.as_i32().map(i64::from))
                .or(seconds.as_f64().map(|f| f as i64))
        });
        assert_eq!(expire, ttl);
        let wanted = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
        assert!(
            batch.iter().any(|i| i
                .as_document()
                .unwrap()
                .get_document("key")
                .is_ok_and(|k| *k == wanted)),
            "{batch:?}"
        );
    }
    let other = db
        .collection::<Document>("sensor_buckets")
        .insert_one(doc! { "sensor_id": 5 })
        .await;
    assert!(
        other.unwrap_err().to_string().contains("validation"),
        "the validator is off"
    );
    let options = doc! { "listCollections": 1, "filter": { "name": "sensor_buckets" } };
    let options = db.run_command(options).await.unwrap().to_string();
    assert!(
        options.contains("block_compressor=zstd") && options.contains("moderate"),
        "{options}"
    );
}
