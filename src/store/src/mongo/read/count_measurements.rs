//! Reads the measurements of time-series buckets for a load: their number, and the keys of the
//! requested ones.
//!
//! Buckets are grouped so that one command serves many of them. Consecutive hours of one sensor
//! form a run, and runs of several sensors over the same time form a group. The server counts by
//! sensor and hour and returns one row per bucket. If the count of a group times out, it is split
//! by time, down to [`SLICE_MIN_MS`]. Keys are streamed in batches that each arrive quickly.
//!
//! If a bucket is loaded with `doubt` and its summary does not count exactly the stored ones, it is
//! recomputed ([`crate::mongo::write::recompute_summary`]), unless counted ones were removed
//! ([`crate::retention`]).

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use futures_util::TryStreamExt;
use mongodb::bson::{DateTime, Document, RawDocument, doc};

use crate::mongo::connection::timed_out;
use crate::mongo::document::{MEASUREMENTS_PER_BATCH, int_of, key_of, measurements_of};
use crate::mongo::error::command_error;
use crate::mongo::read::load::{Load, together};
use crate::mongo::write::recompute_summary::Rewrite;
use crate::retention::Extent;
use crate::{LoadedBucket, LoadedPage, StoreError, StoreErrorKind};
use model::{ReadingKey, StorageMode};
use telemetry::metrics::{self, StoreCommand};

/// Maximum sensors per command.
const SENSORS_MAX: usize = 100;
/// A count is not split below this time range.
const SLICE_MIN_MS: i64 = 1000;
/// Number of parts into which a count that times out is split.
const SLICES: i64 = 8;

/// Buckets whose measurements are read together: all hours from `from_ms` to `to_ms` of some
/// sensors.
#[derive(Debug)]
struct Group {
    from_ms: i64,
    to_ms: i64,
    places: Vec<usize>,
}

/// The measurements of a bucket.
#[derive(Debug, Clone, Copy)]
struct Measured {
    extent: Extent,
    last_ts_ms: i64,
}

impl Measured {
    const NONE: Measured = Measured {
        extent: Extent::NONE,
        last_ts_ms: i64::MIN,
    };

    fn plus(self, other: Measured) -> Measured {
        Measured {
            extent: self.extent.plus(other.extent),
            last_ts_ms: self.last_ts_ms.max(other.last_ts_ms),
        }
    }
}

impl Load<'_> {
    /// Reads the measurements of these requests.
    pub(crate) async fn measurements(&self, places: &[usize]) {
        places.iter().for_each(|r| self.expect(*r, 1));
        together(
            self.groups(places)
                .into_iter()
                .map(|group| self.group(group))
                .collect(),
        )
        .await;
    }

    fn groups(&self, places: &[usize]) -> Vec<Group> {
        let span_ms = self.loader.connection.span().ms();
        let mut by_sensor: BTreeMap<&str, Vec<(i64, usize)>> = BTreeMap::new();
        for &r in places {
            let bucket = &self.requests[r].bucket;
            by_sensor
                .entry(&bucket.sensor_id)
                .or_default()
                .push((bucket.start.0, r));
        }
        // The requests of each run of consecutive hours, by time range and then by sensor.
        let mut runs: BTreeMap<(i64, i64), Vec<Vec<usize>>> = BTreeMap::new();
        for mut hours in by_sensor.into_values() {
            hours.sort_unstable();
            for run in hours.chunk_by(|a, b| b.0 - a.0 <= span_ms) {
                let time = (run[0].0, run[run.len() - 1].0 + span_ms);
                runs.entry(time)
                    .or_default()
                    .push(run.iter().map(|(_, r)| *r).collect());
            }
        }
        let group = |(from_ms, to_ms), sensors: &[Vec<usize>]| Group {
            from_ms,
            to_ms,
            places: sensors.concat(),
        };
        runs.iter()
            .flat_map(|(time, sensors)| sensors.chunks(SENSORS_MAX).map(|s| group(*time, s)))
            .collect()
    }

    async fn group(&self, group: Group) {
        self.begin(&group.places);
        let counts = match self.counts(&group).await {
            Ok(counts) => counts,
            Err(error) => return self.fail(&group.places, &error),
        };
        let mut keys = match self.keys(&group, &counts).await {
            Ok(keys) => keys,
            Err(error) => return self.fail(&group.places, &error),
        };
        for &r in &group.places {
            let measured = counts.get(&r).copied().unwrap_or(Measured::NONE);
            if let Err(error) = self
                .complete(r, measured, keys.remove(&r).unwrap_or_default())
                .await
            {
                self.fail(&[r], &error);
            }
        }
    }

    /// Completes the request. If it is in doubt, first recomputes a summary that does not count all
    /// measurements, or finds that counted ones were removed.
    async fn complete(
        &self,
        r: usize,
        measured: Measured,
        keys: Vec<ReadingKey>,
    ) -> Result<(), StoreError> {
        let request = &self.requests[r];
        let stored = measured.extent;
        let is_whole = self.slots_of(r, |bucket| {
            let counted = Extent::sum(bucket.pages.iter().map(LoadedPage::extent));
            counted.count == stored.count && !counted.has_lost(bucket.pages.len(), stored)
        });
        let mut is_removed = false;
        if request.doubt && !is_whole {
            let begun = Instant::now();
            let recompute = &self.loader.recompute;
            let recomputed = recompute.recompute(&request.bucket, Rewrite::IfWrong).await;
            metrics::store_command(
                StoreCommand::CountMeasurements,
                1,
                begun.elapsed().as_secs_f64(),
            );
            let recomputed = recomputed.map_err(|e| command_error(&e))?;
            is_removed = recomputed.is_removed;
            self.slots_of(r, |bucket| {
                *bucket = LoadedBucket {
                    storage_mode: StorageMode::TimeSeries,
                    pages: recomputed.pages,
                }
            });
        }
        self.slots_of(r, |bucket| {
            if let Some(head) = bucket.pages.first_mut() {
                head.last_ts_ms = head.last_ts_ms.max(measured.last_ts_ms);
                head.readings_removed |= is_removed;
                head.keys = if is_removed { vec![] } else { keys };
            }
        });
        self.piece_done(r);
        Ok(())
    }

    /// Counts the measurements of the requests with `doubt`.
    async fn counts(&self, group: &Group) -> Result<HashMap<usize, Measured>, StoreError> {
        let doubt: Vec<usize> = group
            .places
            .iter()
            .copied()
            .filter(|r| self.requests[*r].doubt)
            .collect();
        let mut counts: HashMap<usize, Measured> = HashMap::new();
        let mut ranges = if doubt.is_empty() {
            vec![]
        } else {
            vec![(group.from_ms, group.to_ms)]
        };
        while let Some((from_ms, to_ms)) = ranges.pop() {
            match self.count(&doubt, from_ms, to_ms).await {
                Ok(found) => {
                    for (r, measured) in found {
                        let sum = counts.entry(r).or_insert(Measured::NONE);
                        *sum = sum.plus(measured);
                    }
                }
                Err(error)
                    if error.kind() == StoreErrorKind::Timeout
                        && to_ms - from_ms > SLICE_MIN_MS =>
                {
                    let step = ((to_ms - from_ms) / SLICES).max(SLICE_MIN_MS);
                    ranges.extend(
                        (from_ms..to_ms)
                            .step_by(step as usize)
                            .map(|at| (at, (at + step).min(to_ms))),
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(counts)
    }

    async fn count(
        &self,
        places: &[usize],
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<(usize, Measured)>, StoreError> {
        let span = self.loader.connection.span();
        let mut sensors: Vec<&str> = places
            .iter()
            .map(|r| &*self.requests[*r].bucket.sensor_id)
            .collect();
        sensors.dedup();
        let first = span.floor(from_ms);
        let one = to_ms <= span.end(first);
        // The number of the hour, from the first one on. Omitted for a single hour, which the
        // server counts faster.
        let since = doc! { "$subtract": ["$ts", DateTime::from_millis(first.0)] };
        let hour = doc! { "$floor": { "$divide": [since, span.ms()] } };
        let id = if one {
            doc! { "s": "$meta.sensor_id" }
        } else {
            doc! { "s": "$meta.sensor_id", "h": hour }
        };
        let pipeline = vec![
            doc! { "$match": measurements_of(&sensors, from_ms, to_ms) },
            doc! { "$group": {
                "_id": id, "n": { "$sum": 1 }, "first": { "$min": "$ts" }, "last": { "$max": "$ts" },
            } },
        ];
        let by_bucket = self.by_bucket(places.iter().copied());
        let connection = &self.loader.connection;
        let readings = self.loader.detected.measurements(connection);
        let max_time = connection.timeout();
        let read = async move {
            let aggregate = readings.aggregate(pipeline).max_time(max_time);
            let cursor = aggregate.with_type::<Document>().await?;
            cursor.try_collect::<Vec<Document>>().await
        };
        let rows = connection.ask(read).await?;
        let row = |row: Document| {
            let id = row.get_document("_id").ok()?;
            let hour = id.get_f64("h").unwrap_or(0.0) as i64;
            let r = by_bucket.get(&(id.get_str("s").ok()?, first.0 + hour * span.ms()))?;
            let count = int_of(&row, "n")?;
            let time = |name: &str| Some(row.get_datetime(name).ok()?.timestamp_millis());
            let extent = Extent {
                count: u64::try_from(count).ok()?,
                first_ts_ms: time("first")?,
            };
            let last_ts_ms = time("last")?;
            Some((*r, Measured { extent, last_ts_ms }))
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    /// Reads the keys of the requested measurements.
    async fn keys(
        &self,
        group: &Group,
        counts: &HashMap<usize, Measured>,
    ) -> Result<HashMap<usize, Vec<ReadingKey>>, StoreError> {
        // A bucket that was counted and has no measurement in the requested range is not read
        // again.
        let wants = |r: &usize| {
            let from_ms = self.requests[*r].readings_from?;
            let last_ts_ms = if self.requests[*r].doubt {
                counts.get(r)?.last_ts_ms
            } else {
                i64::MAX
            };
            (last_ts_ms >= from_ms).then_some(from_ms)
        };
        let places: Vec<usize> = group
            .places
            .iter()
            .copied()
            .filter(|r| wants(r).is_some())
            .collect();
        let mut keys = HashMap::new();
        let Some(from_ms) = places.iter().filter_map(wants).min() else {
            return Ok(keys);
        };
        let mut sensors: Vec<&str> = places
            .iter()
            .map(|r| &*self.requests[*r].bucket.sensor_id)
            .collect();
        sensors.dedup();
        let by_bucket = self.by_bucket(places.iter().copied());
        let filter = measurements_of(&sensors, from_ms.max(group.from_ms), group.to_ms);
        let span = self.loader.connection.span();
        let connection = &self.loader.connection;
        let time = connection.timeout();
        let readings = self.loader.detected.measurements(connection);
        let find = readings.find(filter).batch_size(MEASUREMENTS_PER_BATCH);
        let cursor = tokio::time::timeout(time, find.into_future())
            .await
            .map_err(|_| timed_out(time))?;
        let mut cursor = cursor.map_err(|e| command_error(&e))?;
        loop {
            // Immediate if the batch has already arrived.
            let more = tokio::time::timeout(time, cursor.advance())
                .await
                .map_err(|_| timed_out(time))?;
            if !more.map_err(|e| command_error(&e))? {
                return Ok(keys);
            }
            let document = cursor.current();
            let Some((sensor, ts_ms)) = sensor_and_time(document) else {
                continue;
            };
            let Some(&r) = by_bucket.get(&(sensor, span.floor(ts_ms).0)) else {
                continue;
            };
            if wants(&r).is_some_and(|from_ms| ts_ms >= from_ms) {
                keys.entry(r)
                    .or_insert_with(Vec::new)
                    .extend(key_of(document));
            }
        }
    }
}

fn sensor_and_time(document: &RawDocument) -> Option<(&str, i64)> {
    let id = document
        .get_document("meta")
        .ok()?
        .get_str("sensor_id")
        .ok()?;
    Some((id, document.get_datetime("ts").ok()?.timestamp_millis()))
}
