//! The HTTP client of the commands that talk to a running service: its address, a token, TLS.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// The part of an answer that is shown as an error, if it is none of the service's.
const ERROR_CHARS_MAX: usize = 1000;

/// Where the service is, and what authenticates the command there.
#[derive(Args)]
pub(super) struct ServiceArgs {
    /// The service, such as https://collector.example:8080 [default: this machine, the port of the
    /// configuration]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A file with a token, as `tokens add` prints it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Trust these CA certificates (PEM), not those of Mozilla's list
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Why a request cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("{}: {error}", path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{}: no token in the file; expected one line such as gw1.secret", .0.display())]
    NoToken(PathBuf),
    #[error("{}: no certificate in PEM format", .0.display())]
    NoCertificate(PathBuf),
    /// Without the URL, which may contain a password.
    #[error(
        "--url: expected http://HOST:PORT or https://HOST:PORT; in USER:PASSWORD@ before the host \
         the characters : / ? # [ ] @ % must be percent-encoded, such as %40 for @"
    )]
    Url,
}

pub(super) struct Client {
    agent: Agent,
    /// Without a slash at the end.
    url: String,
    authorization: Option<String>,
}

impl Client {
    /// `listen`, `secure`: the port of the configuration, used without `--url`. `within`: the time
    /// limit of a whole request; `None` for one whose answer does not end.
    pub(super) fn new(
        args: &ServiceArgs,
        listen: SocketAddr,
        secure: bool,
        within: Option<Duration>,
    ) -> Result<Client, ClientError> {
        let url = match &args.url {
            Some(url) if is_valid(url) => url.trim_end_matches('/').to_owned(),
            Some(_) => return Err(ClientError::Url),
            None => format!(
                "{}://{}",
                if secure { "https" } else { "http" },
                on_this_machine(listen)
            ),
        };
        let authorization = args.token_file.as_deref().map(token).transpose()?;
        let mut tls = TlsConfig::builder();
        if let Some(path) = &args.ca_file {
            tls = tls.root_certs(RootCerts::Specific(Arc::new(certificates(path)?)));
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .timeout_global(within)
            .tls_config(tls.build())
            .user_agent(concat!("hourbucket/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Client {
            agent,
            url,
            authorization: authorization.map(|token| format!("Bearer {token}")),
        })
    }

    /// The address of the service for messages and files, without a user and password.
    pub(super) fn base(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return String::new();
        };
        let host_end = rest.find('/').unwrap_or(rest.len());
        let host_start = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
        format!("{scheme}://{}", &rest[host_start..])
    }

    pub(super) fn post(
        &self,
        path: &str,
        body: &[u8],
    ) -> Result<ureq::http::Response<Body>, ureq::Error> {
        let mut request = self
            .agent
            .post(format!("{}{path}", self.url))
            .content_type("application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        request.send(body)
    }

    pub(super) fn get(&self, path: &str) -> Result<ureq::http::Response<Body>, ureq::Error> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        request.call()
    }
}

/// Whether the parts of a URL are what they seem to be: an unescaped `/` in a password would make
/// the user the host.
fn is_valid(url: &str) -> bool {
    let is_http = url.starts_with("http://") || url.starts_with("https://");
    let Ok(uri) = url.parse::<ureq::http::Uri>() else {
        return false;
    };
    let Some(authority) = uri.authority() else {
        return false;
    };
    let named = authority.as_str().rsplit('@').next().unwrap_or_default();
    let host = authority.host();
    let is_host_and_port = match uri.port_u16() {
        Some(port) => named == format!("{host}:{port}"),
        None => named == host,
    };
    is_http && is_host_and_port && uri.query().is_none()
}

/// `text` as a part of a query.
pub(super) fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// The body of an answer, as far as it can be read.
pub(super) fn body_text(response: &mut ureq::http::Response<Body>, bytes_max: u64) -> String {
    let mut bytes = vec![];
    let _ = response
        .body_mut()
        .as_reader()
        .take(bytes_max)
        .read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `error.detail` of a body, or the whole body.
pub(super) fn error_detail(body: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let detail = json.and_then(|json| json["error"]["detail"].as_str().map(str::to_owned));
    detail.unwrap_or_else(|| body.trim().chars().take(ERROR_CHARS_MAX).collect())
}

/// The unspecified address is valid for listening, not for connecting.
pub(super) fn on_this_machine(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn read_file(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path).map_err(|error| ClientError::File {
        path: path.to_owned(),
        error,
    })
}

fn token(path: &Path) -> Result<String, ClientError> {
    let text = String::from_utf8_lossy(&read_file(path)?).trim().to_owned();
    let is_token = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if is_token {
        Ok(text)
    } else {
        Err(ClientError::NoToken(path.to_owned()))
    }
}

fn certificates(path: &Path) -> Result<Vec<ureq::tls::Certificate<'static>>, ClientError> {
    let pem = read_file(path)?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        Err(ClientError::NoCertificate(path.to_owned()))
    } else {
        Ok(found)
    }
}
