//! Removal of readings ([`super::super::removal`]), and late rows that become dead letters because
//! of it.

use pipeline::accumulate::state::RejectCause;

use super::super::{Sensor, removal};
use super::*;

impl Sim {
    /// Removes the readings of some old pages, or lets the measurements of a bucket expire.
    pub(super) fn remove_readings(&mut self) {
        let Some(kept_ms) = self.removes_after_ms else {
            return;
        };
        let before_ms = self.true_ms() - kept_ms;
        removal::remove_some(&mut self.pages, Span::HOUR, before_ms, &mut self.rng);
    }

    /// The next process begins with a longer retention. Measurements that no summary counted when
    /// their bucket began to expire became dead letters: the next `reconcile` counts them.
    pub(super) fn lengthen_retention(&mut self) {
        let buckets = self.pages.series.keys().cloned();
        let expiring = buckets.filter(|(sensor, start)| self.is_removed(sensor, *start));
        let expiring: Vec<_> = expiring.collect();
        self.interrupted.extend(expiring);
        self.pages.end_expiring();
    }

    pub(super) fn is_removed(&self, sensor: &str, start: BucketStart) -> bool {
        removal::is_removed(&self.pages, sensor, start)
    }

    /// Keeps the late rows of such buckets as dead letters, and collects the rows that were
    /// rejected for other reasons.
    pub(super) fn keep_late_rows(&mut self, instance: usize) {
        let shards = &mut self.instances[instance].process.shards;
        for rejected in shards
            .iter_mut()
            .flat_map(Shard::take_rejected_rows)
            .collect::<Vec<_>>()
        {
            if rejected.reason != RejectCause::ReadingsRemoved {
                self.given_up.push(rejected);
                continue;
            }
            for row in rejected.rows.iter() {
                let start = Span::HOUR.floor(row.ts_ms);
                let sensor = &rejected.sensor_id;
                let may_be = self.is_removed(sensor, start) || self.is_expired(start);
                assert!(
                    may_be,
                    "seed {}: a row of {sensor} at {} is a dead letter",
                    self.seed, start.0
                );
                let id = Identity {
                    sensor: Sensor::new(sensor),
                    key: key(row.ts_ms, row.named()),
                };
                self.known.get_mut(&id).expect("it was sent").stored = true;
                *self.dead.entry(id).or_default() += 1;
            }
            rejected.acks.delivered();
        }
    }
}
