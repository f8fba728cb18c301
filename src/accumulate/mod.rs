//! Accumulate: one task owns one shard and its open buckets; there are no locks. [`state`] and [`bucket`] are pure and
//! decide everything; [`task`] carries events in and jobs out.

pub mod ask;
pub mod bucket;
mod seen;
pub mod state;
pub mod task;

pub use ask::Asker;
pub use bucket::{BucketView, PageLimits};
pub use task::{ShardBatch, ShardClosed, ShardHandle};
