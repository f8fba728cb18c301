//! The samples of many sensors: numbers of some fields, without the readings around them, in one
//! request. Reads are as those of [`super::reading`].
//!
//! Readings of one millisecond with different values are in the order of a hash of all their fields,
//! which is not known here. Their times are returned as doubtful, and must be read in another way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};

use super::reading::{MeasurementQuery, PageQuery};
use crate::maintain::StoredPage;
use crate::{Store, StoreError};
use model::{BucketKey, BucketStart, Rows, Sample, SensorId, Span, StorageMode, ValueRef};

/// Measurements that one request of [`by_pages`] reads.
const MEASUREMENTS_AT_ONCE: usize = 100_000;

/// Selects samples of several sensors.
#[derive(Debug, Clone)]
pub struct SampleQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// The fields, each once.
    pub fields: Vec<String>,
    /// Start of the time range, inclusive, in milliseconds since 1970.
    pub from_ms: i64,
    /// End of the time range, exclusive, in milliseconds since 1970.
    pub to_ms: i64,
    /// `bucket.span`
    pub span: Span,
    /// Buckets whose pages and measurements are returned instead of samples, with all fields.
    pub whole: BTreeSet<BucketKey>,
    /// The sensors have many fields besides these.
    pub is_narrow: bool,
}

/// The samples of one sensor, or of a stretch of its time.
#[derive(Debug, Clone, Default)]
pub struct SensorSamples {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The start of the stretch, which is the end of the one before, in milliseconds since 1970.
    pub from_ms: i64,
    /// Its end, exclusive; the last one ends with the range.
    pub until_ms: i64,
    /// For each field of the query its samples, ordered by time, one of each millisecond.
    pub fields: Vec<Vec<Sample>>,
    /// Times with more than one value of a field.
    pub doubtful: BTreeSet<i64>,
    /// The pages of its whole buckets that can have readings of the range, with all their readings;
    /// of each bucket from the last to the first.
    pub pages: Vec<(BucketStart, StoredPage)>,
    /// The measurements of its whole buckets.
    pub measured: Rows,
    /// Readings before this time (ms since 1970) were removed, if any of the requested ones were.
    pub removed_until_ms: Option<i64>,
}

/// The sensors of a query, or stretches of them in the order of time, in any order of sensors. Each
/// sensor is there, even without samples.
pub type SampleStream<'a> = BoxStream<'a, Result<SensorSamples, StoreError>>;

/// A value as a sample; text is none.
pub fn number(value: ValueRef<'_>) -> Option<f64> {
    match value {
        ValueRef::Double(v) => Some(v),
        ValueRef::Int(v) => Some(v as f64),
        ValueRef::Bool(v) => Some(f64::from(u8::from(v))),
        ValueRef::Str(_) => None,
    }
}

/// What is known of a page besides its readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageHead {
    pub(crate) storage_mode: StorageMode,
    /// `None` if the page counts no reading.
    pub(crate) first_ts_ms: Option<i64>,
    pub(crate) readings_removed: bool,
}

/// Collects the samples of a stretch of a sensor.
pub(crate) struct Collecting {
    query: Arc<SampleQuery>,
    found: SensorSamples,
    /// Buckets whose readings are in pages: measurements of these are left from a conversion.
    paged: BTreeSet<BucketStart>,
    /// The first times that the pages of measured buckets have.
    first_measured_ms: BTreeMap<BucketStart, i64>,
}

impl Collecting {
    pub(crate) fn new(query: Arc<SampleQuery>, sensor_id: SensorId) -> Collecting {
        Collecting {
            found: SensorSamples {
                sensor_id,
                from_ms: query.from_ms,
                until_ms: query.to_ms,
                fields: vec![vec![]; query.fields.len()],
                ..SensorSamples::default()
            },
            query,
            paged: BTreeSet::new(),
            first_measured_ms: BTreeMap::new(),
        }
    }

    pub(crate) fn sensor_id(&self) -> &SensorId {
        &self.found.sensor_id
    }

    /// The start of the stretch.
    pub(crate) fn begin_ms(&self) -> i64 {
        self.found.from_ms
    }

    /// Samples that are held.
    pub(crate) fn held(&self) -> usize {
        self.found.fields.iter().map(Vec::len).sum()
    }

    pub(crate) fn is_whole(&self, start: BucketStart) -> bool {
        !self.query.whole.is_empty()
            && self.query.whole.contains(&BucketKey {
                sensor_id: self.found.sensor_id.clone(),
                start,
            })
    }

    pub(crate) fn whole_page(&mut self, start: BucketStart, page: StoredPage) {
        self.found.pages.push((start, page));
    }

    /// A page of a bucket that is not whole.
    pub(crate) fn head(&mut self, start: BucketStart, head: PageHead) {
        if head.storage_mode == StorageMode::Bucket {
            self.paged.insert(start);
        }
        if head.readings_removed {
            self.is_removed(start);
        } else if let Some(first_ms) = head.first_ts_ms
            && head.storage_mode == StorageMode::TimeSeries
        {
            let first = self.first_measured_ms.entry(start).or_insert(first_ms);
            *first = first_ms.min(*first);
        }
    }

    /// Adds a sample; those outside of the range are ignored.
    pub(crate) fn sample(&mut self, field: usize, ts_ms: i64, value: f64) {
        if (self.query.from_ms..self.query.to_ms).contains(&ts_ms) {
            self.found.fields[field].push(Sample { ts_ms, value });
        }
    }

    /// Notes a measurement; whether its samples count.
    pub(crate) fn measurement(&mut self, ts_ms: i64) -> bool {
        let start = self.query.span.floor(ts_ms);
        if self.first_measured_ms.get(&start) == Some(&ts_ms) {
            self.first_measured_ms.remove(&start);
        }
        !self.paged.contains(&start)
    }

    /// The rows of the measurements of whole buckets.
    pub(crate) fn measured(&mut self) -> &mut Rows {
        &mut self.found.measured
    }

    fn is_removed(&mut self, start: BucketStart) {
        let end_ms = self.query.span.end(start).min(self.query.to_ms);
        let end_ms = Some(end_ms).filter(|end| *end > self.query.from_ms);
        self.found.removed_until_ms = self.found.removed_until_ms.max(end_ms);
    }

    /// The stretch up to this time, to which everything was added.
    pub(crate) fn finish(mut self, until_ms: i64) -> SensorSamples {
        // The server removes the oldest measurements first ([`super::retention`]).
        let read = self.found.from_ms..until_ms;
        for (start, first_ms) in std::mem::take(&mut self.first_measured_ms) {
            if read.contains(&first_ms) {
                self.is_removed(start);
            }
        }
        let SensorSamples {
            fields, doubtful, ..
        } = &mut self.found;
        for samples in fields {
            in_order(samples, doubtful);
        }
        self.found.until_ms = until_ms;
        self.found
    }

    /// Leaves what is before this start of a bucket, and returns the continuation.
    pub(crate) fn split_off(&mut self, start: BucketStart) -> Collecting {
        let mut rest = Collecting::new(self.query.clone(), self.found.sensor_id.clone());
        rest.found.from_ms = start.0;
        for (samples, later) in self.found.fields.iter_mut().zip(&mut rest.found.fields) {
            let is_later = |sample: &Sample| sample.ts_ms >= start.0;
            later.extend(samples.iter().copied().filter(is_later));
            samples.retain(|sample| !is_later(sample));
        }
        let pages = std::mem::take(&mut self.found.pages).into_iter();
        (rest.found.pages, self.found.pages) = pages.partition(|(of, _)| *of >= start);
        rest.paged = self.paged.split_off(&start);
        rest.first_measured_ms = self.first_measured_ms.split_off(&start);
        rest
    }
}

/// Orders the samples by time, one of each millisecond.
fn in_order(samples: &mut Vec<Sample>, doubtful: &mut BTreeSet<i64>) {
    if !samples.is_sorted_by_key(|sample| sample.ts_ms) {
        samples.sort_by_key(|sample| sample.ts_ms);
    }
    samples.dedup_by(|later, first| {
        let is_same = later.ts_ms == first.ts_ms;
        if is_same && later.value.to_bits() != first.value.to_bits() {
            doubtful.insert(later.ts_ms);
        }
        is_same
    });
}

/// Answers a query by some for each sensor.
pub(super) fn by_pages<S: Store + ?Sized>(store: &S, query: SampleQuery) -> SampleStream<'_> {
    let sensors = query.sensor_ids.clone();
    let query = Arc::new(query);
    let one = move |sensor_id| of_sensor(store, query.clone(), sensor_id);
    stream::iter(sensors).then(one).boxed()
}

async fn of_sensor<S: Store + ?Sized>(
    store: &S,
    query: Arc<SampleQuery>,
    sensor_id: SensorId,
) -> Result<SensorSamples, StoreError> {
    let mut collecting = Collecting::new(query.clone(), sensor_id.clone());
    let place = |name: &str| query.fields.iter().position(|field| field == name);
    let add = |collecting: &mut Collecting, rows: &Rows| {
        for row in rows.iter() {
            for (name, value) in row.named() {
                if let (Some(field), Some(value)) = (place(name), number(value)) {
                    collecting.sample(field, row.ts_ms, value);
                }
            }
        }
    };
    let mut pages = PageQuery {
        sensor_id: sensor_id.clone(),
        from: query.span.floor(query.from_ms),
        to_ms: query.to_ms,
        after: None,
        readings_from_ms: Some(query.from_ms),
    };
    loop {
        let found = store.pages(&pages).await?;
        for (start, page) in found.pages {
            if collecting.is_whole(start) {
                collecting.whole_page(start, page);
                continue;
            }
            let head = PageHead {
                storage_mode: page.storage_mode,
                first_ts_ms: page.first_ts_ms.filter(|_| page.counted::<u64>() > 0),
                readings_removed: page.readings_removed,
            };
            collecting.head(start, head);
            add(&mut collecting, &page.rows);
        }
        pages.after = found.next;
        if pages.after.is_none() {
            break;
        }
    }
    let mut from_ms = query.from_ms;
    while from_ms < query.to_ms {
        let measurements = MeasurementQuery {
            sensor_id: sensor_id.clone(),
            from_ms,
            to_ms: query.to_ms,
            limit: MEASUREMENTS_AT_ONCE,
        };
        let found = store.measurements(&measurements).await?;
        let mut counted = Rows::default();
        for row in found.rows.iter() {
            if collecting.is_whole(query.span.floor(row.ts_ms)) {
                collecting.measured().push_row(&row);
            } else if collecting.measurement(row.ts_ms) {
                counted.push_row(&row);
            }
        }
        add(&mut collecting, &counted);
        from_ms = found.until_ms;
    }
    Ok(collecting.finish(query.to_ms))
}

/// The same stretch read by pages, if it may lack readings that only columns have.
pub(crate) async fn with_removed<S: Store + ?Sized>(
    store: &S,
    query: &SampleQuery,
    found: SensorSamples,
) -> Result<SensorSamples, StoreError> {
    let mut pages = found.pages.iter();
    if found.removed_until_ms.is_none() && !pages.any(|(_, page)| page.readings_removed) {
        return Ok(found);
    }
    let stretch = SampleQuery {
        sensor_ids: vec![found.sensor_id.clone()],
        from_ms: found.from_ms,
        to_ms: found.until_ms,
        ..query.clone()
    };
    of_sensor(store, Arc::new(stretch), found.sensor_id).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_ordered_and_different_ones_of_a_millisecond_are_doubtful() {
        let at = |ts_ms, value| Sample { ts_ms, value };
        let mut samples = vec![at(3, 1.0), at(1, 1.0), at(2, 5.0), at(1, 1.0), at(2, 6.0)];
        let mut doubtful = BTreeSet::new();
        in_order(&mut samples, &mut doubtful);
        assert_eq!(samples, [at(1, 1.0), at(2, 5.0), at(3, 1.0)]);
        assert_eq!(doubtful, BTreeSet::from([2]));
    }
}
