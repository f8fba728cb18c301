//! A bounded table of rejects by sender and reason, for the fleet page. Metrics cannot show this,
//! because no label holds a sensor id or a topic. Updated once per message or request, like the
//! metrics; global to the process, like them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use super::metrics::Source;
use super::{lock, tail};
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

/// A rejected message or rejected readings, for [`note`].
#[derive(Debug, Clone, Copy)]
pub struct Reject<'a> {
    /// Where it comes from.
    pub source: Source,
    /// As in [`Rejected`].
    pub name: &'a str,
    /// The label `reason`.
    pub reason: &'a str,
    /// Readings, or messages for MQTT.
    pub count: u64,
    /// Description for a person.
    pub detail: &'a str,
    /// In milliseconds since 1970.
    pub at_ms: i64,
}

/// Source, name and reason.
type Key = (Source, String, String);

#[derive(Default)]
struct Entry {
    /// The turn of its last change.
    turn: u64,
    count: u64,
    last_at_ms: i64,
    detail: String,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Incremented with every change, so that the order does not depend on the clock.
    turn: u64,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// Records it.
pub fn note(reject: Reject<'_>) {
    lock(&TABLE).note(reject);
    tail::rejected(reject);
}

/// Records messages that were rejected in whole or in part.
pub fn note_dead_letters(source: Source, dead_letters: &[DeadLetter]) {
    for dead_letter in dead_letters {
        note(Reject {
            source,
            name: &dead_letter.topic,
            reason: &dead_letter.reason,
            count: 1,
            detail: &dead_letter.detail,
            at_ms: dead_letter.received_at_ms,
        });
    }
}

/// The most recently updated entries, newest first, at most `max`.
pub fn latest(max: usize) -> Vec<Rejected> {
    lock(&TABLE).latest(max)
}

impl Table {
    fn note(&mut self, of: Reject<'_>) {
        let name = cut(of.name, NAME_MAX).to_owned();
        self.turn += 1;
        let entry = self
            .entries
            .entry((of.source, name, of.reason.to_owned()))
            .or_default();
        entry.turn = self.turn;
        entry.count += of.count;
        entry.last_at_ms = of.at_ms;
        cut(of.detail, DETAIL_MAX).clone_into(&mut entry.detail);
        if self.entries.len() > ENTRIES_MAX {
            // Evicts a quarter, so that a burst of new names does not scan the table once per name.
            let mut turns: Vec<u64> = self.entries.values().map(|entry| entry.turn).collect();
            let (_, line, _) = turns.select_nth_unstable(ENTRIES_MAX / 4);
            let line = *line;
            self.entries.retain(|_, entry| entry.turn > line);
        }
    }

    fn latest(&self, max: usize) -> Vec<Rejected> {
        let mut entries: Vec<(&Key, &Entry)> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(_, entry)| std::cmp::Reverse(entry.turn));
        let shown = |((source, name, reason), entry): (&Key, &Entry)| Rejected {
            source: source.as_str(),
            name: name.clone(),
            reason: reason.clone(),
            count: entry.count,
            last_at_ms: entry.last_at_ms,
            detail: entry.detail.clone(),
        };
        entries.into_iter().take(max).map(shown).collect()
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

    fn reject<'a>(
        name: &'a str,
        reason: &'a str,
        count: u64,
        detail: &'a str,
        at_ms: i64,
    ) -> Reject<'a> {
        Reject {
            source: Source::Mqtt,
            name,
            reason,
            count,
            detail,
            at_ms,
        }
    }

    #[test]
    fn the_table_counts_by_sender_and_reason_and_drops_the_oldest() {
        let mut table = Table::default();
        table.note(reject("a/b", "too_old", 2, "first", 1));
        table.note(reject("a/b", "too_old", 3, &"ü".repeat(400), 5));
        table.note(reject("a/b", "no_values", 1, "x", 6));
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
            table.note(reject(&format!("t{i}"), "too_old", 1, "", i));
            assert!(table.entries.len() <= ENTRIES_MAX);
        }
        assert_eq!(table.latest(1)[0].name, "t4999");
        assert!(!table.entries.keys().any(|(_, name, _)| name == "a/b"));
    }
}
