//! Aggregations that select series: topk, bottomk, limitk and limit_ratio. Which of equal values
//! are selected, and in which order, follows from a binary heap of k elements with Go's
//! `container/heap` rules.

use super::collect::Collector;
use super::collect::Cursor;
use super::evaluator::Stop;
use super::grid::{Grid, Row};
use crate::promql::ast::AggregateOp;
use crate::promql::error::PromqlError;
use crate::promql::labels::Labels;

/// A value and its series.
type Entry = (f64, usize);

/// The heap's order: whether `a` is nearer to the root than `b`.
fn is_below(op: AggregateOp, a: f64, b: f64) -> bool {
    a.is_nan()
        || if op == AggregateOp::Bottomk {
            a > b
        } else {
            a < b
        }
}

fn push(op: AggregateOp, heap: &mut Vec<Entry>, entry: Entry) {
    heap.push(entry);
    let mut at = heap.len() - 1;
    while at > 0 {
        let parent = (at - 1) / 2;
        if !is_below(op, heap[at].0, heap[parent].0) {
            break;
        }
        heap.swap(at, parent);
        at = parent;
    }
}

/// Restores the order after the root has changed.
fn sink(op: AggregateOp, heap: &mut [Entry]) {
    let mut at = 0;
    loop {
        let left = 2 * at + 1;
        if left >= heap.len() {
            return;
        }
        let right = left + 1;
        let child = if right < heap.len() && is_below(op, heap[right].0, heap[left].0) {
            right
        } else {
            left
        };
        if !is_below(op, heap[child].0, heap[at].0) {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

/// The series that are selected at each step, with their own labels.
pub(super) fn selected(
    op: AggregateOp,
    params: &[f64],
    rows: &[Row],
    groups: &[(Labels, Vec<usize>)],
    grid: Grid,
    stop: &Stop,
) -> Result<Vec<Row>, PromqlError> {
    let mut group_of = vec![0; rows.len()];
    for (group, (_, members)) in groups.iter().enumerate() {
        members.iter().for_each(|i| group_of[*i] = group);
    }
    let mut collector = Collector::default();
    let mut cursor = Cursor::new(rows);
    for step in 0..grid.steps() as u32 {
        stop.check()?;
        let param = params[step as usize];
        let mut heaps: Vec<Vec<Entry>> = vec![vec![]; groups.len()];
        for (i, value) in cursor.at(step) {
            offer(op, param, &mut heaps[group_of[i]], (value, i), rows);
        }
        for mut heap in heaps {
            if matches!(op, AggregateOp::Topk | AggregateOp::Bottomk) {
                heap.sort_by(|a, b| {
                    let is_less = is_below(op, b.0, a.0);
                    let is_more = is_below(op, a.0, b.0);
                    is_more.cmp(&is_less)
                });
            }
            for (value, i) in heap {
                let slot = collector.slot(rows[i].labels.clone());
                // Labels of different series differ, so this cannot be a duplicate.
                let _ = collector.push(slot, step, value);
            }
        }
    }
    Ok(collector.finish())
}

fn offer(op: AggregateOp, param: f64, heap: &mut Vec<Entry>, entry: Entry, rows: &[Row]) {
    if op == AggregateOp::LimitRatio {
        let share = rows[entry.1].labels.stable_hash() as f64 / u64::MAX as f64;
        let ratio = param.clamp(-1.0, 1.0);
        let is_chosen = if ratio >= 0.0 {
            share < ratio
        } else {
            share >= 1.0 + ratio
        };
        if is_chosen && ratio != 0.0 {
            push(op, heap, entry);
        }
        return;
    }
    let k = (param as i64).min(rows.len() as i64);
    if k < 1 {
        return;
    }
    if (heap.len() as i64) < k {
        push(op, heap, entry);
        return;
    }
    let root = heap[0].0;
    let value = entry.0;
    let is_better = match op {
        AggregateOp::Topk => root < value,
        AggregateOp::Bottomk => root > value,
        _ => return,
    };
    if is_better || (root.is_nan() && !value.is_nan()) {
        heap[0] = entry;
        sink(op, heap);
    }
}
