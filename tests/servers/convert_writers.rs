//! `hourbucket convert` while others write the same buckets: appends before, during and after the
//! swap, and by a service that has loaded the bucket earlier.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support;
use crate::support::seed::{HOUR, SPAN, START, Seed, page, reading, readings};
use model::StorageMode;
use mongodb::bson::{DateTime, Document, doc};
use store::maintain::Step;
use store::mongo::Hook;

use super::convert::{convert, pages, storage_modes, whole};

/// Appends a reading to a page as the service does.
async fn append(
    db: &mongodb::Database,
    sensor: &str,
    number: i32,
    known: i32,
    new: (i64, i64),
) -> bool {
    let filter = doc! {
        "_id": { "sensor_id": sensor, "bucket_start": DateTime::from_millis(START), "page": number },
        "sensor_id": sensor,
        "bucket_start": DateTime::from_millis(START),
        "count": { "$gte": known, "$lte": known },
        "has_overflow": { "$ne": true },
    };
    let n = new.1;
    let half = new.1 as f64 / 2.0;
    let update = doc! {
        "$push": { "readings": { "$each": [reading(&new)] } },
        "$inc": { "count": 1, "summary.n.sum": n, "summary.n.count": 1, "summary.half.sum": half, "summary.half.count": 1 },
        "$min": { "first_ts": DateTime::from_millis(new.0), "summary.n.min": n, "summary.half.min": half },
        "$max": { "last_ts": DateTime::from_millis(new.0), "summary.n.max": n, "summary.half.max": half },
        "$setOnInsert": {
            "schema_version": 1, "bucket_end": DateTime::from_millis(START + HOUR), "page": number, "tags": {},
        },
    };
    db.collection::<Document>("sensor_buckets")
        .update_one(filter, update)
        .upsert(true)
        .await
        .is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_before_the_swap_is_converted_too() {
    for (step, number) in [
        (Step::Read, 2),
        (Step::Copied, 2),
        (Step::Verified, 2),
        (Step::Verified, 0),
    ] {
        let seed = Seed::new("append").await;
        seed.native().await;
        let mut all = pages(&seed).await;
        let (sensor, known) = if number == 2 { ("C", 500) } else { ("A", 90) };
        let db = seed.db.clone();
        let met = Arc::new(AtomicU32::new(0));
        let count = met.clone();
        let hook: Hook = Arc::new(move |at, bucket| {
            if at == step
                && (&*bucket.sensor_id, bucket.start.0) == (sensor, START)
                && count.fetch_add(1, Ordering::Relaxed) == 0
            {
                let new = (START + 3_000_000, 9999);
                assert!(support::block_on(async {
                    let uri = support::mongod::Mongod::shared().uri();
                    let client = mongodb::Client::with_uri_str(uri).await.unwrap();
                    append(&client.database(db.name()), sensor, number, known, new).await
                }));
            }
            false
        });
        let done = convert(&seed, StorageMode::TimeSeries, Some(hook))
            .await
            .unwrap();
        assert_eq!((done.buckets, done.skipped_total), (3, 0), "{done:?}");
        assert!(met.load(Ordering::Relaxed) >= 2, "it had to start again");
        all.push((sensor.to_owned(), START + 3_000_000, 9999));
        whole(&seed, &all, &seed.summaries().await, "after an append").await;
        assert_eq!(storage_modes(&seed).await, BTreeSet::from(["timeseries"]));
        assert!(
            !append(&seed.db, "C", 0, 1000, (START, 1)).await,
            "an append with the previous version is a conflict"
        );
    }
}

/// Whether a statement was refused because the page exists, in another version or another mode.
fn conflicts(result: mongodb::error::Result<impl Sized>) -> bool {
    result.is_err_and(|e| e.to_string().contains("E11000"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_has_loaded_the_bucket_before_the_swap_conflicts_with_each_of_its_pages() {
    let seed = Seed::new("expected").await;
    seed.native().await;
    let all = pages(&seed).await;
    // The next page of a sealed one is expected, too.
    seed.update("A", START, 0, doc! { "$set": { "has_overflow": true } })
        .await;
    let summaries = seed.summaries().await;
    let buckets = seed.db.collection::<Document>("sensor_buckets");
    for into in [
        StorageMode::TimeSeries,
        StorageMode::Bucket,
        StorageMode::TimeSeries,
    ] {
        let before: Vec<(&str, i32, Option<i32>)> = match into {
            StorageMode::TimeSeries => {
                vec![("A", 0, Some(90)), ("A", 1, None), ("C", 2, Some(500))]
            }
            // The pages share the count.
            StorageMode::Bucket => vec![("A", 1, Some(45)), ("C", 2, Some(833))],
        };
        convert(&seed, into, None).await.unwrap();
        for (sensor, number, known) in before {
            let there = seed.page(sensor, START, number).await.unwrap();
            match known {
                Some(known) => {
                    let filter = doc! {
                        "_id": there.get_document("_id").unwrap(),
                        "sensor_id": sensor,
                        "bucket_start": DateTime::from_millis(START),
                        "count": { "$gte": known, "$lte": known },
                        "has_overflow": { "$ne": true },
                        "storage": match into {
                            StorageMode::TimeSeries => doc! { "$ne": "timeseries" },
                            StorageMode::Bucket => doc! { "$eq": "timeseries" },
                        },
                    };
                    let mut new = page(sensor, START, number, false, &readings(START, 90..91));
                    ["_id", "sensor_id", "bucket_start", "count"]
                        .iter()
                        .for_each(|name| drop(new.remove(name)));
                    let update = doc! { "$inc": { "count": 1 }, "$setOnInsert": new };
                    let append = buckets.update_one(filter, update).upsert(true).await;
                    assert!(
                        conflicts(append),
                        "{into:?}: page {number} of {sensor}: {there}"
                    );
                }
                None => {
                    let create = page(sensor, START, number, false, &readings(START, 90..91));
                    assert!(
                        conflicts(buckets.insert_one(create).await),
                        "{into:?}: page {number} of {sensor}"
                    );
                }
            }
        }
        whole(&seed, &all, &summaries, &format!("{into:?}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_created_after_the_swap_is_folded_in() {
    for command in ["convert", "reconcile"] {
        let seed = Seed::new("stray").await;
        seed.native().await;
        let mut all = pages(&seed).await;
        convert(&seed, StorageMode::TimeSeries, None).await.unwrap();
        // As an earlier version left it.
        let single = doc! { "$set": { "count": 2500 }, "$unset": { "has_overflow": 1 } };
        seed.update("C", START, 0, single).await;
        let others = doc! { "sensor_id": "C", "page": { "$gt": 0 } };
        seed.db
            .collection::<Document>("sensor_buckets")
            .delete_many(others)
            .await
            .unwrap();
        // Two appends of a service that had loaded page 2 before; one of them repeats a stored
        // reading.
        for (known, new) in [(500, (START + 777, 7777)), (1, (START + 3000, 3))] {
            assert!(append(&seed.db, "C", 2, known, new).await);
        }
        all.push(("C".into(), START + 777, 7777));
        let stray = seed.page("C", START, 2).await.unwrap();
        assert_eq!(stray.get_i32("count").unwrap(), 2, "created again: {stray}");
        // An append that does not name the storage mode matches the same count in the new document,
        // if the bucket has one page.
        assert!(append(&seed.db, "A", 0, 90, (START + 888, 8888)).await);
        all.push(("A".into(), START + 888, 8888));
        let (code, text, _) = match command {
            "convert" => seed.run(&[&["convert", "--into", "timeseries"][..], &SPAN].concat()),
            _ => seed.run(&[&["reconcile", "--repair"][..], &SPAN].concat()),
        };
        assert_eq!(code, 0, "{text}");
        assert_eq!(storage_modes(&seed).await, BTreeSet::from(["timeseries"]));
        let head = seed.page("C", START, 0).await.unwrap();
        assert_eq!(
            head.get_document("tags").unwrap(),
            &doc! { "site": "north" },
            "a late page has none"
        );
        let n: i64 = seed
            .summaries()
            .await
            .values()
            .map(|(count, _)| count)
            .sum();
        assert_eq!(n, all.len() as i64);
        whole(&seed, &all, &seed.summaries().await, command).await;
    }
}
