//! The service as users run it: the release binary with its defaults and the settings of the
//! scenario.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::Process;
use super::{STARTS_MAX, free_port};
use crate::usage::{self, Usage};
use crate::{Failure, http};

const READY_WITHIN: Duration = Duration::from_secs(60);
const RELOADED_WITHIN: Duration = Duration::from_secs(30);
/// On a busy machine, draining the backlog of a run may take longer than the default deadline.
const DRAIN_WITHIN: Duration = Duration::from_secs(900);

/// A running hourbucket.
pub(crate) struct Service {
    pub(crate) http_port: u16,
    /// Of `listen.mqtt`, if the scenario enables it.
    pub(crate) mqtt_port: u16,
    pub(crate) admin_port: u16,
    process: Process,
}

/// The final state of the service.
pub(crate) struct Ended {
    /// The last scrape before the admin port closed.
    pub(crate) metrics: Metrics,
    pub(crate) usage: Usage,
    /// From SIGTERM until everything is stored and the process has exited.
    pub(crate) drain: Duration,
}

impl Service {
    /// Starts the service with these settings (environment variables without the prefix) and
    /// returns when it is ready.
    pub(crate) fn start(
        binary: &Path,
        settings: &BTreeMap<String, String>,
    ) -> Result<Service, Failure> {
        if !binary.is_file() {
            let hint = "build it (cargo build --release) or name another with --binary";
            return Err(format!("{} is not a file: {hint}", binary.display()).into());
        }
        let binary = binary.canonicalize()?;
        for _ in 0..STARTS_MAX {
            let http_port = free_port();
            let mqtt_port = free_port();
            let admin_port = free_port();
            let mut service = Service {
                http_port,
                mqtt_port,
                admin_port,
                process: Process::new("hourbucket"),
            };
            // An empty file, so that no other configuration is found.
            std::fs::write(service.process.dir().join("hourbucket.toml"), "")?;
            let mut command = Command::new(&binary);
            for (key, _) in std::env::vars_os() {
                if key.to_string_lossy().starts_with("HOURBUCKET_") {
                    command.env_remove(key);
                }
            }
            command
                .args(["run", "--config", "hourbucket.toml"])
                .env("HOURBUCKET_HTTP__LISTEN", format!("127.0.0.1:{http_port}"))
                .env(
                    "HOURBUCKET_LISTEN__MQTT__LISTEN",
                    format!("127.0.0.1:{mqtt_port}"),
                )
                .env(
                    "HOURBUCKET_ADMIN__LISTEN",
                    format!("127.0.0.1:{admin_port}"),
                )
                .env(
                    "HOURBUCKET_JOURNAL__DIR",
                    service.process.dir().join("journal"),
                )
                .env(
                    "HOURBUCKET_SHUTDOWN__DEADLINE",
                    format!("{}s", DRAIN_WITHIN.as_secs()),
                )
                .envs(
                    settings
                        .iter()
                        .map(|(key, value)| (format!("HOURBUCKET_{key}"), value)),
                );
            service.process.spawn(&mut command);
            if service.ready()? {
                return Ok(service);
            }
        }
        Err(format!("hourbucket: port in use in {STARTS_MAX} attempts").into())
    }

    /// Waits until it is ready; false if a port is in use.
    fn ready(&mut self) -> Result<bool, Failure> {
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.process.ended() {
                let log = self.process.log_tail();
                return match log.contains("in use") {
                    true => Ok(false),
                    false => Err(format!("hourbucket exited with {status}:\n{log}").into()),
                };
            }
            if self.is_ready() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "hourbucket did not become ready within {READY_WITHIN:?}:\n{}",
            self.process.log_tail()
        )
        .into())
    }

    /// Replaces the configuration file and sends SIGHUP; returns when the service has applied it.
    pub(crate) fn reload(&self, config: &str) -> Result<(), Failure> {
        let before = self.metrics()?.count("config_reloads_total");
        std::fs::write(self.process.dir().join("hourbucket.toml"), config)?;
        self.process.sighup();
        let deadline = Instant::now() + RELOADED_WITHIN;
        loop {
            let metrics = self.metrics()?;
            let reloads = metrics.count("config_reloads_total");
            match (
                reloads > before,
                metrics.count("config_last_reload_successful"),
            ) {
                (true, 1) => return Ok(()),
                (false, _) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                _ => {
                    return Err(format!(
                        "the reload was not applied:\n{}",
                        self.process.log_tail()
                    )
                    .into());
                }
            }
        }
    }

    /// Whether `/readyz` returns 200.
    pub(crate) fn is_ready(&self) -> bool {
        http::get(self.admin_port, "/readyz").is_ok_and(|(status, _)| status == 200)
    }

    pub(crate) fn usage(&self) -> Usage {
        usage::of(self.process.pid()).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn metrics(&self) -> Result<Metrics, Failure> {
        scrape(self.admin_port)
    }

    /// Sends SIGTERM and waits until everything is stored and the process has exited. Samples
    /// metrics and memory until then, and reads the CPU time afterwards.
    pub(crate) fn terminate(mut self) -> Result<Ended, Failure> {
        let pid = self.process.pid();
        let begun = Instant::now();
        let mut metrics = self.metrics()?;
        self.process.sigterm();
        let usage = usage::until_ended(pid, DRAIN_WITHIN + Duration::from_secs(10), || {
            if let Ok(now) = scrape(self.admin_port) {
                metrics = now;
            }
        })
        .ok_or_else(|| format!("hourbucket did not exit:\n{}", self.process.log_tail()))?;
        let drain = begun.elapsed();
        let status = self.process.wait(Duration::from_secs(10));
        if !status.success() {
            return Err(format!(
                "hourbucket exited with {status}:\n{}",
                self.process.log_tail()
            )
            .into());
        }
        Ok(Ended {
            metrics,
            usage,
            drain,
        })
    }
}

/// Scrapes the service with this admin port.
pub(crate) fn scrape(admin_port: u16) -> Result<Metrics, Failure> {
    let (status, text) = http::get(admin_port, "/metrics")?;
    if status != 200 {
        return Err(format!("/metrics returned status {status}: {text}").into());
    }
    Ok(Metrics::parse(&text))
}

/// One scrape: the sums over all labels, and the sums by the label `kind`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    sums: BTreeMap<String, f64>,
    kinds: BTreeMap<(String, String), f64>,
}

impl Metrics {
    fn parse(text: &str) -> Metrics {
        let mut all = Metrics::default();
        for line in text
            .lines()
            .filter_map(|line| line.strip_prefix("hourbucket_"))
        {
            let Some((series, Ok(value))) =
                line.rsplit_once(' ').map(|(s, v)| (s, v.parse::<f64>()))
            else {
                continue;
            };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            *all.sums.entry(name.to_owned()).or_default() += value;
            if let Some(kind) = labels
                .split("kind=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
            {
                *all.kinds
                    .entry((name.to_owned(), kind.to_owned()))
                    .or_default() += value;
            }
        }
        all
    }

    /// The sum over all labels; `name` is without the prefix `hourbucket_`. 0 if absent.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.sums.get(name).copied().unwrap_or(0.0)
    }

    /// The same as an integer.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.get(name) as u64
    }

    /// The sums of a metric by `kind`.
    pub(crate) fn kinds(&self, name: &str) -> BTreeMap<String, u64> {
        let of = self.kinds.iter().filter(|((n, _), _)| n == name);
        of.map(|((_, kind), value)| (kind.clone(), *value as u64))
            .collect()
    }

    /// Accepted readings that are stored, including duplicates of stored ones.
    pub(crate) fn settled(&self) -> u64 {
        self.count("readings_stored_total") + self.count("readings_duplicate_total")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_is_summed() {
        let text = "# HELP x\nhourbucket_a_total{kind=\"insert\"} 3\n\
            hourbucket_a_total{kind=\"update\"} 4\n\
                    hourbucket_b 1.5\nother 7\n";
        let metrics = Metrics::parse(text);
        assert_eq!(
            (
                metrics.count("a_total"),
                metrics.get("b"),
                metrics.count("c")
            ),
            (7, 1.5, 0)
        );
        assert_eq!(
            metrics.kinds("a_total"),
            BTreeMap::from([("insert".into(), 3), ("update".into(), 4)])
        );
    }
}
