//! The steps of a query, and the values at them.

use crate::promql::labels::Labels;
use crate::promql::series::{Sample, Series};

/// The default interval of a subquery without one: Prometheus' evaluation interval.
pub(super) const SUBQUERY_STEP_MS: i64 = 60_000;

/// The time of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryTime {
    /// The first step, ms since 1970.
    pub start_ms: i64,
    /// The last step is at or before this time.
    pub end_ms: i64,
    /// The distance of steps; `None` for an instant query.
    pub step_ms: Option<i64>,
    /// How old the sample may be that an instant selector takes.
    pub lookback_ms: i64,
}

impl QueryTime {
    pub(super) fn grid(&self) -> Grid {
        Grid {
            start_ms: self.start_ms,
            end_ms: self.end_ms,
            step_ms: self.step_ms.unwrap_or(1),
        }
    }
}

/// The steps of a query or subquery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) start_ms: i64,
    pub(super) end_ms: i64,
    pub(super) step_ms: i64,
}

impl Grid {
    pub(super) fn steps(&self) -> usize {
        match self.end_ms < self.start_ms {
            true => 0,
            false => ((self.end_ms - self.start_ms) / self.step_ms) as usize + 1,
        }
    }

    pub(super) fn at(&self, step: usize) -> i64 {
        self.start_ms + self.step_ms * step as i64
    }

    pub(super) fn last_ms(&self) -> i64 {
        self.at(self.steps().saturating_sub(1))
    }
}

/// A value at a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) step: u32,
    pub(super) value: f64,
}

/// A series at the steps of a grid.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) labels: Labels,
    /// Ordered by step.
    pub(super) points: Vec<Point>,
}

pub(super) fn points_of(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.points.len()).sum()
}

/// Without the rows that have no point.
pub(super) fn series(rows: Vec<Row>, grid: Grid) -> Vec<Series> {
    let sample = |p: &Point| Sample {
        ts_ms: grid.at(p.step as usize),
        value: p.value,
    };
    rows.into_iter()
        .filter(|row| !row.points.is_empty())
        .map(|row| Series {
            labels: row.labels,
            samples: row.points.iter().map(sample).collect(),
        })
        .collect()
}
