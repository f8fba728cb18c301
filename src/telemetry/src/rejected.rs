//! A bounded table of rejects by sender and reason, for the fleet page. Metrics cannot show this,
//! because no label holds a sensor id or a topic. Updated once per message or request, like the
//! metrics; global to the process, like them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::metrics::Source;
use super::tail;
use model::DeadLetter;

/// Entries. When there are more, the least recently updated ones are evicted.
const ENTRIES_MAX: usize = 1000;
/// Longer names and details are cut to these numbers of bytes.
const NAME_MAX: usize = 256;
const DETAIL_MAX: usize = 500;

/// The rejects of one sender for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The label `source`.
    pub source: &'static str,
    /// The topic, token id or route, if known. For readings that the store rejected: the sensor id.
    pub name: String,
    /// The label `reason`.
    pub reason: String,
    /// Readings, or messages for MQTT.
    pub count: u64,
    /// Time of the last reject, in milliseconds since 1970.
    pub last_at_ms: i64,
    /// Description of the last reject, at most 500 bytes.
    pub detail: String,
}

/// Source, name and reason.
type Key = (&'static str, String, String);

#[derive(Default)]
struct Table {
    /// Each entry with the turn of its last change.
    entries: HashMap<Key, (u64, Rejected)>,
    /// Incremented with every change, so that the order does not depend on the clock.
    turn: u64,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&mut Table) -> T) -> T {
    f(TABLE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_with(Table::default))
}

/// Records a rejected message or rejected readings.
pub fn note(source: Source, name: &str, reason: &str, n: u64, detail: &str, at_ms: i64) {
    with(|table| table.note(source.as_str(), name, reason, n, detail, at_ms));
    tail::rejected(source.as_str(), name, reason, n, detail, at_ms);
}

/// Records messages that were rejected in whole or in part.
pub fn note_dead_letters(source: Source, dead_letters: &[DeadLetter]) {
    for dead_letter in dead_letters {
        note(
            source,
            &dead_letter.topic,
            &dead_letter.reason,
            1,
            &dead_letter.detail,
            dead_letter.received_at_ms,
        );
    }
}

/// The most recently updated entries, newest first, at most `max`.
pub fn latest(max: usize) -> Vec<Rejected> {
    with(|table| table.latest(max))
}

impl Table {
    fn note(
        &mut self,
        source: &'static str,
        name: &str,
        reason: &str,
        n: u64,
        detail: &str,
        at_ms: i64,
    ) {
        let key = (source, cut(name, NAME_MAX).to_owned(), reason.to_owned());
        self.turn += 1;
        let (turn, entry) = self
            .entries
            .entry(key)
            .or_insert_with_key(|(source, name, reason)| {
                let name = name.clone();
                let reason = reason.clone();
                let detail = String::new();
                (
                    0,
                    Rejected {
                        source,
                        name,
                        reason,
                        count: 0,
                        last_at_ms: at_ms,
                        detail,
                    },
                )
            });
        *turn = self.turn;
        entry.count += n;
        entry.last_at_ms = at_ms;
        entry.detail.clear();
        entry.detail.push_str(cut(detail, DETAIL_MAX));
        if self.entries.len() > ENTRIES_MAX {
            // Evicts a quarter, so that a burst of new names does not scan the table once per name.
            let mut turns: Vec<u64> = self.entries.values().map(|(turn, _)| *turn).collect();
            let (_, line, _) = turns.select_nth_unstable(ENTRIES_MAX / 4);
            let line = *line;
            self.entries.retain(|_, (turn, _)| *turn > line);
        }
    }

    fn latest(&self, max: usize) -> Vec<Rejected> {
        let mut entries: Vec<&(u64, Rejected)> = self.entries.values().collect();
        entries.sort_unstable_by_key(|(turn, _)| std::cmp::Reverse(*turn));
        entries
            .into_iter()
            .take(max)
            .map(|(_, entry)| entry.clone())
            .collect()
    }
}

/// The longest prefix of at most `max` bytes that ends at a character boundary.
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or_default();
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_by_sender_and_reason_and_drops_the_oldest() {
        let mut table = Table::default();
        table.note("mqtt", "a/b", "too_old", 2, "first", 1);
        table.note("mqtt", "a/b", "too_old", 3, &"ü".repeat(400), 5);
        table.note("mqtt", "a/b", "no_values", 1, "x", 6);
        let found = table.latest(9);
        assert_eq!(
            found
                .iter()
                .map(|r| (r.reason.as_str(), r.count))
                .collect::<Vec<_>>(),
            [("no_values", 1), ("too_old", 5)]
        );
        assert_eq!(
            (found[1].last_at_ms, found[1].detail.len()),
            (5, DETAIL_MAX)
        );
        for i in 0..5000 {
            table.note("http", &format!("t{i}"), "too_old", 1, "", i);
            assert!(table.entries.len() <= ENTRIES_MAX);
        }
        assert_eq!(table.latest(1)[0].name, "t4999");
        assert!(!table.entries.values().any(|(_, r)| r.name == "a/b"));
    }
}
