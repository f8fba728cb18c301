//! Removes old readings in bucket mode (`store.retention_readings`, [`store::retention`]):
//! small batches with pauses, one command at a time, while ingest has no backlog.
//!
//! **Pace** ([`Pace`]). An acknowledgement that needs a processor or the disk waits for the batch
//! that is being emptied, so batches are small, and there are few: [`RATE`] pages per second. If
//! more become due, it removes twice as many as do, but rests at least [`REST_TIMES`] times as long
//! as each command took: at most 500 pages/s, and a fifth of one connection.
//!
//! **Yielding.** Nothing is removed while the store does not answer, the journal is replayed, or
//! the oldest unstored reading is older than readings become in normal operation. So everything
//! that this instance has accepted up to then is stored. Readings that it accepts now are at most
//! `limits.past` old by its own clock; if that clock differs from the store's by more than
//! [`CLOCKS_MAX`], nothing is removed either. Both are far less than [`MARGIN`], so no page is
//! emptied that this instance still has readings for.
//!
//! **With columns** the readings of a whole day are removed at once, when it has ended as long ago, and
//! only if its columns have them ([`store::tier`]). A day without such columns stays in its pages. The
//! pace is the same; a day is read and compared without a permit, and only its removal has one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::context::ServiceContext;
use super::stages::Unstored;
use super::weightings;
use config::AckMode;
use model::{BucketKey, DAY_MS, Span, Zone};
use pipeline::accumulate::ANSWERS_WITHIN;
use pipeline::flush::backoff::Backoff;
use store::days::SensorDay;
use store::retention::{MARGIN, RemovedReadings, ms};
use store::tier::compare_day;
use store::{Store, StoreError};
use telemetry::metrics;

/// Pages in one command.
const PAGES_MAX: usize = 25;
/// Pages per second, unless more become due.
const RATE: f64 = 25.0;
/// The shortest rest after a command, and how many times as long as the command it is at least.
const REST_MIN: Duration = Duration::from_millis(50);
const REST_TIMES: u32 = 4;
/// Time until the next look, if nothing is left.
const IDLE: Duration = Duration::from_secs(30);
/// The same, if nothing may be removed for now. After a start that lasts for seconds.
const HELD: Duration = Duration::from_secs(5);
/// A day that had no columns equal to its pages is tried again after this time.
const KEPT_AGAIN: Duration = Duration::from_secs(60 * 60);
/// Most pages of such days that are looked past.
const KEPT_PAGES_MAX: usize = 20_000;
/// How far the clocks of service and store may differ.
const CLOCKS_MAX: Duration = Duration::from_secs(60 * 60);
/// Time in which a reading is stored in normal operation, beyond the age at which it is due.
const GRACE: Duration = Duration::from_secs(15);

/// What the removal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Store,
    Replay,
    Backlog,
    Clocks,
}

impl Hold {
    fn as_str(self) -> &'static str {
        match self {
            Hold::Store => "the store does not answer",
            Hold::Replay => "the journal is being replayed",
            Hold::Backlog => "readings wait to be stored",
            Hold::Clocks => "the clocks of the service and of MongoDB differ by more than an hour",
        }
    }
}

/// The values observed before each command.
#[derive(Debug, Clone, Copy)]
struct Observed {
    store_answers: bool,
    is_replayed: bool,
    /// Age of the oldest unstored reading, and how old one becomes in normal operation.
    unstored: Duration,
    unstored_max: Duration,
    /// The clocks of service and store (ms since 1970).
    now_ms: i64,
    store_ms: i64,
}

impl Observed {
    fn hold(self) -> Option<Hold> {
        [
            (!self.store_answers, Hold::Store),
            (!self.is_replayed, Hold::Replay),
            (self.unstored > self.unstored_max, Hold::Backlog),
            (
                self.now_ms.abs_diff(self.store_ms) > CLOCKS_MAX.as_millis() as u64,
                Hold::Clocks,
            ),
        ]
        .into_iter()
        .find_map(|(holds, why)| holds.then_some(why))
    }
}

/// How fast readings are removed.
#[derive(Debug, Default)]
struct Pace {
    /// The end of the bucket whose pages are being emptied, and the number of those that are.
    bucket_end_ms: Option<i64>,
    pages: u64,
    /// The most pages that a recent bucket had: an eighth less with each one that has fewer, so
    /// that a single late page changes the pace little.
    pages_most: u64,
}

impl Pace {
    /// Counts what a command has removed.
    fn count(&mut self, removed: &RemovedReadings) {
        if self.bucket_end_ms != removed.oldest_end_ms {
            self.bucket_end_ms = removed.oldest_end_ms;
            self.pages_most = self
                .pages
                .max(self.pages_most - self.pages_most.div_ceil(8));
            self.pages = 0;
        }
        self.pages += removed.pages;
    }

    /// The rest after a command that took `took`. In each `span`, the pages of one bucket, or of one
    /// day, become due.
    fn rest(&self, took: Duration, span: Span) -> Duration {
        let due = self.pages.max(self.pages_most) as f64 * 1000.0 / span.ms() as f64;
        let period = Duration::from_secs_f64(PAGES_MAX as f64 / RATE.max(2.0 * due));
        let rest = period.saturating_sub(took);
        rest.max(took * REST_TIMES).max(REST_MIN)
    }
}

/// The days whose readings are removed next, with columns.
struct Days {
    /// The oldest is the last.
    next: Vec<SensorDay>,
    /// Days that stay in their pages. They are found again and again, so more is asked for.
    kept: BTreeSet<SensorDay>,
    kept_since: Instant,
    /// Pages to ask for, and whether there were as many.
    pages_max: usize,
    is_full: bool,
}

impl Days {
    fn new() -> Days {
        Days {
            next: vec![],
            kept: BTreeSet::new(),
            kept_since: Instant::now(),
            pages_max: PAGES_MAX,
            is_full: false,
        }
    }

    fn found(&mut self, buckets: &[BucketKey], zone: Zone) {
        if self.kept_since.elapsed() > KEPT_AGAIN {
            self.kept.clear();
            self.kept_since = Instant::now();
        }
        self.is_full = buckets.len() >= self.pages_max;
        let day = |bucket: &BucketKey| SensorDay {
            day: zone.day(bucket.start.0),
            sensor_id: bucket.sensor_id.clone(),
        };
        let mut seen = BTreeSet::new();
        let days = buckets.iter().map(day);
        self.next = days
            .filter(|day| !self.kept.contains(day) && seen.insert(day.clone()))
            .collect();
        self.next.reverse();
        self.pages_max = match self.next.is_empty() && self.is_full {
            true => (self.pages_max * 2).min(KEPT_PAGES_MAX),
            false => PAGES_MAX,
        };
    }
}

impl ServiceContext {
    /// Runs until the service ends; ends immediately without `store.retention_readings`. Begins
    /// after the store is prepared.
    pub(super) async fn remove_readings(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        unstored: Unstored,
    ) {
        let Some(kept) = self.config.store.retention_readings else {
            return;
        };
        drop(self.flusher.permit().await);
        let mut failures = 0;
        let mut held = None;
        let mut pace = Pace::default();
        let mut days = Days::new();
        // The pages of a bucket become due together, with columns those of a day.
        let is_by_day = self.config.columns.enabled;
        let day = Span::from_ms(DAY_MS).filter(|_| is_by_day);
        let due_every = day.unwrap_or(self.config.bucket.span);
        loop {
            let begun = Instant::now();
            let kept_ms = ms(kept + MARGIN);
            let removed = match is_by_day {
                true => {
                    self.remove_day(&*store, kept_ms, &unstored, &mut days, &mut pace)
                        .await
                }
                false => {
                    self.remove_some(&*store, kept_ms, &unstored, &mut pace)
                        .await
                }
            };
            match removed {
                Ok((hold, is_more)) => {
                    failures = 0;
                    if let Some(why) = hold.filter(|_| hold != held && is_more) {
                        tracing::info!(
                            reason = why.as_str(),
                            "old readings are not removed for now"
                        );
                    }
                    held = hold;
                    let rest = match (is_more, hold) {
                        (true, None) => pace.rest(begun.elapsed(), due_every),
                        (true, Some(_)) => HELD,
                        (false, _) => IDLE,
                    };
                    tokio::time::sleep(rest).await;
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(%error, "cannot remove old readings; trying again");
                    }
                    failures += 1;
                    metrics::readings_removal_errors_total(1);
                    tokio::time::sleep(
                        Backoff::default()
                            .wait(failures, fastrand::f64())
                            .max(REST_MIN),
                    )
                    .await;
                }
            }
        }
    }

    /// The same with columns: the readings of one whole day, after a comparison with its columns.
    async fn remove_day(
        &self,
        store: &dyn Store,
        kept_ms: i64,
        unstored: &Unstored,
        days: &mut Days,
        pace: &mut Pace,
    ) -> Result<(Option<Hold>, bool), StoreError> {
        let permit = self.flusher.permit().await;
        let store_ms = store.now_ms().await?;
        let hold = self.observe(store_ms, unstored).hold();
        let zone = Zone::from(self.config.rollup.zone);
        let before_ms = zone.day(store_ms.saturating_sub(kept_ms)).start_ms;
        if days.next.is_empty() {
            // A bucket that ends with its day belongs to it.
            let found = store.find_removable(i64::MIN..before_ms + 1, days.pages_max);
            days.found(&found.await?, zone);
        }
        // A day is read as a query reads it, among the writes of others.
        drop(permit);
        let Some(day) = days.next.pop() else {
            metrics::readings_removal_lag_seconds(0.0);
            return Ok((hold, days.is_full));
        };
        let lag_ms = before_ms.saturating_sub(day.day.end_ms).max(0);
        metrics::readings_removal_lag_seconds(lag_ms as f64 / 1000.0);
        if hold.is_some() {
            days.next.push(day);
            return Ok((hold, true));
        }
        let columns = weightings(&self.config);
        let span = self.config.bucket.span;
        match compare_day(store, span, &day, &columns).await? {
            Some(pages) => {
                let _permit = self.flusher.permit().await;
                let removed = store.remove_compared(&pages).await?;
                metrics::readings_removed_pages_total(removed);
                pace.count(&RemovedReadings {
                    found: pages.len(),
                    pages: removed,
                    oldest_end_ms: Some(day.day.end_ms),
                });
            }
            None => {
                days.kept.insert(day);
            }
        }
        Ok((None, true))
    }

    /// Removes the readings of some pages, unless something must be waited for; and returns whether
    /// there are more.
    async fn remove_some(
        &self,
        store: &dyn Store,
        kept_ms: i64,
        unstored: &Unstored,
        pace: &mut Pace,
    ) -> Result<(Option<Hold>, bool), StoreError> {
        // One command at a time, among those of ingest.
        let _permit = self.flusher.permit().await;
        let store_ms = store.now_ms().await?;
        let hold = self.observe(store_ms, unstored).hold();
        let before_ms = store_ms.saturating_sub(kept_ms);
        let pages_max = if hold.is_some() { 0 } else { PAGES_MAX };
        let removed = store.remove_readings(before_ms, pages_max).await?;
        pace.count(&removed);
        // Nothing is left once fewer than requested were found, unless a writer has changed one of
        // them meanwhile.
        let is_more = removed.found >= pages_max.max(1) || removed.pages < removed.found as u64;
        let oldest_end_ms = removed.oldest_end_ms.filter(|_| is_more);
        let lag_ms = oldest_end_ms.map_or(0, |end_ms| before_ms.saturating_sub(end_ms));
        metrics::readings_removed_pages_total(removed.pages);
        metrics::readings_removal_lag_seconds(lag_ms as f64 / 1000.0);
        Ok((hold, is_more))
    }

    fn observe(&self, store_ms: i64, unstored: &Unstored) -> Observed {
        let now = self.clock.now();
        let flush = &self.config.flush;
        let backlog = unstored.backlog(now.mono_ms);
        let due = match self.config.ingest.ack {
            AckMode::Journal => flush.max_age.max(flush.max_age_busy),
            AckMode::Stored => flush.linger,
        };
        Observed {
            store_answers: self.flusher.answered_within(ANSWERS_WITHIN),
            is_replayed: backlog.is_replayed,
            unstored: Duration::from_millis(backlog.age_ms.unwrap_or(0)),
            unstored_max: due + GRACE,
            now_ms: now.wall_ms,
            store_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages per second with `pages` in each hour, if a command takes `took`.
    fn rate(pages: u64, took: Duration) -> f64 {
        let mut pace = Pace::default();
        let mut removed = 0;
        let mut time = 0.0;
        for hour in 0..20 {
            let mut left = pages;
            while left > 0 {
                let some = left.min(PAGES_MAX as u64);
                left -= some;
                pace.count(&RemovedReadings {
                    found: PAGES_MAX,
                    pages: some,
                    oldest_end_ms: Some(hour * 3_600_000),
                });
                if hour >= 10 {
                    time += (took + pace.rest(took, Span::HOUR)).as_secs_f64();
                    removed += some;
                }
            }
        }
        removed as f64 / time
    }

    #[test]
    fn the_pace_is_slow_unless_more_pages_become_due() {
        let took = Duration::from_millis(5);
        assert_eq!(rate(1000, took).round(), 25.0);
        assert_eq!(rate(45_000, took).round(), 25.0);
        let of_million = rate(1_000_000, took);
        assert!(of_million > 1_000_000.0 / 3600.0, "{of_million} pages/s");
        // Commands that take long get four fifths of the time for others.
        assert_eq!(rate(1_000_000, took * 40).round(), 25.0);
    }

    #[test]
    fn a_late_page_changes_the_pace_little() {
        let mut pace = Pace::default();
        let took = Duration::from_millis(1);
        let page = |end_ms, pages| RemovedReadings {
            found: PAGES_MAX,
            pages,
            oldest_end_ms: Some(end_ms),
        };
        pace.count(&page(100, 400_000));
        let before = pace.rest(took, Span::HOUR);
        for end_ms in [50, 100] {
            pace.count(&page(end_ms, 1));
        }
        assert!(pace.rest(took, Span::HOUR) < before * 3 / 2);
    }

    #[test]
    fn nothing_is_removed_while_readings_may_be_missing_or_a_clock_is_wrong() {
        let well = Observed {
            store_answers: true,
            is_replayed: true,
            unstored: Duration::from_secs(29),
            unstored_max: Duration::from_secs(30),
            now_ms: 0,
            store_ms: 3_600_000,
        };
        assert_eq!(well.hold(), None);
        for (observed, hold) in [
            (
                Observed {
                    store_answers: false,
                    ..well
                },
                Hold::Store,
            ),
            (
                Observed {
                    is_replayed: false,
                    ..well
                },
                Hold::Replay,
            ),
            (
                Observed {
                    unstored: Duration::from_secs(31),
                    ..well
                },
                Hold::Backlog,
            ),
            (
                Observed {
                    store_ms: 3_600_001,
                    ..well
                },
                Hold::Clocks,
            ),
            (
                Observed {
                    now_ms: 366 * 86_400_000,
                    ..well
                },
                Hold::Clocks,
            ),
        ] {
            assert_eq!(observed.hold(), Some(hold));
        }
    }
}
