//! Applies the store's answers to the buckets that asked, and reports to the daily rollup which
//! readings are settled: stored, found stored, or rejected. Pure.

use super::{
    Bucket, BucketRef, CONFLICTS_MAX, JobResult, RejectCause, RejectedRows, SHRINK_BITS,
    SHRINK_BITS_MAX, Shard, bucket_of, fraction,
};
use crate::accumulate::bucket::WriteOutcome;
use crate::rollup::state::Settled;
use model::{BucketStart, Now, PageKind, PageWrite, RowFlags, StorageMode};
use store::{LoadRequest, LoadResult, PageWriteResult};

impl Shard {
    /// Applies the store's answer to a job.
    pub fn finished(&mut self, done: JobResult, now: Now) {
        match done {
            JobResult::Write(bucket_refs, writes, Ok(answers)) => {
                self.shrink = self.shrink.saturating_sub(1);
                for ((bucket_ref, write), answer) in
                    bucket_refs.into_iter().zip(writes).zip(answers)
                {
                    if let Some(update) = &write.catalog {
                        self.catalogued(bucket_ref.slot as usize, update);
                    }
                    self.answered(bucket_ref, write, answer, now);
                }
            }
            JobResult::Write(bucket_refs, writes, Err(error)) => {
                self.shrink = (self.shrink + SHRINK_BITS).min(SHRINK_BITS_MAX);
                for (bucket_ref, write) in bucket_refs.into_iter().zip(writes) {
                    self.lost(bucket_ref, write, &error.to_string(), now);
                }
            }
            JobResult::Load(bucket_refs, requests, Ok(answers)) => {
                self.shrink = self.shrink.saturating_sub(1);
                for ((bucket_ref, request), answer) in
                    bucket_refs.into_iter().zip(requests).zip(answers)
                {
                    self.loaded(bucket_ref, &request, answer, now);
                }
            }
            JobResult::Load(bucket_refs, requests, Err(error)) => {
                self.shrink = (self.shrink + SHRINK_BITS).min(SHRINK_BITS_MAX);
                for (bucket_ref, request) in bucket_refs.into_iter().zip(requests) {
                    self.loaded(bucket_ref, &request, Err(error.clone()), now);
                }
            }
        }
    }

    fn loaded(
        &mut self,
        bucket_ref: BucketRef,
        request: &LoadRequest,
        answer: LoadResult,
        now: Now,
    ) {
        let keys_max = self.keys_max();
        match answer {
            Ok(bucket) => {
                self.apply_answer(bucket_ref, now, |b| {
                    b.loaded(&bucket, request.readings_from, keys_max)
                });
                self.reject_late_rows(bucket_ref, request, &bucket);
            }
            Err(error) if error.is_deferred() => {
                if let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) {
                    bucket.load_deferred();
                    self.enqueue(bucket_ref);
                }
            }
            Err(error) => {
                self.apply_failure(bucket_ref, now, Bucket::load_failed);
                self.note_fault(bucket_ref, &error.to_string(), now);
            }
        }
    }

    fn lost(&mut self, bucket_ref: BucketRef, write: PageWrite, why: &str, now: Now) {
        self.apply_failure(bucket_ref, now, |bucket| bucket.lost(write, now.mono_ms));
        self.note_fault(bucket_ref, why, now);
    }

    fn answered(
        &mut self,
        bucket_ref: BucketRef,
        write: PageWrite,
        answer: PageWriteResult,
        now: Now,
    ) {
        match answer {
            PageWriteResult::Done { count } => {
                self.note_pages_written(now.mono_ms);
                self.apply_answer(bucket_ref, now, |bucket| bucket.written(&write, count));
            }
            PageWriteResult::Conflict | PageWriteResult::SummaryConflict => {
                self.counts.conflicts += 1;
                // In a summary conflict the measurements were written by this statement.
                let flag = if answer == PageWriteResult::Conflict {
                    RowFlags::REFUSED
                } else {
                    RowFlags::LOST
                };
                self.apply_failure(bucket_ref, now, |bucket| {
                    bucket.came_back(write, flag, now.mono_ms);
                    if bucket.attempts() > CONFLICTS_MAX {
                        bucket.fault();
                    }
                });
                self.note_fault(
                    bucket_ref,
                    "every write conflicts with the stored page, even after a load; was the page \
                     edited by hand?",
                    now,
                );
            }
            PageWriteResult::Unknown { detail } => self.lost(bucket_ref, write, &detail, now),
            // If the page differs from what the shard believes, the server validates a document
            // that it would create, and not the one that is stored. So the page is loaded first.
            PageWriteResult::Rejected { .. } if self.may_be_outdated(bucket_ref, &write) => {
                self.apply_failure(bucket_ref, now, |bucket| {
                    bucket.came_back(write, RowFlags::REFUSED, now.mono_ms);
                });
            }
            PageWriteResult::Rejected { detail } => {
                let Some(acks) = self.change(bucket_ref, Bucket::given_up) else {
                    return;
                };
                self.usage.readings -= write.rows.len();
                self.note_settled(bucket_ref.slot, bucket_ref.start, write.rows.len());
                self.rejected_rows.push(RejectedRows {
                    sensor_id: write.sensor_id,
                    rows: write.rows,
                    reason: RejectCause::StoreRejected,
                    detail,
                    acks,
                });
                self.schedule(bucket_ref, now);
            }
        }
    }

    /// Whether `write` is an append to a page that was not loaded since the last one.
    fn may_be_outdated(&mut self, bucket_ref: BucketRef, write: &PageWrite) -> bool {
        write.storage_mode == StorageMode::Bucket
            && matches!(write.kind, PageKind::Append { .. })
            && bucket_of(&mut self.sensors, bucket_ref)
                .is_some_and(|(bucket, _)| bucket.attempts() == 0)
    }

    /// Applies a failure to its bucket, which is tried again. The first one is most likely a race
    /// and is retried immediately; further ones back off.
    fn apply_failure(&mut self, bucket_ref: BucketRef, now: Now, apply: impl FnOnce(&mut Bucket)) {
        self.change(bucket_ref, apply);
        let Some((bucket, hash)) = bucket_of(&mut self.sensors, bucket_ref) else {
            return;
        };
        if bucket.attempts() > 1 && !bucket.idle() && !bucket.queued {
            let wait = self
                .settings
                .backoff
                .wait(bucket.attempts() - 1, fraction(hash));
            bucket.due_ms = now.mono_ms + wait.as_millis() as u64;
            self.wheel.push(bucket.due_ms, bucket_ref);
        } else {
            self.schedule(bucket_ref, now);
        }
    }

    /// Changes a bucket and counts its memory; `None` if it does not exist.
    pub(super) fn change<T>(
        &mut self,
        bucket_ref: BucketRef,
        change: impl FnOnce(&mut Bucket) -> T,
    ) -> Option<T> {
        let (bucket, _) = bucket_of(&mut self.sensors, bucket_ref)?;
        let before = bucket.memory();
        let changed = change(bucket);
        self.usage.bytes = self.usage.bytes + bucket.memory() - before;
        Some(changed)
    }

    /// Applies an answer to its bucket, updates usage and counts, and schedules the bucket again.
    fn apply_answer(
        &mut self,
        bucket_ref: BucketRef,
        now: Now,
        apply: impl FnOnce(&mut Bucket) -> WriteOutcome,
    ) {
        let Some(WriteOutcome { stored, duplicates }) = self.change(bucket_ref, apply) else {
            return;
        };
        self.usage.readings -= (stored + duplicates) as usize;
        self.counts.stored += stored;
        self.counts.duplicates += duplicates;
        self.note_settled(
            bucket_ref.slot,
            bucket_ref.start,
            (stored + duplicates) as usize,
        );
        self.schedule(bucket_ref, now);
    }

    /// Schedules a bucket whose answer has arrived. After failures the write follows the load
    /// immediately: while it waits, another instance may write first, again and again.
    fn schedule(&mut self, bucket_ref: BucketRef, now: Now) {
        let Some((bucket, hash)) = bucket_of(&mut self.sensors, bucket_ref) else {
            return;
        };
        if bucket.faults() == 0 {
            self.failing.recovered(bucket_ref);
        }
        if bucket.idle() || bucket.queued {
            return;
        }
        if bucket.due_ms == 0 || bucket.overfull(self.settings.page) {
            let since = bucket.since_ms().unwrap_or(now.mono_ms);
            let due = self.settings.due.due_ms(since, hash);
            if bucket.attempts() > 0 || bucket.overfull(self.settings.page) {
                self.enqueue(bucket_ref);
            } else if due <= now.mono_ms {
                self.enqueue_or_hold(bucket_ref, now);
            } else {
                bucket.due_ms = due;
                self.wheel.push(due, bucket_ref);
            }
        }
    }

    /// The same shard; it also reports which readings are settled.
    #[must_use]
    pub(crate) fn reporting_settled(self) -> Shard {
        Shard {
            settled: Some(vec![]),
            ..self
        }
    }

    /// The rows settled since the last call: stored, found stored, or rejected.
    pub(crate) fn take_settled(&mut self) -> Vec<Settled> {
        self.settled
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    pub(super) fn note_settled(&mut self, slot: u32, start: BucketStart, rows: usize) {
        let (Some(settled), Some(sensor)) = (&mut self.settled, self.sensors.get(slot as usize))
        else {
            return;
        };
        match settled.last_mut() {
            _ if rows == 0 => {}
            Some(last) if last.start == start && last.sensor_id == sensor.id => {
                last.rows += rows as u32
            }
            _ => settled.push(Settled {
                sensor_id: sensor.id.clone(),
                start,
                rows: rows as u32,
            }),
        }
    }
}
