//! Senders that record what was acknowledged, outside of the process under test.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rumqttc_v4 as mqtt;

use super::http_client::agent_within;
use super::stored::Stored;

/// How long devices try to connect to their broker.
const BROKER_WITHIN: Duration = Duration::from_secs(60);

/// The pause of a slow gateway after each batch.
const PAUSE: Duration = Duration::from_millis(10);

/// The current time, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as i64
}

/// How far the clock of a sensor is ahead. Spread evenly, from `-spread_ms` for the first sensor to
/// `spread_ms` for the last.
fn skew_ms(sensor: usize, sensors: usize, spread_ms: i64) -> i64 {
    2 * spread_ms * sensor as i64 / (sensors as i64 - 1).max(1) - spread_ms
}

/// A gateway: posts batches one after another, and repeats each until it is acknowledged.
pub struct Gateway {
    stop: Arc<AtomicBool>,
    /// Readings acknowledged so far.
    pub acked: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<Stored>>,
}

impl Gateway {
    /// Starts a gateway that posts batches of `batch` readings of `sensors` sensors to `url`.
    pub fn start(name: &str, url: String, sensors: usize, batch: usize) -> Gateway {
        Gateway::run(name, url, sensors, batch, 0, Duration::ZERO)
    }

    /// Like [`Gateway::start`], but it pauses after each batch: a hundred batches per second leave
    /// the two cores time for the other processes, and are enough for writes at any instant.
    pub fn start_slow(name: &str, url: String, sensors: usize, batch: usize) -> Gateway {
        Gateway::run(name, url, sensors, batch, 0, PAUSE)
    }

    /// Like [`Gateway::start_slow`], with sensors whose clocks are wrong by up to `spread_ms`
    /// ([`skew_ms`]). It is also an impatient sender: after a request without an answer it repeats
    /// the previous, acknowledged batch.
    pub fn start_hostile(
        name: &str,
        url: String,
        sensors: usize,
        batch: usize,
        spread_ms: i64,
    ) -> Gateway {
        Gateway::run(name, url, sensors, batch, spread_ms, PAUSE)
    }

    fn run(
        name: &str,
        url: String,
        sensors: usize,
        batch: usize,
        spread_ms: i64,
        pause: Duration,
    ) -> Gateway {
        let stop = Arc::new(AtomicBool::new(false));
        let acked = Arc::new(AtomicUsize::new(0));
        let stopped = stop.clone();
        let count = acked.clone();
        let name = name.to_owned();
        let thread = std::thread::spawn(move || {
            let agent = agent_within(Duration::from_secs(20));
            let mut record = vec![];
            let mut n = 0i64;
            let mut before = String::new();
            // Sends the same bytes until the answer is 200, even after the stop flag: a batch that
            // was sent once may be stored. Returns whether every attempt was answered.
            let send = |lines: &str| {
                let mut answered = true;
                loop {
                    let request = agent
                        .post(format!("{url}/v1/readings"))
                        .header("content-type", "application/x-ndjson");
                    match request.send(lines.as_bytes()) {
                        Ok(answer) if answer.status().as_u16() == 200 => return answered,
                        Ok(answer) => {
                            let status = answer.status().as_u16();
                            assert!(
                                matches!(status, 429 | 503),
                                "{status}: {:?}",
                                answer.into_body().read_to_string()
                            );
                        }
                        Err(_) => answered = false,
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            while !stopped.load(Ordering::Relaxed) {
                let ts = now_ms();
                let reading = |i: i64| {
                    let sensor = (n + i) as usize % sensors;
                    (
                        format!("{name}-{sensor}"),
                        ts + i / 100 + skew_ms(sensor, sensors, spread_ms),
                        n + i,
                    )
                };
                let readings: Vec<Stored> = (0..batch as i64).map(reading).collect();
                n += batch as i64;
                let lines: String = readings
                    .iter()
                    .map(|(s, ts, n)| {
                        format!(
                            "{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n},\"half\":{}}}\n",
                            *n as f64 / 2.0
                        )
                    })
                    .collect();
                if !send(&lines) && spread_ms > 0 && !before.is_empty() {
                    send(&before);
                }
                before = lines;
                count.fetch_add(batch, Ordering::Relaxed);
                record.extend(readings);
                std::thread::sleep(pause);
            }
            record
        });
        Gateway {
            stop,
            acked,
            thread,
        }
    }

    /// Stops after the current batch; returns the acknowledged readings.
    pub fn finish(self) -> Vec<Stored> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the gateway")
    }
}

/// Devices that publish one reading per message with QoS 1, over one connection.
pub struct Devices {
    stop: Arc<AtomicBool>,
    /// Messages acknowledged by the broker.
    pub acked: Arc<AtomicUsize>,
    record: Arc<Mutex<Vec<Stored>>>,
    thread: JoinHandle<()>,
}

impl Devices {
    /// Publishes to `fleet/{sensor}`: at most `messages` messages (or until it is stopped), at most
    /// `rate` per second.
    pub fn start(port: u16, sensors: usize, messages: usize, rate: usize) -> Devices {
        Devices::start_skewed(port, sensors, messages, rate, 0)
    }

    /// Like [`Devices::start`], with clocks that are wrong by up to `spread_ms` ([`skew_ms`]).
    pub fn start_skewed(
        port: u16,
        sensors: usize,
        messages: usize,
        rate: usize,
        spread_ms: i64,
    ) -> Devices {
        let stop = Arc::new(AtomicBool::new(false));
        let acked = Arc::new(AtomicUsize::new(0));
        let record: Arc<Mutex<Vec<Stored>>> = Arc::default();
        let stopped = stop.clone();
        let count = acked.clone();
        let list = record.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(publish(
                port, sensors, messages, rate, spread_ms, stopped, count, list,
            ));
        });
        Devices {
            stop,
            acked,
            record,
            thread,
        }
    }

    /// Waits until everything is published, or stops; returns what the broker has acknowledged.
    pub fn finish(self, stop: bool) -> Vec<Stored> {
        self.stop.store(stop, Ordering::Relaxed);
        self.thread.join().expect("the devices");
        std::mem::take(&mut self.record.lock().expect("the record"))
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments of Devices, and its shared state"
)]
async fn publish(
    port: u16,
    sensors: usize,
    messages: usize,
    rate: usize,
    spread_ms: i64,
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicUsize>,
    record: Arc<Mutex<Vec<Stored>>>,
) {
    let mut options = mqtt::MqttOptions::new(
        format!("devices-{}", fastrand::u64(..)),
        ("127.0.0.1", port),
    );
    options.set_inflight(500).set_max_request_batch(100);
    let (client, mut events) = mqtt::AsyncClient::builder(options).capacity(500).build();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let done = Arc::new(AtomicBool::new(false));
    let finished = done.clone();
    let sending = async move {
        let begun = tokio::time::Instant::now();
        for n in 0..messages {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            if n % 100 == 0 {
                tokio::time::sleep_until(
                    begun + Duration::from_micros((n as u64 * 1_000_000) / rate as u64),
                )
                .await;
            }
            let sensor = format!("d{}", n % sensors);
            let ts = now_ms() + skew_ms(n % sensors, sensors, spread_ms);
            let payload = format!("{{\"ts\":{ts},\"n\":{n},\"temp\":{}}}", n as f64 / 4.0);
            let topic = format!("fleet/{sensor}");
            client
                .publish(topic, payload, mqtt::PublishOptions::at_least_once())
                .await
                .expect("the broker accepts connections");
            record
                .lock()
                .expect("the record")
                .push((sensor, ts, n as i64));
            count.fetch_add(1, Ordering::Relaxed);
        }
        finished.store(true, Ordering::Relaxed);
    };
    let receiving = async {
        let mut connected = tokio::time::Instant::now();
        while !done.load(Ordering::Relaxed)
            || acked.load(Ordering::Relaxed) < sent.load(Ordering::Relaxed)
        {
            match tokio::time::timeout(Duration::from_millis(100), events.poll()).await {
                Ok(Ok(mqtt::Event::Incoming(mqtt::Packet::PubAck(_)))) => {
                    acked.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Ok(_)) => connected = tokio::time::Instant::now(),
                // A busy machine may delay the broker's answer to a ping. The next poll reconnects
                // and repeats unacknowledged messages.
                Ok(Err(error)) => {
                    assert!(
                        connected.elapsed() < BROKER_WITHIN,
                        "the broker does not accept connections: {error}"
                    );
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(_) => {}
            }
        }
    };
    tokio::join!(sending, receiving);
}
