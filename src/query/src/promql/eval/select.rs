//! Selectors: the newest sample before each step, and the samples of each step's window.

use super::collect::duplicate;
use super::evaluator::Evaluator;
use super::grid::{Grid, Row, series};
use super::plan;
use super::windows::{Of, Ranges, Stepper};
use crate::promql::ast::{Expr, Selector};
use crate::promql::error::PromqlError;
use crate::promql::functions::OverTime;
use crate::promql::labels::{Labels, METRIC_NAME};
use crate::promql::series::{Part, Sample};

impl Evaluator<'_> {
    pub(super) fn select(
        &mut self,
        selector: &Selector,
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        self.newest(selector, grid, |sample| sample.value)
    }

    /// For each step a number of the newest sample that is not older than the lookback.
    pub(super) fn newest(
        &mut self,
        selector: &Selector,
        grid: Grid,
        of: fn(Sample) -> f64,
    ) -> Result<Vec<Row>, PromqlError> {
        let ranges = Ranges {
            grid,
            offset_ms: selector.offset_ms,
            at: self.resolve(selector.at),
            range_ms: self.time.lookback_ms,
            of: Of::Newest(of),
        };
        self.windows(selector.id, &ranges)
    }

    /// Evaluates a function of a range vector.
    pub(super) fn over_time(
        &mut self,
        function: OverTime,
        arg: &Expr,
        args: &[Vec<f64>],
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let of = Of::Function(function, args);
        let mut rows = match arg {
            Expr::Range { selector, range_ms } => {
                let ranges = Ranges {
                    grid,
                    offset_ms: selector.offset_ms,
                    at: self.resolve(selector.at),
                    range_ms: *range_ms,
                    of,
                };
                self.windows(selector.id, &ranges)?
            }
            Expr::Subquery(subquery) => {
                let at = self.resolve(subquery.at);
                let inner = plan::inner_grid(subquery, at, grid);
                self.check_steps(inner)?;
                let rows = self.vector(&subquery.expr, inner)?;
                self.release(&rows);
                let ranges = Ranges {
                    grid,
                    offset_ms: subquery.offset_ms,
                    at,
                    range_ms: subquery.range_ms,
                    of,
                };
                let mut all = Vec::with_capacity(rows.len());
                for of_row in series(rows, inner) {
                    let mut stepper = Stepper::default();
                    stepper.feed(&ranges, of_row.samples, Part::WHOLE, self)?;
                    let points = stepper.finish();
                    self.hold(points.len())?;
                    all.extend((!points.is_empty()).then_some(Row {
                        labels: of_row.labels,
                        points,
                    }));
                }
                all
            }
            _ => return Err(PromqlError::execution("expected a range vector")),
        };
        for row in &mut rows {
            if matches!(function, OverTime::Rate | OverTime::Increase) {
                self.remark_counter(&row.labels);
            }
            if !matches!(function, OverTime::First | OverTime::Last) {
                row.labels = row.labels.without_name();
            }
        }
        let mut seen: Vec<&Labels> = rows.iter().map(|row| &row.labels).collect();
        seen.sort();
        if function != OverTime::Absent && seen.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(duplicate());
        }
        Ok(rows)
    }

    fn remark_counter(&mut self, labels: &Labels) {
        let name = labels.get(METRIC_NAME);
        if !name.is_empty()
            && !["_total", "_sum", "_count", "_bucket"]
                .iter()
                .any(|end| name.ends_with(end))
        {
            let remark = format!(
                "PromQL info: metric might not be a counter, name does not end in \
                 _total/_sum/_count/_bucket: {name:?}"
            );
            if !self.infos.contains(&remark) {
                self.infos.push(remark);
            }
        }
    }
}
