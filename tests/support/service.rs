//! The service as a user runs it: the binary as a process that can be killed, with its ports and
//! its journal.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use super::http_client::agent;
use super::mongod::python_packages;
use super::process::Process;
use super::{LOOK_EVERY, free_port, wait_until};

/// From the start until `/readyz` returns 200; generous, because two cores may be busy.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Attempts with other ports, if another process takes a port first.
const STARTS_MAX: u32 = 5;

/// A running hourbucket, or a killed one that can be [restarted](Service::restart).
pub struct Service {
    process: Process,
    settings: Vec<(String, String)>,
    http_port: u16,
    admin_port: u16,
    agent: ureq::Agent,
}

impl Service {
    /// Starts the binary with `config`, the text of a configuration file, and returns when it is
    /// ready.
    ///
    /// This helper chooses the ports and the directory of the journal (by environment, which
    /// overrides the file). `settings` go into the environment as well, such as `("STORE__URI",
    /// uri)`. Unless `config` says otherwise, readings do not wait longer when MongoDB is busy: on
    /// a busy machine it always is, and a test would wait for minutes.
    ///
    /// # Panics
    /// It does not become ready.
    pub fn start(config: &str, settings: &[(&str, &str)]) -> Service {
        let process = Process::new("hourbucket");
        let mut file = std::fs::File::create(process.dir().join("hourbucket.toml"))
            .expect("a configuration file");
        file.write_all(config.as_bytes())
            .expect("a configuration file");
        let agent = agent();
        let mut settings: Vec<_> = settings
            .iter()
            .map(|(key, value)| (format!("HOURBUCKET_{key}"), (*value).to_owned()))
            .collect();
        if !config.contains("max_age_busy") {
            settings.push(("HOURBUCKET_FLUSH__MAX_AGE_BUSY".into(), "1s".into()));
        }
        let mut service = Service {
            process,
            settings,
            http_port: 0,
            admin_port: 0,
            agent,
        };
        for _ in 0..STARTS_MAX {
            (service.http_port, service.admin_port) = (free_port(), free_port());
            if service.run() {
                return service;
            }
        }
        panic!(
            "hourbucket found its port taken {STARTS_MAX} times:\n{}",
            service.process.log_tail()
        );
    }

    /// `http://127.0.0.1:port`, without a slash at the end.
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http_port)
    }

    /// The same for the admin port.
    pub fn admin(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin_port)
    }

    /// Its directory: `hourbucket.toml`, `journal/`, `hourbucket.log`.
    pub fn dir(&self) -> &std::path::Path {
        self.process.dir()
    }

    /// Its process id, for /proc.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Runs a script of `tests` with packages as [`python_packages`] finds them; returns what it
    /// prints.
    ///
    /// # Panics
    /// It fails.
    pub fn run_python(
        &self,
        (named, package): (&str, &str),
        script: &str,
        arguments: &[&str],
    ) -> String {
        let output = Command::new("python3")
            .arg(format!(
                "{}/tests/{script}",
                concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
            ))
            .args(arguments)
            .env("PYTHONPATH", python_packages(named, package))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("no_proxy", "127.0.0.1")
            .output()
            .expect("python3 must start");
        let printed =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}\n{}", self.log());
        printed.into_owned()
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends SIGKILL; returns when the process has ended.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again on the same ports with the same journal, and returns when it is ready.
    pub fn restart(&mut self) {
        self.kill9();
        assert!(
            self.run(),
            "a port of the service was taken by another process meanwhile"
        );
    }

    /// Starts it again without waiting until it is ready.
    pub fn restart_in_background(&mut self) {
        self.kill9();
        self.spawn();
    }

    /// Sends SIGHUP, on which it reads its settings again.
    pub fn sighup(&self) {
        self.process.sighup();
    }

    /// Sends SIGTERM, waits for the end, and returns the exit code.
    ///
    /// # Panics
    /// It has not ended within `limit`, or a signal ended it.
    pub fn terminate(&mut self, limit: Duration) -> i32 {
        self.process.sigterm();
        let status = self.process.wait(limit);
        status.code().unwrap_or_else(|| {
            panic!(
                "hourbucket ended with {status}:\n{}",
                self.process.log_tail()
            )
        })
    }

    /// Posts line protocol with times in milliseconds, all of which must be accepted.
    ///
    /// # Panics
    /// There is no answer, or a line is rejected.
    pub fn write_lines(&self, lines: &str) {
        let content_type = "text/plain; charset=utf-8";
        let answer = self.post("/api/v2/write?precision=ms", content_type, lines.as_bytes());
        let (status, text) = answer.expect("an answer");
        assert_eq!(status, 204, "{text}");
    }

    /// Posts `body`; returns status and text of the answer, or `None` without an answer (if it was
    /// killed, for instance).
    pub fn post(&self, path: &str, content_type: &str, body: &[u8]) -> Option<(u16, String)> {
        let request = self
            .agent
            .post(format!("{}{path}", self.http()))
            .header("content-type", content_type);
        let mut answer = request.send(body).ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.body_mut().read_to_string().ok()?))
    }

    /// Requests a page of the admin port, such as `/readyz`; `None` without an answer.
    pub fn get_admin(&self, path: &str) -> Option<(u16, String)> {
        let mut answer = self
            .agent
            .get(format!("{}{path}", self.admin()))
            .call()
            .ok()?;
        let status = answer.status().as_u16();
        // A response about a large fleet is larger than the default limit of 10 MB.
        Some((
            status,
            answer
                .body_mut()
                .with_config()
                .limit(1 << 30)
                .read_to_string()
                .ok()?,
        ))
    }

    /// Scrapes `/metrics`.
    ///
    /// # Panics
    /// There is no answer.
    pub fn metrics(&self) -> Metrics {
        let (status, text) = self.get_admin("/metrics").expect("/metrics must answer");
        assert_eq!(status, 200, "{text}");
        Metrics(text)
    }

    /// Waits until its subscriptions are granted. It is ready before that, because a broker may be
    /// unreachable. Messages that are published earlier may be lost.
    #[track_caller]
    pub fn wait_subscribed(&self) {
        wait_until("the subscriptions are granted", READY_WITHIN, || {
            let (_, text) = self.get_admin("/readyz")?;
            let report: serde_json::Value = serde_json::from_str(&text).ok()?;
            let brokers = report["mqtt"].as_array()?;
            (!brokers.is_empty() && brokers.iter().all(|broker| broker["connected"] == true))
                .then_some(())
        });
    }

    /// Waits until all accepted readings are stored or known as duplicates, and at least
    /// `accepted_min` were accepted.
    #[track_caller]
    pub fn wait_settled(&self, accepted_min: u64, limit: Duration) -> Metrics {
        self.wait_settled_with("readings_accepted_total", accepted_min, limit)
    }

    /// The same, until at least `stored_min` are stored. For messages of a broker: accepted ones may
    /// be repetitions, while the broker still has others.
    #[track_caller]
    pub fn wait_stored(&self, stored_min: u64, limit: Duration) -> Metrics {
        self.wait_settled_with("readings_stored_total", stored_min, limit)
    }

    #[track_caller]
    fn wait_settled_with(&self, counter: &str, min: u64, limit: Duration) -> Metrics {
        let deadline = Instant::now() + limit;
        loop {
            let metrics = self
                .get_admin("/metrics")
                .filter(|(status, _)| *status == 200)
                .map(|(_, text)| Metrics(text));
            let is_enough = |metrics: &Metrics| metrics.get(counter) >= min as f64;
            if let Some(metrics) =
                metrics.filter(|metrics| is_enough(metrics) && metrics.is_settled())
            {
                return metrics;
            }
            assert!(
                Instant::now() < deadline,
                "not everything accepted is stored, or {counter} is below {min}, after {limit:?}\n{}",
                self.report()
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Its state, for the message of a test that fails.
    fn report(&self) -> String {
        let metrics = self
            .get_admin("/metrics")
            .map_or_else(String::new, |(_, text)| text);
        let figures = metrics
            .lines()
            .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
        let figures: Vec<&str> = figures.filter(|line| !line.ends_with(" 0")).collect();
        let ready = self
            .get_admin("/readyz")
            .map_or_else(String::new, |(_, text)| text);
        format!(
            "{ready}\n{}\n{}",
            figures.join("\n"),
            self.process.log_tail()
        )
    }

    fn spawn(&mut self) {
        // The long runs name the release binary; the default is the binary that was built with the
        // tests.
        let binary = std::env::var_os("HOURBUCKET_TEST_BINARY")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_hourbucket").into());
        let mut command = Command::new(binary);
        // Settings in the environment of the test run must not reach the service.
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("HOURBUCKET_") {
                command.env_remove(key);
            }
        }
        command
            .args(["run", "--config", "hourbucket.toml"])
            .env(
                "HOURBUCKET_HTTP__LISTEN",
                format!("127.0.0.1:{}", self.http_port),
            )
            .env(
                "HOURBUCKET_ADMIN__LISTEN",
                format!("127.0.0.1:{}", self.admin_port),
            )
            .env(
                "HOURBUCKET_JOURNAL__DIR",
                self.process.dir().join("journal"),
            )
            .envs(self.settings.iter().map(|(key, value)| (key, value)));
        self.process.spawn(&mut command);
    }

    /// Starts it and waits until it is ready; `false` if a port was taken.
    fn run(&mut self) -> bool {
        self.spawn();
        wait_until("hourbucket is ready", READY_WITHIN, || {
            if let Some(status) = self.process.ended() {
                let log = self.process.log_tail();
                assert!(
                    log.contains("in use"),
                    "hourbucket has ended with {status}:\n{log}"
                );
                return Some(false);
            }
            self.get_admin("/readyz")
                .is_some_and(|(status, _)| status == 200)
                .then_some(true)
        })
    }
}

/// One scrape.
pub struct Metrics(String);

impl Metrics {
    /// Whether all accepted readings are stored or known as duplicates.
    pub fn is_settled(&self) -> bool {
        let settled = self.get("readings_stored_total") + self.get("readings_duplicate_total");
        settled == self.get("readings_accepted_total")
    }

    /// The sum of a metric over all its labels, 0 if it is absent. `name` is without the prefix
    /// `hourbucket_`.
    pub fn get(&self, name: &str) -> f64 {
        self.series(name).map(|(_, value)| value).sum()
    }

    /// The sum over the series with this label.
    pub fn labelled(&self, name: &str, label: &str, is: &str) -> f64 {
        let pair = format!("{label}=\"{is}\"");
        self.series(name)
            .filter(|(labels, _)| labels.contains(&pair))
            .map(|(_, value)| value)
            .sum()
    }

    /// The scraped text.
    pub fn text(&self) -> &str {
        &self.0
    }

    fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix("hourbucket_")?.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            // The name must end here: either `{` opens its labels, or it has none.
            (labels.is_empty() || labels.starts_with('{'))
                .then(|| Some((labels, value.parse().ok()?)))
                .flatten()
        })
    }
}
