//! A reading on its way into a bucket.

use std::sync::Arc;

use model::{FieldSchema, ReadingKey, RowFlags};

/// A reading on arrival: its values as encoded in its batch, under the names of `schema`.
pub(in crate::accumulate) struct IncomingReading<'a> {
    pub(in crate::accumulate) ts_ms: i64,
    pub(in crate::accumulate) flags: RowFlags,
    /// When it came ([`crate::accumulate::arrivals`]), of one with the time of receipt.
    pub(in crate::accumulate) arrived_ms: i64,
    pub(in crate::accumulate) schema: &'a Arc<FieldSchema>,
    pub(in crate::accumulate) numbers: u8,
    pub(in crate::accumulate) payload: &'a [u8],
}

impl IncomingReading<'_> {
    pub(super) fn key(&self) -> ReadingKey {
        ReadingKey::new(self.ts_ms, self.schema.values(self.payload))
    }
}
