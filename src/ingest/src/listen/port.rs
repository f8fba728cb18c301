//! The port: accepts connections up to the limit, with TLS if certificates are configured, and
//! handles each until its CONNACK.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tokio_util::task::TaskTracker;
use xxhash_rust::xxh3::xxh3_64;

use super::authorization::Authorization;
use super::batcher::Incoming;
use super::connect::{self, ConnectError};
use super::connection::Connection;
use super::shared::{NAME, Shared};
use crate::IngestDeps;
use crate::mqtt::SetupError;
use config::ListenMqtt;
use model::Named as _;
use net::access::{Credentials, TokensError};
use net::connections::{Pause, Place, Refusal};
use net::proxy::{self, ProxyFault};
use net::tls::{Certificates, ClientCertificate, Files, TlsError};
use telemetry::audit::{AuditEvent, AuditKind};
use telemetry::metrics::{self, ConnectOutcome};

/// Pause after an error of the port itself (usually no file descriptor left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes per read until CONNECT is complete.
const READ_BYTES: usize = 1024;

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The tokens file is not usable.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The certificates are not usable.
    #[error("listen.mqtt: {0}")]
    Tls(#[from] TlsError),
    /// A topic template cannot be parsed.
    #[error("listen.mqtt.topics: {0}")]
    Topics(#[from] SetupError),
    /// The port would accept readings from any host that can reach the machine.
    #[error(
        "listen.mqtt.listen: {0} is not a loopback address and there are no tokens; set \
         listen.mqtt.tokens_file"
    )]
    Anonymous(SocketAddr),
    /// The address is in use, or is not an address of this machine.
    #[error("listen.mqtt.listen: cannot listen on {addr}: {source}")]
    Bind {
        /// The configured address.
        addr: SocketAddr,
        /// The error of the socket call.
        source: std::io::Error,
    },
}

/// The senders to all batchers.
pub(super) type Batchers = Arc<[mpsc::Sender<Incoming>]>;

pub(super) struct Port {
    listener: TcpListener,
    addr: SocketAddr,
    certificates: Option<Certificates>,
}

impl Port {
    /// Opens the port. Without tokens, client certificates or `allow_anonymous` the address must be
    /// a loopback address.
    pub(super) async fn open(
        settings: &ListenMqtt,
        deps: &IngestDeps,
        has_credentials: bool,
    ) -> Result<Port, ListenError> {
        if !has_credentials && !settings.is_guarded() && !config::is_loopback(settings.listen.ip())
        {
            return Err(ListenError::Anonymous(settings.listen));
        }
        let certificates = match Files::of_devices(settings) {
            Some(files) => Some(
                Certificates::open(NAME, files, deps.clock.clone(), deps.on_tls.clone()).await?,
            ),
            None => None,
        };
        let listener = TcpListener::bind(settings.listen)
            .await
            .map_err(|error| bind_error(settings.listen, error))?;
        let addr = listener.local_addr().unwrap_or(settings.listen);
        Ok(Port {
            listener,
            addr,
            certificates,
        })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Accepts connections until `stop`; each becomes a task.
    pub(super) async fn serve(self, shared: Arc<Shared>, batchers: Batchers, tasks: &TaskTracker) {
        let credentials = shared.credentials.now();
        let credentials = credentials.as_ref().as_ref();
        let tokens = credentials.and_then(Credentials::tokens);
        let jwt = credentials.is_some_and(Credentials::accepts_jwt);
        let is_tls = self.certificates.is_some();
        tracing::info!(addr = %self.addr, tokens, jwt, tls = is_tls, "MQTT listener ready for \
            devices");
        if let Some(credentials) = credentials {
            credentials.log_tokens_without_rules("listen.mqtt.tokens_file");
        }
        if let Some(certificates) = self.certificates.clone() {
            tasks.spawn(certificates.watch(shared.deps.stop.clone()));
        }
        for n in 0u64.. {
            let accepted = tokio::select! {
                biased;
                () = shared.deps.stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    metrics::mqtt_direct_connects_total(ConnectOutcome::Failed, 1);
                    tracing::warn!(%error, "cannot accept an MQTT connection; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let place = match shared.connections.enter(peer) {
                Ok(place) => place,
                Err(refusal) => {
                    let label = label(refusal);
                    connection_refused(peer, label, &refusal);
                    continue;
                }
            };
            let batchers = batchers.clone();
            let shared = shared.clone();
            let certificates = self.certificates.clone();
            tasks.spawn(async move {
                welcome(stream, place, certificates, shared, &batchers, n).await;
                // Batchers end when the last of these senders is dropped.
                drop(batchers);
            });
        }
    }
}

fn bind_error(addr: SocketAddr, source: std::io::Error) -> ListenError {
    ListenError::Bind { addr, source }
}

/// The label of a connection that has no place.
fn label(refusal: Refusal) -> ConnectOutcome {
    match refusal {
        Refusal::Limit => ConnectOutcome::TooMany,
        Refusal::AddressLimit => ConnectOutcome::AddressLimit,
        Refusal::Paused => ConnectOutcome::Paused,
    }
}

/// Counts and logs a connection that is closed before it could say anything.
fn connection_refused(peer: SocketAddr, label: ConnectOutcome, why: &dyn std::error::Error) {
    metrics::mqtt_direct_connects_total(label, 1);
    AuditEvent::new(AuditKind::ConnectionRefused, NAME, peer, label.as_str())
        .detail(&why.to_string())
        .record();
}

/// Waits for what a connection says before its CONNACK, until the deadline. `None`: the connection
/// has to end before, and is counted.
async fn welcoming<T>(
    said: impl Future<Output = T>,
    place: &Place,
    shared: &Shared,
    deadline: Instant,
) -> Option<Result<T, Elapsed>> {
    let ended = tokio::select! {
        said = tokio::time::timeout_at(deadline, said) => return Some(said),
        () = shared.deps.stop.cancelled() => ConnectOutcome::Stopping,
        () = place.cut() => ConnectOutcome::Evicted,
    };
    metrics::mqtt_direct_connects_total(ended, 1);
    None
}

/// The place of a connection behind a proxy: that of the address which the proxy names. `None`: it
/// was refused.
async fn behind_proxy(
    stream: &mut TcpStream,
    place: Place,
    shared: &Shared,
    deadline: Instant,
) -> Option<Place> {
    let peer = place.peer();
    let proxies = shared.connections.proxies();
    if !proxies.has_protocol() {
        return Some(place);
    }
    let named = proxy::client(stream, peer, &proxies);
    let named = welcoming(named, &place, shared, deadline).await?;
    match named.unwrap_or(Err(ProxyFault::Late)) {
        Ok(None) => Some(place),
        Ok(Some(client)) => {
            drop(place);
            let place = shared.connections.enter(client);
            place
                .inspect_err(|refusal| connection_refused(client, label(*refusal), refusal))
                .ok()
        }
        Err(fault) => {
            connection_refused(peer, ConnectOutcome::ProxyHeader, &fault);
            None
        }
    }
}

/// The header of a proxy and TLS if configured, then CONNECT, within one time limit for all of
/// them.
async fn welcome(
    mut stream: TcpStream,
    place: Place,
    certificates: Option<Certificates>,
    shared: Arc<Shared>,
    batchers: &[mpsc::Sender<Incoming>],
    n: u64,
) {
    // PUBACKs are small and must not wait for one another. An error means that the device has
    // disconnected; the next read reports that.
    let _ = stream.set_nodelay(true);
    let deadline = Instant::now() + shared.settings.connect_timeout;
    let Some(place) = behind_proxy(&mut stream, place, &shared, deadline).await else {
        return;
    };
    let Some(certificates) = certificates else {
        return connected(stream, None, place, shared, batchers, n, deadline).await;
    };
    let shaken = certificates.accept(stream, std::future::ready(()));
    let Some(shaken) = welcoming(shaken, &place, &shared, deadline).await else {
        return;
    };
    match shaken {
        Ok(Ok((stream, client))) => {
            connected(
                Box::new(stream),
                client,
                place,
                shared,
                batchers,
                n,
                deadline,
            )
            .await
        }
        Ok(Err(error)) => {
            metrics::mqtt_direct_connects_total(ConnectOutcome::Tls, 1);
            shared.logs.connection_refused(
                place.peer(),
                None,
                "tls",
                &format!("TLS handshake failed: {error}"),
            );
        }
        Err(_) => late(&shared, place.peer()),
    }
}

/// Counts and logs a CONNECT that was refused. Without credentials it is not an attempt to guess.
/// `client`: the client id, as it may be shown.
fn refused(shared: &Shared, place: &Place, client: Option<&str>, error: ConnectError) {
    let peer = place.peer();
    let label = error.as_str();
    metrics::mqtt_direct_connects_total(error, 1);
    let event = |kind| AuditEvent::new(kind, NAME, peer, label);
    match error {
        ConnectError::NoCredentials
        | ConnectError::WrongCredentials
        | ConnectError::Jwt(_)
        | ConnectError::NoIdentity
        | ConnectError::ForeignClientId
        | ConnectError::Expired
        | ConnectError::NotYetValid
        | ConnectError::NotAllowed => {
            metrics::auth_failures_total(NAME, error, 1);
            let detail = error.to_string();
            event(AuditKind::AuthFailed)
                .client(client.unwrap_or_default())
                .detail(&detail)
                .record();
        }
        // Logged by the code that knows the sender.
        ConnectError::Quota => {}
        _ => {
            return shared
                .logs
                .connection_refused(peer, client, label, &error.to_string());
        }
    }
    let pause = if error.is_guess() {
        place.failed()
    } else {
        None
    };
    if let Some(Pause { left, is_new: true }) = pause {
        let detail = format!("{} s", left.as_secs());
        AuditEvent::new(AuditKind::AddressPaused, NAME, peer, "failed_auth_max")
            .detail(&detail)
            .record();
    }
}

/// TLS or CONNECT took too long.
fn late(shared: &Shared, peer: SocketAddr) {
    metrics::mqtt_direct_connects_total(ConnectOutcome::Timeout, 1);
    shared.logs.connection_refused(
        peer,
        None,
        "timeout",
        "no CONNECT within listen.mqtt.connect_timeout",
    );
}

/// CONNECT and its answer, then the rest of the connection.
async fn connected<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    certificate: Option<ClientCertificate>,
    place: Place,
    shared: Arc<Shared>,
    batchers: &[mpsc::Sender<Incoming>],
    n: u64,
    deadline: Instant,
) {
    let mut buf = BytesMut::new();
    let peer = place.peer();
    let request = request(&mut stream, &mut buf);
    let Some(request) = welcoming(request, &place, &shared, deadline).await else {
        return;
    };
    let Ok(request) = request else {
        return late(&shared, peer);
    };
    let admitted = match request {
        None => return metrics::mqtt_direct_connects_total(ConnectOutcome::Lost, 1),
        Some(Err(error)) => Err((None, error)),
        Some(Ok(request)) => {
            // Random, so that the ids of two instances or two runs differ.
            let name = || format!("hourbucket-{n}-{:08x}", fastrand::u32(..));
            let authorized = connect::check(&request).and_then(|()| {
                let now_ms = shared.deps.clock.now().wall_ms;
                let certificate = certificate.as_ref();
                let authenticate = |credentials: &Credentials| {
                    connect::authenticate(&request, certificate, credentials, now_ms)
                };
                let authorization = Authorization::new(shared.credentials.clone(), authenticate)?;
                let is_near = config::is_loopback(peer.ip());
                if authorization.is_anonymous() && !is_near && !shared.settings.is_guarded() {
                    return Err(ConnectError::Far);
                }
                // A device that comes back may still have its old connection, which it does not know.
                let mine = |exceeded| {
                    let id = request.client_id();
                    let place = shared.clients.take_place(authorization.id(), id);
                    place.map(Some).ok_or(exceeded)
                };
                let held = authorization.hold().or_else(mine).map_err(|exceeded| {
                    metrics::quota_exceeded_total(exceeded.limit, 1);
                    let limit = exceeded.limit.as_str();
                    let event = AuditEvent::new(AuditKind::QuotaExceeded, NAME, peer, limit);
                    event
                        .token(authorization.id())
                        .client(request.shown_id())
                        .record();
                    ConnectError::Quota
                })?;
                Ok((authorization, held))
            });
            match authorized {
                Ok((authorization, held)) => {
                    connect::admit(&request, authorization.id(), &shared.settings, peer, name)
                        .map(|admitted| (admitted, authorization, held))
                        .map_err(|error| (Some(request), error))
                }
                Err(error) => Err((Some(request), error)),
            }
        }
    };
    let ((client, out), authorization, held) = match admitted {
        Ok(admitted) => admitted,
        Err((request, error)) => {
            let id = request.as_ref().map(connect::ConnectRequest::shown_id);
            refused(&shared, &place, id, error);
            let answer = connect::refuse(request.as_ref(), error);
            let said = async {
                stream.write_all(&answer).await?;
                stream.shutdown().await
            };
            let _ = tokio::time::timeout_at(deadline, said).await;
            return;
        }
    };
    metrics::mqtt_direct_connects_total(ConnectOutcome::Accepted, 1);
    place.proved();
    // From here on it is not cut for another one: a device that is silent has nothing to report.
    place.begin();
    let registration = shared.clients.enter(&client.token, &client.id, held);
    let _counted = Counted::new();
    // By client id, so that messages of a device on successive connections use the same batcher and
    // stay in order.
    let at = xxh3_64(client.id.as_bytes()) as usize % batchers.len();
    let batcher = batchers[at].clone();
    let end = Connection::new(stream, shared, client, authorization, batcher, buf, out)
        .serve(registration, certificate)
        .await;
    metrics::mqtt_direct_disconnects_total(end, 1);
}

/// Reads until CONNECT is complete; `None` if the device has disconnected.
async fn request<S: AsyncRead + Unpin>(
    stream: &mut S,
    buf: &mut BytesMut,
) -> Option<Result<connect::ConnectRequest, ConnectError>> {
    loop {
        match connect::read_connect(buf) {
            Ok(Some(request)) => return Some(Ok(request)),
            Ok(None) => {}
            Err(error) => return Some(Err(error)),
        }
        buf.reserve(READ_BYTES);
        if !stream.read_buf(buf).await.is_ok_and(|n| n > 0) {
            return None;
        }
    }
}

/// Counts one connection in the gauge until dropped.
struct Counted;

impl Counted {
    fn new() -> Counted {
        metrics::mqtt_direct_connections(1);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::mqtt_direct_connections(-1);
    }
}
