//! Enrich: tags of sensors from a registry collection that the operator maintains (`[enrich]`),
//! copied into pages and measurements when these are written (the extended reference pattern). Off
//! by default.
//!
//! ```text
//!  registry collection ─[store::registry]─> task ─[Registry]<─ shards, once per write
//! ```
//!
//! **Precedence.** A tag in the message wins over the registry's tag of the same name, because the
//! sensor sent it with the measurement; the registry adds the others. A page has the tags of the
//! time it was created. So the history of a sensor that was moved is kept, and the next page has
//! the new tags.
//!
//! **Updates.** The registry is read in full before the first write, once the store is available.
//! If that fails the service starts anyway, and pages lack these tags until it succeeds. After that
//! a change stream delivers each change. On a server without change streams (standalone, a view,
//! missing rights) the registry is read in full again every `enrich.interval`.
//!
//! **Memory.** Sensor ids and tags of at most `enrich.max_sensors`; sensors with equal tags share
//! them. Sensors beyond the limit are counted and logged, and get no tags. During a full read there
//! are two copies.
//!
//! **Cost.** One lookup under a read lock per page write, none per reading. The write lock is held
//! while one change is applied or a complete map is swapped in, never during a read from the store.

pub mod registry;
pub mod task;

pub use registry::Registry;
pub use task::Enrichment;
