//! The oracles: liveness at any time, and the stored readings at the end.

use model::{BucketStart, StorageMode};
use pipeline::flush::due::DuePolicy;

use super::super::server::{AWKWARD, LOADS_AT_ONCE, Trouble};
use super::super::{Identities, Identity, identity, process, removal};
use super::Life;
use testkit::memory_store::{Page, Pages};

/// Added to the longest age; counts while the database responds.
const GRACE_MS: u64 = 15_000;
/// Time limit of a load of the flush stage.
const LOAD_MS: u64 = 4000;
/// A bucket is given up after so many failures in a row.
const FAULTS_MAX: usize = 4;

impl Life {
    fn max_age_ms(&self) -> u64 {
        match self.world.settings.due {
            DuePolicy::Age(ms) => ms.max(self.world.age_busy_ms),
            DuePolicy::Linger(ms) => ms,
        }
    }

    /// The liveness oracle.
    pub(super) fn alive(&mut self) {
        let state = self.world.server.state();
        for dead_letter in &state.pages.dead[self.dead_seen..] {
            for reading in process::dead_letter_readings(dead_letter) {
                let start = self.world.settings.span.floor(reading.ts_ms);
                let is_tiered = state.pages.days.zone.is_some();
                if !is_tiered && removal::is_removed(&state.pages, &reading.sensor_id, start) {
                    self.too_late.insert(identity(&reading), ());
                    continue;
                }
                // With many faults and a short quarantine, random failures may cause it.
                let hits = state.hits.get(&reading.sensor_id).map_or(0, Vec::len);
                assert!(
                    reading.sensor_id == AWKWARD || hits >= FAULTS_MAX,
                    "seed {}: an innocent reading was given up: {dead_letter:?}",
                    self.seed
                );
            }
        }
        self.dead_seen = state.pages.dead.len();
        self.watched
            .retain(|w| !state.stored.contains_key(&w.id) && !self.too_late.contains_key(&w.id));
        let pace = self.world.server.pace;
        // A failure of this bucket costs a time limit, a backoff, and both once more for the load.
        let hit_ms = 2 * (pace.timeout + self.world.settings.backoff.max).as_millis() as u64;
        // If all buckets of the awkward sensor are in trouble, each of them is sent twice with
        // others before it is sent alone.
        let others = if state.bucket.is_none() {
            self.awkward.len().saturating_sub(1).min(5) as u64
        } else {
            0
        };
        // A hanging command delays twice: its sender, and then the loads of its buckets.
        let hang_ms = match self.kind {
            Trouble::WritesHang => (4 + 2 * others) * pace.timeout.as_millis() as u64,
            _ => 0,
        };
        // Each bucket with slow loads delays those of others by as much, twice; the grace covers
        // the first two.
        let slow = matches!(self.kind, Trouble::LoadsHang | Trouble::LoadsSlow(_));
        let slow_ms = if slow { LOAD_MS * others } else { 0 };
        let backfill_ms =
            (pace.round_trip * self.backfilled as u32).as_millis() as u64 / LOADS_AT_ONCE as u64;
        // What is computed of a day is written with the permits of page writes: its summary, and its
        // columns.
        let days_ms = pace.timeout.as_millis() as u64;
        let bound_ms = self.max_age_ms() + GRACE_MS + hang_ms + slow_ms + backfill_ms + days_ms;
        // Failing buckets are tried one after the other.
        let each_ms = match self.kind {
            Trouble::LoadsSlow(time) => time.as_millis() as u64,
            _ => pace.timeout.as_millis() as u64,
        };
        let lap_ms = if state.bucket.is_none() {
            each_ms * self.awkward.len() as u64
        } else {
            0
        };
        let line_ms = bound_ms + self.world.settings.quarantine_after_ms + 4 * hit_ms + lap_ms;
        for w in &self.watched {
            let names = [w.id.sensor.as_str(), ""];
            let hits = names.iter().filter_map(|s| state.hits.get(*s)).flatten();
            let hits = hits.filter(|at| **at >= w.hits_from).count() as u64;
            // A bucket that has failed twice waits with those that always fail.
            let bound_ms = if hits < 2 { bound_ms } else { line_ms };
            let waited_ms = self.up_ms - w.since_ms;
            let inst = &self.instances[w.instance];
            assert!(
                waited_ms <= bound_ms + hits * hit_ms || inst.process.is_none(),
                "seed {}: liveness: {:?} has waited {waited_ms} ms of {bound_ms} ms with a \
                 responding database, with {hits} random failures; trouble {:?}, pace {pace:?}, \
                 {:?}",
                self.seed,
                w.id,
                self.trouble,
                self.world.settings
            );
        }
        for inst in self.instances.iter().filter(|i| i.process.is_some()) {
            if let Some((at, entry)) = inst.journal().iter().enumerate().find(|(_, e)| !e.stored) {
                let waited_ms = self.up_ms - entry.since_ms;
                let hits = state
                    .hits
                    .values()
                    .flatten()
                    .filter(|at| **at >= entry.hits_from)
                    .count() as u64;
                assert!(
                    waited_ms <= line_ms + hits * hit_ms,
                    "seed {}: the journal is held by entry {at} for {waited_ms} ms of {line_ms} \
                     ms; trouble {:?}, pace {pace:?}, {:?}",
                    self.seed,
                    self.trouble,
                    self.world.settings
                );
            }
        }
    }

    /// The oracle of the stored readings, at the end of a history.
    pub(super) fn check(&mut self) {
        let seed = self.seed;
        let mut state = self.world.server.state();
        let twice = self.instances.len() > 1 && !state.pages.series.is_empty();
        if twice {
            // Each of two processes may have written a measurement after the other's last load.
            let buckets: Vec<_> = state.pages.series.keys().cloned().collect();
            for (sensor_id, start) in buckets {
                if removal::is_removed(&state.pages, &sensor_id, start) {
                    continue;
                }
                let bucket = model::BucketKey {
                    sensor_id: sensor_id.as_str().into(),
                    start,
                };
                let request = store::LoadRequest {
                    bucket,
                    readings_from: None,
                    doubt: true,
                };
                state
                    .pages
                    .load(&request, StorageMode::TimeSeries)
                    .expect("it has no pages with readings");
            }
        }
        state
            .pages
            .check_catalog()
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        state
            .pages
            .check(self.world.settings.page.readings)
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let mut stored: Identities<u32> = Identities::default();
        for reading in state.pages.readings() {
            *stored.entry(identity(reading)).or_default() += 1;
        }
        let dead: Identities<()> = state
            .pages
            .dead
            .iter()
            .flat_map(process::dead_letter_readings)
            .map(|r| (identity(&r), ()))
            .collect();
        for id in dead.keys() {
            assert!(
                self.too_late.contains_key(id),
                "seed {seed}: a replayed dead letter came back: {id:?}"
            );
        }
        for id in self.sent.keys() {
            let n = stored.remove(id).unwrap_or(0);
            // A reading without a time is a different one when it is sent again.
            let again = self.replayed.get(id).copied().unwrap_or(0);
            // A dead letter may repeat a counted reading.
            let least = u32::from(!dead.contains_key(id));
            assert!(
                n == 1 || (twice && n > 0) || (least..=1 + again).contains(&n),
                "seed {seed}: stored {n} times: {id:?}, in {:?}",
                pages_with(&state.pages, id)
            );
        }
        assert!(stored.is_empty(), "seed {seed}: never sent: {stored:?}");
    }
}

/// The pages with a reading: bucket, number, count, and whether readings were removed.
fn pages_with(pages: &Pages, id: &Identity) -> Vec<(BucketStart, u32, u32, bool)> {
    let has = |page: &Page| page.readings.iter().any(|reading| identity(reading) == *id);
    let found = pages.pages.iter().filter(|(_, page)| has(page));
    found
        .map(|((_, start, n), page)| (*start, *n, page.count, page.readings_removed))
        .collect()
}
