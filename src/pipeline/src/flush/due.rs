//! When buckets are due. Pure.
//!
//! With `flush.max_age` every sensor has a phase, derived from its hash: its buckets are due when
//! the clock passes the phase. So a reading waits `max_age` at most, a sensor that sends
//! continuously is written once per `max_age`, and if a million sensors all start a new bucket at
//! the full hour, they are written evenly over `max_age`. The phases have the order of the turns
//! ([`super::turns`]), so that documents are created in the order in which they are changed later.
//! With a linger (the sender waits for the store) a bucket is due that long after its first
//! reading.
//!
//! A page that is written once, full, costs the server a third of the same page written in two
//! parts. So a due bucket that at its current rate fills its page before its first reading has
//! waited for `max_age` is held until then ([`DuePolicy::hold_until_ms`]). The phase of a fast
//! sensor has no effect; its pages are written when they are full.
//!
//! While the store is busy, readings may get older than `max_age` ([`super::age`]). Then a bucket
//! is held for its page up to this age, but for at most [`FOR_PAGE_AGES`] times `max_age`. A due
//! bucket with few readings for what its page has then waits for its sensor's turn ([`super::turns`]), if
//! its first reading is not too old by then. A round takes as long as a reading may wait
//! ([`DuePolicy::round_ms`]), so only a bucket whose turn passed after its first reading came cannot
//! wait. If it has enough readings before its turn, it is due at its sensor's next phase.

use std::collections::BTreeMap;

use super::age::{FOR_PAGE_AGES, is_worthwhile};
use super::turns::scaled;

/// A bucket is due when its first reading has waited for `max_age`, or a little later if the shard
/// is busy. One that is this part of `max_age` late has failed or was loaded; it is not held again.
const LATE_PART: u64 = 4;
/// Writes that have been queued for this part of `max_age`, or for this long, may use several
/// commands at a time.
const BEHIND_PART: u64 = 16;
const BEHIND_MAX_MS: u64 = 1000;

/// A due bucket, as far as it decides whether the bucket is held.
#[derive(Debug, Clone, Copy)]
pub struct DueBucket {
    /// When its first pending reading arrived (monotonic ms).
    pub since_ms: u64,
    /// Pending readings.
    pub readings: usize,
    /// Readings stored in its page, which a write rewrites.
    pub stored: usize,
    /// Readings that its page has room for.
    pub room: usize,
}

/// How due times are determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuePolicy {
    /// At the sensor's phase, at most this many milliseconds after the first reading.
    Age(u64),
    /// This many milliseconds after the first reading.
    Linger(u64),
}

impl DuePolicy {
    /// When a bucket of the sensor with this hash is due, if its first reading arrives now
    /// (monotonic ms).
    pub fn due_ms(self, now_ms: u64, sensor_hash: u64) -> u64 {
        match self {
            DuePolicy::Linger(ms) => now_ms + ms,
            DuePolicy::Age(max_age) => {
                let max_age = max_age.max(1);
                let phase = scaled(sensor_hash, max_age);
                let passed = (now_ms + max_age - phase) % max_age;
                now_ms + max_age - passed
            }
        }
    }

    /// Until when a due bucket may wait for its page to become full; `None`: write it now. `age_ms`:
    /// how old a reading may get now; `max_age` if that is more.
    pub fn hold_until_ms(self, bucket: DueBucket, now_ms: u64, age_ms: u64) -> Option<u64> {
        let DuePolicy::Age(max_age) = self else {
            return None;
        };
        let hold_ms = age_ms.clamp(max_age, max_age * FOR_PAGE_AGES);
        // Rounded like the wheel: a bucket that is put back must not be due again immediately.
        let limit_ms = (bucket.since_ms + hold_ms) / self.grain_ms() * self.grain_ms();
        let waited_ms = now_ms.saturating_sub(bucket.since_ms).max(1);
        // A write that fills a page also seals it, so it is sent when the first reading of the next
        // page has arrived.
        let readings = (bucket.readings as u64).max(1);
        let fills_ms = waited_ms.saturating_mul(bucket.room as u64 + 1) / readings;
        (now_ms < limit_ms && fills_ms <= hold_ms).then_some(limit_ms)
    }

    /// Whether a page that becomes full now, with a first reading that came at `since_ms`, was held
    /// for longer than `max_age`: without a stretched age it would have been written in two parts.
    pub fn fills_late(self, now_ms: u64, since_ms: u64) -> bool {
        match self {
            DuePolicy::Age(max_age) => now_ms.saturating_sub(since_ms) > max_age,
            DuePolicy::Linger(_) => false,
        }
    }

    /// Whether a due bucket waits for its sensor's turn, which comes after `turn_ms`. `age_ms`: how
    /// old a reading may get now.
    pub fn waits_for_turn(self, bucket: DueBucket, now_ms: u64, age_ms: u64, turn_ms: u64) -> bool {
        let DuePolicy::Age(max_age) = self else {
            return false;
        };
        let until_due_ms = max_age + max_age / LATE_PART;
        let waited_ms = now_ms.saturating_sub(bucket.since_ms);
        age_ms >= until_due_ms + max_age
            && waited_ms <= until_due_ms
            && waited_ms + turn_ms <= age_ms
            && !is_worthwhile(bucket.stored, bucket.readings)
    }

    /// How long a round of turns takes while readings may be this old.
    pub fn round_ms(self, age_ms: u64) -> u64 {
        match self {
            DuePolicy::Age(max_age) => age_ms.max(max_age),
            DuePolicy::Linger(_) => 0,
        }
    }

    /// How long writes may be queued before the store counts as not keeping up with one command
    /// after the other.
    pub(crate) fn behind_after_ms(self) -> u64 {
        match self {
            DuePolicy::Age(ms) => (ms / BEHIND_PART).min(BEHIND_MAX_MS),
            // The sender waits.
            DuePolicy::Linger(_) => 0,
        }
    }

    /// The resolution of due times: the wheel has about 64 slots.
    pub(crate) fn grain_ms(self) -> u64 {
        match self {
            DuePolicy::Age(ms) => (ms / 64).max(1),
            DuePolicy::Linger(_) => 1,
        }
    }
}

/// Items by due time, in slots of `grain_ms`.
#[derive(Debug)]
pub struct DueWheel<T> {
    slots: BTreeMap<u64, Vec<T>>,
    grain_ms: u64,
}

impl<T> DueWheel<T> {
    /// An empty wheel with slots of `grain_ms`.
    pub fn new(grain_ms: u64) -> DueWheel<T> {
        DueWheel {
            slots: BTreeMap::new(),
            grain_ms: grain_ms.max(1),
        }
    }

    /// Adds an item; it is returned at `due_ms`, rounded down to its slot.
    pub fn push(&mut self, due_ms: u64, item: T) {
        self.slots
            .entry(self.slot_ms(due_ms))
            .or_default()
            .push(item);
    }

    /// When an item with this due time is returned.
    pub(crate) fn slot_ms(&self, due_ms: u64) -> u64 {
        due_ms / self.grain_ms * self.grain_ms
    }

    /// The earliest slot that is due, in the order in which its items were added.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<Vec<T>> {
        let first = self.slots.first_entry()?;
        (*first.key() <= now_ms).then(|| first.remove())
    }

    /// The earliest slot, due or not, and when it is due.
    pub(crate) fn pop_first(&mut self) -> Option<(u64, Vec<T>)> {
        self.slots.pop_first()
    }

    /// When the earliest slot is due.
    pub fn next_ms(&self) -> Option<u64> {
        self.slots.first_key_value().map(|(ms, _)| *ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_evenly_and_never_longer_than_the_limit() {
        let policy = DuePolicy::Age(15_000);
        let mut slots = [0u32; 15];
        for i in 0..15_000u64 {
            let due = policy.due_ms(3_600_000, i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            assert!((3_600_001..=3_615_000).contains(&due));
            slots[((due - 3_600_001) / 1000) as usize] += 1;
        }
        assert!(
            slots.iter().all(|n| (800..1200).contains(n)),
            "a burst: {slots:?}"
        );
    }

    #[test]
    fn a_steady_sensor_is_due_once_every_age() {
        let policy = DuePolicy::Age(1000);
        let first = policy.due_ms(5, 77);
        assert_eq!(policy.due_ms(first, 77), first + 1000);
        assert_eq!(policy.due_ms(first - 1, 77), first);
    }

    /// With its first reading at `since_ms`, and a page without stored readings.
    fn bucket(since_ms: u64, readings: usize, room: usize) -> DueBucket {
        DueBucket {
            since_ms,
            readings,
            stored: 0,
            room,
        }
    }

    #[test]
    fn a_bucket_that_fills_its_page_in_time_is_held_but_not_beyond_max_age() {
        let policy = DuePolicy::Age(15_000);
        // 70 a second fill a page of 1000 in 14.3 s, 60 a second do not.
        let fast = bucket(0, 700, 1000);
        assert_eq!(policy.hold_until_ms(fast, 10_000, 15_000), Some(14_976));
        let slow = bucket(0, 600, 1000);
        assert_eq!(policy.hold_until_ms(slow, 10_000, 0), None);
        assert_eq!(
            policy.hold_until_ms(bucket(0, 600, 800), 10_000, 0),
            Some(14_976),
            "the room that is left counts"
        );
        assert_eq!(
            policy.hold_until_ms(bucket(0, 999, 1000), 14_976, 15_000),
            None,
            "it has waited long enough"
        );
        assert_eq!(
            policy.hold_until_ms(bucket(7, 1, 1000), 7, 0),
            Some(14_976),
            "with no time passed it looks like a burst"
        );
        assert_eq!(
            DuePolicy::Linger(15_000).hold_until_ms(fast, 10_000, 15_000),
            None,
            "the sender waits"
        );
    }

    #[test]
    fn while_the_store_is_busy_it_is_held_up_to_the_age_or_twice_max_age() {
        let policy = DuePolicy::Age(15_000);
        let hold = |rows, age_ms| policy.hold_until_ms(bucket(0, rows, 1000), 10_000, age_ms);
        // 60 a second fill a page of 1000 in 16.7 s.
        assert_eq!(hold(600, 16_000), None);
        assert_eq!(hold(600, 17_000), Some(16_848));
        assert_eq!(hold(400, 25_000), None, "40 a second need 25,025 ms");
        assert_eq!(hold(400, 26_000), Some(25_974));
        assert_eq!(hold(334, 360_000), Some(29_952));
        assert_eq!(hold(333, 360_000), None, "more than twice max_age");
        assert_eq!(
            policy.hold_until_ms(bucket(0, 999, 1000), 29_952, 360_000),
            None,
            "it has waited long enough"
        );
        assert!(!policy.fills_late(15_000, 0) && policy.fills_late(15_001, 0));
        assert!(!DuePolicy::Linger(5).fills_late(15_000, 0));
    }

    #[test]
    fn a_bucket_with_few_readings_waits_for_its_turn_and_no_reading_gets_older_than_the_age() {
        let policy = DuePolicy::Age(16_000);
        assert_eq!(
            [0, 36_000, 300_000].map(|age_ms| policy.round_ms(age_ms)),
            [16_000, 36_000, 300_000]
        );
        // The first reading came 11 s ago.
        let few = bucket(5_000, 1, 1000);
        let waits = |stored, readings, age_ms, turn_ms| {
            let bucket = DueBucket {
                stored,
                readings,
                ..few
            };
            policy.waits_for_turn(bucket, 16_000, age_ms, turn_ms)
        };
        assert!(waits(0, 1, 300_000, 289_000));
        assert!(
            !waits(0, 1, 300_000, 289_001),
            "at its turn it would be older"
        );
        assert!(
            !waits(0, 1, 35_999, 0),
            "the age is not much longer than usual"
        );
        assert!(!waits(0, 30, 300_000, 0), "it has enough readings");
        assert!(waits(500, 30, 300_000, 0), "not for a page of 500");
        assert!(policy.waits_for_turn(few, 25_000, 300_000, 280_000));
        assert!(
            !policy.waits_for_turn(few, 25_001, 300_000, 0),
            "it has waited for something else"
        );
        assert!(
            !DuePolicy::Linger(5).waits_for_turn(few, 16_000, 300_000, 0),
            "the sender waits"
        );
    }

    #[test]
    fn the_wheel_gives_slots_in_order_and_nothing_early() {
        let mut wheel = DueWheel::new(10);
        wheel.push(25, "b");
        wheel.push(11, "a");
        wheel.push(29, "c");
        assert_eq!(wheel.pop_due(9), None);
        assert_eq!(wheel.pop_due(10), Some(vec!["a"]));
        assert_eq!(wheel.next_ms(), Some(20));
        assert_eq!(wheel.pop_first(), Some((20, vec!["b", "c"])));
        assert_eq!(wheel.pop_first(), None);
    }
}
