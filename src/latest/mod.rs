//! Latest: `sensor_latest`, one document a sensor with its last values and readings (DESIGN section 3), off by default.
//!
//! ```text
//!  shard ─[LatestHandle]─> task ─[state]─> updates ─[flush]─> store
//! ```
//!
//! The life of a reading here: its shard hands its batch over once it has taken it in itself, be it new, replayed or a
//! duplicate; [`state`] copies it into its sensor's entry, where only what can still matter is kept; when the sensor is
//! due, at a phase of its own once every `latest.interval`, the entry becomes one statement and is forgotten. The store
//! *merges* the statement into the document by time ([`crate::model::latest`]), so a statement may be sent twice, late,
//! or beside that of another instance, and the document never goes back. Nothing is read before it is written.
//!
//! **Crash.** With a journal, a part of the readings' acknowledgement is held until their document is written: the
//! journal keeps them that long, `latest.interval` at most while the store is well, and the next start brings them
//! back. With `ack = "stored"` nothing is held, since a sender waits: after a crash the document of a sensor that then
//! stays silent may be one interval old.
//!
//! **Full.** An entry a sensor, and all of them within `latest.max_bytes` and `accumulate.max_sensors`. From three
//! quarters of the bytes on, those that are due next are written early; at the limit nothing more is taken and the
//! shards wait. With the store away the shards fill up first.
//!
//! **Refused.** A statement that the store refuses for good, or keeps answering with an error, is counted, logged and
//! dropped: its readings are in their pages all the same, and it must not hold up the journal. A command that failed or
//! was not answered puts its readings back into their entries, and the next is sent after the backoff.
//!
//! Invariants: at most one command of a task is in flight, so a sensor has at most one statement in flight; a sensor has
//! at most one entry.

pub mod state;
pub mod task;

pub use task::{LatestGauges, LatestHandle, LatestTask};
