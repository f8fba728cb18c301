//! A write to one page of a bucket. The shard creates it, and a store executes it.

use std::sync::Arc;

use super::batch::Tags;
use super::catalog::CatalogUpdate;
use super::ids::{BucketKey, SensorId};
use super::rows::Rows;
use super::span::BucketStart;
use super::summary::Summary;
use crate::closed_set;

/// The expected state of the page in the store. The store must reject the write if the state
/// differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// The page does not exist: insert it.
    Create,
    /// The page exists, is not sealed, and has exactly this many readings: append.
    Append {
        /// The expected `count`.
        known_count: u32,
        /// How the page is compared with that.
        gate: Gate,
    },
}

/// How an append makes sure that the page has the expected state.
///
/// A filter that compares the page's fields costs MongoDB as much as the rest of the append. So a
/// page can have a gate: a field that lets exactly one append pass, the one that expects the count
/// that the gate was opened for. That append opens the gate for the next one. Whatever else changes
/// the page removes the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Compare the page's fields, and remove its gate if it has one.
    Closes,
    /// Compare the page's fields, and open its gate for the next append, in [`GateSlot::A`].
    Opens,
    /// Compare nothing: pass the gate, and open it for the next append in the other slot. Refused
    /// unless this slot is open for the expected count.
    Passes(GateSlot),
}

/// One of the two slots of a page's gate. They take turns, because a statement cannot use up and
/// replace the same field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateSlot {
    /// The slot that [`Gate::Opens`] opens.
    A,
    /// The other one.
    B,
}

impl Gate {
    /// The slot that is open after the append; `None`: the page has no gate.
    #[must_use]
    pub fn opened(self) -> Option<GateSlot> {
        match self {
            Gate::Closes => None,
            Gate::Opens => Some(GateSlot::A),
            Gate::Passes(slot) => Some(slot.other()),
        }
    }
}

impl GateSlot {
    /// The slot of the next append.
    #[must_use]
    pub fn other(self) -> GateSlot {
        match self {
            GateSlot::A => GateSlot::B,
            GateSlot::B => GateSlot::A,
        }
    }
}

closed_set! {
    /// Where the readings of a bucket are stored. Its documents record it, and it does not change
    /// while the bucket exists.
    #[derive(Default)]
    pub enum StorageMode {
        /// In the bucket's pages.
        #[default]
        Bucket => "bucket",
        /// As measurements of a native time-series collection. The pages have only summaries; there
        /// is a second page only if the fields do not fit into one document.
        TimeSeries => "timeseries",
    }
}

/// One statement: readings and their summary for one page, conditional on the version in
/// [`PageKind`]. `rows` may be empty for an `Append` that only seals a page.
#[derive(Debug, Clone)]
pub struct PageWrite {
    /// The sensor of the bucket.
    pub sensor_id: SensorId,
    /// The start of the bucket.
    pub start: BucketStart,
    /// The page number within the bucket, from 0.
    pub page: u32,
    /// The expected state of the stored page.
    pub kind: PageKind,
    /// Where the readings are stored.
    pub storage_mode: StorageMode,
    /// Seals the page: it accepts no further readings (`has_overflow: true`).
    pub seal: bool,
    /// Tags of the sensor, if any: set on a new page, and on all measurements.
    pub tags: Option<Arc<Tags>>,
    /// The readings. Shared with the shard, which returns them to queries while the write is in
    /// flight.
    pub rows: Arc<Rows>,
    /// The summary of the readings, by index into [`Rows::fields`].
    pub summary: Summary,
    /// What the catalogue must know before this is written, if it may not know it yet.
    pub catalog: Option<Box<CatalogUpdate>>,
}

impl PageWrite {
    /// The key of the written bucket.
    pub fn bucket(&self) -> BucketKey {
        BucketKey {
            sensor_id: self.sensor_id.clone(),
            start: self.start,
        }
    }

    /// The number of readings in the page before the write, if its state is as expected.
    pub fn count_before(&self) -> u32 {
        match self.kind {
            PageKind::Create => 0,
            PageKind::Append { known_count, .. } => known_count,
        }
    }

    /// The number of readings in the page after the write, if its state was as expected.
    pub fn count_after(&self) -> u32 {
        self.count_before() + self.rows.len() as u32
    }

    /// Approximate size of the statement on the wire: the readings, the summary (three operators
    /// with the field's name each, or one sub-document), the id in the filter or document, tags and
    /// fixed parts.
    pub fn wire_bytes(&self) -> u64 {
        let names: usize = self
            .summary
            .iter()
            .map(|(i, _)| self.rows.fields()[*i as usize].len())
            .sum();
        let tags = self.tags.as_ref().map_or(0, |t| t.as_bytes().len() * 2);
        let rows =
            self.rows.stored_bytes() + self.rows.len() as u64 * super::rows::ARRAY_KEY_BYTES_MAX;
        rows + (names * 4 + self.summary.len() * 100 + self.sensor_id.len() * 3 + tags + 512) as u64
    }
}
