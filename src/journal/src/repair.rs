//! The operator's tool for a damaged journal.
//!
//! [`salvage`] replaces a damaged segment by one with every valid frame, and keeps the damaged file
//! as `*.seg.damaged`. Lost sequences become a gap frame, or before the first segment a later start
//! in the checkpoint. So recovery stays strict: it accepts missing sequences only if an operator
//! has run salvage. The replacement is renamed atomically after both files are synced, so salvage
//! can be killed and run again. A damaged file of keys is moved aside.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::{self, Checkpoint};
use super::error::{JournalError, io_error};
use super::fs::{Fs, FsFile, read_full_at, write_all_at};
use super::keys;
use super::reader::{FrameReader, Step, find_frame};
use super::recovery::{Expect, SegmentEnd, examine};
use super::segment::{
    Coding, Frame, FrameHead, FrameKind, HEADER_BYTES, HEADER_COPY_AT, Header, HeaderFault,
    Payload, begin_frame, end_frame, seal_frame,
};
use super::segment_files::{FoundSegment, UNFINISHED, list, names, segment_name};

/// If more segments in a row are missing, the next one is probably from another journal. Each of
/// them is replaced by a file with a gap, because numbers must be consecutive.
const MISSING_MAX: u64 = 1000;

/// Result of [`salvage`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// New paths of the damaged files.
    pub moved: Vec<PathBuf>,
    /// Those of them without a valid header: nothing in them can be verified, so nothing is kept.
    pub unreadable: Vec<PathBuf>,
    /// New segments in place of missing ones.
    pub filled: Vec<PathBuf>,
    /// Lost ranges of sequences, the ends exclusive. Some of their entries may have been stored.
    pub lost: Vec<(u64, u64)>,
}

/// A position in the sequence of segments: the expected segment, and its remains.
struct Slot {
    number: u64,
    found: Option<FoundSegment>,
    /// From either copy in the file.
    header: Option<Header>,
    sound_header: bool,
}

/// Replaces damaged segments by their valid frames, and missing ones by gaps, so that the journal
/// can be opened.
///
/// # Errors
/// The directory does not exist, or the journal is in use, of another format, or cannot be read or
/// written.
pub fn salvage(fs: &dyn Fs, dir: &Path) -> Result<Salvaged, JournalError> {
    names(fs, dir)?;
    let lock_path = dir.join(super::LOCK_NAME);
    let lock = fs.lock(&lock_path).map_err(io_error("lock", &lock_path))?;
    let _lock = lock.ok_or_else(|| JournalError::Locked { dir: dir.into() })?;
    let known = checkpoint::read_newest(fs, dir)
        .map_err(io_error("read the checkpoint in", dir))?
        .unwrap_or_default();
    let Slots {
        before,
        slots,
        after,
    } = slots(list(fs, dir)?)?;
    let mut done = Salvaged::default();
    if let Err(JournalError::Damaged(_)) = keys::read(fs, dir) {
        let path = keys::path(dir);
        let to = path.with_extension("damaged");
        rename_durably(fs, dir, &path, &to)?;
        done.moved.push(to);
    }
    for slot in before.iter().chain(&after) {
        move_aside(fs, dir, slot, &mut done)?;
    }
    let first_header = slots.first().and_then(|slot| slot.header);
    let missing = known.missing_before(first_header.map(|header| header.first_seq));
    // The sequence after the segments so far.
    let mut next_seq = first_header.map_or(known.synced_to, |header| header.first_seq);
    let unreadable = (known.unstored_from.max(1), next_seq);
    let unreadable = (!before.is_empty() && unreadable.0 < unreadable.1).then_some(unreadable);
    done.lost.extend(missing.or(unreadable));
    for (i, slot) in slots.iter().enumerate() {
        let next = slots.get(i + 1);
        next_seq = salvage_slot(fs, dir, (slot, next), (next_seq, &known), &mut done)?;
    }
    if let Some((_, end)) = missing {
        checkpoint::Writer::open(fs, dir, Some(known))
            .and_then(|mut writer| writer.write(end, known.synced_to.max(end)))
            .map_err(io_error("write the checkpoint in", dir))?;
    }
    Ok(done)
}

/// Rebuilds a segment that is damaged or missing. Returns the end of its sequences. `next`: the
/// segment after it, if it is not the last. `next_seq`: the end of the segments before it.
fn salvage_slot(
    fs: &dyn Fs,
    dir: &Path,
    (slot, next): (&Slot, Option<&Slot>),
    (next_seq, known): (u64, &Checkpoint),
    done: &mut Salvaged,
) -> Result<u64, JournalError> {
    let first_seq = slot.header.map_or(next_seq, |h| h.first_seq);
    let last = next.is_none();
    // If the header of the next segment is lost, this one ends after its valid frames.
    let end = next.and_then(|next| next.header).map(|h| h.first_seq);
    let expect = Expect {
        end,
        deep: true,
        find: u64::MAX,
        keys: None,
    };
    if let (Some(found), Some(header), true) = (&slot.found, &slot.header, slot.sound_header) {
        let seen = examine(found, header, expect).map_err(io_error("read", &found.path))?;
        let early = last && known.synced_to > seen.next_seq;
        if !matches!(seen.ending, SegmentEnd::Damaged(_)) && !early {
            return Ok(seen.next_seq);
        }
    }
    // For the last segment only a lower bound of its end is known.
    let span = Span {
        first_seq,
        end,
        end_min: end.unwrap_or(if last { known.synced_to } else { first_seq }),
    };
    let path = dir.join(segment_name(slot.number));
    rebuild(fs, dir, slot, span, done).map_err(io_error("rebuild", &path))
}

/// The sequences that a replacement covers.
#[derive(Clone, Copy)]
struct Span {
    first_seq: u64,
    /// The exact end (exclusive), if known.
    end: Option<u64>,
    /// Lower bound of the end.
    end_min: u64,
}

/// The segments of a journal, and files with the names of segments that belong to none of them.
struct Slots {
    /// Files without a header before the first segment. Its number need not follow theirs.
    before: Vec<Slot>,
    /// From the first to the last segment, numbers without a gap. The first one has a header.
    slots: Vec<Slot>,
    /// Files without a header whose numbers do not follow the last segment.
    after: Vec<Slot>,
}

fn slots(found: Vec<FoundSegment>) -> Result<Slots, JournalError> {
    let mut before = found
        .into_iter()
        .map(slot)
        .collect::<Result<Vec<Slot>, JournalError>>()?;
    let has_header = |slot: &Slot| slot.header.is_some();
    let mut slots = before.split_off(before.iter().position(has_header).unwrap_or(before.len()));
    let last = slots.iter().rposition(has_header).unwrap_or(0);
    let follows = |pair: &&[Slot]| matches!(pair, [slot, next] if slot.number + 1 == next.number);
    let rest = slots.get(last..).unwrap_or_default();
    let following = rest.windows(2).take_while(follows).count();
    let after = slots.split_off(slots.len().min(last + 1 + following));
    let slots = with_missing(slots)?;
    Ok(Slots {
        before,
        slots,
        after,
    })
}

fn slot(segment: FoundSegment) -> Result<Slot, JournalError> {
    if let Err(fault @ HeaderFault::Version(_)) = &segment.header {
        return Err(JournalError::Format {
            path: segment.path.clone(),
            fault: fault.clone(),
        });
    }
    let number = segment.number;
    let sound = segment.own_header().copied();
    let copy = || {
        let mut page = vec![0; HEADER_BYTES as usize];
        let n = read_full_at(&*segment.file, &mut page, 0).ok()?;
        Header::decode(page[..n].get(HEADER_COPY_AT..)?)
            .ok()
            .filter(|header| header.number == number)
    };
    Ok(Slot {
        number,
        header: sound.or_else(copy),
        sound_header: sound.is_some(),
        found: Some(segment),
    })
}

/// Adds the missing slots between others.
fn with_missing(found: Vec<Slot>) -> Result<Vec<Slot>, JournalError> {
    let mut slots: Vec<Slot> = Vec::new();
    for slot in found {
        let from = slots.last().map_or(slot.number, |before| before.number + 1);
        let missing = slot.number - from;
        if let (Some(segment), true) = (&slot.found, missing > MISSING_MAX) {
            let path = segment.path.clone();
            return Err(JournalError::TooManyMissing { path, missing });
        }
        slots.extend((from..slot.number).map(|number| Slot {
            number,
            found: None,
            header: None,
            sound_header: false,
        }));
        slots.push(slot);
    }
    Ok(slots)
}

fn damaged_path(dir: &Path, slot: &Slot) -> PathBuf {
    dir.join(format!("{}.damaged", segment_name(slot.number)))
}

fn rename_durably(fs: &dyn Fs, dir: &Path, from: &Path, to: &Path) -> Result<(), JournalError> {
    fs.rename(from, to).map_err(io_error("move aside", from))?;
    fs.sync_dir(dir).map_err(io_error("sync", dir))
}

/// For a file without a header.
fn move_aside(
    fs: &dyn Fs,
    dir: &Path,
    slot: &Slot,
    done: &mut Salvaged,
) -> Result<(), JournalError> {
    let Some(found) = &slot.found else {
        return Ok(());
    };
    let to = damaged_path(dir, slot);
    rename_durably(fs, dir, &found.path, &to)?;
    done.unreadable.push(to.clone());
    done.moved.push(to);
    Ok(())
}

/// A replacement segment while it is written.
struct Rebuild {
    file: Arc<dyn FsFile>,
    coding: Coding,
    offset: u64,
    next_seq: u64,
    lost: Vec<(u64, u64)>,
}

impl Rebuild {
    /// Each frame is a separate group: everything before it is synced when the file gets its name.
    fn put(&mut self, head: FrameHead, payload: &[u8]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        let at = begin_frame(&mut bytes);
        bytes.extend_from_slice(payload);
        let frame = end_frame(&mut bytes, at);
        seal_frame(
            &mut bytes[frame],
            FrameHead {
                group_start: self.offset,
                ..head
            },
            self.coding,
        );
        write_all_at(&*self.file, &bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Records the sequences up to `to` (exclusive) as lost.
    fn gap(&mut self, to: u64) -> std::io::Result<()> {
        if to <= self.next_seq {
            return Ok(());
        }
        let seq = self.next_seq;
        let kind = FrameKind::Gap;
        let head = FrameHead {
            seq,
            wall_ms: 0,
            mono_ms: 0,
            group_start: 0,
            records: 0,
            kind,
        };
        self.put(head, &to.to_le_bytes())?;
        self.lost.push((self.next_seq, to));
        self.next_seq = to;
        Ok(())
    }

    fn frame(&mut self, frame: &Frame<'_>, end: Option<u64>) -> std::io::Result<()> {
        if frame.head.kind == FrameKind::Synced {
            // All sequences before it existed and were synced.
            return self.gap(end.map_or(frame.head.seq, |end| end.min(frame.head.seq)));
        }
        let fits = frame.head.seq >= self.next_seq && end.is_none_or(|end| frame.next_seq() <= end);
        if !fits || Payload::decode(frame).is_err() {
            return Ok(());
        }
        self.gap(frame.head.seq)?;
        self.put(frame.head, frame.payload)?;
        self.next_seq = frame.next_seq();
        Ok(())
    }
}

/// Writes a segment with all valid frames of a slot and renames it into place. Returns the end of
/// its sequences.
fn rebuild(
    fs: &dyn Fs,
    dir: &Path,
    slot: &Slot,
    span: Span,
    done: &mut Salvaged,
) -> std::io::Result<u64> {
    let temporary = dir.join(format!("salvaged{UNFINISHED}"));
    let number = slot.number;
    let first_seq = span.first_seq;
    // Keeps the salt, which identifies the process. That is safe because the file is new.
    let salt = slot.header.map_or(fastrand::u32(..), |old| old.salt);
    let header = Header {
        number,
        first_seq,
        salt,
        recycled: false,
        created_ms: 0,
    };
    let file = fs.create(&temporary)?;
    write_all_at(&*file, &header.encode(), 0)?;
    let mut new = Rebuild {
        file,
        coding: header.coding(),
        offset: HEADER_BYTES,
        next_seq: span.first_seq,
        lost: Vec::new(),
    };
    // Without the salt, frames of the old file cannot be verified.
    if let (Some(found), Some(old)) = (&slot.found, &slot.header) {
        copy_sound_frames(found, old, span.end, &mut new)?;
    }
    new.gap(span.end_min)?;
    let seq = new.next_seq;
    let kind = FrameKind::Synced;
    new.put(
        FrameHead {
            seq,
            wall_ms: 0,
            mono_ms: 0,
            group_start: 0,
            records: 0,
            kind,
        },
        &[],
    )?;
    new.file.sync_data()?;
    if let Some(found) = &slot.found {
        let to = damaged_path(dir, slot);
        copy_file(fs, found, &to)?;
        if slot.header.is_none() {
            done.unreadable.push(to.clone());
        }
        done.moved.push(to);
    }
    let path = dir.join(segment_name(slot.number));
    fs.rename(&temporary, &path)?;
    fs.sync_dir(dir)?;
    if slot.found.is_none() {
        done.filled.push(path);
    }
    done.lost.append(&mut new.lost);
    Ok(new.next_seq)
}

fn copy_sound_frames(
    found: &FoundSegment,
    old: &Header,
    end: Option<u64>,
    new: &mut Rebuild,
) -> std::io::Result<()> {
    let mut offset = HEADER_BYTES;
    loop {
        let mut reader = FrameReader::new(found.file.clone(), old.coding(), offset, found.bytes);
        while let Step::Frame(_, frame) = reader.next()? {
            if end == Some(new.next_seq) {
                return Ok(());
            }
            new.frame(&frame, end)?;
        }
        match find_frame(&reader, reader.offset() + 8, new.next_seq, |_, _| true)?.frame_at {
            Some(at) => offset = at,
            None => return Ok(()),
        }
    }
}

fn copy_file(fs: &dyn Fs, from: &FoundSegment, to: &Path) -> std::io::Result<()> {
    let file = fs.create(to)?;
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let n = read_full_at(&*from.file, &mut buf, at)?;
        if n == 0 {
            return file.sync_data();
        }
        write_all_at(&*file, &buf[..n], at)?;
        at += n as u64;
    }
}
