//! Finds sensors by id, tag, field and time: in the catalogue, and in memory those that it does not
//! know yet.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use super::{QueryResult, ReadError, ReadService};
use model::{CatalogUpdate, SensorId, stable_hash};
use pipeline::accumulate::state::snapshot::CatalogScan;
use pipeline::route::shard_of;
use store::catalog::{CatalogEntry, CatalogQuery};

/// Most sensors that are read from each shard and from the store at a time.
const STEP_MAX: usize = 10_000;
/// The same if they are only gone through: so many are in memory, of usual entries about 5 MiB.
const EACH_STEP: usize = 1000;

/// The sensors of one step.
struct Step {
    entries: Vec<CatalogEntry>,
    /// There may be more after this one; `None` at the end.
    end: Option<SensorId>,
    complete: bool,
}

impl ReadService {
    /// The sensors that match, stored and in memory, each once, ordered by the bytes of their ids.
    ///
    /// Goes through the ids in steps, without waiting for the router. In each step memory is read
    /// before the store: what leaves memory in between is in the catalogue by then.
    pub(super) async fn find_in_steps(
        &self,
        query: &CatalogQuery,
    ) -> Result<QueryResult<Vec<CatalogEntry>>, ReadError> {
        let mut complete = true;
        let mut found = vec![];
        let mut rest = CatalogQuery {
            limit: query.limit.clamp(1, STEP_MAX),
            ..query.clone()
        };
        while found.len() < query.limit {
            let step = self.find_step(&rest).await?;
            complete &= step.complete;
            found.extend(step.entries);
            match step.end {
                Some(end) => rest.after = Some(end),
                None => break,
            }
        }
        found.truncate(query.limit);
        Ok(QueryResult {
            answer: found,
            complete,
        })
    }

    /// Gives the same sensors to `each`, one at a time, after waiting for the router. Each step has
    /// its own turn and time limit, so the caller limits the whole.
    ///
    /// # Errors
    /// Those of `each`, which ends it, and [`ReadError`].
    pub(super) async fn each_sensor<E: From<ReadError>>(
        &self,
        query: &CatalogQuery,
        mut each: impl FnMut(CatalogEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.caught_up().await;
        let mut rest = CatalogQuery {
            limit: EACH_STEP,
            ..query.clone()
        };
        loop {
            let step = self.within(self.find_step(&rest)).await?;
            step.entries.into_iter().try_for_each(&mut each)?;
            match step.end {
                Some(end) => rest.after = Some(end),
                None => return Ok(()),
            }
        }
    }

    /// The first sensors that match, of as many as the limit of the query.
    async fn find_step(&self, query: &CatalogQuery) -> Result<Step, ReadError> {
        let (memory, memory_end, incomplete) = self.uncatalogued(query).await?;
        let stored = self.store.find_catalog(query).await?;
        let stored_end = (stored.len() >= query.limit)
            .then(|| stored.last().map(|entry| entry.sensor_id.clone()))
            .flatten();
        // Up to here the step has seen all sensors.
        let end = [memory_end, stored_end].into_iter().flatten().min();
        let entries = self.merged(memory, stored, end.as_ref()).await?;
        let entries = entries
            .into_values()
            .filter(|entry| query.matches_but_id(entry));
        Ok(Step {
            entries: entries.collect(),
            end,
            complete: !incomplete,
        })
    }

    /// What the shards have in memory that the catalogue may not know; up to which sensor, if there
    /// may be more; and whether a shard lacks readings.
    async fn uncatalogued(
        &self,
        query: &CatalogQuery,
    ) -> Result<(Vec<CatalogUpdate>, Option<SensorId>, bool), ReadError> {
        let mut of_shard: Vec<Option<Vec<SensorId>>> = vec![None; self.shards.len()];
        if let Some(ids) = &query.sensor_ids {
            of_shard.fill(Some(vec![]));
            for id in ids {
                of_shard[shard_of(stable_hash(id), self.shards.len())]
                    .get_or_insert_default()
                    .push(id.clone());
            }
        }
        let asked = of_shard
            .into_iter()
            .enumerate()
            .filter(|(_, ids)| ids.as_ref().is_none_or(|ids| !ids.is_empty()));
        let asked = asked.map(|(shard, sensor_ids)| {
            let prefixes = query.prefixes.clone();
            let after = query.after.clone();
            let scan = CatalogScan::new(sensor_ids, prefixes, after, query.limit);
            self.query(shard, scan)
        });
        let mut updates = vec![];
        let mut end = None::<SensorId>;
        let mut incomplete = false;
        for answered in try_join_all(asked).await? {
            incomplete |= answered.incomplete;
            let found = answered.answer;
            if let Some(last) = found.last().filter(|_| found.len() >= query.limit) {
                let last = last.sensor_id.clone();
                end = Some(end.map_or(last.clone(), |end| end.min(last)));
            }
            updates.extend(found);
        }
        Ok((updates, end, incomplete))
    }

    /// The entries up to `end`, with those in memory.
    async fn merged(
        &self,
        memory: Vec<CatalogUpdate>,
        stored: Vec<CatalogEntry>,
        end: Option<&SensorId>,
    ) -> Result<BTreeMap<SensorId, CatalogEntry>, ReadError> {
        let is_seen = |id: &SensorId| end.is_none_or(|end| id <= end);
        let by_id = |entry: CatalogEntry| (entry.sensor_id.clone(), entry);
        let mut entries: BTreeMap<SensorId, CatalogEntry> = stored
            .into_iter()
            .filter(|entry| is_seen(&entry.sensor_id))
            .map(by_id)
            .collect();
        // Stored entries may match only together with those in memory.
        let others = memory
            .iter()
            .map(|update| &update.sensor_id)
            .filter(|id| is_seen(id) && !entries.contains_key(*id));
        let others: Vec<SensorId> = others.cloned().collect();
        if !others.is_empty() {
            let query = CatalogQuery {
                sensor_ids: Some(others),
                ..CatalogQuery::default()
            };
            entries.extend(
                self.store
                    .find_catalog(&query)
                    .await?
                    .into_iter()
                    .map(by_id),
            );
        }
        for update in memory.iter().filter(|update| is_seen(&update.sensor_id)) {
            match entries.get_mut(&update.sensor_id) {
                Some(entry) => entry.merge(update),
                None => drop(entries.insert(update.sensor_id.clone(), CatalogEntry::new(update))),
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::sensors::SensorListQuery;
    use super::*;
    use model::ack::Ack;
    use model::{FieldKinds, Reading, ReadingBatch, SensorPatterns, Span, SystemClock, Value};
    use pipeline::accumulate::PageLimits;
    use pipeline::accumulate::state::ShardSettings;
    use pipeline::accumulate::{ShardBatch, ShardGauges, ShardTask};
    use pipeline::dead_letters::DeadLetters;
    use pipeline::flush::Flusher;
    use pipeline::flush::backoff::Backoff;
    use pipeline::flush::due::DuePolicy;
    use pipeline::route::row_refs;
    use store::Store;
    use testkit::memory_store::MemoryStore;

    fn reading(sensor: &str, field: &str, site: Option<&str>) -> Reading {
        Reading {
            sensor_id: sensor.into(),
            ts_ms: 1_709_290_800_000,
            receipt_time: false,
            tags: site
                .map(|site| ("site".to_owned(), site.to_owned()))
                .into_iter()
                .collect(),
            values: [(field.to_owned(), Value::Int(1))].into(),
        }
    }

    /// A service whose shards hold these readings; the store is not written yet.
    async fn service(store: Arc<MemoryStore>, readings: &[Reading]) -> ReadService {
        let backoff = Backoff {
            min: Duration::from_millis(10),
            max: Duration::from_secs(1),
        };
        let flusher = Flusher::new(store.clone(), backoff, Span::HOUR, Arc::new(|_, _| {}));
        let settings = ShardSettings {
            span: Span::HOUR,
            page: PageLimits {
                readings: 100,
                bytes: 1 << 20,
                summary_bytes: 1 << 20,
            },
            due: DuePolicy::Age(1000),
            command_bytes_max: 4 << 20,
            command_statements_max: 20,
            bytes_max: 1 << 24,
            sensors_max: 10_000,
            dedup_keys_max: 100,
            quarantine_after_ms: 600_000,
            arrival_step_ms: 60_000,
            backoff,
        };
        let (dead, _) = DeadLetters::new(flusher.clone(), 4, 1 << 30);
        let batch: Arc<ReadingBatch> = Arc::new(readings.iter().cloned().collect());
        let mut handles = vec![];
        for row_refs in row_refs(&batch, 2) {
            let clock = Arc::new(SystemClock::new());
            let gauges = Arc::new(ShardGauges::default());
            let (handle, task) = ShardTask::new(
                settings.clone(),
                2,
                flusher.clone(),
                dead.clone(),
                clock,
                gauges,
            );
            tokio::spawn(task.run());
            let ack = Ack::with(|_| {});
            handle
                .send(ShardBatch {
                    batch: batch.clone(),
                    row_refs,
                    ack,
                    replayed: false,
                })
                .await
                .unwrap();
            handles.push(handle.query_handle());
            // The task ends with its handle.
            std::mem::forget(handle);
        }
        ReadService::new(
            handles,
            None,
            store,
            Arc::new(SystemClock::new()),
            Span::HOUR,
            (4, 4),
        )
    }

    async fn ids(reads: &ReadService, query: CatalogQuery) -> Vec<String> {
        let found = reads.find_in_steps(&query).await.unwrap();
        assert!(found.complete);
        found
            .answer
            .iter()
            .map(|entry| entry.sensor_id.to_string())
            .collect()
    }

    #[tokio::test]
    async fn sensors_are_found_in_the_store_and_in_memory_each_once() {
        let store = Arc::new(MemoryStore::new());
        let stored = |sensor: &str, field: &str, site: &str| CatalogUpdate {
            sensor_id: sensor.into(),
            tags: Some((1000, [("site".to_owned(), site.to_owned())].into())),
            fields: [(field.into(), FieldKinds::NUMBER)].into(),
            first_ts_ms: 1000,
            last_ts_ms: 1000,
            arrived_ms: 1000,
            created_ms: 0,
        };
        let a = stored("a", "temp", "north");
        let b = stored("b", "temp", "north");
        store.merge_catalog(&[&a, &b]).await.unwrap();
        let held = [
            reading("a", "humid", None),
            reading("b", "temp", Some("south")),
            reading("c", "temp", Some("north")),
        ];
        let reads = service(store, &held).await;
        let all = || CatalogQuery::default();
        let of = |site: Option<&str>, field: Option<&str>| CatalogQuery {
            tags: site
                .map(|site| ("site".to_owned(), site.to_owned()))
                .into_iter()
                .collect(),
            field: field.map(ToOwned::to_owned),
            ..CatalogQuery::default()
        };
        assert_eq!(ids(&reads, all()).await, ["a", "b", "c"]);
        assert_eq!(
            ids(&reads, of(Some("north"), None)).await,
            ["a", "c"],
            "the newest tags count"
        );
        assert_eq!(ids(&reads, of(Some("south"), None)).await, ["b"]);
        assert_eq!(
            ids(&reads, of(Some("north"), Some("humid"))).await,
            ["a"],
            "the tag is stored, the field is not"
        );
        assert_eq!(
            ids(&reads, of(None, Some("pressure"))).await,
            [] as [&str; 0]
        );
        for limit in 1..4 {
            let mut after = None;
            let mut paged = vec![];
            loop {
                let page = ids(
                    &reads,
                    CatalogQuery {
                        after: after.clone(),
                        limit,
                        ..all()
                    },
                )
                .await;
                after = page.last().map(|id| SensorId::from(id.as_str()));
                paged.extend(page.clone());
                if page.len() < limit {
                    break;
                }
            }
            assert_eq!(paged, ["a", "b", "c"], "limit {limit}");
        }
        let some = CatalogQuery {
            sensor_ids: Some(vec!["c".into(), "a".into(), "x".into()]),
            ..all()
        };
        let found = reads.find_in_steps(&some).await.unwrap().answer;
        assert_eq!(
            found
                .iter()
                .map(|entry| &*entry.sensor_id)
                .collect::<Vec<_>>(),
            ["a", "c"]
        );
        let both = [("humid", FieldKinds::NUMBER), ("temp", FieldKinds::NUMBER)];
        assert_eq!(
            found[0].fields,
            BTreeMap::from(both.map(|(name, kinds)| (name.to_owned(), kinds)))
        );
        assert_eq!(found[0].last_ts_ms, 1_709_290_800_000);
    }

    #[tokio::test]
    async fn tags_are_those_of_the_newest_reading_whenever_it_arrived() {
        let store = Arc::new(MemoryStore::new());
        let at = |sensor: &str, ago_ms: i64, site: Option<&str>| {
            let held = reading(sensor, "temp", site);
            Reading {
                ts_ms: held.ts_ms - ago_ms,
                ..held
            }
        };
        let stored = CatalogUpdate {
            sensor_id: "c".into(),
            tags: Some((
                1_709_290_800_000,
                [("site".to_owned(), "new".to_owned())].into(),
            )),
            fields: [("temp".into(), FieldKinds::NUMBER)].into(),
            first_ts_ms: 1_709_290_800_000,
            last_ts_ms: 1_709_290_800_000,
            arrived_ms: 0,
            created_ms: 0,
        };
        store.merge_catalog(&[&stored]).await.unwrap();
        let held = [
            at("a", 0, Some("new")),
            at("a", 1, Some("old")),
            at("b", 0, Some("new")),
            at("b", 30 * 3_600_000, Some("old")),
            at("c", 3_600_000, Some("old")),
            at("d", 10, Some("old")),
            at("d", 5, Some("new")),
            at("d", 5, Some("new")),
            at("d", 0, None),
        ];
        let reads = service(store, &held).await;
        let listed = reads
            .sensors(&SensorListQuery {
                limit: 10,
                ..SensorListQuery::default()
            })
            .await
            .unwrap();
        let found = reads.find_in_steps(&CatalogQuery::default()).await.unwrap();
        let sites = |tags: Vec<&BTreeMap<String, String>>| -> Vec<String> {
            tags.iter().map(|tags| tags["site"].clone()).collect()
        };
        let listed = sites(listed.sensors.iter().map(|state| &state.tags).collect());
        let found = sites(found.answer.iter().map(|entry| &entry.tags).collect());
        assert_eq!(listed, ["new"; 4]);
        assert_eq!(found, ["new"; 4]);
    }
    /// Adds these sensors to the catalogue.
    async fn catalogued(ids: impl Iterator<Item = String>) -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::new());
        let update = |id: String| CatalogUpdate {
            sensor_id: id.into(),
            tags: None,
            fields: [("temp".into(), FieldKinds::NUMBER)].into(),
            first_ts_ms: 1000,
            last_ts_ms: 1000,
            arrived_ms: 1000,
            created_ms: 0,
        };
        let updates: Vec<CatalogUpdate> = ids.map(update).collect();
        let updates: Vec<&CatalogUpdate> = updates.iter().collect();
        store.merge_catalog(&updates).await.unwrap();
        store
    }

    /// The ids and the `next` of each page, for a reader with these rules.
    async fn pages(
        reads: &ReadService,
        readable: &[&'static str],
        prefix: &str,
        limit: usize,
    ) -> Vec<(Vec<String>, Option<String>)> {
        let mut query = SensorListQuery {
            prefix: prefix.to_owned(),
            limit,
            readable: Some(SensorPatterns::parse(readable.iter().copied()).unwrap()),
            ..SensorListQuery::default()
        };
        let mut pages = vec![];
        loop {
            let list = reads.sensors(&query).await.unwrap();
            let ids = list.sensors.iter().map(|state| state.sensor_id.to_string());
            query.after = list.next.map(|id| id.to_string());
            pages.push((ids.collect(), query.after.clone()));
            if query.after.is_none() {
                return pages;
            }
        }
    }

    #[tokio::test]
    async fn a_list_has_only_readable_sensors_and_begins_the_next_page_after_one() {
        let ids = ["a-1", "b-1", "b-3", "c-1", "c-2-x", "d-1"];
        let store = catalogued(ids.into_iter().map(ToOwned::to_owned)).await;
        let held = [reading("b-2", "temp", None), reading("d-2", "temp", None)];
        let reads = service(store, &held).await;
        let page = |ids: &[&str], next: Option<&str>| {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            (ids, next.map(ToOwned::to_owned))
        };
        let rules = ["b-*", "c-*x"];
        assert_eq!(
            pages(&reads, &rules, "", 2).await,
            [
                page(&["b-1", "b-2"], Some("b-2")),
                page(&["b-3", "c-2-x"], None)
            ]
        );
        assert_eq!(
            pages(&reads, &rules, "c-2", 1).await,
            [page(&["c-2-x"], None)]
        );
        assert_eq!(
            pages(&reads, &["b-1"], "b", 1).await,
            [page(&["b-1"], None)]
        );
        for (rules, prefix) in [(&[][..], ""), (&["b-*"], "a"), (&["b-*"], "d")] {
            assert_eq!(pages(&reads, rules, prefix, 1).await, [page(&[], None)]);
        }
    }

    #[tokio::test]
    async fn a_long_run_of_sensors_that_may_not_be_read_is_passed_in_steps() {
        let ids = (0..45_000).map(|i| format!("m-{i:05}"));
        let store = catalogued(ids.chain(["z-x".to_owned()])).await;
        let reads = service(store, &[reading("a-x", "temp", None)]).await;
        let pages = pages(&reads, &["*-x"], "", 10).await;
        let found: Vec<&[String]> = pages.iter().map(|(ids, _)| &**ids).collect();
        assert_eq!(found, [&["a-x".to_owned()][..], &[], &["z-x".to_owned()]]);
    }
}
