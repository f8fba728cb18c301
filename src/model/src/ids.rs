//! Identifiers of sensors and buckets.

use super::memory;
use super::span::BucketStart;

/// The id of a sensor. Up to 23 bytes are stored inline, because there are millions; a longer one
/// is shared by its clones.
pub type SensorId = smol_str::SmolStr;

/// Heap bytes of a sensor id.
pub fn sensor_id_memory(id: &SensorId) -> usize {
    if id.is_heap_allocated() {
        memory::shared(id.len())
    } else {
        0
    }
}

/// The stable hash of a sensor id (XXH3-64, seed 0). It selects the shard of the sensor and its
/// slot in the shard's hash table. It is the same in every process and version. So a journal
/// written with one shard count can be replayed with another.
pub fn stable_hash(sensor_id: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(sensor_id.as_bytes())
}

/// Identifies a bucket: one sensor and one span of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    /// The sensor of the bucket.
    pub sensor_id: SensorId,
    /// The start of its span.
    pub start: BucketStart,
}

/// Whether a sensor id begins with one of these prefixes, which are sorted; none begins with
/// another.
pub fn has_prefix(id: &str, prefixes: &[String]) -> bool {
    // A prefix of the id is not after it, and what is between the two begins with the prefix.
    let after = prefixes.partition_point(|prefix| **prefix <= *id);
    prefixes[..after]
        .last()
        .is_some_and(|prefix| id.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_of_the_prefixes_or_none() {
        let prefixes = ["a-", "b"].map(ToOwned::to_owned);
        for (id, expected) in [
            ("a-", true),
            ("a-1", true),
            ("a", false),
            ("a.", false),
            ("b", true),
            ("bzz", true),
            ("c", false),
            ("", false),
        ] {
            assert_eq!(has_prefix(id, &prefixes), expected, "{id}");
        }
        assert!(has_prefix("x", &[String::new()]) && !has_prefix("x", &[]));
    }
}
