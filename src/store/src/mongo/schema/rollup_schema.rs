//! What the collections of the daily rollup depend on.

use std::time::Duration;

use model::Zone;

/// The settings of the daily rollup that a database depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollupSchema {
    /// `rollup.zone`
    pub zone: Zone,
    /// `rollup.retention`
    pub retention: Option<Duration>,
}
