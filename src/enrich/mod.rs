//! Enrich: tags of sensors out of a registry collection that somebody else keeps (`[enrich]`), copied into pages and
//! measurements when these are written (the extended reference pattern). Off by default.
//!
//! ```text
//!  registry collection ─[store::registry]─> task ─[Registry]<─ shards, once for each write
//! ```
//!
//! **Who wins.** A tag that the message itself carries wins over the registry's of the same name: it is what the sensor
//! said of itself when it measured; the registry fills in the rest. A page has the tags of the moment it was made, so
//! the history of a sensor that was moved is kept, and the next page has the new ones.
//!
//! **When.** The registry is read whole before the first write, once the store is there; where that fails the service
//! starts all the same and pages lack these tags until it works. After that a change stream brings each change; on a
//! server without one (standalone, a view, missing rights) the whole is read again every `enrich.interval`.
//!
//! **Memory.** Sensor ids and tags of at most `enrich.max_sensors`; sensors with equal tags share them. What is beyond is
//! counted and logged, and its sensors get no tags. While the whole is read again there are two copies.
//!
//! **Cost.** One look-up under a read lock for each write to a page, none for a reading; the lock is held for writing
//! while one change is taken over or a finished map swapped in, never while something is read from the store.

pub mod registry;
pub mod task;

pub use registry::Registry;
pub use task::Enrichment;
