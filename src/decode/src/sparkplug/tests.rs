//! Sessions of nodes, message by message.

use super::*;
use crate::tests::{NOW, bare, limits, line};
use model::protobuf::{put_bytes, put_varint};
use model::{Reading, Value};

const INT32: u64 = 3;
const INT64: u64 = 4;
pub(super) const DOUBLE: u64 = 10;

/// A metric to write.
#[derive(Clone, Default)]
pub(super) struct M(pub(super) Vec<u8>);

impl M {
    pub(super) fn named(name: &str) -> M {
        M::default().bytes(1, name.as_bytes())
    }

    pub(super) fn alias(alias: u64) -> M {
        M::default().varint(2, alias)
    }

    pub(super) fn bytes(mut self, number: u32, value: &[u8]) -> M {
        put_bytes(number, value, &mut self.0);
        self
    }

    pub(super) fn varint(mut self, number: u32, value: u64) -> M {
        put_varint(number, value, &mut self.0);
        self
    }

    pub(super) fn double(mut self, value: f64) -> M {
        self.0.push(13 << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn is(self, datatype: u64) -> M {
        self.varint(4, datatype)
    }

    pub(super) fn at(self, ms: i64) -> M {
        self.varint(3, ms as u64)
    }
}

pub(super) fn payload(seq: Option<u64>, metrics: &[M]) -> Vec<u8> {
    let mut bytes = vec![];
    put_varint(1, NOW as u64, &mut bytes);
    metrics.iter().for_each(|m| put_bytes(2, &m.0, &mut bytes));
    seq.into_iter()
        .for_each(|seq| put_varint(3, seq, &mut bytes));
    bytes
}

/// The result of a message: each reading as sensor, time from now and values; the reasons of
/// rejects; the reason of a rebirth request.
type Decoded = (
    Vec<(String, i64, Vec<(String, Value)>)>,
    Vec<(usize, RejectReason)>,
    bool,
);

pub(super) struct Rig {
    state: Sparkplug,
    now_ms: i64,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig {
            state: Sparkplug::new(),
            now_ms: NOW,
        }
    }

    pub(super) fn run(
        &mut self,
        topic: &str,
        payload: &[u8],
    ) -> (Vec<Reading>, Rejects, Option<Rebirth>) {
        let limits = limits();
        let line = line();
        let cx = Context {
            received_at_ms: self.now_ms,
            tags: &[("site", "north")],
            ..bare(&limits, &line)
        };
        let mut out = BatchBuilder::new(limits.fields_max);
        let mut rejects = Rejects::new();
        let rebirth = self
            .state
            .decode(topic, payload, &cx, &mut out, &mut rejects);
        (out.finish().to_readings(), rejects, rebirth)
    }

    pub(super) fn send(
        &mut self,
        what: &str,
        seq: impl Into<Option<u64>>,
        metrics: &[M],
    ) -> Decoded {
        let topic = match what.split_once(' ') {
            Some((kind, device)) => format!("spBv1.0/G/{kind}/N/{device}"),
            None => format!("spBv1.0/G/{what}/N"),
        };
        let (readings, rejects, rebirth) = self.run(&topic, &payload(seq.into(), metrics));
        let short = |r: Reading| (r.sensor_id, r.ts_ms - NOW, r.values.into_iter().collect());
        let reasons = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
        (
            readings.into_iter().map(short).collect(),
            reasons,
            rebirth.is_some(),
        )
    }
}

pub(super) fn one(sensor: &str, name: &str, value: Value) -> Decoded {
    (
        vec![(sensor.into(), 0, vec![(name.into(), value)])],
        vec![],
        false,
    )
}

fn nothing() -> Decoded {
    (vec![], vec![], false)
}

fn unknown(asked: bool) -> Decoded {
    (vec![], vec![(0, RejectReason::UnknownMetric)], asked)
}

pub(super) fn birth_metrics() -> Vec<M> {
    vec![
        M::named("bdSeq").is(INT64).varint(11, 7),
        M::named("Node Control/Rebirth").is(11).varint(14, 0),
        M::named("temp").varint(2, 1).is(DOUBLE).double(21.5),
        M::named("level").varint(2, 2).is(INT32).varint(10, 3),
    ]
}

#[test]
fn births_define_names_and_types_of_later_metrics() {
    let mut rig = Rig::new();
    let (readings, rejects, asked) = rig.send("NBIRTH", 0, &birth_metrics());
    let values = vec![
        ("level".to_owned(), Value::Int(3)),
        ("temp".to_owned(), Value::Double(21.5)),
    ];
    assert_eq!(
        (readings, rejects, asked),
        (vec![("G/N".to_owned(), 0, values)], vec![], false)
    );
    let device = [M::named("temp")
        .varint(2, 3)
        .is(INT32)
        .varint(10, 0xffff_fffb)];
    assert_eq!(
        rig.send("DBIRTH D", 1, &device),
        one("G/N/D", "temp", Value::Int(-5))
    );
    assert_eq!(
        rig.send("NDATA", 2, &[M::alias(2).varint(10, 0xffff_fff0)]),
        one("G/N", "level", Value::Int(-16))
    );
    assert_eq!(
        rig.send("DDATA D", 3, &[M::alias(3).varint(10, 0xffff_fff0)]),
        one("G/N/D", "temp", Value::Int(-16))
    );
    // From the node's birth if the device's birth has no such alias; a name also identifies the
    // type.
    assert_eq!(
        rig.send("DDATA D", 4, &[M::alias(1).double(1.0)]),
        one("G/N/D", "temp", Value::Double(1.0))
    );
    assert_eq!(
        rig.send("NDATA", 5, &[M::named("level").varint(10, u32::MAX.into())]),
        one("G/N", "level", Value::Int(-1))
    );
    // A metric's own type overrides the birth's.
    assert_eq!(
        rig.send("NDATA", 6, &[M::alias(2).is(7).varint(10, u32::MAX.into())]),
        one("G/N", "level", Value::Int(u32::MAX.into()))
    );
    // A device may reuse its node's aliases.
    rig.send(
        "DBIRTH E",
        7,
        &[M::named("x").varint(2, 1).is(DOUBLE).double(0.5)],
    );
    assert_eq!(
        rig.send("DDATA E", 8, &[M::alias(1).double(1.0)]),
        one("G/N/E", "x", Value::Double(1.0))
    );
    assert_eq!(
        rig.send("NDATA", 9, &[M::alias(1).double(1.0)]),
        one("G/N", "temp", Value::Double(1.0))
    );
}

#[test]
fn without_a_birth_nothing_is_guessed_and_a_rebirth_is_requested() {
    let mut rig = Rig::new();
    assert_eq!(
        rig.send("NDATA", 5, &[M::alias(1).double(1.0)]),
        unknown(true)
    );
    // Once a minute for each node, regardless of its state.
    rig.now_ms += REBIRTH_EVERY_MS - 1;
    assert_eq!(
        rig.send("NDATA", 6, &[M::alias(1).double(1.0)]),
        unknown(false)
    );
    assert_eq!(
        rig.send("NDEATH", None, &[M::named("bdSeq").varint(11, 7)]),
        nothing()
    );
    assert_eq!(
        rig.send("NDATA", 6, &[M::alias(1).double(1.0)]),
        unknown(false)
    );
    rig.now_ms += 1;
    assert_eq!(
        rig.send("NDATA", 7, &[M::named("v").varint(10, 1 << 31)]),
        unknown(true)
    );
    // A clock that was set back does not suppress requests.
    rig.now_ms -= 10_000_000;
    assert!(rig.send("DDATA D", 8, &[M::alias(1).double(1.0)]).2);
    // A metric with its name, and an unambiguous type, needs no birth.
    rig.now_ms = NOW;
    assert_eq!(
        rig.send("DDATA D", 9, &[M::named("v").double(1.0)]),
        one("G/N/D", "v", Value::Double(1.0))
    );
    assert_eq!(
        rig.send("NDATA", 10, &[M::named("v").varint(10, 7)]),
        one("G/N", "v", Value::Int(7))
    );
    assert_eq!(
        rig.send("NDATA", 11, &[M::alias(1).varint(7, 1)]),
        nothing()
    );
    rig.send("NBIRTH", 0, &birth_metrics());
    assert_eq!(
        rig.send("NDATA", 1, &[M::alias(1).double(1.0)]),
        one("G/N", "temp", Value::Double(1.0))
    );
    rig.now_ms += REBIRTH_EVERY_MS;
    assert_eq!(
        rig.send("NDATA", 2, &[M::alias(9).double(1.0)]),
        unknown(true)
    );
}

#[test]
fn the_rebirth_command_matches_the_specification() {
    let mut rig = Rig::new();
    let (_, _, rebirth) = rig.run(
        "spBv1.0/My Group/DDATA/N 1/D",
        &payload(Some(1), &[M::alias(1).double(1.0)]),
    );
    let rebirth = rebirth.unwrap();
    assert_eq!(rebirth.topic, "spBv1.0/My Group/NCMD/N 1");
    let read = Payload::parse(&rebirth.payload).unwrap();
    let metric = Metric::parse(read.metrics[0]).unwrap();
    assert_eq!((read.timestamp, read.metrics.len()), (Some(NOW as u64), 1));
    assert_eq!(
        (metric.name().unwrap(), metric.datatype),
        (Some("Node Control/Rebirth"), Some(11))
    );
    assert_eq!(metric.raw(), Some(metric::Raw::Bool(true)));
}

#[test]
fn packet_numbers_wrap_repeat_and_have_gaps() {
    let mut rig = Rig::new();
    let data = [M::alias(1).double(1.0)];
    let good = one("G/N", "temp", Value::Double(1.0));
    rig.send("NBIRTH", 254, &birth_metrics());
    for seq in [255, 0, 0, 1] {
        assert_eq!(rig.send("NDATA", seq, &data), good, "{seq}");
    }
    // The value is good, but the missing message may have been a birth.
    let (readings, rejects, asked) = rig.send("NDATA", 5, &data);
    assert_eq!((readings, rejects, asked), (good.0.clone(), vec![], true));
    assert_eq!(rig.send("NDATA", 6, &data), good);
    // Devices share the sequence of their node, including deaths.
    rig.now_ms += REBIRTH_EVERY_MS;
    rig.send(
        "DBIRTH D",
        7,
        &[M::named("x").varint(2, 3).is(DOUBLE).double(0.5)],
    );
    assert_eq!(rig.send("DDEATH D", 8, &[]), nothing());
    assert_eq!(rig.send("NDATA", 9, &data), good);
    assert_eq!(
        rig.send("DDATA D", 10, &[M::alias(3).double(1.0)]),
        unknown(true)
    );
    rig.now_ms += REBIRTH_EVERY_MS;
    assert!(rig.send("DDEATH D", 12, &[]).2);
    // On a new connection unacknowledged messages are repeated; a gap is a gap there too.
    rig.now_ms += REBIRTH_EVERY_MS;
    rig.state.reconnected();
    for seq in [10, 11, 12, 13] {
        assert!(!rig.send("NDATA", seq, &data).2, "{seq}");
    }
    assert!(rig.send("NDATA", 10, &data).2);
    rig.now_ms += REBIRTH_EVERY_MS;
    rig.state.reconnected();
    assert!(rig.send("NDATA", 12, &data).2);
    // Without sequence numbers there are no gaps.
    rig.now_ms += REBIRTH_EVERY_MS;
    assert_eq!(rig.send("NDATA", None, &data), good);
    assert_eq!(rig.send("NDATA", 700, &data), good);
}

#[test]
fn a_birth_or_death_invalidates_the_previous_names() {
    let mut rig = Rig::new();
    let data = [M::alias(1).double(1.0)];
    let device = [M::named("x").varint(2, 3).is(DOUBLE).double(0.5)];
    rig.send("NBIRTH", 0, &birth_metrics());
    rig.send("DBIRTH D", 1, &device);
    // The death of an earlier session arrives late.
    assert_eq!(
        rig.send("NDEATH", None, &[M::named("bdSeq").varint(11, 6)]),
        nothing()
    );
    assert_eq!(
        rig.send("NDATA", 2, &data),
        one("G/N", "temp", Value::Double(1.0))
    );
    rig.send(
        "NBIRTH",
        0,
        &[M::named("hum").varint(2, 1).is(DOUBLE).double(60.0)],
    );
    assert_eq!(
        rig.send("NDATA", 1, &data),
        one("G/N", "hum", Value::Double(1.0))
    );
    assert_eq!(
        rig.send("DDATA D", 2, &[M::alias(3).double(1.0)]),
        unknown(true)
    );
    rig.send("DBIRTH D", 3, &device);
    assert_eq!(
        rig.send("NDEATH", None, &[M::named("bdSeq").varint(11, 8)]),
        nothing()
    );
    assert_eq!(rig.send("NDATA", 4, &data), unknown(false));
    assert_eq!(
        rig.send("DDATA D", 5, &[M::alias(3).double(1.0)]),
        unknown(false)
    );
    assert_eq!(
        (rig.state.bytes, rig.state.devices, rig.state.nodes.len()),
        (0, 0, 1)
    );
    rig.send("NBIRTH", 0, &birth_metrics());
    rig.state.forget();
    assert_eq!(rig.send("NDATA", 1, &data), unknown(true));
}

#[test]
fn a_birth_without_free_memory_is_reported_and_its_values_count() {
    let mut rig = Rig::new();
    rig.send("NBIRTH", 0, &birth_metrics());
    rig.state.bytes += BYTES_MAX;
    let device = [M::named("x").varint(2, 3).is(DOUBLE).double(0.5)];
    let (readings, rejects, _) = rig.send("DBIRTH D", 1, &device);
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(1, RejectReason::TooManyMetrics)])
    );
    let (readings, rejects, _) = rig.send("NBIRTH", 0, &birth_metrics());
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(4, RejectReason::TooManyMetrics)])
    );
    assert_eq!(rig.state.bytes, BYTES_MAX);
    // Nodes without definitions are removed to free space.
    let mut rig = Rig::new();
    for i in 0..NODES_MAX {
        rig.state.nodes.insert(
            i.to_string().into(),
            Node {
                asked_ms: Some(NOW),
                ..Node::default()
            },
        );
    }
    assert_eq!(rig.send("NBIRTH", 0, &birth_metrics()).1, []);
    assert_eq!(rig.state.nodes.len(), 1);
}

#[test]
fn births_survive_a_restart_and_are_asked_for_once() {
    let mut rig = Rig::new();
    rig.send("NBIRTH", 0, &birth_metrics());
    let device = [M::named("speed").varint(2, 9).is(DOUBLE).double(1.0)];
    rig.send("DBIRTH D", 1, &device);
    assert_eq!(rig.state.changes(), 2);
    let kept = rig.state.to_bytes();
    let mut rig = Rig {
        state: Sparkplug::from_bytes(&kept).unwrap(),
        now_ms: NOW,
    };
    rig.state.reconnected();
    // The aliases resolve, negative numbers too. The node may have been reborn meanwhile, so it is
    // asked.
    let (readings, rejects, asked) =
        rig.send("NDATA", 57, &[M::alias(2).varint(10, u64::from(u32::MAX))]);
    assert_eq!(
        (readings, rejects, asked),
        (one("G/N", "level", Value::Int(-1)).0, vec![], true)
    );
    assert_eq!(
        rig.send("DDATA D", 58, &[M::alias(9).double(2.5)]),
        one("G/N/D", "speed", Value::Double(2.5))
    );
    assert_eq!(
        rig.send("NDATA", 59, &[M::alias(1).double(22.0)]),
        one("G/N", "temp", Value::Double(22.0))
    );
    assert_eq!(rig.state.to_bytes().len(), kept.len());
    rig.state.forget();
    assert_eq!(
        rig.send("NDATA", 60, &[M::alias(1).double(22.0)]).1,
        unknown(true).1
    );
}

#[test]
fn damaged_births_are_refused() {
    let mut rig = Rig::new();
    rig.send("NBIRTH", 0, &birth_metrics());
    let kept = rig.state.to_bytes();
    for at in 0..kept.len() {
        let mut damaged = kept.clone();
        damaged[at] ^= 0x40;
        assert!(Sparkplug::from_bytes(&damaged).is_err(), "byte {at}");
        assert!(Sparkplug::from_bytes(&kept[..at]).is_err(), "cut at {at}");
    }
    // Sound bytes with an alias that belongs to no metric.
    let mut body = kept[..kept.len() - 4].to_vec();
    let at = body.len() - 4 - 8;
    body[at..at + 8].copy_from_slice(&99u64.to_le_bytes());
    let crc = crc32c::crc32c(&body).to_le_bytes();
    assert!(Sparkplug::from_bytes(&[&body[..], &crc].concat()).is_err());
    assert!(
        Sparkplug::from_bytes(&Sparkplug::new().to_bytes())
            .unwrap()
            .to_bytes()
            == Sparkplug::new().to_bytes()
    );
}
