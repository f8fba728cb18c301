//! Sparkplug B (Eclipse Sparkplug 3.0): metrics of edge nodes and their devices, on topics
//! `spBv1.0/…`.
//!
//! The sensor is `group/node`, or `group/node/device`; the field is the metric's name. Metrics of
//! one message with the same time form one reading; a metric's own time overrides that of the
//! message. The values in births are readings too. Null and transient values are not stored, nor
//! are metrics of the protocol itself (`bdSeq`, `Node Control/…`, `Device Control/…`, `_types_/…`).
//! Bytes, arrays, DataSets, Templates and values of bad or stale quality are rejected.
//!
//! **State.** A data message names metrics by alias, and does not declare whether a number is
//! signed: both are in the preceding birth. So the definitions in births are kept for each node and
//! each of its devices, up to [`BYTES_MAX`] in total. A birth beyond that limit is rejected (its
//! readings are accepted). An alias is looked up first in the device's birth, then in its node's.
//! An NBIRTH clears all definitions of its node, including devices (§6.4.20). So does an NDEATH
//! with the same `bdSeq`, because the next birth may assign other aliases, and may be lost: births
//! are sent with QoS 0.
//!
//! **No guessing.** A metric with an unknown alias, or with a number of unknown signedness, is
//! rejected. Its message becomes a dead letter for inspection, although it cannot be replayed
//! without the birth. The service then requests a rebirth ([`Rebirth`]); it also does so after a
//! gap in `seq`, because the missing message may have been a birth. A repeated `seq` is a repeated
//! message. After a start, births are unknown or from before it, so every node that uses aliases
//! gets one request; each node gets at most one per [`REBIRTH_EVERY_MS`].
//!
//! **Connections.** If the broker did not keep the session, births may have been missed:
//! [`Sparkplug::forget`]. If it did, it repeats unacknowledged messages, with older sequence
//! numbers: [`Sparkplug::reconnected`].
//!
//! **Restart.** The births can be kept as bytes: [`Sparkplug::to_bytes`],
//! [`Sparkplug::from_bytes`].
//!
//! All messages of a node must arrive here, in order: shared subscriptions cannot be used.

mod births;
mod kept;
mod metric;
#[cfg(test)]
mod metrics_tests;
mod readings;
#[cfg(test)]
mod tests;
mod topic;

use std::collections::HashMap;

pub use self::kept::Damaged;

use self::births::{Alias, Births, Definition, METRICS_MAX};
use self::metric::{Metric, NoValue, Payload};
use self::readings::Gathered;
use self::topic::{Address, Kind};
use super::names::excerpt;
use super::rejects::{Fault, Rejects};
use super::{Context, RejectReason};
use model::BatchBuilder;
use model::protobuf;

/// The name of the format in settings. It is not a [`super::Format`], because those decode each
/// payload independently.
pub const NAME: &str = "sparkplug";
/// Memory limit for the definitions in births.
pub const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Limit on nodes and devices in memory. A node entry also records the last rebirth request. Beyond
/// the limit, entries that only record a request are removed, and unknown nodes get no request.
pub(crate) const NODES_MAX: usize = 100_000;
/// The shortest time between two rebirth requests to a node.
pub(crate) const REBIRTH_EVERY_MS: i64 = 60_000;

/// Prefixes of metrics that are not measurements.
const PROTOCOL: [&str; 3] = ["Node Control/", "Device Control/", "_types_/"];
const BD_SEQ: &str = "bdSeq";

/// A command to a node to send its births again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebirth {
    /// `spBv1.0/group/NCMD/node`.
    pub topic: String,
    /// The metric `Node Control/Rebirth` = true.
    pub payload: Vec<u8>,
    /// The reason, for the log.
    pub why: &'static str,
}

/// The definitions of all nodes.
#[derive(Debug, Default)]
pub struct Sparkplug {
    nodes: HashMap<Box<str>, Node>,
    /// Total size of all births.
    bytes: usize,
    /// Number of devices of all nodes.
    devices: usize,
    /// Connection counter.
    connection: u32,
    /// Changes of births so far.
    changes: u64,
}

#[derive(Debug, Default)]
struct Node {
    own: Births,
    devices: HashMap<Box<str>, Births>,
    /// The last sequence number.
    seq: Option<u8>,
    bd_seq: Option<u64>,
    asked_ms: Option<i64>,
    /// The connection of its last message.
    connection: u32,
    /// Its births are from before the service started, and it may have changed them since.
    is_restored: bool,
}

impl Node {
    fn bytes(&self) -> usize {
        self.own.bytes()
            + self
                .devices
                .iter()
                .map(|(name, births)| name.len() + births.bytes())
                .sum::<usize>()
    }

    fn is_unknown(&self) -> bool {
        self.seq.is_none() && self.bytes() == 0
    }

    /// Records the sequence number of a message. Returns whether earlier messages are missing.
    fn misses_some(&mut self, seq: Option<u64>, connection: u32) -> bool {
        let is_first = std::mem::replace(&mut self.connection, connection) != connection;
        // A message without a valid number gives no information about others.
        let Some(seq) = seq.and_then(|seq| u8::try_from(seq).ok()) else {
            return false;
        };
        let Some(last) = self.seq.replace(seq) else {
            return false;
        };
        match seq.wrapping_sub(last.wrapping_add(1)) {
            // In order, or the last message repeated.
            0 | 255 => false,
            // An older number. On the first message of a connection this is normal: unacknowledged
            // messages are repeated.
            128.. => !is_first,
            _ => true,
        }
    }

    /// The definition of an alias in a data message.
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
    /// Creates an empty state.
    pub fn new() -> Sparkplug {
        Sparkplug::default()
    }

    /// Removes all definitions, because births may have been missed.
    pub fn forget(&mut self) {
        let connection = self.connection;
        let changes = self.changes + u64::from(self.bytes > 0);
        *self = Sparkplug {
            connection,
            changes,
            ..Sparkplug::default()
        };
    }

    /// A number that grows with each change of the births.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Marks the start of a new connection, on which unacknowledged messages of the last one are
    /// repeated.
    pub fn reconnected(&mut self) {
        self.connection = self.connection.wrapping_add(1);
    }

    /// Decodes a message: appends its readings to `out` and its rejects, each with the index of its
    /// metric, to `rejects`. Ignores sensor and field of the context. A repeated message changes
    /// nothing. Returns a rebirth request to send, if any.
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
            // Host state and commands to nodes.
            Ok(None) => return None,
            Err(error) => {
                rejects.push(0, RejectReason::TopicMismatch, error.to_string());
                return None;
            }
        };
        let payload = match Payload::parse(payload) {
            Ok(payload) => payload,
            Err(e) => {
                rejects.push(
                    0,
                    RejectReason::InvalidSparkplug,
                    format!("the payload is not a Sparkplug message: {e}"),
                );
                return None;
            }
        };
        if payload.is_compressed {
            let detail = "the payload is compressed, which the specification does not know; switch \
                that off in the node";
            rejects.push(0, RejectReason::InvalidSparkplug, detail);
            return None;
        }
        let node = address.node_id();
        let mut ask = match address.kind {
            Kind::NodeBirth | Kind::NodeDeath => None,
            Kind::DeviceBirth | Kind::Data | Kind::DeviceDeath => {
                let node = self.nodes.get_mut(&*node);
                node.and_then(|node| {
                    let is_restored = std::mem::take(&mut node.is_restored);
                    let gap = node.misses_some(payload.seq, self.connection);
                    let missing = gap.then_some("messages of the node are missing");
                    missing.or(is_restored
                        .then_some("the births of the node are from before the service started"))
                })
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
                            ask = ask.or(Some("a birth of the node is unknown"));
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
                    let detail = "the memory limit for births is reached, so the aliases of this \
                        birth stay unknown";
                    rejects.push(payload.metrics.len(), RejectReason::TooManyMetrics, detail);
                }
            }
            (Kind::DeviceDeath, None) => {}
        }
        self.ask(&address, &node, cx.received_at_ms, ask?)
    }

    fn node_birth(
        &mut self,
        id: &str,
        births: Births,
        seq: Option<u64>,
        bd_seq: Option<u64>,
    ) -> bool {
        let asked_ms = self.nodes.get(id).and_then(|node| node.asked_ms);
        self.remove(id);
        self.changes += 1;
        let seq = seq.and_then(|seq| u8::try_from(seq).ok());
        let has_room = self.has_room(births.bytes());
        let own = if has_room { births } else { Births::default() };
        self.bytes += own.bytes();
        if self.nodes.len() + self.devices < NODES_MAX {
            let connection = self.connection;
            self.nodes.insert(
                id.into(),
                Node {
                    own,
                    seq,
                    bd_seq,
                    asked_ms,
                    connection,
                    ..Node::default()
                },
            );
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
        self.changes += 1;
        self.bytes += bytes;
        self.devices += 1;
        true
    }

    fn device_death(&mut self, id: &str, device: &str) {
        let births = self
            .nodes
            .get_mut(id)
            .and_then(|node| node.devices.remove(device));
        if let Some(births) = births {
            self.bytes -= device.len() + births.bytes();
            self.devices -= 1;
            self.changes += 1;
        }
    }

    fn node_death(&mut self, id: &str, payload: &Payload<'_>) {
        let Some(node) = self.nodes.get(id) else {
            return;
        };
        let asked_ms = node.asked_ms;
        // A death of an older session, which the broker detected late, does not end this one.
        if let (Some(in_birth), Some(in_death)) = (node.bd_seq, bd_seq(payload))
            && in_birth != in_death
        {
            return;
        }
        self.remove(id);
        // The last request is kept, so that a node with problems does not get repeated requests.
        self.nodes.insert(
            id.into(),
            Node {
                asked_ms,
                connection: self.connection,
                ..Node::default()
            },
        );
    }

    fn remove(&mut self, id: &str) {
        if let Some(node) = self.nodes.remove(id) {
            self.bytes -= node.bytes();
            self.devices -= node.devices.len();
            self.changes += 1;
        }
    }

    /// Whether another node or device with this size fits. Frees entries if that is cheap.
    fn has_room(&mut self, bytes: usize) -> bool {
        if self.nodes.len() + self.devices + 2 > NODES_MAX {
            self.nodes.retain(|_, node| !node.is_unknown());
        }
        self.nodes.len() + self.devices + 2 <= NODES_MAX && self.bytes + bytes <= BYTES_MAX
    }

    fn ask(
        &mut self,
        address: &Address<'_>,
        id: &str,
        now_ms: i64,
        why: &'static str,
    ) -> Option<Rebirth> {
        if !self.nodes.contains_key(id) {
            if !self.has_room(0) {
                return None;
            }
            self.nodes.insert(
                id.into(),
                Node {
                    connection: self.connection,
                    ..Node::default()
                },
            );
        }
        let node = self.nodes.get_mut(id)?;
        // If the clock was set back, the interval must not be extended.
        if node
            .asked_ms
            .is_some_and(|asked| (asked..asked + REBIRTH_EVERY_MS).contains(&now_ms))
        {
            return None;
        }
        node.asked_ms = Some(now_ms);
        Some(Rebirth {
            topic: address.command_topic(),
            payload: metric::rebirth(now_ms),
            why,
        })
    }
}

/// Whether a name belongs to the protocol instead of a measurement.
fn is_protocol(name: &str) -> bool {
    name == BD_SEQ || PROTOCOL.iter().any(|prefix| name.starts_with(prefix))
}

fn malformed(e: protobuf::Malformed) -> Fault {
    Fault::new(
        RejectReason::InvalidSparkplug,
        format!("the metric is malformed: {e}"),
    )
}

/// The session number in a death.
fn bd_seq(payload: &Payload<'_>) -> Option<u64> {
    let metrics = payload
        .metrics
        .iter()
        .filter_map(|bytes| Metric::parse(bytes).ok());
    metrics
        .filter(|metric| metric.name().is_ok_and(|name| name == Some(BD_SEQ)))
        .find_map(|metric| metric.whole())
}

/// Decodes a birth: its values, its definitions, and the session number.
fn birth<'a>(payload: &Payload<'a>, gathered: &mut Gathered<'_, 'a>) -> (Births, Option<u64>) {
    let mut definitions = Vec::new();
    let mut bd_seq = None;
    for (index, bytes) in gathered.limited(&payload.metrics) {
        let result = (|| {
            let metric = Metric::parse(bytes).map_err(malformed)?;
            let Some(name) = metric.name()? else {
                return Err(Fault::new(
                    RejectReason::InvalidSparkplug,
                    "a metric in a birth has no name",
                ));
            };
            if name == BD_SEQ {
                bd_seq = metric.whole();
            }
            if is_protocol(name) {
                return Ok(());
            }
            if definitions.len() < METRICS_MAX {
                let definition = Definition {
                    name: name.into(),
                    datatype: metric.datatype,
                };
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

/// Decodes a metric of a data message. If its birth is missing, rejects it and returns
/// `UnknownType`.
fn data<'a>(
    bytes: &'a [u8],
    node: Option<&'a Node>,
    device: Option<&str>,
    index: usize,
    gathered: &mut Gathered<'_, 'a>,
) -> Result<(), NoValue> {
    let metric = Metric::parse(bytes).map_err(|e| NoValue::Fault(malformed(e)))?;
    let (name, datatype) = match (metric.name().map_err(NoValue::Fault)?, metric.alias) {
        (Some(name), _) => (name, node.and_then(|node| node.datatype(device, name))),
        (None, Some(alias)) => match node.and_then(|node| node.definition(device, alias)) {
            Some(Alias::Metric(definition)) => (&*definition.name, definition.datatype),
            Some(Alias::Ambiguous) => {
                let detail = format!("the birth assigned the alias {alias} to several metrics");
                return Err(NoValue::Fault(Fault::new(
                    RejectReason::UnknownMetric,
                    detail,
                )));
            }
            None if metric.raw().is_none() || metric.is_transient => return Ok(()),
            None => {
                let detail = format!("no known birth defines the alias {alias}");
                gathered.reject(index, Fault::new(RejectReason::UnknownMetric, detail));
                return Err(NoValue::UnknownType);
            }
        },
        (None, None) => {
            let detail = "the metric has neither a name nor an alias";
            return Err(NoValue::Fault(Fault::new(
                RejectReason::InvalidSparkplug,
                detail,
            )));
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
    let detail = format!(
        "{}: the number may be negative, and no known birth defines its type",
        excerpt(name)
    );
    Fault::new(RejectReason::UnknownMetric, detail)
}
