//! The service under a service manager (systemd's protocol), and checked by `hourbucket probe`:
//! with real sockets and the binary. Without MongoDB: an unreachable store must not look like a
//! service that has failed.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::support::http_client::agent;
use crate::support::{free_port, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Kills the process if a test fails before the process has ended.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(dir: &Path, admin: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hourbucket"));
    command.current_dir(dir).args(arguments);
    command.env(
        "HOURBUCKET_STORE__URI",
        "mongodb://127.0.0.1:1/?replicaSet=rs0",
    );
    command
        .env("HOURBUCKET_HTTP__LISTEN", "127.0.0.1:0")
        .env("HOURBUCKET_ADMIN__LISTEN", format!("127.0.0.1:{admin}"));
    command.env("HOURBUCKET_SHUTDOWN__DEADLINE", "5s");
    command
}

fn probe(dir: &Path, admin: u16, arguments: &[&str]) -> Output {
    command(dir, admin, &[&["probe"], arguments].concat())
        .output()
        .unwrap()
}

fn received(manager: &UnixDatagram) -> Option<String> {
    let mut buf = [0; 4096];
    let n = manager.recv(&mut buf).ok()?;
    Some(String::from_utf8(buf[..n].to_vec()).unwrap())
}

/// Waits for the next message that contains this text.
#[track_caller]
fn wait_for(manager: &UnixDatagram, text: &str) -> String {
    wait_until(text, LIMIT, || {
        received(manager).filter(|message| message.contains(text))
    })
}

/// From the start over watchdog messages to the end; `name` is the address as the manager sets it,
/// `manager` the socket that listens there.
fn start_and_stop(name: &str, manager: &UnixDatagram) {
    manager
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let admin = free_port();
    assert_eq!(
        probe(dir.path(), admin, &[]).status.code(),
        Some(1),
        "nothing listens yet"
    );
    let mut start = command(dir.path(), admin, &["run"]);
    start
        .env("NOTIFY_SOCKET", name)
        .env("WATCHDOG_USEC", "600000")
        .stderr(Stdio::null());
    let mut service = Running(start.spawn().unwrap());
    let ready = wait_for(manager, "READY=1");
    assert!(ready.contains("\nSTATUS=accepting readings"), "{ready}");
    for _ in 0..5 {
        assert_eq!(wait_for(manager, "WATCHDOG"), "WATCHDOG=1");
    }
    assert!(wait_for(manager, "STATUS").contains("the journal keeps the readings"));
    for arguments in [&[][..], &["--ready"]] {
        let output = probe(dir.path(), admin, arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(service.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let stopping = wait_for(manager, "STOPPING=1");
    assert!(
        stopping.contains("\nEXTEND_TIMEOUT_USEC=15000000\n"),
        "{stopping}"
    );
    assert_eq!(
        service.0.wait().unwrap().code(),
        Some(0),
        "nothing was acknowledged, so nothing is left"
    );
}

#[test]
fn the_manager_gets_start_watchdog_and_stop_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify.sock");
    start_and_stop(path.to_str().unwrap(), &UnixDatagram::bind(&path).unwrap());
}

#[test]
fn the_manager_may_listen_on_an_abstract_socket() {
    let name = format!("hourbucket-manager-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    start_and_stop(
        &format!("@{name}"),
        &UnixDatagram::bind_addr(&address).unwrap(),
    );
}

#[test]
fn a_limit_on_file_sizes_refuses_readings_like_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let admin = free_port();
    let http = free_port();
    let of_service = command(dir.path(), admin, &[]);
    // Far below journal.segment_bytes. SIGXFSZ would end the process at the first segment.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2000 && exec \"$0\" run"]);
    limited
        .arg(of_service.get_program())
        .current_dir(dir.path())
        .envs(of_service.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .env("HOURBUCKET_HTTP__LISTEN", format!("127.0.0.1:{http}"))
        .stderr(Stdio::null());
    let mut service = Running(limited.spawn().unwrap());
    let agent = agent();
    let status = wait_until("an answer", LIMIT, || {
        assert_eq!(service.0.try_wait().unwrap(), None, "it has ended");
        let post = agent.post(format!("http://127.0.0.1:{http}/v1/readings"));
        let post = post.header("content-type", "application/json");
        let answer = post.send("{\"sensor_id\":\"S1\",\"v\":1}");
        Some(answer.ok()?.status().as_u16())
    });
    assert_eq!(status, 429, "no acknowledgement without a segment");
    wait_until("the reason", LIMIT, || {
        let get = agent.get(format!("http://127.0.0.1:{admin}/readyz"));
        let text = get.call().ok()?.body_mut().read_to_string().ok()?;
        text.contains("its disk refuses writes: File too large")
            .then_some(())
    });
}

#[test]
fn invalid_settings_are_distinguished_from_other_failures() {
    let dir = tempfile::tempdir().unwrap();
    let admin = free_port();
    let mut wrong = command(dir.path(), admin, &["run"]);
    let output = wrong
        .env("HOURBUCKET_HTTP__LISTEN", "0.0.0.0:0")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let taken = std::net::TcpListener::bind(("127.0.0.1", admin)).unwrap();
    let output = command(dir.path(), admin, &["run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    drop(taken);
}
