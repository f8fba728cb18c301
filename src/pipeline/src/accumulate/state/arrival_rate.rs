//! How many readings of a sensor arrive per minute, in twelve bytes. Pure.
//!
//! A count that decays with a time constant of two minutes, divided by what it would be for one
//! reading per minute since the first arrival. So it is right from the first minute on, and a
//! backfill that has ended is gone within minutes, whatever the times of its readings are.

/// The time constant.
const DECAY_S: f32 = 120.0;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ArrivalRate {
    /// Arrivals, decayed to `at_s`.
    count: f32,
    /// On the monotonic clock, in seconds.
    at_s: u32,
    /// The first arrival; 0 with a count of 0: none.
    since_s: u32,
}

impl ArrivalRate {
    /// Records a reading that arrives now.
    pub(super) fn note(&mut self, now_ms: u64) {
        let now_s = (now_ms / 1000) as u32;
        if self.count == 0.0 {
            self.since_s = now_s;
        }
        if now_s > self.at_s {
            self.count *= decay(now_s - self.at_s);
            self.at_s = now_s;
        }
        self.count += 1.0;
    }

    /// Readings per minute as of now.
    pub(super) fn per_minute(self, now_ms: u64) -> f64 {
        let now_s = (now_ms / 1000) as u32;
        let count = self.count * decay(now_s.saturating_sub(self.at_s));
        // Below one reading in ten minutes nothing arrives any more. The first minute counts in
        // full.
        let age_s = now_s.saturating_sub(self.since_s).max(60);
        let rate = f64::from(count / (DECAY_S * (1.0 - decay(age_s))) * 60.0);
        if rate < 0.05 { 0.0 } else { rate }
    }
}

fn decay(seconds: u32) -> f32 {
    (-(seconds as f32) / DECAY_S).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_of_one_hertz_has_sixty_per_minute_from_the_first_minute_on() {
        let mut rate = ArrivalRate::default();
        for s in 1000..4600u64 {
            rate.note(s * 1000);
            if s >= 1060 {
                let shown = rate.per_minute(s * 1000);
                assert!((57.0..63.0).contains(&shown), "{shown} at {s}");
            }
        }
        assert!(rate.per_minute(4_600_000 + 60_000) < 40.0);
        assert_eq!(rate.per_minute(4_600_000 + 1_200_000), 0.0);
    }

    #[test]
    fn a_backfill_that_has_ended_is_soon_behind_a_sensor_that_reports() {
        let mut backfill = ArrivalRate::default();
        let mut steady = ArrivalRate::default();
        (0..100_000).for_each(|_| backfill.note(5000));
        (0..1800u64).for_each(|s| steady.note(s * 1000));
        assert!(backfill.per_minute(5000) > steady.per_minute(5000));
        assert!(backfill.per_minute(1_800_000) < steady.per_minute(1_800_000));
    }
}
