//! One connection after CONNECT: reads packets, passes messages to its gatherer, acknowledges what is safe.
//!
//! It waits for one message at a time: one that finds no room (its window is full, or too much waits in all) is held, and
//! nothing more is read meanwhile; so TCP stops the device, and nothing is dropped. What can be said goes out all the same.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::clients::Place;
use super::codec::{self, Packet, Publish, Reply, Version};
use super::connect::Client;
use super::gather::{Incoming, Words};
use super::inflight::{InFlight, Word};
use crate::ack::Outcome;
use crate::decode::reasons::{NO_SUBSCRIPTION, TOPIC_TOO_LONG};
use crate::ingest::mqtt::link::Message;
use crate::telemetry::metrics::{self, Source};

/// How much is read at once. Small, since most devices send little and thousands are connected.
const READ_BYTES: usize = 2048;
/// Replies that may be gathered before they are sent.
const OUT_BYTES_MAX: usize = 16 * 1024;
/// A device that does not take its acknowledgements for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What a message takes beside its bytes, about.
const MESSAGE_BYTES: usize = 256;

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The device said so.
    Left,
    /// The device was gone.
    Lost,
    /// The device was silent for too long.
    Silent,
    /// The device does not take what is sent to it.
    Stuck,
    /// The same client has connected again.
    TakenOver,
    /// The service is stopping.
    Stopped,
    /// A message could not be taken over; the device has to send it again.
    NotDelivered,
    /// The device does what it must not.
    Fault(Reason),
}

impl End {
    /// The label `reason` of the metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            End::Left => "left",
            End::Lost => "lost",
            End::Silent => "keep_alive",
            End::Stuck => "stuck",
            End::TakenOver => "taken_over",
            End::Stopped => "stopping",
            End::NotDelivered => "not_delivered",
            End::Fault(Reason::PacketTooLarge) => "packet_too_large",
            End::Fault(_) => "protocol",
        }
    }

    /// What MQTT 5 tells the device.
    fn reason(self) -> Option<Reason> {
        match self {
            End::Left | End::Lost | End::Stuck => None,
            End::Silent => Some(Reason::KeepAliveTimeout),
            End::TakenOver => Some(Reason::SessionTakenOver),
            End::Stopped => Some(Reason::ServerShuttingDown),
            End::NotDelivered => Some(Reason::ServerBusy),
            End::Fault(reason) => Some(reason),
        }
    }
}

/// See the module's documentation.
pub(super) struct Connection<S> {
    stream: S,
    shared: Arc<Shared>,
    client: Client,
    gatherer: mpsc::Sender<Incoming>,
    buf: BytesMut,
    out: BytesMut,
    inflight: InFlight<Reply>,
    words: Words,
    settled: mpsc::UnboundedReceiver<Word>,
    /// Was read and finds no room yet.
    held: Option<Publish>,
    stopping: bool,
    /// When something was last read.
    heard: Instant,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection whose CONNACK stands in `out`; what follows CONNECT may stand in `buf`.
    pub(super) fn new(
        stream: S,
        shared: Arc<Shared>,
        client: Client,
        gatherer: mpsc::Sender<Incoming>,
        buf: BytesMut,
        out: BytesMut,
    ) -> Connection<S> {
        let (words, settled) = mpsc::unbounded_channel();
        Connection {
            stream,
            shared,
            client,
            gatherer,
            buf,
            out,
            inflight: InFlight::default(),
            words,
            settled,
            held: None,
            stopping: false,
            heard: Instant::now(),
        }
    }

    /// Serves it to its end.
    pub(super) async fn serve(mut self, place: Place) -> End {
        let end = match self.run(&place.taken_over).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        // What became safe until now is still said, but not to a device that has left.
        if !matches!(end, End::Left | End::Lost | End::Stuck) {
            self.say_goodbye(end).await;
        }
        end
    }

    async fn run(&mut self, taken_over: &CancellationToken) -> Result<std::convert::Infallible, End> {
        let shared = self.shared.clone();
        loop {
            self.read_packets()?;
            self.acknowledge()?;
            let is_more = self.out.len() >= OUT_BYTES_MAX;
            self.flush().await?;
            if is_more {
                continue;
            }
            let may_read = self.held.is_none() && !self.stopping;
            let has_window = self.held.as_ref().is_some_and(|held| self.has_window(held));
            let silence = self.heard + self.client.silence_max;
            self.buf.reserve(if may_read { READ_BYTES } else { 0 });
            tokio::select! {
                biased;
                Some(word) = self.settled.recv() => self.settle(word),
                () = taken_over.cancelled() => return Err(End::TakenOver),
                () = shared.env.drained.cancelled() => return Err(End::Stopped),
                () = shared.env.stop.cancelled(), if !self.stopping => {
                    self.stopping = true;
                    // Not taken, so it is not acknowledged.
                    self.held = None;
                }
                room = room(self.gatherer.clone(), &shared, &self.held), if has_window => {
                    let (slot, permit) = room.ok_or(End::NotDelivered)?;
                    if let Some(held) = self.held.take() {
                        let incoming = self.incoming(held, permit);
                        slot.send(incoming);
                    }
                }
                n = self.stream.read_buf(&mut self.buf), if may_read => match n {
                    Ok(0) | Err(_) => return Err(End::Lost),
                    Ok(_) => self.heard = Instant::now(),
                },
                // While nothing is read, nobody can be heard.
                () = tokio::time::sleep_until(silence), if may_read => return Err(End::Silent),
            }
            if !may_read {
                self.heard = Instant::now();
            }
        }
    }

    /// Everything that is there, until a message finds no room.
    fn read_packets(&mut self) -> Result<(), End> {
        while self.held.is_none() && !self.stopping && self.out.len() < OUT_BYTES_MAX {
            let packet = codec::read(self.client.version, &mut self.buf, self.shared.settings.packet_max_bytes);
            match packet.map_err(|fault| End::Fault(fault.0))? {
                None => break,
                Some(Packet::Publish(publish)) => self.publish(publish)?,
                Some(Packet::PubRel(id)) => self.reply(Reply::PubComp(id)),
                Some(Packet::Subscribe(id, n)) => self.reply(Reply::SubAck(id, n)),
                Some(Packet::Unsubscribe(id, n)) => self.reply(Reply::UnsubAck(id, n)),
                Some(Packet::Ping) => self.reply(Reply::Pong),
                Some(Packet::Disconnect) => return Err(End::Left),
                Some(Packet::Unexpected) => return Err(End::Fault(Reason::ProtocolError)),
            }
        }
        Ok(())
    }

    fn publish(&mut self, publish: Publish) -> Result<(), End> {
        if publish.has_alias || publish.topic.is_empty() {
            // None were offered (MQTT 5 §3.3.2.3.4), and without one a topic has at least a character.
            return Err(End::Fault(Reason::TopicAliasInvalid));
        }
        if publish.qos == 2 && self.client.version == Version::V5 {
            return Err(End::Fault(Reason::QoSNotSupported));
        }
        let topic = std::str::from_utf8(&publish.topic).map_err(|_| End::Fault(Reason::MalformedPacket))?;
        let unwanted = if topic.len() > self.shared.settings.topic_max_bytes {
            Some(TOPIC_TOO_LONG)
        } else {
            (!self.shared.is_wanted(topic)).then_some(NO_SUBSCRIPTION)
        };
        if let Some(reason) = unwanted {
            self.shared.unwanted(topic, reason);
            metrics::received(Source::MqttDirect, 1);
            metrics::rejected(Source::MqttDirect, reason, 1);
            if let Some(receipt) = receipt(&publish, true) {
                // In its turn behind those that wait.
                let first = self.inflight.push(receipt);
                self.inflight.settle(Word { first, count: 1, outcome: Outcome::Delivered });
            }
            return Ok(());
        }
        self.held = Some(publish);
        self.pass_on_at_once();
        Ok(())
    }

    /// Passes the held message on if there is room now.
    fn pass_on_at_once(&mut self) {
        let gatherer = self.gatherer.clone();
        let Some(held) = self.held.take() else { return };
        let permit = self.shared.bytes.clone().try_acquire_many_owned(weight(&held));
        match (self.has_window(&held), permit, gatherer.try_reserve()) {
            (true, Ok(permit), Ok(slot)) => {
                let incoming = self.incoming(held, permit);
                slot.send(incoming);
            }
            _ => self.held = Some(held),
        }
    }

    fn has_window(&self, publish: &Publish) -> bool {
        publish.qos == 0 || self.inflight.len() < usize::from(self.shared.settings.window)
    }

    fn incoming(&mut self, publish: Publish, permit: OwnedSemaphorePermit) -> Incoming {
        let from = receipt(&publish, false).map(|receipt| (self.words.clone(), self.inflight.push(receipt)));
        let message = Message {
            topic: publish.topic,
            payload: publish.payload,
            properties: publish.properties,
            ..Message::default()
        };
        Incoming { message, from, _permit: permit }
    }

    fn settle(&mut self, word: Word) {
        self.inflight.settle(word);
        while let Ok(word) = self.settled.try_recv() {
            self.inflight.settle(word);
        }
    }

    /// Says what is safe, and sees whether that was the last.
    fn acknowledge(&mut self) -> Result<(), End> {
        while let Some(reply) = self.inflight.release() {
            self.reply(reply);
        }
        match (self.inflight.is_blocked(), self.stopping) {
            (true, false) => Err(End::NotDelivered),
            (true, true) => Err(End::Stopped),
            (false, true) if self.inflight.len() == 0 => Err(End::Stopped),
            (false, _) => Ok(()),
        }
    }

    fn reply(&mut self, reply: Reply) {
        codec::write(self.client.version, reply, &mut self.out);
    }

    async fn flush(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let written = async {
            self.stream.write_all(&self.out).await?;
            self.stream.flush().await
        };
        match tokio::time::timeout(WRITE_TIMEOUT, written).await {
            Ok(Ok(())) => {
                self.out.clear();
                Ok(())
            }
            Ok(Err(_)) => Err(End::Lost),
            Err(_) => Err(End::Stuck),
        }
    }

    /// Sends what is still to be said and closes, without breaking off what the device has not read yet.
    async fn say_goodbye(mut self, end: End) {
        if let Some(reason) = end.reason() {
            self.reply(Reply::Disconnect(reason));
        }
        let goodbye = async {
            self.flush().await?;
            self.stream.shutdown().await.map_err(|_| End::Lost)?;
            // To close while bytes are unread would reset the connection, and with it what was just sent.
            let mut scrap = [0; 1024];
            while self.stream.read(&mut scrap).await.is_ok_and(|n| n > 0) {}
            Ok::<(), End>(())
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await;
    }
}

/// Room for a message, waited for; `None` where the gatherer is gone.
async fn room(
    gatherer: mpsc::Sender<Incoming>,
    shared: &Shared,
    held: &Option<Publish>,
) -> Option<(mpsc::OwnedPermit<Incoming>, OwnedSemaphorePermit)> {
    let bytes = held.as_ref().map_or(1, weight);
    let permit = shared.bytes.clone().acquire_many_owned(bytes).await.ok()?;
    Some((gatherer.reserve_owned().await.ok()?, permit))
}

/// What a message takes of the bytes that may wait.
fn weight(publish: &Publish) -> u32 {
    let properties: usize = publish.properties.iter().map(|(k, v)| k.len() + v.len()).sum();
    let bytes = publish.topic.len() + publish.payload.len() + properties + MESSAGE_BYTES;
    u32::try_from(bytes.min(super::BYTES_MAX)).unwrap_or(u32::MAX)
}

/// What a message is answered when it is safe.
fn receipt(publish: &Publish, is_unwanted: bool) -> Option<Reply> {
    match (publish.qos, is_unwanted) {
        (0, _) => None,
        (1, false) => Some(Reply::PubAck(publish.id)),
        (1, true) => Some(Reply::PubAckUnwanted(publish.id)),
        _ => Some(Reply::PubRec(publish.id)),
    }
}
