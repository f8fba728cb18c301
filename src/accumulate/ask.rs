//! Questions to a shard, beside the way of the readings.
//!
//! A question is answered by the shard's own task, in between: one piece of work for each portion of readings, so that
//! neither holds the other up, and at once where nothing else is to be done. It is answered behind all portions that were
//! handed over before it was asked ([`Asker::ask`] counts them); a shard that is full takes no portions, and then says
//! that it is behind instead of letting the asker wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::state::Shard;
use super::state::asked::{FleetPart, FleetScan, IdScan, News, SensorView};
use super::task::ShardClosed;
use crate::model::{Now, SensorId, stable_hash};

/// Questions that wait for one shard; those who ask wait for a place.
const ASKS_MAX: usize = 16;

/// What can be asked.
#[derive(Debug)]
pub enum Question {
    /// One sensor's rows that are not known to be stored, in a span of time (ms since 1970, the end exclusive).
    View {
        /// Which sensor.
        sensor_id: SensorId,
        /// From when on.
        from_ms: i64,
        /// Until when.
        to_ms: i64,
    },
    /// The first ids of sensors with rows that are not known to be stored.
    Ids {
        /// How they begin.
        prefix: String,
        /// Behind this one.
        after: Option<String>,
        /// How many.
        limit: usize,
    },
    /// The newest state of these sensors.
    News(Vec<SensorId>),
    /// This shard's part of the fleet.
    Fleet,
}

/// What is answered, to the question of the same name.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::View`].
    View(SensorView),
    /// To [`Question::Ids`]: in the order of their bytes.
    Ids(Vec<SensorId>),
    /// To [`Question::News`]: in their order.
    News(Vec<News>),
    /// To [`Question::Fleet`].
    Fleet(FleetPart),
}

/// An answer, and whether it lacks readings that were handed over before the question.
#[derive(Debug)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// The shard is full and had not taken them in.
    pub behind: bool,
}

/// The handle for questions to one shard. It keeps no shard alive.
#[derive(Debug, Clone)]
pub struct Asker {
    asks: mpsc::Sender<Ask>,
    handed_over: Arc<AtomicU64>,
}

/// A question on its way.
#[derive(Debug)]
pub(super) struct Ask {
    question: Question,
    /// Portions that must be taken in before.
    behind: u64,
    reply: oneshot::Sender<Answered>,
}

impl Asker {
    /// A handle, and the end for the shard's task. `handed_over` counts the portions sent to it.
    pub(super) fn new(handed_over: Arc<AtomicU64>) -> (Asker, Desk) {
        let (asks, rx) = mpsc::channel(ASKS_MAX);
        (Asker { asks, handed_over }, Desk::new(rx))
    }

    /// Asks. Whoever asks puts a time limit around it; cancelling is no harm.
    ///
    /// # Errors
    /// The shard has ended.
    pub async fn ask(&self, question: Question) -> Result<Answered, ShardClosed> {
        let (reply, answer) = oneshot::channel();
        let behind = self.handed_over.load(Ordering::Acquire);
        self.asks.send(Ask { question, behind, reply }).await.map_err(|_| ShardClosed)?;
        answer.await.map_err(|_| ShardClosed)
    }
}

/// A question that is being answered.
enum Work {
    View { sensor_id: SensorId, from_ms: i64, to_ms: i64 },
    Ids(IdScan),
    News { ids: VecDeque<SensorId>, news: Vec<News> },
    Fleet(FleetScan),
}

/// The shard's side: one question at a time, step by step.
pub(super) struct Desk {
    asks: mpsc::Receiver<Ask>,
    /// The one that waits for portions.
    waiting: Option<Ask>,
    work: Option<(Work, oneshot::Sender<Answered>, bool)>,
    taken_in: u64,
}

/// Sensors whose news are told in one step.
const NEWS_STEP: usize = 16;

impl Desk {
    fn new(asks: mpsc::Receiver<Ask>) -> Desk {
        Desk { asks, waiting: None, work: None, taken_in: 0 }
    }

    /// A portion was taken in.
    pub(super) fn took_in(&mut self) {
        self.taken_in += 1;
    }

    /// Waits until there is something to do; pending for ever where nobody asks any more.
    pub(super) async fn something(&mut self) {
        if self.work.is_some() {
            return tokio::task::yield_now().await;
        }
        if self.waiting.is_none() {
            match self.asks.recv().await {
                Some(ask) => self.waiting = Some(ask),
                None => return std::future::pending().await,
            }
        }
        if self.waiting.as_ref().is_some_and(|ask| ask.behind > self.taken_in) {
            // The next portion comes by itself, and the task looks again then.
            std::future::pending().await
        }
    }

    /// Does a step where there is one to do.
    pub(super) fn step(&mut self, shard: &Shard, now: Now) {
        if self.work.is_none() {
            self.begin(shard.full(), now);
        }
        let Some((work, reply, behind)) = self.work.take() else { return };
        if reply.is_closed() {
            return;
        }
        match carry_on(work, shard) {
            // Nobody waits any more: no harm.
            Ok(answer) => drop(reply.send(Answered { answer, behind })),
            Err(work) => self.work = Some((work, reply, behind)),
        }
    }

    /// Takes the next question up, where its turn has come.
    fn begin(&mut self, full: bool, now: Now) {
        let Some(ask) = self.waiting.take().or_else(|| self.asks.try_recv().ok()) else { return };
        let is_behind = ask.behind > self.taken_in;
        if is_behind && !full && !ask.reply.is_closed() {
            self.waiting = Some(ask);
            return;
        }
        let work = match ask.question {
            Question::View { sensor_id, from_ms, to_ms } => Work::View { sensor_id, from_ms, to_ms },
            Question::Ids { prefix, after, limit } => Work::Ids(IdScan::new(prefix, after, limit)),
            Question::News(ids) => Work::News { news: Vec::with_capacity(ids.len()), ids: ids.into() },
            Question::Fleet => Work::Fleet(FleetScan::new(now.wall_ms)),
        };
        self.work = Some((work, ask.reply, is_behind));
    }
}

/// One step; the answer, or what is left to do.
fn carry_on(work: Work, shard: &Shard) -> Result<Answer, Work> {
    match work {
        Work::View { sensor_id, from_ms, to_ms } => {
            Ok(Answer::View(shard.view(stable_hash(&sensor_id), &sensor_id, from_ms, to_ms)))
        }
        Work::Ids(mut scan) => match shard.scan_ids(&mut scan) {
            true => Ok(Answer::Ids(scan.into_ids())),
            false => Err(Work::Ids(scan)),
        },
        Work::News { mut ids, mut news } => {
            for id in ids.drain(..ids.len().min(NEWS_STEP)) {
                news.push(shard.news(stable_hash(&id), &id));
            }
            if ids.is_empty() { Ok(Answer::News(news)) } else { Err(Work::News { ids, news }) }
        }
        Work::Fleet(mut scan) => match shard.scan_fleet(&mut scan) {
            Some(part) => Ok(Answer::Fleet(part)),
            None => Err(Work::Fleet(scan)),
        },
    }
}
