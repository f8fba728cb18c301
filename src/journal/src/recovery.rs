//! Recovery at startup: verifies every segment, cuts off a torn tail, and refuses to start on any
//! other fault.
//!
//! *End of a segment.* A closed segment holds exactly the sequences from its header's first
//! sequence up to the next header's. Later bytes are the rest of a rejected write and are ignored.
//! So only the end of the last segment must be found.
//!
//! *Torn tail or damage.* Only the last group (one write) can be unsynced, and a crash may keep any
//! of its pages. Valid frames after a hole therefore prove nothing by themselves. But each frame
//! carries the offset at which its group started, and a group starts only after everything before
//! it is synced. After a group is synced, a synced frame that follows it records this. So at the
//! first place without a valid frame:
//! - If a later valid frame, of a later group or a synced frame, has a group start after this
//!   place, the place had been synced: it is **damage**.
//! - If the checkpoint has a synced end beyond the sequences before this place, it is **damage**.
//! - Otherwise nothing proves that the place was synced. It counts as an unacknowledged write that
//!   a crash interrupted, and is cut off with a warning ([`TornTail`]). The valid frames before the
//!   place are kept. It does no harm that they were not acknowledged: a retry of the sender is a
//!   duplicate.
//!
//! In a recycled file, frames of earlier segments follow its own. They have another salt and lower
//! sequences, so they count neither as frames of this segment nor as proof of damage.
//!
//! One kind of damage remains undetected: damage to the very last group, if the machine (not only
//! the process) stopped before the kernel wrote the synced frame and less than a second (the
//! interval of the checkpoint) after the group. The disk then looks the same as after a torn write.
//! If only the process ended, cleanly or not, the synced frame exists.
//!
//! *Missing segments.* Numbers are consecutive, so a missing segment between others shows. Before
//! the first one, sequences from the checkpoint's `unstored_from` on are missing (`checkpoint`).
//!
//! *Durable before appending.* Recovered frames may exist only in the page cache, left by a process
//! that was killed or whose fdatasync failed. Recovery writes the last group again and syncs it,
//! because the first sequence of the next segment states that the group is complete.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use super::checkpoint::{self, BeforeRemoval, Checkpoint, CheckpointFile};
use super::error::{Damage, JournalError, io_error};
use super::fs::{Fs, read_full_at, write_all_at};
use super::keys::{RequestKey, RequestKeys};
use super::reader::{FrameReader, Step, find_frame};
use super::segment::{
    FRAME_HEAD_BYTES, FrameFault, FrameHead, FrameKind, HEADER_BYTES, Header, HeaderFault, Payload,
    RawHead, frame_span, synced_frame,
};
use super::segment_files::{FoundSegment, SegmentInfo, UNFINISHED, list, segment_name};
use super::tracker::{Appended, Place};

/// Expectations about a segment before its frames are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expect<'a> {
    /// The first sequence of the next segment; `None` for the last segment.
    pub(super) end: Option<u64>,
    /// Whether to decode payloads.
    pub(super) deep: bool,
    /// Search for the first frame that ends after this sequence.
    pub(super) find: u64,
    /// Learn the keys of the entries.
    pub(super) keys: Option<&'a RequestKeys>,
}

/// The end of the last segment that is not proven to be synced, and that a start cuts off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// Start of the tail in the file.
    pub offset: u64,
    /// Length of the tail, as far as it is visible.
    pub bytes: u64,
    /// The sequences in it, the end exclusive; there may be more.
    pub sequences: (u64, u64),
    /// Complete frames of the same write after the first incomplete place.
    pub frames: u64,
}

impl std::fmt::Display for TornTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TornTail {
            offset,
            bytes,
            sequences: (first, end),
            frames,
        } = self;
        write!(
            f,
            "{bytes} bytes from offset {offset} on, sequences {first}..{end}, including {frames} \
             complete frames"
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentEnd {
    Whole,
    /// A write that a crash interrupted.
    Torn(TornTail),
    Damaged(FrameFault),
}

#[derive(Debug)]
pub(super) struct Examined {
    pub(super) frames: u64,
    pub(super) readings: u64,
    /// Those in frames that end after [`Expect::find`].
    pub(super) readings_found: u64,
    pub(super) dead_letters: u64,
    /// Offset and sequence (exclusive) at which the valid frames end.
    pub(super) data_end: u64,
    pub(super) next_seq: u64,
    /// Start of the last write.
    pub(super) last_group: u64,
    /// Append times of the first and the last frame.
    pub(super) wall_ms: Option<(i64, i64)>,
    /// Offset and append time of the searched frame.
    pub(super) found: Option<(u64, Appended)>,
    pub(super) ending: SegmentEnd,
    /// A synced frame follows the frames.
    pub(super) sealed: bool,
    /// The key of the next entry.
    key: Option<RequestKey>,
}

/// Reads the frames of a segment up to its end or the first place without a valid one.
pub(super) fn examine(
    found: &FoundSegment,
    header: &Header,
    expect: Expect<'_>,
) -> io::Result<Examined> {
    let mut reader = FrameReader::new(
        found.file.clone(),
        header.coding(),
        HEADER_BYTES,
        found.bytes,
    );
    let mut seen = Examined {
        frames: 0,
        readings: 0,
        readings_found: 0,
        dead_letters: 0,
        data_end: HEADER_BYTES,
        next_seq: header.first_seq,
        last_group: HEADER_BYTES,
        wall_ms: None,
        found: None,
        ending: SegmentEnd::Whole,
        sealed: false,
        key: None,
    };
    loop {
        if expect.end == Some(seen.next_seq) {
            return Ok(seen);
        }
        let fault = match reader.next()? {
            Step::Frame(at, frame) => match seen.check(&frame, expect) {
                Ok(()) => {
                    seen.count(at, &frame, expect.find, header);
                    seen.learn_key(&frame, expect.keys);
                    seen.data_end = at + frame.span();
                    continue;
                }
                Err(fault) => fault,
            },
            Step::Fault(fault) => fault,
        };
        // A crash cannot have produced a valid frame that does not belong here.
        let may_be_torn = matches!(
            fault,
            FrameFault::Ends | FrameFault::Length(_) | FrameFault::Crc
        );
        seen.ending = SegmentEnd::Damaged(fault);
        if expect.end.is_none() && may_be_torn && !seen.was_synced(&reader, header)? {
            let cut = seen.cut(&reader, found, header)?;
            seen.ending = cut.map_or(SegmentEnd::Whole, SegmentEnd::Torn);
        }
        return Ok(seen);
    }
}

impl Examined {
    fn check(
        &self,
        frame: &super::segment::Frame<'_>,
        expect: Expect<'_>,
    ) -> Result<(), FrameFault> {
        if frame.head.kind == FrameKind::Synced {
            return Err(FrameFault::Ends);
        }
        let expected = self.next_seq;
        let found = frame.head.seq;
        if found != expected || expect.end.is_some_and(|end| frame.next_seq() > end) {
            return Err(FrameFault::Sequence { expected, found });
        }
        if expect.deep {
            Payload::decode(frame)?;
        }
        Ok(())
    }

    /// Whether a later valid frame proves that the place after the valid frames was synced.
    fn was_synced(&self, reader: &FrameReader, header: &Header) -> io::Result<bool> {
        let place = self.data_end;
        // Only a salvaged segment has gaps, and it never contains bytes of an earlier segment.
        let near = |at: u64, seq: u64| {
            !header.recycled || (seq - self.next_seq) * FRAME_HEAD_BYTES as u64 <= at - place
        };
        let wanted = |at: u64, head: &RawHead| head.group_start > place && near(at, head.seq);
        Ok(find_frame(reader, place, self.next_seq, wanted)?
            .frame_at
            .is_some())
    }

    /// The unfinished write after the valid frames. Call only if nothing of it was synced. Also
    /// sets `sealed`.
    fn cut(
        &mut self,
        reader: &FrameReader,
        found: &FoundSegment,
        header: &Header,
    ) -> io::Result<Option<TornTail>> {
        let place = self.data_end;
        let next_seq = self.next_seq;
        let synced = |_: u64, head: &RawHead| {
            head.is_synced() && head.group_start == place && head.seq == next_seq
        };
        let beyond = find_frame(reader, place, next_seq, synced)?;
        self.sealed = beyond.frame_at == Some(place);
        let mut cut = TornTail {
            offset: place,
            bytes: 0,
            sequences: (next_seq, next_seq + 1),
            frames: 0,
        };
        let mut end = place;
        while let Some(at) =
            find_frame(reader, end, next_seq, |_, head| !head.is_synced())?.frame_at
        {
            let mut frames = reader.again(at);
            while let Step::Frame(_, frame) = frames.next()? {
                if frame.head.kind != FrameKind::Synced {
                    (cut.frames, cut.sequences.1) =
                        (cut.frames + 1, cut.sequences.1.max(frame.next_seq()));
                }
            }
            end = frames.offset();
        }
        let begun = self.begun(found, header)?;
        if header.recycled {
            end = end.max(begun.unwrap_or(0));
        } else if begun.is_some() || beyond.frame_at.is_none() {
            end = end.max(beyond.written_to);
        }
        cut.bytes = end - place;
        Ok((cut.bytes > 0).then_some(cut))
    }

    /// The end of the next frame, if its head exists. For a recycled file nothing more is known:
    /// later bytes may belong to an earlier segment, and a torn write that lost its first page is
    /// invisible.
    fn begun(&self, found: &FoundSegment, header: &Header) -> io::Result<Option<u64>> {
        let mut bytes = [0; FRAME_HEAD_BYTES];
        let n = read_full_at(&*found.file, &mut bytes, self.data_end)?;
        let fits = |head: &RawHead| {
            let place = (self.last_group..=self.data_end).contains(&head.group_start);
            !head.is_synced() && (!header.recycled || (head.seq == self.next_seq && place))
        };
        let head = RawHead::parse(&bytes[..n]).filter(fits);
        Ok(head
            .map(|head| (self.data_end + frame_span(head.payload_bytes as usize)).min(found.bytes)))
    }

    fn count(&mut self, at: u64, frame: &super::segment::Frame<'_>, find: u64, header: &Header) {
        let head = &frame.head;
        self.frames += u64::from(head.kind != FrameKind::Key);
        match head.kind {
            FrameKind::Readings => {
                self.readings += u64::from(head.records);
                self.readings_found += if frame.next_seq() > find {
                    u64::from(head.records)
                } else {
                    0
                };
            }
            FrameKind::Dead => self.dead_letters += u64::from(head.records),
            FrameKind::Gap | FrameKind::Synced | FrameKind::Key => {}
        }
        self.next_seq = frame.next_seq();
        self.last_group = head.group_start;
        self.wall_ms = Some((
            self.wall_ms.map_or(head.wall_ms, |(first, _)| first),
            head.wall_ms,
        ));
        if self.found.is_none() && self.next_seq > find {
            self.found = Some((at, header.coding().appended(head)));
        }
    }

    /// A key counts if its entry follows: only the complete write was acknowledged.
    fn learn_key(&mut self, frame: &super::segment::Frame<'_>, keys: Option<&RequestKeys>) {
        let key = self.key.take();
        match frame.head.kind {
            FrameKind::Key => self.key = RequestKey::decode(frame.payload),
            FrameKind::Readings | FrameKind::Dead => {
                if let (Some(key), Some(keys)) = (key, keys) {
                    keys.remember(key, frame.head.seq);
                }
            }
            FrameKind::Gap | FrameKind::Synced => {}
        }
    }
}

/// The state from which the journal continues.
pub(super) struct Recovered {
    pub(super) segments: VecDeque<SegmentInfo>,
    pub(super) next_number: u64,
    pub(super) next_seq: u64,
    /// The first sequence that may be unstored, the position of its frame, and its append time.
    pub(super) replay_from: u64,
    pub(super) replay_place: Place,
    pub(super) replay_at: Appended,
}

/// Verifies the directory and prepares it for appending. Changes nothing if it returns damage or
/// another format.
pub(super) fn recover(
    fs: &dyn Fs,
    dir: &Path,
    keys: &RequestKeys,
) -> Result<(Recovered, CheckpointFile), JournalError> {
    let checkpoint =
        checkpoint::read_newest(fs, dir).map_err(io_error("read the checkpoint in", dir))?;
    let known = checkpoint.unwrap_or_default();
    let found = list(fs, dir)?;
    let headers = verified_headers(dir, &found)?;
    require_first(dir, headers.first(), &known)?;
    let ends: Vec<Option<u64>> = headers
        .iter()
        .skip(1)
        .map(|h| Some(h.first_seq))
        .chain([None])
        .collect();
    // Stored segments are removed without reading them.
    let stored = ends
        .iter()
        .take_while(|end| end.is_some_and(|end| end <= known.unstored_from))
        .count();
    let mut recovered = Recovered {
        segments: VecDeque::new(),
        next_number: headers.last().map_or(1, |h| h.number + 1),
        next_seq: known.synced_to.max(1),
        replay_from: known.unstored_from,
        replay_place: Place {
            segment: 0,
            offset: HEADER_BYTES,
        },
        replay_at: Appended {
            run: 0,
            mono_ms: 0,
            wall_ms: 0,
        },
    };
    let mut last = None;
    let mut first_place = None;
    keys.load(fs, dir)?;
    if keys.is_on() {
        learn_stored_keys(&found[..stored], &headers, &ends, keys);
    }
    for ((found, header), end) in found.iter().zip(&headers).zip(&ends).skip(stored) {
        let expect = Expect {
            end: *end,
            deep: false,
            find: known.unstored_from,
            keys: Some(keys),
        };
        let seen = examine_undamaged(found, header, expect)?;
        if let (None, Some((offset, at))) = (first_place, seen.found) {
            first_place = Some((
                Place {
                    segment: header.number,
                    offset,
                },
                at,
            ));
        }
        recovered.segments.push_back(SegmentInfo {
            number: header.number,
            path: found.path.clone(),
            coding: header.coding(),
            first_seq: header.first_seq,
            data_end: seen.data_end,
            bytes: found.bytes,
            own: false,
        });
        recovered.next_seq = seen.next_seq;
        last = Some(seen);
    }
    require_synced_end(&recovered, known.synced_to)?;
    if let Some(last) = last {
        finish_last(fs, &mut recovered, &last)?;
    }
    remove_unfinished(fs, dir)?;
    keys.remove_unused(fs, dir)?;
    keys.save(fs, dir, known.unstored_from);
    let mut checkpoint_file = CheckpointFile::open(fs, dir, checkpoint);
    remove_stored(fs, dir, &found[..stored], &known, &mut checkpoint_file)?;
    set_replay(&mut recovered, known.unstored_from, first_place);
    Ok((recovered, checkpoint_file))
}

/// Learns the keys of segments whose entries are stored. Damage there costs only keys.
fn learn_stored_keys(
    stored: &[FoundSegment],
    headers: &[Header],
    ends: &[Option<u64>],
    keys: &RequestKeys,
) {
    for ((found, header), end) in stored.iter().zip(headers).zip(ends) {
        let expect = Expect {
            end: *end,
            deep: false,
            find: u64::MAX,
            keys: Some(keys),
        };
        let seen = examine(found, header, expect);
        if !seen.is_ok_and(|seen| seen.ending == SegmentEnd::Whole) {
            tracing::warn!(segment = %found.path.display(), "a stored journal segment cannot be \
                read to its end; repeats of requests with idempotency keys in it are not recognised");
        }
    }
}

/// Requires that all headers are valid, of a supported format, and numbered without a gap.
fn verified_headers(dir: &Path, found: &[FoundSegment]) -> Result<Vec<Header>, JournalError> {
    let mut headers: Vec<Header> = Vec::new();
    for segment in found {
        let path = segment.path.clone();
        let header = match &segment.header {
            Ok(header) if header.number == segment.number => *header,
            Ok(header) => {
                return Err(JournalError::Damaged(Damage::Number {
                    path,
                    number: header.number,
                }));
            }
            Err(HeaderFault::Version(v)) => {
                return Err(JournalError::Format {
                    path,
                    fault: HeaderFault::Version(*v),
                });
            }
            Err(fault) => {
                return Err(JournalError::Damaged(Damage::Header {
                    path,
                    fault: fault.clone(),
                }));
            }
        };
        if let Some(before) = headers.last()
            && before.number + 1 != header.number
        {
            return Err(JournalError::Damaged(Damage::Missing {
                path: dir.join(segment_name(before.number + 1)),
                count: header.number - before.number - 1,
            }));
        }
        headers.push(header);
    }
    Ok(headers)
}

/// Requires that no segment is missing before the first one.
fn require_first(
    dir: &Path,
    first: Option<&Header>,
    known: &Checkpoint,
) -> Result<(), JournalError> {
    match known.missing_before(first.map(|header| header.first_seq)) {
        Some((first, end)) => Err(JournalError::Damaged(Damage::FirstMissing {
            dir: dir.to_owned(),
            first,
            end,
        })),
        None => Ok(()),
    }
}

/// Like [`examine`], but refuses damage.
fn examine_undamaged(
    found: &FoundSegment,
    header: &Header,
    expect: Expect<'_>,
) -> Result<Examined, JournalError> {
    let seen = examine(found, header, expect).map_err(io_error("read", &found.path))?;
    match seen.ending {
        SegmentEnd::Damaged(fault) => Err(JournalError::Damaged(Damage::Frame {
            path: found.path.clone(),
            offset: seen.data_end,
            seq: seen.next_seq,
            fault,
        })),
        SegmentEnd::Whole | SegmentEnd::Torn(_) => Ok(seen),
    }
}

/// Requires that the last segment has all sequences before `synced_to`, the synced end in the
/// checkpoint.
fn require_synced_end(recovered: &Recovered, synced_to: u64) -> Result<(), JournalError> {
    match recovered.segments.back() {
        Some(segment) if synced_to > recovered.next_seq => {
            Err(JournalError::Damaged(Damage::EndsEarly {
                path: segment.path.clone(),
                offset: segment.data_end,
                end: recovered.next_seq,
                synced: synced_to,
            }))
        }
        _ => Ok(()),
    }
}

/// Truncates the last segment after its frames and makes them durable. Removes it if it has no
/// frames.
fn finish_last(
    fs: &dyn Fs,
    recovered: &mut Recovered,
    seen: &Examined,
) -> Result<(), JournalError> {
    let Some(segment) = recovered.segments.back_mut() else {
        return Ok(());
    };
    let path = segment.path.clone();
    if let SegmentEnd::Torn(cut) = seen.ending {
        tracing::warn!(
            segment = %path.display(),
            %cut,
            "cutting off the torn tail of the journal: an unacknowledged write that a crash \
             interrupted"
        );
    }
    if seen.frames == 0 {
        // The next segment reuses its number, and replaces it by an atomic rename.
        fs.remove(&path).map_err(io_error("remove", &path))?;
        recovered.next_number = segment.number;
        recovered.segments.pop_back();
        return Ok(());
    }
    let place = seen.data_end;
    let kind = FrameKind::Synced;
    let head = FrameHead {
        seq: seen.next_seq,
        wall_ms: 0,
        mono_ms: 0,
        group_start: place,
        records: 0,
        kind,
    };
    let sealed_end = place + FRAME_HEAD_BYTES as u64;
    let rewrite = || {
        let file = fs.open(&path, true)?;
        file.set_len(if seen.sealed {
            sealed_end
        } else {
            seen.data_end
        })?;
        let mut buf = vec![0; 1 << 20];
        let mut at = seen.last_group;
        while at < seen.data_end {
            let n = buf.len().min((seen.data_end - at) as usize);
            let n = read_full_at(&*file, &mut buf[..n], at)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            write_all_at(&*file, &buf[..n], at)?;
            at += n as u64;
        }
        file.sync_data()?;
        // Not earlier: it states that the rest is durable.
        write_all_at(&*file, &synced_frame(head, segment.coding), seen.data_end)?;
        file.sync_data()?;
        file.size()
    };
    segment.bytes = rewrite().map_err(io_error("make durable", &path))?;
    Ok(())
}

/// Removes files that did not become segments.
fn remove_unfinished(fs: &dyn Fs, dir: &Path) -> Result<(), JournalError> {
    let names = fs.list(dir).map_err(io_error("list", dir))?;
    for path in names
        .iter()
        .filter(|name| name.ends_with(UNFINISHED))
        .map(|name| dir.join(name))
    {
        fs.remove(&path).map_err(io_error("remove", &path))?;
    }
    fs.sync_dir(dir).map_err(io_error("sync", dir))
}

/// Removes stored segments, oldest first, so that a crash leaves no gap. First writes the
/// checkpoint again, because it may only be in the page cache.
fn remove_stored(
    fs: &dyn Fs,
    dir: &Path,
    stored: &[FoundSegment],
    known: &Checkpoint,
    checkpoint: &mut CheckpointFile,
) -> Result<(), JournalError> {
    if stored.is_empty() {
        return Ok(());
    }
    let sequences = (known.unstored_from, known.synced_to);
    let left = checkpoint
        .before_removal(fs, dir, known.unstored_from, sequences)
        .map_err(io_error("remove the checkpoint in", dir))?;
    if left == BeforeRemoval::SyncDirectory {
        fs.sync_dir(dir).map_err(io_error("sync", dir))?;
    }
    for segment in stored {
        fs.remove(&segment.path)
            .map_err(io_error("remove", &segment.path))?;
        fs.sync_dir(dir).map_err(io_error("sync", dir))?;
    }
    Ok(())
}

/// Sets where the replay starts. `first_place`: the frame with the first sequence that may be
/// unstored, and its append time; without one, there is nothing to replay.
fn set_replay(
    recovered: &mut Recovered,
    unstored_from: u64,
    first_place: Option<(Place, Appended)>,
) {
    let first_seq = recovered
        .segments
        .front()
        .map_or(recovered.next_seq, |s| s.first_seq);
    recovered.replay_from = unstored_from.clamp(first_seq, recovered.next_seq);
    let end = recovered.segments.back().map(|s| Place {
        segment: s.number,
        offset: s.data_end,
    });
    let nothing = (end.unwrap_or(recovered.replay_place), recovered.replay_at);
    (recovered.replay_place, recovered.replay_at) = first_place.unwrap_or(nothing);
}
