//! Random histories with crashes at any call of the file system: acknowledged entries are returned,
//! once and in order.

use proptest::prelude::*;
use testkit::memory_fs::{Crash, Fault};

use super::support::World;

#[derive(Debug, Clone)]
enum Step {
    Append(Vec<(usize, bool)>),
    Take(usize),
    Store(Vec<usize>),
    Tick(u64),
    /// The wall clock is set ahead or back.
    Clock(i64),
    Finish,
    Crash(Option<u64>),
    /// The machine stops at this call of the file system, of any kind.
    CrashIn(u64, u64),
}

fn ingest_batches() -> impl Strategy<Value = Vec<(usize, bool)>> {
    let readings = prop_oneof![4 => 0..4usize, 3 => 5..20usize, 1 => 100..300usize];
    prop::collection::vec((readings, prop::bool::weighted(0.2)), 1..5)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => ingest_batches().prop_map(Step::Append),
        4 => (1..12usize).prop_map(Step::Take),
        4 => prop::collection::vec(0..64usize, 1..12).prop_map(Step::Store),
        3 => (0..1500u64).prop_map(Step::Tick),
        1 => prop_oneof![-2000..2000i64, -4_000_000..4_000_000i64].prop_map(Step::Clock),
        1 => Just(Step::Finish),
        1 => prop::option::weighted(0.8, any::<u64>()).prop_map(Step::Crash),
        3 => (0..14u64, any::<u64>()).prop_map(|(at, seed)| Step::CrashIn(at, seed)),
    ]
}

/// Starts again, and once more if the machine stops during the start.
fn restart(world: &mut World, seed: u64) {
    if world.try_open().is_ok() && !world.fs.frozen() {
        return world.verify_replay();
    }
    assert!(world.fs.frozen(), "refused to start");
    world.crash(Crash::Random(seed));
    world.open();
}

fn run(max_bytes: u64, received: bool, steps: &[Step]) {
    let mut world = World::new(8192, max_bytes, 2000);
    world.received = received;
    world.open();
    let mut seed = 0;
    for step in steps {
        match step {
            Step::Append(ingest_batches) => world.append(ingest_batches),
            Step::Take(n) => world.take(*n),
            Step::Store(which) => which.iter().for_each(|&i| world.store(i)),
            Step::Tick(ms) => {
                world.clock.advance(*ms);
                world.tick();
            }
            Step::Clock(ms) => world.clock.step(*ms),
            Step::Finish => {
                world.finish();
                if !world.fs.frozen() {
                    restart(&mut world, seed);
                }
            }
            Step::Crash(seed) => {
                world.crash(seed.map_or(Crash::LoseAll, Crash::Random));
                world.open();
            }
            Step::CrashIn(at, with) => {
                seed = *with;
                world.fs.fail(None, *at, 1, Fault::Freeze);
            }
        }
        if world.fs.frozen() {
            world.crash(if seed % 5 == 0 {
                Crash::LoseAll
            } else {
                Crash::Random(seed)
            });
            // The start may be interrupted as well.
            world.fs.fail(None, seed % 9, 1, Fault::Freeze);
            restart(&mut world, seed ^ 1);
            world.fs.heal();
        }
    }
    world.crash(Crash::Random(7));
    world.open();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_entries_are_returned_after_any_crash(
        max_bytes in prop_oneof![Just(64 << 10), Just(1 << 20)],
        received in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(max_bytes, received, &steps);
    }
}

/// `JOURNAL_CASES` for a long run.
fn cases() -> u32 {
    std::env::var("JOURNAL_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(400)
}
