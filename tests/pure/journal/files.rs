//! Real files: threads, rotation, removal, restart, a second process, damage and its repair.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use journal::admission::{Admission, AdmissionControl, IngestBatch, admission_channel};
use journal::fs::RealFs;
use journal::{
    Follower, Journal, JournalDeps, JournalError, OpenedJournal, inspect, readings_bytes_max,
    salvage,
};
use model::ack::{Ack, AckOutcome};
use model::{
    BatchBuilder, DEAD_PAYLOAD_BYTES_MAX, DeadLetter, ReadingBatch, SystemClock, ValueRef,
};
use tempfile::TempDir;

use super::support::{batch, dead_letter, frames_end, segment_paths};

struct Service {
    journal: Journal,
    follower: Follower,
    admission: Admission,
    broken: Arc<Mutex<Option<String>>>,
}

fn config(dir: &Path) -> config::Journal {
    config::Journal {
        dir: dir.join("journal"),
        max_bytes: 64 << 20,
        segment_bytes: 32 << 10,
        commit_delay: Duration::ZERO,
    }
}

fn open(dir: &Path, tail_bytes: usize) -> Result<Service, JournalError> {
    open_with(&config(dir), tail_bytes)
}

fn open_with(config: &config::Journal, tail_bytes: usize) -> Result<Service, JournalError> {
    let broken = Arc::new(Mutex::new(None));
    let seen = broken.clone();
    let admission_control = AdmissionControl::default();
    let on_broken = Box::new(move |why: &journal::JournalFailure| {
        *seen.lock().unwrap() = Some(why.to_string())
    });
    let env = JournalDeps {
        fs: Arc::new(RealFs),
        clock: Arc::new(SystemClock::new()),
        admission_control: admission_control.clone(),
        on_broken,
        keys: Default::default(),
    };
    let OpenedJournal {
        mut journal,
        follower,
    } = Journal::open_with_tail(config, env, tail_bytes)?;
    let (admission, ingest_batches) = admission_channel(64, 8 << 20, admission_control);
    journal.start(ingest_batches).unwrap();
    Ok(Service {
        journal,
        follower,
        admission,
        broken,
    })
}

impl Service {
    async fn put(&self, id: u64, readings: usize) {
        self.put_both(batch(id, readings), vec![dead_letter(id)])
            .await;
    }

    async fn put_both(&self, batch: ReadingBatch, dead: Vec<DeadLetter>) {
        let (ack, wait) = Ack::channel();
        self.admission
            .submit(IngestBatch::new(batch, dead, ack))
            .await
            .unwrap();
        assert_eq!(wait.outcome().await, AckOutcome::Delivered);
    }

    /// The ids of the readings' entries among the next `n` entries.
    async fn take(&mut self, n: usize, store: bool) -> (Vec<u64>, Vec<Ack>) {
        let mut ids = vec![];
        let mut acks = vec![];
        for _ in 0..n {
            let entry = self.follower.next().await.unwrap();
            if let journal::EntryKind::Readings(batch) = &entry.kind {
                let (_, reading) = batch.iter().next().unwrap();
                ids.push(reading.sensor_id()[1..].parse().unwrap());
            }
            if store {
                entry.ack.delivered()
            } else {
                acks.push(entry.ack)
            }
        }
        (ids, acks)
    }
}

impl Service {
    /// Waits without an entry, which closes the chunk of the previous ones.
    async fn idle(&mut self) {
        let more =
            tokio::time::timeout(std::time::Duration::from_millis(500), self.follower.next()).await;
        assert!(more.is_err(), "{more:?}");
    }
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    segment_paths(&RealFs, &dir.join("journal"))
}

#[tokio::test(flavor = "multi_thread")]
async fn rotates_removes_and_replays_only_what_is_not_stored() {
    let dir = TempDir::new().unwrap();
    let mut service = open(dir.path(), 100_000).unwrap();
    for id in 0..200 {
        if id % 40 == 39 {
            // Stored entries stay for the window in which equal readings may arrive.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        service.put(id, 50).await;
    }
    let before = files(dir.path()).len();
    assert!(before > 5, "{before}");
    let (ids, _) = service.take(300, true).await;
    assert_eq!(
        ids,
        (0..150).collect::<Vec<_>>(),
        "from the segments and from memory, in order"
    );
    let (_, acks) = service.take(100, false).await;
    service.journal.finish().await;
    drop(acks);
    assert!(
        service.broken.lock().unwrap().is_none(),
        "giving up after the end is not reported"
    );
    assert!(files(dir.path()).len() < before);

    let mut service = open(dir.path(), 100_000).unwrap();
    let stats = service.journal.handle().stats();
    assert!(
        (100..200).contains(&stats.replay_total),
        "chunks of a quarter of a second: {stats:?}"
    );
    assert!(stats.oldest_unstored_ms.unwrap() > 1_600_000_000_000);
    let (ids, _) = service.take(stats.replay_total as usize, true).await;
    assert_eq!(ids.last(), Some(&199));
    assert!(ids.is_sorted() && ids[0] <= 150);
    service.idle().await;
    let stats = service.journal.handle().stats();
    assert_eq!(
        (stats.unstored_entries, stats.oldest_unstored_ms),
        (0, None)
    );
    service.journal.finish().await;
    let service = open(dir.path(), 100_000).unwrap();
    assert_eq!(service.journal.handle().stats().replay_total, 0);
}

/// As many readings as fit into this number of bytes.
fn readings_of(id: u64, bytes_max: usize) -> ReadingBatch {
    let mut builder = BatchBuilder::new(1);
    builder.limit_bytes(bytes_max);
    for ts_ms in 0.. {
        builder.begin();
        builder.value("v", ValueRef::Int(ts_ms)).unwrap();
        if builder
            .commit(&format!("s{id}"), ts_ms, false, &[])
            .is_err()
        {
            break;
        }
    }
    builder.finish()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_messages_that_ingest_accepts_fit_one_after_the_other() {
    let dir = TempDir::new().unwrap();
    let config = config::Journal {
        max_bytes: 12 << 20,
        ..config(dir.path())
    };
    let bytes_max = readings_bytes_max(&config);
    let mut service = open_with(&config, 100_000).unwrap();
    for id in 0..4 {
        // Dead letters that fill a batch, and the largest one.
        let small = 255 << 10;
        let dead = [small, DEAD_PAYLOAD_BYTES_MAX].map(|bytes| DeadLetter {
            payload: vec![0; bytes],
            ..dead_letter(id)
        });
        // Each needs half of the journal, and the active segment is as large.
        service
            .put_both(readings_of(id, bytes_max), dead.into())
            .await;
        assert_eq!(service.take(2, true).await.0, [id]);
        service.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_progress_of_a_replay_is_what_was_handed_over_and_not_what_was_read_ahead() {
    let dir = TempDir::new().unwrap();
    let service = open(dir.path(), 100_000).unwrap();
    for id in 0..10 {
        service.put(id, 5).await;
    }
    service.journal.finish().await;
    let mut service = open(dir.path(), 100_000).unwrap();
    let handle = service.journal.handle();
    let progress = || (handle.stats().replay_done, handle.stats().replay_total);
    assert_eq!(progress(), (0, 20), "readings and dead letters");
    for n in 0..20 {
        let entry = service.follower.next().await.unwrap();
        // A single read has returned all of them. This one is in the hands of the consumer, which
        // may wait for memory.
        assert_eq!(progress(), (n, 20));
        entry.ack.delivered();
    }
    service.idle().await;
    assert_eq!(progress(), (20, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_one_on_the_directory_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path(), 1000).unwrap();
    let error = open(dir.path(), 1000).err().unwrap();
    let path = dir.path().join("journal");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    assert!(inspect(&RealFs, &path).unwrap().in_use);
    drop(first);
    open(dir.path(), 1000).unwrap();
}

/// About five closed segments with ids from 0.
async fn filled(dir: &Path) -> u64 {
    let mut service = open(dir, 1000).unwrap();
    for id in 0..100 {
        service.put(id, 50).await;
    }
    service.journal.close().await;
    service.journal.handle().stats().unstored_entries
}

fn poke(path: &Path, offset: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, offset)
        .unwrap();
}

/// Salvages, then returns all ids.
async fn ids_after_salvage(dir: &Path) -> (journal::Salvaged, Vec<u64>) {
    let journal = dir.join("journal");
    let done = salvage(&RealFs, &journal).unwrap();
    assert!(inspect(&RealFs, &journal).unwrap().is_sound());
    assert_eq!(
        salvage(&RealFs, &journal).unwrap(),
        Default::default(),
        "nothing is left to do"
    );
    let mut service = open(dir, 1000).unwrap();
    service.put(1000, 1).await;
    service.journal.close().await;
    let mut ids = vec![];
    while let Some(entry) = service.follower.next().await {
        if let journal::EntryKind::Readings(batch) = &entry.kind {
            ids.push(
                batch.iter().next().unwrap().1.sensor_id()[1..]
                    .parse()
                    .unwrap(),
            );
        }
        entry.ack.delivered();
    }
    let stats = service.journal.handle().stats();
    assert_eq!((stats.unstored_entries, stats.broken), (0, None));
    service.journal.finish().await;
    (done, ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_middle_refuses_the_start_and_salvage_keeps_the_rest() {
    let dir = TempDir::new().unwrap();
    filled(dir.path()).await;
    let victim = files(dir.path())[1].clone();
    let before = std::fs::read(&victim).unwrap();
    poke(&victim, 20_000, b"rubbish");
    let error = open(dir.path(), 1000).err().unwrap().to_string();
    for part in [
        victim.to_str().unwrap(),
        "offset",
        "checksum",
        "hourbucket journal salvage",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let report = inspect(&RealFs, &dir.path().join("journal")).unwrap();
    assert_eq!(report.problems.len(), 1);
    let (done, ids) = ids_after_salvage(dir.path()).await;
    assert_eq!(done.moved.len(), 1);
    assert_eq!(done.lost.len(), 1);
    let (from, to) = done.lost[0];
    assert_eq!(to - from, 1, "one frame was hit");
    assert!(ids.len() >= 100 && ids.is_sorted(), "{ids:?}");
    assert_eq!(
        std::fs::read(&done.moved[0]).unwrap().len(),
        before.len(),
        "the damaged file is kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_header_a_missing_segment_and_a_short_journal_can_be_salvaged() {
    let dir = TempDir::new().unwrap();
    let entries = filled(dir.path()).await;
    let all = files(dir.path());
    assert!(all.len() >= 5);
    poke(&all[0], 0, &[0; 40]);
    poke(&all[1], 0, &[9; 4096]);
    std::fs::remove_file(&all[3]).unwrap();
    let last = all.last().unwrap();
    let length = std::fs::metadata(last).unwrap().len();
    std::fs::OpenOptions::new()
        .write(true)
        .open(last)
        .unwrap()
        .set_len(length.min(5000))
        .unwrap();
    assert!(matches!(
        open(dir.path(), 1000).err().unwrap(),
        JournalError::Damaged(_)
    ));
    let (done, ids) = ids_after_salvage(dir.path()).await;
    assert!(done.moved.len() >= 2, "{done:?}");
    let lost: u64 = done.lost.iter().map(|(from, to)| to - from).sum();
    assert!(lost < entries / 2 + 60, "{done:?}");
    assert!(
        ids.is_sorted() && ids[0] == 0,
        "the first segment is whole but for its header: {ids:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_is_cut_off_and_damage_before_synced_frames_is_not() {
    let dir = TempDir::new().unwrap();
    let mut service = open(dir.path(), 1000).unwrap();
    for id in 0..5 {
        service.put(id, 5).await;
    }
    service.journal.close().await;
    drop(service);
    let path = files(dir.path()).pop().unwrap();
    // As after a crash: an older checkpoint, and half a write after the frames.
    std::fs::remove_file(dir.path().join("journal/checkpoint")).unwrap();
    let length = frames_end(&std::fs::read(&path).unwrap());
    poke(&path, length, &[7; 1000]);
    assert!(
        inspect(&RealFs, &dir.path().join("journal"))
            .unwrap()
            .segments[0]
            .torn
    );
    let mut service = open(dir.path(), 1000).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert_eq!(bytes, length + 40, "the frames, and the synced frame");
    assert_eq!(service.take(10, false).await.0, [0, 1, 2, 3, 4]);
    drop(service);
    poke(&path, 4096 + 60, b"rubbish");
    let error = open(dir.path(), 1000).err().unwrap().to_string();
    assert!(error.contains("offset 4096"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_format_is_refused_with_its_version() {
    let dir = TempDir::new().unwrap();
    filled(dir.path()).await;
    poke(&files(dir.path())[0], 8, &7u32.to_le_bytes());
    let error = open(dir.path(), 1000).err().unwrap().to_string();
    assert!(error.contains("format version 7"), "{error}");
    assert!(
        !inspect(&RealFs, &dir.path().join("journal"))
            .unwrap()
            .is_sound()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_with_a_reading_and_a_paused_follower() {
    let dir = TempDir::new().unwrap();
    let mut service = open(dir.path(), 20_000).unwrap();
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let admission = service.admission.clone();
            tokio::spawn(async move {
                for i in 0..100 {
                    let (ack, wait) = Ack::channel();
                    let ingest_batch = IngestBatch::new(batch(caller * 1000 + i, 20), vec![], ack);
                    admission.submit(ingest_batch).await.unwrap();
                    assert_eq!(wait.outcome().await, AckOutcome::Delivered);
                }
            })
        })
        .collect();
    let (mut ids, _) = service.take(400, true).await;
    for caller in callers {
        caller.await.unwrap();
    }
    ids.extend(service.take(400, true).await.0);
    for caller in 0..8 {
        let own: Vec<u64> = ids
            .iter()
            .copied()
            .filter(|id| id / 1000 == caller)
            .collect();
        assert_eq!(
            own,
            (caller * 1000..caller * 1000 + 100).collect::<Vec<_>>()
        );
    }
    service.idle().await;
    assert_eq!(service.journal.handle().stats().unstored_entries, 0);
}
