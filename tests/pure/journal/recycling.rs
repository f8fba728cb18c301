//! Recycled segment files: old bytes after the new frames are never read as entries after any
//! crash, and their space on the disk is counted.

use std::path::{Path, PathBuf};

use journal::admission::AdmissionError;
use journal::fs::Fs;
use journal::{JournalError, inspect, salvage};
use testkit::memory_fs::MemFs;
use testkit::memory_fs::{Crash, Fault, Op};

use super::support::{DIR, World, segment_paths};

const SEGMENT: u64 = 8192;
/// The flag in a header that marks a recycled file, see `journal::segment`.
const FLAGS_AT: usize = 36;

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn is_recycled(fs: &MemFs, path: &Path) -> bool {
    fs.read(path).unwrap()[FLAGS_AT] & 1 == 1
}

fn spares(fs: &MemFs) -> Vec<String> {
    let mut names = fs.list(dir()).unwrap();
    names.retain(|name| name.ends_with(".tmp"));
    names
}

/// Stores everything and lets the segment manager work.
fn store_all(world: &mut World) {
    world.take(usize::from(u16::MAX));
    while !world.held.is_empty() {
        world.store(0);
    }
    world.tick();
}

fn newest(world: &World) -> Option<PathBuf> {
    segment_paths(&world.fs, dir()).pop()
}

/// A journal whose newest segment is a recycled file with one group, and old frames after it.
fn recycled_tail() -> World {
    let mut world = World::new(SEGMENT, 128 << 10, 1 << 20);
    world.open();
    for _ in 0..200 {
        let before = newest(&world);
        world.append(&[(20, false)]);
        if newest(&world) != before && is_recycled(&world.fs, &newest(&world).unwrap()) {
            return world;
        }
        store_all(&mut world);
    }
    panic!("no segment was recycled");
}

#[test]
fn a_stored_segment_is_recycled_and_its_old_frames_are_never_returned() {
    for crash in [
        Crash::LoseAll,
        Crash::KeepAll,
        Crash::Random(1),
        Crash::Random(2),
    ] {
        let mut world = recycled_tail();
        let newest = newest(&world).unwrap();
        let bytes = world.fs.read(&newest).unwrap();
        assert_eq!(bytes.len() as u64, SEGMENT);
        let old = bytes[5500..].iter().filter(|&&b| b != 0).count();
        assert!(
            old > 500,
            "{old} bytes of old frames, so the test shows nothing"
        );
        world.crash(crash);
        let report = inspect(&world.fs, dir()).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        assert!(
            report.segments.iter().all(|s| !s.torn),
            "old frames are not a torn write: {:?}",
            report.segments
        );
        world.open();
        assert!(
            spares(&world.fs).is_empty(),
            "an unfinished segment is removed"
        );
        world.append(&[(20, false)]);
        world.crash(crash);
        world.open();
    }
}

#[test]
fn a_write_torn_over_old_frames_is_cut_off_and_damage_before_synced_ones_is_not() {
    for seed in 0..50 {
        let mut world = recycled_tail();
        world.append(&[(1, false)]);
        world.fs.fail(Some(Op::Write), 0, 1, Fault::Freeze);
        world.append(&[(3, false), (10, false), (5, true)]);
        world.crash(if seed == 0 {
            Crash::KeepAll
        } else {
            Crash::Random(seed)
        });
        if seed == 0 {
            let report = inspect(&world.fs, dir()).unwrap();
            assert!(
                report.segments.last().unwrap().torn,
                "the half that was written is seen"
            );
        }
        world.open();
    }
    let mut world = recycled_tail();
    world.append(&[(1, false)]);
    world.append(&[(1, false)]);
    let newest = newest(&world).unwrap();
    world.crash(Crash::KeepAll);
    let mut bytes = world.fs.read(&newest).unwrap();
    bytes[4096 + 50] ^= 1;
    world.fs.replace(&newest, bytes);
    assert!(matches!(world.try_open(), Err(JournalError::Damaged(_))));
    assert_eq!(inspect(&world.fs, dir()).unwrap().problems.len(), 1);
}

#[test]
fn every_step_of_recycling_may_be_the_last_one() {
    let calls = {
        let mut world = recycled_tail();
        let before = world.fs.ops().len();
        cycle(&mut world);
        let ops = world.fs.ops()[before..].to_vec();
        let count = |op| ops.iter().filter(|&&o| o == op).count();
        assert!(
            count(Op::Rename) > count(Op::Create) + 2,
            "two renames per recycled segment: {ops:?}"
        );
        ops.len() as u64
    };
    for at in 0..calls {
        let crashes = [
            Crash::LoseAll,
            Crash::KeepAll,
            Crash::Random(at),
            Crash::Random(at + 1000),
        ];
        // `JOURNAL_CASES` for every combination; otherwise the kinds of crash alternate.
        let all = std::env::var_os("JOURNAL_CASES").is_some();
        for crash in crashes
            .into_iter()
            .skip(if all { 0 } else { at as usize % 4 })
            .take(if all { 4 } else { 1 })
        {
            let mut world = recycled_tail();
            world.fs.fail(None, at, 1, Fault::Freeze);
            cycle(&mut world);
            world.crash(crash);
            assert!(inspect(&world.fs, dir()).unwrap().is_sound());
            world.open();
            cycle(&mut world);
            world.crash(crash);
            world.open();
        }
    }
}

/// Fills and stores more segments than are kept in the pool, and starts some more.
fn cycle(world: &mut World) {
    for _ in 0..2 {
        (0..10).for_each(|_| world.append(&[(60, false)]));
        world.clock.advance(1000);
        world.take(5);
        (0..5).for_each(|_| world.store(0));
        world.tick();
        store_all(world);
    }
    world.append(&[(20, false), (7, true)]);
}

#[test]
fn salvage_returns_nothing_from_after_the_frames_or_from_the_pool() {
    let mut world = recycled_tail();
    world.append(&[(2, false)]);
    let newest = newest(&world).unwrap();
    world.tick();
    assert!(!spares(&world.fs).is_empty());
    world.crash(Crash::KeepAll);
    let mut bytes = world.fs.read(&newest).unwrap();
    bytes[..40].fill(0);
    world.fs.replace(&newest, bytes);
    assert!(!inspect(&world.fs, dir()).unwrap().is_sound());
    let done = salvage(&world.fs, dir()).unwrap();
    assert_eq!((done.moved.len(), done.lost.len()), (1, 0), "{done:?}");
    assert!(
        !spares(&world.fs).is_empty(),
        "salvage leaves them to the next start"
    );
    world.open();
    assert!(spares(&world.fs).is_empty());
}

#[test]
fn the_pool_is_within_max_bytes_and_shrinks_if_necessary() {
    let mut world = World::new(SEGMENT, 16 * SEGMENT, 1 << 20);
    world.open();
    let stats = |world: &World| world.opened.as_ref().unwrap().journal.handle().stats();
    let on_disk = |world: &World| {
        let files = world.fs.list(dir()).unwrap();
        let segments = files
            .iter()
            .filter(|name| name.ends_with(".seg") || name.ends_with(".tmp"));
        segments
            .map(|name| world.fs.read(&dir().join(name)).unwrap().len() as u64)
            .sum::<u64>()
    };
    let mut full = vec![];
    for _ in 0..3 {
        while world.admission_control.check().is_ok() {
            world.append(&[(60, false)]);
            world.tick();
            assert_eq!(stats(&world).bytes, on_disk(&world));
        }
        assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
        full.push((stats(&world).bytes, stats(&world).segments));
        store_all(&mut world);
        assert_eq!(world.admission_control.check(), Ok(()));
        assert_eq!(stats(&world).bytes, on_disk(&world));
        assert_eq!(spares(&world.fs).len(), 4, "no more are kept");
    }
    assert_eq!(
        full,
        [(16 * SEGMENT, 16); 3],
        "the pool takes no space from the readings"
    );
    // An ingest batch that needs its own file, for which the pool must shrink.
    let before = stats(&world).segments;
    world.append(&[(2400, false)]);
    assert_eq!(world.due.len(), 1, "it was accepted");
    assert_eq!(world.admission_control.check(), Ok(()));
    assert_eq!(stats(&world).segments, before + 1);
    assert_eq!(stats(&world).bytes, on_disk(&world));
    assert!(stats(&world).bytes <= 16 * SEGMENT);
    world.crash(Crash::LoseAll);
    world.open();
    assert_eq!(stats(&world).bytes, on_disk(&world), "and after a restart");
    world.finish();
    assert!(spares(&world.fs).is_empty(), "none is left after the stop");
}

#[test]
fn a_file_of_another_process_or_size_is_not_recycled() {
    let mut world = World::new(SEGMENT, 128 << 10, 1 << 20);
    world.open();
    (0..30).for_each(|_| world.append(&[(40, false)]));
    world.crash(Crash::KeepAll);
    world.open();
    // All earlier entries are returned and stored now; the salts of that process may equal those of
    // the next.
    while !world.held.is_empty() {
        world.store(0);
    }
    let before = world
        .fs
        .ops()
        .iter()
        .filter(|&&op| op == Op::Rename)
        .count();
    world.clock.advance(1000);
    world.tick();
    assert_eq!(segment_paths(&world.fs, dir()).len(), 0);
    assert_eq!(
        world
            .fs
            .ops()
            .iter()
            .filter(|&&op| op == Op::Rename)
            .count(),
        before
    );
    assert_eq!(spares(&world.fs).len(), 1, "the new one");
}
