//! The last overview of the fleet.

use std::collections::BTreeMap;

use tokio::sync::Mutex;
use tokio::time::Instant;

use model::SensorId;
use pipeline::accumulate::state::snapshot::{BusySensor, NewSensor, SilentSensor};

/// The sensors of all shards: their number, the busiest, the newest and the silent ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// When the shards were scanned, ms since 1970.
    pub(crate) as_of_ms: i64,
    /// Sensors in memory: those with readings of the last hour or so.
    pub sensors: usize,
    /// Sensors in the catalogue, and those of them that are silent; 0 until it is read.
    pub known: u64,
    /// See `known`.
    pub silent_total: u64,
    /// `sensors.silent_after`, ms.
    pub(crate) silent_after_ms: i64,
    /// Sensors that this process has heard and that are not silent. Of those that have left the
    /// memory, the last 4,096 of each shard at most.
    pub heard: u64,
    /// Those of them that are late by their own interval.
    pub(crate) late_total: u64,
    /// The busiest first.
    pub busiest: Vec<BusySensor>,
    /// The newest first.
    pub newest: Vec<NewSensor>,
    /// Late and silent ones, the most recently silent first.
    pub silent: Vec<SilentSensor>,
}

impl Fleet {
    /// Whether half of the sensors that this process has heard are late, or half of all are silent.
    /// Sensors that are out of use are not silent, but count as known.
    pub(crate) fn is_half_away(&self) -> bool {
        let is_half = |part: u64, whole: u64| part > 0 && part.saturating_mul(2) >= whole;
        is_half(self.late_total, self.heard) || is_half(self.silent_total, self.known)
    }
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
