//! Bodies come back as they were, and hostile ones cost little.

use std::collections::BTreeMap;

use super::*;
use model::{Reading, ReadingBatch, Value};

const NOW_MS: i64 = 1_700_000_000_000;

fn cx() -> Context<'static> {
    Context {
        received_at_ms: NOW_MS,
        ..Context::usual()
    }
}

fn encode(batches: &[&ReadingBatch], repeat: u32) -> Vec<u8> {
    let mut encoder = Encoder::new();
    for batch in batches {
        encoder.begin_batch();
        for (_, reading) in batch.iter() {
            encoder.push(batch, &reading, repeat);
        }
    }
    let body = encoder.finish();
    assert!(body.len() >= encoder.bytes() && body.len() < encoder.bytes() + 64);
    body
}

fn decoded(body: &[u8], cx: &Context<'_>) -> (ReadingBatch, Rejects) {
    let mut out = BatchBuilder::new(cx.limits.fields_max);
    let mut rejects = Rejects::new();
    decode(body, cx, &mut out, &mut rejects);
    (out.finish(), rejects)
}

fn value(random: &mut fastrand::Rng) -> Value {
    match random.u8(..9) {
        0 => Value::Bool(random.bool()),
        1 => Value::Str("grün".repeat(random.usize(..4))),
        2 => Value::Int(random.i64(..)),
        3 => Value::Int(random.i64(-3..3)),
        4 => Value::Double(-0.0),
        5 => Value::Double(f64::from_bits(random.u64(..)).clamp(-1e300, 1e300)),
        6 => Value::Double(0.1 + 0.2),
        digits => Value::Double(random.i32(-9999..9999) as f64 / 10f64.powi(digits as i32 - 6)),
    }
}

fn readings(random: &mut fastrand::Rng) -> Vec<Reading> {
    (0..random.usize(1..60))
        .map(|_| {
            let tag = |n| (format!("tag{n}"), format!("v{n}"));
            let values =
                (0..random.usize(1..5)).map(|_| (format!("f{}", random.u8(..6)), value(random)));
            let values: BTreeMap<_, _> = values
                .filter(|(_, v)| !matches!(v, Value::Double(v) if v.is_nan()))
                .chain([("n".to_owned(), Value::Int(1))])
                .collect();
            Reading {
                sensor_id: format!("sensor-{}", random.u8(..7)),
                ts_ms: NOW_MS - random.i64(0..1_000_000_000),
                receipt_time: false,
                tags: (0..random.usize(..3)).map(tag).collect(),
                values,
            }
        })
        .collect()
}

/// Doubles by their bits: -0.0 is not 0.
fn exact(readings: &[Reading]) -> String {
    format!("{readings:?}")
}

#[test]
fn every_reading_comes_back_as_it_was() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let both = [readings(&mut random), readings(&mut random)];
        let [first, second] = both
            .clone()
            .map(|all| all.into_iter().collect::<ReadingBatch>());
        let (batch, rejects) = decoded(&encode(&[&first, &second], 3), &cx());
        assert!(rejects.is_empty(), "seed {seed}: {:?}", rejects.list());
        assert_eq!(
            exact(&batch.to_readings()),
            exact(&both.concat()),
            "seed {seed}"
        );
        assert!(batch.iter().all(|(_, reading)| reading.repeat == 3));
        let again = ReadingBatch::decode(&{
            let mut bytes = vec![];
            batch.encode(&mut bytes);
            bytes
        });
        let again = again.expect("the journal reads it back");
        assert!(again.iter().all(|(_, reading)| reading.repeat == 3));
        assert_eq!(exact(&again.to_readings()), exact(&both.concat()));
    }
}

#[test]
fn mutated_bodies_are_rejected_or_read_and_never_more_than_a_sane_one() {
    let mut random = fastrand::Rng::with_seed(59);
    for _ in 0..3000 {
        let batch: ReadingBatch = readings(&mut random).into_iter().collect();
        let mut body = encode(&[&batch], random.u32(..3));
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..body.len());
            match random.u8(..4) {
                0 => body[at] = random.u8(..),
                1 => body[at] ^= 1 << random.u8(..8),
                2 => body.truncate(at.max(1)),
                _ => body.insert(at, random.u8(..)),
            }
        }
        let (batch, rejects) = decoded(&body, &cx());
        assert!(batch.len() + rejects.total() <= body.len());
        assert!(batch.memory_bytes() < 1 << 20);
        assert!(
            batch
                .iter()
                .all(|(_, reading)| !reading.sensor_id().is_empty())
        );
    }
}

#[test]
fn a_body_that_claims_much_costs_little() {
    for claim in [u64::MAX, 1 << 40, 1 << 31] {
        let mut varint = vec![];
        let mut rest = claim;
        while rest >= 0x80 {
            varint.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        varint.push(rest as u8);
        // As the length of each section, and as a count within the schemas and sensors.
        for before in [
            &b""[..],
            b"\0",
            b"\0\0",
            b"\0\0\0\0",
            b"\x01\x01",
            b"\0\x09",
        ] {
            let body = [&MAGIC[..], before, &varint].concat();
            let (batch, rejects) = decoded(&body, &cx());
            assert_eq!((batch.len(), rejects.total()), (0, 1));
            assert_eq!(rejects.list()[0].reason, RejectReason::InvalidBatch);
        }
    }
}

#[test]
fn limits_apply_to_each_reading() {
    let reading = |id: &str, ts_ms, name: &str| Reading {
        sensor_id: id.into(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values: BTreeMap::from([(name.into(), Value::Int(1))]),
    };
    let all = [
        reading("a", NOW_MS, "n"),
        reading(&"x".repeat(300), NOW_MS, "n"),
        reading("a", NOW_MS - 400 * 86_400_000, "n"),
        reading("a", NOW_MS + 3_600_000, "n"),
        reading("a", NOW_MS, &"y".repeat(200)),
        reading("a", NOW_MS + 1, "n"),
    ];
    let batch: ReadingBatch = all.into_iter().collect();
    let (batch, rejects) = decoded(&encode(&[&batch], 0), &cx());
    let reasons: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
    let expected = [
        (1, RejectReason::SensorIdTooLong),
        (2, RejectReason::TooOld),
        (3, RejectReason::TooFarAhead),
        (4, RejectReason::NameTooLong),
    ];
    assert_eq!((batch.len(), &reasons[..]), (2, &expected[..]));
}

#[test]
fn another_version_and_another_format_are_named() {
    let texts = [&b"HBF\x02\0"[..], b"[]", b""].map(|body| {
        let (batch, rejects) = decoded(body, &cx());
        assert!(batch.is_empty());
        rejects.list()[0].detail.clone()
    });
    assert!(texts[0].contains("version 2"), "{texts:?}");
    assert!(
        texts[1].contains("HBF") && texts[2].contains("HBF"),
        "{texts:?}"
    );
}
