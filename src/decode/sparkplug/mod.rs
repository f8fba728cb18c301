//! Sparkplug B (Eclipse Sparkplug 3.0): metrics of edge nodes and their devices, on topics `spBv1.0/…`.
//!
//! The sensor is `group/node`, or `group/node/device`; the metric's name is the field. Metrics of one message and one time
//! are one reading; a metric's own time counts before that of the message. The values in births are readings too. What is
//! null or transient is not stored, nor what belongs to the protocol (`bdSeq`, `Node Control/…`, `Device Control/…`,
//! `_types_/…`); bytes, arrays, DataSets, Templates and values of bad or stale quality are rejected.
//!
//! **State.** Data messages name a metric by an alias, and whether a number has a sign they do not say: both stand in the
//! birth that came before. So what births define is remembered for each node and each of its devices, [`BYTES_MAX`] in
//! all; a birth that finds no room is rejected as such (its readings are taken). An alias is looked for in the device's
//! birth, then in its node's. An NBIRTH makes an end of all its node had, devices included (§6.4.20); so does the NDEATH
//! with the same `bdSeq`, since the next birth may have other aliases, and it may be lost: births are sent with QoS 0.
//!
//! **Never guessed.** A metric whose alias is not known, or whose number could have a sign or not, is rejected; as the
//! dead letter of its message it can be looked at, though without the birth not be replayed. And a rebirth is asked for
//! ([`Rebirth`]): also where `seq` has a gap, since what is missing may have been a birth. A repeated `seq` is a message
//! that came again. After a start nothing is known, and so every node that uses aliases is asked once; at most once in
//! [`REBIRTH_EVERY_MS`] for each.
//!
//! **Connections.** When the broker has not kept the session, births may have been missed: [`Sparkplug::forget`]. When it
//! has, what was not acknowledged comes again, with numbers that lie behind: [`Sparkplug::reconnected`].
//!
//! The messages of a node must all come here, in their order: shared subscriptions cannot be used.

mod births;
mod metric;
mod protobuf;
mod readings;
#[cfg(test)]
mod tests;
mod topic;

use std::collections::HashMap;

use self::births::{Alias, Births, Definition, METRICS_MAX};
use self::metric::{Metric, NoValue, Payload};
use self::readings::Gathered;
use self::topic::{Address, Kind};
use super::names::excerpt;
use super::rejects::{Fault, Rejects};
use super::{Context, reasons};
use crate::model::BatchBuilder;

/// The name of the format in settings. It is none of [`super::Format`]: those read a payload by itself.
pub const NAME: &str = "sparkplug";
/// Memory for what births define.
pub const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Nodes and devices that are remembered. A node is also remembered for when it was last asked for a rebirth; beyond the
/// limit those that only are so are forgotten, and nodes that are not known are not asked.
pub const NODES_MAX: usize = 100_000;
/// How long a node is left alone after it was asked for a rebirth.
pub const REBIRTH_EVERY_MS: i64 = 60_000;

/// What comes before the sensor's names for metrics that are no measurements.
const PROTOCOL: [&str; 3] = ["Node Control/", "Device Control/", "_types_/"];
const BD_SEQ: &str = "bdSeq";

/// A command to a node: to send its births again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebirth {
    /// `spBv1.0/group/NCMD/node`.
    pub topic: String,
    /// The metric `Node Control/Rebirth` = true.
    pub payload: Vec<u8>,
    /// Why, for the log.
    pub why: &'static str,
}

/// What is known of all nodes.
#[derive(Debug, Default)]
pub struct Sparkplug {
    nodes: HashMap<Box<str>, Node>,
    /// Of all births.
    bytes: usize,
    /// How many devices all nodes have.
    devices: usize,
    /// Counts connections.
    connection: u32,
}

/// An edge node.
#[derive(Debug, Default)]
struct Node {
    own: Births,
    devices: HashMap<Box<str>, Births>,
    /// The last number.
    seq: Option<u8>,
    bd_seq: Option<u64>,
    asked_ms: Option<i64>,
    /// The connection of its last message.
    connection: u32,
}

impl Node {
    fn bytes(&self) -> usize {
        self.own.bytes() + self.devices.iter().map(|(name, births)| name.len() + births.bytes()).sum::<usize>()
    }

    fn is_unknown(&self) -> bool {
        self.seq.is_none() && self.bytes() == 0
    }

    /// Takes the number of a message; whether some before it are missing.
    fn misses_some(&mut self, seq: Option<u64>, connection: u32) -> bool {
        let is_first = std::mem::replace(&mut self.connection, connection) != connection;
        // A message without a number, or with one that there is none, says nothing about others.
        let Some(seq) = seq.and_then(|seq| u8::try_from(seq).ok()) else { return false };
        let Some(last) = self.seq.replace(seq) else { return false };
        match seq.wrapping_sub(last.wrapping_add(1)) {
            // In order; or the last one again.
            0 | 255 => false,
            // Behind, and the first of a connection: what was not acknowledged comes again.
            128.. => !is_first,
            _ => true,
        }
    }

    /// What a metric of a data message is.
    fn definition(&self, device: Option<&str>, alias: u64) -> Option<Alias<'_>> {
        let device = device.and_then(|device| self.devices.get(device)?.alias(alias));
        device.or_else(|| self.own.alias(alias))
    }

    fn datatype(&self, device: Option<&str>, name: &str) -> Option<u64> {
        match device {
            Some(device) => self.devices.get(device)?.datatype(name),
            None => self.own.datatype(name),
        }
    }
}

impl Sparkplug {
    /// Nothing is known.
    pub fn new() -> Sparkplug {
        Sparkplug::default()
    }

    /// Forgets all: births may have been missed.
    pub fn forget(&mut self) {
        *self = Sparkplug { connection: self.connection, ..Sparkplug::default() };
    }

    /// A new connection begins; what was not acknowledged on the last one comes again.
    pub fn reconnected(&mut self) {
        self.connection = self.connection.wrapping_add(1);
    }

    /// Reads a message: appends its readings to `out` and its rejects, each with the place of its metric, to `rejects`.
    /// Sensor and field of the context do not count. A message that comes again changes nothing.
    pub fn decode(
        &mut self,
        topic: &str,
        payload: &[u8],
        cx: &Context<'_>,
        out: &mut BatchBuilder,
        rejects: &mut Rejects,
    ) -> Option<Rebirth> {
        let address = match Address::parse(topic) {
            Ok(Some(address)) => address,
            // The state of a host, and commands to nodes.
            Ok(None) => return None,
            Err(detail) => {
                rejects.push(0, reasons::TOPIC_MISMATCH, detail);
                return None;
            }
        };
        let payload = match Payload::read(payload) {
            Ok(payload) => payload,
            Err(e) => {
                rejects.push(0, reasons::INVALID_SPARKPLUG, format!("the payload is no Sparkplug message: {}", e.0));
                return None;
            }
        };
        let node = address.node_id();
        let mut ask = match address.kind {
            Kind::NodeBirth | Kind::NodeDeath => None,
            Kind::DeviceBirth | Kind::Data | Kind::DeviceDeath => {
                let node = self.nodes.get_mut(&*node);
                let gap = node.is_some_and(|node| node.misses_some(payload.seq, self.connection));
                gap.then_some("messages of the node are missing")
            }
        };
        match (address.kind, address.device) {
            (Kind::NodeDeath, _) => self.node_death(&node, &payload),
            (Kind::DeviceDeath, Some(device)) => self.device_death(&node, device),
            (Kind::Data, device) => {
                let known = self.nodes.get(&*node);
                let mut gathered = Gathered::new(cx, payload.timestamp, rejects);
                for (index, bytes) in gathered.limited(&payload.metrics) {
                    match data(bytes, known, device, index, &mut gathered) {
                        Ok(()) => {}
                        Err(NoValue::Fault(fault)) => gathered.reject(index, fault),
                        Err(NoValue::UnknownType) => {
                            ask = ask.or(Some("a birth of the node is not known"));
                        }
                    }
                }
                gathered.commit(&address.sensor_id(), out);
            }
            (Kind::NodeBirth | Kind::DeviceBirth, device) => {
                let mut gathered = Gathered::new(cx, payload.timestamp, rejects);
                let (births, bd_seq) = birth(&payload, &mut gathered);
                gathered.commit(&address.sensor_id(), out);
                let kept = match device {
                    None => self.node_birth(&node, births, payload.seq, bd_seq),
                    Some(device) => self.device_birth(&node, device, births, payload.seq),
                };
                if !kept || payload.metrics.len() > METRICS_MAX {
                    let detail = "no room for what this birth defines: its aliases are not known";
                    rejects.push(payload.metrics.len(), reasons::TOO_MANY_METRICS, detail);
                }
            }
            (Kind::DeviceDeath, None) => {}
        }
        self.ask(&address, &node, cx.received_at_ms, ask?)
    }

    fn node_birth(&mut self, id: &str, births: Births, seq: Option<u64>, bd_seq: Option<u64>) -> bool {
        let asked_ms = self.nodes.get(id).and_then(|node| node.asked_ms);
        self.remove(id);
        let seq = seq.and_then(|seq| u8::try_from(seq).ok());
        let has_room = self.has_room(births.bytes());
        let own = if has_room { births } else { Births::default() };
        self.bytes += own.bytes();
        if self.nodes.len() + self.devices < NODES_MAX {
            let connection = self.connection;
            self.nodes.insert(id.into(), Node { own, seq, bd_seq, asked_ms, connection, ..Node::default() });
        }
        has_room
    }

    fn device_birth(&mut self, id: &str, device: &str, births: Births, seq: Option<u64>) -> bool {
        self.device_death(id, device);
        let bytes = device.len() + births.bytes();
        if !self.has_room(bytes) {
            return false;
        }
        let connection = self.connection;
        let node = self.nodes.entry(id.into()).or_insert_with(|| Node {
            seq: seq.and_then(|seq| u8::try_from(seq).ok()),
            connection,
            ..Node::default()
        });
        node.devices.insert(device.into(), births);
        self.bytes += bytes;
        self.devices += 1;
        true
    }

    fn device_death(&mut self, id: &str, device: &str) {
        let births = self.nodes.get_mut(id).and_then(|node| node.devices.remove(device));
        if let Some(births) = births {
            self.bytes -= device.len() + births.bytes();
            self.devices -= 1;
        }
    }

    fn node_death(&mut self, id: &str, payload: &Payload<'_>) {
        let Some(node) = self.nodes.get(id) else { return };
        let asked_ms = node.asked_ms;
        // A death of an older session, which the broker noticed late, does not end this one.
        if let (Some(ours), Some(theirs)) = (node.bd_seq, bd_seq(payload))
            && ours != theirs
        {
            return;
        }
        self.remove(id);
        // That it was asked is not forgotten: a node in trouble is not asked again and again.
        self.nodes.insert(id.into(), Node { asked_ms, connection: self.connection, ..Node::default() });
    }

    fn remove(&mut self, id: &str) {
        if let Some(node) = self.nodes.remove(id) {
            self.bytes -= node.bytes();
            self.devices -= node.devices.len();
        }
    }

    /// Whether there is room for another node or device with so many bytes; makes some where that is easy.
    fn has_room(&mut self, bytes: usize) -> bool {
        if self.nodes.len() + self.devices + 2 > NODES_MAX {
            self.nodes.retain(|_, node| !node.is_unknown());
        }
        self.nodes.len() + self.devices + 2 <= NODES_MAX && self.bytes + bytes <= BYTES_MAX
    }

    fn ask(&mut self, address: &Address<'_>, id: &str, now_ms: i64, why: &'static str) -> Option<Rebirth> {
        if !self.nodes.contains_key(id) {
            if !self.has_room(0) {
                return None;
            }
            self.nodes.insert(id.into(), Node { connection: self.connection, ..Node::default() });
        }
        let node = self.nodes.get_mut(id)?;
        // A clock that was set back must not keep it from being asked for as long.
        if node.asked_ms.is_some_and(|asked| (asked..asked + REBIRTH_EVERY_MS).contains(&now_ms)) {
            return None;
        }
        node.asked_ms = Some(now_ms);
        Some(Rebirth { topic: address.command_topic(), payload: metric::rebirth(now_ms), why })
    }
}

/// Whether a name belongs to the protocol and not to a measurement.
fn is_protocol(name: &str) -> bool {
    name == BD_SEQ || PROTOCOL.iter().any(|prefix| name.starts_with(prefix))
}

fn malformed(e: protobuf::Malformed) -> Fault {
    Fault::new(reasons::INVALID_SPARKPLUG, format!("the metric cannot be read: {}", e.0))
}

/// The session's number in a death.
fn bd_seq(payload: &Payload<'_>) -> Option<u64> {
    let metrics = payload.metrics.iter().filter_map(|bytes| Metric::read(bytes).ok());
    metrics.filter(|metric| metric.name().is_ok_and(|name| name == Some(BD_SEQ))).find_map(|metric| metric.whole())
}

/// Reads a birth: its values, what it defines, and the session's number.
fn birth<'a>(payload: &Payload<'a>, gathered: &mut Gathered<'_, 'a>) -> (Births, Option<u64>) {
    let (mut definitions, mut bd_seq) = (Vec::new(), None);
    for (index, bytes) in gathered.limited(&payload.metrics) {
        let result = (|| {
            let metric = Metric::read(bytes).map_err(malformed)?;
            let Some(name) = metric.name()? else {
                return Err(Fault::new(reasons::INVALID_SPARKPLUG, "a metric of a birth has no name"));
            };
            if name == BD_SEQ {
                bd_seq = metric.whole();
            }
            if is_protocol(name) {
                return Ok(());
            }
            if definitions.len() < METRICS_MAX {
                let definition = Definition { name: name.into(), datatype: metric.datatype };
                definitions.push((definition, metric.alias));
            }
            match gathered.take(index, name, &metric, metric.datatype) {
                Err(NoValue::UnknownType) => Err(unknown_type(name)),
                Err(NoValue::Fault(fault)) => Err(fault),
                Ok(()) => Ok(()),
            }
        })();
        if let Err(fault) = result {
            gathered.reject(index, fault);
        }
    }
    (Births::new(definitions), bd_seq)
}

/// Reads a metric of a data message. Where a birth is missing for it, it is rejected and `UnknownType` is the answer.
fn data<'a>(
    bytes: &'a [u8],
    node: Option<&'a Node>,
    device: Option<&str>,
    index: usize,
    gathered: &mut Gathered<'_, 'a>,
) -> Result<(), NoValue> {
    let metric = Metric::read(bytes).map_err(|e| NoValue::Fault(malformed(e)))?;
    let (name, datatype) = match (metric.name().map_err(NoValue::Fault)?, metric.alias) {
        (Some(name), _) => (name, node.and_then(|node| node.datatype(device, name))),
        (None, Some(alias)) => match node.and_then(|node| node.definition(device, alias)) {
            Some(Alias::Metric(definition)) => (&*definition.name, definition.datatype),
            Some(Alias::Ambiguous) => {
                let detail = format!("the birth gave the alias {alias} to several metrics");
                return Err(NoValue::Fault(Fault::new(reasons::UNKNOWN_METRIC, detail)));
            }
            None if metric.raw().is_none() || metric.is_transient => return Ok(()),
            None => {
                let detail = format!("no birth is known that defines the alias {alias}; a rebirth is asked for");
                gathered.reject(index, Fault::new(reasons::UNKNOWN_METRIC, detail));
                return Err(NoValue::UnknownType);
            }
        },
        (None, None) => {
            let detail = "a metric without name and alias";
            return Err(NoValue::Fault(Fault::new(reasons::INVALID_SPARKPLUG, detail)));
        }
    };
    if is_protocol(name) {
        return Ok(());
    }
    let result = gathered.take(index, name, &metric, metric.datatype.or(datatype));
    if let Err(NoValue::UnknownType) = result {
        gathered.reject(index, unknown_type(name));
    }
    result
}

fn unknown_type(name: &str) -> Fault {
    let detail = format!("{}: the number may be negative, and no birth is known that tells its type", excerpt(name));
    Fault::new(reasons::UNKNOWN_METRIC, detail)
}
