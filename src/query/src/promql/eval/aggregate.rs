//! Aggregations. Each group is computed separately: for the groups of one number, over its series
//! in their order, so that sums round as Prometheus' do; for those that select series, step by
//! step.

use std::collections::{BTreeMap, HashMap};

use super::calls::remark_quantile;
use super::collect::{Collector, Cursor};
use super::evaluator::Evaluator;
use super::grid::{Grid, Point, Row, points_of};
use super::math::{Kahan, Mean, quantile};
use super::top::selected;
use crate::promql::ast::{Aggregate, AggregateOp, Expr};
use crate::promql::error::PromqlError;
use crate::promql::format;
use crate::promql::labels::{Labels, METRIC_NAME};

/// The values of a group at one step.
enum Group {
    Sum(Kahan),
    Avg(Mean),
    Count(f64),
    Min(f64),
    Max(f64),
    One,
    /// Number, mean and sum of squared deviations.
    Deviation(f64, f64, f64),
    Quantile(Vec<f64>),
}

impl Group {
    fn new(op: AggregateOp, first: f64) -> Group {
        match op {
            AggregateOp::Sum => Group::Sum(Kahan { sum: first, c: 0.0 }),
            AggregateOp::Avg => Group::Avg(Mean::new(first)),
            AggregateOp::Count => Group::Count(1.0),
            AggregateOp::Min => Group::Min(first),
            AggregateOp::Max => Group::Max(first),
            AggregateOp::Stddev | AggregateOp::Stdvar => {
                Group::Deviation(1.0, first, if first.is_finite() { 0.0 } else { f64::NAN })
            }
            AggregateOp::Quantile => Group::Quantile(vec![first]),
            _ => Group::One,
        }
    }

    fn add(&mut self, value: f64) {
        match self {
            Group::Sum(sum) => sum.add(value),
            Group::Avg(mean) => mean.add(value),
            Group::Count(count) => *count += 1.0,
            Group::Min(min) => {
                if *min > value || min.is_nan() {
                    *min = value;
                }
            }
            Group::Max(max) => {
                if *max < value || max.is_nan() {
                    *max = value;
                }
            }
            Group::One => {}
            Group::Deviation(count, mean, squares) => {
                *count += 1.0;
                let delta = value - *mean;
                *mean += delta / *count;
                *squares += delta * (value - *mean);
            }
            Group::Quantile(values) => values.push(value),
        }
    }

    fn value(self, op: AggregateOp, param: f64) -> f64 {
        match self {
            Group::Sum(sum) => sum.total(),
            Group::Avg(mean) => mean.value(),
            Group::Count(value) | Group::Min(value) | Group::Max(value) => value,
            Group::One => 1.0,
            Group::Deviation(count, _, squares) if op == AggregateOp::Stddev => {
                (squares / count).sqrt()
            }
            Group::Deviation(count, _, squares) => squares / count,
            Group::Quantile(mut values) => quantile(param, &mut values),
        }
    }
}

impl Evaluator<'_> {
    pub(super) fn aggregate(
        &mut self,
        aggregate: &Aggregate,
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let op = aggregate.op;
        if op == AggregateOp::CountValues {
            return self.count_values(aggregate, grid);
        }
        let params = match &aggregate.param {
            Some(param) => self.scalar(param, grid)?,
            None => vec![],
        };
        let rows = self.vector(&aggregate.expr, grid)?;
        let groups = groups(&rows, aggregate);
        let result = match op {
            AggregateOp::Topk
            | AggregateOp::Bottomk
            | AggregateOp::Limitk
            | AggregateOp::LimitRatio => {
                if !self.is_param_usable(op, &params)? {
                    self.release(&rows);
                    return Ok(vec![]);
                }
                selected(op, &params, &rows, &groups, grid, self.stop)?
            }
            _ => {
                if op == AggregateOp::Quantile {
                    params
                        .iter()
                        .for_each(|q| remark_quantile(&mut self.warnings, *q));
                }
                let mut all = Vec::with_capacity(groups.len());
                for (labels, members) in groups {
                    self.stop.check()?;
                    all.push(Row {
                        labels,
                        points: combined(op, &params, &rows, &members, grid),
                    });
                }
                all.retain(|row| !row.points.is_empty());
                all
            }
        };
        self.hold(points_of(&result))?;
        self.release(&rows);
        Ok(result)
    }

    /// Whether anything can be selected.
    fn is_param_usable(&mut self, op: AggregateOp, params: &[f64]) -> Result<bool, PromqlError> {
        let max = params.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = params.iter().copied().fold(f64::INFINITY, f64::min);
        let is_any_nan = params.iter().any(|p| p.is_nan());
        let refuse = |text: String| Err(PromqlError::Execution(text));
        if is_any_nan {
            let name = if op == AggregateOp::LimitRatio {
                "Ratio"
            } else {
                "Parameter"
            };
            return refuse(format!("{name} value is NaN"));
        }
        if op == AggregateOp::LimitRatio {
            if max == 0.0 && min == 0.0 {
                return Ok(false);
            }
            for (value, bound) in [(max, 1.0), (min, -1.0)] {
                if value.abs() > 1.0 && value * bound > 0.0 {
                    let value = format::number(value);
                    self.warnings.push(format!(
                        "PromQL warning: ratio value should be between -1 and 1, got {value}, \
                         capping to {bound}"
                    ));
                }
            }
            return Ok(true);
        }
        if max < 1.0 {
            return Ok(false);
        }
        // Both bounds are exact doubles: -2^63 and 2^63 - 1, which rounds up.
        match (min <= i64::MIN as f64, max >= i64::MAX as f64) {
            (true, _) => refuse(format!(
                "Scalar value {} underflows int64",
                format::api_number(min)
            )),
            (_, true) => refuse(format!(
                "Scalar value {} overflows int64",
                format::api_number(max)
            )),
            _ => Ok(true),
        }
    }

    fn count_values(&mut self, aggregate: &Aggregate, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let Some(Expr::String(label)) = &aggregate.param else {
            return Err(PromqlError::execution(
                "count_values needs the name of a label",
            ));
        };
        if label.is_empty() {
            return Err(PromqlError::execution(format!(
                "invalid label name {label:?}"
            )));
        }
        let rows = self.vector(&aggregate.expr, grid)?;
        let mut collector = Collector::default();
        let mut cursor = Cursor::new(&rows);
        for step in 0..grid.steps() as u32 {
            self.stop.check()?;
            let mut counts: BTreeMap<usize, f64> = BTreeMap::new();
            for (i, value) in cursor.at(step) {
                let labels = rows[i].labels.with(label, &format::number(value));
                let slot = collector.slot(match aggregate.without {
                    true => labels.matching(false, &aggregate.grouping),
                    false => labels.filtered(|name| {
                        name == label || aggregate.grouping.iter().any(|g| g == name)
                    }),
                });
                *counts.entry(slot).or_default() += 1.0;
            }
            self.hold(counts.len())?;
            counts
                .into_iter()
                .try_for_each(|(slot, count)| collector.push(slot, step, count))?;
        }
        self.release(&rows);
        Ok(collector.finish())
    }
}

/// The groups in the order in which they appear: their labels, and their rows.
pub(super) fn groups(rows: &[Row], aggregate: &Aggregate) -> Vec<(Labels, Vec<usize>)> {
    let mut groups: Vec<(Labels, Vec<usize>)> = vec![];
    let mut places: HashMap<Labels, usize> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        let labels = match aggregate.without {
            true => row.labels.filtered(|name| {
                name != METRIC_NAME && !aggregate.grouping.iter().any(|g| g == name)
            }),
            false => row
                .labels
                .filtered(|name| aggregate.grouping.iter().any(|g| g == name)),
        };
        let place = *places.entry(labels).or_insert_with_key(|labels| {
            groups.push((labels.clone(), vec![]));
            groups.len() - 1
        });
        groups[place].1.push(i);
    }
    groups
}

fn combined(
    op: AggregateOp,
    params: &[f64],
    rows: &[Row],
    members: &[usize],
    grid: Grid,
) -> Vec<Point> {
    let mut groups: Vec<Option<Group>> = (0..grid.steps()).map(|_| None).collect();
    for p in members.iter().flat_map(|i| &rows[*i].points) {
        match &mut groups[p.step as usize] {
            Some(group) => group.add(p.value),
            empty => *empty = Some(Group::new(op, p.value)),
        }
    }
    let param = |step: usize| params.get(step).copied().unwrap_or(f64::NAN);
    let point = |(step, group): (usize, Option<Group>)| {
        group.map(|group| Point {
            step: step as u32,
            value: group.value(op, param(step)),
        })
    };
    groups.into_iter().enumerate().filter_map(point).collect()
}
