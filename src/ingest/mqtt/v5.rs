//! MQTT 5 in terms of [`super::link`].

use std::time::Duration;

use rumqttc_v5::mqttbytes::v5::{ConnAck, LastWill, PubAck, PubRec, RetainForwardRule, SubscribeReasonCode};
use rumqttc_v5::{
    AckMode, AsyncClient, Broker, BrokerSessionResumePolicy, ConnectionError, EventLoop, ManualAck, MqttOptions,
    Packet, QoS, SubscribeFilterInput, Transport,
};
use tokio::net::TcpStream;

use super::files::Credentials;
use super::link::{CONNECT_SECONDS, Event, Grant, Message, OFFLINE, READ_BATCH, REQUEST_BATCH, REQUESTS_MAX, Receipt};
use super::socket::Handle;
use super::target::{Scheme, SetupError, Target, dial};
use crate::config::{Mqtt, Retained, Subscription};

/// Client and event loop of a new connection.
pub(super) fn open(
    config: &Mqtt,
    target: &Target,
    material: &Credentials,
    socket: &Handle<TcpStream>,
) -> Result<(AsyncClient, EventLoop), SetupError> {
    let refused = |error: &dyn std::fmt::Display| SetupError::Options(error.to_string());
    let id = config.client_id.clone();
    let tcp = || Broker::tcp(target.host.clone(), target.port);
    let mut options = match (target.scheme, material.tls.clone()) {
        (Scheme::Ws, _) => MqttOptions::new(id, Broker::websocket(&target.url).map_err(|e| refused(&e))?),
        (Scheme::Wss, Some(tls)) => {
            MqttOptions::websocket_with_tls_config(id, &target.url, tls).map_err(|e| refused(&e))?
        }
        (_, None) => MqttOptions::new(id, tcp()),
        (_, Some(tls)) => {
            let mut options = MqttOptions::new(id, tcp());
            options.set_transport(Transport::tls_with_config(tls));
            options
        }
    };
    let expiry_seconds = u32::try_from(config.session_expiry.as_secs()).unwrap_or(u32::MAX);
    options
        .set_keep_alive(u16::try_from(config.keep_alive.as_secs()).unwrap_or(u16::MAX))
        .set_connect_timeout(Duration::from_secs(CONNECT_SECONDS))
        .set_clean_start(config.clean_start)
        .set_session_expiry_interval(Some(expiry_seconds))
        // Topics come written out: an alias saves bytes that are cheap, and is state that can be wrong.
        .set_topic_alias_max(Some(0))
        .set_receive_maximum(Some(config.window.max(1)))
        // No limit is told to the broker: it would drop a larger message without a word to anyone. Any is read, and one
        // over `packet_max_bytes` becomes a dead letter.
        .set_unlimited_incoming_packet_size()
        // A new event loop knows no session; without this it would refuse the one that the broker kept.
        .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
        // We publish nothing but our state; rumqttc walks through this many slots at every flush, by default 65,535.
        .set_outgoing_inflight_upper_limit(1)
        .set_ack_mode(AckMode::Manual)
        .set_max_request_batch(REQUEST_BATCH)
        .set_read_batch_size(READ_BATCH);
    match (&config.username, &material.password) {
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
    let (host, port, socket) = (target.host.clone(), target.port, socket.clone());
    options.set_socket_connector(move |_, _| dial(host.clone(), port, socket.clone()));
    AsyncClient::builder(options).capacity(REQUESTS_MAX).try_build().map_err(|e| refused(&e))
}

/// The next event that matters.
pub(super) async fn next(events: &mut EventLoop) -> Result<Event, ConnectionError> {
    loop {
        let rumqttc_v5::Event::Incoming(packet) = events.poll().await? else { continue };
        match packet {
            Packet::ConnAck(ConnAck { session_present, .. }) => {
                // With a session that only the broker knows, rumqttc refuses to subscribe: it fears for the packet ids
                // of our own unfinished publishes, of which there are none. Forgetting the local session lifts that;
                // nothing has been read on this connection yet, so nothing is lost.
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
                    properties: publish.properties.map(|p| p.user_properties).unwrap_or_default(),
                    refused: None,
                }));
            }
            Packet::PubAck(_) => return Ok(Event::Published),
            Packet::SubAck(answer) => {
                let grant = |code: &SubscribeReasonCode| match code {
                    SubscribeReasonCode::Success(qos) => Grant::Qos(*qos as u8),
                    refused => Grant::Refused(format!("{refused:?}")),
                };
                return Ok(Event::Subscribed(answer.return_codes.iter().map(grant).collect()));
            }
            _ => {}
        }
    }
}

/// The packet that acknowledges.
pub(super) fn ack(receipt: Receipt) -> ManualAck {
    match receipt {
        Receipt::PubAck(id) => ManualAck::PubAck(PubAck::new(id, None)),
        Receipt::PubRec(id) => ManualAck::PubRec(PubRec::new(id, None)),
    }
}

/// The filters of all subscriptions, each with when its retained messages are wanted (MQTT 5 §3.8.3.1, Retain Handling).
pub(super) fn filters(config: &Mqtt) -> Vec<SubscribeFilterInput> {
    let filter = |s: &Subscription| {
        let qos = if s.qos_asked() == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let rule = match s.retained {
            Retained::Once => RetainForwardRule::OnNewSubscribe,
            Retained::Always => RetainForwardRule::OnEverySubscribe,
            Retained::Never => RetainForwardRule::Never,
        };
        SubscribeFilterInput::new(s.filter.clone(), qos).retain_forward_rule(rule)
    };
    config.subscriptions.iter().map(filter).collect()
}
