//! `sensor_catalog` in memory: the same entries as in MongoDB after the same updates.

use std::cmp::Reverse;

use super::Pages;
use model::catalog::CatalogUpdate;
use store::catalog::{CatalogCounts, CatalogEntry, CatalogQuery, LATEST_MAX};

impl Pages {
    /// Merges an update into its sensor's entry, unless the entry covers it.
    pub fn merge_catalog(&mut self, update: &CatalogUpdate) {
        match self.catalog.get_mut(&*update.sensor_id) {
            None => drop(
                self.catalog
                    .insert(update.sensor_id.to_string(), CatalogEntry::new(update)),
            ),
            Some(entry) if entry.covers(update) => {}
            Some(entry) => entry.merge(update),
        }
    }

    /// See [`store::Store::find_catalog`].
    pub fn find_catalog(&self, query: &CatalogQuery) -> Vec<CatalogEntry> {
        self.catalog
            .values()
            .filter(|entry| query.matches(entry))
            .take(query.limit)
            .cloned()
            .collect()
    }

    /// See [`store::Store::count_catalog`].
    pub fn count_catalog(&self, (from_ms, to_ms): (i64, i64)) -> CatalogCounts {
        let in_range = |entry: &&CatalogEntry| (from_ms..to_ms).contains(&entry.arrived_ms);
        let mut latest: Vec<&CatalogEntry> = self.catalog.values().filter(in_range).collect();
        let arrived = latest.len() as u64;
        latest.sort_by_key(|entry| Reverse(entry.arrived_ms));
        let mut newest: Vec<&CatalogEntry> = self.catalog.values().collect();
        newest.sort_by_key(|entry| Reverse(entry.created_ms));
        let bare = |entry: &CatalogEntry| CatalogEntry {
            tags: Default::default(),
            tags_ts_ms: None,
            fields: Default::default(),
            ..entry.clone()
        };
        let first =
            |entries: Vec<&CatalogEntry>| entries.into_iter().take(LATEST_MAX).map(bare).collect();
        CatalogCounts {
            known: self.catalog.len() as u64,
            arrived,
            latest: first(latest),
            newest: first(newest),
        }
    }
}
