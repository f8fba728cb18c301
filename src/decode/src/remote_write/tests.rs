//! Both messages of remote write, written by hand.

use proptest::prelude::*;

use super::*;
use crate::tests::{NOW, bare, limits, line};
use config::PointAttributes;
use model::protobuf::{put_bytes, put_double, put_varint};
use model::{Reading, Value};

type Labels<'l> = &'l [(&'l str, &'l str)];

fn settings() -> RemoteWrite {
    RemoteWrite {
        sensor_id_labels: vec!["job".into(), "instance".into()],
        other_labels: PointAttributes::Tags,
    }
}

/// A series: labels, samples, and the number of histograms.
type Series<'l> = (Labels<'l>, &'l [(i64, f64)], usize);

fn put_samples(samples: &[(i64, f64)], histograms: (u32, usize), out: &mut Vec<u8>) {
    for (ts_ms, value) in samples {
        let mut sample = vec![];
        put_double(1, *value, &mut sample);
        put_varint(2, ts_ms.cast_unsigned(), &mut sample);
        put_bytes(2, &sample, out);
    }
    (0..histograms.1).for_each(|_| put_bytes(histograms.0, &[8, 1], out));
}

fn v1(all: &[Series<'_>]) -> Vec<u8> {
    let mut request = vec![];
    for (labels, samples, histograms) in all {
        let mut series = vec![];
        for (name, value) in *labels {
            let mut label = vec![];
            put_bytes(1, name.as_bytes(), &mut label);
            put_bytes(2, value.as_bytes(), &mut label);
            put_bytes(1, &label, &mut series);
        }
        put_samples(samples, (4, *histograms), &mut series);
        put_bytes(1, &series, &mut request);
    }
    // Metadata.
    put_bytes(3, b"\x08\x01", &mut request);
    request
}

fn v2(all: &[Series<'_>]) -> Vec<u8> {
    let mut symbols = vec![""];
    let mut request = vec![];
    let mut list = vec![];
    for (labels, samples, histograms) in all {
        let mut series = vec![];
        let mut packed = vec![];
        for text in labels.iter().flat_map(|(name, value)| [*name, *value]) {
            let at = symbols
                .iter()
                .position(|known| *known == text)
                .unwrap_or_else(|| {
                    symbols.push(text);
                    symbols.len() - 1
                });
            packed.push(at as u8);
        }
        put_bytes(1, &packed, &mut series);
        put_samples(samples, (3, *histograms), &mut series);
        put_bytes(5, &series, &mut list);
    }
    // Readers must not depend on the order.
    request.extend(list);
    symbols
        .iter()
        .for_each(|symbol| put_bytes(4, symbol.as_bytes(), &mut request));
    request
}

fn decoded(message: Message, payload: &[u8], settings: &RemoteWrite) -> (Vec<Reading>, Rejects) {
    let limits = limits();
    let line = line();
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    decode(
        message,
        payload,
        settings,
        &bare(&limits, &line),
        &mut out,
        &mut rejects,
    );
    (out.finish().to_readings(), rejects)
}

fn both(all: &[Series<'_>], settings: &RemoteWrite) -> (Vec<Reading>, Rejects) {
    let one = decoded(Message::V1, &v1(all), settings);
    let two = decoded(Message::V2, &v2(all), settings);
    assert_eq!(
        (&one.0, one.1.list(), one.1.skipped()),
        (&two.0, two.1.list(), two.1.skipped())
    );
    one
}

fn series<'l>(labels: Labels<'l>, samples: &'l [(i64, f64)]) -> Series<'l> {
    (labels, samples, 0)
}

const T: i64 = NOW - 60_000;

#[test]
fn samples_of_one_sensor_and_time_are_one_reading() {
    let a = [("__name__", "temp"), ("instance", "S1"), ("site", "north")];
    let b = [
        ("__name__", "humid.pc"),
        ("instance", "S1"),
        ("site", "north"),
    ];
    let (readings, rejects) = both(
        &[
            series(&a, &[(T, 21.5), (T + 1000, 22.0)]),
            series(&b, &[(T, 40.0)]),
        ],
        &settings(),
    );
    assert!(rejects.is_empty());
    assert_eq!(readings.len(), 2);
    assert_eq!(
        (
            readings[0].sensor_id.as_str(),
            readings[0].ts_ms,
            readings[0].receipt_time
        ),
        ("S1", T, false)
    );
    assert_eq!(readings[0].values["temp"], Value::Double(21.5));
    assert_eq!(readings[0].values["humid_pc"], Value::Double(40.0));
    assert_eq!(readings[0].tags["site"], "north");
    assert_eq!((readings[1].ts_ms, readings[1].values.len()), (T + 1000, 1));
}

#[test]
fn the_sensor_is_named_by_labels_that_a_setting_lists() {
    let labels = [
        ("__name__", "up"),
        ("instance", "h:9"),
        ("job", "node"),
        ("cpu", "0"),
    ];
    assert_eq!(
        both(&[series(&labels, &[(T, 1.0)])], &settings()).0[0].sensor_id,
        "node/h:9"
    );
    let own = RemoteWrite {
        other_labels: PointAttributes::SensorId,
        ..settings()
    };
    assert_eq!(
        both(&[series(&labels, &[(T, 1.0)])], &own).0[0].sensor_id,
        "node/h:9,cpu=0"
    );
    let (readings, rejects) = both(
        &[series(
            &[("__name__", "up"), ("cpu", "0")],
            &[(T, 1.0), (T, 2.0)],
        )],
        &settings(),
    );
    assert!(readings.is_empty());
    assert_eq!(
        (rejects.total(), rejects.list()[0].reason),
        (2, RejectReason::MissingSensorId)
    );
    for (bad, reason) in [
        (&[("instance", "S1")][..], RejectReason::MissingField),
        (
            &[("__name__", "t"), ("instance", "a"), ("x", "1"), ("x", "2")],
            RejectReason::DuplicateKey,
        ),
    ] {
        assert_eq!(
            both(&[series(bad, &[(T, 1.0)])], &settings()).1.list()[0].reason,
            reason
        );
    }
}

#[test]
fn series_that_become_indistinguishable_are_hinted_at() {
    let of = |cpu: &'static str| [("__name__", "cpu"), ("instance", "h"), ("cpu", cpu)];
    let hints = |second: &[(&str, &str)], settings: &RemoteWrite| {
        let first = of("0");
        let all = [series(&first, &[(T, 1.0)]), series(second, &[(T, 2.0)])];
        both(&all, settings).1.hints().len()
    };
    assert_eq!(hints(&of("1"), &settings()), 1);
    // The same series, another metric, another sensor.
    assert_eq!(hints(&of("0"), &settings()), 0);
    let metric = [("__name__", "load"), ("instance", "h"), ("cpu", "1")];
    assert_eq!(hints(&metric, &settings()), 0);
    let sensor = [("__name__", "cpu"), ("instance", "i"), ("cpu", "1")];
    assert_eq!(hints(&sensor, &settings()), 0);
    let own = RemoteWrite {
        other_labels: PointAttributes::SensorId,
        ..settings()
    };
    assert_eq!(hints(&of("1"), &own), 0);
}

#[test]
fn what_is_no_number_is_skipped_or_rejected_and_the_rest_is_kept() {
    let labels = [("__name__", "temp"), ("instance", "S1")];
    let stale = f64::from_bits(0x7ff0_0000_0000_0002);
    let samples = [
        (T, stale),
        (T, 1.0),
        (T + 1, f64::NAN),
        (T + 2, f64::INFINITY),
        (T + 3, 2.0),
        (0, 3.0),
        (T, 1.0),
    ];
    let (readings, rejects) = both(&[(&labels, &samples, 3)], &settings());
    assert_eq!(
        readings.iter().map(|r| r.ts_ms).collect::<Vec<_>>(),
        [T, T + 3]
    );
    assert_eq!(
        rejects.skipped(),
        4,
        "the stale marker, NaN, an infinity, and a sample that repeats another one"
    );
    assert_eq!(
        (rejects.left_out().total(), rejects.left_out().names()),
        (3, &["temp".to_owned()][..])
    );
    let all: Vec<_> = rejects.by_reason().to_vec();
    assert_eq!(
        all,
        [
            (RejectReason::TooOld, 1),
            (RejectReason::UnsupportedMetric, 3)
        ]
    );
    assert_eq!(
        rejects.list().iter().map(|r| r.index).collect::<Vec<_>>(),
        [5, 7]
    );
}

#[test]
fn two_values_of_a_field_at_one_time_are_two_readings() {
    let labels = [("__name__", "temp"), ("instance", "S1")];
    let (readings, rejects) = both(&[series(&labels, &[(T, 2.0), (T, 1.0)])], &settings());
    assert!(rejects.is_empty());
    assert_eq!(
        readings
            .iter()
            .map(|r| &r.values["temp"])
            .collect::<Vec<_>>(),
        [&Value::Double(1.0), &Value::Double(2.0)]
    );
}

#[test]
fn more_fields_than_a_reading_may_have_are_several_readings() {
    let max = limits().fields_max;
    let names: Vec<String> = (0..2 * max + 1).map(|i| format!("m{i:04}")).collect();
    let labels: Vec<[(&str, &str); 2]> = names
        .iter()
        .map(|name| [("__name__", name.as_str()), ("instance", "S1")])
        .collect();
    let all: Vec<Series<'_>> = labels
        .iter()
        .map(|labels| series(labels, &[(T, 1.0)]))
        .collect();
    let (readings, rejects) = decoded(Message::V1, &v1(&all), &settings());
    assert!(rejects.is_empty());
    assert_eq!(
        readings.iter().map(|r| r.values.len()).collect::<Vec<_>>(),
        [max, max, 1]
    );
}

#[test]
fn a_malformed_request_is_rejected_as_a_whole() {
    let labels = [("__name__", "temp"), ("instance", "S1")];
    let one = v1(&[series(&labels, &[(T, 1.0)])]);
    let two = v2(&[series(&labels, &[(T, 1.0)])]);
    let references = |list: &[u8]| {
        let mut series = vec![];
        let mut request = vec![];
        put_bytes(1, list, &mut series);
        put_bytes(5, &series, &mut request);
        put_bytes(4, b"", &mut request);
        request
    };
    for (message, payload, says) in [
        (Message::V1, two.clone(), "2.0"),
        (Message::V2, one.clone(), "1.0"),
        (
            Message::V1,
            [&one[..], &[0x0a, 0x7f]].concat(),
            "ends inside",
        ),
        (Message::V2, references(&[0]), "odd"),
        (Message::V2, references(&[0, 9]), "symbol"),
    ] {
        let (readings, rejects) = decoded(message, &payload, &settings());
        assert!(readings.is_empty());
        assert_eq!(
            (rejects.total(), rejects.list()[0].reason),
            (1, RejectReason::InvalidProtobuf)
        );
        assert!(
            rejects.list()[0].detail.contains(says),
            "{}",
            rejects.list()[0].detail
        );
    }
    assert!(decoded(Message::V1, b"", &settings()).1.is_empty());
}

/// The labels and samples of a series.
type OwnedSeries<'l> = ([(&'l str, &'l str); 2], Vec<(i64, f64)>);

proptest! {
    /// Every sample is in exactly one reading, rejected or skipped; both messages mean the same;
    /// and the order of the series does not matter.
    #[test]
    fn no_sample_is_lost(all in prop::collection::vec((0..4usize, 0..3usize, prop::collection::vec((-3..3i64, 0..3u8), 0..4)), 0..8)) {
        let fields = ["a", "b", "c", "a.b"];
        let sensors = ["S1", "S2", ""];
        let owned: Vec<OwnedSeries<'_>> = all.iter().map(|(field, sensor, samples)| {
            let value = |v: u8| if v == 2 { f64::NAN } else { f64::from(v) };
            ([("__name__", fields[*field]), ("instance", sensors[*sensor])], samples.iter().map(|(t, v)| (T + t, value(*v))).collect())
        }).collect();
        let list: Vec<Series<'_>> = owned.iter().map(|(labels, samples)| series(labels, samples)).collect();
        let (readings, rejects) = both(&list, &settings());
        let values: usize = readings.iter().map(|r| r.values.len()).sum();
        let sent: usize = all.iter().map(|(_, _, samples)| samples.len()).sum();
        prop_assert_eq!(values + rejects.total() + rejects.skipped(), sent);
        let reversed: Vec<Series<'_>> = list.iter().rev().copied().collect();
        let sorted = |mut readings: Vec<Reading>| {
            readings.sort_by_key(|r| (r.sensor_id.clone(), r.ts_ms, format!("{:?}", r.values)));
            readings
        };
        prop_assert_eq!(sorted(both(&reversed, &settings()).0), sorted(readings));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decoded(Message::V1, &bytes, &settings());
        decoded(Message::V2, &bytes, &settings());
    }
}
