//! The results of a run, as JSON and as a table.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::latency::Latency;
use crate::removal::RemovalReport;
use crate::usage::Usage;
use crate::verify::Checked;

/// The results of a phase.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PhaseReport {
    pub(crate) name: String,
    pub(crate) readings: u64,
    pub(crate) seconds: f64,
    pub(crate) acked_per_s: f64,
    /// The rate of acknowledging or of storing, whichever is lower: while the journal has space, it
    /// accepts more than MongoDB.
    pub(crate) lasting_per_s: f64,
    /// Open loop: the requested rate.
    pub(crate) rate: Option<f64>,
    /// Number of retries.
    pub(crate) again: u64,
    /// CPU time of the service and of MongoDB during the phase.
    pub(crate) service_cpu_s: f64,
    pub(crate) mongod_cpu_s: f64,
    /// Write statements sent to MongoDB, and fdatasyncs of the journal.
    pub(crate) statements: u64,
    pub(crate) syncs: u64,
    /// To the acknowledgement.
    pub(crate) latency_ms: Latency,
    /// Open loop: latency of a concurrent write of 4 KiB with fdatasync.
    pub(crate) disk_ms: Option<Latency>,
    pub(crate) outage: Option<OutageReport>,
    pub(crate) removal: Option<RemovalReport>,
}

impl PhaseReport {
    /// CPU seconds per million readings.
    pub(crate) fn per_million(&self, cpu_s: f64) -> f64 {
        cpu_s * 1e6 / self.readings.max(1) as f64
    }

    /// Write statements per reading.
    pub(crate) fn statements_per_reading(&self) -> f64 {
        self.statements as f64 / self.readings.max(1) as f64
    }

    /// The row of the phase, and the lines below it.
    fn lines(&self) -> Vec<String> {
        let Latency {
            p50,
            p99,
            p999,
            max,
        } = self.latency_ms;
        let asked = self.rate.map_or("-".into(), |r| format!("{r:.0}"));
        let mut lines = vec![format!(
            "  {:<12}{:>12}{:>9.1}{asked:>12}{:>12.0}{p50:>9.2}{p99:>9.2}{p999:>9.2}\
             {max:>9.1}{:>7}",
            self.name, self.readings, self.seconds, self.acked_per_s, self.again
        )];
        let readings = self.readings.max(1) as f64;
        lines.push(format!(
            "  {:<12}service {:.2} CPU-s/million, mongod {:.2}, {:.3} statements per reading, \
             {:.1} readings per sync of the journal",
            "",
            self.per_million(self.service_cpu_s),
            self.per_million(self.mongod_cpu_s),
            self.statements_per_reading(),
            readings / self.syncs.max(1) as f64
        ));
        if let Some(Latency {
            p50,
            p99,
            p999,
            max,
        }) = self.disk_ms
        {
            lines.push(format!(
                "  {:<54}{p50:>9.2}{p99:>9.2}{p999:>9.2}{max:>9.1}",
                "the disk meanwhile, 4 KiB written and synced"
            ));
        }
        if let Some(o) = &self.outage {
            let gone = o
                .gone_after_s
                .map_or("not in this phase".into(), |s| format!("after {s:.1} s"));
            lines.push(format!(
                "  outage of {:.1} s: backlog of {} readings, stored {gone}",
                o.away_s, o.backlog
            ));
        }
        if let Some(removal) = &self.removal {
            lines.push(format!(
                "  {} readings removed in {:.1} s; the command used {:.1} CPU-s and {:.0} MiB",
                removal.readings,
                removal.seconds,
                removal.cpu_s,
                removal.rss_peak_bytes as f64 / f64::from(1 << 20)
            ));
        }
        lines
    }
}

/// The result of an outage of MongoDB.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct OutageReport {
    /// From the kill until MongoDB is primary again.
    pub(crate) away_s: f64,
    /// Accepted and unstored readings when it is primary again.
    pub(crate) backlog: u64,
    /// From then until the backlog is as small as before the outage; absent if the phase ended
    /// earlier.
    pub(crate) gone_after_s: Option<f64>,
}

/// A sample during the run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sample {
    /// Seconds since the start of the first phase.
    pub(crate) s: f64,
    pub(crate) acked: u64,
    pub(crate) accepted: u64,
    pub(crate) settled: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) accumulate_bytes: u64,
    pub(crate) journal_bytes: u64,
}

/// Resources used by each process during the run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Used {
    pub(crate) service: Usage,
    pub(crate) mongod: Usage,
    pub(crate) broker: Option<Usage>,
    /// The instance to which the service forwards.
    pub(crate) centre: Option<Usage>,
    /// This program: the client of a baseline, or the load generator of hourbucket.
    pub(crate) loadtest: Usage,
}

impl Used {
    /// The difference to `before`; memory values are not subtracted.
    pub(crate) fn since(&self, before: &Used) -> Used {
        Used {
            service: self.service.since(before.service),
            mongod: self.mongod.since(before.mongod),
            broker: self
                .broker
                .map(|broker| broker.since(before.broker.unwrap_or_default())),
            centre: self
                .centre
                .map(|centre| centre.since(before.centre.unwrap_or_default())),
            loadtest: self.loadtest.since(before.loadtest),
        }
    }
}

/// The results of a scenario.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) mode: String,
    pub(crate) format: String,
    pub(crate) sensors: u32,
    pub(crate) batch: u32,
    pub(crate) connections: u32,
    pub(crate) readings: u64,
    pub(crate) phases: Vec<PhaseReport>,
    /// Seconds from the first message until the last acknowledgement; until the service has
    /// accepted everything (over MQTT later than the broker's acknowledgement); and until
    /// everything is stored and the service has shut down cleanly.
    pub(crate) acked_s: f64,
    pub(crate) accepted_s: f64,
    pub(crate) stored_s: f64,
    pub(crate) used: Used,
    /// Statements sent to MongoDB, by kind.
    pub(crate) statements: BTreeMap<String, u64>,
    pub(crate) conflicts: u64,
    pub(crate) retries: u64,
    pub(crate) duplicates: u64,
    /// If the service forwards: its requests to the centre, and the bytes of their bodies.
    pub(crate) forward_requests: u64,
    pub(crate) forward_bytes: u64,
    /// With `settle_seconds`: resident bytes of the service that long after everything is stored.
    pub(crate) rss_settled_bytes: Option<u64>,
    /// Resident bytes of the service before the first message.
    pub(crate) rss_begin_bytes: u64,
    /// With `settle_seconds`: `hourbucket_accumulate_bytes` at that time.
    pub(crate) accumulate_settled_bytes: Option<u64>,
    pub(crate) check: Checked,
    pub(crate) course: Vec<Sample>,
}

/// The number of write statements, by kind.
pub(crate) fn writes(statements: &BTreeMap<String, u64>) -> u64 {
    statements
        .iter()
        .filter(|(kind, _)| !["load", "read"].contains(&kind.as_str()))
        .map(|(_, n)| n)
        .sum()
}

impl Report {
    pub(crate) fn acked_per_s(&self) -> f64 {
        self.readings as f64 / self.acked_s
    }

    /// Measured until the service has accepted the last reading.
    pub(crate) fn accepted_per_s(&self) -> f64 {
        self.readings as f64 / self.accepted_s
    }

    /// Measured until everything is stored: the sustainable rate.
    pub(crate) fn stored_per_s(&self) -> f64 {
        self.readings as f64 / self.stored_s
    }

    /// Whether the broker acknowledges (MQTT). The rate of the service is then that of accepting.
    pub(crate) fn broker_decides(&self) -> bool {
        self.used.broker.is_some()
    }

    /// CPU seconds per million readings.
    pub(crate) fn per_million(&self, usage: Usage) -> f64 {
        usage.cpu_s * 1e6 / self.readings.max(1) as f64
    }

    /// Bytes of bodies that the service forwards, per reading.
    pub(crate) fn forwarded_bytes(&self) -> f64 {
        self.forward_bytes as f64 / self.readings.max(1) as f64
    }

    /// Write statements per reading.
    pub(crate) fn statements_per_reading(&self) -> f64 {
        writes(&self.statements) as f64 / self.readings.max(1) as f64
    }

    /// The results as text lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{}: {} mode, {}, {} sensors, {} connections, {} readings per message",
            self.scenario, self.mode, self.format, self.sensors, self.connections, self.batch
        )];
        lines.push(format!(
            "  {:<12}{:>12}{:>9}{:>12}{:>12}{:>9}{:>9}{:>9}{:>9}{:>7}",
            "phase",
            "readings",
            "s",
            "target/s",
            "acked/s",
            "p50 ms",
            "p99",
            "p99.9",
            "max",
            "retries"
        ));
        lines.extend(self.phases.iter().flat_map(PhaseReport::lines));
        lines.push(format!(
            "  {:.0} readings/s acknowledged, {:.0}/s accepted, {:.0}/s stored",
            self.acked_per_s(),
            self.accepted_per_s(),
            self.stored_per_s()
        ));
        lines.extend(self.process_lines());
        if self.used.centre.is_some() {
            lines.push(format!(
                "  {:.2} bytes a reading to the centre, in {} requests",
                self.forwarded_bytes(),
                self.forward_requests
            ));
        }
        lines.push(format!(
            "  {:.5} statements per reading ({}), {} conflicts, {} retries, {} duplicates",
            self.statements_per_reading(),
            self.statements
                .iter()
                .map(|(kind, n)| format!("{kind} {n}"))
                .collect::<Vec<_>>()
                .join(", "),
            self.conflicts,
            self.retries,
            self.duplicates
        ));
        lines.push(match self.check.problems.is_empty() {
            true => format!(
                "  all {} acknowledged readings are stored exactly once",
                self.check.acknowledged
            ),
            false => format!(
                "  WRONG: {} acknowledged, {} stored",
                self.check.acknowledged, self.check.stored
            ),
        });
        lines.extend(
            self.check
                .problems
                .iter()
                .map(|problem| format!("    {problem}")),
        );
        lines
    }

    /// The resources used by each process, below the names of the columns.
    fn process_lines(&self) -> Vec<String> {
        let mut parts = vec![("service", self.used.service), ("mongod", self.used.mongod)];
        parts.extend(self.used.broker.map(|b| ("broker", b)));
        parts.extend(self.used.centre.map(|c| ("centre", c)));
        parts.push(("loadtest", self.used.loadtest));
        let mut lines = vec![format!(
            "  {:<12}{:>16}{:>14}{:>14}",
            "process", "CPU-s/million", "peak MiB", "written MiB"
        )];
        for (name, usage) in parts {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let peak = mib(usage.rss_peak_bytes);
            let written = mib(usage.written_bytes);
            lines.push(format!(
                "  {name:<12}{:>16.3}{peak:>14.1}{written:>14.1}",
                self.per_million(usage)
            ));
        }
        lines
    }
}
