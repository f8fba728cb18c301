//! Functions of the samples in a window.

use super::math::{Kahan, Mean, quantile, regression};
use crate::promql::error::PromqlError;
use crate::promql::functions::OverTime;
use crate::promql::series::{Sample, WindowStats};

/// The window that a function is evaluated over, and its other arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window<'a> {
    /// At least one, all in `(start_ms, end_ms]`.
    pub(super) samples: &'a [Sample],
    pub(super) start_ms: i64,
    pub(super) end_ms: i64,
    /// The time of the evaluation; differs from the end with `offset` and `@`.
    pub(super) at_ms: i64,
    pub(super) args: &'a [f64],
}

impl Window<'_> {
    fn values(&self) -> impl Iterator<Item = f64> {
        self.samples.iter().map(|sample| sample.value)
    }

    fn first(&self) -> Sample {
        self.samples[0]
    }

    fn last(&self) -> Sample {
        self.samples[self.samples.len() - 1]
    }

    /// The sample that no other exceeds by this order; the first of equal ones, or with `last` the
    /// last. NaN yields.
    fn extreme(&self, is_better: fn(f64, f64) -> bool) -> Sample {
        self.samples[1..].iter().fold(self.first(), |best, sample| {
            if is_better(sample.value, best.value) || best.value.is_nan() {
                *sample
            } else {
                best
            }
        })
    }

    fn pairs(&self, counts: fn(f64, f64) -> bool) -> f64 {
        self.samples
            .windows(2)
            .filter(|pair| counts(pair[0].value, pair[1].value))
            .count() as f64
    }
}

/// The value of the function; `None` if the window has too few samples.
pub(super) fn evaluate(function: OverTime, w: &Window<'_>) -> Result<Option<f64>, PromqlError> {
    Ok(Some(match function {
        OverTime::Avg => {
            let mut mean = Mean::new(w.first().value);
            w.values().skip(1).for_each(|v| mean.add(v));
            mean.value()
        }
        OverTime::Sum => {
            let mut sum = Kahan::default();
            w.values().for_each(|v| sum.add(v));
            sum.total()
        }
        OverTime::Count => w.samples.len() as f64,
        OverTime::Min => w.extreme(|v, best| v < best).value,
        OverTime::Max => w.extreme(|v, best| v > best).value,
        OverTime::TsOfMin => w.extreme(|v, best| v <= best).ts_ms as f64 / 1000.0,
        OverTime::TsOfMax => w.extreme(|v, best| v >= best).ts_ms as f64 / 1000.0,
        OverTime::TsOfFirst => w.first().ts_ms as f64 / 1000.0,
        OverTime::TsOfLast => w.last().ts_ms as f64 / 1000.0,
        OverTime::Present | OverTime::Absent => 1.0,
        OverTime::First => w.first().value,
        OverTime::Last => w.last().value,
        OverTime::Mad => {
            let mut values: Vec<f64> = w.values().collect();
            let median = quantile(0.5, &mut values);
            let mut distances: Vec<f64> = values.into_iter().map(|v| (v - median).abs()).collect();
            quantile(0.5, &mut distances)
        }
        OverTime::Quantile | OverTime::SketchQuantile => {
            quantile(w.args[0], &mut w.values().collect::<Vec<_>>())
        }
        OverTime::Stddev => variance(w).sqrt(),
        OverTime::Stdvar => variance(w),
        OverTime::Changes => w.pairs(|a, b| a != b && !(a.is_nan() && b.is_nan())),
        OverTime::Resets => w.pairs(|a, b| b < a),
        OverTime::Delta => return Ok(extrapolated(w, false, false)),
        OverTime::Increase => return Ok(extrapolated(w, true, false)),
        OverTime::Rate => return Ok(extrapolated(w, true, true)),
        OverTime::Idelta => return Ok(instant(w, false)),
        OverTime::Irate => return Ok(instant(w, true)),
        OverTime::Deriv | OverTime::PredictLinear if w.samples.len() < 2 => return Ok(None),
        OverTime::Deriv => regression(w.samples, w.first().ts_ms).0,
        OverTime::PredictLinear => {
            let (slope, intercept) = regression(w.samples, w.at_ms);
            slope * w.args[0] + intercept
        }
        OverTime::DoubleExponentialSmoothing => return smoothed(w),
    }))
}

/// The same as [`evaluate`], from the summaries of the window without its samples.
pub(super) fn of_stats(function: OverTime, stats: &WindowStats) -> f64 {
    match function {
        OverTime::Avg => stats.mean(),
        OverTime::Sum => stats.sum,
        OverTime::Count => stats.count as f64,
        OverTime::Min => stats.min,
        OverTime::Max => stats.max,
        _ => 1.0,
    }
}

fn variance(w: &Window<'_>) -> f64 {
    let mut count = 0.0;
    let mut mean = Kahan::default();
    let mut squares = Kahan::default();
    for value in w.values() {
        count += 1.0;
        let delta = value - mean.total();
        mean.add(delta / count);
        squares.add(delta * (value - mean.total()));
    }
    squares.total() / count
}

/// `rate`, `increase` and `delta`: the difference over the samples, extrapolated to the ends of the
/// window if samples are near them, otherwise by half the mean distance of samples. A counter is
/// not extrapolated below zero.
fn extrapolated(w: &Window<'_>, is_counter: bool, is_rate: bool) -> Option<f64> {
    if w.samples.len() < 2 {
        return None;
    }
    let first = w.first();
    let last = w.last();
    let mut difference = last.value - first.value;
    if is_counter {
        for pair in w.samples.windows(2) {
            if pair[1].value < pair[0].value {
                difference += pair[0].value;
            }
        }
    }
    let seconds = |ms: i64| ms as f64 / 1000.0;
    let mut to_start = seconds(first.ts_ms - w.start_ms);
    let mut to_end = seconds(w.end_ms - last.ts_ms);
    let sampled = seconds(last.ts_ms - first.ts_ms);
    let distance = sampled / (w.samples.len() - 1) as f64;
    let threshold = distance * 1.1;
    if to_start >= threshold {
        to_start = distance / 2.0;
    }
    if is_counter && difference > 0.0 && first.value >= 0.0 {
        to_start = to_start.min(sampled * (first.value / difference));
    }
    if to_end >= threshold {
        to_end = distance / 2.0;
    }
    let mut factor = (sampled + to_start + to_end) / sampled;
    if is_rate {
        factor /= seconds(w.end_ms - w.start_ms);
    }
    Some(difference * factor)
}

/// `irate` and `idelta`: of the last two samples.
fn instant(w: &Window<'_>, is_rate: bool) -> Option<f64> {
    let [.., a, b] = w.samples else { return None };
    let was_reset = is_rate && b.value < a.value;
    let difference = if was_reset {
        b.value
    } else {
        b.value - a.value
    };
    Some(if is_rate {
        difference / ((b.ts_ms - a.ts_ms) as f64 / 1000.0)
    } else {
        difference
    })
}

fn smoothed(w: &Window<'_>) -> Result<Option<f64>, PromqlError> {
    let sf = w.args[0];
    let tf = w.args[1];
    for (name, factor) in [("smoothing", sf), ("trend", tf)] {
        if factor <= 0.0 || factor >= 1.0 {
            let range = if name == "smoothing" { "sf" } else { "tf" };
            return Err(PromqlError::execution(format!(
                "invalid {name} factor. Expected: 0 < {range} < 1, got: {factor:.6}"
            )));
        }
    }
    let [first, second, ..] = w.samples else {
        return Ok(None);
    };
    let mut previous = 0.0;
    let mut level = first.value;
    let mut trend = second.value - first.value;
    for (i, value) in w.values().enumerate().skip(1) {
        if i > 1 {
            trend = tf * (level - previous) + (1.0 - tf) * trend;
        }
        (previous, level) = (level, sf * value + (1.0 - sf) * (level + trend));
    }
    Ok(Some(level))
}
