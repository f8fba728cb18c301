//! Latencies and their percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// A longer latency is recorded as this: ten minutes.
const MAX_US: u64 = 600_000_000;

/// Recorded latencies: microseconds with three significant digits.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        // Not `Histogram::new`: its range grows, but `saturating_record` only uses the range that it
        // has, which is 2 ms at the beginning.
        let us = Histogram::new_with_max(MAX_US, 3);
        Latencies(us.unwrap_or_else(|_| unreachable!("these bounds are valid")))
    }
}

impl Latencies {
    /// Records one latency.
    pub(crate) fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(us);
    }

    /// Adds those of `other`.
    pub(crate) fn add(&mut self, other: &Latencies) {
        if self.0.add(&other.0).is_err() {
            unreachable!("all have the same range");
        }
    }

    /// Their percentiles.
    pub(crate) fn percentiles(&self) -> Latency {
        let at = |q: f64| self.0.value_at_quantile(q) as f64 / 1e3;
        Latency {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max() as f64 / 1e3,
        }
    }
}

/// Percentiles of latencies, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_latencies_are_recorded_as_they_are() {
        let (mut all, mut others) = (Latencies::default(), Latencies::default());
        (0..98).for_each(|_| all.record(Duration::from_micros(300)));
        all.record(Duration::from_millis(250));
        others.record(Duration::from_secs(3));
        all.add(&others);
        let Latency { p50, p99, max, .. } = all.percentiles();
        let about = |measured: f64, ms: f64| (measured / ms - 1.0).abs() < 0.001;
        assert!(about(p50, 0.3) && about(p99, 250.0) && about(max, 3000.0));
        all.record(Duration::MAX);
        assert!(about(all.percentiles().max, 600_000.0));
    }
}
