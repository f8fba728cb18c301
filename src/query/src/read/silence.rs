//! Which sensors are silent: nothing of them has arrived for `sensors.silent_after`. Pure.
//!
//! The catalogue has the last arrivals, rounded down
//! ([`floor_arrival`](model::catalog::floor_arrival)), so a restart forgets nothing, and all
//! instances agree. Whether a sensor is silent is judged *as of* a time that excludes
//!
//! - readings that arrived and are not stored, so may not be in the catalogue: the age of the
//!   oldest unstored one;
//! - the time in which no instance was running: nothing could arrive. A sensor that was silent
//!   before is silent after it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use model::catalog::arrival_step_ms;
use store::catalog::CatalogCounts;

const UNKNOWN: i64 = i64::MIN;

/// The settings of `[sensors]`, and the last counts of the catalogue with their time.
#[derive(Debug)]
pub struct Silence {
    silent_after_ms: i64,
    retired_after_ms: i64,
    step_ms: i64,
    as_of_ms: AtomicI64,
    counts: Mutex<CatalogCounts>,
}

impl Silence {
    /// `sensors.silent_after` and `sensors.retired_after`. Which sensors are silent is unknown
    /// until [`Silence::judge`].
    pub fn new(silent_after: Duration, retired_after: Duration) -> Silence {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX / 4);
        Silence {
            silent_after_ms: ms(silent_after),
            retired_after_ms: ms(retired_after),
            step_ms: arrival_step_ms(silent_after),
            as_of_ms: AtomicI64::new(UNKNOWN),
            counts: Mutex::default(),
        }
    }

    /// `sensors.silent_after`, ms.
    pub(crate) fn silent_after_ms(&self) -> i64 {
        self.silent_after_ms
    }

    /// Sets as of when sensors are judged. `unstored_ms`: the age of the oldest unstored reading.
    pub fn judge(&self, now_ms: i64, unstored_ms: i64, pause: Pause) {
        let stored_ms = now_ms - unstored_ms;
        let since_ms = pause.since_ms.min(pause.until_ms);
        let is_over = now_ms >= pause.until_ms + self.silent_after_ms + self.step_ms;
        let as_of_ms = match stored_ms {
            _ if is_over => stored_ms,
            // Readings from before the pause are not stored yet.
            _ if stored_ms < pause.until_ms => stored_ms.min(since_ms),
            _ => stored_ms - (pause.until_ms - since_ms),
        };
        self.as_of_ms.store(as_of_ms, Ordering::Relaxed);
    }

    /// The range of the last arrivals of silent sensors (ms since 1970, end exclusive); `None`
    /// while it is unknown.
    pub fn arrivals_ms(&self) -> Option<(i64, i64)> {
        let as_of_ms = self.as_of_ms.load(Ordering::Relaxed);
        if as_of_ms == UNKNOWN {
            return None;
        }
        // The last arrival may be up to a step after the stored time.
        let silent_ms = self.silent_after_ms.saturating_add(self.step_ms);
        Some((
            as_of_ms.saturating_sub(self.retired_after_ms),
            as_of_ms.saturating_sub(silent_ms) + 1,
        ))
    }

    /// Keeps the catalogue's answer for [`Silence::arrivals_ms`].
    pub fn note(&self, counts: CatalogCounts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// The known and the silent sensors, as last counted.
    pub fn counts(&self) -> CatalogCounts {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How often the catalogue is read: a twentieth of `sensors.silent_after`, between a second and
    /// two minutes.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(
            (self.silent_after_ms / 20)
                .clamp(1000, 120_000)
                .unsigned_abs(),
        )
    }
}

/// The time before the start in which no instance was running, ms since 1970; empty if another
/// instance was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// When an instance was last known to run.
    pub since_ms: i64,
    /// The start of this one.
    pub until_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1000;

    /// With `silent_after` = 400 s and `retired_after` = 4000 s: silent from a stored arrival of
    /// this age on.
    fn silent(
        silence: &Silence,
        now_ms: i64,
        unstored_ms: i64,
        pause: Pause,
    ) -> std::ops::RangeInclusive<i64> {
        silence.judge(now_ms, unstored_ms, pause);
        let (from_ms, to_ms) = silence.arrivals_ms().unwrap();
        now_ms - to_ms + 1..=now_ms - from_ms
    }

    #[test]
    fn a_sensor_is_silent_when_no_arrival_within_the_precision_can_be_newer() {
        let silence = Silence::new(Duration::from_secs(400), Duration::from_secs(4000));
        assert_eq!(
            (silence.arrivals_ms(), silence.interval()),
            (None, Duration::from_secs(20)),
            "not looked at yet"
        );
        let none = Pause {
            since_ms: 0,
            until_ms: 0,
        };
        assert_eq!(silent(&silence, 1_000_000 * S, 0, none), 500 * S..=4000 * S);
        assert_eq!(
            silent(&silence, 1_000_000 * S, 30 * S, none),
            530 * S..=4030 * S,
            "what is not stored may have arrived"
        );
        assert_eq!(
            Silence::new(Duration::from_secs(365 * 86_400), Duration::MAX).interval(),
            Duration::from_secs(120)
        );
    }

    #[test]
    fn time_without_an_instance_does_not_make_a_sensor_silent() {
        let silence = Silence::new(Duration::from_secs(400), Duration::from_secs(4000));
        let pause = Pause {
            since_ms: 10_000 * S,
            until_ms: 13_000 * S,
        };
        // Its last arrival was just before the pause.
        let is_silent =
            |now_ms: i64| silent(&silence, now_ms, 0, pause).contains(&(now_ms - 10_000 * S));
        assert!(!is_silent(13_001 * S) && !is_silent(13_499 * S));
        assert!(is_silent(13_500 * S), "it has had as much time again");
        assert!(is_silent(13_501 * S) && is_silent(14_000 * S));
        // It was silent before.
        for now_ms in [13_001 * S, 13_400 * S, 13_500 * S] {
            assert!(
                silent(&silence, now_ms, 0, pause).contains(&(now_ms - 9_500 * S)),
                "{now_ms}"
            );
        }
        // Readings unstored before the pause are stored during the first seconds.
        assert!(
            silent(&silence, 13_001 * S, 3010 * S, pause).contains(&(13_001 * S - 9_400 * S)),
            "silent before"
        );
        assert!(
            !silent(&silence, 13_001 * S, 3010 * S, pause).contains(&(13_001 * S - 9_500 * S)),
            "not yet known"
        );
        // The clock was set back.
        let back = Pause {
            since_ms: 20_000 * S,
            until_ms: 13_000 * S,
        };
        assert_eq!(silent(&silence, 13_100 * S, 0, back), 500 * S..=4000 * S);
    }
}
