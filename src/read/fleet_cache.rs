//! The last overview of the fleet.

use std::collections::BTreeMap;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::accumulate::state::snapshot::{BusySensor, NewSensor, SilentSensor};
use crate::model::SensorId;

/// The sensors of all shards: their number, the busiest, the newest and the silent ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// When the shards were scanned, ms since 1970.
    pub as_of_ms: i64,
    /// Sensors in memory: those that sent something in the last hour or so.
    pub sensors: usize,
    /// Sensors in the catalogue, and those of them that are silent; 0 until it is read.
    pub known: u64,
    /// See `known`.
    pub silent_total: u64,
    /// The busiest first.
    pub busiest: Vec<BusySensor>,
    /// The newest first.
    pub newest: Vec<NewSensor>,
    /// The most recently silent first.
    pub silent: Vec<SilentSensor>,
}

/// The last result.
#[derive(Default)]
pub(super) struct FleetCache(pub(super) Mutex<Cached>);

#[derive(Default)]
pub(super) struct Cached {
    pub(super) fleet: Option<(Instant, Fleet)>,
    /// Of the sensors that the shards have met: when the entry in the catalogue was created.
    pub(super) created: BTreeMap<SensorId, i64>,
}
