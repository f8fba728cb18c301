//! Estimates memory use, for the memory limits. An allocator rounds sizes up to its size classes,
//! so small blocks take more than the requested size. If only requested sizes were counted, a
//! sender of many small values could exceed a limit.

use hashbrown::HashTable;

/// Memory of a block of `bytes`: plus an eighth for unused space in the allocator's (mimalloc) size
/// classes and half-empty pages, rounded up to 16.
pub const fn block(bytes: usize) -> usize {
    if bytes == 0 {
        0
    } else {
        (bytes + bytes / 8 + 15) & !15
    }
}

/// Memory of a shared block (`Arc`) of `bytes`, with its two counters.
pub const fn shared(bytes: usize) -> usize {
    block(bytes + 2 * size_of::<usize>())
}

/// Keeps the entries of a table that `is_kept` accepts. If it drops some, the others get a table of
/// their own size, so that a table's size follows from the number of entries over time. With what
/// removals leave in a table it would depend on the hashes too, which differ in each process, and a
/// seed of the simulation must replay the same history.
pub fn retain<T>(
    table: &mut HashTable<T>,
    hash: impl Fn(&T) -> u64,
    mut is_kept: impl FnMut(&T) -> bool,
) {
    let before = table.len();
    table.retain(|entry| is_kept(entry));
    if table.len() == before {
        return;
    }
    let mut kept = HashTable::with_capacity(table.len());
    for entry in table.drain() {
        kept.insert_unique(hash(&entry), entry, &hash);
    }
    *table = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_at_least_the_requested_size() {
        assert_eq!(block(0), 0, "nothing is allocated");
        for bytes in 1..10_000 {
            assert!(block(bytes) >= bytes + bytes / 8 && block(bytes) <= bytes + bytes / 8 + 15);
        }
        assert_eq!(shared(1), 32);
    }
}
