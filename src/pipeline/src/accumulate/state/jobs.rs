//! The commands of a shard for the store: builds them from the queues, as large as a command may be,
//! and applies the store's answers to the buckets that asked. Pure.

use super::outcomes::RejectedRows;
use super::{BucketRef, RejectCause, Shard};
use crate::accumulate::bucket::{Bucket, Operation, WriteOutcome};
use crate::flush::Lane;
use model::ack::Acks;
use model::{BucketKey, Now, PageKind, PageWrite, RowFlags, Rows, StorageMode};
use store::{LoadRequest, LoadResult, LoadedBucket, PageWriteResult, StoreError};

/// Buckets in one load: a stored page adds about 100 bytes to the answer, without its readings.
const LOAD_HEADS_MAX: usize = 2000;
/// Buckets in one load if one is in doubt: the store counts the measurements of those.
const LOAD_DOUBT_MAX: usize = 500;
/// Estimated readings in one load; 16 bytes each.
const LOAD_READINGS_MAX: usize = 65_536;
/// Failures in a row after which every further conflict counts as a fault: another instance is not
/// always faster.
const CONFLICTS_MAX: u32 = 4;

/// One command for the store. Bucket references and writes or requests are in the same order.
#[derive(Debug)]
pub enum Job {
    /// Page writes, all of one kind.
    Write(Vec<BucketRef>, Vec<PageWrite>),
    /// Loads.
    Load(Vec<BucketRef>, Vec<LoadRequest>),
}

/// A job with the store's answer.
#[derive(Debug)]
pub enum JobResult {
    /// Result of a [`Job::Write`]: the job's contents, and one result per write.
    Write(
        Vec<BucketRef>,
        Vec<PageWrite>,
        Result<Vec<PageWriteResult>, StoreError>,
    ),
    /// Result of a [`Job::Load`]: the job's contents, and one result per request.
    Load(
        Vec<BucketRef>,
        Vec<LoadRequest>,
        Result<Vec<LoadResult>, StoreError>,
    ),
}

impl Shard {
    /// The next job for the store, from the first lane that has one; `None` if nothing is due.
    /// `storage_mode`: of new buckets.
    pub fn take(&mut self, storage_mode: StorageMode) -> Option<Job> {
        [Lane::Load, Lane::Write, Lane::Retry]
            .into_iter()
            .find_map(|lane| self.take_in(lane, storage_mode))
    }

    /// Whether there may be a job in this lane.
    pub(crate) fn wants(&self, lane: Lane) -> bool {
        self.schedule.wants(lane)
    }

    /// The next job in this lane, as large as the limits of a command allow.
    pub(crate) fn take_in(&mut self, lane: Lane, storage_mode: StorageMode) -> Option<Job> {
        match lane {
            Lane::Load => self.take_loads(),
            Lane::Write => {
                let kinds = self.schedule.write_order();
                kinds
                    .into_iter()
                    .find_map(|kind| self.take_writes(kind, storage_mode))
            }
            Lane::Retry => self.take_retry(storage_mode),
        }
    }

    fn take_loads(&mut self) -> Option<Job> {
        let mut bucket_refs = vec![];
        let mut requests = vec![];
        let mut readings = 0;
        let mut most = self.schedule.shrunk(LOAD_HEADS_MAX);
        while requests.len() < most
            && readings < LOAD_READINGS_MAX
            && let Some(bucket_ref) = self.schedule.take_first(
                Operation::Load,
                &mut self.sensors,
                requests.len(),
                &mut most,
            )
        {
            let Some((request, about)) = self.begin_load(bucket_ref) else {
                continue;
            };
            readings += about;
            if request.doubt {
                most = most.min(self.schedule.shrunk(LOAD_DOUBT_MAX));
            }
            bucket_refs.push(bucket_ref);
            requests.push(request);
        }
        (!bucket_refs.is_empty()).then_some(Job::Load(bucket_refs, requests))
    }

    fn take_writes(&mut self, kind: Operation, storage_mode: StorageMode) -> Option<Job> {
        let mut bucket_refs = vec![];
        let mut writes = vec![];
        let mut bytes = 0;
        // Stops when a full page of readings might not fit. The page's summary may be added to
        // that, 3.4 MiB at most, see `summary::PAGE_SUMMARY_BYTES_MAX`.
        let bytes_max = self
            .settings
            .command_bytes_max
            .saturating_sub(self.settings.page.bytes);
        let mut most = self.schedule.shrunk(self.settings.command_statements_max);
        while writes.len() < most
            && bytes <= bytes_max
            && let Some(bucket_ref) =
                self.schedule
                    .take_first(kind, &mut self.sensors, writes.len(), &mut most)
        {
            let Some(write) = self.begin_write(bucket_ref, storage_mode) else {
                continue;
            };
            bytes += write.wire_bytes();
            bucket_refs.push(bucket_ref);
            writes.push(write);
        }
        (!bucket_refs.is_empty()).then_some(Job::Write(bucket_refs, writes))
    }

    /// The next bucket of the retry queue, alone.
    fn take_retry(&mut self, storage_mode: StorageMode) -> Option<Job> {
        let (bucket_ref, operation) = self.schedule.take_retry(&mut self.sensors)?;
        let alone = vec![bucket_ref];
        if operation == Operation::Load {
            let (request, _) = self.begin_load(bucket_ref)?;
            return Some(Job::Load(alone, vec![request]));
        }
        let write = self.begin_write(bucket_ref, storage_mode)?;
        Some(Job::Write(alone, vec![write]))
    }

    /// The bucket's load, and an estimate of the readings that it returns.
    fn begin_load(&mut self, bucket_ref: BucketRef) -> Option<(LoadRequest, usize)> {
        let page = self.settings.page;
        let mut open = self.sensors.find(bucket_ref)?;
        let readings_from = open.bucket.compares_from();
        let readings = readings_from.map_or(0, |from| open.bucket.stored_since(from, page));
        let doubt = open.bucket.doubt();
        open.change(Bucket::loading);
        let bucket = BucketKey {
            sensor_id: open.sensor.id.clone(),
            start: bucket_ref.start,
        };
        let request = LoadRequest {
            bucket,
            readings_from,
            doubt,
        };
        Some((request, readings))
    }

    /// The bucket's next statement.
    fn begin_write(
        &mut self,
        bucket_ref: BucketRef,
        storage_mode: StorageMode,
    ) -> Option<PageWrite> {
        let page = self.settings.page;
        let keys_max = self.keys_max();
        let mut open = self.sensors.find(bucket_ref)?;
        let tags = self.catalog.page_tags(&open);
        let sensor_id = open.sensor.id.clone();
        let mut write = open
            .change(|bucket| bucket.take(sensor_id, tags.as_ref(), page, keys_max, storage_mode))?;
        let summary = Some(&write.summary);
        let update = self.catalog.update(open.sensor, &write.rows, summary);
        write.catalog = update.map(Box::new);
        Some(write)
    }

    /// Applies the store's answer to a job.
    pub fn finished(&mut self, done: JobResult, now: Now) {
        match done {
            JobResult::Write(bucket_refs, writes, Ok(answers)) => {
                self.schedule.job_succeeded();
                for ((bucket_ref, write), answer) in
                    bucket_refs.into_iter().zip(writes).zip(answers)
                {
                    if let Some(update) = &write.catalog
                        && let Some(open) = self.sensors.find(bucket_ref)
                    {
                        self.catalog.confirm(open.sensor, update);
                    }
                    self.answered(bucket_ref, write, answer, now);
                }
            }
            JobResult::Write(bucket_refs, writes, Err(error)) => {
                self.schedule.job_failed();
                for (bucket_ref, write) in bucket_refs.into_iter().zip(writes) {
                    self.lost(bucket_ref, write, &error.to_string(), now);
                }
            }
            JobResult::Load(bucket_refs, requests, Ok(answers)) => {
                self.schedule.job_succeeded();
                for ((bucket_ref, request), answer) in
                    bucket_refs.into_iter().zip(requests).zip(answers)
                {
                    match answer {
                        Ok(bucket) => self.loaded(bucket_ref, &request, &bucket, now),
                        Err(error) => self.not_loaded(bucket_ref, &error, now),
                    }
                }
            }
            JobResult::Load(bucket_refs, _, Err(error)) => {
                self.schedule.job_failed();
                for bucket_ref in bucket_refs {
                    self.not_loaded(bucket_ref, &error, now);
                }
            }
        }
    }

    fn loaded(
        &mut self,
        bucket_ref: BucketRef,
        request: &LoadRequest,
        bucket: &LoadedBucket,
        now: Now,
    ) {
        let keys_max = self.keys_max();
        self.apply_answer(bucket_ref, now, |b| {
            b.loaded(bucket, request.readings_from, keys_max)
        });
        // Once the pending rows have been compared with the readings that are left, the others
        // cannot be stored.
        if bucket.readings_removed() && request.readings_from.is_some() {
            let detail = "readings of this bucket were removed, so it is unknown whether its \
                summary counts this one";
            self.reject(
                bucket_ref,
                Bucket::readings_removed,
                RejectCause::ReadingsRemoved,
                detail.to_owned(),
            );
        }
    }

    fn not_loaded(&mut self, bucket_ref: BucketRef, error: &StoreError, now: Now) {
        if !error.is_deferred() {
            self.apply_failure(bucket_ref, now, Bucket::load_failed);
            self.note_fault(bucket_ref, &error.to_string(), now);
        } else if let Some(mut open) = self.sensors.find(bucket_ref) {
            open.change(Bucket::load_deferred);
            self.schedule.enqueue(&mut open);
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
                self.outcomes.counts.conflicts += 1;
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
                let Some(mut open) = self.sensors.find(bucket_ref) else {
                    return;
                };
                let rejected = RejectedRows {
                    acks: open.change(Bucket::given_up),
                    sensor_id: write.sensor_id,
                    rows: write.rows,
                    reason: RejectCause::StoreRejected,
                    detail,
                };
                self.outcomes.reject(bucket_ref.start, rejected);
                self.failing.recovered(bucket_ref);
                self.schedule.answered(&mut open, now.mono_ms);
            }
        }
    }

    /// Whether `write` is an append to a page that was not loaded since the last one.
    fn may_be_outdated(&mut self, bucket_ref: BucketRef, write: &PageWrite) -> bool {
        write.storage_mode == StorageMode::Bucket
            && matches!(write.kind, PageKind::Append { .. })
            && self
                .sensors
                .find(bucket_ref)
                .is_some_and(|open| open.bucket.attempts() == 0)
    }

    /// Applies an answer to its bucket, and schedules the bucket again.
    fn apply_answer(
        &mut self,
        bucket_ref: BucketRef,
        now: Now,
        apply: impl FnOnce(&mut Bucket) -> WriteOutcome,
    ) {
        let Some(mut open) = self.sensors.find(bucket_ref) else {
            return;
        };
        let answer = open.change(apply);
        self.outcomes
            .note_answer(&open.sensor.id, bucket_ref.start, answer);
        if open.bucket.faults() == 0 {
            self.failing.recovered(bucket_ref);
        }
        self.schedule.answered(&mut open, now.mono_ms);
    }

    /// Applies a failure to its bucket, which is tried again.
    fn apply_failure(&mut self, bucket_ref: BucketRef, now: Now, apply: impl FnOnce(&mut Bucket)) {
        if let Some(mut open) = self.sensors.find(bucket_ref) {
            open.change(apply);
            self.schedule.failed(&mut open, now.mono_ms);
        }
    }

    /// Notes a failure that the store caused, and gives the bucket up if it has failed for too long.
    fn note_fault(&mut self, bucket_ref: BucketRef, reason: &str, now: Now) {
        if let Some(open) = self.sensors.find(bucket_ref)
            && let Some(detail) = self.failing.note_fault(&open, reason, now)
        {
            self.reject(
                bucket_ref,
                Bucket::abandon,
                RejectCause::Quarantined,
                detail,
            );
        }
    }

    /// Hands over the readings that are taken from a bucket, to be kept as dead letters.
    fn reject(
        &mut self,
        bucket_ref: BucketRef,
        take: impl FnOnce(&mut Bucket) -> Option<(Rows, Acks)>,
        reason: RejectCause,
        detail: String,
    ) {
        if let Some(mut open) = self.sensors.find(bucket_ref)
            && let Some((rows, acks)) = open.change(take)
        {
            self.failing.recovered(bucket_ref);
            let rejected = RejectedRows {
                sensor_id: open.sensor.id.clone(),
                rows: rows.into(),
                reason,
                detail,
                acks,
            };
            self.outcomes.reject(bucket_ref.start, rejected);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::ShardSettings;
    use super::*;
    use crate::accumulate::PageLimits;
    use crate::flush::backoff::Backoff;
    use crate::flush::due::DuePolicy;
    use model::ack::Ack;
    use model::{BatchBuilder, Span, ValueRef};

    #[test]
    fn a_load_that_was_not_started_is_repeated_and_takes_no_memory() {
        let mut shard = Shard::new(ShardSettings {
            span: Span::HOUR,
            page: PageLimits {
                readings: 1000,
                bytes: 1 << 20,
                summary_bytes: 1 << 20,
            },
            due: DuePolicy::Linger(1),
            command_bytes_max: 4 << 20,
            command_statements_max: 100,
            bytes_max: 1 << 20,
            sensors_max: 100,
            dedup_keys_max: 1000,
            quarantine_after_ms: 600_000,
            arrival_step_ms: 60_000,
            backoff: Backoff {
                min: Duration::from_millis(1),
                max: Duration::from_millis(1),
            },
        });
        let now = Now {
            wall_ms: 0,
            mono_ms: 1000,
        };
        let mut builder = BatchBuilder::new(64);
        builder.begin();
        builder.value("n", ValueRef::Int(1)).unwrap();
        builder.commit("s", 0, false, &[]).unwrap();
        let batch = builder.finish();
        shard.accept(&batch, batch.places(), Ack::none(), false, now);
        shard.drain();
        let before = shard.usage();
        for _ in 0..3 {
            let Some(Job::Load(bucket_refs, requests)) = shard.take(StorageMode::Bucket) else {
                panic!("the bucket is not new");
            };
            let deferred = Ok(vec![Err(StoreError::deferred())]);
            shard.finished(JobResult::Load(bucket_refs, requests, deferred), now);
            assert_eq!(shard.usage(), before);
        }
    }
}
