//! Fleet overview: the busiest sensors, the newest, and those that have become silent.
//!
//! The shards are scanned step by step, at most once per [`FRESH`], however many clients query. The
//! data is from this process: a restart begins empty, and a second instance has its own. Only long
//! silence is known from the catalogue ([`super::silence`]).

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout};

pub use super::fleet_cache::Fleet;

use super::{ReadError, ReadService, TIME_MAX};
use crate::accumulate::query::{ShardQuery, ShardResponse};
use crate::accumulate::state::snapshot::{FLEET_MAX, NewSensor, ShardFleet, SilentSensor};
use crate::model::SensorId;
use crate::store::catalog::CatalogCounts;

/// How long a result is reused.
const FRESH: Duration = Duration::from_secs(3);
/// New sensors that are looked up in the store in one request.
const LOOK_UP_MAX: usize = 256;
/// Time limit of that lookup.
const LOOK_UP_TIME: Duration = Duration::from_secs(2);
/// Maximum number of sensors for which the lookup result is cached.
const KNOWN_MAX: usize = 4096;

impl ReadService {
    /// The fleet, at most a few seconds old.
    ///
    /// # Errors
    /// See [`ReadError`]. The fleet does not depend on the store.
    pub async fn fleet(&self) -> Result<Fleet, ReadError> {
        timeout(TIME_MAX, self.look())
            .await
            .unwrap_or(Err(ReadError::TimedOut))
    }

    async fn look(&self) -> Result<Fleet, ReadError> {
        let mut cached = self.fleet.0.lock().await;
        if let Some((at, fleet)) = &cached.fleet
            && at.elapsed() < FRESH
        {
            return Ok(fleet.clone());
        }
        let as_of_ms = self.now_ms();
        let asks = (0..self.shards.len()).map(|shard| self.query(shard, ShardQuery::Fleet));
        let mut parts = vec![];
        for answered in try_join_all(asks).await? {
            if let ShardResponse::Fleet(part) = answered.response {
                parts.push(part);
            }
        }
        let mut fleet = merged(parts, as_of_ms);
        add_silent(&mut fleet, &self.silence.counts());
        self.keep_new(&mut fleet.newest, &mut cached.known).await;
        cached.fleet = Some((Instant::now(), fleet.clone()));
        Ok(fleet)
    }

    /// Keeps only sensors that were not in the store before: after a restart every sensor is new to
    /// the shards.
    async fn keep_new(&self, met: &mut Vec<NewSensor>, known: &mut HashMap<SensorId, bool>) {
        met.truncate(LOOK_UP_MAX);
        if known.len() > KNOWN_MAX {
            known.clear();
        }
        let ask: Vec<NewSensor> = met
            .iter()
            .filter(|m| !known.contains_key(&m.sensor_id))
            .cloned()
            .collect();
        let ids: Vec<SensorId> = ask.iter().map(|m| m.sensor_id.clone()).collect();
        if !ids.is_empty()
            && let Ok(Ok(first)) = timeout(LOOK_UP_TIME, self.store.first_buckets(&ids)).await
        {
            for (met, first) in ask.into_iter().zip(first) {
                let before = first.is_some_and(|start| start < self.span.floor(met.at_ms));
                known.insert(met.sensor_id, before);
            }
        }
        // Sensors without an answer from the store are omitted for now.
        met.retain(|m| known.get(&m.sensor_id) == Some(&false));
        met.truncate(FLEET_MAX);
    }
}

fn merged(parts: Vec<ShardFleet>, as_of_ms: i64) -> Fleet {
    let mut fleet = Fleet {
        as_of_ms,
        ..Fleet::default()
    };
    for part in parts {
        fleet.sensors += part.sensors;
        fleet.busiest.extend(part.busiest);
        fleet.silent.extend(part.silent);
        fleet.newest.extend(part.new_sensors);
    }
    fleet.busiest.sort_by(|a, b| {
        b.readings_per_minute
            .total_cmp(&a.readings_per_minute)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
    fleet.silent.sort_by(|a, b| {
        b.arrived_ms
            .cmp(&a.arrived_ms)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
    fleet.newest.sort_by(|a, b| {
        b.at_ms
            .cmp(&a.at_ms)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
    fleet.busiest.truncate(FLEET_MAX);
    fleet.silent.truncate(FLEET_MAX);
    fleet
}

/// Adds those that the catalogue knows to be silent, also since before the start and of other
/// instances.
fn add_silent(fleet: &mut Fleet, counts: &CatalogCounts) {
    (fleet.known, fleet.silent_total) = (counts.known, counts.arrived);
    for entry in &counts.latest {
        if fleet.silent.len() < FLEET_MAX
            && !fleet.silent.iter().any(|s| s.sensor_id == entry.sensor_id)
        {
            let sensor_id = entry.sensor_id.clone();
            let last_ts_ms = entry.last_ts_ms;
            let arrived_ms = entry.arrived_ms;
            fleet.silent.push(SilentSensor {
                sensor_id,
                last_ts_ms,
                arrived_ms,
            });
        }
    }
    fleet.silent.sort_by(|a, b| {
        b.arrived_ms
            .cmp(&a.arrived_ms)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
}
