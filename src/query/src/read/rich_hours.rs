//! The rich summaries of a sensor's hours ([`::columns::DayHours`]): stored ones, and those of days that
//! have none or may have changed, computed from the readings.
//!
//! The order makes the answer current as in [`super::days`]: the rows in memory, the pending and marked
//! days, then the documents. What is computed follows the rules of the stored hours, so an
//! answer does not show where an hour comes from.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::merge::Window;
use super::{QueryResult, ReadError, ReadService};
use ::columns::{FieldHour, HoursEncoder, Weighting};
use model::{BucketStart, Day, SensorId};
use pipeline::accumulate::UnstoredBucket;
use store::columns::ColumnsQuery;

/// Readings that are read at once.
const STEP: usize = 10_000;
/// Fields of one answer, counted in each of its hours.
const FIELD_HOURS_MAX: usize = 200_000;

/// The fields of a sensor by bucket; without buckets that have none.
pub(crate) type RichHours = BTreeMap<BucketStart, BTreeMap<Arc<str>, FieldHour>>;

impl ReadService {
    /// The same service, whose hours are weighted by time like this.
    #[must_use]
    pub fn with_weighting(self, weighting: Weighting) -> ReadService {
        ReadService { weighting, ..self }
    }

    /// The rich summaries of the sensor's buckets that overlap a time range (ms since 1970, end
    /// exclusive), of one field or of all.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn rich_hours(
        &self,
        sensor_id: &str,
        field: Option<&str>,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<QueryResult<RichHours>, ReadError> {
        self.within(self.gather_rich_hours(sensor_id.into(), field, (from_ms, to_ms)))
            .await
    }

    async fn gather_rich_hours(
        &self,
        sensor_id: SensorId,
        field: Option<&str>,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<QueryResult<RichHours>, ReadError> {
        let mut answer = RichHours::new();
        let mut complete = true;
        if from_ms < to_ms {
            let from_ms = self.span().floor(from_ms).0;
            let to_ms = self.span().end(self.span().floor(to_ms - 1));
            let stored = self.stored_hours(&sensor_id, field, (from_ms, to_ms));
            let stored = stored.await?;
            complete &= stored.complete;
            let mut at_ms = from_ms;
            let mut gaps = vec![];
            for (day, hours) in stored.answer {
                let (start_ms, end_ms) = self.buckets_of(day, (from_ms, to_ms));
                if at_ms < start_ms {
                    gaps.push((at_ms, start_ms));
                }
                at_ms = end_ms.max(at_ms);
                answer.extend(hours);
            }
            gaps.extend((at_ms < to_ms).then_some((at_ms, to_ms)));
            for gap in gaps {
                let computed = self.computed_hours(&sensor_id, field, gap).await?;
                complete &= computed.complete;
                answer.extend(computed.answer);
            }
            answer.retain(|start, _| (from_ms..to_ms).contains(&start.0));
            let fields = answer.values().map(BTreeMap::len).sum::<usize>();
            if fields > FIELD_HOURS_MAX {
                return Err(ReadError::TooManyFields);
            }
        }
        Ok(QueryResult { answer, complete })
    }

    /// The days whose stored hours have all readings.
    async fn stored_hours(
        &self,
        sensor_id: &SensorId,
        field: Option<&str>,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<QueryResult<BTreeMap<Day, RichHours>>, ReadError> {
        let mut stored = QueryResult {
            answer: BTreeMap::new(),
            complete: true,
        };
        let all: Vec<Day> = self.zone.days(from_ms, to_ms).collect();
        let (Some(first), Some(last), Some(store), Some(_)) = (
            all.first(),
            all.last(),
            self.store.columns(),
            self.kinds.columns,
        ) else {
            return Ok(stored);
        };
        let view = self.view(sensor_id, first.start_ms, last.end_ms).await?;
        stored.complete = view.complete;
        let cut_ms = view.answer.cut_ms.unwrap_or(i64::MAX);
        let held = view.answer.buckets.iter().map(UnstoredBucket::start);
        let one = std::slice::from_ref(sensor_id);
        let changed = self.changed_days(one, std::iter::once(held), &all).await?;
        let Some(changed) = changed.and_then(|mut changed| changed.pop()) else {
            return Ok(stored);
        };
        let query = ColumnsQuery {
            sensor_ids: vec![sensor_id.clone()],
            from_ms: first.start_ms,
            to_ms: last.end_ms,
            fields: field.map(ToOwned::to_owned).into_iter().collect(),
        };
        for found in store.hours_of(&query).await?.days {
            let day = self.zone.day(found.day_ms);
            let is_current = day.start_ms == found.day_ms && day.end_ms <= cut_ms;
            if !is_current || changed.contains(&day) || found.hours.is_truncated {
                continue;
            }
            let starts = self.starts_of(day);
            let mut hours = RichHours::new();
            for (name, of_field) in found.hours.fields {
                for (hour, of_hour) in of_field {
                    if let Some(start) = starts.get(hour) {
                        let fields = hours.entry(*start).or_default();
                        fields.insert(name.clone(), of_hour);
                    }
                }
            }
            stored.answer.insert(day, hours);
        }
        Ok(stored)
    }

    /// The hours of a range of whole buckets, from their readings.
    async fn computed_hours(
        &self,
        sensor_id: &SensorId,
        field: Option<&str>,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<QueryResult<RichHours>, ReadError> {
        let mut answer = RichHours::new();
        let mut complete = true;
        for day in self.zone.days(from_ms, to_ms) {
            let (start_ms, end_ms) = self.buckets_of(day, (from_ms, to_ms));
            let mut starts = self.starts_of(day);
            starts.retain(|start| (start_ms..end_ms).contains(&start.0));
            let bounds = starts.iter().map(|start| start.0).chain([end_ms]).collect();
            let mut encoder = HoursEncoder::new(bounds, |_: &str| self.weighting);
            let mut window = Window {
                from_ms: start_ms,
                to_ms: end_ms,
                after: None,
                limit: STEP,
            };
            loop {
                let found = self.gather(sensor_id.clone(), window).await?;
                complete &= found.complete;
                encoder.add(&found.answer.rows);
                window.after = found.answer.next;
                if window.after.is_none() {
                    break;
                }
            }
            for (name, hours) in encoder.finish().fields {
                if field.is_some_and(|field| *name != *field) {
                    continue;
                }
                for (hour, of_hour) in hours {
                    if let Some(start) = starts.get(hour) {
                        let fields = answer.entry(*start).or_default();
                        fields.insert(name.clone(), of_hour);
                    }
                }
            }
        }
        Ok(QueryResult { answer, complete })
    }

    /// The starts of a day's buckets, in the order of the entries of its stored hours.
    fn starts_of(&self, day: Day) -> Vec<BucketStart> {
        let span_ms = self.span().ms();
        let (from_ms, to_ms) = self.buckets_of(day, (i64::MIN, i64::MAX));
        let starts = (0..).map(|n| BucketStart(from_ms + n * span_ms));
        starts.take_while(|start| start.0 < to_ms).collect()
    }
}
