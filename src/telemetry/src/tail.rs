//! Readings and rejects as they arrive, for those who watch (`hourbucket tail`, the fleet page).
//! Global to the process, like the metrics.
//!
//! Without a watcher, a batch costs one load of an atomic. A watcher has a queue of [`QUEUE_MAX`]
//! lines; lines that do not fit are dropped for this watcher and counted, so that no watcher slows
//! a sender down. Lines are made when a batch is handed over, at most [`LINES_MAX`] of it for each
//! watcher, and queued when the batch is acknowledged. So a line means what the acknowledgement of
//! its sender means.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::sync::mpsc;

use super::lock;
use super::metrics::Source;
use super::rejected::Reject;
use model::{ReadingBatch, ReadingRef, SensorPatterns, Tags, ValueRef, rfc3339};

/// Watchers at a time.
pub const WATCHERS_MAX: usize = 16;
/// Lines that wait for a watcher.
const QUEUE_MAX: usize = 1000;
/// Lines of one batch for one watcher.
const LINES_MAX: usize = 100;

static WATCHING: AtomicUsize = AtomicUsize::new(0);
static WATCHERS: Mutex<Vec<Arc<Watcher>>> = Mutex::new(vec![]);

/// What a watcher may see.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The sensors that it requested; `None`: all.
    pub wanted: Option<SensorPatterns>,
    /// The sensors that it may read; `None`: all.
    pub allowed: Option<SensorPatterns>,
}

impl View {
    fn shows(&self, sensor_id: &str) -> bool {
        let matches = |patterns: &Option<SensorPatterns>| {
            patterns.as_ref().is_none_or(|p| p.matches(sensor_id))
        };
        matches(&self.wanted) && matches(&self.allowed)
    }

    /// Whether it sees rejects of this sender, whose name is a topic, a token, a route or a sensor.
    /// They quote the message, so only watchers that may read every sensor see them.
    fn shows_rejects(&self, name: &str) -> bool {
        let levels = || std::iter::once(name).chain(name.split('/'));
        self.allowed.as_ref().is_none_or(SensorPatterns::is_all)
            && self
                .wanted
                .as_ref()
                .is_none_or(|wanted| levels().any(|level| wanted.matches(level)))
    }
}

#[derive(Debug)]
struct Watcher {
    view: Mutex<View>,
    lines: mpsc::Sender<String>,
    dropped: AtomicU64,
}

impl Watcher {
    fn view(&self) -> View {
        lock(&self.view).clone()
    }

    fn send(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The receiving end of a watcher; the watcher ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    watcher: Arc<Watcher>,
    lines: mpsc::Receiver<String>,
}

/// There are [`WATCHERS_MAX`] watchers already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WATCHERS_MAX} others are watching already")]
pub struct TooManyWatchers;

/// Starts to watch.
///
/// # Errors
/// There are too many watchers.
pub fn watch(view: View) -> Result<Watch, TooManyWatchers> {
    let mut watchers = lock(&WATCHERS);
    if watchers.len() >= WATCHERS_MAX {
        return Err(TooManyWatchers);
    }
    let (tx, lines) = mpsc::channel(QUEUE_MAX);
    let watcher = Arc::new(Watcher {
        view: Mutex::new(view),
        lines: tx,
        dropped: AtomicU64::new(0),
    });
    watchers.push(watcher.clone());
    WATCHING.store(watchers.len(), Ordering::Relaxed);
    Ok(Watch { watcher, lines })
}

impl Watch {
    /// The next lines, each a JSON object without a line end; waits for the first one. Begins with
    /// the number of dropped ones, if there are any.
    pub async fn next(&mut self) -> Vec<String> {
        let mut lines = vec![];
        // Not fewer than one: the watcher keeps the sender.
        self.lines.recv_many(&mut lines, QUEUE_MAX).await;
        let dropped = self.watcher.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            lines.insert(0, json!({ "dropped": dropped }).to_string());
        }
        lines
    }

    /// Changes its permissions, from the next batch on.
    pub fn allow(&self, allowed: Option<SensorPatterns>) {
        lock(&self.watcher.view).allowed = allowed;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watchers = lock(&WATCHERS);
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
        WATCHING.store(watchers.len(), Ordering::Relaxed);
    }
}

fn watchers() -> Vec<Arc<Watcher>> {
    match WATCHING.load(Ordering::Relaxed) {
        0 => vec![],
        _ => lock(&WATCHERS).clone(),
    }
}

/// The lines of a batch, until it is acknowledged.
#[derive(Debug, Default)]
pub struct Shown(Vec<(Arc<Watcher>, Vec<String>, u64)>);

/// The lines of a batch for those who watch now.
pub fn readings(source: Source, batch: &ReadingBatch) -> Shown {
    let of = |watcher: Arc<Watcher>| {
        let view = watcher.view();
        let mut shown = batch
            .iter()
            .map(|(_, reading)| reading)
            .filter(|reading| view.shows(reading.sensor_id()));
        let lines = shown
            .by_ref()
            .take(LINES_MAX)
            .map(|reading| line(source, batch, &reading))
            .collect();
        (watcher, lines, shown.count() as u64)
    };
    Shown(watchers().into_iter().map(of).collect())
}

impl Shown {
    /// The batch is acknowledged.
    pub fn send(self) {
        for (watcher, lines, more) in self.0 {
            lines.into_iter().for_each(|line| watcher.send(line));
            watcher.dropped.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Rejected readings, or a message.
pub(super) fn rejected(of: Reject<'_>) {
    for watcher in watchers() {
        if watcher.view().shows_rejects(of.name) {
            let reject = json!({
                "at": rfc3339(of.at_ms), "source": of.source.as_str(), "name": of.name, "reason": of.reason,
                "count": of.count, "detail": of.detail,
            });
            watcher.send(json!({ "reject": reject }).to_string());
        }
    }
}

fn line(source: Source, batch: &ReadingBatch, reading: &ReadingRef<'_>) -> String {
    let values: BTreeMap<&str, ValueRef<'_>> = reading
        .values()
        .map(|(name, value)| (batch.name(name), value))
        .collect();
    let tags = Tags::from_canonical(reading.tags);
    let tags: BTreeMap<&str, &str> = tags.iter().collect();
    json!({
        "sensor_id": reading.sensor_id(), "ts": rfc3339(reading.ts_ms), "values": values, "tags": tags,
        "source": source.as_str(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use model::{Reading, SensorPatterns};

    fn batch(sensors: &[&str]) -> ReadingBatch {
        let reading = |id: &&str| Reading {
            sensor_id: (*id).to_owned(),
            ts_ms: 1_709_287_200_000,
            receipt_time: false,
            tags: [("site".to_owned(), "north".to_owned())].into(),
            values: [("temp".to_owned(), model::Value::Double(22.5))].into(),
        };
        sensors.iter().map(reading).collect()
    }

    fn patterns(pattern: &'static str) -> Option<SensorPatterns> {
        Some(SensorPatterns::parse([pattern]).unwrap())
    }

    /// The readings of other tests in this process are not of these sensors.
    async fn next(watch: &mut Watch) -> Vec<Value> {
        watch
            .next()
            .await
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn a_watcher_sees_what_it_wants_and_may_read_once_it_is_acknowledged() {
        let view = View {
            wanted: patterns("tail-test-1*"),
            allowed: patterns("*-test-*"),
        };
        let mut watch = watch(view).unwrap();
        readings(Source::Http, &batch(&["tail-test-1"]));
        readings(
            Source::Mqtt,
            &batch(&["tail-test-12", "tail-test-2", "tail-other-1"]),
        )
        .send();
        let expected = json!({"sensor_id": "tail-test-12", "ts": "2024-03-01T10:00:00.000Z", "values": {"temp": 22.5},
            "tags": {"site": "north"}, "source": "mqtt"});
        assert_eq!(next(&mut watch).await, [expected]);
        watch.allow(patterns("none"));
        readings(Source::Mqtt, &batch(&["tail-test-12"])).send();
        watch.allow(None);
        for name in ["a/tail-test-1/b", "a/other/b"] {
            rejected(Reject {
                source: Source::Mqtt,
                name,
                reason: "too_old",
                count: 1,
                detail: "x",
                at_ms: 0,
            });
        }
        let found = next(&mut watch).await;
        assert_eq!(
            (found.len(), &found[0]["reject"]["reason"]),
            (1, &json!("too_old")),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn what_does_not_fit_is_dropped_and_counted_and_watchers_are_limited() {
        let mut slow = watch(View {
            wanted: patterns("slow-*"),
            allowed: None,
        })
        .unwrap();
        let many: Vec<&str> = vec!["slow-1"; LINES_MAX + 50];
        for _ in 0..2 * QUEUE_MAX / LINES_MAX {
            readings(Source::Http, &batch(&many)).send();
        }
        let found = next(&mut slow).await;
        let expected = 2 * QUEUE_MAX / LINES_MAX * (LINES_MAX + 50) - QUEUE_MAX;
        assert_eq!(
            (found.len(), &found[0]["dropped"]),
            (QUEUE_MAX + 1, &json!(expected))
        );
        let mut all = vec![];
        while let Ok(watch) = watch(View {
            wanted: patterns("none"),
            allowed: None,
        }) {
            all.push(watch);
        }
        assert!(all.len() < WATCHERS_MAX);
        drop(slow);
        assert!(watch(View::default()).is_ok());
    }
}
