//! The certificates of a port of ours: watched, read again when their files change or when somebody says so, and replaced
//! between two handshakes. Connections stay as they are.
//!
//! Where the new files cannot be used (one half written, a key that does not fit, a certificate cut short), those read
//! before stay in force, and it is said: in the log once for each state of the files, in the metrics and in the status
//! for as long as it is so. The same goes for a certificate that has expired: it is shown all the same, since a client
//! that refuses it must be told so by TLS, not by a closed port.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::Acceptor;
use tokio_util::sync::CancellationToken;

use super::x509::Facts;
use super::{Identity, Speech, TlsError, server};
use crate::config::{ClientAuth, ListenMqtt, Tls, TlsVersion};
use crate::model::Clock;
use crate::telemetry::metrics;

/// A connection after its handshake.
pub(crate) type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// So long before its end a certificate is warned about.
const WARN_BEFORE_S: i64 = 14 * 86_400;
const DAY_S: i64 = 86_400;

/// The files of a port, and how it speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_optional: bool,
    only_13: bool,
    protocols: &'static [&'static [u8]],
}

impl Files {
    /// Those of a port for HTTP; `None`: it is plain.
    pub(crate) fn of_http(tls: &Tls) -> Option<Files> {
        Some(Files {
            cert: tls.cert_file.clone()?,
            key: tls.key_file.clone()?,
            client_ca: tls.client_ca_file.clone(),
            client_optional: tls.client_auth == ClientAuth::Optional,
            only_13: tls.min_version == TlsVersion::V13,
            protocols: &[b"http/1.1"],
        })
    }

    /// Those of the devices' port; `None`: it is plain.
    pub(crate) fn of_devices(settings: &ListenMqtt) -> Option<Files> {
        Some(Files {
            cert: settings.cert_file.clone()?,
            key: settings.key_file.clone()?,
            client_ca: settings.client_ca_file.clone(),
            client_optional: false,
            only_13: false,
            // Devices do not ask by ALPN, or ask for "mqtt" of a broker that may be anything.
            protocols: &[],
        })
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }

    /// How each of them looks. The time of the last change of a file's state moves with its rights too, and another file
    /// under the same name (a link that is turned, as Kubernetes does it) has another number.
    fn seen(&self) -> Seen {
        use std::os::unix::fs::MetadataExt as _;
        let look = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some([found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec(), found.ino() as i64])
        };
        self.paths().map(look).collect()
    }

    /// Reads them; blocks for some milliseconds.
    pub(crate) fn read(self) -> Result<Loaded, TlsError> {
        let seen = self.seen();
        let speech = Speech {
            identity: Identity { cert: &self.cert, key: &self.key },
            client_ca: self.client_ca.as_deref(),
            client_optional: self.client_optional,
            only_13: self.only_13,
            protocols: self.protocols,
        };
        let (config, chain) = server(speech)?;
        let chain = Chain::of(&chain).ok_or_else(|| TlsError::Pem { path: self.cert.clone(), what: "certificate" })?;
        Ok(Loaded { files: self, seen, config: Arc::new(config), chain })
    }

    /// Reads them and judges what they say, for `hourbucket check`: in a few words, or what is wrong.
    pub(crate) fn check(self, now_s: i64) -> Result<String, String> {
        let loaded = self.read().map_err(|error| error.to_string())?;
        let problems: Vec<String> = loaded.chain.problem(now_s).into_iter().chain(loaded.chain.disorder()).collect();
        if !problems.is_empty() {
            return Err(format!("{}: {}", loaded.files.cert.display(), problems.join("; ")));
        }
        let left = loaded.chain.soon(now_s).map_or_else(String::new, |soon| format!(" (warning: {soon})"));
        Ok(format!("TLS until {}{left}", day(loaded.chain.not_after_s)))
    }
}

/// How files looked.
type Seen = Vec<Option<[i64; 5]>>;

/// What was read, ready for use.
pub(crate) struct Loaded {
    files: Files,
    seen: Seen,
    config: Arc<ServerConfig>,
    chain: Chain,
}

/// What a chain of certificates says.
#[derive(Debug, Clone)]
struct Chain {
    not_before_s: i64,
    /// The first end of all of them.
    not_after_s: i64,
    /// The first that was not made by the one behind it, from 1.
    broken_at: Option<usize>,
}

impl Chain {
    fn of(chain: &[CertificateDer<'_>]) -> Option<Chain> {
        let facts = chain.iter().map(|der| Facts::read(der)).collect::<Option<Vec<_>>>()?;
        let broken = facts.windows(2).position(|pair| pair[0].issuer != pair[1].subject);
        Some(Chain {
            not_before_s: facts.iter().map(|f| f.not_before_s).max()?,
            not_after_s: facts.iter().map(|f| f.not_after_s).min()?,
            broken_at: broken.map(|at| at + 1),
        })
    }

    /// Why clients will refuse it now.
    fn problem(&self, now_s: i64) -> Option<String> {
        if now_s > self.not_after_s {
            return Some(format!("the certificate has expired on {}; renew it", day(self.not_after_s)));
        }
        let early = now_s < self.not_before_s;
        early.then(|| format!("the certificate is not good before {}; is the clock right?", day(self.not_before_s)))
    }

    fn soon(&self, now_s: i64) -> Option<String> {
        let left = self.not_after_s - now_s;
        (0..WARN_BEFORE_S).contains(&left).then(|| {
            format!("the certificate expires in {} days, on {}; renew it", left / DAY_S, day(self.not_after_s))
        })
    }

    fn disorder(&self) -> Option<String> {
        let at = self.broken_at?;
        Some(format!(
            "certificate {at} was not made by certificate {}, which follows it; the file must hold our own first, then the \
             one that made it, and so on",
            at + 1
        ))
    }
}

/// A day as people write it.
fn day(at_s: i64) -> String {
    chrono::DateTime::from_timestamp(at_s, 0).map_or_else(|| at_s.to_string(), |at| at.format("%Y-%m-%d").to_string())
}

/// How the certificates of a port stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsStatus {
    /// The section of the settings: `http`, `admin` or `listen.mqtt`.
    pub port: &'static str,
    /// Until when they are good, in seconds since 1970.
    pub not_after_s: i64,
    /// What is wrong.
    pub problem: Option<String>,
}

/// Who is told.
pub type OnTls = Arc<dyn Fn(TlsStatus) + Send + Sync>;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct Certificates(Arc<Inner>);

struct Inner {
    port: &'static str,
    clock: Arc<dyn Clock>,
    on_status: OnTls,
    state: RwLock<State>,
}

struct State {
    loaded: Loaded,
    /// How files looked that could not be used, and why.
    failed: Option<(Seen, String)>,
    /// What was logged of the certificate's end.
    said: Option<String>,
}

impl Certificates {
    /// Reads the files.
    pub(crate) async fn open(
        port: &'static str,
        files: Files,
        clock: Arc<dyn Clock>,
        on_status: OnTls,
    ) -> Result<Certificates, TlsError> {
        let cert = files.cert.clone();
        let read = tokio::task::spawn_blocking(move || files.read()).await;
        let loaded = read.map_err(|error| TlsError::Read { path: cert, error: io::Error::other(error) })??;
        let state = RwLock::new(State { loaded, failed: None, said: None });
        let certificates = Certificates(Arc::new(Inner { port, clock, on_status, state }));
        certificates.loaded();
        Ok(certificates)
    }

    /// The section of the settings.
    pub(crate) fn port(&self) -> &'static str {
        self.0.port
    }

    /// What holds for the next handshake.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.read().loaded.config.clone()
    }

    /// The handshake of a connection, without a limit of its own on time. `crypto` gives a place for the part that costs
    /// something, once the client has said what it wants: who says nothing takes no place.
    pub(crate) async fn accept<P>(&self, stream: TcpStream, crypto: impl Future<Output = P>) -> io::Result<TlsStream> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let _place = crypto.await;
        hello.into_stream(self.config()).await
    }

    /// Looks at the files every few seconds until `stop`.
    pub(crate) async fn watch(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.look().await,
            }
        }
    }

    /// Reads the files again where one has changed.
    pub(crate) async fn look(&self) {
        let (files, before) = {
            let state = self.read();
            let before = state.failed.as_ref().map_or(&state.loaded.seen, |(seen, _)| seen);
            (state.loaded.files.clone(), before.clone())
        };
        let of_read = files.clone();
        // Files may lie on a slow disk.
        let read = tokio::task::spawn_blocking(move || {
            let seen = of_read.seen();
            (seen != before).then(|| (seen, of_read.read()))
        });
        let read = read.await.ok().flatten();
        // Other files may have been put meanwhile.
        let is_ours = self.read().loaded.files == files;
        match read.filter(|_| is_ours) {
            Some((_, Ok(loaded))) => self.put(loaded),
            Some((seen, Err(error))) => self.failed(seen, &error),
            None => self.report(),
        }
    }

    /// Replaces what holds.
    pub(crate) fn put(&self, loaded: Loaded) {
        let mut state = self.write();
        (state.loaded, state.failed) = (loaded, None);
        drop(state);
        self.loaded();
    }

    fn loaded(&self) {
        let (port, now_s) = (self.0.port, self.now_s());
        let chain = self.read().loaded.chain.clone();
        tracing::info!(port, until = day(chain.not_after_s), "certificates read");
        if let Some(disorder) = chain.disorder() {
            tracing::warn!("{port}: {disorder}");
        }
        let said = chain.problem(now_s).or_else(|| chain.soon(now_s));
        if let Some(said) = &said {
            tracing::warn!("{port}: {said}");
        }
        self.write().said = said;
        metrics::tls_read(port, true);
        self.report();
    }

    fn failed(&self, seen: Seen, error: &TlsError) {
        let port = self.0.port;
        tracing::error!("{port}: {error}; the certificates read before stay in force");
        metrics::tls_read(port, false);
        self.write().failed = Some((seen, error.to_string()));
        self.report();
    }

    /// Says how it stands, which changes with the time too.
    fn report(&self) {
        let (port, now_s) = (self.0.port, self.now_s());
        let state = self.read();
        let chain = state.loaded.chain.clone();
        let failed = state.failed.as_ref().map(|(_, why)| format!("{why}; the certificates read before stay in force"));
        drop(state);
        let expired = chain.problem(now_s);
        let news = expired.clone().or_else(|| chain.soon(now_s));
        // The days count down in it: once a day.
        if let Some(said) = news.filter(|news| self.read().said.as_ref() != Some(news)) {
            tracing::warn!("{port}: {said}");
            self.write().said = Some(said);
        }
        metrics::tls(port, chain.not_after_s, failed.is_none());
        let problems: Vec<String> = failed.into_iter().chain(expired).collect();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        (self.0.on_status)(TlsStatus { port, not_after_s: chain.not_after_s, problem });
    }

    fn now_s(&self) -> i64 {
        self.0.clock.now().wall_ms / 1000
    }

    // Each state is whole in itself, whatever a thread that panicked was at.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
