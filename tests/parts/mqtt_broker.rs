//! MQTT ingest against a real mosquitto. The test plays the next stage: it holds the ingest batches
//! and decides their outcome. The messages that the broker sends again to the same client id show
//! whether a PUBACK was sent.

use std::time::Duration;

use crate::support::mosquitto::Mosquitto;
use crate::support::mqtt_rig::*;
use config::MqttProtocol::{self, V4, V5};

fn names(prefix: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{prefix}{i}")).collect()
}

/// Checks that the broker has no message left for us: a message that is published now arrives
/// first.
async fn nothing_is_left(broker: &Mosquitto, protocol: MqttProtocol) {
    let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
    publish_sensors(broker.port(), ["last".to_owned()]).await;
    let ingest_batches = ingest.ingest_batches(1).await;
    assert_eq!(sensors(&ingest_batches), ["last"]);
    deliver(ingest_batches);
    ingest.finish().await;
}

async fn acknowledged_when_delivered(protocol: MqttProtocol) {
    let broker = Mosquitto::start("");
    let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
    publish_sensors(broker.port(), names("S", 3)).await;
    let ingest_batches = ingest.ingest_batches(3).await;
    assert_eq!(sensors(&ingest_batches), ["S0", "S1", "S2"]);
    // The process ends before the messages were acknowledged: the broker sends them again.
    ingest.cut().await;
    drop(ingest_batches);

    let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
    let ingest_batches = ingest.ingest_batches(3).await;
    assert_eq!(sensors(&ingest_batches), ["S0", "S1", "S2"]);
    // Not delivered: the connection is closed, and the next one receives the messages again.
    drop(ingest_batches);
    let ingest_batches = ingest.ingest_batches(3).await;
    assert_eq!(sensors(&ingest_batches), ["S0", "S1", "S2"]);
    deliver(ingest_batches);
    ingest.finish().await;
    nothing_is_left(&broker, protocol).await;
}

#[tokio::test]
async fn v4_is_acknowledged_when_delivered_and_otherwise_received_again() {
    acknowledged_when_delivered(V4).await;
}

#[tokio::test]
async fn v5_is_acknowledged_when_delivered_and_otherwise_received_again() {
    acknowledged_when_delivered(V5).await;
}

/// An ingest batch in the middle is not delivered: messages before it are acknowledged, those after
/// it are not, although delivered.
async fn not_passed(protocol: MqttProtocol) {
    let broker = Mosquitto::start("");
    let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
    let mut ingest_batches = vec![];
    for sensor in ["A", "B", "C"] {
        publish_sensors(broker.port(), [sensor.to_owned()]).await;
        ingest_batches.push(ingest.ingest_batch().await);
    }
    let [a, b, c]: [_; 3] = ingest_batches.try_into().expect("three were pushed");
    deliver(vec![c]);
    drop(b);
    deliver(vec![a]);
    let ingest_batches = ingest.ingest_batches(2).await;
    assert_eq!(sensors(&ingest_batches), ["B", "C"]);
    deliver(ingest_batches);
    ingest.finish().await;
    nothing_is_left(&broker, protocol).await;
}

#[tokio::test]
async fn v4_acknowledges_nothing_after_an_undelivered_message() {
    not_passed(V4).await;
}

#[tokio::test]
async fn v5_acknowledges_nothing_after_an_undelivered_message() {
    not_passed(V5).await;
}

/// The broker restarts with its sessions: a late acknowledgement for the previous connection has no
/// effect.
async fn broker_restarts(protocol: MqttProtocol) {
    let mut broker = Mosquitto::start("");
    let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
    publish_sensors(broker.port(), names("old", 2)).await;
    let old = ingest.ingest_batches(2).await;
    broker.stop();
    ingest.until(|status| !status.connected).await;
    broker.restart();
    ingest.until(|status| status.is_ready()).await;
    let again = ingest.ingest_batches(2).await;
    assert_eq!(sensors(&again), ["old0", "old1"]);
    deliver(old);
    // Sent after the outcomes of the old ones, so it is processed after them.
    publish_sensors(broker.port(), ["new".to_owned()]).await;
    let new = ingest.ingest_batches(1).await;
    assert_eq!(sensors(&new), ["new"]);
    ingest.cut().await;
    drop((again, new));

    let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
    let ingest_batches = ingest.ingest_batches(3).await;
    assert_eq!(sensors(&ingest_batches), ["old0", "old1", "new"]);
    deliver(ingest_batches);
    ingest.finish().await;
    nothing_is_left(&broker, protocol).await;
}

#[tokio::test]
async fn v4_survives_a_restart_of_the_broker() {
    broker_restarts(V4).await;
}

#[tokio::test]
async fn v5_survives_a_restart_of_the_broker() {
    broker_restarts(V5).await;
}

#[tokio::test]
async fn a_broker_that_lost_its_sessions_is_subscribed_to_again() {
    for protocol in [V4, V5] {
        let mut broker = Mosquitto::start("");
        let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
        broker.kill();
        ingest.until(|status| !status.connected).await;
        broker.restart();
        ingest.until(|status| status.is_ready()).await;
        publish_sensors(broker.port(), ["S".to_owned()]).await;
        deliver(ingest.ingest_batches(1).await);
        ingest.finish().await;
    }
}

/// The session of an earlier configuration exists, with another subscription.
#[tokio::test]
async fn a_new_process_subscribes_even_if_the_session_is_present() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        Ingest::start(config(&broker.url(), protocol))
            .await
            .finish()
            .await;
        let mut changed = config(&broker.url(), protocol);
        changed
            .subscriptions
            .push(subscription("more/+", "more/{sensor_id}", "scalar"));
        let mut ingest = Ingest::start(changed).await;
        publish(broker.port(), [("more/M".to_owned(), "1")]).await;
        let ingest_batches = ingest.ingest_batches(1).await;
        assert_eq!(
            ingest_batches[0].dead.len() + ingest_batches[0].batch.len(),
            1
        );
        deliver(ingest_batches);
        ingest.finish().await;
    }
}

/// A broker that is killed has the sessions that it last saved.
#[tokio::test]
async fn a_subscription_that_a_killed_broker_has_not_saved_is_requested_again() {
    for protocol in [V4, V5] {
        let mut broker = Mosquitto::start("");
        Ingest::start(config(&broker.url(), protocol))
            .await
            .finish()
            .await;
        broker.stop();
        broker.restart();
        let mut changed = config(&broker.url(), protocol);
        changed
            .subscriptions
            .push(subscription("more/+", "more/{sensor_id}", "scalar"));
        let mut ingest = Ingest::start(changed).await;
        broker.kill();
        ingest.until(|status| !status.connected).await;
        broker.restart();
        ingest.until(|status| status.is_ready()).await;
        // The broker has read SUBSCRIBE before a message that is published now.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        publish(broker.port(), [("more/M".to_owned(), "1")]).await;
        deliver(ingest.ingest_batches(1).await);
        ingest.finish().await;
    }
}

#[tokio::test]
async fn shared_subscriptions_share() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut config = config(&broker.url(), protocol);
        config.subscriptions = vec![subscription(
            "$share/hb/sensors/#",
            "sensors/{sensor_id}/{field}",
            "scalar",
        )];
        let mut other = config.clone();
        other.client_id = "hourbucket-other".into();
        let mut one = Ingest::start(config).await;
        let mut two = Ingest::start(other).await;
        publish_sensors(broker.port(), names("S", 100)).await;
        let mut seen = vec![];
        while seen.len() < 100 {
            let ingest_batch = tokio::select! {
                ingest_batch = one.ingest_batch() => ingest_batch,
                ingest_batch = two.ingest_batch() => ingest_batch,
            };
            seen.extend(sensors(std::slice::from_ref(&ingest_batch)));
            deliver(vec![ingest_batch]);
        }
        seen.sort();
        let mut all = names("S", 100);
        all.sort();
        assert_eq!(seen, all);
        one.finish().await;
        two.finish().await;
    }
}

/// A message that cannot be decoded becomes a dead letter with a reason, is acknowledged, and
/// blocks nothing.
#[tokio::test]
async fn an_invalid_message_becomes_a_dead_letter_and_is_not_received_again() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut limited = config(&broker.url(), protocol);
        limited
            .subscriptions
            .push(subscription("odd/#", "odd/{sensor_id}/x", "scalar"));
        limited
            .subscriptions
            .push(subscription("future/+", "future/{sensor_id}", "protobuf"));
        limited.packet_max_bytes = 64 * 1024;
        let mut ingest = Ingest::start(limited.clone()).await;
        let messages: Vec<(&str, Vec<u8>)> = vec![
            ("sensors/S/temp", vec![0xff, 0xfe, 0]),
            // No reading and no error, but acknowledged.
            ("sensors/S/temp", vec![]),
            ("sensors/S/temp", vec![b'1'; 300 * 1024]),
            ("odd/S", b"1".to_vec()),
            ("future/S", b"1".to_vec()),
            ("sensors/good/temp", b"1".to_vec()),
        ];
        publish(
            broker.port(),
            messages
                .into_iter()
                .map(|(topic, payload)| (topic.to_owned(), payload)),
        )
        .await;
        let ingest_batches = ingest.ingest_batches(5).await;
        assert_eq!(sensors(&ingest_batches), ["good"]);
        let dead: Vec<_> = ingest_batches.iter().flat_map(|p| p.dead.clone()).collect();
        let reasons: Vec<&str> = dead.iter().skip(1).map(|d| d.reason.as_str()).collect();
        assert_eq!(
            reasons,
            ["payload_too_large", "topic_mismatch", "unknown_format"]
        );
        assert_eq!(
            (dead[0].source.as_str(), dead[0].topic.as_str()),
            ("mqtt", "sensors/S/temp")
        );
        assert_eq!(dead[0].payload, [0xff, 0xfe, 0]);
        assert_eq!(dead[1].payload.len(), 300 * 1024);
        deliver(ingest_batches);
        ingest.finish().await;
        nothing_is_left(&broker, protocol).await;
    }
}

#[tokio::test]
async fn large_payloads_are_accepted() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut json = config(&broker.url(), protocol);
        json.subscriptions = vec![subscription("batch/+", "batch/{sensor_id}", "json")];
        let mut ingest = Ingest::start(json).await;
        let now = chrono::Utc::now().timestamp_millis();
        let reading = |i: i64| {
            format!(
                r#"{{"ts": {}, "values": {{"temperature": 21.5, "humidity": 60}}}}"#,
                now - i
            )
        };
        let payload = format!("[{}]", (0..5000).map(reading).collect::<Vec<_>>().join(","));
        assert!(payload.len() > 300 * 1024);
        publish(broker.port(), [("batch/S".to_owned(), payload)]).await;
        let ingest_batches = ingest.ingest_batches(5000).await;
        assert!(
            ingest_batches.iter().all(|p| p.dead.is_empty()),
            "{:?}",
            ingest_batches[0].dead.first()
        );
        deliver(ingest_batches);
        ingest.finish().await;
    }
}

/// Many messages through a small window: all arrive only if acknowledgements are sent in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_pass_a_small_window() {
    for (protocol, extra) in [(V4, "max_inflight_messages 20"), (V5, "")] {
        let broker = Mosquitto::start(extra);
        let mut small = config(&broker.url(), protocol);
        small.window = 50;
        let mut ingest = Ingest::start(small).await;
        let port = broker.port();
        let publisher = tokio::spawn(publish_sensors(port, names("S", 10_000)));
        let mut seen = vec![];
        while seen.len() < 10_000 {
            let ingest_batch = ingest.ingest_batch().await;
            seen.extend(sensors(std::slice::from_ref(&ingest_batch)));
            deliver(vec![ingest_batch]);
        }
        publisher.await.unwrap();
        assert_eq!(seen, names("S", 10_000));
        ingest.finish().await;
        nothing_is_left(&broker, protocol).await;
    }
}

/// While admission is closed, the connection stays alive (pings) and nothing is lost; ingest
/// batches grow meanwhile.
#[tokio::test]
async fn closed_admission_delays_only_acknowledgements() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut pinging = config(&broker.url(), protocol);
        pinging.keep_alive = Duration::from_secs(1);
        let mut ingest = Ingest::start(pinging).await;
        ingest.admission_control.full(true);
        publish_sensors(broker.port(), names("S", 2000)).await;
        // The broker closes a connection that is silent for one and a half keep-alives; a change of
        // the status would show it.
        let changed = tokio::time::timeout(Duration::from_secs(3), ingest.status.changed()).await;
        assert!(changed.is_err(), "{:?}", *ingest.status.borrow());
        assert!(ingest.ingest_batches.is_empty());
        ingest.admission_control.full(false);
        let ingest_batches = ingest.ingest_batches(2000).await;
        assert_eq!(sensors(&ingest_batches), names("S", 2000));
        deliver(ingest_batches);
        ingest.finish().await;
        nothing_is_left(&broker, protocol).await;
    }
}

/// More messages than the queue holds while admission is closed: no message after a refused one is
/// acknowledged, and the refused ones are received again.
#[tokio::test]
async fn messages_beyond_the_queue_are_received_again() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
        ingest.admission_control.full(true);
        // Each of 256 KiB, so each fills an ingest batch, and 256 of them fill the queue. They are
        // not numbers, so they are dead letters.
        let message = |i: usize| (format!("sensors/S{i}/temp"), vec![0; 256 * 1024]);
        publish(broker.port(), (0..300).map(message)).await;
        ingest.until(|status| status.problem.is_some()).await;
        assert!(ingest.status.borrow().connected);
        ingest.admission_control.full(false);
        let mut topics = vec![];
        while topics.len() < 300 {
            let ingest_batch = ingest.ingest_batch().await;
            topics.extend(ingest_batch.dead.iter().map(|d| d.topic.clone()));
            deliver(vec![ingest_batch]);
        }
        assert_eq!(topics, (0..300).map(|i| message(i).0).collect::<Vec<_>>());
        ingest.finish().await;
        nothing_is_left(&broker, protocol).await;
    }
}

/// QoS 0 uses at most half of the queue, and further messages are dropped; nothing else happens.
#[tokio::test]
async fn qos_0_is_dropped_if_the_queue_is_full() {
    let broker = Mosquitto::start("");
    let mut at_most_once = config(&broker.url(), V5);
    at_most_once.subscriptions[0].qos = 0;
    at_most_once
        .subscriptions
        .push(subscription("end", "{sensor_id}", "scalar"));
    let mut ingest = Ingest::start(at_most_once).await;
    ingest.admission_control.full(true);
    let end = ("end".to_owned(), vec![0]);
    publish(
        broker.port(),
        (0..300)
            .map(|_| ("sensors/S/temp".to_owned(), vec![0; 256 * 1024]))
            .chain([end]),
    )
    .await;
    ingest.admission_control.full(false);
    let mut dead = vec![];
    while dead
        .last()
        .is_none_or(|d: &model::DeadLetter| d.topic != "end")
    {
        let ingest_batch = ingest.ingest_batch().await;
        dead.extend(ingest_batch.dead.clone());
        deliver(vec![ingest_batch]);
    }
    assert!((100..=300).contains(&dead.len()), "{}", dead.len());
    assert!(ingest.status.borrow().connected);
    ingest.finish().await;
}

/// After `stop` nothing new is accepted. Accepted messages are acknowledged when they are
/// delivered, and only then ingest ends.
#[tokio::test]
async fn a_stop_waits_for_what_was_taken() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
        publish_sensors(broker.port(), names("before", 5)).await;
        let ingest_batches = ingest.ingest_batches(5).await;
        ingest.stop.cancel();
        publish_sensors(broker.port(), names("after", 5)).await;
        deliver(ingest_batches);
        ingest.finish().await;
        let mut ingest = Ingest::start(config(&broker.url(), protocol)).await;
        // Messages sent during the stop may have been accepted before it or not; none was
        // acknowledged.
        let ingest_batches = ingest.ingest_batches(5).await;
        assert_eq!(sensors(&ingest_batches), names("after", 5));
        deliver(ingest_batches);
        ingest.finish().await;
        nothing_is_left(&broker, protocol).await;
    }
}

#[tokio::test]
async fn qos_0_is_accepted_and_needs_no_acknowledgement() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut at_most_once = config(&broker.url(), protocol);
        at_most_once.subscriptions[0].qos = 0;
        let mut ingest = Ingest::start(at_most_once).await;
        publish_sensors(broker.port(), names("S", 10)).await;
        let ingest_batches = ingest.ingest_batches(10).await;
        assert_eq!(sensors(&ingest_batches), names("S", 10));
        // Not delivered: no sender would repeat it, so the connection stays.
        drop(ingest_batches);
        publish_sensors(broker.port(), ["T".to_owned()]).await;
        deliver(ingest.ingest_batches(1).await);
        assert!(ingest.status.borrow().connected);
        assert!(!broker.log().contains("already connected"));
        ingest.finish().await;
    }
}

#[tokio::test]
async fn a_lower_qos_than_asked_for_is_reported() {
    let broker = Mosquitto::start("max_qos 0");
    let ingest = Ingest::start(config(&broker.url(), V5)).await;
    let problem = ingest.status.borrow().problem.clone().unwrap();
    assert!(problem.contains("sensors/+/+"), "{problem}");
    ingest.finish().await;
}

/// CPU time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // utime and stime, fields 14 and 15, in ticks of 10 ms.
    fields[11..13]
        .iter()
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// The rate at which queued messages are received from the broker; `cargo test --release --test
/// parts mqtt_broker::throughput -- --ignored --nocapture`. The next stage acknowledges
/// immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput() {
    const MESSAGES: usize = 300_000;
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        Ingest::start(config(&broker.url(), protocol))
            .await
            .finish()
            .await;
        for part in 0..10 {
            publish_sensors(broker.port(), names(&format!("S{part}-"), MESSAGES / 10)).await;
        }
        let begin = std::time::Instant::now();
        let cpu = cpu_seconds();
        let mut ingest = Ingest::spawn(config(&broker.url(), protocol));
        let mut seen = 0;
        let mut ingest_batches = 0;
        while seen < MESSAGES {
            let ingest_batch = ingest.ingest_batch().await;
            seen += ingest_batch.batch.len();
            ingest_batches += 1;
            deliver(vec![ingest_batch]);
        }
        ingest.finish().await;
        let seconds = begin.elapsed().as_secs_f64();
        let cpu = cpu_seconds() - cpu;
        let n = seen as f64;
        let rate = n / seconds;
        let each = cpu * 1e6 / n;
        let per_batch = n / f64::from(ingest_batches);
        println!(
            "{protocol:?}: {rate:.0} messages/s, {each:.2} µs of CPU time each, {per_batch:.0} per \
             ingest batch"
        );
    }
}
