//! What a connection receives, and why it ends, the same for MQTT 3.1.1 and 5.

use std::sync::Arc;

use bytes::Bytes;
use rumqttc_v5::QoS;

use super::link::Silent;
use super::observe::Ended;
use decode::RejectReason;
use net::access;

/// The acknowledgement that a message requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// QoS 1: PUBACK.
    PubAck(u16),
    /// QoS 2: PUBREC. Never requested, but a session created by another client may still hold such
    /// messages.
    PubRec(u16),
}

impl Receipt {
    /// `None`: a message of QoS 0 needs none.
    pub(super) fn for_qos(qos: QoS, packet_id: u16) -> Option<Receipt> {
        match qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce => Some(Receipt::PubAck(packet_id)),
            QoS::ExactlyOnce => Some(Receipt::PubRec(packet_id)),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Message {
    /// The topic; the broker should have verified that it is UTF-8.
    pub topic: Bytes,
    pub payload: Bytes,
    /// `None`: QoS 0.
    pub receipt: Option<Receipt>,
    /// The broker had it retained, and sends it because of a subscription.
    pub is_retained: bool,
    /// It may have been sent before.
    pub(crate) is_dup: bool,
    /// MQTT 5: the user properties.
    pub properties: Vec<(String, String)>,
    /// Who sent it, if that is known; `None`: it may be from any sensor.
    pub sender: Option<Arc<access::Grant>>,
    /// A sender sent it whose name was not kept.
    pub(crate) is_sender_forgotten: bool,
    /// The answer can say that the sender may not send this message.
    pub(crate) can_refuse: bool,
    /// Set if the receiver decided not to decode it: it becomes a dead letter.
    pub refused: Option<RefusedMessage>,
}

/// Why a message is not decoded.
#[derive(Debug)]
pub(crate) struct RefusedMessage {
    /// The reason of the dead letter.
    pub reason: RejectReason,
    pub detail: String,
    /// Size of the payload as sent; the message may contain only its beginning.
    pub payload_bytes: usize,
}

/// The broker's answer to one filter of a SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grant {
    /// Granted, with at most this QoS.
    Qos(u8),
    /// Refused, with this code.
    Refused(u8),
}

#[derive(Debug)]
pub(super) enum Event {
    /// The connection is open; whether the broker still has the session.
    Connected {
        /// From CONNACK.
        session_present: bool,
    },
    Message(Message),
    /// SUBACK of the last SUBSCRIBE: one answer per filter, in its order.
    Subscribed(Vec<Grant>),
    /// PUBACK for our own status.
    Published,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// The broker ended it.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// rumqttc ended it.
    #[error(transparent)]
    Client(Box<dyn std::error::Error + Send + Sync>),
    /// The broker seems to be gone.
    #[error(transparent)]
    Silent(#[from] Silent),
}

impl LinkError {
    pub(super) fn of_client(error: impl std::error::Error + Send + Sync + 'static) -> LinkError {
        LinkError::Client(Box::new(error))
    }
}
