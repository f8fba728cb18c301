//! The shared state of the journal's parts, protected by one lock that is never held during IO.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::checkpoint::CheckpointFile;
use super::error::{JournalFailure, JournalFull};
use super::fs::{DirLock, Fs};
use super::keys::RequestKeys;
use super::recovery::Recovered;
use super::segment::HEADER_BYTES;
use super::segment_files::SegmentInfo;
use super::segment_manager::SegmentPool;
use super::sender_shares::SenderShares;
use super::tracker::{Appended, Tail, TrackedEntry, Tracker};
use crate::admission::AdmissionControl;
use model::JournalAccount;
use model::ack::{Ack, AckOutcome};
use model::{Clock, Now};
use telemetry::metrics;

/// Called once, when the journal fails, from any thread. Must return quickly.
pub(crate) type OnBroken = Box<dyn Fn(&JournalFailure) + Send + Sync>;

/// The state of the journal in figures, for metrics and the admin port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Size on disk, including the segment pool.
    pub bytes: u64,
    /// Bytes of the frames from the first unstored entry on; stored entries in between count as
    /// well.
    pub unstored_bytes: u64,
    /// Bytes of frames written since this process opened the journal.
    pub written_bytes: u64,
    /// The limit in effect, from `journal.max_bytes`.
    pub bytes_max: u64,
    /// Segment files, without the pool.
    pub segments: usize,
    /// Entries that the follower has not returned yet.
    pub backlog_entries: u64,
    /// Entries from the first unstored one to the newest.
    pub unstored_entries: u64,
    /// The sequence of the first unstored entry; `None` if everything is stored.
    pub unstored_from: Option<u64>,
    /// Entries of an earlier run that the consumer of the follower has finished handing over, out
    /// of [`JournalStats::replay_total`]. They may be unstored.
    pub replay_done: u64,
    /// Entries of an earlier run to replay.
    pub replay_total: u64,
    /// Wall-clock time at which the oldest unstored entry was appended, in milliseconds since 1970.
    /// Survives restarts.
    pub oldest_unstored_ms: Option<i64>,
    /// Age of that entry in milliseconds, independent of later changes of the wall clock. For an
    /// entry of an earlier process: the age by the wall clock at this start (at least 0), plus the
    /// time since.
    pub oldest_unstored_age_ms: Option<u64>,
    /// For how long the writer has been appending the present group, in milliseconds; `None` while
    /// it waits for one. Many seconds: the disk does not answer.
    pub commit_age_ms: Option<u64>,
    /// Why it takes no readings for now; `None` if it does.
    pub full: Option<JournalFull>,
    /// The first failure of the journal.
    pub broken: Option<String>,
}

pub(super) struct State {
    /// Oldest first, numbers without a gap.
    pub(super) segments: VecDeque<SegmentInfo>,
    /// Whether the newest segment is being written.
    pub(super) active: bool,
    /// Size of the segments and of the files in the pool.
    pub(super) bytes: u64,
    /// Bytes of frames since the start.
    pub(super) written_bytes: u64,
    pub(super) tail: Tail,
    pub(super) tracker: Tracker,
    pub(super) shares: SenderShares,
    /// The sequence after the last synced entry. The follower may read up to it.
    pub(super) synced_to: u64,
    /// No more entries will be written: the follower ends when it has returned all.
    pub(super) closed: bool,
    /// The process is about to end: dropped entries are not reported.
    pub(super) finished: bool,
    /// Admission is closed. Changed only with the pool's lock.
    pub(super) full: Option<JournalFull>,
    pub(super) broken: Option<String>,
    /// Wakes the segment manager.
    pub(super) wake: bool,
    pub(super) lock: Option<Box<dyn DirLock>>,
}

/// Constants, synchronization, and the lock around [`State`].
pub(super) struct Shared {
    pub(super) fs: Arc<dyn Fs>,
    pub(super) dir: PathBuf,
    pub(super) segment_bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) admission_control: AdmissionControl,
    /// Identifies the segments of this process; see [`super::segment`].
    pub(super) run: u32,
    /// When the journal was opened.
    opened: Now,
    on_broken: OnBroken,
    pub(super) keys: RequestKeys,
    /// The sequences to replay; the end is exclusive.
    pub(super) replay: (u64, u64),
    state: Mutex<State>,
    /// Lock order: `pool`, `checkpoint`, `state`. The first two are held during IO.
    pub(super) pool: Mutex<SegmentPool>,
    checkpoint: Mutex<CheckpointFile>,
    pub(super) segment_manager: Condvar,
    /// Wakes the follower.
    pub(super) data: Notify,
    /// Every entry before this sequence is handed over: the consumer of the follower has requested
    /// the one after it.
    pub(super) handed_to: AtomicU64,
    /// When the writer began to append the present group (monotonic ms), or [`NO_COMMIT`]. Not in
    /// `state`, so that it costs no lock.
    commit_since_ms: AtomicU64,
}

/// The value of [`Shared::commit_since_ms`] while the writer waits for ingest batches.
const NO_COMMIT: u64 = u64::MAX;

/// Arguments of [`Shared::new`].
pub(super) struct Parts {
    pub(super) fs: Arc<dyn Fs>,
    pub(super) dir: PathBuf,
    pub(super) segment_bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) tail_bytes: usize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) admission_control: AdmissionControl,
    pub(super) on_broken: OnBroken,
    pub(super) keys: RequestKeys,
    pub(super) lock: Box<dyn DirLock>,
    pub(super) checkpoint: CheckpointFile,
}

impl Shared {
    pub(super) fn new(parts: Parts, recovered: &Recovered) -> Arc<Shared> {
        let from = recovered.replay_from;
        let state = State {
            segments: recovered.segments.clone(),
            active: false,
            bytes: recovered.segments.iter().map(|s| s.bytes).sum(),
            written_bytes: 0,
            tail: Tail::new(parts.tail_bytes),
            tracker: Tracker::new(from, recovered.replay_at),
            shares: SenderShares::new(parts.max_bytes),
            synced_to: recovered.next_seq,
            closed: false,
            finished: false,
            full: None,
            broken: None,
            wake: true,
            lock: Some(parts.lock),
        };
        metrics::journal_bytes(state.bytes);
        Arc::new(Shared {
            fs: parts.fs,
            dir: parts.dir,
            segment_bytes: parts.segment_bytes,
            max_bytes: parts.max_bytes,
            run: fastrand::u32(..),
            opened: parts.clock.now(),
            clock: parts.clock,
            admission_control: parts.admission_control,
            on_broken: parts.on_broken,
            keys: parts.keys,
            replay: (from, recovered.next_seq),
            state: Mutex::new(state),
            pool: Mutex::default(),
            checkpoint: Mutex::new(parts.checkpoint),
            segment_manager: Condvar::new(),
            data: Notify::new(),
            handed_to: AtomicU64::new(from),
            commit_since_ms: AtomicU64::new(NO_COMMIT),
        })
    }

    /// Ignores poisoning: every change under the lock is complete, so a panic leaves a consistent
    /// state.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lock it before the state is read, so that a later write has the later state.
    pub(super) fn checkpoint(&self) -> MutexGuard<'_, CheckpointFile> {
        self.checkpoint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of an append at this moment.
    pub(super) fn now(&self) -> Appended {
        let Now { wall_ms, mono_ms } = self.clock.now();
        Appended {
            run: self.run,
            mono_ms,
            wall_ms,
        }
    }

    /// The writer begins to append a group.
    pub(super) fn commit_began(&self) {
        let now_ms = self.clock.now().mono_ms;
        self.commit_since_ms.store(now_ms, Ordering::Release);
    }

    /// The group is synced or rejected.
    pub(super) fn commit_ended(&self) {
        self.commit_since_ms.store(NO_COMMIT, Ordering::Release);
    }

    /// Wakes the segment manager immediately.
    pub(super) fn wake(&self, state: &mut State) {
        state.wake = true;
        self.segment_manager.notify_one();
    }

    /// Records a failure. Only the first one is logged and reported.
    pub(super) fn break_for(&self, broken: &JournalFailure) {
        // Dropped entries do not affect the journal itself: it still stores new ones.
        if !matches!(broken, JournalFailure::NotDelivered { .. }) {
            self.admission_control.broken();
        }
        {
            let mut state = self.state();
            if state.broken.is_some() {
                return;
            }
            state.broken = Some(broken.to_string());
        }
        tracing::error!(error = %broken, "journal failure; restart the service");
        (self.on_broken)(broken);
    }

    /// Makes synced entries visible to the follower. `data_end` is their end in the newest segment.
    pub(super) fn publish(
        &self,
        items: Vec<TrackedEntry>,
        data_end: u64,
        bytes: u64,
        charges: &[(JournalAccount, u64)],
    ) {
        let mut state = self.state();
        if let (Some(first), true) = (items.first(), state.tracker.next() >= state.synced_to) {
            state.tracker.first_in_line(first.at);
        }
        state.synced_to += items.len() as u64;
        let synced_to = state.synced_to;
        state.written_bytes += bytes;
        state.shares.add(synced_to, bytes, charges);
        if let Some(segment) = state.segments.back_mut() {
            segment.data_end = data_end;
        }
        items.into_iter().for_each(|item| state.tail.push(item));
    }

    /// The acknowledgement of the chunk that starts with `first`.
    pub(super) fn chunk_ack(self: &Arc<Shared>, first: u64) -> Ack {
        let shared = self.clone();
        Ack::at(first, move |outcome| match outcome {
            AckOutcome::Delivered => {
                let mut state = shared.state();
                state.tracker.stored(first);
                state.forget(Some(shared.now()));
                if state.deletable() {
                    shared.wake(&mut state);
                }
            }
            AckOutcome::NotDelivered if shared.state().finished => {}
            AckOutcome::NotDelivered => {
                shared.break_for(&JournalFailure::NotDelivered { first_seq: first })
            }
        })
    }

    /// No more entries will be written.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.data.notify_one();
    }

    pub(super) fn is_crowded(&self) -> bool {
        let state = self.state();
        let unstored_bytes = state.unstored_bytes(state.tracker.unstored_from());
        let backlog_bytes = state.unstored_bytes(self.handed_to.load(Ordering::Acquire));
        unstored_bytes > self.max_bytes / 4 * 3 && backlog_bytes < unstored_bytes / 2
    }

    pub(super) fn stats(&self) -> JournalStats {
        let state = self.state();
        let (from, to) = self.replay;
        let unstored_from = state.tracker.unstored_from();
        let oldest = state.tracker.oldest(state.synced_to);
        let commit_since_ms = self.commit_since_ms.load(Ordering::Acquire);
        JournalStats {
            bytes: state.bytes,
            unstored_bytes: state.unstored_bytes(unstored_from),
            written_bytes: state.written_bytes,
            bytes_max: self.max_bytes,
            segments: state.segments.len(),
            backlog_entries: state.synced_to - state.tracker.next().min(state.synced_to),
            unstored_entries: state.synced_to - unstored_from.min(state.synced_to),
            unstored_from: (unstored_from < state.synced_to).then_some(unstored_from),
            // Not the tracker's next sequence: that is ahead by what was read from the segments and
            // waits in the follower, up to 1 MiB or one large entry, while the shards are full.
            replay_done: self.handed_to.load(Ordering::Acquire).clamp(from, to) - from,
            replay_total: to - from,
            oldest_unstored_ms: oldest.map(|at| at.wall_ms),
            oldest_unstored_age_ms: oldest.map(|at| self.age_ms(at)),
            commit_age_ms: (commit_since_ms != NO_COMMIT)
                .then(|| self.clock.now().mono_ms.saturating_sub(commit_since_ms)),
            full: state.full.clone(),
            broken: state.broken.clone(),
        }
    }

    /// Milliseconds since an append. For an append of this process, measured with the monotonic
    /// clock. For one of an earlier process: the time since this process opened the journal, plus
    /// the difference of the wall clock before that, which counts as 0 if that clock was set back.
    fn age_ms(&self, at: Appended) -> u64 {
        let now_ms = self.clock.now().mono_ms;
        if at.run == self.run {
            return now_ms.saturating_sub(at.mono_ms);
        }
        let before_ms = self.opened.wall_ms.saturating_sub(at.wall_ms).max(0) as u64;
        now_ms
            .saturating_sub(self.opened.mono_ms)
            .saturating_add(before_ms)
    }
}

impl State {
    /// Bytes of the frames from this sequence on. Within a segment, in proportion to its entries.
    fn unstored_bytes(&self, from: u64) -> u64 {
        let ends = self
            .segments
            .iter()
            .skip(1)
            .map(|next| next.first_seq)
            .chain([self.synced_to]);
        let of_segment = |(segment, end): (&SegmentInfo, u64)| {
            let entries = end.saturating_sub(segment.first_seq);
            let left = end.saturating_sub(segment.first_seq.max(from));
            let bytes = u128::from(segment.data_end.saturating_sub(HEADER_BYTES));
            (bytes * u128::from(left))
                .checked_div(u128::from(entries))
                .unwrap_or(0) as u64
        };
        self.segments.iter().zip(ends).map(of_segment).sum()
    }

    /// Drops chunks that no replay needs. `now` is the earliest time of future appends; `None` if
    /// there will be none.
    pub(super) fn forget(&mut self, now: Option<Appended>) {
        self.tracker.forget(self.synced_to, now);
        self.shares.stored(&self.tracker);
    }

    /// When space is short, allows the removal of the oldest segment if everything in it is stored,
    /// although a replay may need some of it (see `tracker`). Returns false if that frees no
    /// segment.
    pub(super) fn give_up_oldest(&mut self) -> bool {
        let Some(end) = self.oldest_end() else {
            return false;
        };
        if self.deletable() || end > self.tracker.unstored_from() {
            return false;
        }
        self.tracker.give_up(end);
        self.deletable()
    }

    /// Whether the oldest segment is stored, not needed for a replay, and no longer appended to.
    pub(super) fn deletable(&self) -> bool {
        self.oldest_end()
            .is_some_and(|end| end <= self.tracker.replay_from())
    }

    /// The sequence after the oldest segment, if it is no longer appended to.
    pub(super) fn oldest_end(&self) -> Option<u64> {
        match (self.segments.len(), self.segments.get(1)) {
            (_, Some(next)) => Some(next.first_seq),
            (1, None) if !self.active => Some(self.synced_to),
            _ => None,
        }
    }

    /// Updates the size on disk.
    pub(super) fn count_bytes(&mut self, more: u64, less: u64) {
        self.bytes = (self.bytes + more).saturating_sub(less);
        metrics::journal_bytes(self.bytes);
    }
}
