//! The certificates of one of our ports: watched, read again when their files change or on request
//! (reload), and replaced between two handshakes. Open connections are not affected, except that
//! each verifies the certificate of its client again ([`super::client_certificate`]).
//!
//! If the new files cannot be used (one half written, a key that does not match, a truncated
//! certificate), the previous certificates stay in use. The problem is logged once per state of the
//! files, and shown in the metrics and the status while it lasts. The same applies to an expired
//! certificate: it is still presented, because a client that refuses it must learn that from TLS,
//! not from a closed port.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_util::sync::CancellationToken;

use super::client_certificate::ClientCertificate;
use super::x509;
use super::{Identity, ServerSettings, ServerTls, TlsError, server};
use config::{ClientAuth, ListenMqtt, Live, Setter, Tls, TlsVersion};
use model::Clock;
use telemetry::metrics::{self, LoadResult, PortName};

/// A connection after its handshake.
pub type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// How often the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long before its expiry a certificate causes a warning: 14 days.
const WARN_BEFORE_S: i64 = 14 * 86_400;
const DAY_S: i64 = 86_400;

/// The TLS files and settings of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
    client_optional: bool,
    only_13: bool,
    protocols: &'static [&'static [u8]],
}

impl Files {
    /// For an HTTP port; `None`: no TLS.
    pub fn of_http(tls: &Tls) -> Option<Files> {
        Some(Files {
            cert: tls.cert_file.clone()?,
            key: tls.key_file.clone()?,
            client_ca: tls.client_ca_file.clone(),
            client_crl: tls.client_crl_file.clone(),
            client_optional: tls.client_auth == ClientAuth::Optional,
            only_13: tls.min_version == TlsVersion::V13,
            protocols: &[b"http/1.1"],
        })
    }

    /// For the devices' MQTT port; `None`: no TLS.
    pub fn of_devices(settings: &ListenMqtt) -> Option<Files> {
        Some(Files {
            cert: settings.cert_file.clone()?,
            key: settings.key_file.clone()?,
            client_ca: settings.client_ca_file.clone(),
            client_crl: settings.client_crl_file.clone(),
            client_optional: false,
            only_13: false,
            // Devices do not use ALPN, or request "mqtt" from every broker.
            protocols: &[],
        })
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        [
            Some(&self.cert),
            Some(&self.key),
            self.client_ca.as_ref(),
            self.client_crl.as_ref(),
        ]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
    }

    /// State of each file. ctime also changes with permissions. Another file under the same name (a
    /// replaced symlink, as Kubernetes does it) has another inode.
    fn seen(&self) -> Seen {
        use std::os::unix::fs::MetadataExt as _;
        let look = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some([
                found.mtime(),
                found.mtime_nsec(),
                found.ctime(),
                found.ctime_nsec(),
                found.ino() as i64,
            ])
        };
        self.paths().map(look).collect()
    }

    /// Reads the files; blocks for some milliseconds.
    pub fn load(self) -> Result<Loaded, TlsError> {
        let seen = self.seen();
        let settings = ServerSettings {
            identity: Identity {
                cert: &self.cert,
                key: &self.key,
            },
            client_ca: self.client_ca.as_deref(),
            client_crl: self.client_crl.as_deref(),
            client_optional: self.client_optional,
            only_13: self.only_13,
            protocols: self.protocols,
        };
        let ServerTls {
            config,
            chain,
            verifier,
            crl_until_s,
        } = server(settings)?;
        let chain = Chain::parse(&chain).ok_or_else(|| TlsError::Pem {
            path: self.cert.clone(),
            what: "certificate",
        })?;
        Ok(Loaded {
            files: self,
            seen,
            config: Arc::new(config),
            chain,
            verifier,
            crl_until_s,
        })
    }

    /// Reads and checks the files, for `hourbucket check`: returns a short summary, or the problem.
    pub fn check(self, now_s: i64) -> Result<String, CertificateError> {
        let loaded = self.load()?;
        let problems: Vec<_> = loaded
            .chain
            .problem(now_s)
            .into_iter()
            .chain(loaded.chain.disorder())
            .collect();
        if !problems.is_empty() {
            return Err(CertificateError::Chain {
                path: loaded.files.cert,
                problems,
            });
        }
        let warnings: Vec<String> = loaded
            .chain
            .soon(now_s)
            .into_iter()
            .chain(loaded.outdated_crl(now_s))
            .collect();
        let left = if warnings.is_empty() {
            String::new()
        } else {
            format!(" (warning: {})", warnings.join("; "))
        };
        Ok(format!("TLS until {}{left}", day(loaded.chain.not_after_s)))
    }
}

/// Why a port cannot be served with its certificates, or not for long.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The files cannot be used.
    #[error("{0}")]
    Files(#[from] TlsError),
    /// Clients refuse the chain.
    #[error("{}: {}", path.display(), joined(problems))]
    Chain {
        /// The file of the chain.
        path: PathBuf,
        /// At least one.
        problems: Vec<ChainProblem>,
    },
}

fn joined(problems: &[ChainProblem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// The fault of a chain whose files can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChainProblem {
    #[error("the certificate expired on {}; renew it", day(*not_after_s))]
    Expired { not_after_s: i64 },
    #[error("the certificate is not valid before {}; check the system clock", day(*not_before_s))]
    NotYetValid { not_before_s: i64 },
    /// The certificate at this position, from 1, was not issued by the next one.
    #[error(
        "certificate {at} was not issued by certificate {}, which follows it; order the file as: \
         the server's own certificate first, then its issuer, and so on",
        at + 1
    )]
    OutOfOrder { at: usize },
}

/// mtime, ctime and inode of each file; `None`: not readable.
type Seen = Vec<Option<[i64; 5]>>;

/// A loaded TLS configuration.
pub struct Loaded {
    files: Files,
    seen: Seen,
    config: Arc<ServerConfig>,
    chain: Chain,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    crl_until_s: Option<i64>,
}

impl Loaded {
    /// The warning that a revocation list should have been replaced. The list still counts: to
    /// refuse all clients because a list is late would stop them all for one that was not fetched.
    fn outdated_crl(&self, now_s: i64) -> Option<String> {
        let until_s = self.crl_until_s.filter(|until_s| now_s > *until_s)?;
        Some(format!(
            "a revocation list of client_crl_file is out of date since {}; it still counts, but \
             certificates revoked later are accepted: get the newer list from the CA",
            day(until_s)
        ))
    }
}

/// Facts about a certificate chain.
#[derive(Debug, Clone)]
struct Chain {
    not_before_s: i64,
    /// The earliest expiry in the chain.
    not_after_s: i64,
    /// Position, from 1, of the first certificate that was not issued by the next one.
    broken_at: Option<usize>,
}

impl Chain {
    fn parse(chain: &[CertificateDer<'_>]) -> Option<Chain> {
        let chain = chain
            .iter()
            .map(|der| x509::certificate(der))
            .collect::<Option<Vec<_>>>()?;
        let broken = chain
            .windows(2)
            .position(|pair| pair[0].issuer().as_raw() != pair[1].subject().as_raw());
        let validity = || chain.iter().map(|certificate| certificate.validity());
        Some(Chain {
            not_before_s: validity().map(|v| v.not_before.timestamp()).max()?,
            not_after_s: validity().map(|v| v.not_after.timestamp()).min()?,
            broken_at: broken.map(|at| at + 1),
        })
    }

    /// Why clients will refuse the chain now.
    fn problem(&self, now_s: i64) -> Option<ChainProblem> {
        let not_before_s = self.not_before_s;
        let not_after_s = self.not_after_s;
        if now_s > not_after_s {
            return Some(ChainProblem::Expired { not_after_s });
        }
        (now_s < not_before_s).then_some(ChainProblem::NotYetValid { not_before_s })
    }

    fn soon(&self, now_s: i64) -> Option<String> {
        let left = self.not_after_s - now_s;
        (0..WARN_BEFORE_S).contains(&left).then(|| {
            format!(
                "the certificate expires in {} days, on {}; renew it",
                left / DAY_S,
                day(self.not_after_s)
            )
        })
    }

    fn disorder(&self) -> Option<ChainProblem> {
        self.broken_at.map(|at| ChainProblem::OutOfOrder { at })
    }
}

/// Formats a time as `YYYY-MM-DD`.
fn day(at_s: i64) -> String {
    chrono::DateTime::from_timestamp(at_s, 0)
        .map_or_else(|| at_s.to_string(), |at| at.format("%Y-%m-%d").to_string())
}

/// Status of the certificates of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsStatus {
    /// The port.
    pub port: PortName,
    /// Expiry in seconds since 1970; the earliest of the chain.
    pub not_after_s: i64,
    /// The fault: files that cannot be used, a certificate that is not valid now, a revocation list
    /// out of date.
    pub problem: Option<String>,
}

/// Called at each check of the files, every few seconds.
pub type OnTls = Arc<dyn Fn(TlsStatus) + Send + Sync>;

/// The certificates of a port, which are read again when their files change. Clones share them.
#[derive(Clone)]
pub struct Certificates(Arc<Inner>);

struct Inner {
    port: PortName,
    clock: Arc<dyn Clock>,
    on_status: OnTls,
    state: RwLock<State>,
    verifier: Setter<Option<Arc<dyn ClientCertVerifier>>>,
}

struct State {
    loaded: Loaded,
    /// State of the files that could not be used, and the error.
    failed: Option<(Seen, String)>,
    /// The last logged warning about expiry.
    logged: Option<String>,
    /// The last logged warning about a revocation list.
    logged_crl: Option<String>,
}

impl Certificates {
    /// Reads the files and starts with their certificates.
    pub async fn open(
        port: PortName,
        files: Files,
        clock: Arc<dyn Clock>,
        on_status: OnTls,
    ) -> Result<Certificates, TlsError> {
        let cert = files.cert.clone();
        let read = tokio::task::spawn_blocking(move || files.load()).await;
        let loaded = read.map_err(|error| TlsError::Read {
            path: cert,
            error: io::Error::other(error),
        })??;
        let (verifier, _) = Live::new(loaded.verifier.clone());
        let state = RwLock::new(State {
            loaded,
            failed: None,
            logged: None,
            logged_crl: None,
        });
        let certificates = Certificates(Arc::new(Inner {
            port,
            clock,
            on_status,
            state,
            verifier,
        }));
        certificates.loaded();
        Ok(certificates)
    }

    /// The section of the configuration.
    pub fn port(&self) -> PortName {
        self.0.port
    }

    /// The configuration for the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.state().loaded.config.clone()
    }

    /// Performs the handshake of a connection, without a time limit. `crypto` resolves to a permit
    /// for the expensive part. It is awaited only after the client's hello arrived, so silent
    /// clients hold no permit. Also returns the certificate that the client has presented.
    pub async fn accept<P>(
        &self,
        stream: TcpStream,
        crypto: impl Future<Output = P>,
    ) -> io::Result<(TlsStream, Option<ClientCertificate>)> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let _place = crypto.await;
        // Before the configuration is read, so that no change after it is missed.
        let verifier = self.0.verifier.live();
        let stream = hello.into_stream(self.config()).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let client = ClientCertificate::new(chain, verifier, self.0.clock.clone());
        Ok((stream, client))
    }

    /// Checks the files every few seconds until `stop`.
    pub async fn watch(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.look().await,
            }
        }
    }

    /// Reads the files again if one has changed.
    pub async fn look(&self) {
        let (files, before) = {
            let state = self.state();
            let before = state
                .failed
                .as_ref()
                .map_or(&state.loaded.seen, |(seen, _)| seen);
            (state.loaded.files.clone(), before.clone())
        };
        let of_read = files.clone();
        // The files may be on a slow disk.
        let read = tokio::task::spawn_blocking(move || {
            let seen = of_read.seen();
            (seen != before).then(|| (seen, of_read.load()))
        });
        let read = read.await.ok().flatten();
        // A reload may have set other files meanwhile.
        let is_ours = self.state().loaded.files == files;
        match read.filter(|_| is_ours) {
            Some((_, Ok(loaded))) => self.put(loaded),
            Some((seen, Err(error))) => self.failed(seen, &error),
            None => self.report(),
        }
    }

    /// Replaces the certificates in use.
    pub fn put(&self, loaded: Loaded) {
        let verifier = loaded.verifier.clone();
        let mut state = self.state_mut();
        (state.loaded, state.failed) = (loaded, None);
        drop(state);
        self.0.verifier.set(verifier);
        self.loaded();
    }

    fn loaded(&self) {
        let port = self.0.port.as_str();
        let now_s = self.now_s();
        let chain = self.state().loaded.chain.clone();
        tracing::info!(port, until = day(chain.not_after_s), "certificates loaded");
        if let Some(disorder) = chain.disorder() {
            tracing::warn!(port, problem = %disorder, "certificate chain out of order");
        }
        let problem = chain
            .problem(now_s)
            .map(|problem| problem.to_string())
            .or_else(|| chain.soon(now_s));
        if let Some(problem) = &problem {
            tracing::warn!(port, problem, "certificate not valid now or expires soon");
        }
        self.state_mut().logged = problem;
        metrics::tls_reads_total(self.0.port, LoadResult::Ok, 1);
        self.report();
    }

    fn failed(&self, seen: Seen, error: &TlsError) {
        let port = self.0.port.as_str();
        tracing::error!(port, %error, "cannot load certificates; the previous ones stay in use");
        metrics::tls_reads_total(self.0.port, LoadResult::Failed, 1);
        self.state_mut().failed = Some((seen, error.to_string()));
        self.report();
    }

    /// Reports the status, which also changes with time.
    fn report(&self) {
        let port = self.0.port.as_str();
        let now_s = self.now_s();
        let state = self.state();
        let chain = state.loaded.chain.clone();
        let outdated_crl = state.loaded.outdated_crl(now_s);
        let crl_until_s = state.loaded.crl_until_s;
        let failed = state
            .failed
            .as_ref()
            .map(|(_, why)| format!("{why}; the previous certificates stay in use"));
        drop(state);
        let expired = chain.problem(now_s).map(|problem| problem.to_string());
        let warning = expired.clone().or_else(|| chain.soon(now_s));
        // The text contains the days left, so it is logged once a day.
        if let Some(warning) =
            warning.filter(|warning| self.state().logged.as_ref() != Some(warning))
        {
            tracing::warn!(
                port,
                problem = warning,
                "certificate not valid now or expires soon"
            );
            self.state_mut().logged = Some(warning);
        }
        // When it is replaced, and when the next one is late as well.
        if self.state().logged_crl != outdated_crl {
            if let Some(warning) = &outdated_crl {
                tracing::warn!(port, problem = warning, "revocation list out of date");
            }
            self.state_mut().logged_crl.clone_from(&outdated_crl);
        }
        let port = self.0.port;
        metrics::tls_not_after_seconds(port, chain.not_after_s as f64);
        // +Inf without a list.
        let crl_until_s = crl_until_s.map_or(f64::INFINITY, |until_s| until_s as f64);
        metrics::tls_crl_next_update_seconds(port, crl_until_s);
        metrics::tls_files_ok(port, failed.is_none());
        let problems: Vec<String> = failed
            .into_iter()
            .chain(expired)
            .chain(outdated_crl)
            .collect();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        (self.0.on_status)(TlsStatus {
            port,
            not_after_s: chain.not_after_s,
            problem,
        });
    }

    fn now_s(&self) -> i64 {
        self.0.clock.now().wall_ms / 1000
    }

    // Each update replaces whole values, so the lock stays usable after a panic.
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::SystemClock;

    fn files(crl: &str) -> Files {
        let file = |name: &str| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/support/mqtt_tls")
                .join(name)
        };
        Files {
            cert: file("server.pem"),
            key: file("server.key"),
            client_ca: Some(file("client_ca.pem")),
            client_crl: Some(file(crl)),
            client_optional: false,
            only_13: false,
            protocols: &[],
        }
    }

    #[tokio::test]
    async fn a_revocation_list_past_its_next_update_is_used_with_a_warning() {
        const NEXT_UPDATE_S: i64 = 1_706_659_200;
        let loaded = files("crl_of_2024.pem").load().unwrap();
        assert_eq!(loaded.outdated_crl(NEXT_UPDATE_S), None);
        assert!(
            loaded
                .outdated_crl(NEXT_UPDATE_S + 1)
                .unwrap()
                .contains("since 2024-01-31")
        );
        let summary = files("crl_of_2024.pem").check(1_800_000_000).unwrap();
        assert!(
            summary.contains("(warning: a revocation list of client_crl_file is out of date"),
            "{summary}"
        );
        let on_status: OnTls = Arc::new(|status| {
            assert!(
                status
                    .problem
                    .is_some_and(|problem| problem.contains("out of date since 2024-01-31"))
            );
        });
        let clock = Arc::new(SystemClock::new());
        let open = Certificates::open(PortName::Http, files("crl_of_2024.pem"), clock, on_status)
            .await
            .unwrap();
        assert!(open.state().logged_crl.is_some());
    }
}
