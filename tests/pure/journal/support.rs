//! A journal without threads on a file system in memory, and the naive model that it is compared
//! with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use journal::admission::{AdmissionControl, IngestBatch};
use journal::fs::Fs;
use journal::{
    EntryKind, Journal, JournalDeps, JournalEntry, JournalError, OpenedJournal, Position,
};
use model::ack::{Ack, AckOutcome};
use model::{BatchBuilder, Clock, DeadLetter, Now, ReadingBatch, ValueRef};
use testkit::memory_fs::Crash;
use testkit::memory_fs::MemFs;

/// A clock that a test advances, and whose wall time it sets.
#[derive(Debug, Default)]
pub(crate) struct TestClock(AtomicU64, AtomicI64);

impl TestClock {
    pub(crate) fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }

    /// Sets the wall clock ahead or back.
    pub(crate) fn step(&self, ms: i64) {
        self.1.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Now {
        let mono_ms = self.0.load(Ordering::Relaxed);
        let wall_ms = 1_700_000_000_000 + mono_ms as i64 + self.1.load(Ordering::Relaxed);
        Now { wall_ms, mono_ms }
    }
}

pub(crate) const DIR: &str = "j";

pub(crate) fn config(segment_bytes: u64, max_bytes: u64) -> config::Journal {
    config::Journal {
        dir: PathBuf::from(DIR),
        max_bytes,
        segment_bytes,
        commit_delay: Duration::ZERO,
    }
}

pub(crate) fn batch(id: u64, readings: usize) -> ReadingBatch {
    batch_received(id, readings, None)
}

/// The same, optionally with the time of receipt.
pub(crate) fn batch_received(id: u64, readings: usize, received_ms: Option<i64>) -> ReadingBatch {
    let mut builder = BatchBuilder::new(8);
    for i in 0..readings {
        builder.begin();
        builder.value("temp", ValueRef::Double(id as f64)).unwrap();
        builder.value("n", ValueRef::Int(i as i64)).unwrap();
        builder
            .commit(
                &format!("s{id}"),
                received_ms.unwrap_or(i as i64),
                received_ms.is_some(),
                &[],
            )
            .unwrap();
    }
    builder.finish()
}

pub(crate) fn dead_letter(id: u64) -> DeadLetter {
    DeadLetter {
        received_at_ms: id as i64,
        source: "mqtt".into(),
        topic: format!("t/{id}"),
        payload: vec![id as u8; (id % 97) as usize],
        reason: "r".into(),
        detail: "d".into(),
    }
}

/// The content of an ingest batch, and when it was appended: in which process, at which monotonic
/// time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    readings: usize,
    received_ms: Option<i64>,
    start: u32,
    mono_ms: u64,
}

/// Entries appended within this time may hold equal readings, see `journal/tracker.rs` (ms).
pub(crate) const MOMENT_MS: u64 = 5000;

/// An entry by the id of its ingest batch, and whether it is the one with the dead letters.
pub(crate) type Key = (u64, bool);

/// The key of an entry, after its content was verified.
pub(crate) fn key_of(entry: &JournalEntry, sent: &BTreeMap<u64, Sent>) -> Key {
    match &entry.kind {
        EntryKind::Readings(got) => {
            let (_, first) = got.iter().next().expect("never empty");
            let id: u64 = first.sensor_id()[1..].parse().unwrap();
            assert_eq!(
                got.to_readings(),
                batch_received(id, sent[&id].readings, sent[&id].received_ms).to_readings()
            );
            (id, false)
        }
        EntryKind::Dead(dead_letters) => {
            let id = dead_letters[0].received_at_ms as u64;
            assert_eq!(*dead_letters, [dead_letter(id)]);
            (id, true)
        }
    }
}

/// The journal under test, and the state that it must have.
pub(crate) struct World {
    pub(crate) fs: MemFs,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) admission_control: AdmissionControl,
    pub(crate) broken: Arc<Mutex<Option<String>>>,
    pub(crate) opened: Option<OpenedJournal>,
    config: config::Journal,
    tail_bytes: usize,
    sent: BTreeMap<u64, Sent>,
    /// Whether readings get the time of receipt, which is that of their append.
    pub(crate) received: bool,
    /// Whether the journal may have been without space: then entries with equal readings may have
    /// been given up.
    crowded: bool,
    starts: u32,
    outcomes: Arc<Mutex<BTreeMap<u64, AckOutcome>>>,
    next_id: u64,
    /// Promised entries (acknowledged, or returned after a restart) that were not reported as
    /// stored.
    pub(crate) due: BTreeSet<Key>,
    /// Entries that were neither promised nor stored: the next start may return them or not.
    maybe: BTreeSet<Key>,
    /// The last group, if the crash may have cut it.
    last_group: Vec<Key>,
    gone: BTreeSet<Key>,
    /// Entries from the follower that the test has not reported as stored.
    pub(crate) held: Vec<(Key, Ack)>,
    last_seq: u64,
    /// The entries with dead letters that were taken since the start, by their sequence.
    dead_taken: BTreeMap<u64, (u64, Position)>,
}

impl World {
    pub(crate) fn new(segment_bytes: u64, max_bytes: u64, tail_bytes: usize) -> World {
        World {
            fs: MemFs::new(),
            clock: Arc::default(),
            admission_control: AdmissionControl::default(),
            broken: Arc::default(),
            opened: None,
            config: config(segment_bytes, max_bytes),
            tail_bytes,
            sent: BTreeMap::new(),
            received: false,
            crowded: false,
            starts: 0,
            outcomes: Arc::default(),
            next_id: 1,
            due: BTreeSet::new(),
            maybe: BTreeSet::new(),
            last_group: Vec::new(),
            gone: BTreeSet::new(),
            held: Vec::new(),
            last_seq: 0,
            dead_taken: BTreeMap::new(),
        }
    }

    /// Opens without checking the returned entries.
    pub(crate) fn try_open(&mut self) -> Result<(), JournalError> {
        self.starts += 1;
        self.admission_control = AdmissionControl::default();
        self.broken = Arc::default();
        let broken = self.broken.clone();
        let env = JournalDeps {
            fs: Arc::new(self.fs.clone()) as Arc<dyn Fs>,
            clock: self.clock.clone(),
            admission_control: self.admission_control.clone(),
            on_broken: Box::new(move |why| {
                broken.lock().unwrap().get_or_insert(why.to_string());
            }),
            keys: Default::default(),
        };
        self.opened = Some(Journal::open_with_tail(&self.config, env, self.tail_bytes)?);
        Ok(())
    }

    /// Opens and compares all returned entries with the promised ones.
    pub(crate) fn open(&mut self) {
        self.try_open().unwrap();
        self.verify_replay();
    }

    pub(crate) fn verify_replay(&mut self) {
        self.last_seq = 0;
        self.dead_taken.clear();
        let mut back = BTreeSet::new();
        while let Some((key, seq, replayed)) = self.take_one() {
            assert!(replayed, "{key:?} is from an earlier run");
            assert!(
                back.last().is_none_or(|last| *last < key),
                "{key:?} came after {back:?}"
            );
            assert!(
                !self.gone.contains(&key),
                "{key:?} was missing at an earlier start"
            );
            let _ = seq;
            back.insert(key);
        }
        let lost: Vec<_> = self.due.difference(&back).collect();
        assert!(
            lost.is_empty(),
            "acknowledged and lost: {lost:?}, returned: {back:?}"
        );
        self.verify_equal_readings(&back);
        let group: Vec<bool> = self
            .last_group
            .iter()
            .map(|key| back.contains(key))
            .collect();
        assert!(
            group.is_sorted_by(|a, b| a >= b),
            "of the last group {:?} not a prefix: {group:?}",
            self.last_group
        );
        for key in std::mem::take(&mut self.maybe) {
            if back.contains(&key) {
                self.due.insert(key)
            } else {
                self.gone.insert(key)
            };
        }
        self.last_group.clear();
    }

    /// Entries that may hold a reading equal to an unstored one were returned too.
    fn verify_equal_readings(&self, back: &BTreeSet<Key>) {
        for (id, _) in self.due.iter().filter(|(_, dead)| !dead && !self.crowded) {
            let later = self.sent[id];
            let has_equal = |s: &Sent| {
                let near = s.start == later.start && s.mono_ms + MOMENT_MS >= later.mono_ms;
                near && s.readings > 0
                    && s.received_ms.is_some()
                    && s.received_ms == later.received_ms
            };
            let earlier_entries = self.sent.range(..id).filter(|(_, sent)| has_equal(sent));
            for (earlier, _) in earlier_entries.filter(|(id, _)| self.acknowledged(**id)) {
                assert!(
                    back.contains(&(*earlier, false)),
                    "{earlier} may hold a reading equal to one of {id} and was not replayed"
                );
            }
        }
    }

    fn acknowledged(&self, id: u64) -> bool {
        self.outcomes.lock().unwrap().get(&id) == Some(&AckOutcome::Delivered)
    }

    pub(crate) fn stats(&self) -> journal::JournalStats {
        self.opened.as_ref().unwrap().journal.handle().stats()
    }

    pub(crate) fn append(&mut self, ingest_batches: &[(usize, bool)]) {
        let mut group = Vec::new();
        let mut keys = Vec::new();
        for &(readings, dead) in ingest_batches {
            let id = self.next_id;
            self.next_id += 1;
            let Now { wall_ms, mono_ms } = self.clock.now();
            let received_ms = self.received.then_some(wall_ms);
            let start = self.starts;
            self.sent.insert(
                id,
                Sent {
                    readings,
                    received_ms,
                    start,
                    mono_ms,
                },
            );
            let outcomes = self.outcomes.clone();
            let ack = Ack::with(move |outcome| {
                assert!(outcomes.lock().unwrap().insert(id, outcome).is_none());
            });
            let dead: Vec<DeadLetter> = dead.then(|| dead_letter(id)).into_iter().collect();
            keys.extend((readings > 0).then_some((id, false)));
            keys.extend(dead.iter().map(|_| (id, true)));
            group.push(IngestBatch::new(
                batch_received(id, readings, received_ms),
                dead,
                ack,
            ));
        }
        let Some(opened) = &mut self.opened else {
            return;
        };
        // An ingest batch rejected for lack of space would not be part of the write; five large
        // ones need less than this.
        let one_write = opened.journal.handle().stats().bytes + (200 << 10) < self.config.max_bytes;
        opened.journal.append_now(group);
        self.crowded |= !one_write;
        self.last_group.clear();
        for key in keys {
            if self.outcomes.lock().unwrap()[&key.0] == AckOutcome::Delivered {
                self.due.insert(key);
            } else {
                self.maybe.insert(key);
                self.last_group.extend(one_write.then_some(key));
            }
        }
    }

    /// The next entry of the follower, kept in `held`.
    pub(crate) fn take_one(&mut self) -> Option<(Key, u64, bool)> {
        let entry = self.opened.as_mut()?.follower.next_now()?;
        let key = key_of(&entry, &self.sent);
        assert!(
            self.last_seq == 0 || entry.seq == self.last_seq + 1,
            "{} after {}",
            entry.seq,
            self.last_seq
        );
        self.last_seq = entry.seq;
        if key.1 {
            self.dead_taken.insert(entry.seq, (key.0, entry.position));
        }
        self.held.push((key, entry.ack));
        Some((key, entry.seq, entry.replayed))
    }

    /// Takes entries of this run, which must be acknowledged ones.
    pub(crate) fn take(&mut self, n: usize) {
        for _ in 0..n {
            let Some((key, _, replayed)) = self.take_one() else {
                return;
            };
            assert!(!replayed);
            assert!(
                self.due.contains(&key),
                "{key:?} was returned and not acknowledged"
            );
        }
    }

    pub(crate) fn store(&mut self, i: usize) {
        if !self.held.is_empty() {
            let (key, ack) = self.held.swap_remove(i % self.held.len());
            if key.1 && !self.fs.frozen() {
                self.verify_second_read(key.0);
            }
            self.due.remove(&key);
            ack.delivered();
        }
    }

    /// As long as an entry is not stored, it and all later ones that were taken can be read again.
    fn verify_second_read(&self, id: u64) {
        let mut taken = self.dead_taken.iter();
        let Some((&first, &(_, mut from))) = taken.find(|(_, (taken, _))| *taken == id) else {
            return;
        };
        let expected: Vec<_> = self
            .dead_taken
            .range(first..)
            .map(|(_, (id, _))| *id)
            .collect();
        let mut second_reader = self.opened.as_ref().unwrap().follower.second_reader();
        let mut read = vec![];
        loop {
            let (entries, rest) = match second_reader.dead_letters_now(from, self.last_seq) {
                Ok(read) => read,
                Err(_) if self.fs.frozen() => return,
                Err(error) => panic!("{error}"),
            };
            for dead_letters in entries {
                let id = dead_letters[0].received_at_ms as u64;
                assert_eq!(dead_letters, [dead_letter(id)]);
                read.push(id);
            }
            let Some(rest) = rest else { break };
            from = rest;
        }
        assert_eq!(read, expected, "read again from {first} on");
    }

    pub(crate) fn tick(&mut self) {
        if let Some(opened) = &mut self.opened {
            opened.journal.tick_now();
        }
    }

    /// The machine stops here.
    pub(crate) fn crash(&mut self, crash: Crash) {
        let after = self.fs.crash(crash);
        self.held.clear();
        self.opened = None;
        self.fs = after;
    }

    /// The process stops normally and the machine continues.
    pub(crate) fn finish(&mut self) {
        self.opened = None;
        self.held.clear();
    }
}

pub(crate) fn segment_paths(fs: &dyn Fs, dir: &Path) -> Vec<PathBuf> {
    let mut names = fs.list(dir).unwrap();
    names.retain(|name| name.ends_with(".seg"));
    names.sort();
    names.iter().map(|name| dir.join(name)).collect()
}

/// The bytes between the frames of a valid segment, which no checksum covers.
pub(crate) fn padding(segment: &[u8]) -> BTreeSet<usize> {
    let mut at = 4096;
    let end = frames_end(segment) as usize;
    let mut padding = BTreeSet::new();
    while at < end {
        let payload = u32::from_le_bytes(segment[at..at + 4].try_into().unwrap()) as usize;
        let next = at + frame_at(segment, at).0;
        padding.extend(at + 40 + payload..next);
        at = next;
    }
    padding
}

/// Length, sequence and kind of the frame at an offset; see `journal::segment`. No length if
/// there is no frame.
pub(crate) fn frame_at(segment: &[u8], at: usize) -> (usize, u64, u8) {
    let number = |from: usize| u64::from_le_bytes(segment[from..from + 8].try_into().unwrap());
    let Some(head) = segment
        .get(at..at + 40)
        .filter(|head| head.iter().any(|b| *b != 0))
    else {
        return (0, 0, 0);
    };
    let payload = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
    ((40 + payload).next_multiple_of(8), number(at + 8), head[37])
}

/// The kind of the synced frame: everything before it is synced.
pub(crate) const SYNCED: u8 = 4;

/// The end of the frames of a valid segment.
pub(crate) fn frames_end(segment: &[u8]) -> u64 {
    let mut at = 4096;
    let mut expected = None;
    loop {
        let (length, seq, kind) = frame_at(segment, at);
        if length == 0 || kind == SYNCED || expected.is_some_and(|e| e != seq) {
            return at as u64;
        }
        (at, expected) = (at + length, Some(seq + 1));
    }
}
