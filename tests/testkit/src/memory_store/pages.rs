//! The stored state in memory, synchronous and deterministic: pages and measurements are written
//! and loaded as in MongoDB.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::latest::LatestDocument;
use model::rows::ARRAY_KEY_BYTES_MAX;
use model::summary::entry_bytes;
use model::{
    BucketStart, DeadLetter, FieldSummary, Gate, GateSlot, LatestUpdate, PageKind, PageWrite,
    Reading, Rows, StorageMode, Zone,
};
use store::catalog::CatalogEntry;
use store::columns::DayColumns;
use store::days::DaySummary;
use store::{LoadRequest, LoadResult, LoadedBucket, LoadedPage, PageWriteResult};

/// A stored page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Number of readings; the version of the page.
    pub count: u32,
    /// Whether it is closed for appends.
    pub sealed: bool,
    /// Earliest time of its readings, in milliseconds since 1970.
    pub first_ts_ms: Option<i64>,
    /// The readings in stored order.
    pub readings: Vec<Reading>,
    /// By field: the sum of the summaries of all statements.
    pub summary: BTreeMap<String, FieldSummary>,
    /// Where its readings are stored; in [`StorageMode::TimeSeries`] `readings` is empty.
    pub storage_mode: StorageMode,
    /// Its readings were removed: `readings` still has them, for tests, but no load or query
    /// returns them. In [`StorageMode::TimeSeries`]: the store is removing its measurements.
    pub readings_removed: bool,
    /// Its gate: the open slot, and the count that an append must expect to pass it.
    pub gate: Option<(GateSlot, u32)>,
    /// A conversion to measurements wrote it.
    pub was_converted: bool,
    pub(super) bytes: u64,
}

/// The whole stored state: pages, measurements, dead letters, latest state and high-water mark.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    /// By sensor, bucket and page number.
    pub pages: BTreeMap<(String, BucketStart, u32), Page>,
    /// The time-series collection: by sensor and bucket, in the order of arrival.
    pub series: BTreeMap<(String, BucketStart), Vec<Reading>>,
    /// Measurements that were removed, for tests: no load or query returns them.
    pub expired: BTreeMap<(String, BucketStart), Vec<Reading>>,
    /// Dead letters in the order of arrival.
    pub dead: Vec<DeadLetter>,
    /// `sensor_latest`, by sensor.
    pub latest: BTreeMap<String, LatestDocument>,
    /// When an instance was last known to run, ms since 1970.
    pub running_ms: Option<i64>,
    /// `sensor_catalog`, by sensor.
    pub catalog: BTreeMap<String, CatalogEntry>,
    /// Daily rollups.
    pub days: Days,
    /// No bucket after this one was ever written; `None` before the first write.
    pub high_water: Option<BucketStart>,
    /// Limit of a recomputed page's summary in bytes; `None` means that of MongoDB's pages.
    pub summary_bytes_max: Option<u64>,
}

/// `sensor_days`, `rollup_pending`, `sensor_columns` and `sensor_day_hours`.
#[derive(Debug, Clone, Default)]
pub struct Days {
    /// By sensor and start of the day (ms since 1970).
    pub documents: BTreeMap<(String, i64), DaySummary>,
    /// The versions of marks, by instance, start of the day (ms since 1970) and sensor.
    pub marks: BTreeMap<(Arc<str>, i64, String), i64>,
    /// With columns: the zone of their days.
    pub zone: Option<Zone>,
    /// Columns and hours, by sensor and start of the day (ms since 1970).
    pub columns: BTreeMap<(String, i64), DayColumns>,
}

impl Page {
    /// Bytes that its summary would need in a document.
    pub fn summary_bytes(&self) -> u64 {
        self.summary.keys().map(|name| entry_bytes(name)).sum()
    }
}

impl Pages {
    /// Executes one statement: under the version guard, or measurements first and then the summary.
    pub fn write(&mut self, write: &PageWrite) -> PageWriteResult {
        if write.storage_mode == StorageMode::TimeSeries {
            self.insert(write);
            return self.summarise(write);
        }
        self.gated(write)
    }

    /// The first half of a write in [`StorageMode::TimeSeries`]: its measurements.
    pub fn insert(&mut self, write: &PageWrite) {
        let bucket = self
            .series
            .entry((write.sensor_id.to_string(), write.start))
            .or_default();
        bucket.extend(write.rows.to_readings(&write.sensor_id));
    }

    /// The second half: the summary, if it has the expected version.
    pub fn summarise(&mut self, write: &PageWrite) -> PageWriteResult {
        match self.gated(write) {
            PageWriteResult::Done { count } if count == write.count_after() => {
                PageWriteResult::Done { count }
            }
            _ => PageWriteResult::SummaryConflict,
        }
    }

    fn gated(&mut self, write: &PageWrite) -> PageWriteResult {
        let key = (write.sensor_id.to_string(), write.start, write.page);
        let matches = match (write.kind, self.pages.get(&key)) {
            (PageKind::Create, None) => true,
            (
                PageKind::Append {
                    known_count,
                    gate: Gate::Passes(slot),
                },
                page,
            ) => page.is_some_and(|page| page.gate == Some((slot, known_count))),
            (PageKind::Append { known_count, .. }, Some(page)) => {
                page.count == known_count
                    && !page.sealed
                    && page.storage_mode == write.storage_mode
                    && !(page.readings_removed && page.storage_mode == StorageMode::Bucket)
            }
            // Upsert: an append to a deleted page recreates it.
            (PageKind::Append { .. }, None) => true,
            (PageKind::Create, Some(_)) => false,
        };
        if !matches {
            return PageWriteResult::Conflict;
        }
        let is_new = !self.pages.contains_key(&key);
        let page = self.pages.entry(key).or_default();
        if is_new {
            page.storage_mode = write.storage_mode;
        }
        page.count += write.rows.len() as u32;
        page.first_ts_ms = earliest(page.first_ts_ms, write.rows.iter().map(|row| row.ts_ms));
        if write.storage_mode == StorageMode::Bucket {
            page.readings
                .extend(write.rows.to_readings(&write.sensor_id));
            page.bytes += stored_bytes(&write.rows);
        }
        page.sealed |= write.seal;
        page.gate = match write.kind {
            PageKind::Create => None,
            PageKind::Append { gate, .. } => gate.opened().map(|slot| (slot, write.count_after())),
        };
        for (i, summary) in &write.summary {
            let name = write.rows.fields()[*i as usize].to_string();
            let merged = page
                .summary
                .get(&name)
                .map_or(*summary, |s| s.merge(*summary));
            page.summary.insert(name, merged);
        }
        // MongoDB does not report the count of a page that it has updated.
        let count = match is_new {
            true => page.count,
            false => write.count_after(),
        };
        PageWriteResult::Done { count }
    }

    /// See [`store::Store::raise_high_water`].
    pub fn raise_high_water(&mut self, through: BucketStart) -> BucketStart {
        let before = self.high_water.unwrap_or(BucketStart(i64::MIN));
        self.high_water = Some(before.max(through));
        before
    }

    /// Merges one update into its sensor's latest state.
    pub fn merge_latest(&mut self, update: &LatestUpdate) {
        self.latest
            .entry(update.sensor_id.to_string())
            .or_default()
            .merge(update);
    }

    /// Loads one bucket; `storage_mode` is that of new buckets.
    ///
    /// # Errors
    /// It is in doubt, and pages with readings prevent that its summary is recomputed.
    pub fn load(&mut self, request: &LoadRequest, storage_mode: StorageMode) -> LoadResult {
        let key = (request.bucket.sensor_id.to_string(), request.bucket.start);
        let mut is_removed = self
            .pages
            .get(&(key.0.clone(), key.1, 0))
            .is_some_and(|page| page.readings_removed);
        if request.doubt && self.is_time_series(&key.0, key.1) && !is_removed {
            is_removed = self.recompute_summary(&key.0, key.1)?;
        }
        let storage_mode = self
            .pages
            .get(&(key.0.clone(), key.1, 0))
            .map_or(storage_mode, |page| page.storage_mode);
        if storage_mode == StorageMode::Bucket {
            return Ok(self.load_pages(request));
        }
        let readings = self.series.get(&key).map(Vec::as_slice).unwrap_or_default();
        let ever = readings
            .iter()
            .chain(self.expired.get(&key).into_iter().flatten());
        let last_ts_ms = ever.map(|r| r.ts_ms).max().unwrap_or(i64::MIN);
        let from_ms = request.readings_from.unwrap_or(i64::MAX);
        let loaded = |page: &&Page| LoadedPage {
            count: page.count,
            sealed: page.sealed,
            first_ts_ms: page.first_ts_ms.unwrap_or(i64::MAX),
            last_ts_ms,
            bytes: 0,
            summary_bytes: page.summary_bytes(),
            keys: vec![],
            readings_removed: is_removed,
        };
        let mut pages: Vec<LoadedPage> = self.heads(&key.0, key.1).iter().map(loaded).collect();
        if let Some(head) = pages.first_mut().filter(|_| !is_removed) {
            head.keys = readings
                .iter()
                .filter(|r| r.ts_ms >= from_ms)
                .map(Reading::key)
                .collect();
        }
        Ok(LoadedBucket {
            storage_mode,
            pages,
        })
    }

    fn load_pages(&self, request: &LoadRequest) -> LoadedBucket {
        let loaded = |page: &Page| {
            let last_ts_ms = page
                .readings
                .iter()
                .map(|r| r.ts_ms)
                .max()
                .unwrap_or(i64::MIN);
            let wanted = request.readings_from.is_some_and(|from| last_ts_ms >= from)
                && !page.readings_removed;
            let keys = if wanted {
                page.readings.iter().map(Reading::key).collect()
            } else {
                vec![]
            };
            LoadedPage {
                count: page.count,
                sealed: page.sealed,
                first_ts_ms: page.first_ts_ms.unwrap_or(i64::MAX),
                last_ts_ms,
                bytes: page.bytes,
                summary_bytes: page.summary_bytes(),
                keys,
                readings_removed: page.readings_removed,
            }
        };
        let pages = self.heads(&request.bucket.sensor_id, request.bucket.start);
        LoadedBucket {
            storage_mode: StorageMode::Bucket,
            pages: pages.into_iter().map(loaded).collect(),
        }
    }

    /// Every reading that a summary counts, also if it was removed, in pages and measurements. (A
    /// conversion may have left measurements behind in a bucket of pages.)
    pub fn readings(&self) -> impl Iterator<Item = &Reading> {
        let series = self
            .series
            .iter()
            .chain(&self.expired)
            .filter(|((sensor, start), _)| self.is_time_series(sensor, *start));
        self.pages
            .values()
            .flat_map(|p| &p.readings)
            .chain(series.flat_map(|(_, readings)| readings))
    }

    /// Whether the readings of a bucket are its measurements.
    pub fn is_time_series(&self, sensor_id: &str, start: BucketStart) -> bool {
        let first = self.pages.get(&(sensor_id.to_owned(), start, 0));
        first.is_none_or(|page| page.storage_mode == StorageMode::TimeSeries)
    }
}

/// The earliest of these times.
pub(super) fn earliest(first: Option<i64>, times: impl Iterator<Item = i64>) -> Option<i64> {
    first.into_iter().chain(times).min()
}

pub(super) fn stored_bytes(rows: &Rows) -> u64 {
    rows.stored_bytes() + rows.len() as u64 * ARRAY_KEY_BYTES_MAX
}
