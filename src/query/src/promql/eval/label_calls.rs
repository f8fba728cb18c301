//! Functions of labels.

use std::cmp::Ordering;

use super::collect::merged;
use super::evaluator::Evaluator;
use super::grid::{Grid, Row};
use crate::promql::ast::{Call, Expr};
use crate::promql::error::PromqlError;
use crate::promql::matcher::anchored;

impl Evaluator<'_> {
    pub(super) fn label_replace(
        &mut self,
        call: &Call,
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let texts = texts(&call.args[1..]);
        let [target, replacement, source, pattern] = texts[..] else {
            return Ok(vec![]);
        };
        let regex = anchored(pattern).map_err(|_| {
            PromqlError::execution(format!(
                "invalid regular expression in label_replace(): {pattern}"
            ))
        })?;
        check_name(target, "destination label name in label_replace()")?;
        let mut rows = self.vector(&call.args[0], grid)?;
        // Each `$` may stand for all of the source.
        let references = replacement.matches('$').count();
        for row in &mut rows {
            self.stop.check()?;
            let mut value = String::new();
            if let Some(found) = regex.captures(row.labels.get(source)) {
                self.hold_label(
                    replacement.len() + references.saturating_mul(row.labels.get(source).len()),
                )?;
                found.expand(replacement, &mut value);
                row.labels = row.labels.with(target, &value);
            }
        }
        merged(rows)
    }

    pub(super) fn label_join(&mut self, call: &Call, grid: Grid) -> Result<Vec<Row>, PromqlError> {
        let texts = texts(&call.args[1..]);
        let [target, separator, ref sources @ ..] = texts[..] else {
            return Ok(vec![]);
        };
        sources
            .iter()
            .try_for_each(|source| check_name(source, "source label name in label_join()"))?;
        check_name(target, "destination label name in label_join()")?;
        let mut rows = self.vector(&call.args[0], grid)?;
        for row in &mut rows {
            let values: Vec<&str> = sources
                .iter()
                .map(|source| row.labels.get(source))
                .collect();
            self.hold_label(
                values
                    .iter()
                    .map(|value| value.len() + separator.len())
                    .sum(),
            )?;
            row.labels = row.labels.with(target, &values.join(separator));
        }
        merged(rows)
    }

    pub(super) fn sort_by_label(
        &mut self,
        call: &Call,
        grid: Grid,
    ) -> Result<Vec<Row>, PromqlError> {
        let mut rows = self.vector(&call.args[0], grid)?;
        if !self.remark_sort() {
            let names = texts(&call.args[1..]);
            let is_descending = call.function.name == "sort_by_label_desc";
            rows.sort_by(|a, b| {
                let by_names = names
                    .iter()
                    .map(|name| natural(a.labels.get(name), b.labels.get(name)));
                let order = by_names
                    .fold(Ordering::Equal, Ordering::then)
                    .then_with(|| a.labels.cmp(&b.labels));
                if is_descending {
                    order.reverse()
                } else {
                    order
                }
            });
        }
        Ok(rows)
    }
}

fn texts(args: &[Expr]) -> Vec<&str> {
    fn text(arg: &Expr) -> &str {
        if let Expr::String(text) = arg {
            text
        } else {
            ""
        }
    }
    args.iter().map(text).collect()
}

fn check_name(name: &str, place: &str) -> Result<(), PromqlError> {
    match name.is_empty() {
        true => Err(PromqlError::execution(format!("invalid {place}: {name}"))),
        false => Ok(()),
    }
}

/// Compares digits as numbers, and the text between them as text.
fn natural(a: &str, b: &str) -> Ordering {
    let mut a_parts = parts(a);
    let mut b_parts = parts(b);
    loop {
        match (a_parts.next(), b_parts.next()) {
            (None, None) => return a.cmp(b),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => {
                let order = match (a.parse::<i64>(), b.parse::<i64>()) {
                    (Ok(a), Ok(b)) => a.cmp(&b),
                    _ => a.cmp(b),
                };
                if order != Ordering::Equal {
                    return order;
                }
            }
        }
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_digit = rest.chars().next()?.is_ascii_digit();
        let end = rest
            .find(|c: char| c.is_ascii_digit() != is_digit)
            .unwrap_or(rest.len());
        let (part, tail) = rest.split_at(end);
        rest = tail;
        Some(part)
    })
}
