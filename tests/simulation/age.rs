//! The control loop of the flush age with a simulated store: steps of the load, a slow store, an
//! outage, sensors that start together. Each simulated sensor stands for a hundred, so its
//! statements take a hundred times as long.

use pipeline::flush::age::{AgeControl, AgeSample, gain, is_worthwhile};
use pipeline::flush::due::{DueBucket, DuePolicy, DueWheel};
use pipeline::flush::turns::Turns;

const MAX_AGE_MS: u64 = 15_000;
const BUSY_MS: u64 = 360_000;
const STEP_MS: u64 = 100;
const MINUTE_MS: u64 = 60_000;
/// 65 µs, times a hundred.
const COST_S: f64 = 65e-6 * 100.0;
/// What a statement takes for each reading that its page has afterwards: 3 µs, for ten sensors.
const REWRITING_S: f64 = 3e-6 * 10.0;
const PAGE: usize = 1000;

#[derive(Clone, Default)]
struct Sensor {
    next_ms: u64,
    /// Waiting readings, and since when.
    rows: usize,
    since_ms: u64,
    /// Readings of the stored page.
    stored: usize,
    queued: bool,
    at_its_turn: bool,
}

/// Sensors, the wheel with their due buckets, those that wait for their turn, the store with one
/// command at a time, and the controller.
struct Sim {
    now_ms: u64,
    sensors: Vec<Sensor>,
    interval_ms: u64,
    wheel: DueWheel<usize>,
    turns: Turns<usize>,
    queue: std::collections::VecDeque<usize>,
    /// Seconds of work that the store has not used yet.
    idle_s: f64,
    cost_s: f64,
    per_reading_s: f64,
    is_down: bool,
    control: AgeControl,
    sample: AgeSample,
    // Since the last call of `run`.
    readings: u64,
    statements: u64,
    busy_s: f64,
    waited_max_ms: u64,
    ages_ms: (u64, u64),
    per_second_max: u64,
    second: u64,
}

impl Sim {
    /// `sensors` with one reading per `interval_ms`, evenly spread over it or all at the same
    /// moment.
    fn new(sensors: usize, interval_ms: u64, together: bool) -> Sim {
        let next = |i: usize| {
            if together {
                0
            } else {
                i as u64 * interval_ms / sensors as u64
            }
        };
        Sim {
            now_ms: 0,
            sensors: (0..sensors)
                .map(|i| Sensor {
                    next_ms: next(i),
                    ..Sensor::default()
                })
                .collect(),
            interval_ms,
            wheel: DueWheel::new(MAX_AGE_MS / 64),
            turns: Turns::default(),
            queue: Default::default(),
            idle_s: 0.0,
            cost_s: COST_S,
            per_reading_s: 0.0,
            is_down: false,
            control: AgeControl::new(MAX_AGE_MS, BUSY_MS),
            sample: AgeSample::default(),
            readings: 0,
            statements: 0,
            busy_s: 0.0,
            waited_max_ms: 0,
            ages_ms: (0, 0),
            per_second_max: 0,
            second: 0,
        }
    }

    /// From now on the first `sensors` have one reading per `interval_ms`, evenly spread over it, and
    /// the others none.
    fn change(&mut self, sensors: usize, interval_ms: u64) {
        self.interval_ms = interval_ms;
        for (i, sensor) in self.sensors.iter_mut().enumerate().take(sensors) {
            sensor.next_ms = self.now_ms + i as u64 * interval_ms / sensors as u64;
        }
        self.silence_from(sensors);
    }

    /// From this sensor on they have no more readings.
    fn silence_from(&mut self, first: usize) {
        let silent = self.sensors.iter_mut().skip(first);
        silent.for_each(|sensor| sensor.next_ms = u64::MAX);
    }

    /// Resets the figures, and runs for `minutes`.
    fn run(&mut self, minutes: u64) -> &Sim {
        (
            self.readings,
            self.statements,
            self.waited_max_ms,
            self.per_second_max,
        ) = (0, 0, 0, 0);
        self.ages_ms = (u64::MAX, 0);
        self.busy_s = 0.0;
        let end_ms = self.now_ms + minutes * MINUTE_MS;
        while self.now_ms < end_ms {
            self.now_ms += STEP_MS;
            self.arrivals();
            self.due();
            self.store();
            if self.now_ms.is_multiple_of(1000) {
                self.control();
            }
        }
        self
    }

    fn arrivals(&mut self) {
        let policy = DuePolicy::Age(MAX_AGE_MS);
        for (i, sensor) in self.sensors.iter_mut().enumerate() {
            while sensor.next_ms <= self.now_ms {
                sensor.next_ms += self.interval_ms;
                self.readings += 1;
                sensor.rows += 1;
                if sensor.rows == 1 {
                    sensor.since_ms = self.now_ms;
                    self.sample.began += 1;
                }
                if sensor.stored + sensor.rows > PAGE {
                    sensor.at_its_turn = false;
                    if !std::mem::replace(&mut sensor.queued, true) {
                        let late = policy.fills_late(self.now_ms, sensor.since_ms);
                        self.sample.filled_late += u64::from(late);
                        self.queue.push_back(i);
                    }
                } else if sensor.rows == 1 && !sensor.queued
                    || is_worthwhile(sensor.stored, sensor.rows)
                        && std::mem::take(&mut sensor.at_its_turn)
                {
                    self.wheel.push(policy.due_ms(self.now_ms, hash(i)), i);
                }
            }
        }
    }

    fn due(&mut self) {
        let policy = DuePolicy::Age(MAX_AGE_MS);
        while let Some(due) = self.wheel.pop_due(self.now_ms) {
            for i in due {
                let sensor = &mut self.sensors[i];
                let age_ms = self.control.age_ms();
                let bucket = DueBucket {
                    since_ms: sensor.since_ms,
                    readings: sensor.rows,
                    stored: sensor.stored,
                    room: PAGE.saturating_sub(sensor.stored),
                };
                let for_page = |age_ms| policy.hold_until_ms(bucket, self.now_ms, age_ms);
                if sensor.queued || sensor.rows == 0 {
                    // Its page was full before it was due.
                } else if let Some(until_ms) = for_page(0) {
                    self.wheel.push(until_ms, i);
                } else if policy.waits_for_turn(
                    bucket,
                    self.now_ms,
                    age_ms,
                    self.turns.until_ms(hash(i), policy.round_ms(age_ms)),
                ) {
                    sensor.at_its_turn = true;
                    self.turns.push(hash(i), i);
                } else if let Some(until_ms) = for_page(age_ms) {
                    self.wheel.push(until_ms, i);
                } else {
                    sensor.queued = true;
                    self.queue.push_back(i);
                }
            }
        }
        for i in self
            .turns
            .advance(STEP_MS, policy.round_ms(self.control.age_ms()))
        {
            let sensor = &mut self.sensors[i];
            if std::mem::take(&mut sensor.at_its_turn) {
                sensor.queued = true;
                self.queue.push_back(i);
            }
        }
    }

    fn store(&mut self) {
        if self.is_down {
            return;
        }
        self.idle_s += STEP_MS as f64 / 1000.0;
        while let Some(&i) = self.queue.front() {
            let sensor = &mut self.sensors[i];
            let after = (sensor.stored + sensor.rows).min(PAGE);
            let cost_s = self.cost_s + self.per_reading_s * after as f64;
            if self.idle_s < cost_s {
                break;
            }
            self.queue.pop_front();
            self.idle_s -= cost_s;
            self.busy_s += cost_s;
            self.waited_max_ms = self.waited_max_ms.max(self.now_ms - sensor.since_ms);
            self.sample.gains += gain(sensor.stored, sensor.rows);
            self.sample.statements += 1;
            self.sample.measured += 1;
            self.sample.measured_s += cost_s;
            (sensor.rows, sensor.queued) = (0, false);
            sensor.stored = after % PAGE;
            self.statements += 1;
            self.second += 1;
        }
        // Idle time is not saved up.
        if self.queue.is_empty() {
            self.idle_s = self.idle_s.min(self.cost_s);
        }
    }

    fn control(&mut self) {
        self.per_second_max = self.per_second_max.max(std::mem::take(&mut self.second));
        let sample = std::mem::take(&mut self.sample);
        self.control.observe(AgeSample {
            elapsed_ms: 1000,
            ..sample
        });
        let age_ms = self.control.age_ms();
        self.ages_ms = (self.ages_ms.0.min(age_ms), self.ages_ms.1.max(age_ms));
    }

    /// Statements per reading.
    fn effort(&self) -> f64 {
        self.statements as f64 / self.readings as f64
    }

    /// What the store needs per reading.
    fn busy_ms(&self) -> f64 {
        self.busy_s * 1e3 / self.readings as f64
    }

    fn show(&self, what: &str) {
        println!(
            "{what}: minute {}, age {:?} s, {:.2} statements and {:.1} ms per reading, waited {} s, \
             queue {}, at most {} per second",
            self.now_ms / MINUTE_MS,
            (self.ages_ms.0 / 1000, self.ages_ms.1 / 1000),
            self.effort(),
            self.busy_ms(),
            self.waited_max_ms / 1000,
            self.queue.len(),
            self.per_second_max
        );
    }

    /// The oldest waiting reading (ms).
    fn oldest_ms(&self) -> u64 {
        self.sensors
            .iter()
            .filter(|s| s.rows > 0)
            .map(|s| self.now_ms - s.since_ms)
            .max()
            .unwrap_or(0)
    }
}

fn hash(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[test]
fn a_store_with_capacity_gets_fresh_readings() {
    // 1,700 statements a second: 0.11 of a core.
    let mut sim = Sim::new(1_000, MINUTE_MS, false);
    sim.run(20).show("capacity");
    assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS));
    assert!(
        sim.waited_max_ms <= MAX_AGE_MS + 1000,
        "{} ms",
        sim.waited_max_ms
    );
}

#[test]
fn a_million_sensors_with_a_reading_a_minute_share_their_statements() {
    let mut sim = Sim::new(10_000, MINUTE_MS, false);
    sim.run(5).show("million, begin");
    assert!(
        sim.effort() < 0.5,
        "{} statements per reading",
        sim.effort()
    );
    sim.run(15).show("million, settling");
    sim.run(18).show("million");
    // Six readings in six minutes, or five once that is enough.
    assert!(
        sim.effort() < 0.201,
        "{} statements per reading",
        sim.effort()
    );
    assert!(
        sim.waited_max_ms <= BUSY_MS + 1000,
        "{} ms",
        sim.waited_max_ms
    );
}

#[test]
fn the_age_settles() {
    // The demand is met at several ages between the bounds.
    for (sensors, interval_ms) in [(4_000, MINUTE_MS), (3_000, 30_000), (5_000, 100_000)] {
        for together in [false, true] {
            let mut sim = Sim::new(sensors, interval_ms, together);
            sim.run(25);
            sim.run(15).show("settled");
            let (min_ms, max_ms) = sim.ages_ms;
            assert!(
                max_ms as f64 / min_ms as f64 <= 1.5,
                "{sensors} at {interval_ms} ms: {min_ms} to {max_ms} ms"
            );
        }
    }
}

#[test]
fn steps_of_the_load_are_followed_in_both_directions() {
    let mut sim = Sim::new(10_000, 10 * MINUTE_MS, false);
    sim.run(20).show("step, low");
    assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS), "1,667 a second");
    // Ten times as many readings.
    sim.change(10_000, MINUTE_MS);
    sim.run(10).show("step, high");
    assert!(sim.control.age_ms() > 100_000, "{}", sim.control.age_ms());
    sim.change(10_000, 10 * MINUTE_MS);
    sim.run(20).show("step, back");
    sim.run(5).show("step, low again");
    assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS));
}

#[test]
fn nothing_that_is_held_is_due_in_a_burst_when_the_age_shrinks() {
    let mut sim = Sim::new(10_000, MINUTE_MS, false);
    sim.run(20);
    let usual = sim.run(10).per_second_max;
    // All sensors fall silent.
    sim.silence_from(0);
    sim.run(6).show("silence");
    assert!(
        sim.per_second_max <= 3 * usual.max(40),
        "{} after {usual}",
        sim.per_second_max
    );
    assert_eq!(sim.oldest_ms(), 0, "everything is stored");
}

#[test]
fn a_slow_store_gets_fewer_statements_until_it_is_fast_again() {
    let mut sim = Sim::new(1_000, MINUTE_MS, false);
    sim.run(5);
    // 17 statements a second of 0.2 s each cannot be done: the store does 5.
    sim.cost_s = 0.04;
    sim.run(15).show("slow");
    sim.run(10).show("slow, later");
    assert!(sim.control.age_ms() > 100_000, "{}", sim.control.age_ms());
    assert!(
        sim.queue.len() < 100,
        "{} due buckets wait",
        sim.queue.len()
    );
    sim.cost_s = COST_S;
    sim.run(12).show("fast again");
    sim.run(3);
    assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS));
}

#[test]
fn after_an_outage_the_backlog_is_stored_and_the_age_settles() {
    for (sensors, fresh) in [(1_000, true), (10_000, false)] {
        let mut sim = Sim::new(sensors, MINUTE_MS, false);
        sim.run(20).show("before");
        let before = sim.ages_ms;
        sim.is_down = true;
        sim.run(5).show("outage");
        sim.is_down = false;
        sim.run(5).show("recovery");
        assert!(
            sim.queue.len() < 100,
            "{} due buckets wait",
            sim.queue.len()
        );
        sim.run(20).show("after");
        assert!(
            !fresh || sim.ages_ms == (MAX_AGE_MS, MAX_AGE_MS),
            "{:?}",
            sim.ages_ms
        );
        assert!(
            sim.ages_ms.1 <= before.1 * 3 / 2,
            "{before:?} before, {:?} after",
            sim.ages_ms
        );
    }
}

/// Sensors that stand for ten each, and append to pages that the store rewrites.
fn with_long_pages(sensors: usize, interval_ms: u64, together: bool) -> Sim {
    let mut sim = Sim::new(sensors, interval_ms, together);
    (sim.cost_s, sim.per_reading_s) = (COST_S / 10.0, REWRITING_S);
    sim
}

#[test]
fn appends_to_long_pages_stretch_the_age_until_they_are_cheap() {
    // 10,000 sensors with a reading per second: at 15 s each statement adds 15 readings to a page
    // of 500, and the store would need 1.1 cores.
    for (together, same_pages) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut sim = with_long_pages(1_000, 1_000, together);
        for (i, sensor) in sim.sensors.iter_mut().enumerate() {
            sensor.stored = if same_pages { 0 } else { i };
        }
        sim.run(10).show("long pages, begin");
        sim.run(30).show("long pages, settling");
        sim.run(30).show("long pages");
        assert!(sim.busy_ms() < 0.3, "{} ms per reading", sim.busy_ms());
        // If all pages are equally long, the age follows their length.
        let (min_ms, max_ms) = sim.ages_ms;
        assert!(
            same_pages || max_ms as f64 / min_ms as f64 <= 1.5,
            "{min_ms} to {max_ms} ms"
        );
        assert!(
            sim.waited_max_ms <= max_ms + 15_000,
            "{} ms",
            sim.waited_max_ms
        );
        // A tenth of the sensors remain.
        sim.silence_from(100);
        sim.run(5);
        sim.run(5).show("long pages, a tenth");
        assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS));
    }
}

#[test]
fn whole_pages_do_not_stretch_the_age() {
    // 10,000 sensors with 80 readings per second fill a page in 12.5 s. The store is busy, but
    // larger statements would save nothing.
    let mut sim = with_long_pages(1_000, 12, false);
    sim.per_reading_s = 1e-6 * 10.0;
    sim.run(5).show("whole pages");
    assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS));
    assert!(sim.effort() < 0.0011, "{}", sim.effort());
}

#[test]
fn pages_that_fill_a_little_late_are_written_whole_while_the_store_is_busy() {
    // 10,000 sensors with 62.5 readings per second fill a page in 16 s. At 15 s it would be written
    // in two parts.
    for together in [false, true] {
        let mut sim = with_long_pages(1_000, 16, together);
        sim.per_reading_s = 1e-6 * 10.0;
        sim.run(2).show("late pages, begin");
        sim.run(10).show("late pages");
        assert!(sim.effort() < 0.00102, "{}", sim.effort());
        let (_, max_ms) = sim.ages_ms;
        assert!(max_ms <= 2 * MAX_AGE_MS, "{max_ms} ms");
        assert!(sim.waited_max_ms <= 17_000, "{} ms", sim.waited_max_ms);
        // With a tenth of the sensors the store has capacity.
        sim.silence_from(100);
        sim.run(2);
        sim.run(5).show("late pages, a tenth");
        assert_eq!(sim.ages_ms, (MAX_AGE_MS, MAX_AGE_MS));
        assert!(
            sim.waited_max_ms <= MAX_AGE_MS + 1000,
            "{} ms",
            sim.waited_max_ms
        );
    }
}

#[test]
fn the_age_of_a_sparse_fleet_is_not_kept_for_the_pages_of_others() {
    // Sensors with 62.5 readings per second beside 10,000 with one per minute, until these fall
    // silent.
    let mut sim = with_long_pages(2_000, MINUTE_MS, false);
    (sim.cost_s, sim.per_reading_s) = (COST_S, 1e-6 * 10.0);
    sim.run(15).show("sparse and late pages, the sparse ones");
    assert!(
        sim.control.age_ms() > 3 * MAX_AGE_MS,
        "{}",
        sim.control.age_ms()
    );
    sim.change(1_000, 16);
    sim.run(15).show("sparse and late pages, settling");
    sim.run(5).show("sparse and late pages");
    let (_, max_ms) = sim.ages_ms;
    assert!(max_ms <= 2 * MAX_AGE_MS, "{max_ms} ms");
    assert!(sim.effort() < 0.00102, "{}", sim.effort());
}
