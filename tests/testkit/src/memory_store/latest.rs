//! `sensor_latest` in memory: the same content as in MongoDB after the same updates.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use model::latest::{RecentReading, newest, order_values};
use model::{LatestUpdate, Value};

/// A reading in [`LatestDocument::recent`]: milliseconds since 1970, and its values by name.
pub(crate) type Recent = (i64, BTreeMap<String, Value>);

/// One sensor's document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LatestDocument {
    /// The latest time, in milliseconds since 1970.
    pub last_ts_ms: i64,
    /// By field: time and value of its newest reading.
    pub values: BTreeMap<String, (i64, Value)>,
    /// The newest readings, ascending by time.
    pub recent: Vec<Recent>,
}

fn borrowed((ts_ms, values): &Recent) -> RecentReading<'_> {
    RecentReading {
        ts_ms: *ts_ms,
        values: values
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_ref()))
            .collect(),
    }
}

impl LatestDocument {
    /// Merges an update. Values never go back in time, and the order of updates does not change the
    /// result.
    pub fn merge(&mut self, update: &LatestUpdate) {
        let new = newest(&update.rows, update.recent_max);
        let absent = self.values.is_empty();
        self.last_ts_ms = if absent {
            new.last_ts_ms
        } else {
            self.last_ts_ms.max(new.last_ts_ms)
        };
        for v in new.values {
            let newer = self.values.get(v.name).is_none_or(|(ts_ms, value)| {
                v.ts_ms
                    .cmp(ts_ms)
                    .then_with(|| order_values(v.value, value.as_ref()))
                    == Ordering::Greater
            });
            if newer {
                self.values
                    .insert(v.name.to_owned(), (v.ts_ms, v.value.to_value()));
            }
        }
        for r in new.recent {
            let values = r
                .values
                .iter()
                .map(|(n, v)| ((*n).to_owned(), v.to_value()))
                .collect();
            self.recent.push((r.ts_ms, values));
        }
        self.recent.sort_by(|a, b| borrowed(a).order(&borrowed(b)));
        self.recent
            .dedup_by(|a, b| borrowed(a).order(&borrowed(b)) == Ordering::Equal);
        self.recent
            .drain(..self.recent.len().saturating_sub(update.recent_max));
    }
}
