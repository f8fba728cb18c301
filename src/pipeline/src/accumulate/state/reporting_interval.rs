//! How often a sensor reports, in eight bytes, and which sensors of this process have become
//! silent. Pure.
//!
//! The fleet page lists a sensor early as silent if its last arrival is older than three times its
//! usual interval and at least [`SILENT_MIN_S`]; if its interval is unknown (fewer than three
//! arrivals), older than [`SILENT_UNKNOWN_S`]. The time of arrival counts, not that of the
//! readings: a sensor that sends old readings is not silent. A restart forgets these intervals;
//! the catalogue has the sensors that are silent for long ([`store::catalog`]).

use std::collections::HashMap;

use model::SensorId;

/// No sensor is reported silent sooner than this.
const SILENT_MIN_S: u32 = 5 * 60;
/// The limit while the interval is unknown.
const SILENT_UNKNOWN_S: u32 = 60 * 60;
/// The limit in multiples of the usual interval.
const SILENT_INTERVALS: u32 = 3;
/// Readings after which the interval counts as known.
const KNOWN_FROM: u16 = 3;

/// The interval between the times that are noted; eight bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReportingInterval {
    /// The latest time, in seconds since 1970; 0: none, or before 1970.
    last_s: u32,
    /// A moving average of the seconds between two, in quarter seconds; saturates at 4.5 hours.
    interval_qs: u16,
    /// Number of times, saturating.
    readings: u16,
}

impl ReportingInterval {
    /// Records a time, of a reading or of its arrival.
    pub(super) fn note(&mut self, ts_ms: i64) {
        let Ok(ts_s) = u32::try_from(ts_ms / 1000) else {
            return;
        };
        if ts_s <= self.last_s && self.readings > 0 {
            // The same second, or out of order.
            return;
        }
        if self.readings > 0 {
            let gap = (ts_s - self.last_s)
                .saturating_mul(4)
                .min(u32::from(u16::MAX));
            let held = u32::from(self.interval_qs);
            // The new gap has a weight of an eighth; the first one counts in full.
            let mean = if self.readings == 1 {
                gap
            } else {
                (held * 7 + gap).div_ceil(8)
            };
            self.interval_qs = mean as u16;
        }
        self.last_s = ts_s;
        self.readings = self.readings.saturating_add(1);
    }

    /// The usual time between two readings (ms); `None` if it is not known.
    pub(super) fn usual_ms(self) -> Option<u64> {
        (self.readings >= KNOWN_FROM).then(|| u64::from(self.interval_qs) * 250)
    }

    pub(super) fn last_ts_ms(self) -> Option<i64> {
        (self.readings > 0).then(|| i64::from(self.last_s) * 1000)
    }

    /// If it is silent as of `now_ms` (wall): the last time, ms since 1970.
    pub(super) fn silent_since(self, now_ms: i64) -> Option<i64> {
        let last_ts_ms = self.last_ts_ms()?;
        let allowed_s = match self.readings {
            0..KNOWN_FROM => SILENT_UNKNOWN_S,
            _ => (u32::from(self.interval_qs) * SILENT_INTERVALS / 4).max(SILENT_MIN_S),
        };
        (now_ms - last_ts_ms > i64::from(allowed_s) * 1000).then_some(last_ts_ms)
    }
}

/// How often the readings of a sensor are, and how often they arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reports {
    pub(super) interval: ReportingInterval,
    pub(super) arrivals: ReportingInterval,
}

impl Reports {
    /// Notes the time of a reading and that of its arrival (ms since 1970).
    pub(super) fn note(&mut self, ts_ms: i64, arrived_ms: i64) {
        self.interval.note(ts_ms);
        self.arrivals.note(arrived_ms);
    }
}

/// Evicted sensors, so that they can still be reported as silent.
#[derive(Debug, Default)]
pub(super) struct EvictedSensors(HashMap<SensorId, Reports>);

/// Maximum per shard, 110 bytes each. Beyond it, the half that reported longest ago is removed.
const GONE_MAX: usize = 4096;

impl EvictedSensors {
    pub(super) fn add(&mut self, id: SensorId, reports: Reports) {
        self.0.insert(id, reports);
        if self.0.len() > GONE_MAX {
            let mut times: Vec<u32> = self.0.values().map(|p| p.arrivals.last_s).collect();
            let (_, middle, _) = times.select_nth_unstable(GONE_MAX / 2);
            let middle = *middle;
            self.0.retain(|_, p| p.arrivals.last_s > middle);
        }
    }

    /// Removes a sensor that reports again, and returns its intervals.
    pub(super) fn take(&mut self, id: &str) -> Reports {
        if self.0.is_empty() {
            Reports::default()
        } else {
            self.0.remove(id).unwrap_or_default()
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SensorId, Reports)> {
        self.0.iter().map(|(id, reports)| (id, *reports))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_is_silent_relative_to_its_own_interval() {
        assert_eq!(size_of::<ReportingInterval>(), 8);
        let silent_after = |times: &[i64]| {
            let mut interval = ReportingInterval::default();
            times.iter().for_each(|s| interval.note(s * 1000));
            let last = *times.last().unwrap();
            (1..40_000).find(|after| interval.silent_since((last + after) * 1000).is_some())
        };
        assert_eq!(silent_after(&[1000]), Some(3601), "no interval is known");
        assert_eq!(
            silent_after(&[1000, 1001, 1002, 1003]),
            Some(301),
            "the floor"
        );
        assert_eq!(
            silent_after(&[1000, 2000, 3000, 4000]),
            Some(3001),
            "three of its intervals"
        );
        assert_eq!(
            silent_after(&[1000, 1000, 1000, 1000]),
            Some(3601),
            "of one second: no interval"
        );
        let mut late = ReportingInterval::default();
        [5_000_000, 1000, 6_000_000, 7_000_000]
            .into_iter()
            .for_each(|ts| late.note(ts));
        assert_eq!(late.last_ts_ms(), Some(7_000_000));
        assert!(
            late.silent_since(7_000_000 + 3_000_000).is_none()
                && late.silent_since(7_000_000 + 3_000_001).is_some()
        );
        assert!(
            ReportingInterval::default()
                .silent_since(i64::MAX)
                .is_none()
        );
        let mut before = ReportingInterval::default();
        before.note(-5);
        before.note(-5000);
        assert_eq!(before.last_ts_ms(), Some(0).filter(|_| before.readings > 0));
    }

    #[test]
    fn evicted_sensors_are_bounded_and_the_oldest_are_dropped_first() {
        let mut evicted = EvictedSensors::default();
        for i in 0..(GONE_MAX as i64 * 3) {
            let mut reports = Reports::default();
            reports.arrivals.note(i * 1000);
            evicted.add(format!("s{i}").into(), reports);
            assert!(evicted.0.len() <= GONE_MAX);
        }
        assert_eq!(evicted.take("s5"), Reports::default());
        let last = GONE_MAX as i64 * 3 - 1;
        assert_eq!(
            evicted.take(&format!("s{last}")).arrivals.last_ts_ms(),
            Some(last * 1000)
        );
        assert_eq!(
            evicted.take(&format!("s{last}")),
            Reports::default(),
            "it is back"
        );
    }
}
