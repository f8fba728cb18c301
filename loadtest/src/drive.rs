//! Generates the load: one thread per connection sends rendered messages and waits for
//! acknowledgements.
//!
//! Closed loop: the next message is sent when the previous one is acknowledged. Open loop: messages
//! have intended times, and latency is measured from these, so that a stall of the service also
//! counts for the messages it delays. Every message is retried until it is acknowledged, over a new
//! connection if the old one broke; a timeout ends the run.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::latency::Latencies;
use crate::plan::Plan;
use crate::render::{self, Envelope, Message, Ring};
use crate::spec::{Spec, Transport};
use crate::values;
use crate::verify::Known;
use crate::{Failure, http, mqtt};

/// Timeout of a message, including retries.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(300);
/// The same of a new connection.
const OPENED_WITHIN: Duration = Duration::from_secs(60);
/// Wait before a retry.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The messages of one connection.
pub(crate) struct Lane {
    number: u32,
    target: Target,
    /// By group, then by round of the ring.
    messages: Vec<Message>,
    /// Number of acknowledged messages: the first ones of the plan.
    pub(crate) acknowledged: u64,
}

/// The destination of the load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) transport: Transport,
    pub(crate) port: u16,
}

/// The limits of a phase.
pub(crate) struct Throttle<'a> {
    /// Readings per second of all lanes; `None`: closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) seconds: Option<f64>,
    /// Total of all lanes.
    pub(crate) readings: Option<u64>,
    /// Counts acknowledged readings.
    pub(crate) progress: &'a AtomicU64,
    /// Ends the phase when set.
    pub(crate) stop: &'a AtomicBool,
}

/// The result of a phase.
pub(crate) struct Driven {
    pub(crate) latencies: Latencies,
    pub(crate) readings: u64,
    /// Number of retries: rejected messages (429, 503) and broken connections.
    pub(crate) again: u64,
    pub(crate) seconds: f64,
}

/// Renders all messages, and computes the values that the check needs. `target_of` is called with
/// the number of a lane.
pub(crate) fn prepare(
    spec: &Spec,
    plan: &Plan,
    target_of: impl Fn(u32) -> Target,
) -> (Vec<Lane>, Known) {
    let mut known = Known::new(plan.sensors, plan.ring);
    let mut lanes = vec![];
    for number in 0..plan.lanes {
        let target = target_of(number);
        let host = format!("127.0.0.1:{}", target.port);
        let envelope = match target.transport {
            Transport::Http => Envelope::Http { host: &host },
            Transport::Mqtt | Transport::DirectMqtt => Envelope::Mqtt,
        };
        let mut messages = vec![];
        for group in 0..plan.groups(number) {
            let sensors = plan.group(number, group);
            let first = sensors.start;
            let values: Vec<_> = sensors
                .map(|s| values::series(plan.seed, s, plan.ring as usize))
                .collect();
            let ring = Ring {
                plan,
                first,
                values: &values,
            };
            messages.extend(
                (0..plan.ring as usize).map(|r| render::message(&ring, r, spec.format, &envelope)),
            );
            known.add(first, &values);
        }
        lanes.push(Lane {
            number,
            target,
            messages,
            acknowledged: 0,
        });
    }
    (lanes, known)
}

/// Runs a phase on these lanes.
pub(crate) fn phase(
    lanes: &mut [Lane],
    plan: &Plan,
    window: u16,
    throttle: &Throttle<'_>,
) -> Result<Driven, Failure> {
    let begun = Instant::now();
    let results: Vec<Result<Driven, Failure>> = std::thread::scope(|scope| {
        let drive = |lane| scope.spawn(move || Drive::new(lane, plan, throttle, begun).run(window));
        let threads: Vec<_> = lanes.iter_mut().map(drive).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut all = Driven {
        latencies: Latencies::default(),
        readings: 0,
        again: 0,
        seconds: 0.0,
    };
    for result in results {
        let lane = result?;
        all.latencies.add(&lane.latencies);
        all.readings += lane.readings;
        all.again += lane.again;
    }
    all.seconds = begun.elapsed().as_secs_f64();
    Ok(all)
}

/// One lane in one phase.
struct Drive<'a> {
    lane: &'a mut Lane,
    plan: &'a Plan,
    throttle: &'a Throttle<'a>,
    begun: Instant,
    /// Open loop: the interval of messages of this lane.
    interval: Option<Duration>,
    /// Numbers of the first message of this phase, and of the one after the last.
    first: u64,
    end: u64,
    result: Driven,
}

impl<'a> Drive<'a> {
    fn new(
        lane: &'a mut Lane,
        plan: &'a Plan,
        throttle: &'a Throttle<'a>,
        begun: Instant,
    ) -> Drive<'a> {
        let sensors = plan.lane(lane.number).len() as f64;
        let a_message = sensors / f64::from(plan.groups(lane.number));
        let share = sensors / f64::from(plan.sensors);
        let interval = throttle
            .rate
            .map(|rate| Duration::from_secs_f64(a_message / (rate * share)));
        let first = lane.acknowledged;
        let limit = throttle.readings.map_or(u64::MAX, |all| {
            (all as f64 * share / a_message).ceil() as u64
        });
        let end = first
            .saturating_add(limit)
            .min(plan.messages_max(lane.number));
        let result = Driven {
            latencies: Latencies::default(),
            readings: 0,
            again: 0,
            seconds: 0.0,
        };
        Drive {
            lane,
            plan,
            throttle,
            begun,
            interval,
            first,
            end,
            result,
        }
    }

    fn run(mut self, window: u16) -> Result<Driven, Failure> {
        let Target { transport, port } = self.lane.target;
        match transport {
            Transport::Http => self.http(port)?,
            Transport::Mqtt | Transport::DirectMqtt => self.mqtt(port, window)?,
        }
        Ok(self.result)
    }

    /// The intended time of a message; `None` if the phase ends before it.
    fn intended(&self, message: u64) -> Option<Instant> {
        let now = Instant::now();
        let at = match self.interval {
            // Lanes start at different times within the interval, so that they do not all send
            // together.
            Some(interval) => {
                let part = f64::from(self.lane.number) / f64::from(self.plan.lanes);
                self.begun + interval.mul_f64((message - self.first) as f64 + part)
            }
            None => now,
        };
        let over = self
            .throttle
            .seconds
            .is_some_and(|s| at.duration_since(self.begun).as_secs_f64() >= s);
        (message < self.end && !over && !self.throttle.stop.load(Ordering::Relaxed)).then_some(at)
    }

    /// A message with its times filled in, and its number of readings.
    fn ready(&mut self, message: u64) -> (&mut Message, u64) {
        let plan = self.plan;
        let (group, round) = plan.at(self.lane.number, message);
        let at = group as usize * plan.ring as usize + (round % u64::from(plan.ring)) as usize;
        let found = &mut self.lane.messages[at];
        found.patch(plan, plan.group(self.lane.number, group).start, round);
        let readings = found.ts_at.len() as u64;
        (found, readings)
    }

    fn acknowledged(&mut self, readings: u64, intended: Instant) {
        self.lane.acknowledged += 1;
        self.result.readings += readings;
        self.throttle
            .progress
            .fetch_add(readings, Ordering::Relaxed);
        self.result.latencies.record(intended.elapsed());
    }

    fn http(&mut self, port: u16) -> Result<(), Failure> {
        let mut connection = opened(|| http::Connection::open(port))?;
        while let Some(intended) = self.intended(self.lane.acknowledged) {
            std::thread::sleep(intended.saturating_duration_since(Instant::now()));
            let (message, readings) = self.ready(self.lane.acknowledged);
            let mut again = 0;
            loop {
                let problem = match connection.exchange(&message.bytes) {
                    Ok((204, _)) => break,
                    Ok((200, body)) if whole(body) => break,
                    Ok((status @ (429 | 503), _)) => format!("status {status}"),
                    Ok((status, body)) => {
                        return Err(format!(
                            "unexpected status {status}: {}",
                            String::from_utf8_lossy(body)
                        )
                        .into());
                    }
                    Err(error) => {
                        if let Ok(new) = http::Connection::open(port) {
                            connection = new;
                        }
                        error.to_string()
                    }
                };
                if intended.elapsed() > ACKNOWLEDGED_WITHIN {
                    return Err(format!(
                        "message not acknowledged within {ACKNOWLEDGED_WITHIN:?}: {problem}"
                    )
                    .into());
                }
                again += 1;
                std::thread::sleep(AGAIN_AFTER);
            }
            self.result.again += again;
            self.acknowledged(readings, intended);
        }
        Ok(())
    }

    /// Publishes with up to `window` messages unacknowledged. mosquitto and `listen.mqtt`
    /// acknowledge in the order of receipt.
    fn mqtt(&mut self, port: u16, window: u16) -> Result<(), Failure> {
        let client_id = format!("loadtest-{}", self.lane.number);
        let mut connection = opened(|| mqtt::Connection::open(port, &client_id))?;
        // The intended times of the unacknowledged messages.
        let mut unacknowledged: VecDeque<Instant> = VecDeque::with_capacity(usize::from(window));
        let mut bytes = Vec::with_capacity(64 << 10);
        let mut over = false;
        while !over || !unacknowledged.is_empty() {
            let mut next = None;
            while unacknowledged.len() < usize::from(window) && !over {
                let number = self.lane.acknowledged + unacknowledged.len() as u64;
                match self.intended(number) {
                    None => over = true,
                    Some(at) if at > Instant::now() => {
                        next = Some(at);
                        break;
                    }
                    Some(at) => {
                        self.publish(number, &mut bytes);
                        unacknowledged.push_back(at);
                    }
                }
            }
            let wait = next.map_or(Duration::from_secs(1), |at| {
                at.saturating_duration_since(Instant::now())
            });
            let received = receive(&mut connection, &bytes, wait);
            bytes.clear();
            for _ in 0..*received.as_ref().unwrap_or(&0) {
                let at = unacknowledged
                    .pop_front()
                    .ok_or_else(|| io::Error::other("unexpected PUBACK"))?;
                self.acknowledged(1, at);
            }
            let late = unacknowledged
                .front()
                .is_some_and(|at| at.elapsed() > ACKNOWLEDGED_WITHIN);
            match received {
                Err(error) if late => {
                    return Err(format!(
                        "message not acknowledged within {ACKNOWLEDGED_WITHIN:?}: {error}"
                    )
                    .into());
                }
                Ok(_) if late => {
                    return Err(format!(
                        "no acknowledgement from the broker within {ACKNOWLEDGED_WITHIN:?}"
                    )
                    .into());
                }
                Ok(_) => {}
                Err(_) => {
                    std::thread::sleep(AGAIN_AFTER);
                    // If the broker is not back yet, the next attempt is made by the next round.
                    if let Ok(new) = mqtt::Connection::open(port, &client_id) {
                        connection = new;
                        self.result.again += unacknowledged.len() as u64;
                        let first = self.lane.acknowledged;
                        (first..first + unacknowledged.len() as u64)
                            .for_each(|n| self.publish(n, &mut bytes));
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the packet of a message.
    fn publish(&mut self, number: u64, bytes: &mut Vec<u8>) {
        // A packet id must not be 0 (MQTT-2.3.1-1).
        let id = (number % 65_535 + 1) as u16;
        let (message, _) = self.ready(number);
        let id_at = message.id_at as usize;
        message.bytes[id_at..id_at + 2].copy_from_slice(&id.to_be_bytes());
        bytes.extend_from_slice(&message.bytes);
    }
}

/// Opens a connection. A minute of a soak may begin while the broker is away.
fn opened<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(_) if begun.elapsed() < OPENED_WITHIN => std::thread::sleep(AGAIN_AFTER),
            result => return result,
        }
    }
}

/// Sends packets, and waits for some to be received; returns the number of PUBACKs.
fn receive(
    connection: &mut mqtt::Connection,
    packets: &[u8],
    patience: Duration,
) -> io::Result<u64> {
    connection.send(packets)?;
    connection.fill(patience)?;
    Ok(connection.acknowledged())
}

/// Whether the response reports no rejects.
fn whole(body: &[u8]) -> bool {
    const NOTHING: &[u8] = b"\"rejected\":0,";
    body.windows(NOTHING.len()).any(|window| window == NOTHING)
}
