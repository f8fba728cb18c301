//! An HTTP port and one of its connections: what the acceptors, the stream and the service of a connection share.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::config::{self, HttpTimes, Live, Setter};
use crate::ingest::connections::{OpenConnections, Place};
use crate::model::Clock;
use crate::telemetry::log_limit::{LOG_EVERY, LineLimit};
use crate::telemetry::metrics;

/// What the connections of a port share.
pub(crate) struct Port {
    /// The section of the configuration, and the label `port` of the metrics.
    pub(super) name: &'static str,
    clock: Arc<dyn Clock>,
    /// A connection keeps those that are current when it is opened.
    pub(super) times: Live<HttpTimes>,
    connections: OpenConnections,
    log: PortLog,
}

/// Replaces the settings of a [`Port`].
#[derive(Clone)]
pub(crate) struct PortSetter {
    times: Setter<HttpTimes>,
    connections: OpenConnections,
}

impl PortSetter {
    /// Limits apply from the next connection on, time limits to those that are opened from now on.
    pub(crate) fn set(&self, connections: config::Connections, times: HttpTimes) {
        self.connections.put(connections);
        self.times.set(times);
    }

    /// Applies the limits of an address to this machine's addresses too.
    #[cfg(test)]
    pub(crate) fn exempt_none(&self) {
        self.connections.exempt_none();
    }
}

/// Log lines that a peer can cause, and their limits.
struct PortLog {
    refused: LineLimit,
    unauthorized: LineLimit,
    stuck: LineLimit,
}

impl PortLog {
    fn end(&self, now_ms: u64) {
        [&self.refused, &self.unauthorized, &self.stuck].into_iter().for_each(|lines| lines.end(now_ms));
    }
}

impl Port {
    pub(crate) fn new(
        name: &'static str,
        clock: Arc<dyn Clock>,
        connections: config::Connections,
        times: HttpTimes,
    ) -> (Arc<Port>, PortSetter) {
        let (setter, times) = Live::new(times);
        let connections = OpenConnections::new(connections, clock.clone());
        let [refused, unauthorized, stuck] =
            ["refused connections", "failed authentications", "peers that take nothing"].map(LineLimit::new);
        let log = PortLog { refused, unauthorized, stuck };
        let port = Port { name, clock, times, connections: connections.clone(), log };
        (Arc::new(port), PortSetter { times: setter, connections })
    }

    /// Gives a new connection its place, or refuses it.
    pub(super) fn enter(self: &Arc<Port>, stream: &TcpStream, peer: SocketAddr) -> io::Result<Arc<Connection>> {
        let connection = self.entered(peer)?;
        // Small answers must not wait for the TCP acknowledgement of the previous one.
        stream.set_nodelay(true)?;
        Ok(connection)
    }

    pub(super) fn entered(self: &Arc<Port>, peer: SocketAddr) -> io::Result<Arc<Connection>> {
        let place = self.connections.enter(peer).map_err(|refusal| {
            metrics::http_connection_refused(self.name, refusal.label());
            self.log.refused.line(self.now_ms(), || {
                tracing::warn!(port = self.name, %peer, reason = refusal.label(), detail = %refusal, "connection refused");
            });
            io::Error::other(refusal)
        })?;
        Ok(Connection::new(self.clone(), place))
    }

    /// Logs the numbers of suppressed log lines from time to time; never ends.
    pub(super) async fn tell_what_was_left_out(&self) -> Infallible {
        loop {
            tokio::time::sleep(LOG_EVERY / 4).await;
            self.log.end(self.now_ms());
        }
    }

    /// Logs the numbers of suppressed log lines, at the end.
    pub(super) fn close_log(&self) {
        self.log.end(u64::MAX);
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }
}

/// An open connection.
pub(super) struct Connection {
    pub(super) port: Arc<Port>,
    pub(super) place: Place,
}

impl Connection {
    fn new(port: Arc<Port>, place: Place) -> Arc<Connection> {
        metrics::http_connections_change(port.name, 1);
        Arc::new(Connection { port, place })
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.port.now_ms()
    }

    /// The current request is done, or is refused: the connection may be cut from now on.
    pub(super) fn rest(&self) {
        self.place.phase().rest(self.now_ms());
    }

    /// Counts and logs that the peer takes nothing of what is sent.
    pub(super) fn stuck(&self) {
        metrics::http_connection_closed(self.port.name, "write_timeout");
        let (port, peer) = (self.port.name, self.place.peer());
        self.port.log.stuck.line(self.now_ms(), || {
            tracing::warn!(port, %peer, "connection closed: its peer takes nothing of the response");
        });
    }

    /// Counts and logs a failed authentication. `is_guess`: it counts towards a pause of the address. Returns the
    /// seconds that the address is paused for, if it is.
    pub(super) fn unauthorized(&self, reason: &'static str, is_guess: bool) -> Option<u64> {
        let (port, peer) = (self.port.name, self.place.peer());
        metrics::auth_failure(port, reason);
        let pause = if is_guess { self.place.failed() } else { None };
        let seconds = pause.map(|pause| pause.left.as_secs_f64().ceil() as u64);
        self.port.log.unauthorized.line(self.now_ms(), || match (pause, seconds) {
            (Some(pause), Some(seconds)) if pause.is_new => {
                tracing::warn!(port, %peer, reason, paused_seconds = seconds, "authentication failed; address paused");
            }
            _ => tracing::warn!(port, %peer, reason, "authentication failed"),
        });
        seconds
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        metrics::http_connections_change(self.port.name, -1);
    }
}
