//! `hourbucket convert` on a real MongoDB: stopped after every step and run again, and the
//! buckets and servers that it refuses.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Kind, Mongod};
use crate::support::seed::{HOUR, SPAN, START, Seed, page, readings, sent, series};
use crate::support::stored::{self, Stored};
use model::StorageMode;
use mongodb::bson::doc;
use store::maintain::{Converted, MaintainError, PageSize, Selection, Step};
use store::mongo::{ConvertOptions, Hook};

/// Three buckets: two of one page, and one of three.
pub(super) async fn pages(seed: &Seed) -> Vec<Stored> {
    let a = readings(START, 0..90);
    let b = readings(START + HOUR, 0..7);
    let c = readings(START, 0..2500);
    seed.pages([
        page("A", START, 0, false, &a),
        page("A", START + HOUR, 0, false, &b),
    ])
    .await;
    seed.pages([
        page("C", START, 0, true, &c[..1000]),
        page("C", START, 1, true, &c[1000..2000]),
        page("C", START, 2, false, &c[2000..]),
    ])
    .await;
    [sent("A", &a), sent("A", &b), sent("C", &c)].concat()
}

fn options(into: StorageMode, hook: Option<Hook>) -> ConvertOptions {
    ConvertOptions {
        selection: Selection {
            from_ms: START,
            to_ms: START + 2 * HOUR,
            sensors: vec![],
        },
        ended_before_ms: START + 2 * HOUR,
        into,
        page: PageSize {
            readings_max: 1000,
            bytes_max: 1 << 20,
        },
        drop_leftovers: false,
        hook,
    }
}

pub(super) async fn convert(
    seed: &Seed,
    into: StorageMode,
    hook: Option<Hook>,
) -> Result<Converted, MaintainError> {
    seed.store
        .maintenance()
        .convert(&options(into, hook), |_| {})
        .await
}

/// Stops at the first `step` of `sensor`.
fn stop_at(wanted: Step, sensor: &'static str) -> Hook {
    Arc::new(move |step, bucket| step == wanted && &*bucket.sensor_id == sensor)
}

/// Storage modes by sensor and bucket; checks that all documents of a bucket have the same one, that
/// it has no fewer than before, and that all but the last are sealed.
pub(super) async fn storage_modes(seed: &Seed) -> BTreeSet<&'static str> {
    let mut storage_modes = BTreeSet::new();
    for (sensor, start) in [("A", START), ("A", START + HOUR), ("C", START)] {
        let mut pages = vec![];
        while let Some(page) = seed.page(sensor, start, pages.len() as i32).await {
            pages.push(page);
        }
        assert!(pages.len() >= if sensor == "C" { 3 } else { 1 });
        let native = pages[0].get_str("storage").is_ok();
        for (n, page) in pages.iter().enumerate() {
            assert!(
                page.get_str("storage").is_ok() == native
                    && page.contains_key("readings") != native,
                "{page}"
            );
            assert_eq!(
                page.get_bool("has_overflow").unwrap_or(false),
                n + 1 < pages.len(),
                "{page}"
            );
        }
        storage_modes.insert(if native { "timeseries" } else { "pages" });
    }
    storage_modes
}

pub(super) async fn whole(
    seed: &Seed,
    all: &[Stored],
    summaries: &BTreeMap<(String, i64), (i64, i64)>,
    at: &str,
) {
    let stored = seed.readings().await;
    assert_eq!(stored.len(), all.len(), "{at}");
    stored::exactly_once(&stored, all.to_vec());
    assert_eq!(&seed.summaries().await, summaries, "{at}: the view");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_after_any_step_every_reading_is_stored_once_and_the_next_run_continues() {
    let seed = Seed::new("steps").await;
    seed.native().await;
    let all = pages(&seed).await;
    let summaries = seed.summaries().await;
    // Each run gets one step further than the previous one, from the state that it left.
    for step in [
        Step::Read,
        Step::PartCopied,
        Step::Copied,
        Step::Verified,
        Step::Swapping,
        Step::Swapped,
    ] {
        let stopped = convert(&seed, StorageMode::TimeSeries, Some(stop_at(step, "C"))).await;
        assert!(
            matches!(stopped, Err(MaintainError::Stopped { .. })),
            "{step:?}: {stopped:?}"
        );
        whole(
            &seed,
            &all,
            &summaries,
            &format!("into time-series, {step:?}"),
        )
        .await;
    }
    let done = convert(&seed, StorageMode::TimeSeries, None).await.unwrap();
    assert_eq!(
        (done.buckets, done.skipped_total),
        (0, 0),
        "everything was converted: {done:?}"
    );
    assert_eq!(storage_modes(&seed).await, BTreeSet::from(["timeseries"]));
    assert_eq!(
        seed.measured().await,
        all.len() as u64,
        "nothing was copied twice"
    );
    whole(&seed, &all, &summaries, "time-series").await;
    for step in [Step::Read, Step::Swapping, Step::Swapped] {
        let stopped = convert(&seed, StorageMode::Bucket, Some(stop_at(step, "C"))).await;
        assert!(
            matches!(stopped, Err(MaintainError::Stopped { .. })),
            "{step:?}: {stopped:?}"
        );
        whole(&seed, &all, &summaries, &format!("into pages, {step:?}")).await;
    }
    let done = convert(&seed, StorageMode::Bucket, None).await.unwrap();
    assert_eq!(
        (done.skipped_total, done.removed),
        (0, 0),
        "MongoDB 6.0 deletes whole series only"
    );
    assert_eq!(done.leftovers, all.len() as u64);
    assert_eq!(storage_modes(&seed).await, BTreeSet::from(["pages"]));
    let done = convert(&seed, StorageMode::TimeSeries, None).await.unwrap();
    assert_eq!((done.buckets, done.skipped_total), (3, 0), "{done:?}");
    assert_eq!(
        seed.measured().await,
        all.len() as u64,
        "leftover measurements are used again"
    );
    whole(&seed, &all, &summaries, "time-series again").await;
    let drop = ConvertOptions {
        drop_leftovers: true,
        ..options(StorageMode::Bucket, None)
    };
    let done = seed
        .store
        .maintenance()
        .convert(&drop, |_| {})
        .await
        .unwrap();
    assert_eq!(
        (done.removed, done.leftovers, seed.measured().await),
        (all.len() as u64, 0, 0)
    );
    whole(&seed, &all, &summaries, "pages without leftovers").await;
    for (n, count) in [(0, 1000), (1, 1000), (2, 500)] {
        assert_eq!(
            seed.page("C", START, n)
                .await
                .unwrap()
                .get_i32("count")
                .unwrap(),
            count
        );
    }
    stored::exactly_once(
        &stored::readings(&support::mongod::Mongod::shared().uri(), &seed.name),
        all,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_is_reached_in_a_fresh_database() {
    for (into, step) in [
        (StorageMode::TimeSeries, Step::Read),
        (StorageMode::TimeSeries, Step::PartCopied),
        (StorageMode::TimeSeries, Step::Copied),
        (StorageMode::TimeSeries, Step::Verified),
        (StorageMode::TimeSeries, Step::Swapping),
        (StorageMode::TimeSeries, Step::Swapped),
        (StorageMode::Bucket, Step::Read),
        (StorageMode::Bucket, Step::Swapping),
        (StorageMode::Bucket, Step::Swapped),
        (StorageMode::Bucket, Step::Verified),
    ] {
        let seed = Seed::new("fresh").await;
        seed.native().await;
        let all = pages(&seed).await;
        let summaries = seed.summaries().await;
        if into == StorageMode::Bucket {
            convert(&seed, StorageMode::TimeSeries, None).await.unwrap();
        }
        // All three together: those of one page, which are swapped by one statement, and one that
        // needs a transaction.
        let reached = Arc::new(AtomicU32::new(0));
        let count = reached.clone();
        let hook: Hook =
            Arc::new(move |at, _| at == step && count.fetch_add(1, Ordering::Relaxed) < 3);
        let stopped = convert(&seed, into, Some(hook)).await;
        assert!(
            matches!(stopped, Err(MaintainError::Stopped { .. })),
            "{into:?} {step:?}: {stopped:?}"
        );
        assert_eq!(reached.load(Ordering::Relaxed), 3, "{into:?} {step:?}");
        whole(&seed, &all, &summaries, &format!("{into:?} {step:?}")).await;
        let done = convert(&seed, into, None).await.unwrap();
        assert_eq!(done.skipped_total, 0, "{done:?}");
        whole(&seed, &all, &summaries, "at the end").await;
        assert_eq!(storage_modes(&seed).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inconsistent_or_recent_buckets_are_left_unchanged() {
    let seed = Seed::new("left").await;
    let (code, _, errors) = seed.run(&["convert", "--into", "timeseries"]);
    assert!(
        code == 2 && errors.contains("hourbucket init"),
        "{code} {errors}"
    );
    seed.native().await;
    let all = readings(START, 0..50);
    let mut wrong = page("wrong", START, 0, false, &all);
    wrong.insert("count", 49);
    let now = now_ms() / HOUR * HOUR;
    seed.pages([
        page("good", START, 0, false, &all),
        // Equal readings, which sensors without a clock send, do not prevent it: they are counted.
        page("equal", START, 0, false, &[&all[..], &all[..5]].concat()),
        wrong,
        page("more", START, 0, false, &all),
        page("young", now, 0, false, &readings(now, 0..5)),
        page("young", now - HOUR, 0, false, &readings(now - HOUR, 0..5)),
    ])
    .await;
    seed.measure("more", &[(START + 5, 1)]).await;
    seed.measure("equal", &all[..10]).await;
    let (code, text, progress) = seed.run(&["convert", "--into", "timeseries"]);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("skipped: wrong 2024-03-01T10:00:00Z: differs (count)"),
        "{text}"
    );
    assert!(
        text.contains("more 2024-03-01T10:00:00Z: sensor_readings has 1 measurements"),
        "{text}"
    );
    assert!(
        text.contains("converted 2 buckets with 105 readings; removed 0 measurements; skipped 2"),
        "{text}"
    );
    assert!(
        progress.contains("[##") && progress.contains("100 %"),
        "{progress}"
    );
    for (sensor, start, native) in [
        ("good", START, true),
        ("equal", START, true),
        ("wrong", START, false),
        ("young", now, false),
        ("young", now - HOUR, false),
    ] {
        assert_eq!(
            seed.page(sensor, start, 0)
                .await
                .unwrap()
                .get_str("storage")
                .is_ok(),
            native,
            "{sensor}"
        );
    }
    let stored = seed.readings().await;
    assert_eq!(
        stored[&("equal".to_owned(), START, 0)],
        2,
        "equal readings stay two"
    );
    assert_eq!(stored[&("equal".to_owned(), START + 20_000, 20)], 1);
}

/// With `store.retention_readings`, a bucket may have lost the readings of all its pages, or of the
/// first ones so far.
#[tokio::test(flavor = "multi_thread")]
async fn buckets_that_have_lost_readings_stay_in_their_mode_and_reconcile_finds_no_fault() {
    let seed = Seed::new("lost").await;
    seed.native().await;
    let all = readings(START, 0..20);
    let native = readings(START + HOUR, 0..20);
    seed.pages([
        page("gone", START, 0, false, &all),
        page("part", START, 0, true, &all[..12]),
        page("part", START, 1, false, &all[12..]),
        page("whole", START, 0, false, &all),
        series("part", START + HOUR, &native),
    ])
    .await;
    seed.measure("part", &native).await;
    let removed = || doc! { "$unset": { "readings": "" }, "$set": { "readings_removed": true } };
    seed.update("gone", START, 0, removed()).await;
    seed.update("part", START, 0, removed()).await;
    let lost = async || {
        futures_util::future::join_all(
            [("gone", 0), ("part", 0), ("part", 1)].map(|(s, n)| seed.page(s, START, n)),
        )
        .await
    };
    let before = lost().await;
    let summaries = seed.summaries().await;
    let reconciled = || {
        for more in [&[][..], &["--repair"]] {
            let (code, text, _) = seed.run(&[&["reconcile"], &SPAN[..], more].concat());
            assert_eq!(code, 0, "{more:?}: {text}");
        }
    };
    reconciled();
    for (into, converted, remain) in [("timeseries", (1, 20), 0), ("bucket", (2, 40), 40)] {
        let (code, text, _) = seed.run(&["convert", "--into", into]);
        assert_eq!(code, 0, "{text}");
        let wanted = format!(
            "converted {} buckets with {} readings; removed 0 measurements",
            converted.0, converted.1
        );
        assert!(text.contains(&wanted), "{text}");
        assert_eq!(
            text.contains(&format!("{remain} measurements remain")),
            remain > 0,
            "{text}"
        );
        reconciled();
        assert_eq!(
            (lost().await, seed.summaries().await),
            (before.clone(), summaries.clone()),
            "{into}"
        );
    }
    let stored = seed.readings().await;
    let kept = [
        sent("part", &all[12..]),
        sent("part", &native),
        sent("whole", &all),
    ];
    stored::exactly_once(&stored, kept.concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_sensor_are_removed_only_if_all_its_buckets_are_pages() {
    let seed = Seed::new("leftovers").await;
    seed.native().await;
    for (start, sensor) in [(START, "S"), (START + HOUR, "S"), (START, "T")] {
        let all = readings(start, 0..20);
        seed.measure(sensor, &all).await;
        seed.pages([series(sensor, start, &all)]).await;
    }
    let first = [
        "convert",
        "--into",
        "bucket",
        "--drop-leftovers",
        "--from",
        "2024-03-01T10:30:00Z",
        "--to",
    ];
    let (code, text, _) = seed.run(&[&first[..], &["2024-03-01T11:00:00Z"]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("converted 2 buckets with 40 readings; removed 20 measurements"),
        "{text}"
    );
    assert!(
        text.contains("20 measurements remain, invisible to readers"),
        "{text}"
    );
    assert_eq!(
        seed.measured().await,
        40,
        "those of T are removed, S still has a bucket in time-series mode"
    );
    let (code, text, _) = seed.run(&["convert", "--into", "bucket", "--drop-leftovers"]);
    assert_eq!((code, seed.measured().await), (0, 0), "{text}");
    let all = [
        sent("S", &readings(START, 0..20)),
        sent("S", &readings(START + HOUR, 0..20)),
        sent("T", &readings(START, 0..20)),
    ];
    stored::exactly_once(
        &stored::readings(&support::mongod::Mongod::shared().uri(), &seed.name),
        all.concat(),
    );
    // A measurement that is not in its pages is never removed.
    seed.measure("T", &[(START + 1, 5)]).await;
    let (code, text, _) = seed.run(&["convert", "--into", "bucket", "--drop-leftovers"]);
    assert_eq!((code, seed.measured().await), (1, 1), "{text}");
    assert!(
        text.contains("1 of its 1 measurements are not in its pages"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_server_gets_an_error_with_advice() {
    let alone = Mongod::start_kind(Kind {
        standalone: true,
        ..Kind::default()
    });
    let seed = Seed::at(alone.uri(), "alone", None).await;
    seed.native().await;
    let all = pages(&seed).await;
    let (code, text, errors) = seed.run(&["convert", "--into", "timeseries"]);
    assert!(
        code == 2 && errors.contains("make it a replica set"),
        "{code} {text} {errors}"
    );
    whole(&seed, &all, &seed.summaries().await, "refused").await;
    let (code, text, _) = seed.run(&["convert", "--into", "timeseries", "--sensor", "A"]);
    assert_eq!(code, 0, "buckets of one page need no transaction: {text}");
    assert!(
        seed.page("A", START, 0)
            .await
            .unwrap()
            .contains_key("storage")
    );
}

/// A measurement, not a test: run it alone, with --ignored --nocapture.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn figures() {
    let seed = Seed::new("figures").await;
    seed.native().await;
    for sensor in 0..400 {
        let hour = |h: i64| {
            page(
                &format!("s{sensor}"),
                START + h * HOUR,
                0,
                false,
                &readings(START + h * HOUR, 0..720),
            )
        };
        seed.pages((0..2).map(hour)).await;
    }
    let n = 400.0 * 2.0 * 720.0;
    for arguments in [
        &["reconcile"][..],
        &["convert", "--into", "timeseries"],
        &["reconcile"],
        &["convert", "--into", "bucket"],
    ] {
        let begun = std::time::Instant::now();
        let (code, text, _) = seed.run(&[arguments, &SPAN].concat());
        let took = begun.elapsed().as_secs_f64();
        println!(
            "{arguments:?}: {code}, {took:.1} s, {:.0} readings/s: {text}",
            n / took
        );
        assert_eq!(code, 0);
    }
}
