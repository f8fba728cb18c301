//! The keys of requests: after any crash a key is known exactly if the readings of its request are
//! in the journal or were returned by it before, and its file is verified like the segments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use journal::admission::{AdmissionControl, IngestBatch};
use journal::fs::Fs;
use journal::{
    EntryKind, Journal, JournalDeps, JournalError, KeyUse, OpenedJournal, RequestKey, RequestKeys,
};
use model::ack::{Ack, AckOutcome};
use testkit::memory_fs::{Crash, Fault, MemFs};

use super::support::{DIR, TestClock, batch, config, dead_letter};

const DAY: Duration = Duration::from_secs(86_400);

fn key(id: u64) -> RequestKey {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    RequestKey {
        id: bytes,
        sender: id % 3,
        fingerprint: id,
        received_at_ms: 1_700_000_000_000 + id as i64,
    }
}

struct Process {
    opened: OpenedJournal,
    keys: RequestKeys,
}

fn open(fs: &MemFs, clock: &Arc<TestClock>) -> Result<Process, JournalError> {
    let keys = RequestKeys::new(DAY, 10_000, clock.clone());
    let deps = JournalDeps {
        fs: Arc::new(fs.clone()) as Arc<dyn Fs>,
        clock: clock.clone(),
        admission_control: AdmissionControl::default(),
        on_broken: Box::new(|_| ()),
        keys: keys.clone(),
    };
    let opened = Journal::open(&config(8 << 10, 64 << 10), deps)?;
    Ok(Process { opened, keys })
}

impl Process {
    /// Takes what the journal returns; reports most of it as stored.
    fn follow(&mut self, rng: &mut Rng, present: &mut BTreeSet<u64>, held: &mut Vec<Ack>) {
        while let Some(entry) = self.opened.follower.next_now() {
            if let EntryKind::Readings(readings) = &entry.kind {
                let (_, reading) = readings.iter().next().unwrap();
                present.insert(reading.sensor_id()[1..].parse().unwrap());
            }
            if rng.u8(..20) == 0 {
                held.push(entry.ack);
            } else {
                entry.ack.delivered();
            }
        }
    }

    /// A batch with the key `id`, as ingest makes it. `acked`: gets the outcome.
    fn ingest_batch(
        &self,
        id: u64,
        rng: &mut Rng,
        acked: &Arc<Mutex<BTreeMap<u64, AckOutcome>>>,
    ) -> IngestBatch {
        let Ok(KeyUse::First(in_flight)) = self.keys.begin(key(id)) else {
            panic!("key {id} is known before its first use");
        };
        let request_key = in_flight.key();
        let acked = acked.clone();
        let ack = Ack::with(move |outcome| {
            acked.lock().unwrap().insert(id, outcome);
            if outcome == AckOutcome::Delivered {
                in_flight.accepted();
            }
        });
        let dead = if rng.bool() {
            vec![dead_letter(id)]
        } else {
            vec![]
        };
        let mut ingest_batch = IngestBatch::new(batch(id, rng.usize(1..20)), dead, ack);
        ingest_batch.key = Some(request_key);
        ingest_batch
    }
}

fn history(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut fs = MemFs::new();
    let clock = Arc::new(TestClock::default());
    let mut present = BTreeSet::new();
    let mut sent = 0;
    for start in 0..5 {
        let mut process = open(&fs, &clock).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let mut held = vec![];
        process.follow(&mut rng, &mut present, &mut held);
        for id in 0..sent {
            let is_repeat = match process.keys.begin(key(id)) {
                Ok(KeyUse::Repeat(received_at_ms)) => {
                    assert_eq!(received_at_ms, key(id).received_at_ms);
                    true
                }
                Ok(KeyUse::First(_)) => false,
                Err(refused) => panic!("seed {seed}: key {id}: {refused:?}"),
            };
            assert_eq!(
                is_repeat,
                present.contains(&id),
                "seed {seed}, start {start}: key {id} and its readings"
            );
        }
        let acked = Arc::default();
        if rng.bool() {
            fs.fail(None, rng.u64(1..200), 1, Fault::Freeze);
        }
        for _ in 0..rng.usize(..40) {
            let group: Vec<_> = (0..rng.u64(1..5))
                .map(|n| process.ingest_batch(sent + n, &mut rng, &acked))
                .collect();
            sent += group.len() as u64;
            clock.advance(rng.u64(..3000));
            if !process.opened.journal.append_now(group) || fs.frozen() {
                break;
            }
            if rng.bool() {
                process.follow(&mut rng, &mut present, &mut held);
            }
            process.opened.journal.tick_now();
        }
        let crash = match rng.u8(..3) {
            0 => Crash::LoseAll,
            1 => Crash::KeepAll,
            _ => Crash::Random(rng.u64(..)),
        };
        let acked = std::mem::take(&mut *acked.lock().unwrap());
        let delivered = acked.iter().filter(|(_, o)| **o == AckOutcome::Delivered);
        let delivered: Vec<u64> = delivered.map(|(id, _)| *id).collect();
        fs = fs.crash(crash);
        drop((process, held));
        // What was acknowledged is in the journal, so the next start must know its key.
        present.extend(delivered);
    }
}

#[test]
fn a_key_is_known_exactly_if_the_readings_of_its_request_are_there() {
    (0..60).for_each(history);
}

#[test]
fn a_damaged_file_of_keys_refuses_the_start_and_is_moved_aside_by_a_salvage() {
    let fs = MemFs::new();
    let clock = Arc::new(TestClock::default());
    let mut rng = Rng::with_seed(1);
    let acked = Arc::default();
    let mut process = open(&fs, &clock).unwrap();
    for id in 0..60 {
        let ingest_batch = process.ingest_batch(id, &mut rng, &acked);
        assert!(process.opened.journal.append_now(vec![ingest_batch]));
        while let Some(entry) = process.opened.follower.next_now() {
            entry.ack.delivered();
        }
        clock.advance(10_000);
        process.opened.journal.tick_now();
    }
    drop(process);
    let path = Path::new(DIR).join("keys");
    let file = fs.open(&path, true).expect("segments were removed");
    file.write_at(&[0xff], 30).unwrap();
    let error = open(&fs, &clock).err().expect("it is damaged").to_string();
    assert!(
        error.contains("j/keys") && error.contains("salvage"),
        "{error}"
    );
    assert!(!journal::inspect(&fs, Path::new(DIR)).unwrap().is_sound());
    let salvaged = journal::salvage(&fs, Path::new(DIR)).unwrap();
    assert_eq!(salvaged.moved, [Path::new(DIR).join("keys.damaged")]);
    let process = open(&fs, &clock).unwrap();
    assert!(matches!(process.keys.begin(key(0)), Ok(KeyUse::First(_))));
}
