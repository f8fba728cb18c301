//! A segment that exists, as recovery finds it and the shared state lists it.

use std::path::PathBuf;

use super::segment::Coding;

#[derive(Debug, Clone)]
pub(super) struct SegmentInfo {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) coding: Coding,
    pub(super) first_seq: u64,
    /// End of its frames. Later bytes are not synced, or belong to an earlier segment.
    pub(super) data_end: u64,
    /// Size on disk.
    pub(super) bytes: u64,
    /// Written by this process, so that its salt differs from those of the next segments.
    pub(super) own: bool,
}
