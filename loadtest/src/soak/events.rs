//! The events of a soak: restarts of the broker and of MongoDB, and a reload of the service.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Failure;
use crate::parts::mongod::Mongod;
use crate::parts::mosquitto::Mosquitto;
use crate::parts::service::Service;

/// For how long the broker and MongoDB are down, in addition to the time of stopping and starting.
const AWAY: Duration = Duration::from_secs(5);
/// The configuration after the reload.
const CHANGED: &str = "[http]\nbody_max_bytes = \"4MiB\"\n";
const PAUSE: Duration = Duration::from_millis(100);

/// An event that has happened.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    pub(crate) what: &'static str,
    /// Seconds since the start of the load.
    pub(crate) begin_s: f64,
    pub(crate) end_s: f64,
}

/// The parts to restart, and what has happened so far.
pub(super) struct Events {
    pub(super) mongod: Mongod,
    pub(super) broker: Mosquitto,
    pub(super) done: Vec<Event>,
}

impl Events {
    /// Lets everything happen within `whole`. An event that fails sets `over`, which ends the load.
    pub(super) fn happen(
        &mut self,
        service: &Service,
        begun: Instant,
        whole: Duration,
        over: &AtomicBool,
    ) -> Result<(), Failure> {
        let result = self.each(service, begun, whole, over);
        if result.is_err() {
            over.store(true, Ordering::Relaxed);
        }
        result
    }

    fn each(
        &mut self,
        service: &Service,
        begun: Instant,
        whole: Duration,
        over: &AtomicBool,
    ) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        for (n, what) in (1u32..).zip([
            "broker restarted",
            "MongoDB restarted",
            "configuration reloaded",
        ]) {
            let at = begun + whole * n / 4;
            while Instant::now() < at {
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(PAUSE);
            }
            let begin_s = begun.elapsed().as_secs_f64();
            match n {
                1 => self.broker.restart(AWAY)?,
                2 => runtime.block_on(self.mongod.restart(AWAY))?,
                _ => service.reload(CHANGED)?,
            }
            let end_s = begun.elapsed().as_secs_f64();
            eprintln!("  {what}, {begin_s:.1} to {end_s:.1} s");
            self.done.push(Event {
                what,
                begin_s,
                end_s,
            });
        }
        Ok(())
    }
}
