//! Computes the readings of a message from its number. So the check afterwards needs only the
//! number of acknowledged messages per lane, not a record of the sent data.
//!
//! A *lane* is one connection with its own sensors. Its sensors are divided into *groups* of one
//! message each; message `m` is group `m % groups` in *round* `m / groups`. A round gives every
//! sensor of the lane one reading. Values repeat after [`Plan::ring`] rounds; times of a sensor
//! never repeat.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as i64
}

/// The parameters of the computation.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) sensors: u32,
    /// Maximum number of readings in a message.
    pub(crate) batch: u32,
    pub(crate) lanes: u32,
    /// The first lanes, whose messages have one reading each, regardless of `batch`: MQTT in
    /// addition to HTTP.
    pub(crate) single_lanes: u32,
    /// Rounds after which values repeat.
    pub(crate) ring: u32,
    /// Time of the first round (ms since 1970), and the interval of rounds.
    pub(crate) base_ms: i64,
    pub(crate) step_ms: i64,
    /// Late data: exactly this many rounds, in a different order for each sensor.
    pub(crate) shuffled: Option<u64>,
}

impl Plan {
    /// The sensors of a lane, divided as evenly as possible.
    pub(crate) fn lane(&self, lane: u32) -> Range<u32> {
        let at = |i: u32| (u64::from(self.sensors) * u64::from(i) / u64::from(self.lanes)) as u32;
        at(lane)..at(lane + 1)
    }

    /// Number of messages in a round of a lane.
    pub(crate) fn groups(&self, lane: u32) -> u32 {
        (self.lane(lane).len() as u32)
            .div_ceil(self.batch_of(lane))
            .max(1)
    }

    fn batch_of(&self, lane: u32) -> u32 {
        if lane < self.single_lanes {
            1
        } else {
            self.batch
        }
    }

    pub(crate) fn group(&self, lane: u32, group: u32) -> Range<u32> {
        let of = self.lane(lane);
        let begin = of.start + group * self.batch_of(lane);
        begin..(begin + self.batch_of(lane)).min(of.end)
    }

    /// Group and round of a lane's message.
    pub(crate) fn at(&self, lane: u32, message: u64) -> (u32, u64) {
        let groups = u64::from(self.groups(lane));
        ((message % groups) as u32, message / groups)
    }

    /// Maximum number of messages of a lane.
    pub(crate) fn messages_max(&self, lane: u32) -> u64 {
        self.shuffled
            .map_or(u64::MAX, |rounds| rounds * u64::from(self.groups(lane)))
    }

    /// The time of a sensor's reading in a round, in milliseconds since 1970.
    pub(crate) fn ts_ms(&self, sensor: u32, round: u64) -> i64 {
        let tick = match self.shuffled {
            None => round,
            Some(rounds) => {
                // A step that is coprime to the number of rounds visits each round once.
                let at = round + u64::from(sensor) * 7919;
                (at % rounds) * coprime(rounds) % rounds
            }
        };
        self.base_ms + tick as i64 * self.step_ms
    }

    /// Number of rounds of a sensor of this group after `messages` messages of its lane.
    pub(crate) fn rounds_after(&self, lane: u32, group: u32, messages: u64) -> u64 {
        let groups = u64::from(self.groups(lane));
        messages / groups + u64::from(messages % groups > u64::from(group))
    }
}

/// A number coprime to `n` near its golden section, so that neighbours end up far apart.
fn coprime(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let begin = (n as f64 * 0.618) as u64;
    (begin.max(1)..)
        .find(|candidate| gcd(*candidate, n) == 1)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plan() -> Plan {
        Plan {
            seed: 1,
            sensors: 25,
            batch: 4,
            lanes: 3,
            single_lanes: 1,
            ring: 5,
            base_ms: 1000,
            step_ms: 10,
            shuffled: None,
        }
    }

    #[test]
    fn every_sensor_has_one_lane_and_one_group() {
        let plan = plan();
        let mut seen = BTreeSet::new();
        for lane in 0..plan.lanes {
            for group in 0..plan.groups(lane) {
                assert!(plan.group(lane, group).all(|sensor| seen.insert(sensor)));
            }
        }
        assert_eq!(seen.len(), 25);
        assert_eq!(
            [0, 1, 2].map(|lane| plan.groups(lane)),
            [8, 2, 3],
            "the first lane sends single readings"
        );
    }

    #[test]
    fn counting_agrees_with_iterating_over_the_messages() {
        let plan = plan();
        for messages in 0..20 {
            let mut of = [0u64; 25];
            for (group, _) in (0..messages).map(|m| plan.at(1, m)) {
                plan.group(1, group)
                    .for_each(|sensor| of[sensor as usize] += 1);
            }
            for group in 0..plan.groups(1) {
                for sensor in plan.group(1, group) {
                    assert_eq!(plan.rounds_after(1, group, messages), of[sensor as usize]);
                }
            }
        }
    }

    #[test]
    fn shuffled_rounds_have_every_time_once_and_out_of_order() {
        for rounds in [1, 2, 7, 60, 1000] {
            let plan = Plan {
                shuffled: Some(rounds),
                ..plan()
            };
            for sensor in [0, 3, 24] {
                let times: Vec<i64> = (0..rounds).map(|round| plan.ts_ms(sensor, round)).collect();
                let different: BTreeSet<&i64> = times.iter().collect();
                assert_eq!(different.len() as u64, rounds);
                assert!(rounds < 7 || !times.is_sorted());
            }
        }
    }
}
