//! Errors, separated by the decision of the caller. On a [`JournalError`] of
//! [`open`](super::Journal::open) the service does not start. On a [`JournalFailure`] it stops
//! accepting data.

use std::borrow::Borrow;
use std::io;
use std::path::{Path, PathBuf};

use super::segment::{FrameFault, HeaderFault};

/// The journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process, or another journal in this process, holds the lock of the directory.
    #[error("journal directory {} is in use by another hourbucket; set a different journal.dir", .dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// Bytes that had been durable have changed or are missing.
    #[error(
        "{damage}. Nothing was changed. `hourbucket journal inspect` shows the content; {remedy}",
        damage = .0,
        remedy = .0.remedy()
    )]
    Damaged(Damage),
    /// A file has the name of a segment in another form, so it may be a renamed one.
    #[error(
        "{} is not a segment of this journal, whose names have 12 digits, like 000000000001.seg; \
         move the file out of the directory",
        .path.display()
    )]
    NotSegment {
        /// The file.
        path: PathBuf,
    },
    /// So many segments are missing before one that it is probably from another journal.
    #[error(
        "{}: {missing} segments are missing before it, so it is probably from another journal; \
         move the file out of the directory",
        .path.display()
    )]
    TooManyMissing {
        /// The segment after the missing ones.
        path: PathBuf,
        /// Their number.
        missing: u64,
    },
    /// The directory does not exist.
    #[error(
        "there is no journal directory {}; run the command with the configuration, the environment \
         and the working directory of the service",
        .dir.display()
    )]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
    },
    /// A segment of another format.
    #[error(
        "{}: {fault}. Run the version that wrote it until its journal is empty, or set another \
         journal.dir",
        .path.display()
    )]
    Format {
        /// The segment file.
        path: PathBuf,
        /// Names the version of the segment.
        fault: HeaderFault,
    },
    /// A file system call failed.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
}

/// For `map_err`: adds the operation and the path.
pub(super) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io {
        action,
        path,
        source,
    }
}

/// A place in the journal that has changed since it was synced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The header of a segment is invalid.
    #[error("journal segment {}: {fault}", .path.display())]
    Header {
        /// The segment file.
        path: PathBuf,
        /// The fault of the header.
        fault: HeaderFault,
    },
    /// The number in the header differs from the file name.
    #[error("the header of journal segment {} has the number {number}", .path.display())]
    Number {
        /// The segment file.
        path: PathBuf,
        /// The number in its header.
        number: u64,
    },
    /// A frame is invalid.
    #[error("journal segment {}, offset {offset}, sequence {seq}: {fault}", .path.display())]
    Frame {
        /// The segment file.
        path: PathBuf,
        /// Start of the frame in the file.
        offset: u64,
        /// The expected sequence of the frame.
        seq: u64,
        /// The fault of the frame.
        fault: FrameFault,
    },
    /// Segments are missing between others.
    #[error("journal segment {} {}", .path.display(), missing(*.count))]
    Missing {
        /// The first missing segment file.
        path: PathBuf,
        /// The number of missing segments.
        count: u64,
    },
    /// The first segments, or all, are missing.
    #[error(
        "journal directory {}: the segments with the entries {first}..{end} are missing, and the \
         checkpoint does not know these entries to be stored",
        .dir.display()
    )]
    FirstMissing {
        /// The journal directory.
        dir: PathBuf,
        /// The first missing sequence.
        first: u64,
        /// The sequence after the missing ones.
        end: u64,
    },
    /// The last segment ends before the synced end in the checkpoint.
    #[error(
        "journal segment {}, offset {offset}: the journal ends here with sequence {end} \
         (exclusive), but according to the checkpoint it was synced up to {synced}",
        .path.display()
    )]
    EndsEarly {
        /// The last segment file.
        path: PathBuf,
        /// End of its last valid frame.
        offset: u64,
        /// The first missing sequence.
        end: u64,
        /// The synced end (exclusive) in the checkpoint.
        synced: u64,
    },
    /// The file with the keys of requests is invalid.
    #[error("the idempotency keys in {} are damaged", .path.display())]
    Keys {
        /// The file.
        path: PathBuf,
    },
}

impl Damage {
    fn remedy(&self) -> &'static str {
        match self {
            Damage::Missing { .. } | Damage::FirstMissing { .. } => {
                "put the missing segments back, or run `hourbucket journal salvage`, which gives \
                 up their entries and keeps all others"
            }
            Damage::Keys { .. } => {
                "`hourbucket journal salvage` moves the file aside: repeats of the requests in it \
                 are then taken for new ones"
            }
            Damage::Header { .. }
            | Damage::Number { .. }
            | Damage::Frame { .. }
            | Damage::EndsEarly { .. } => {
                "`hourbucket journal salvage` moves the damaged segment aside and keeps every \
                 valid reading"
            }
        }
    }
}

fn missing(count: u64) -> String {
    match count {
        0 | 1 => "is missing".to_owned(),
        _ => format!("and the {} after it are missing", count - 1),
    }
}

/// Why the journal takes no readings for now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalFull {
    /// No segment can be freed before the store has caught up.
    #[error("the journal has reached journal.max_bytes")]
    MaxBytes,
    /// A file could not be created, written or renamed: no space, a quota, a failing disk.
    #[error("the journal cannot be written: {error}")]
    Disk {
        /// The error of the operating system.
        error: String,
    },
}

impl JournalFull {
    pub(super) fn disk(error: impl Borrow<io::Error>) -> JournalFull {
        JournalFull::Disk {
            error: error.borrow().to_string(),
        }
    }
}

/// Failure of an open journal. Final until a restart.
#[derive(Debug, thiserror::Error)]
pub enum JournalFailure {
    /// Written data may not be durable. The ingest batches that waited for the sync are not
    /// acknowledged.
    #[error("sync of the journal failed: {path}: {source}")]
    Sync {
        /// The file or directory.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
    /// A later stage dropped entries. Their segment is kept and replayed at the next start.
    #[error(
        "journal entries from sequence {first_seq} on were dropped before being stored; a restart \
         replays them"
    )]
    NotDelivered {
        /// The sequence of the first dropped entry.
        first_seq: u64,
    },
    /// A segment that the follower reads has changed since it was written.
    #[error("cannot read back the journal: {0}")]
    Damaged(Damage),
    /// A segment cannot be read.
    #[error("cannot read back the journal: {path}: {source}")]
    Read {
        /// The segment file.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
    /// A thread of the journal panicked.
    #[error("a thread of the journal panicked")]
    Panicked,
}
