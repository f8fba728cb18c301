//! Sensors that send one reading per second each, and a measurement of how long each reading takes
//! from its acknowledgement until it is stored in MongoDB. No other sensor may delay them.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};

use super::block_on;
use super::fleet::now_ms;
use super::http_client::agent_within;
use super::stored::Stored;

const SEND_EVERY: Duration = Duration::from_secs(1);
/// The longest time for which senders may be refused.
const ACKED_WITHIN: Duration = Duration::from_secs(60);
/// Interval of the queries to MongoDB.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The sensors, and a watcher that queries MongoDB for their readings.
pub struct Steady {
    shared: Arc<Shared>,
    sender: JoinHandle<Vec<Stored>>,
    watcher: JoinHandle<()>,
}

struct Shared {
    sensors: usize,
    limit: Duration,
    /// Stops the sensors.
    stop: AtomicBool,
    /// The sensors have stopped: nothing more will be acknowledged.
    stopped: AtomicBool,
    /// When the nth reading of every sensor was acknowledged.
    acked: Mutex<Vec<Instant>>,
    /// The greatest age of an unstored reading, and which reading it was.
    worst: Mutex<(Duration, String)>,
}

impl Steady {
    /// Starts `sensors` sensors that post to `url`; MongoDB is queried directly at `store_uri`.
    /// `limit`: the maximum age of an acknowledged reading before it is stored and counted in its
    /// bucket's summary, for [`Steady::check`].
    pub fn start(
        url: String,
        store_uri: String,
        database: &str,
        sensors: usize,
        limit: Duration,
    ) -> Steady {
        let shared = Arc::new(Shared {
            sensors,
            limit,
            stop: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            acked: Mutex::default(),
            worst: Mutex::default(),
        });
        let of_sender = shared.clone();
        let of_watcher = shared.clone();
        let database = database.to_owned();
        let sender = std::thread::spawn(move || of_sender.send(&url));
        let watcher = std::thread::spawn(move || block_on(of_watcher.watch(&store_uri, &database)));
        Steady {
            shared,
            sender,
            watcher,
        }
    }

    /// The greatest age so far.
    pub fn worst(&self) -> Duration {
        self.shared.worst.lock().unwrap().0
    }

    /// # Panics
    /// A reading has waited for longer than the limit.
    #[track_caller]
    pub fn check(&self) {
        self.shared.check();
    }

    /// Stops the sensors, waits until everything is stored, and returns what was acknowledged and
    /// the greatest age.
    ///
    /// # Panics
    /// See [`Steady::check`].
    #[track_caller]
    pub fn finish(self) -> (Vec<Stored>, Duration) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("the sensors");
        self.shared.stopped.store(true, Ordering::Relaxed);
        while !self.watcher.is_finished() {
            self.shared.check();
            std::thread::sleep(LOOK_EVERY);
        }
        self.watcher.join().expect("the watcher");
        self.shared.check();
        let worst = self.shared.worst.lock().unwrap().0;
        (sent, worst)
    }
}

impl Shared {
    #[track_caller]
    fn check(&self) {
        let (worst, which) = self.worst.lock().unwrap().clone();
        let acked = self.acked.lock().unwrap().len();
        assert!(
            worst <= self.limit,
            "{which}, not the sensor at fault: not stored {worst:?} after its acknowledgement, \
             {:?} are allowed ({acked} readings of each were acknowledged)",
            self.limit
        );
    }

    /// Posts a reading of every sensor each second, each until it is acknowledged; returns the
    /// record.
    fn send(&self, url: &str) -> Vec<Stored> {
        let agent = agent_within(Duration::from_secs(20));
        let begun = Instant::now();
        let mut record = vec![];
        for n in 0.. {
            let next = begun + SEND_EVERY * n;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let ts = now_ms();
            let readings: Vec<Stored> = (0..self.sensors)
                .map(|i| (id(i), ts, i64::from(n)))
                .collect();
            let body: String = readings
                .iter()
                .map(|(sensor, ts, n)| {
                    format!("{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"n\":{n}}}\n")
                })
                .collect();
            let post = || {
                let request = agent
                    .post(format!("{url}/v1/readings"))
                    .header("content-type", "application/x-ndjson");
                request
                    .send(body.as_bytes())
                    .is_ok_and(|answer| answer.status().as_u16() == 200)
            };
            let since = Instant::now();
            while !post() {
                assert!(
                    since.elapsed() < ACKED_WITHIN,
                    "a reading of every sensor is not acknowledged"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
            self.acked.lock().unwrap().push(Instant::now());
            record.extend(readings);
        }
        record
    }

    /// Runs until the sensors are stopped and everything is stored, or a reading is too late.
    async fn watch(&self, uri: &str, database: &str) {
        let client = mongodb::Client::with_uri_str(uri).await.expect("a client");
        let pages = client
            .database(database)
            .collection::<Document>("sensor_buckets");
        let ids: Vec<String> = (0..self.sensors).map(id).collect();
        // In time-series mode a summary counts stored measurements.
        let counts = [
            doc! { "$match": { "sensor_id": { "$in": &ids } } },
            doc! { "$group": { "_id": "$sensor_id", "n": { "$sum": "$count" } } },
        ];
        loop {
            let stopped = self.stopped.load(Ordering::Relaxed);
            let at = Instant::now();
            let mut stored: HashMap<String, usize> = HashMap::new();
            let mut cursor = pages.aggregate(counts.clone()).await.expect("a cursor");
            while cursor.advance().await.expect("the next row") {
                let row = cursor.deserialize_current().expect("a row");
                stored.insert(
                    row.get_str("_id").unwrap().to_owned(),
                    row.get_i32("n").unwrap() as usize,
                );
            }
            let acked = self.acked.lock().unwrap().clone();
            let mut all = true;
            for sensor in &ids {
                let n = stored.get(sensor).copied().unwrap_or(0);
                let Some(since) = acked.get(n) else { continue };
                all = false;
                let age = at.saturating_duration_since(*since);
                let mut worst = self.worst.lock().unwrap();
                if age > worst.0 {
                    *worst = (age, format!("reading {n} of {sensor}"));
                }
            }
            if (stopped && all) || self.worst.lock().unwrap().0 > self.limit {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn id(sensor: usize) -> String {
    format!("steady-{sensor}")
}
