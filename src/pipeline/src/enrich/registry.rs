//! The tags by sensor, shared by all shards. Pure, except for a lock.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use config::Limits;
use model::{TagSets, Tags};
use store::registry::RegistryRecord;

/// The shards' handle. The default one has no map, returns no tags and costs nothing.
#[derive(Debug, Clone, Default)]
pub struct Registry(Option<Arc<RwLock<TagMap>>>);

impl Registry {
    /// A handle with an empty map that can be filled.
    pub fn new() -> Registry {
        Registry(Some(Arc::default()))
    }

    /// The tags of a sensor: those of its messages, and those of the registry with other names.
    pub fn tags(&self, sensor_id: &str, own: Option<&Arc<Tags>>) -> Option<Arc<Tags>> {
        let found = self.0.as_ref().and_then(|map| {
            let map = map.read().unwrap_or_else(PoisonError::into_inner);
            map.sensors.get(sensor_id).cloned()
        });
        match (own, found) {
            (own, None) => own.cloned(),
            (None, found) => found,
            (Some(own), Some(found)) => Some(Arc::new(merged(own, &found))),
        }
    }

    pub(super) fn replace(&self, map: TagMap) {
        // The old map is dropped after the lock is released: with a million sensors that takes a
        // while.
        let _old = self.change(|held| std::mem::replace(held, map));
    }

    /// Changes the map; `None` if there is none.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut TagMap) -> T) -> Option<T> {
        let map = self.0.as_ref()?;
        Some(change(
            &mut map.write().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

/// Tags by sensor.
#[derive(Debug, Default)]
pub(crate) struct TagMap {
    sensors: HashMap<Box<str>, Arc<Tags>>,
    shared: TagSets,
    /// Sensors that were skipped because the map was full.
    pub(super) left_out: u64,
    /// Fields that were skipped because they exceed the limits for tags.
    pub(super) bad_fields: u64,
}

impl TagMap {
    /// Number of sensors that have an entry, also with no tags.
    pub(crate) fn len(&self) -> usize {
        self.sensors.len()
    }

    /// Sets the tags of a sensor. A new one needs room within `sensors_max`.
    pub(super) fn set(&mut self, record: RegistryRecord, limits: &Limits, sensors_max: usize) {
        let known = self.sensors.contains_key(record.sensor_id.as_str());
        if !known && self.sensors.len() >= sensors_max {
            self.left_out += 1;
            return;
        }
        let (tags, bad) = tags_of(&record.fields, limits);
        self.bad_fields += bad;
        self.sensors
            .insert(record.sensor_id.into(), self.shared.shared(tags.as_bytes()));
    }

    pub(super) fn remove(&mut self, sensor_id: &str) {
        self.sensors.remove(sensor_id);
    }
}

/// The fields as tags, within the limits for a message's tags (length of names and values, number
/// of tags), and how many fields were skipped.
fn tags_of(fields: &[(String, String)], limits: &Limits) -> (Tags, u64) {
    let mut pairs: Vec<(String, &str)> = fields
        .iter()
        .map(|(name, value)| (tag_name(name), value.as_str()))
        .collect();
    pairs.sort();
    pairs.dedup_by(|a, b| a.0 == b.0);
    let fits = |name: &str, value: &str| {
        name.len() <= limits.name_max_bytes.min(255)
            && value.len() <= limits.string_max_bytes.min(65_535)
    };
    pairs.retain(|(name, value)| fits(name, value));
    pairs.truncate(limits.tags_max);
    let bad = (fields.len() - pairs.len()) as u64;
    (
        canonical(pairs.iter().map(|(name, value)| (name.as_str(), *value))),
        bad,
    )
}

/// The name that a message's tag would get: `.`, NUL and a leading `$` become `_`.
fn tag_name(path: &str) -> String {
    let name: String = path
        .chars()
        .map(|c| if c == '.' || c == '\0' { '_' } else { c })
        .collect();
    match name.strip_prefix('$') {
        Some(rest) => format!("_{rest}"),
        None if name.is_empty() => "_".into(),
        None => name,
    }
}

/// Both, sorted by name; for equal names the one of `own`.
fn merged(own: &Tags, found: &Tags) -> Tags {
    let mut own = own.iter().peekable();
    let mut found = found.iter().peekable();
    canonical(std::iter::from_fn(|| match (own.peek(), found.peek()) {
        (Some((a, _)), Some((b, _))) if a == b => {
            found.next();
            own.next()
        }
        (Some((a, _)), Some((b, _))) if a > b => found.next(),
        (None, Some(_)) => found.next(),
        _ => own.next(),
    }))
}

/// See [`Tags`]; the pairs are sorted by name.
fn canonical<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Tags {
    let mut bytes = vec![];
    for (name, value) in pairs {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    Tags::from_canonical(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    fn record(sensor_id: &str, fields: &[(&str, &str)]) -> RegistryRecord {
        let fields = fields
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        RegistryRecord {
            sensor_id: sensor_id.into(),
            fields,
        }
    }

    fn listed(tags: Option<Arc<Tags>>) -> String {
        tags.map_or("none".into(), |t| {
            t.iter().map(|(k, v)| format!("{k}={v} ")).collect()
        })
    }

    #[test]
    fn the_message_wins_and_the_registry_fills_in() {
        let registry = Registry::new();
        let limits = Config::default().limits;
        let set = |record| registry.change(|map| map.set(record, &limits, 10)).unwrap();
        set(record(
            "a",
            &[("site", "north"), ("place.room", "12"), ("model", "x")],
        ));
        set(record(
            "b",
            &[("site", "north"), ("place.room", "12"), ("model", "x")],
        ));
        let own = |pairs: &[(&str, &str)]| Arc::new(canonical(pairs.iter().copied()));
        assert_eq!(
            listed(registry.tags("a", None)),
            "model=x place_room=12 site=north "
        );
        let message = own(&[("aisle", "4"), ("site", "south"), ("unit", "C")]);
        assert_eq!(
            listed(registry.tags("a", Some(&message))),
            "aisle=4 model=x place_room=12 site=south unit=C "
        );
        assert_eq!(
            listed(registry.tags("c", Some(&message))),
            "aisle=4 site=south unit=C "
        );
        assert_eq!(listed(registry.tags("c", None)), "none");
        assert!(Arc::ptr_eq(
            &registry.tags("a", None).unwrap(),
            &registry.tags("b", None).unwrap()
        ));
        registry.change(|map| map.remove("a"));
        assert_eq!(listed(registry.tags("a", None)), "none");
        assert_eq!(
            listed(Registry::default().tags("a", Some(&message))),
            "aisle=4 site=south unit=C "
        );
    }

    #[test]
    fn entries_beyond_the_limits_are_counted_and_skipped() {
        let limits = Limits {
            tags_max: 2,
            string_max_bytes: 4,
            name_max_bytes: 4,
            ..Config::default().limits
        };
        let mut map = TagMap::default();
        map.set(
            record(
                "a",
                &[
                    ("b", "1"),
                    ("c", "12345"),
                    ("long name", "1"),
                    ("d", "2"),
                    ("e", "3"),
                ],
            ),
            &limits,
            1,
        );
        map.set(record("z", &[]), &limits, 1);
        assert_eq!((map.len(), map.left_out, map.bad_fields), (1, 1, 3));
        map.set(record("a", &[("$b", "9")]), &limits, 1);
        assert_eq!(
            map.sensors["a"].iter().collect::<Vec<_>>(),
            [("_b", "9")],
            "a known sensor always has room"
        );
    }
}
