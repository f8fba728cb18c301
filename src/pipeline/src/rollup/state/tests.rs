//! The life of marks and days, step by step.

use super::*;
use model::ack::AckOutcome;
use model::{Reading, Value};
use store::days::SensorDay;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// 2024-03-01T00:00:00Z
const TODAY: i64 = 1_709_251_200_000;

struct Rig {
    rollup: Rollup,
    now: Now,
}

impl Rig {
    fn new(settings: impl FnOnce(&mut RollupSettings)) -> Rig {
        let mut all = RollupSettings {
            zone: Zone::UTC,
            span: Span::HOUR,
            instance: "me".into(),
            settle_ms: 10_000,
            late_ms: 1000,
            hours_kept_ms: None,
            bytes_max: 1 << 20,
        };
        settings(&mut all);
        Rig {
            rollup: Rollup::new(all),
            now: Now {
                wall_ms: TODAY + 12 * HOUR,
                mono_ms: 1_000_000,
            },
        }
    }

    fn pass(&mut self, ms: i64) {
        self.now = Now {
            wall_ms: self.now.wall_ms + ms,
            mono_ms: self.now.mono_ms + ms as u64,
        };
    }

    fn arrive(&mut self, sensor: &str, ts_ms: i64) -> model::ack::AckWaiter {
        let values = [("v".to_owned(), Value::Int(1))].into();
        let reading = Reading {
            sensor_id: sensor.into(),
            ts_ms,
            receipt_time: false,
            tags: Default::default(),
            values,
        };
        let batch: ReadingBatch = [reading].into_iter().collect();
        let (ack, waiter) = Ack::channel();
        self.rollup.accept(&batch, batch.places(), &ack, self.now);
        ack.delivered();
        waiter
    }

    fn settle(&mut self, sensor: &str, ts_ms: i64) {
        let settled = Settled {
            sensor_id: sensor.into(),
            start: Span::HOUR.floor(ts_ms),
            rows: 1,
        };
        self.rollup.settled(&settled, self.now);
    }

    fn mark(&mut self) -> Vec<DayMark> {
        let marks = self.rollup.take_marks(100);
        self.rollup.marked(&marks, true, self.now);
        marks
    }

    fn due(&mut self) -> Vec<SensorDay> {
        self.rollup.take_days(100, self.now).0
    }

    fn computed(&mut self, days: &[SensorDay], is_written: bool) {
        self.rollup
            .computed(days.iter().map(|day| (day, is_written)), self.now);
    }
}

fn done(waiter: model::ack::AckWaiter) -> Option<AckOutcome> {
    use futures_util::FutureExt;
    waiter.outcome().now_or_never()
}

#[test]
fn a_reading_is_released_when_the_mark_of_its_day_is_durable() {
    let mut rig = Rig::new(|_| {});
    let first = rig.arrive("a", TODAY);
    let second = rig.arrive("a", TODAY + HOUR);
    let marks = rig.rollup.take_marks(100);
    assert_eq!(
        (marks.len(), &*marks[0].instance, marks[0].day_ms),
        (1, "me", TODAY)
    );
    rig.rollup.marked(&marks, false, rig.now);
    assert!(!rig.rollup.is_marked());
    assert_eq!(rig.mark(), marks, "it is written again");
    assert_eq!(
        [done(first), done(second)],
        [Some(AckOutcome::Delivered); 2]
    );
    assert_eq!(
        done(rig.arrive("a", TODAY + 2 * HOUR)),
        Some(AckOutcome::Delivered),
        "the day is marked"
    );
    assert!(rig.mark().is_empty());
    assert_eq!(done(rig.arrive("a", TODAY - HOUR)), None, "another day");
}

#[test]
fn an_open_day_is_computed_once_after_its_end_and_its_mark_removed_after_that() {
    let mut rig = Rig::new(|_| {});
    for hour in 0..5 {
        drop(rig.arrive("a", TODAY + hour * HOUR));
        rig.mark();
        rig.settle("a", TODAY + hour * HOUR);
        rig.pass(HOUR);
        assert!(rig.due().is_empty());
    }
    assert_eq!(rig.rollup.usage(rig.now).days, 1);
    rig.pass(TODAY + DAY - rig.now.wall_ms + 9000);
    assert!(rig.due().is_empty(), "it has not settled");
    rig.pass(12_000);
    let days = rig.due();
    assert_eq!(days.len(), 1);
    assert_eq!(rig.rollup.usage(rig.now).days, 0);
    assert!(
        rig.rollup.take_clears(100).is_empty(),
        "not before it is written"
    );
    rig.computed(&days, true);
    assert_eq!(rig.rollup.take_clears(100).len(), 1);
    assert_eq!(rig.rollup.usage(rig.now).bytes, 0);
}

#[test]
fn a_mark_stays_while_readings_are_on_their_way_or_the_day_changed_again() {
    let mut rig = Rig::new(|_| {});
    let past = TODAY - 5 * DAY;
    drop((rig.arrive("a", past), rig.arrive("a", past)));
    rig.mark();
    rig.settle("a", past);
    rig.pass(1500);
    let days = rig.due();
    rig.computed(&days, true);
    assert!(
        rig.rollup.take_clears(100).is_empty(),
        "one reading is not stored yet"
    );
    rig.settle("a", past);
    rig.pass(1500);
    let days = rig.due();
    assert_eq!(days.len(), 1);
    drop(rig.arrive("a", past));
    rig.settle("a", past);
    rig.computed(&days, true);
    assert!(
        rig.rollup.take_clears(100).is_empty(),
        "it changed after the computation began"
    );
    rig.pass(1500);
    let days = rig.due();
    rig.computed(&days, false);
    assert!(rig.rollup.take_clears(100).is_empty(), "it was not written");
    let days = rig.due();
    rig.computed(&days, true);
    let cleared = rig.rollup.take_clears(100);
    assert_eq!(cleared.len(), 1);
    // The next mark has a later version, regardless of the clock: a late removal does not hit it.
    rig.now.wall_ms -= DAY;
    drop(rig.arrive("a", past));
    assert!(rig.mark()[0].version > cleared[0].version);
}

#[test]
fn a_day_with_late_readings_that_never_end_is_computed_all_the_same() {
    let mut rig = Rig::new(|_| {});
    let past = TODAY - 5 * DAY;
    let mut computed = 0;
    for _ in 0..100 {
        drop(rig.arrive("a", past));
        rig.mark();
        rig.settle("a", past);
        rig.pass(500);
        let days = rig.due();
        computed += days.len();
        rig.computed(&days, true);
    }
    assert!(
        (4..=5).contains(&computed),
        "{computed} in 50 s, every 10 s"
    );
}

#[test]
fn stored_marks_are_taken_over_and_removed_with_their_own_version() {
    let mut rig = Rig::new(|_| {});
    let mark = |instance: &str, version| DayMark {
        instance: instance.into(),
        day_ms: TODAY - DAY,
        sensor_id: "a".into(),
        version,
    };
    rig.rollup
        .recover(vec![mark("me", 5), mark("lost", 7)], rig.now);
    assert!(rig.rollup.take_marks(100).is_empty(), "they are durable");
    rig.pass(1500);
    let days = rig.due();
    assert_eq!(days.len(), 1);
    rig.computed(&days, true);
    let mut cleared = rig.rollup.take_clears(100);
    cleared.sort();
    assert_eq!(cleared, [mark("lost", 7), mark("me", 5)]);
    // A mark of another instance does not protect readings of this one.
    rig.rollup.recover(vec![mark("lost", 9)], rig.now);
    let waiter = rig.arrive("a", TODAY - DAY);
    assert_eq!(
        (rig.mark().len(), done(waiter)),
        (1, Some(AckOutcome::Delivered))
    );
}

#[test]
fn a_mark_after_a_recovered_one_has_a_later_version_although_the_clock_was_set_back() {
    let mut rig = Rig::new(|_| {});
    // Replayed before the stored marks are read; the mark of the earlier process has a time that is
    // to come.
    drop(rig.arrive("a", TODAY - DAY));
    rig.mark();
    rig.settle("a", TODAY - DAY);
    let ahead = TODAY + 3 * DAY;
    let instance = "me".into();
    let sensor_id = "a".into();
    rig.rollup.recover(
        vec![DayMark {
            instance,
            day_ms: TODAY - DAY,
            sensor_id,
            version: ahead,
        }],
        rig.now,
    );
    rig.pass(1500);
    let days = rig.due();
    rig.computed(&days, true);
    assert_eq!(rig.rollup.take_clears(100).len(), 2);
    // The removal is on its way.
    drop(rig.arrive("a", TODAY - DAY));
    assert!(rig.mark()[0].version > ahead);
}

#[test]
fn a_mark_is_renewed_before_others_may_take_it_over() {
    let mut rig = Rig::new(|_| {});
    drop(rig.arrive("a", TODAY));
    let first = rig.mark();
    rig.pass(DAY);
    drop(rig.arrive("a", TODAY));
    let again = rig.mark();
    assert!(again[0].version >= first[0].version + DAY && DAY < ORPHAN_MS);
}

#[test]
fn days_of_which_hours_may_have_expired_are_not_computed() {
    let mut rig = Rig::new(|s| s.hours_kept_ms = Some(10 * DAY));
    for (ago, is_computed) in [(8, true), (10, false)] {
        drop(rig.arrive("a", TODAY - ago * DAY));
        rig.mark();
        rig.settle("a", TODAY - ago * DAY);
        rig.pass(1500);
        let (days, expired) = rig.rollup.take_days(100, rig.now);
        assert_eq!(
            (days.len(), expired.len()),
            (usize::from(is_computed), usize::from(!is_computed))
        );
        rig.computed(&days, true);
        assert_eq!(rig.rollup.take_clears(100).len(), 1);
    }
}

#[test]
fn near_the_limit_of_memory_days_are_computed_early_and_the_limit_is_left() {
    let mut rig = Rig::new(|s| s.bytes_max = 20_000);
    let mut n = 0;
    while !rig.rollup.full() {
        drop(rig.arrive(&format!("s{n}"), TODAY));
        n += 1;
    }
    assert!((20..200).contains(&n), "{n}");
    while !rig.mark().is_empty() {}
    assert!(rig.due().is_empty(), "all readings are on their way");
    (0..n).for_each(|i| rig.settle(&format!("s{i}"), TODAY));
    while rig.rollup.full() {
        let days = rig.rollup.take_days(7, rig.now).0;
        assert!(!days.is_empty());
        rig.computed(&days, true);
        rig.rollup.take_clears(100);
    }
    // The remaining days are still computed when they are due.
    rig.pass(2 * DAY);
    for _ in 0..n {
        let days = rig.due();
        rig.computed(&days, true);
        rig.rollup.take_clears(1000);
        rig.pass(1000);
    }
    assert_eq!(rig.rollup.usage(rig.now), RollupUsage::default());
}
