//! Readings on their way from instances that forward to the centre, one or two steps away: with lost
//! requests and answers, refusals, and kills of each. What each edge acknowledged is stored once,
//! readings with and without their own time.
//!
//! Real are the journals, the lanes, the bodies, and the centre's decoder and comparison of duplicates.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use decode::{Context, Decoder, Rejects};
use forward::{
    Answer, EqualReadings, Items, KeptBack, Lane, LaneSettings, Newest, Next, Outcome, Part,
    rows_of_lanes,
};
use journal::admission::{AdmissionControl, IngestBatch};
use journal::{EntryKind, Follower, Journal, JournalDeps, JournalEntry, OpenedJournal};
use model::ack::{Ack, AckOutcome};
use model::{BatchBuilder, Clock, ReadingBatch, StorageMode, Value, ValueRef};
use pipeline::accumulate::PageLimits;
use testkit::SetClock;
use testkit::memory_fs::{Crash, MemFs};

use crate::shard_rig::{START_MS, ShardRig, shard};

const LANES: usize = 2;
const SETTINGS: LaneSettings = LaneSettings {
    bytes_max: 200,
    linger_ms: 5,
    is_compressed: false,
};

/// An instance that forwards.
struct Edge {
    fs: MemFs,
    clock: Arc<SetClock>,
    opened: Option<OpenedJournal>,
    newest: Newest,
    /// Those that were left, oldest first.
    backlogs: Vec<Backlog>,
    /// The last one is for backlogs.
    lanes: Vec<Lane>,
}

/// A backlog that was left, its counts, and its end once it is known.
struct Backlog {
    follower: Follower,
    has_begun: bool,
    equal: EqualReadings,
    end: Option<Vec<KeptBack>>,
}

impl Edge {
    fn new(clock: &Arc<SetClock>) -> Edge {
        let mut edge = Edge {
            fs: MemFs::new(),
            clock: clock.clone(),
            opened: None,
            newest: Newest::default(),
            backlogs: vec![],
            lanes: vec![],
        };
        edge.start();
        edge
    }

    fn start(&mut self) {
        let config = config::Journal {
            dir: PathBuf::from("j"),
            max_bytes: 1 << 20,
            segment_bytes: 64 << 10,
            commit_delay: Duration::ZERO,
        };
        let deps = JournalDeps {
            fs: Arc::new(self.fs.clone()),
            clock: self.clock.clone(),
            admission_control: AdmissionControl::default(),
            on_broken: Box::new(|_| ()),
            keys: Default::default(),
        };
        // A small tail, so that entries are read from the segments too.
        self.opened = Some(Journal::open_with_tail(&config, deps, 2000).unwrap());
        self.newest = Newest::default();
        self.backlogs.clear();
        self.lanes = (0..=LANES).map(|_| Lane::new(SETTINGS)).collect();
    }

    fn kill(&mut self, seed: u64) {
        self.fs = self.fs.crash(Crash::Random(seed));
        self.opened = None;
        self.start();
    }

    /// Whether the readings were acknowledged.
    fn append(&mut self, batch: ReadingBatch) -> bool {
        let is_acknowledged = Arc::new(AtomicBool::new(false));
        let noted = is_acknowledged.clone();
        let ack = Ack::with(move |outcome| {
            noted.store(outcome == AckOutcome::Delivered, Ordering::Relaxed);
        });
        let journal = &mut self.opened.as_mut().unwrap().journal;
        journal.append_now(vec![IngestBatch::new(batch, vec![], ack)]);
        is_acknowledged.load(Ordering::Relaxed)
    }

    /// Takes the body of another instance.
    fn receive(&mut self, body: &[u8]) -> Answer {
        let (batch, rejects) = decoded(body, self.clock.now().wall_ms);
        let accepted = batch.len();
        if !self.append(batch) {
            return Answer::None("not acknowledged".into());
        }
        items(accepted, &rejects)
    }

    /// Hands one entry to the lanes; `false` if there is none.
    fn pump(&mut self) -> bool {
        let now = self.clock.now();
        let opened = self.opened.as_mut().unwrap();
        opened.journal.tick_now();
        if self.lanes[..LANES].iter().any(Lane::is_full) {
            return false;
        }
        let Some(entry) = opened.follower.next_now() else {
            let is_due = self
                .newest
                .end_due_ms()
                .is_some_and(|due_ms| now.wall_ms >= due_ms);
            if is_due {
                let end = self.newest.take_end(None);
                self.end_backlog(end);
            }
            return false;
        };
        let end = self.newest.take_end(Some(entry.wall_ms));
        self.end_backlog(end);
        let batch = batch_of(&entry);
        let rows = self.newest.rows(&batch, entry.wall_ms, &entry.ack, LANES);
        hand(
            &mut self.lanes[..LANES],
            &batch,
            rows,
            &entry.ack,
            now.mono_ms,
        );
        entry.ack.delivered();
        true
    }

    /// Leaves what is not handed over yet.
    fn leave(&mut self) {
        if self.newest.is_leaving() {
            return;
        }
        let follower = &mut self.opened.as_mut().unwrap().follower;
        if let Some(follower) = follower.leave_backlog() {
            self.backlogs.push(Backlog {
                follower,
                has_begun: false,
                equal: self.newest.leave(self.clock.now().wall_ms),
                end: None,
            });
        }
    }

    fn end_backlog(&mut self, end: Option<Vec<KeptBack>>) {
        if let (Some(end), Some(last)) = (end, self.backlogs.last_mut()) {
            last.end = Some(end);
        }
    }

    /// The same for the oldest backlog.
    fn pump_backlog(&mut self) -> bool {
        let now_ms = self.clock.now().mono_ms;
        let lane = &mut self.lanes[LANES..];
        let Some(backlog) = self.backlogs.first_mut().filter(|_| !lane[0].is_full()) else {
            return false;
        };
        backlog.has_begun |= backlog.follower.is_oldest();
        if !backlog.has_begun {
            return false;
        }
        if let Some(entry) = backlog.follower.next_now() {
            let batch = batch_of(&entry);
            let rows = rows_of_lanes(&batch, &mut backlog.equal, entry.wall_ms, 1);
            hand(lane, &batch, rows, &entry.ack, now_ms);
            entry.ack.delivered();
            return true;
        }
        let Some(end) = backlog.end.take() else {
            return false;
        };
        for kept in end {
            let rows = kept.rows(&mut backlog.equal, 1);
            hand(lane, &kept.batch, rows, &kept.ack, now_ms);
            kept.ack.delivered();
        }
        self.backlogs.remove(0);
        true
    }

    fn is_done(&self) -> bool {
        let stats = self.opened.as_ref().unwrap().journal.handle().stats();
        self.backlogs.is_empty() && stats.unstored_from.is_none() && stats.backlog_entries == 0
    }
}

fn batch_of(entry: &JournalEntry) -> Arc<ReadingBatch> {
    match &entry.kind {
        EntryKind::Readings(batch) => batch.clone(),
        EntryKind::Dead(_) => Arc::default(),
    }
}

fn hand(
    lanes: &mut [Lane],
    batch: &Arc<ReadingBatch>,
    rows: Vec<Vec<(u32, u32)>>,
    ack: &Ack,
    now_ms: u64,
) {
    for (lane, rows) in lanes.iter_mut().zip(rows) {
        if !rows.is_empty() {
            lane.push(Part::new(batch.clone(), rows, ack.clone()), now_ms);
        }
    }
}

fn decoded(body: &[u8], now_ms: i64) -> (ReadingBatch, Rejects) {
    let cx = Context {
        received_at_ms: now_ms,
        ..Context::usual()
    };
    let mut out = BatchBuilder::new(8);
    let mut rejects = Rejects::new();
    Decoder::forwarded().decode(body, None, &cx, &mut out, &mut rejects);
    (out.finish(), rejects)
}

fn items(accepted: usize, rejects: &Rejects) -> Answer {
    assert!(rejects.is_empty(), "{:?}", rejects.list());
    Answer::Items(Items {
        accepted,
        ..Items::default()
    })
}

/// The instance that stores.
struct Centre {
    rig: ShardRig,
    page: PageLimits,
    /// In its journal, and not stored.
    unstored: Vec<ReadingBatch>,
}

impl Centre {
    fn receive(&mut self, body: &[u8], now_ms: i64) -> Answer {
        let (batch, rejects) = decoded(body, now_ms);
        self.rig.now.wall_ms = now_ms;
        self.rig.accept_all(batch.clone(), Ack::none(), false);
        let accepted = batch.len();
        self.unstored.push(batch);
        items(accepted, &rejects)
    }

    fn flush(&mut self, lost: usize) {
        self.rig.flush(lost);
        self.unstored.clear();
    }

    fn kill(&mut self) {
        self.rig.shard = shard(100, self.page);
        for batch in &self.unstored {
            self.rig.accept_all(batch.clone(), Ack::none(), true);
        }
    }
}

type Stored = BTreeMap<(String, i64, i64), usize>;

struct World {
    random: fastrand::Rng,
    clock: Arc<SetClock>,
    edges: Vec<Edge>,
    /// Whether the last edge is between the others and the centre.
    is_chain: bool,
    is_newest_first: bool,
    centre: Centre,
    expected: Stored,
}

impl World {
    fn new(seed: u64) -> World {
        let clock = Arc::new(SetClock::new(1000));
        clock.set_wall(START_MS);
        let is_chain = seed.is_multiple_of(2);
        let storage_mode = match seed % 3 {
            0 => StorageMode::TimeSeries,
            _ => StorageMode::Bucket,
        };
        let page = PageLimits {
            readings: if seed.is_multiple_of(5) { 3 } else { 1000 },
            bytes: 1 << 20,
            summary_bytes: 1 << 20,
        };
        World {
            random: fastrand::Rng::with_seed(seed),
            edges: (0..2 + usize::from(is_chain))
                .map(|_| Edge::new(&clock))
                .collect(),
            clock,
            is_chain,
            is_newest_first: seed.is_multiple_of(3) || seed % 4 == 1,
            centre: Centre {
                rig: ShardRig::new(storage_mode, shard(100, page)),
                page,
                unstored: vec![],
            },
            expected: Stored::new(),
        }
    }

    fn now_ms(&self) -> i64 {
        self.clock.now().wall_ms
    }

    fn advance(&mut self, ms: u64) {
        self.clock.set_wall(self.now_ms() + ms as i64);
        self.clock.advance(ms);
    }

    /// New readings at one of the first two edges; some repeat others of this body.
    fn send_readings(&mut self) {
        let edge = self.random.usize(..2);
        let now_ms = self.now_ms();
        let mut batch = BatchBuilder::new(8);
        let mut sent = vec![];
        for _ in 0..self.random.usize(1..8) {
            let sensor = format!("edge{edge}-{}", self.random.u8(..3));
            let is_receipt = self.random.bool();
            let (ts_ms, value) = match is_receipt {
                true => (now_ms, self.random.i64(0..2)),
                false => (now_ms - self.random.i64(0..20), self.random.i64(10..12)),
            };
            batch.begin();
            batch.value("n", ValueRef::Int(value)).unwrap();
            batch.commit(&sensor, ts_ms, is_receipt, &[]).unwrap();
            sent.push((sensor, ts_ms, value, is_receipt));
        }
        if self.edges[edge].append(batch.finish()) {
            for (sensor, ts_ms, value, is_receipt) in sent {
                let count = self.expected.entry((sensor, ts_ms, value)).or_default();
                *count = if is_receipt { *count + 1 } else { 1 };
            }
        }
    }

    /// A lane sends if it has something. `is_safe`: nothing goes wrong.
    fn send(&mut self, edge: usize, lane: usize, is_safe: bool) -> bool {
        let now = self.clock.now();
        let Next::Send(body) = self.edges[edge].lanes[lane].next(now.mono_ms) else {
            return false;
        };
        let fault = if is_safe { 9 } else { self.random.u8(..10) };
        let refused = |status| Answer::Refused {
            status,
            retry_after_s: Some(0),
            detail: String::new(),
        };
        let answer = match fault {
            0 => Answer::None("the request is lost".into()),
            // A single reading would be rejected.
            1 if decoded(&body, now.wall_ms).0.len() > 1 => refused(413),
            2 => refused(503),
            _ => {
                let to_centre = !self.is_chain || edge == 2;
                let answer = match to_centre {
                    true => self.centre.receive(&body, now.wall_ms),
                    false => self.edges[2].receive(&body),
                };
                match fault {
                    3 | 4 => Answer::None("the answer is lost".into()),
                    _ => answer,
                }
            }
        };
        let jitter = self.random.f64();
        let lane = &mut self.edges[edge].lanes[lane];
        if let Outcome::Confirmed(confirmed) = lane.answered(answer, now.mono_ms, jitter) {
            assert_eq!(confirmed.rejected, []);
            confirmed.acks.into_iter().for_each(Ack::delivered);
        }
        true
    }

    fn step(&mut self) {
        match self.random.u8(..20) {
            0..4 => self.send_readings(),
            4..8 => {
                let edge = self.random.usize(..self.edges.len());
                match self.random.u8(..8) {
                    // One in the middle keeps the order.
                    0 if self.is_newest_first && edge < 2 => self.edges[edge].leave(),
                    1..4 => drop(self.edges[edge].pump_backlog()),
                    _ => drop(self.edges[edge].pump()),
                }
            }
            8..15 => {
                let edge = self.random.usize(..self.edges.len());
                let lane = self.random.usize(..=LANES);
                self.send(edge, lane, false);
            }
            15 => {
                let lost = self.random.usize(..2);
                self.centre.flush(lost);
            }
            16 if self.random.bool() => self.centre.kill(),
            17 if self.random.bool() => {
                let edge = self.random.usize(..self.edges.len());
                let seed = self.random.u64(..);
                self.edges[edge].kill(seed);
                // A start takes time: no reading of the new process has a time of the one before.
                self.advance(1);
            }
            _ => {
                let ms = [1, 1, 7, 300, 40_000][self.random.usize(..5)];
                self.advance(ms);
            }
        }
    }

    fn stored(&self) -> Stored {
        let mut stored = Stored::new();
        for reading in self.centre.rig.pages.readings() {
            let Value::Int(value) = reading.values["n"] else {
                panic!("{reading:?}");
            };
            let key = (reading.sensor_id.clone(), reading.ts_ms, value);
            *stored.entry(key).or_default() += 1;
        }
        stored
    }

    /// Everything that is left arrives.
    fn finish(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "it does not come to rest");
            let mut is_done = true;
            for edge in 0..self.edges.len() {
                while self.edges[edge].pump() || self.edges[edge].pump_backlog() {}
                for lane in 0..=LANES {
                    while self.send(edge, lane, true) {}
                }
                is_done &= self.edges[edge].is_done();
            }
            if is_done {
                break;
            }
            self.advance(1000);
        }
        self.centre.flush(0);
    }
}

fn run(seeds: std::ops::Range<u64>, steps: usize) {
    for seed in seeds {
        let mut world = World::new(seed);
        for _ in 0..steps {
            world.step();
        }
        world.finish();
        let stored = world.stored();
        let expected = &world.expected;
        let differ: Vec<_> = expected
            .iter()
            .map(|(key, count)| (key, *count, stored.get(key).copied().unwrap_or_default()))
            .filter(|(_, expected, stored)| expected != stored)
            .collect();
        assert!(
            differ.is_empty(),
            "seed {seed}: (key, expected, stored) {differ:?}"
        );
        assert_eq!(stored.len(), expected.len(), "seed {seed}");
    }
}

/// The centre must not get the second of two equal readings before the first.
#[test]
fn a_backlog_begins_when_everything_before_it_is_stored() {
    let mut world = World::new(1);
    let now_ms = world.now_ms();
    let equal = || {
        let mut batch = BatchBuilder::new(8);
        batch.begin();
        batch.value("n", ValueRef::Int(1)).unwrap();
        batch.commit("s", now_ms, true, &[]).unwrap();
        batch.finish()
    };
    let edge = &mut world.edges[0];
    assert!(edge.append(equal()) && edge.pump() && edge.append(equal()));
    edge.leave();
    assert!(!edge.pump_backlog(), "the first one is on its way");
    world.advance(SETTINGS.linger_ms);
    let sent = (0..LANES).filter(|lane| world.send(0, *lane, true));
    assert_eq!(sent.count(), 1);
    assert!(world.edges[0].pump_backlog());
    world.finish();
    assert_eq!(world.stored(), Stored::from([(("s".into(), now_ms, 1), 2)]));
}

#[test]
fn everything_arrives_once_whatever_is_lost_or_killed() {
    run(0..60, 400);
}

#[test]
#[ignore = "takes minutes"]
fn everything_arrives_once_in_many_runs() {
    run(60..3000, 600);
}
