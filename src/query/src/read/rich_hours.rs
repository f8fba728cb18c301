//! The rich summaries of a sensor's hours ([`::columns::DayHours`]): stored ones, and those of days that
//! have none or may have changed, computed from the readings.
//!
//! The order makes the answer current as in [`super::days`]: the rows in memory, the pending and marked
//! days, then the documents. What is computed follows the rules of the stored hours, so an
//! answer does not show where an hour comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::merge::Window;
use super::series::Missing;
use super::{QueryResult, ReadError, ReadService};
use ::columns::{DayHours, FieldHour, HoursEncoder, Weightings};
use model::{BucketStart, Day, SensorId};
use store::columns::ColumnsQuery;

/// Readings that are read at once.
const STEP: usize = 10_000;
/// Fields of one answer, counted in each of its hours.
const FIELD_HOURS_MAX: usize = 200_000;
/// Bins of a sketch that count as another field.
const BINS_OF_FIELD: usize = 16;

/// The fields of a bucket.
pub(crate) type Fields = BTreeMap<Arc<str>, FieldHour>;
/// The fields of a sensor by bucket; without buckets that have none.
pub(crate) type RichHours = BTreeMap<BucketStart, Fields>;

/// Selects rich hours.
pub(crate) struct HoursQuery<'q> {
    pub(crate) sensor_id: SensorId,
    /// Of this field; `None`: of all.
    pub(crate) field: Option<&'q str>,
    /// Of the buckets that overlap this range (ms since 1970, end exclusive).
    pub(crate) range: (i64, i64),
    /// Numbers have sketches, whether they are stored or not.
    pub(crate) needs_sketches: bool,
}

impl ReadService {
    /// The same service, whose hours are weighted by time like this.
    #[must_use]
    pub fn with_weightings(self, weightings: Weightings) -> ReadService {
        ReadService { weightings, ..self }
    }

    /// The rich summaries of the sensor's buckets.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn rich_hours(
        &self,
        query: HoursQuery<'_>,
    ) -> Result<QueryResult<RichHours>, ReadError> {
        let (answer, missing) = self.within(self.gather_rich_hours(query)).await?;
        Ok(QueryResult {
            answer,
            complete: !missing.recent,
        })
    }

    pub(super) async fn gather_rich_hours(
        &self,
        query: HoursQuery<'_>,
    ) -> Result<(RichHours, Missing), ReadError> {
        let (from_ms, to_ms) = query.range;
        let mut gathered = Gathered::default();
        let mut missing = Missing::default();
        if from_ms < to_ms {
            let first = self.span().floor(from_ms);
            let range = (first.0, self.span().end(self.span().floor(to_ms - 1)));
            let stored = self.add_stored(&query, range, &mut gathered).await?;
            missing.recent = !stored.complete;
            for gap in self.gaps(&stored.answer, range) {
                missing = missing.and(self.add_computed(&query, gap, &mut gathered).await?);
            }
        }
        Ok((gathered.hours, missing))
    }

    /// Adds the days whose stored hours have all readings; returns these days.
    async fn add_stored(
        &self,
        query: &HoursQuery<'_>,
        range: (i64, i64),
        gathered: &mut Gathered,
    ) -> Result<QueryResult<BTreeSet<Day>>, ReadError> {
        let sensor_id = &query.sensor_id;
        let mut added = QueryResult {
            answer: BTreeSet::new(),
            complete: true,
        };
        let all: Vec<Day> = self.zone.days(range.0, range.1).collect();
        let store = self
            .store
            .columns()
            .filter(|_| self.kinds.columns.is_some());
        let (Some(first), Some(last), Some(store)) = (all.first(), all.last(), store) else {
            return Ok(added);
        };
        let view = self.view(sensor_id, first.start_ms, last.end_ms).await?;
        added.complete = view.complete;
        let one = std::slice::from_ref(sensor_id);
        let Some(changed) = self.changed_days(one, &[view.answer], &all).await? else {
            return Ok(added);
        };
        let days = ColumnsQuery {
            sensor_ids: vec![sensor_id.clone()],
            from_ms: first.start_ms,
            to_ms: last.end_ms,
            fields: query.field.map(ToOwned::to_owned).into_iter().collect(),
        };
        for found in store.hours_of(&days).await?.days {
            let day = self.zone.day(found.day_ms);
            let is_current = day.start_ms == found.day_ms && !changed[0].contains(&day);
            let suffices = !query.needs_sketches || found.hours.are_sketched(query.field);
            if is_current && suffices && !found.hours.is_truncated {
                gathered.add(&self.starts_of(day), range, found.hours)?;
                added.answer.insert(day);
            }
        }
        Ok(added)
    }

    /// Adds the hours of a range of whole buckets, from their readings. Returns which of these are
    /// missing.
    async fn add_computed(
        &self,
        query: &HoursQuery<'_>,
        range: (i64, i64),
        gathered: &mut Gathered,
    ) -> Result<Missing, ReadError> {
        let weightings = match query.needs_sketches {
            true => self.weightings.with_sketches(query.field),
            false => self.weightings.clone(),
        };
        let mut missing = Missing::default();
        for day in self.zone.days(range.0, range.1) {
            let within = self.buckets_of(day, range);
            let mut starts = self.starts_of(day);
            starts.retain(|start| (within.0..within.1).contains(&start.0));
            let bounds = starts.iter().map(|start| start.0).chain([within.1]);
            let mut encoder = HoursEncoder::new(bounds.collect(), weightings.clone());
            let mut window = Window {
                from_ms: within.0,
                to_ms: within.1,
                after: None,
                limit: STEP,
            };
            loop {
                let found = self.gather(query.sensor_id.clone(), window).await?;
                missing = missing.and(Missing {
                    recent: !found.complete,
                    removed_until_ms: found.answer.removed_until_ms,
                    ..Missing::default()
                });
                encoder.add(&found.answer.rows);
                window.after = found.answer.next;
                if window.after.is_none() {
                    break;
                }
            }
            let mut hours = encoder.finish();
            hours
                .fields
                .retain(|name, _| query.field.is_none_or(|field| **name == *field));
            gathered.add(&starts, within, hours)?;
        }
        Ok(missing)
    }

    /// The starts of a day's buckets, in the order of the entries of its stored hours.
    fn starts_of(&self, day: Day) -> Vec<BucketStart> {
        let span_ms = self.span().ms();
        let (from_ms, to_ms) = self.buckets_of(day, (i64::MIN, i64::MAX));
        let starts = (0..).map(|n| BucketStart(from_ms + n * span_ms));
        starts.take_while(|start| start.0 < to_ms).collect()
    }
}

/// The hours of an answer, while they are gathered.
#[derive(Default)]
struct Gathered {
    hours: RichHours,
    /// Fields of all hours.
    fields: usize,
}

impl Gathered {
    /// Adds hours of a day, of which these are the starts, that begin within a range.
    ///
    /// # Errors
    /// [`ReadError::TooManyFields`]
    fn add(
        &mut self,
        starts: &[BucketStart],
        (from_ms, to_ms): (i64, i64),
        hours: DayHours,
    ) -> Result<(), ReadError> {
        for (name, of_field) in hours.fields {
            for (hour, of_hour) in of_field {
                let start = starts.get(hour).copied();
                let Some(start) = start.filter(|start| (from_ms..to_ms).contains(&start.0)) else {
                    continue;
                };
                let sketch = of_hour.numbers.as_ref().and_then(|of| of.sketch.as_ref());
                self.fields += 1 + sketch.map_or(0, |sketch| sketch.bins().len() / BINS_OF_FIELD);
                if self.fields > FIELD_HOURS_MAX {
                    return Err(ReadError::TooManyFields);
                }
                let fields = self.hours.entry(start).or_default();
                fields.insert(name.clone(), of_hour);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_has_too_many_fields_ends_before_it_is_in_memory() {
        let starts: Vec<BucketStart> = (0..1000).map(BucketStart).collect();
        let of_field = || (0..1000).map(|hour| (hour, FieldHour::default())).collect();
        let hours = |fields: usize| DayHours {
            fields: (0..fields)
                .map(|n| (Arc::from(format!("f{n}")), of_field()))
                .collect(),
            is_truncated: false,
        };
        let mut gathered = Gathered::default();
        gathered.add(&starts, (0, 10), hours(3)).unwrap();
        assert_eq!((gathered.fields, gathered.hours.len()), (30, 10));
        let refused = gathered.add(&starts, (0, 1000), hours(201));
        assert_eq!(refused, Err(ReadError::TooManyFields));
        let held: usize = gathered.hours.values().map(BTreeMap::len).sum();
        assert!(held <= FIELD_HOURS_MAX, "{held}");
    }
}
