//! What the catalogue must know of a sensor before a page of it is written: its fields, tags and
//! times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::batch::Tags;
use super::field_schema::hash_of_name;
use super::ids::SensorId;
use super::rows::Rows;
use super::summary::Summary;
use super::value::ValueRef;

/// The precision of the times in the catalogue (ms), so that a sensor's entry is written about once
/// per day. Each sensor has its own phase, so that the entries of a fleet are not all written at
/// midnight.
pub const CATALOG_STEP_MS: i64 = 24 * 60 * 60 * 1000;

/// Distinct fields of one entry, each with a name of up to 128 bytes: at most 1.3 MiB in a
/// document. Further fields are not recorded, and the entry is marked as truncated.
pub const CATALOG_FIELDS_MAX: usize = 4096;

/// Kinds of values that a field has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub struct FieldKinds(u8);

impl FieldKinds {
    /// Integers and doubles.
    pub const NUMBER: FieldKinds = FieldKinds(1);
    /// Booleans.
    pub const BOOL: FieldKinds = FieldKinds(2);
    /// Strings.
    pub const TEXT: FieldKinds = FieldKinds(4);
    /// All kinds with their names in the catalogue's documents.
    pub const ALL: [(FieldKinds, &'static str); 3] = [
        (FieldKinds::NUMBER, "number"),
        (FieldKinds::BOOL, "bool"),
        (FieldKinds::TEXT, "text"),
    ];

    /// The kind of a value.
    pub fn from_value(value: ValueRef<'_>) -> FieldKinds {
        match value {
            ValueRef::Double(_) | ValueRef::Int(_) => FieldKinds::NUMBER,
            ValueRef::Bool(_) => FieldKinds::BOOL,
            ValueRef::Str(_) => FieldKinds::TEXT,
        }
    }

    /// The union of both.
    #[must_use]
    pub fn with(self, other: FieldKinds) -> FieldKinds {
        FieldKinds(self.0 | other.0)
    }

    /// Whether all kinds of `other` are in it.
    pub fn contains(self, other: FieldKinds) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names of its kinds.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FieldKinds::ALL
            .into_iter()
            .filter(move |(kind, _)| self.contains(*kind))
            .map(|(_, name)| name)
    }

    /// The kind with this name; none for an unknown name.
    pub fn named(name: &str) -> FieldKinds {
        FieldKinds::ALL
            .into_iter()
            .find(|(_, known)| *known == name)
            .map(|(kind, _)| kind)
            .unwrap_or_default()
    }
}

/// The additions of some readings of one sensor to its entry in the catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogUpdate {
    /// The sensor.
    pub sensor_id: SensorId,
    /// Its tags, if any, and the time of the reading that they are from (ms since 1970).
    pub tags: Option<(i64, BTreeMap<String, String>)>,
    /// The fields of the readings.
    pub fields: BTreeMap<Arc<str>, FieldKinds>,
    /// The earliest time of the readings, ms since 1970.
    pub first_ts_ms: i64,
    /// The latest time of the readings, ms since 1970.
    pub last_ts_ms: i64,
    /// When readings of the sensor last arrived, by the clock of the service, ms since 1970,
    /// rounded down ([`floor_arrival`]).
    pub arrived_ms: i64,
    /// When the update was made, by the clock of the service, ms since 1970.
    pub created_ms: i64,
}

impl CatalogUpdate {
    /// The update for these readings, at least one, made when they arrived. `tags`: with the time of
    /// the reading that they are from, which may be another one.
    pub fn of_rows(
        sensor_id: SensorId,
        rows: &Rows,
        tags: Option<(i64, &Tags)>,
        arrived_ms: i64,
    ) -> CatalogUpdate {
        let fields = field_kinds(rows, None)
            .map(|(name, kinds)| (name.clone(), kinds))
            .collect();
        let tags = tags.map(|(ts_ms, tags)| {
            (
                ts_ms,
                tags.iter().map(|(k, v)| (k.into(), v.into())).collect(),
            )
        });
        let first_ts_ms = rows.first_ts_ms();
        let last_ts_ms = rows.last_ts_ms();
        CatalogUpdate {
            sensor_id,
            tags,
            fields,
            first_ts_ms,
            last_ts_ms,
            arrived_ms,
            created_ms: arrived_ms,
        }
    }

    /// Adds another update of the same sensor. Commutative, associative and idempotent.
    pub fn merge(&mut self, other: &CatalogUpdate) {
        if other.tags > self.tags {
            self.tags.clone_from(&other.tags);
        }
        for (name, kinds) in &other.fields {
            let held = self.fields.entry(name.clone()).or_default();
            *held = held.with(*kinds);
        }
        self.first_ts_ms = self.first_ts_ms.min(other.first_ts_ms);
        self.last_ts_ms = self.last_ts_ms.max(other.last_ts_ms);
        self.arrived_ms = self.arrived_ms.max(other.arrived_ms);
        self.created_ms = self.created_ms.min(other.created_ms);
    }
}

/// One update for each sensor, ordered by sensor.
pub fn by_sensor<'a>(
    updates: impl IntoIterator<Item = &'a CatalogUpdate>,
) -> BTreeMap<SensorId, CatalogUpdate> {
    let mut merged: BTreeMap<SensorId, CatalogUpdate> = BTreeMap::new();
    for update in updates {
        match merged.get_mut(&update.sensor_id) {
            Some(held) => held.merge(update),
            None => drop(merged.insert(update.sensor_id.clone(), update.clone())),
        }
    }
    merged
}

/// The fields of rows with the kinds of their values. `summary`: of these rows, which makes it
/// unnecessary to visit them if every row has a number in every field.
pub fn field_kinds<'a>(
    rows: &'a Rows,
    summary: Option<&Summary>,
) -> impl Iterator<Item = (&'a Arc<str>, FieldKinds)> + use<'a> {
    let names = rows.fields();
    let is_numbers = summary.is_some_and(|summary| {
        summary.len() == names.len()
            && summary
                .iter()
                .all(|(_, field)| field.count as usize == rows.len())
    });
    let mut kinds = vec![FieldKinds::default(); names.len()];
    if is_numbers {
        kinds.fill(FieldKinds::NUMBER);
    } else {
        for (field, value) in rows.iter().flat_map(|row| row.values()) {
            let held = &mut kinds[field as usize];
            *held = held.with(FieldKinds::from_value(value));
        }
    }
    // A name may belong to a schema that rows no longer use.
    names
        .iter()
        .zip(kinds)
        .filter(|(_, kinds)| *kinds != FieldKinds::default())
}

/// A hash of a field and one kind of its values, random for each process.
pub fn field_key(name: &str, kind: FieldKinds) -> u64 {
    hash_of_name(name) ^ u64::from(kind.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The number of the sensor's day that contains a time. `hash`: [`super::stable_hash`] of the
/// sensor.
pub fn catalog_day(ts_ms: i64, hash: u64) -> i32 {
    let phase_ms = (hash % CATALOG_STEP_MS.unsigned_abs()) as i64;
    let day = ts_ms.saturating_add(phase_ms).div_euclid(CATALOG_STEP_MS);
    day.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// The precision of the times of arrival (ms), so that silence of this length is recognised a
/// quarter later at most. At least a second; at most [`CATALOG_STEP_MS`], because every process
/// must confirm the entries of active sensors daily.
pub fn arrival_step_ms(silent_after: Duration) -> i64 {
    let quarter_ms = i64::try_from(silent_after.as_millis() / 4).unwrap_or(i64::MAX);
    quarter_ms.clamp(1000, CATALOG_STEP_MS) / 1000 * 1000
}

/// A time of arrival rounded down to a multiple of the step, in whole seconds. Each sensor has its
/// own phase, so that the entries of a fleet are not all written together. `hash`:
/// [`super::stable_hash`] of the sensor.
pub fn floor_arrival(arrived_ms: i64, hash: u64, step_ms: i64) -> i64 {
    let phase_ms = (hash % (step_ms / 1000).max(1).unsigned_abs()) as i64 * 1000;
    arrived_ms - arrived_ms.saturating_sub(phase_ms).rem_euclid(step_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RowFlags, summary};

    #[test]
    fn the_kinds_of_all_values_of_a_field_are_found() {
        let mut rows = Rows::default();
        let flags = RowFlags::default();
        rows.push_named(1, flags, &[("temp", ValueRef::Int(1))]);
        let kinds = |rows: &Rows, summary: Option<&Summary>| -> BTreeMap<String, FieldKinds> {
            field_kinds(rows, summary)
                .map(|(name, kinds)| (name.to_string(), kinds))
                .collect()
        };
        let numbers = BTreeMap::from([("temp".to_owned(), FieldKinds::NUMBER)]);
        assert_eq!(kinds(&rows, Some(&summary::summarise(&rows))), numbers);
        rows.push_named(
            2,
            flags,
            &[("temp", ValueRef::Str("n/a")), ("on", ValueRef::Bool(true))],
        );
        let both = FieldKinds::NUMBER.with(FieldKinds::TEXT);
        let all = BTreeMap::from([
            ("on".to_owned(), FieldKinds::BOOL),
            ("temp".to_owned(), both),
        ]);
        assert_eq!(kinds(&rows, Some(&summary::summarise(&rows))), all);
        assert_eq!(kinds(&rows, None), all);
        assert_eq!(both.names().collect::<Vec<_>>(), ["number", "text"]);
        assert_eq!(
            FieldKinds::named("text").with(FieldKinds::named("number")),
            both
        );
    }

    #[test]
    fn updates_of_a_sensor_merge_in_any_order() {
        let update = |ts_ms: i64, field: &str, site: &str| CatalogUpdate {
            sensor_id: "s".into(),
            tags: Some((ts_ms, BTreeMap::from([("site".into(), site.into())]))),
            fields: BTreeMap::from([(field.into(), FieldKinds::NUMBER)]),
            first_ts_ms: ts_ms,
            last_ts_ms: ts_ms,
            arrived_ms: -ts_ms,
            created_ms: ts_ms,
        };
        let all = [
            update(3, "a", "new"),
            update(1, "b", "old"),
            update(3, "a", "also new"),
        ];
        let merged = |order: [usize; 3]| by_sensor(order.map(|i| &all[i])).remove("s").unwrap();
        let first = merged([0, 1, 2]);
        assert_eq!(
            (
                first.first_ts_ms,
                first.last_ts_ms,
                first.arrived_ms,
                first.fields.len()
            ),
            (1, 3, -1, 2)
        );
        assert_eq!(first.tags.as_ref().unwrap().1["site"], "new");
        for order in [[2, 1, 0], [1, 0, 2], [0, 2, 1]] {
            assert_eq!(merged(order), first);
        }
    }

    #[test]
    fn each_sensor_has_its_own_day() {
        assert_eq!(catalog_day(0, 0), 0);
        assert_eq!(catalog_day(-1, 0), -1);
        assert_eq!(catalog_day(CATALOG_STEP_MS - 1, 0), 0);
        assert_eq!(catalog_day(CATALOG_STEP_MS - 1, 1), 1);
        assert_eq!(catalog_day(i64::MAX, 7), i32::MAX);
    }

    #[test]
    fn arrivals_are_rounded_down_to_a_quarter_of_the_silence() {
        assert_eq!(arrival_step_ms(Duration::from_secs(3600)), 15 * 60 * 1000);
        assert_eq!(
            arrival_step_ms(Duration::from_secs(365 * 86_400)),
            CATALOG_STEP_MS
        );
        assert_eq!(arrival_step_ms(Duration::from_millis(2500)), 1000);
        for hash in [0, 1, 7, u64::MAX] {
            for at_ms in [0, 1, 1_709_290_800_123, -5] {
                let floor = floor_arrival(at_ms, hash, 900_000);
                assert!(
                    floor % 1000 == 0 && (0..900_000).contains(&(at_ms - floor)),
                    "{at_ms} {floor}"
                );
                assert_eq!(floor_arrival(floor, hash, 900_000), floor);
                assert_eq!(floor_arrival(floor + 899_999, hash, 900_000), floor);
                assert_eq!(
                    floor_arrival(floor + 900_000, hash, 900_000),
                    floor + 900_000
                );
            }
        }
        assert_ne!(
            floor_arrival(1_709_290_800_000, 1, 900_000),
            floor_arrival(1_709_290_800_000, 2, 900_000)
        );
    }
}
