//! A port on its own socket, a client, and the receiving side of admission.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::http::{HttpError, HttpIngest, Renewal};
use journal::RequestKeys;
use journal::admission::{Admission, AdmissionControl, IngestReceiver, admission_channel};
use model::ack::Ack;
use model::batch::BYTES_MAX;
use model::{Checks, Clock, Reading, Span, SystemClock};
use net::access::GrantDefaults;
use net::http::PortSetter;

/// No test takes this long. A test that hangs fails with its name instead.
pub(super) const LONG: Duration = Duration::from_secs(20);

pub(super) fn http() -> config::Http {
    config::Http {
        enabled: true,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        tokens_file: None,
        allow_anonymous: false,
        body_max_bytes: 1 << 20,
        times: config::HttpTimes {
            header_timeout: LONG,
            keep_alive: LONG,
            write_timeout: LONG,
        },
        bodies_max_bytes: 128 << 20,
        connections: config::Config::default().http.connections,
        proxies: config::Config::default().http.proxies,
        body_timeout: LONG,
        body_grace: LONG,
        body_rate_min: 256,
        concurrency_max: 16,
        queue_timeout: LONG,
        ack_timeout: LONG,
        tls: config::Config::default().http.tls,
    }
}

pub(super) fn decoding() -> config::Decoding {
    let mut config = config::Config::default();
    config.limits.past = Duration::from_secs(20 * 365 * 86_400);
    config.decoding()
}

/// The port and the receiving end of admission.
pub(super) struct Rig {
    pub(super) addr: SocketAddr,
    pub(super) admission_control: AdmissionControl,
    pub(super) admission: Admission,
    pub(super) ingest_batches: IngestReceiver,
    pub(super) limits: PortSetter,
    pub(super) renewal: Renewal,
    pub(super) shutdown: CancellationToken,
    pub(super) closed: CancellationToken,
    pub(super) task: JoinHandle<std::io::Result<()>>,
}

/// Number of ingest batches that may wait at admission.
pub(super) const BATCHES_MAX: usize = 2;

/// What is around the port.
struct Edges {
    clock: Arc<dyn Clock>,
    /// See [`Admission::limiting_readings`].
    readings_bytes_max: usize,
    keys: RequestKeys,
}

impl Default for Edges {
    fn default() -> Edges {
        Edges {
            clock: Arc::new(SystemClock::new()),
            readings_bytes_max: BYTES_MAX,
            keys: RequestKeys::default(),
        }
    }
}

impl Rig {
    pub(super) async fn new(change: impl FnOnce(&mut config::Http)) -> Rig {
        Rig::try_new(change).await.unwrap()
    }

    /// With these settings of the decoders.
    pub(super) async fn with(
        change: impl FnOnce(&mut config::Http),
        decoding: config::Decoding,
    ) -> Rig {
        Rig::open(change, decoding, Edges::default()).await.unwrap()
    }

    /// With this clock.
    pub(super) async fn with_clock(
        change: impl FnOnce(&mut config::Http),
        clock: Arc<dyn Clock>,
    ) -> Rig {
        let edges = Edges {
            clock,
            ..Edges::default()
        };
        Rig::open(change, decoding(), edges).await.unwrap()
    }

    /// With these keys of requests.
    pub(super) async fn remembering(keys: RequestKeys) -> Rig {
        let edges = Edges {
            keys,
            ..Edges::default()
        };
        Rig::open(|_| {}, decoding(), edges).await.unwrap()
    }

    /// With a next stage that accepts at most this many bytes of readings together.
    pub(super) async fn limiting_readings(readings_bytes_max: usize) -> Rig {
        let edges = Edges {
            readings_bytes_max,
            ..Edges::default()
        };
        Rig::open(|_| {}, decoding(), edges).await.unwrap()
    }

    pub(super) async fn try_new(change: impl FnOnce(&mut config::Http)) -> Result<Rig, HttpError> {
        Rig::open(change, decoding(), Edges::default()).await
    }

    async fn open(
        change: impl FnOnce(&mut config::Http),
        decoding: config::Decoding,
        edges: Edges,
    ) -> Result<Rig, HttpError> {
        let mut cfg = http();
        change(&mut cfg);
        let admission_control = AdmissionControl::default();
        let (admission, ingest_batches) =
            admission_channel(BATCHES_MAX, 64 << 20, admission_control.clone());
        let Edges {
            clock,
            readings_bytes_max,
            keys,
        } = edges;
        let admission = admission
            .checking(Checks::new(Span::HOUR))
            .limiting_readings(readings_bytes_max)
            .remembering(keys);
        let grants = GrantDefaults {
            quota: Some(config::Config::default().quota),
            ..GrantDefaults::unlimited()
        };
        let on_tls: net::tls::OnTls = Arc::new(|_| {});
        let ingest = HttpIngest::bind(
            &cfg,
            Arc::new(decoding),
            admission.clone(),
            clock,
            &on_tls,
            &grants,
        )
        .await?;
        let addr = ingest.local_addr();
        let limits = ingest.port_setter.clone();
        let renewal = ingest.renewal();
        let shutdown = CancellationToken::new();
        let closed = CancellationToken::new();
        let task = tokio::spawn(ingest.serve(shutdown.clone(), closed.clone(), LONG));
        Ok(Rig {
            addr,
            admission_control,
            admission,
            ingest_batches,
            limits,
            renewal,
            shutdown,
            closed,
            task,
        })
    }

    /// The next ingest batch.
    pub(super) async fn ingest_batch(&mut self) -> (Vec<Reading>, Ack) {
        let ingest_batch = tokio::time::timeout(LONG, self.ingest_batches.recv())
            .await
            .expect("no ingest batch arrived")
            .unwrap();
        assert!(ingest_batch.dead.is_empty());
        let (batch, _, ack) = ingest_batch.into_parts();
        (batch.to_readings(), ack)
    }

    pub(super) fn nothing_came(&mut self) {
        assert!(
            self.ingest_batches.try_recv().is_err(),
            "an ingest batch passed admission"
        );
    }

    /// Sends a request, delivers the next ingest batch, and returns the answer.
    pub(super) async fn delivered(&mut self, request: Request) -> (Answer, Vec<Reading>) {
        let addr = self.addr;
        let answer = tokio::spawn(async move { request.send(addr).await });
        let (readings, ack) = self.ingest_batch().await;
        ack.delivered();
        (answer.await.unwrap(), readings)
    }
}

/// A request, byte by byte.
#[derive(Debug, Clone)]
pub(super) struct Request {
    method: &'static str,
    target: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

pub(super) fn post(body: impl Into<Vec<u8>>) -> Request {
    Request {
        method: "POST",
        target: "/v1/readings".into(),
        headers: vec![],
        body: body.into(),
    }
}

impl Request {
    pub(super) fn method(self, method: &'static str) -> Request {
        Request { method, ..self }
    }

    pub(super) fn to(self, target: &str) -> Request {
        Request {
            target: target.into(),
            ..self
        }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Request {
        self.headers.push((name, value.into()));
        self
    }

    /// The head, without Content-Length and the empty line. The host is this machine, unless a
    /// header gives it.
    pub(super) fn head(&self) -> String {
        let headers: String = self
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let has_host = self.headers.iter().any(|(name, _)| *name == "host");
        let host = if has_host { "" } else { "host: localhost\r\n" };
        format!(
            "{} {} HTTP/1.1\r\n{host}{headers}",
            self.method, self.target
        )
    }

    /// Sends it with Content-Length, on a new connection.
    pub(super) async fn send(&self, addr: SocketAddr) -> Answer {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let head = format!("{}content-length: {}\r\n\r\n", self.head(), self.body.len());
        stream
            .write_all(&[head.as_bytes(), &self.body].concat())
            .await
            .unwrap();
        let answer = match self.method {
            // Its answer has the length of a body, and none.
            "HEAD" => Answer::read_head(&mut stream).await,
            _ => Answer::read(&mut stream).await,
        };
        answer.expect("no answer")
    }

    /// Sends it in chunks, without Content-Length.
    pub(super) async fn send_chunked(&self, addr: SocketAddr) -> Answer {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream
            .write_all(format!("{}transfer-encoding: chunked\r\n\r\n", self.head()).as_bytes())
            .await
            .unwrap();
        for chunk in self.body.chunks(50_000) {
            let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
            stream.write_all(&framed).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        Answer::read(&mut stream).await.expect("no answer")
    }
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// The body as text, lossy.
    pub(super) text: String,
}

impl Answer {
    /// The next answer on the connection; `None` if it ended.
    pub(super) async fn read(stream: &mut TcpStream) -> Option<Answer> {
        tokio::time::timeout(LONG, Answer::read_patiently(stream))
            .await
            .expect("no answer in time")
    }

    async fn read_patiently(stream: &mut TcpStream) -> Option<Answer> {
        let mut answer = Answer::read_head(stream).await?;
        let length = answer.header("content-length").unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        answer.text = String::from_utf8_lossy(&body).into_owned();
        answer.body = body;
        Some(answer)
    }

    async fn read_head(stream: &mut TcpStream) -> Option<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
        let header = |line: &str| {
            line.split_once(": ")
                .map(|(n, v)| (n.to_lowercase(), v.to_owned()))
        };
        let headers = lines.filter_map(header).collect();
        Some(Answer {
            status,
            headers,
            body: vec![],
            text: String::new(),
        })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e} in {:?}", self.text))
    }

    /// `error.reason`; asserts that `error.detail` is there.
    pub(super) fn reason(&self) -> String {
        let json = self.json();
        assert!(
            json["error"]["detail"]
                .as_str()
                .is_some_and(|d| d.len() > 10),
            "{json}"
        );
        json["error"]["reason"].as_str().unwrap().to_owned()
    }

    /// Seconds of Retry-After.
    pub(super) fn retry_after_s(&self) -> u64 {
        self.header("retry-after")
            .expect("no Retry-After")
            .parse()
            .unwrap()
    }
}
