//! The MQTT 5 implementation of [`super::link`].

use std::time::Duration;

use rumqttc_v5::mqttbytes::v5::{
    ConnAck, LastWill, PubAck, PubRec, RetainForwardRule, SubscribeReasonCode,
};
use rumqttc_v5::{
    AckMode, AsyncClient, Broker, BrokerSessionResumePolicy, ConnectionError, EventLoop, ManualAck,
    MqttOptions, Outgoing, Packet, QoS, SubscribeFilterInput,
};

use super::event::{Event, Grant, LinkError, Message, Receipt};
use super::link::{CONNECT_SECONDS, OFFLINE, READ_BATCH, REQUEST_BATCH, REQUESTS_MAX, Silence};
use super::target::SetupError;
use super::transport::Dialer;
use config::{Mqtt, Retained, Secret, Subscription};

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
    let expiry_seconds = u32::try_from(config.session_expiry.as_secs()).unwrap_or(u32::MAX);
    options
        .set_keep_alive(u16::try_from(config.keep_alive.as_secs()).unwrap_or(u16::MAX))
        .set_connect_timeout(Duration::from_secs(CONNECT_SECONDS))
        .set_clean_start(config.clean_start)
        .set_session_expiry_interval(Some(expiry_seconds))
        // No topic aliases: they save bytes that are cheap, and add state that can be wrong.
        .set_topic_alias_max(Some(0))
        .set_receive_maximum(Some(config.window.max(1)))
        // No maximum packet size is announced: the broker would silently drop a larger message.
        // Packets of any size are read, and one over `packet_max_bytes` becomes a dead letter.
        .set_unlimited_incoming_packet_size()
        // A new event loop has no session. Without this it would refuse the one that the broker
        // kept.
        .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
        // Only our own status is published. rumqttc scans this many slots at every flush, by
        // default 65,535.
        .set_outgoing_inflight_upper_limit(1)
        .set_ack_mode(AckMode::Manual)
        .set_max_request_batch(REQUEST_BATCH)
        .set_read_batch_size(READ_BATCH);
    match (&config.username, password) {
        (Some(user), Some(password)) => {
            options.set_credentials(user, password.reveal().to_owned());
        }
        (Some(user), None) => {
            options.set_username(user);
        }
        (None, Some(password)) => {
            options.set_password(password.reveal().to_owned());
        }
        (None, None) => {}
    }
    if let Some(topic) = &config.status_topic {
        options.set_last_will(LastWill::new(topic, OFFLINE, QoS::AtLeastOnce, true, None));
    }
    options.set_socket_connector(move |_, _| dialer.clone().dial());
    AsyncClient::builder(options)
        .capacity(REQUESTS_MAX)
        .try_build()
        .map_err(|e| refused(&e))
}

fn lost(error: impl Into<ConnectionError>) -> LinkError {
    LinkError::V5(Box::new(error.into()))
}

/// The next event; `subscribe_id` is the packet id of the last SUBSCRIBE.
pub(super) async fn next(
    events: &mut EventLoop,
    silence: &mut Silence,
    subscribe_id: &mut u16,
) -> Result<Event, LinkError> {
    loop {
        let packet = match events.poll().await.map_err(lost)? {
            rumqttc_v5::Event::Incoming(packet) => packet,
            rumqttc_v5::Event::Outgoing(Outgoing::PingReq) => {
                silence.pinged()?;
                // See `Silence`.
                let answer = events.state.handle_incoming_packet(Packet::PingResp);
                answer.map_err(lost)?;
                continue;
            }
            rumqttc_v5::Event::Outgoing(Outgoing::Subscribe(id)) => {
                *subscribe_id = id;
                continue;
            }
            _ => continue,
        };
        match packet {
            Packet::ConnAck(ConnAck {
                session_present, ..
            }) => {
                // If only the broker has the session, rumqttc refuses to subscribe, to protect the
                // packet ids of our own unfinished publishes, of which there are none. Resetting
                // the local session lifts that. Nothing has been read on this connection yet, so
                // nothing is lost.
                if session_present {
                    events.reset_session_state();
                }
                return Ok(Event::Connected { session_present });
            }
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
                    properties: publish
                        .properties
                        .map(|p| p.user_properties)
                        .unwrap_or_default(),
                    refused: None,
                    sender: None,
                    is_sender_forgotten: false,
                    can_refuse: false,
                }));
            }
            Packet::PubAck(_) => return Ok(Event::Published),
            // The answer to an earlier one, which was sent again, says nothing more.
            Packet::SubAck(answer) if answer.pkid == *subscribe_id => {
                use SubscribeReasonCode as Code;
                let grant = |code: &Code| match code {
                    Code::Success(qos) => Grant::Qos(*qos as u8),
                    Code::Failure | Code::Unspecified => Grant::Refused(0x80),
                    Code::ImplementationSpecific => Grant::Refused(0x83),
                    Code::NotAuthorized => Grant::Refused(0x87),
                    Code::TopicFilterInvalid => Grant::Refused(0x8F),
                    Code::PkidInUse => Grant::Refused(0x91),
                    Code::QuotaExceeded => Grant::Refused(0x97),
                    Code::SharedSubscriptionsNotSupported => Grant::Refused(0x9E),
                    Code::SubscriptionIdNotSupported => Grant::Refused(0xA1),
                    Code::WildcardSubscriptionsNotSupported => Grant::Refused(0xA2),
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
        Receipt::PubAck(id) => ManualAck::PubAck(PubAck::new(id, None)),
        Receipt::PubRec(id) => ManualAck::PubRec(PubRec::new(id, None)),
    }
}

/// The filters of all subscriptions, each with its Retain Handling option (MQTT 5 §3.8.3.1).
pub(super) fn filters(subscriptions: &[Subscription]) -> Vec<SubscribeFilterInput> {
    let filter = |s: &Subscription| {
        let qos = if s.qos_asked() == 0 {
            QoS::AtMostOnce
        } else {
            QoS::AtLeastOnce
        };
        let rule = match s.retained {
            Retained::Once => RetainForwardRule::OnNewSubscribe,
            Retained::Always => RetainForwardRule::OnEverySubscribe,
            Retained::Never => RetainForwardRule::Never,
        };
        SubscribeFilterInput::new(s.filter.clone(), qos).retain_forward_rule(rule)
    };
    subscriptions.iter().map(filter).collect()
}
