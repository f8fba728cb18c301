//! Quantiles and fractions of classic histograms: series `…_bucket` with their upper bound in the
//! label `le`, computed as Prometheus does. Without native histograms, the functions that only
//! those have are empty.

use std::collections::HashMap;
use std::slice::from_ref;

use super::calls::remark_quantile;
use super::collect::{Cursor, merged};
use super::evaluator::Evaluator;
use super::grid::{Grid, Point, Row, points_of};
use crate::promql::ast::{Call, Expr};
use crate::promql::error::PromqlError;
use crate::promql::format;
use crate::promql::labels::{Labels, METRIC_NAME, SENSOR_ID, quoted};

/// The label with the upper bound of a bucket.
const LE: &str = "le";
/// Counts that differ by less than this share of their sum are equal.
const TOLERANCE: f64 = 1e-12;

const FORCED: &str = "PromQL info: input to histogram_quantile needed to be fixed for monotonicity \
    (see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)";

/// Observations up to a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    bound: f64,
    count: f64,
}

/// What is asked of a histogram at a step, from the values of the call's scalars there.
type Measure = fn(&[f64], Vec<Bucket>) -> (f64, bool);

impl Evaluator<'_> {
    pub(super) fn histogram(&mut self, call: &Call, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let (rows, results) = match (call.function.name, &call.args[..]) {
            ("histogram_quantile", [q, of]) => {
                let qs = self.quantiles(q, grid)?;
                let rows = self.vector(of, grid)?;
                let results = self.measured(&rows, &[qs], grid, |q, all| quantile(q[0], all))?;
                (rows, results)
            }
            ("histogram_quantiles", [of, Expr::String(label), qs @ ..]) => {
                let rows = self.vector(of, grid)?;
                let mut results = vec![];
                for q in qs {
                    let qs = self.quantiles(q, grid)?;
                    let found =
                        self.measured(&rows, from_ref(&qs), grid, |q, all| quantile(q[0], all))?;
                    results.extend(labelled(found, label, &qs));
                }
                (rows, results)
            }
            ("histogram_fraction", [lower, upper, of]) => {
                let bounds = [self.scalar(lower, grid)?, self.scalar(upper, grid)?];
                let rows = self.vector(of, grid)?;
                let of_bounds: Measure = |bounds, all| (fraction(bounds[0], bounds[1], all), false);
                let results = self.measured(&rows, &bounds, grid, of_bounds)?;
                (rows, results)
            }
            (_, args) => (self.vector(&args[0], grid)?, vec![]),
        };
        self.release(&rows);
        self.hold(points_of(&results))?;
        merged(results)
    }

    fn quantiles(&mut self, q: &Expr, grid: Grid) -> Result<Vec<f64>, PromqlError> {
        let qs = self.scalar(q, grid)?;
        qs.iter()
            .for_each(|q| remark_quantile(&mut self.warnings, *q));
        Ok(qs)
    }

    /// One row for each histogram, without the metric's name.
    fn measured(
        &mut self,
        rows: &[Row],
        params: &[Vec<f64>],
        grid: Grid,
        measure: Measure,
    ) -> Result<Vec<Row>, PromqlError> {
        let mut results: Vec<Row> = vec![];
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut bucket_of = vec![];
        for row in rows {
            let bound = row.labels.get(LE);
            let Ok(bound) = bound.parse::<f64>() else {
                self.remark_bound(&row.labels);
                bucket_of.push(None);
                continue;
            };
            let histogram = histogram_of(&row.labels);
            let place = *places.entry(histogram).or_insert_with_key(|labels| {
                let labels = labels.without_name();
                let points = vec![];
                results.push(Row { labels, points });
                results.len() - 1
            });
            bucket_of.push(Some((place, bound)));
        }
        let mut cursor = Cursor::new(rows);
        for step in 0..grid.steps() {
            self.stop.check()?;
            let at_step: Vec<f64> = params.iter().map(|values| values[step]).collect();
            let step = step as u32;
            let mut buckets: Vec<Vec<Bucket>> = vec![vec![]; results.len()];
            for (i, count) in cursor.at(step) {
                if let Some((place, bound)) = bucket_of[i] {
                    buckets[place].push(Bucket { bound, count });
                }
            }
            for (row, buckets) in results.iter_mut().zip(buckets) {
                if buckets.is_empty() {
                    continue;
                }
                let (value, is_forced) = measure(&at_step, buckets);
                row.points.push(Point { step, value });
                if is_forced && !self.infos.iter().any(|info| info == FORCED) {
                    self.infos.push(FORCED.to_owned());
                }
            }
        }
        Ok(results)
    }

    fn remark_bound(&mut self, labels: &Labels) {
        let of_metric = match labels.get(METRIC_NAME) {
            "" => String::new(),
            name => format!(" for metric name {}", quoted(name)),
        };
        let remark = format!(
            "PromQL warning: bucket label \"le\" is missing or has a malformed value of {}{of_metric}",
            quoted(labels.get(LE))
        );
        if !self.warnings.contains(&remark) {
            self.warnings.push(remark);
        }
    }
}

/// The rows with the quantile as a label, for each value that it has at any step.
fn labelled(rows: Vec<Row>, label: &str, qs: &[f64]) -> Vec<Row> {
    let mut all = vec![];
    for row in rows {
        for p in row.points {
            let q = qs[p.step as usize];
            let text = match format::number(q) {
                // As in OpenMetrics.
                text if q.is_finite() && q.fract() == 0.0 => text + ".0",
                text => text,
            };
            all.push(Row {
                labels: row.labels.with(label, &text),
                points: vec![p],
            });
        }
    }
    all
}

/// The labels that the buckets of a histogram share. Remote write with `other_labels = "sensor_id"`
/// makes each bucket a sensor (`web-1,le=0.5`), so the bound is taken from its id.
fn histogram_of(labels: &Labels) -> Labels {
    let id = labels.get(SENSOR_ID);
    let part = format!(",{LE}={}", labels.get(LE));
    let is_whole = |(at, _): &(usize, &str)| {
        let rest = &id[at + part.len()..];
        !id[..*at].ends_with('\\') && (rest.is_empty() || rest.starts_with(','))
    };
    let shared = labels.filtered(|name| name != LE);
    match id.match_indices(&part).find(is_whole) {
        Some((at, _)) => {
            let id = format!("{}{}", &id[..at], &id[at + part.len()..]);
            shared.with(SENSOR_ID, &id)
        }
        None => shared,
    }
}

/// Sorted, those of one bound together; `None` without a bucket for all observations.
fn complete(mut buckets: Vec<Bucket>) -> Option<Vec<Bucket>> {
    buckets.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    buckets.dedup_by(|later, first| {
        let is_same = later.bound == first.bound;
        if is_same {
            first.count += later.count;
        }
        is_same
    });
    let is_complete = buckets
        .last()
        .is_some_and(|last| last.bound == f64::INFINITY);
    is_complete.then_some(buckets)
}

/// The quantile, linear within a bucket, and whether counts decreased.
fn quantile(q: f64, buckets: Vec<Bucket>) -> (f64, bool) {
    if q.is_nan() {
        return (f64::NAN, false);
    }
    if q < 0.0 {
        return (f64::NEG_INFINITY, false);
    }
    if q > 1.0 {
        return (f64::INFINITY, false);
    }
    let Some(mut buckets) = complete(buckets) else {
        return (f64::NAN, false);
    };
    let is_forced = force_monotonic(&mut buckets);
    let [rest @ .., last] = &buckets[..] else {
        return (f64::NAN, false);
    };
    let Some(below) = rest.last() else {
        return (f64::NAN, false);
    };
    if last.count == 0.0 {
        return (f64::NAN, false);
    }
    let rank = q * last.count;
    let is_below = |bucket: &Bucket| bucket.count < rank || (bucket.count - rank).is_nan();
    let at = rest.partition_point(is_below);
    let Some(Bucket { bound, count }) = rest.get(at).copied() else {
        return (below.bound, is_forced);
    };
    if at == 0 && bound <= 0.0 {
        return (bound, is_forced);
    }
    let start = match at {
        0 => Bucket {
            bound: 0.0,
            count: 0.0,
        },
        _ => rest[at - 1],
    };
    let share = (rank - start.count) / (count - start.count);
    (start.bound + (bound - start.bound) * share, is_forced)
}

/// Raises counts that are smaller than those before them. Differences that come from rounding are
/// removed without a remark.
fn force_monotonic(buckets: &mut [Bucket]) -> bool {
    let mut is_forced = false;
    let mut previous = buckets.first().map_or(0.0, |first| first.count);
    for bucket in buckets.iter_mut().skip(1) {
        let difference = (bucket.count - previous).abs();
        let sum = bucket.count.abs() + previous.abs();
        if difference / sum.min(f64::MAX) < TOLERANCE {
            bucket.count = previous;
        } else if bucket.count < previous {
            bucket.count = previous;
            is_forced = true;
        } else {
            previous = bucket.count;
        }
    }
    is_forced
}

/// The share of the observations between two bounds.
fn fraction(lower: f64, upper: f64, buckets: Vec<Bucket>) -> f64 {
    let Some(buckets) = complete(buckets) else {
        return f64::NAN;
    };
    let count = buckets.last().map_or(0.0, |last| last.count);
    if count == 0.0 || lower.is_nan() || upper.is_nan() {
        return f64::NAN;
    }
    if lower >= upper {
        return 0.0;
    }
    (rank_of(upper, &buckets, count) - rank_of(lower, &buckets, count)) / count
}

/// How many observations are up to a value, linear within a bucket; at most `count`. Nothing is known
/// about the beginning of a first bucket whose bound is not positive: all of it counts.
fn rank_of(value: f64, buckets: &[Bucket], count: f64) -> f64 {
    let begins_at_0 = buckets.first().is_some_and(|first| first.bound > 0.0);
    let mut below = Bucket {
        bound: if begins_at_0 { 0.0 } else { f64::NEG_INFINITY },
        count: 0.0,
    };
    for bucket in buckets {
        if below.bound >= value {
            break;
        }
        if bucket.bound > value {
            let share = match below.bound.is_finite() {
                true => (value - below.bound) / (bucket.bound - below.bound),
                false => 1.0,
            };
            let rank = below.count + (bucket.count - below.count) * share;
            return if rank > count { count } else { rank };
        }
        below = *bucket;
    }
    if below.count > count {
        count
    } else {
        below.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(of: &[(f64, f64)]) -> Vec<Bucket> {
        let bucket = |(bound, count): &(f64, f64)| Bucket {
            bound: *bound,
            count: *count,
        };
        of.iter().map(bucket).collect()
    }

    #[test]
    fn quantiles_are_those_of_prometheus() {
        let inf = f64::INFINITY;
        let usual = [(inf, 10.0), (1.0, 8.0), (0.1, 2.0), (0.5, 6.0)];
        for (q, wanted) in [
            (0.0, 0.0),
            (0.1, 0.05),
            (0.4, 0.3),
            (0.8, 1.0),
            (0.99, 1.0),
            (1.0, 1.0),
            (-0.1, -inf),
            (1.1, inf),
        ] {
            let (value, is_forced) = quantile(q, buckets(&usual));
            assert!(
                (value - wanted).abs() < 1e-12 || value == wanted,
                "{q}: {value}"
            );
            assert!(!is_forced);
        }
        let is_nan = |q: f64, of: &[(f64, f64)]| quantile(q, buckets(of)).0.is_nan();
        assert!(is_nan(f64::NAN, &usual));
        assert!(is_nan(0.5, &[(inf, 3.0)]), "one bucket");
        assert!(is_nan(0.5, &[(1.0, 2.0), (2.0, 3.0)]), "without +Inf");
        assert!(is_nan(0.5, &[(1.0, 0.0), (inf, 0.0)]), "no observations");
        // Of bounds below 0, nothing is known about the first bucket.
        assert_eq!(quantile(0.1, buckets(&[(-1.0, 5.0), (inf, 9.0)])).0, -1.0);
        // Two of one bound are one bucket.
        let twice = [(1.0, 1.0), (1.0, 1.0), (inf, 4.0)];
        assert_eq!(quantile(0.25, buckets(&twice)).0, 0.5);
        let decreasing = [(1.0, 5.0), (2.0, 3.0), (4.0, 9.0), (inf, 10.0)];
        assert_eq!(quantile(0.7, buckets(&decreasing)), (3.0, true));
        let rounded = [(1.0, 5.0), (2.0, 5.0 - 1e-13), (inf, 10.0)];
        assert_eq!(quantile(0.5, buckets(&rounded)), (1.0, false));
    }

    #[test]
    fn a_bound_is_taken_out_of_the_id_of_a_bucket() {
        for (id, le, wanted) in [
            ("web,le=0.5,path=/", "0.5", "web,path=/"),
            ("web,le=0.5", "0.5", "web"),
            ("web,le=+Inf", "+Inf", "web"),
            ("web,le=0.55", "0.5", "web,le=0.55"),
            (r"a\,le=1,le=1", "1", r"a\,le=1"),
            ("web", "1", "web"),
        ] {
            let labels =
                Labels::from_pairs(&[(SENSOR_ID, id), (LE, le), (METRIC_NAME, "x_bucket")]);
            let wanted = Labels::from_pairs(&[(SENSOR_ID, wanted), (METRIC_NAME, "x_bucket")]);
            assert_eq!(histogram_of(&labels), wanted);
        }
    }
}
