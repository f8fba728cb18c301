//! One connection to a broker, the same for MQTT 3.1.1 and 5: [`Link`] yields incoming events,
//! [`Sender`] queues outgoing packets.
//!
//! Every connection has its own pair, created by [`open`] and dropped at its end. rumqttc could
//! reconnect by itself, but its event loop keeps state over a reconnect that would be wrong here:
//! events of the old connection that were not read yet (3.1.1), and requests, PUBACKs among them,
//! that are queued between the error and the next connection. With a new pair, a receipt of one
//! connection cannot be acknowledged on another.
//!
//! The two halves can be used concurrently: while [`Link::next`] waits, the sender accepts
//! acknowledgements. A future of [`Link::next`] must not be dropped before it is ready unless the
//! connection is given up: rumqttc may have taken a PUBACK off its queue and not written it yet.

use std::sync::Arc;
use std::time::Duration;

use rumqttc_v5::QoS;
use tokio::net::TcpStream;

pub(super) use super::event::{Event, Grant, LinkError};
pub(crate) use super::event::{Message, Receipt, RefusedMessage};

use super::presence::Presence;
use super::socket::Handle;
use super::target::{Credentials, SetupError, Target};
use super::transport::{Dialer, Observations};
use super::{v4, v5};
use config::{Mqtt, MqttProtocol, Subscription};

/// Capacity of rumqttc's request queue. Each receipt is acknowledged once and packet ids have 16
/// bits, so with a few more for SUBSCRIBE and DISCONNECT it is never full. Memory is allocated only
/// as needed.
pub(super) const REQUESTS_MAX: usize = 65_535 + 16;

/// Requests that rumqttc writes, and packets that it reads, before it switches to the other
/// direction.
pub(super) const REQUEST_BATCH: usize = 1024;
/// The maximum that rumqttc allows.
pub(super) const READ_BATCH: usize = 128;

/// Timeout to open a connection, in seconds.
pub(super) const CONNECT_SECONDS: u64 = 10;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The receiving half. It must be polled continuously: it also sends pings and the sender's queued
/// packets.
pub(super) struct Link {
    events: Events,
    silence: Silence,
    /// The packet id of the last SUBSCRIBE.
    subscribe_id: u16,
    observations: Observations,
}

enum Events {
    V4(Box<rumqttc_v4::EventLoop>),
    V5(Box<rumqttc_v5::EventLoop>),
}

impl Link {
    /// The next event; the first call opens the connection.
    ///
    /// # Errors
    /// The connection has ended, and this link with it. If the broker ended it, the error has the
    /// broker's reason.
    pub(super) async fn next(&mut self) -> Result<Event, LinkError> {
        let next = self.received().await;
        next.map_err(|error| self.observations.ended().map_or(error, LinkError::Ended))
    }

    async fn received(&mut self) -> Result<Event, LinkError> {
        loop {
            let polled = match &mut self.events {
                Events::V4(events) => v4::poll(events).await.map_err(LinkError::of_client)?,
                Events::V5(events) => v5::poll(events).await.map_err(LinkError::of_client)?,
            };
            match polled {
                Polling::Received(event) => return Ok(event),
                // The answer to an earlier one, which was sent again, says nothing more.
                Polling::SubAck(id, grants) if id == self.subscribe_id => {
                    return Ok(Event::Subscribed(grants));
                }
                Polling::Subscribing(id) => self.subscribe_id = id,
                Polling::Pinged => self.silence.pinged()?,
                Polling::SubAck(..) | Polling::Other => {}
            }
        }
    }
}

/// What rumqttc's event loop has done, the same for both versions.
pub(super) enum Polling {
    Received(Event),
    /// SUBACK with this packet id: one answer per filter, in its order.
    SubAck(u16, Vec<Grant>),
    /// SUBSCRIBE with this packet id is sent.
    Subscribing(u16),
    /// PINGREQ is sent, and counts as answered for rumqttc, see [`Silence`].
    Pinged,
    Other,
}

/// The queue of rumqttc's requests, the same for both versions. It never waits.
///
/// # Errors
/// The connection has ended, or a topic or filter is invalid.
pub(super) trait Requests: Send + Sync {
    fn ack(&self, receipt: Receipt) -> Result<(), Disconnected>;
    fn subscribe(&self, subscriptions: &[Subscription]) -> Result<(), Disconnected>;
    fn publish(
        &self,
        topic: &str,
        payload: &[u8],
        qos: QoS,
        retain: bool,
    ) -> Result<(), Disconnected>;
    fn disconnect(&self) -> Result<(), Disconnected>;
}

/// `mqtt.keep_alive` as CONNECT has it.
pub(super) fn keep_alive_seconds(config: &Mqtt) -> u16 {
    u16::try_from(config.keep_alive.as_secs()).unwrap_or(u16::MAX)
}

/// The QoS that is requested for a subscription.
pub(super) fn qos_asked(subscription: &Subscription) -> QoS {
    match subscription.qos_asked() {
        0 => QoS::AtMostOnce,
        _ => QoS::AtLeastOnce,
    }
}

/// Nothing has arrived between two PINGREQs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the broker has sent nothing, not even an answer to PINGREQ, for the time of mqtt.keep_alive"
)]
pub(super) struct Silent;

/// Ends a connection whose broker sends nothing: the bytes that had arrived at its last PINGREQ.
///
/// rumqttc sends a PINGREQ when it has sent nothing else for `keep_alive`, and by itself ends the
/// connection if `keep_alive` later it still waits for the PINGRESP. But the PINGRESP comes after
/// everything that the broker has already begun to send. Over a slow link one large message, or the
/// messages in flight, can take longer than that. On the next connection the broker sends them
/// again, from the start, so nothing would ever get through. Here any byte since the PINGREQ before
/// is an answer, also one of a packet that is not complete.
///
/// So `v4` and `v5` give rumqttc the PINGRESP itself as soon as it has sent a PINGREQ, and this
/// decides in its place. A broker that sends nothing is found as soon as before: at the second
/// PINGREQ.
#[derive(Debug)]
pub(super) struct Silence {
    socket: Handle<TcpStream>,
    before: Option<u64>,
}

impl Silence {
    fn new(socket: &Handle<TcpStream>) -> Silence {
        Silence {
            socket: socket.clone(),
            before: None,
        }
    }

    /// Call at each PINGREQ.
    ///
    /// # Errors
    /// Nothing has arrived since the one before.
    pub(super) fn pinged(&mut self) -> Result<(), Silent> {
        let received = self.socket.received_bytes();
        match self.before.replace(received) {
            Some(before) if before == received => Err(Silent),
            _ => Ok(()),
        }
    }
}

/// The connection has ended; its [`Link`] returns the reason.
#[derive(Debug, thiserror::Error)]
#[error("the connection has ended")]
pub(super) struct Disconnected;

/// The sending half. It never waits.
pub(super) struct Sender {
    client: Box<dyn Requests>,
    socket: Handle<TcpStream>,
    observations: Observations,
}

impl Sender {
    /// Acknowledges a message of this connection.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn ack(&self, receipt: Receipt) -> Result<(), Disconnected> {
        self.client.ack(receipt)
    }

    /// Whether messages are read in groups from now on, see [`super::pace`].
    pub(super) fn pause_between_reads(&self, is_on: bool) {
        self.socket.pause_between_reads(is_on);
    }

    /// Subscribes to all of these filters, in one packet.
    ///
    /// # Errors
    /// The connection has ended, or a filter is invalid (the configuration is checked at the
    /// start).
    pub(super) fn subscribe(&self, subscriptions: &[Subscription]) -> Result<(), Disconnected> {
        self.observations.subscribing();
        self.client.subscribe(subscriptions)
    }

    /// Publishes our own state (`presence`), retained.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn publish_state(&self, topic: &str, state: &str) -> Result<(), Disconnected> {
        self.client
            .publish(topic, state.as_bytes(), QoS::AtLeastOnce, true)
    }

    /// Publishes a command, with QoS 0 as Sparkplug B requires.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn publish_command(&self, topic: &str, payload: &[u8]) -> Result<(), Disconnected> {
        self.client.publish(topic, payload, QoS::AtMostOnce, false)
    }

    /// Ends the connection in order: sends queued acknowledgements, publishes `state` (with its
    /// topic) if given, sends DISCONNECT, and waits until the broker has read everything and
    /// closes. Messages that still arrive are not accepted; the broker keeps them.
    pub(super) async fn close(self, mut link: Link, state: Option<(&str, &str)>) {
        // DISCONNECT can overtake a queued publish, so this waits for the broker's PUBACK first.
        if let Some((topic, state)) = state
            && self.publish_state(topic, state).is_ok()
        {
            self.socket.flush_eagerly();
            let published =
                async { while !matches!(link.next().await, Ok(Event::Published) | Err(_)) {} };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, published).await;
        }
        let Sender { client, socket, .. } = self;
        let close = async {
            socket.flush_eagerly();
            let queued = client.disconnect().is_ok();
            while queued && link.next().await.is_ok() {}
            drop(link);
            socket.linger().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!("broker did not close the connection in time");
        }
    }
}

/// Creates both halves of a connection that [`Link::next`] opens.
///
/// # Errors
/// The settings cannot be used.
pub(super) fn open(
    config: &Mqtt,
    target: &Target,
    material: &Credentials,
    presence: Option<&Presence>,
) -> Result<(Sender, Link), SetupError> {
    let dialer = Dialer {
        target: Arc::new(target.clone()),
        protocol: config.protocol,
        tls: material.tls.clone(),
        socket: Handle::default(),
        observations: Observations::default(),
    };
    let socket = dialer.socket.clone();
    let observations = dialer.observations.clone();
    let password = material.password.as_ref();
    let (client, events): (Box<dyn Requests>, Events) = match config.protocol {
        MqttProtocol::V4 => {
            let (client, events) = v4::open(config, password, presence, dialer)?;
            (Box::new(client), Events::V4(Box::new(events)))
        }
        MqttProtocol::V5 => {
            let (client, events) = v5::open(config, password, presence, dialer)?;
            (Box::new(client), Events::V5(Box::new(events)))
        }
    };
    let link = Link {
        events,
        silence: Silence::new(&socket),
        subscribe_id: 0,
        observations: observations.clone(),
    };
    let sender = Sender {
        client,
        socket,
        observations,
    };
    Ok((sender, link))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const KEEP_ALIVE: Duration = Duration::from_secs(10);

    fn config(port: u16, protocol: MqttProtocol) -> Mqtt {
        Mqtt {
            url: format!("mqtt://127.0.0.1:{port}"),
            client_id: "c".into(),
            protocol,
            clean_start: true,
            session_expiry: Duration::ZERO,
            username: None,
            password: None,
            password_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            keep_alive: KEEP_ALIVE,
            packet_max_bytes: 1 << 20,
            window: 10,
            status_topic: None,
            subscriptions: vec![],
        }
    }

    /// A broker that needs `lasting` to send one message, in pieces, and then sends nothing more.
    async fn slow_broker(listener: TcpListener, protocol: MqttProtocol, lasting: Duration) {
        let (mut socket, _) = listener.accept().await.unwrap();
        assert!(socket.read(&mut [0; 1024]).await.unwrap() > 0);
        let (connack, properties): (&[u8], &[u8]) = match protocol {
            MqttProtocol::V4 => (&[0x20, 2, 0, 0], &[]),
            MqttProtocol::V5 => (&[0x20, 3, 0, 0, 0], &[0]),
        };
        socket.write_all(connack).await.unwrap();
        // QoS 1, topic "t", packet id 7.
        let message = [&[0, 1, b't', 0, 7][..], properties, &[b'x'; 100]].concat();
        let length = u8::try_from(message.len()).unwrap();
        let packet = [&[0x32, length][..], &message].concat();
        for piece in packet.chunks(10) {
            tokio::time::sleep(lasting / 10).await;
            socket.write_all(piece).await.unwrap();
        }
        std::future::pending::<()>().await;
    }

    #[tokio::test]
    async fn a_message_may_take_longer_than_keep_alive_and_a_silent_broker_is_left() {
        for protocol in [MqttProtocol::V4, MqttProtocol::V5] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let config = config(listener.local_addr().unwrap().port(), protocol);
            let target = Target::parse(&config.url).unwrap();
            let credentials = Credentials {
                tls: None,
                password: None,
            };
            let (_sender, mut link) = open(&config, &target, &credentials, None).unwrap();
            let broker = tokio::spawn(slow_broker(listener, protocol, 4 * KEEP_ALIVE));
            assert!(matches!(link.next().await, Ok(Event::Connected { .. })));
            // Connecting needs the real time: a paused clock would run into its timeout.
            tokio::time::pause();
            let Ok(Event::Message(message)) = link.next().await else {
                panic!("{protocol:?}: no message");
            };
            assert_eq!(message.payload.len(), 100);
            let ended = link.next().await;
            assert!(matches!(ended, Err(LinkError::Silent(_))), "{ended:?}");
            tokio::time::resume();
            broker.abort();
        }
    }
}
