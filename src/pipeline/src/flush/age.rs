//! How old readings may get before they are written: between `flush.max_age` and
//! `flush.max_age_busy`. Pure.
//!
//! A statement with one reading costs the store 65 to 130 µs; with ten readings, a sixth of that
//! per reading. An append to a page with 500 readings costs 1 to 2 ms, whether it adds one reading
//! or 15, because the store rewrites the page. While the store has capacity, freshness is worth
//! more than that. While it is busy with such statements, it is not: then readings are held, so
//! that a sensor's next readings can join them.
//!
//! The *demand* is the share of one core (or of whatever limits the store) that more readings per
//! statement could save at the present age:
//!
//! - how many buckets begin to wait per second. Each will need a statement. While the age grows,
//!   nothing is written for a while, but buckets still begin to wait, so the demand does not look
//!   lower than it is;
//! - times what a statement takes: the time of commands over their statements. The round trip is
//!   not part of it, since a distant store is not a busy one;
//! - times how much of that there is to gain ([`gain`]): nearly all of a statement of one reading,
//!   or of 15 readings for a long page; nearly nothing of one that writes a whole page.
//!
//! The age follows the demand: it grows above [`DEMAND`], shrinks below, and stays where the demand
//! is met. It moves in seconds per second, so that it needs no model of the sensors. Demand is
//! averaged over about one age, because that is how long a change of the age takes to show; a
//! faster controller would oscillate. Shrinking is limited to one second per second: then at most
//! twice the usual number of statements is due.
//!
//! Holding a page until it is full ([`super::due`]) saves its second statement altogether, and with
//! it the demand for that. So pages that became full later than `max_age` count as *saved* demand,
//! at most one statement each: up to the age that pages are held for, the age does not shrink while
//! both together exceed [`DEMAND`]. Without this, sensors of equal rates would have whole and
//! divided pages in turns.
//!
//! The memory has no part in this. A shard with little room evicts the buckets with the most
//! readings, whatever the age is. When growth stopped in a full memory, a million sensors, which
//! fill most of it, had statements of one reading.
//!
//! Only [`AgeControl::age_ms`] acts on buckets, see [`super::due`] and [`super::turns`]. Full
//! pages, memory pressure, failed buckets and the shutdown do not wait for it.
//! `tests/simulation/age.rs` runs the loop against a simulated store.

use model::PageWrite;

/// A page that takes longer than this many times `flush.max_age` to fill is not waited for. It is not
/// half full after `flush.max_age`, so the statement with its rest has many readings too.
pub(super) const FOR_PAGE_AGES: u64 = 2;
/// Demand that needs no stretched age.
const DEMAND: f64 = 0.2;
/// What a statement to an empty page costs besides its own readings, in readings: 65 µs and more,
/// and about 2 µs.
const STATEMENT_READINGS: usize = 30;
/// Readings that an append rewrites at most: half a page of the default size, or half of what a
/// bucket of a native time-series collection has at most.
const REWRITTEN_MAX: usize = 500;
/// The assumed time of a statement until it has been measured (seconds), and the limits of
/// plausible measurements.
const STATEMENT_S: f64 = 100e-6;
const STATEMENT_LIMITS_S: (f64, f64) = (20e-6, 0.05);
/// Seconds by which the age changes per second: for demand that is e times too high or low, and at
/// most.
const GAIN: f64 = 1.0;
const GROWTH_MAX: f64 = 2.0;
const SHRINK_MAX: f64 = 1.0;
/// The time of a statement and the gain are averaged over this time.
const AVERAGE_MS: f64 = 10_000.0;
/// The shortest time over which demand is averaged.
const DEMAND_MIN_MS: f64 = 5_000.0;

/// What happened since the last sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AgeSample {
    /// The time since then (ms).
    pub elapsed_ms: u64,
    /// Buckets that began to wait.
    pub began: u64,
    /// Pages that became full when their first reading had waited for longer than `flush.max_age`.
    pub filled_late: u64,
    /// Statements that the store has answered.
    pub statements: u64,
    /// The sum of their gains, see [`gain`].
    pub gains: f64,
    /// Statements whose command was large enough to measure.
    pub measured: u64,
    /// The time that these commands took, without the round trip (seconds).
    pub measured_s: f64,
}

impl AgeSample {
    /// Counts statements that the store has answered.
    pub fn count(&mut self, writes: &[PageWrite]) {
        self.statements += writes.len() as u64;
        self.gains += writes
            .iter()
            .map(|w| gain(w.count_before() as usize, w.rows.len()))
            .sum::<f64>();
    }
}

/// Which part of a statement's cost more readings would save: 1 (everything) to 0. It adds
/// `readings` to a page with `stored`, which the store rewrites.
pub fn gain(stored: usize, readings: usize) -> f64 {
    let overhead = overhead_readings(stored);
    overhead as f64 / (overhead + readings) as f64
}

/// Whether a statement with so many readings has little to gain from more. If a page is written
/// whenever it has grown by what it had, rewriting costs at most as much as writing.
pub fn is_worthwhile(stored: usize, readings: usize) -> bool {
    readings >= overhead_readings(stored)
}

/// What a statement costs besides its own readings, in readings.
fn overhead_readings(stored: usize) -> usize {
    STATEMENT_READINGS + stored.min(REWRITTEN_MAX)
}

/// The controller.
#[derive(Debug, Clone)]
pub struct AgeControl {
    min_ms: f64,
    max_ms: f64,
    age_ms: f64,
    /// Averages: buckets that begin to wait and pages that are filled late per second, seconds per
    /// statement, gain per statement.
    began: f64,
    filled_late: f64,
    statement_s: f64,
    gain: f64,
}

impl AgeControl {
    /// From `flush.max_age` and `flush.max_age_busy`; a lower `max_age_busy` has no effect.
    pub fn new(max_age_ms: u64, max_age_busy_ms: u64) -> AgeControl {
        let min_ms = max_age_ms as f64;
        let max_ms = max_age_busy_ms.max(max_age_ms) as f64;
        AgeControl {
            min_ms,
            max_ms,
            age_ms: min_ms,
            began: 0.0,
            filled_late: 0.0,
            statement_s: STATEMENT_S,
            gain: 1.0,
        }
    }

    /// Adds a sample, about once a second, and adjusts the age.
    pub fn observe(&mut self, sample: AgeSample) {
        let elapsed_ms = sample.elapsed_ms as f64;
        if elapsed_ms <= 0.0 {
            return;
        }
        let weight = |over_ms: f64| 1.0 - (-elapsed_ms / over_ms).exp();
        let toward =
            |average: &mut f64, value: f64, weight: f64| *average += (value - *average) * weight;
        let per_second = |count: u64| count as f64 * 1000.0 / elapsed_ms;
        let demand_weight = weight(self.age_ms.max(DEMAND_MIN_MS));
        toward(&mut self.began, per_second(sample.began), demand_weight);
        let filled_late = per_second(sample.filled_late);
        toward(&mut self.filled_late, filled_late, demand_weight);
        if sample.measured > 0 {
            let (min, max) = STATEMENT_LIMITS_S;
            let statement_s = (sample.measured_s / sample.measured as f64).clamp(min, max);
            toward(&mut self.statement_s, statement_s, weight(AVERAGE_MS));
        }
        if sample.statements > 0 {
            toward(
                &mut self.gain,
                sample.gains / sample.statements as f64,
                weight(AVERAGE_MS),
            );
        }
        let mut demand = self.demand();
        if demand < DEMAND && self.age_ms <= self.min_ms * FOR_PAGE_AGES as f64 {
            // What is saved keeps the age, but does not let it grow.
            demand = (demand + self.saved()).min(DEMAND);
        }
        let speed =
            (GAIN * (demand / DEMAND).max(f64::MIN_POSITIVE).ln()).clamp(-SHRINK_MAX, GROWTH_MAX);
        self.age_ms = (self.age_ms + speed * elapsed_ms).clamp(self.min_ms, self.max_ms);
    }

    /// See the module.
    fn demand(&self) -> f64 {
        self.began * self.statement_s * self.gain
    }

    /// What holding pages until they are full saves at the present age.
    fn saved(&self) -> f64 {
        self.filled_late * self.statement_s
    }

    /// How old a reading may get now (ms).
    pub fn age_ms(&self) -> u64 {
        self.age_ms as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_readings_save_little_once_they_are_as_many_as_the_page_has() {
        assert!(gain(0, 1) > 0.95);
        assert!(
            gain(500, 15) > 0.95,
            "the page is rewritten for 15 readings"
        );
        assert!(gain(0, 1000) < 0.05, "a whole page");
        for stored in [0, 1, 100, 500, 3_600] {
            let enough = (1..).find(|readings| is_worthwhile(stored, *readings));
            assert_eq!(enough, Some(30 + stored.min(500)));
            assert_eq!(gain(stored, 30 + stored.min(500)), 0.5);
        }
    }

    #[test]
    fn the_age_stays_within_its_bounds_whatever_is_observed() {
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..200 {
            let min_ms = rng.u64(1..60_000);
            let max_ms = rng.u64(1..600_000);
            let mut control = AgeControl::new(min_ms, max_ms);
            for _ in 0..200 {
                let before_ms = control.age_ms();
                let shift = rng.u32(24..64);
                let began = rng.u64(..) >> shift;
                let sample = AgeSample {
                    elapsed_ms: rng.u64(0..5_000),
                    began,
                    filled_late: rng.u64(0..=began),
                    statements: rng.u64(0..100_000),
                    gains: rng.f64() * 1e5,
                    measured: rng.u64(0..10),
                    measured_s: rng.f64() * 10.0,
                };
                control.observe(sample);
                let age_ms = control.age_ms();
                assert!((min_ms..=max_ms.max(min_ms)).contains(&age_ms));
                let change = age_ms as f64 - before_ms as f64;
                let limits = (-SHRINK_MAX - 0.01, GROWTH_MAX + 0.01);
                let elapsed = sample.elapsed_ms as f64;
                assert!(
                    change >= limits.0 * elapsed - 2.0 && change <= limits.1 * elapsed + 2.0,
                    "{change} in {elapsed}"
                );
            }
        }
    }
}
