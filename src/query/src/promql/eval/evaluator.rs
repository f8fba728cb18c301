//! The state of an evaluation: the data, its size in memory, and the remarks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::grid::{Grid, QueryTime, Row, points_of};
use crate::promql::ast::At;
use crate::promql::error::PromqlError;
use crate::promql::series::{Source, Value};

/// Ends an evaluation from outside.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicU8>);

impl Stop {
    /// The client no longer waits.
    pub fn cancel(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// The time limit is reached.
    pub(crate) fn time_out(&self) {
        self.0.store(2, Ordering::Relaxed);
    }

    /// Whether to continue.
    ///
    /// # Errors
    /// The query was ended.
    pub fn check(&self) -> Result<(), PromqlError> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => Err(PromqlError::Cancelled),
            _ => Err(PromqlError::TimedOut),
        }
    }
}

/// A result, and what Prometheus remarks about the query.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    /// The result.
    pub value: Value,
    /// Probably not intended.
    pub warnings: Vec<String>,
    /// Possibly not intended.
    pub(crate) infos: Vec<String>,
}

/// Bytes of label values that one query may write with `label_replace` and `label_join`. Nested
/// calls can double a value each time, and samples do not count its length.
const LABEL_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(super) enum Val {
    /// At each step.
    Scalar(Vec<f64>),
    Vector(Vec<Row>),
    String(String),
}

pub(super) struct Evaluator<'a> {
    pub(super) time: QueryTime,
    pub(super) source: &'a mut dyn Source,
    /// Points in memory.
    pub(super) samples: usize,
    pub(super) samples_max: usize,
    /// Bytes of the label values that were written so far.
    pub(super) label_bytes: usize,
    pub(super) stop: &'a Stop,
    pub(super) warnings: Vec<String>,
    pub(super) infos: Vec<String>,
}

impl Evaluator<'_> {
    pub(super) fn resolve(&self, at: Option<At>) -> Option<i64> {
        at.map(|at| match at {
            At::Start => self.time.start_ms,
            At::End => self.time.end_ms,
            At::Ms(ms) => ms,
        })
    }

    /// Refuses a subquery of so many steps that the values at them alone would not fit.
    pub(super) fn check_steps(&self, grid: Grid) -> Result<(), PromqlError> {
        match grid.steps() > (self.samples_max / 4).min(u32::MAX as usize) {
            true => Err(PromqlError::too_many_samples()),
            false => Ok(()),
        }
    }

    /// Counts points that are now in memory.
    pub(super) fn hold(&mut self, points: usize) -> Result<(), PromqlError> {
        self.samples += points;
        self.check_room(0)
    }

    /// Refuses samples that are in memory for a moment if they do not fit.
    pub(super) fn check_room(&self, samples: usize) -> Result<(), PromqlError> {
        match self.samples.saturating_add(samples) > self.samples_max {
            true => Err(PromqlError::too_many_samples()),
            false => Ok(()),
        }
    }

    /// Counts a label value of at most this many bytes before it is written.
    pub(super) fn hold_label(&mut self, bytes: usize) -> Result<(), PromqlError> {
        self.label_bytes = self.label_bytes.saturating_add(bytes);
        match self.label_bytes > LABEL_BYTES_MAX {
            true => Err(PromqlError::execution(
                "label_replace and label_join write more than 64 MiB of label values",
            )),
            false => Ok(()),
        }
    }

    /// Points are no longer in memory.
    pub(super) fn release(&mut self, rows: &[Row]) {
        self.samples = self.samples.saturating_sub(points_of(rows));
    }
}
