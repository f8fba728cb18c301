//! Former ids of sensors: readings that come with one count for another sensor. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::batch::ReadingBatch;
use super::ids::SensorId;

/// The longest chain of aliases. The commands make none, but aliases may be written by hand: one that
/// leads into a longer chain, or into a circle, has no effect.
const CHAIN_MAX: usize = 16;

/// An alias of a sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The id that readings come with.
    pub former: SensorId,
    /// The sensor that they count for.
    pub sensor_id: SensorId,
    /// Only readings at or after this time (ms since 1970).
    pub from_ms: Option<i64>,
}

/// All aliases.
#[derive(Debug, Clone, Default)]
pub struct Aliases {
    by_former: HashMap<SensorId, Alias>,
    /// By sensor: the ids whose readings count for it now.
    former: BTreeMap<SensorId, BTreeSet<SensorId>>,
    without_effect: usize,
}

impl Aliases {
    /// Leaves out those without effect.
    pub fn new(all: impl IntoIterator<Item = Alias>) -> Aliases {
        let all = all.into_iter().map(|alias| (alias.former.clone(), alias));
        let all: HashMap<SensorId, Alias> = all.collect();
        let mut aliases = Aliases::default();
        for alias in all.values() {
            let mut now = &alias.sensor_id;
            let mut steps = 1;
            while let Some(next) = all.get(now).filter(|_| steps < CHAIN_MAX) {
                now = &next.sensor_id;
                steps += 1;
            }
            if all.contains_key(now) {
                aliases.without_effect += 1;
                continue;
            }
            let former = aliases.former.entry(now.clone()).or_default();
            former.insert(alias.former.clone());
            aliases
                .by_former
                .insert(alias.former.clone(), alias.clone());
        }
        aliases
    }

    /// Number of aliases that lead into a circle, or into a chain that is too long.
    pub fn without_effect(&self) -> usize {
        self.without_effect
    }

    /// The sensor for which a reading with this id and time (ms since 1970) counts, if not that of
    /// the id.
    pub fn resolve(&self, id: &str, ts_ms: i64) -> Option<&SensorId> {
        let mut found = None;
        let mut at = id;
        let holds = |alias: &&Alias| alias.from_ms.is_none_or(|from_ms| ts_ms >= from_ms);
        while let Some(alias) = self.by_former.get(at).filter(holds) {
            found = Some(&alias.sensor_id);
            at = &alias.sensor_id;
        }
        found
    }

    /// The ids whose readings count for this sensor now, in order.
    pub fn former_ids(&self, sensor_id: &str) -> impl Iterator<Item = &SensorId> {
        self.former.get(sensor_id).into_iter().flatten()
    }

    /// The batch with the ids for which its readings count; the same one if these are its own.
    pub fn apply(&self, batch: Arc<ReadingBatch>) -> Arc<ReadingBatch> {
        if self.by_former.is_empty() {
            return batch;
        }
        let now = |id: &str, ts_ms: i64| self.resolve(id, ts_ms).map(|id| &**id);
        match batch.with_ids(now) {
            Some(renamed) => Arc::new(renamed),
            None => batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Reading;
    use crate::value::Value;

    fn alias(former: &str, sensor_id: &str, from_ms: Option<i64>) -> Alias {
        Alias {
            former: former.into(),
            sensor_id: sensor_id.into(),
            from_ms,
        }
    }

    #[test]
    fn chains_are_followed_and_circles_have_no_effect() {
        let aliases = Aliases::new([
            alias("a", "b", None),
            alias("b", "c", Some(10)),
            alias("self", "self", None),
            alias("x", "y", None),
            alias("y", "z", None),
            alias("z", "y", None),
        ]);
        assert_eq!((aliases.by_former.len(), aliases.without_effect()), (2, 4));
        let now = |id, ts_ms| aliases.resolve(id, ts_ms).map(|id| &**id);
        assert_eq!((now("a", 9), now("a", 10)), (Some("b"), Some("c")));
        assert_eq!(
            (now("b", 9), now("b", 10), now("c", 10)),
            (None, Some("c"), None)
        );
        assert_eq!((now("x", 0), now("self", 0)), (None, None));
        let former: Vec<&str> = aliases.former_ids("c").map(|id| &**id).collect();
        assert_eq!(
            (former, aliases.former_ids("b").count()),
            (vec!["a", "b"], 0)
        );
        let chain = |n: usize| {
            Aliases::new((0..n).map(|i| alias(&format!("s{i}"), &format!("s{}", i + 1), None)))
        };
        assert_eq!(chain(CHAIN_MAX).without_effect(), 0);
        assert_eq!(chain(CHAIN_MAX + 3).without_effect(), 3);
    }

    #[test]
    fn a_batch_gets_other_ids_and_stays_what_it_is() {
        let reading = |id: &str, ts_ms, receipt_time| Reading {
            sensor_id: id.into(),
            ts_ms,
            receipt_time,
            tags: [("site".to_owned(), "north".to_owned())].into(),
            values: [
                ("temp".to_owned(), Value::Double(21.5)),
                ("on".to_owned(), Value::Bool(true)),
            ]
            .into(),
        };
        let readings = vec![
            reading("old", 5, false),
            reading("other", 6, true),
            reading("old", 20, true),
        ];
        let batch: Arc<ReadingBatch> = Arc::new(readings.clone().into_iter().collect());
        let aliases = Aliases::new([alias("old", "a much longer id than before", Some(10))]);
        let renamed = aliases.apply(batch.clone());
        let mut expected = readings;
        expected[2].sensor_id = "a much longer id than before".into();
        let direct: ReadingBatch = expected.clone().into_iter().collect();
        assert_eq!(renamed.to_readings(), expected);
        assert_eq!(renamed.places(), direct.places());
        assert_eq!(renamed.receipt_times(), batch.receipt_times());
        let mut bytes = vec![];
        renamed.encode(&mut bytes);
        assert_eq!(
            ReadingBatch::decode(&bytes).unwrap().to_readings(),
            expected
        );
        // Without a change the batch is shared.
        let none = Aliases::new([alias("nothing", "other", None)]);
        assert!(Arc::ptr_eq(&none.apply(batch.clone()), &batch));
        assert!(Arc::ptr_eq(
            &Aliases::default().apply(batch.clone()),
            &batch
        ));
    }
}
