//! How many readings one payload may have (`limits.batch_max_readings`), and what came beyond it.

use super::reasons;
use super::rejects::Rejects;
use crate::config::Limits;

/// Counts the readings of a payload, and those that there was no room for.
#[derive(Debug)]
pub(super) struct Quota {
    max: usize,
    taken: usize,
    beyond: usize,
    beyond_from: usize,
}

impl Quota {
    pub(super) fn new(limits: &Limits) -> Quota {
        Quota { max: limits.batch_max_readings, taken: 0, beyond: 0, beyond_from: 0 }
    }

    /// Whether there is no room for the element at `index`; it is counted then.
    pub(super) fn refuses(&mut self, index: usize) -> bool {
        let refuses = self.is_used_up();
        if refuses {
            self.refuse(index);
        }
        refuses
    }

    /// Whether there is no room for one more.
    pub(super) fn is_used_up(&self) -> bool {
        self.taken >= self.max
    }

    /// Counts the element at `index`, which there is no room for.
    pub(super) fn refuse(&mut self, index: usize) {
        if self.beyond == 0 {
            self.beyond_from = index;
        }
        self.beyond += 1;
    }

    /// An element became a reading.
    pub(super) fn took(&mut self) {
        self.taken += 1;
    }

    /// How many elements there was no room for.
    pub(super) fn beyond(&self) -> usize {
        self.beyond
    }

    /// Rejects those that there was no room for, all at once. `detail` says it, of their number, the place of the first,
    /// and the most there may be.
    pub(super) fn close_with(&self, rejects: &mut Rejects, detail: impl FnOnce(usize, usize, usize) -> String) {
        if self.beyond > 0 {
            let detail = detail(self.beyond, self.beyond_from, self.max);
            rejects.push_many(self.beyond_from, self.beyond, reasons::TOO_MANY_READINGS, detail);
        }
    }

    /// The same in the usual words; `what`: the elements' name.
    pub(super) fn close(&self, what: &str, rejects: &mut Rejects) {
        self.close_with(rejects, |n, _, max| {
            format!("{n} {what}, from this one on, are beyond the {max} that one payload may have")
        });
    }
}
