//! The network between the service and a real MongoDB, or another instance: a proxy on loopback that
//! delays data by time and by size, stops one direction, withholds the answers to certain commands, and
//! cuts connections.
//!
//! Each direction of a connection has a queue, and each chunk is written when it is due. So a delay
//! adds to the round trip and does not reduce the throughput, as on a real line; a size limit
//! reduces the throughput too.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Size of one read, and the maximum number of chunks in flight in one direction of a connection:
/// 64 MiB.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_MAX: usize = 1024;

/// A direction of every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// The current state of the line.
#[derive(Debug, Clone, Default)]
struct Line {
    /// For each direction.
    delay: Duration,
    /// For each direction of each connection.
    per_byte: Duration,
    stopped: Option<Direction>,
    /// Answers are withheld on connections that have sent these bytes; `generation` numbers the
    /// orders from 1.
    withheld: Option<Vec<u8>>,
    generation: u64,
}

/// A running proxy; it ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    line: watch::Sender<Line>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    runtime: Option<Runtime>,
}

impl Proxy {
    /// Starts a proxy before the MongoDB on `port`, without any delay.
    pub fn start(port: u16) -> Proxy {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener
            .set_nonblocking(true)
            .expect("a listener for tokio");
        let address = listener.local_addr().expect("its address");
        let (line, settings) = watch::channel(Line::default());
        let connections: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let open = connections.clone();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((client, _)) = listener.accept().await {
                let connection = tokio::spawn(carry(client, port, settings.clone()));
                let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
                open.retain(|connection| !connection.is_finished());
                open.push(connection.abort_handle());
            }
        });
        Proxy {
            address,
            line,
            connections,
            runtime: Some(runtime),
        }
    }

    /// The URI for a client. Without the name of the replica set: the driver would connect directly
    /// to the member.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.address)
    }

    /// The URL for a client of HTTP.
    pub fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Delays each direction by half of `round_trip`.
    pub fn round_trip(&self, round_trip: Duration) {
        self.line.send_modify(|line| line.delay = round_trip / 2);
    }

    /// Limits each direction of each connection to this many bytes per second.
    pub fn bytes_per_second(&self, bytes: u32) {
        self.line
            .send_modify(|line| line.per_byte = Duration::from_secs(1) / bytes);
    }

    /// Stops one direction of all connections, also of new ones; `None` starts it again. Nothing is
    /// lost.
    pub fn stop(&self, direction: Option<Direction>) {
        self.line.send_modify(|line| line.stopped = direction);
    }

    /// From now on, a connection that sends these bytes to the server no longer gets an answer; the
    /// server receives everything. (The bytes must be within one command, such as a sensor id or
    /// the name of a collection.)
    pub fn withhold_answers_to(&self, bytes: &[u8]) {
        self.line.send_modify(|line| {
            line.withheld = Some(bytes.to_vec());
            line.generation += 1;
        });
    }

    /// Lets all answers pass again, also the withheld ones.
    pub fn answer_again(&self) {
        self.line.send_modify(|line| line.withheld = None);
    }

    /// Cuts all connections; new ones are accepted.
    pub fn cut(&self) {
        let mut open = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Forwards one connection until either side closes.
async fn carry(client: TcpStream, port: u16, line: watch::Receiver<Line>) {
    // If the server refuses the connection, the proxy closes its side.
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a TCP connection");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The last order of `withhold_answers_to` that applies to this connection.
    let marked = AtomicU64::new(0);
    tokio::select! {
        () = pump(Direction::ToServer, from_client, to_server, line.clone(), &marked) => {}
        () = pump(Direction::ToClient, from_server, to_client, line.clone(), &marked) => {}
    }
}

async fn pump(
    direction: Direction,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut line: watch::Receiver<Line>,
    marked: &AtomicU64,
) {
    let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let settings = line.clone();
    let reading = async move {
        let mut piece = vec![0; PIECE_BYTES];
        let mut end = Vec::new();
        let mut free_at = Instant::now();
        while let Ok(n @ 1..) = from.read(&mut piece).await {
            let line = settings.borrow().clone();
            if let (Direction::ToServer, Some(withheld)) = (direction, &line.withheld) {
                end.extend_from_slice(&piece[..n]);
                if end.windows(withheld.len()).any(|bytes| bytes == withheld) {
                    marked.store(line.generation, Ordering::Relaxed);
                }
                // Long enough for bytes that begin in this chunk and end in the next.
                end.drain(..end.len().saturating_sub(withheld.len()));
            }
            free_at = free_at.max(Instant::now()) + line.per_byte * n as u32;
            if queue
                .send((free_at + line.delay, piece[..n].to_vec()))
                .await
                .is_err()
            {
                break;
            }
        }
    };
    let writing = async {
        while let Some((at, piece)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            let withheld = |line: &Line| {
                let marked =
                    marked.load(Ordering::Relaxed) == line.generation && line.withheld.is_some();
                line.stopped == Some(direction) || (marked && direction == Direction::ToClient)
            };
            if line.wait_for(|line| !withheld(line)).await.is_err()
                || to.write_all(&piece).await.is_err()
            {
                break;
            }
        }
    };
    tokio::join!(reading, writing);
}
