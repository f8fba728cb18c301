//! `hourbucket convert` while the service runs: conversions of single buckets in both directions,
//! statement by statement, some of them aborted. As an operator runs it: only buckets that ended
//! some time ago by the true time, one conversion of a bucket at a time, and an aborted one is run
//! again.
//!
//! Three known limits are left out:
//! - A query that reads the pages of a bucket in several parts during its conversion may return
//!   readings twice or not at all. (The parts are small here; in MongoDB they have 8 MiB.)
//! - A query that reads a document in time-series mode before the bucket becomes pages, and the
//!   measurements after they were removed, returns none of its readings.
//! - If a bucket is converted while readings without a time are written, such readings may be
//!   stored twice, and of equal ones too few may be stored: a reading without a time is identified
//!   by its position in the pages; measurements have no position, and pages made from them have
//!   other positions.

use model::{BucketKey, PageKind, Rows, summary};
use store::maintain::PageSize;
use store::maintain::convert::{Conclusion, Conversion, Leftovers, Outcome, Request};

use super::*;

const AT_ONCE: usize = 2;
/// How long ago a bucket must have ended, as in the command.
const SETTLED_MS: i64 = HOUR + HOUR / 12;

impl Sim {
    /// Begins a conversion, continues one by some statements, or aborts one.
    pub(super) fn convert(&mut self) {
        if self.conversions.len() < AT_ONCE && self.rng.u8(0..4) == 0 {
            return self.begin_conversion();
        }
        if self.conversions.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.conversions.len());
        let key = self.conversions[at].key();
        if self
            .reading
            .as_ref()
            .is_some_and(|(sensor, start)| (&**sensor, *start) == (&*key.sensor_id, key.start))
        {
            return;
        }
        // Often several statements without a step of the service in between.
        let steps = if self.rng.bool() {
            1
        } else {
            self.rng.usize(1..12)
        };
        let conversion = &mut self.conversions[at];
        let is_querying = self.is_querying;
        let ended = (0..steps).any(|_| {
            !(is_querying && is_removing(conversion))
                && self.pages.convert_step(conversion).is_some()
        });
        if ended || self.rng.u8(0..40) == 0 {
            self.conversions.swap_remove(at);
        }
    }

    fn begin_conversion(&mut self) {
        let line_ms = self.true_ms() - SETTLED_MS;
        let has_ended = |start: &BucketStart| Span::HOUR.end(*start) <= line_ms;
        let mut ended: Vec<(&String, BucketStart)> = self
            .pages
            .pages
            .keys()
            .filter(|(_, start, _)| has_ended(start))
            .map(|(s, start, _)| (s, *start))
            .collect();
        ended.dedup();
        ended.retain(|(s, start)| {
            self.conversions
                .iter()
                .all(|c| (&*c.key().sensor_id, c.key().start) != (s, *start))
        });
        if ended.is_empty() {
            return;
        }
        let (sensor, start) = ended[self.rng.usize(0..ended.len())];
        // Sometimes into the mode that it has: that repairs stray pages.
        let into = match self.pages.is_time_series(sensor, start) == (self.rng.u8(0..4) == 0) {
            true => StorageMode::TimeSeries,
            false => StorageMode::Bucket,
        };
        let key = BucketKey {
            sensor_id: sensor.as_str().into(),
            start,
        };
        self.converted.insert((sensor.clone(), start), into);
        self.conversions.push(self.conversion(key, into));
    }

    fn conversion(&self, key: BucketKey, into: StorageMode) -> Conversion {
        let page = PageSize {
            readings_max: self.page.readings,
            bytes_max: self.page.bytes,
        };
        self.pages.conversion(key, into, page)
    }

    fn run(&mut self, (sensor, start): &(String, BucketStart), into: StorageMode) -> Conclusion {
        let mut conversion = self.conversion(
            BucketKey {
                sensor_id: sensor.as_str().into(),
                start: *start,
            },
            into,
        );
        (0..10_000)
            .find_map(|_| self.pages.convert_step(&mut conversion))
            .expect("it ends")
    }

    /// At the end of a history: finishes the conversions, and merges stray pages, which prevent
    /// loads of their bucket.
    pub(super) fn finish_conversions(&mut self, round: u32) {
        let pages = &mut self.pages;
        self.conversions
            .retain_mut(|conversion| pages.convert_step(conversion).is_none());
        if self.conversions.is_empty() && round.is_multiple_of(50) {
            let mixed: Vec<_> = self
                .converted
                .keys()
                .filter(|(s, start)| self.is_mixed(s, *start))
                .cloned()
                .collect();
            mixed.iter().for_each(|bucket| {
                self.run(bucket, StorageMode::TimeSeries);
            });
        }
    }

    fn is_mixed(&self, sensor: &str, start: BucketStart) -> bool {
        let id = |n: u32| (sensor.to_owned(), start, n);
        let mut pages = self.pages.pages.range(id(0)..=id(u32::MAX));
        self.pages.is_time_series(sensor, start)
            && pages.any(|(_, page)| page.storage_mode == StorageMode::Bucket)
    }

    /// Runs every conversion once more, to its end. Without a journal, a measurement may remain
    /// that no page counts: see [`Sim::reconcile_leftovers`]. If measurements were removed, what is
    /// left may not show it.
    pub(super) fn convert_again(&mut self) {
        for (bucket, into) in self.converted.clone() {
            let conclusion = self.run(&bucket, into);
            let is_removed = self.is_removed(&bucket.0, bucket.1);
            let excused = !self.journaled || self.is_expired(bucket.1) || is_removed;
            assert!(
                is_done(&conclusion) || excused,
                "seed {}: {bucket:?}: {conclusion:?}",
                self.seed
            );
        }
    }
}

fn is_removing(conversion: &Conversion) -> bool {
    matches!(conversion.request(), Request::RemoveMeasurements { .. })
}

/// Whether the documents have the requested storage mode, and nothing is left of the other one.
fn is_done(conclusion: &Conclusion) -> bool {
    let Conclusion::Done(Outcome { leftovers, .. }) = conclusion else {
        return false;
    };
    matches!(leftovers, Leftovers::None | Leftovers::Removed(_))
}

/// A statement that writes readings with these values, at as many milliseconds after the start.
fn statement(
    storage_mode: StorageMode,
    page: u32,
    seal: bool,
    values: std::ops::Range<i64>,
) -> PageWrite {
    let sensor_id = "s".into();
    let start = BucketStart(0);
    let mut rows = Rows::default();
    values.for_each(|n| rows.push_named(n, Default::default(), &[("n", Value::Int(n).as_ref())]));
    let summary = summary::summarise(&rows);
    let rows = Arc::new(rows);
    PageWrite {
        sensor_id,
        start,
        page,
        kind: PageKind::Create,
        storage_mode,
        seal,
        tags: None,
        rows,
        summary,
        catalog: None,
    }
}

/// As earlier versions left it: a document in time-series mode, and a page that a service has
/// written for the same bucket. Some of its readings are also measurements.
#[test]
fn a_stray_page_is_merged() {
    let mut pages = Pages::default();
    pages.write(&statement(StorageMode::TimeSeries, 0, false, 0..10));
    pages.write(&statement(StorageMode::Bucket, 2, true, 7..14));
    let key = BucketKey {
        sensor_id: "s".into(),
        start: BucketStart(0),
    };
    let page = PageSize {
        readings_max: 4,
        bytes_max: 1000,
    };
    let convert = |pages: &mut Pages, into| {
        let mut conversion = pages.conversion(key.clone(), into, page);
        (0..100)
            .find_map(|_| pages.convert_step(&mut conversion))
            .expect("it ends")
    };
    let refused = convert(&mut pages, StorageMode::Bucket);
    assert!(
        matches!(&refused, Conclusion::Unfit(why) if why.contains("stray pages")),
        "{refused:?}"
    );
    let merged = convert(&mut pages, StorageMode::TimeSeries);
    assert!(is_done(&merged), "{merged:?}");
    for (into, count) in [
        (StorageMode::TimeSeries, 4),
        // The page after the last one that a statement under way may append to.
        (StorageMode::Bucket, 5),
        (StorageMode::TimeSeries, 5),
    ] {
        let done = convert(&mut pages, into);
        assert!(is_done(&done), "{done:?}");
        pages
            .check(14)
            .expect("the pages are those of the readings");
        let mut readings: Vec<i64> = pages.readings().map(|reading| reading.ts_ms).collect();
        readings.sort();
        assert_eq!(readings, (0..14).collect::<Vec<_>>(), "{into:?}");
        assert_eq!(
            (pages.pages.len(), pages.series.is_empty()),
            (count, into == StorageMode::Bucket),
            "{into:?}"
        );
    }
}
