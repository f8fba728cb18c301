//! Damage to acknowledged entries is refused with place and remedy, also in the last group; only
//! bytes that were never proven to be synced are cut off, and that is reported.

use std::path::{Path, PathBuf};

use journal::fs::Fs;
use journal::{Damage, JournalError, inspect, salvage};
use testkit::memory_fs::MemFs;
use testkit::memory_fs::{Crash, Fault, Op};

use super::support::{DIR, SYNCED, World, frame_at, frames_end, padding, segment_paths};

fn dir() -> &'static Path {
    Path::new(DIR)
}

/// A journal with a few groups, whose process was killed; no checkpoint has the last ones.
fn killed() -> World {
    let mut world = World::new(32 << 10, 1 << 20, 1 << 20);
    world.open();
    world.append(&[(3, true)]);
    world.tick();
    world.append(&[(20, false), (2, false)]);
    world.append(&[(5, false), (30, true), (7, false)]);
    world.crash(Crash::KeepAll);
    world
}

fn last(world: &World) -> (PathBuf, Vec<u8>) {
    let path = segment_paths(&world.fs, dir()).pop().unwrap();
    let bytes = world.fs.read(&path).unwrap();
    (path, bytes)
}

/// The expected behaviour of a start on these files: it refuses, with file and remedy, or returns
/// everything that was acknowledged.
fn refuses_or_gives_all(world: &mut World, path: &Path, what: &str) -> bool {
    // The files before the start, which may change them.
    let files: Vec<(PathBuf, Vec<u8>)> = world
        .fs
        .list(dir())
        .unwrap()
        .into_iter()
        .map(|name| dir().join(name))
        .map(|path| (path.clone(), world.fs.read(&path).unwrap()))
        .collect();
    let refused = match world.try_open() {
        Ok(()) => {
            world.verify_replay();
            false
        }
        Err(error) => {
            let text = error.to_string();
            assert!(matches!(error, JournalError::Damaged(_)), "{what}: {text}");
            for part in [path.to_str().unwrap(), "journal salvage"] {
                assert!(text.contains(part), "{what}: {text}");
            }
            assert!(!inspect(&world.fs, dir()).unwrap().is_sound(), "{what}");
            true
        }
    };
    world.finish();
    world.fs = MemFs::new();
    files
        .into_iter()
        .for_each(|(path, bytes)| world.fs.replace(&path, bytes));
    refused
}

#[test]
fn every_flipped_bit_of_an_acknowledged_group_is_detected_after_a_kill() {
    let mut world = killed();
    let (path, sound) = last(&world);
    let end = frames_end(&sound) as usize;
    let (_, next_seq, kind) = frame_at(&sound, end);
    let padding = padding(&sound);
    assert_eq!(
        (kind, next_seq),
        (SYNCED, 8 + 1),
        "seven readings' and dead letters' entries, and the next"
    );
    for at in 4096..end {
        let mut bad = sound.clone();
        bad[at] ^= 1 << (at % 8);
        world.fs.replace(&path, bad);
        let refused = refuses_or_gives_all(&mut world, &path, &format!("byte {at}"));
        assert!(refused != padding.contains(&at), "byte {at} of {end}");
    }
    world.fs.replace(&path, sound);
    world.open();
}

#[test]
fn every_lost_sector_of_an_acknowledged_group_is_detected_after_a_kill() {
    let mut world = killed();
    let (path, sound) = last(&world);
    let end = frames_end(&sound) as usize;
    for bytes in [512, 4096] {
        for at in (4096..end.next_multiple_of(bytes)).step_by(bytes) {
            for fill in [0, 0xFF] {
                let mut bad = sound.clone();
                bad[at..at + bytes].fill(fill);
                world.fs.replace(&path, bad);
                let what = format!("{bytes} bytes at {at}");
                assert!(
                    refuses_or_gives_all(&mut world, &path, &what),
                    "{what} of {end}"
                );
            }
        }
    }
}

#[test]
fn after_a_normal_stop_every_lost_entry_is_detected_in_any_file() {
    let mut world = World::new(32 << 10, 1 << 20, 1 << 20);
    world.open();
    world.append(&[(20, false), (2, true)]);
    world.append(&[(40, false)]);
    world.finish();
    let (path, sound) = last(&world);
    let checkpoint = dir().join("checkpoint");
    let content = world.fs.read(&checkpoint).unwrap();
    let end = frames_end(&sound) as usize;
    let padding = padding(&sound);
    for at in (4096..end).step_by(3).filter(|at| !padding.contains(at)) {
        // One bit; all bytes from here; and both without the synced frame, or without the
        // checkpoint.
        for (without_frame, without_checkpoint, cut) in [
            (false, false, false),
            (false, true, false),
            (true, false, false),
            (true, false, true),
        ] {
            if cut && sound[at..end].iter().all(|byte| *byte == 0) {
                // Zeros instead of zeros are not damage.
                continue;
            }
            let mut bad = sound.clone();
            if without_frame {
                bad[end..].fill(0);
            }
            if cut {
                bad[at..].fill(0);
            } else {
                bad[at] ^= 0x10;
            }
            world.fs.replace(&path, bad);
            world.fs.replace(
                &checkpoint,
                if without_checkpoint {
                    vec![0; content.len()]
                } else {
                    content.clone()
                },
            );
            let what = format!(
                "byte {at}, frame {without_frame}, checkpoint {without_checkpoint}, cut {cut}"
            );
            assert!(refuses_or_gives_all(&mut world, &path, &what), "{what}");
        }
    }
}

#[test]
fn a_start_without_readings_keeps_the_proof() {
    let mut world = killed();
    for _ in 0..3 {
        world.open();
        world.crash(Crash::LoseAll);
    }
    let (path, sound) = last(&world);
    let end = frames_end(&sound) as usize;
    assert_eq!(frame_at(&sound, end).2, SYNCED);
    let mut bad = sound;
    bad[end - 9] ^= 1;
    world.fs.replace(&path, bad);
    assert!(refuses_or_gives_all(&mut world, &path, "the last group"));
}

#[test]
fn a_cut_is_described_and_distinguished_from_damage() {
    let mut world = killed();
    let (path, sound) = last(&world);
    let end = frames_end(&sound);
    // The machine stopped, not only the process: nothing proves that the last group was synced.
    let mut at = 4096;
    let mut frames = vec![];
    while at < end as usize {
        let (length, seq, _) = frame_at(&sound, at);
        frames.push((at, seq));
        at += length;
    }
    let group = frames[frames.len() - 4].0;
    let mut bad = sound.clone();
    bad[end as usize..].fill(0);
    bad[group + 50] ^= 1;
    world.fs.replace(&path, bad);
    let report = inspect(&world.fs, dir()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    let cut = report.segments.last().unwrap().cut.unwrap();
    let first = frames[frames.len() - 4].1;
    assert_eq!((cut.offset, cut.bytes), (group as u64, end - group as u64));
    assert_eq!(
        (cut.sequences, cut.frames),
        ((first, first + 4), 3),
        "three complete frames after the damaged one"
    );
    let text = cut.to_string();
    assert!(
        text.contains(&format!("offset {group}")) && text.contains(&format!("sequences {first}..")),
        "{text}"
    );
    // The same in the previous group: the frames of the last one prove that it was synced.
    let before = frames[frames.len() - 5].0;
    let mut bad = sound.clone();
    bad[end as usize..].fill(0);
    bad[before + 50] ^= 1;
    world.fs.replace(&path, bad);
    let refused = world.try_open().unwrap_err();
    let place = |damage: &Damage| matches!(damage, Damage::Frame { offset, .. } if *offset == before as u64);
    assert!(
        matches!(&refused, JournalError::Damaged(damage) if place(damage)),
        "{refused}"
    );
}

#[test]
fn a_write_that_a_kill_cuts_short_is_cut_off_and_the_groups_before_it_stay_proven() {
    let mut world = killed();
    world.open();
    world.append(&[(4, false)]);
    world.fs.fail(Some(Op::Write), 0, 1, Fault::Freeze);
    world.append(&[(100, false), (50, false)]);
    world.crash(Crash::KeepAll);
    let (path, torn) = last(&world);
    let cut = inspect(&world.fs, dir())
        .unwrap()
        .segments
        .last()
        .unwrap()
        .cut
        .unwrap();
    assert!(cut.bytes > 1000 && cut.frames == 0, "{cut:?}");
    // Damage before a torn write that overwrote the synced frame. The checkpoint, or the copy of
    // the frame in another sector, may still prove the sync; here the copy does.
    let mut bad = torn.clone();
    bad[4096 + 60] ^= 1;
    world.fs.replace(&path, bad);
    assert!(refuses_or_gives_all(
        &mut world,
        &path,
        "before a torn write"
    ));
    world.fs.replace(&path, torn);
    world.open();
    let (_, kept) = last(&world);
    assert_eq!(kept.len() as u64, cut.offset + 40);
}

#[test]
fn salvage_keeps_valid_entries_and_names_the_lost_ones_of_the_last_group() {
    let mut world = killed();
    let (path, sound) = last(&world);
    let mut at = 4096;
    let mut before = 4096;
    while frame_at(&sound, at).2 != SYNCED {
        (before, at) = (at, at + frame_at(&sound, at).0);
    }
    let lost = frame_at(&sound, before).1;
    let mut bad = sound.clone();
    bad[before + 45] ^= 1;
    world.fs.replace(&path, bad);
    assert!(world.try_open().is_err());
    let done = salvage(&world.fs, dir()).unwrap();
    assert_eq!((done.moved.len(), done.lost), (1, vec![(lost, lost + 1)]));
    let gone = *world.due.last().unwrap();
    world.due.remove(&gone);
    world.open();
}
