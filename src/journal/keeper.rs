//! Everything around the writer that may take its time, in a thread of its own: the next segment is in stock before it
//! is needed, segments that are stored are removed, the checkpoint is written, and a journal that was full opens again.
//!
//! The stock and the removals are behind one lock, which the writer takes when it needs a segment: it finds one there,
//! or waits for the keeper who is just making it, or makes it itself. So there is no protocol between the two threads.
//!
//! Known cost: the directory sync after a removal stalls the writer's fdatasync, since both wait for the file system's
//! journal. Seen once on an idle machine (ext4 with `discard`, 64 MiB segments, the system calls alone): p99 of a group
//! 3.6 ms and 73 ms at most with removals, 0.6 ms and 2.3 ms without. Not cured yet.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::checkpoint;
use super::error::Broken;
use super::fs::FsFile;
use super::segment::HEADER_BYTES;
use super::shared::Shared;

/// How the name of a file ends that is to become a segment, so that a crash leaves nothing that looks like one.
pub(super) const UNFINISHED: &str = ".tmp";
/// Between two looks when nothing happens, two checkpoints, and two attempts to get space.
const TICK: Duration = Duration::from_secs(1);
/// Between two lines of the log about a replay.
const PROGRESS_MS: u64 = 10_000;

/// Space that is reserved and has no header yet.
pub(super) struct Prepared {
    pub(super) file: Arc<dyn FsFile>,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// The next segment.
#[derive(Default)]
pub(super) struct Stock {
    prepared: Option<Prepared>,
    /// A write or a segment was refused, and the door closed for it.
    refused: bool,
    /// How many files were made. Each has a name of its own: the writer gives one its header while the keeper makes the
    /// next.
    made: u64,
}

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("a message of {0} bytes does not fit into journal.max_bytes")]
    TooLarge(u64),
    #[error("the journal has reached journal.max_bytes")]
    MaxBytes,
    #[error("no space for a journal segment: {0}")]
    Io(#[from] io::Error),
}

impl Shared {
    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment with room for this many bytes of frames. Where there is none, the door is closed until the keeper has
    /// one again, unless only this one message is too large for what is left.
    pub(super) fn take_segment(&self, frames_bytes: u64) -> Result<Prepared, Refusal> {
        let mut stock = self.stock();
        let need = self.segment_bytes.max(HEADER_BYTES + frames_bytes);
        if let Some(prepared) = stock.prepared.take_if(|p| p.bytes >= need) {
            self.kick(&mut self.state());
            return Ok(prepared);
        }
        if need > self.max_bytes - self.segment_bytes {
            return Err(Refusal::TooLarge(frames_bytes));
        }
        self.sweep(&mut stock);
        self.discard(stock.prepared.take());
        let made = self.make(&mut stock, need);
        match &made {
            Ok(_) => self.kick(&mut self.state()),
            Err(refusal) => self.refuse(&mut stock, refusal),
        }
        made
    }

    fn make(&self, stock: &mut Stock, bytes: u64) -> Result<Prepared, Refusal> {
        if self.state().bytes + bytes > self.max_bytes {
            return Err(Refusal::MaxBytes);
        }
        stock.made += 1;
        let path = self.dir.join(format!("next-{}{UNFINISHED}", stock.made));
        let file = self.fs.create(&path)?;
        if let Err(error) = file.allocate(bytes) {
            // What it had reserved before it failed would be missing elsewhere.
            let _ = self.fs.remove(&path);
            return Err(error.into());
        }
        self.state().count_bytes(bytes, 0);
        Ok(Prepared { file, path, bytes })
    }

    /// Gives back the space of a file that does not become a segment.
    pub(super) fn discard(&self, prepared: Option<Prepared>) {
        if let Some(prepared) = prepared {
            // If it stays, the next start removes it.
            let _ = self.fs.remove(&prepared.path);
            self.state().count_bytes(0, prepared.bytes);
        }
    }

    /// Closes the door after something was refused.
    pub(super) fn write_refused(&self, error: &dyn std::fmt::Display) {
        self.refuse(&mut self.stock(), error);
    }

    fn refuse(&self, stock: &mut Stock, why: &dyn std::fmt::Display) {
        if !stock.refused {
            tracing::error!("{why}; no readings are taken until there is room");
        }
        stock.refused = true;
        self.gate.full(true);
    }

    /// Removes the segments that are stored, the oldest first and each durably before the next, so that what a crash
    /// leaves has no gap.
    fn sweep(&self, _stock: &mut Stock) {
        loop {
            let path = {
                let state = self.state();
                match state.segments.front() {
                    Some(oldest) if state.deletable() && state.broken.is_none() => oldest.path.clone(),
                    _ => return,
                }
            };
            match self.fs.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("cannot remove {}: {error}", path.display());
                    return;
                }
                _ => {}
            }
            if let Err(source) = self.fs.sync_dir(&self.dir) {
                return self.break_for(&Broken::Sync { path: self.dir.clone(), source });
            }
            let mut state = self.state();
            if let Some(oldest) = state.segments.pop_front() {
                state.count_bytes(0, oldest.bytes);
            }
        }
    }
}

/// The keeper itself.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    checkpoint: Option<checkpoint::Writer>,
    checkpoint_ms: Option<u64>,
    progress_ms: u64,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, checkpoint: Option<checkpoint::Writer>) -> Keeper {
        let progress_ms = shared.clock.now().mono_ms;
        Keeper { shared, checkpoint, checkpoint_ms: None, progress_ms }
    }

    /// Works until the journal is finished.
    pub(super) fn run(mut self) {
        loop {
            let finished = {
                let state = self.shared.state();
                let idle = |state: &mut super::shared::State| !state.kick && !state.finished;
                let waited = self.shared.keeper.wait_timeout_while(state, TICK, idle);
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
            let mut stock = shared.stock();
            shared.sweep(&mut stock);
            let closed = {
                let state = shared.state();
                state.closed || state.broken.is_some()
            };
            if stock.prepared.is_none() && !closed {
                match shared.make(&mut stock, shared.segment_bytes) {
                    Ok(prepared) => stock.prepared = Some(prepared),
                    // The active segment may have room for hours: the writer says when this matters.
                    Err(why) => tracing::debug!("{why}"),
                }
            }
            if last {
                shared.discard(stock.prepared.take());
            }
            if stock.refused && stock.prepared.is_some() {
                stock.refused = false;
                shared.gate.full(false);
                tracing::info!("there is room in the journal again");
            }
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
            (state.tracker.unstored_from(), state.synced_to)
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
