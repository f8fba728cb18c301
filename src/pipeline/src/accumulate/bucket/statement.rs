//! The next statement of a bucket: as many of its pending rows as the page has room for. Pure.

use std::sync::Arc;

use super::stored_state::{StoredState, SummaryBytes};
use super::{Bucket, InFlight, PageLimits, array_bytes};
use model::ack::Acks;
use model::rows::StatementLimits;
use model::{
    FieldSummary, Gate, PageKind, PageWrite, RowFlags, Rows, SensorId, StorageMode, Tags, memory,
    summary,
};

/// The page that the next statement goes to, and what it holds already.
struct TargetPage {
    page: u32,
    /// `None`: the page does not exist.
    gate: Option<Gate>,
    count: u32,
    bytes: u64,
    summary: SummaryBytes,
}

impl TargetPage {
    fn new(page: u32) -> TargetPage {
        TargetPage {
            page,
            gate: None,
            count: 0,
            bytes: 0,
            summary: SummaryBytes::NONE,
        }
    }

    fn from_stored(stored: StoredState) -> TargetPage {
        match stored {
            StoredState::New | StoredState::Unknown => TargetPage::new(0),
            StoredState::Page {
                page, sealed: true, ..
            } => TargetPage::new(page + 1),
            StoredState::Page {
                page,
                count,
                bytes,
                summary,
                gate,
                ..
            } => TargetPage {
                page,
                gate: Some(gate),
                count,
                bytes: u64::from(bytes),
                summary,
            },
        }
    }

    /// The kind of a statement that seals the page or does not.
    fn kind(&self, seal: bool) -> PageKind {
        match self.gate {
            None => PageKind::Create,
            Some(gate) => PageKind::Append {
                known_count: self.count,
                gate: if seal { Gate::Closes } else { gate },
            },
        }
    }

    /// What one statement can add.
    fn room(&self, limits: PageLimits, storage_mode: StorageMode) -> StatementLimits {
        let (rows, bytes) = match storage_mode {
            StorageMode::TimeSeries => (limits.readings as usize, limits.bytes),
            StorageMode::Bucket => (
                limits.readings.saturating_sub(self.count) as usize,
                limits.bytes.saturating_sub(self.bytes),
            ),
        };
        StatementLimits {
            rows,
            bytes,
            summary_bytes: self.summary.room(limits),
        }
    }
}

impl Bucket {
    /// Takes the next statement; call only if [`Bucket::next_operation`] is `Create` or `Append`.
    /// `keys_max`: how many stored readings it may remember; `storage_mode`: of new buckets.
    pub(crate) fn take(
        &mut self,
        sensor_id: SensorId,
        tags: Option<&Arc<Tags>>,
        limits: PageLimits,
        keys_max: usize,
        storage_mode: StorageMode,
    ) -> Option<PageWrite> {
        let mut pending = self.pending.take()?;
        let storage_mode = *self.storage_mode.get_or_insert(storage_mode);
        let series = storage_mode == StorageMode::TimeSeries;
        let target = TargetPage::from_stored(self.stored);
        let room = target.room(limits, storage_mode);
        // A page without room, by count or for the next reading's bytes, is sealed by a separate
        // write.
        let fits = series
            || room.rows > 0 && (target.count == 0 || pending.first_row_bytes() <= room.bytes);
        let (rows, is_cut) = if fits {
            pending.rows.take_room(room)
        } else {
            (Rows::default(), false)
        };
        let rest = !pending.rows.is_empty();
        let summary = summary::summarise(&rows);
        self.note_known(&rows, keys_max);
        let acks = pending.take_acks(rows.len());
        let summary_memory = memory::block(summary.capacity() * size_of::<(u32, FieldSummary)>());
        let rows = self.put_in_flight(rows, acks, pending.since_ms, summary_memory);
        if rest {
            pending.forget_keys();
            pending.since_ms = pending.take_over_ms().unwrap_or(pending.since_ms);
            self.pending = Some(pending);
        }
        let seal = is_cut || target.summary.is_full(limits) || (rest && !series);
        Some(PageWrite {
            sensor_id,
            start: self.start,
            page: target.page,
            kind: target.kind(seal),
            storage_mode,
            seal,
            tags: tags.filter(|_| target.gate.is_none() || series).cloned(),
            rows,
            summary,
            catalog: None,
        })
    }

    /// Adds rows that are about to be stored to the known stored readings.
    fn note_known(&mut self, rows: &Rows, keys_max: usize) {
        if let Some(dedup) = self.dedup.as_mut() {
            dedup.extend(
                rows.iter()
                    .filter(|r| !r.flags.any(RowFlags::RECEIPT_TIME))
                    .map(|r| r.identity()),
            );
            dedup.trim(keys_max);
        }
    }

    /// Notes that a statement with these rows is in flight.
    fn put_in_flight(
        &mut self,
        rows: Rows,
        acks: Acks,
        since_ms: u64,
        summary_memory: usize,
    ) -> Arc<Rows> {
        let last_ts_ms = if rows.is_empty() {
            i64::MIN
        } else {
            rows.last_ts_ms()
        };
        let memory = memory::shared(size_of::<Rows>()) + rows.memory_bytes() + summary_memory;
        let bytes = array_bytes(&rows);
        let rows = Arc::new(rows);
        self.in_flight = Some(Box::new(InFlight {
            acks,
            since_ms,
            bytes,
            rows: Some(rows.clone()),
            memory,
        }));
        self.high_water_ms = self.high_water_ms.max(last_ts_ms);
        rows
    }
}
