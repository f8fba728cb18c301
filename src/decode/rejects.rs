//! What was not taken. Every reject counts; only the first [`KEPT_MAX`] are kept with their text, so that a hostile
//! body of eight million broken bytes costs counting and not a gigabyte of sentences.

use std::borrow::Cow;

/// Rejects that are kept with index and detail; the rest is counted by reason. A gateway's batch of a thousand readings
/// still gets an answer to each.
pub const KEPT_MAX: usize = 1000;

/// A reading or message that is not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Its place in the payload, from 0: element of the array, line, or 0 for a single one.
    pub index: usize,
    /// One of [`super::reasons`]: a metric label and part of the HTTP answer.
    pub reason: &'static str,
    /// What is wrong and where, for a person.
    pub detail: String,
}

/// Why a reading cannot be taken, before it is known which one it is.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) reason: &'static str,
    pub(super) detail: Cow<'static, str>,
}

impl Fault {
    pub(super) fn new(reason: &'static str, detail: impl Into<Cow<'static, str>>) -> Fault {
        Fault { reason, detail: detail.into() }
    }
}

/// The rejects of one payload, or of several: [`Rejects::clear`] makes it as new and keeps its memory.
#[derive(Debug, Clone, Default)]
pub struct Rejects {
    list: Vec<Reject>,
    total: usize,
    by_reason: Vec<(&'static str, usize)>,
    remark: Option<&'static str>,
}

impl Rejects {
    /// None yet.
    pub fn new() -> Rejects {
        Rejects::default()
    }

    /// One, of a message as a whole.
    pub fn of_message(reason: &'static str, detail: &'static str) -> Rejects {
        let mut rejects = Rejects::new();
        rejects.push(0, reason, detail);
        rejects
    }

    /// How many readings were rejected; may be more than [`Rejects::list`] holds.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The first [`KEPT_MAX`] of them, in the order they were found.
    pub fn list(&self) -> &[Reject] {
        &self.list
    }

    /// How many for each reason, complete.
    pub fn by_reason(&self) -> &[(&'static str, usize)] {
        &self.by_reason
    }

    /// What the sender should know although it is no reject.
    pub fn remarked(&self) -> Option<&'static str> {
        self.remark
    }

    /// Notes what the sender should know; the last one counts.
    pub(super) fn remark(&mut self, text: &'static str) {
        self.remark = Some(text);
    }

    /// Adds one.
    pub fn push(&mut self, index: usize, reason: &'static str, detail: impl Into<Cow<'static, str>>) {
        self.push_many(index, 1, reason, detail);
    }

    /// Adds `count` readings with one entry: the ones from `index` on.
    pub fn push_many(
        &mut self,
        index: usize,
        count: usize,
        reason: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) {
        self.total += count;
        match self.by_reason.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, n)) => *n += count,
            None => self.by_reason.push((reason, count)),
        }
        if !self.is_full() {
            self.list.push(Reject { index, reason, detail: detail.into().into_owned() });
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.by_reason.clear();
        self.total = 0;
        self.remark = None;
    }

    /// Whether the next one is only counted, so that its detail need not be made.
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
            rejects.push(i, if i % 2 == 0 { "a" } else { "b" }, "x");
        }
        rejects.push_many(9, 10, "c", "many");
        assert_eq!((rejects.total(), rejects.list().len()), (KEPT_MAX + 15, KEPT_MAX));
        assert_eq!(rejects.by_reason().iter().map(|(_, n)| n).sum::<usize>(), rejects.total());
        rejects.clear();
        assert!(rejects.is_empty() && rejects.list().is_empty() && rejects.by_reason().is_empty());
    }
}
