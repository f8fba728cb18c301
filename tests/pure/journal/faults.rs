//! A file system that fails: at every call in turn, and in ways with special handling.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use journal::JournalFull;
use journal::admission::{AdmissionError, IngestBatch, admission_channel};
use model::ack::{Ack, AckOutcome};
use testkit::memory_fs::{Crash, Fault, Op};

use super::support::{World, batch, segment_paths};

/// Rotation, a large ingest batch, removal, and reading from the segments.
fn history(world: &mut World) {
    for round in 0..6 {
        world.append(&[(3, false), (0, true), (10, round % 2 == 0)]);
        world.append(&[(40, false), (60, false)]);
        world.clock.advance(600);
        world.tick();
        if round > 1 {
            world.take(8);
            (0..8).for_each(|_| world.store(0));
        }
        if round == 3 {
            world.append(&[(300, false)]);
        }
    }
    world.take(100);
    (0..5).for_each(|_| world.store(0));
    world.tick();
}

fn new_world() -> World {
    World::new(8192, 96 << 10, 4000)
}

#[test]
fn every_call_may_fail_once_and_nothing_acknowledged_is_lost() {
    let mut clean = new_world();
    clean.open();
    history(&mut clean);
    let calls = clean.fs.ops().len() as u64;
    assert!(calls > 60, "{calls}");
    let count = |op| clean.fs.ops().iter().filter(|&&o| o == op).count();
    assert!(
        count(Op::Rename) > count(Op::Create),
        "no segment was recycled"
    );
    let faults = [
        Fault::Error(ErrorKind::Other),
        Fault::Error(ErrorKind::StorageFull),
        Fault::Error(ErrorKind::Interrupted),
        Fault::Short,
        Fault::Freeze,
    ];
    let crashes = [
        Crash::LoseAll,
        Crash::KeepAll,
        Crash::Random(1),
        Crash::Random(2),
    ];
    // `JOURNAL_CASES` for every combination; otherwise the kinds of crash alternate.
    let all = std::env::var_os("JOURNAL_CASES").is_some();
    for (i, fault) in faults.into_iter().enumerate() {
        for at in 0..calls {
            for crash in crashes
                .into_iter()
                .skip(if all { 0 } else { (i + at as usize) % 4 })
                .take(if all { 4 } else { 1 })
            {
                let mut world = new_world();
                world.fs.fail(None, at, 1, fault);
                if world.try_open().is_ok() {
                    history(&mut world);
                }
                world.crash(crash);
                world.open();
                history(&mut world);
                world.finish();
                world.open();
            }
        }
    }
}

#[test]
fn every_call_may_fail_from_some_point_on() {
    for error in [ErrorKind::Other, ErrorKind::StorageFull] {
        for at in (0..100).step_by(3) {
            let mut world = new_world();
            world.fs.fail(None, at, u64::MAX, Fault::Error(error));
            if world.try_open().is_ok() {
                history(&mut world);
            }
            // The process restarts on the same machine, which works, and then the machine stops.
            world.fs.heal();
            world.finish();
            world.open();
            world.crash(Crash::LoseAll);
            world.open();
        }
    }
}

#[test]
fn a_failed_sync_is_final_and_entries_synced_before_are_still_returned() {
    let mut world = new_world();
    world.open();
    world.append(&[(3, false)]);
    world
        .fs
        .fail(Some(Op::SyncData), 0, 1, Fault::Error(ErrorKind::Other));
    world.append(&[(4, false)]);
    assert_eq!(world.admission_control.check(), Err(AdmissionError::Broken));
    assert!(
        world
            .broken
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .contains("sync of the journal failed")
    );
    let before = world.fs.ops().len();
    let ingest_batch = IngestBatch::new(batch(9, 1), vec![], Ack::none());
    assert!(
        !world
            .opened
            .as_mut()
            .unwrap()
            .journal
            .append_now(vec![ingest_batch])
    );
    assert_eq!(world.fs.ops().len(), before, "never retried");
    world.take(10);
    assert_eq!(world.held.len(), 1);
    // The next process finds the unsynced entry in the page cache and accepts it: from then on it
    // must be durable.
    world.finish();
    world.open();
    assert_eq!(world.due.len(), 2);
    world.append(&[(5, false)]);
    world.crash(Crash::LoseAll);
    world.open();
}

#[test]
fn the_age_of_the_present_group_is_known_until_it_is_acknowledged() {
    let mut world = new_world();
    world.open();
    assert_eq!(world.stats().commit_age_ms, None);
    let journal = &mut world.opened.as_mut().unwrap().journal;
    let handle = journal.handle();
    let clock = world.clock.clone();
    let (seen, age_ms) = std::sync::mpsc::channel();
    // The last step of the group.
    let ack = Ack::with(move |_| {
        clock.advance(7000);
        seen.send(handle.stats().commit_age_ms).unwrap();
    });
    assert!(journal.append_now(vec![IngestBatch::new(batch(9, 1), vec![], ack)]));
    assert_eq!(age_ms.recv(), Ok(Some(7000)));
    assert_eq!(world.stats().commit_age_ms, None);
}

#[test]
fn a_full_disk_closes_admission_until_there_is_space() {
    let mut world = World::new(8192, 1 << 20, 4000);
    world.fs.set_capacity(Some(30_000));
    world.open();
    for _ in 0..40 {
        world.append(&[(20, false)]);
        world.tick();
    }
    assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
    assert!(matches!(world.stats().full, Some(JournalFull::Disk { .. })));
    let due = world.due.len();
    assert!(due > 8, "{due}");
    world.fs.set_capacity(Some(60_000));
    world.clock.advance(1000);
    world.tick();
    assert_eq!(world.admission_control.check(), Ok(()));
    world.append(&[(20, false)]);
    assert_eq!(world.due.len(), due + 1);
    world.crash(Crash::LoseAll);
    world.open();
}

/// The journal is crowded only by what the router has taken: a backlog drains by itself.
#[test]
fn a_journal_is_crowded_if_one_old_entry_keeps_what_is_handed_over() {
    let mut world = World::new(32 << 10, 512 << 10, 2000);
    world.open();
    let is_crowded = |world: &World| {
        let opened = world.opened.as_ref().unwrap();
        opened.follower.second_reader().is_crowded()
    };
    let bytes_max = world.stats().bytes_max;
    while world.stats().unstored_bytes <= bytes_max / 4 * 3 {
        assert!(!is_crowded(&world));
        world.append(&[(300, true)]);
        assert!(world.stats().full.is_none(), "{:?}", world.stats());
    }
    assert!(!is_crowded(&world), "nothing is handed over");
    while world.take_one().is_some() {}
    assert!(is_crowded(&world));
    while world.held.len() > 1 {
        let (key, ack) = world.held.remove(0);
        world.due.remove(&key);
        ack.delivered();
    }
    assert!(!is_crowded(&world), "only the newest is left");
}

#[test]
fn a_full_journal_opens_when_a_segment_is_stored() {
    let mut world = World::new(8192, 32 << 10, 4000);
    world.open();
    while world.admission_control.check().is_ok() {
        world.append(&[(20, false)]);
        world.tick();
    }
    assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
    let stats = |world: &World| world.opened.as_ref().unwrap().journal.handle().stats();
    assert!(stats(&world).bytes <= 32 << 10);
    assert_eq!(stats(&world).full, Some(JournalFull::MaxBytes));
    let segments = stats(&world).segments;
    world.take(100);
    (0..100).for_each(|_| world.store(0));
    world.tick();
    assert_eq!(world.admission_control.check(), Ok(()));
    assert!(stats(&world).segments < segments);
    world.append(&[(20, false)]);
    assert_eq!(world.admission_control.check(), Ok(()));
    // An ingest batch that never fits is refused alone.
    world.append(&[(5000, false), (1, false)]);
    assert_eq!(world.admission_control.check(), Ok(()));
    world.crash(Crash::LoseAll);
    world.open();
}

#[test]
fn a_failed_write_rejects_its_group_and_the_next_one_starts_a_new_segment() {
    let mut world = new_world();
    world.open();
    world.append(&[(3, false)]);
    world
        .fs
        .fail(Some(Op::Write), 0, 1, Fault::Error(ErrorKind::StorageFull));
    world.append(&[(4, false), (5, false)]);
    assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
    world.append(&[(6, false)]);
    world.tick();
    assert_eq!(world.admission_control.check(), Ok(()));
    assert_eq!(world.due.len(), 2);
    assert_eq!(segment_paths(&world.fs, Path::new("j")).len(), 2);
    world.crash(Crash::Random(3));
    world.open();
    assert_eq!(world.due.len(), 2, "the refused group does not come back");
}

#[test]
fn a_disk_that_refuses_writes_keeps_admission_closed_until_one_succeeds() {
    let refused = |error: ErrorKind| {
        let mut world = new_world();
        world.open();
        world.append(&[(3, false)]);
        world.tick();
        world
            .fs
            .fail(Some(Op::Write), 0, u64::MAX, Fault::Error(error));
        world.append(&[(4, false)]);
        let bytes = world.stats().bytes;
        // Space can be reserved all the time.
        for _ in 0..5 {
            world.clock.advance(1000);
            world.tick();
            assert_eq!(world.admission_control.check(), Err(AdmissionError::Full));
            let why = std::io::Error::from(error).to_string();
            assert_eq!(world.stats().full, Some(JournalFull::Disk { error: why }));
        }
        assert!(world.stats().bytes <= bytes, "{:?}", world.stats());
        world.fs.heal();
        world.tick();
        assert_eq!(world.admission_control.check(), Ok(()));
        assert_eq!(world.stats().full, None);
        world.append(&[(5, false)]);
        assert_eq!(world.due.len(), 2);
        world.crash(Crash::LoseAll);
        world.open();
    };
    refused(ErrorKind::StorageFull);
    refused(ErrorKind::Other);
}

#[test]
fn entries_given_up_are_reported_kept_and_replayed() {
    let mut world = new_world();
    world.open();
    (0..20).for_each(|_| world.append(&[(40, false)]));
    world.take(40);
    world.held.remove(0);
    while let Some((_, ack)) = world.held.pop() {
        ack.delivered();
    }
    // After the last part of its chunk is dropped.
    assert!(
        world
            .broken
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .contains("a restart replays them")
    );
    assert_eq!(
        world.admission_control.check(),
        Ok(()),
        "the journal itself is sound"
    );
    world.tick();
    world.finish();
    world.open();
}

#[tokio::test]
async fn with_threads_admission_opens_after_a_full_disk() {
    let mut world = World::new(8192, 1 << 20, 4000);
    world.fs.set_capacity(Some(30_000));
    world.try_open().unwrap();
    let mut opened = world.opened.take().unwrap();
    let (admission, ingest_batches) =
        admission_channel(16, 1 << 20, world.admission_control.clone());
    opened.journal.start(ingest_batches).unwrap();
    let mut taken = 0;
    while admission.check().is_ok() {
        let (ack, wait) = Ack::channel();
        if admission
            .submit(IngestBatch::new(batch(1, 20), vec![], ack))
            .await
            .is_ok()
        {
            taken += usize::from(wait.outcome().await == AckOutcome::Delivered);
        }
    }
    world.fs.set_capacity(None);
    while admission.check().is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (ack, wait) = Ack::channel();
    admission
        .submit(IngestBatch::new(batch(1, 20), vec![], ack))
        .await
        .unwrap();
    assert_eq!(wait.outcome().await, AckOutcome::Delivered);
    opened.journal.close().await;
    let mut given = 0;
    while let Some(entry) = opened.follower.next().await {
        entry.ack.delivered();
        given += 1;
    }
    assert_eq!(given, taken + 1);
    opened.journal.finish().await;
}
