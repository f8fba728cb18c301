//! The port: accepts connections up to their number, with TLS where there are certificates, and brings each to its
//! CONNACK. Certificates are looked at every few seconds and read again when a file has changed; connections stay, and
//! files that cannot be used leave those before in force.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use xxhash_rust::xxh3::xxh3_64;

use super::Shared;
use super::connect::{self, Refusal};
use super::connection::Connection;
use super::gather::Incoming;
use crate::config::ListenMqtt;
use crate::ingest::mqtt::SetupError;
use crate::ingest::tls::{self, Identity, TlsAcceptor, TlsError};
use crate::ingest::tokens::TokensError;
use crate::telemetry::metrics;

/// How often the certificates' files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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
pub(super) type Gatherers = Arc<[mpsc::Sender<Incoming>]>;

/// Certificates, and how their files looked when they were read.
struct Tls {
    settings: ListenMqtt,
    acceptor: TlsAcceptor,
    seen: Vec<Option<SystemTime>>,
}

impl Tls {
    fn load(settings: &ListenMqtt) -> Result<Option<Tls>, TlsError> {
        let seen = changed(settings);
        let acceptor = acceptor(settings)?;
        Ok(acceptor.map(|acceptor| Tls { settings: settings.clone(), acceptor, seen }))
    }

    /// Reads the files again where one has changed.
    async fn look(&mut self) {
        let settings = self.settings.clone();
        let before = self.seen.clone();
        // Files may lie on a slow disk.
        let read = tokio::task::spawn_blocking(move || {
            let seen = changed(&settings);
            (seen != before).then(|| (seen, acceptor(&settings)))
        });
        let Ok(Some((seen, acceptor))) = read.await else { return };
        self.seen = seen;
        match acceptor {
            Ok(Some(acceptor)) => {
                self.acceptor = acceptor;
                tracing::info!("listen.mqtt: the certificates were read again");
            }
            Ok(None) => {}
            Err(error) => tracing::warn!("listen.mqtt: {error}; the certificates before stay in force"),
        }
    }
}

fn acceptor(settings: &ListenMqtt) -> Result<Option<TlsAcceptor>, TlsError> {
    let identity = settings.cert_file.as_deref().zip(settings.key_file.as_deref());
    let Some((cert, key)) = identity else { return Ok(None) };
    tls::server(Identity { cert, key }, settings.client_ca_file.as_deref()).map(Some)
}

/// Whether TLS is spoken; reads the certificates.
///
/// # Errors
/// They cannot be used.
pub(super) fn has_tls(settings: &ListenMqtt) -> Result<bool, TlsError> {
    acceptor(settings).map(|acceptor| acceptor.is_some())
}

/// When each of the files was changed last.
fn changed(settings: &ListenMqtt) -> Vec<Option<SystemTime>> {
    let files: [&Option<PathBuf>; 3] = [&settings.cert_file, &settings.key_file, &settings.client_ca_file];
    let at = |path: &PathBuf| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    files.into_iter().map(|file| file.as_ref().and_then(at)).collect()
}

/// See the module's documentation.
pub(super) struct Port {
    listener: TcpListener,
    addr: SocketAddr,
    tls: Option<Tls>,
}

impl Port {
    /// Opens it.
    pub(super) async fn open(settings: &ListenMqtt, has_tokens: bool) -> Result<Port, ListenError> {
        let is_guarded = has_tokens || settings.client_ca_file.is_some() || settings.allow_anonymous;
        if !is_guarded && !settings.listen.ip().to_canonical().is_loopback() {
            return Err(ListenError::Anonymous(settings.listen));
        }
        let of_tls = settings.clone();
        let tls = tokio::task::spawn_blocking(move || Tls::load(&of_tls)).await;
        let tls = tls.map_err(|error| bind_error(settings.listen, std::io::Error::other(error)))??;
        let listener = TcpListener::bind(settings.listen).await.map_err(|error| bind_error(settings.listen, error))?;
        let addr = listener.local_addr().unwrap_or(settings.listen);
        allow_files(settings.connections_max as u64 + FILES_BESIDE);
        Ok(Port { listener, addr, tls })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts connections until `stop`; each becomes a task.
    pub(super) async fn serve(mut self, shared: Arc<Shared>, gatherers: Gatherers, tasks: &TaskTracker) {
        let (tokens, is_tls) = (shared.tokens.as_ref().map(|tokens| tokens.len()), self.tls.is_some());
        tracing::info!(addr = %self.addr, tokens, tls = is_tls, "taking readings over MQTT from devices");
        let places = Arc::new(Semaphore::new(shared.settings.connections_max));
        let mut look = tokio::time::interval(LOOK_EVERY);
        for n in 0u64.. {
            let accepted = loop {
                tokio::select! {
                    biased;
                    () = shared.env.stop.cancelled() => return,
                    _ = look.tick() => if let Some(tls) = &mut self.tls { tls.look().await },
                    accepted = self.listener.accept() => break accepted,
                }
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    metrics::mqtt_direct_connect("failed");
                    tracing::warn!("listen.mqtt: a connection cannot be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                metrics::mqtt_direct_connect("too_many");
                continue;
            };
            let gatherers = gatherers.clone();
            let (shared, acceptor) = (shared.clone(), self.tls.as_ref().map(|tls| tls.acceptor.clone()));
            tasks.spawn(async move {
                welcome(stream, acceptor, shared, &gatherers, n).await;
                // With the last of these the gatherers end.
                drop(gatherers);
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
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    gatherers: &[mpsc::Sender<Incoming>],
    n: u64,
) {
    // PUBACKs are small and must not wait for one another; an error means that the device is gone, which a read will say.
    let _ = stream.set_nodelay(true);
    let deadline = tokio::time::Instant::now() + shared.settings.connect_timeout;
    let Some(acceptor) = acceptor else { return connected(stream, shared, gatherers, n, deadline).await };
    match tokio::time::timeout_at(deadline, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => connected(Box::new(stream), shared, gatherers, n, deadline).await,
        Ok(Err(error)) => {
            metrics::mqtt_direct_connect("tls");
            tracing::debug!("listen.mqtt: no TLS: {error}");
        }
        Err(_) => metrics::mqtt_direct_connect("timeout"),
    }
}

/// CONNECT and its answer, then the rest of the connection.
async fn connected<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    shared: Arc<Shared>,
    gatherers: &[mpsc::Sender<Incoming>],
    n: u64,
    deadline: tokio::time::Instant,
) {
    let mut buf = BytesMut::new();
    let stop = shared.env.stop.clone();
    let hello = tokio::select! {
        hello = tokio::time::timeout_at(deadline, hello(&mut stream, &mut buf)) => hello,
        () = stop.cancelled() => return metrics::mqtt_direct_connect("stopping"),
    };
    let Ok(hello) = hello else { return metrics::mqtt_direct_connect("timeout") };
    let admitted = match hello {
        None => return metrics::mqtt_direct_connect("lost"),
        Some(Err(refusal)) => Err((None, refusal)),
        Some(Ok(hello)) => {
            // Drawn, so that the names of two instances and of two runs differ.
            let name = || format!("hourbucket-{n}-{:08x}", fastrand::u32(..));
            connect::admit(&hello, shared.tokens.as_ref(), &shared.settings, name)
                .map_err(|refusal| (Some(hello.version), refusal))
        }
    };
    let (client, out) = match admitted {
        Ok(admitted) => admitted,
        Err((version, refusal)) => {
            metrics::mqtt_direct_connect(refusal.label());
            tracing::debug!("listen.mqtt: a device is not let in: {refusal}");
            let answer = connect::refuse(version, refusal);
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
    let at = xxh3_64(client.id.as_bytes()) as usize % gatherers.len();
    let gatherer = gatherers[at].clone();
    let end = Connection::new(stream, shared, client, gatherer, buf, out).serve(place).await;
    metrics::mqtt_direct_disconnect(end.label());
}

/// Reads until CONNECT is whole; `None` where the device is gone.
async fn hello<S: AsyncRead + Unpin>(stream: &mut S, buf: &mut BytesMut) -> Option<Result<connect::Hello, Refusal>> {
    loop {
        match connect::read(buf) {
            Ok(Some(hello)) => return Some(Ok(hello)),
            Ok(None) => {}
            Err(refusal) => return Some(Err(refusal)),
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn certificates_are_read_again_and_broken_ones_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Config::default().listen.mqtt;
        settings.cert_file = Some(dir.path().join("server.pem"));
        settings.key_file = Some(dir.path().join("server.key"));
        let mut age = 100;
        let mut write = |cert: &str, key: &str| {
            for (name, text) in [("server.pem", cert), ("server.key", key)] {
                let path = dir.path().join(name);
                std::fs::write(&path, text).unwrap();
                // Two writes within one tick of the file system's clock must differ all the same.
                let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 - age);
                File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
            }
            age -= 1;
        };
        let [first, second] = [
            (
                include_str!("../../../tests/support/mqtt_tls/server.pem"),
                include_str!("../../../tests/support/mqtt_tls/server.key"),
            ),
            (
                include_str!("../../../tests/support/mqtt_tls/mutual/server.pem"),
                include_str!("../../../tests/support/mqtt_tls/mutual/server.key"),
            ),
        ];
        write(first.0, first.1);
        let mut tls = Tls::load(&settings).unwrap().unwrap();
        let config = |tls: &Tls| Arc::as_ptr(tls.acceptor.config());
        let before = config(&tls);
        tls.look().await;
        assert_eq!(config(&tls), before, "nothing has changed");
        // A certificate whose key has not been written yet.
        write(second.0, first.1);
        tls.look().await;
        assert_eq!(config(&tls), before);
        write(second.0, second.1);
        tls.look().await;
        assert_ne!(config(&tls), before);
        (settings.cert_file, settings.key_file) = (None, None);
        assert!(Tls::load(&settings).unwrap().is_none());
    }
}
