//! An HTTP port and one of its connections: what the acceptors, the stream and the service of a
//! connection share.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use axum::http::{HeaderMap, HeaderName};
use tokio::net::TcpStream;

use super::access_error::AccessError;
use crate::access::Credentials;
use crate::connections::{OpenConnections, Pause, Place};
use crate::proxy::{self, ProxyFault, forwarded};
use crate::tls::ClientCertificate;
use config::{HttpTimes, Live, Proxies, ProxyHeader, Setter};
use model::{Clock, Named};
use telemetry::audit::{AuditEvent, AuditKind};
use telemetry::log_limit::{LOG_EVERY, LineLimit};
use telemetry::metrics::{self, ConnectionClosed, PortName};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What the connections of a port share.
pub struct Port {
    /// The section of the configuration, and the label `port` of the metrics.
    pub(super) name: PortName,
    clock: Arc<dyn Clock>,
    /// A connection keeps those that are current when it is opened.
    pub(super) times: Live<HttpTimes>,
    connections: OpenConnections,
    /// Log lines about peers that take nothing.
    stuck_log: LineLimit,
}

/// Replaces the settings of a [`Port`].
#[derive(Clone)]
pub struct PortSetter {
    times: Setter<HttpTimes>,
    connections: OpenConnections,
}

impl PortSetter {
    /// Limits apply from the next connection on, time limits to those that are opened from now on.
    pub fn set(&self, connections: config::Connections, proxies: Proxies, times: HttpTimes) {
        self.connections.put(connections, proxies);
        self.times.set(times);
    }

    /// Ends the idle connections of senders that these credentials do not accept any more.
    pub fn revoke(&self, credentials: Option<&Credentials>) {
        if let Some(credentials) = credentials {
            self.connections
                .cut_unless(|grant| credentials.renewed(grant).is_some());
        }
    }

    /// Applies the limits of an address to this machine's addresses too: for tests, whose senders
    /// have no others.
    pub fn exempt_none(&self) {
        self.connections.exempt_none();
    }
}

impl Port {
    /// `name`: the section of the configuration, and the label `port` of the metrics. The other
    /// arguments are the first settings; the setter replaces them.
    pub fn new(
        name: PortName,
        clock: Arc<dyn Clock>,
        connections: config::Connections,
        proxies: Proxies,
        times: HttpTimes,
    ) -> (Arc<Port>, PortSetter) {
        let (setter, times) = Live::new(times);
        let connections = OpenConnections::new(connections, proxies, clock.clone());
        let stuck_log = LineLimit::new("peers that take nothing");
        let port = Port {
            name,
            clock,
            times,
            connections: connections.clone(),
            stuck_log,
        };
        (
            Arc::new(port),
            PortSetter {
                times: setter,
                connections,
            },
        )
    }

    /// Gives a new connection its place, or refuses it. Behind a proxy with the PROXY protocol the
    /// place is that of the address that the proxy names; while its header arrives, that of the
    /// proxy.
    pub(super) async fn enter(
        self: &Arc<Port>,
        stream: &mut TcpStream,
        peer: SocketAddr,
    ) -> io::Result<Arc<Connection>> {
        let connection = self.entered(peer)?;
        // Small answers must not wait for the TCP acknowledgement of the previous one.
        stream.set_nodelay(true)?;
        let proxies = self.connections.proxies();
        if !proxies.has_protocol() {
            return Ok(connection);
        }
        let limit = self.times.now().header_timeout;
        let named = tokio::select! {
            named = tokio::time::timeout(limit, proxy::client(stream, peer, &proxies)) => named,
            () = connection.place.cut() => {
                metrics::http_connections_closed_total(self.name, ConnectionClosed::Evicted, 1);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        };
        match named.unwrap_or(Err(ProxyFault::Late)) {
            Ok(None) => Ok(connection),
            Ok(Some(client)) => {
                drop(connection);
                self.entered(client)
            }
            Err(fault) => Err(self.refused(peer, fault)),
        }
    }

    /// Counts and logs a refused connection.
    fn refused(
        &self,
        peer: SocketAddr,
        why: impl std::error::Error + Named + Send + Sync + 'static,
    ) -> io::Error {
        metrics::http_connections_refused_total(self.name, &why, 1);
        let event = AuditEvent::new(AuditKind::ConnectionRefused, self.name, peer, why.as_str());
        event.detail(&why.to_string()).record();
        io::Error::other(why)
    }

    pub(super) fn entered(self: &Arc<Port>, peer: SocketAddr) -> io::Result<Arc<Connection>> {
        let place = self.connections.enter(peer);
        let place = place.map_err(|refusal| self.refused(peer, refusal))?;
        Ok(Connection::new(self.clone(), place))
    }

    /// Logs the numbers of suppressed log lines from time to time; never ends.
    pub(super) async fn log_suppressed(&self) -> Infallible {
        loop {
            tokio::time::sleep(LOG_EVERY / 4).await;
            self.stuck_log.end(self.now_ms());
        }
    }

    /// Logs the numbers of suppressed log lines, at the end.
    pub(super) fn close_log(&self) {
        self.stuck_log.end(u64::MAX);
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }
}

/// An open connection.
pub(super) struct Connection {
    pub(super) port: Arc<Port>,
    pub(super) place: Place,
    /// Its peer is a trusted proxy, which names its client in each request.
    proxies: Option<Arc<Proxies>>,
    /// The certificate that the client has presented, from the end of the handshake on.
    pub(super) client: OnceLock<ClientCertificate>,
}

impl Connection {
    fn new(port: Arc<Port>, place: Place) -> Arc<Connection> {
        metrics::http_connections(port.name, 1);
        let proxies = port.connections.proxies();
        let is_trusted =
            proxies.header != ProxyHeader::ProxyV2 && proxies.trusts(place.peer().ip());
        Arc::new(Connection {
            port,
            place,
            proxies: is_trusted.then_some(proxies),
            client: OnceLock::new(),
        })
    }

    /// The client of a trusted proxy.
    pub(super) fn asks_for(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let proxies = self.proxies.as_ref()?;
        let values = headers.get_all(X_FORWARDED_FOR).iter();
        forwarded::client(values.map(|value| value.as_bytes()), |ip| {
            proxies.trusts(ip)
        })
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.port.now_ms()
    }

    /// The current request is done, or is refused: the connection may be cut from now on.
    pub(super) fn rest(&self) {
        self.place.phase().rest(self.now_ms());
    }

    /// The connection may be cut while the body of the current request arrives.
    pub(super) fn await_body(&self) {
        self.place.phase().body(self.now_ms());
    }

    /// Counts and logs that the peer does not receive the bytes sent to it.
    pub(super) fn stuck(&self) {
        metrics::http_connections_closed_total(self.port.name, ConnectionClosed::WriteTimeout, 1);
        let port = self.port.name.as_str();
        let peer = self.place.peer();
        self.port.stuck_log.line(self.now_ms(), || {
            tracing::warn!(port, %peer, "connection closed: its peer takes nothing of the response");
        });
    }

    /// An event of the audit log about the peer, or about the client of a proxy.
    pub(super) fn audit(
        &self,
        asks_for: Option<IpAddr>,
        kind: AuditKind,
        reason: &'static str,
    ) -> AuditEvent<'static> {
        let peer = asks_for.map_or_else(|| self.place.peer(), |ip| SocketAddr::new(ip, 0));
        AuditEvent::new(kind, self.port.name, peer, reason)
    }

    /// Counts and logs a failed authentication, of the peer, or of the client of a proxy.
    /// `is_guess`: it counts towards a pause of the address. Returns the seconds that the address
    /// is paused for, if it is.
    pub(super) fn unauthorized(
        &self,
        asks_for: Option<IpAddr>,
        error: &AccessError,
        is_guess: bool,
    ) -> Option<u64> {
        metrics::auth_failures_total(self.port.name, error, 1);
        self.audit(asks_for, AuditKind::AuthFailed, error.as_str())
            .record();
        let pause = match asks_for {
            _ if !is_guess => None,
            Some(ip) => self.port.connections.failed_behind_proxy(ip),
            None => self.place.failed(),
        };
        let seconds = pause.map(|pause| pause.left.as_secs_f64().ceil() as u64);
        if let (Some(Pause { is_new: true, .. }), Some(seconds)) = (pause, seconds) {
            let event = self.audit(asks_for, AuditKind::AddressPaused, "failed_auth_max");
            event.detail(&format!("{seconds} s")).record();
        }
        seconds
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        metrics::http_connections(self.port.name, -1);
    }
}
