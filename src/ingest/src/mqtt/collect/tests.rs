//! Which messages are accepted, skipped or rejected, and when a batch is full.

use std::time::Duration;

use super::*;
use config::Config;
use model::SensorPatterns;

const NOW_MS: i64 = 1_710_000_000_000;

fn collector(subscriptions: &[(&str, &str, &str)]) -> Collector {
    let subscription = |(filter, topic, format): &(&str, &str, &str)| Subscription {
        filter: (*filter).into(),
        qos: 1,
        topic: (*topic).into(),
        format: (*format).into(),
        ts_unit: None,
        zone: (*format == "json").then_some(chrono_tz::Tz::Asia__Kolkata),
        retained: Retained::Once,
        user_property_tags: vec!["rack".into(), "site".into()],
    };
    let settings = Settings {
        source: "mqtt",
        payload_bytes_max: 100_000,
        status_topic: Some("own/status".into()),
    };
    let subscriptions: Vec<_> = subscriptions.iter().map(subscription).collect();
    let ever = Duration::from_secs(1 << 40);
    let mut decoding = Config::default().decoding();
    decoding.limits = Limits {
        past: ever,
        future: ever,
        fields_max: 255,
        batch_max_readings: 1000,
        ..decoding.limits
    };
    Collector::new(&subscriptions, settings, Arc::new(decoding)).unwrap()
}

fn message(topic: &str, payload: impl Into<Vec<u8>>) -> Message {
    Message {
        topic: topic.to_owned().into_bytes().into(),
        payload: payload.into().into(),
        ..Message::default()
    }
}

#[test]
fn the_first_matching_subscription_decides_how_a_message_is_read() {
    let mut collector = collector(&[
        ("$share/g/a/+/b", "a/{sensor_id}/b", "json"),
        ("a/#", "a/{sensor_id}/{field}/{site}", "scalar"),
    ]);
    collector
        .take(&message("a/S/temp/north", "1"), NOW_MS)
        .unwrap();
    collector
        .take(&message("a/T/b", r#"{"temp": 2}"#), NOW_MS)
        .unwrap();
    let readings = collector.finish().batch.to_readings();
    assert_eq!(
        (readings[0].sensor_id.as_str(), readings[0].ts_ms),
        ("S", NOW_MS)
    );
    assert_eq!(readings[0].tags["site"], "north");
    assert!(readings[0].values.contains_key("temp"));
    assert_eq!(readings[1].sensor_id, "T");
    assert!(collector.is_empty());
}

#[test]
fn a_subscription_can_set_its_time_zone() {
    let mut collector = collector(&[
        ("k/+", "k/{sensor_id}", "json"),
        ("u/+", "u/{sensor_id}", "ndjson"),
    ]);
    let payload = r#"{"ts": "2024-03-01T10:00:00", "v": 1}"#;
    collector.take(&message("k/S", payload), NOW_MS).unwrap();
    collector.take(&message("u/S", payload), NOW_MS).unwrap();
    let gathered = collector.finish();
    assert_eq!(gathered.batch.to_readings()[0].ts_ms, 1_709_267_400_000);
    assert_eq!(
        gathered.rejected.0,
        [(RejectReason::BadTimestamp, 1)],
        "limits.zone is not set"
    );
}

#[test]
fn a_mapping_reads_the_topic_itself() {
    let mut collector = collector(&[("zigbee2mqtt/#", "#", "zigbee2mqtt")]);
    collector
        .take(
            &message(
                "zigbee2mqtt/attic/door",
                r#"{"contact": true, "power": null}"#,
            ),
            NOW_MS,
        )
        .unwrap();
    collector
        .take(
            &message("zigbee2mqtt/bridge/state", r#"{"state": "online"}"#),
            NOW_MS,
        )
        .unwrap();
    let gathered = collector.finish();
    let [reading] = &gathered.batch.to_readings()[..] else {
        panic!("{gathered:?}")
    };
    assert_eq!(
        (
            reading.sensor_id.as_str(),
            reading.values.len(),
            gathered.dead.len()
        ),
        ("attic/door", 1, 0)
    );
}

#[test]
fn a_message_with_good_and_bad_readings_gives_the_good_ones_and_one_dead_letter() {
    let mut collector = collector(&[("#", "{sensor_id}", "json")]);
    let payload = r#"[{"a": 1}, 7, {"a": 2}, {"ts": "never", "a": 3}]"#;
    collector.take(&message("S", payload), NOW_MS).unwrap();
    assert_eq!(collector.received(), 4, "all count against a rate");
    let gathered = collector.finish();
    assert_eq!((gathered.batch.len(), collector.received()), (2, 0));
    assert_eq!(gathered.rejected.total(), 2);
    let [dead_letter] = &gathered.dead[..] else {
        panic!("{:?}", gathered.dead)
    };
    assert_eq!(
        (dead_letter.reason.as_str(), dead_letter.payload.as_slice()),
        (RejectReason::NotAnObject.as_str(), payload.as_bytes())
    );
    assert_eq!(
        (dead_letter.topic.as_str(), dead_letter.received_at_ms),
        ("S", NOW_MS)
    );
}

#[test]
fn problems_of_a_whole_message_are_reported() {
    let mut collector = collector(&[
        ("a/+", "a/x/{sensor_id}", "json"),
        ("b/+", "b/{sensor_id}", "punchcard"),
    ]);
    let cases = [
        (
            message("a/S", vec![b' '; 100_001]),
            RejectReason::PayloadTooLarge,
        ),
        (message("a/S", "1"), RejectReason::TopicMismatch),
        (message("b/S", "1"), RejectReason::UnknownFormat),
        (message("c/S", "1"), RejectReason::NoSubscription),
        (
            Message {
                topic: vec![0xff].into(),
                payload: vec![1].into(),
                ..Message::default()
            },
            RejectReason::InvalidUtf8,
        ),
    ];
    for (message, reason) in &cases {
        collector.take(message, NOW_MS).unwrap();
        let gathered = collector.finish();
        assert_eq!(gathered.dead[0].reason, reason.as_str());
        assert_eq!(gathered.rejected.0, [(*reason, 1)]);
        assert!(gathered.batch.is_empty());
    }
}

#[test]
fn a_message_without_a_payload_is_no_reading_and_no_dead_letter() {
    let mut collector = collector(&[("a/+", "a/{sensor_id}", "json")]);
    for topic in ["a/S", "elsewhere"] {
        assert_eq!(
            collector.take(&message(topic, ""), NOW_MS),
            Ok(Take::Skipped)
        );
    }
    let gathered = collector.finish();
    assert!(gathered.batch.is_empty() && gathered.dead.is_empty());
    assert_eq!(
        (gathered.empty, gathered.skipped, gathered.rejected.total()),
        (2, 0, 0)
    );
}

#[test]
fn what_is_not_stored_as_sent_is_counted() {
    let mut collector = collector(&[("#", "{sensor_id}", "json")]);
    collector
        .take(
            &message("S", r#"{"ts": 17, "values": {"a": 1}, "b": 2, "c": 3}"#),
            NOW_MS,
        )
        .unwrap();
    collector
        .take(
            &message("S", r#"[{"a": 1}, 7, {"values": {"a": 1}, "b": 2}]"#),
            NOW_MS,
        )
        .unwrap();
    let gathered = collector.finish();
    assert_eq!(
        (
            gathered.batch.len(),
            gathered.batch.retimed(),
            gathered.left_out
        ),
        (3, 1, 3)
    );
}

#[test]
fn a_message_outside_of_a_range_is_a_dead_letter_that_a_wider_range_accepts() {
    use model::ranges::{RangeAction, RangeRule};
    let with = |min: f64| {
        let mut collector = collector(&[("#", "{sensor_id}", "json")]);
        let rule = RangeRule {
            sensors: SensorPatterns::parse(["S*"]).unwrap(),
            fields: SensorPatterns::parse(["temp"]).unwrap(),
            label: "temp".into(),
            min: Some(min),
            max: None,
            change: None,
            action: RangeAction::Reject,
        };
        let decoding = Decoding {
            ranges: [rule].into_iter().collect(),
            ..(*collector.decoding).clone()
        };
        collector.renew(Arc::new(decoding));
        collector
    };
    let mut narrow = with(-40.0);
    for temp in [20, -127, 21] {
        let payload = format!(r#"{{"temp": {temp}}}"#);
        narrow
            .take(&message("S1", payload.as_str()), NOW_MS)
            .unwrap();
    }
    let gathered = narrow.finish();
    let expected = (Arc::from("temp"), RangeAction::Reject, 1);
    assert_eq!(gathered.out_of_range.counts(), [expected]);
    assert_eq!((gathered.batch.len(), gathered.dead.len()), (2, 1));
    let dead = &gathered.dead[0];
    assert_eq!(dead.reason, "out_of_range");
    assert!(
        dead.detail.contains("the range begins at -40"),
        "{}",
        dead.detail
    );
    for (min, accepted) in [(-40.0, 0), (-200.0, 1)] {
        let again = with(min).decode_again(&dead.topic, &dead.payload, NOW_MS, false);
        assert_eq!(again.batch.len(), accepted, "{min}");
    }
}

#[test]
fn hints_name_the_first_topic_that_they_concern() {
    let mut collector = collector(&[("#", "{sensor_id}", "json")]);
    for topic in ["S1", "S2"] {
        let dated = message(topic, r#"{"v": 1, "date": 1709287200}"#);
        collector.take(&dated, NOW_MS).unwrap();
    }
    let hints = collector.finish().hints;
    assert_eq!(hints.len(), 1);
    assert!(hints[0].0 == "S1" && hints[0].1.contains("`date`"));
    assert!(collector.finish().hints.is_empty());
}

#[test]
fn a_message_whose_names_do_not_fit_starts_the_next_batch() {
    let fields = |from: usize, n: usize| {
        let objects: Vec<String> = (from..from + n)
            .step_by(200)
            .map(|at| {
                format!(
                    "{{{}}}",
                    (at..at + 200)
                        .map(|i| format!("\"n{i}\": 1"))
                        .collect::<Vec<_>>()
                        .join(",")
                )
            })
            .collect();
        format!("[{}]", objects.join(","))
    };
    let mut collector = collector(&[("#", "{sensor_id}", "json")]);
    collector
        .take(&message("S", fields(0, 2000)), NOW_MS)
        .unwrap();
    assert!(!collector.is_full());
    let second = message("S", fields(2000, 4000));
    assert_eq!(collector.take(&second, NOW_MS), Err(NoRoom));
    assert_eq!(collector.finish().batch.len(), 10);
    collector.take(&second, NOW_MS).unwrap();
    let gathered = collector.finish();
    assert_eq!((gathered.batch.len(), gathered.dead.len()), (20, 0));
}

#[test]
fn a_message_that_is_too_large_for_the_journal_is_rejected_and_not_sent_again() {
    const BYTES_MAX: usize = 10_000;
    let mut collector = collector(&[("#", "{sensor_id}", "json")]).limiting_readings(BYTES_MAX);
    let large = message("S", format!("[{}]", vec![r#"{"a": 1}"#; 1000].join(",")));
    collector
        .take(&message("S", r#"{"a": 1}"#), NOW_MS)
        .unwrap();
    assert_eq!(collector.take(&large, NOW_MS), Err(NoRoom));
    assert_eq!(collector.finish().batch.len(), 1);
    // Alone, it is accepted: the readings that fit, and all of it as a dead letter.
    let taken = collector.take(&large, NOW_MS);
    assert!(matches!(taken, Ok(Take::Accepted(_))), "{taken:?}");
    let gathered = collector.finish();
    let mut encoded = vec![];
    gathered.batch.encode(&mut encoded);
    assert!(encoded.len() <= BYTES_MAX && gathered.batch.len() > 100);
    assert_eq!(
        gathered.rejected.total() as usize + gathered.batch.len(),
        1000
    );
    let [dead] = &gathered.dead[..] else {
        panic!("{:?}", gathered.dead)
    };
    assert_eq!(
        (dead.reason.as_str(), &dead.payload[..]),
        ("payload_too_large", &large.payload[..])
    );
    assert!(
        dead.detail.contains("more than 10000 bytes") && dead.detail.contains("journal.max_bytes"),
        "{}",
        dead.detail
    );
    collector
        .take(&message("S", r#"{"a": 1}"#), NOW_MS)
        .unwrap();
    assert_eq!(collector.finish().batch.len(), 1);
}

#[test]
fn a_batch_is_full_by_messages_or_bytes() {
    let mut collector = collector(&[("#", "{sensor_id}/{field}", "scalar")]);
    for _ in 0..MESSAGES_MAX {
        assert!(!collector.is_full());
        collector.take(&message("S/f", "1"), NOW_MS).unwrap();
    }
    assert!(collector.is_full());
    collector.finish();
    for _ in 0..3 {
        assert!(!collector.is_full());
        collector
            .take(&message("S/f", vec![0; 90_000]), NOW_MS)
            .unwrap();
    }
    assert!(collector.is_full());
}

/// Adds a message and acknowledges it; returns whether it was accepted.
fn take(collector: &mut Collector, message: &Message) -> bool {
    let taken = collector.take(message, NOW_MS).unwrap();
    if let Take::Accepted(Some(note)) = taken {
        collector.remember(note);
    }
    taken != Take::Skipped
}

#[test]
fn a_retained_message_is_accepted_once() {
    let mut collector = collector(&[
        ("a/#", "a/{sensor_id}/{field}", "scalar"),
        ("$share/g/#", "#", "json"),
    ]);
    let retained = |payload: &str| Message {
        is_retained: true,
        ..message("a/S/f", payload)
    };
    assert!(take(&mut collector, &retained("1")));
    assert!(!take(&mut collector, &retained("1")));
    // Just published, so it is a new reading, and the retained message from now on.
    assert!(take(&mut collector, &message("a/S/f", "1")));
    assert!(take(&mut collector, &message("a/S/f", "2")));
    assert!(!take(&mut collector, &retained("2")));
    assert!(take(&mut collector, &retained("3")));
    let gathered = collector.finish();
    assert_eq!(
        (gathered.batch.len(), gathered.skipped, gathered.dead.len()),
        (4, 2, 0)
    );
    // Not acknowledged yet: its redelivery and a new copy of it must not be skipped.
    assert!(matches!(
        collector.take(&retained("4"), NOW_MS),
        Ok(Take::Accepted(Some(_)))
    ));
    assert!(take(&mut collector, &retained("4")));
    assert!(take(
        &mut collector,
        &Message {
            is_dup: true,
            ..retained("4")
        }
    ));
    assert_eq!(
        collector.take(&message("x", "{}"), NOW_MS),
        Ok(Take::Accepted(None)),
        "shared: nothing is retained"
    );
}

#[test]
fn retained_never_and_always_apply_and_our_own_status_is_not_a_reading() {
    for (setting, taken) in [(Retained::Never, false), (Retained::Always, true)] {
        let mut collector = collector(&[("#", "{sensor_id}/{field}", "scalar")]);
        collector.routes[0].retained = setting;
        for _ in 0..2 {
            assert_eq!(
                take(
                    &mut collector,
                    &Message {
                        is_retained: true,
                        ..message("S/f", "1")
                    }
                ),
                taken
            );
            assert!(take(&mut collector, &message("S/f", "1")));
        }
        assert!(!take(&mut collector, &message("own/status", "online")));
        assert!(
            !collector.is_empty(),
            "a skipped message is acknowledged with a batch too"
        );
    }
}

#[test]
fn user_properties_that_are_named_become_tags() {
    let mut collector = collector(&[("#", "{sensor_id}/{site}", "json")]);
    let property = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let properties = vec![
        property("site", "of the property"),
        property("rack", ""),
        property("rack", "r1"),
        property("rack", "r2"),
        property("other", "x"),
    ];
    let message = Message {
        properties,
        ..message("S/north", r#"{"temp": 1}"#)
    };
    assert!(take(&mut collector, &message));
    let readings = collector.finish().batch.to_readings();
    let tags: Vec<(&str, &str)> = readings[0]
        .tags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(tags, [("rack", "r1"), ("site", "north")]);
}
