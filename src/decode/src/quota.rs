//! Limits the readings of one payload (`limits.batch_max_readings`) and counts those beyond the
//! limit.

use super::RejectReason;
use super::rejects::Rejects;
use config::Limits;

/// Counts the readings of a payload, and the elements beyond the limit.
#[derive(Debug)]
pub(super) struct Quota {
    max: usize,
    taken: usize,
    beyond: usize,
    beyond_from: usize,
}

impl Quota {
    pub(super) fn new(limits: &Limits) -> Quota {
        Quota {
            max: limits.batch_max_readings,
            taken: 0,
            beyond: 0,
            beyond_from: 0,
        }
    }

    /// Whether the element at `index` is beyond the limit; if so, counts it.
    pub(super) fn refuses(&mut self, index: usize) -> bool {
        let refuses = self.is_used_up();
        if refuses {
            self.refuse(index);
        }
        refuses
    }

    /// Whether the limit is reached.
    pub(super) fn is_used_up(&self) -> bool {
        self.taken >= self.max
    }

    /// Counts the element at `index` as beyond the limit.
    pub(super) fn refuse(&mut self, index: usize) {
        if self.beyond == 0 {
            self.beyond_from = index;
        }
        self.beyond += 1;
    }

    /// Counts an element that became a reading.
    pub(super) fn took(&mut self) {
        self.taken += 1;
    }

    /// The number of elements beyond the limit.
    pub(super) fn beyond(&self) -> usize {
        self.beyond
    }

    /// Rejects all elements beyond the limit with one entry. `detail` formats its text from their
    /// number, the index of the first, and the limit.
    pub(super) fn close_with(
        &self,
        rejects: &mut Rejects,
        detail: impl FnOnce(usize, usize, usize) -> String,
    ) {
        if self.beyond > 0 {
            let detail = detail(self.beyond, self.beyond_from, self.max);
            rejects.push_many(
                self.beyond_from,
                self.beyond,
                RejectReason::TooManyReadings,
                detail,
            );
        }
    }

    /// The same with the usual text; `what` names the elements.
    pub(super) fn close(&self, what: &str, rejects: &mut Rejects) {
        self.close_with(rejects, |n, _, max| {
            format!("{n} {what}, starting with this one, exceed the limit of {max} in one payload")
        });
    }
}
