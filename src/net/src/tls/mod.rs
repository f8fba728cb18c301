//! TLS from PEM files, with one provider (ring) throughout. The files for brokers are read for each
//! connection; those of our own ports are watched ([`Certificates`]). Either way a renewed
//! certificate applies from the next connection on.

mod certificates;
mod client_certificate;
mod local;
mod revocation;
mod x509;

pub use self::certificates::{CertificateError, Certificates, Files, Loaded, TlsStream};
pub use self::certificates::{OnTls, TlsStatus};
pub use self::client_certificate::ClientCertificate;
pub use self::local::connect_to_any;
pub(crate) use self::revocation::CrlFault;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::{ClientConfig, WantsClientCert};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName,
};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, ConfigBuilder, RootCertStore, SupportedProtocolVersion};

/// Why certificates cannot be used. The text never shows any part of a key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// Path of the PEM file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        error: std::io::Error,
    },
    /// A file is not PEM, or does not contain the expected item.
    #[error("{path} contains no usable {what} in PEM format")]
    Pem {
        /// Path of the PEM file.
        path: PathBuf,
        /// The expected item: certificate, CA certificate, private key or certificate revocation
        /// list.
        what: &'static str,
    },
    /// The revocation lists do not fit the CA of client certificates.
    #[error(
        "{path} does not fit client_ca_file: {fault}, so every client of this CA would be refused; \
         put the newest list of the CA there, or set the other file"
    )]
    Crl {
        /// Path of the revocation lists.
        path: PathBuf,
        /// The fault.
        #[source]
        fault: CrlFault,
    },
    /// Certificate and key do not belong together, or are of a kind that rustls does not support.
    #[error(
        "{cert} and {key} cannot be used together: {error} (the key's certificate must be the \
         first in its file)"
    )]
    Identity {
        /// Path of the certificate file.
        cert: PathBuf,
        /// Path of the key file.
        key: PathBuf,
        /// The underlying error.
        #[source]
        error: rustls::Error,
    },
    /// The system's root certificates cannot be loaded.
    #[error("cannot load the system's root certificates: {0}; set ca_file")]
    Roots(String),
    /// rustls rejects the protocol versions or the crypto provider.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[source] rustls::Error),
}

/// The files of a certificate chain and its private key.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// PEM: the own certificate first, then its issuers.
    pub cert: &'a Path,
    /// PEM: the private key of the first certificate.
    pub key: &'a Path,
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Read {
        path: path.to_owned(),
        error,
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = || TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
    };
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read_file(path)?)
        .collect::<Result<_, _>>()
        .map_err(|_| bad())?;
    if found.is_empty() {
        Err(bad())
    } else {
        Ok(found)
    }
}

impl Identity<'_> {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key =
            PrivateKeyDer::from_pem_slice(&read_file(self.key)?).map_err(|_| TlsError::Pem {
                path: self.key.to_owned(),
                what: "private key",
            })?;
        Ok((certificates(self.cert)?, key))
    }

    fn refused(&self, error: rustls::Error) -> TlsError {
        TlsError::Identity {
            cert: self.cert.to_owned(),
            key: self.key.to_owned(),
            error,
        }
    }
}

fn roots(ca: &Path) -> Result<RootCertStore, TlsError> {
    roots_of(ca, certificates(ca)?)
}

/// The roots in this file.
fn roots_of(
    ca: &Path,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(TlsError::Pem {
            path: ca.to_owned(),
            what: "CA certificate",
        });
    }
    Ok(store)
}

/// The certificate revocation lists of a file.
fn crls(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(&read_file(path)?).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| no_crl(path))
}

fn no_crl(path: &Path) -> TlsError {
    TlsError::Pem {
        path: path.to_owned(),
        what: "certificate revocation list",
    }
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = store.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found
            .errors
            .first()
            .map_or_else(|| "none found".to_owned(), ToString::to_string);
        return Err(TlsError::Roots(why));
    }
    Ok(store)
}

/// Our end of an encrypted connection to a server.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<S>;

/// TLS to a server.
#[derive(Debug, Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Performs the handshake with the server of this name or address.
    ///
    /// # Errors
    /// The handshake failed.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<ClientStream<S>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.0.clone());
        connector.connect(name, stream).await
    }
}

/// Client configuration: the trusted roots (`None`: the system's) and our own certificate, if any.
/// Reads files, so it blocks for some milliseconds.
pub fn client(ca: Option<&Path>, identity: Option<Identity<'_>>) -> Result<ClientTls, TlsError> {
    let roots = ca.map_or_else(system_roots, roots)?;
    let builder: ConfigBuilder<ClientConfig, WantsClientCert> =
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = identity.load()?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| identity.refused(error))?
        }
    };
    Ok(ClientTls(Arc::new(config)))
}

/// TLS settings of one of our ports.
#[derive(Debug, Clone, Copy)]
struct ServerSettings<'a> {
    identity: Identity<'a>,
    /// The CA of client certificates; `None`: none are requested.
    client_ca: Option<&'a Path>,
    /// The revocation lists of client certificates. With them, a certificate of a CA that has no
    /// list is refused.
    client_crl: Option<&'a Path>,
    /// A client may present none.
    client_optional: bool,
    /// Disables TLS 1.2.
    only_13: bool,
    /// The protocols offered by ALPN; empty: ALPN is not used.
    protocols: &'static [&'static [u8]],
}

/// TLS 1.3 comes first, so that a slice of one allows it alone.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// The TLS settings that result from the files of a port.
struct ServerTls {
    config: ServerConfig,
    chain: Vec<CertificateDer<'static>>,
    /// Verifies client certificates.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// When the first of the revocation lists should have been replaced, in seconds since 1970.
    crl_until_s: Option<i64>,
}

/// Reads the files of a port.
fn server(settings: ServerSettings<'_>) -> Result<ServerTls, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let versions = if settings.only_13 {
        &VERSIONS[..1]
    } else {
        &VERSIONS
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(TlsError::Setup)?;
    let crls = settings
        .client_crl
        .map(crls)
        .transpose()?
        .unwrap_or_default();
    let crl_until_s = crls.iter().filter_map(|crl| x509::next_update_s(crl)).min();
    let verifier = settings
        .client_ca
        .map(|ca| client_verifier(ca, settings, crls, provider))
        .transpose()?;
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
    };
    let identity = settings.identity;
    let (chain, key) = identity.load()?;
    let mut config = builder
        .with_single_cert(chain.clone(), key)
        .map_err(|error| identity.refused(error))?;
    config.alpn_protocols = settings
        .protocols
        .iter()
        .map(|name| name.to_vec())
        .collect();
    Ok(ServerTls {
        config,
        chain,
        verifier,
        crl_until_s,
    })
}

fn client_verifier(
    ca: &Path,
    settings: ServerSettings<'_>,
    crls: Vec<CertificateRevocationListDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let cas = certificates(ca)?;
    let roots = roots_of(ca, cas.clone())?;
    let fault = settings.client_crl.and_then(|path| {
        let algorithms = provider.signature_verification_algorithms.all;
        let fault = revocation::check(&crls, &cas, algorithms).err()?;
        let path = path.to_owned();
        Some(TlsError::Crl { path, fault })
    });
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).with_crls(crls);
    let verifier = if settings.client_optional {
        verifier.allow_unauthenticated()
    } else {
        verifier
    };
    // A list that rustls cannot use is reported as such.
    let verifier = verifier
        .build()
        .map_err(|error| match (error, settings.client_crl) {
            (VerifierBuilderError::InvalidCrl(_), Some(crl)) => no_crl(crl),
            _ => TlsError::Pem {
                path: ca.to_owned(),
                what: "CA certificate",
            },
        })?;
    fault.map_or(Ok(verifier), Err)
}
