//! Address and transport of a broker: the parsed URL, TLS, and the socket.

use std::io;

use rumqttc_v5::TlsConfiguration;
use tokio::net::TcpStream;

use super::socket::{Coalescing, Handle};
use crate::config::Mqtt;
use crate::decode::topic::TopicError;
use crate::ingest::tls::{self, Identity, TlsError};

/// The scheme of a broker's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
}

/// A parsed broker URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Transport and encryption.
    pub(super) scheme: Scheme,
    /// Name or address; an IPv6 address without its brackets.
    pub(super) host: String,
    /// The port; the scheme's default if the URL has none.
    pub(super) port: u16,
    /// The URL as configured.
    pub(super) url: String,
}

/// Why a broker connection is not possible as configured. An operator has to change the
/// configuration.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The URL cannot be used.
    #[error(
        "mqtt.url must be mqtt://, mqtts://, ws:// or wss:// with host and optional port, without \
         credentials: {0}"
    )]
    Url(String),
    /// The certificates cannot be used.
    #[error("mqtt: {0}")]
    Tls(#[from] TlsError),
    /// A subscription's topic template cannot be parsed.
    #[error("mqtt.subscriptions.topic of {filter}: {error}")]
    TopicTemplate {
        /// The subscription's filter.
        filter: String,
        /// The syntax error of the template.
        error: TopicError,
    },
    /// rumqttc rejects the options.
    #[error("the MQTT client library rejects the settings: {0}")]
    Options(String),
}

impl Target {
    /// Parses a URL.
    ///
    /// # Errors
    /// It is not a valid broker URL.
    pub(super) fn parse(url: &str) -> Result<Target, SetupError> {
        let bad = || SetupError::Url(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (scheme, port) = match scheme {
            "mqtt" => (Scheme::Mqtt, 1883),
            "mqtts" => (Scheme::Mqtts, 8883),
            "ws" => (Scheme::Ws, 80),
            "wss" => (Scheme::Wss, 443),
            _ => return Err(bad()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain = matches!(scheme, Scheme::Mqtt | Scheme::Mqtts);
        if authority.contains('@') {
            // The URL is not repeated: it contains a password.
            return Err(SetupError::Url(
                "it contains credentials; use mqtt.username and mqtt.password_file".into(),
            ));
        }
        if is_plain && !matches!(path, "" | "/") {
            return Err(bad());
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, rest) = v6.split_once(']').ok_or_else(bad)?;
                (
                    host,
                    rest.strip_prefix(':')
                        .map_or_else(|| rest.is_empty().then_some(port), |p| p.parse().ok()),
                )
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, port.parse().ok()),
                None => (authority, Some(port)),
            },
        };
        let port = port
            .filter(|port| *port != 0 && !host.is_empty())
            .ok_or_else(bad)?;
        Ok(Target {
            scheme,
            host: host.to_owned(),
            port,
            url: url.to_owned(),
        })
    }

    /// Host and port, for logs and metrics.
    pub(super) fn label(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The name of a connection in logs, metrics and `/readyz`, unique among the brokers.
    pub(super) fn name_of(&self, config: &Mqtt) -> String {
        match config.is_url_shared {
            true => format!("{} ({})", self.label(), config.client_id),
            false => self.label(),
        }
    }

    /// The TLS configuration, if the scheme uses TLS. Reads files, so it blocks for some
    /// milliseconds.
    ///
    /// # Errors
    /// The certificates cannot be loaded.
    pub(super) fn tls(&self, config: &Mqtt) -> Result<Option<TlsConfiguration>, TlsError> {
        if matches!(self.scheme, Scheme::Mqtt | Scheme::Ws) {
            return Ok(None);
        }
        let identity = config.cert_file.as_deref().zip(config.key_file.as_deref());
        let identity = identity.map(|(cert, key)| Identity { cert, key });
        let client = tls::client(config.ca_file.as_deref(), identity)?;
        Ok(Some(TlsConfiguration::Rustls(client)))
    }
}

/// Opens the socket; tries every address of the host name.
pub(super) async fn dial(
    host: String,
    port: u16,
    handle: Handle<TcpStream>,
) -> io::Result<Coalescing<TcpStream>> {
    let socket = TcpStream::connect((host.as_str(), port)).await?;
    // Writes are coalesced already; Nagle's algorithm would delay every PUBACK of a quiet
    // connection.
    socket.set_nodelay(true)?;
    Ok(Coalescing::new(socket, handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let parse = |url: &str| Target::parse(url).map(|t| (t.scheme, t.label())).ok();
        assert_eq!(
            parse("mqtt://127.0.0.1:1883"),
            Some((Scheme::Mqtt, "127.0.0.1:1883".into()))
        );
        assert_eq!(
            parse("mqtts://broker.example/"),
            Some((Scheme::Mqtts, "broker.example:8883".into()))
        );
        assert_eq!(
            parse("ws://b:9001/mqtt"),
            Some((Scheme::Ws, "b:9001".into()))
        );
        assert_eq!(
            parse("wss://[::1]:443/x"),
            Some((Scheme::Wss, "[::1]:443".into()))
        );
        assert_eq!(
            parse("mqtt://[::1]"),
            Some((Scheme::Mqtt, "[::1]:1883".into()))
        );
        for bad in [
            "",
            "mqtt://",
            "tcp://x",
            "mqtt://x:0",
            "mqtt://x:y",
            "mqtt://[::1",
            "mqtt://x/y",
            "mqtt://[::1]x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let error = Target::parse("mqtt://me:geheim@x").unwrap_err().to_string();
        assert!(!error.contains("geheim"), "{error}");
    }
}
