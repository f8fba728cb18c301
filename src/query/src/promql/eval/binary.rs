//! Binary operators and the matching of vectors.

use std::collections::{HashMap, HashSet};

use super::collect::{Collector, Cursor};
use super::evaluator::{Evaluator, Val};
use super::grid::{Grid, Row, points_of};
use crate::promql::ast::{Binary, BinaryOp, Cardinality};
use crate::promql::error::PromqlError;
use crate::promql::labels::Labels;

/// The value, and for a comparison whether it holds.
fn apply(op: BinaryOp, a: f64, b: f64) -> (f64, bool) {
    match op {
        BinaryOp::Add => (a + b, true),
        BinaryOp::Sub => (a - b, true),
        BinaryOp::Mul => (a * b, true),
        BinaryOp::Div => (a / b, true),
        BinaryOp::Mod => (a % b, true),
        BinaryOp::Pow => (a.powf(b), true),
        BinaryOp::Atan2 => (a.atan2(b), true),
        BinaryOp::Equal => (a, a == b),
        BinaryOp::NotEqual => (a, a != b),
        BinaryOp::Greater => (a, a > b),
        BinaryOp::Less => (a, a < b),
        BinaryOp::GreaterOrEqual => (a, a >= b),
        BinaryOp::LessOrEqual => (a, a <= b),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Unless => (a, true),
    }
}

fn bool_value(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

impl Evaluator<'_> {
    pub(super) fn binary(&mut self, binary: &Binary, grid: Grid) -> Result<Val, PromqlError> {
        let op = binary.op;
        let result = match (self.eval(&binary.lhs, grid)?, self.eval(&binary.rhs, grid)?) {
            (Val::Scalar(a), Val::Scalar(b)) => {
                let of = |(a, b)| match apply(op, a, b) {
                    (_, holds) if op.is_comparison() => bool_value(holds),
                    (value, _) => value,
                };
                return Ok(Val::Scalar(a.into_iter().zip(b).map(of).collect()));
            }
            (Val::Vector(rows), Val::Scalar(values)) => {
                self.release(&rows);
                with_scalar(binary, rows, &values, false)?
            }
            (Val::Scalar(values), Val::Vector(rows)) => {
                self.release(&rows);
                with_scalar(binary, rows, &values, true)?
            }
            (Val::Vector(lhs), Val::Vector(rhs)) => {
                let result = self.vectors(binary, &lhs, &rhs, grid)?;
                self.hold(points_of(&result))?;
                self.release(&lhs);
                self.release(&rhs);
                return Ok(Val::Vector(result));
            }
            _ => {
                return Err(PromqlError::execution(
                    "operators need scalars or instant vectors",
                ));
            }
        };
        self.hold(points_of(&result))?;
        Ok(Val::Vector(result))
    }

    fn vectors(
        &self,
        binary: &Binary,
        lhs: &[Row],
        rhs: &[Row],
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let mut groups: HashMap<Labels, usize> = HashMap::new();
        let mut group = |rows: &[Row]| -> Vec<usize> {
            let labels = rows
                .iter()
                .map(|row| row.labels.matching(binary.on, &binary.matching));
            labels
                .map(|labels| {
                    let next = groups.len();
                    *groups.entry(labels).or_insert(next)
                })
                .collect()
        };
        let lhs_groups = group(lhs);
        let rhs_groups = group(rhs);
        let group_count = groups.len();
        if binary.op.is_set() {
            return self.set_operation(
                binary.op,
                group_count,
                (lhs, &lhs_groups),
                (rhs, &rhs_groups),
                grid,
            );
        }
        let mut lhs_at = Cursor::new(lhs);
        let mut rhs_at = Cursor::new(rhs);
        // The "one" side of a matching is on the right; one-to-many is turned around.
        let is_swapped = binary.cardinality == Cardinality::OneToMany;
        let (many, one) = if is_swapped { (rhs, lhs) } else { (lhs, rhs) };
        let (many_groups, one_groups) = if is_swapped {
            (rhs_groups, lhs_groups)
        } else {
            (lhs_groups, rhs_groups)
        };
        let mut matching = Matching {
            binary,
            is_swapped,
            many,
            one,
            slots: HashMap::new(),
            collector: Collector::default(),
            matched: HashSet::new(),
            matched_groups: vec![false; group_count],
            step: 0,
        };
        for step in 0..grid.steps() as u32 {
            self.stop.check()?;
            let left = lhs_at.at(step);
            let right = rhs_at.at(step);
            let (many_now, one_now) = if is_swapped {
                (right, left)
            } else {
                (left, right)
            };
            matching.step = step;
            matching.run((&many_now, &many_groups), (&one_now, &one_groups))?;
        }
        Ok(matching.collector.finish())
    }

    /// `and`, `or` or `unless` of two sides, each with the group of each series.
    fn set_operation(
        &self,
        op: BinaryOp,
        group_count: usize,
        (lhs, lhs_groups): (&[Row], &[usize]),
        (rhs, rhs_groups): (&[Row], &[usize]),
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let mut lhs_at = Cursor::new(lhs);
        let mut rhs_at = Cursor::new(rhs);
        let mut collector = Collector::default();
        let mut slots = (vec![None; lhs.len()], vec![None; rhs.len()]);
        for step in 0..grid.steps() as u32 {
            self.stop.check()?;
            let left = lhs_at.at(step);
            let right = rhs_at.at(step);
            let (take_left, take_right) =
                set(op, group_count, (&left, lhs_groups), (&right, rhs_groups));
            for (rows, slots, taken) in [
                (lhs, &mut slots.0, take_left),
                (rhs, &mut slots.1, take_right),
            ] {
                for (i, value) in taken {
                    let slot =
                        *slots[i].get_or_insert_with(|| collector.slot(rows[i].labels.clone()));
                    collector.push(slot, step, value)?;
                }
            }
        }
        Ok(collector.finish())
    }
}

fn with_scalar(
    binary: &Binary,
    rows: Vec<Row>,
    values: &[f64],
    is_swapped: bool,
) -> Result<Vec<Row>, PromqlError> {
    let op = binary.op;
    let is_comparison = binary.op.is_comparison();
    let drops_name = !is_comparison || binary.is_bool;
    let mut all = Vec::with_capacity(rows.len());
    for mut row in rows {
        if drops_name {
            row.labels = row.labels.without_name();
        }
        row.points.retain_mut(|p| {
            let scalar = values[p.step as usize];
            let (a, b) = if is_swapped {
                (scalar, p.value)
            } else {
                (p.value, scalar)
            };
            let (value, holds) = apply(op, a, b);
            if binary.is_bool {
                p.value = bool_value(holds);
            } else if !is_comparison {
                p.value = value;
            }
            holds || binary.is_bool
        });
        all.push(row);
    }
    super::collect::merged(all)
}

/// Samples of one step: series and value; and the group of each series.
type Side<'a> = (&'a [(usize, f64)], &'a [usize]);
type Taken = Vec<(usize, f64)>;

/// The samples that a set operator takes from each side.
fn set(
    op: BinaryOp,
    groups: usize,
    (left, left_groups): Side<'_>,
    (right, right_groups): Side<'_>,
) -> (Taken, Taken) {
    let present = |now: &[(usize, f64)], of: &[usize]| {
        let mut present = vec![false; groups];
        now.iter().for_each(|(i, _)| present[of[*i]] = true);
        present
    };
    let pick = |now: &[(usize, f64)], of: &[usize], other: &[bool], wanted: bool| -> Taken {
        now.iter()
            .filter(|(i, _)| other[of[*i]] == wanted)
            .copied()
            .collect()
    };
    match op {
        BinaryOp::And => (
            pick(left, left_groups, &present(right, right_groups), true),
            vec![],
        ),
        BinaryOp::Unless => (
            pick(left, left_groups, &present(right, right_groups), false),
            vec![],
        ),
        _ => (
            left.to_vec(),
            pick(right, right_groups, &present(left, left_groups), false),
        ),
    }
}

struct Matching<'a> {
    binary: &'a Binary,
    is_swapped: bool,
    many: &'a [Row],
    one: &'a [Row],
    /// The result of each pair of series; `None` stands for a filled side.
    slots: HashMap<(Option<usize>, Option<usize>), usize>,
    collector: Collector,
    /// Groups and results of this step.
    matched: HashSet<(usize, usize)>,
    matched_groups: Vec<bool>,
    step: u32,
}

impl Matching<'_> {
    fn run(
        &mut self,
        (many, many_groups): Side<'_>,
        (one, one_groups): Side<'_>,
    ) -> Result<(), PromqlError> {
        let (fill_many, fill_one) = match self.is_swapped {
            true => (self.binary.fill_right, self.binary.fill_left),
            false => (self.binary.fill_left, self.binary.fill_right),
        };
        let is_filled = fill_many.is_some() || fill_one.is_some();
        if (many.is_empty() && one.is_empty())
            || ((many.is_empty() || one.is_empty()) && !is_filled)
        {
            return Ok(());
        }
        self.matched.clear();
        self.matched_groups.fill(false);
        let mut ones: Vec<Option<(usize, f64)>> = vec![None; self.matched_groups.len()];
        for (i, value) in one {
            let held = &mut ones[one_groups[*i]];
            if let Some((other, _)) = held {
                return Err(self.many_to_many(*i, *other));
            }
            *held = Some((*i, *value));
        }
        for (i, value) in many {
            let group = many_groups[*i];
            match (ones[group], fill_one) {
                (Some((j, other)), _) => self.pair(group, Some(*i), Some(j), *value, other)?,
                (None, Some(fill)) => self.pair(group, Some(*i), None, *value, fill)?,
                (None, None) => {}
            }
        }
        if let Some(fill) = fill_many {
            for (j, value) in one
                .iter()
                .filter(|(j, _)| !self.matched_groups[one_groups[*j]])
                .copied()
                .collect::<Vec<_>>()
            {
                self.pair(one_groups[j], None, Some(j), fill, value)?;
            }
        }
        Ok(())
    }

    fn pair(
        &mut self,
        group: usize,
        many: Option<usize>,
        one: Option<usize>,
        many_value: f64,
        one_value: f64,
    ) -> Result<(), PromqlError> {
        let (a, b) = if self.is_swapped {
            (one_value, many_value)
        } else {
            (many_value, one_value)
        };
        let (value, holds) = apply(self.binary.op, a, b);
        let slot = match self.slots.get(&(many, one)) {
            Some(slot) => *slot,
            None => {
                let labels = self.result_labels(many, one);
                let slot = self.collector.slot(labels);
                self.slots.insert((many, one), slot);
                slot
            }
        };
        let is_one_to_one = self.binary.cardinality == Cardinality::OneToOne;
        if is_one_to_one && self.matched_groups[group] {
            return Err(PromqlError::execution(
                "multiple matches for labels: many-to-one matching must be explicit \
                 (group_left/group_right)",
            ));
        }
        if !is_one_to_one && !self.matched.insert((group, slot)) {
            return Err(PromqlError::execution(
                "multiple matches for labels: grouping labels must ensure unique matches",
            ));
        }
        self.matched_groups[group] = true;
        match (self.binary.is_bool, holds) {
            (true, _) => self.collector.push(slot, self.step, bool_value(holds)),
            (false, true) => self.collector.push(slot, self.step, value),
            (false, false) => Ok(()),
        }
    }

    fn result_labels(&self, many: Option<usize>, one: Option<usize>) -> Labels {
        let binary = self.binary;
        let of = |rows: &[Row], i: usize| rows[i].labels.clone();
        let filled = |labels: Labels| labels.matching(binary.on, &binary.matching);
        let (many, one) = match (many, one) {
            (Some(i), Some(j)) => (of(self.many, i), of(self.one, j)),
            (Some(i), None) => (of(self.many, i), filled(of(self.many, i))),
            (None, Some(j)) => (filled(of(self.one, j)), of(self.one, j)),
            (None, None) => (Labels::default(), Labels::default()),
        };
        let mut labels = many;
        if binary.is_bool || !binary.op.is_comparison() {
            labels = labels.without_name();
        }
        if binary.cardinality == Cardinality::OneToOne {
            let is_named = |name: &str| binary.matching.iter().any(|n| n == name);
            labels = labels.filtered(|name| is_named(name) == binary.on);
        }
        for name in &binary.include {
            labels = labels.with(name, one.get(name));
        }
        labels
    }

    fn many_to_many(&self, i: usize, other: usize) -> PromqlError {
        let binary = self.binary;
        let side = if self.is_swapped { "left" } else { "right" };
        let labels = &self.one[i].labels;
        let group = labels.matching(binary.on, &binary.matching);
        PromqlError::execution(format!(
            "found duplicate series for the match group {group} on the {side} hand-side of the \
             operation: [{labels}, {}];many-to-many matching not allowed: matching labels must be \
             unique on one side",
            self.one[other].labels
        ))
    }
}
