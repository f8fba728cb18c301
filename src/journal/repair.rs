//! The operator's tools: inspect a journal, check whether it opens, and salvage a damaged one.
//!
//! [`salvage`] replaces a damaged segment by one with every valid frame, and keeps the damaged file
//! as `*.seg.damaged`. Lost sequences become a gap frame. So recovery stays strict: it accepts
//! missing sequences only if an operator has run salvage. The replacement is renamed atomically
//! after both files are synced, so salvage can be killed and run again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint;
use super::error::{Damage, JournalError, io_error};
use super::fs::{Fs, FsFile, read_full_at, write_all_at};
use super::reader::{FrameReader, Step, find_frame};
use super::recovery::{Expect, SegmentEnd, TornTail, examine};
use super::segment::{
    Coding, FORMAT_VERSION, Frame, FrameHead, FrameKind, HEADER_BYTES, HEADER_COPY_AT, Header,
    HeaderFault, Payload, begin_frame, end_frame, seal_frame,
};
use super::segment_files::{FoundSegment, list, segment_name};

/// The content of a journal directory.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// A running hourbucket holds the lock; the other fields are then empty.
    pub in_use: bool,
    /// The segments, ordered by number.
    pub segments: Vec<SegmentReport>,
    /// The checkpoint: the first sequence that may be unstored, and the synced end (exclusive).
    pub checkpoint: Option<(u64, u64)>,
    /// Damage that prevents opening the journal.
    pub problems: Vec<Damage>,
    /// Segments of a format that this build does not read.
    pub other_format: Vec<(PathBuf, HeaderFault)>,
}

impl Report {
    /// Whether the journal can be opened.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.other_format.is_empty()
    }
}

/// The content of a segment.
#[derive(Debug, Clone)]
pub struct SegmentReport {
    /// The segment file.
    pub path: PathBuf,
    /// Length of the file.
    pub bytes: u64,
    /// Valid frames up to the end or the first damage.
    pub frames: u64,
    /// Readings in these frames.
    pub readings: u64,
    /// Those that the checkpoint does not know to be stored. A start finds some of them stored.
    pub unstored: u64,
    /// Dead letters in these frames.
    pub dead_letters: u64,
    /// Sequences of these frames, the end exclusive.
    pub sequences: (u64, u64),
    /// Append times of the first and the last frame, in milliseconds since 1970.
    pub wall_ms: Option<(i64, i64)>,
    /// Whether a crash interrupted the last write. The next start repairs this.
    pub torn: bool,
    /// The bytes that the next start then cuts off.
    pub cut: Option<TornTail>,
}

/// Result of [`salvage`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// New paths of the damaged files.
    pub moved: Vec<PathBuf>,
    /// Lost ranges of sequences, the ends exclusive.
    pub lost: Vec<(u64, u64)>,
}

/// Checks whether the journal can be opened; changes nothing. A missing directory counts as an
/// empty journal.
///
/// # Errors
/// A file cannot be read.
pub fn check(fs: &dyn Fs, dir: &Path) -> Result<Report, JournalError> {
    inspect(fs, dir)
}

/// Reads the whole journal and decodes every payload; changes nothing.
///
/// # Errors
/// A file cannot be read.
pub fn inspect(fs: &dyn Fs, dir: &Path) -> Result<Report, JournalError> {
    let names = match fs.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Report::default()),
        names => names.map_err(io_error("list", dir))?,
    };
    let lock_path = dir.join(super::LOCK_NAME);
    let has_lock = names.iter().any(|name| name == super::LOCK_NAME);
    let lock = if has_lock {
        fs.lock(&lock_path).map_err(io_error("lock", &lock_path))?
    } else {
        None
    };
    if has_lock && lock.is_none() {
        return Ok(Report {
            in_use: true,
            ..Report::default()
        });
    }
    let known = checkpoint::read(fs, dir).map_err(io_error("read the checkpoint in", dir))?;
    let found = list(fs, dir)?;
    let mut last_end = HEADER_BYTES;
    let mut report = Report {
        checkpoint: known.map(|c| (c.unstored_from, c.synced_to)),
        ..Report::default()
    };
    for (i, segment) in found.iter().enumerate() {
        let next = found.get(i + 1);
        let end = next
            .and_then(|n| n.header.as_ref().ok())
            .map(|h| h.first_seq);
        last_end = inspect_segment(&mut report, segment, end)?;
        for number in next.map_or(0..0, |n| segment.number + 1..n.number) {
            report.problems.push(Damage::Missing {
                path: dir.join(segment_name(number)),
            });
        }
    }
    if let (Some(last), Some(known)) = (report.segments.last(), known)
        && known.synced_to > last.sequences.1
        && report.is_sound()
    {
        let path = last.path.clone();
        let offset = last_end;
        let end = last.sequences.1;
        let synced = known.synced_to;
        report.problems.push(Damage::EndsEarly {
            path,
            offset,
            end,
            synced,
        });
    }
    Ok(report)
}

/// Returns the end of the valid frames.
fn inspect_segment(
    report: &mut Report,
    segment: &FoundSegment,
    end: Option<u64>,
) -> Result<u64, JournalError> {
    let path = segment.path.clone();
    let header = match &segment.header {
        Ok(header) if header.number == segment.number => header,
        Ok(header) => {
            report.problems.push(Damage::Number {
                path,
                number: header.number,
            });
            return Ok(HEADER_BYTES);
        }
        Err(fault @ HeaderFault::Version(_)) => {
            report.other_format.push((path, fault.clone()));
            return Ok(HEADER_BYTES);
        }
        Err(fault) => {
            report.problems.push(Damage::Header {
                path,
                fault: fault.clone(),
            });
            return Ok(HEADER_BYTES);
        }
    };
    let unstored_from = report
        .checkpoint
        .map_or(0, |(unstored_from, _)| unstored_from);
    let expect = Expect {
        end,
        deep: true,
        find: unstored_from,
    };
    let seen = examine(segment, header, expect).map_err(io_error("read", &path))?;
    if let SegmentEnd::Damaged(fault) = seen.ending {
        let path = path.clone();
        let offset = seen.data_end;
        let seq = seen.next_seq;
        report.problems.push(Damage::Frame {
            path,
            offset,
            seq,
            fault,
        });
    }
    let cut = if let SegmentEnd::Torn(cut) = seen.ending {
        Some(cut)
    } else {
        None
    };
    report.segments.push(SegmentReport {
        path,
        bytes: segment.bytes,
        frames: seen.frames,
        readings: seen.readings,
        unstored: seen.readings_found,
        dead_letters: seen.dead_letters,
        sequences: (header.first_seq, seen.next_seq),
        wall_ms: seen.wall_ms,
        torn: cut.is_some(),
        cut,
    });
    Ok(seen.data_end)
}

/// A position in the sequence of segments: the expected segment, and its remains.
struct Slot {
    number: u64,
    found: Option<FoundSegment>,
    /// From either copy in the file.
    header: Option<Header>,
    sound_header: bool,
}

/// Replaces damaged segments by their valid frames, so that the journal can be opened.
///
/// # Errors
/// The journal is in use, of another format, or cannot be read or written.
pub fn salvage(fs: &dyn Fs, dir: &Path) -> Result<Salvaged, JournalError> {
    let lock_path = dir.join(super::LOCK_NAME);
    let lock = fs.lock(&lock_path).map_err(io_error("lock", &lock_path))?;
    let _lock = lock.ok_or_else(|| JournalError::Locked { dir: dir.into() })?;
    let known = checkpoint::read(fs, dir)
        .map_err(io_error("read the checkpoint in", dir))?
        .unwrap_or_default();
    let slots = slots(list(fs, dir)?)?;
    let mut done = Salvaged::default();
    // The sequence after the segments so far.
    let mut next_seq = None;
    for (i, slot) in slots.iter().enumerate() {
        let Some(first_seq) = slot.header.map(|h| h.first_seq).or(next_seq) else {
            // No earlier segment exists, so its number is not required.
            move_aside(fs, dir, slot, &mut done)?;
            continue;
        };
        let last = i + 1 == slots.len();
        // If the header of the next segment is lost, this one ends after its valid frames.
        let end = slots
            .get(i + 1)
            .and_then(|next| next.header)
            .map(|h| h.first_seq);
        let expect = Expect {
            end,
            deep: true,
            find: u64::MAX,
        };
        if let (Some(found), Some(header), true) = (&slot.found, &slot.header, slot.sound_header) {
            let seen = examine(found, header, expect).map_err(io_error("read", &found.path))?;
            let early = last && known.synced_to > seen.next_seq;
            if !matches!(seen.ending, SegmentEnd::Damaged(_)) && !early {
                next_seq = Some(seen.next_seq);
                continue;
            }
        }
        // For the last segment only a lower bound of its end is known.
        let span = Span {
            first_seq,
            end,
            end_min: end.unwrap_or(if last { known.synced_to } else { first_seq }),
        };
        let rebuilt = rebuild(fs, dir, slot, span, &mut done);
        next_seq =
            Some(rebuilt.map_err(io_error("rebuild", &dir.join(segment_name(slot.number))))?);
    }
    Ok(done)
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

fn slots(found: Vec<FoundSegment>) -> Result<Vec<Slot>, JournalError> {
    let mut slots: Vec<Slot> = Vec::new();
    for segment in found {
        if let Err(fault @ HeaderFault::Version(_)) = &segment.header {
            return Err(JournalError::Format {
                path: segment.path.clone(),
                fault: fault.clone(),
            });
        }
        let number = segment.number;
        let own = |header: &Header| header.number == number;
        let sound = segment.header.clone().ok().filter(own);
        let copy = || {
            let mut page = vec![0; HEADER_BYTES as usize];
            let n = read_full_at(&*segment.file, &mut page, 0).ok()?;
            Header::decode(page[..n].get(HEADER_COPY_AT..)?)
                .ok()
                .filter(own)
        };
        let from = slots.last().map_or(number, |before| before.number + 1);
        slots.extend((from..number).map(|number| Slot {
            number,
            found: None,
            header: None,
            sound_header: false,
        }));
        let header = sound.or_else(copy);
        slots.push(Slot {
            number,
            header,
            sound_header: sound.is_some(),
            found: Some(segment),
        });
    }
    Ok(slots)
}

fn damaged_path(dir: &Path, slot: &Slot) -> PathBuf {
    dir.join(format!("{}.damaged", segment_name(slot.number)))
}

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
    fs.rename(&found.path, &to)
        .map_err(io_error("move aside", &found.path))?;
    fs.sync_dir(dir).map_err(io_error("sync", dir))?;
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
    let temporary = dir.join(format!("salvaged{}", super::segment_pool::UNFINISHED));
    let number = slot.number;
    let first_seq = span.first_seq;
    // Keeps the salt, which identifies the process. That is safe because the file is new.
    let (version, salt) = slot
        .header
        .map_or((FORMAT_VERSION, fastrand::u32(..)), |old| {
            (old.version, old.salt)
        });
    let header = Header {
        version,
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
    if version >= 3 {
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
    }
    new.file.sync_data()?;
    if let Some(found) = &slot.found {
        let to = damaged_path(dir, slot);
        copy_file(fs, found, &to)?;
        done.moved.push(to);
    }
    fs.rename(&temporary, &dir.join(segment_name(slot.number)))?;
    fs.sync_dir(dir)?;
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
