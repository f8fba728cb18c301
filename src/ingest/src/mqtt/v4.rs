//! What is particular to MQTT 3.1.1: the options of rumqttc's client, and its packets.

use rumqttc_v4::mqttbytes::v4::{LastWill, PubAck, PubRec, SubscribeReasonCode};
use rumqttc_v4::{
    AckMode, AsyncClient, Broker, ConnectionError, Event as Polled, EventLoop, ManualAck,
    MqttOptions, Outgoing, Packet, PublishOptions, QoS, SubscribeFilterInput,
};

use super::event::{Event, Grant, Message, Receipt};
use super::link::{CONNECT_SECONDS, READ_BATCH, REQUEST_BATCH, REQUESTS_MAX};
use super::link::{Disconnected, Polling, Requests, keep_alive_seconds, qos_asked};
use super::presence::Presence;
use super::target::SetupError;
use super::transport::Dialer;
use config::{Mqtt, Secret, Subscription};

/// The largest packet that MQTT allows. rumqttc closes the connection at a larger packet than set
/// here, and the broker would send it again forever. So this sets no limit: a packet over
/// `packet_max_bytes` becomes a dead letter.
const PACKET_BYTES_MAX: usize = 268_435_455 + 5;

/// Creates client and event loop of a new connection.
pub(super) fn open(
    config: &Mqtt,
    password: Option<&Secret>,
    presence: Option<&Presence>,
    dialer: Dialer,
) -> Result<(AsyncClient, EventLoop), SetupError> {
    let target = &dialer.target;
    let broker = Broker::tcp(target.host.clone(), target.port);
    let mut options = MqttOptions::new(config.client_id.clone(), broker);
    options
        .set_keep_alive(keep_alive_seconds(config))
        .set_max_packet_size(PACKET_BYTES_MAX, PACKET_BYTES_MAX)
        .set_ack_mode(AckMode::Manual)
        .set_max_request_batch(REQUEST_BATCH)
        .set_read_batch_size(READ_BATCH);
    options
        .try_set_clean_session(config.clean_start)
        .map_err(SetupError::options)?;
    // Only `presence` publishes with QoS 1. rumqttc scans this many slots at every flush.
    options.try_set_inflight(1).map_err(SetupError::options)?;
    match (&config.username, password) {
        (Some(user), Some(password)) => {
            options.set_credentials(user, password.reveal().to_owned());
        }
        (Some(user), None) => {
            options.set_username(user);
        }
        _ => {}
    }
    if let Some(Presence { topic, will, .. }) = presence {
        let will = will.clone();
        options.set_last_will(LastWill::new(topic, will, QoS::AtLeastOnce, true));
    }
    options.set_socket_connector(move |_, _| dialer.clone().dial());
    let (client, mut events) = AsyncClient::builder(options)
        .capacity(REQUESTS_MAX)
        .try_build()
        .map_err(SetupError::options)?;
    events
        .network_options
        .set_connection_timeout(CONNECT_SECONDS);
    Ok((client, events))
}

/// What the event loop does next.
pub(super) async fn poll(events: &mut EventLoop) -> Result<Polling, ConnectionError> {
    Ok(match events.poll().await? {
        Polled::Outgoing(Outgoing::PingReq) => {
            // See `Silence`.
            events.state.handle_incoming_packet(Packet::PingResp)?;
            Polling::Pinged
        }
        Polled::Outgoing(Outgoing::Subscribe(id)) => Polling::Subscribing(id),
        Polled::Incoming(Packet::ConnAck(answer)) => Polling::Received(Event::Connected {
            session_present: answer.session_present,
        }),
        Polled::Incoming(Packet::Publish(publish)) => Polling::Received(Event::Message(Message {
            topic: publish.topic,
            payload: publish.payload,
            receipt: Receipt::for_qos(publish.qos, publish.pkid),
            is_retained: publish.retain,
            is_dup: publish.dup,
            ..Message::default()
        })),
        Polled::Incoming(Packet::PubAck(_)) => Polling::Received(Event::Published),
        Polled::Incoming(Packet::SubAck(answer)) => {
            let grant = |code: &SubscribeReasonCode| match code {
                SubscribeReasonCode::Success(qos) => Grant::Qos(*qos as u8),
                SubscribeReasonCode::Failure => Grant::Refused(0x80),
            };
            Polling::SubAck(answer.pkid, answer.return_codes.iter().map(grant).collect())
        }
        _ => Polling::Other,
    })
}

impl Requests for AsyncClient {
    fn ack(&self, receipt: Receipt) -> Result<(), Disconnected> {
        let ack = match receipt {
            Receipt::PubAck(id) => ManualAck::PubAck(PubAck::new(id)),
            Receipt::PubRec(id) => ManualAck::PubRec(PubRec::new(id)),
        };
        self.try_manual_ack(ack).map_err(|_| Disconnected)
    }

    fn subscribe(&self, subscriptions: &[Subscription]) -> Result<(), Disconnected> {
        let filter = |s: &Subscription| SubscribeFilterInput::new(s.filter.clone(), qos_asked(s));
        self.try_subscribe_many(subscriptions.iter().map(filter))
            .map_err(|_| Disconnected)
    }

    fn publish(
        &self,
        topic: &str,
        payload: &[u8],
        qos: QoS,
        retain: bool,
    ) -> Result<(), Disconnected> {
        let options = PublishOptions::new(qos).retain(retain);
        self.try_publish(topic, payload, options)
            .map_err(|_| Disconnected)
    }

    fn disconnect(&self) -> Result<(), Disconnected> {
        self.try_disconnect().map_err(|_| Disconnected)
    }
}
