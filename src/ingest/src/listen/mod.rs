//! MQTT without a broker: devices connect to hourbucket itself, and the PUBACK that a device
//! receives means that its reading is durable.
//!
//! Constraints:
//! - A PUBACK is sent only after the message is safe (`ingest.ack`), in order of receipt.
//! - Nothing is dropped: a device that sends faster than its readings can be accepted is read more
//!   slowly.
//! - Ten thousand devices that send a reading now and then cost little memory and few journal
//!   entries.
//!
//! The life of a message:
//!
//! ```text
//! device ─codec─> connection ─Incoming─> batcher ─ingest batch─> submit task ─> Admission ─> … durable
//!                   │  inflight: in order                                       │
//! device <──PUBACK──┴────── AckResult ────── batcher <──── the ingest batch's Ack ───┘
//! ```
//!
//! - This module: the port, its certificates, access control, and one task per connection.
//! - `connect` handles CONNECT and its answer, `authorization` tracks the rights of the device
//!   until its token ends, `clients` tracks who is connected, `connection` is the rest of a
//!   connection's life, `inflight` holds messages that wait for their acknowledgement, `exchanges`
//!   the ids of QoS 2.
//! - `frames` splits the bytes into packets in bounded memory, `codec` parses the packets of MQTT
//!   3.1.1 and 5, `strict` checks rules that the parsers do not.
//! - `batcher` combines the messages of many connections. `log_limit` writes rate-limited log lines
//!   about devices.
//!
//! What a device can do: publish with QoS 0, 1 and 2 (PUBREC when the message is safe, PUBCOMP
//! after PUBREL). Exchanges of QoS 2 are tracked within a connection; a message that is sent again
//! on another connection is stored once like any duplicate. Subscriptions are refused (SUBACK 0x80,
//! 0x87). Retain flag and wills have no effect, because there is no subscriber: both are accepted,
//! and a will is never published. A device that has stopped sending is noticed by its missing
//! readings. Sessions are not kept (session present is 0; MQTT 5 gets a session expiry of 0). A
//! device that only publishes needs none: it sends unacknowledged messages again. Topic aliases are
//! not offered.
//!
//! A message that cannot become a reading becomes a dead letter before it is acknowledged: one that
//! cannot be decoded, one whose topic matches no `[[listen.mqtt.topics]]` (`no_subscription`) or is
//! too long, and a PUBLISH above `packet_max_bytes`, which is skipped as it arrives and kept with
//! the first bytes of its payload. So no message is lost after its PUBACK, and none can block the
//! messages after it. A log line names the device.
//!
//! The same client (token and client id) a second time: the first connection is closed (0x8E), and
//! its messages in flight are stored. The device sends unacknowledged ones again; they are stored
//! once if they have their own timestamp.
//!
//! Limits: connections, in total and per address (one more is closed, [`net::connections`]), time
//! for TLS and CONNECT, silence (one and a half keep-alives), size of a packet and a topic,
//! messages in flight per connection (receive maximum: MQTT 5 closes the connection of a device
//! that exceeds it with 0x93, MQTT 3.1.1 is read no further), the batchers' queues, and the bytes
//! of all messages:
//!
//! - up to `frames::SMALL_BYTES` of a packet belong to the connection;
//! - larger packets share `LARGE_BYTES_MAX` while they arrive, and have a time limit, so that a few
//!   slow devices cannot hold it forever (small packets never wait for it); one sender with many
//!   gets at most half, so that the others have room meanwhile (`large`);
//! - messages that wait for a batcher share `BYTES_MAX`, by their size in memory.
//!
//! A connection that is not read because of these limits is not closed for its silence meanwhile.
//!
//! When this side closes a connection, MQTT 5 gets the reason, with a Reason String if the device
//! accepts one. A log line names the device (a few lines a minute, then the number of suppressed
//! lines), and the close is counted by reason.
//!
//! Not delivered (the next stage has failed or is closing): the messages before it are
//! acknowledged, then the connection is closed.
//!
//! Shutdown: after `stop` nothing more is read, accepted messages are acknowledged when they are
//! safe, then DISCONNECT (0x8B) is sent.

mod authorization;
mod batcher;
mod clients;
mod close_reason;
pub mod codec;
mod connect;
mod connection;
mod exchanges;
pub mod frames;
mod inflight;
mod large;
mod log_limit;
mod port;
#[cfg(test)]
mod port_tests;
mod shared;
mod strict;
#[cfg(test)]
mod tests;

pub use self::port::ListenError;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::task::TaskTracker;

use self::batcher::{Batcher, Incoming};
use self::connect::ConnectError;
use self::port::{Batchers, Port};
use self::shared::{NAME, Shared};
use super::IngestDeps;
use super::mqtt::collect::{Collector, Settings};
use net::connections::OpenConnections;
// This and `config` are for `strict`, which the fuzzer compiles without the rest of ingest.
use super::packet_fields;
use config::{ListenMqtt, Live, Setter};
use journal::commit_delay::CommitDelay;
use net::access::{Credentials, GrantDefaults, JwtFault, TokensError};
use net::tls::{CertificateError, Certificates, Files};
use telemetry::log_limit::LOG_EVERY;
use telemetry::metrics::{self, Source};

/// The setting that names the file of tokens.
const TOKENS_KEY: &str = "listen.mqtt.tokens_file";
/// Maximum number of batchers; more of them make smaller ingest batches.
const BATCHERS_MAX: usize = 4;

/// Starts the series of metrics at zero whose labels are values of this crate.
pub fn start_series() {
    for fault in [
        ConnectError::NoCredentials,
        ConnectError::WrongCredentials,
        ConnectError::Jwt(JwtFault::Malformed),
        ConnectError::NoIdentity,
        ConnectError::ForeignClientId,
        ConnectError::Expired,
        ConnectError::NotYetValid,
        ConnectError::NotAllowed,
    ] {
        metrics::auth_failures_total(NAME, fault, 0);
    }
}

/// The port: open, but not served yet.
pub struct MqttListener {
    port: Port,
    shared: Arc<Shared>,
    batchers: Vec<(mpsc::Sender<Incoming>, Batcher)>,
    credentials: Setter<Option<Credentials>>,
}

/// Replaces credentials and certificates of a port that is being served.
pub struct Renewal {
    /// The value is `None` if no credentials are configured.
    pub credentials: Setter<Option<Credentials>>,
    /// Has the limits of connections and the trusted proxies; new ones apply from the next
    /// connection on.
    pub connections: OpenConnections,
    /// `None` without TLS.
    pub certificates: Option<Certificates>,
}

impl MqttListener {
    /// Reads tokens and certificates and opens the port. Connections wait in the kernel until
    /// [`MqttListener::spawn`].
    ///
    /// # Errors
    /// The tokens, the certificates, a topic template or the address cannot be used; nothing is
    /// open then.
    pub async fn bind(
        settings: &ListenMqtt,
        deps: IngestDeps,
    ) -> Result<MqttListener, ListenError> {
        let credentials = credentials(settings, &deps.grants)?;
        let n = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(BATCHERS_MAX);
        let batchers = (0..n).map(|_| {
            let of_all = Settings {
                source: Source::MqttDirect.as_str(),
                payload_bytes_max: settings.packet_max_bytes as usize,
                status_topic: None,
            };
            let collector = Collector::new(&settings.topics, of_all, deps.decoding.now())?;
            let collector = collector
                .checking(deps.admission.checks())
                .limiting_readings(deps.admission.readings_bytes_max());
            Ok(Batcher::new(
                collector,
                deps.decoding.clone(),
                deps.clock.clone(),
                CommitDelay::new(deps.commit_delay),
            ))
        });
        let batchers = batchers.collect::<Result<Vec<_>, ListenError>>()?;
        let port = Port::open(settings, &deps, credentials.is_some()).await?;
        let (setter, credentials) = Live::new(credentials);
        let shared = Shared::new(settings, deps, credentials);
        Ok(MqttListener {
            port,
            shared: Arc::new(shared),
            batchers,
            credentials: setter,
        })
    }

    /// The bound address; differs from the setting if the setting has port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Take it before [`MqttListener::spawn`], which consumes the port.
    pub fn renewal(&self) -> Renewal {
        let credentials = self.credentials.clone();
        let connections = self.shared.connections.clone();
        Renewal {
            credentials,
            connections,
            certificates: self.port.certificates().cloned(),
        }
    }

    /// Serves until `stop`, then until all accepted messages are acknowledged, or until `drained`.
    /// If a batcher panics, this task panics.
    pub fn spawn(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            let MqttListener {
                port,
                shared,
                batchers,
                ..
            } = self;
            let connections = TaskTracker::new();
            let mut running = JoinSet::new();
            let batchers = batchers.into_iter().map(|(tx, batcher)| {
                running.spawn(batcher.run(shared.deps.admission.clone()));
                tx
            });
            let batchers: Batchers = batchers.collect();
            let drained = shared.deps.drained.clone();
            let logging = shared.clone();
            // `serve` ends with `stop`. Then only the connections hold the batchers, which end when
            // the last connection has ended.
            let served = async {
                port.serve(shared, batchers, &connections).await;
                connections.close();
                connections.wait().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = served => {}
                () = ended(&mut running) => {}
                () = drained.cancelled() => {}
                () = log_suppressed(&logging) => {}
            }
            logging.logs.close();
            tracing::info!("MQTT listener stopped");
        })
    }
}

/// Logs the number of suppressed log lines from time to time; never ends.
async fn log_suppressed(shared: &Shared) {
    loop {
        tokio::time::sleep(LOG_EVERY / 4).await;
        shared.logs.end();
    }
}

/// Waits for all tasks; passes a panic on.
async fn ended(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Loads the credentials of the port; `None` if none are configured.
///
/// # Errors
/// The tokens file cannot be read or is not valid.
pub fn credentials(
    settings: &ListenMqtt,
    grants: &GrantDefaults,
) -> Result<Option<Credentials>, TokensError> {
    Credentials::load(
        TOKENS_KEY,
        settings.tokens_file.as_deref(),
        settings.is_identity(),
        grants,
    )
}

/// Why the port could not be opened with the files as they are.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The tokens file cannot be read or is not valid.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The files cannot be used, or devices would refuse the chain.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
}

/// Checks tokens and certificates; returns a short summary. `now_s`: seconds since 1970.
///
/// # Errors
/// The tokens file or a certificate cannot be used.
pub fn check(settings: &ListenMqtt, now_s: i64) -> Result<String, CheckError> {
    let tokens = credentials(settings, &GrantDefaults::unlimited())?
        .and_then(|credentials| credentials.tokens());
    let tokens = tokens.map_or_else(|| "no tokens".to_owned(), |n| format!("{n} tokens"));
    let tls = Files::of_devices(settings)
        .map_or_else(|| Ok("no TLS".to_owned()), |files| files.check(now_s))?;
    Ok(format!("{tokens}, {tls}"))
}
