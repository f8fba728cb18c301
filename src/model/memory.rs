//! What things take in memory, for the budgets. An allocator gives out sizes of its own classes, so that small blocks cost
//! more than they hold: a budget that counts only what was asked for is exceeded by whoever sends many small things.

/// Bytes that a block of `bytes` takes: rounded up to 16, and an eighth for what the size classes and half empty pages of
/// the allocator (mimalloc) leave unused.
pub const fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + bytes / 8 + 15) & !15 }
}

/// Bytes of a shared block (`Arc`) of `bytes`, with its two counters.
pub const fn shared(bytes: usize) -> usize {
    block(bytes + 2 * size_of::<usize>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_at_least_what_was_asked_for() {
        assert_eq!(block(0), 0, "nothing is allocated");
        for bytes in 1..10_000 {
            assert!(block(bytes) >= bytes + bytes / 8 && block(bytes) <= bytes + bytes / 8 + 15);
        }
        assert_eq!(shared(1), 32);
    }
}
