//! Accumulate: one task owns one shard and its open buckets; there are no locks. [`state`] and
//! [`bucket`] are pure and make all decisions; [`task`] delivers events to them and sends their
//! jobs.

mod arrivals;
pub mod bucket;
mod dedup;
pub mod query;
pub mod state;
pub mod task;

pub use bucket::{PageLimits, UnstoredBucket};
pub use query::{QueryHandle, ShardClosed};
pub use task::{ShardBatch, ShardHandle};
