//! Estimates memory use, for the memory limits. An allocator rounds sizes up to its size classes,
//! so small blocks take more than the requested size. If only requested sizes were counted, a
//! sender of many small values could exceed a limit.

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
