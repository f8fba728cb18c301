//! The series of PromQL: each field of a sensor that has numbers or booleans.
//!
//! The labels are the sensor id and the tags of the catalogue; the metric's name is the field. A
//! tag with the name `sensor_id` or `__name__` is hidden by them. If several readings have one
//! millisecond, the last one with the field counts, in the order of [`super::merge`], which is the
//! same for stored readings and those in memory.
//!
//! A selector is answered in two steps. [`ReadService::find_series`] finds its series in the
//! catalogue, so that their number, and with it the cost, is known before anything else is read.
//! [`ReadService::parts`] reads them, each from the cheapest source that can answer it:
//!
//! | source | of which series |
//! |---|---|
//! | [`super::windows`]: days, hours, and readings at the edges | functions that summaries answer, windows at least as long as a bucket, and fields that have only had numbers (booleans are in no summary) |
//! | [`super::sketches`]: the sketches of hours | `hourbucket_quantile_over_time`, likewise |
//! | [`super::samples`]: memory, columns, pages and measurements | all others |
//!
//! Another source is a stream of parts beside these two, and a case in `find_series`.

use std::collections::{BTreeSet, VecDeque};

use futures_util::stream::{BoxStream, StreamExt};

use super::selector::{MayRead, SensorLabels, SeriesSelector};
use super::{ReadError, ReadService};
use crate::cost::{Cost, Source};
use crate::promql::{AnsweredBy, Labels, Part, PromqlError, SelectorRequest};
use model::{FieldKinds, SensorId};
use store::catalog::CatalogEntry;

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
    /// The sensor has many other fields.
    pub(super) is_narrow: bool,
}

/// The fields of all series, each once, in order.
pub(super) fn fields_of<'w>(wanted: impl IntoIterator<Item = &'w Wanted>) -> Vec<String> {
    let fields = wanted.into_iter().flat_map(|of| &of.fields);
    let fields: BTreeSet<&String> = fields.map(|(field, _)| field).collect();
    fields.into_iter().cloned().collect()
}

/// The sensors in groups of at most this size.
pub(super) fn groups_of(wanted: Vec<Wanted>, size: usize) -> VecDeque<Vec<Wanted>> {
    let mut groups = VecDeque::new();
    let mut rest = wanted.into_iter().peekable();
    while rest.peek().is_some() {
        groups.push_back(rest.by_ref().take(size).collect());
    }
    groups
}

/// The series that a selector has found.
pub(crate) struct FoundSeries {
    pub(super) request: SelectorRequest,
    by_windows: Vec<Wanted>,
    by_sketches: Vec<Wanted>,
    pub(super) by_samples: Vec<Wanted>,
    /// Fields of a sensor with more of them than the catalogue records may be missing.
    pub(crate) lacks_fields: bool,
}

impl FoundSeries {
    /// What it costs to read them.
    pub(crate) fn cost(&self, reads: &ReadService) -> Cost {
        let cost = |wanted: &[Wanted], source| {
            let series = wanted.iter().map(|of| of.fields.len()).sum();
            let found = (wanted.len(), series);
            Cost::of_selector(&self.request, found, source, reads.span())
        };
        let range = (self.request.after_ms() + 1, self.request.to_ms() + 1);
        let columned = reads.days_with_columns(self.by_samples.len(), range);
        let samples = Source::Samples {
            columns_until_ms: columned.last().map_or(i64::MIN, |day| day.end_ms),
        };
        // Without sketches that are stored, they are computed from the readings.
        let is_stored = |of: &Wanted| {
            let mut fields = of.fields.iter();
            reads.kinds.columns.is_some()
                && fields.all(|(name, _)| reads.weightings.has_sketch(name))
        };
        let sketches = match self.by_sketches.iter().all(is_stored) {
            true => Source::Summaries,
            false => samples,
        };
        cost(&self.by_windows, Source::Summaries)
            .plus(cost(&self.by_sketches, sketches))
            .plus(cost(&self.by_samples, samples))
    }
}

/// Some series, or a stretch of them, and what may be missing.
pub(crate) type Parts<'a> = BoxStream<'a, Result<(Part, Missing), SelectError>>;

impl ReadService {
    /// Finds the series of a selector. `series_left`: how many more the query may select; fewer
    /// afterwards.
    ///
    /// # Errors
    /// The store failed, or there are more; `None` in the latter case.
    pub(crate) async fn find_series(
        &self,
        request: SelectorRequest,
        series_left: &mut usize,
        may_read: MayRead<'_>,
    ) -> Result<Option<FoundSeries>, ReadError> {
        let mut found = FoundSeries {
            by_windows: vec![],
            by_sketches: vec![],
            by_samples: vec![],
            lacks_fields: false,
            request,
        };
        let after_ms = found.request.after_ms();
        let to_ms = found.request.to_ms();
        if to_ms <= after_ms {
            return Ok(Some(found));
        }
        let answered_by = match found.request.windows.range_ms >= self.span().ms() {
            true => found.request.answered_by,
            false => AnsweredBy::Samples,
        };
        let matchers = std::mem::take(&mut found.request.matchers);
        let selector = SeriesSelector::new(&matchers);
        let query = selector.query(Some((after_ms + 1, to_ms + 1)));
        let each = |entry: CatalogEntry| {
            if !may_read(&entry.sensor_id) || !selector.has_sensor(&entry) {
                return Ok(());
            }
            let (numbers, others): (Vec<_>, Vec<_>) = series_of(&entry, &selector)
                .into_iter()
                .partition(|(_, _, is_number)| *is_number && answered_by != AnsweredBy::Samples);
            let of_numbers = match answered_by {
                AnsweredBy::Sketches => &mut found.by_sketches,
                AnsweredBy::Stats | AnsweredBy::Samples => &mut found.by_windows,
            };
            found.lacks_fields |= entry.is_truncated && !selector.lists_names();
            for (fields, to) in [(numbers, of_numbers), (others, &mut found.by_samples)] {
                *series_left = series_left.checked_sub(fields.len()).ok_or(Full::Series)?;
                if !fields.is_empty() {
                    to.push(Wanted {
                        sensor_id: entry.sensor_id.clone(),
                        is_narrow: entry.fields.len() > fields.len() + OTHER_FIELDS_MAX,
                        fields: fields
                            .into_iter()
                            .map(|(name, labels, _)| (name, labels))
                            .collect(),
                    });
                }
            }
            Ok(())
        };
        match self.each_sensor(&query, each).await {
            Ok(()) => Ok(Some(found)),
            Err(Full::Series) => Ok(None),
            Err(Full::Read(error)) => Err(error),
        }
    }

    /// Reads these series, part by part.
    pub(crate) fn parts(&self, found: FoundSeries, samples_max: usize) -> Parts<'_> {
        let FoundSeries {
            request,
            by_windows,
            by_sketches,
            by_samples,
            ..
        } = found;
        let range = (request.after_ms() + 1, request.to_ms() + 1);
        let windows = self.windows(by_windows, request.windows, samples_max);
        let sketches = self.sketches(by_sketches, request.windows, samples_max);
        let samples = self.samples_of(by_samples, range);
        windows.chain(sketches).chain(samples).boxed()
    }
}

/// Fields of a sensor besides those of a query that are cheaper to transfer than to leave out.
const OTHER_FIELDS_MAX: usize = 6;

/// Ends a search.
enum Full {
    Series,
    Read(ReadError),
}

impl From<ReadError> for Full {
    fn from(error: ReadError) -> Full {
        Full::Read(error)
    }
}

/// The series of a sensor that match: field, labels, and whether the field has only had numbers.
fn series_of(entry: &CatalogEntry, selector: &SeriesSelector<'_>) -> Vec<(String, Labels, bool)> {
    let of_sensor = SensorLabels::new(entry);
    let recorded = selector.fields(entry).map(|(field, kinds)| {
        let is_number = !kinds.contains(FieldKinds::BOOL);
        (field, is_number)
    });
    // A field that is not recorded may have had values of any kind.
    let unrecorded = selector.unrecorded(entry).map(|field| (field, false));
    let fields = recorded.chain(unrecorded);
    let series = |(field, is_number): (&str, bool)| {
        let labels = of_sensor.with(field);
        (field.to_owned(), labels, is_number)
    };
    fields.map(series).collect()
}
