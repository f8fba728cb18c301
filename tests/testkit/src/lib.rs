//! What tests use in place of a database, a disk and a clock: complete implementations of the
//! product's own interfaces, in memory, deterministic, with faults on demand.
//!
//! - [`memory_store`] implements [`store::Store`]. It passes the same contract suite as MongoDB
//!   (`tests/servers/store_contract/`).
//! - [`memory_fs`] implements [`journal::fs::Fs`]. It tears writes and loses what is not synced.
//! - [`SetClock`] implements [`model::Clock`].
//!
//! A crate of the product names this one as a dev-dependency only. `model`, `journal` and `store`
//! must not: their unit tests are compiled with another copy of the crate than the one that is
//! implemented here. Tests of the journal that need a fault are in `tests/pure`.

mod clock;
pub mod memory_fs;
pub mod memory_store;

pub use clock::SetClock;
