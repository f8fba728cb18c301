//! HTTP to the centre. Blocking: each lane calls it from a thread for that.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::answer::Answer;
use config::{Forward, ForwardCompression, SecretFileError};
use decode::forwarded::MEDIA_TYPE;

/// The path of the centre's ingest port.
const PATH: &str = "/v1/readings";
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that makes no progress for this time is given up. An answer waits for the centre's
/// journal.
const WRITE: Duration = Duration::from_secs(30);
const READ: Duration = Duration::from_secs(60);
/// Bytes of an answer: that of the most rejects that it lists.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Why there can be no request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// `forward.url` is not set.
    #[error("forward.url is not set")]
    NoUrl,
    /// A file cannot be read.
    #[error("{key}: cannot read {}: {error}", path.display())]
    File {
        /// The setting.
        key: &'static str,
        /// Its value.
        path: PathBuf,
        /// The underlying error.
        error: std::io::Error,
    },
    /// A file is not PEM, or has another content.
    #[error("{key}: {} has no usable {what} in PEM format", path.display())]
    Pem {
        /// The setting.
        key: &'static str,
        /// Its value.
        path: PathBuf,
        /// What it should have.
        what: &'static str,
    },
    /// The token cannot be read.
    #[error("forward.token_file: {0}")]
    Token(#[from] SecretFileError),
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Http(#[from] ureq::Error),
    #[error("the answer was cut off: {0}")]
    Cut(#[from] std::io::Error),
}

/// The centre cannot be reached, or takes no readings.
#[derive(Debug, thiserror::Error)]
#[error("forward.url: {url} takes no readings: {why}")]
pub struct CentreAway {
    url: String,
    why: String,
}

/// Sends bodies.
pub struct Client {
    forward: Forward,
    url: String,
    /// The connection of each lane. After a failure it is made again, from the present files.
    agents: Mutex<Vec<Option<Agent>>>,
}

impl Client {
    /// Reads the files once, to find out whether they can be used.
    ///
    /// # Errors
    /// They cannot, or `forward.url` is not set.
    pub fn new(forward: &Forward) -> Result<Client, ClientError> {
        let client = Client {
            url: forward.url.clone().ok_or(ClientError::NoUrl)?,
            forward: forward.clone(),
            agents: Mutex::default(),
        };
        client.agent()?;
        Ok(client)
    }

    /// The centre.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a body, on the connection of this lane.
    pub fn send(&self, lane: usize, body: &[u8]) -> Answer {
        let sent = match self.taken(lane) {
            Some(agent) => Ok(agent),
            None => self.agent(),
        };
        let agent = match sent {
            Ok(agent) => agent,
            Err(error) => return Answer::None(error.to_string()),
        };
        match self.post(&agent, body) {
            Ok(answer) => {
                self.put(lane, agent);
                answer
            }
            Err(error) => Answer::None(error.to_string()),
        }
    }

    /// Asks whether the centre takes readings from this instance.
    ///
    /// # Errors
    /// It does not; why.
    pub fn check(&self) -> Result<(), CentreAway> {
        let ask = || -> Result<u16, RequestError> {
            let agent = self.agent()?;
            let mut request = agent.get(format!("{}{PATH}", self.url));
            if let Some(token) = self.authorization()? {
                request = request.header("authorization", token);
            }
            Ok(request.call()?.status().as_u16())
        };
        let why = match ask() {
            Ok(200) => return Ok(()),
            Ok(401 | 403) => "it does not accept the token (forward.token_file)".to_owned(),
            Ok(status) => format!("it answers with status {status}"),
            Err(error) => error.to_string(),
        };
        let url = self.url.clone();
        Err(CentreAway { url, why })
    }

    fn post(&self, agent: &Agent, body: &[u8]) -> Result<Answer, RequestError> {
        let mut request = agent
            .post(format!("{}{PATH}", self.url))
            .content_type(MEDIA_TYPE);
        if self.forward.compression == ForwardCompression::Zstd {
            request = request.header("content-encoding", "zstd");
        }
        if let Some(token) = self.authorization()? {
            request = request.header("authorization", token);
        }
        let mut response = request.send(body)?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after.and_then(|value| value.to_str().ok().map(str::to_owned));
        let mut text = vec![];
        let reader = response.body_mut().as_reader();
        // An answer that is cut off is none.
        reader.take(ANSWER_BYTES_MAX).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        Ok(Answer::classify(status, retry_after.as_deref(), &text))
    }

    fn authorization(&self) -> Result<Option<String>, ClientError> {
        let token = self.forward.token_now()?;
        Ok(token.map(|token| format!("Bearer {}", token.reveal())))
    }

    fn taken(&self, lane: usize) -> Option<Agent> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.get_mut(lane)?.take()
    }

    fn put(&self, lane: usize, agent: Agent) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if agents.len() <= lane {
            agents.resize(lane + 1, None);
        }
        agents[lane] = Some(agent);
    }

    fn agent(&self) -> Result<Agent, ClientError> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &self.forward.ca_file {
            let roots = certificates("forward.ca_file", path)?;
            tls = tls.root_certs(RootCerts::Specific(Arc::new(roots)));
        }
        if let (Some(cert), Some(key)) = (&self.forward.cert_file, &self.forward.key_file) {
            let chain = certificates("forward.cert_file", cert)?;
            let key = private_key("forward.key_file", key)?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        Ok(Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .timeout_per_write(Some(WRITE))
            .timeout_per_read(Some(READ))
            .tls_config(tls.build())
            .user_agent(concat!("hourbucket/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent())
    }
}

fn items(key: &'static str, path: &Path) -> Result<Vec<PemItem<'static>>, ClientError> {
    let pem = std::fs::read(path).map_err(|error| ClientError::File {
        key,
        path: path.to_owned(),
        error,
    })?;
    Ok(parse_pem(&pem).filter_map(Result::ok).collect())
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<Certificate<'static>>, ClientError> {
    let certificate = |item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    };
    let found: Vec<_> = items(key, path)?
        .into_iter()
        .filter_map(certificate)
        .collect();
    let path = path.to_owned();
    let what = "certificate";
    match found.is_empty() {
        true => Err(ClientError::Pem { key, path, what }),
        false => Ok(found),
    }
}

fn private_key(key: &'static str, path: &Path) -> Result<PrivateKey<'static>, ClientError> {
    let private = |item| match item {
        PemItem::PrivateKey(private) => Some(private),
        _ => None,
    };
    let found = items(key, path)?.into_iter().find_map(private);
    let path = path.to_owned();
    let what = "private key";
    found.ok_or(ClientError::Pem { key, path, what })
}
