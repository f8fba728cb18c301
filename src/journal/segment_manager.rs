//! Everything around the writer that may take its time, in a thread of its own: files for the next segments are in the pool
//! before they are needed, segments that are stored leave the row, the checkpoint is written, and a journal that was
//! full opens again.
//!
//! The pool is behind one lock, which the writer takes when it needs a segment: it finds a file there, or waits for the
//! segment manager who is just making it, or makes it itself. So there is no protocol between the two threads.
//!
//! **Recycling.** A segment that is stored is not removed but renamed, and becomes one of the next segments. Measured
//! here (ext4 with `discard`, 64 MiB, groups of 200 KiB, the system calls alone): removing a segment takes 20 ms, and
//! while it lasts a synced group takes up to 60 ms; and a synced group takes 0.14 ms where all its blocks have been
//! written before, 0.28 ms where they are only reserved, since then each sync has to wait for the file system's own
//! journal. The rename is made durable before anything else is done with the file: otherwise a crash could bring back
//! the old name over what the next segment has written. What the old segment leaves behind the frames of the new one is
//! told by its salt (see `segment`). At most [`READY_MAX`] files are kept, all within `journal.max_bytes`; what is more
//! is removed without the lock, since it takes so long. At the end, and at the start after a crash, all are removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::checkpoint;
use super::error::JournalFailure;
use super::fs::FsFile;
use super::segment::HEADER_BYTES;
use super::shared::{SegmentInfo, Shared};

/// How the name of a file ends that is to become a segment, so that a crash leaves nothing that looks like one.
pub(super) const UNFINISHED: &str = ".tmp";
/// Between two looks when nothing happens, two checkpoints, and two attempts to get space.
const TICK: Duration = Duration::from_secs(1);
/// Between two lines of the log about a replay.
const PROGRESS_MS: u64 = 10_000;

/// Files in the pool. The backlog shrinks and grows by a few segments between two flushes; 256 MiB of disk at the usual
/// size of a segment.
const READY_MAX: usize = 4;

/// Space that is reserved and has no header of its own yet.
pub(super) struct PreparedSegment {
    pub(super) file: Arc<dyn FsFile>,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// It was a segment before.
    pub(super) recycled: bool,
}

/// Files that are to become segments.
#[derive(Default)]
pub(super) struct SegmentPool {
    /// The last one is the next: it is a recycled one where there is any.
    ready: Vec<PreparedSegment>,
    /// A write or a segment was refused, and admission closed for it.
    refused: bool,
    /// How many names were given out. Each file has its own: the writer gives one its header while the segment manager makes the
    /// next.
    named: u64,
}

impl SegmentPool {
    fn next_path(&mut self, dir: &Path) -> PathBuf {
        self.named += 1;
        dir.join(format!("next-{}{UNFINISHED}", self.named))
    }
}

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSegment {
    #[error("a message of {0} bytes does not fit into journal.max_bytes")]
    TooLarge(u64),
    #[error("the journal has reached journal.max_bytes")]
    MaxBytes,
    #[error("no space for a journal segment: {0}")]
    Io(#[from] io::Error),
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, SegmentPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment with room for this many bytes of frames. Where there is none, admission is closed until the segment manager has
    /// one again, unless only this one message is too large for what is left.
    pub(super) fn take_segment(&self, frames_bytes: u64) -> Result<PreparedSegment, NoSegment> {
        let mut pool = self.pool();
        let need = self.segment_bytes.max(HEADER_BYTES + frames_bytes);
        if let Some(i) = pool.ready.iter().rposition(|p| p.bytes >= need) {
            self.kick(&mut self.state());
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
            Ok(_) => self.kick(&mut self.state()),
            Err(refusal) => self.refuse(&mut pool, refusal),
        }
        made
    }

    /// The escape for want of room, one segment at a time; see [`super::shared::State::give_up_oldest`].
    fn give_up_oldest(&self) -> bool {
        let given_up = self.state().give_up_oldest();
        if given_up {
            tracing::warn!(
                "no room for the next journal segment: the oldest one is given up before its moment has passed; after a \
                 crash now, a reading without a time of its own may be taken for an equal one of the same millisecond"
            );
        }
        given_up
    }

    fn make(&self, pool: &mut SegmentPool, bytes: u64) -> Result<PreparedSegment, NoSegment> {
        if self.state().bytes + bytes > self.max_bytes {
            return Err(NoSegment::MaxBytes);
        }
        let path = pool.next_path(&self.dir);
        let file = self.fs.create(&path)?;
        if let Err(error) = file.allocate(bytes) {
            // What it had reserved before it failed would be missing elsewhere.
            let _ = self.fs.remove(&path);
            return Err(error.into());
        }
        self.state().count_bytes(bytes, 0);
        Ok(PreparedSegment { file, path, bytes, recycled: false })
    }

    /// Gives back the space of a file that does not become a segment.
    pub(super) fn discard(&self, prepared: Option<PreparedSegment>) {
        if let Some(prepared) = prepared {
            // If it stays, the next start removes it.
            let _ = self.fs.remove(&prepared.path);
            self.state().count_bytes(0, prepared.bytes);
        }
    }

    /// Closes admission after something was refused.
    pub(super) fn write_refused(&self, error: &dyn std::fmt::Display) {
        self.refuse(&mut self.pool(), error);
    }

    fn refuse(&self, pool: &mut SegmentPool, why: &dyn std::fmt::Display) {
        if !pool.refused {
            tracing::error!("{why}; no readings are taken until there is room");
        }
        pool.refused = true;
        self.admission_control.full(true);
    }

    /// Takes the segments that are stored out of the row, the oldest first and each durably before the next, so that
    /// what a crash leaves has no gap. They go into the pool where they fit, even if it is full then (see
    /// [`Shared::surplus`]).
    fn sweep(&self, pool: &mut SegmentPool) {
        loop {
            let oldest = {
                let state = self.state();
                match state.segments.front() {
                    Some(oldest) if state.deletable() && state.broken.is_none() => oldest.clone(),
                    _ => return,
                }
            };
            let recycled = match self.retire(pool, &oldest) {
                Ok(recycled) => recycled,
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    tracing::warn!("cannot remove {}: {error}", oldest.path.display());
                    return;
                }
            };
            if let Err(source) = self.fs.sync_dir(&self.dir) {
                return self.break_for(&JournalFailure::Sync { path: self.dir.clone(), source });
            }
            let mut state = self.state();
            state.segments.pop_front();
            match recycled {
                Some(recycled) => pool.ready.push(recycled),
                None => state.count_bytes(0, oldest.bytes),
            }
        }
    }

    /// Takes a segment's name away: by another one where the file can be used again, else for good.
    fn retire(&self, pool: &mut SegmentPool, segment: &SegmentInfo) -> io::Result<Option<PreparedSegment>> {
        if !segment.own || segment.bytes != self.segment_bytes {
            return self.fs.remove(&segment.path).map(|()| None);
        }
        let file = self.fs.open(&segment.path, true)?;
        let path = pool.next_path(&self.dir);
        self.fs.rename(&segment.path, &path)?;
        Ok(Some(PreparedSegment { file, path, bytes: segment.bytes, recycled: true }))
    }

    /// A file that is too many in the pool, one that was never a segment first. Whoever takes it discards it without the
    /// lock.
    fn surplus(&self) -> Option<PreparedSegment> {
        let mut pool = self.pool();
        (pool.ready.len() > READY_MAX).then(|| pool.ready.remove(0))
    }
}

/// The segment manager itself.
pub(super) struct SegmentManager {
    shared: Arc<Shared>,
    checkpoint: Option<checkpoint::Writer>,
    checkpoint_ms: Option<u64>,
    progress_ms: u64,
}

impl SegmentManager {
    pub(super) fn new(shared: Arc<Shared>, checkpoint: Option<checkpoint::Writer>) -> SegmentManager {
        let progress_ms = shared.clock.now().mono_ms;
        SegmentManager { shared, checkpoint, checkpoint_ms: None, progress_ms }
    }

    /// Works until the journal is finished.
    pub(super) fn run(mut self) {
        loop {
            let finished = {
                let state = self.shared.state();
                let idle = |state: &mut super::shared::State| !state.kick && !state.finished;
                let waited = self.shared.segment_manager.wait_timeout_while(state, TICK, idle);
                let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                state.kick = false;
                state.finished
            };
            self.tick(finished);
            if finished {
                return;
            }
        }
    }

    /// Does what there is to do now. `last`: the checkpoint is written even if the last one is young.
    pub(super) fn tick(&mut self, last: bool) {
        let shared = self.shared.clone();
        {
            let mut pool = shared.pool();
            // At the end nothing more is received.
            let now = (!last).then(|| shared.now());
            shared.state().forget(now);
            shared.sweep(&mut pool);
            let closed = {
                let state = shared.state();
                state.closed || state.broken.is_some()
            };
            while pool.ready.is_empty() && !closed {
                match shared.make(&mut pool, shared.segment_bytes) {
                    Ok(prepared) => pool.ready.push(prepared),
                    // A write was refused: room is worth more now than a replay that needs what is stored.
                    Err(_) if pool.refused && shared.give_up_oldest() => shared.sweep(&mut pool),
                    Err(why) => {
                        // The active segment may have room for hours: the writer says when this matters.
                        tracing::debug!("{why}");
                        break;
                    }
                }
            }
            if last {
                pool.ready.drain(..).for_each(|prepared| shared.discard(Some(prepared)));
            }
            if pool.refused && !pool.ready.is_empty() {
                pool.refused = false;
                shared.admission_control.full(false);
                tracing::info!("there is room in the journal again");
            }
        }
        while let Some(surplus) = shared.surplus() {
            shared.discard(Some(surplus));
        }
        let now_ms = shared.clock.now().mono_ms;
        if last || self.checkpoint_ms.is_none_or(|at| now_ms - at >= TICK.as_millis() as u64) {
            self.checkpoint_ms = Some(now_ms);
            self.write_checkpoint();
        }
        self.log_progress(now_ms);
    }

    fn write_checkpoint(&mut self) {
        let (unstored_from, synced_to) = {
            let state = self.shared.state();
            (state.tracker.replay_from(), state.synced_to)
        };
        let Some(writer) = &mut self.checkpoint else { return };
        if let Err(error) = writer.write(unstored_from, synced_to) {
            tracing::warn!("cannot write the journal's checkpoint, the next start replays more: {error}");
            // Not tried again: after a failed sync a later success would mean nothing.
            self.checkpoint = None;
        }
    }

    fn log_progress(&mut self, now_ms: u64) {
        if now_ms - self.progress_ms < PROGRESS_MS {
            return;
        }
        self.progress_ms = now_ms;
        let stats = self.shared.stats();
        if stats.replay_done < stats.replay_total {
            tracing::info!("replaying the journal: {} of {} entries", stats.replay_done, stats.replay_total);
        }
    }
}
