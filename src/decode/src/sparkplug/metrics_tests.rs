//! The metrics of a message: which of them become values, at which time, and what is rejected.

use super::tests::{DOUBLE, M, Rig, birth_metrics, one, payload};
use super::*;
use crate::tests::NOW;
use model::Value;
use model::protobuf::put_bytes;

#[test]
fn times_of_metrics_and_of_the_message() {
    let mut rig = Rig::new();
    let metrics = [
        M::named("a").at(NOW - 86_400_000).varint(5, 1).double(1.0),
        M::named("b").double(2.0),
        M::named("c").at(0).double(3.0),
        M::named("b").at(NOW - 5).double(4.0),
        M::named("d").at(NOW - 86_400_000).double(5.0),
        M::named("old").at(1_000_000_000_000).double(5.0),
        M::named("b").double(6.0),
    ];
    let (readings, rejects, _) = rig.send("NDATA", 1, &metrics);
    let names = |r: &(String, i64, Vec<(String, Value)>)| {
        (r.1, r.2.iter().map(|(n, _)| n.clone()).collect::<String>())
    };
    let seen: Vec<_> = readings.iter().map(names).collect();
    assert_eq!(
        seen,
        [
            (-86_400_000, "ad".into()),
            (-5, "b".into()),
            (0, "bc".into()),
            (0, "b".into())
        ]
    );
    assert_eq!(rejects, [(5, RejectReason::TooOld)]);
    // No time at all: the time of receipt is used. The topic's tags apply to the sensor.
    let mut bare = vec![];
    put_bytes(2, &M::named("a").double(1.0).0, &mut bare);
    let (readings, _, _) = rig.run("spBv1.0/G/NDATA/N", &bare);
    assert_eq!(
        (readings[0].receipt_time, readings[0].tags["site"].as_str()),
        (true, "north")
    );
}

#[test]
fn non_values_never_become_values() {
    let mut rig = Rig::new();
    let good = M::named("good").double(1.0);
    for (metric, reason) in [
        (M::named("v").varint(7, 1), None),
        (M::named("v").varint(7, 1).double(0.0), None),
        (M::named("v"), None),
        (M::named("v").varint(6, 1).double(1.0), None),
        (M::named("bdSeq").varint(11, 1), None),
        (M::named("Node Control/Scan Rate").varint(11, 1), None),
        (
            M::named("v").double(f64::NAN),
            Some(RejectReason::NotFinite),
        ),
        (
            M::named("v").is(8).varint(11, u64::MAX),
            Some(RejectReason::IntegerOutOfRange),
        ),
        (
            M::named("v").bytes(15, b"\xff"),
            Some(RejectReason::InvalidUtf8),
        ),
        (
            M::named("v").bytes(15, &[b'x'; 2000]),
            Some(RejectReason::StringTooLong),
        ),
        (
            M::named("v").bytes(16, b"x"),
            Some(RejectReason::UnsupportedType),
        ),
        (
            M::named("v").bytes(17, b""),
            Some(RejectReason::UnsupportedType),
        ),
        (
            M::named("v").bytes(18, b""),
            Some(RejectReason::UnsupportedType),
        ),
        (
            M::named(&"n".repeat(200)).double(1.0),
            Some(RejectReason::NameTooLong),
        ),
        (
            M(b"\x0a\x01\xff".to_vec()).double(1.0),
            Some(RejectReason::InvalidUtf8),
        ),
        (
            M(b"\x0a\x09".to_vec()),
            Some(RejectReason::InvalidSparkplug),
        ),
        (
            M::default().double(1.0),
            Some(RejectReason::InvalidSparkplug),
        ),
        (
            M::named("v")
                .bytes(9, b"\x0a\x07Quality\x12\x04\x08\x03\x18\x00")
                .double(1.0),
            Some(RejectReason::BadQuality),
        ),
        (
            M::named("v")
                .bytes(9, b"\x0a\x07Quality\x12\x05\x08\x03\x18\xf4\x03")
                .double(1.0),
            Some(RejectReason::BadQuality),
        ),
    ] {
        let (readings, rejects, _) = rig.send("NDATA", None, &[metric.clone(), good.clone()]);
        assert_eq!(
            readings,
            one("G/N", "good", Value::Double(1.0)).0,
            "{:x?}",
            metric.0
        );
        assert_eq!(
            rejects,
            reason
                .map(|reason| (0, reason))
                .into_iter()
                .collect::<Vec<_>>(),
            "{:x?}",
            metric.0
        );
    }
    let fine = M::named("v")
        .bytes(9, b"\x0a\x07Quality\x12\x05\x08\x03\x18\xc0\x01")
        .double(1.0);
    assert_eq!(
        rig.send("NDATA", None, &[fine]),
        one("G/N", "v", Value::Double(1.0))
    );
}

#[test]
fn messages_without_sparkplug_metrics() {
    let mut rig = Rig::new();
    for (topic, payload, reason) in [
        (
            "spBv1.0/G/NDATA/N",
            &b"{\"online\":true}"[..],
            Some(RejectReason::InvalidSparkplug),
        ),
        (
            "custom/device/status",
            b"\x08\x01",
            Some(RejectReason::TopicMismatch),
        ),
        ("spBv1.0/STATE/host", b"{\"online\":true}", None),
        ("spBv1.0/G/NCMD/N", b"\x08\x01", None),
        ("spBv1.0/G/NDATA/N", b"", None),
    ] {
        let (readings, rejects, rebirth) = rig.run(topic, payload);
        assert!(readings.is_empty() && rebirth.is_none());
        assert_eq!(rejects.list().first().map(|r| r.reason), reason, "{topic}");
    }
    let long = format!("spBv1.0/{}/NDATA/N", "g".repeat(300));
    let (readings, rejects, _) = rig.run(&long, &payload(None, &[M::named("v").double(1.0)]));
    assert_eq!(
        (readings.len(), rejects.list()[0].reason),
        (0, RejectReason::SensorIdTooLong)
    );
}

#[test]
fn too_many_metrics_for_one_reading_become_several_readings() {
    let mut rig = Rig::new();
    let metrics: Vec<M> = (0..150)
        .map(|i| {
            M::named(&format!("m{i}"))
                .varint(2, i)
                .is(DOUBLE)
                .double(i as f64)
        })
        .collect();
    let (readings, rejects, _) = rig.send("NBIRTH", 0, &metrics);
    assert_eq!(
        (
            readings.iter().map(|r| r.2.len()).collect::<Vec<_>>(),
            rejects
        ),
        (vec![64, 64, 22], vec![])
    );
    assert_eq!(
        rig.send("NDATA", 1, &[M::alias(149).double(1.0)]),
        one("G/N", "m149", Value::Double(1.0))
    );
}

/// `sparkplug_b.proto` reserves field numbers for extensions, and an extension may be a group.
#[test]
fn unknown_fields_and_groups_are_ignored() {
    let mut rig = Rig::new();
    let mut metric = M::named("temp").is(DOUBLE).bytes(99, b"unknown");
    // The group 20, with a varint in it, in the metric.
    metric.0.extend([0xa3, 0x01, 0x08, 0x05, 0xa4, 0x01]);
    let birth = rig.send("NBIRTH", 0, &[metric.double(21.5)]);
    assert_eq!(birth, one("G/N", "temp", Value::Double(21.5)));
    // The same group without its end.
    let mut metric = M::named("temp").is(DOUBLE).double(1.0);
    metric.0.extend([0xa3, 0x01, 0x08, 0x05]);
    let (readings, rejects, _) = rig.send("NDATA", 1, &[metric]);
    assert_eq!(
        (readings.len(), rejects),
        (0, vec![(0, RejectReason::InvalidSparkplug)])
    );
}

#[test]
fn a_compressed_payload_is_rejected_and_none_of_it_is_stored() {
    let mut rig = Rig::new();
    rig.send("NBIRTH", 0, &birth_metrics());
    let mut compressed = payload(None, &[M::named("algorithm").is(12).bytes(15, b"GZIP")]);
    put_bytes(4, b"SPBV1.0_COMPRESSED", &mut compressed);
    put_bytes(5, b"\x1f\x8b", &mut compressed);
    let (readings, rejects, rebirth) = rig.run("spBv1.0/G/NDATA/N", &compressed);
    assert_eq!((readings, rebirth), (vec![], None));
    assert_eq!(rejects.list()[0].reason, RejectReason::InvalidSparkplug);
    assert!(
        rejects.list()[0].detail.contains("compressed"),
        "{:?}",
        rejects.list()
    );
}
