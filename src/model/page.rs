//! A write to one page of a bucket, as the accumulator decides it and a store carries it out.

use std::sync::Arc;

use super::batch::Tags;
use super::ids::{BucketKey, SensorId};
use super::rows::Rows;
use super::span::BucketStart;
use super::summary::Summary;

/// How the page is believed to be in the store; the store must refuse the write where it is not so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// There is no such page: insert it.
    Create,
    /// There is, not sealed, with exactly this many readings: append.
    Append {
        /// The `count` that the write is gated by.
        known_count: u32,
    },
}

/// Where the readings of a bucket are: told by its document, and kept for as long as the bucket lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StorageMode {
    /// In the bucket's pages.
    #[default]
    Bucket,
    /// Measurements of a native time-series collection; its pages hold summaries only. There is a second one only if the
    /// fields do not fit into one document.
    TimeSeries,
}

/// One statement: readings and their summary for one page, gated by the version that [`PageKind`] names. `rows` may be
/// empty for an `Append` that only seals a page.
#[derive(Debug, Clone)]
pub struct PageWrite {
    /// Whose page.
    pub sensor_id: SensorId,
    /// Which bucket.
    pub start: BucketStart,
    /// Which page of it, from 0.
    pub page: u32,
    /// What must be true of the stored page.
    pub kind: PageKind,
    /// Where the readings go.
    pub storage_mode: StorageMode,
    /// Whether the page takes no more after this write (`has_overflow: true`).
    pub seal: bool,
    /// Tags to set, where the sensor has any: of a new page, of measurements always.
    pub tags: Option<Arc<Tags>>,
    /// The readings; shared with the shard, which shows them to whoever asks while they are under way.
    pub rows: Arc<Rows>,
    /// Their summary, by index into the rows' fields.
    pub summary: Summary,
}

impl PageWrite {
    /// The bucket.
    pub fn bucket(&self) -> BucketKey {
        BucketKey { sensor_id: self.sensor_id.clone(), start: self.start }
    }

    /// What the page holds after it, where it was as believed.
    pub fn count_after(&self) -> u32 {
        let before = match self.kind {
            PageKind::Create => 0,
            PageKind::Append { known_count } => known_count,
        };
        before + self.rows.len() as u32
    }

    /// About how many bytes the statement takes on the wire: the readings, the summary (three operators with the field's
    /// name each, or one sub-document), the id in the filter or document, tags and fixed parts.
    pub fn wire_bytes(&self) -> u64 {
        let names: usize = self.summary.iter().map(|(i, _)| self.rows.fields()[*i as usize].len()).sum();
        let tags = self.tags.as_ref().map_or(0, |t| t.as_bytes().len() * 2);
        let rows = self.rows.stored_bytes() + self.rows.len() as u64 * super::rows::ARRAY_KEY_BYTES_MAX;
        rows + (names * 4 + self.summary.len() * 100 + self.sensor_id.len() * 3 + tags + 512) as u64
    }
}
