//! The servers that are asked, each in its own directory and filled with the same readings.

use std::process::Command;
use std::time::{Duration, Instant};

use super::Options;
use super::fleet::{Fleet, snappy};
use crate::http::{self, Connection};
use crate::parts::mongod::Mongod;
use crate::parts::process::Process;
use crate::parts::service::Service;
use crate::parts::{free_port, program};
use crate::{Failure, run, usage};

const READY_WITHIN: Duration = Duration::from_secs(60);
const DATABASE: &str = "promql";
/// Minutes in one request of remote write.
const MINUTES_AT_ONCE: i64 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bucket,
    TimeSeries,
    Prometheus,
    VictoriaMetrics,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [
        Kind::Bucket,
        Kind::TimeSeries,
        Kind::Prometheus,
        Kind::VictoriaMetrics,
    ];

    /// In the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Bucket => "hourbucket, bucket mode",
            Kind::TimeSeries => "hourbucket, time-series mode",
            Kind::Prometheus => "Prometheus",
            Kind::VictoriaMetrics => "VictoriaMetrics, no cache",
        }
    }
}

enum Processes {
    Hourbucket(Box<Service>, Mongod),
    Other(Process),
}

pub(super) struct Server {
    pub(super) kind: Kind,
    processes: Processes,
    /// Of the API.
    port: u16,
}

impl Server {
    /// Starts it; `None` if it is not on this machine.
    pub(super) async fn start(kind: Kind, options: &Options) -> Result<Option<Server>, Failure> {
        match kind {
            Kind::Bucket => Server::hourbucket(kind, "bucket", options).await.map(Some),
            Kind::TimeSeries => Server::hourbucket(kind, "timeseries", options)
                .await
                .map(Some),
            Kind::Prometheus => Server::other(kind, "HOURBUCKET_PROMETHEUS", "prometheus"),
            Kind::VictoriaMetrics => {
                Server::other(kind, "HOURBUCKET_VICTORIA_METRICS", "victoria-metrics")
            }
        }
    }

    pub(super) async fn hourbucket(
        kind: Kind,
        mode: &str,
        options: &Options,
    ) -> Result<Server, Failure> {
        let mongod = Mongod::start().await?;
        let mut settings = options.settings.clone();
        let uri = mongod.uri();
        for (key, value) in [
            ("STORE__URI", &*uri),
            ("STORE__DATABASE", DATABASE),
            ("STORE__MODE", mode),
            ("FLUSH__MAX_AGE", "1s"),
        ] {
            settings
                .entry(key.to_owned())
                .or_insert_with(|| value.to_owned());
        }
        let service = Service::start(&options.binary, &settings)?;
        Ok(Server {
            kind,
            port: service.admin_port,
            processes: Processes::Hourbucket(Box::new(service), mongod),
        })
    }

    fn other(kind: Kind, variable: &str, name: &str) -> Result<Option<Server>, Failure> {
        let Some(program) = program(variable, name) else {
            return Ok(None);
        };
        let port = free_port();
        let mut process = Process::new("queried");
        let mut command = Command::new(program.canonicalize()?);
        match kind {
            Kind::Prometheus => {
                std::fs::write(process.dir().join("prometheus.yml"), "")?;
                command
                    .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
                    .args([
                        "--storage.tsdb.retention.time=10y",
                        "--web.enable-remote-write-receiver",
                    ])
                    .arg(format!("--web.listen-address=127.0.0.1:{port}"));
            }
            _ => {
                command
                    .args([
                        "-storageDataPath=data",
                        "-retentionPeriod=10y",
                        "-search.disableCache",
                    ])
                    .arg(format!("-httpListenAddr=127.0.0.1:{port}"));
            }
        }
        process.spawn(&mut command);
        let begun = Instant::now();
        while http::get(port, "/api/v1/labels").is_err() {
            if process.ended().is_some() || begun.elapsed() > READY_WITHIN {
                return Err(format!("{name} does not answer:\n{}", process.log_tail()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(Server {
            kind,
            processes: Processes::Other(process),
            port,
        }))
    }

    /// Sends all readings, and waits until queries find them.
    pub(super) fn fill(&self, fleet: &Fleet) -> Result<(), Failure> {
        match &self.processes {
            Processes::Hourbucket(service, _) => {
                let mut connection = Connection::open(service.http_port)?;
                let mut body = String::new();
                for minute in 0..fleet.minutes() {
                    body.clear();
                    fleet.lines(minute, &mut body);
                    let path = "/api/v2/write?precision=ms";
                    http::post(&mut connection, path, "text/plain", body.as_bytes())?;
                }
                run::until_stored(service, fleet.readings())?;
                // Days and columns, if they are on: the gauge is a second old.
                std::thread::sleep(Duration::from_secs(2));
                while service.metrics()?.get("rollup_pending") > 0.0 {
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
            Processes::Other(_) => {
                let mut connection = Connection::open(self.port)?;
                let mut minute = 0;
                while minute < fleet.minutes() {
                    let end = fleet.minutes().min(minute + MINUTES_AT_ONCE);
                    let body = snappy(&fleet.write_request(minute..end));
                    http::post(
                        &mut connection,
                        "/api/v1/write",
                        "application/x-protobuf",
                        &body,
                    )?;
                    minute = end;
                }
                // VictoriaMetrics shows new samples after a second.
                std::thread::sleep(Duration::from_secs(2));
            }
        }
        Ok(())
    }

    /// How another program finds the readings: settings of hourbucket.
    pub(super) fn store(&self) -> Vec<(&'static str, String)> {
        match &self.processes {
            Processes::Hourbucket(_, mongod) => vec![
                ("STORE__URI", mongod.uri()),
                ("STORE__DATABASE", DATABASE.to_owned()),
            ],
            Processes::Other(_) => vec![],
        }
    }

    /// CPU seconds of its database so far.
    pub(super) fn mongod_cpu_s(&self) -> f64 {
        match &self.processes {
            Processes::Hourbucket(_, mongod) => mongod.usage().cpu_s,
            Processes::Other(_) => 0.0,
        }
    }

    /// The body of a successful answer.
    pub(super) fn get(&self, path: &str) -> Result<String, Failure> {
        let prefix = match self.processes {
            Processes::Hourbucket(..) => "/prometheus/api/v1",
            Processes::Other(_) => "/api/v1",
        };
        let (status, text) = http::get_whole(self.port, &format!("{prefix}/{path}"))?;
        match status {
            200 => Ok(text),
            _ => {
                let text: String = text.chars().take(500).collect();
                Err(format!("{}: {path}: {status} {text}", self.kind.name()).into())
            }
        }
    }

    /// CPU seconds of its processes so far.
    pub(super) fn cpu_s(&self) -> f64 {
        match &self.processes {
            Processes::Hourbucket(service, mongod) => service.usage().cpu_s + mongod.usage().cpu_s,
            Processes::Other(process) => usage::cpu_s(process.pid()).unwrap_or(0.0),
        }
    }

    /// The most memory that the service had, in bytes.
    pub(super) fn peak_bytes(&self) -> u64 {
        match &self.processes {
            Processes::Hourbucket(service, _) => service.usage().rss_peak_bytes,
            Processes::Other(process) => {
                usage::of(process.pid()).unwrap_or_default().rss_peak_bytes
            }
        }
    }
}
