//! A mosquitto without limits on queued messages. It saves its messages only when it is stopped:
//! the guarantees of the service start at the delivery by the broker.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::Process;
use super::{STARTS_MAX, free_port, program};
use crate::Failure;
use crate::usage::{self, Usage};

/// Limit for a start, and for saving the messages at a stop.
const STARTED_WITHIN: Duration = Duration::from_secs(20);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// A running broker.
pub(crate) struct Mosquitto {
    pub(crate) port: u16,
    binary: PathBuf,
    process: Process,
    /// Resources used by its earlier processes.
    before: Usage,
}

impl Mosquitto {
    /// Starts the broker and returns when it accepts connections.
    pub(crate) fn start() -> Result<Mosquitto, Failure> {
        let binary = program("HOURBUCKET_MOSQUITTO", "mosquitto")
            .ok_or("no mosquitto; set HOURBUCKET_MOSQUITTO")?;
        for _ in 0..STARTS_MAX {
            let mut broker = Mosquitto {
                port: free_port(),
                binary: binary.clone(),
                process: Process::new("mosquitto"),
                before: Usage::default(),
            };
            // If started as root, it would switch to the user mosquitto, who may not write into the
            // directory.
            let config = format!(
                "user root\nlistener {} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n\
                 max_queued_messages 0\nset_tcp_nodelay true\npersistence true\n\
                 persistence_location ./\n\
                 autosave_interval 0\nlog_dest stderr\n",
                broker.port
            );
            std::fs::write(broker.process.dir().join("conf"), config)?;
            if broker.spawn() {
                return Ok(broker);
            }
        }
        Err("mosquitto did not start".into())
    }

    /// Starts the process; false if it does not accept connections.
    fn spawn(&mut self) -> bool {
        self.process
            .spawn(Command::new(&self.binary).args(["-c", "conf"]));
        let deadline = Instant::now() + STARTED_WITHIN;
        while Instant::now() < deadline && self.process.ended().is_none() {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Stops it with SIGTERM, so that it saves its messages, and starts it again after `away`.
    pub(crate) fn restart(&mut self, away: Duration) -> Result<(), Failure> {
        self.before = self.usage();
        self.process.sigterm();
        self.process.wait(STOPPED_WITHIN);
        std::thread::sleep(away);
        match self.spawn() {
            true => Ok(()),
            false => Err(format!(
                "mosquitto did not start again:\n{}",
                self.process.log_tail()
            )
            .into()),
        }
    }

    /// Resources used by all its processes.
    pub(crate) fn usage(&self) -> Usage {
        usage::of(self.process.pid())
            .unwrap_or_default()
            .plus(self.before)
    }
}
