//! Former ids of sensors: collection `sensor_aliases`.
//!
//! A command that changes aliases counts up their version afterwards. An instance that knows the
//! version of its aliases notices a change with a small read, and confirms a version once nothing is
//! left of what it has routed by older aliases. So a command knows when no reading can be stored
//! under a former id any more.

use model::Alias;

use super::{BoxFuture, StoreError};

/// Aliases that an instance holds at most, some 20 MB; the commands make no more.
pub const ALIASES_MAX: usize = 100_000;

/// The aliases of a store.
pub trait AliasStore: Send + Sync {
    /// The version, 0 at first. Aliases that are read afterwards are at least as new.
    fn version(&self) -> BoxFuture<'_, Result<i64, StoreError>>;

    /// All aliases, or the first [`ALIASES_MAX`] and one more.
    fn aliases(&self) -> BoxFuture<'_, Result<Vec<Alias>, StoreError>>;

    /// Records that an instance runs, and that it neither has nor receives readings that were routed
    /// by aliases before this version.
    fn confirm<'a>(
        &'a self,
        instance: &'a str,
        version: i64,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Records that an instance has ended and has no reading that is not stored.
    fn retire<'a>(&'a self, instance: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;
}
