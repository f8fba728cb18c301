//! How often a sensor's entry in the catalogue is written, and its cost in memory.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use model::ack::Ack;
use model::catalog::arrival_step_ms;
use model::{Now, Reading, ReadingBatch, Span, StorageMode, Value};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::row_refs;
use testkit::memory_store::Pages;

use crate::shard_rig::{self as rig, ShardRig, reading};

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;
const START_MS: i64 = 20_000 * DAY;

/// Sends a reading per minute for ten days, and flushes each; returns the pages written and the
/// updates of the catalogue per day. `shift_ms`: of the readings' times.
fn per_day(silent_after: Duration, shift_ms: i64) -> (usize, f64, Pages) {
    let mut shard = Shard::new(ShardSettings {
        span: Span::HOUR,
        page: PageLimits {
            readings: 1000,
            bytes: 1 << 20,
            summary_bytes: 1 << 20,
        },
        due: DuePolicy::Linger(1),
        command_bytes_max: 4 << 20,
        command_statements_max: 100,
        bytes_max: 1 << 24,
        sensors_max: 100,
        dedup_keys_max: 1000,
        quarantine_after_ms: 600_000,
        arrival_step_ms: arrival_step_ms(silent_after),
        backoff: Backoff {
            min: Duration::from_millis(1),
            max: Duration::from_millis(1),
        },
    });
    let mut pages = Pages::default();
    let mut writes = 0;
    let mut updates = 0;
    const DAYS: i64 = 10;
    for minute in 0..DAYS * 24 * 60 {
        let now = Now {
            wall_ms: START_MS + minute * MINUTE,
            mono_ms: 1000 + (minute * MINUTE).unsigned_abs(),
        };
        let values = BTreeMap::from([("temp".to_owned(), Value::Int(minute % 50))]);
        let ts_ms = now.wall_ms + shift_ms;
        let tags = BTreeMap::from([("site".to_owned(), "north".to_owned())]);
        let reading = Reading {
            sensor_id: "steady".into(),
            ts_ms,
            receipt_time: false,
            tags,
            values,
        };
        let batch: ReadingBatch = std::iter::once(reading).collect();
        shard.tick(now);
        shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
        while !shard.empty() {
            shard.drain();
            let done = match shard.take(StorageMode::Bucket).expect("something waits") {
                Job::Write(tickets, all) => {
                    writes += all.len();
                    for update in all.iter().filter_map(|write| write.catalog.as_deref()) {
                        updates += 1;
                        pages.merge_catalog(update);
                    }
                    let answers = all.iter().map(|write| pages.write(write)).collect();
                    JobResult::Write(tickets, all, Ok(answers))
                }
                Job::Load(tickets, requests) => {
                    let loaded = requests
                        .iter()
                        .map(|r| pages.load(r, StorageMode::Bucket))
                        .collect();
                    JobResult::Load(tickets, requests, Ok(loaded))
                }
            };
            shard.finished(done, now);
        }
    }
    (writes, f64::from(updates) / DAYS as f64, pages)
}

#[test]
fn a_steady_sensor_costs_four_updates_of_the_catalogue_per_time_of_silence() {
    // Four for the arrivals and one for the day of its last reading.
    let (writes, updates, _) = per_day(Duration::from_secs(86_400), 0);
    assert_eq!(writes, 10 * 24 * 60, "one statement per reading here");
    assert!(
        (4.0..=5.3).contains(&updates),
        "{updates} per day with the default: 0.2 per hour"
    );
    let (_, updates, _) = per_day(Duration::from_secs(3600), 0);
    assert!(
        (96.0..=97.3).contains(&updates),
        "{updates} per day with 1h: 4 per hour"
    );
    let (_, updates, _) = per_day(Duration::from_secs(30 * 86_400), 0);
    assert!(
        (1.0..=2.3).contains(&updates),
        "{updates} per day with 30d: the entry of an active sensor is confirmed daily"
    );
}

#[test]
fn a_sensor_that_sends_old_readings_has_arrived_now() {
    let silent_after = Duration::from_secs(3600);
    let (_, _, pages) = per_day(silent_after, -3000 * DAY);
    let entry = &pages.catalog["steady"];
    let end_ms = START_MS + 10 * DAY;
    assert!(entry.last_ts_ms < START_MS - 2900 * DAY);
    let age_ms = end_ms - entry.arrived_ms;
    assert!(
        (0..=arrival_step_ms(silent_after) + MINUTE).contains(&age_ms),
        "{age_ms}"
    );
}

#[test]
fn tags_are_stored_with_the_time_of_their_reading() {
    let at = |ts_ms: i64, site: Option<&str>| Reading {
        tags: site
            .map(|site| ("site".to_owned(), site.to_owned()))
            .into_iter()
            .collect(),
        ..reading("s", ts_ms, 1)
    };
    let new_ms = rig::START_MS + 50 * MINUTE;
    let site = |pages: &Pages| {
        let entry = &pages.catalog["s"];
        (entry.tags["site"].clone(), entry.tags_ts_ms)
    };
    let page = PageLimits {
        readings: 100,
        bytes: 1 << 20,
        summary_bytes: 1 << 20,
    };
    for late_ms in [new_ms - 1, new_ms - 30 * 60 * MINUTE] {
        // In one batch, and with the late reading after the newer one is stored.
        for flushes in [false, true] {
            let mut rig = ShardRig::new(StorageMode::Bucket, rig::shard(100, page));
            rig.accept(at(new_ms, Some("new")), false);
            if flushes {
                rig.flush(0);
            }
            rig.accept(at(late_ms, Some("old")), false);
            rig.accept(at(new_ms + MINUTE, None), false);
            rig.flush(0);
            assert_eq!(site(&rig.pages), ("new".to_owned(), Some(new_ms)));
            let of_page = |ts_ms| rig.tags[&Span::HOUR.floor(ts_ms)]["site"].clone();
            assert_eq!(of_page(new_ms), "new");
            if Span::HOUR.floor(late_ms) != Span::HOUR.floor(new_ms) {
                assert_eq!(of_page(late_ms), "old");
            }
            // Another value, so that it is not a duplicate.
            let other = Reading {
                values: reading("s", new_ms, 2).values,
                ..at(new_ms, Some("newer"))
            };
            rig.accept(other, false);
            rig.flush(0);
            let wanted = ("newer".to_owned(), Some(new_ms));
            assert_eq!(site(&rig.pages), wanted, "not older, and arrived later");
        }
    }
}
