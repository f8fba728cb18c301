//! Remembers accepted messages, so that each retained message is accepted once. Pure.
//!
//! For each topic it remembers the newest *acknowledged* message (two hashes, not the text). If the
//! broker sends a message because of a subscription, not because it was just published, and it
//! equals the remembered one, it is skipped. A message that was accepted but never acknowledged is
//! not remembered, so its redelivery is accepted.
//!
//! Bounded: 65,536 topics per broker, 1 MiB, allocated with the first entry. If two topics hash to
//! the same slot, the older is evicted. A message of an evicted topic is accepted once more; no
//! message is ever skipped that was not accepted before.

use std::hash::{BuildHasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

const PLACES: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Note {
    topic: u64,
    payload: u64,
}

#[derive(Debug)]
pub(super) struct Accepted {
    places: Vec<Note>,
    /// Random per process, so that a sender cannot construct messages with colliding hashes.
    seed: u64,
}

impl Default for Accepted {
    fn default() -> Accepted {
        Accepted {
            places: vec![],
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl Accepted {
    /// Hashes topic and payload of a message.
    pub(super) fn note(&self, topic: &[u8], payload: &[u8]) -> Note {
        // 0 marks an empty slot.
        let topic = xxh3_64_with_seed(topic, self.seed).max(1);
        Note {
            topic,
            payload: xxh3_64_with_seed(payload, self.seed),
        }
    }

    fn place(note: Note) -> usize {
        note.topic as usize % PLACES
    }

    /// Whether it equals the newest acknowledged message of its topic.
    pub(super) fn contains(&self, note: Note) -> bool {
        self.places.get(Accepted::place(note)) == Some(&note)
    }

    /// Records an acknowledged message.
    pub(super) fn remember(&mut self, note: Note) {
        if self.places.is_empty() {
            self.places.resize(PLACES, Note::default());
        }
        self.places[Accepted::place(note)] = note;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_message_of_each_topic_is_known() {
        let mut taken = Accepted::default();
        let [a, b, other] =
            [(b"t/1", b"a"), (b"t/1", b"b"), (b"t/2", b"a")].map(|(t, p)| taken.note(t, p));
        assert!(!taken.contains(a));
        taken.remember(a);
        taken.remember(other);
        assert!(taken.contains(a) && taken.contains(other) && !taken.contains(b));
        taken.remember(b);
        assert!(taken.contains(b) && !taken.contains(a));
    }

    #[test]
    fn with_too_many_topics_old_ones_are_dropped_and_none_is_confused() {
        let mut taken = Accepted::default();
        for i in 0..2 * PLACES {
            taken.remember(taken.note(format!("t/{i}").as_bytes(), b"x"));
        }
        assert_eq!(taken.places.len(), PLACES);
        let known = (0..2 * PLACES)
            .filter(|i| taken.contains(taken.note(format!("t/{i}").as_bytes(), b"x")))
            .count();
        assert!((PLACES / 2..=PLACES).contains(&known), "{known}");
        assert!(!(0..1000).any(|i| taken.contains(taken.note(format!("u/{i}").as_bytes(), b"x"))));
    }
}
