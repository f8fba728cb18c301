//! The segment manager does the slow work for the writer, in a separate thread: it prepares files
//! for the next segments in the pool, recycles or removes stored segments, writes the checkpoint,
//! and opens admission again after the journal was full.
//!
//! The pool has one lock, which the writer takes when it needs a segment. The writer finds a file
//! there, waits for the segment manager that is preparing one, or prepares it itself. So the two
//! threads need no other protocol.
//!
//! **Recycling.** A stored segment is not removed but renamed, and becomes one of the next
//! segments. Measured on ext4 with `discard` (64 MiB, groups of 200 KiB, system calls only):
//! removing a segment takes 20 ms, and meanwhile a synced group takes up to 60 ms. A synced group
//! takes 0.14 ms if all its blocks have been written before, and 0.28 ms if they are only reserved,
//! because then each sync waits for the journal of the file system. The rename is made durable
//! before the file is used: otherwise a crash could restore the old name over data of the next
//! segment. The salt distinguishes old frames after those of the new segment (see `segment`). At
//! most [`READY_MAX`] files are kept, all within `journal.max_bytes`. Surplus files are removed
//! without holding the lock, because that is slow. All are removed at shutdown, and at the start
//! after a crash.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::checkpoint::BeforeRemoval;
use super::error::{JournalFailure, JournalFull};
use super::fs::{FsFile, write_all_at};
use super::segment::HEADER_BYTES;
use super::segment_files::{SegmentInfo, UNFINISHED};
use super::shared::Shared;

/// Interval of idle ticks, of checkpoints, and of attempts to get space.
const TICK: Duration = Duration::from_secs(1);
/// Interval of log messages about the progress of a replay.
const PROGRESS_MS: u64 = 10_000;

/// Maximum number of files in the pool. The backlog varies by a few segments between two flushes.
/// 256 MiB of disk at the default segment size.
const READY_MAX: usize = 4;

/// A file with reserved space and without a header for its new segment.
pub(super) struct PreparedSegment {
    pub(super) file: Arc<dyn FsFile>,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Whether the file was a segment before.
    pub(super) recycled: bool,
}

/// Files that will become segments.
#[derive(Default)]
pub(super) struct SegmentPool {
    /// The last one is used next: a recycled one if there is any.
    ready: Vec<PreparedSegment>,
    /// Number of file names used. Names are unique, because the writer fills one file while the
    /// segment manager prepares the next.
    named: u64,
}

impl SegmentPool {
    fn next_path(&mut self, dir: &Path) -> PathBuf {
        self.named += 1;
        dir.join(format!("next-{}{UNFINISHED}", self.named))
    }
}

/// Why no segment is available.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSegment {
    #[error(
        "a message that needs {0} bytes never fits into the journal; increase journal.max_bytes"
    )]
    TooLarge(u64),
    #[error(transparent)]
    Full(#[from] JournalFull),
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, SegmentPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment with space for this many bytes of frames. If there is none, closes admission until
    /// the segment manager has one again, except if this message is larger than the journal can
    /// ever hold.
    pub(super) fn take_segment(&self, frames_bytes: u64) -> Result<PreparedSegment, NoSegment> {
        let mut pool = self.pool();
        let need = self.segment_bytes.max(HEADER_BYTES + frames_bytes);
        if let Some(i) = pool.ready.iter().rposition(|p| p.bytes >= need) {
            self.wake(&mut self.state());
            return Ok(pool.ready.remove(i));
        }
        if need > self.max_bytes - self.segment_bytes {
            return Err(NoSegment::TooLarge(frames_bytes));
        }
        self.state().forget(Some(self.now()));
        let made = loop {
            self.sweep(&mut pool);
            if let Some(i) = pool.ready.iter().rposition(|p| p.bytes >= need) {
                return Ok(pool.ready.remove(i));
            }
            while self.state().bytes + need > self.max_bytes && !pool.ready.is_empty() {
                self.discard(pool.ready.pop());
            }
            let made = self.make(&mut pool, need);
            if made.is_ok() || !self.give_up_oldest() {
                break made;
            }
        };
        match &made {
            Ok(_) => self.wake(&mut self.state()),
            Err(full) => self.refuse(&mut pool, full.clone()),
        }
        Ok(made?)
    }

    /// Frees space when it is short, one segment at a time; see
    /// [`super::shared::State::give_up_oldest`].
    fn give_up_oldest(&self) -> bool {
        let given_up = self.state().give_up_oldest();
        if given_up {
            tracing::warn!(
                "removing the oldest journal segment early to free space; after a crash now, a \
                 reading without a timestamp may be mistaken for an equal one of the same \
                 millisecond"
            );
        }
        given_up
    }

    fn make(&self, pool: &mut SegmentPool, bytes: u64) -> Result<PreparedSegment, JournalFull> {
        if self.state().bytes + bytes > self.max_bytes {
            return Err(JournalFull::MaxBytes);
        }
        let path = pool.next_path(&self.dir);
        let file = self.fs.create(&path).map_err(JournalFull::disk)?;
        if let Err(error) = file.allocate(bytes) {
            // Releases the space that was reserved before the failure.
            let _ = self.fs.remove(&path);
            return Err(JournalFull::disk(error));
        }
        self.state().count_bytes(bytes, 0);
        Ok(PreparedSegment {
            file,
            path,
            bytes,
            recycled: false,
        })
    }

    /// Frees the space of a file that does not become a segment.
    pub(super) fn discard(&self, prepared: Option<PreparedSegment>) {
        if let Some(prepared) = prepared {
            // If this fails, the next start removes it.
            let _ = self.fs.remove(&prepared.path);
            self.state().count_bytes(0, prepared.bytes);
        }
    }

    /// Closes admission after a failed write.
    pub(super) fn write_refused(&self, error: &io::Error) {
        self.refuse(&mut self.pool(), JournalFull::disk(error));
    }

    /// Closes admission, or replaces the reason. With the pool's lock, as [`Shared::reopen`], so that
    /// admission and its reason agree.
    fn refuse(&self, _pool: &mut SegmentPool, why: JournalFull) {
        let before = self.state().full.replace(why.clone());
        if before.is_none() {
            tracing::error!(error = %why, "admission closed: the journal cannot take readings");
        }
        self.admission_control.full(true);
    }

    /// Opens admission if a segment can be written. A disk that refuses writes may still reserve
    /// space, so this writes where the header will be. A file that cannot be written is removed; the
    /// next tick tries another.
    fn reopen(&self, pool: &mut SegmentPool) {
        let Some(prepared) = pool.ready.last() else {
            return;
        };
        if let Err(error) = write_all_at(&*prepared.file, &[0; HEADER_BYTES as usize], 0) {
            self.discard(pool.ready.pop());
            return self.refuse(pool, JournalFull::disk(error));
        }
        self.state().full = None;
        self.admission_control.full(false);
        tracing::info!("admission open: the journal takes readings again");
    }

    /// Retires stored segments, oldest first, each durably before the next, and after a checkpoint
    /// without its entries, so that a crash leaves no gap. Reusable files are put into the pool,
    /// even above its limit (see [`Shared::surplus`]).
    fn sweep(&self, pool: &mut SegmentPool) {
        loop {
            let oldest = {
                let state = self.state();
                match state.segments.front() {
                    Some(oldest) if state.deletable() && state.broken.is_none() => oldest.clone(),
                    _ => return,
                }
            };
            if !self.checkpoint_removal() {
                return;
            }
            let end = self.state().oldest_end().unwrap_or(oldest.first_seq);
            self.keys.save(&*self.fs, &self.dir, end);
            let recycled = match self.retire(pool, &oldest) {
                Ok(recycled) => recycled,
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    tracing::warn!(segment = %oldest.path.display(), %error, "cannot remove \
                        journal segment");
                    return;
                }
            };
            if let Err(source) = self.fs.sync_dir(&self.dir) {
                return self.break_for(&JournalFailure::Sync {
                    path: self.dir.clone(),
                    source,
                });
            }
            let mut state = self.state();
            state.segments.pop_front();
            match recycled {
                Some(recycled) => pool.ready.push(recycled),
                None => state.count_bytes(0, oldest.bytes),
            }
        }
    }

    /// Makes the checkpoint ready for the removal of the oldest segment; false if that is
    /// impossible.
    fn checkpoint_removal(&self) -> bool {
        let mut checkpoint = self.checkpoint();
        let (end, sequences) = {
            let state = self.state();
            let unstored_from = state.tracker.replay_from();
            let end = state.oldest_end().unwrap_or(unstored_from);
            (end, (unstored_from, state.synced_to))
        };
        match checkpoint.before_removal(&*self.fs, &self.dir, end, sequences) {
            Ok(BeforeRemoval::Ready) => true,
            Ok(BeforeRemoval::SyncDirectory) => {
                let synced = self.fs.sync_dir(&self.dir);
                if let Err(source) = synced {
                    let path = self.dir.clone();
                    self.break_for(&JournalFailure::Sync { path, source });
                    return false;
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot remove the journal checkpoint, which cannot be \
                    written either; stored segments are kept");
                false
            }
        }
    }

    /// Renames a segment for reuse, or removes it if the file cannot be reused.
    fn retire(
        &self,
        pool: &mut SegmentPool,
        segment: &SegmentInfo,
    ) -> io::Result<Option<PreparedSegment>> {
        if !segment.own || segment.bytes != self.segment_bytes {
            return self.fs.remove(&segment.path).map(|()| None);
        }
        let file = self.fs.open(&segment.path, true)?;
        let path = pool.next_path(&self.dir);
        self.fs.rename(&segment.path, &path)?;
        Ok(Some(PreparedSegment {
            file,
            path,
            bytes: segment.bytes,
            recycled: true,
        }))
    }

    /// Takes a surplus file from the pool, preferring one that was never a segment. The caller
    /// discards it without holding the lock.
    fn surplus(&self) -> Option<PreparedSegment> {
        let mut pool = self.pool();
        (pool.ready.len() > READY_MAX).then(|| pool.ready.remove(0))
    }
}

/// The segment manager without its thread.
pub(super) struct SegmentManager {
    shared: Arc<Shared>,
    checkpoint_ms: Option<u64>,
    progress_ms: u64,
}

impl SegmentManager {
    pub(super) fn new(shared: Arc<Shared>) -> SegmentManager {
        let progress_ms = shared.clock.now().mono_ms;
        SegmentManager {
            shared,
            checkpoint_ms: None,
            progress_ms,
        }
    }

    /// Runs until the journal is finished.
    pub(super) fn run(mut self) {
        loop {
            let finished = {
                let state = self.shared.state();
                let idle = |state: &mut super::shared::State| !state.wake && !state.finished;
                let waited = self
                    .shared
                    .segment_manager
                    .wait_timeout_while(state, TICK, idle);
                let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                state.wake = false;
                state.finished
            };
            self.tick(finished);
            if finished {
                return;
            }
        }
    }

    /// Performs the work that is pending. If `last`, empties the pool and writes the checkpoint
    /// regardless of the interval.
    pub(super) fn tick(&mut self, last: bool) {
        let shared = self.shared.clone();
        {
            let mut pool = shared.pool();
            // At the end there are no future appends.
            let now = (!last).then(|| shared.now());
            shared.state().forget(now);
            shared.sweep(&mut pool);
            let (closed, full) = {
                let state = shared.state();
                (state.closed || state.broken.is_some(), state.full.is_some())
            };
            while pool.ready.is_empty() && !closed {
                match shared.make(&mut pool, shared.segment_bytes) {
                    Ok(prepared) => pool.ready.push(prepared),
                    // A write was rejected: space matters more now than stored entries that a
                    // replay may need.
                    Err(_) if full && shared.give_up_oldest() => shared.sweep(&mut pool),
                    Err(why) => {
                        // The active segment may have space for hours. The writer reports when this
                        // matters.
                        tracing::debug!(error = %why, "cannot prepare a journal segment");
                        if full {
                            shared.refuse(&mut pool, why);
                        }
                        break;
                    }
                }
            }
            if last {
                pool.ready
                    .drain(..)
                    .for_each(|prepared| shared.discard(Some(prepared)));
            }
            if full {
                shared.reopen(&mut pool);
            }
        }
        while let Some(surplus) = shared.surplus() {
            shared.discard(Some(surplus));
        }
        let now_ms = shared.clock.now().mono_ms;
        if last
            || self
                .checkpoint_ms
                .is_none_or(|at| now_ms - at >= TICK.as_millis() as u64)
        {
            self.checkpoint_ms = Some(now_ms);
            self.write_checkpoint();
        }
        self.log_progress(now_ms);
    }

    fn write_checkpoint(&self) {
        let mut checkpoint = self.shared.checkpoint();
        let (unstored_from, synced_to) = {
            let state = self.shared.state();
            (state.tracker.replay_from(), state.synced_to)
        };
        checkpoint.write(unstored_from, synced_to);
    }

    fn log_progress(&mut self, now_ms: u64) {
        if now_ms - self.progress_ms < PROGRESS_MS {
            return;
        }
        self.progress_ms = now_ms;
        let stats = self.shared.stats();
        if stats.replay_done < stats.replay_total {
            tracing::info!(
                done = stats.replay_done,
                total = stats.replay_total,
                "replaying journal entries"
            );
        }
    }
}
