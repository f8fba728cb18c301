//! The readings, and their forms on the wire: line protocol, and Prometheus' remote write.

use std::fmt::Write as _;

use serde::Serialize;

use crate::plan::now_ms;

/// Each sensor reports a temperature and a counter once a minute, and not all of them in the same
/// second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Fleet {
    pub(super) sensors: u32,
    pub(super) days: i64,
    /// The midnight (UTC) after the last reading.
    pub(super) end_ms: i64,
}

const DAY_MS: i64 = 86_400_000;
const MINUTE_MS: i64 = 60_000;

impl Fleet {
    pub(super) fn new(sensors: u32, days: i64) -> Fleet {
        let now_ms = now_ms();
        Fleet {
            sensors,
            days,
            end_ms: now_ms.div_euclid(DAY_MS) * DAY_MS,
        }
    }

    pub(super) fn minutes(&self) -> i64 {
        self.days * 24 * 60
    }

    pub(super) fn readings(&self) -> u64 {
        u64::from(self.sensors) * self.minutes() as u64
    }

    /// Time, temperature and counter. No reading is on a full minute: there the windows of
    /// Prometheus 2, which include their start, differ from those of Prometheus 3.
    fn reading(&self, sensor: u32, minute: i64) -> (i64, f64, i64) {
        let begin_ms = self.end_ms - self.days * DAY_MS;
        let ts_ms = begin_ms + minute * MINUTE_MS + i64::from(sensor % 53 + 1) * 1000;
        let temp = 20.0 + f64::from(sensor % 10) + ((minute + i64::from(sensor)) % 97) as f64 / 8.0;
        // The counter begins again every few days.
        let energy = (minute + i64::from(sensor) * 31) % 5000 * i64::from(sensor % 4 + 1);
        (ts_ms, temp, energy)
    }

    fn site(sensor: u32) -> String {
        format!("site-{}", sensor % 20)
    }

    /// One minute of all sensors.
    pub(super) fn lines(&self, minute: i64, to: &mut String) {
        for sensor in 0..self.sensors {
            let (ts_ms, temp, energy) = self.reading(sensor, minute);
            let site = Fleet::site(sensor);
            let _ = writeln!(
                to,
                "s,sensor_id=S{sensor},site={site} temp={temp},energy_total={energy}i {ts_ms}"
            );
        }
    }

    /// The same minutes of all sensors as a `prometheus.WriteRequest`.
    pub(super) fn write_request(&self, minutes: std::ops::Range<i64>) -> Vec<u8> {
        let mut request = vec![];
        for sensor in 0..self.sensors {
            let readings: Vec<_> = minutes
                .clone()
                .map(|minute| self.reading(sensor, minute))
                .collect();
            let temps = readings.iter().map(|(ts_ms, temp, _)| (*ts_ms, *temp));
            let energies = readings.iter().map(|(ts_ms, _, n)| (*ts_ms, *n as f64));
            put_series("temp", sensor, temps, &mut request);
            put_series("energy_total", sensor, energies, &mut request);
        }
        request
    }
}

fn put_varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_bytes(field: u8, bytes: &[u8], to: &mut Vec<u8>) {
    to.push(field << 3 | 2);
    put_varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

/// A `TimeSeries`: labels, and samples of a double (1) and a time (2).
fn put_series(
    name: &str,
    sensor: u32,
    samples: impl Iterator<Item = (i64, f64)>,
    to: &mut Vec<u8>,
) {
    let mut series = vec![];
    let (id, site) = (format!("S{sensor}"), Fleet::site(sensor));
    for (label, value) in [("__name__", name), ("sensor_id", &id), ("site", &site)] {
        let mut pair = vec![];
        put_bytes(1, label.as_bytes(), &mut pair);
        put_bytes(2, value.as_bytes(), &mut pair);
        put_bytes(1, &pair, &mut series);
    }
    for (ts_ms, value) in samples {
        let mut sample = vec![1 << 3 | 1];
        sample.extend_from_slice(&value.to_le_bytes());
        sample.push(2 << 3);
        put_varint(ts_ms as u64, &mut sample);
        put_bytes(2, &sample, &mut series);
    }
    put_bytes(1, &series, to);
}

/// A block of snappy that is not compressed: the length, and literals.
pub(super) fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![];
    put_varint(bytes.len() as u64, &mut block);
    for literal in bytes.chunks(1 << 16) {
        block.push(61 << 2);
        block.extend_from_slice(&((literal.len() - 1) as u16).to_le_bytes());
        block.extend_from_slice(literal);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_the_same_readings() {
        let fleet = Fleet::new(3, 2);
        let mut lines = String::new();
        fleet.lines(7, &mut lines);
        assert_eq!(lines.lines().count(), 3);
        let (ts_ms, temp, _) = fleet.reading(1, 7);
        assert!(lines.contains(&format!("S1,site=site-1 temp={temp},")));
        assert_ne!(ts_ms % MINUTE_MS, 0);
        let request = fleet.write_request(7..9);
        let times = request.windows(8).filter(|w| *w == temp.to_le_bytes());
        assert_eq!(times.count(), 1);
        assert_eq!(snappy(&[7; 3]), [3, 61 << 2, 2, 0, 7, 7, 7]);
        assert_eq!(snappy(&vec![0; 70_000]).len(), 70_000 + 3 + 2 * 3);
    }
}
