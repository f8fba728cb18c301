//! A real Prometheus.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::http_client::agent;
use super::process::Process;
use super::watch::program;
use super::{free_port, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// A Prometheus with its own directory and port.
pub struct Prometheus {
    /// The server.
    pub process: Process,
    /// Shows answers of all statuses.
    pub agent: ureq::Agent,
    port: u16,
}

impl Prometheus {
    /// Starts it with this configuration.
    pub fn start(config: &str) -> Prometheus {
        let mut prometheus = Prometheus::new(config);
        prometheus.run();
        prometheus
    }

    /// Not running yet, so that other files can be added to its directory.
    pub fn new(config: &str) -> Prometheus {
        let agent = agent();
        let process = Process::new("prometheus");
        std::fs::write(process.dir().join("prometheus.yml"), config).expect("a configuration");
        Prometheus {
            process,
            agent,
            port: free_port(),
        }
    }

    /// Where its configuration and its data are.
    pub fn dir(&self) -> &Path {
        self.process.dir()
    }

    /// Starts it, or starts it again, and waits until it answers.
    pub fn run(&mut self) {
        let mut command = Command::new(program("prometheus"));
        command.args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--log.level=warn",
        ]);
        self.process
            .spawn(command.arg(format!("--web.listen-address=127.0.0.1:{}", self.port)));
        wait_until("Prometheus answers", PATIENCE, || {
            assert!(
                self.process.ended().is_none(),
                "{}",
                self.process.log_tail()
            );
            self.agent
                .get(format!("{}/-/ready", self.url()))
                .call()
                .ok()
        });
    }

    /// Its address, without a path.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
