//! The list of sensors: those in the store and those only in memory, with their newest state.
//!
//! The ids come from the catalogue.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use super::{ReadError, ReadService, TIME_MAX};
use model::{SensorId, SensorPatterns, Tags, Value, keep_newer, stable_hash};
use pipeline::accumulate::state::snapshot::{SensorSnapshot, SnapshotQuery};
use pipeline::route::shard_of;
use store::catalog::{CatalogEntry, CatalogQuery};
use store::reading::StoredSensor;

/// A sensor and its newest state.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorState {
    /// The id as sent.
    pub sensor_id: SensorId,
    /// The latest time of its readings, ms since 1970.
    pub last_ts_ms: Option<i64>,
    /// The tags of its newest reading that had any, and those of the registry.
    pub tags: BTreeMap<String, String>,
    /// The newest value of each field, with its time.
    pub last: BTreeMap<String, (i64, Value)>,
    /// What the catalogue has of it.
    pub entry: CatalogEntry,
    /// Whether nothing of it has arrived for `sensors.silent_after`; `None` while that is unknown.
    pub(crate) is_silent: Option<bool>,
    /// Other ids whose readings count for it.
    pub(crate) former_ids: Vec<SensorId>,
}

/// Sensors whose ids one request looks at, if its reader may not read all sensors.
const LOOKED_AT_MAX: usize = 20_000;
/// Sensors in one step of it.
const STEP_MAX: usize = 1000;
/// Sensors that a list may have to look at if it is not in the order of the ids, or goes back.
pub(crate) const SORTED_MAX: usize = 100_000;

/// What sensors are sorted by; times are as precise as the catalogue has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SortKey {
    Id,
    LastArrival,
    FirstTs,
}

/// Where a page begins or ends: the sort key (0 for the id) and the id of a sensor.
pub(crate) type Place = (i64, SensorId);

/// Which sensors a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SensorListQuery {
    /// Only ids that begin with this.
    pub prefix: String,
    /// Only ids after this one, in byte order.
    pub after: Option<String>,
    /// The maximum number of sensors.
    pub limit: usize,
    /// Only silent sensors.
    pub(crate) is_silent: bool,
    /// Only sensors with all of these tags: name and value.
    pub(crate) tags: Vec<(String, String)>,
    /// Only sensors of whose id or tags this, in lower case, is a part.
    pub(crate) search: String,
    /// Only sensors that the reader may read; `None`: all.
    pub readable: Option<SensorPatterns>,
}

/// Another order than that of the ids, or a page before a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SensorOrder {
    pub(crate) key: SortKey,
    pub(crate) is_descending: bool,
    /// The page after this place, or the one before it.
    pub(crate) place: Option<Place>,
    pub(crate) is_before: bool,
}

impl SensorOrder {
    fn place_of(&self, entry: &CatalogEntry) -> Place {
        let key = match self.key {
            SortKey::Id => 0,
            SortKey::LastArrival => entry.arrived_ms,
            SortKey::FirstTs => entry.first_ts_ms,
        };
        (key, entry.sensor_id.clone())
    }
}

impl SensorListQuery {
    /// Whether a sensor is in the list.
    fn lists(&self, entry: &CatalogEntry) -> bool {
        let readable = self.readable.as_ref();
        readable.is_none_or(|readable| readable.matches(&entry.sensor_id))
            && (self.search.is_empty() || self.is_found(entry))
    }

    fn is_found(&self, entry: &CatalogEntry) -> bool {
        let has = |text: &str| text.to_lowercase().contains(&self.search);
        let mut tags = entry.tags.iter();
        has(&entry.sensor_id) || tags.any(|(name, value)| has(&format!("{name}={value}")))
    }

    /// Prefixes of the ids that match, so that those between them are not looked at: sorted, and
    /// none begins with another.
    fn prefixes(&self) -> Vec<String> {
        let prefix = &*self.prefix;
        let Some(readable) = &self.readable else {
            return vec![prefix.to_owned()];
        };
        let both = |of_reader: &str| match of_reader.starts_with(prefix) {
            true => Some(of_reader.to_owned()),
            false => prefix.starts_with(of_reader).then(|| prefix.to_owned()),
        };
        readable.prefixes().into_iter().filter_map(both).collect()
    }
}

/// A page of sensors, and the id after which there may be more.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SensorList {
    /// In byte order of the ids.
    pub sensors: Vec<SensorState>,
    /// The next page begins after this id; `None` at the end. It is the last one of this page,
    /// unless the request ended in a long run of ids that its reader may not read: then it is one
    /// of those, and must not be shown.
    pub next: Option<SensorId>,
    /// In another order: whether there are more before and after this page.
    pub(crate) has_more: (bool, bool),
}

impl ReadService {
    /// One page of the list.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn sensors(&self, query: &SensorListQuery) -> Result<SensorList, ReadError> {
        self.within(self.list(query)).await
    }

    /// Reads memory before the store, for the ids and for their state: rows that leave memory in
    /// between are stored.
    async fn list(&self, query: &SensorListQuery) -> Result<SensorList, ReadError> {
        let arrivals_ms = self.silence.arrivals_ms();
        if query.is_silent && arrivals_ms.is_none() {
            return Err(ReadError::NotKnownYet);
        }
        let (found, next) = self.listed(query, arrivals_ms).await?;
        Ok(SensorList {
            sensors: self.states(found, arrivals_ms).await?,
            next,
            has_more: (false, false),
        })
    }

    /// A page in another order.
    ///
    /// # Errors
    /// See [`ReadError`]; [`ReadError::TooManySensors`] if it would look at too many.
    pub(crate) async fn sorted_sensors(
        &self,
        query: &SensorListQuery,
        order: &SensorOrder,
    ) -> Result<SensorList, ReadError> {
        let arrivals_ms = self.silence.arrivals_ms();
        if query.is_silent && arrivals_ms.is_none() {
            return Err(ReadError::NotKnownYet);
        }
        let selected = timeout(TIME_MAX, self.selected(query, order, arrivals_ms)).await;
        let mut found = selected.map_err(|_| ReadError::TimedOut)??;
        let is_more = found.len() > query.limit;
        found.truncate(query.limit);
        let is_moved = order.place.is_some();
        let has_more = match order.is_before {
            true => (is_more, is_moved),
            false => (is_moved, is_more),
        };
        if order.is_before {
            found.reverse();
        }
        let sensors = self.within(self.states(found, arrivals_ms)).await?;
        Ok(SensorList {
            sensors,
            next: None,
            has_more,
        })
    }

    /// The sensors nearest to the place of the order, from there on; one more than the limit if
    /// there are more.
    async fn selected(
        &self,
        query: &SensorListQuery,
        order: &SensorOrder,
        arrivals_ms: Option<(i64, i64)>,
    ) -> Result<Vec<CatalogEntry>, ReadError> {
        let mut nearest: BTreeMap<Place, CatalogEntry> = BTreeMap::new();
        let mut looked_at = 0;
        let goes_up = order.is_descending == order.is_before;
        let catalog_query = CatalogQuery {
            prefixes: query.prefixes(),
            tags: query.tags.clone(),
            arrived_ms: arrivals_ms.filter(|_| query.is_silent),
            ..CatalogQuery::default()
        };
        if catalog_query.prefixes.is_empty() {
            return Ok(vec![]);
        }
        self.each_sensor(&catalog_query, |entry| {
            looked_at += 1;
            if looked_at > SORTED_MAX {
                return Err(ReadError::TooManySensors);
            }
            let place = order.place_of(&entry);
            let is_beyond = order.place.as_ref().is_none_or(|from| match goes_up {
                true => place > *from,
                false => place < *from,
            });
            if is_beyond && query.lists(&entry) {
                nearest.insert(place, entry);
                if nearest.len() > query.limit + 1 {
                    match goes_up {
                        true => nearest.pop_last(),
                        false => nearest.pop_first(),
                    };
                }
            }
            Ok(())
        })
        .await?;
        let mut found: Vec<CatalogEntry> = nearest.into_values().collect();
        if !goes_up {
            found.reverse();
        }
        Ok(found)
    }

    /// One sensor; `None` if it is not known.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn sensor(&self, sensor_id: &str) -> Result<Option<SensorState>, ReadError> {
        let found = async {
            self.caught_up().await;
            let listed = self.known(sensor_id).await?;
            let arrivals_ms = self.silence.arrivals_ms();
            let states = self
                .states(listed.into_iter().collect(), arrivals_ms)
                .await?;
            Ok(states.into_iter().next())
        };
        self.within(found).await
    }

    /// Whether readings of this sensor have ever arrived.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn knows(&self, sensor_id: &str) -> Result<bool, ReadError> {
        self.within(async { Ok(self.known(sensor_id).await?.is_some()) })
            .await
    }

    async fn known(&self, sensor_id: &str) -> Result<Option<CatalogEntry>, ReadError> {
        let query = CatalogQuery {
            sensor_ids: Some(vec![sensor_id.into()]),
            limit: 1,
            ..CatalogQuery::default()
        };
        let found = self.find_in_steps(&query).await?.answer;
        Ok(found
            .into_iter()
            .find(|entry| *entry.sensor_id == *sensor_id))
    }

    /// The newest state of each. Reads memory before the store.
    async fn states(
        &self,
        found: Vec<CatalogEntry>,
        arrivals_ms: Option<(i64, i64)>,
    ) -> Result<Vec<SensorState>, ReadError> {
        let ids: Vec<SensorId> = found.iter().map(|entry| entry.sensor_id.clone()).collect();
        let memory = self.snapshots(&ids).await?;
        let stored = self.store.newest(&ids).await?;
        let states = found.into_iter().zip(memory.into_iter().zip(stored));
        let sensors = states.map(|(entry, (memory, stored))| {
            let range = arrivals_ms.map(|(from_ms, to_ms)| from_ms..to_ms);
            SensorState {
                is_silent: range.map(|range| range.contains(&entry.arrived_ms)),
                former_ids: self.aliases.former_ids(&entry.sensor_id),
                ..state(memory, stored, entry)
            }
        });
        Ok(sensors.collect())
    }

    /// The sensors of a page, and the id after which there may be more. Looks at [`LOOKED_AT_MAX`]
    /// ids at most: nearly all may be ones that the reader may not read.
    async fn listed(
        &self,
        query: &SensorListQuery,
        arrivals_ms: Option<(i64, i64)>,
    ) -> Result<(Vec<CatalogEntry>, Option<SensorId>), ReadError> {
        let prefixes = query.prefixes();
        self.caught_up().await;
        let mut page: Vec<CatalogEntry> = vec![];
        let mut looked_at = 0;
        let mut after = query.after.as_deref().map(SensorId::from);
        // One more than the limit shows that there are more.
        let mut step = query.limit + 1;
        while !prefixes.is_empty() {
            let in_catalog = CatalogQuery {
                prefixes: prefixes.clone(),
                tags: query.tags.clone(),
                after: after.clone(),
                arrived_ms: arrivals_ms.filter(|_| query.is_silent),
                limit: step,
                ..CatalogQuery::default()
            };
            let found = self.find_in_steps(&in_catalog).await?.answer;
            let is_end = found.len() < step;
            looked_at += found.len();
            after = found.last().map(|entry| entry.sensor_id.clone());
            page.extend(found.into_iter().filter(|entry| query.lists(entry)));
            if page.len() > query.limit {
                page.truncate(query.limit);
                let last = page.last().map(|entry| entry.sensor_id.clone());
                return Ok((page, last));
            }
            if is_end {
                break;
            }
            if looked_at >= LOOKED_AT_MAX {
                return Ok((page, after));
            }
            step = step.max(STEP_MAX);
        }
        Ok((page, None))
    }

    /// The shards' snapshots of these sensors, in their order.
    async fn snapshots(&self, ids: &[SensorId]) -> Result<Vec<SensorSnapshot>, ReadError> {
        let mut of_shard: Vec<Vec<usize>> = vec![vec![]; self.shards.len()];
        for (i, id) in ids.iter().enumerate() {
            of_shard[shard_of(stable_hash(id), self.shards.len())].push(i);
        }
        let queries = of_shard
            .iter()
            .enumerate()
            .filter(|(_, places)| !places.is_empty())
            .map(|(shard, places)| async move {
                let of_shard: Vec<SensorId> = places.iter().map(|i| ids[*i].clone()).collect();
                let query = SnapshotQuery::new(of_shard);
                Ok::<_, ReadError>((places, self.query(shard, query).await?))
            });
        let mut snapshots = vec![SensorSnapshot::default(); ids.len()];
        for (places, answered) in try_join_all(queries).await? {
            for (i, found) in places.iter().zip(answered.answer) {
                snapshots[*i] = found;
            }
        }
        Ok(snapshots)
    }
}

/// Combines all: the newer value of each field, and the tags of the newest reading.
fn state(memory: SensorSnapshot, stored: StoredSensor, entry: CatalogEntry) -> SensorState {
    let mut last = stored.values;
    for (name, (ts_ms, value)) in &memory.values {
        keep_newer(
            &mut last,
            *ts_ms,
            std::iter::once((name.as_str(), value.as_ref())),
        );
    }
    let is_newer = memory.tags_ts_ms >= entry.tags_ts_ms;
    let tags = match memory.tags.as_deref().filter(|_| is_newer) {
        Some(held) => entries(held),
        None => entry.tags.clone(),
    };
    let newest = last.values().map(|(ts_ms, _)| *ts_ms).max();
    let last_ts_ms = stored.last_ts_ms.max(memory.last_ts_ms).max(newest);
    SensorState {
        sensor_id: entry.sensor_id.clone(),
        last_ts_ms,
        tags,
        last,
        entry,
        is_silent: None,
        former_ids: vec![],
    }
}

fn entries(tags: &Tags) -> BTreeMap<String, String> {
    tags.iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
