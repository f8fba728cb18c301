//! The contents of the journal in figures, for metrics and the admin port.

use super::error::JournalFull;

/// The state of the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Size on disk, including the segment pool.
    pub bytes: u64,
    /// Bytes of the frames from the first unstored entry on; stored entries in between count as
    /// well.
    pub unstored_bytes: u64,
    /// Bytes of frames written since this process opened the journal.
    pub written_bytes: u64,
    /// The limit in effect, from `journal.max_bytes`.
    pub bytes_max: u64,
    /// Segment files, without the pool.
    pub segments: usize,
    /// Entries that the follower has not returned yet.
    pub backlog_entries: u64,
    /// Entries from the first unstored one to the newest.
    pub unstored_entries: u64,
    /// The sequence of the first unstored entry; `None` if everything is stored.
    pub unstored_from: Option<u64>,
    /// Entries of an earlier run that the consumer of the follower has finished handing over, out
    /// of [`JournalStats::replay_total`]. They may be unstored.
    pub replay_done: u64,
    /// Entries of an earlier run to replay.
    pub replay_total: u64,
    /// Wall-clock time at which the oldest unstored entry was appended, in milliseconds since 1970.
    /// Survives restarts.
    pub oldest_unstored_ms: Option<i64>,
    /// Age of that entry in milliseconds, independent of later changes of the wall clock. For an
    /// entry of an earlier process: the age by the wall clock at this start (at least 0), plus the
    /// time since.
    pub oldest_unstored_age_ms: Option<u64>,
    /// For how long the writer has been appending the present group, in milliseconds; `None` while
    /// it waits for one. Many seconds: the disk does not answer.
    pub commit_age_ms: Option<u64>,
    /// Why it takes no readings for now; `None` if it does.
    pub full: Option<JournalFull>,
    /// The first failure of the journal.
    pub broken: Option<String>,
}
