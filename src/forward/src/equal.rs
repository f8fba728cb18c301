//! Numbers equal readings that have the time of their receipt. Pure.
//!
//! Two such readings of a sensor in one millisecond are two readings, and the centre must store both,
//! once each. So each one says how many came before it. After a restart the journal replays every
//! entry that may hold an equal reading of one that is not acknowledged (`journal::tracker`), in the
//! same order, and so each gets the same number again. One that is acknowledged may get a lower one
//! then; the centre has it and recognises it by that number too.

use std::collections::HashMap;

use model::ReadingKey;

/// Equal readings are journaled within this time (ms): see `journal::tracker`.
pub(super) const MOMENT_MS: u64 = 5000;
/// Readings that a generation remembers. Only a site with more than 200,000 readings a second
/// without times has more in a moment.
const KEPT_MAX: usize = 1 << 20;

type Counts = HashMap<(u64, ReadingKey), u32>;

/// How often each recent reading was seen.
#[derive(Debug, Default)]
pub struct EqualReadings {
    counts: Counts,
    /// Those of the moment before.
    before: Counts,
    /// When the first of `counts` was journaled (ms since 1970).
    since_ms: i64,
}

impl EqualReadings {
    /// The number of equal readings before this one. `wall_ms`: when it was journaled; `hash`: that of
    /// its sensor.
    pub fn number(&mut self, wall_ms: i64, hash: u64, key: ReadingKey) -> u32 {
        let is_later = wall_ms.abs_diff(self.since_ms) > MOMENT_MS;
        if is_later || self.counts.len() >= KEPT_MAX {
            self.before = std::mem::take(&mut self.counts);
            self.since_ms = wall_ms;
        }
        let before = self.before.get(&(hash, key)).copied().unwrap_or_default();
        let count = self.counts.entry((hash, key)).or_insert(before);
        *count += 1;
        *count - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ValueRef;

    #[test]
    fn equal_readings_of_a_moment_are_numbered() {
        let key = |ts_ms, value| ReadingKey::new(ts_ms, [("n", ValueRef::Int(value))].into_iter());
        let mut equal = EqualReadings::default();
        let t = 1_000_000;
        assert_eq!(equal.number(t, 1, key(t, 5)), 0);
        assert_eq!(equal.number(t, 1, key(t, 5)), 1);
        assert_eq!(equal.number(t, 2, key(t, 5)), 0, "another sensor");
        assert_eq!(equal.number(t, 1, key(t, 6)), 0, "another value");
        assert_eq!(equal.number(t + 4999, 1, key(t, 5)), 2);
        assert_eq!(
            equal.number(t + 5001, 1, key(t, 5)),
            3,
            "the next generation"
        );
        assert_eq!(equal.number(t + 6000, 1, key(t, 5)), 4);
        assert_eq!(
            equal.number(t - 86_400_000, 1, key(t, 5)),
            5,
            "the clock was set"
        );
        assert_eq!(equal.number(t, 1, key(t + 1, 5)), 0);
        assert!(equal.counts.len() + equal.before.len() < 8);
    }
}
