//! One connection to a broker, MQTT 3.1.1 or 5 alike: [`Link`] yields what comes in, [`Sender`] queues what goes out.
//!
//! Every connection has its own pair, made by [`open`] and dropped at its end. rumqttc could reconnect by itself, but its
//! event loop keeps things over a reconnect that would be wrong here: events of the old connection that were not yet
//! read (3.1.1), and requests, PUBACKs among them, that are queued between the error and the next connection. With a new
//! pair there is no way in which a receipt of one connection could be acknowledged on another.
//!
//! The two halves can be used at once: while [`Link::next`] waits, the sender takes acknowledgements. A future of
//! [`Link::next`] must not be dropped before it is ready unless the connection is given up: rumqttc may have taken a
//! PUBACK off its queue and not yet written it.

use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;

use super::files::Credentials;
use super::socket::Handle;
use super::target::{SetupError, Target};
use super::{v4, v5};
use crate::config::{Mqtt, MqttProtocol};

/// What is published of our own state, by hand or as last will.
pub(super) const ONLINE: &str = "online";
pub(super) const OFFLINE: &str = "offline";

/// Requests that may wait for rumqttc. Each receipt is acknowledged once and packet ids have 16 bits, so with a few
/// more for SUBSCRIBE and DISCONNECT it is never full. Memory is taken only as far as it is used.
pub(super) const REQUESTS_MAX: usize = 65_535 + 16;

/// Requests that rumqttc writes, and packets that it reads, before it turns to the other.
pub(super) const REQUEST_BATCH: usize = 1024;
/// The largest that rumqttc takes.
pub(super) const READ_BATCH: usize = 128;

/// How long a connection may take to open, in seconds.
pub(super) const CONNECT_SECONDS: u64 = 10;

/// How long a connection may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What must be sent back for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ingest) enum Receipt {
    /// QoS 1: PUBACK.
    PubAck(u16),
    /// QoS 2, which is never asked for, but a session made by someone else may still hold such messages: PUBREC.
    PubRec(u16),
}

/// A message as it came.
#[derive(Debug, Default)]
pub(in crate::ingest) struct Message {
    /// The topic; the broker should have made sure that it is UTF-8.
    pub(in crate::ingest) topic: Bytes,
    /// The payload.
    pub(in crate::ingest) payload: Bytes,
    /// `None`: QoS 0.
    pub(in crate::ingest) receipt: Option<Receipt>,
    /// It is sent because of a subscription: the broker had it retained.
    pub(in crate::ingest) is_retained: bool,
    /// It may have been sent before.
    pub(in crate::ingest) is_dup: bool,
    /// MQTT 5: the user properties.
    pub(in crate::ingest) properties: Vec<(String, String)>,
    /// Whoever received it has found that it is not to be decoded: it becomes a dead letter.
    pub(in crate::ingest) refused: Option<AdmissionError>,
}

/// Why a message is not decoded.
#[derive(Debug)]
pub(in crate::ingest) struct AdmissionError {
    /// Of [`crate::decode::reasons`].
    pub(in crate::ingest) reason: &'static str,
    /// In words.
    pub(in crate::ingest) detail: String,
    /// Bytes of the payload as it was sent, of which the message may have the begin only.
    pub(in crate::ingest) payload_bytes: usize,
}

/// The broker's answer to one filter of a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Grant {
    /// With this QoS at most.
    Qos(u8),
    /// Refused, and why.
    Refused(String),
}

/// What comes in.
#[derive(Debug)]
pub(super) enum Event {
    /// The connection is open; whether the broker still has the session.
    Connected {
        /// From CONNACK.
        session_present: bool,
    },
    /// A message.
    Message(Message),
    /// SUBACK: an answer to each filter, in the order of the subscriptions.
    Subscribed(Vec<Grant>),
    /// PUBACK: what was published of our own state has arrived.
    Published,
}

/// Why a connection ended, in rumqttc's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// MQTT 3.1.1.
    #[error(transparent)]
    V4(Box<rumqttc_v4::ConnectionError>),
    /// MQTT 5.
    #[error(transparent)]
    V5(Box<rumqttc_v5::ConnectionError>),
}

/// The receiving half. It must be polled all the time: it also sends pings and what the sender queued.
pub(super) enum Link {
    /// MQTT 3.1.1.
    V4(Box<rumqttc_v4::EventLoop>),
    /// MQTT 5.
    V5(Box<rumqttc_v5::EventLoop>),
}

impl Link {
    /// The next event; the first call opens the connection.
    ///
    /// # Errors
    /// The connection is gone, and with it this link.
    pub(super) async fn next(&mut self) -> Result<Event, LinkError> {
        match self {
            Link::V4(events) => v4::next(events).await.map_err(|error| LinkError::V4(Box::new(error))),
            Link::V5(events) => v5::next(events).await.map_err(|error| LinkError::V5(Box::new(error))),
        }
    }
}

enum Client {
    V4(rumqttc_v4::AsyncClient),
    V5(rumqttc_v5::AsyncClient),
}

/// The connection has ended; its [`Link`] says why.
#[derive(Debug, thiserror::Error)]
#[error("the connection has ended")]
pub(super) struct Disconnected;

/// The sending half. Nothing here waits.
pub(super) struct Sender {
    client: Client,
    socket: Handle<TcpStream>,
}

impl Sender {
    /// Acknowledges a message of this connection.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn ack(&self, receipt: Receipt) -> Result<(), Disconnected> {
        match &self.client {
            Client::V4(client) => client.try_manual_ack(v4::ack(receipt)).map_err(|_| Disconnected),
            Client::V5(client) => client.try_manual_ack(v5::ack(receipt)).map_err(|_| Disconnected),
        }
    }

    /// Subscribes to every filter, in one packet.
    ///
    /// # Errors
    /// The connection has ended, or a filter is none (the configuration is checked at the start).
    pub(super) fn subscribe(&self, config: &Mqtt) -> Result<(), Disconnected> {
        match &self.client {
            Client::V4(client) => client.try_subscribe_many(v4::filters(config)).map_err(|_| Disconnected),
            Client::V5(client) => client.try_subscribe_many(v5::filters(config)).map_err(|_| Disconnected),
        }
    }

    /// Publishes our own state, retained.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn publish_status(&self, topic: &str, state: &'static str) -> Result<(), Disconnected> {
        match &self.client {
            Client::V4(client) => {
                let options = rumqttc_v4::PublishOptions::at_least_once().retained();
                client.try_publish(topic, state, options).map_err(|_| Disconnected)
            }
            Client::V5(client) => {
                let options = rumqttc_v5::PublishOptions::at_least_once().retained();
                client.try_publish(topic, state, options).map_err(|_| Disconnected)
            }
        }
    }

    /// Publishes a command, with QoS 0 as Sparkplug B wants it.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn publish_command(&self, topic: String, payload: Vec<u8>) -> Result<(), Disconnected> {
        match &self.client {
            Client::V4(client) => {
                client.try_publish(topic, payload, rumqttc_v4::PublishOptions::at_most_once()).map_err(|_| Disconnected)
            }
            Client::V5(client) => {
                client.try_publish(topic, payload, rumqttc_v5::PublishOptions::at_most_once()).map_err(|_| Disconnected)
            }
        }
    }

    /// Ends the connection in good order: what was acknowledged before goes out, and where there is a `status` (a topic
    /// and a state) to publish that, then DISCONNECT, and then it waits until the broker has read all of it and closes.
    /// What still comes in is not taken; the broker keeps it.
    pub(super) async fn close(self, mut link: Link, status: Option<(&str, &'static str)>) {
        // DISCONNECT can overtake a publish that waits, so the broker's PUBACK is waited for first.
        if let Some((topic, state)) = status
            && self.publish_status(topic, state).is_ok()
        {
            self.socket.flush_eagerly();
            let published = async { while !matches!(link.next().await, Ok(Event::Published) | Err(_)) {} };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, published).await;
        }
        let Sender { client, socket } = self;
        let close = async {
            socket.flush_eagerly();
            let queued = match &client {
                Client::V4(client) => client.try_disconnect().is_ok(),
                Client::V5(client) => client.try_disconnect().is_ok(),
            };
            while queued && link.next().await.is_ok() {}
            drop(link);
            socket.linger().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!("the broker did not close the connection in time");
        }
    }
}

/// Makes both halves of a connection that [`Link::next`] opens.
///
/// # Errors
/// It cannot be opened as configured.
pub(super) fn open(config: &Mqtt, target: &Target, material: &Credentials) -> Result<(Sender, Link), SetupError> {
    let socket = Handle::default();
    let (client, link) = match config.protocol {
        MqttProtocol::V4 => {
            let (client, events) = v4::open(config, target, material, &socket)?;
            (Client::V4(client), Link::V4(Box::new(events)))
        }
        MqttProtocol::V5 => {
            let (client, events) = v5::open(config, target, material, &socket)?;
            (Client::V5(client), Link::V5(Box::new(events)))
        }
    };
    Ok((Sender { client, socket }, link))
}
