//! The sensors that a shard remembers as new.

use model::SensorId;

/// Maximum number of new sensors remembered.
pub(super) const NEW_SENSORS_MAX: usize = 256;

/// A sensor that reported for the first time since the start, or for the first time since it was
/// dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSensor {
    /// The id as sent.
    pub sensor_id: SensorId,
    /// When its first reading arrived, ms since 1970.
    pub at_ms: i64,
}
