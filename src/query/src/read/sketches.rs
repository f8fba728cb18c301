//! Quantiles from the sketches of hours ([`::columns::Sketch`]): of many sensors for PromQL
//! ([`crate::promql::sketches`] has the rules), or of one for the read API. Where stored hours have no
//! sketch, they are computed from readings.

use std::sync::atomic::AtomicUsize;

use futures_util::{StreamExt, stream};

use super::rich_hours::{Fields, HoursQuery};
use super::series::{Missing, Parts, SelectError, Wanted};
use super::windows::Budget;
use super::{QueryResult, ReadError, ReadService};
use crate::promql::sketches::{SketchedBucket, of_window};
use crate::promql::{Part, SelectedSeries, SeriesData, Windows};
use ::columns::Sketch;
use model::{BucketStart, SensorId};

/// Sensors that are read at the same time.
const SENSORS: usize = 4;

impl ReadService {
    /// The sketches of each series, a sensor at a time.
    pub(super) fn sketches(
        &self,
        wanted: Vec<Wanted>,
        windows: Windows,
        samples_max: usize,
    ) -> Parts<'_> {
        let load = move |of| async move { self.sketched(of, windows, samples_max).await };
        stream::iter(wanted).map(load).buffered(SENSORS).boxed()
    }

    async fn sketched(
        &self,
        wanted: Wanted,
        windows: Windows,
        samples_max: usize,
    ) -> Result<(Part, Missing), SelectError> {
        let budget = Budget(AtomicUsize::new(samples_max));
        let mut missing = Missing::default();
        let mut series = vec![];
        for (field, labels) in wanted.fields {
            let (buckets, of_field) = self
                .sketched_buckets(&wanted.sensor_id, &field, windows)
                .await?;
            missing = missing.and(of_field);
            budget.take(buckets.iter().map(SketchedBucket::len).sum())?;
            series.push(SelectedSeries {
                labels,
                data: SeriesData::Sketches(buckets),
            });
        }
        let until_ms = Part::WHOLE;
        Ok((Part { series, until_ms }, missing))
    }

    /// The buckets of a field, with the samples of those that a window cuts.
    async fn sketched_buckets(
        &self,
        sensor_id: &SensorId,
        field: &str,
        windows: Windows,
    ) -> Result<(Vec<SketchedBucket>, Missing), ReadError> {
        let query = HoursQuery {
            sensor_id: sensor_id.clone(),
            field: Some(field),
            range: windows.range(),
            needs_sketches: true,
        };
        let (hours, mut missing) = self.gather_rich_hours(query).await?;
        let bucket = |(start, mut fields): (BucketStart, Fields)| {
            let numbers = fields.remove(field)?.numbers?;
            SketchedBucket::new((start.0, self.span().end(start)), numbers)
        };
        let mut buckets: Vec<SketchedBucket> = hours.into_iter().filter_map(bucket).collect();
        let cut: Vec<usize> = (0..buckets.len())
            .filter(|at| buckets[*at].needs_samples(&windows))
            .collect();
        let is_next = |a: &usize, b: &usize| buckets[*a].end_ms == buckets[*b].start_ms;
        let runs: Vec<Vec<usize>> = cut.chunk_by(is_next).map(<[usize]>::to_vec).collect();
        for run in runs {
            let range = (buckets[run[0]].start_ms, buckets[run[run.len() - 1]].end_ms);
            let (mut found, of_run) = self.samples(sensor_id, &[field], range).await?;
            missing = missing.and(of_run);
            let found = found.pop().unwrap_or_default();
            for at in run {
                let bucket = &mut buckets[at];
                let samples = found.between(bucket.start_ms, bucket.end_ms);
                bucket.samples = Some(samples.last_of_each());
            }
        }
        Ok((buckets, missing))
    }

    /// The sketch of a field of a sensor between two times (ms since 1970, end exclusive).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn sketch(
        &self,
        sensor_id: &str,
        field: &str,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<QueryResult<Sketch>, ReadError> {
        let windows = Windows::one(from_ms - 1, to_ms - 1);
        let sensor_id = sensor_id.into();
        let found = self.sketched_buckets(&sensor_id, field, windows);
        let (buckets, missing) = self.within(found).await?;
        Ok(QueryResult {
            answer: of_window(&buckets, windows.bounds(0)),
            complete: missing == Missing::default(),
        })
    }
}
