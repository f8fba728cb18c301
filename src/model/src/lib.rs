//! What every other crate talks about: readings, sensor ids, hours, pages and batches, with the clock,
//! the acknowledgement and the wire format of Protocol Buffers.
//!
//! In and out: values only. Nothing here waits, reads a file or knows another crate of hourbucket.
//!
//! The path of a reading: a decoder writes it into a [`BatchBuilder`], as the number of its field
//! schema and packed values. The [`ReadingBatch`] travels with an [`ack::Ack`] to the journal and the
//! router. A shard copies the rows of each sensor and hour into [`Rows`], which become a [`PageWrite`].
//!
//! Invariants:
//! - An acknowledgement reports one outcome: *delivered* only if each of its parts did.
//! - A sensor id is at most as long as the limit of the settings, and never empty.
//! - Two readings are equal if their times and values are, numbers as numbers ([`ReadingKey`]).
//! - The wall clock is read in [`clock`] only; everything else is given a [`Now`].
//!
//! What must not be here: async, IO, metrics, a setting, a name of MongoDB.

pub mod ack;
pub mod aliases;
pub mod batch;
pub mod catalog;
pub mod clock;
mod closed_set;
pub mod collections;
mod compression;
pub mod day;
pub mod dead_letter;
mod field_schema;
pub mod fields;
pub mod glob;
pub mod ids;
pub mod latest;
pub mod memory;
pub mod page;
pub mod protobuf;
pub mod ranges;
pub mod reading;
pub mod rows;
pub mod sensor_patterns;
pub mod span;
pub mod summary;
pub mod tags;
pub mod value;

pub use ack::JournalAccount;
pub use aliases::{Alias, Aliases};
pub use batch::{BatchBuilder, Checks, ReadingBatch, ReadingRef, ReceiptTimes, RowPosition, Tags};
pub use catalog::{CatalogUpdate, FieldKinds};
pub use clock::{Clock, Now, SystemClock, rfc3339};
pub use closed_set::Named;
pub use compression::compression;
pub use day::{Day, Zone};
pub use dead_letter::{DEAD_PAYLOAD_BYTES_MAX, DeadLetter, OWN_SOURCE};
pub use field_schema::{FieldSchema, FieldSchemas};
pub use fields::{FieldGuard, FieldLimiter, stored_name};
pub use ids::sensor_id_memory;
pub use ids::{BucketKey, SensorId, has_prefix, stable_hash};
pub use latest::LatestUpdate;
pub use page::{Gate, GateSlot, PageKind, PageWrite, StorageMode};
pub use reading::{Reading, ReadingKey, Sample};
pub use rows::{RowFlags, Rows};
pub use sensor_patterns::SensorPatterns;
pub use span::{BucketStart, DAY_MS, NewBuckets, Span};
pub use summary::{FieldSummary, Summary};
pub use tags::TagSets;
pub use value::{Number, Value, ValueRef, keep_newer};
