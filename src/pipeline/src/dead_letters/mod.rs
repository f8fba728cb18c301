//! Dead letters: messages and readings that could not be decoded or stored, kept with the reason
//! until an operator replays or purges them.
//!
//! Constraints:
//! - A message that becomes a dead letter is acknowledged to its sender only when the dead letter
//!   is durable.
//! - A dead letter with acknowledged readings is removed only by a replay or a purge, never by a
//!   limit.
//! - A dead letter that MongoDB refuses does not delay the others.
//!
//! The life of a dead letter:
//!
//! ```text
//!  ingest ──> journal ──> router ──┐
//!                                  ├─ DeadLetters::send ─> writer ─> collection `dead_letters` ──> list, purge
//!  shard (refused, quarantined) ───┘   (bounded in bytes)            │  limited by bytes and age
//!                                                                    └─> redecode ─> replay ─> stored, then removed
//! ```
//!
//! 1. It is created where the problem is found. Over MQTT and on hooks, a message with a reject
//!    becomes one, whole, with the first reason; its other readings are accepted. On the other HTTP
//!    routes the sender gets the error instead. A shard creates one from acknowledged readings that
//!    the store refuses, or that are still quarantined after `flush.quarantine_after`; its `source`
//!    is [`OWN_SOURCE`]. At most [`DEAD_PAYLOAD_BYTES_MAX`] of a sender's payload are kept.
//! 2. Queued: it travels in the ingest batch of its message, so it is in the journal before the
//!    sender is acknowledged (with `ack = "stored"`, in the collection). Router and shards hand it
//!    to the writer ([`DeadLetters::send`]), which accepts a bounded number of bytes. Its journal
//!    entry, or the rows of the shard, stay unacknowledged until it is stored.
//! 3. Written: in batches; a failed batch is retried and halved until the dead letter at fault is
//!    alone (`writer`).
//! 4. Limited: the oldest ones of senders are removed above `dead_letters.max_bytes`
//!    (`writer::limit`), and expire after `dead_letters.retention` (a TTL index).
//! 5. Listed and purged: the commands select them by reason, source, topic and time
//!    ([`store::dead_letter_filter`]). The read API lists them too.
//! 6. Replayed: decoded again with the current settings (`ingest::redecode`), stored as a second
//!    instance, and only then removed (`replay` of the service). Readings that are still rejected stay.
//!
//! Crash: a dead letter that was not stored is in the journal, or its readings are; the next start
//! processes them again. One that was stored without an answer may be stored twice.
//!
//! Full: if the writer's bytes are used up, because MongoDB is unavailable or refuses too many,
//! router and shards wait, and the journal is the buffer.
//!
//! Elsewhere: the type [`DeadLetter`](model::DeadLetter) stays in `model`, because
//! admission, journal, ingest and store all carry it and must not depend on this module.
//! `store::mongo::dead_letters` has the commands for MongoDB, `testkit::memory_store` the same in memory,
//! `cli::dead_letters` the command line.
//!
//! [`OWN_SOURCE`]: model::OWN_SOURCE
//! [`DEAD_PAYLOAD_BYTES_MAX`]: model::DEAD_PAYLOAD_BYTES_MAX

mod writer;

pub use writer::DeadLetters;
