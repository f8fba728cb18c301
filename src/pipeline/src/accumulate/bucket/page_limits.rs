//! The size limits of a page.

/// The size limits of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// `bucket.max_readings`.
    pub readings: u32,
    /// `bucket.max_bytes`: the size of the readings as a BSON array.
    pub bytes: u64,
    /// The size of the summary:
    /// [`PAGE_SUMMARY_BYTES_MAX`](model::summary::PAGE_SUMMARY_BYTES_MAX), smaller in tests.
    pub summary_bytes: u64,
}
