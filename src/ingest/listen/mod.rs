//! MQTT without a broker: devices connect to hourbucket itself, and the PUBACK that a device gets means that its reading is
//! durable.
//!
//! Constraints: a PUBACK only after the message is safe (`ingest.ack`), in order of receipt; nothing is dropped, a device
//! that sends faster than its readings can be taken is read more slowly; ten thousand devices that send a reading now and
//! then cost little memory and few journal entries.
//!
//! The way of a message:
//!
//! ```text
//! device ─codec─> connection ─Incoming─> gatherer ─ingest batch─> submit task ─> Admission ─> … durable
//!                   │  inflight: in order                                        │
//! device <──PUBACK──┴────── AckResult ───── gatherer <──── the ingest batch's Ack ────┘
//! ```
//!
//! - Here: the port, its certificates, who may connect, and one task for each connection.
//! - `connect` is CONNECT and its answer, `clients` who is connected, `connection` the rest of a connection's life,
//!   `inflight` what waits for its acknowledgement, `exchanges` the ids of QoS 2.
//! - `frames` cuts the bytes into packets in bounded memory, `codec` knows the packets of MQTT 3.1.1 and 5.
//! - `gather` brings the messages of many connections together. `logs` is what is said of devices.
//!
//! What a device can do: publish with QoS 0, 1 and 2 (PUBREC when the message is safe, PUBCOMP to PUBREL). Exchanges of
//! QoS 2 are known within a connection; a message that comes again on another is stored once like any duplicate.
//! Subscriptions are refused (SUBACK 0x80, 0x87). The retain flag and wills are of no meaning, since there is no
//! subscriber: both are accepted, and a will is never published; that a device has gone quiet is seen in its readings.
//! Sessions are not kept (session present is 0; MQTT 5 is told a session expiry of 0): a device that publishes has no need
//! of one, it sends again what was not acknowledged. Topic aliases are not offered.
//!
//! What cannot be a reading becomes a dead letter before it is acknowledged, like everything on its way through the
//! gatherer: a topic that no `[[listen.mqtt.topics]]` wants (`no_subscription`) or that is too long, and a PUBLISH above
//! `packet_max_bytes`, which is skipped as it comes, with the first bytes of its payload. So no message is lost after its
//! PUBACK, and none can keep those behind it from being sent. A line in the log names the device.
//!
//! The same client (token and client id) a second time: the first connection is ended (0x8E), its messages that are on
//! their way are stored; those that were not acknowledged come again from the device, and are stored once where they have
//! a time of their own.
//!
//! Limits: connections (one more is closed), time for TLS and CONNECT, silence (one and a half keep-alives), bytes of a
//! packet and a topic, messages in flight a connection (receive maximum: MQTT 5 ends the connection of a device that
//! exceeds it with 0x93, MQTT 3.1.1 is read no further), the gatherers' queues, and the bytes of all messages:
//!
//! - up to `frames::SMALL_BYTES` of a packet are a connection's own;
//! - larger packets share `LARGE_BYTES_MAX` while they are gathered, and have a time to be there, so that a few slow
//!   devices cannot hold it for ever (small packets never wait for it);
//! - messages that wait for a gatherer share `BYTES_MAX`, by what they take in memory.
//!
//! A connection that is not read because of these is not cut off for its silence meanwhile.
//!
//! A connection that we end: MQTT 5 is told why, with a Reason String where the device takes one; a line in the log names
//! the device (a few a minute, then their number), and it is counted by reason.
//!
//! Not delivered (the next stage has failed or is closing): what came before is acknowledged, then the connection ends.
//!
//! Shutdown: after `stop` nothing more is read, what was taken is acknowledged when it is safe, then DISCONNECT (0x8B).

mod batcher;
mod clients;
mod codec;
mod connect;
mod connection;
mod exchanges;
mod frames;
mod inflight;
mod log_limit;
mod port;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::task::TaskTracker;

use self::batcher::{Batcher, Incoming};
use self::clients::Clients;
use self::log_limit::LimitedLog;
pub use self::port::ListenError;
use self::port::{Batchers, Port};
use super::IngestDeps;
use super::mqtt::collect::{Collector, Settings};
use super::tls::{Certificates, Files};
use super::tokens::{Tokens, TokensError};
use crate::config::{ListenMqtt, Live, Setter};
use crate::decode::topic::filter_matches;
use crate::telemetry::metrics::Source;

/// The setting that names the file of tokens.
const TOKENS_KEY: &str = "listen.mqtt.tokens_file";
/// Bytes of messages that may wait for the gatherers, over all connections.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of large packets that are being gathered or have no room yet, over all connections. One that is larger than this
/// passes alone.
const LARGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Batchers; more of them make smaller ingest batches.
const GATHERERS_MAX: usize = 4;

/// What all connections share.
struct Shared {
    settings: ListenMqtt,
    deps: IngestDeps,
    tokens: Live<Option<Tokens>>,
    clients: Clients,
    /// [`BYTES_MAX`].
    bytes: Arc<Semaphore>,
    /// [`LARGE_BYTES_MAX`].
    large: Arc<Semaphore>,
    /// The names of the user properties that some topic makes tags of.
    user_properties: Arc<[String]>,
    logs: LimitedLog,
}

impl Shared {
    fn new(settings: &ListenMqtt, deps: IngestDeps, tokens: Live<Option<Tokens>>) -> Shared {
        let mut names: Vec<String> =
            settings.topics.iter().flat_map(|topic| topic.user_property_tags.clone()).collect();
        names.sort_unstable();
        names.dedup();
        Shared {
            settings: settings.clone(),
            logs: LimitedLog::new(deps.clock.clone()),
            deps,
            tokens,
            clients: Clients::default(),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            large: Arc::new(Semaphore::new(LARGE_BYTES_MAX)),
            user_properties: names.into(),
        }
    }

    fn is_wanted(&self, topic: &str) -> bool {
        self.settings.topics.iter().any(|route| filter_matches(&route.filter, topic))
    }
}

/// The port, open but not served yet.
pub struct MqttListener {
    port: Port,
    shared: Arc<Shared>,
    batchers: Vec<(mpsc::Sender<Incoming>, Batcher)>,
    tokens: Setter<Option<Tokens>>,
}

/// Where tokens and certificates of a port that is served are replaced.
pub(crate) struct Renewal {
    pub(crate) tokens: Setter<Option<Tokens>>,
    pub(crate) certificates: Option<Certificates>,
}

impl MqttListener {
    /// Reads tokens and certificates and opens the port. Connections wait in the kernel until [`MqttListener::spawn`].
    ///
    /// # Errors
    /// The tokens, the certificates, a topic template or the address cannot be used; nothing is open then.
    pub async fn bind(settings: &ListenMqtt, deps: IngestDeps) -> Result<MqttListener, ListenError> {
        let tokens = tokens(settings)?;
        let n = std::thread::available_parallelism().map_or(1, usize::from).min(GATHERERS_MAX);
        let batchers = (0..n).map(|_| {
            let of_all = Settings {
                source: Source::MqttDirect.label(),
                payload_bytes_max: settings.packet_max_bytes as usize,
                status_topic: None,
            };
            let collector = Collector::new(&settings.topics, of_all, deps.decoding.now())?;
            let collector = collector.counting_fields(deps.admission.fields().cloned());
            Ok(Batcher::new(collector, deps.decoding.clone(), deps.clock.clone()))
        });
        let batchers = batchers.collect::<Result<Vec<_>, ListenError>>()?;
        let port = Port::open(settings, &deps, tokens.is_some()).await?;
        let (setter, tokens) = Live::new(tokens);
        let shared = Shared::new(settings, deps, tokens);
        Ok(MqttListener { port, shared: Arc::new(shared), batchers, tokens: setter })
    }

    /// The address in use; differs from the setting where that says port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    pub(crate) fn renewal(&self) -> Renewal {
        Renewal { tokens: self.tokens.clone(), certificates: self.port.certificates().cloned() }
    }

    /// Serves until `stop`, then until what was taken is acknowledged, or until `drained`. A gatherer that panics makes this
    /// task panic.
    pub fn spawn(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            let MqttListener { port, shared, batchers, .. } = self;
            let (connections, mut gathering) = (TaskTracker::new(), JoinSet::new());
            let batchers = batchers.into_iter().map(|(tx, batcher)| {
                gathering.spawn(batcher.run(shared.deps.admission.clone()));
                tx
            });
            let batchers: Batchers = batchers.collect();
            let drained = shared.deps.drained.clone();
            let logging = shared.clone();
            // It ends with `stop`; then only the connections hold the gatherers, and those end when the last one has.
            let served = async {
                port.serve(shared, batchers, &connections).await;
                connections.close();
                connections.wait().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = served => {}
                () = ended(&mut gathering) => {}
                () = drained.cancelled() => {}
                () = tell_what_was_left_out(&logging) => {}
            }
            logging.logs.close();
            tracing::info!("MQTT of devices stopped");
        })
    }
}

/// Says from time to time how many lines the log was spared; never ends.
async fn tell_what_was_left_out(shared: &Shared) {
    loop {
        tokio::time::sleep(log_limit::LOG_EVERY / 4).await;
        shared.logs.end();
    }
}

/// Waits for all of them.
async fn ended(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// The tokens of the port, where there are any.
///
/// # Errors
/// What is wrong with their file.
pub(crate) fn tokens(settings: &ListenMqtt) -> Result<Option<Tokens>, TokensError> {
    settings.tokens_file.as_deref().map(|path| Tokens::load(TOKENS_KEY, path)).transpose()
}

/// Whether tokens and certificates can be used; what they are, in a few words. `now_s`: seconds since 1970.
///
/// # Errors
/// What is wrong with them.
pub fn check(settings: &ListenMqtt, now_s: i64) -> Result<String, String> {
    let tokens = tokens(settings).map_err(|error| error.to_string())?;
    let tokens = tokens.map_or_else(|| "no tokens".to_owned(), |tokens| format!("{} tokens", tokens.len()));
    let tls = Files::of_devices(settings).map_or_else(|| Ok("no TLS".to_owned()), |files| files.check(now_s))?;
    Ok(format!("{tokens}, {tls}"))
}
