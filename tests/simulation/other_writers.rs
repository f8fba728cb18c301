//! Other programs that change the same documents: retention and `reconcile`.
//!
//! **Retention** removes the documents of a bucket if the bucket ended that long ago by the true
//! time, and its measurements one span later. A statement in flight or a late reading may create a
//! document again, which the next pass removes. So the oracle expects nothing of an expired bucket;
//! all other buckets must not be affected, and all work must end.
//!
//! **`reconcile`** recomputes the summary of a time-series bucket at any moment, so the version
//! changes under the shard; it may also be aborted between two of its statements.

use super::*;

impl Sim {
    /// The true time, which the service does not know.
    pub(super) fn true_ms(&self) -> i64 {
        self.now.wall_ms - self.wrong_ms
    }

    /// Whether retention may have removed something of a bucket.
    pub(super) fn is_expired(&self, start: BucketStart) -> bool {
        self.retention_ms
            .is_some_and(|ms| Span::HOUR.end(start) + ms <= self.true_ms())
    }

    /// A pass of the database's TTL monitor.
    pub(super) fn expire(&mut self) {
        let Some(retention_ms) = self.retention_ms else {
            return;
        };
        let line_ms = self.true_ms() - retention_ms;
        self.pages
            .pages
            .retain(|(_, start, _), _| Span::HOUR.end(*start) > line_ms);
        for measurements in [&mut self.pages.series, &mut self.pages.expired] {
            measurements.retain(|(_, start), _| Span::HOUR.end(*start) + HOUR > line_ms);
        }
    }

    /// Runs `reconcile --repair` for one time-series bucket, to its end or not.
    pub(super) fn reconcile(&mut self) {
        let buckets = self.pages.series.len();
        if buckets == 0 {
            return;
        }
        let (sensor, start) = self
            .pages
            .series
            .keys()
            .nth(self.rng.usize(0..buckets))
            .expect("it is there")
            .clone();
        if self.pages.is_time_series(&sensor, start) {
            let statements = if self.rng.bool() {
                usize::MAX
            } else {
                self.rng.usize(0..5)
            };
            self.pages.recompute_in_part(&sensor, start, statements);
            self.interrupted.insert((sensor, start));
        }
    }

    /// Whether the pages of a bucket count all of its readings. After an aborted `reconcile`, and
    /// without a journal, they need not: see [`Sim::reconcile_leftovers`].
    pub(super) fn is_counted(&self, sensor: &str, start: BucketStart) -> bool {
        let excused = !self.journaled || self.interrupted.contains(&(sensor.to_owned(), start));
        let readings = self
            .pages
            .series
            .get(&(sensor.to_owned(), start))
            .map_or(0, Vec::len);
        !excused || readings == 0 || self.counted(sensor, start) as usize == readings
    }

    fn counted(&self, sensor: &str, start: BucketStart) -> u32 {
        let page = |n: u32| self.pages.pages.get(&(sensor.to_owned(), start, n));
        (0..).map_while(page).map(|page| page.count).sum()
    }

    /// Runs each aborted `reconcile` again.
    pub(super) fn reconcile_interrupted(&mut self) {
        for (sensor, start) in std::mem::take(&mut self.interrupted) {
            if self.pages.is_time_series(&sensor, start) {
                self.pages.recompute_in_part(&sensor, start, usize::MAX);
            }
        }
    }

    /// Without a journal, a sender resends unacknowledged readings after a crash, and a reading
    /// without a time gets a new one. So a measurement with the first time may remain in a bucket
    /// that no process writes any more, and its summary does not count it before the next
    /// `reconcile`.
    pub(super) fn reconcile_leftovers(&mut self) {
        let mut stored: Identities<u32> = Identities::default();
        for reading in self.pages.readings() {
            *stored.entry(identity(reading)).or_default() += 1;
        }
        for ((sensor, start), readings) in self.pages.series.clone() {
            let counted = self.counted(&sensor, start);
            let left = |r: &&Reading| {
                let id = identity(r);
                self.known[&id].receipt_time
                    && stored.get(&id).is_some_and(|n| *n > self.known[&id].acked)
            };
            let left = readings.iter().filter(left).count();
            if readings.len() <= counted as usize + left {
                self.pages.recompute_in_part(&sensor, start, usize::MAX);
            }
        }
    }
}
