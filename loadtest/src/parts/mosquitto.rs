//! A mosquitto without limits on queued messages and without persistence: the guarantees of the service start at the
//! delivery by the broker.

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
    /// Starts the broker and returns when it accepts connections.
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
            // If started as root, it switches to the user mosquitto, which must be able to read the configuration.
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
        Err("mosquitto did not start".into())
    }

    pub(crate) fn usage(&self) -> Usage {
        usage::of(self.process.pid()).unwrap_or_default()
    }
}
