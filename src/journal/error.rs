//! What can go wrong, by what the caller decides: an error of [`open`](super::Journal::open) is the reason not to start;
//! a [`JournalFailure`] is the reason to stop taking data.

use std::io;
use std::path::{Path, PathBuf};

use super::segment::{FrameFault, HeaderFault};

/// Why the journal does not open.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process, or another journal of this one, has the directory.
    #[error("the journal directory {} is in use by another hourbucket; give each its own journal.dir", .dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// Something that had been durable is not what it was.
    #[error(
        "{0}. Nothing was changed. `hourbucket journal inspect` shows what is there, `hourbucket journal salvage` moves \
         the damaged segment aside and keeps every sound reading"
    )]
    Damaged(Damage),
    /// A segment of another format.
    #[error(
        "{}: {fault}. Let the version that wrote it run until its journal is empty, or set another journal.dir",
        .path.display()
    )]
    Format {
        /// The segment.
        path: PathBuf,
        /// Which version it has.
        fault: HeaderFault,
    },
    /// The file system refuses.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// For `map_err`: what was tried on what.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { action, path, source }
}

/// A place that is not what it was when it was synced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A header.
    #[error("journal segment {}: {fault}", .path.display())]
    Header {
        /// The segment.
        path: PathBuf,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// A header that says another number than the file's name.
    #[error("journal segment {} says of itself that it is segment {number}", .path.display())]
    Number {
        /// The segment.
        path: PathBuf,
        /// The number in its header.
        number: u64,
    },
    /// A frame.
    #[error("journal segment {}, offset {offset}, sequence {seq}: {fault}", .path.display())]
    Frame {
        /// The segment.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// Its sequence.
        seq: u64,
        /// What is wrong.
        fault: FrameFault,
    },
    /// A segment that is not there though later ones are.
    #[error("journal segment {} is missing", .path.display())]
    Missing {
        /// The segment.
        path: PathBuf,
    },
    /// The last segment ends too early.
    #[error(
        "journal segment {}, offset {offset}: the journal ends here with sequence {end} (exclusive), and the checkpoint \
         says that it had been synced up to {synced}",
        .path.display()
    )]
    EndsEarly {
        /// The last segment, or the directory where there is none.
        path: PathBuf,
        /// Where the last sound frame in it ends.
        offset: u64,
        /// The first sequence that is not there.
        end: u64,
        /// What the checkpoint says.
        synced: u64,
    },
}

/// Why a journal that was open is not sound any more. There is no way back but a restart.
#[derive(Debug, thiserror::Error)]
pub enum JournalFailure {
    /// What was written may not be durable. The ingest batches that waited for it are not acknowledged.
    #[error("the journal could not be made durable: {path}: {source}")]
    Sync {
        /// What was synced.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Entries were given up downstream. Their segment stays and is replayed at the next start.
    #[error("journaled entries from sequence {first_seq} on were given up and will be stored after a restart")]
    NotDelivered {
        /// The first of them.
        first_seq: u64,
    },
    /// What is to be read back is not what was written.
    #[error("the journal cannot be read back: {0}")]
    Damaged(Damage),
    /// It cannot be read.
    #[error("the journal cannot be read back: {path}: {source}")]
    Read {
        /// The segment.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A thread of the journal has panicked.
    #[error("a thread of the journal has panicked")]
    Panicked,
}
