//! Whose messages are rejected, and why: a bounded table for the fleet page, since no label of a metric holds a sensor's
//! id or a topic. Told once a message or request, like the metrics; one a process, like theirs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::metrics::Source;
use crate::model::DeadLetter;

/// Entries; when there are more, those that were told of longest ago go.
const ENTRIES_MAX: usize = 1000;
/// Bytes of a name and of a detail that are kept.
const NAME_MAX: usize = 256;
const DETAIL_MAX: usize = 500;

/// What was rejected of one sender for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The label `source`.
    pub source: &'static str,
    /// The topic, the id of a token, or the route, as far as is known; of readings that the store refused the sensor.
    pub name: String,
    /// The label `reason`.
    pub reason: String,
    /// How many readings, or of MQTT messages.
    pub count: u64,
    /// When the last one was (wall ms).
    pub last_at_ms: i64,
    /// What was wrong with the last one, in words.
    pub detail: String,
}

/// Source, name and reason.
type Key = (&'static str, String, String);

#[derive(Default)]
struct Table {
    /// Each with the turn of its last change.
    entries: HashMap<Key, (u64, Rejected)>,
    /// Counts up with every change, so that order does not depend on the clock.
    turn: u64,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&mut Table) -> T) -> T {
    f(TABLE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Table::default))
}

/// Tells of a rejected message or of rejected readings.
pub fn note(source: Source, name: &str, reason: &str, n: u64, detail: &str, at_ms: i64) {
    with(|table| table.note(source.label(), name, reason, n, detail, at_ms));
}

/// The same for the messages of which something was rejected.
pub fn note_dead_letters(source: Source, dead_letters: &[DeadLetter]) {
    for dead_letter in dead_letters {
        note(source, &dead_letter.topic, &dead_letter.reason, 1, &dead_letter.detail, dead_letter.received_at_ms);
    }
}

/// The entries that were told of last, at most `max`.
pub fn latest(max: usize) -> Vec<Rejected> {
    with(|table| table.latest(max))
}

impl Table {
    fn note(&mut self, source: &'static str, name: &str, reason: &str, n: u64, detail: &str, at_ms: i64) {
        let key = (source, cut(name, NAME_MAX).to_owned(), reason.to_owned());
        self.turn += 1;
        let (turn, entry) = self.entries.entry(key).or_insert_with_key(|(source, name, reason)| {
            let (name, reason, detail) = (name.clone(), reason.clone(), String::new());
            (0, Rejected { source, name, reason, count: 0, last_at_ms: at_ms, detail })
        });
        *turn = self.turn;
        entry.count += n;
        entry.last_at_ms = at_ms;
        entry.detail.clear();
        entry.detail.push_str(cut(detail, DETAIL_MAX));
        if self.entries.len() > ENTRIES_MAX {
            // A quarter at once, so that a storm of new names does not look through the table for each of them.
            let mut turns: Vec<u64> = self.entries.values().map(|(turn, _)| *turn).collect();
            let (_, line, _) = turns.select_nth_unstable(ENTRIES_MAX / 4);
            let line = *line;
            self.entries.retain(|_, (turn, _)| *turn > line);
        }
    }

    fn latest(&self, max: usize) -> Vec<Rejected> {
        let mut entries: Vec<&(u64, Rejected)> = self.entries.values().collect();
        entries.sort_unstable_by_key(|(turn, _)| std::cmp::Reverse(*turn));
        entries.into_iter().take(max).map(|(_, entry)| entry.clone()).collect()
    }
}

/// The begin of a text, at a character's border.
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_by_sender_and_reason_and_forgets_the_oldest() {
        let mut table = Table::default();
        table.note("mqtt", "a/b", "too_old", 2, "first", 1);
        table.note("mqtt", "a/b", "too_old", 3, &"ü".repeat(400), 5);
        table.note("mqtt", "a/b", "no_values", 1, "x", 6);
        let found = table.latest(9);
        assert_eq!(
            found.iter().map(|r| (r.reason.as_str(), r.count)).collect::<Vec<_>>(),
            [("no_values", 1), ("too_old", 5)]
        );
        assert_eq!((found[1].last_at_ms, found[1].detail.len()), (5, DETAIL_MAX));
        for i in 0..5000 {
            table.note("http", &format!("t{i}"), "too_old", 1, "", i);
            assert!(table.entries.len() <= ENTRIES_MAX);
        }
        assert_eq!(table.latest(1)[0].name, "t4999");
        assert!(!table.entries.values().any(|(_, r)| r.name == "a/b"));
    }
}
