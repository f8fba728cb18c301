//! The readings that the rules need besides the summaries: those at the edges of windows, of hours
//! that a window cuts, and of days that are replaced by their hours.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Asked, CONCURRENT, GROUPS, Loaded, Loading};
use crate::promql::Windows;
use crate::promql::windows::{Need, SummarisedBucket};
use crate::read::samples::Readings;
use crate::read::series::{Missing, SelectError};
use crate::read::{ReadError, ReadService};
use model::rows::Row;
use model::{BucketStart, Rows, SensorId};
use store::reading::EdgeQuery;
use store::samples::number;

/// Hours between two that are needed, which are read too rather than by another request.
const SKIPPED_HOURS_MAX: i64 = 2;
/// Buckets whose edges are read in one request.
const EDGES_AT_ONCE: usize = 1000;

impl ReadService {
    /// Loads the edges of stored buckets that are needed; returns how many. A bucket whose first
    /// reading has the time of its edge, but that has none there, has lost its readings
    /// ([`store::retention`]).
    pub(super) async fn load_edges(
        &self,
        loading: &mut [Loading],
        asked: Asked<'_>,
    ) -> Result<usize, SelectError> {
        let mut sensor_ids = vec![];
        let mut starts = BTreeSet::new();
        let mut places = vec![];
        for (i, sensor) in loading.iter().enumerate() {
            for (s, loaded) in sensor.series.iter().enumerate() {
                for (b, bucket) in loaded.buckets.iter().enumerate() {
                    let start = BucketStart(bucket.start_ms);
                    if !sensor.open.contains(&start) && bucket.need(asked.windows) == Need::Edge {
                        starts.insert(start);
                        places.push((i, s, b));
                    }
                }
            }
            if places.last().is_some_and(|(last, ..)| *last == i) {
                sensor_ids.push(sensor.sensor_id.clone());
            }
        }
        let starts: Vec<BucketStart> = starts.into_iter().collect();
        let mut edges: BTreeMap<SensorId, Rows> = BTreeMap::new();
        for starts in starts.chunks(EDGES_AT_ONCE) {
            let query = EdgeQuery {
                sensor_ids: sensor_ids.clone(),
                starts: starts.to_vec(),
            };
            for (sensor_id, rows) in self.store.edges(&query).await.map_err(ReadError::from)? {
                asked.budget.take(rows.len())?;
                let all = edges.entry(sensor_id).or_default();
                rows.iter().for_each(|row| all.push_row(&row));
            }
        }
        let edges: BTreeMap<&SensorId, Edge> = edges
            .iter()
            .map(|(id, rows)| (id, Edge::new(rows)))
            .collect();
        for (i, s, b) in &places {
            let Loading {
                sensor_id,
                missing,
                series,
                ..
            } = &mut loading[*i];
            let Loaded { field, buckets, .. } = &mut series[*s];
            let bucket = &mut buckets[*b];
            let edge = edges
                .get(sensor_id)
                .filter(|edge| edge.is_present(bucket.start_ms));
            if edge.is_none() {
                let mut gone = Missing::default();
                match bucket.start_ms < asked.expired_until_ms {
                    true => gone.expired_until_ms = Some(asked.expired_until_ms),
                    false => gone.removed_until_ms = Some(bucket.end_ms),
                }
                *missing = missing.and(gone);
            }
            bucket.edge = Some(
                edge.map(|edge| edge.values(bucket.start_ms, field))
                    .unwrap_or_default(),
            );
        }
        Ok(places.len())
    }

    /// Loads the other readings that are needed; returns in how many requests.
    pub(super) async fn load_others(
        &self,
        loading: &mut [Loading],
        asked: Asked<'_>,
    ) -> Result<usize, SelectError> {
        let loads = loading
            .iter_mut()
            .map(|sensor| self.load_other(sensor, asked));
        let mut loads = stream::iter(loads.collect::<Vec<_>>()).buffer_unordered(CONCURRENT);
        let mut loaded = 0;
        while let Some(one) = loads.try_next().await? {
            loaded += one;
        }
        Ok(loaded)
    }

    async fn load_other(
        &self,
        sensor: &mut Loading,
        asked: Asked<'_>,
    ) -> Result<usize, SelectError> {
        let mut count = 0;
        for s in 0..sensor.series.len() {
            let cut = |bucket: &SummarisedBucket| {
                bucket.is_day && bucket.need(asked.windows) == Need::Samples
            };
            if sensor.series[s].buckets.iter().any(cut) {
                self.open_days(sensor, s, asked).await?;
                count += 1;
            }
            let loaded = &mut sensor.series[s];
            let gap_ms = SKIPPED_HOURS_MAX * self.span().ms();
            let (edges, runs) = needed(loaded, &sensor.open, asked.windows, gap_ms);
            count += edges.len() + runs.len();
            let fields = [loaded.field.as_str()];
            let requests = edges
                .iter()
                .map(|b| (loaded.buckets[*b].start_ms, loaded.buckets[*b].start_ms + 1));
            let requests = requests.chain(runs.iter().map(|run| {
                (
                    loaded.buckets[run[0]].start_ms,
                    loaded.buckets[run[run.len() - 1]].end_ms,
                )
            }));
            let reads = requests.map(|range| self.samples(&sensor.sensor_id, &fields, range));
            let found: Vec<_> = stream::iter(reads.collect::<Vec<_>>())
                .buffered(GROUPS)
                .try_collect()
                .await?;
            let read = found.iter().flat_map(|(of_fields, _)| of_fields);
            asked.budget.take(read.map(Readings::len).sum())?;
            // That others were acknowledged just now is known from the views.
            let removed = found
                .iter()
                .fold(Missing::default(), |all, (_, missing)| all.and(*missing));
            sensor.missing = sensor.missing.and(Missing {
                recent: false,
                ..removed
            });
            let mut found = found
                .into_iter()
                .map(|(mut of_fields, _)| of_fields.pop().unwrap_or_default());
            for (b, readings) in edges.iter().zip(found.by_ref()) {
                loaded.buckets[*b].edge = Some(readings.values());
            }
            for (run, readings) in runs.iter().zip(found) {
                for b in run {
                    let bucket = &mut loaded.buckets[*b];
                    let of_bucket = readings.between(bucket.start_ms, bucket.end_ms);
                    bucket.readings_removed = removed.removed_until_ms >= Some(bucket.end_ms)
                        && (of_bucket.len() as u64) < bucket.stats.count;
                    if bucket.readings_removed {
                        let edge = readings.between(bucket.start_ms, bucket.start_ms + 1);
                        bucket.edge = Some(edge.values());
                    }
                    bucket.samples = Some(of_bucket.last_of_each());
                }
            }
        }
        Ok(count)
    }

    /// Replaces the days whose samples are all needed by their hours, as far as these are
    /// requested.
    async fn open_days(
        &self,
        sensor: &mut Loading,
        s: usize,
        asked: Asked<'_>,
    ) -> Result<(), SelectError> {
        let loaded = &mut sensor.series[s];
        let mut buckets = vec![];
        for bucket in std::mem::take(&mut loaded.buckets) {
            if !bucket.is_day || bucket.need(asked.windows) != Need::Samples {
                buckets.push(bucket);
                continue;
            }
            let from_ms = bucket.start_ms.max(asked.from_ms);
            let to_ms = bucket.end_ms.min(asked.to_ms);
            let hours = self
                .add_up(sensor.sensor_id.clone(), from_ms, to_ms)
                .await?
                .answer;
            // Rows may be in memory since.
            sensor.open.extend(hours.keys());
            buckets.extend(self.of_hours(&hours, &loaded.field));
        }
        loaded.buckets = buckets;
        Ok(())
    }
}

/// The hours of a series that need readings, by index: those that are partly in memory and need
/// their edge, and those that need all their readings, in runs with at most `gap_ms` between two.
fn needed(
    loaded: &Loaded,
    open: &BTreeSet<BucketStart>,
    windows: &Windows,
    gap_ms: i64,
) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut edges = vec![];
    let mut whole = vec![];
    for (b, bucket) in loaded
        .buckets
        .iter()
        .enumerate()
        .filter(|(_, bucket)| !bucket.is_day)
    {
        match bucket.need(windows) {
            Need::Edge if open.contains(&BucketStart(bucket.start_ms)) => edges.push(b),
            Need::Samples => whole.push(b),
            _ => {}
        }
    }
    let near =
        |a: &usize, b: &usize| loaded.buckets[*b].start_ms - loaded.buckets[*a].end_ms <= gap_ms;
    let runs = whole.chunk_by(near).map(<[usize]>::to_vec).collect();
    (edges, runs)
}

/// Readings at edges, in stored order.
struct Edge<'a>(Vec<Row<'a>>);

impl<'a> Edge<'a> {
    fn new(rows: &'a Rows) -> Edge<'a> {
        let mut all: Vec<_> = rows.iter().collect();
        all.sort_by_key(Row::key);
        Edge(all)
    }

    fn at(&self, ts_ms: i64) -> impl Iterator<Item = &Row<'a>> {
        let from = self.0.partition_point(|row| row.ts_ms < ts_ms);
        self.0[from..]
            .iter()
            .take_while(move |row| row.ts_ms == ts_ms)
    }

    fn is_present(&self, ts_ms: i64) -> bool {
        self.at(ts_ms).next().is_some()
    }

    fn values(&self, ts_ms: i64, field: &str) -> Vec<f64> {
        let rows = self.at(ts_ms);
        let named = rows.flat_map(move |row| {
            row.named()
                .filter(move |(name, _)| *name == field)
                .map(|(_, value)| value)
        });
        named.filter_map(number).collect()
    }
}
