//! The list of sensors: those in the store and those only in memory, with their newest state.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;

use super::{ReadError, ReadService};
use crate::accumulate::query::{ShardQuery, ShardResponse};
use crate::accumulate::state::snapshot::SensorSnapshot;
use crate::model::{SensorId, Tags, Value, keep_newer, stable_hash};
use crate::route::shard_of;
use crate::store::reading::{SensorQuery, StoredSensor};

/// A sensor and its newest state.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorState {
    /// The id as sent.
    pub sensor_id: SensorId,
    /// The latest time of its readings, ms since 1970.
    pub last_ts_ms: Option<i64>,
    /// The tags of its last messages, or the stored ones.
    pub tags: BTreeMap<String, String>,
    /// The newest value of each field, with its time.
    pub last: BTreeMap<String, (i64, Value)>,
}

/// A page of sensors, and the id after which there may be more.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SensorList {
    /// In byte order of the ids.
    pub sensors: Vec<SensorState>,
    /// The last id of this page if there are more.
    pub next: Option<SensorId>,
}

impl ReadService {
    /// Up to `limit` sensors whose ids begin with `prefix`, after the id `after`.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn sensors(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<SensorList, ReadError> {
        self.within(self.list(prefix, after, limit)).await
    }

    /// Reads memory before the store, for the ids and for their state: rows that leave memory in between are stored.
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<SensorList, ReadError> {
        self.caught_up().await;
        let (prefix, after) = (prefix.to_owned(), after.map(ToOwned::to_owned));
        let queries = (0..self.shards.len()).map(|shard| {
            let query = ShardQuery::Ids { prefix: prefix.clone(), after: after.clone(), limit: limit + 1 };
            self.query(shard, query)
        });
        let mut ids: BTreeSet<SensorId> = BTreeSet::new();
        for answered in try_join_all(queries).await? {
            if let ShardResponse::Ids(found) = answered.response {
                ids.extend(found);
            }
        }
        let query = SensorQuery { prefix, after, limit: limit + 1 };
        ids.extend(self.store.sensors(&query).await?.into_iter().map(SensorId::from));
        let more = ids.len() > limit;
        let ids: Vec<SensorId> = ids.into_iter().take(limit).collect();
        let memory = self.snapshots(&ids).await?;
        let stored = self.store.newest(&ids).await?;
        let next = ids.last().filter(|_| more).cloned();
        let sensors = ids.into_iter().zip(memory.into_iter().zip(stored));
        Ok(SensorList { sensors: sensors.map(|(id, (memory, stored))| state(id, memory, stored)).collect(), next })
    }

    /// The shards' snapshots of these sensors, in their order.
    async fn snapshots(&self, ids: &[SensorId]) -> Result<Vec<SensorSnapshot>, ReadError> {
        let mut of_shard: Vec<Vec<usize>> = vec![vec![]; self.shards.len()];
        for (i, id) in ids.iter().enumerate() {
            of_shard[shard_of(stable_hash(id), self.shards.len())].push(i);
        }
        let queries =
            of_shard.iter().enumerate().filter(|(_, places)| !places.is_empty()).map(|(shard, places)| async move {
                let of_shard: Vec<SensorId> = places.iter().map(|i| ids[*i].clone()).collect();
                Ok::<_, ReadError>((places, self.query(shard, ShardQuery::Snapshots(of_shard)).await?))
            });
        let mut snapshots = vec![SensorSnapshot::default(); ids.len()];
        for (places, answered) in try_join_all(queries).await? {
            if let ShardResponse::Snapshots(found) = answered.response {
                places.iter().zip(found).for_each(|(i, found)| snapshots[*i] = found);
            }
        }
        Ok(snapshots)
    }
}

/// Combines both: the newer value of each field, and the tags of the sensor's last messages.
fn state(sensor_id: SensorId, memory: SensorSnapshot, stored: StoredSensor) -> SensorState {
    let mut last = stored.values;
    for (name, (ts_ms, value)) in &memory.values {
        keep_newer(&mut last, *ts_ms, std::iter::once((name.as_str(), value.as_ref())));
    }
    let mut tags = stored.tags;
    if let Some(own) = memory.tags.as_deref() {
        tags = entries(own);
    }
    let newest = last.values().map(|(ts_ms, _)| *ts_ms).max();
    SensorState { sensor_id, last_ts_ms: stored.last_ts_ms.max(memory.last_ts_ms).max(newest), tags, last }
}

fn entries(tags: &Tags) -> BTreeMap<String, String> {
    tags.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
