//! A mosquitto for one test: on a free port, with its own directory, stopped when it is dropped.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running broker.
pub struct Mosquitto {
    port: u16,
    dir: tempfile::TempDir,
    child: Option<Child>,
}

impl Mosquitto {
    /// Starts a broker without authentication and without a limit on its queue for a client. It
    /// saves its sessions if it is [stopped](Mosquitto::stop), not if it is
    /// [killed](Mosquitto::kill). `extra` is appended to the configuration of its one listener.
    pub fn start(extra: &str) -> Mosquitto {
        // Another process may take the free port first. Then mosquitto reports that, and another
        // port is tried.
        for _ in 0..20 {
            let port = super::free_port();
            let dir = tempfile::tempdir().unwrap();
            let config = format!(
                "listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n\
                 max_queued_messages 0\n\
                 persistence true\npersistence_location {}/\n\
                 log_dest file {}/log\n{extra}\n",
                dir.path().display(),
                dir.path().display(),
            );
            fs::write(dir.path().join("conf"), config).unwrap();
            // A mosquitto that root starts becomes the user mosquitto, who must be able to write
            // there.
            let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
            fs::set_permissions(dir.path(), open).unwrap();
            let mut broker = Mosquitto {
                port,
                dir,
                child: None,
            };
            if broker.run() {
                return broker;
            }
        }
        panic!("mosquitto does not start; is the package mosquitto installed?");
    }

    fn binary() -> PathBuf {
        let sbin = PathBuf::from("/usr/sbin/mosquitto");
        if sbin.exists() {
            sbin
        } else {
            "mosquitto".into()
        }
    }

    /// Starts it and waits until it answers; returns whether it does. An answer on the port may be
    /// that of another process, so its log must say that it runs.
    fn run(&mut self) -> bool {
        let runs = || self.log().matches(" running\n").count();
        let before = runs();
        let conf = self.dir.path().join("conf");
        let mut child = Command::new(Mosquitto::binary())
            .arg("-c")
            .arg(conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto must be installed");
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if runs() > before && TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                self.child = Some(child);
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGKILL: unsaved state is lost.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it normally: it saves its sessions.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }

    /// Deletes its saved state while it is stopped.
    pub fn forget(&self) {
        let _ = fs::remove_file(self.dir.path().join("mosquitto.db"));
    }

    /// Starts it again on the same port, with its saved state.
    pub fn restart(&mut self) {
        assert!(
            self.run(),
            "mosquitto does not start again:\n{}",
            self.log()
        );
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Publishes one message with `mosquitto_pub`, by default with QoS 1; `more`: further arguments.
pub fn publish_by_tool(port: u16, topic: &str, payload: &str, more: &[&str]) {
    let port = port.to_string();
    let arguments = [
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-q",
        "1",
        "-t",
        topic,
        "-m",
        payload,
    ];
    let done = Command::new("mosquitto_pub")
        .args(arguments)
        .args(more)
        .output();
    let done = done.expect("mosquitto_pub is in the package mosquitto-clients");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// The retained message of a topic; empty if there is none.
pub fn retained_by_tool(port: u16, topic: &str) -> String {
    let port = port.to_string();
    let arguments = [
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        topic,
        "-C",
        "1",
        "-W",
        "2",
    ];
    let done = Command::new("mosquitto_sub").args(arguments).output();
    let done = done.expect("mosquitto_sub is in the package mosquitto-clients");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}
