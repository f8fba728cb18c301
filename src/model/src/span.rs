//! The span of a bucket (`bucket.span`, by default an hour): the half-open interval `[start,
//! start + span)`.

/// The start of a bucket, in milliseconds since 1970 (UTC); negative before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketStart(pub i64);

/// The duration of a bucket: a divisor of a day, between a minute and a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(i64);

/// The milliseconds of a day in UTC.
pub const DAY_MS: i64 = 24 * 60 * 60 * 1000;
const MINUTE_MS: i64 = 60 * 1000;

impl Span {
    /// One hour, the default.
    pub const HOUR: Span = Span(60 * 60 * 1000);

    /// A span of `ms` milliseconds; `None` unless it divides a day and is between a minute and a
    /// day.
    pub fn from_ms(ms: i64) -> Option<Span> {
        ((MINUTE_MS..=DAY_MS).contains(&ms) && DAY_MS % ms == 0).then_some(Span(ms))
    }

    /// The span in milliseconds.
    pub fn ms(self) -> i64 {
        self.0
    }

    /// The bucket of `ts_ms`. Rounds towards the past, also before 1970.
    #[inline]
    pub fn floor(self, ts_ms: i64) -> BucketStart {
        BucketStart(ts_ms.div_euclid(self.0) * self.0)
    }

    /// The end of a bucket, exclusive, in milliseconds since 1970.
    #[inline]
    pub fn end(self, start: BucketStart) -> i64 {
        start.0 + self.0
    }
}

/// The buckets that no other process can have written: those that start after `after` and not after
/// `through`.
///
/// The database has a high-water mark, and no process writes a bucket that starts after it. So if a
/// process raises the mark from `after` to `through`, the buckets in between do not exist yet. No
/// clock is involved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBuckets {
    after: BucketStart,
    through: BucketStart,
}

impl NewBuckets {
    /// No bucket at all.
    pub const NONE: NewBuckets = NewBuckets {
        after: BucketStart(i64::MAX),
        through: BucketStart(i64::MIN),
    };

    /// Whether no other process can have written this bucket.
    pub fn contains(self, start: BucketStart) -> bool {
        self.after < start && start <= self.through
    }

    /// The new buckets after the mark was raised from `before` to at least `through`. Earlier ones
    /// stay new if the mark had the value that this process set. Otherwise another process is
    /// writing, and only the buckets added by this call are new.
    #[must_use]
    pub fn raised(self, before: BucketStart, through: BucketStart) -> NewBuckets {
        let own = before == self.through && self.after < self.through;
        let after = if own {
            self.after
        } else {
            before.max(self.through)
        };
        NewBuckets {
            after,
            through: through.max(before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buckets_that_this_process_raised_the_mark_over_are_new() {
        let at = |hours: i64| BucketStart(hours * Span::HOUR.ms());
        let new = |of: NewBuckets| (0..10).filter(|h| of.contains(at(*h))).collect::<Vec<_>>();
        let first = NewBuckets::NONE.raised(at(2), at(4));
        assert_eq!(new(first), [3, 4]);
        assert_eq!(new(first.raised(at(4), at(5))), [3, 4, 5]);
        assert_eq!(
            new(first.raised(at(6), at(7))),
            [7],
            "another process raised it in between"
        );
        assert_eq!(
            new(first.raised(at(6), at(5))),
            [0i64; 0],
            "it was higher already"
        );
        assert_eq!(
            new(first.raised(at(1), at(6))),
            [5, 6],
            "a restored database has an older mark"
        );
        assert_eq!(new(NewBuckets::NONE.raised(at(9), at(4))), [0i64; 0]);
        let never = BucketStart(i64::MIN);
        assert_eq!(
            new(NewBuckets::NONE.raised(never, at(2))),
            [0, 1, 2],
            "a database without a bucket"
        );
    }

    #[test]
    fn floors_towards_the_past_on_both_sides_of_1970() {
        let hour = Span::HOUR.ms();
        for (ts, start) in [
            (0, 0),
            (1, 0),
            (hour - 1, 0),
            (hour, hour),
            (-1, -hour),
            (-hour, -hour),
            (-hour - 1, -2 * hour),
        ] {
            assert_eq!(Span::HOUR.floor(ts), BucketStart(start), "{ts}");
        }
    }

    #[test]
    fn takes_divisors_of_a_day_only() {
        for (ms, good) in [
            (60_000, true),
            (90_000, true),
            (DAY_MS, true),
            (59_999, false),
            (7 * 60_000, false),
            (DAY_MS * 2, false),
            (0, false),
            (-1, false),
        ] {
            assert_eq!(Span::from_ms(ms).is_some(), good, "{ms}");
        }
    }
}
