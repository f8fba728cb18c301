//! The removal of readings beside the service, at any moment after the end of a bucket by the true time: without the margin
//! and the caution of the service, also while rows of the bucket are in flight, and in any instance.
//!
//! What is removed stays in [`Pages`] for the oracle, and is hidden from loads and queries. So the oracle still counts what the
//! summaries count: nothing twice, and whatever was acknowledged and is not counted is a dead letter.

use hourbucket::accumulate::state::RejectCause;

use super::super::Sensor;
use super::*;

impl Sim {
    /// Removes the readings of some old pages, or lets the measurements of a bucket expire.
    pub(super) fn remove_readings(&mut self) {
        let Some(kept_ms) = self.removes_after_ms else { return };
        let before_ms = self.true_ms() - kept_ms;
        self.pages.remove_readings(Span::HOUR, before_ms, self.rng.usize(1..5));
        let is_old = |start: &BucketStart| Span::HOUR.end(*start) < before_ms;
        let old: Vec<_> = self.pages.series.keys().filter(|(_, start)| is_old(start)).cloned().collect();
        if !old.is_empty() {
            let (sensor, start) = &old[self.rng.usize(0..old.len())];
            self.pages.expire_measurements(sensor, *start);
        }
    }

    /// Whether readings of a bucket were removed.
    pub(super) fn is_removed(&self, sensor: &str, start: BucketStart) -> bool {
        let id = |n: u32| (sensor.to_owned(), start, n);
        self.pages.pages.range(id(0)..=id(u32::MAX)).any(|(_, page)| page.readings_removed)
    }

    /// Keeps the late rows of such buckets as dead letters, and returns what else was given up.
    pub(super) fn keep_late_rows(&mut self, instance: usize) {
        let shards = &mut self.instances[instance].process.shards;
        for rejected in shards.iter_mut().flat_map(Shard::take_rejected_rows).collect::<Vec<_>>() {
            if rejected.reason != RejectCause::ReadingsRemoved {
                self.given_up.push(rejected);
                continue;
            }
            for row in rejected.rows.iter() {
                let start = Span::HOUR.floor(row.ts_ms);
                let sensor = &rejected.sensor_id;
                let may_be = self.is_removed(sensor, start) || self.is_expired(start);
                assert!(may_be, "seed {}: a row of {sensor} at {} is a dead letter", self.seed, start.0);
                let id = Identity { sensor: Sensor::new(sensor), key: row.key() };
                self.known.get_mut(&id).expect("it was sent").stored = true;
                *self.dead.entry(id).or_default() += 1;
            }
            rejected.acks.delivered();
        }
    }
}
