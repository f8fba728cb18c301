//! Evaluates an expression at the steps of a query. Pure: a source gives the samples.
//!
//! Each node is evaluated once, over all of its steps: those of the query or, within a subquery,
//! those of the subquery. A vector is a list of series with a point for each step at which it has a
//! sample; a scalar has a value at each step.
//!
//! Samples leave memory as soon as the points of their windows are computed ([`windows`]). What
//! counts against the limit is, as in Prometheus, the points in memory, those of operands until their
//! operator has its result, and the samples of the window that is being computed.

mod aggregate;
mod binary;
mod calls;
mod collect;
pub(crate) mod dates;
mod evaluator;
mod grid;
mod histograms;
mod label_calls;
mod math;
mod over_time;
mod plan;
mod select;
mod top;
mod windows;

use self::collect::merged;
use self::evaluator::{Evaluator, Val};
use self::grid::{Grid, Point, Row, series};
use super::ast::{Expr, Query, Selector, Subquery};
use super::error::PromqlError;
use super::labels::Labels;
use super::series::{Series, Source, Value, joined};

pub use self::evaluator::{Evaluated, Stop};
pub use self::grid::QueryTime;
pub use self::plan::requests;
pub(crate) use self::plan::steps;

/// Evaluates a query.
///
/// `source`: gives the series of each of the [`requests`]. `samples_max`: how many samples may be
/// in memory at a time.
///
/// # Errors
/// The evaluation fails as it does in Prometheus, holds too many samples, or was ended by `stop`.
pub fn evaluate(
    query: &Query,
    time: QueryTime,
    source: &mut dyn Source,
    samples_max: usize,
    stop: &Stop,
) -> Result<Evaluated, PromqlError> {
    let mut evaluator = Evaluator {
        time,
        source,
        samples: 0,
        samples_max,
        label_bytes: 0,
        stop,
        warnings: vec![],
        infos: vec![],
    };
    let value = evaluator.run(&query.expr)?;
    let Evaluator {
        mut warnings,
        mut infos,
        ..
    } = evaluator;
    for remarks in [&mut warnings, &mut infos] {
        remarks.sort();
        remarks.dedup();
    }
    Ok(Evaluated {
        value,
        warnings,
        infos,
    })
}

impl Evaluator<'_> {
    fn run(&mut self, expr: &Expr) -> Result<Value, PromqlError> {
        let grid = self.time.grid();
        if self.time.step_ms.is_none() {
            match expr {
                Expr::Range { selector, range_ms } => {
                    let raw = self.raw(selector, *range_ms, grid.start_ms);
                    return raw.map(Value::Matrix);
                }
                Expr::Subquery(subquery) => return self.raw_subquery(subquery, grid),
                _ => {}
            }
        }
        let value = self.eval(expr, grid)?;
        Ok(match (value, self.time.step_ms) {
            (Val::Scalar(values), None) => {
                Value::Scalar(values.first().copied().unwrap_or(f64::NAN))
            }
            (Val::String(text), _) => Value::String(text),
            (Val::Vector(rows), None) => Value::Vector(series(rows, grid)),
            (Val::Vector(rows), Some(_)) => {
                let mut all = series(rows, grid);
                all.sort_by(|a, b| a.labels.cmp(&b.labels));
                Value::Matrix(all)
            }
            (Val::Scalar(values), Some(_)) => {
                let points = values.into_iter().enumerate().map(|(step, value)| Point {
                    step: step as u32,
                    value,
                });
                Value::Matrix(series(
                    vec![Row {
                        labels: Labels::default(),
                        points: points.collect(),
                    }],
                    grid,
                ))
            }
        })
    }

    fn eval(&mut self, expr: &Expr, grid: Grid) -> Result<Val, PromqlError> {
        self.stop.check()?;
        match expr {
            Expr::Number(value) => Ok(Val::Scalar(vec![*value; grid.steps()])),
            Expr::String(text) => Ok(Val::String(text.clone())),
            Expr::Selector(selector) => self.select(selector, grid).map(Val::Vector),
            Expr::Range { .. } | Expr::Subquery(_) => Err(PromqlError::execution(
                "a range vector must be the argument of a function",
            )),
            Expr::Negate(of) => match self.eval(of, grid)? {
                Val::Scalar(mut values) => {
                    values.iter_mut().for_each(|v| *v = -*v);
                    Ok(Val::Scalar(values))
                }
                Val::Vector(mut rows) => {
                    for row in &mut rows {
                        row.labels = row.labels.without_name();
                        row.points.iter_mut().for_each(|p| p.value = -p.value);
                    }
                    merged(rows).map(Val::Vector)
                }
                text @ Val::String(_) => Ok(text),
            },
            Expr::Binary(binary) => self.binary(binary, grid),
            Expr::Aggregate(aggregate) => self.aggregate(aggregate, grid).map(Val::Vector),
            Expr::Call(call) => self.call(call, grid),
        }
    }

    fn vector(&mut self, expr: &Expr, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        match self.eval(expr, grid)? {
            Val::Vector(rows) => Ok(rows),
            _ => Err(PromqlError::execution("expected an instant vector")),
        }
    }

    fn scalar(&mut self, expr: &Expr, grid: Grid) -> Result<Vec<f64>, PromqlError> {
        match self.eval(expr, grid)? {
            Val::Scalar(values) => Ok(values),
            _ => Err(PromqlError::execution("expected a scalar")),
        }
    }

    fn raw(
        &mut self,
        selector: &Selector,
        range_ms: i64,
        at_ms: i64,
    ) -> Result<Vec<Series>, PromqlError> {
        let end_ms = self.resolve(selector.at).unwrap_or(at_ms) - selector.offset_ms;
        let within = end_ms - range_ms + 1..=end_ms;
        joined(|| {
            let Some(mut part) = self.source.next(selector.id)? else {
                return Ok(None);
            };
            for samples in part.samples_mut() {
                samples.retain(|s| within.contains(&s.ts_ms));
                self.hold(samples.len())?;
            }
            Ok(Some(part))
        })
    }

    fn raw_subquery(&mut self, subquery: &Subquery, grid: Grid) -> Result<Value, PromqlError> {
        let inner = plan::inner_grid(subquery, self.resolve(subquery.at), grid);
        self.check_steps(inner)?;
        let mut all = series(self.vector(&subquery.expr, inner)?, inner);
        all.sort_by(|a, b| a.labels.cmp(&b.labels));
        Ok(Value::Matrix(all))
    }
}
