//! One connection after CONNECT: reads packets, passes messages to its batcher, acknowledges safe
//! messages.
//!
//! It handles one message at a time. A message without room (the window or the total budget is
//! full) is held, and nothing more is read meanwhile. So TCP slows the device down, and nothing is
//! dropped. Acknowledgements are still sent. The same applies to a large packet without room in its
//! budget, and to a PUBREL before its PUBREC.
//!
//! Bytes of any packet, also of one that never becomes complete, count against the quota when they
//! are read. The packets among them are handled first: a message may be larger than what the quota
//! has left.
//!
//! A device whose sender has reached its quota is not read until the pause ends, with two
//! exceptions. A large packet that has begun is read to its end, because others wait for its room.
//! And a PINGREQ is answered, because many clients disconnect without PINGRESP: as long as nothing
//! else is in front of it, because what is received otherwise would have to be kept.

mod held;
mod output;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::held::{Held, error, room, try_queue, weight};
use super::authorization::Authorization;
use super::batcher::{AckSender, Incoming, Permits};
use super::clients::Registration;
use super::close_reason::CloseReason;
use super::codec::{Packet, ProtocolError, Publish, Reply};
use super::connect::Client;
use super::exchanges::{Exchanges, Release, Sent};
use super::frames::{self, Frames, Limits, Next};
use super::inflight::{AckResult, InFlight, Released};
use super::large::Room;
use super::shared::{NAME, Shared};
use crate::mqtt::link::RefusedMessage;
use config::ListenMqtt;
use decode::RejectReason;
use model::{Named as _, Now};
use net::shares::Owner;
use net::tls::ClientCertificate;
use telemetry::audit::{AuditEvent, AuditKind};
use telemetry::metrics;

/// Bytes per read. Small, because most devices send little and thousands are connected.
const READ_BYTES: usize = 2048;
/// Bytes of replies that may be buffered before they are sent.
pub(super) const OUT_BYTES_MAX: usize = 16 * 1024;
/// The longest pause before the quota is checked again.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The packet of this name: a fixed header, and nothing after it (MQTT §3.12).
const PINGREQ: [u8; 2] = [0xc0, 0];

/// A large packet that is being buffered or skipped.
struct LargePacket {
    /// Its part of the budget; none if it is skipped and nothing of it is kept.
    room: Option<Room>,
    /// When it must be complete. A slower device would hold room that others wait for.
    until: Instant,
}

impl LargePacket {
    /// A packet of this size, which begins now.
    fn new(bytes: usize, room: Option<Room>, settings: &ListenMqtt) -> LargePacket {
        let time = Duration::from_secs(bytes as u64 / settings.packet_rate_min);
        LargePacket {
            room,
            until: Instant::now() + settings.packet_grace + time,
        }
    }
}

pub(super) struct Connection<S> {
    stream: S,
    shared: Arc<Shared>,
    client: Client,
    authorization: Authorization,
    batcher: mpsc::Sender<Incoming>,
    buf: BytesMut,
    out: BytesMut,
    frames: Frames,
    inflight: InFlight<Reply>,
    exchanges: Exchanges,
    acks: AckSender,
    settled: mpsc::UnboundedReceiver<AckResult>,
    /// A message that was read and has no room yet.
    held: Option<Held>,
    /// The size of a packet that has no room yet, and its place among those that wait.
    wanted: Option<(usize, Room)>,
    /// The id of a PUBREL that waits for PUBREC, which is sent when the message is safe.
    early_release: Option<u16>,
    /// Set while the current packet is large.
    large: Option<LargePacket>,
    /// Who its large packets are counted for.
    owner: Owner,
    stopping: bool,
    /// It is not read because of its sender's quota.
    is_paused: bool,
    /// Bytes that were read and do not count against the quota yet.
    uncounted: usize,
    /// When bytes were last read.
    last_received: Instant,
    /// When the packets in the buffer are handled.
    now: Now,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection whose CONNACK is in `out`; `buf` may contain bytes after CONNECT.
    pub(super) fn new(
        stream: S,
        shared: Arc<Shared>,
        client: Client,
        authorization: Authorization,
        batcher: mpsc::Sender<Incoming>,
        buf: BytesMut,
        out: BytesMut,
    ) -> Connection<S> {
        let (acks, settled) = mpsc::unbounded_channel();
        let acks = Arc::new(acks);
        let owner = authorization.owner(client.peer.ip());
        let limits = Limits {
            packet_bytes_max: shared.settings.packet_max_bytes as usize,
            topic_bytes_max: shared.settings.topic_max_bytes,
            user_properties: shared.user_properties.clone(),
        };
        Connection {
            now: shared.deps.clock.now(),
            frames: Frames::new(client.version, limits),
            stream,
            shared,
            client,
            authorization,
            batcher,
            uncounted: buf.len(),
            buf,
            out,
            inflight: InFlight::default(),
            exchanges: Exchanges::default(),
            acks,
            settled,
            held: None,
            wanted: None,
            early_release: None,
            large: None,
            owner,
            stopping: false,
            is_paused: false,
            last_received: Instant::now(),
        }
    }

    /// Serves the connection until it ends.
    pub(super) async fn serve(
        mut self,
        place: Registration,
        certificate: Option<ClientCertificate>,
    ) -> CloseReason {
        let revoked = self
            .authorization
            .clone()
            .ended(self.shared.deps.clock.clone());
        let certificate_ended = async {
            match certificate {
                Some(certificate) => certificate.ended().await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            biased;
            // Independent of the connection's other waits.
            end = revoked => end,
            () = certificate_ended => CloseReason::Certificate,
            end = self.run(&place.taken_over) => match end {
                Ok(never) => match never {},
                Err(end) => end,
            },
        };
        let text = end.text(&self.shared.settings);
        match (&text, end) {
            (
                Some(text),
                CloseReason::Revoked | CloseReason::Expired | CloseReason::Certificate,
            ) => {
                self.audit(AuditKind::AccessEnded, end.as_str())
                    .detail(text)
                    .record();
            }
            (Some(text), _) => self
                .shared
                .logs
                .disconnected(&self.client, end.as_str(), text),
            (None, _) => {}
        }
        // Messages that are safe by now are still acknowledged, unless the device has left.
        if !matches!(
            end,
            CloseReason::Left | CloseReason::Lost | CloseReason::Stuck
        ) {
            if matches!(
                end,
                CloseReason::ProtocolError(_) | CloseReason::ReplyTooLarge
            ) {
                self.settle_accepted().await;
            }
            self.send_disconnect(end, text).await;
        }
        end
    }

    async fn run(
        &mut self,
        taken_over: &CancellationToken,
    ) -> Result<std::convert::Infallible, CloseReason> {
        let shared = self.shared.clone();
        loop {
            self.now = shared.deps.clock.now();
            let mut paused = self.paused_until();
            // First, because a PUBREL in the buffer may wait for its PUBREC.
            self.acknowledge()?;
            let read = self.read_packets();
            self.count_received();
            read?;
            if self.is_paused && paused.is_none() {
                paused = self.paused_until();
                if paused.is_none() {
                    // Packets may have been left in the buffer.
                    continue;
                }
            }
            let is_more = self.out.len() >= OUT_BYTES_MAX;
            self.flush().await?;
            if is_more {
                continue;
            }
            let may_read = self.is_ready() && !self.is_stopped_by_quota();
            let has_window = self
                .held
                .as_ref()
                .is_some_and(|held| self.has_window(&held.publish));
            let silence = self.last_received + self.client.silence_max;
            let late = self.large.as_ref().map_or(silence, |large| large.until);
            if may_read {
                self.buf
                    .reserve(self.frames.missing(&self.buf).max(READ_BYTES));
            }
            tokio::select! {
                biased;
                Some(result) = self.settled.recv() => self.settle(result),
                () = taken_over.cancelled() => return Err(CloseReason::TakenOver),
                () = shared.deps.drained.cancelled() => return Err(CloseReason::Stopped),
                () = shared.deps.stop.cancelled(), if !self.stopping => {
                    self.stopping = true;
                    // Not accepted, so not acknowledged.
                    (self.held, self.wanted) = (None, None);
                }
                room = room(self.batcher.clone(), &shared, &self.held), if has_window => {
                    let (slot, permits) = room.ok_or(CloseReason::NotDelivered)?;
                    if let Some(held) = self.held.take() {
                        let version = self.client.version;
                        slot.send(held.incoming(&self.acks, &mut self.inflight, version, permits));
                    }
                }
                () = given(&mut self.wanted), if self.wanted.is_some() => {
                    if let Some((bytes, room)) = self.wanted.take() {
                        self.gather(bytes, room);
                    }
                }
                () = tokio::time::sleep_until(paused.unwrap_or(silence)), if paused.is_some() => {}
                n = self.stream.read_buf(&mut self.buf), if may_read => match n {
                    Ok(0) | Err(_) => return Err(CloseReason::Lost),
                    Ok(n) => {
                        self.uncounted += n;
                        self.last_received = Instant::now();
                    }
                },
                // While nothing is read, silence cannot be detected.
                () = tokio::time::sleep_until(silence), if may_read => return Err(CloseReason::Silent),
                () = tokio::time::sleep_until(late), if may_read && self.large.is_some() => return Err(CloseReason::Slow),
            }
            if !may_read {
                self.last_received = Instant::now();
            }
        }
    }

    /// An event of the audit log about this device.
    fn audit(&self, kind: AuditKind, reason: &'static str) -> AuditEvent<'_> {
        let Client {
            peer, token, shown, ..
        } = &self.client;
        AuditEvent::new(kind, NAME, *peer, reason)
            .token(token)
            .client(shown)
    }

    /// Until when the device is not read because its sender has reached its quota. Counts each
    /// pause once.
    fn paused_until(&mut self) -> Option<Instant> {
        let pause = self.authorization.pause(self.now);
        if let Some(exceeded) = &pause
            && !self.is_paused
        {
            metrics::quota_exceeded_total(exceeded.limit, 1);
            let limit = exceeded.limit.as_str();
            self.audit(AuditKind::QuotaExceeded, limit).record();
        }
        self.is_paused = pause.is_some();
        pause.map(|exceeded| Instant::now() + exceeded.retry_after.min(PAUSE_MAX))
    }

    /// Counts what was read against the quota of the sender.
    fn count_received(&mut self) {
        let bytes = std::mem::take(&mut self.uncounted);
        if bytes > 0
            && let Ok(Some(grant)) = self.authorization.current(self.now.wall_ms)
        {
            grant.usage.charge(&grant.quota, 0, bytes);
            self.paused_until();
        }
    }

    /// Whether nothing that was received has to wait.
    fn is_ready(&self) -> bool {
        self.held.is_none()
            && self.wanted.is_none()
            && self.early_release.is_none()
            && !self.stopping
    }

    /// Whether what comes next has to wait until the pause ends.
    fn is_stopped_by_quota(&self) -> bool {
        // An empty buffer may continue with one.
        let is_ping = || {
            self.buf
                .iter()
                .zip(PINGREQ)
                .all(|(byte, of_ping)| *byte == of_ping)
        };
        self.is_paused && self.large.is_none() && !is_ping()
    }

    /// Handles all available packets, until a message or a packet has no room.
    fn read_packets(&mut self) -> Result<(), CloseReason> {
        let fault = |fault: ProtocolError| CloseReason::ProtocolError(fault.0);
        while self.is_ready() && !self.is_stopped_by_quota() && self.out.len() < OUT_BYTES_MAX {
            match self.frames.next(&mut self.buf).map_err(fault)? {
                Next::More => break,
                Next::Large(bytes) => {
                    let mut room = self.shared.large.ask(&self.owner, bytes);
                    if room.is_given() {
                        self.gather(bytes, room);
                    } else {
                        self.wanted = Some((bytes, room));
                    }
                }
                Next::Oversize(bytes) => self.skip(bytes).map_err(fault)?,
                Next::Packet(packet) => {
                    let gathered = self.large.take().and_then(|large| large.room);
                    self.packet(packet, gathered)?;
                }
            }
        }
        Ok(())
    }

    /// Starts to buffer a large packet.
    fn gather(&mut self, bytes: usize, room: Room) {
        self.frames.gather(bytes);
        self.large = Some(LargePacket::new(bytes, Some(room), &self.shared.settings));
    }

    /// Skips a message that is too large. It does not wait for room to keep a part of it, because
    /// the device's other messages wait after it.
    fn skip(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        let mut room = self.shared.large.ask(&self.owner, frames::KEPT_BYTES);
        let room = room.is_given().then_some(room);
        self.frames.skip(
            &mut self.buf,
            if room.is_some() {
                frames::KEPT_BYTES
            } else {
                0
            },
        )?;
        self.large = Some(LargePacket::new(bytes, room, &self.shared.settings));
        Ok(())
    }

    fn packet(&mut self, packet: Packet, gathered: Option<Room>) -> Result<(), CloseReason> {
        match packet {
            Packet::Publish(publish) => self.publish(publish, gathered),
            Packet::PubRel(id) => self.release(id),
            Packet::Subscribe(id, n) => self.reply(Reply::SubAck(id, n)),
            Packet::Unsubscribe(id, n) => self.reply(Reply::UnsubAck(id, n)),
            Packet::Ping => self.reply(Reply::Pong),
            Packet::Disconnect => Err(CloseReason::Left),
            Packet::Unsolicited => Ok(()),
            Packet::Unexpected => Err(CloseReason::ProtocolError(Reason::ProtocolError)),
        }
    }

    /// Handles a PUBREL. An early one waits, and the packets after it: without its PUBREC the message
    /// is not safe, so that PUBCOMP would promise too much, and the next message with this id would
    /// be taken for the same one.
    fn release(&mut self, id: u16) -> Result<(), CloseReason> {
        match self.exchanges.release(id) {
            Release::Ends => self.reply(Reply::PubComp(id)),
            Release::Early => {
                self.early_release = Some(id);
                Ok(())
            }
            Release::Unknown => self.reply(Reply::PubCompUnknown(id)),
        }
    }

    fn publish(&mut self, publish: Publish, gathered: Option<Room>) -> Result<(), CloseReason> {
        if publish.has_alias || publish.topic.is_empty() {
            // None were offered (MQTT 5 §3.3.2.3.4), and without an alias a topic has at least one
            // character.
            return Err(CloseReason::ProtocolError(Reason::TopicAliasInvalid));
        }
        let topic = std::str::from_utf8(&publish.topic)
            .map_err(|_| CloseReason::ProtocolError(Reason::MalformedPacket))?;
        let now_ms = self.now.wall_ms;
        let sender = self.authorization.current(now_ms)?.cloned();
        let sent = match publish.qos {
            2 => self.exchanges.publish(publish.id),
            _ => Sent::First,
        };
        if let Some(grant) = &sender {
            grant.usage.note_used(now_ms);
            // As one reading; the batcher, which decodes it, charges the others. A repeated packet
            // brings none.
            let readings = usize::from(sent == Sent::First);
            grant.usage.charge(&grant.quota, readings, 0);
            self.paused_until();
        }
        match sent {
            Sent::First => {}
            Sent::Again => return Ok(()),
            Sent::AgainRecorded => return self.reply(Reply::PubRec(publish.id)),
        }
        let refused = error(&publish, topic, &self.shared.settings);
        if let Some(RefusedMessage { reason, detail, .. }) = &refused {
            self.shared
                .logs
                .unwanted(&self.client, topic, *reason, detail);
        } else if !self.shared.is_wanted(topic) {
            self.shared.logs.unwanted(
                &self.client,
                topic,
                RejectReason::NoSubscription,
                "no [[listen.mqtt.topics]] matches",
            );
        }
        self.held = Some(Held {
            publish,
            refused,
            sender,
            _gathered: gathered,
        });
        self.pass_on_at_once();
        Ok(())
    }

    /// Passes the held message on if there is room now.
    fn pass_on_at_once(&mut self) {
        let Some(held) = self.held.take() else { return };
        let of_all = self
            .shared
            .bytes
            .clone()
            .try_acquire_many_owned(weight(&held))
            .ok();
        let permits = of_all.and_then(|of_all| {
            let _own = try_queue(&held)?;
            Some(Permits { of_all, _own })
        });
        match (
            self.has_window(&held.publish),
            permits,
            self.batcher.try_reserve(),
        ) {
            (true, Some(permits), Ok(slot)) => {
                let version = self.client.version;
                slot.send(held.incoming(&self.acks, &mut self.inflight, version, permits));
            }
            _ => self.held = Some(held),
        }
    }

    /// Whether one more message may be in flight; otherwise the device is not read. That also goes for
    /// MQTT 5, although a server may end such a connection (§3.3.4): paho and mosquitto's bridge ignore
    /// the receive maximum when they connect with a backlog, and would come back with it for ever.
    fn has_window(&self, publish: &Publish) -> bool {
        publish.qos == 0 || self.inflight.len() < usize::from(self.shared.settings.window)
    }

    fn settle(&mut self, result: AckResult) {
        self.inflight.settle(result);
        while let Ok(result) = self.settled.try_recv() {
            self.inflight.settle(result);
        }
    }

    /// Acknowledges safe messages, and checks whether the connection must end.
    fn acknowledge(&mut self) -> Result<(), CloseReason> {
        while let Some(Released {
            receipt,
            is_refused,
        }) = self.inflight.release()
        {
            let reply = match receipt {
                Reply::PubAck(id) if is_refused => Reply::PubAckRefused(id),
                Reply::PubRec(id) if is_refused => {
                    self.exchanges.refuse(id);
                    Reply::PubRecRefused(id)
                }
                Reply::PubRec(id) => {
                    self.exchanges.record(id);
                    receipt
                }
                _ => receipt,
            };
            self.reply(reply)?;
        }
        if let Some(id) = self.early_release.take() {
            self.release(id)?;
        }
        match (self.inflight.is_blocked(), self.stopping) {
            (true, false) => Err(CloseReason::NotDelivered),
            (true, true) => Err(CloseReason::Stopped),
            (false, true) if self.inflight.len() == 0 => Err(CloseReason::Stopped),
            (false, _) => Ok(()),
        }
    }
}

#[cfg(test)]
impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Adds received bytes and handles them without waiting.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.now = self.shared.deps.clock.now();
        self.buf.extend_from_slice(bytes);
        self.uncounted += bytes.len();
        let read = self.read_packets();
        self.count_received();
        read
    }

    /// Whether it would read more bytes.
    pub(super) fn reads(&self) -> bool {
        self.is_ready()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.inflight.len()
    }

    pub(super) fn buffered(&self) -> usize {
        self.buf.capacity()
    }
}

/// Waits until the packet that waits for room has it.
async fn given(wanted: &mut Option<(usize, Room)>) {
    if let Some((_, room)) = wanted {
        room.given().await;
    }
}
