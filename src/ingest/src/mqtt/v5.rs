//! What is particular to MQTT 5: the options of rumqttc's client, and its packets.

use std::time::Duration;

use rumqttc_v5::mqttbytes::v5::{LastWill, PubAck, PubRec, RetainForwardRule, SubscribeReasonCode};
use rumqttc_v5::{
    AckMode, AsyncClient, Broker, BrokerSessionResumePolicy, ConnectionError, Event as Polled,
    EventLoop, ManualAck, MqttOptions, Outgoing, Packet, PublishOptions, QoS, SubscribeFilterInput,
};

use super::event::{Event, Grant, Message, Receipt};
use super::link::{CONNECT_SECONDS, READ_BATCH, REQUEST_BATCH, REQUESTS_MAX};
use super::link::{Disconnected, Polling, Requests, keep_alive_seconds, qos_asked};
use super::presence::Presence;
use super::target::SetupError;
use super::transport::Dialer;
use config::{Mqtt, Retained, Secret, Subscription};

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
    let expiry_seconds = u32::try_from(config.session_expiry.as_secs()).unwrap_or(u32::MAX);
    options
        .set_keep_alive(keep_alive_seconds(config))
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
        // Only `presence` publishes with QoS 1. rumqttc scans this many slots at every flush, by
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
    if let Some(Presence { topic, will, .. }) = presence {
        let will = will.clone();
        options.set_last_will(LastWill::new(topic, will, QoS::AtLeastOnce, true, None));
    }
    options.set_socket_connector(move |_, _| dialer.clone().dial());
    AsyncClient::builder(options)
        .capacity(REQUESTS_MAX)
        .try_build()
        .map_err(SetupError::options)
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
        Polled::Incoming(Packet::ConnAck(answer)) => {
            // If only the broker has the session, rumqttc refuses to subscribe, to protect the
            // packet ids of our own unfinished publishes, of which there are none. Resetting the
            // local session lifts that. Nothing has been read on this connection yet, so nothing
            // is lost.
            if answer.session_present {
                events.reset_session_state();
            }
            Polling::Received(Event::Connected {
                session_present: answer.session_present,
            })
        }
        Polled::Incoming(Packet::Publish(publish)) => Polling::Received(Event::Message(Message {
            topic: publish.topic,
            payload: publish.payload,
            receipt: Receipt::for_qos(publish.qos, publish.pkid),
            is_retained: publish.retain,
            is_dup: publish.dup,
            properties: publish
                .properties
                .map(|p| p.user_properties)
                .unwrap_or_default(),
            ..Message::default()
        })),
        Polled::Incoming(Packet::PubAck(_)) => Polling::Received(Event::Published),
        Polled::Incoming(Packet::SubAck(answer)) => {
            Polling::SubAck(answer.pkid, answer.return_codes.iter().map(grant).collect())
        }
        _ => Polling::Other,
    })
}

fn grant(code: &SubscribeReasonCode) -> Grant {
    use SubscribeReasonCode as Code;
    match code {
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
    }
}

impl Requests for AsyncClient {
    fn ack(&self, receipt: Receipt) -> Result<(), Disconnected> {
        let ack = match receipt {
            Receipt::PubAck(id) => ManualAck::PubAck(PubAck::new(id, None)),
            Receipt::PubRec(id) => ManualAck::PubRec(PubRec::new(id, None)),
        };
        self.try_manual_ack(ack).map_err(|_| Disconnected)
    }

    /// Each filter has its Retain Handling option (MQTT 5 §3.8.3.1).
    fn subscribe(&self, subscriptions: &[Subscription]) -> Result<(), Disconnected> {
        let filter = |s: &Subscription| {
            let rule = match s.retained {
                Retained::Once => RetainForwardRule::OnNewSubscribe,
                Retained::Always => RetainForwardRule::OnEverySubscribe,
                Retained::Never => RetainForwardRule::Never,
            };
            SubscribeFilterInput::new(s.filter.clone(), qos_asked(s)).retain_forward_rule(rule)
        };
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
