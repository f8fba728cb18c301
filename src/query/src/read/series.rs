//! The series of PromQL: each field of a sensor that has numbers or booleans.
//!
//! The labels are the sensor id and the tags of the catalogue; the metric's name is the field. A
//! tag with the name `sensor_id` or `__name__` is hidden by them. If several readings have one
//! millisecond, the last one with the field counts, in the order of [`super::merge`], which is the
//! same for stored readings and those in memory.
//!
//! Windows are answered from the summaries of hours and days if they are at least as long as a
//! bucket and the field has only had numbers (booleans are in no summary): see [`super::windows`].

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::merge::Window;
use super::selector::{MayRead, SensorLabels, SeriesSelector};
use super::{ReadError, ReadService};
use crate::promql::{Labels, PromqlError, Sample, SelectedSeries, SelectorRequest, SeriesData};
use model::{FieldKinds, SensorId, ValueRef};
use store::catalog::CatalogEntry;

/// Sensors that are read at the same time for one query.
const CONCURRENT: usize = 8;
/// Readings in one step.
const STEP: usize = 10_000;

/// Why series cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The store or a shard failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A limit of the query is reached.
    #[error(transparent)]
    Query(#[from] PromqlError),
}

/// What one query may load; counts over all of its selectors.
#[derive(Debug)]
pub struct SelectLimits {
    series_max: usize,
    samples_max: usize,
    series: AtomicUsize,
    samples: AtomicUsize,
}

impl SelectLimits {
    /// Limits of a new query.
    pub(crate) fn new(series_max: usize, samples_max: usize) -> SelectLimits {
        SelectLimits {
            series_max,
            samples_max,
            series: AtomicUsize::new(0),
            samples: AtomicUsize::new(0),
        }
    }

    fn add_series(&self, more: usize) -> Result<(), PromqlError> {
        match self.series.fetch_add(more, Ordering::Relaxed) + more > self.series_max {
            true => Err(PromqlError::too_many_series(self.series_max)),
            false => Ok(()),
        }
    }

    pub(super) fn add_samples(&self, more: usize) -> Result<(), PromqlError> {
        match self.samples.fetch_add(more, Ordering::Relaxed) + more > self.samples_max {
            true => Err(PromqlError::too_many_samples()),
            false => Ok(()),
        }
    }
}

/// What may be missing in the series of a selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// Readings that were acknowledged just now.
    pub recent: bool,
    /// Readings before this time (ms since 1970), which were removed.
    pub(crate) removed_until_ms: Option<i64>,
    /// Hours before this time (ms since 1970), which have expired, of days that a window cuts.
    pub(crate) expired_until_ms: Option<i64>,
    /// Fields of a sensor with more of them than the catalogue records.
    pub fields: bool,
}

impl Missing {
    /// The parts missing in one or the other.
    #[must_use]
    pub fn and(self, other: Missing) -> Missing {
        Missing {
            recent: self.recent | other.recent,
            removed_until_ms: self.removed_until_ms.max(other.removed_until_ms),
            expired_until_ms: self.expired_until_ms.max(other.expired_until_ms),
            fields: self.fields | other.fields,
        }
    }
}

/// Series of one sensor that are loaded in the same way: field and labels.
pub(super) struct Wanted {
    pub(super) sensor_id: SensorId,
    pub(super) fields: Vec<(String, Labels)>,
}

/// A sensor with the series that were selected.
struct Selected {
    sensor_id: SensorId,
    /// Field, labels, and whether the field has only had numbers.
    fields: Vec<(String, Labels, bool)>,
}

impl ReadService {
    /// Loads what a selector of a query needs.
    ///
    /// # Errors
    /// The store failed, or a limit is reached.
    pub async fn select(
        &self,
        request: &SelectorRequest,
        limits: &SelectLimits,
        may_read: MayRead<'_>,
    ) -> Result<(Vec<SelectedSeries>, Missing), SelectError> {
        if request.to_ms <= request.after_ms {
            return Ok((vec![], Missing::default()));
        }
        let overlaps = Some((request.after_ms + 1, request.to_ms + 1));
        let selector = SeriesSelector::new(&request.matchers);
        let mut found = vec![];
        let mut lacks_fields = false;
        self.each_sensor(&selector.query(overlaps), |entry| {
            if may_read(&entry.sensor_id) && selector.has_sensor(&entry) {
                let selected = selected(&entry, &selector);
                limits.add_series(selected.fields.len())?;
                lacks_fields |= entry.is_truncated && !selector.lists_names();
                found.extend((!selected.fields.is_empty()).then_some(selected));
            }
            Ok::<(), SelectError>(())
        })
        .await?;
        let windows = request
            .windows
            .filter(|windows| windows.range_ms >= self.span().ms());
        let mut by_windows = vec![];
        let mut by_samples = vec![];
        for Selected { sensor_id, fields } in found {
            let (numbers, others): (Vec<_>, Vec<_>) = fields
                .into_iter()
                .partition(|(_, _, is_number)| *is_number && windows.is_some());
            let names = |fields: Vec<(String, Labels, bool)>| {
                fields.into_iter().map(|(name, labels, _)| (name, labels))
            };
            if !numbers.is_empty() {
                by_windows.push(Wanted {
                    sensor_id: sensor_id.clone(),
                    fields: names(numbers).collect(),
                });
            }
            if !others.is_empty() {
                by_samples.push(Wanted {
                    sensor_id,
                    fields: names(others).collect(),
                });
            }
        }
        let (mut series, mut missing) = match windows {
            Some(windows) => {
                self.windows(
                    by_windows,
                    (request.after_ms, request.to_ms),
                    &windows,
                    limits,
                )
                .await?
            }
            None => (vec![], Missing::default()),
        };
        missing.fields |= lacks_fields;
        let range = (request.after_ms + 1, request.to_ms + 1);
        let loads = by_samples
            .into_iter()
            .map(|wanted| self.load(wanted, range, limits));
        let mut loads = stream::iter(loads).buffer_unordered(CONCURRENT);
        while let Some((more, of_samples)) = loads.try_next().await? {
            missing = missing.and(of_samples);
            series.extend(more);
        }
        Ok((series, missing))
    }

    /// The samples of some series of one sensor.
    async fn load(
        &self,
        wanted: Wanted,
        range: (i64, i64),
        limits: &SelectLimits,
    ) -> Result<(Vec<SelectedSeries>, Missing), SelectError> {
        let names: Vec<&str> = wanted
            .fields
            .iter()
            .map(|(field, _)| field.as_str())
            .collect();
        let (samples, missing) = self
            .samples(&wanted.sensor_id, &names, range, limits)
            .await?;
        let of_field = |((_, labels), samples): ((String, Labels), Readings)| SelectedSeries {
            labels,
            data: SeriesData::Samples(samples.last_of_each()),
        };
        Ok((
            wanted
                .fields
                .into_iter()
                .zip(samples)
                .map(of_field)
                .collect(),
            missing,
        ))
    }

    /// The values of fields in a time range (end exclusive), each reading's; and the missing parts.
    pub(super) async fn samples(
        &self,
        sensor_id: &SensorId,
        fields: &[&str],
        (from_ms, to_ms): (i64, i64),
        limits: &SelectLimits,
    ) -> Result<(Vec<Readings>, Missing), SelectError> {
        let mut all: Vec<Readings> = fields.iter().map(|_| Readings::default()).collect();
        let mut missing = Missing::default();
        let mut after = None;
        loop {
            let window = Window {
                from_ms,
                to_ms,
                after,
                limit: STEP,
            };
            let found = self.gather(sensor_id.clone(), window).await?;
            let removed_until_ms = found.answer.removed_until_ms;
            missing = missing.and(Missing {
                recent: !found.complete,
                removed_until_ms,
                ..Missing::default()
            });
            let mut more = 0;
            for row in found.answer.rows.iter() {
                for (name, value) in row.named() {
                    let place = fields.iter().position(|field| *field == name);
                    if let (Some(place), Some(value)) = (place, number(value)) {
                        all[place].0.push(Sample {
                            ts_ms: row.ts_ms,
                            value,
                        });
                        more += 1;
                    }
                }
            }
            limits.add_samples(more)?;
            after = found.answer.next;
            if after.is_none() {
                return Ok((all, missing));
            }
        }
    }
}

/// A field's values, ordered by time; several may have the same.
#[derive(Default)]
pub(super) struct Readings(Vec<Sample>);

impl Readings {
    /// One sample of each millisecond: the last one.
    pub(super) fn last_of_each(mut self) -> Vec<Sample> {
        self.0.reverse();
        self.0.dedup_by_key(|sample| sample.ts_ms);
        self.0.reverse();
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn values(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.value).collect()
    }

    pub(super) fn between(&self, from_ms: i64, to_ms: i64) -> Readings {
        let from = self.0.partition_point(|s| s.ts_ms < from_ms);
        let to = self.0.partition_point(|s| s.ts_ms < to_ms);
        Readings(self.0[from..to.max(from)].to_vec())
    }
}

pub(super) fn number(value: ValueRef<'_>) -> Option<f64> {
    match value {
        ValueRef::Double(v) => Some(v),
        ValueRef::Int(v) => Some(v as f64),
        ValueRef::Bool(v) => Some(f64::from(u8::from(v))),
        ValueRef::Str(_) => None,
    }
}

/// The series of a sensor that match.
fn selected(entry: &CatalogEntry, selector: &SeriesSelector<'_>) -> Selected {
    let of_sensor = SensorLabels::new(entry);
    let recorded = selector.fields(entry).map(|(field, kinds)| {
        let is_number = !kinds.contains(FieldKinds::BOOL);
        (field, is_number)
    });
    // A field that is not recorded may have had values of any kind.
    let unrecorded = selector.unrecorded(entry).map(|field| (field, false));
    let fields = recorded.chain(unrecorded);
    let fields =
        fields.map(|(field, is_number)| (field.to_owned(), of_sensor.with(field), is_number));
    Selected {
        sensor_id: entry.sensor_id.clone(),
        fields: fields.collect(),
    }
}
