//! Sums, quantiles and regression, with the rounding of Prometheus.

use crate::promql::series::Sample;

/// Adds with Neumaier's compensation: the sum and its correction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kahan {
    pub(super) sum: f64,
    pub(super) c: f64,
}

impl Kahan {
    pub(super) fn add(&mut self, value: f64) {
        let next = self.sum + value;
        if next.is_infinite() {
            self.c = 0.0;
        } else if self.sum.abs() >= value.abs() {
            self.c += (self.sum - next) + value;
        } else {
            self.c += (value - next) + self.sum;
        }
        self.sum = next;
    }

    pub(super) fn total(self) -> f64 {
        self.sum + self.c
    }
}

/// A mean that overflows only if its values do: a compensated sum as long as that is finite, then
/// the running mean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mean {
    kahan: Kahan,
    count: f64,
    is_running: bool,
}

impl Mean {
    pub(super) fn new(first: f64) -> Mean {
        Mean {
            kahan: Kahan { sum: first, c: 0.0 },
            count: 1.0,
            is_running: false,
        }
    }

    pub(super) fn add(&mut self, value: f64) {
        self.count += 1.0;
        if !self.is_running {
            let mut next = self.kahan;
            next.add(value);
            if !next.sum.is_infinite() {
                self.kahan = next;
                return;
            }
            self.is_running = true;
            self.kahan = Kahan {
                sum: self.kahan.sum / (self.count - 1.0),
                c: self.kahan.c / (self.count - 1.0),
            };
        }
        let q = (self.count - 1.0) / self.count;
        self.kahan = Kahan {
            sum: q * self.kahan.sum,
            c: q * self.kahan.c,
        };
        self.kahan.add(value / self.count);
    }

    pub(super) fn value(self) -> f64 {
        match self.is_running {
            true => self.kahan.total(),
            false => self.kahan.sum / self.count + self.kahan.c / self.count,
        }
    }
}

/// Numbers in ascending order, NaN first.
pub(super) fn ascending(a: &f64, b: &f64) -> std::cmp::Ordering {
    a.partial_cmp(b)
        .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// The quantile of any values, if `q` is not between 0 and 1.
pub(super) fn outside(q: f64) -> Option<f64> {
    match q {
        q if q.is_nan() => Some(f64::NAN),
        q if q < 0.0 => Some(f64::NEG_INFINITY),
        q if q > 1.0 => Some(f64::INFINITY),
        _ => None,
    }
}

/// The quantile, linear between two values; sorts them.
pub(super) fn quantile(q: f64, values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    if let Some(outside) = outside(q) {
        return outside;
    }
    values.sort_by(ascending);
    let last = values.len() - 1;
    let rank = q * last as f64;
    let lower = rank.floor().max(0.0) as usize;
    let upper = (lower + 1).min(last);
    let weight = rank - rank.floor();
    values[lower] * (1.0 - weight) + values[upper] * weight
}

/// Slope per second, and the value at `intercept_ms`, of the line through the samples; at least
/// one.
pub(super) fn regression(samples: &[Sample], intercept_ms: i64) -> (f64, f64) {
    let first = samples[0].value;
    let mut x = Kahan::default();
    let mut y = Kahan::default();
    let mut xy = Kahan::default();
    let mut xx = Kahan::default();
    for sample in samples {
        let at = (sample.ts_ms - intercept_ms) as f64 / 1e3;
        x.add(at);
        y.add(sample.value);
        xy.add(at * sample.value);
        xx.add(at * at);
    }
    if samples.iter().all(|sample| sample.value == first) {
        return if first.is_infinite() {
            (f64::NAN, f64::NAN)
        } else {
            (0.0, first)
        };
    }
    let n = samples.len() as f64;
    let x = x.total();
    let y = y.total();
    let xy = xy.total();
    let xx = xx.total();
    let slope = (xy - x * y / n) / (xx - x * x / n);
    (slope, y / n - slope * x / n)
}
