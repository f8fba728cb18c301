//! The files that the segment manager keeps ready for the next segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fs::FsFile;

/// Suffix of files that will become segments, so that a crash leaves no incomplete `*.seg` file.
pub(super) const UNFINISHED: &str = ".tmp";

/// A file with reserved space and without a header for its new segment.
pub(super) struct PreparedSegment {
    pub(super) file: Arc<dyn FsFile>,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Whether the file was a segment before.
    pub(super) recycled: bool,
}

/// Files that will become segments.
#[derive(Default)]
pub(super) struct SegmentPool {
    /// The last one is used next: a recycled one if there is any.
    pub(super) ready: Vec<PreparedSegment>,
    /// Number of file names used. Names are unique, because the writer fills one file while the
    /// segment manager prepares the next.
    pub(super) named: u64,
}

impl SegmentPool {
    pub(super) fn next_path(&mut self, dir: &Path) -> PathBuf {
        self.named += 1;
        dir.join(format!("next-{}{UNFINISHED}", self.named))
    }
}
