//! What the catalogue is known to hold of each sensor, so that a page write asks for an update only
//! if it brings something new ([`PageWrite::catalog`](model::PageWrite)). Pure.
//!
//! A sensor has 24 bytes: two days ([`catalog_day`]), the last arrival, and a reference to the
//! fields and tags that are confirmed, as hashes, shared by all sensors with the same ones.
//! Forgotten entries are looked up in the store with the sensor's next write, so the sets are
//! dropped if they use too much memory.

use std::sync::Arc;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use model::catalog::{
    CATALOG_FIELDS_MAX, CatalogUpdate, FieldKinds, catalog_day, field_key, field_kinds,
};
use model::{Rows, Summary, Tags, memory};

/// The confirmed entry of one sensor.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    set: Option<Arc<ConfirmedSet>>,
    first_day: i32,
    last_day: i32,
    /// Seconds since 1970.
    arrived_s: u32,
}

/// Fields and tags, as hashes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct ConfirmedSet {
    /// One for each field and kind, sorted.
    fields: Box<[u64]>,
    /// 0: no tags.
    tags: u64,
}

impl ConfirmedSet {
    fn hash(&self) -> u64 {
        self.fields.iter().fold(self.tags, |hash, field| {
            hash.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ field
        })
    }

    fn memory(&self) -> usize {
        memory::shared(size_of::<ConfirmedSet>()) + memory::block(size_of_val(&*self.fields))
    }

    fn has(&self, name: &str, kinds: FieldKinds) -> bool {
        // The entry is full as well: further names would be looked up in vain with every write.
        self.fields.len() >= KEYS_MAX
            || keys(name, kinds).all(|key| self.fields.binary_search(&key).is_ok())
    }
}

/// With as many keys there are at least [`CATALOG_FIELDS_MAX`] fields.
const KEYS_MAX: usize = FieldKinds::ALL.len() * CATALOG_FIELDS_MAX;

fn seconds(arrived_ms: i64) -> u32 {
    u32::try_from(arrived_ms / 1000).unwrap_or(if arrived_ms < 0 { 0 } else { u32::MAX })
}

fn keys(name: &str, kinds: FieldKinds) -> impl Iterator<Item = u64> {
    FieldKinds::ALL
        .into_iter()
        .filter(move |(kind, _)| kinds.contains(*kind))
        .map(move |(kind, _)| field_key(name, kind))
}

/// 0: no tags.
fn hash_of_tags<'t>(tags: impl Iterator<Item = (&'t str, &'t str)>) -> u64 {
    let mix = |hash: u64, text: &str| {
        hash.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ xxh3_64(text.as_bytes())
    };
    tags.fold(0, |hash, (name, value)| mix(mix(hash, name), value).max(1))
}

/// Number of sets below which no sweep runs.
const SWEEP_MIN: usize = 64;

/// All distinct sets in use. Unused ones are dropped when their number has doubled since the last
/// sweep.
#[derive(Debug)]
pub(super) struct ConfirmedSets {
    sets: HashTable<Arc<ConfirmedSet>>,
    sweep_at: usize,
    bytes: usize,
}

impl Default for ConfirmedSets {
    fn default() -> ConfirmedSets {
        ConfirmedSets {
            sets: HashTable::new(),
            sweep_at: SWEEP_MIN,
            bytes: 0,
        }
    }
}

impl ConfirmedSets {
    fn shared(&mut self, set: ConfirmedSet) -> Arc<ConfirmedSet> {
        let hash = set.hash();
        if let Some(known) = self.sets.find(hash, |known| **known == set) {
            return known.clone();
        }
        if self.sets.len() >= self.sweep_at {
            self.sweep();
        }
        let set = Arc::new(set);
        self.bytes += set.memory();
        self.sets.insert_unique(hash, set.clone(), |set| set.hash());
        set
    }

    /// Drops the sets without another owner.
    pub(super) fn sweep(&mut self) {
        let bytes = &mut self.bytes;
        let hash = |set: &Arc<ConfirmedSet>| set.hash();
        memory::retain(&mut self.sets, hash, |set| {
            let is_held = Arc::strong_count(set) > 1;
            *bytes -= if is_held { 0 } else { set.memory() };
            is_held
        });
        self.sweep_at = (self.sets.len() * 2).max(SWEEP_MIN);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + memory::block(self.sets.allocation_size())
    }
}

impl Confirmed {
    /// Whether these rows are covered by what is confirmed. `arrived_ms`: rounded down, see
    /// [`CatalogUpdate::arrived_ms`].
    pub(super) fn covers(
        &self,
        hash: u64,
        rows: &Rows,
        summary: Option<&Summary>,
        tags: Option<&Tags>,
        arrived_ms: i64,
    ) -> bool {
        let Some(set) = &self.set else { return false };
        let days = self.first_day..=self.last_day;
        days.contains(&catalog_day(rows.first_ts_ms(), hash))
            && days.contains(&catalog_day(rows.last_ts_ms(), hash))
            && seconds(arrived_ms) <= self.arrived_s
            && tags.is_none_or(|tags| hash_of_tags(tags.iter()) == set.tags)
            && field_kinds(rows, summary).all(|(name, kinds)| set.has(name, kinds))
    }

    pub(super) fn note(&mut self, hash: u64, update: &CatalogUpdate, sets: &mut ConfirmedSets) {
        let day = |ts_ms| catalog_day(ts_ms, hash);
        let mut set = ConfirmedSet::default();
        match &self.set {
            Some(held) => {
                set.tags = held.tags;
                self.first_day = self.first_day.min(day(update.first_ts_ms));
                self.last_day = self.last_day.max(day(update.last_ts_ms));
                self.arrived_s = self.arrived_s.max(seconds(update.arrived_ms));
            }
            None => {
                self.first_day = day(update.first_ts_ms);
                self.last_day = day(update.last_ts_ms);
                self.arrived_s = seconds(update.arrived_ms);
            }
        }
        if let Some((_, tags)) = &update.tags {
            set.tags = hash_of_tags(tags.iter().map(|(name, value)| (&**name, &**value)));
        }
        let mut fields: Vec<u64> = self
            .set
            .iter()
            .flat_map(|held| held.fields.iter().copied())
            .collect();
        fields.extend(
            update
                .fields
                .iter()
                .flat_map(|(name, held)| keys(name, *held)),
        );
        fields.sort_unstable();
        fields.dedup();
        fields.truncate(KEYS_MAX);
        set.fields = fields.into();
        self.set = Some(sets.shared(set));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{RowFlags, ValueRef};

    const DAY: i64 = model::catalog::CATALOG_STEP_MS;

    fn rows(ts_ms: i64, values: &[(&str, ValueRef<'_>)]) -> Rows {
        let mut rows = Rows::default();
        rows.push_named(ts_ms, RowFlags::default(), values);
        rows
    }

    #[test]
    fn only_what_is_new_needs_an_update() {
        assert!(size_of::<Confirmed>() <= 24);
        let mut sets = ConfirmedSets::default();
        let mut confirmed = Confirmed::default();
        let temp = rows(DAY, &[("temp", ValueRef::Int(1))]);
        assert!(
            !confirmed.covers(0, &temp, None, None, 0),
            "nothing is confirmed yet"
        );
        confirmed.note(
            0,
            &CatalogUpdate::of_rows("s".into(), &temp, None, 0),
            &mut sets,
        );
        assert!(confirmed.covers(0, &temp, None, None, 0));
        assert!(
            confirmed.covers(
                0,
                &rows(2 * DAY - 1, &[("temp", ValueRef::Double(2.0))]),
                None,
                None,
                0
            ),
            "same day"
        );
        for (other, what) in [
            (rows(DAY, &[("humid", ValueRef::Int(1))]), "another field"),
            (rows(DAY, &[("temp", ValueRef::Str("x"))]), "another kind"),
            (
                rows(DAY - 1, &[("temp", ValueRef::Int(1))]),
                "the day before",
            ),
            (
                rows(2 * DAY, &[("temp", ValueRef::Int(1))]),
                "the day after",
            ),
        ] {
            assert!(!confirmed.covers(0, &other, None, None, 0), "{what}");
            confirmed.note(
                0,
                &CatalogUpdate::of_rows("s".into(), &other, None, 0),
                &mut sets,
            );
            assert!(confirmed.covers(0, &other, None, None, 0), "{what}");
            assert!(
                confirmed.covers(0, &temp, None, None, 0),
                "{what} does not replace what was confirmed"
            );
        }
        assert!(
            !confirmed.covers(0, &temp, None, None, 1000),
            "readings arrived later"
        );
    }

    #[test]
    fn sensors_with_the_same_fields_share_one_set_and_hostile_ones_are_bounded() {
        let mut sets = ConfirmedSets::default();
        let temp =
            CatalogUpdate::of_rows("s".into(), &rows(0, &[("temp", ValueRef::Int(1))]), None, 0);
        let mut all: Vec<Confirmed> = (0..1000).map(|_| Confirmed::default()).collect();
        all.iter_mut()
            .for_each(|confirmed| confirmed.note(0, &temp, &mut sets));
        assert_eq!(sets.sets.len(), 1);
        let mut hostile = Confirmed::default();
        // One at a time only towards the end: each makes another set.
        let names: Vec<String> = (0..KEYS_MAX).map(|i| format!("n{i}")).collect();
        let (many, few) = names.split_at(KEYS_MAX - 50);
        for names in many.chunks(200).chain(few.chunks(1)) {
            let fields: Vec<(&str, ValueRef<'_>)> = names
                .iter()
                .map(|name| (&**name, ValueRef::Int(1)))
                .collect();
            hostile.note(
                0,
                &CatalogUpdate::of_rows("h".into(), &rows(0, &fields), None, 0),
                &mut sets,
            );
        }
        assert!(
            hostile.covers(0, &rows(0, &[("new", ValueRef::Int(1))]), None, None, 0),
            "the entry is full"
        );
        drop((all, hostile));
        sets.sweep();
        assert_eq!((sets.sets.len(), sets.bytes), (0, 0));
    }
}
