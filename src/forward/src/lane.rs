//! What a lane sends next, and what an answer changes. Pure.
//!
//! **Constraints.** One body is in flight, so the readings of a sensor arrive in the order of the
//! journal. A body that is sent again has the same bytes. Whatever the centre answers, a reading leaves
//! the lane in one way only: with an answer about it.
//!
//! **Answers.** A list of the accepted and rejected readings (200, 400) ends the body. Then its parts of
//! the journal's acknowledgements are returned, and the rejected readings, to be kept first. If the
//! list is not complete, or the body is too large (413, or as a reject), it is split: its readings are
//! again the first ones, and a body has at most half as many. The centre recognises those that it has.
//! Everything else leaves the body as it is: 429 and 503 until the time that they name, 401, 403 and
//! others until an operator has changed something, no answer at all with a growing pause.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answer::{Answer, ItemReject, Items};
use config::{Forward, ForwardCompression};
use decode::forwarded::Encoder;
use model::ack::Ack;
use model::{Reading, ReadingBatch};
use telemetry::metrics::ForwardResult;

/// Pauses between tries of a body (ms): the first, the longest, and the longest that the centre can
/// ask for.
const PAUSE_MIN_MS: u64 = 250;
const PAUSE_MAX_MS: u64 = 30_000;
const ASKED_MAX_MS: u64 = 600_000;
/// The shortest pause after an answer that an operator must do something about.
const OPERATOR_MS: u64 = 5000;
/// The smallest limit of a body.
const BYTES_MIN: usize = 1024;
/// As little as possible for the processor of a small gateway; higher levels save a few percent.
const ZSTD_LEVEL: i32 = 3;
/// How many times a body's limit are collected, as the journal has them: they take fewer bytes in a
/// body.
const COLLECTED_BODIES: usize = 4;
/// Rejects of a body as a whole, as the reason of one of its readings: a smaller one may be accepted.
const TOO_MUCH: [&str; 3] = [
    "too_many_readings",
    "payload_too_large",
    "too_many_field_names",
];
/// The reject of a body that the centre cannot read. That is not the fault of its readings.
const INVALID: &str = "invalid_batch";

/// The settings of a lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneSettings {
    /// The largest body before compression.
    pub bytes_max: usize,
    /// How long its first reading waits for others.
    pub linger_ms: u64,
    /// Whether bodies are compressed with zstd.
    pub is_compressed: bool,
}

impl LaneSettings {
    /// Those of `[forward]`.
    pub fn new(forward: &Forward) -> LaneSettings {
        LaneSettings {
            bytes_max: usize::try_from(forward.batch_max_bytes).unwrap_or(usize::MAX),
            linger_ms: u64::try_from(forward.linger.as_millis()).unwrap_or(u64::MAX),
            is_compressed: forward.compression == ForwardCompression::Zstd,
        }
    }
}

/// Readings of an entry that belong to a lane.
#[derive(Debug)]
pub struct Part {
    batch: Arc<ReadingBatch>,
    /// The offset of each in the batch, and how many equal readings came before it.
    rows: VecDeque<(u32, u32)>,
    ack: Ack,
}

impl Part {
    /// `rows`: the offset of each reading in the batch, and how many equal ones came before it.
    pub fn new(batch: Arc<ReadingBatch>, rows: Vec<(u32, u32)>, ack: Ack) -> Part {
        let rows = rows.into();
        Part { batch, rows, ack }
    }

    /// About as many bytes as these readings take in their batch.
    fn bytes(&self) -> usize {
        let share = self.batch.encoded_bytes() as u64 * self.rows.len() as u64;
        (share / self.batch.len().max(1) as u64) as usize
    }
}

/// A body that was or will be sent.
#[derive(Debug)]
struct Body {
    parts: Vec<Part>,
    readings: usize,
    /// Before compression.
    raw_bytes: usize,
    bytes: Arc<Vec<u8>>,
}

/// What a lane does next.
#[derive(Debug)]
pub enum Next {
    /// Sends this body; [`Lane::answered`] follows.
    Send(Arc<Vec<u8>>),
    /// Nothing until this time (monotonic ms), unless more readings come.
    At(u64),
    /// Nothing until more readings come.
    Idle,
}

/// What an answer has changed.
#[derive(Debug)]
pub enum Outcome {
    /// The body is done.
    Confirmed(Confirmed),
    /// Its readings are sent in smaller bodies.
    Smaller,
    /// The same body is sent later.
    Later {
        /// For the metrics.
        result: ForwardResult,
        /// Why, for people.
        problem: String,
    },
}

/// The readings of a body that the centre has answered.
#[derive(Debug)]
pub struct Confirmed {
    /// How many there were.
    pub readings: usize,
    /// Those that must be kept before [`Confirmed::acks`] are delivered.
    pub rejected: Vec<RejectedReading>,
    /// To be delivered.
    pub acks: Vec<Ack>,
}

/// A reading that the centre does not take.
#[derive(Debug, Clone, PartialEq)]
pub struct RejectedReading {
    /// The reading.
    pub reading: Reading,
    /// One of a fixed set of names.
    pub reason: String,
    /// Why, for people.
    pub detail: String,
}

/// Readings of some sensors on their way to the centre.
#[derive(Debug)]
pub struct Lane {
    settings: LaneSettings,
    waiting: VecDeque<Part>,
    waiting_bytes: usize,
    /// When the first of `waiting` came (monotonic ms).
    since_ms: u64,
    body: Option<Body>,
    /// Limits of a body that the centre has made smaller: for good, and for the readings of one.
    bytes_max: usize,
    readings_max: usize,
    failures: u32,
    /// When the body is sent again (monotonic ms).
    again_ms: u64,
    is_draining: bool,
}

impl Lane {
    /// A lane without readings.
    pub fn new(settings: LaneSettings) -> Lane {
        Lane {
            settings,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            since_ms: 0,
            body: None,
            bytes_max: settings.bytes_max,
            readings_max: usize::MAX,
            failures: 0,
            again_ms: 0,
            is_draining: false,
        }
    }

    /// Whether no more should be added for now.
    pub fn is_full(&self) -> bool {
        self.waiting_bytes >= 2 * self.collected_max()
    }

    /// Adds readings, which come after all others in the journal.
    pub fn push(&mut self, part: Part, now_ms: u64) {
        if self.waiting.is_empty() {
            self.since_ms = now_ms;
        }
        self.waiting_bytes += part.bytes();
        self.waiting.push_back(part);
    }

    /// No more will be added: nothing waits for others from now on.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// What to do now.
    pub fn next(&mut self, now_ms: u64) -> Next {
        if self.body.is_none() {
            if self.waiting.is_empty() {
                return Next::Idle;
            }
            let due_ms = self.since_ms.saturating_add(self.settings.linger_ms);
            let is_due =
                self.is_draining || now_ms >= due_ms || self.waiting_bytes >= self.collected_max();
            if !is_due {
                return Next::At(due_ms);
            }
            self.build();
            // The rest waits for the next body.
            self.since_ms = now_ms;
        }
        match &self.body {
            Some(_) if now_ms < self.again_ms => Next::At(self.again_ms),
            Some(body) => Next::Send(body.bytes.clone()),
            None => Next::Idle,
        }
    }

    /// Takes the answer to the body of [`Next::Send`]. `random`: 0 to 1, for the pause.
    pub fn answered(&mut self, answer: Answer, now_ms: u64, random: f64) -> Outcome {
        let Some(body) = self.body.take() else {
            // There is no answer without a body.
            let problem = "an answer without a request".to_owned();
            let result = ForwardResult::Failed;
            return Outcome::Later { result, problem };
        };
        let (result, pause_ms, problem) = match answer {
            Answer::Items(items) => match body.verdict(&items) {
                Verdict::Done => return self.confirm(body, items),
                Verdict::Split => return self.split(body, false),
                Verdict::Unclear(problem) => (ForwardResult::Refused, OPERATOR_MS, problem),
            },
            Answer::Refused {
                status: 413,
                detail,
                ..
            } => {
                if body.readings > 1 {
                    return self.split(body, true);
                }
                return self.confirm(body, Items::rejecting("payload_too_large", detail));
            }
            Answer::Refused {
                status,
                retry_after_s,
                detail,
            } => {
                let asked_ms = retry_after_s.unwrap_or_default().saturating_mul(1000);
                let (result, least_ms) = match status {
                    408 | 429 | 500.. => (ForwardResult::Busy, asked_ms.min(ASKED_MAX_MS)),
                    401 | 403 => (ForwardResult::Unauthorized, OPERATOR_MS),
                    _ => (ForwardResult::Refused, OPERATOR_MS),
                };
                (result, least_ms, format!("status {status}: {detail}"))
            }
            Answer::None(why) => (ForwardResult::Failed, 0, why),
        };
        self.body = Some(body);
        let grown_ms = PAUSE_MIN_MS << self.failures.min(16);
        let pause_ms = grown_ms.min(PAUSE_MAX_MS).max(pause_ms);
        // Between three and five quarters, so that many sites do not return together.
        let pause_ms = pause_ms as f64 * (0.75 + random / 2.0);
        self.again_ms = now_ms.saturating_add(pause_ms as u64);
        self.failures += 1;
        Outcome::Later { result, problem }
    }

    fn collected_max(&self) -> usize {
        self.bytes_max.saturating_mul(COLLECTED_BODIES)
    }

    /// Makes a body of the first readings.
    fn build(&mut self) {
        let mut encoder = Encoder::new();
        let mut parts = vec![];
        while let Some(part) = self.waiting.front_mut() {
            let bytes = part.bytes();
            encoder.begin_batch();
            let mut rows = VecDeque::new();
            while let Some(&(offset, repeat)) = part.rows.front() {
                if let Some(reading) = part.batch.at(offset) {
                    // The head of a reading and the lengths of its parts are far smaller.
                    let most_bytes = 64
                        + reading.sensor_id_bytes().len()
                        + reading.tags.len()
                        + reading.payload.len();
                    let has_room = encoder.bytes() + most_bytes <= self.bytes_max
                        && encoder.len() < self.readings_max
                        && encoder.has_room(&part.batch, &reading);
                    if !has_room && !encoder.is_empty() {
                        break;
                    }
                    encoder.push(&part.batch, &reading, repeat);
                    rows.push_back((offset, repeat));
                }
                part.rows.pop_front();
            }
            self.waiting_bytes = (self.waiting_bytes + part.bytes()).saturating_sub(bytes);
            let is_used_up = part.rows.is_empty();
            if !rows.is_empty() || is_used_up {
                parts.push(Part {
                    batch: part.batch.clone(),
                    rows,
                    ack: part.ack.clone(),
                });
            }
            if !is_used_up {
                break;
            }
            if let Some(part) = self.waiting.pop_front() {
                // The body has a part of it.
                part.ack.delivered();
            }
        }
        let raw = encoder.finish();
        let raw_bytes = raw.len();
        let bytes = match self.settings.is_compressed {
            // It fails only without memory; then the centre says that it cannot read the body.
            true => zstd::bulk::compress(&raw, ZSTD_LEVEL).unwrap_or(raw),
            false => raw,
        };
        self.body = Some(Body {
            parts,
            readings: encoder.len(),
            raw_bytes,
            bytes: Arc::new(bytes),
        });
        (self.failures, self.again_ms) = (0, 0);
    }

    /// The readings of a body are again the first ones, and the next body is smaller.
    fn split(&mut self, body: Body, is_too_large: bool) -> Outcome {
        if is_too_large {
            self.bytes_max = (body.raw_bytes / 2).max(BYTES_MIN);
        }
        self.readings_max = (body.readings / 2).max(1);
        for part in body.parts.into_iter().rev() {
            self.waiting_bytes += part.bytes();
            self.waiting.push_front(part);
        }
        self.since_ms = 0;
        Outcome::Smaller
    }

    fn confirm(&mut self, body: Body, items: Items) -> Outcome {
        self.readings_max = usize::MAX;
        let rejected = items.errors.into_iter().filter_map(|error| {
            Some(RejectedReading {
                reading: body.reading(error.index)?,
                reason: error.reason,
                detail: error.detail,
            })
        });
        let rejected = rejected.collect();
        Outcome::Confirmed(Confirmed {
            readings: body.readings,
            rejected,
            acks: body.parts.into_iter().map(|part| part.ack).collect(),
        })
    }
}

enum Verdict {
    Done,
    Split,
    Unclear(String),
}

impl Body {
    fn verdict(&self, items: &Items) -> Verdict {
        let Items {
            accepted,
            rejected,
            errors,
        } = items;
        let is_about_another =
            |error: &ItemReject| error.index >= self.readings || error.reason == INVALID;
        let is_complete = accepted.checked_add(*rejected) == Some(self.readings);
        if !is_complete || errors.iter().any(is_about_another) {
            let why = errors.first().map_or("", |error| &error.detail);
            return Verdict::Unclear(format!(
                "the answer is about {accepted} accepted and {rejected} rejected readings of {}: {why}",
                self.readings
            ));
        }
        let is_too_much = |reason: &str| TOO_MUCH.contains(&reason);
        let is_listed = *rejected == errors.len();
        let is_split = !is_listed || errors.iter().any(|error| is_too_much(&error.reason));
        match is_split && self.readings > 1 {
            true => Verdict::Split,
            false => Verdict::Done,
        }
    }

    /// The reading at this position of the body.
    fn reading(&self, index: usize) -> Option<Reading> {
        let mut before = 0;
        for part in &self.parts {
            if let Some((offset, _)) = part.rows.get(index - before) {
                let reading = part.batch.at(*offset)?;
                return Some(reading.to_reading(&part.batch));
            }
            before += part.rows.len();
        }
        None
    }
}

impl Items {
    /// The answer that rejects the only reading of a body.
    fn rejecting(reason: &str, detail: String) -> Items {
        let error = ItemReject {
            index: 0,
            reason: reason.to_owned(),
            detail,
        };
        Items {
            accepted: 0,
            rejected: 1,
            errors: vec![error],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use model::Value;
    use model::ack::AckOutcome;

    const SETTINGS: LaneSettings = LaneSettings {
        bytes_max: 4096,
        linger_ms: 1000,
        is_compressed: false,
    };

    fn part(n: usize, delivered: &Arc<AtomicUsize>) -> Part {
        let reading = |i: usize| Reading {
            sensor_id: format!("sensor-{i}"),
            ts_ms: 1000 + i as i64,
            receipt_time: false,
            tags: BTreeMap::new(),
            values: BTreeMap::from([("n".to_owned(), Value::Int(i as i64))]),
        };
        let batch: Arc<ReadingBatch> = Arc::new((0..n).map(reading).collect());
        let rows = batch
            .places()
            .iter()
            .map(|place| (place.offset, 0))
            .collect();
        let delivered = delivered.clone();
        let ack = Ack::with(move |outcome| {
            assert_eq!(outcome, AckOutcome::Delivered);
            delivered.fetch_add(1, Ordering::Relaxed);
        });
        Part::new(batch, rows, ack)
    }

    fn accepted(n: usize) -> Answer {
        Answer::Items(Items {
            accepted: n,
            ..Items::default()
        })
    }

    fn readings(lane: &mut Lane, now_ms: u64) -> usize {
        match lane.next(now_ms) {
            Next::Send(_) => lane.body.as_ref().map_or(0, |body| body.readings),
            other => panic!("{other:?}"),
        }
    }

    fn deliver(outcome: Outcome) -> Vec<RejectedReading> {
        let Outcome::Confirmed(confirmed) = outcome else {
            panic!("{outcome:?}");
        };
        confirmed.acks.into_iter().for_each(Ack::delivered);
        confirmed.rejected
    }

    #[test]
    fn readings_wait_for_others_and_are_acknowledged_with_their_body() {
        let delivered = Arc::new(AtomicUsize::new(0));
        let mut lane = Lane::new(SETTINGS);
        assert!(matches!(lane.next(0), Next::Idle));
        lane.push(part(2, &delivered), 100);
        assert!(matches!(lane.next(100), Next::At(1100)));
        lane.push(part(3, &delivered), 600);
        assert_eq!(readings(&mut lane, 1100), 5);
        lane.push(part(1, &delivered), 1200);
        assert_eq!(deliver(lane.answered(accepted(5), 1300, 0.5)), []);
        assert_eq!(delivered.load(Ordering::Relaxed), 2);
        assert!(matches!(lane.next(1300), Next::At(2200)));
        lane.drain();
        assert_eq!(readings(&mut lane, 1300), 1);
        deliver(lane.answered(accepted(1), 1400, 0.5));
        assert_eq!(delivered.load(Ordering::Relaxed), 3);
        assert!(matches!(lane.next(1400), Next::Idle));
        assert_eq!(lane.waiting_bytes, 0);
    }

    #[test]
    fn a_failure_sends_the_same_body_again_after_a_growing_pause() {
        let delivered = Arc::new(AtomicUsize::new(0));
        let mut lane = Lane::new(SETTINGS);
        lane.push(part(2, &delivered), 0);
        lane.drain();
        let mut now_ms = 0;
        let mut pauses = vec![];
        for _ in 0..10 {
            assert!(matches!(lane.next(now_ms), Next::Send(_)));
            let failed = lane.answered(Answer::None("cut".into()), now_ms, 0.5);
            assert!(matches!(
                failed,
                Outcome::Later {
                    result: ForwardResult::Failed,
                    ..
                }
            ));
            let Next::At(at_ms) = lane.next(now_ms) else {
                panic!("it waits");
            };
            pauses.push(at_ms - now_ms);
            now_ms = at_ms;
        }
        assert_eq!(pauses[..4], [250, 500, 1000, 2000]);
        assert_eq!(pauses[9], 30_000);
        let refused = |status, retry_after_s| Answer::Refused {
            status,
            retry_after_s,
            detail: String::new(),
        };
        let mut pause = |answer, random| {
            let Next::Send(_) = lane.next(now_ms) else {
                panic!("it is due");
            };
            lane.failures = 0;
            lane.answered(answer, now_ms, random);
            let Next::At(at_ms) = lane.next(now_ms) else {
                panic!("it waits");
            };
            let pause_ms = at_ms - now_ms;
            now_ms = at_ms;
            pause_ms
        };
        assert_eq!(pause(refused(429, Some(7)), 0.5), 7000);
        assert_eq!(pause(refused(503, Some(7)), 0.0), 5250);
        assert_eq!(pause(refused(503, Some(u64::MAX)), 0.5), ASKED_MAX_MS);
        assert_eq!(pause(refused(401, None), 0.5), OPERATOR_MS);
        assert_eq!(pause(refused(404, Some(1)), 0.5), OPERATOR_MS);
        assert_eq!(pause(accepted(3), 0.5), OPERATOR_MS, "not about this body");
        let error = |index, reason: &str| ItemReject {
            index,
            reason: reason.into(),
            detail: String::new(),
        };
        for error in [error(2, "too_old"), error(0, INVALID)] {
            let answer = Answer::Items(Items {
                accepted: 1,
                rejected: 1,
                errors: vec![error],
            });
            assert_eq!(
                pause(answer, 0.5),
                OPERATOR_MS,
                "no reading may be released"
            );
        }
        assert_eq!(readings(&mut lane, now_ms), 2);
        deliver(lane.answered(accepted(2), now_ms, 0.5));
        assert_eq!(delivered.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_body_that_is_too_large_is_split_and_a_single_reading_is_rejected() {
        let delivered = Arc::new(AtomicUsize::new(0));
        let mut lane = Lane::new(SETTINGS);
        lane.push(part(5, &delivered), 0);
        lane.push(part(2, &delivered), 0);
        lane.drain();
        let too_large = || Answer::Refused {
            status: 413,
            retry_after_s: None,
            detail: "too large".into(),
        };
        let mut sent = vec![];
        let mut rejected = vec![];
        while let Next::Send(_) = lane.next(0) {
            let n = lane.body.as_ref().map_or(0, |body| body.readings);
            sent.push(n);
            let last = lane.body.as_ref().and_then(|body| body.reading(n - 1));
            // The centre takes single readings, except for one.
            let answer = match n {
                1 if last.is_some_and(|r| r.sensor_id == "sensor-3") => too_large(),
                1 => accepted(1),
                _ => too_large(),
            };
            if let Outcome::Confirmed(confirmed) = lane.answered(answer, 0, 0.5) {
                rejected.extend(deliver(Outcome::Confirmed(confirmed)));
            }
        }
        assert_eq!(sent.iter().filter(|n| **n == 1).count(), 7, "{sent:?}");
        let found: Vec<_> = rejected
            .iter()
            .map(|r| (r.reading.sensor_id.as_str(), r.reason.as_str()))
            .collect();
        assert_eq!(found, [("sensor-3", "payload_too_large")]);
        assert_eq!(delivered.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn rejects_that_the_answer_does_not_list_are_found_in_smaller_bodies() {
        let delivered = Arc::new(AtomicUsize::new(0));
        let mut lane = Lane::new(SETTINGS);
        lane.push(part(8, &delivered), 0);
        lane.drain();
        let mut rejected = vec![];
        while let Next::Send(_) = lane.next(0) {
            let body = lane.body.as_ref().unwrap();
            let bad: Vec<usize> = (0..body.readings)
                .filter(|i| body.reading(*i).unwrap().ts_ms >= 1005)
                .collect();
            let error = |index: &usize| ItemReject {
                index: *index,
                reason: "too_old".into(),
                detail: "d".into(),
            };
            let items = Items {
                accepted: body.readings - bad.len(),
                rejected: bad.len(),
                // It lists one.
                errors: bad.iter().take(1).map(error).collect(),
            };
            if let Outcome::Confirmed(confirmed) = lane.answered(Answer::Items(items), 0, 0.5) {
                rejected.extend(deliver(Outcome::Confirmed(confirmed)));
            }
        }
        let ids: Vec<_> = rejected.iter().map(|r| &*r.reading.sensor_id).collect();
        assert_eq!(ids, ["sensor-5", "sensor-6", "sensor-7"]);
        assert_eq!(delivered.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_large_entry_leaves_in_bodies_within_the_limit() {
        let delivered = Arc::new(AtomicUsize::new(0));
        let mut lane = Lane::new(SETTINGS);
        lane.push(part(2000, &delivered), 0);
        assert!(lane.is_full());
        lane.drain();
        let mut sent = 0;
        while let Next::Send(body) = lane.next(0) {
            assert!(body.len() <= 4096 + 64, "{}", body.len());
            let n = lane.body.as_ref().map_or(0, |body| body.readings);
            sent += n;
            deliver(lane.answered(accepted(n), 0, 0.5));
        }
        assert_eq!((sent, delivered.load(Ordering::Relaxed)), (2000, 1));
        assert_eq!(lane.waiting_bytes, 0);
    }
}
