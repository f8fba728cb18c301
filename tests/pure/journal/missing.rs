//! Missing segments are noticed, and files that are no segments of the journal harm nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use journal::fs::{Fs, RealFs};
use journal::{Damage, JournalError, Report, Salvaged, check, inspect, salvage};
use tempfile::TempDir;
use testkit::memory_fs::{Crash, Fault, Op};

use super::support::{DIR, World, segment_paths};

const ENTRIES: u64 = 60;

fn dir() -> &'static Path {
    Path::new(DIR)
}

/// A stopped journal with some segments, nothing of it stored. The ids of the entries are their
/// sequences.
fn several() -> (World, Vec<PathBuf>) {
    let mut world = World::new(8192, 1 << 20, 1 << 20);
    world.open();
    (0..ENTRIES).for_each(|_| world.append(&[(60, false)]));
    world.finish();
    let paths = segment_paths(&world.fs, dir());
    assert!(paths.len() >= 5, "{paths:?}");
    (world, paths)
}

fn report(world: &World) -> Report {
    inspect(&world.fs, dir()).unwrap()
}

/// The first sequence of a segment.
fn first_seq(world: &World, segment: usize) -> u64 {
    report(world).segments[segment].sequences.0
}

fn remove(world: &World, paths: &[PathBuf]) {
    for path in paths {
        world.fs.remove(path).unwrap();
    }
    world.fs.sync_dir(dir()).unwrap();
}

fn salvaged(world: &World) -> Salvaged {
    let done = salvage(&world.fs, dir()).unwrap();
    assert!(report(world).is_sound());
    assert_eq!(
        salvage(&world.fs, dir()).unwrap(),
        Salvaged::default(),
        "nothing is left to do"
    );
    done
}

/// Requires that the start is refused because these entries are missing at the start.
fn refused_without(world: &mut World, first: u64, end: u64) {
    let wanted = Damage::FirstMissing {
        dir: dir().to_owned(),
        first,
        end,
    };
    assert_eq!(report(world).problems.first(), Some(&wanted));
    let error = world.try_open().unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("{first}..{end}")), "{text}");
    assert!(text.contains("hourbucket journal salvage"), "{text}");
    assert!(
        matches!(&error, JournalError::Damaged(damage) if *damage == wanted),
        "{text}"
    );
}

/// The journal returns the entries from this one on, and continues.
fn continues_from(world: &mut World, first: u64) {
    world.due.retain(|(id, _)| *id >= first);
    world.open();
    world.append(&[(3, false)]);
    world.crash(Crash::LoseAll);
    world.open();
}

#[test]
fn missing_first_segments_are_refused_and_salvage_continues_without_them() {
    let (mut world, paths) = several();
    let end = first_seq(&world, 2);
    remove(&world, &paths[..2]);
    refused_without(&mut world, 1, end);
    let done = salvaged(&world);
    assert_eq!(
        done,
        Salvaged {
            lost: vec![(1, end)],
            ..Salvaged::default()
        }
    );
    continues_from(&mut world, end);
}

#[test]
fn a_journal_without_segments_is_refused_if_the_checkpoint_has_unstored_entries() {
    let (mut world, paths) = several();
    remove(&world, &paths);
    refused_without(&mut world, 1, ENTRIES + 1);
    assert_eq!(salvaged(&world).lost, [(1, ENTRIES + 1)]);
    continues_from(&mut world, ENTRIES + 1);
}

/// Stores everything. The clock does not advance, so no checkpoint is due.
fn store_all(world: &mut World) {
    world.take(usize::from(u16::MAX));
    while !world.held.is_empty() {
        world.store(0);
    }
    world.tick();
}

/// A running journal whose checkpoint has no stored entry yet.
fn running() -> World {
    let mut world = World::new(8192, 1 << 20, 1 << 20);
    world.open();
    (0..ENTRIES).for_each(|_| world.append(&[(60, false)]));
    world.tick();
    let checkpoint = world.fs.read(&dir().join("checkpoint")).unwrap();
    let number = checkpoint[4096 + 16..4096 + 24].try_into().unwrap();
    let unstored_from = u64::from_le_bytes(number);
    assert_eq!(unstored_from, 1);
    world
}

#[test]
fn a_checkpoint_is_synced_before_a_segment_is_removed() {
    let mut world = running();
    store_all(&mut world);
    world.crash(Crash::LoseAll);
    let report = report(&world);
    assert!(report.is_sound(), "{:?}", report.problems);
    let (unstored_from, _) = report.checkpoint.unwrap();
    let first = report.segments[0].sequences.0;
    assert!(first > 1, "no segment was removed");
    assert!(first <= unstored_from, "{first}, {unstored_from}");
    world.open();
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_removed_before_a_segment() {
    let mut world = running();
    let fault = Fault::Error(std::io::ErrorKind::StorageFull);
    world.fs.fail(Some(Op::Write), 0, 1, fault);
    store_all(&mut world);
    assert_eq!(
        segment_paths(&world.fs, dir()).len(),
        1,
        "stored segments are removed nevertheless"
    );
    world.crash(Crash::LoseAll);
    assert_eq!(report(&world).checkpoint, None);
    world.open();
}

#[test]
fn a_missing_segment_in_the_middle_is_reported_as_lost() {
    let (mut world, paths) = several();
    let lost = (first_seq(&world, 2), first_seq(&world, 3));
    remove(&world, &paths[2..3]);
    let missing = Damage::Missing {
        path: paths[2].clone(),
        count: 1,
    };
    assert_eq!(report(&world).problems, [missing]);
    assert!(matches!(world.try_open(), Err(JournalError::Damaged(_))));
    let done = salvaged(&world);
    assert_eq!(
        done,
        Salvaged {
            filled: vec![paths[2].clone()],
            lost: vec![lost],
            ..Salvaged::default()
        }
    );
    world.try_open().unwrap();
}

#[test]
fn a_lost_header_of_the_first_segment_is_reported_as_lost() {
    let (mut world, paths) = several();
    let end = first_seq(&world, 1);
    let mut bytes = world.fs.read(&paths[0]).unwrap();
    bytes[..4096].fill(0);
    world.fs.replace(&paths[0], bytes);
    let done = salvaged(&world);
    let moved = vec![PathBuf::from(format!("{}.damaged", paths[0].display()))];
    assert_eq!(
        done,
        Salvaged {
            unreadable: moved.clone(),
            moved,
            lost: vec![(1, end)],
            filled: vec![],
        }
    );
    continues_from(&mut world, end);
}

#[test]
fn a_foreign_file_with_a_high_number_is_moved_aside() {
    for name in [
        "000000005000.seg",
        "999999999999.seg",
        "18446744073709551615.seg",
    ] {
        for is_copy in [false, true] {
            let (mut world, paths) = several();
            let path = dir().join(name);
            let content = if is_copy {
                world.fs.read(&paths[0]).unwrap()
            } else {
                b"hello".to_vec()
            };
            world.fs.replace(&path, content);
            assert_eq!(report(&world).problems.len(), 1);
            let error = world.try_open().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            let done = salvaged(&world);
            let moved = vec![dir().join(format!("{name}.damaged"))];
            assert_eq!(
                done,
                Salvaged {
                    unreadable: moved.clone(),
                    moved,
                    ..Salvaged::default()
                }
            );
            assert_eq!(segment_paths(&world.fs, dir()), paths);
            continues_from(&mut world, 1);
        }
    }
}

#[test]
fn a_segment_of_another_journal_is_named_and_nothing_is_written() {
    let (mut world, paths) = several();
    let path = dir().join("000000005000.seg");
    let mut bytes = world.fs.read(&paths[0]).unwrap();
    for copy in [0, 2048] {
        bytes[copy + 16..copy + 24].copy_from_slice(&5000u64.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[copy + 16..copy + 48]);
        bytes[copy + 12..copy + 16].copy_from_slice(&crc.to_le_bytes());
    }
    world.fs.replace(&path, bytes);
    let missing = 4999 - paths.len() as u64;
    let counts: Vec<u64> = report(&world)
        .problems
        .iter()
        .filter_map(|damage| match damage {
            Damage::Missing { count, .. } => Some(*count),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [missing], "one line for all of them");
    let before = world.fs.list(dir()).unwrap();
    let error = salvage(&world.fs, dir()).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert!(error.contains(&format!("{missing} segments")), "{error}");
    assert!(error.contains("move the file"), "{error}");
    assert_eq!(world.fs.list(dir()).unwrap(), before);
    remove(&world, &[path]);
    continues_from(&mut world, 1);
}

#[test]
fn a_file_with_the_short_number_of_a_segment_is_named() {
    for name in ["7.seg", "+7.seg"] {
        let (mut world, _) = several();
        let path = dir().join(name);
        world.fs.replace(&path, b"hello".to_vec());
        let errors = [
            world.try_open().unwrap_err(),
            inspect(&world.fs, dir()).unwrap_err(),
            salvage(&world.fs, dir()).unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            for part in [path.to_str().unwrap(), "move the file"] {
                assert!(text.contains(part), "{text}");
            }
        }
        remove(&world, &[path]);
        continues_from(&mut world, 1);
    }
}

#[test]
fn a_directory_that_does_not_exist_is_named() {
    let dir = TempDir::new().unwrap();
    let journal = dir.path().join("journal");
    let errors = [
        inspect(&RealFs, &journal).unwrap_err(),
        salvage(&RealFs, &journal).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains(journal.to_str().unwrap()), "{text}");
    }
    assert!(
        check(&RealFs, &journal).unwrap().is_sound(),
        "the first start creates it"
    );
    assert!(!journal.exists());
}

fn command(dir: &Path, name: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(["journal", name])
        .env("HOURBUCKET_JOURNAL__DIR", dir.join("journal"))
        .current_dir(dir)
        .output()
        .unwrap()
}

#[test]
fn the_exit_codes_tell_whether_something_is_lost() {
    let dir = TempDir::new().unwrap();
    assert_eq!(command(dir.path(), "inspect").status.code(), Some(1));
    assert_eq!(command(dir.path(), "salvage").status.code(), Some(2));
    let journal = dir.path().join("journal");
    std::fs::create_dir(&journal).unwrap();
    std::fs::write(journal.join("000000000001.seg"), "hello").unwrap();
    let inspected = command(dir.path(), "inspect");
    let text = String::from_utf8(inspected.stdout).unwrap();
    assert_eq!(inspected.status.code(), Some(1));
    assert!(!text.contains("all stored"), "{text}");
    let salvaged = command(dir.path(), "salvage");
    let text = String::from_utf8(salvaged.stdout).unwrap();
    assert_eq!(salvaged.status.code(), Some(1), "{text}");
    assert!(text.contains("000000000001.seg.damaged"), "{text}");
    assert_eq!(command(dir.path(), "salvage").status.code(), Some(0));
    assert_eq!(command(dir.path(), "inspect").status.code(), Some(0));
}
