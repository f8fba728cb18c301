//! How the store and crashes affect the jobs of the shards: faults, statements that their sender
//! abandoned, the replay.

use super::*;

fn note_stored(known: &mut Identities<Known>, write: &PageWrite) {
    for id in identities(write) {
        known.get_mut(&id).expect("it was sent").stored = true;
    }
}

/// Updates the catalogue, as the flush stage does before it sends the writes.
fn catalogue(pages: &mut Pages, writes: &[PageWrite]) {
    writes
        .iter()
        .filter_map(|write| write.catalog.as_deref())
        .for_each(|update| pages.merge_catalog(update));
}

/// Carries out one statement and notes what it stored.
fn apply(pages: &mut Pages, known: &mut Identities<Known>, write: &PageWrite) -> PageWriteResult {
    let written = pages.write(write);
    if matches!(written, PageWriteResult::Done { .. })
        || write.storage_mode == StorageMode::TimeSeries
    {
        note_stored(known, write);
    }
    written
}

/// The high-water mark that this job needs before it is sent.
fn through(job: &Job) -> BucketStart {
    let (Job::Load(tickets, _) | Job::Write(tickets, _)) = job;
    tickets
        .iter()
        .map(|t| t.start())
        .max()
        .map_or(BucketStart(i64::MIN), |start| BucketStart(start.0 + HOUR))
}

/// Stores the measurements of a statement without its summary, or with only some of the statements
/// that recompute it.
fn insert(
    rng: &mut fastrand::Rng,
    pages: &mut Pages,
    known: &mut Identities<Known>,
    write: &PageWrite,
) {
    pages.insert(write);
    pages.recompute_in_part(
        &write.sensor_id,
        write.start,
        rng.usize(0..6).saturating_sub(1),
    );
    note_stored(known, write);
}

/// Ends abandoned statements: they are dropped, carried out in part (time-series statements), or
/// carried out whole.
fn settle(
    rng: &mut fastrand::Rng,
    abandoned: &mut Vec<PageWrite>,
    pages: &mut Pages,
    known: &mut Identities<Known>,
    which: impl Fn(&PageWrite) -> bool,
) {
    for write in abandoned.extract_if(.., |w| which(w)) {
        match rng.u8(0..3) {
            0 => {}
            1 if write.storage_mode == StorageMode::TimeSeries => insert(rng, pages, known, &write),
            _ => drop(apply(pages, known, &write)),
        }
    }
}

impl Sim {
    /// Carries out one of the jobs in flight, with any fault.
    pub(super) fn work(&mut self, instance: usize) {
        let process = &mut self.instances[instance].process;
        if process.jobs.is_empty() {
            return;
        }
        let (shard, job) = process
            .jobs
            .swap_remove(self.rng.usize(0..process.jobs.len()));
        // As the flush stage does before it sends a statement.
        let through = through(&job);
        let lost = if self.faulty && through > process.mark {
            self.rng.u8(0..10)
        } else {
            255
        };
        if lost < 2 {
            // No statement was sent, and the mark was raised or not.
            if lost == 0 {
                self.pages.raise_high_water(through);
            }
            return process.jobs.push((shard, job));
        }
        if through > process.mark {
            let before = self.pages.raise_high_water(through);
            (process.mark, process.new) =
                (through.max(before), process.new.raised(before, through));
        }
        let fault = if self.faulty { self.rng.u8(0..12) } else { 255 };
        let unknown = || StoreError::Unknown {
            kind: StoreErrorKind::Timeout,
            detail: String::new(),
        };
        let done = match job {
            Job::Load(tickets, requests) => {
                if fault < 2 {
                    JobResult::Load(tickets, requests, Err(unknown()))
                } else {
                    if requests.iter().any(|r| r.doubt) {
                        // Such a load waits for these statements.
                        let series = |w: &PageWrite| {
                            w.storage_mode == StorageMode::TimeSeries
                                && requests.iter().any(|r| r.doubt && r.bucket == w.bucket())
                        };
                        settle(
                            &mut self.rng,
                            &mut self.abandoned,
                            &mut self.pages,
                            &mut self.known,
                            series,
                        );
                    }
                    let loaded = requests
                        .iter()
                        .map(|r| self.pages.load(r, self.storage_mode))
                        .collect();
                    JobResult::Load(tickets, requests, Ok(loaded))
                }
            }
            Job::Write(tickets, writes) => {
                // Before the pages; fault 0 fails this command.
                let catalogued = if fault == 0 {
                    writes.len() / 2
                } else {
                    writes.len()
                };
                catalogue(&mut self.pages, &writes[..catalogued]);
                let pages = &mut self.pages;
                let known = &mut self.known;
                let mut apply = |n: usize| -> Vec<PageWriteResult> {
                    writes[..n].iter().map(|w| apply(pages, known, w)).collect()
                };
                let answer = match fault {
                    0 => Err(StoreError::NotApplied {
                        kind: StoreErrorKind::Network,
                        detail: String::new(),
                    }),
                    1 => {
                        self.abandoned.extend(writes.iter().cloned());
                        Err(unknown())
                    }
                    2 | 3 => {
                        apply(writes.len());
                        Err(unknown())
                    }
                    4 => {
                        apply(writes.len() / 2);
                        self.abandoned
                            .extend(writes[writes.len() / 2..].iter().cloned());
                        Err(unknown())
                    }
                    5 if writes
                        .iter()
                        .all(|w| w.storage_mode == StorageMode::TimeSeries) =>
                    {
                        writes
                            .iter()
                            .for_each(|w| insert(&mut self.rng, pages, known, w));
                        Err(unknown())
                    }
                    _ => Ok(apply(writes.len())),
                };
                JobResult::Write(tickets, writes, answer)
            }
        };
        process.responses.push_back((shard, done));
    }

    /// Passes one response to its shard.
    pub(super) fn respond(&mut self, instance: usize) {
        let process = &mut self.instances[instance].process;
        if let Some((shard, done)) = process.responses.pop_front() {
            process.shards[shard].finished(done, self.now);
            self.keep_late_rows(instance);
        }
    }

    /// The process crashes. Statements that it had sent may still be applied; entries that were not
    /// synced are lost; the others are replayed.
    pub(super) fn crash(&mut self, instance: usize) {
        if self.rng.u8(0..3) == 0 {
            self.set_clock();
        }
        let started = self.start();
        let inst = &mut self.instances[instance];
        inst.generation += 1;
        let old = std::mem::replace(&mut inst.process, started);
        for (_, job) in old.jobs {
            // A statement beyond the mark was not sent.
            let sent = through(&job) <= old.mark;
            if let (Job::Write(_, writes), true) = (job, sent) {
                catalogue(&mut self.pages, &writes);
                self.abandoned.extend(writes);
            }
        }
        if self.instances.len() == 1 && self.rng.u8(0..3) == 0 {
            self.storage_mode = if self.rng.bool() {
                StorageMode::TimeSeries
            } else {
                StorageMode::Bucket
            };
        }
        if self.storage_mode == StorageMode::TimeSeries
            || self.converts
            || !self.pages.series.is_empty()
            || self
                .abandoned
                .iter()
                .any(|w| w.storage_mode == StorageMode::TimeSeries)
        {
            // If there is a time-series collection, the next process waits for the statements of
            // this one.
            settle(
                &mut self.rng,
                &mut self.abandoned,
                &mut self.pages,
                &mut self.known,
                |_| true,
            );
        }
        let may_lengthen = self.removes_after_ms.is_some() && self.instances.len() == 1;
        if may_lengthen && self.rng.bool() {
            self.lengthen_retention();
        }
        let inst = &mut self.instances[instance];
        let mut resend = vec![];
        if self.journaled {
            let first = inst.replay_from();
            inst.unstored_from = first;
            for entry in &mut inst.journal[first..] {
                // An acknowledgement may have relied on an earlier one of the process that ended.
                entry.stored = false;
                if entry.synced {
                    inst.process.backlog.push_back((entry.id, true));
                } else {
                    // Lost in the crash, and never sent again: its id stays as an empty entry.
                    entry.clear();
                    (entry.synced, entry.stored) = (true, true);
                }
            }
        } else {
            for entry in inst.journal.iter_mut().filter(|e| !e.stored) {
                entry.stored = true;
                resend.push(entry.readings.to_vec());
                entry.clear();
            }
        }
        // Unacknowledged messages are redelivered by the broker, to any instance; receipt times are
        // then new.
        for mut readings in resend {
            readings
                .iter_mut()
                .filter(|r| r.receipt_time)
                .for_each(|r| r.ts_ms = self.now.wall_ms);
            let to = self.rng.usize(0..self.instances.len());
            let readings: Rc<[Reading]> = readings.into();
            self.resent.push(readings.clone());
            self.accept(to, readings);
        }
    }

    /// Carries out one of the abandoned statements, or drops it.
    pub(super) fn apply_abandoned(&mut self) {
        if !self.abandoned.is_empty() {
            let write = self
                .abandoned
                .swap_remove(self.rng.usize(0..self.abandoned.len()));
            if self.rng.bool() {
                apply(&mut self.pages, &mut self.known, &write);
            }
        }
    }
}
