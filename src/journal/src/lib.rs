//! The journal holds every acknowledged reading durably until it is stored.
//!
//! **Constraints.** An acknowledgement requires an fdatasync, so many senders share one. The store
//! may be unreachable for hours: the journal is the buffer, up to `journal.max_bytes`, and memory
//! stays bounded for any backlog. The process and the machine may stop at any instant. No
//! acknowledged reading may be lost, and entries keep the order in which they were accepted.
//!
//! **Parts.** `segment` defines the format (pure). `reader` and `recovery` read it. `writer`
//! appends. `segment_manager` does the slow work: preparing segments, recycling stored ones,
//! writing the checkpoint. `tracker` records which entries are stored (pure). `follower` passes the
//! entries to the router, which can read dead letters again (`second_reader`); both use `read_back`.
//! `inspect` and `repair` have the operator's tools. [`fs`] is the file system.
//!
//! **Life of an entry.** The writer takes an [`IngestBatch`] from admission's channel together with
//! all others that wait there, up to 4 MiB. A small group waits up to `journal.commit_delay` for
//! more ([`crate::commit_delay`]). Its readings become one frame, its dead letters another. All
//! frames of the group are one write after the last group of the active segment, and one fdatasync.
//! Only then the entries become visible to the follower, and the senders are acknowledged. The
//! follower returns the entries in order, from memory, or from the segments if the router lags by
//! more than 32 MiB. Each [`JournalEntry`] carries an acknowledgement that a chunk of entries
//! shares (see `follower`). When it is delivered, the tracker advances the sequence before which
//! everything is stored. A segment that is entirely before it is recycled or removed. The keys of
//! requests live longer (`keys`).
//!
//! **Crash.** The next start verifies all segments from the checkpoint on and cuts off a torn last
//! write (`recovery` explains how it distinguishes one from damage). The follower starts with the
//! first entry that may be unstored: about a second of stored entries and all unstored ones are
//! replayed, with `replayed` set. Recovered entries are made durable before anything is appended.
//! Appending always starts a new segment.
//!
//! **Full.** A segment's space is reserved before it is used. A full disk therefore shows when the
//! next segment is prepared, not during an acknowledged write. If no segment is available
//! (`journal.max_bytes`, no space), or a write fails, the group is rejected and admission closes
//! ([`AdmissionControl::full`]; [`JournalFull`] is the reason). The segment manager opens it when it
//! has a segment again and can write to it: after a removal, or in one of its attempts every second.
//! The backlog is not affected. A group that could never fit would be sent again for ever; so ingest
//! permanently refuses a message whose readings exceed [`readings_bytes_max`].
//!
//! **Retry.** A short write is continued. A failed write rejects its group and ends its segment. A
//! failed fdatasync of a segment or of the directory is final ([`JournalFailure::Sync`]): admission
//! closes permanently, no sender of the group is acknowledged, and the follower still returns
//! everything that was synced before.
//!
//! **Invariants.**
//! - Every entry that is acknowledged or visible to the follower is synced. At most one group is
//!   not synced.
//! - The header of a file named `*.seg` is synced. Sequences continue without a gap from segment to
//!   segment.
//! - Segments are removed from the front only. Each removal is durable before the next one, and
//!   before the file is written again. A synced checkpoint precedes it (`checkpoint`).
//! - The tail in memory ends at the end of the journal; older entries are in segments.
//! - No lock is held during IO except the pool's and the checkpoint's, which the writer takes only
//!   when it needs a segment.

pub mod admission;
mod checkpoint;
pub mod commit_delay;
mod error;
mod follower;
pub mod fs;
mod inspect;
mod keys;
mod read_back;
mod reader;
mod recovery;
mod repair;
mod second_reader;
mod segment;
mod segment_files;
mod segment_manager;
mod sender_shares;
mod shared;
mod tracker;
mod writer;

pub use error::{Damage, JournalError, JournalFailure, JournalFull};
pub use follower::{Follower, JournalEntry};
pub use inspect::{Report, SegmentReport, check, inspect};
pub use keys::{KeyInFlight, KeyRefused, KeyUse, RequestKey, RequestKeys};
pub use read_back::Position;
pub use repair::{Salvaged, salvage};
pub use second_reader::SecondReader;
pub use segment::{FrameFault, HeaderFault};
pub use shared::JournalStats;
pub(crate) use shared::OnBroken;
pub use tracker::EntryKind;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use tokio::sync::Notify;

use crate::admission::{AdmissionControl, IngestBatch, IngestReceiver};
use model::Clock;
use model::batch::BYTES_MAX;

use error::io_error;
use fs::Fs;
use segment_manager::SegmentManager;
use shared::{Parts, Shared};
use writer::Appender;

/// The lock on this file marks the directory as in use.
const LOCK_NAME: &str = "lock";
/// Bytes of entries kept in memory for the follower.
const TAIL_BYTES: usize = 32 << 20;
/// The journal has space for at least this many segments, so that a full journal can still make
/// progress.
const SEGMENTS_MIN: u64 = 4;
/// The largest dead letters of one ingest batch: those that make it full (256 KiB), and one more
/// (1 MiB), with their topics.
const DEAD_BYTES_MAX: u64 = 3 << 19;
/// Space for a header and some frames.
const SEGMENT_BYTES_MIN: u64 = 2 * segment::HEADER_BYTES;

/// Maximum size of the readings of one ingest batch, encoded, so that a journal with these settings
/// has room for it as soon as all others are stored.
///
/// It becomes one frame, which is never split, so it needs a segment. The active segment, which may
/// be as large, cannot be freed. So all frames of an ingest batch have half of `journal.max_bytes`.
/// A small journal (below 12 MiB) has no room for the largest dead letters beside that.
pub fn readings_bytes_max(config: &config::Journal) -> usize {
    let heads = 5 * segment::FRAME_HEAD_BYTES + RequestKey::BYTES;
    let overhead = segment::HEADER_BYTES + heads as u64;
    let beside_dead = (config.max_bytes / 2).saturating_sub(DEAD_BYTES_MAX + overhead);
    let bytes = beside_dead.max(config.max_bytes / 8 * 3);
    usize::try_from(bytes).map_or(BYTES_MAX, |bytes| bytes.min(BYTES_MAX))
}

/// The environment of the journal.
pub struct JournalDeps {
    /// Where the files are.
    pub fs: Arc<dyn Fs>,
    /// Times appends and checkpoints.
    pub clock: Arc<dyn Clock>,
    /// Closed while the journal is full or has failed.
    pub admission_control: AdmissionControl,
    /// Called once, when the journal fails.
    pub on_broken: OnBroken,
    /// The keys of requests, which the journal makes durable.
    pub keys: RequestKeys,
}

/// Result of [`Journal::open`].
#[derive(Debug)]
pub struct OpenedJournal {
    /// The writing side.
    pub journal: Journal,
    /// The reading side.
    pub follower: Follower,
}

/// A handle to query the state of the journal.
#[derive(Clone)]
pub struct JournalHandle(Arc<Shared>);

impl JournalHandle {
    /// A snapshot of the state.
    pub fn stats(&self) -> JournalStats {
        self.0.stats()
    }

    /// The sequence after the last acknowledged entry.
    pub fn acknowledged_to(&self) -> u64 {
        self.0.state().synced_to
    }

    /// The sequence after the last entry that the consumer of the follower has finished handing
    /// over.
    pub fn handed_to(&self) -> u64 {
        self.0.handed_to.load(Ordering::Acquire)
    }
}

/// The writing side. Dropping it ends its threads and releases the lock on the directory. Synced
/// entries are safe.
pub struct Journal {
    shared: Arc<Shared>,
    /// `None` once the threads are started.
    idle: Option<(Appender, SegmentManager)>,
    writer: Option<JoinHandle<()>>,
    segment_manager: Option<JoinHandle<()>>,
    stop: Arc<Notify>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("dir", &self.shared.dir)
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in a directory, which is created if it does not exist, and recovers its
    /// entries. Blocks while it reads the unstored entries.
    ///
    /// `journal.segment_bytes` is lowered to a quarter of `journal.max_bytes` if it is larger.
    ///
    /// # Errors
    /// The directory is in use, damaged, of another format, or cannot be read or written; see
    /// [`JournalError`]. Only [`JournalError::Io`] can leave changes.
    pub fn open(
        config: &config::Journal,
        deps: JournalDeps,
    ) -> Result<OpenedJournal, JournalError> {
        Journal::open_with_tail(config, deps, TAIL_BYTES)
    }

    /// Like [`Journal::open`], with another limit for the entries kept in memory (default 32 MiB).
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_with_tail(
        config: &config::Journal,
        deps: JournalDeps,
        tail_bytes: usize,
    ) -> Result<OpenedJournal, JournalError> {
        let JournalDeps {
            fs,
            clock,
            admission_control,
            on_broken,
            keys,
        } = deps;
        let dir = config.dir.clone();
        fs.create_dir_all(&dir).map_err(io_error("create", &dir))?;
        let lock = fs
            .lock(&dir.join(LOCK_NAME))
            .map_err(io_error("lock", &dir.join(LOCK_NAME)))?;
        let lock = lock.ok_or_else(|| JournalError::Locked { dir: dir.clone() })?;
        let (recovered, checkpoint) = recovery::recover(&*fs, &dir, &keys)?;
        let max_bytes = config.max_bytes.max(SEGMENTS_MIN * SEGMENT_BYTES_MIN);
        let segment_bytes = config
            .segment_bytes
            .min(max_bytes / SEGMENTS_MIN)
            .max(SEGMENT_BYTES_MIN);
        let parts = Parts {
            fs,
            dir,
            segment_bytes,
            max_bytes,
            tail_bytes,
            clock,
            admission_control,
            on_broken,
            keys,
            lock,
            checkpoint,
        };
        let shared = Shared::new(parts, &recovered);
        let entries = recovered.next_seq - recovered.replay_from;
        if entries > 0 {
            tracing::info!(entries, "replaying journal entries that may be unstored");
        }
        let appender = Appender::new(
            shared.clone(),
            recovered.next_number,
            recovered.next_seq,
            config.commit_delay,
        );
        let segment_manager = SegmentManager::new(shared.clone());
        let follower = Follower::new(
            shared.clone(),
            recovered.replay_from,
            recovered.replay_place,
        );
        let idle = Some((appender, segment_manager));
        let journal = Journal {
            shared,
            idle,
            writer: None,
            segment_manager: None,
            stop: Arc::default(),
        };
        Ok(OpenedJournal { journal, follower })
    }

    /// Spawns the writer and segment-manager threads. Call once; later calls do nothing.
    ///
    /// # Errors
    /// A thread or its runtime cannot be created.
    pub fn start(&mut self, ingest_batches: IngestReceiver) -> std::io::Result<()> {
        let Some((appender, segment_manager)) = self.idle.take() else {
            return Ok(());
        };
        // The writer awaits ingest batches but blocks in its writes, so it has a separate runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let guard = EndGuard(self.shared.clone());
        let stop = self.stop.clone();
        let write = move || {
            let _guard = guard;
            runtime.block_on(appender.run(ingest_batches, stop));
        };
        self.writer = Some(
            std::thread::Builder::new()
                .name("journal-writer".into())
                .spawn(write)?,
        );
        let guard = PanicGuard(self.shared.clone());
        let keep = move || {
            let _guard = guard;
            segment_manager.run();
        };
        self.segment_manager = Some(
            std::thread::Builder::new()
                .name("journal-keeper".into())
                .spawn(keep)?,
        );
        Ok(())
    }

    /// The handle stays valid after the journal is dropped.
    pub fn handle(&self) -> JournalHandle {
        JournalHandle(self.shared.clone())
    }

    /// Appends and syncs the queued ingest batches, then stops the writer. The follower ends once
    /// it has returned all entries. Segments are still removed as entries are stored. Close
    /// admission first, so that senders get the reason.
    pub async fn close(&mut self) {
        self.stop.notify_one();
        if let Some(writer) = self.writer.take() {
            // Its guard has reported a panic.
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
        // Not earlier: the follower would end before the writer's queued entries.
        self.shared.close();
    }

    /// Closes, writes the last checkpoint, and releases the directory. Entries with an outstanding
    /// acknowledgement are replayed at the next start. Dropping these acknowledgements is no longer
    /// reported.
    pub async fn finish(mut self) {
        self.close().await;
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }

    /// Appends ingest batches without the threads, for simulations. Each is acknowledged or dropped
    /// on return. Returns false if the journal has failed or is started.
    pub fn append_now(&mut self, ingest_batches: Vec<IngestBatch>) -> bool {
        self.idle.as_mut().is_some_and(|(appender, _)| {
            self.shared.stats().broken.is_none() && appender.append(ingest_batches).is_ok()
        })
    }

    /// Runs the periodic work of the segment manager without its thread, for simulations.
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
            self.shared.wake(&mut state);
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

/// Closes the journal when the writer thread ends.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_for(&JournalFailure::Panicked);
        }
        self.0.close();
    }
}

/// Reports a panic of the segment manager, which would otherwise show only when the journal is
/// full.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_for(&JournalFailure::Panicked);
        }
    }
}
