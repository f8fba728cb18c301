//! Puts the samples of each step into series. Two samples of a step with the same labels are an
//! error.

use std::collections::HashMap;

use super::grid::{Point, Row};
use crate::promql::error::PromqlError;
use crate::promql::labels::Labels;

pub(super) fn duplicate() -> PromqlError {
    PromqlError::execution("vector cannot contain metrics with the same labelset")
}

/// Series by labels, in the order in which they appear.
#[derive(Default)]
pub(super) struct Collector {
    slots: HashMap<Labels, usize>,
    rows: Vec<Row>,
}

impl Collector {
    /// The place of a series.
    pub(super) fn slot(&mut self, labels: Labels) -> usize {
        let Collector { slots, rows } = self;
        *slots.entry(labels).or_insert_with_key(|labels| {
            rows.push(Row {
                labels: labels.clone(),
                points: vec![],
            });
            rows.len() - 1
        })
    }

    /// Adds a sample; steps must not decrease.
    pub(super) fn push(&mut self, slot: usize, step: u32, value: f64) -> Result<(), PromqlError> {
        let points = &mut self.rows[slot].points;
        if points.last().is_some_and(|last| last.step == step) {
            return Err(duplicate());
        }
        points.push(Point { step, value });
        Ok(())
    }

    /// The series that have samples, in the order in which they appeared. For a single step, the
    /// order of samples.
    pub(super) fn finish(mut self) -> Vec<Row> {
        self.rows.retain(|row| !row.points.is_empty());
        self.rows
    }
}

/// Joins series that have the same labels.
pub(super) fn merged(rows: Vec<Row>) -> Result<Vec<Row>, PromqlError> {
    let mut slots: HashMap<Labels, usize> = HashMap::with_capacity(rows.len());
    let mut all: Vec<Row> = Vec::with_capacity(rows.len());
    let mut is_joined = false;
    for row in rows {
        if row.points.is_empty() {
            continue;
        }
        match slots.entry(row.labels.clone()) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(all.len());
                all.push(row);
            }
            std::collections::hash_map::Entry::Occupied(entry) => {
                all[*entry.get()].points.extend(row.points);
                is_joined = true;
            }
        }
    }
    if is_joined {
        for row in &mut all {
            row.points.sort_by_key(|p| p.step);
            if row
                .points
                .windows(2)
                .any(|pair| pair[0].step == pair[1].step)
            {
                return Err(duplicate());
            }
        }
    }
    Ok(all)
}

/// The sample of each series at one step after the other.
pub(super) struct Cursor<'a> {
    rows: &'a [Row],
    next: Vec<usize>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(rows: &'a [Row]) -> Cursor<'a> {
        Cursor {
            rows,
            next: vec![0; rows.len()],
        }
    }

    /// The series that have a sample at this step, and its value. Steps must increase.
    pub(super) fn at(&mut self, step: u32) -> Vec<(usize, f64)> {
        let mut found = vec![];
        for (i, (row, next)) in self.rows.iter().zip(&mut self.next).enumerate() {
            if let Some(point) = row.points.get(*next)
                && point.step == step
            {
                *next += 1;
                found.push((i, point.value));
            }
        }
        found
    }
}
