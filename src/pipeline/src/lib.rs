//! The pipeline between the journal and the store: one shard for each sensor, buckets in memory, and
//! the commands that store them.
//!
//! ```text
//!  journal ─[route]─> shard ─[accumulate]─> open bucket ─[flush]─> command ─> store
//!             │         ├─[latest]─> newest state of each sensor
//!             │         ├─[rollup]─> days
//!             │         └─[enrich]── tags of a registry
//!             └─[dead_letters]─> what could not be decoded or stored
//! ```
//!
//! In: entries of the journal (or of admission, with `ack = "stored"`), each with its
//! acknowledgement. Out: statements for the store. An acknowledgement returns when everything of it
//! is confirmed.
//!
//! The path of a reading: [`route`] sends it to the shard of its sensor. [`accumulate`] decides
//! whether it is new, a duplicate or must be compared with stored readings, and adds it to its
//! bucket. [`flush`] decides when the bucket is written and executes the command. The answer returns
//! to the shard, which notes the new version of the page.
//!
//! Invariants:
//! - A page is changed only by a write that names its version. If the write finds another version,
//!   or its answer is lost, the bucket is loaded and compared.
//! - At most one statement or load of a bucket is in flight. A bucket has one owner, its shard.
//! - Every channel, batch, wait and retry has a limit, and nothing acknowledged is dropped when it
//!   is reached: the stage before waits.
//!
//! What must not be here: a lock around readings, an unbounded queue, a metric or log line per
//! reading, a second place that decides what is a duplicate ([`accumulate::bucket`] does), a retry
//! that does not check what the first attempt did.

pub mod accumulate;
pub mod dead_letters;
pub mod enrich;
pub mod flush;
pub mod latest;
pub mod rollup;
pub mod route;
