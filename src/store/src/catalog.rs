//! The catalogue: which sensors are stored, with their tags, fields and times.
//!
//! **Order.** An entry is written before the page that needs it (`pipeline::flush`). So every stored
//! sensor and field is in the catalogue at any time, also after a crash. A crash between the two
//! writes leaves an entry that is ahead of the pages until the journal is replayed. Field names of
//! readings that the store refuses permanently stay in the entry.
//!
//! **Times** are precise to [`CATALOG_STEP_MS`]: the first reading may be that much earlier than
//! `first_ts_ms`, the last one that much later than `last_ts_ms`. The last arrival is precise to a
//! quarter of `sensors.silent_after` ([`arrival_step_ms`](model::catalog::arrival_step_ms)).
//! So an entry is written about once per day and four times per `sensors.silent_after`, however
//! often the sensor reports.
//!
//! A sensor is **silent** if nothing of it has arrived for `sensors.silent_after`, by the entries.
//! So the answer is the same for all instances and after a restart. The time of arrival counts, not
//! that of the readings.
//!
//! **Two instances** write the same entries with operations that commute: times by minimum and
//! maximum, fields by union. Tags are those of the update with the latest reading; if two are
//! equally late, the greater tags.

use std::collections::BTreeMap;

use model::catalog::{CATALOG_FIELDS_MAX, CATALOG_STEP_MS, CatalogUpdate, FieldKinds, catalog_day};
use model::{SensorId, has_prefix, stable_hash};

/// Selects entries. Conditions that are not set match every entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogQuery {
    /// Only these sensors.
    pub sensor_ids: Option<Vec<SensorId>>,
    /// Only sensors with all of these tags: name and value.
    pub tags: Vec<(String, String)>,
    /// Only sensors with this field. A truncated entry matches any.
    pub field: Option<String>,
    /// Only sensors that may have a reading in this time range (ms since 1970, end exclusive).
    pub overlaps_ms: Option<(i64, i64)>,
    /// Only sensors whose last arrival is in this time range (ms since 1970, end exclusive).
    pub arrived_ms: Option<(i64, i64)>,
    /// Only sensors whose id begins with one of these, which are sorted; none begins with another.
    pub prefixes: Vec<String>,
    /// Only sensors after this one, in the order of the bytes of the ids.
    pub after: Option<SensorId>,
    /// Maximum number of entries.
    pub limit: usize,
    /// The fields of the entries are not needed, and may be missing.
    pub without_fields: bool,
}

impl Default for CatalogQuery {
    fn default() -> CatalogQuery {
        CatalogQuery {
            sensor_ids: None,
            tags: vec![],
            field: None,
            overlaps_ms: None,
            arrived_ms: None,
            prefixes: vec![String::new()],
            after: None,
            limit: usize::MAX,
            without_fields: false,
        }
    }
}

impl CatalogQuery {
    /// Whether an entry matches the conditions.
    pub fn matches(&self, entry: &CatalogEntry) -> bool {
        self.sensor_ids
            .as_ref()
            .is_none_or(|ids| ids.contains(&entry.sensor_id))
            && self
                .after
                .as_ref()
                .is_none_or(|after| entry.sensor_id > *after)
            && has_prefix(&entry.sensor_id, &self.prefixes)
            && self.matches_but_id(entry)
    }

    /// The same for an entry whose id is known to match.
    pub fn matches_but_id(&self, entry: &CatalogEntry) -> bool {
        let has_tag = |(name, value): &(String, String)| entry.tags.get(name) == Some(value);
        self.tags.iter().all(has_tag)
            && self
                .field
                .as_ref()
                .is_none_or(|field| entry.is_truncated || entry.fields.contains_key(field))
            && self
                .arrived_ms
                .is_none_or(|(from_ms, to_ms)| (from_ms..to_ms).contains(&entry.arrived_ms))
            && self.overlaps_ms.is_none_or(|(from_ms, to_ms)| {
                entry.last_ts_ms.saturating_add(CATALOG_STEP_MS) >= from_ms
                    && entry.first_ts_ms.saturating_sub(CATALOG_STEP_MS) < to_ms
            })
    }
}

/// The first text after all texts with this prefix, in the order of the bytes; `None` if there is
/// none.
pub(crate) fn after_prefix(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // Code points have the order of their bytes in UTF-8. After U+D7FF come surrogates, which
        // are not characters.
        let next = (u32::from(last) + 1..).take(0x801).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

/// How many sensors the catalogue has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CatalogCounts {
    /// All entries. Approximate after a crash of the server, and on a sharded cluster.
    pub known: u64,
    /// Those whose last arrival is in the range of the query; at most [`COUNT_MAX`].
    pub arrived: u64,
    /// Those of them whose last arrival is the latest, latest first, at most [`LATEST_MAX`];
    /// without tags and fields.
    pub latest: Vec<CatalogEntry>,
    /// The entries that were created last, latest first, at most [`LATEST_MAX`]; without tags and
    /// fields.
    pub newest: Vec<CatalogEntry>,
}

/// See [`CatalogCounts::latest`] and [`CatalogCounts::newest`].
pub const LATEST_MAX: usize = 20;

/// Entries that are counted at most: about a second of the server.
pub(crate) const COUNT_MAX: u64 = 1_000_000;

/// The entry of one sensor.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogEntry {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The tags of its newest readings.
    pub tags: BTreeMap<String, String>,
    /// The time of the reading that the tags are from; `None` if it has no tags.
    pub tags_ts_ms: Option<i64>,
    /// Its fields, with the kinds of values that they have had.
    pub fields: BTreeMap<String, FieldKinds>,
    /// There are more than [`CATALOG_FIELDS_MAX`] fields; the others are not recorded.
    pub is_truncated: bool,
    /// The time of its first reading, ms since 1970; the first one may be [`CATALOG_STEP_MS`]
    /// earlier.
    pub first_ts_ms: i64,
    /// The time of its last reading, ms since 1970; the last one may be [`CATALOG_STEP_MS`] later.
    pub last_ts_ms: i64,
    /// When its readings last arrived (ms since 1970), rounded down by the instance that wrote it.
    pub arrived_ms: i64,
    /// When the entry was created, by the clock of the service (ms since 1970): with the first write
    /// of the sensor's readings, whatever their times.
    pub created_ms: i64,
}

impl CatalogEntry {
    /// The entry that begins with this update.
    pub fn new(update: &CatalogUpdate) -> CatalogEntry {
        let mut entry = CatalogEntry {
            sensor_id: update.sensor_id.clone(),
            tags: BTreeMap::new(),
            tags_ts_ms: None,
            fields: BTreeMap::new(),
            is_truncated: false,
            first_ts_ms: update.first_ts_ms,
            last_ts_ms: update.last_ts_ms,
            arrived_ms: update.arrived_ms,
            created_ms: update.created_ms,
        };
        entry.merge(update);
        entry
    }

    /// Adds an update of the same sensor.
    pub fn merge(&mut self, update: &CatalogUpdate) {
        if let Some((ts_ms, tags)) = self.newer_tags(update) {
            (self.tags_ts_ms, self.tags) = (Some(ts_ms), tags.clone());
        }
        for (name, kinds) in &update.fields {
            let is_full = self.fields.len() >= CATALOG_FIELDS_MAX;
            match self.fields.get_mut(&**name) {
                Some(held) => *held = held.with(*kinds),
                None if is_full => self.is_truncated = true,
                None => drop(self.fields.insert(name.to_string(), *kinds)),
            }
        }
        self.first_ts_ms = self.first_ts_ms.min(update.first_ts_ms);
        self.last_ts_ms = self.last_ts_ms.max(update.last_ts_ms);
        self.arrived_ms = self.arrived_ms.max(update.arrived_ms);
        self.created_ms = self.created_ms.min(update.created_ms);
    }

    /// The tags of the update, if they replace those of the entry.
    pub(crate) fn newer_tags<'a>(
        &self,
        update: &'a CatalogUpdate,
    ) -> Option<(i64, &'a BTreeMap<String, String>)> {
        let (ts_ms, tags) = update.tags.as_ref()?;
        let is_newer = self
            .tags_ts_ms
            .is_none_or(|held| (*ts_ms, tags) > (held, &self.tags));
        is_newer.then_some((*ts_ms, tags))
    }

    /// Whether an update would change nothing but times within the entry's precision.
    pub fn covers(&self, update: &CatalogUpdate) -> bool {
        let hash = stable_hash(&self.sensor_id);
        let has =
            |(name, kinds): (&std::sync::Arc<str>, &FieldKinds)| match self.fields.get(&**name) {
                Some(held) => held.contains(*kinds),
                None => self.is_truncated,
            };
        let day = |ts_ms| catalog_day(ts_ms, hash);
        update.fields.iter().all(has)
            && self
                .newer_tags(update)
                .is_none_or(|(_, tags)| *tags == self.tags)
            && day(update.first_ts_ms) >= day(self.first_ts_ms)
            && day(update.last_ts_ms) <= day(self.last_ts_ms)
            && update.arrived_ms <= self.arrived_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_texts_and_before_the_next() {
        for (prefix, end) in [
            ("a", Some("b")),
            ("room-", Some("room.")),
            ("a\u{10FFFF}", Some("b")),
            ("\u{D7FF}", Some("\u{E000}")),
            ("ü\u{10FFFF}\u{10FFFF}", Some("ý")),
            ("\u{10FFFF}", None),
            ("", None),
        ] {
            assert_eq!(after_prefix(prefix).as_deref(), end, "{prefix:?}");
            assert!(
                end.is_none_or(|end| *end > *format!("{prefix}\u{10FFFF}\u{10FFFF}")),
                "{prefix:?}"
            );
        }
    }
}
