//! The writer: group commit. It takes the queued ingest batches, writes them with one write and one
//! fdatasync, and acknowledges them all.
//!
//! It runs in a separate thread because fdatasync blocks. All decisions are in
//! [`Appender::append`], which tests call without a thread, and in [`CommitDelay`], which decides
//! how long a small group waits for more. The wait is a sleep of this thread: a batch that is
//! queued meanwhile wakes no thread.
//!
//! Outcomes of a group:
//! - *synced*: a synced frame follows it (see `segment`), its entries become visible to the
//!   follower, and its senders are acknowledged.
//! - *rejected* (no space, or the write failed): its senders get an error, and admission closes.
//!   The rest of the segment may hold parts of the group, so it is never written again. The next
//!   group starts a new segment, whose first sequence defines the end of the old one.
//! - *sync failed*: it can never be known whether the group is durable. No sender is acknowledged,
//!   and the writer ends.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::error::JournalFailure;
use super::fs::{FsFile, write_all_at};
use super::keys::RequestKey;
use super::segment::{
    FRAME_HEAD_BYTES, FrameHead, FrameKind, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, begin_frame,
    encode_dead, end_frame, seal_frame, synced_copy_at, synced_frame,
};
use super::segment_files::SegmentInfo;
use super::segment_manager::NoSegment;
use super::shared::Shared;
use super::tracker::{Appended, EntryKind, Place, TrackedEntry};
use crate::admission::{IngestBatch, IngestReceiver};
use crate::commit_delay::{CommitDelay, OpenGroup};
use model::ack::Ack;
use model::{DeadLetter, JournalAccount, ReadingBatch};
use telemetry::log_limit::LineLimit;
use telemetry::metrics;

/// A group accepts ingest batches up to this size. At 3 ms per synced MiB, a larger fdatasync would
/// delay all senders by more than the batching saves.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// A group of this size does not wait for more: its sync takes longer than that of a small one.
const ENOUGH_BYTES: usize = 64 << 10;
/// Memory of an entry in addition to its readings.
const ITEM_BYTES: usize = 100;
/// Space reserved at the end of a segment for its last synced frame.
const SYNCED_BYTES: u64 = FRAME_HEAD_BYTES as u64;

struct Active {
    file: Arc<dyn FsFile>,
    info: SegmentInfo,
}

/// A frame of the current group.
struct StagedFrame {
    frame: Range<usize>,
    kind: EntryKind,
    bytes: usize,
    /// The key of its request, in a frame before it.
    key: Option<(Range<usize>, RequestKey)>,
}

/// The journal has failed, and the writer must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WriterStopped;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rotated {
    Done,
    /// No next segment is available.
    NoSegment,
}

/// The writer without its thread.
pub(super) struct Appender {
    shared: Arc<Shared>,
    active: Option<Active>,
    next_number: u64,
    next_seq: u64,
    /// The frames of the current group, as they will be written to the segment.
    buf: Vec<u8>,
    staged: Vec<StagedFrame>,
    acks: Vec<Ack>,
    /// Bytes of the group by sender.
    charges: Vec<(JournalAccount, u64)>,
    delay: CommitDelay,
    /// Senders decide how often they repeat a message that is too large.
    too_large_log: LineLimit,
}

impl Appender {
    /// `commit_delay`: `journal.commit_delay`.
    pub(super) fn new(
        shared: Arc<Shared>,
        next_number: u64,
        next_seq: u64,
        commit_delay: Duration,
    ) -> Appender {
        let buf = Vec::new();
        let staged = Vec::new();
        let acks = Vec::new();
        let charges = Vec::new();
        let delay = CommitDelay::of_syncs(commit_delay);
        let too_large_log = LineLimit::new("messages that are too large for the journal");
        Appender {
            shared,
            active: None,
            next_number,
            next_seq,
            buf,
            staged,
            acks,
            charges,
            delay,
            too_large_log,
        }
    }

    /// Appends ingest batches, as one group if they fit into one segment. On return each is
    /// acknowledged or dropped.
    pub(super) fn append(
        &mut self,
        ingest_batches: impl IntoIterator<Item = IngestBatch>,
    ) -> Result<(), WriterStopped> {
        self.append_before(ingest_batches, &|| 0)
    }

    /// The same. `queued`: the number of ingest batches that wait in the queue now.
    fn append_before(
        &mut self,
        ingest_batches: impl IntoIterator<Item = IngestBatch>,
        queued: &dyn Fn() -> usize,
    ) -> Result<(), WriterStopped> {
        self.shared.commit_began();
        let result = self.append_group(ingest_batches, queued);
        self.shared.commit_ended();
        result
    }

    fn append_group(
        &mut self,
        ingest_batches: impl IntoIterator<Item = IngestBatch>,
        queued: &dyn Fn() -> usize,
    ) -> Result<(), WriterStopped> {
        let mut full = false;
        for ingest_batch in ingest_batches {
            let start = self.buf.len();
            let staged = self.staged.len();
            let Some((ack, charges)) = self.stage(ingest_batch) else {
                continue;
            };
            if self.buf.len() as u64 > self.room() {
                // It does not fit after the previous ones. Writes those, and starts the next
                // segment with it.
                let own_buf = self.buf.split_off(start);
                let own_staged = self.staged.split_off(staged);
                self.commit(queued)?;
                if own_buf.len() as u64 > self.room() {
                    full = full || self.rotate(own_buf.len() as u64)? == Rotated::NoSegment;
                }
                if own_buf.len() as u64 > self.room() {
                    continue;
                }
                self.buf.extend_from_slice(&own_buf);
                self.staged
                    .extend(own_staged.into_iter().map(|s| s.moved(start)));
            }
            self.acks.push(ack);
            self.charges.extend(charges);
        }
        self.commit(queued)
    }

    /// Encodes the frames of an ingest batch after the others. `None` if there is nothing to write.
    fn stage(
        &mut self,
        mut ingest_batch: IngestBatch,
    ) -> Option<(Ack, Vec<(JournalAccount, u64)>)> {
        // Ingest refuses such messages; this protects the format.
        let bytes = ingest_batch.encoded_bytes();
        if bytes > PAYLOAD_BYTES_MAX {
            tracing::error!(
                bytes,
                "refusing a message that is too large for the journal"
            );
            return None;
        }
        let mut charges = std::mem::take(&mut ingest_batch.senders);
        let start = self.buf.len();
        let key = ingest_batch.key;
        let (batch, dead, ack) = ingest_batch.into_parts();
        match key {
            _ if batch.is_empty() && dead.is_empty() => {
                ack.delivered();
                return None;
            }
            None => {
                self.stage_readings(batch, None);
                self.stage_dead(dead, None);
            }
            Some(_) if batch.is_empty() => self.stage_dead(dead, key),
            // The entry with the key is the last one: if a crash cuts the write, a repeat is taken
            // for a first request unless the readings are there. Dead letters may be kept twice.
            Some(_) => {
                self.stage_dead(dead, None);
                self.stage_readings(batch, key);
            }
        }
        let sent = charges.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let written = self.buf.len() - start;
        charges
            .iter_mut()
            .for_each(|(_, bytes)| *bytes = (*bytes as f64 / sent as f64 * written as f64) as u64);
        Some((ack, charges))
    }

    fn stage_readings(&mut self, batch: ReadingBatch, key: Option<RequestKey>) {
        if batch.is_empty() {
            return;
        }
        let key = self.stage_key(key);
        let at = begin_frame(&mut self.buf);
        batch.encode(&mut self.buf);
        let frame = end_frame(&mut self.buf, at);
        let bytes = batch.memory_bytes() + ITEM_BYTES;
        let kind = EntryKind::Readings(Arc::new(batch));
        self.staged.push(StagedFrame {
            frame,
            kind,
            bytes,
            key,
        });
    }

    fn stage_dead(&mut self, dead: Vec<DeadLetter>, key: Option<RequestKey>) {
        if dead.is_empty() {
            return;
        }
        let key = self.stage_key(key);
        let at = begin_frame(&mut self.buf);
        encode_dead(&dead, &mut self.buf);
        let frame = end_frame(&mut self.buf, at);
        let bytes = frame.len() + ITEM_BYTES * dead.len();
        let kind = EntryKind::Dead(dead);
        self.staged.push(StagedFrame {
            frame,
            kind,
            bytes,
            key,
        });
    }

    fn stage_key(&mut self, key: Option<RequestKey>) -> Option<(Range<usize>, RequestKey)> {
        let key = key?;
        let at = begin_frame(&mut self.buf);
        key.encode(&mut self.buf);
        Some((end_frame(&mut self.buf, at), key))
    }

    fn room(&self) -> u64 {
        self.active.as_ref().map_or(0, |a| {
            (a.info.bytes - a.info.data_end).saturating_sub(SYNCED_BYTES)
        })
    }

    /// One write, one fdatasync, then the acknowledgements.
    fn commit(&mut self, queued: &dyn Fn() -> usize) -> Result<(), WriterStopped> {
        let staged = std::mem::take(&mut self.staged);
        let acks = std::mem::take(&mut self.acks);
        let charges = std::mem::take(&mut self.charges);
        let Some(active) = self.active.as_mut().filter(|_| !staged.is_empty()) else {
            self.buf.clear();
            return Ok(());
        };
        let start = active.info.data_end;
        let with_seq = (self.next_seq..).zip(&staged);
        let keys: Vec<_> = with_seq
            .filter_map(|(seq, staged)| Some((staged.key.as_ref()?.1, seq)))
            .collect();
        let items = seal_all(
            &mut self.buf,
            staged,
            active,
            self.next_seq,
            self.shared.now(),
        );
        let written = write_all_at(&*active.file, &self.buf, start);
        let end = start + self.buf.len() as u64;
        self.buf.clear();
        // Frees the memory of an unusually large group.
        self.buf.shrink_to(2 * GROUP_BYTES_MAX);
        if let Err(error) = written {
            self.give_up_segment(&error);
            return Ok(());
        }
        let began = Instant::now();
        let synced = active.file.sync_data();
        metrics::journal_sync_seconds(began.elapsed().as_secs_f64());
        if let Err(source) = synced {
            self.shared.break_for(&JournalFailure::Sync {
                path: active.info.path.clone(),
                source,
            });
            return Err(WriterStopped);
        }
        active.info.data_end = end;
        self.next_seq += items.len() as u64;
        active.write_synced_frame(self.next_seq, self.shared.now());
        // Before the entries are visible: once they are stored, their segment may be removed.
        for (key, seq) in keys {
            self.shared.keys.remember(key, seq);
        }
        self.shared.publish(items, end, end - start, &charges);
        self.delay.note_outstanding(acks.len() + queued());
        acks.into_iter().for_each(Ack::delivered);
        self.shared.data.notify_one();
        Ok(())
    }

    /// Starts the next segment.
    fn rotate(&mut self, frames_bytes: u64) -> Result<Rotated, WriterStopped> {
        let shared = self.shared.clone();
        let prepared = match shared.take_segment(frames_bytes + SYNCED_BYTES) {
            Ok(prepared) => prepared,
            Err(error @ NoSegment::TooLarge(_)) => {
                let now_ms = shared.clock.now().mono_ms;
                self.too_large_log
                    .line(now_ms, || tracing::warn!(%error, "refusing a message"));
                return Ok(Rotated::NoSegment);
            }
            // Logged where admission was closed.
            Err(NoSegment::Full(why)) => {
                tracing::debug!(error = %why, "no journal segment available");
                return Ok(Rotated::NoSegment);
            }
        };
        let header = Header {
            number: self.next_number,
            first_seq: self.next_seq,
            salt: shared.run.wrapping_add(self.next_number as u32),
            recycled: prepared.recycled,
            created_ms: shared.clock.now().wall_ms,
        };
        if let Err(error) = write_all_at(&*prepared.file, &header.encode(), 0) {
            shared.discard(Some(prepared));
            shared.write_refused(&error);
            return Ok(Rotated::NoSegment);
        }
        let broken = |path, source| {
            shared.break_for(&JournalFailure::Sync { path, source });
            WriterStopped
        };
        prepared
            .file
            .sync_data()
            .map_err(|source| broken(prepared.path.clone(), source))?;
        let path = shared
            .dir
            .join(super::segment_files::segment_name(header.number));
        if let Err(error) = shared.fs.rename(&prepared.path, &path) {
            shared.discard(Some(prepared));
            shared.write_refused(&error);
            return Ok(Rotated::NoSegment);
        }
        shared
            .fs
            .sync_dir(&shared.dir)
            .map_err(|source| broken(shared.dir.clone(), source))?;
        let info = SegmentInfo {
            number: header.number,
            path,
            coding: header.coding(),
            first_seq: header.first_seq,
            data_end: HEADER_BYTES,
            bytes: prepared.bytes,
            own: true,
        };
        let mut state = shared.state();
        state.segments.push_back(info.clone());
        state.active = true;
        self.active = Some(Active {
            file: prepared.file,
            info,
        });
        self.next_number += 1;
        Ok(Rotated::Done)
    }

    /// Called at the end: makes the last synced frame durable. The frame is only evidence, so a
    /// failure is ignored.
    pub(super) fn end(&mut self) {
        if let Some(active) = self.active.take() {
            let _ = active.file.sync_data();
        }
    }

    /// Ends the active segment after a failed write, because its further content is unknown.
    fn give_up_segment(&mut self, error: &std::io::Error) {
        let Some(active) = self.active.take() else {
            return;
        };
        // Only frees space: the first sequence of the next segment makes later bytes meaningless.
        let cut = active.file.set_len(active.info.data_end).is_ok();
        let mut state = self.shared.state();
        state.active = false;
        if let (true, Some(info)) = (cut, state.segments.back_mut()) {
            let freed = info.bytes - info.data_end;
            info.bytes = info.data_end;
            state.count_bytes(0, freed);
        }
        drop(state);
        self.shared.write_refused(error);
    }

    /// Runs until the channel is closed, or `stop` is notified and the queue is empty.
    pub(super) async fn run(mut self, mut ingest_batches: IngestReceiver, stop: Arc<Notify>) {
        let mut group = Vec::new();
        loop {
            tokio::select! {
                biased;
                first = ingest_batches.recv() => match first {
                    Some(first) => group.push(first),
                    None => return self.end(),
                },
                // Accepts no more ingest batches; the queued ones are still processed.
                () = stop.notified() => ingest_batches.close(),
            }
            if group.is_empty() {
                continue;
            }
            self.collect(&mut group, &mut ingest_batches);
            if self.append_before(group.drain(..), &|| ingest_batches.len()) == Err(WriterStopped) {
                return;
            }
        }
    }

    /// Adds queued batches to the group, and waits for more while that pays off. Blocks.
    fn collect(&self, group: &mut Vec<IngestBatch>, queue: &mut IngestReceiver) {
        let opened = Instant::now();
        let mut last = opened;
        let mut bytes = group.iter().map(IngestBatch::memory_bytes).sum::<usize>();
        let enough = match self.delay.is_whole() {
            true => GROUP_BYTES_MAX,
            false => ENOUGH_BYTES,
        };
        loop {
            let before = group.len();
            while bytes < GROUP_BYTES_MAX
                && let Ok(ingest_batch) = queue.try_recv()
            {
                bytes += ingest_batch.memory_bytes();
                group.push(ingest_batch);
            }
            let now = Instant::now();
            if group.len() > before {
                last = now;
            }
            let messages = group.len();
            let open_for = now - opened;
            let quiet_for = now - last;
            let group = OpenGroup {
                messages,
                outstanding: messages,
                open_for,
                quiet_for,
            };
            match self.delay.wait(group) {
                Some(wait) if bytes < enough => std::thread::sleep(wait),
                _ => return,
            }
        }
    }
}

impl Active {
    /// Writes a synced frame after the frames, and a copy in another sector. Does not sync them,
    /// because that would cost as much as the group. A failure is ignored: without the frame,
    /// damage to the last group cannot be distinguished from a torn write, and a second later the
    /// checkpoint has the same information.
    fn write_synced_frame(&self, next_seq: u64, at: Appended) {
        let place = self.info.data_end;
        let bytes = self.info.bytes;
        let Appended {
            wall_ms, mono_ms, ..
        } = at;
        let records = 0;
        let kind = FrameKind::Synced;
        let head = FrameHead {
            seq: next_seq,
            wall_ms,
            mono_ms,
            group_start: place,
            records,
            kind,
        };
        let frame = synced_frame(head, self.info.coding);
        for at in [place, synced_copy_at(place)] {
            if at + SYNCED_BYTES <= bytes
                && let Err(error) = write_all_at(&*self.file, &frame, at)
            {
                tracing::debug!(segment = %self.info.path.display(), %error, "cannot write the \
                    synced frame");
            }
        }
    }
}

impl StagedFrame {
    /// The same frame after `by` bytes before it were removed.
    fn moved(mut self, by: usize) -> StagedFrame {
        let moved = |range: &mut Range<usize>| *range = range.start - by..range.end - by;
        moved(&mut self.frame);
        self.key.iter_mut().for_each(|(frame, _)| moved(frame));
        self
    }
}

/// Fills in the heads of a group that will be written after the active segment's frames.
fn seal_all(
    buf: &mut [u8],
    staged: Vec<StagedFrame>,
    active: &Active,
    first_seq: u64,
    at: Appended,
) -> Vec<TrackedEntry> {
    let group_start = active.info.data_end;
    let seal = |(i, staged): (usize, StagedFrame)| {
        let StagedFrame {
            frame,
            kind,
            bytes,
            key,
        } = staged;
        let seq = first_seq + i as u64;
        let (records, frame_kind) = match &kind {
            EntryKind::Readings(batch) => (batch.len(), FrameKind::Readings),
            EntryKind::Dead(dead_letters) => (dead_letters.len(), FrameKind::Dead),
        };
        let records = records as u32;
        let Appended {
            wall_ms, mono_ms, ..
        } = at;
        let head = FrameHead {
            seq,
            wall_ms,
            mono_ms,
            group_start,
            records,
            kind: frame_kind,
        };
        if let Some((frame, _)) = key {
            let kind = FrameKind::Key;
            let head = FrameHead { kind, ..head };
            seal_frame(&mut buf[frame], head, active.info.coding);
        }
        let end = group_start + frame.end.next_multiple_of(8) as u64;
        seal_frame(&mut buf[frame], head, active.info.coding);
        TrackedEntry {
            seq,
            kind,
            at,
            bytes,
            place: Place {
                segment: active.info.number,
                offset: end,
            },
        }
    };
    staged.into_iter().enumerate().map(seal).collect()
}
