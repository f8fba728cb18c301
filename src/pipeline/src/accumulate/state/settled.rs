//! Reports to the daily rollup which readings are settled: stored, found stored, or rejected.

use super::Shard;
use crate::rollup::state::Settled;
use model::BucketStart;

impl Shard {
    /// The same shard; it also reports which readings are settled.
    #[must_use]
    pub(crate) fn reporting_settled(self) -> Shard {
        Shard {
            settled: Some(vec![]),
            ..self
        }
    }

    /// The rows settled since the last call: stored, found stored, or rejected.
    pub(crate) fn take_settled(&mut self) -> Vec<Settled> {
        self.settled
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    pub(super) fn note_settled(&mut self, slot: u32, start: BucketStart, rows: usize) {
        let (Some(settled), Some(sensor)) = (&mut self.settled, self.sensors.get(slot as usize))
        else {
            return;
        };
        match settled.last_mut() {
            _ if rows == 0 => {}
            Some(last) if last.start == start && last.sensor_id == sensor.id => {
                last.rows += rows as u32
            }
            _ => settled.push(Settled {
                sensor_id: sensor.id.clone(),
                start,
                rows: rows as u32,
            }),
        }
    }
}
