//! Measures the maximum delivery rate of a broker: the fleet's messages to a subscriber that only
//! acknowledges.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::drive::{self, Target, Throttle};
use crate::parts::mosquitto::Mosquitto;
use crate::report::Used;
use crate::spec::{Spec, Transport};
use crate::{Failure, mqtt, run, usage};

const RECEIVED_WITHIN: Duration = Duration::from_secs(300);

/// The result of the measurement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Delivered {
    pub(crate) readings: u64,
    /// From the first message until the last one is received (here) or stored (Telegraf).
    pub(crate) seconds: f64,
    pub(crate) used: Used,
}

impl Delivered {
    pub(crate) fn per_s(&self) -> f64 {
        self.readings as f64 / self.seconds
    }
}

/// Publishes the messages of the first phase of a scenario.
pub(crate) fn run(spec: &Spec) -> Result<Delivered, Failure> {
    let broker = Mosquitto::start()?;
    let target = Target {
        transport: Transport::Mqtt,
        port: broker.port,
    };
    let plan = run::plan(spec);
    let (mut lanes, _) = drive::prepare(spec, &plan, |_| target);
    let received = AtomicU64::new(0);
    let ready = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let subscriber = scope
            .spawn(|| mqtt::only_acknowledge(broker.port, "sensors/+", &received, &ready, &stop));
        let delivered = (|| {
            wait("the broker did not accept the subscription", || {
                ready.load(Ordering::Acquire)
            })?;
            let used = || Used {
                broker: Some(broker.usage()),
                loadtest: usage::of(std::process::id()).unwrap_or_default(),
                ..Used::default()
            };
            let before = used();
            let begun = Instant::now();
            let progress = AtomicU64::new(0);
            let first = spec.phases.first().ok_or("the scenario has no phase")?;
            let throttle = Throttle {
                rate: None,
                seconds: first.seconds,
                readings: first.readings,
                progress: &progress,
                stop: &AtomicBool::new(false),
            };
            let driven = drive::phase(&mut lanes, &plan, spec.window, &throttle)?;
            wait("not all messages were delivered", || {
                received.load(Ordering::Relaxed) >= driven.readings
            })?;
            let seconds = begun.elapsed().as_secs_f64();
            let used = used().since(&before);
            Ok(Delivered {
                readings: driven.readings,
                seconds,
                used,
            })
        })();
        stop.store(true, Ordering::Relaxed);
        let ended = subscriber
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended?;
        delivered
    })
}

fn wait(problem: &str, done: impl Fn() -> bool) -> Result<(), Failure> {
    let deadline = Instant::now() + RECEIVED_WITHIN;
    while !done() {
        if Instant::now() > deadline {
            return Err(format!("{problem} within {RECEIVED_WITHIN:?}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
