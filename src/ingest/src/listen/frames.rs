//! Splits the bytes of a connection into packets in bounded memory. Pure.
//!
//! ```text
//!             ┌─ at most SMALL_BYTES ──────────> buffered, parsed
//! fixed head ─┼─ at most packet_max_bytes ─────> the caller reserves room (`Large`), buffered, parsed
//!             ├─ more, PUBLISH ────────────────> skipped as it arrives (`Oversize`); a part of it becomes a message
//!             └─ more, any other packet ───────> error 0x95
//! ```
//!
//! So the memory of a connection between packets is small, regardless of earlier packets: a large
//! packet takes over the buffer that it arrived in, and a small one is copied out of it.
//! [`Publish::memory_bytes`] is the memory that a message holds. User properties that no rule needs
//! are dropped here, so they use memory only while their packet is parsed.
//!
//! MQTT allows a receiver to read and discard a message that it does not want, and to acknowledge
//! it. If the connection were closed instead, the device would reconnect with the same message, and
//! no message after it would ever arrive.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;

use super::codec::{self, Packet, ProtocolError, Publish, Version};
use super::packet_fields::integer;
use super::strict;

/// A packet of at most this size is buffered without reserving room. A connection holds at most
/// this many bytes (and one read) by itself.
pub(super) const SMALL_BYTES: usize = 4096;
/// Payload bytes that are kept of a skipped message.
pub const KEPT_BYTES: usize = 16 * 1024;
/// The packet type of PUBLISH (first four bits).
const PUBLISH: u8 = 3;

/// Limits of incoming packets.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum packet size including the fixed head; a larger PUBLISH is skipped.
    pub packet_bytes_max: usize,
    /// Bytes that are kept of a skipped message's topic.
    pub topic_bytes_max: usize,
    /// The user properties that a rule needs.
    pub user_properties: Arc<[String]>,
}

/// The result of parsing the available bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes are needed.
    More,
    /// A packet of this size begins; continue with [`Frames::gather`].
    Large(usize),
    /// A PUBLISH of this size begins, above the limit; continue with [`Frames::skip`].
    Oversize(usize),
    /// A complete packet, or the kept parts of a PUBLISH that was skipped.
    Packet(Packet),
}

#[derive(Debug)]
enum State {
    Between,
    /// The first bytes of the buffer, of this number, are a packet.
    Gathering(usize),
    Skipping(Box<Skip>),
}

/// Splits the bytes of a connection into packets, and skips messages that are too large.
#[derive(Debug)]
pub struct Frames {
    version: Version,
    limits: Limits,
    state: State,
}

/// A fixed head (MQTT §2.1, §2.2 of 3.1.1).
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    first: u8,
    /// Size of the head itself.
    pub(super) bytes: usize,
    /// Size of the rest of the packet.
    pub(super) rest: usize,
}

impl Head {
    pub(super) fn parse(buf: &[u8]) -> Result<Option<Head>, ProtocolError> {
        let Some((&first, lengths)) = buf.split_first() else {
            return Ok(None);
        };
        match integer(lengths) {
            Some((rest, after)) => Ok(Some(Head {
                first,
                bytes: buf.len() - after.len(),
                rest,
            })),
            None if lengths.len() < 4 => Ok(None),
            None => Err(ProtocolError(Reason::MalformedPacket)),
        }
    }
}

impl Frames {
    /// The state before the first byte.
    pub fn new(version: Version, limits: Limits) -> Frames {
        Frames {
            version,
            limits,
            state: State::Between,
        }
    }

    /// Parses the next packet; removes used bytes from `buf`.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Next, ProtocolError> {
        if let State::Between = self.state {
            let Some(head) = Head::parse(buf)? else {
                return Ok(Next::More);
            };
            let bytes = head.bytes + head.rest;
            if bytes > self.limits.packet_bytes_max {
                let is_message = head.first >> 4 == PUBLISH;
                return if is_message {
                    Ok(Next::Oversize(bytes))
                } else {
                    Err(ProtocolError(Reason::PacketTooLarge))
                };
            }
            if bytes > SMALL_BYTES {
                return Ok(Next::Large(bytes));
            }
            self.state = State::Gathering(bytes);
        }
        match &mut self.state {
            State::Skipping(skip) => {
                let Some(publish) = skip.feed(buf)? else {
                    return Ok(Next::More);
                };
                self.state = State::Between;
                Ok(Next::Packet(Packet::Publish(publish)))
            }
            State::Gathering(bytes) if buf.len() >= *bytes => {
                let bytes = *bytes;
                self.state = State::Between;
                self.packet(buf, bytes).map(Next::Packet)
            }
            State::Gathering(_) | State::Between => Ok(Next::More),
        }
    }

    /// Continues after [`Next::Large`]: room is reserved.
    pub fn gather(&mut self, bytes: usize) {
        self.state = State::Gathering(bytes);
    }

    /// Continues after [`Next::Oversize`]; keeps at most `kept_bytes_max` bytes of the payload.
    pub fn skip(&mut self, buf: &mut BytesMut, kept_bytes_max: usize) -> Result<(), ProtocolError> {
        let Some(head) = Head::parse(buf)? else {
            return Ok(());
        };
        self.state = State::Skipping(Box::new(Skip::new(
            self.version,
            head,
            &self.limits,
            kept_bytes_max,
        )?));
        buf.advance(head.bytes);
        Ok(())
    }

    /// Missing bytes of the current packet, if known.
    pub(super) fn missing(&self, buf: &BytesMut) -> usize {
        match self.state {
            State::Gathering(bytes) => bytes.saturating_sub(buf.len()),
            State::Between | State::Skipping(_) => 0,
        }
    }

    fn packet(&self, buf: &mut BytesMut, bytes: usize) -> Result<Packet, ProtocolError> {
        let mut whole = buf.split_to(bytes);
        if bytes > SMALL_BYTES {
            // The packet takes over the buffer; a few bytes may follow in it.
            *buf = BytesMut::from(&buf[..]);
        }
        // It is complete, so the head is read.
        if let Some(head) = Head::parse(&whole)? {
            strict::check(self.version, head.first, &whole[head.bytes..])?;
        }
        // If the codec needs more, inner lengths are wrong.
        match codec::read_packet(self.version, &mut whole)?
            .ok_or(ProtocolError(Reason::MalformedPacket))?
        {
            Packet::Publish(publish) => Ok(Packet::Publish(self.compact(publish, bytes))),
            other => Ok(other),
        }
    }

    /// Reduces a message to the memory that it needs, and counts it.
    fn compact(&self, mut publish: Publish, packet_bytes: usize) -> Publish {
        let mut wanted: Vec<(String, String)> = vec![];
        for (name, value) in publish.properties.drain(..) {
            let is_wanted = self.limits.user_properties.contains(&name) && !value.is_empty();
            // Of equal names the first is used.
            if is_wanted && wanted.iter().all(|(there, _)| *there != name) {
                wanted.push((name, value));
            }
        }
        wanted.shrink_to_fit();
        publish.properties = wanted;
        publish.packet_bytes = packet_bytes;
        let bytes = publish.topic.len() + publish.payload.len();
        publish.held_bytes = if bytes <= SMALL_BYTES {
            publish.topic = Bytes::copy_from_slice(&publish.topic);
            publish.payload = Bytes::copy_from_slice(&publish.payload);
            bytes
        } else {
            packet_bytes
        };
        publish
    }
}

/// The part of a skipped message that arrives next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    TopicLength,
    Topic(usize),
    Id,
    /// The value so far, and the shift of the next seven bits.
    PropertiesLength(usize, u32),
    Properties(usize),
    Payload,
}

/// A PUBLISH that is being skipped.
#[derive(Debug)]
struct Skip {
    version: Version,
    qos: u8,
    id: u16,
    packet_bytes: usize,
    /// Bytes of the packet that have not arrived yet.
    left: usize,
    part: Part,
    topic: Vec<u8>,
    topic_bytes: usize,
    topic_bytes_max: usize,
    payload: Vec<u8>,
    payload_bytes: usize,
    kept_bytes_max: usize,
}

impl Skip {
    fn new(
        version: Version,
        head: Head,
        limits: &Limits,
        kept_bytes_max: usize,
    ) -> Result<Skip, ProtocolError> {
        let qos = (head.first >> 1) & 3;
        let is_dup = head.first & 8 != 0;
        if qos == 3 || (qos == 0 && is_dup) {
            return Err(ProtocolError(Reason::MalformedPacket));
        }
        Ok(Skip {
            version,
            qos,
            id: 0,
            packet_bytes: head.bytes + head.rest,
            left: head.rest,
            part: Part::TopicLength,
            topic: vec![],
            topic_bytes: 0,
            topic_bytes_max: limits.topic_bytes_max,
            payload: Vec::with_capacity(kept_bytes_max.min(head.rest)),
            payload_bytes: 0,
            kept_bytes_max,
        })
    }

    /// Consumes the available bytes; returns the message after the last one.
    fn feed(&mut self, buf: &mut BytesMut) -> Result<Option<Publish>, ProtocolError> {
        loop {
            self.part = match self.part {
                Part::TopicLength => {
                    let Some(length) = self.number(buf)? else {
                        return Ok(None);
                    };
                    self.topic_bytes = usize::from(length);
                    Part::Topic(self.within(usize::from(length))?)
                }
                Part::Topic(left) => {
                    let bytes = self.take(buf, left);
                    let room = self.topic_bytes_max - self.topic.len();
                    self.topic
                        .extend_from_slice(&bytes[..bytes.len().min(room)]);
                    if bytes.len() < left {
                        self.part = Part::Topic(left - bytes.len());
                        return Ok(None);
                    }
                    self.check_topic()?;
                    if self.qos > 0 {
                        Part::Id
                    } else {
                        self.after_id()
                    }
                }
                Part::Id => {
                    let Some(id) = self.number(buf)? else {
                        return Ok(None);
                    };
                    if id == 0 {
                        return Err(ProtocolError(Reason::MalformedPacket));
                    }
                    self.id = id;
                    self.after_id()
                }
                Part::PropertiesLength(value, shift) => {
                    self.within(1)?;
                    let Some(&byte) = self.take(buf, 1).first() else {
                        return Ok(None);
                    };
                    let value = value | usize::from(byte & 0x7f) << shift;
                    match byte {
                        0..0x80 => Part::Properties(self.within(value)?),
                        _ if shift == 21 => return Err(ProtocolError(Reason::MalformedPacket)),
                        _ => Part::PropertiesLength(value, shift + 7),
                    }
                }
                Part::Properties(left) => {
                    let passed = self.take(buf, left).len();
                    if passed < left {
                        self.part = Part::Properties(left - passed);
                        return Ok(None);
                    }
                    Part::Payload
                }
                Part::Payload => {
                    let bytes = self.take(buf, self.left);
                    self.payload_bytes += bytes.len();
                    let room = self.kept_bytes_max - self.payload.len();
                    self.payload
                        .extend_from_slice(&bytes[..bytes.len().min(room)]);
                    return Ok((self.left == 0).then(|| self.publish()));
                }
            };
        }
    }

    fn after_id(&self) -> Part {
        match self.version {
            Version::V4 => Part::Payload,
            Version::V5 => Part::PropertiesLength(0, 0),
        }
    }

    /// Checks a length field: returns it if the packet has that many bytes left.
    fn within(&self, bytes: usize) -> Result<usize, ProtocolError> {
        if bytes <= self.left {
            Ok(bytes)
        } else {
            Err(ProtocolError(Reason::MalformedPacket))
        }
    }

    /// Removes up to `most` bytes from the buffer.
    fn take(&mut self, buf: &mut BytesMut, most: usize) -> BytesMut {
        let bytes = buf.split_to(most.min(buf.len()));
        self.left -= bytes.len();
        bytes
    }

    fn number(&mut self, buf: &mut BytesMut) -> Result<Option<u16>, ProtocolError> {
        self.within(2)?;
        if buf.len() < 2 {
            return Ok(None);
        }
        let bytes = self.take(buf, 2);
        Ok(Some(u16::from_be_bytes([bytes[0], bytes[1]])))
    }

    /// The rules for a topic name (MQTT §4.7 and §1.5.3 of 3.1.1), for the part that was kept.
    fn check_topic(&mut self) -> Result<(), ProtocolError> {
        if self.topic_bytes == 0 {
            // Only a topic alias could replace it, and none is offered.
            let is_v5 = self.version == Version::V5;
            return Err(ProtocolError(if is_v5 {
                Reason::TopicAliasInvalid
            } else {
                Reason::MalformedPacket
            }));
        }
        let is_cut = self.topic.len() < self.topic_bytes;
        if let Err(error) = std::str::from_utf8(&self.topic) {
            if !is_cut || error.error_len().is_some() {
                return Err(ProtocolError(Reason::MalformedPacket));
            }
            self.topic.truncate(error.valid_up_to());
        }
        let is_wrong = self
            .topic
            .iter()
            .any(|byte| matches!(byte, b'+' | b'#' | 0));
        if is_wrong {
            Err(ProtocolError(Reason::MalformedPacket))
        } else {
            Ok(())
        }
    }

    fn publish(&mut self) -> Publish {
        self.topic.shrink_to_fit();
        self.payload.shrink_to_fit();
        let topic = std::mem::take(&mut self.topic);
        let payload = std::mem::take(&mut self.payload);
        Publish {
            held_bytes: topic.len() + payload.len(),
            topic: topic.into(),
            payload: payload.into(),
            qos: self.qos,
            id: self.id,
            has_alias: false,
            properties: vec![],
            packet_bytes: self.packet_bytes,
            oversize: Some(codec::Oversize {
                topic_bytes: self.topic_bytes,
                payload_bytes: self.payload_bytes,
            }),
        }
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
