//! `hourbucket reconcile` where measurements of time-series buckets are stored twice: what it drops,
//! depending on what the server can delete.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use crate::support::mongod::{Kind, Mongod};
use crate::support::seed::{SPAN, START, Seed, readings, sent, series};
use crate::support::stored;

use super::reconcile::command;

/// Hours in which some or all measurements are stored twice: a small one, one of several pages, one
/// with an incorrect document as well, and one without duplicates.
async fn stored_twice(seed: &Seed) -> Vec<stored::Stored> {
    let few = readings(START, 0..40);
    let many = readings(START, 0..2500);
    let twice = |all: &[(i64, i64)], again: usize| [all, &all[..again]].concat();
    // Equal times with different values: two readings.
    let good = [&few[..], &[(START, 77)]].concat();
    for (sensor, all, again) in [
        ("few", &few, 2),
        ("many", &many, 2500),
        ("wrong", &few, 40),
        ("good", &good, 0),
    ] {
        seed.measure(sensor, &twice(all, again)).await;
        let mut document = series(sensor, START, &twice(all, again));
        if sensor == "wrong" {
            document.insert("count", 41);
        }
        seed.pages([document]).await;
    }
    [
        sent("few", &few),
        sent("many", &many),
        sent("wrong", &few),
        sent("good", &good),
    ]
    .concat()
}

async fn dropped(seed: &Seed, all: Vec<stored::Stored>) -> String {
    let (code, text, errors) = seed.run(&command(&["--repair"]));
    assert_eq!(code, 1, "{text} {errors}");
    assert!(
        text.contains("kept: readings without a time of their own may be equal"),
        "{text}"
    );
    let (code, text, errors) = seed.run(&command(&["--repair", "--drop-duplicates"]));
    assert_eq!(code, 0, "{text} {errors}");
    let (code, again, errors) = seed.run(&command(&[]));
    assert!(code == 0 && again.contains("all equal"), "{again} {errors}");
    stored::exactly_once(&seed.readings().await, all.clone());
    let of = |sensor: &str| {
        let all: Vec<_> = all.iter().filter(|(s, ..)| s == sensor).collect();
        (
            (sensor.to_owned(), START),
            (all.len() as i64, all.iter().map(|(.., n)| n).sum::<i64>()),
        )
    };
    assert_eq!(
        seed.summaries().await,
        ["few", "good", "many", "wrong"].map(of).into(),
        "the summaries are correct"
    );
    text
}

/// MongoDB 6.0 deletes only whole series, so such an hour is converted to pages.
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_among_measurements_are_dropped_by_a_server_that_deletes_whole_series_only() {
    let seed = Seed::new("twice60").await;
    seed.native().await;
    let all = stored_twice(&seed).await;
    let before = seed.measured().await;
    let text = dropped(&seed, all.clone()).await;
    assert!(
        text.contains("3 buckets are pages now, without the duplicates"),
        "{text}"
    );
    assert_eq!(
        seed.measured().await,
        before,
        "left over, and invisible to readers"
    );
    for (sensor, n, native) in [
        ("few", 0, false),
        ("many", 2, false),
        ("wrong", 0, false),
        ("good", 0, true),
    ] {
        let page = seed.page(sensor, START, n).await.unwrap();
        assert_eq!(page.contains_key("storage"), native, "{sensor}: {page}");
    }
    assert_eq!(
        seed.page("many", START, 2)
            .await
            .unwrap()
            .get_i32("count")
            .unwrap(),
        500
    );
    assert_eq!(
        seed.page("many", START, 3).await,
        None,
        "cut without the duplicates"
    );
    // Leftover measurements of whole sensors can be removed, duplicates included.
    let only = |s: &str| ["--sensor".to_owned(), s.to_owned()];
    let sensors: Vec<String> = ["few", "many", "wrong"]
        .iter()
        .flat_map(|s| only(s))
        .collect();
    let sensors: Vec<&str> = sensors.iter().map(String::as_str).collect();
    let (code, text, _) = seed.run(
        &[
            &["convert", "--into", "bucket", "--drop-leftovers"][..],
            &SPAN,
            &sensors,
        ]
        .concat(),
    );
    assert_eq!((code, seed.measured().await), (0, 41), "{text}");
    stored::exactly_once(&seed.readings().await, all);
}

/// MongoDB 7.0 and later delete single measurements; such a server is emulated, see
/// [`support::emulation`].
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_among_measurements_are_deleted_by_a_server_that_can() {
    let seed = Seed::at(
        support::emulation::deletes_measurements(Mongod::shared().port()),
        "twice70",
        None,
    )
    .await;
    let all = stored_twice(&seed).await;
    let text = dropped(&seed, all.clone()).await;
    assert!(!text.contains("pages now"), "{text}");
    assert_eq!(seed.measured().await, all.len() as u64);
    for sensor in ["few", "many", "wrong", "good"] {
        let page = seed.page(sensor, START, 0).await.unwrap();
        assert!(
            page.contains_key("storage") && !page.contains_key("readings"),
            "{sensor}: {page}"
        );
    }
}

/// Without transactions an hour of several pages stays unchanged, and the report gives advice; the
/// others are repaired.
#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_server_before_7_0_keeps_duplicates_of_an_hour_of_several_pages_and_says_why()
{
    let alone = Mongod::start_kind(Kind {
        standalone: true,
        ..Kind::default()
    });
    let seed = Seed::at(alone.uri(), "alone", None).await;
    seed.native().await;
    stored_twice(&seed).await;
    let (code, text, errors) = seed.run(&command(&["--repair", "--drop-duplicates"]));
    assert_eq!(code, 1, "{text} {errors}");
    assert!(
        text.contains("make the server a replica set") && text.contains("2 buckets are pages now"),
        "{text}"
    );
    assert!(
        seed.page("many", START, 0)
            .await
            .unwrap()
            .contains_key("storage"),
        "unchanged"
    );
    assert!(
        !seed
            .page("few", START, 0)
            .await
            .unwrap()
            .contains_key("storage")
    );
}
