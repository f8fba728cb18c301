//! Address of a broker: the parsed URL, and the certificates and password for it.

use config::{Mqtt, Secret, SecretFileError};
use decode::topic::TopicError;
use net::tls::{self, ClientTls, Identity, TlsError};

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
    /// What follows host and port in the URL of a WebSocket.
    path: String,
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
    /// The password cannot be read.
    #[error("mqtt.password_file: {0}")]
    Password(#[from] SecretFileError),
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

impl SetupError {
    /// rumqttc rejects the options.
    pub(super) fn options(error: impl std::fmt::Display) -> SetupError {
        SetupError::Options(error.to_string())
    }
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
            path: path.to_owned(),
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

    /// The URL of a WebSocket within the stream that is opened to it, which may be encrypted.
    pub(super) fn websocket_url(&self) -> String {
        format!("ws://{}{}", self.label(), self.path)
    }

    /// The name of a connection in logs, metrics and `/readyz`, unique among all brokers.
    pub(super) fn name_among(&self, all: &[Mqtt], config: &Mqtt) -> String {
        match all.iter().filter(|other| other.url == config.url).count() {
            0 | 1 => self.label(),
            _ => format!("{} ({})", self.label(), config.client_id),
        }
    }

    /// The TLS configuration, if the scheme uses TLS. Reads files, so it blocks for some
    /// milliseconds.
    ///
    /// # Errors
    /// The certificates cannot be loaded.
    pub(super) fn tls(&self, config: &Mqtt) -> Result<Option<ClientTls>, TlsError> {
        if matches!(self.scheme, Scheme::Mqtt | Scheme::Ws) {
            return Ok(None);
        }
        let identity = config.cert_file.as_deref().zip(config.key_file.as_deref());
        let identity = identity.map(|(cert, key)| Identity { cert, key });
        tls::client(config.ca_file.as_deref(), identity).map(Some)
    }
}

/// Certificates and password from files, read again for each connection, so that renewed files
/// apply from the next connection on. If a file cannot be read (half written, or a key that does
/// not match yet), the content of the last connection is used and the problem is reported.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    /// `None`: the connection is not encrypted.
    pub(super) tls: Option<ClientTls>,
    pub(super) password: Option<Secret>,
}

impl Credentials {
    /// Reads the files; `before` is the content at the last connection. Also returns the problems.
    ///
    /// # Errors
    /// The certificates or the password cannot be read, and there are no previous ones.
    pub(super) fn load(
        config: &Mqtt,
        target: &Target,
        before: Option<&Credentials>,
    ) -> Result<(Credentials, Option<String>), SetupError> {
        let mut problems = vec![];
        let tls = match (target.tls(config), before) {
            (Ok(tls), _) => tls,
            (Err(error), Some(before)) => {
                problems.push(format!("certificates: {error}"));
                before.tls.clone()
            }
            (Err(error), None) => return Err(error.into()),
        };
        let password = match (config.password_now(), before) {
            (Ok(password), _) => password,
            (Err(error), Some(before)) => {
                problems.push(format!("password_file: {error}"));
                before.password.clone()
            }
            (Err(error), None) => return Err(error.into()),
        };
        let problem = (!problems.is_empty())
            .then(|| format!("{}; the previous content is used", problems.join("; ")));
        Ok((Credentials { tls, password }, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_with_the_same_url_are_told_apart_by_their_client_id() {
        let broker = |url: &str, client_id: &str| Mqtt {
            url: url.to_owned(),
            client_id: client_id.to_owned(),
            ..Mqtt::default()
        };
        let all = [
            broker("mqtt://a:1883", "one"),
            broker("mqtt://b:1883", "one"),
            broker("mqtt://a:1883", "two"),
        ];
        let name = |mqtt: &Mqtt| Target::parse(&mqtt.url).unwrap().name_among(&all, mqtt);
        let names: Vec<String> = all.iter().map(name).collect();
        assert_eq!(names, ["a:1883 (one)", "b:1883", "a:1883 (two)"]);
    }

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
    fn a_websocket_has_a_port_and_keeps_its_path() {
        for (url, within) in [
            ("ws://b/mqtt", "ws://b:80/mqtt"),
            ("wss://b/mqtt?x=y/z", "ws://b:443/mqtt?x=y/z"),
            ("wss://[::1]:9001", "ws://[::1]:9001"),
        ] {
            assert_eq!(Target::parse(url).unwrap().websocket_url(), within);
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let error = Target::parse("mqtt://me:geheim@x").unwrap_err().to_string();
        assert!(!error.contains("geheim"), "{error}");
    }
}
