//! Interned sets of tags: sensors with equal tags, such as a site's thousand sensors of one model,
//! share one set.

use std::sync::Arc;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::batch::Tags;
use super::memory;

/// Number of sets below which no sweep runs.
const SWEEP_MIN: usize = 64;

/// All distinct sets of tags in use. Unused sets are dropped when their number has doubled since
/// the last sweep, so that the amortized cost is constant for each new one.
#[derive(Debug)]
pub struct TagSets {
    sets: HashTable<Arc<Tags>>,
    sweep_at: usize,
    bytes: usize,
}

impl Default for TagSets {
    fn default() -> TagSets {
        TagSets {
            sets: HashTable::new(),
            sweep_at: SWEEP_MIN,
            bytes: 0,
        }
    }
}

impl TagSets {
    /// The set with this canonical form (see [`Tags`]).
    pub fn shared(&mut self, canonical: &[u8]) -> Arc<Tags> {
        let hash = xxh3_64(canonical);
        if let Some(set) = self.sets.find(hash, |set| set.as_bytes() == canonical) {
            return set.clone();
        }
        if self.sets.len() >= self.sweep_at {
            self.sweep();
        }
        let set = Arc::new(Tags::from_canonical(canonical));
        self.bytes += memory(&set);
        self.sets
            .insert_unique(hash, set.clone(), |set| xxh3_64(set.as_bytes()));
        set
    }

    /// Drops the sets without another owner, and frees their memory.
    pub fn sweep(&mut self) {
        let bytes = &mut self.bytes;
        let hash = |set: &Arc<Tags>| xxh3_64(set.as_bytes());
        memory::retain(&mut self.sets, hash, |set| {
            let is_held = Arc::strong_count(set) > 1;
            *bytes -= if is_held { 0 } else { memory(set) };
            is_held
        });
        self.sweep_at = (self.sets.len() * 2).max(SWEEP_MIN);
    }

    /// Memory use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes + memory::block(self.sets.allocation_size())
    }
}

fn memory(set: &Arc<Tags>) -> usize {
    memory::shared(size_of::<Tags>()) + memory::block(set.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(value: u32) -> Vec<u8> {
        let value = value.to_string();
        [&[1, b'k', value.len() as u8, 0], value.as_bytes()].concat()
    }

    #[test]
    fn equal_sets_are_shared_and_unused_ones_are_dropped() {
        let mut sets = TagSets::default();
        let first = sets.shared(&canonical(0));
        assert!(Arc::ptr_eq(&first, &sets.shared(&canonical(0))));
        assert_eq!(first.iter().collect::<Vec<_>>(), [("k", "0")]);
        let one = memory(&first);
        for value in 1..10_000 {
            sets.shared(&canonical(value));
        }
        assert!(
            sets.memory_bytes() < (SWEEP_MIN + 2) * 2 * one,
            "{} bytes",
            sets.memory_bytes()
        );
        let held: Vec<_> = (0..10_000)
            .map(|value| sets.shared(&canonical(value)))
            .collect();
        assert!(sets.memory_bytes() >= 10_000 * one);
        for (value, set) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(set, &sets.shared(&canonical(value as u32))));
        }
        assert!(Arc::ptr_eq(&first, &held[0]));
    }
}
