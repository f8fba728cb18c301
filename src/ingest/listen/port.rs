//! The port: accepts connections up to their number, with TLS where there are certificates, and brings each to its
//! CONNACK.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use xxhash_rust::xxh3::xxh3_64;

use super::Shared;
use super::batcher::Incoming;
use super::connect::{self, ConnectError};
use super::connection::Connection;
use crate::config::ListenMqtt;
use crate::ingest::IngestDeps;
use crate::ingest::mqtt::SetupError;
use crate::ingest::tls::{Certificates, Files, TlsError};
use crate::ingest::tokens::{Tokens, TokensError};
use crate::telemetry::metrics;

/// After an error of the port itself (no file handle left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Open files that the process needs beside the connections: journal, store, HTTP.
const FILES_BESIDE: u64 = 1024;
/// How much is read at once before CONNECT is whole.
const READ_BYTES: usize = 1024;

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The file of tokens is not usable.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The certificates are not usable.
    #[error("listen.mqtt: {0}")]
    Tls(#[from] TlsError),
    /// A topic template cannot be read.
    #[error("listen.mqtt.topics: {0}")]
    Topics(#[from] SetupError),
    /// Readings would be taken from anybody who can reach the machine.
    #[error("listen.mqtt.listen: {0} is not a loopback address and there are no tokens; set listen.mqtt.tokens_file")]
    Anonymous(SocketAddr),
    /// The address is taken or not ours.
    #[error("listen.mqtt.listen: cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// The ways in to all of them.
pub(super) type Batchers = Arc<[mpsc::Sender<Incoming>]>;

/// See the module's documentation.
pub(super) struct Port {
    listener: TcpListener,
    addr: SocketAddr,
    certificates: Option<Certificates>,
}

impl Port {
    /// Opens it.
    pub(super) async fn open(settings: &ListenMqtt, deps: &IngestDeps, has_tokens: bool) -> Result<Port, ListenError> {
        let is_guarded = has_tokens || settings.client_ca_file.is_some() || settings.allow_anonymous;
        if !is_guarded && !settings.listen.ip().to_canonical().is_loopback() {
            return Err(ListenError::Anonymous(settings.listen));
        }
        let certificates = match Files::of_devices(settings) {
            Some(files) => {
                Some(Certificates::open("listen.mqtt", files, deps.clock.clone(), deps.on_tls.clone()).await?)
            }
            None => None,
        };
        let listener = TcpListener::bind(settings.listen).await.map_err(|error| bind_error(settings.listen, error))?;
        let addr = listener.local_addr().unwrap_or(settings.listen);
        allow_files(settings.connections_max as u64 + FILES_BESIDE);
        Ok(Port { listener, addr, certificates })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Accepts connections until `stop`; each becomes a task.
    pub(super) async fn serve(self, shared: Arc<Shared>, batchers: Batchers, tasks: &TaskTracker) {
        let tokens = shared.tokens.now().as_ref().as_ref().map(Tokens::len);
        let is_tls = self.certificates.is_some();
        tracing::info!(addr = %self.addr, tokens, tls = is_tls, "taking readings over MQTT from devices");
        let places = Arc::new(Semaphore::new(shared.settings.connections_max));
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
                    metrics::mqtt_direct_connect("failed");
                    tracing::warn!("listen.mqtt: a connection cannot be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                metrics::mqtt_direct_connect("too_many");
                shared.logs.turned_away(peer, None, "too_many", "as many are connected as listen.mqtt.connections_max");
                continue;
            };
            let batchers = batchers.clone();
            let (shared, certificates) = (shared.clone(), self.certificates.clone());
            tasks.spawn(async move {
                welcome(stream, peer, certificates, shared, &batchers, n).await;
                // With the last of these the gatherers end.
                drop(batchers);
                drop(place);
            });
        }
    }
}

fn bind_error(addr: SocketAddr, source: std::io::Error) -> ListenError {
    ListenError::Bind { addr, source }
}

/// Raises the soft limit on open files as far as it is allowed and needed, and says where that is too low.
fn allow_files(needed: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|soft| soft >= needed) {
        return;
    }
    let wanted = now.maximum.map_or(needed, |hard| hard.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: now.maximum }).is_ok();
    if !raised || wanted < needed {
        let files = if raised { wanted } else { now.current.unwrap_or_default() };
        tracing::warn!(
            files,
            needed,
            "listen.mqtt.connections_max needs more open files than the process may have (ulimit -n)"
        );
    }
}

/// TLS where it is spoken, then CONNECT, within the time for both.
async fn welcome(
    stream: TcpStream,
    peer: SocketAddr,
    certificates: Option<Certificates>,
    shared: Arc<Shared>,
    batchers: &[mpsc::Sender<Incoming>],
    n: u64,
) {
    // PUBACKs are small and must not wait for one another; an error means that the device is gone, which a read will say.
    let _ = stream.set_nodelay(true);
    let deadline = tokio::time::Instant::now() + shared.settings.connect_timeout;
    let Some(certificates) = certificates else { return connected(stream, peer, shared, batchers, n, deadline).await };
    match tokio::time::timeout_at(deadline, certificates.accept(stream, std::future::ready(()))).await {
        Ok(Ok(stream)) => connected(Box::new(stream), peer, shared, batchers, n, deadline).await,
        Ok(Err(error)) => {
            metrics::mqtt_direct_connect("tls");
            shared.logs.turned_away(peer, None, "tls", &format!("no TLS: {error}"));
        }
        Err(_) => late(&shared, peer),
    }
}

/// It took too long.
fn late(shared: &Shared, peer: SocketAddr) {
    metrics::mqtt_direct_connect("timeout");
    shared.logs.turned_away(peer, None, "timeout", "no CONNECT within listen.mqtt.connect_timeout");
}

/// CONNECT and its answer, then the rest of the connection.
async fn connected<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    peer: SocketAddr,
    shared: Arc<Shared>,
    batchers: &[mpsc::Sender<Incoming>],
    n: u64,
    deadline: tokio::time::Instant,
) {
    let mut buf = BytesMut::new();
    let stop = shared.deps.stop.clone();
    let request = tokio::select! {
        request = tokio::time::timeout_at(deadline, request(&mut stream, &mut buf)) => request,
        () = stop.cancelled() => return metrics::mqtt_direct_connect("stopping"),
    };
    let Ok(request) = request else { return late(&shared, peer) };
    let admitted = match request {
        None => return metrics::mqtt_direct_connect("lost"),
        Some(Err(error)) => Err((None, error)),
        Some(Ok(request)) => {
            // Drawn, so that the names of two instances and of two runs differ.
            let name = || format!("hourbucket-{n}-{:08x}", fastrand::u32(..));
            connect::admit(&request, shared.tokens.now().as_ref().as_ref(), &shared.settings, peer, name)
                .map_err(|error| (Some(request), error))
        }
    };
    let (client, out) = match admitted {
        Ok(admitted) => admitted,
        Err((request, error)) => {
            metrics::mqtt_direct_connect(error.label());
            let id = request.as_ref().map(connect::ConnectRequest::shown_id);
            shared.logs.turned_away(peer, id, error.label(), &error.to_string());
            let answer = connect::refuse(request.map(|request| request.version), error);
            let said = async {
                stream.write_all(&answer).await?;
                stream.shutdown().await
            };
            let _ = tokio::time::timeout_at(deadline, said).await;
            return;
        }
    };
    metrics::mqtt_direct_connect("accepted");
    let place = shared.clients.enter(&client.token, &client.id);
    let _counted = Counted::new();
    // By its name, so that what a device sends on one connection and the next goes the same way, in order.
    let at = xxh3_64(client.id.as_bytes()) as usize % batchers.len();
    let batcher = batchers[at].clone();
    let end = Connection::new(stream, shared, client, batcher, buf, out).serve(place).await;
    metrics::mqtt_direct_disconnect(end.label());
}

/// Reads until CONNECT is whole; `None` where the device is gone.
async fn request<S: AsyncRead + Unpin>(
    stream: &mut S,
    buf: &mut BytesMut,
) -> Option<Result<connect::ConnectRequest, ConnectError>> {
    loop {
        match connect::read(buf) {
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

/// A connection in the gauge.
struct Counted;

impl Counted {
    fn new() -> Counted {
        metrics::mqtt_direct_connections_change(1);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::mqtt_direct_connections_change(-1);
    }
}
