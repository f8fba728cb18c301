//! A history that random steps hardly ever find, all within a millisecond: a reading with its time
//! of receipt is stored; another reading of the same sensor, with its own time, is pending; then
//! an equal reading with the same time of receipt comes, its twin; and the process ends. The replay
//! must count both twins, so the journal must not take the entry of the second for stored.

use super::*;

impl Sim {
    pub(super) fn twins(&mut self) {
        let sensor = self.rng.u64(0..self.sensors);
        let twin: Rc<[Reading]> = [self.reading_of(sensor, true)].into();
        self.pass_on(&twin);
        self.store_all();
        let own: Rc<[Reading]> = [Reading {
            ts_ms: twin[0].ts_ms,
            ..self.reading_of(sensor, false)
        }]
        .into();
        self.pass_on(&own);
        self.pass_on(&twin);
        if self.rng.bool() {
            self.crash(0);
        }
    }

    /// Works until nothing is outstanding, or for some steps. Only the clock for ages advances.
    fn store_all(&mut self) {
        for _ in 0..self.rng.usize(0..300) {
            let inst = &self.instances[0];
            if inst.unstored_from == inst.journal.len() {
                break;
            }
            self.now.mono_ms += 100;
            match self.rng.u8(0..4) {
                0 => self.route(0),
                1 => self.take_jobs(0),
                2 => self.work(0),
                _ => self.respond(0),
            }
            self.settle_outcomes();
        }
    }

    /// Accepts a batch; it and all before it reach the shards, unless one is full.
    fn pass_on(&mut self, readings: &Rc<[Reading]>) {
        self.batches_seen.push(readings.clone());
        self.accept(0, readings.clone());
        self.sync(0);
        for _ in 0..self.instances[0].process.backlog.len() {
            self.route(0);
        }
        self.settle_outcomes();
    }
}
