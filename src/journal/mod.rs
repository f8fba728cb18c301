//! The journal: what is acknowledged is in it, durably, until it is stored.
//!
//! **Constraints.** An acknowledgement costs one fdatasync, so many senders share one. The store may be away for hours:
//! the journal is the buffer, up to `journal.max_bytes`, and memory stays bounded whatever the backlog. The process and
//! the machine may stop at any instant. Nothing that was acknowledged may be lost, and nothing may be given out in
//! another order than it was taken.
//!
//! **Parts.** `segment` is the format (pure), `reader` and `recovery` read it, `writer` appends, `segment_manager` does
//! whatever may take its time (the next segments, what becomes of stored ones, the checkpoint), `tracker` knows what is stored (pure),
//! `follower` gives the entries to the router, `repair` is for the operator, [`fs`] is the file system and its double.
//!
//! **The life of one entry.** A [`IngestBatch`] comes out of the intake's channel with whatever else
//! waits there, up to 4 MiB. Its readings become one frame, its dead letters another; all frames of the group are one
//! write behind the last group of the active segment, and one fdatasync. Then, and only then, the entries are visible
//! to the follower and the senders are acknowledged. The follower gives them out in order, from memory or, when the
//! router was slower than 32 MiB, from the segments. Each [`JournalEntry`] carries an acknowledgement, shared by the entries of
//! a chunk of 64 KiB; when it is delivered the tracker moves the line before which
//! everything is stored, and a segment wholly before the line is recycled or removed.
//!
//! **Crash.** The next start verifies all segments from the checkpoint on, cuts off a torn last write (`recovery` says
//! how it is told from damage), and the follower begins with the first entry that may be unstored: about a second of
//! entries, and whatever was not stored, come again with `replayed` set. What was recovered is made durable before
//! anything is built upon it, and a new segment is begun: an old one is never appended to.
//!
//! **Full.** A segment's space is reserved before it is used, so a full disk shows when the next segment is made and not
//! in the middle of an acknowledged write. When there is none to be had (`journal.max_bytes`, no space) the group is
//! refused, admission ([`AdmissionControl::full`]) closes, and the segment manager opens it when it has a segment
//! again: after a removal, or at one of its attempts every second. The backlog is not affected.
//!
//! **Retry.** A short write is continued. A failed write refuses its group and ends its segment. A failed fdatasync of a
//! segment or of the directory is final: [`JournalFailure::Sync`], admission closes for good, nobody of the group is
//! acknowledged, and the follower still gives everything that was synced before.
//!
//! **Invariants.**
//! - Acknowledged, hence synced; visible to the follower, hence synced. At most one group is not synced.
//! - A file named `*.seg` has had its header synced; sequences run on without a gap from segment to segment.
//! - Segments leave the row from the front only, each durably before the next, and before its file is written again.
//! - The tail in memory ends where the journal ends; what it does not hold is in a segment.
//! - No lock is held over IO but the pool's, which the writer takes only when it needs a segment.

mod checkpoint;
mod error;
mod follower;
pub mod fs;
mod reader;
mod recovery;
mod repair;
mod segment;
mod segment_manager;
mod shared;
mod tracker;
mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use tokio::sync::Notify;

use crate::admission::{AdmissionControl, IngestBatch, IngestReceiver};
use crate::config;
use crate::model::Clock;

pub use error::{Damage, JournalError, JournalFailure};
pub use follower::{Follower, JournalEntry};
pub use recovery::TornTail;
pub use repair::{Report, Salvaged, SegmentReport, check, inspect, salvage};
pub use segment::{FORMAT_VERSION, FrameFault, HeaderFault};
pub use shared::OnBroken;
pub use tracker::EntryKind;

use error::io_error;
use fs::Fs;
use segment_manager::SegmentManager;
use shared::{Parts, Shared};
use writer::Appender;

/// The file whose lock says that the directory is in use.
const LOCK_NAME: &str = "lock";
/// Entries kept in memory for the follower.
const TAIL_BYTES: usize = 32 << 20;
/// A journal has room for four segments at least, so that it can be full without having stopped.
const SEGMENTS_MIN: u64 = 4;
/// A segment has room for a header and something.
const SEGMENT_BYTES_MIN: u64 = 2 * segment::HEADER_BYTES;

/// What the journal works with.
pub struct JournalDeps {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The time of append, and of the checkpoints.
    pub clock: Arc<dyn Clock>,
    /// The intake's admission.
    pub admission_control: AdmissionControl,
    /// Called once, when the journal breaks.
    pub on_broken: OnBroken,
}

/// A journal that has been opened.
#[derive(Debug)]
pub struct OpenedJournal {
    /// The writing side.
    pub journal: Journal,
    /// The reading side.
    pub follower: Follower,
}

/// How the journal is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// On disk.
    pub bytes: u64,
    /// `journal.max_bytes`.
    pub bytes_max: u64,
    /// Files.
    pub segments: usize,
    /// Entries that the follower has not given out.
    pub backlog_entries: u64,
    /// Entries from the first unstored one on.
    pub unstored_entries: u64,
    /// The sequence of the first unstored one; `None` if everything is stored.
    pub unstored_from: Option<u64>,
    /// Entries of an earlier run that were given out again, of [`JournalStats::replay_total`].
    pub replay_done: u64,
    /// Entries of an earlier run that are or were to be given out again.
    pub replay_total: u64,
    /// What the wall clock said when the oldest unstored entry was appended, milliseconds since 1970; across restarts.
    pub oldest_unstored_ms: Option<i64>,
    /// How long ago that was (ms), whatever became of the wall clock since. What was appended before this start counts
    /// from what the wall clock said at the start, and from the start at least.
    pub oldest_unstored_age_ms: Option<u64>,
    /// Why the journal is broken, if it is.
    pub broken: Option<String>,
}

/// For whoever wants to know how the journal is doing.
#[derive(Clone)]
pub struct JournalHandle(Arc<Shared>);

impl JournalHandle {
    /// The present state.
    pub fn stats(&self) -> JournalStats {
        self.0.stats()
    }

    /// The end of what senders have been acknowledged, as a sequence.
    pub fn acknowledged_to(&self) -> u64 {
        self.0.state().synced_to
    }

    /// The end of what was given out and handed over, as a sequence.
    pub fn handed_to(&self) -> u64 {
        self.0.handed_to.load(Ordering::Acquire)
    }
}

/// The writing side. Dropping it ends its threads and gives the directory free; whatever was synced is safe.
pub struct Journal {
    shared: Arc<Shared>,
    /// Until the threads are started.
    idle: Option<(Appender, SegmentManager)>,
    writer: Option<JoinHandle<()>>,
    segment_manager: Option<JoinHandle<()>>,
    stop: Arc<Notify>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in a directory, which is made where it is not there, and recovers what is in it. Blocks, as
    /// long as it takes to read what is not stored.
    ///
    /// `journal.segment_bytes` is lowered to a quarter of `journal.max_bytes` where it is more.
    ///
    /// # Errors
    /// The directory is in use, damaged, of another format or cannot be read or written; see [`JournalError`]. Nothing
    /// was changed unless it is [`JournalError::Io`].
    pub fn open(config: &config::Journal, deps: JournalDeps) -> Result<OpenedJournal, JournalError> {
        Journal::open_with_tail(config, deps, TAIL_BYTES)
    }

    /// As [`Journal::open`], with another limit to the entries kept in memory (default 32 MiB).
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_with_tail(
        config: &config::Journal,
        deps: JournalDeps,
        tail_bytes: usize,
    ) -> Result<OpenedJournal, JournalError> {
        let JournalDeps { fs, clock, admission_control, on_broken } = deps;
        let dir = config.dir.clone();
        fs.create_dir_all(&dir).map_err(io_error("create", &dir))?;
        let lock = fs.lock(&dir.join(LOCK_NAME)).map_err(io_error("lock", &dir.join(LOCK_NAME)))?;
        let lock = lock.ok_or_else(|| JournalError::Locked { dir: dir.clone() })?;
        let recovered = recovery::recover(&*fs, &dir)?;
        let checkpoint = match checkpoint::Writer::open(&*fs, &dir, recovered.checkpoint) {
            Ok(writer) => Some(writer),
            // On a full disk the journal still has to start, to drain.
            Err(error) => {
                tracing::warn!("no checkpoint in {}, the next start replays more: {error}", dir.display());
                None
            }
        };
        let max_bytes = config.max_bytes.max(SEGMENTS_MIN * SEGMENT_BYTES_MIN);
        let segment_bytes = config.segment_bytes.min(max_bytes / SEGMENTS_MIN).max(SEGMENT_BYTES_MIN);
        let parts = Parts { fs, dir, segment_bytes, max_bytes, tail_bytes, clock, admission_control, on_broken, lock };
        let shared = Shared::new(parts, &recovered);
        let entries = recovered.next_seq - recovered.replay_from;
        if entries > 0 {
            tracing::info!("{entries} journal entries may be unstored and are replayed");
        }
        let appender = Appender::new(shared.clone(), recovered.next_number, recovered.next_seq);
        let segment_manager = SegmentManager::new(shared.clone(), checkpoint);
        let follower = Follower::new(shared.clone(), recovered.replay_from, recovered.replay_place);
        let idle = Some((appender, segment_manager));
        let journal = Journal { shared, idle, writer: None, segment_manager: None, stop: Arc::default() };
        Ok(OpenedJournal { journal, follower })
    }

    /// Starts taking ingest batches, in two threads of its own. Once a journal.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(&mut self, ingest_batches: IngestReceiver) -> std::io::Result<()> {
        let Some((appender, segment_manager)) = self.idle.take() else { return Ok(()) };
        // The writer waits for ingest batches as a task would, but blocks in its writes: a runtime of its own.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let (guard, stop) = (EndGuard(self.shared.clone()), self.stop.clone());
        let write = move || {
            let _guard = guard;
            runtime.block_on(appender.run(ingest_batches, stop));
        };
        self.writer = Some(std::thread::Builder::new().name("journal-writer".into()).spawn(write)?);
        let guard = PanicGuard(self.shared.clone());
        let keep = move || {
            let _guard = guard;
            segment_manager.run();
        };
        self.segment_manager = Some(std::thread::Builder::new().name("journal-keeper".into()).spawn(keep)?);
        Ok(())
    }

    /// How the journal is doing, also after it is gone.
    pub fn handle(&self) -> JournalHandle {
        JournalHandle(self.shared.clone())
    }

    /// Takes what is queued, syncs it and stops taking ingest batches. The follower ends once it has given everything; segments
    /// are still removed as entries are stored. Close the gate first, so that senders learn why.
    pub async fn close(&mut self) {
        self.stop.notify_one();
        if let Some(writer) = self.writer.take() {
            // A panic in it was reported by its guard.
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
        // Not before: the follower would end without what the writer still had in the queue.
        self.shared.close();
    }

    /// The end: closes, writes the last checkpoint, gives the directory free. Entries whose acknowledgements are still
    /// out are replayed at the next start, and giving them up is no longer reported.
    pub async fn finish(mut self) {
        self.close().await;
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }

    /// Appends ingest batches without the threads, for simulations; after it each is acknowledged or dropped. False once the
    /// journal is broken or started.
    pub fn append_now(&mut self, ingest_batches: Vec<IngestBatch>) -> bool {
        self.idle.as_mut().is_some_and(|(appender, _)| {
            self.shared.stats().broken.is_none() && appender.append(ingest_batches).is_ok()
        })
    }

    /// Does what the segment manager does every second and whenever it is woken, without the threads, for simulations.
    pub fn tick_now(&mut self) {
        if let Some((_, segment_manager)) = &mut self.idle {
            segment_manager.tick(false);
        }
    }

    fn end(&mut self) {
        self.stop.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
        self.shared.close();
        {
            let mut state = self.shared.state();
            state.finished = true;
            self.shared.kick(&mut state);
        }
        if let Some(segment_manager) = self.segment_manager.take() {
            let _ = segment_manager.join();
        }
        if let Some((appender, segment_manager)) = &mut self.idle {
            appender.end();
            segment_manager.tick(true);
        }
        self.shared.state().lock = None;
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end();
    }
}

/// The writer's thread has ended: nothing more will come.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_for(&JournalFailure::Panicked);
        }
        self.0.close();
    }
}

/// A segment manager that is gone would be noticed only when the journal is full.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_for(&JournalFailure::Panicked);
        }
    }
}
