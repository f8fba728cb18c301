//! Notifies the service manager: ready, reloading, stopping, alive, and a status line for
//! `systemctl status`.
//!
//! systemd's protocol is a datagram of `NAME=value` lines to the socket in `NOTIFY_SOCKET`
//! (sd_notify(3)); container managers support it too. Without a socket every call does nothing. If
//! the manager does not read, a message is dropped after a second, and the first such failure is
//! logged.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UnixDatagram;

use config::Manager;

/// Time limit for sending a message.
const SEND_WITHIN: Duration = Duration::from_secs(1);
/// Time that the manager allows beyond the shutdown deadline, for the steps after it.
const AFTER_DEADLINE: Duration = Duration::from_secs(10);

/// The connection to the service manager.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
    failed: AtomicBool,
}

impl Notifier {
    /// Connects to the manager's socket; call within a runtime.
    ///
    /// # Errors
    /// The socket cannot be used. The manager would then wait for a notification in vain.
    pub(crate) fn new(manager: &Manager) -> io::Result<Notifier> {
        let Some(name) = &manager.notify_socket else {
            return Ok(Notifier::default());
        };
        let socket = std::os::unix::net::UnixDatagram::unbound()?;
        socket.connect_addr(&address(name.as_bytes())?)?;
        socket.set_nonblocking(true)?;
        let socket = Some(UnixDatagram::from_std(socket)?);
        Ok(Notifier {
            socket,
            watchdog: manager.watchdog,
            failed: AtomicBool::new(false),
        })
    }

    /// The maximum interval between calls of [`Notifier::alive`]; `None` if there is no watchdog.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some())
    }

    /// Whether a manager is connected.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// The service is ready: at the start, and after every reload, successful or not.
    pub(crate) async fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)))
            .await;
    }

    /// A reload has started; [`Notifier::ready`] must follow.
    pub(crate) async fn reloading(&self) {
        // With Type=notify-reload the manager compares this time with the time of its signal.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading the configuration"
        ))
        .await;
    }

    /// The service drains for at most `deadline`. Requests that time from the manager, regardless
    /// of its own limit.
    pub(crate) async fn stopping(&self, deadline: Duration) {
        let usec = (deadline + AFTER_DEADLINE).as_micros();
        let status = "stopping: storing acknowledged readings";
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={usec}\nSTATUS={status}"
        ))
        .await;
    }

    /// A sign of life for the watchdog.
    pub(crate) async fn alive(&self) {
        self.send("WATCHDOG=1").await;
    }

    /// Sets the line in `systemctl status`.
    pub(crate) async fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", line(status))).await;
    }

    async fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let sent = match tokio::time::timeout(SEND_WITHIN, socket.send(message.as_bytes())).await {
            Ok(sent) => sent.map(|_| ()),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the manager does not read its socket",
            )),
        };
        if let Err(error) = sent
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
        }
    }
}

/// Removes line breaks: a value must not contain another assignment.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name {
        #[cfg(target_os = "linux")]
        [b'@', rest @ ..] => {
            <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(rest)
        }
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "NOTIFY_SOCKET is not an absolute path or abstract name",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(socket: &str, watchdog: Option<Duration>) -> Manager {
        Manager {
            notify_socket: Some(socket.into()),
            watchdog,
        }
    }

    async fn received(socket: &UnixDatagram) -> String {
        let mut buf = [0; 1024];
        let n = tokio::time::timeout(SEND_WITHIN, socket.recv(&mut buf))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8(buf[..n].to_vec()).unwrap()
    }

    #[tokio::test]
    async fn messages_reach_a_path_and_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify").display().to_string();
        let name = format!(
            "@hourbucket-test-{}-{}",
            std::process::id(),
            fastrand::u64(..)
        );
        for socket in [path, name] {
            let bound =
                std::os::unix::net::UnixDatagram::bind_addr(&address(socket.as_bytes()).unwrap())
                    .unwrap();
            bound.set_nonblocking(true).unwrap();
            let listener = UnixDatagram::from_std(bound).unwrap();
            let notifier = Notifier::new(&manager(&socket, Some(SEND_WITHIN))).unwrap();
            assert_eq!(
                (notifier.is_open(), notifier.watchdog()),
                (true, Some(SEND_WITHIN))
            );
            notifier.ready("taking\nWATCHDOG=trigger").await;
            assert_eq!(
                received(&listener).await,
                "READY=1\nSTATUS=taking WATCHDOG=trigger"
            );
            notifier.alive().await;
            assert_eq!(received(&listener).await, "WATCHDOG=1");
            notifier.status("x").await;
            assert_eq!(received(&listener).await, "STATUS=x");
            notifier.stopping(Duration::from_secs(30)).await;
            assert!(
                received(&listener)
                    .await
                    .starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000\n")
            );
            notifier.reloading().await;
            let reloading = received(&listener).await;
            let usec = |text: &str| text.parse::<u64>().unwrap();
            let lines: Vec<&str> = reloading.lines().collect();
            assert_eq!(lines[0], "RELOADING=1");
            assert!(
                usec(lines[1].strip_prefix("MONOTONIC_USEC=").unwrap()) > 0,
                "{reloading}"
            );
        }
    }

    #[tokio::test]
    async fn without_a_socket_nothing_happens_and_an_invalid_one_is_an_error() {
        let silent = Notifier::new(&Manager {
            watchdog: Some(SEND_WITHIN),
            ..Manager::default()
        })
        .unwrap();
        assert_eq!((silent.is_open(), silent.watchdog()), (false, None));
        silent.ready("x").await;
        for socket in ["relative", "/nowhere/at/all", "@nobody-listens-here"] {
            assert!(Notifier::new(&manager(socket, None)).is_err(), "{socket}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_does_not_read_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _listener = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(&manager(path.to_str().unwrap(), None)).unwrap();
        // More than any queue of datagrams holds.
        for _ in 0..2000 {
            notifier.alive().await;
            if notifier.failed.load(Ordering::Relaxed) {
                return;
            }
        }
        panic!("the socket took everything");
    }
}
