//! Lists the content of a journal for the operator, and checks whether it opens.

use std::path::{Path, PathBuf};

use super::checkpoint::{self, Checkpoint};
use super::error::{Damage, JournalError, io_error};
use super::fs::Fs;
use super::keys;
use super::recovery::{Expect, SegmentEnd, TornTail, examine};
use super::segment::{HEADER_BYTES, HeaderFault};
use super::segment_files::{FoundSegment, list, names, segment_name};

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

/// Checks whether the journal can be opened; changes nothing. A missing directory counts as an
/// empty journal, because the first start creates it.
///
/// # Errors
/// A file cannot be read, or is not of this journal.
pub fn check(fs: &dyn Fs, dir: &Path) -> Result<Report, JournalError> {
    match inspect(fs, dir) {
        Err(JournalError::NoDirectory { .. }) => Ok(Report::default()),
        inspected => inspected,
    }
}

/// Reads the whole journal and decodes every payload; changes nothing.
///
/// # Errors
/// The directory does not exist, or a file cannot be read or is not of this journal.
pub fn inspect(fs: &dyn Fs, dir: &Path) -> Result<Report, JournalError> {
    let names = names(fs, dir)?;
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
    let known =
        checkpoint::read_newest(fs, dir).map_err(io_error("read the checkpoint in", dir))?;
    let found = list(fs, dir)?;
    let mut last_end = HEADER_BYTES;
    let mut report = Report {
        checkpoint: known.map(|c| (c.unstored_from, c.synced_to)),
        ..Report::default()
    };
    report.problems.extend(first_missing(dir, &found, known));
    match keys::read(fs, dir) {
        Ok(_) => {}
        Err(JournalError::Damaged(damage)) => report.problems.push(damage),
        Err(error) => return Err(error),
    }
    let last_number = found
        .iter()
        .rfind(|segment| segment.own_header().is_some())
        .map_or(0, |segment| segment.number);
    for (i, segment) in found.iter().enumerate() {
        let next = found.get(i + 1);
        // If the next segment is missing, this one ends after its valid frames.
        let end = next
            .filter(|next| next.number == segment.number + 1)
            .and_then(FoundSegment::own_header)
            .map(|h| h.first_seq);
        last_end = inspect_segment(&mut report, segment, end)?;
        let count = next.map_or(0, |n| n.number - segment.number - 1);
        // After the last segment, a file with a higher number proves nothing.
        if count > 0 && segment.number < last_number {
            let path = dir.join(segment_name(segment.number + 1));
            report.problems.push(Damage::Missing { path, count });
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

/// What is missing before the first segment, if that one can be read.
fn first_missing(dir: &Path, found: &[FoundSegment], known: Option<Checkpoint>) -> Option<Damage> {
    let first_seq = match found.first() {
        Some(segment) => Some(segment.own_header()?.first_seq),
        None => None,
    };
    let (first, end) = known?.missing_before(first_seq)?;
    let dir = dir.to_owned();
    Some(Damage::FirstMissing { dir, first, end })
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
        keys: None,
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
