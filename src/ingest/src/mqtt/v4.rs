//! The MQTT 3.1.1 implementation of [`super::link`].

use rumqttc_v4::mqttbytes::v4::{ConnAck, LastWill, PubAck, PubRec, SubscribeReasonCode};
use rumqttc_v4::{
    AckMode, AsyncClient, Broker, ConnectionError, EventLoop, ManualAck, MqttOptions, Outgoing,
    Packet, QoS, SubscribeFilterInput,
};

use super::event::{Event, Grant, LinkError, Message, Receipt};
use super::link::{CONNECT_SECONDS, OFFLINE, READ_BATCH, REQUEST_BATCH, REQUESTS_MAX, Silence};
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
    dialer: Dialer,
) -> Result<(AsyncClient, EventLoop), SetupError> {
    let refused = |error: &dyn std::fmt::Display| SetupError::Options(error.to_string());
    let id = config.client_id.clone();
    let target = &dialer.target;
    let broker = if dialer.is_websocket() {
        Broker::websocket(target.websocket_url()).map_err(|e| refused(&e))?
    } else {
        Broker::tcp(target.host.clone(), target.port)
    };
    let mut options = MqttOptions::new(id, broker);
    options
        .set_keep_alive(u16::try_from(config.keep_alive.as_secs()).unwrap_or(u16::MAX))
        .set_max_packet_size(PACKET_BYTES_MAX, PACKET_BYTES_MAX)
        .set_ack_mode(AckMode::Manual)
        .set_max_request_batch(REQUEST_BATCH)
        .set_read_batch_size(READ_BATCH);
    options
        .try_set_clean_session(config.clean_start)
        .map_err(|e| refused(&e))?;
    // Only our own status is published. rumqttc scans this many slots at every flush.
    options.try_set_inflight(1).map_err(|e| refused(&e))?;
    match (&config.username, password) {
        (Some(user), Some(password)) => {
            options.set_credentials(user, password.reveal().to_owned());
        }
        (Some(user), None) => {
            options.set_username(user);
        }
        _ => {}
    }
    if let Some(topic) = &config.status_topic {
        options.set_last_will(LastWill::new(topic, OFFLINE, QoS::AtLeastOnce, true));
    }
    options.set_socket_connector(move |_, _| dialer.clone().dial());
    let (client, mut events) = AsyncClient::builder(options)
        .capacity(REQUESTS_MAX)
        .try_build()
        .map_err(|e| refused(&e))?;
    events
        .network_options
        .set_connection_timeout(CONNECT_SECONDS);
    Ok((client, events))
}

fn lost(error: impl Into<ConnectionError>) -> LinkError {
    LinkError::V4(Box::new(error.into()))
}

/// The next event; `subscribe_id` is the packet id of the last SUBSCRIBE.
pub(super) async fn next(
    events: &mut EventLoop,
    silence: &mut Silence,
    subscribe_id: &mut u16,
) -> Result<Event, LinkError> {
    loop {
        let packet = match events.poll().await.map_err(lost)? {
            rumqttc_v4::Event::Incoming(packet) => packet,
            rumqttc_v4::Event::Outgoing(Outgoing::PingReq) => {
                silence.pinged()?;
                // See `Silence`.
                let answer = events.state.handle_incoming_packet(Packet::PingResp);
                answer.map_err(lost)?;
                continue;
            }
            rumqttc_v4::Event::Outgoing(Outgoing::Subscribe(id)) => {
                *subscribe_id = id;
                continue;
            }
            _ => continue,
        };
        match packet {
            Packet::ConnAck(ConnAck {
                session_present, ..
            }) => return Ok(Event::Connected { session_present }),
            Packet::Publish(publish) => {
                let receipt = match publish.qos {
                    QoS::AtMostOnce => None,
                    QoS::AtLeastOnce => Some(Receipt::PubAck(publish.pkid)),
                    QoS::ExactlyOnce => Some(Receipt::PubRec(publish.pkid)),
                };
                return Ok(Event::Message(Message {
                    topic: publish.topic,
                    payload: publish.payload,
                    receipt,
                    is_retained: publish.retain,
                    is_dup: publish.dup,
                    properties: vec![],
                    refused: None,
                    sender: None,
                    is_sender_forgotten: false,
                    can_refuse: false,
                }));
            }
            Packet::PubAck(_) => return Ok(Event::Published),
            // The answer to an earlier one, which was sent again, says nothing more.
            Packet::SubAck(answer) if answer.pkid == *subscribe_id => {
                let grant = |code: &SubscribeReasonCode| match code {
                    SubscribeReasonCode::Success(qos) => Grant::Qos(*qos as u8),
                    SubscribeReasonCode::Failure => Grant::Refused(0x80),
                };
                return Ok(Event::Subscribed(
                    answer.return_codes.iter().map(grant).collect(),
                ));
            }
            _ => {}
        }
    }
}

/// The acknowledgement packet for a receipt.
pub(super) fn ack(receipt: Receipt) -> ManualAck {
    match receipt {
        Receipt::PubAck(id) => ManualAck::PubAck(PubAck::new(id)),
        Receipt::PubRec(id) => ManualAck::PubRec(PubRec::new(id)),
    }
}

/// The filters of all subscriptions.
pub(super) fn filters(subscriptions: &[Subscription]) -> Vec<SubscribeFilterInput> {
    let qos = |qos| {
        if qos == 0 {
            QoS::AtMostOnce
        } else {
            QoS::AtLeastOnce
        }
    };
    subscriptions
        .iter()
        .map(|s| SubscribeFilterInput::new(s.filter.clone(), qos(s.qos_asked())))
        .collect()
}
