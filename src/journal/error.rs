//! Errors, separated by the decision of the caller. On a [`JournalError`] of
//! [`open`](super::Journal::open) the service does not start. On a [`JournalFailure`] it stops
//! accepting data.

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
        "{0}. Nothing was changed. `hourbucket journal inspect` shows the content; `hourbucket \
         journal salvage` moves the damaged segment aside and keeps every valid reading"
    )]
    Damaged(Damage),
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
    /// A segment is missing although later ones exist.
    #[error("journal segment {} is missing", .path.display())]
    Missing {
        /// The expected segment file.
        path: PathBuf,
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
