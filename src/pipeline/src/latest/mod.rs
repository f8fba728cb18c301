//! Latest: `sensor_latest`, one document per sensor with its last values and readings. Off by
//! default.
//!
//! ```text
//!  shard ─[LatestHandle]─> task ─[state]─> updates ─[flush]─> store
//! ```
//!
//! Life of a reading: its shard passes its batch on after adding it to its own state, whether new,
//! replayed or duplicate. [`state`] copies the reading into its sensor's entry, which keeps only
//! what can still matter. When the sensor is due, at its own phase once per `latest.interval`, the
//! entry becomes one statement and is removed. The store *merges* the statement into the document
//! by time ([`model::latest`]). So a statement may be sent twice, late, or concurrently with
//! that of another instance, and the document never goes back in time. Nothing is read before a
//! write.
//!
//! **Crash.** With a journal, a part of the readings' acknowledgement is held until their document
//! is written. The journal keeps them that long, at most `latest.interval` while the store is
//! healthy, and replays them after the next start. With `ack = "stored"` nothing is held, since a
//! sender waits: after a crash the document of a sensor that sends nothing more may be one interval
//! old.
//!
//! **Full.** There is one entry per sensor; all entries together stay within `latest.max_bytes` and
//! `accumulate.max_sensors`. From three quarters of the bytes on, the entries due next are written
//! early. At the limit nothing more is accepted and the shards wait. If the store is unavailable
//! the shards fill up first.
//!
//! **Too large.** A document has at most 16 MB. The store then writes a part, at least the time of
//! the newest reading. That is counted, and the log names the sensor once.
//!
//! **Refused.** A statement that the store refuses permanently, or keeps answering with an error,
//! is counted, logged and dropped: its readings are stored in their pages anyway, and it must not
//! block the journal. A command that failed or got no answer returns its readings to their entries,
//! and the next command is sent after the backoff.
//!
//! Invariants: at most one command of a task is in flight, so a sensor has at most one statement in
//! flight; a sensor has at most one entry.

pub mod state;
pub mod task;

pub use task::{LatestGauges, LatestHandle, LatestTask};
