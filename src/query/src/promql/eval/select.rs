//! Selectors: the newest sample before each step, and the samples of each step's window.

use super::collect::duplicate;
use super::evaluator::{Evaluator, Stop};
use super::grid::{Grid, Point, Row};
use super::over_time::{Window, evaluate, of_stats};
use super::plan;
use crate::promql::ast::{Expr, Selector};
use crate::promql::error::PromqlError;
use crate::promql::functions::OverTime;
use crate::promql::labels::{Labels, METRIC_NAME};
use crate::promql::series::{Sample, SelectedSeries, SeriesData, WindowStats};

/// Where the windows of a function end and how long they are.
#[derive(Clone, Copy)]
struct Ranges {
    offset_ms: i64,
    at: Option<i64>,
    range_ms: i64,
}

pub(super) fn samples(data: SeriesData) -> Vec<Sample> {
    match data {
        SeriesData::Samples(samples) => samples,
        SeriesData::Windows(_) => vec![],
    }
}

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
        of: impl Fn(Sample) -> f64,
    ) -> Result<Vec<Row>, PromqlError> {
        let at = self.resolve(selector.at);
        let found = std::mem::take(&mut self.data[selector.id]);
        let mut rows = Vec::with_capacity(found.len());
        for series in found {
            self.stop.check()?;
            let samples = samples(series.data);
            let mut next = 0;
            let mut points = vec![];
            for step in 0..grid.steps() {
                let time = at.unwrap_or_else(|| grid.at(step)) - selector.offset_ms;
                while samples.get(next).is_some_and(|s| s.ts_ms <= time) {
                    next += 1;
                }
                match next.checked_sub(1).map(|i| samples[i]) {
                    Some(s) if s.ts_ms > time - self.time.lookback_ms => {
                        points.push(Point {
                            step: step as u32,
                            value: of(s),
                        });
                    }
                    _ => {}
                }
            }
            self.hold(points.len())?;
            if !points.is_empty() {
                rows.push(Row {
                    labels: series.labels,
                    points,
                });
            }
        }
        Ok(rows)
    }

    /// Evaluates a function of a range vector.
    pub(super) fn over_time(
        &mut self,
        function: OverTime,
        arg: &Expr,
        args: &[Vec<f64>],
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let (found, ranges) = self.range_vector(arg, grid)?;
        let keeps_name = matches!(function, OverTime::First | OverTime::Last);
        let mut rows = Vec::with_capacity(found.len());
        for series in found {
            self.stop.check()?;
            let points = match &series.data {
                SeriesData::Samples(samples) => {
                    windows(function, samples, args, grid, ranges, self.stop)?
                }
                SeriesData::Windows(stats) => summarised(function, stats, grid, ranges),
            };
            if points.is_empty() {
                continue;
            }
            self.hold(points.len())?;
            if matches!(function, OverTime::Rate | OverTime::Increase) {
                self.remark_counter(&series.labels);
            }
            let labels = if keeps_name {
                series.labels
            } else {
                series.labels.without_name()
            };
            rows.push(Row { labels, points });
        }
        let mut seen: Vec<&Labels> = rows.iter().map(|row| &row.labels).collect();
        seen.sort();
        if function != OverTime::Absent && seen.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(duplicate());
        }
        Ok(rows)
    }

    fn range_vector(
        &mut self,
        arg: &Expr,
        grid: Grid,
    ) -> Result<(Vec<SelectedSeries>, Ranges), PromqlError> {
        match arg {
            Expr::Range { selector, range_ms } => {
                let found = std::mem::take(&mut self.data[selector.id]);
                let at = self.resolve(selector.at);
                Ok((
                    found,
                    Ranges {
                        offset_ms: selector.offset_ms,
                        at,
                        range_ms: *range_ms,
                    },
                ))
            }
            Expr::Subquery(subquery) => {
                let at = self.resolve(subquery.at);
                let inner = plan::inner_grid(subquery, at, grid);
                self.check_steps(inner)?;
                let rows = self.vector(&subquery.expr, inner)?;
                self.release(&rows);
                let sample = |p: &Point| Sample {
                    ts_ms: inner.at(p.step as usize),
                    value: p.value,
                };
                let found = rows.into_iter().map(|row| SelectedSeries {
                    labels: row.labels,
                    data: SeriesData::Samples(row.points.iter().map(sample).collect()),
                });
                let ranges = Ranges {
                    offset_ms: subquery.offset_ms,
                    at,
                    range_ms: subquery.range_ms,
                };
                Ok((found.collect(), ranges))
            }
            _ => Err(PromqlError::execution("expected a range vector")),
        }
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

fn windows(
    function: OverTime,
    samples: &[Sample],
    args: &[Vec<f64>],
    grid: Grid,
    ranges: Ranges,
    stop: &Stop,
) -> Result<Vec<Point>, PromqlError> {
    let mut from = 0;
    let mut to = 0;
    let mut points = vec![];
    let mut numbers = vec![0.0; args.len()];
    for step in 0..grid.steps() {
        stop.check()?;
        let at_ms = grid.at(step);
        let end_ms = ranges.at.unwrap_or(at_ms) - ranges.offset_ms;
        let start_ms = end_ms - ranges.range_ms;
        while samples.get(to).is_some_and(|s| s.ts_ms <= end_ms) {
            to += 1;
        }
        while from < to && samples[from].ts_ms <= start_ms {
            from += 1;
        }
        if from == to {
            continue;
        }
        numbers
            .iter_mut()
            .zip(args)
            .for_each(|(number, arg)| *number = arg[step]);
        let window = Window {
            samples: &samples[from..to],
            start_ms,
            end_ms,
            at_ms,
            args: &numbers,
        };
        if let Some(value) = evaluate(function, &window)? {
            points.push(Point {
                step: step as u32,
                value,
            });
        }
    }
    Ok(points)
}

fn summarised(
    function: OverTime,
    stats: &[Option<WindowStats>],
    grid: Grid,
    ranges: Ranges,
) -> Vec<Point> {
    // With `@`, all steps have the same window.
    let of_step = |step: usize| {
        stats
            .get(if ranges.at.is_some() { 0 } else { step })
            .copied()
            .flatten()
    };
    let point = |step| {
        of_step(step).map(|s| Point {
            step: step as u32,
            value: of_stats(function, &s),
        })
    };
    (0..grid.steps()).filter_map(point).collect()
}
