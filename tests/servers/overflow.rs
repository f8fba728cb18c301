//! Field names that never repeat: the summary of a page has a size limit, and further fields go to
//! further pages, in both storage modes. Tests the stores' contract for that. The documents are
//! tested in `overflow_documents`, the service itself in `overflow_service`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use crate::support::stored::{self, Stored};
use model::summary::{PAGE_SUMMARY_BYTES_MAX, summarise};
use model::{
    BucketKey, BucketStart, Gate, PageKind, PageWrite, RowFlags, Rows, Span, StorageMode, ValueRef,
};
use store::mongo::MongoStore;
use store::{LoadRequest, LoadedBucket, PageWriteResult, Store};
use testkit::memory_store::MemoryStore;

/// 2024-03-01T10:00:00Z
pub(super) const START: BucketStart = BucketStart(1_709_287_200_000);
/// Fields per reading.
pub(super) const FIELDS: i64 = 64;
/// Time between two readings: 4,000 of them in an hour.
const STEP: i64 = 800;

pub(super) async fn mongo(test: &str, mode: config::StoreMode) -> (MongoStore, mongodb::Database) {
    let uri = config::Secret::new(Mongod::shared().uri());
    let database = unique_database(test);
    let settings = config::Store {
        uri,
        database,
        mode,
        ..config::Config::default().store
    };
    let client = mongodb::Client::with_uri_str(settings.uri.reveal())
        .await
        .unwrap();
    let database = client.database(&settings.database);
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    (store, database)
}

/// A name of 128 bytes.
pub(super) fn name(n: i64) -> String {
    format!("{n:06}-{}", "x".repeat(121))
}

/// Readings, each with a field `n` and 63 fields that no other reading has.
pub(super) fn wide(range: std::ops::Range<i64>) -> Rows {
    let mut rows = Rows::default();
    for i in range {
        let names: Vec<String> = (1..FIELDS).map(|f| name(i * FIELDS + f)).collect();
        let mut values = vec![("n", ValueRef::Int(i))];
        values.extend(names.iter().map(|name| (name.as_str(), ValueRef::Int(i))));
        rows.push_named(START.0 + i * STEP, RowFlags::default(), &values);
    }
    rows
}

pub(super) fn sent(sensor: &str, range: std::ops::Range<i64>) -> Vec<Stored> {
    range
        .map(|i| (sensor.to_owned(), START.0 + i * STEP, i))
        .collect()
}

pub(super) fn statement(
    storage_mode: StorageMode,
    page: u32,
    kind: PageKind,
    seal: bool,
    rows: Rows,
) -> PageWrite {
    let sensor_id = "wide".into();
    let summary = summarise(&rows);
    PageWrite {
        sensor_id,
        start: START,
        page,
        kind,
        storage_mode,
        seal,
        tags: None,
        rows: rows.into(),
        summary,
        catalog: None,
    }
}

pub(super) async fn write(store: &dyn Store, write: PageWrite) -> PageWriteResult {
    store.write(&[write]).await.unwrap().remove(0)
}

pub(super) async fn load(
    store: &dyn Store,
    readings_from: Option<i64>,
    doubt: bool,
) -> LoadedBucket {
    let bucket = BucketKey {
        sensor_id: "wide".into(),
        start: START,
    };
    store
        .load(
            &[LoadRequest {
                bucket,
                readings_from,
                doubt,
            }],
            None,
        )
        .await
        .unwrap()
        .remove(0)
        .unwrap()
}

pub(super) const CREATE: PageKind = PageKind::Create;
pub(super) const AFTER: fn(u32) -> PageKind = |known_count| PageKind::Append {
    known_count,
    gate: Gate::Closes,
};
pub(super) const DONE: fn(u32) -> PageWriteResult = |count| PageWriteResult::Done { count };

fn counts(bucket: &LoadedBucket) -> Vec<(u32, bool)> {
    bucket
        .pages
        .iter()
        .map(|page| (page.count, page.sealed))
        .collect()
}

/// The behaviour of both stores with several pages in either mode.
async fn pages_of(store: &dyn Store, storage_mode: StorageMode) {
    let write_page = |page, kind, seal, range| {
        write(
            store,
            statement(storage_mode, page, kind, seal, wide(range)),
        )
    };
    assert_eq!(write_page(0, CREATE, false, 0..10).await, DONE(10));
    let one = load(store, None, false).await.pages.remove(0).summary_bytes;
    assert!(
        (116_608..116_620).contains(&one),
        "630 fields of 185 bytes, one of 58: {one}"
    );
    assert_eq!(write_page(0, AFTER(10), true, 10..11).await, DONE(11));
    assert_eq!(write_page(1, CREATE, false, 11..13).await, DONE(2));
    assert_eq!(write_page(1, AFTER(2), false, 13..14).await, DONE(3));
    // Sealed by a separate statement.
    assert_eq!(write_page(1, AFTER(3), true, 0..0).await, DONE(3));
    assert_eq!(write_page(2, CREATE, false, 14..15).await, DONE(1));
    let bucket = load(store, Some(START.0 + 12 * STEP), false).await;
    assert_eq!(
        (bucket.storage_mode, counts(&bucket)),
        (storage_mode, vec![(11, true), (3, true), (1, false)])
    );
    let mut times: Vec<i64> = bucket
        .pages
        .iter()
        .flat_map(|p| &p.keys)
        .map(|key| key.ts_ms - START.0)
        .collect();
    times.retain(|ts| *ts >= 12 * STEP);
    times.sort_unstable();
    assert_eq!(times, [12 * STEP, 13 * STEP, 14 * STEP]);
    assert_eq!(
        bucket.pages.iter().map(|page| page.last_ts_ms).max(),
        Some(START.0 + 14 * STEP)
    );
    assert_eq!(
        load(store, None, true).await.pages.len(),
        3,
        "nothing is in doubt"
    );
}

/// The summary of a time-series bucket with more names than fit in a page is recomputed over
/// several pages.
async fn recomputed(store: &dyn Store) {
    let series =
        |page, kind, range| statement(StorageMode::TimeSeries, page, kind, false, wide(range));
    assert_eq!(write(store, series(0, CREATE, 0..40)).await, DONE(40));
    // The writer does not know page 0. The load in doubt recomputes the summary, which does not fit
    // in one page.
    assert_eq!(
        write(store, series(0, AFTER(7), 40..100)).await,
        PageWriteResult::SummaryConflict
    );
    let bucket = load(store, None, true).await;
    let sums = |bucket: &LoadedBucket| bucket.pages.iter().map(|page| page.count).sum::<u32>();
    assert_eq!(sums(&bucket), 100);
    assert!(
        bucket
            .pages
            .iter()
            .all(|p| p.sealed && p.summary_bytes < PAGE_SUMMARY_BYTES_MAX + 100),
        "{bucket:?}"
    );
    let next = bucket.pages.len() as u32;
    assert_eq!(write(store, series(next, CREATE, 100..101)).await, DONE(1));
    assert_eq!(load(store, None, true).await.pages.len() as u32, next + 1);
    // A version that no longer exists.
    assert_eq!(
        write(store, series(next, CREATE, 101..102)).await,
        PageWriteResult::SummaryConflict
    );
    let again = load(store, Some(START.0 + 99 * STEP), true).await;
    assert_eq!((sums(&again), again.pages[0].keys.len()), (102, 3));
    assert!(again.pages.iter().all(|page| page.sealed));
}

#[tokio::test]
async fn the_memory_store_keeps_the_contract() {
    pages_of(&MemoryStore::new(), StorageMode::Bucket).await;
    for test in [0, 1] {
        let store = MemoryStore::new().with_storage_mode(StorageMode::TimeSeries);
        match test {
            0 => pages_of(&store, StorageMode::TimeSeries).await,
            _ => recomputed(&store).await,
        }
        store.pages().check(1000).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_keeps_the_contract() {
    let uri = Mongod::shared().uri();
    let (store, db) = mongo("wide_pages", config::StoreMode::Bucket).await;
    pages_of(&store, StorageMode::Bucket).await;
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..15));
    let (store, db) = mongo("wide_series", config::StoreMode::Timeseries).await;
    pages_of(&store, StorageMode::TimeSeries).await;
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..15));
    let (store, db) = mongo("wide_recomputed", config::StoreMode::Timeseries).await;
    recomputed(&store).await;
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..102));
}
