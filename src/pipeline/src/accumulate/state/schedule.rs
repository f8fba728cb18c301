//! When the buckets of a shard are loaded and written: the wheel of due times, the sensors' turns,
//! and a queue for each operation. Pure.
//!
//! Life of an entry: a bucket enters the wheel when rows are pending. Due, it moves to the queue of
//! its next operation, or is held for more readings: until a later time in the wheel, or for its
//! sensor's turn ([`crate::flush::turns`]). It is queued before that if it is overfull, if memory is
//! short, or when the shard drains. A job takes it from the queue, and the job's answer schedules it
//! again. Queues are read only when a command may be sent, so the longer the store takes, the larger
//! the jobs become, without an explicit rule.
//!
//! Retry: a bucket is retried immediately after its first failure, which is most likely a race, and
//! after a backoff from then on. After two faults it is alone in its jobs, in a separate queue.
//! After jobs that failed as a whole all jobs are smaller, until one succeeds again.
//!
//! Invariants: `due_ms` and `queued` of a [`Bucket`] are changed only here. A bucket is in at most
//! one queue. Wheel and turns may have stale entries, of buckets that were queued earlier;
//! [`Schedule::still_waits`] finds them.

use std::collections::VecDeque;

use super::sensors::{OpenBucket, Sensors};
use super::{BucketRef, ShardSettings};
use crate::accumulate::bucket::{AT_ITS_TURN, Bucket, Hold, Operation, PageLimits};
use crate::flush::Lane;
use crate::flush::backoff::Backoff;
use crate::flush::due::{DuePolicy, DueWheel};
use crate::flush::turns::Turns;

/// Faults after which a bucket is alone in its jobs.
const ALONE_AFTER_FAULTS: u32 = 2;
/// A job that failed as a whole makes the next jobs a quarter as large; each one that succeeds
/// doubles them again.
const SHRINK_BITS: u32 = 2;
const SHRINK_BITS_MAX: u32 = 12;
/// Buckets in a job with one that has failed once: a bad bucket then delays few others.
const AFTER_FAULT_MAX: usize = 16;

pub(super) struct Schedule {
    page: PageLimits,
    due: DuePolicy,
    backoff: Backoff,
    /// How old a reading may get now (ms): above the age of `due` while the store is busy.
    age_ms: u64,
    wheel: DueWheel<BucketRef>,
    /// Buckets that wait for their sensor's turn, and when its hand was last moved (monotonic ms).
    turns: Turns<BucketRef>,
    turned_ms: u64,
    loads: VecDeque<BucketRef>,
    creates: VecDeque<BucketRef>,
    appends: VecDeque<BucketRef>,
    /// Buckets that are the only one in their job, for any operation.
    retries: VecDeque<BucketRef>,
    /// Since when page writes are queued without a break (monotonic ms).
    queued_since_ms: Option<u64>,
    /// By how many bits jobs are reduced, after jobs that failed as a whole.
    shrink: u32,
}

/// What an arrived reading has changed.
pub(super) enum Arrived {
    Nothing,
    /// The bucket began to wait for a statement, and may be held.
    Waits,
    /// The page became full when its first reading had waited for longer than `flush.max_age`.
    FilledLate,
}

/// Where buckets waited that are taken out.
#[derive(Clone, Copy)]
pub(super) enum Waited {
    /// In a slot of the wheel at or before this time (monotonic ms).
    InWheel(u64),
    ForTurn,
}

impl Schedule {
    pub(super) fn new(settings: &ShardSettings) -> Schedule {
        Schedule {
            page: settings.page,
            due: settings.due,
            backoff: settings.backoff,
            age_ms: 0,
            wheel: DueWheel::new(settings.due.grain_ms()),
            turns: Turns::default(),
            turned_ms: 0,
            loads: VecDeque::new(),
            creates: VecDeque::new(),
            appends: VecDeque::new(),
            retries: VecDeque::new(),
            queued_since_ms: None,
            shrink: 0,
        }
    }

    /// Sets how old a reading may get before it is written, see [`crate::flush::age`].
    pub(super) fn set_age_ms(&mut self, age_ms: u64) {
        self.age_ms = age_ms;
    }

    /// Schedules a bucket after the arrival of a reading.
    pub(super) fn arrived(&mut self, open: &mut OpenBucket<'_>, now_ms: u64) -> Arrived {
        let bucket = &*open.bucket;
        if !bucket.queued && bucket.overfull(self.page) {
            let since_ms = bucket.since_ms().unwrap_or(now_ms);
            open.change(|bucket| bucket.overflows(now_ms));
            self.enqueue(open);
            return match self.due.fills_late(now_ms, since_ms) {
                true => Arrived::FilledLate,
                false => Arrived::Nothing,
            };
        }
        let arrived = match bucket.due_ms {
            0 if !bucket.queued && !bucket.idle() && open.is_latest => Arrived::Waits,
            0 if !bucket.queued && !bucket.idle() => Arrived::Nothing,
            AT_ITS_TURN if bucket.is_worthwhile() => Arrived::Nothing,
            _ => return Arrived::Nothing,
        };
        let due_ms = self.due.due_ms(now_ms, open.sensor.hash).max(1);
        self.wait_until(open, due_ms);
        arrived
    }

    /// Schedules a bucket whose answer has arrived. After failures the write follows the load
    /// immediately: while it waits, another instance may write first, again and again.
    pub(super) fn answered(&mut self, open: &mut OpenBucket<'_>, now_ms: u64) {
        let bucket = &*open.bucket;
        if bucket.idle() || bucket.queued {
            return;
        }
        let is_overfull = bucket.overfull(self.page);
        if bucket.due_ms != 0 && !is_overfull {
            return;
        }
        let since_ms = bucket.since_ms().unwrap_or(now_ms);
        let due_ms = self.due.due_ms(since_ms, open.sensor.hash);
        if bucket.attempts() > 0 || is_overfull {
            self.enqueue(open);
        } else if due_ms <= now_ms {
            self.enqueue_or_hold(open, now_ms);
        } else {
            self.wait_until(open, due_ms);
        }
    }

    /// Schedules a bucket after a failure, for another attempt.
    pub(super) fn failed(&mut self, open: &mut OpenBucket<'_>, now_ms: u64) {
        let bucket = &*open.bucket;
        if bucket.attempts() <= 1 || bucket.idle() || bucket.queued {
            return self.answered(open, now_ms);
        }
        let jitter = fraction(open.sensor.hash);
        let wait = self.backoff.wait(bucket.attempts() - 1, jitter);
        self.wait_until(open, now_ms + wait.as_millis() as u64);
    }

    fn wait_until(&mut self, open: &mut OpenBucket<'_>, due_ms: u64) {
        open.bucket.due_ms = due_ms;
        self.wheel.push(due_ms, open.bucket_ref);
    }

    /// The next buckets in the wheel that are due.
    pub(super) fn pop_due(&mut self, now_ms: u64) -> Option<Vec<BucketRef>> {
        self.wheel.pop_due(now_ms)
    }

    /// The buckets whose turn has come.
    pub(super) fn pop_turns(&mut self, now_ms: u64) -> Vec<BucketRef> {
        let elapsed_ms = now_ms.saturating_sub(self.turned_ms);
        self.turned_ms = now_ms;
        let round_ms = self.due.round_ms(self.age_ms);
        self.turns.advance(elapsed_ms, round_ms)
    }

    /// The next buckets, due or not: those whose turn comes next, then those that are due soonest.
    pub(super) fn pop_early(&mut self) -> Option<(Vec<BucketRef>, Waited)> {
        if let Some(next) = self.turns.pop_next() {
            return Some((next, Waited::ForTurn));
        }
        let (slot_ms, first) = self.wheel.pop_first()?;
        Some((first, Waited::InWheel(slot_ms)))
    }

    /// Whether an entry is valid. A bucket that was queued before it was due leaves a stale one, and
    /// may have a later one.
    pub(super) fn still_waits(&self, bucket: &Bucket, waited: Waited) -> bool {
        match waited {
            Waited::ForTurn => bucket.due_ms == AT_ITS_TURN,
            Waited::InWheel(until_ms) => {
                bucket.due_ms != 0 && self.wheel.slot_ms(bucket.due_ms) <= until_ms
            }
        }
    }

    /// Queues a due bucket, unless it is worth waiting for the rest of its page, or for more
    /// readings while the store is busy ([`crate::flush::age`]).
    pub(super) fn enqueue_or_hold(&mut self, open: &mut OpenBucket<'_>, now_ms: u64) {
        let age_ms = match open.expects_more(self.age_ms) {
            true => self.age_ms,
            false => 0,
        };
        let round_ms = self.due.round_ms(self.age_ms);
        let turn_ms = self.turns.until_ms(open.sensor.hash, round_ms);
        let hold = open
            .bucket
            .hold(self.due, self.page, now_ms, age_ms, turn_ms);
        match hold.filter(|_| !open.bucket.queued) {
            Some(Hold::UntilMs(due_ms)) => self.wait_until(open, due_ms),
            Some(Hold::ForTurn) => {
                open.bucket.due_ms = AT_ITS_TURN;
                self.turns.push(open.sensor.hash, open.bucket_ref);
            }
            None => self.enqueue(open),
        }
    }

    /// Puts a bucket into the queue of its next operation, if it needs one.
    pub(super) fn enqueue(&mut self, open: &mut OpenBucket<'_>) {
        let bucket = &mut *open.bucket;
        bucket.due_ms = 0;
        if bucket.queued {
            return;
        }
        let Some(operation) = bucket.next_operation(self.page) else {
            return;
        };
        bucket.queued = true;
        let queue = match bucket.faults() >= ALONE_AFTER_FAULTS {
            true => &mut self.retries,
            false => self.queue(operation),
        };
        queue.push_back(open.bucket_ref);
    }

    /// Queues a bucket that was in the wheel, unless it is in backoff after a failure.
    pub(super) fn drain(&mut self, open: &mut OpenBucket<'_>) {
        let due_ms = open.bucket.due_ms;
        if open.bucket.attempts() > 1 && due_ms > 0 {
            self.wait_until(open, due_ms);
        } else {
            self.enqueue(open);
        }
    }

    fn queue(&mut self, operation: Operation) -> &mut VecDeque<BucketRef> {
        match operation {
            Operation::Load => &mut self.loads,
            Operation::Create => &mut self.creates,
            Operation::Append => &mut self.appends,
        }
    }

    /// Takes the first bucket that still needs this operation from its queue, and moves those before
    /// it that need another one. `None` as well if it must not share a job with `others`; `most` is
    /// reduced to what its job may have.
    pub(super) fn take_first(
        &mut self,
        operation: Operation,
        sensors: &mut Sensors,
        others: usize,
        most: &mut usize,
    ) -> Option<BucketRef> {
        while let Some(&bucket_ref) = self.queue(operation).front() {
            let Some(mut open) = sensors.find(bucket_ref) else {
                self.queue(operation).pop_front();
                continue;
            };
            let is_needed = open.bucket.next_operation(self.page) == Some(operation);
            if is_needed {
                let with = job_with(open.bucket);
                if others >= with {
                    return None;
                }
                *most = with.min(*most);
            }
            self.queue(operation).pop_front();
            open.bucket.queued = false;
            if is_needed {
                return Some(bucket_ref);
            }
            self.enqueue(&mut open);
        }
        None
    }

    /// Takes the first bucket that is alone in its job, with its operation.
    pub(super) fn take_retry(&mut self, sensors: &mut Sensors) -> Option<(BucketRef, Operation)> {
        while let Some(bucket_ref) = self.retries.pop_front() {
            if let Some(open) = sensors.find(bucket_ref) {
                open.bucket.queued = false;
                if let Some(operation) = open.bucket.next_operation(self.page) {
                    return Some((bucket_ref, operation));
                }
            }
        }
        None
    }

    /// Number of buckets in the queues, without the retries: those may be many, are sent one at a
    /// time, and must not keep others from being evicted.
    pub(super) fn queued(&self) -> usize {
        self.loads.len() + self.creates.len() + self.appends.len()
    }

    /// Whether there may be a job in this lane.
    pub(super) fn wants(&self, lane: Lane) -> bool {
        match lane {
            Lane::Load => !self.loads.is_empty(),
            Lane::Write => !self.creates.is_empty() || !self.appends.is_empty(),
            Lane::Retry => !self.retries.is_empty(),
        }
    }

    /// The kinds of page writes, that with the longer queue first: it has waited longer or fills a
    /// command.
    pub(super) fn write_order(&self) -> [Operation; 2] {
        match self.creates.len() >= self.appends.len() {
            true => [Operation::Create, Operation::Append],
            false => [Operation::Append, Operation::Create],
        }
    }

    /// Notes whether page writes are queued now.
    pub(super) fn note_queued(&mut self, now_ms: u64) {
        let since_ms = self.queued_since_ms.unwrap_or(now_ms);
        self.queued_since_ms = self.wants(Lane::Write).then_some(since_ms);
    }

    /// Whether page writes have been queued for longer than one command after the other can keep up
    /// with.
    pub(super) fn is_behind(&self, now_ms: u64) -> bool {
        self.queued_since_ms
            .is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= self.due.behind_after_ms())
    }

    pub(super) fn job_succeeded(&mut self) {
        self.shrink = self.shrink.saturating_sub(1);
    }

    /// The job failed as a whole.
    pub(super) fn job_failed(&mut self) {
        self.shrink = (self.shrink + SHRINK_BITS).min(SHRINK_BITS_MAX);
    }

    /// Reduces a limit of a job after jobs that failed as a whole.
    pub(super) fn shrunk(&self, most: usize) -> usize {
        (most >> self.shrink).max(1)
    }
}

/// The maximum number of buckets in a job that contains this one.
fn job_with(bucket: &Bucket) -> usize {
    match bucket.faults() {
        0 => usize::MAX,
        1 => AFTER_FAULT_MAX,
        _ => 1,
    }
}

/// A pseudo-random number in `[0, 1)` that is constant per sensor.
fn fraction(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
