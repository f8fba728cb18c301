//! Exactly once with wrong clocks: sensors that are minutes fast, a service whose clock is wrong at
//! its start or is set while it runs, each with a restart in between and a sender that then repeats
//! everything. Real MongoDB.
//!
//! A time-series collection cannot refuse a duplicate, so in that mode everything depends on which
//! buckets the service regards as new. The same histories run in bucket mode too, where duplicates
//! are refused in any case.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test that prints"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::http_client::agent;
use crate::support::large::counted;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::proxy::Proxy;
use crate::support::service::Service;
use crate::support::stored::{self, Stored};
use crate::support::wait_until;
use config::{AckMode, Config, Secret, StoreMode};
use hourbucket::app;
use hourbucket::shutdown::ExitReason;
use model::{Clock, Now, Span, SystemClock};
use store::mongo::MongoStore;

const PATIENCE: Duration = Duration::from_secs(60);
const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

// ---- Sensors with fast clocks; the binary.

/// Readings of the past, of now, and of buckets that begin in 2 to 8 minutes (`limits.future`
/// allows 10), so that none of these begins before the end of a test.
fn around_now() -> Vec<Stored> {
    let now = now_ms();
    let minute = now_ms() / MINUTE * MINUTE;
    let fast = (2..9).map(|n| (format!("fast-{n}"), minute + n * MINUTE + 1234, n));
    let past = [
        ("slow".to_owned(), now - 9 * MINUTE, 20),
        ("late".to_owned(), now - 3 * DAY, 21),
    ];
    fast.chain(past)
        .chain([("right".to_owned(), now, 22)])
        .collect()
}

fn body(readings: &[Stored]) -> String {
    let line = |(sensor, ts, n): &Stored| {
        format!("{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"n\":{n}}}\n")
    };
    readings.iter().map(line).collect()
}

/// A service with buckets of one minute and its own database.
struct Rig {
    service: Service,
    uri: String,
    database: String,
}

impl Rig {
    fn start(test: &str, mode: &str, ack: &str, store_uri: &str) -> Rig {
        let database = unique_database(&format!("{test}_{mode}_{ack}"));
        let text = format!(
            "store.mode = \"{mode}\"\ningest.ack = \"{ack}\"\nbucket.span = \"1m\"\n\
             flush.max_age = \"200ms\"\nlimits.future = \"10m\""
        );
        let service = Service::start(
            &text,
            &[("STORE__URI", store_uri), ("STORE__DATABASE", &database)],
        );
        Rig {
            service,
            uri: Mongod::shared().uri(),
            database,
        }
    }

    fn post(&self, readings: &[Stored]) {
        let answer = self.service.post(
            "/v1/readings",
            "application/x-ndjson",
            body(readings).as_bytes(),
        );
        let (status, text) = answer.expect("an answer");
        assert_eq!(status, 200, "{text}");
        assert!(
            text.contains(&format!("\"accepted\":{}", readings.len())),
            "{text}"
        );
    }

    /// The sender is not aware of the restart and repeats readings that were stored before it; all
    /// of them are duplicates.
    fn repeat(&self, readings: &[Stored]) {
        self.post(readings);
        let metrics = self.service.wait_settled(readings.len() as u64, PATIENCE);
        stored::exactly_once(
            &stored::readings(&self.uri, &self.database),
            readings.iter().cloned(),
        );
        assert_eq!(metrics.get("readings_stored_total"), 0.0, "stored again");
        // Readings that the journal replayed are duplicates as well.
        assert!(
            metrics.get("readings_duplicate_total") >= readings.len() as f64,
            "duplicates are counted"
        );
    }
}

const CASES: [(&str, &str); 4] = [
    ("timeseries", "journal"),
    ("timeseries", "stored"),
    ("bucket", "journal"),
    ("bucket", "stored"),
];

#[test]
fn a_fast_clock_and_a_restart_before_the_bucket_begins() {
    for (mode, ack) in CASES {
        let mut rig = Rig::start("restart", mode, ack, &Mongod::shared().uri());
        let sent = around_now();
        rig.post(&sent);
        rig.service.wait_settled(sent.len() as u64, PATIENCE);
        assert_eq!(rig.service.terminate(PATIENCE), 0, "{}", rig.service.log());
        rig.service.restart();
        rig.repeat(&sent);
    }
}

#[test]
fn a_fast_clock_and_sigkill_before_the_bucket_begins() {
    for (mode, ack) in CASES {
        let mut rig = Rig::start("sigkill", mode, ack, &Mongod::shared().uri());
        let sent = around_now();
        rig.post(&sent);
        rig.service.wait_settled(sent.len() as u64, PATIENCE);
        // The journal may not have recorded yet that they are stored.
        rig.service.kill9();
        rig.service.restart();
        rig.repeat(&sent);
    }
}

/// MongoDB has stored the readings, but the service is killed before it gets the answer: the
/// journal still has them.
#[test]
fn a_fast_clock_and_replay_of_what_is_stored() {
    // How the inserts of the two modes begin: a BSON text, its name, its length, the collection.
    let inserts = [(
        "timeseries",
        b"\x02insert\0\x10\0\0\0sensor_readings\0".as_slice(),
    )];
    let inserts = inserts.into_iter().chain([(
        "bucket",
        b"\x02insert\0\x0f\0\0\0sensor_buckets\0".as_slice(),
    )]);
    for (mode, insert) in inserts {
        let proxy = Proxy::start(Mongod::shared().port());
        let mut rig = Rig::start("replay", mode, "journal", &proxy.uri());
        let first = ("first".to_owned(), now_ms(), 1);
        rig.post(std::slice::from_ref(&first));
        rig.service.wait_settled(1, PATIENCE);
        let sent = [(
            "fast-1".to_owned(),
            now_ms() / MINUTE * MINUTE + 5 * MINUTE,
            2,
        )];
        proxy.withhold_answers_to(insert);
        rig.post(&sent);
        wait_until("MongoDB has the reading", PATIENCE, || {
            (counted(&rig.uri, &rig.database, "fast-1")[0].0 > 0).then_some(())
        });
        rig.service.kill9();
        proxy.answer_again();
        rig.service.restart();
        wait_until("it is replayed", PATIENCE, || {
            (rig.service
                .wait_settled(1, PATIENCE)
                .get("readings_duplicate_total")
                >= 1.0)
                .then_some(())
        });
        let all: Vec<Stored> = sent.iter().chain([&first]).cloned().collect();
        stored::exactly_once(&stored::readings(&rig.uri, &rig.database), all.clone());
        rig.repeat(&all);
    }
}

/// The journal's disk is lost after everything was stored, or the service gets another directory.
#[test]
fn a_fast_clock_and_a_new_journal() {
    for mode in ["timeseries", "bucket"] {
        let mut rig = Rig::start("new_journal", mode, "journal", &Mongod::shared().uri());
        let sent = around_now();
        rig.post(&sent);
        rig.service.wait_settled(sent.len() as u64, PATIENCE);
        assert_eq!(rig.service.terminate(PATIENCE), 0, "{}", rig.service.log());
        std::fs::remove_dir_all(rig.service.dir().join("journal")).unwrap();
        rig.service.restart();
        rig.repeat(&sent);
    }
}

// ---- A service with a wrong clock; in this process, with a clock that the test sets.

/// The machine's clock plus an offset.
struct SetClock {
    machine: SystemClock,
    ahead_ms: AtomicI64,
}

impl Clock for SetClock {
    fn now(&self) -> Now {
        let now = self.machine.now();
        Now {
            wall_ms: now.wall_ms + self.ahead_ms.load(Ordering::Relaxed),
            ..now
        }
    }
}

/// An event while the service runs.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Its clock is set to this many ms ahead of the true time.
    Set(i64),
    /// Sends readings around the time that is this many ms ahead of the true time; the same ones
    /// again if they were sent before.
    Post(i64),
    /// Long enough for idle buckets to be dropped.
    Wait,
    /// Before the next start, the journal is lost.
    LoseJournal,
}
use Step::{LoseJournal, Post, Set, Wait};

/// How far the clock is ahead at the start, and the events until the service is stopped.
type Run<'a> = (i64, &'a [Step]);

struct History {
    config: Config,
    begun_ms: i64,
    dir: tempfile::TempDir,
    journals: u32,
    sent: Vec<Stored>,
}

impl History {
    fn new(name: &str, mode: StoreMode, ack: AckMode) -> History {
        let mut config = Config::default();
        config.store.uri = Secret::new(Mongod::shared().uri());
        config.store.database = unique_database(name);
        config.store.mode = mode;
        config.bucket.span = Span::from_ms(MINUTE).unwrap();
        config.ingest.ack = ack;
        config.http.listen = "127.0.0.1:0".parse().unwrap();
        config.admin.listen = "127.0.0.1:0".parse().unwrap();
        config.flush.max_age = Duration::from_millis(100);
        let dir = tempfile::tempdir().unwrap();
        History {
            config,
            begun_ms: now_ms(),
            dir,
            journals: 0,
            sent: vec![],
        }
    }

    /// Runs the service once, from start to SIGTERM; then everything acknowledged is stored.
    async fn run(&mut self, (ahead_ms, steps): Run<'_>) {
        self.config.journal.dir = self.dir.path().join(format!("journal-{}", self.journals));
        let clock = Arc::new(SetClock {
            machine: SystemClock::new(),
            ahead_ms: AtomicI64::new(ahead_ms),
        });
        let Config {
            store,
            bucket,
            dead_letters,
            ..
        } = &self.config;
        let store = MongoStore::new(store, bucket.span, dead_letters.retention)
            .await
            .unwrap();
        let store = Arc::new(store);
        let begun = Instant::now();
        let service = loop {
            let config = self.config.clone();
            match app::Service::start(config, store.clone(), clock.clone()).await {
                Ok(service) => break service,
                // The service before releases its journal a moment after it was dropped.
                Err(error) if begun.elapsed() < PATIENCE => {
                    assert!(format!("{error:?}").contains("Locked"), "{error:?}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        };
        let url = format!("http://{}/v1/readings", service.http_addr.unwrap());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(service.run_until(async {
            let _ = stopped.await;
            "the test"
        }));
        for step in steps {
            match step {
                Set(ahead_ms) => clock.ahead_ms.store(*ahead_ms, Ordering::Relaxed),
                Post(ahead_ms) => self.post(url.clone(), *ahead_ms).await,
                Wait => tokio::time::sleep(Duration::from_millis(500)).await,
                LoseJournal => self.journals += 1,
            }
        }
        stop.send(()).unwrap();
        let ended = tokio::time::timeout(PATIENCE, running)
            .await
            .expect("it ends")
            .unwrap();
        assert_eq!(ended, ExitReason::Clean);
    }

    async fn post(&mut self, url: String, ahead_ms: i64) {
        let at = |n: i64, ms: i64| (format!("s{n}"), self.begun_ms + ahead_ms + ms, n);
        let readings = [
            at(0, -20 * MINUTE),
            at(1, -SECOND),
            at(2, 0),
            at(3, 2 * MINUTE),
            at(4, 9 * MINUTE),
        ];
        let text = body(&readings);
        let post = move || {
            let agent = agent();
            let mut answer = agent
                .post(url)
                .header("content-type", "application/x-ndjson")
                .send(&text)
                .unwrap();
            answer.body_mut().read_to_string().unwrap()
        };
        let answer = tokio::task::spawn_blocking(post).await.unwrap();
        assert!(answer.contains("\"accepted\":5,"), "{answer}");
        self.sent.extend(readings);
        self.sent.sort();
        self.sent.dedup();
    }
}

/// Runs the service several times on one database, with both kinds of acknowledgement and in both
/// modes.
fn history(name: &str, runs: &[Run<'_>]) {
    history_with(name, runs, |_| {});
}

fn history_with(name: &str, runs: &[Run<'_>], change: impl Fn(&mut Config)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for mode in [StoreMode::Timeseries, StoreMode::Bucket] {
        for ack in [AckMode::Journal, AckMode::Stored] {
            let mut history = History::new(name, mode, ack);
            change(&mut history.config);
            for (i, run) in runs.iter().enumerate() {
                runtime.block_on(history.run(*run));
                let stored =
                    stored::readings(&Mongod::shared().uri(), &history.config.store.database);
                let right = std::panic::AssertUnwindSafe(|| {
                    stored::exactly_once(&stored, history.sent.clone())
                });
                if let Err(panic) = std::panic::catch_unwind(right) {
                    eprintln!(
                        "{name}, {mode:?}, acknowledged by {ack:?}: wrong after run {i}, {run:?}"
                    );
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// A machine without a battery for its clock, or a restored snapshot: NTP sets the clock after the
/// service has started.
#[test]
fn the_clock_is_behind_at_the_start() {
    for offset in [-HOUR, -3 * YEAR] {
        history("behind", &[(0, &[Post(0)]), (offset, &[Set(0), Post(0)])]);
    }
}

#[test]
fn the_clock_is_behind_at_every_start() {
    history(
        "always_behind",
        &[
            (-3 * YEAR, &[Set(0), Post(0)]),
            (-2 * YEAR, &[Set(0), Post(0)]),
            (-4 * YEAR, &[Set(0), Post(0)]),
        ],
    );
}

/// The clock is never set, and the limits are wide enough to accept the readings.
#[test]
fn the_clock_is_never_right() {
    let century = Duration::from_secs(36_500 * 86_400);
    let runs: [Run<'_>; 3] = [
        (-3 * YEAR, &[Post(0)]),
        (2 * YEAR, &[Post(0)]),
        (-2 * YEAR, &[Post(0)]),
    ];
    history_with("never_right", &runs, |config| {
        (config.limits.past, config.limits.future) = (century, century)
    });
}

/// The clock is ahead by as much as those of the sensors, which use the same time source.
#[test]
fn the_clock_is_ahead_in_the_first_run() {
    history(
        "ahead",
        &[
            (DAY, &[Post(DAY)]),
            (0, &[Post(0), Set(DAY), Post(DAY)]),
            (-HOUR, &[Set(DAY), Post(DAY), Post(0)]),
        ],
    );
}

#[test]
fn the_clock_is_years_ahead_at_the_start() {
    history(
        "years_ahead",
        &[
            (3 * YEAR, &[Set(0), Post(0)]),
            (0, &[Post(0)]),
            (-HOUR, &[Set(0), Post(0)]),
        ],
    );
}

#[test]
fn the_clock_steps_both_ways_while_it_runs_and_between_runs() {
    history(
        "steps",
        &[
            (
                0,
                &[
                    Post(0),
                    Set(-2 * HOUR),
                    Post(-2 * HOUR),
                    Set(3 * HOUR),
                    Post(3 * HOUR),
                    Wait,
                    Set(0),
                    Post(0),
                ],
            ),
            (
                -4 * HOUR,
                &[
                    Post(-4 * HOUR),
                    Set(3 * HOUR),
                    Post(3 * HOUR),
                    Post(0),
                    Post(-2 * HOUR),
                    Post(-4 * HOUR),
                ],
            ),
            (
                5 * HOUR,
                &[
                    Set(-5 * HOUR),
                    Wait,
                    Set(3 * HOUR),
                    Post(3 * HOUR),
                    Post(0),
                    Post(-2 * HOUR),
                    Post(-4 * HOUR),
                ],
            ),
        ],
    );
}

#[test]
fn the_journal_is_lost_and_the_clock_is_behind() {
    history(
        "lost_behind",
        &[
            (0, &[Post(0), LoseJournal]),
            (-DAY, &[Set(0), Post(0), LoseJournal]),
            (-YEAR, &[Set(0), Post(0)]),
        ],
    );
}
