//! A message that waits for room: the memory that it counts for, its reply, and why it is refused
//! if it is not decoded.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::listen::batcher::{AckSender, Incoming, Permits};
use crate::listen::codec::{Publish, Reply, Version};
use crate::listen::inflight::InFlight;
use crate::listen::large::Room;
use crate::listen::shared::{BYTES_MAX, Shared};
use crate::mqtt::link::{Message, RefusedMessage};
use config::ListenMqtt;
use decode::RejectReason;
use net::access::Grant;

/// Memory of a message in addition to its bytes: its entry in a batcher's queue, and its state in
/// the connection and the ingest batch until it is acknowledged.
const MESSAGE_BYTES: usize = size_of::<Incoming>() + 128;

/// A message that waits for room.
pub(super) struct Held {
    pub(super) publish: Publish,
    /// Why it is not decoded.
    pub(super) refused: Option<RefusedMessage>,
    pub(super) sender: Option<Arc<Grant>>,
    /// The budget that it was buffered in; returned when its bytes are counted as a waiting
    /// message.
    pub(super) _gathered: Option<Room>,
}

impl Held {
    /// The message on its way to the batcher. If the device expects a reply, it is in flight from
    /// now on.
    pub(super) fn incoming(
        self,
        acks: &AckSender,
        inflight: &mut InFlight<Reply>,
        version: Version,
        permits: Permits,
    ) -> Incoming {
        let Publish {
            topic,
            payload,
            properties,
            qos,
            id,
            ..
        } = self.publish;
        let reply = match qos {
            0 => None,
            1 => Some(Reply::PubAck(id)),
            _ => Some(Reply::PubRec(id)),
        };
        let can_refuse = reply.is_some() && version == Version::V5;
        let message = Message {
            topic,
            payload,
            properties,
            refused: self.refused,
            sender: self.sender,
            can_refuse,
            ..Message::default()
        };
        Incoming {
            message,
            from: reply.map(|reply| (acks.clone(), inflight.push(reply))),
            permits,
        }
    }
}

/// Waits for room for a message; `None` if the batcher has ended.
pub(super) async fn room(
    batcher: mpsc::Sender<Incoming>,
    shared: &Shared,
    held: &Option<Held>,
) -> Option<(mpsc::OwnedPermit<Incoming>, Permits)> {
    let bytes = held.as_ref().map_or(1, weight);
    // The sender's own part first: waiting for it holds nothing of the others.
    let _own = match held.as_ref().and_then(|held| held.sender.as_ref()) {
        Some(grant) => grant.usage.queue(bytes as usize).await,
        None => None,
    };
    let of_all = shared.bytes.clone().acquire_many_owned(bytes).await.ok()?;
    let slot = batcher.reserve_owned().await.ok()?;
    Some((slot, Permits { of_all, _own }))
}

/// A part of the sender's own share, if there is room; `None` inside: it has no share.
pub(super) fn try_queue(held: &Held) -> Option<Option<OwnedSemaphorePermit>> {
    match &held.sender {
        Some(grant) => grant.usage.try_queue(weight(held) as usize).map(Some),
        None => Some(None),
    }
}

/// The part of the waiting-bytes budget that a message uses.
pub(super) fn weight(held: &Held) -> u32 {
    let detail = held
        .refused
        .as_ref()
        .map_or(0, |refused| refused.detail.capacity());
    let bytes = held.publish.memory_bytes() + detail + MESSAGE_BYTES;
    u32::try_from(bytes.min(BYTES_MAX)).unwrap_or(u32::MAX)
}

/// Why a message is not decoded, regardless of its topic.
pub(super) fn error(
    publish: &Publish,
    topic: &str,
    settings: &ListenMqtt,
) -> Option<RefusedMessage> {
    let ListenMqtt {
        topic_max_bytes,
        packet_max_bytes,
        ..
    } = settings;
    let payload_bytes = publish
        .oversize
        .map_or(publish.payload.len(), |oversize| oversize.payload_bytes);
    if let Some(oversize) = publish.oversize {
        let mut detail = format!(
            "a packet of {} bytes exceeds packet_max_bytes = {packet_max_bytes}",
            publish.packet_bytes
        );
        if topic.len() < oversize.topic_bytes {
            detail += &format!(
                "; of its topic of {} bytes, {} are kept",
                oversize.topic_bytes,
                topic.len()
            );
        }
        return Some(RefusedMessage {
            reason: RejectReason::PayloadTooLarge,
            detail,
            payload_bytes,
        });
    }
    let is_long = topic.len() > *topic_max_bytes;
    is_long.then(|| {
        let detail = format!(
            "a topic of {} bytes exceeds topic_max_bytes = {topic_max_bytes}",
            topic.len()
        );
        RefusedMessage {
            reason: RejectReason::TopicTooLong,
            detail,
            payload_bytes,
        }
    })
}
