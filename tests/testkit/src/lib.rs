//! What tests use in place of a database and a disk: complete implementations of the product's own
//! interfaces, in memory, deterministic, with faults on demand.
//!
//! - [`memory_store`] implements [`store::Store`]. It passes the same contract suite as MongoDB
//!   (`tests/servers/store_contract/`).
//! - [`memory_fs`] implements [`journal::fs::Fs`]. It tears writes and loses what is not synced.
//!
//! A crate of the product names this one as a dev-dependency only. `journal` and `store` must not:
//! their unit tests are compiled with another copy of the crate than the one that this crate
//! implements. Tests of theirs that need a fault are in `tests/pure`.

pub mod memory_fs;
pub mod memory_store;
