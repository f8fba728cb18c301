//! Rejected readings and messages. Every reject is counted; only the first [`KEPT_MAX`] are kept
//! with their text. So a hostile body of eight million broken bytes costs counting, and not a
//! gigabyte of text.

use std::borrow::Cow;
use std::sync::Arc;

use super::RejectReason;
use model::BatchBuilder;
use model::ranges::{Implausible, RangeAction, RangeRule};

/// Rejects that are kept with index and detail; the others are only counted by reason. A gateway's
/// batch of a thousand readings still gets an answer for each.
pub const KEPT_MAX: usize = 1000;

/// Hints that are kept; further ones are dropped.
pub const HINTS_MAX: usize = 8;

/// A rejected reading or message, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Position in the payload, from 0: array element or line; 0 for a single reading.
    pub index: usize,
    /// A metric label and part of the HTTP answer.
    pub reason: RejectReason,
    /// The problem and its place, for people.
    pub detail: String,
}

/// Why a reading is rejected, before its index is known.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) reason: RejectReason,
    pub(super) detail: Cow<'static, str>,
}

impl Fault {
    pub(super) fn new(reason: RejectReason, detail: impl Into<Cow<'static, str>>) -> Fault {
        Fault {
            reason,
            detail: detail.into(),
        }
    }
}

/// Parts of accepted readings that were not stored, because the format cannot hold them or because
/// they are outside of their range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    total: usize,
    names: Vec<String>,
}

impl LeftOut {
    /// Names that are kept; further ones are only counted.
    const NAMES_MAX: usize = 10;
    const NAME_CHARS_MAX: usize = 80;

    /// The number of parts; each counts once per reading.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The first names, each once.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) fn add(&mut self, name: &str, count: usize) {
        self.total += count;
        let name = match name.char_indices().nth(LeftOut::NAME_CHARS_MAX) {
            Some((end, _)) => &name[..end],
            None => name,
        };
        if self.names.len() < LeftOut::NAMES_MAX && self.names.iter().all(|known| known != name) {
            self.names.push(name.to_owned());
        }
    }

    fn append(&mut self, other: LeftOut) {
        let unnamed = other.total - other.names.len().min(other.total);
        other.names.iter().for_each(|name| self.add(name, 1));
        self.total += unnamed;
    }
}

/// How many values are outside of their ranges, by the fields of the range and what happens to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutOfRange(Vec<(Arc<str>, RangeAction, u64)>);

impl OutOfRange {
    /// Fields of the range, what happens to the values, and their number.
    pub fn counts(&self) -> &[(Arc<str>, RangeAction, u64)] {
        &self.0
    }

    fn add(&mut self, fields: &Arc<str>, action: RangeAction, n: u64) {
        let is_same =
            |count: &&mut (Arc<str>, RangeAction, u64)| (&count.0, count.1) == (fields, action);
        match self.0.iter_mut().find(is_same) {
            Some((.., count)) => *count += n,
            None => self.0.push((fields.clone(), action, n)),
        }
    }

    /// Adds the counts of another one.
    pub fn append(&mut self, other: &OutOfRange) {
        let counts = other.0.iter();
        counts.for_each(|(fields, action, n)| self.add(fields, *action, *n));
    }
}

/// The rejects of one or several payloads. [`Rejects::clear`] empties it and keeps its memory.
#[derive(Debug, Clone, Default)]
pub struct Rejects {
    list: Vec<Reject>,
    total: usize,
    by_reason: Vec<(RejectReason, usize)>,
    hints: Vec<Cow<'static, str>>,
    left_out: LeftOut,
    out_of_range: OutOfRange,
    skipped: usize,
}

impl Rejects {
    /// Creates an empty list.
    pub fn new() -> Rejects {
        Rejects::default()
    }

    /// The number of rejected readings; may exceed the length of [`Rejects::list`].
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether nothing was rejected.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The first [`KEPT_MAX`] rejects, in the order in which they were found.
    pub fn list(&self) -> &[Reject] {
        &self.list
    }

    /// The count for each reason, including rejects that are not kept.
    pub fn by_reason(&self) -> &[(RejectReason, usize)] {
        &self.by_reason
    }

    /// Reason and detail for a dead letter of the whole message: those of the first reject, but
    /// [`not allowed`](RejectReason::NotAllowed) comes before all others. A replay leaves such dead
    /// letters out, because it does not know the sender.
    pub fn foremost(&self) -> Option<(RejectReason, &str)> {
        if self.any(RejectReason::NotAllowed) {
            let found = self
                .list
                .iter()
                .find(|reject| reject.reason == RejectReason::NotAllowed);
            return Some((
                RejectReason::NotAllowed,
                found.map_or("", |reject| &reject.detail),
            ));
        }
        self.list
            .first()
            .map(|reject| (reject.reason, &*reject.detail))
    }

    /// Whether there is a reject for this reason.
    pub fn any(&self, reason: RejectReason) -> bool {
        self.by_reason.iter().any(|(r, _)| *r == reason)
    }

    /// Whether there are rejects, and all for this reason.
    pub fn are_all(&self, reason: RejectReason) -> bool {
        !self.by_reason.is_empty() && self.by_reason.iter().all(|(r, _)| *r == reason)
    }

    /// Hints for the sender about what was accepted, each once; at most [`HINTS_MAX`].
    pub fn hints(&self) -> &[Cow<'static, str>] {
        &self.hints
    }

    /// Adds a hint for the sender.
    pub(super) fn hint(&mut self, text: impl Into<Cow<'static, str>>) {
        let text = text.into();
        if self.hints.len() < HINTS_MAX && !self.hints.contains(&text) {
            self.hints.push(text);
        }
    }

    /// The parts of accepted readings that were not stored.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    pub(super) fn leave_out(&mut self, left_out: LeftOut) {
        self.left_out.append(left_out);
    }

    /// Adds a part of the accepted reading that was left out.
    pub fn leave_out_name(&mut self, name: &str) {
        self.left_out.add(name, 1);
    }

    /// The values outside of their ranges.
    pub fn out_of_range(&self) -> &OutOfRange {
        &self.out_of_range
    }

    /// Adds the values outside of their ranges that the builder has found. Call it after decoding.
    pub fn note_ranges(&mut self, out: &mut BatchBuilder) {
        for found in out.take_implausible() {
            let RangeRule { label, action, .. } = found.rule();
            self.out_of_range.add(label, *action, 1);
            self.note_range(&found, *action);
        }
    }

    fn note_range(&mut self, found: &Implausible, action: RangeAction) {
        match action {
            _ if found.is_rejected() => {}
            RangeAction::Reject => {}
            RangeAction::LeaveOut => self.left_out.add(found.field(), 1),
            RangeAction::KeepApart => {
                let field = found.field();
                let apart = found.apart();
                self.hint(format!(
                    "values of {field} outside of their range are stored as {apart}"
                ));
            }
        }
    }

    /// Elements that need not be stored: without a value, or equal to another one.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.skipped += count;
    }

    /// Adds one reject.
    pub fn push(
        &mut self,
        index: usize,
        reason: RejectReason,
        detail: impl Into<Cow<'static, str>>,
    ) {
        self.push_many(index, 1, reason, detail);
    }

    /// Adds one entry for `count` readings, starting at `index`.
    pub(crate) fn push_many(
        &mut self,
        index: usize,
        count: usize,
        reason: RejectReason,
        detail: impl Into<Cow<'static, str>>,
    ) {
        self.total += count;
        match self.by_reason.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, n)) => *n += count,
            None => self.by_reason.push((reason, count)),
        }
        if !self.is_full() {
            self.list.push(Reject {
                index,
                reason,
                detail: detail.into().into_owned(),
            });
        }
    }

    /// Removes all rejects and hints.
    pub fn clear(&mut self) {
        self.list.clear();
        self.by_reason.clear();
        (self.total, self.skipped) = (0, 0);
        self.hints.clear();
        self.left_out = LeftOut::default();
        self.out_of_range = OutOfRange::default();
    }

    /// Whether the next reject is only counted, so that its detail need not be formatted.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= KEPT_MAX
    }

    pub(super) fn fault(&mut self, index: usize, fault: Fault) {
        self.push(index, fault.reason, fault.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_are_kept() {
        let mut rejects = Rejects::new();
        for i in 0..KEPT_MAX + 5 {
            rejects.push(
                i,
                if i % 2 == 0 {
                    RejectReason::TooOld
                } else {
                    RejectReason::NoValues
                },
                "x",
            );
        }
        rejects.push_many(9, 10, RejectReason::TooManyReadings, "many");
        assert_eq!(
            (rejects.total(), rejects.list().len()),
            (KEPT_MAX + 15, KEPT_MAX)
        );
        assert_eq!(
            rejects.by_reason().iter().map(|(_, n)| n).sum::<usize>(),
            rejects.total()
        );
        rejects.clear();
        assert!(rejects.is_empty() && rejects.list().is_empty() && rejects.by_reason().is_empty());
    }
}
