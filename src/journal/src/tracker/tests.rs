//! Tests of the tracker's rules with a wall clock that jumps, and of the tail.

use std::ops::Range;

use proptest::prelude::*;

use super::*;

fn at(run: u32, mono_ms: u64) -> Appended {
    Appended {
        run,
        mono_ms,
        wall_ms: 0,
    }
}

fn times(all: &[i64]) -> ReceiptTimes {
    let mut times = ReceiptTimes::default();
    all.iter().for_each(|ms| times.add(*ms));
    times
}

#[test]
fn the_low_water_mark_moves_only_over_stored_chunks() {
    let mut tracker = Tracker::new(10, at(1, 100));
    assert_eq!((tracker.unstored_from(), tracker.oldest(10)), (10, None));
    assert_eq!(tracker.oldest(11), Some(at(1, 100)));
    let a = tracker.hand_out(11, at(1, 100), times(&[]));
    tracker.extend(20, at(1, 110), times(&[]));
    let b = tracker.hand_out(21, at(1, 110), times(&[]));
    let c = tracker.hand_out(30, at(1, 120), times(&[]));
    tracker.stored(c);
    assert_eq!(
        (tracker.unstored_from(), tracker.oldest(30)),
        (10, Some(at(1, 100)))
    );
    tracker.stored(a);
    assert_eq!(
        (tracker.unstored_from(), tracker.oldest(30)),
        (20, Some(at(1, 110)))
    );
    tracker.hand_out(31, at(1, 140), times(&[]));
    assert_eq!(tracker.unstored_from(), b);
    tracker.stored(b);
    assert_eq!(tracker.unstored_from(), 30);
}

#[test]
fn a_replay_begins_before_stored_entries_that_may_hold_an_equal_reading() {
    let mut tracker = Tracker::new(10, at(1, 0));
    // End, append time, receipt times. The clock is set back by an hour before the last.
    let chunks: [(u64, u64, &[i64]); 5] = [
        (20, 0, &[1000]),
        (30, 4000, &[4900, 5000]),
        (40, 4500, &[]),
        (50, 5000, &[5000]),
        (60, 5100, &[-3_599_000]),
    ];
    let all: Vec<u64> = chunks
        .map(|(end, ms, of)| tracker.hand_out(end, at(1, ms), times(of)))
        .to_vec();
    let now = |ms| Some(at(1, ms));
    for chunk in [0, 1, 2, 4] {
        tracker.stored(all[chunk]);
    }
    tracker.forget(60, now(5200));
    assert_eq!(
        (tracker.unstored_from(), tracker.replay_from()),
        (40, 20),
        "the second and the fourth share a time"
    );
    tracker.stored(all[3]);
    tracker.forget(60, now(9000));
    assert_eq!(tracker.replay_from(), 20, "the next entry may hold a twin");
    tracker.forget(60, now(9001));
    assert_eq!(
        tracker.replay_from(),
        40,
        "the moment of the second one has passed"
    );
    tracker.forget(60, None);
    assert_eq!(tracker.replay_from(), 60, "no future appends");
}

#[test]
fn unread_entries_keep_their_times_but_not_after_a_restart() {
    let mut tracker = Tracker::new(10, at(1, 0));
    let a = tracker.hand_out(20, at(1, 1000), times(&[7]));
    tracker.stored(a);
    tracker.forget(30, Some(at(2, 99_000)));
    assert_eq!(
        tracker.replay_from(),
        10,
        "the next may have been appended in the same moment"
    );
    let b = tracker.hand_out(30, at(2, 0), times(&[7]));
    tracker.forget(30, Some(at(2, 99_000)));
    assert_eq!(tracker.replay_from(), b);
}

#[test]
fn a_segment_is_given_up_only_if_all_of_it_is_stored() {
    let mut tracker = Tracker::new(10, at(1, 0));
    let chunks: Vec<u64> = [20, 30, 40]
        .map(|end| tracker.hand_out(end, at(1, 0), times(&[7])))
        .to_vec();
    tracker.stored(chunks[0]);
    tracker.stored(chunks[1]);
    tracker.forget(40, Some(at(1, 0)));
    assert_eq!(tracker.replay_from(), 10);
    tracker.give_up(31);
    assert_eq!(tracker.replay_from(), 10, "30 is not stored");
    tracker.give_up(15);
    assert_eq!(tracker.replay_from(), 15);
    tracker.give_up(20);
    assert_eq!(tracker.replay_from(), 20);
    tracker.give_up(30);
    assert_eq!((tracker.replay_from(), tracker.unstored_from()), (30, 30));
}

#[derive(Debug, Clone)]
enum Step {
    /// Time passes; then the wall clock jumps by the second value.
    Pass(u64, i64),
    /// Appends an entry with readings received this long ago, with the wall-clock time of then.
    Append(Vec<u64>),
    /// Hands out one entry per element; `true` starts a chunk.
    HandOut(Vec<bool>),
    /// Leaves what is not handed out, as a backlog.
    Leave,
    /// Hands out of the oldest backlog, like `HandOut`.
    HandOutLeft(Vec<bool>),
    Store(Vec<usize>),
    Forget,
    /// The process is killed; the checkpoint has this percentage of the current start of a replay.
    Restart(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let jump = prop_oneof![4 => Just(0i64), 2 => -10_000..10_000i64, 1 => -4_000_000..4_000_000i64];
    prop_oneof![
        3 => (prop_oneof![0..400u64, 0..9000u64], jump).prop_map(|(ms, jump)| Step::Pass(ms, jump)),
        6 => prop::collection::vec(0..MOMENT_MS, 0..3).prop_map(Step::Append),
        4 => prop::collection::vec(any::<bool>(), 1..6).prop_map(Step::HandOut),
        1 => Just(Step::Leave),
        2 => prop::collection::vec(any::<bool>(), 1..6).prop_map(Step::HandOutLeft),
        4 => prop::collection::vec(0..32usize, 1..6).prop_map(Step::Store),
        3 => Just(Step::Forget),
        1 => (0..=100u64).prop_map(Step::Restart),
    ]
}

struct Sent {
    at: Appended,
    received: Vec<i64>,
}

/// A naive model of the journal: entries by sequence, chunks by ranges.
struct World {
    tracker: Tracker,
    now: Appended,
    /// Offsets of the wall clock in this run, newest last.
    clock: Vec<(u64, i64)>,
    entries: Vec<Sent>,
    /// Chunks of this run, and whether they are stored.
    chunks: Vec<(Range<u64>, bool)>,
    /// What is left of backlogs, each with the time of the entry before, as far as it is known.
    left: Vec<(Range<u64>, Option<Appended>)>,
    /// The next entry begins a chunk.
    begins: bool,
    /// Everything that was ever stored.
    done: BTreeSet<u64>,
}

impl World {
    fn end(&self) -> u64 {
        self.entries.len() as u64
    }

    fn wall_at(&self, mono_ms: u64) -> i64 {
        let known = self
            .clock
            .iter()
            .rev()
            .find(|(from, _)| *from <= mono_ms)
            .or(self.clock.first());
        known.map_or(0, |(_, offset)| offset + mono_ms as i64)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Pass(ms, jump) => {
                self.now.mono_ms += ms;
                let offset = self.clock.last().map_or(0, |(_, offset)| *offset);
                self.clock.push((self.now.mono_ms, offset + jump));
            }
            Step::Append(ago) => {
                let received = ago
                    .iter()
                    .map(|ago| self.wall_at(self.now.mono_ms.saturating_sub(*ago)))
                    .collect();
                if self.tracker.next() >= self.end() {
                    self.tracker.first_in_line(self.now);
                }
                self.entries.push(Sent {
                    at: self.now,
                    received,
                });
            }
            Step::HandOut(begins) => begins.iter().for_each(|begin| self.hand_out(*begin)),
            Step::Leave => {
                let end = self.end();
                let first = self.tracker.leave(end);
                let before = |first: u64| Some(self.entries[first.checked_sub(1)? as usize].at);
                let left = first.map(|first| (first..end, before(first)));
                self.left.extend(left);
                self.begins = true;
            }
            Step::HandOutLeft(begins) => {
                self.begins = true;
                begins.iter().for_each(|begin| self.hand_out_left(*begin));
                self.begins = true;
            }
            Step::Store(which) => {
                for i in which {
                    let mut out: Vec<_> = self
                        .chunks
                        .iter_mut()
                        .filter(|(_, stored)| !stored)
                        .collect();
                    if !out.is_empty() {
                        let i = i % out.len();
                        out[i].1 = true;
                        self.done.extend(out[i].0.clone());
                        self.tracker.stored(out[i].0.start);
                    }
                }
            }
            Step::Forget => {
                self.tracker.forget(self.end(), Some(self.now));
                self.advances();
            }
            Step::Restart(part) => {
                let from = self.tracker.replay_from() * part / 100;
                self.now = at(self.now.run + 1, 0);
                self.clock.truncate(1);
                self.left.clear();
                self.begins = true;
                self.chunks.retain(|(range, _)| range.start < from);
                self.chunks
                    .iter_mut()
                    .for_each(|(range, _)| range.end = range.end.min(from));
                let first = self.entries.get(from as usize).map_or(self.now, |e| e.at);
                self.tracker = Tracker::new(from, first);
            }
        }
    }

    fn hand_out(&mut self, begin: bool) {
        let next = self.tracker.next();
        if next < self.end() {
            match self.follows(next, begin) {
                Some(_) => self.with(next, |tracker, end, at, of| tracker.extend(end, at, of)),
                None => self.with(next, |tracker, end, at, of| {
                    tracker.hand_out(end, at, of);
                }),
            }
        }
    }

    fn hand_out_left(&mut self, begin: bool) {
        let Some((left, before)) = self.left.first_mut() else {
            return;
        };
        let seq = left.start;
        left.start += 1;
        *before = Some(self.entries[seq as usize].at);
        if left.is_empty() {
            self.left.remove(0);
        }
        match self.follows(seq, begin) {
            Some(first) => self.with(seq, |tracker, end, at, of| {
                tracker.extend_left(first, end, at, of);
            }),
            None => self.with(seq, |tracker, end, at, of| {
                tracker.hand_out_left(seq, end, at, of);
            }),
        }
    }

    /// Adds an entry to the last chunk, whose first entry it returns, or to a new one.
    fn follows(&mut self, seq: u64, begin: bool) -> Option<u64> {
        let begins = std::mem::take(&mut self.begins) || begin;
        let run = self.entries[seq as usize].at.run;
        let entries = &self.entries;
        let last = self.chunks.last_mut().filter(|(range, stored)| {
            let is_same_run = || entries[range.start as usize].at.run == run;
            !begins && !*stored && range.end == seq && is_same_run()
        });
        match last {
            Some((range, _)) => {
                range.end += 1;
                Some(range.start)
            }
            None => {
                self.chunks.push((seq..seq + 1, false));
                None
            }
        }
    }

    fn with(&mut self, seq: u64, hand: impl FnOnce(&mut Tracker, u64, Appended, ReceiptTimes)) {
        let entry = &self.entries[seq as usize];
        hand(&mut self.tracker, seq + 1, entry.at, times(&entry.received));
    }

    fn stored(&self, seq: u64) -> bool {
        self.chunks
            .iter()
            .any(|(range, stored)| *stored && range.contains(&seq))
    }

    fn near(&self, a: u64, b: Appended) -> bool {
        let a = self.entries[a as usize].at;
        a.run == b.run && a.mono_ms + MOMENT_MS >= b.mono_ms
    }

    /// A replay never starts too late: every entry that may hold a twin of an unstored reading is
    /// replayed.
    fn is_covered(&self) {
        let from = self.tracker.replay_from();
        for later in (0..self.end()).filter(|seq| !self.done.contains(seq)) {
            assert!(
                from <= later,
                "{later} is not stored, but the replay starts at {from}"
            );
            let entry = &self.entries[later as usize];
            for earlier in (0..later).filter(|seq| self.near(*seq, entry.at)) {
                let has_equal = self.entries[earlier as usize]
                    .received
                    .iter()
                    .any(|ms| entry.received.contains(ms));
                assert!(
                    !has_equal || from <= earlier,
                    "{earlier} may hold a twin of {later}, but the replay starts at {from}"
                );
            }
        }
    }

    /// A replay never starts too early: only unstored entries are kept, those appended within
    /// [`MOMENT_MS`] before, and the rest of their chunks.
    fn advances(&self) {
        let unread = self.tracker.next() < self.end();
        let last_out = self
            .tracker
            .next()
            .checked_sub(1)
            .map(|seq| self.entries[seq as usize].at);
        let line = if unread { last_out } else { Some(self.now) };
        let unstored: Vec<_> = (0..self.end()).filter(|seq| !self.stored(*seq)).collect();
        let needed = |seq: u64| {
            let after = unstored.iter().filter(|later| **later >= seq);
            after
                .clone()
                .any(|later| *later == seq || self.near(seq, self.entries[*later as usize].at))
                || line.is_some_and(|line| self.near(seq, line))
                || self.left.iter().any(|(left, before)| {
                    left.start >= seq && before.is_some_and(|at| self.near(seq, at))
                })
        };
        let kept = (0..self.end()).filter(|seq| needed(*seq));
        let chunk_of = |seq: u64| {
            self.chunks
                .iter()
                .find(|(range, _)| range.contains(&seq))
                .map(|(r, _)| r.start)
        };
        let bound = kept
            .map(|seq| chunk_of(seq).unwrap_or(seq))
            .min()
            .unwrap_or(self.end());
        assert!(
            self.tracker.replay_from() >= bound,
            "{} is kept, but only {bound} is needed",
            self.tracker.replay_from()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn under_any_wall_clock_equal_readings_are_replayed_and_the_replay_start_advances(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let now = at(0, 0);
        let tracker = Tracker::new(0, now);
        let clock = vec![(0, 1_700_000_000_000)];
        let mut world = World { tracker, now, clock, entries: vec![], chunks: vec![], left: vec![], begins: true, done: BTreeSet::new() };
        let mut from = 0;
        for step in &steps {
            world.step(step);
            world.is_covered();
            if !matches!(step, Step::Restart(_)) {
                assert!(world.tracker.replay_from() >= from, "the start of a replay never \
                    decreases");
            }
            from = world.tracker.replay_from();
        }
    }
}

#[test]
fn the_tail_drops_the_oldest_and_returns_the_rest_in_order() {
    let item = |seq| TrackedEntry {
        seq,
        kind: EntryKind::Dead(vec![]),
        at: at(0, 0),
        bytes: 10,
        place: Place {
            segment: 1,
            offset: 0,
        },
    };
    let mut tail = Tail::new(35);
    (1..=5).for_each(|seq| tail.push(item(seq)));
    assert_eq!(tail.first_seq(), Some(3));
    let seqs = |items: Vec<TrackedEntry>| items.iter().map(|item| item.seq).collect::<Vec<_>>();
    assert_eq!(seqs(tail.take(4, 1)), [4]);
    assert_eq!(seqs(tail.take(5, 100)), [5]);
    tail.push(TrackedEntry {
        bytes: 36,
        ..item(6)
    });
    assert_eq!(
        (tail.first_seq(), tail.bytes),
        (None, 0),
        "an entry larger than the tail is read from its segment"
    );
}
