//! The hour, or whatever `bucket.span` says: the half-open interval `[start, start + span)` that one bucket covers.

/// The first instant of a bucket, in milliseconds since 1970 (UTC); negative before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketStart(pub i64);

/// How much time one bucket covers, in milliseconds; a divisor of a day between a minute and a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(i64);

/// Milliseconds in a day.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
const MINUTE_MS: i64 = 60 * 1000;

impl Span {
    /// One hour, the default.
    pub const HOUR: Span = Span(60 * 60 * 1000);

    /// A span of `ms` milliseconds; `None` unless it divides a day and lies between a minute and a day.
    pub fn from_ms(ms: i64) -> Option<Span> {
        ((MINUTE_MS..=DAY_MS).contains(&ms) && DAY_MS % ms == 0).then_some(Span(ms))
    }

    /// The span in milliseconds.
    pub fn ms(self) -> i64 {
        self.0
    }

    /// The bucket that `ts_ms` belongs to: rounded towards the past, before 1970 too.
    pub fn floor(self, ts_ms: i64) -> BucketStart {
        BucketStart(ts_ms.div_euclid(self.0) * self.0)
    }

    /// The end of a bucket, exclusive, in milliseconds since 1970.
    pub fn end(self, start: BucketStart) -> i64 {
        start.0 + self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_towards_the_past_on_both_sides_of_1970() {
        let hour = Span::HOUR.ms();
        for (ts, start) in
            [(0, 0), (1, 0), (hour - 1, 0), (hour, hour), (-1, -hour), (-hour, -hour), (-hour - 1, -2 * hour)]
        {
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
