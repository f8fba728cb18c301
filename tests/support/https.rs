//! An HTTPS client with a persistent connection.

#![allow(unreachable_pub, reason = "public for the tests alone")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The CA that a client trusts and its own identity, all in PEM.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    pub ca: &'static str,
    pub identity: Option<(&'static str, &'static str)>,
    /// Disables TLS 1.3.
    pub only_12: bool,
}

/// A persistent connection.
pub struct Https(pub TlsStream<TcpStream>);

impl Https {
    /// Connects. Returns an error if the handshake fails (with TLS 1.3, a refused client sees that
    /// only with the first answer).
    pub async fn connect(addr: SocketAddr, trust: &Trust) -> io::Result<Https> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(trust.ca.as_bytes()).unwrap())
            .unwrap();
        let versions = if trust.only_12 {
            vec![&TLS12]
        } else {
            vec![&TLS13, &TLS12]
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match trust.identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TcpStream::connect(addr).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        Ok(Https(
            TlsConnector::from(Arc::new(config))
                .connect(name, stream)
                .await?,
        ))
    }

    /// The protocol negotiated by ALPN.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.0.get_ref().1.alpn_protocol()
    }

    /// Posts JSON; returns the status.
    pub async fn post(&mut self, path: &str, token: Option<&str>, body: &str) -> io::Result<u16> {
        self.post_as("127.0.0.1", path, token, body).await
    }

    /// The same to a server that the client knows under this name.
    pub async fn post_as(
        &mut self,
        host: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> io::Result<u16> {
        let token = token
            .map(|token| format!("authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             {token}content-length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all(format!("{head}{body}").as_bytes()).await?;
        self.0.flush().await?;
        let mut head = vec![];
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split('\r').next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).await?;
        Ok(head[9..12].parse().unwrap())
    }
}
