//! A mosquitto without limits on what waits for a client, and without persistence: the service's promise begins where
//! the broker hands over.

use std::process::Command;
use std::time::{Duration, Instant};

use super::process::Process;
use super::{STARTS_MAX, free_port, program};
use crate::Failure;
use crate::usage::{self, Usage};

/// A running broker.
pub(crate) struct Mosquitto {
    pub(crate) port: u16,
    process: Process,
}

impl Mosquitto {
    /// Starts one and returns when it answers.
    pub(crate) fn start() -> Result<Mosquitto, Failure> {
        let binary = program("HOURBUCKET_MOSQUITTO", "mosquitto").ok_or("no mosquitto; set HOURBUCKET_MOSQUITTO")?;
        for _ in 0..STARTS_MAX {
            let mut broker = Mosquitto { port: free_port(), process: Process::new("mosquitto") };
            let config = format!(
                "listener {} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\nmax_queued_messages 0\n\
                 set_tcp_nodelay true\npersistence false\nlog_dest stderr\n",
                broker.port
            );
            std::fs::write(broker.process.dir().join("conf"), config)?;
            // Started by root it becomes the user mosquitto, who must be able to read its configuration again.
            let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
            std::fs::set_permissions(broker.process.dir(), open)?;
            broker.process.spawn(Command::new(&binary).args(["-c", "conf"]));
            let deadline = Instant::now() + Duration::from_secs(20);
            while Instant::now() < deadline && broker.process.ended().is_none() {
                if std::net::TcpStream::connect(("127.0.0.1", broker.port)).is_ok() {
                    return Ok(broker);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Err("mosquitto does not start".into())
    }

    pub(crate) fn usage(&self) -> Usage {
        usage::of(self.process.pid()).unwrap_or_default()
    }
}
