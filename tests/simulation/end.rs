//! The end of a history: the faults stop, all work ends, and the stored readings are compared with
//! those sent and acknowledged.

use super::super::Sensor;
use super::*;

impl Sim {
    /// Without faults, all work must end: what remains becomes less within a bounded number of
    /// rounds. How many there are in all depends on the history, which may leave thousands of
    /// entries in the journal and write them a row at a time. A bucket that retention removed in
    /// part may have pages of both storage modes, which only the end of its quarantine resolves;
    /// see [`Sim::give_up`].
    pub(super) fn drain(&mut self) {
        self.faulty = false;
        let mut least = self.remaining();
        let mut stalled = 0;
        let mut gives_up = false;
        for round in 0.. {
            gives_up |= stalled >= 20_000;
            let ms = if gives_up { 1000 } else { 10 };
            self.now = Now {
                wall_ms: self.now.wall_ms + ms,
                mono_ms: self.now.mono_ms + ms as u64,
            };
            self.apply_abandoned();
            self.finish_conversions(round);
            for i in 0..self.instances.len() {
                self.sync(i);
                self.route(i);
                self.instances[i]
                    .process
                    .shards
                    .iter_mut()
                    .for_each(Shard::drain);
                self.take_jobs(i);
                while !self.instances[i].process.jobs.is_empty() {
                    self.work(i);
                }
                while !self.instances[i].process.responses.is_empty() {
                    self.respond(i);
                }
            }
            if gives_up {
                self.give_up();
            }
            self.keep_given_up();
            self.settle_outcomes();
            let remaining = self.remaining();
            if remaining == (0, 0) {
                return;
            }
            stalled = if remaining < least { 0 } else { stalled + 1 };
            least = least.min(remaining);
            assert!(
                stalled < 30_000,
                "seed {}: no progress: {remaining:?}: {:?}",
                self.seed,
                self.instances[0].process.shards
            );
        }
    }

    /// What must still be done: first what feeds the shards or waits beside them, of which nothing
    /// new comes without faults; then the readings in the shards, which increase only when the
    /// first decreases.
    fn remaining(&self) -> (usize, usize) {
        let processes = || self.instances.iter().map(|i| &i.process);
        let backlog: usize = processes().map(|p| p.backlog.len()).sum();
        let shards = processes().flat_map(|p| &p.shards);
        let readings = shards.map(|shard| shard.usage().readings).sum();
        (
            self.abandoned.len() + self.conversions.len() + backlog,
            readings,
        )
    }

    /// The oracle.
    pub(super) fn check(&mut self) {
        self.expire();
        self.reconcile_interrupted();
        if !self.journaled {
            self.reconcile_leftovers();
        }
        self.convert_again();
        if let Err(wrong) = self.pages.check(self.page.readings) {
            panic!("seed {}: {wrong}; journaled: {}", self.seed, self.journaled);
        }
        self.check_catalog();
        for ((sensor, start, n), page) in &self.pages.pages {
            // The fields of a statement's first reading are always accepted (up to four, of 60
            // bytes at most): in the statement that begins the page, and in the one that fills it.
            let bytes = page.summary_bytes();
            let most = self.page.summary_bytes + 2 * 4 * 60;
            assert!(
                bytes <= most,
                "seed {}: page {n} of {sensor} at {start:?}: summary of {bytes}",
                self.seed
            );
        }
        let mut stored: Identities<u32> = Identities::default();
        for reading in self.pages.readings() {
            *stored.entry(identity(reading)).or_default() += 1;
        }
        let is_expired = |id: &Identity| self.is_expired(Span::HOUR.floor(id.key.ts_ms));
        for (id, n) in stored.iter().filter(|(id, _)| !is_expired(id)) {
            let most = *self.expected(id).end();
            assert!(
                *n <= most,
                "seed {}: stored {n} times, at most {most} were sent: {id:?}",
                self.seed
            );
        }
        for id in self.known.keys().filter(|id| !is_expired(id)) {
            let least = *self.expected(id).start();
            let n = stored.get(id).copied().unwrap_or(0) + self.dead.get(id).copied().unwrap_or(0);
            assert!(
                n >= least,
                "seed {}: acknowledged {least}, stored or dead letters {n}: {id:?}",
                self.seed
            );
        }
        for (i, instance) in self.instances.iter().enumerate() {
            for entry in &instance.journal {
                assert!(
                    entry.stored,
                    "seed {}: entry {} of instance {i} never settled",
                    self.seed, entry.id
                );
            }
            for shard in &instance.process.shards {
                assert_eq!(shard.usage().readings, 0);
            }
        }
    }

    /// The catalogue has every stored sensor and field, and nothing else.
    fn check_catalog(&self) {
        if let Err(wrong) = self.pages.check_catalog() {
            panic!("seed {}: {wrong}", self.seed);
        }
        let mut stored: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
        for reading in self
            .batches_seen
            .iter()
            .chain(&self.resent)
            .flat_map(|batch| batch.iter())
        {
            if self
                .known
                .get(&identity(reading))
                .is_some_and(|known| known.stored)
            {
                stored
                    .entry(&reading.sensor_id)
                    .or_default()
                    .extend(reading.values.keys().map(String::as_str));
            }
        }
        for (sensor, entry) in &self.pages.catalog {
            let fields = stored
                .get(&**sensor)
                .unwrap_or_else(|| panic!("seed {}: {sensor} is not stored", self.seed));
            for field in entry.fields.keys() {
                assert!(
                    fields.contains(&**field),
                    "seed {}: {field} of {sensor} is not stored",
                    self.seed
                );
            }
        }
    }

    /// Lets the quarantine end: rows that still fail then are given up.
    fn give_up(&mut self) {
        for shard in self
            .instances
            .iter_mut()
            .flat_map(|instance| &mut instance.process.shards)
        {
            shard.set_store_answers(true);
            shard.note_pages_written(u64::MAX);
        }
    }

    /// Rows that were given up become dead letters. Without faults, that happens only to expired
    /// buckets.
    fn keep_given_up(&mut self) {
        for rejected in std::mem::take(&mut self.given_up) {
            for row in rejected.rows.iter() {
                let start = Span::HOUR.floor(row.ts_ms);
                assert!(
                    self.is_expired(start),
                    "seed {}: {start:?} was given up: {}",
                    self.seed,
                    rejected.detail
                );
                // A dead letter counts as stored.
                let id = Identity {
                    sensor: Sensor::new(&rejected.sensor_id),
                    key: key(row.ts_ms, row.named()),
                };
                self.known.get_mut(&id).expect("it was sent").stored = true;
            }
            rejected.acks.delivered();
        }
    }
}
