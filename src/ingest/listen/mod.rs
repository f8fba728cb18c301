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
//! device ─codec─> connection ─Incoming─> gatherer ─parcel─> submit task ─> Intake ─> … durable
//!                   │  inflight: in order                                        │
//! device <──PUBACK──┴────────── Word ─────── gatherer <──── the parcel's Ack ────┘
//! ```
//!
//! - Here: the port, its certificates, who may connect, and one task for each connection.
//! - `connect` is CONNECT and its answer, `clients` who is connected, `connection` the rest of a connection's life,
//!   `inflight` what waits for its acknowledgement, `codec` the packets of MQTT 3.1.1 and 5.
//! - `gather` brings the messages of many connections together.
//!
//! What a device can do: publish with QoS 0 and 1. With MQTT 5 it is told so (Maximum QoS 1), and one that sends QoS 2 all
//! the same is disconnected (0x9B). MQTT 3.1.1 cannot tell, so there QoS 2 is served: PUBREC when the message is safe,
//! PUBCOMP to every PUBREL; a message that comes again on another connection is stored once like any duplicate.
//! Subscriptions are refused (SUBACK 0x80, 0x87). The retain flag and wills are of no meaning, since there is no
//! subscriber: both are accepted, and a will is never published; that a device has gone quiet is seen in its readings.
//! Sessions are not kept (session present is 0; MQTT 5 is told a session expiry of 0): a device that publishes has no need
//! of one, it sends again what was not acknowledged. Topic aliases are not offered.
//!
//! A topic that no `[[listen.mqtt.topics]]` wants: the message is not taken and counted (`no_subscription`), and a line in
//! the log names the topic now and then. QoS 1 is answered by 0x10 with MQTT 5 and by a plain PUBACK with 3.1.1, which has
//! no other answer that would keep the device from sending it for ever.
//!
//! The same client (token and client id) a second time: the first connection is ended (0x8E), its messages that are on
//! their way are stored; those that were not acknowledged come again from the device, and are stored once where they have
//! a time of their own.
//!
//! Limits: connections (one more is closed), time for TLS and CONNECT, silence (one and a half keep-alives), bytes of a
//! packet and a topic, messages in flight a connection (receive maximum), bytes that wait in all (`BYTES_MAX`), the
//! gatherers' queues. A connection that is not read because of these is not cut off for its silence meanwhile.
//!
//! Not delivered (the next stage has failed or is closing): what came before is acknowledged, then the connection ends.
//!
//! Shutdown: after `stop` nothing more is read, what was taken is acknowledged when it is safe, then DISCONNECT (0x8B).

mod clients;
mod codec;
mod connect;
mod connection;
mod gather;
mod inflight;
mod port;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::task::TaskTracker;

use self::clients::Clients;
use self::gather::{Gatherer, Incoming};
pub use self::port::ListenError;
use self::port::{Gatherers, Port};
use super::Env;
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
/// Gatherers; more of them make smaller parcels.
const GATHERERS_MAX: usize = 4;
/// How often a topic that nobody wants is logged.
const LOG_EVERY_MS: u64 = 60_000;

/// What all connections share.
struct Shared {
    settings: ListenMqtt,
    env: Env,
    tokens: Live<Option<Tokens>>,
    clients: Clients,
    /// [`BYTES_MAX`].
    bytes: Arc<Semaphore>,
    /// Those of which a topic that nobody wants was last logged.
    logged_ms: AtomicU64,
}

impl Shared {
    fn is_wanted(&self, topic: &str) -> bool {
        self.settings.topics.iter().any(|route| filter_matches(&route.filter, topic))
    }

    /// A topic that nobody wants, or one that is too long: now and then a line.
    fn unwanted(&self, topic: &str, reason: &'static str) {
        let (now, last) = (self.env.clock.now().mono_ms.max(1), self.logged_ms.load(Ordering::Relaxed));
        let is_time = last == 0 || now.saturating_sub(last) >= LOG_EVERY_MS;
        let swapped = || self.logged_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_time && swapped() {
            let topic: String = topic.chars().take(200).collect();
            tracing::warn!(topic, reason, "a device sends what no [[listen.mqtt.topics]] takes; it is not stored");
        }
    }
}

/// The port, open but not served yet.
pub struct MqttListener {
    port: Port,
    shared: Arc<Shared>,
    gatherers: Vec<(mpsc::Sender<Incoming>, Gatherer)>,
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
    pub async fn bind(settings: &ListenMqtt, env: Env) -> Result<MqttListener, ListenError> {
        let tokens = tokens(settings)?;
        let n = std::thread::available_parallelism().map_or(1, usize::from).min(GATHERERS_MAX);
        let gatherers = (0..n).map(|_| {
            let of_all = Settings {
                source: Source::MqttDirect.label(),
                payload_bytes_max: settings.packet_max_bytes as usize,
                status_topic: None,
            };
            let collector = Collector::new(&settings.topics, of_all, env.decoding.now())?;
            let collector = collector.counting_fields(env.intake.fields().cloned());
            Ok(Gatherer::new(collector, env.decoding.clone(), env.clock.clone()))
        });
        let gatherers = gatherers.collect::<Result<Vec<_>, ListenError>>()?;
        let port = Port::open(settings, &env, tokens.is_some()).await?;
        let (setter, tokens) = Live::new(tokens);
        let shared = Shared {
            settings: settings.clone(),
            env,
            tokens,
            clients: Clients::default(),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            logged_ms: AtomicU64::new(0),
        };
        Ok(MqttListener { port, shared: Arc::new(shared), gatherers, tokens: setter })
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
            let MqttListener { port, shared, gatherers, .. } = self;
            let (connections, mut gathering) = (TaskTracker::new(), JoinSet::new());
            let gatherers = gatherers.into_iter().map(|(tx, gatherer)| {
                gathering.spawn(gatherer.run(shared.env.intake.clone()));
                tx
            });
            let gatherers: Gatherers = gatherers.collect();
            let drained = shared.env.drained.clone();
            // It ends with `stop`; then only the connections hold the gatherers, and those end when the last one has.
            let served = async {
                port.serve(shared, gatherers, &connections).await;
                connections.close();
                connections.wait().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = served => {}
                () = ended(&mut gathering) => {}
                () = drained.cancelled() => {}
            }
            tracing::info!("MQTT of devices stopped");
        })
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
