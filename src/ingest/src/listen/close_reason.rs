//! Why a connection ended: the metric label, the reason code of MQTT 5, and the text for the log
//! and the device.

use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;

use config::ListenMqtt;
use model::Named;

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The device sent DISCONNECT.
    Left,
    /// The network connection broke.
    Lost,
    /// The device was silent for too long.
    Silent,
    /// The device does not receive the bytes sent to it.
    Stuck,
    /// The same client has connected again.
    TakenOver,
    /// Its token is no longer valid.
    Revoked,
    /// Its token has expired.
    Expired,
    /// Its certificate was revoked, has expired, or is of a CA that was removed.
    Certificate,
    /// The service is stopping.
    Stopped,
    /// A message was not delivered; the device has to send it again.
    NotDelivered,
    /// A large packet did not arrive completely in time.
    Slow,
    /// A reply is larger than the packets that the device accepts.
    ReplyTooLarge,
    /// The device violated the protocol.
    ProtocolError(Reason),
}

impl Named for CloseReason {
    fn as_str(&self) -> &'static str {
        match self {
            CloseReason::Left => "left",
            CloseReason::Lost => "lost",
            CloseReason::Silent => "keep_alive",
            CloseReason::Stuck => "stuck",
            CloseReason::TakenOver => "taken_over",
            CloseReason::Revoked => "revoked",
            CloseReason::Expired => "expired",
            CloseReason::Certificate => "certificate",
            CloseReason::Stopped => "stopping",
            CloseReason::NotDelivered => "not_delivered",
            CloseReason::Slow => "slow_packet",
            CloseReason::ReplyTooLarge => "reply_too_large",
            CloseReason::ProtocolError(Reason::PacketTooLarge) => "packet_too_large",
            CloseReason::ProtocolError(Reason::MalformedPacket) => "malformed",
            CloseReason::ProtocolError(_) => "protocol",
        }
    }
}

impl CloseReason {
    /// The reason code for MQTT 5.
    pub(super) fn reason(self) -> Option<Reason> {
        match self {
            CloseReason::Left | CloseReason::Lost | CloseReason::Stuck => None,
            CloseReason::Silent => Some(Reason::KeepAliveTimeout),
            CloseReason::TakenOver => Some(Reason::SessionTakenOver),
            CloseReason::Revoked | CloseReason::Expired | CloseReason::Certificate => {
                Some(Reason::NotAuthorized)
            }
            CloseReason::Stopped => Some(Reason::ServerShuttingDown),
            CloseReason::NotDelivered => Some(Reason::ServerBusy),
            CloseReason::Slow => Some(Reason::QuotaExceeded),
            CloseReason::ReplyTooLarge => Some(Reason::PacketTooLarge),
            CloseReason::ProtocolError(reason) => Some(reason),
        }
    }

    /// Why this side closes it, for the log and the device; `None` if the device did.
    pub(super) fn text(self, settings: &ListenMqtt) -> Option<String> {
        let ListenMqtt {
            packet_max_bytes, ..
        } = settings;
        Some(match self {
            CloseReason::Left | CloseReason::Lost => return None,
            CloseReason::Silent => {
                "no packet received for one and a half times the keep-alive".into()
            }
            CloseReason::Stuck => "the device does not read what is sent to it".into(),
            CloseReason::TakenOver => "the same client has connected again".into(),
            CloseReason::Revoked => "the token was revoked, replaced or restricted".into(),
            CloseReason::Expired => "the token has expired".into(),
            CloseReason::Certificate => {
                "the client certificate was revoked, has expired, or is of a CA that was removed"
                    .into()
            }
            CloseReason::Stopped => "the service is stopping".into(),
            CloseReason::NotDelivered => "a message was not delivered; send it again".into(),
            CloseReason::Slow => "a large packet did not arrive completely in time".into(),
            CloseReason::ReplyTooLarge => {
                "a reply is larger than the device's Maximum Packet Size".into()
            }
            CloseReason::ProtocolError(Reason::PacketTooLarge) => {
                format!("a packet other than PUBLISH exceeds packet_max_bytes = {packet_max_bytes}")
            }
            CloseReason::ProtocolError(Reason::MalformedPacket) => {
                "malformed MQTT packet, or a topic filter that is empty or has a wildcard in the \
                 wrong place"
                    .into()
            }
            CloseReason::ProtocolError(Reason::TopicAliasInvalid) => {
                "topic alias or empty topic; topic aliases are not supported".into()
            }
            CloseReason::ProtocolError(_) => {
                "a packet that a device must not send at this point, a property that occurs twice, \
                 a response topic with a wildcard, or a SUBSCRIBE or UNSUBSCRIBE without a filter"
                    .into()
            }
        })
    }
}
