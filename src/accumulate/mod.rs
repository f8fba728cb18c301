//! Accumulate: one task owns one shard and its open buckets; there are no locks.

pub mod bucket;
pub mod state;

pub use bucket::PageLimits;
