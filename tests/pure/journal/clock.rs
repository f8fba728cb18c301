//! A wall clock that is set ahead or back: what is stored is used again as soon as ever, what may hold a twin comes back,
//! and ages are those of the monotonic clock.

use hourbucket::admission::AdmissionError;
use hourbucket::journal::fs::memory::Crash;

use super::support::{MOMENT_MS, World};

const HOUR_MS: i64 = 3_600_000;

/// Stores everything that was given out, but for so many of the last.
fn store_but(world: &mut World, kept: usize) {
    world.take(usize::from(u16::MAX));
    while world.held.len() > kept {
        let (key, ack) = world.held.remove(0);
        world.due.remove(&key);
        ack.delivered();
    }
}

#[test]
fn segments_are_used_again_whatever_the_wall_clock_does() {
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
        assert!(world.stats().segments <= 2, "{step}: {} of {full} segments are kept", world.stats().segments);
        // And so it goes on, with what is not stored always of the time before the last step.
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
fn what_may_hold_a_twin_comes_back_after_a_step_and_after_two_crashes() {
    for step in [0, HOUR_MS, -HOUR_MS, -700] {
        let mut world = World::new(8192, 1 << 20, 1 << 20);
        world.received = true;
        world.open();
        (0..10).for_each(|_| world.append(&[(1, false)]));
        // Two twins, in chunks of their own; between them the clock steps away, and back to where it was.
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
            // `open` holds what comes back against the rule.
            world.crash(crash);
            world.open();
            assert!(world.held.len() >= 2, "the twin that was stored, and the one that was not");
            store_but(&mut world, 1);
            world.clock.advance(2 * MOMENT_MS);
            world.tick();
        }
    }
}

#[test]
fn for_want_of_room_one_segment_after_the_other_is_given_up_whatever_is_unstored_behind_it() {
    let mut world = World::new(8192, 12 * 8192, 1 << 20);
    world.received = true;
    world.open();
    while world.admission_control.check().is_ok() {
        world.append(&[(60, false)]);
    }
    assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
    let full = world.stats().segments;
    // All is of one moment, and the last is not stored.
    world.clock.step(-HOUR_MS);
    store_but(&mut world, 1);
    assert_eq!(world.stats().segments, full, "the moment of what is stored has not passed");
    world.tick();
    assert_eq!(world.admission_control.check(), Ok(()));
    assert_eq!(world.stats().segments, full - 1, "one is enough");
    for _ in 0..40 {
        world.append(&[(60, false)]);
        assert_eq!(world.admission_control.check(), Ok(()));
        store_but(&mut world, 1);
    }
    assert!(world.stats().segments >= full - 2, "no more are given up than are needed: {}", world.stats().segments);
    world.crash(Crash::LoseAll);
    world.open();
}

#[test]
fn the_age_of_the_oldest_unstored_entry_is_that_of_the_monotonic_clock() {
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
    assert_eq!((age(&world), world.stats().oldest_unstored_ms), (Some(30_000), at));
    // Of an earlier process: since the start, and what the wall clock says that it was before.
    world.crash(Crash::KeepAll);
    world.open();
    assert_eq!(age(&world), Some(30_000 + 2 * HOUR_MS as u64), "the wall clock was not set back since it was appended");
    world.clock.step(-HOUR_MS);
    world.clock.advance(500);
    assert_eq!(age(&world), Some(30_500 + 2 * HOUR_MS as u64), "no step changes it");
    world.crash(Crash::KeepAll);
    world.clock.step(-5 * HOUR_MS);
    world.open();
    world.clock.advance(700);
    assert_eq!(age(&world), Some(700), "never less than since the start");
}
