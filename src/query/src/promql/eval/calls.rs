//! Function calls.

use super::collect::merged;
use super::evaluator::{Evaluator, Val};
use super::grid::{Grid, Point, Row};
use super::math::ascending;
use crate::promql::ast::{Call, Expr, ValueType};
use crate::promql::error::PromqlError;
use crate::promql::functions::{Kind, OverTime};
use crate::promql::labels::{Labels, METRIC_NAME};
use crate::promql::matcher::Matcher;

impl Evaluator<'_> {
    pub(super) fn call(&mut self, call: &Call, grid: Grid) -> Result<Val, PromqlError> {
        match call.function.kind {
            Kind::Map(map) => {
                let mut rows = self.vector(&call.args[0], grid)?;
                change(&mut rows, map);
                merged(rows).map(Val::Vector)
            }
            Kind::Date(date) => self.date(call, date, grid).map(Val::Vector),
            Kind::OverTime(function) => self.call_over_time(function, call, grid).map(Val::Vector),
            Kind::Histogram => self.histogram(call, grid).map(Val::Vector),
            Kind::Special => self.special(call, grid),
            Kind::Unsupported => Err(PromqlError::execution(format!(
                "{} is not supported",
                call.function.name
            ))),
        }
    }

    fn special(&mut self, call: &Call, grid: Grid) -> Result<Val, PromqlError> {
        let seconds = |ms: i64| ms as f64 / 1000.0;
        let QueryBounds {
            start_ms,
            end_ms,
            step_ms,
        } = self.bounds();
        let constant = |value: f64| Ok(Val::Scalar(vec![value; grid.steps()]));
        match call.function.name {
            "time" => Ok(Val::Scalar(
                (0..grid.steps())
                    .map(|step| seconds(grid.at(step)))
                    .collect(),
            )),
            "pi" => constant(std::f64::consts::PI),
            "start" => constant(seconds(start_ms)),
            "end" => constant(seconds(end_ms)),
            "range" => constant(seconds(end_ms - start_ms)),
            "step" => constant(if start_ms == end_ms {
                0.0
            } else {
                seconds(step_ms)
            }),
            "scalar" => {
                let rows = self.vector(&call.args[0], grid)?;
                self.release(&rows);
                Ok(Val::Scalar(single(&rows, grid)))
            }
            "vector" => {
                let values = self.scalar(&call.args[0], grid)?;
                self.hold(values.len())?;
                Ok(Val::Vector(vec![Row {
                    labels: Labels::default(),
                    points: dense(values),
                }]))
            }
            "absent" => {
                let rows = self.vector(&call.args[0], grid)?;
                self.release(&rows);
                self.absent(&rows, &call.args[0], grid).map(Val::Vector)
            }
            "clamp" | "clamp_min" | "clamp_max" => self.clamp(call, grid).map(Val::Vector),
            "round" => self.round(call, grid).map(Val::Vector),
            "timestamp" => self.timestamp(call, grid).map(Val::Vector),
            "label_replace" => self.label_replace(call, grid).map(Val::Vector),
            "label_join" => self.label_join(call, grid).map(Val::Vector),
            "sort" | "sort_desc" => self.sort(call, grid).map(Val::Vector),
            "sort_by_label" | "sort_by_label_desc" => {
                self.sort_by_label(call, grid).map(Val::Vector)
            }
            other => Err(PromqlError::execution(format!("{other} is not supported"))),
        }
    }

    fn bounds(&self) -> QueryBounds {
        let time = self.time;
        QueryBounds {
            start_ms: time.start_ms,
            end_ms: time.end_ms,
            step_ms: time.step_ms.unwrap_or(0),
        }
    }

    fn call_over_time(
        &mut self,
        function: OverTime,
        call: &Call,
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let mut args = vec![];
        for arg in call
            .args
            .iter()
            .filter(|arg| arg.value_type() != ValueType::Matrix)
        {
            args.push(self.scalar(arg, grid)?);
        }
        let Some(range) = call
            .args
            .iter()
            .find(|arg| arg.value_type() == ValueType::Matrix)
        else {
            return Err(PromqlError::execution("expected a range vector"));
        };
        if matches!(function, OverTime::Quantile | OverTime::SketchQuantile) {
            args[0]
                .iter()
                .for_each(|q| remark_quantile(&mut self.warnings, *q));
        }
        let rows = self.over_time(function, range, &args, grid)?;
        match function {
            OverTime::Absent => {
                self.release(&rows);
                self.absent(&rows, range, grid)
            }
            _ => Ok(rows),
        }
    }

    /// 1 at the steps without any sample, with the labels that the selector fixes.
    fn absent(&mut self, rows: &[Row], arg: &Expr, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let mut is_present = vec![false; grid.steps()];
        rows.iter()
            .flat_map(|row| &row.points)
            .for_each(|p| is_present[p.step as usize] = true);
        let absent = is_present
            .iter()
            .enumerate()
            .filter(|(_, is_present)| !**is_present);
        let points: Vec<Point> = absent
            .map(|(step, _)| Point {
                step: step as u32,
                value: 1.0,
            })
            .collect();
        self.hold(points.len())?;
        let matchers: &[Matcher] = match arg {
            Expr::Selector(selector) | Expr::Range { selector, .. } => &selector.matchers,
            _ => &[],
        };
        let labels = fixed_labels(matchers);
        Ok(if points.is_empty() {
            vec![]
        } else {
            vec![Row { labels, points }]
        })
    }

    fn date(
        &mut self,
        call: &Call,
        date: fn(i64) -> f64,
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let Some(arg) = call.args.first() else {
            let values = (0..grid.steps())
                .map(|step| date(grid.at(step) / 1000))
                .collect();
            self.hold(grid.steps())?;
            return Ok(vec![Row {
                labels: Labels::default(),
                points: dense(values),
            }]);
        };
        let mut rows = self.vector(arg, grid)?;
        change(&mut rows, |v| date(v as i64));
        merged(rows)
    }

    fn clamp(&mut self, call: &Call, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let mut rows = self.vector(&call.args[0], grid)?;
        let steps = grid.steps();
        let (min, max) = match (call.function.name, &call.args[1..]) {
            ("clamp_min", [min]) => (self.scalar(min, grid)?, vec![f64::INFINITY; steps]),
            ("clamp_max", [max]) => (vec![f64::NEG_INFINITY; steps], self.scalar(max, grid)?),
            (_, [min, max]) => (self.scalar(min, grid)?, self.scalar(max, grid)?),
            _ => return Err(PromqlError::execution("wrong number of arguments")),
        };
        for row in &mut rows {
            row.labels = row.labels.without_name();
            row.points.retain(|p| {
                let step = p.step as usize;
                // Written so that NaN bounds keep the sample, as in Prometheus.
                !matches!(
                    max[step].partial_cmp(&min[step]),
                    Some(std::cmp::Ordering::Less)
                )
            });
            for p in &mut row.points {
                p.value = go_max(min[p.step as usize], go_min(max[p.step as usize], p.value));
            }
        }
        merged(rows)
    }

    fn round(&mut self, call: &Call, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let mut rows = self.vector(&call.args[0], grid)?;
        let to = match call.args.get(1) {
            Some(arg) => self.scalar(arg, grid)?,
            None => vec![1.0; grid.steps()],
        };
        for row in &mut rows {
            row.labels = row.labels.without_name();
            for p in &mut row.points {
                let inverse = 1.0 / to[p.step as usize];
                p.value = (p.value * inverse + 0.5).floor() / inverse;
            }
        }
        merged(rows)
    }

    /// The time of the samples; of anything but a selector, the time of the evaluation.
    fn timestamp(&mut self, call: &Call, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let mut rows = match &call.args[0] {
            Expr::Selector(selector) => {
                self.newest(selector, grid, |sample| sample.ts_ms as f64 / 1000.0)?
            }
            other => {
                let mut rows = self.vector(other, grid)?;
                for p in rows.iter_mut().flat_map(|row| &mut row.points) {
                    p.value = grid.at(p.step as usize) as f64 / 1000.0;
                }
                rows
            }
        };
        rows.iter_mut()
            .for_each(|row| row.labels = row.labels.without_name());
        merged(rows)
    }

    fn sort(&mut self, call: &Call, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let mut rows = self.vector(&call.args[0], grid)?;
        if !self.remark_sort() {
            let is_descending = call.function.name == "sort_desc";
            let first = |row: &Row| row.points.first().map_or(f64::NAN, |p| p.value);
            rows.sort_by(|a, b| {
                let a = first(a);
                let b = first(b);
                // NaN last either way.
                a.is_nan().cmp(&b.is_nan()).then_with(|| {
                    if is_descending {
                        ascending(&b, &a)
                    } else {
                        ascending(&a, &b)
                    }
                })
            });
        }
        Ok(rows)
    }

    /// Whether this is a range query, where sorting has no effect.
    pub(super) fn remark_sort(&mut self) -> bool {
        if self.time.step_ms.is_some() {
            self.warnings.push(
                "PromQL warning: sort is ineffective for range queries since results are always \
                 ordered by labels"
                    .to_owned(),
            );
        }
        self.time.step_ms.is_some()
    }
}

struct QueryBounds {
    start_ms: i64,
    end_ms: i64,
    step_ms: i64,
}

pub(super) fn remark_quantile(warnings: &mut Vec<String>, q: f64) {
    if !(0.0..=1.0).contains(&q) {
        let q = crate::promql::format::number(q);
        let remark = format!("PromQL warning: quantile value should be between 0 and 1, got {q}");
        if !warnings.contains(&remark) {
            warnings.push(remark);
        }
    }
}

fn change(rows: &mut [Row], map: impl Fn(f64) -> f64) {
    for row in rows {
        row.labels = row.labels.without_name();
        row.points.iter_mut().for_each(|p| p.value = map(p.value));
    }
}

fn dense(values: Vec<f64>) -> Vec<Point> {
    values
        .into_iter()
        .enumerate()
        .map(|(step, value)| Point {
            step: step as u32,
            value,
        })
        .collect()
}

/// The value at the steps with exactly one sample, otherwise NaN.
fn single(rows: &[Row], grid: Grid) -> Vec<f64> {
    let mut values = vec![(0, f64::NAN); grid.steps()];
    for p in rows.iter().flat_map(|row| &row.points) {
        let (count, value) = &mut values[p.step as usize];
        (*count, *value) = (*count + 1, if *count == 0 { p.value } else { f64::NAN });
    }
    values.into_iter().map(|(_, value)| value).collect()
}

/// The labels that matchers fix to a value; not one that is named twice.
fn fixed_labels(matchers: &[Matcher]) -> Labels {
    let mut fixed: Vec<(&str, &str)> = vec![];
    let mut seen: Vec<&str> = vec![];
    for matcher in matchers.iter().filter(|m| m.name != METRIC_NAME) {
        let name = matcher.name.as_str();
        if matcher.is_equal() && !seen.contains(&name) {
            fixed.push((name, &matcher.value));
            seen.push(name);
        } else {
            fixed.retain(|(other, _)| *other != name);
        }
    }
    Labels::from_pairs(&fixed)
}

/// The larger, as Go's `math.Max`: NaN if either is, but positive infinity wins. (`f64::max` ignores
/// NaN.)
fn go_max(a: f64, b: f64) -> f64 {
    if a == f64::INFINITY || b == f64::INFINITY {
        f64::INFINITY
    } else if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// The smaller, as Go's `math.Min`: NaN if either is, but negative infinity wins.
fn go_min(a: f64, b: f64) -> f64 {
    if a == f64::NEG_INFINITY || b == f64::NEG_INFINITY {
        f64::NEG_INFINITY
    } else if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.min(b)
    }
}
