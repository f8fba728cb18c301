//! Other stores that take line protocol over HTTP: QuestDB and VictoriaMetrics, as they are by
//! default, with the bodies of a scenario.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::drive::{self, Target, Throttle};
use crate::latency::Latency;
use crate::parts::process::Process;
use crate::parts::{free_port, program};
use crate::spec::{Spec, Transport};
use crate::usage::{self, Usage};
use crate::{Failure, http, run};

const READY_WITHIN: Duration = Duration::from_secs(60);
const STORED_WITHIN: Duration = Duration::from_secs(300);
const ENDED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
pub(crate) enum OtherStore {
    Questdb,
    VictoriaMetrics,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ingested {
    pub(crate) readings: u64,
    pub(crate) acked_per_s: f64,
    /// From the first message until all readings are found by a query and the server has ended.
    pub(crate) seconds: f64,
    /// Of the server, its start not included.
    pub(crate) used: Usage,
    pub(crate) latency_ms: Latency,
}

impl Ingested {
    pub(crate) fn per_s(&self) -> f64 {
        self.readings as f64 / self.seconds
    }
}

impl OtherStore {
    /// The program: the jar of QuestDB, or the binary.
    pub(crate) fn program(self) -> Option<PathBuf> {
        match self {
            OtherStore::Questdb => program("HOURBUCKET_QUESTDB", "questdb.jar"),
            OtherStore::VictoriaMetrics => {
                program("HOURBUCKET_VICTORIA_METRICS", "victoria-metrics")
            }
        }
    }

    fn command(self, program: PathBuf, port: u16) -> Command {
        let listen = format!("127.0.0.1:{port}");
        match self {
            OtherStore::Questdb => {
                let mut java = Command::new("java");
                java.arg("-p")
                    .arg(program)
                    .args(["-m", "io.questdb/io.questdb.ServerMain", "-d", "."])
                    .env("QDB_HTTP_BIND_TO", listen)
                    .env("QDB_TELEMETRY_ENABLED", "false");
                // Only the port for HTTP: the others have fixed numbers.
                for other in ["PG", "LINE_TCP", "HTTP_MIN"] {
                    java.env(format!("QDB_{other}_ENABLED"), "false");
                }
                java
            }
            OtherStore::VictoriaMetrics => {
                let mut command = Command::new(program);
                command
                    .arg(format!("-httpListenAddr={listen}"))
                    .arg("-storageDataPath=data");
                command
            }
        }
    }

    /// Readings that queries find.
    fn count(self, port: u16, last_ms: i64) -> Result<u64, Failure> {
        match self {
            // A table for each measurement; it is created with the first line.
            OtherStore::Questdb => ["readings", "diagnostics"]
                .iter()
                .map(|table| {
                    let query = format!("/exec?query=select%20count()%20from%20{table}");
                    let (status, answer) = http::get(port, &query)?;
                    match status {
                        200 => number(&answer, "\"dataset\":[["),
                        _ => Ok(0),
                    }
                })
                .sum(),
            // A series for each field; every reading has one of these two.
            OtherStore::VictoriaMetrics => {
                let time = last_ms / 1000 + 1;
                let query = format!(
                    "/api/v1/query?nocache=1&time={time}&query=sum(count_over_time(\
                     %7B__name__=~%22readings_latitude%7Cdiagnostics_fuel_state%22%7D%5B30d%5D))"
                );
                let (_, answer) = http::get(port, &query)?;
                match answer.contains("\"value\"") {
                    true => number(&answer, &format!("\"value\":[{time},\"")),
                    false => Ok(0),
                }
            }
        }
    }
}

/// The integer after `start`.
fn number(text: &str, start: &str) -> Result<u64, Failure> {
    let (_, rest) = text
        .split_once(start)
        .ok_or_else(|| format!("unexpected answer: {text}"))?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    Ok(digits.unwrap_or_default().parse()?)
}

/// Sends the first phase of the scenario, waits until queries find every reading, and ends the
/// server, which writes what it has only in memory.
pub(crate) fn run(store: OtherStore, spec: &Spec) -> Result<Ingested, Failure> {
    let program = store.program().ok_or("the program is missing")?;
    let port = free_port();
    let mut process = Process::new("store");
    process.spawn(&mut store.command(program.canonicalize()?, port));
    let begun = Instant::now();
    // Any answer: before the first line there is nothing to find.
    while http::get(port, "/ping").is_err() {
        if process.ended().is_some() || begun.elapsed() > READY_WITHIN {
            return Err(format!("{store:?} does not answer:\n{}", process.log_tail()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let target = Target {
        transport: Transport::Http,
        port,
    };
    let plan = run::plan(spec);
    let (mut lanes, _) = drive::prepare(spec, &plan, |_| target);
    let first = spec.phases.first().ok_or("the scenario has no phase")?;
    let throttle = Throttle {
        rate: None,
        seconds: first.seconds,
        readings: first.readings,
        progress: &AtomicU64::new(0),
        stop: &AtomicBool::new(false),
    };
    let pid = process.pid();
    let before = usage::of(pid).unwrap_or_default();
    let begun = Instant::now();
    let driven = drive::phase(&mut lanes, &plan, spec.window, &throttle)?;
    let rounds = driven.readings / u64::from(spec.sensors) + 1;
    let last_ms = plan.base_ms + rounds as i64 * plan.step_ms;
    let acked = Instant::now();
    loop {
        let found = store.count(port, last_ms)?;
        if found == driven.readings {
            break;
        }
        if found > driven.readings || acked.elapsed() > STORED_WITHIN {
            let all = driven.readings;
            return Err(format!("{store:?}: {all} readings acknowledged, {found} found").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    process.sigterm();
    let used = usage::until_ended(pid, ENDED_WITHIN, || {})
        .ok_or_else(|| format!("{store:?} did not exit:\n{}", process.log_tail()))?;
    Ok(Ingested {
        readings: driven.readings,
        acked_per_s: driven.readings as f64 / driven.seconds,
        seconds: begun.elapsed().as_secs_f64(),
        used: used.since(before),
        latency_ms: driven.latencies.percentiles(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_answers() {
        let questdb = r#"{"query":"select count() from readings","dataset":[[4000]],"count":1}"#;
        assert_eq!(number(questdb, "\"dataset\":[[").unwrap(), 4000);
        let metrics = r#"{"data":{"result":[{"metric":{},"value":[1764400000,"8000"]}]}}"#;
        assert_eq!(number(metrics, "\"value\":[1764400000,\"").unwrap(), 8000);
        assert!(number("404", "[[").is_err());
    }
}
