//! A reading on its way into a bucket.

use std::sync::Arc;

use model::{FieldSchema, ReadingKey, RowFlags};

/// A reading on arrival: its values as encoded in its batch, under the names of `schema`.
pub(crate) struct IncomingReading<'a> {
    pub ts_ms: i64,
    pub flags: RowFlags,
    /// When it came ([`crate::accumulate::arrivals`]), of one with the time of receipt.
    pub arrived_ms: i64,
    pub schema: &'a Arc<FieldSchema>,
    pub numbers: u8,
    pub payload: &'a [u8],
}

impl IncomingReading<'_> {
    pub(super) fn key(&self) -> ReadingKey {
        ReadingKey::new(self.ts_ms, self.schema.values(self.payload))
    }
}
