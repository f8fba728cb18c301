//! Builds jobs from the queues: as large as a command may be, each bucket once.
//!
//! A failed operation is retried in a smaller job: with few other buckets after the first failure,
//! alone in the retry lane after the second. After jobs that failed as a whole all jobs of the
//! shard become smaller, until one succeeds again.

use super::super::bucket::{Bucket, NextOp};
use super::{BucketRef, Job, Shard, bucket_of};
use crate::flush::Lane;
use model::{BucketKey, PageWrite, StorageMode};
use store::LoadRequest;

/// Buckets in one load: a stored page adds about 100 bytes to the answer, without its readings.
const LOAD_HEADS_MAX: usize = 2000;
/// Buckets in one load if one is in doubt: the store counts the measurements of those.
const LOAD_DOUBT_MAX: usize = 500;
/// Estimated readings in one load; 16 bytes each.
const LOAD_READINGS_MAX: usize = 65_536;
/// Buckets in a job with one that has failed once: a bad bucket then delays few others.
const AFTER_FAULT_MAX: usize = 16;

/// The maximum number of buckets in a job that contains this one.
fn statements_with(bucket: &Bucket) -> usize {
    match bucket.faults() {
        0 => usize::MAX,
        1 => AFTER_FAULT_MAX,
        _ => 1,
    }
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
    pub fn wants(&self, lane: Lane) -> bool {
        match lane {
            Lane::Load => !self.loads.is_empty(),
            Lane::Write => !self.creates.is_empty() || !self.appends.is_empty(),
            Lane::Retry => !self.retries.is_empty(),
        }
    }

    /// The next job in this lane, as large as the limits of a command allow.
    pub(crate) fn take_in(&mut self, lane: Lane, storage_mode: StorageMode) -> Option<Job> {
        match lane {
            Lane::Load => self.take_loads(),
            // The longer queue first: it has waited longer or fills a command.
            Lane::Write if self.creates.len() >= self.appends.len() => self
                .take_writes(NextOp::Create, storage_mode)
                .or_else(|| self.take_writes(NextOp::Append, storage_mode)),
            Lane::Write => self
                .take_writes(NextOp::Append, storage_mode)
                .or_else(|| self.take_writes(NextOp::Create, storage_mode)),
            Lane::Retry => self.take_retry(storage_mode),
        }
    }

    /// The bucket at the head of a queue, if it still needs the queue's operation and may share a
    /// job with `others`.
    fn pop(&mut self, want: NextOp, others: usize, most: &mut usize) -> Option<(BucketRef, usize)> {
        loop {
            let queue = match want {
                NextOp::Load => &mut self.loads,
                NextOp::Create => &mut self.creates,
                _ => &mut self.appends,
            };
            let bucket_ref = *queue.front()?;
            let Some(sensor) = self.sensors.get_mut(bucket_ref.slot as usize) else {
                queue.pop_front();
                continue;
            };
            let Ok(position) = sensor
                .buckets
                .binary_search_by_key(&bucket_ref.start, |b| b.start)
            else {
                queue.pop_front();
                continue;
            };
            let bucket = &mut sensor.buckets[position];
            if bucket.next_op(self.settings.page) == want {
                let with = statements_with(bucket);
                if others >= with {
                    return None;
                }
                *most = with.min(*most);
                bucket.queued = false;
                queue.pop_front();
                return Some((bucket_ref, position));
            }
            bucket.queued = false;
            queue.pop_front();
            self.enqueue(bucket_ref);
        }
    }

    /// Reduces a limit after jobs that failed as a whole.
    fn shrunk(&self, most: usize) -> usize {
        (most >> self.shrink).max(1)
    }

    fn take_loads(&mut self) -> Option<Job> {
        let mut bucket_refs = vec![];
        let mut requests = vec![];
        let mut readings = 0;
        let mut most = self.shrunk(LOAD_HEADS_MAX);
        while requests.len() < most && readings < LOAD_READINGS_MAX {
            let Some((bucket_ref, position)) = self.pop(NextOp::Load, requests.len(), &mut most)
            else {
                break;
            };
            let (request, about) = self.begin_load(bucket_ref, position);
            readings += about;
            if request.doubt {
                most = most.min(self.shrunk(LOAD_DOUBT_MAX));
            }
            bucket_refs.push(bucket_ref);
            requests.push(request);
        }
        (!bucket_refs.is_empty()).then_some(Job::Load(bucket_refs, requests))
    }

    fn take_writes(&mut self, want: NextOp, storage_mode: StorageMode) -> Option<Job> {
        let mut bucket_refs = vec![];
        let mut writes = vec![];
        let mut bytes = 0;
        // Stops when a full page of readings might not fit. The page's summary may be added to
        // that, 3.4 MiB at most, see `summary::PAGE_SUMMARY_BYTES_MAX`.
        let bytes_max = self
            .settings
            .command_bytes_max
            .saturating_sub(self.settings.page.bytes);
        let mut most = self.shrunk(self.settings.command_statements_max);
        while writes.len() < most && bytes <= bytes_max {
            let Some((bucket_ref, position)) = self.pop(want, writes.len(), &mut most) else {
                break;
            };
            let Some(write) = self.begin_write(bucket_ref, position, storage_mode) else {
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
        while let Some(bucket_ref) = self.retries.pop_front() {
            let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) else {
                continue;
            };
            bucket.queued = false;
            let next_op = bucket.next_op(self.settings.page);
            let buckets = &self.sensors[bucket_ref.slot as usize].buckets;
            let Ok(position) = buckets.binary_search_by_key(&bucket_ref.start, |b| b.start) else {
                continue;
            };
            match next_op {
                NextOp::Nothing => {}
                NextOp::Load => {
                    let (request, _) = self.begin_load(bucket_ref, position);
                    return Some(Job::Load(vec![bucket_ref], vec![request]));
                }
                NextOp::Create | NextOp::Append => {
                    if let Some(write) = self.begin_write(bucket_ref, position, storage_mode) {
                        return Some(Job::Write(vec![bucket_ref], vec![write]));
                    }
                }
            }
        }
        None
    }

    /// The bucket's load, and an estimate of the readings that it returns.
    fn begin_load(&mut self, bucket_ref: BucketRef, position: usize) -> (LoadRequest, usize) {
        let sensor = &mut self.sensors[bucket_ref.slot as usize];
        let bucket = &mut sensor.buckets[position];
        let readings_from = bucket.compares_from();
        let readings =
            readings_from.map_or(0, |from| bucket.stored_since(from, self.settings.page));
        let doubt = bucket.doubt();
        let before = bucket.memory();
        bucket.loading();
        self.usage.bytes = self.usage.bytes + bucket.memory() - before;
        let bucket = BucketKey {
            sensor_id: sensor.id.clone(),
            start: bucket_ref.start,
        };
        (
            LoadRequest {
                bucket,
                readings_from,
                doubt,
            },
            readings,
        )
    }

    /// The bucket's next statement.
    fn begin_write(
        &mut self,
        bucket_ref: BucketRef,
        position: usize,
        storage_mode: StorageMode,
    ) -> Option<PageWrite> {
        let keys_max = self.keys_max();
        let sensor = &mut self.sensors[bucket_ref.slot as usize];
        let bucket = &mut sensor.buckets[position];
        let before = bucket.memory();
        // The bucket of the newest reading has its tags, even if a late reading brought others since.
        let has_newest = bucket
            .last_ts_ms()
            .is_some_and(|ts_ms| ts_ms >= sensor.tags_ts_ms);
        let own = match has_newest {
            true => sensor.newest_tags.as_ref(),
            false => sensor.tags.as_ref(),
        };
        let tags = self.registry.tags(&sensor.id, own);
        let write = bucket.take(
            &sensor.id,
            tags.as_ref(),
            self.settings.page,
            keys_max,
            storage_mode,
        );
        self.usage.bytes = self.usage.bytes + bucket.memory() - before;
        let mut write = write?;
        let sensor = &self.sensors[bucket_ref.slot as usize];
        let update = self.catalog_update(sensor, &write.rows, Some(&write.summary));
        write.catalog = update.map(Box::new);
        Some(write)
    }
}
