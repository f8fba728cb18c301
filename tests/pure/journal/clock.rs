//! A wall clock that is set ahead or back: segments are recycled as early as with a correct clock,
//! entries that may hold an equal reading are replayed, and ages are measured by the monotonic
//! clock.

use journal::admission::AdmissionError;
use testkit::memory_fs::Crash;

use super::support::{MOMENT_MS, World};

const HOUR_MS: i64 = 3_600_000;

/// Stores everything that was handed out, except for the last entries.
fn store_but(world: &mut World, kept: usize) {
    world.take(usize::from(u16::MAX));
    while world.held.len() > kept {
        let (key, ack) = world.held.remove(0);
        world.due.remove(&key);
        ack.delivered();
    }
}

#[test]
fn segments_are_recycled_under_any_wall_clock() {
    for step in [0, -HOUR_MS, HOUR_MS, -1000, i64::from(i32::MIN) * 1000] {
        let mut world = World::new(8192, 1 << 20, 1 << 20);
        world.received = true;
        world.open();
        (0..40).for_each(|_| world.append(&[(40, false)]));
        store_but(&mut world, 0);
        let full = world.stats().segments;
        assert!(full > 5, "{full}");
        world.clock.advance(MOMENT_MS + 1);
        world.clock.step(step);
        world.append(&[(1, false)]);
        store_but(&mut world, 1);
        world.tick();
        assert!(
            world.stats().segments <= 2,
            "{step}: {} of {full} segments are kept",
            world.stats().segments
        );
        // The same continues while the unstored entries are always from before the last step.
        for i in 0..30 {
            world.clock.step(if i % 2 == 0 { -step } else { step });
            world.append(&[(40, false), (40, false)]);
            world.clock.advance(MOMENT_MS / 10);
            store_but(&mut world, 1);
            world.tick();
            let kept = world.stats().segments;
            assert!(kept <= 20, "{step}: {kept} segments are kept");
        }
        world.crash(Crash::LoseAll);
        world.open();
    }
}

#[test]
fn entries_that_may_hold_an_equal_reading_are_replayed_after_a_step_and_two_crashes() {
    for step in [0, HOUR_MS, -HOUR_MS, -700] {
        let mut world = World::new(8192, 1 << 20, 1 << 20);
        world.received = true;
        world.open();
        (0..10).for_each(|_| world.append(&[(1, false)]));
        // Two equal readings in separate chunks; between them the clock steps away, and back again.
        world.append(&[(1, false)]);
        world.clock.step(step);
        world.clock.advance(600);
        world.append(&[(1, false)]);
        world.clock.step(-step - 600);
        world.append(&[(1, false)]);
        store_but(&mut world, 1);
        world.clock.advance(1000);
        world.tick();
        for crash in [Crash::KeepAll, Crash::LoseAll] {
            // `open` compares the replayed entries with the rule.
            world.crash(crash);
            world.open();
            assert!(
                world.held.len() >= 2,
                "the stored reading, and the equal unstored one"
            );
            store_but(&mut world, 1);
            world.clock.advance(2 * MOMENT_MS);
            world.tick();
        }
    }
}

#[test]
fn without_space_segments_are_given_up_one_by_one() {
    let mut world = World::new(8192, 12 * 8192, 1 << 20);
    world.received = true;
    world.open();
    while world.admission_control.check().is_ok() {
        world.append(&[(60, false)]);
    }
    assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
    let full = world.stats().segments;
    // All entries are within one window, and the last is not stored.
    world.clock.step(-HOUR_MS);
    store_but(&mut world, 1);
    assert_eq!(
        world.stats().segments,
        full,
        "an equal reading may still arrive"
    );
    world.tick();
    assert_eq!(world.admission_control.check(), Ok(()));
    assert_eq!(world.stats().segments, full - 1, "one is enough");
    for _ in 0..40 {
        world.append(&[(60, false)]);
        assert_eq!(world.admission_control.check(), Ok(()));
        store_but(&mut world, 1);
    }
    assert!(
        world.stats().segments >= full - 2,
        "no more segments are given up than necessary: {}",
        world.stats().segments
    );
    world.crash(Crash::LoseAll);
    world.open();
}

#[test]
fn the_age_of_the_oldest_unstored_entry_follows_the_monotonic_clock() {
    let mut world = World::new(8192, 1 << 20, 1 << 20);
    world.open();
    let age = |world: &World| world.stats().oldest_unstored_age_ms;
    assert_eq!(age(&world), None);
    world.append(&[(1, false)]);
    let at = world.stats().oldest_unstored_ms;
    for step in [0, -HOUR_MS, 3 * HOUR_MS] {
        world.clock.step(step);
        world.clock.advance(10_000);
        world.append(&[(1, false)]);
    }
    assert_eq!(
        (age(&world), world.stats().oldest_unstored_ms),
        (Some(30_000), at)
    );
    // Entries of an earlier process: their age is the time since the start, plus the time before it
    // according to the wall clock.
    world.crash(Crash::KeepAll);
    world.open();
    assert_eq!(
        age(&world),
        Some(30_000 + 2 * HOUR_MS as u64),
        "the wall clock was not set back since it was appended"
    );
    world.clock.step(-HOUR_MS);
    world.clock.advance(500);
    assert_eq!(
        age(&world),
        Some(30_500 + 2 * HOUR_MS as u64),
        "no step changes it"
    );
    world.crash(Crash::KeepAll);
    world.clock.step(-5 * HOUR_MS);
    world.open();
    world.clock.advance(700);
    assert_eq!(age(&world), Some(700), "never less than since the start");
}
