//! MQTT ingest with features that brokers in the field use, against a real mosquitto: our status,
//! retained messages, user properties, the window, a slow next stage.

use std::time::{Duration, Instant};

use crate::support::mosquitto::{Mosquitto, publish_by_tool, retained_by_tool};
use crate::support::mqtt_rig::*;
use config::MqttProtocol::{self, V4, V5};
use config::Retained;
use telemetry::metrics;

/// Waits until a new subscriber of the status topic first receives `wanted`.
fn wait_for_status(broker: &Mosquitto, wanted: &str) {
    let begun = Instant::now();
    loop {
        let seen = retained_by_tool(broker.port(), "hourbucket/status");
        if seen == wanted {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the status stays {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_status_is_published_and_the_will_on_a_kill() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut seen = config(&broker.url(), protocol);
        seen.status_topic = Some("hourbucket/status".into());
        // The filter also matches our own status messages, which are not readings.
        seen.subscriptions.push(subscription(
            "hourbucket/+",
            "hourbucket/{sensor_id}",
            "json",
        ));
        let mut ingest = Ingest::start(seen.clone()).await;
        wait_for_status(&broker, "online");
        publish_sensors(broker.port(), ["S".to_owned()]).await;
        let ingest_batches = ingest.ingest_batches(1).await;
        assert_eq!(
            (sensors(&ingest_batches).len(), ingest_batches[0].dead.len()),
            (1, 0),
            "{:?}",
            ingest_batches[0].dead
        );
        deliver(ingest_batches);
        ingest.finish().await;
        assert_eq!(
            retained_by_tool(broker.port(), "hourbucket/status"),
            "offline"
        );

        let ingest = Ingest::start(seen).await;
        wait_for_status(&broker, "online");
        // The task is aborted: no DISCONNECT, as if the process was killed.
        drop(ingest);
        wait_for_status(&broker, "offline");
    }
}

/// A broker with a message retained on `sensors/R/temp`.
fn retaining() -> Mosquitto {
    let broker = Mosquitto::start("");
    publish_by_tool(broker.port(), "sensors/R/temp", "1", &["-r"]);
    broker
}

fn with_retained(broker: &Mosquitto, protocol: MqttProtocol, retained: Retained) -> config::Mqtt {
    let mut config = config(&broker.url(), protocol);
    config.subscriptions[0].retained = retained;
    config
}

/// Everything received until a message that is published now.
async fn until_now(ingest: &mut Ingest, broker: &Mosquitto) -> Vec<String> {
    publish_sensors(broker.port(), ["now".to_owned()]).await;
    let mut seen = vec![];
    while seen.last().is_none_or(|s| s != "now") {
        let ingest_batch = ingest.ingest_batch().await;
        seen.extend(sensors(std::slice::from_ref(&ingest_batch)));
        deliver(vec![ingest_batch]);
    }
    seen.pop();
    seen
}

#[tokio::test]
async fn a_retained_message_is_accepted_once() {
    for protocol in [V4, V5] {
        let mut broker = retaining();
        let mut once = with_retained(&broker, protocol, Retained::Once);
        // The session ends with the connection, so each connection subscribes again and receives
        // all retained messages again.
        once.clean_start = true;
        once.session_expiry = Duration::ZERO;
        let mut ingest = Ingest::start(once).await;
        assert_eq!(until_now(&mut ingest, &broker).await, ["R"]);
        for _ in 0..2 {
            broker.stop();
            ingest.until(|status| !status.connected).await;
            broker.restart();
            ingest.until(|status| status.is_ready()).await;
            assert_eq!(until_now(&mut ingest, &broker).await, [""; 0]);
        }
        // A message that changed without a subscriber is new.
        broker.stop();
        ingest.until(|status| !status.connected).await;
        broker.restart();
        publish_by_tool(broker.port(), "sensors/R/temp", "2", &["-r"]);
        ingest.until(|status| status.is_ready()).await;
        assert_eq!(until_now(&mut ingest, &broker).await, ["R"]);
        ingest.finish().await;
    }
}

/// An accepted message that was not acknowledged is not regarded as accepted.
#[tokio::test]
async fn an_undelivered_retained_message_is_received_again() {
    for protocol in [V4, V5] {
        let broker = retaining();
        let mut once = with_retained(&broker, protocol, Retained::Once);
        once.clean_start = true;
        once.session_expiry = Duration::ZERO;
        let mut ingest = Ingest::start(once).await;
        let given_up = ingest.ingest_batches(1).await;
        assert_eq!(sensors(&given_up), ["R"]);
        drop(given_up);
        let again = ingest.ingest_batches(1).await;
        assert_eq!(sensors(&again), ["R"]);
        deliver(again);
        ingest.finish().await;
    }
}

#[tokio::test]
async fn an_existing_session_receives_retained_messages_as_configured() {
    for (protocol, retained, after_restart) in [
        // MQTT 5 can request them for new subscriptions only.
        (V5, Retained::Once, 0),
        (V4, Retained::Once, 1),
        (V5, Retained::Always, 1),
        (V4, Retained::Always, 1),
    ] {
        let broker = retaining();
        let config = with_retained(&broker, protocol, retained);
        let mut ingest = Ingest::start(config.clone()).await;
        assert_eq!(until_now(&mut ingest, &broker).await, ["R"]);
        ingest.finish().await;
        let mut ingest = Ingest::start(config).await;
        assert_eq!(
            until_now(&mut ingest, &broker).await.len(),
            after_restart,
            "{protocol:?} {retained:?}"
        );
        ingest.finish().await;
    }
    for protocol in [V4, V5] {
        let broker = retaining();
        let mut ingest = Ingest::start(with_retained(&broker, protocol, Retained::Never)).await;
        assert_eq!(until_now(&mut ingest, &broker).await, [""; 0]);
        ingest.finish().await;
    }
}

#[tokio::test]
async fn configured_user_properties_become_tags() {
    let broker = Mosquitto::start("");
    let mut tagged = config(&broker.url(), V5);
    tagged.subscriptions[0].user_property_tags = vec!["site".into()];
    let mut ingest = Ingest::start(tagged).await;
    let properties = [
        "-V",
        "5",
        "-D",
        "publish",
        "user-property",
        "site",
        "north",
        "-D",
        "publish",
        "user-property",
        "x",
        "y",
    ];
    publish_by_tool(broker.port(), "sensors/S/temp", "1", &properties);
    let ingest_batches = ingest.ingest_batches(1).await;
    let tags = ingest_batches[0].batch.to_readings().remove(0).tags;
    assert_eq!(
        tags.into_iter().collect::<Vec<_>>(),
        [("site".to_owned(), "north".to_owned())]
    );
    deliver(ingest_batches);
    ingest.finish().await;
}

#[tokio::test]
async fn qos_2_is_received_as_qos_1() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut exactly_once = config(&broker.url(), protocol);
        exactly_once.subscriptions[0].qos = 2;
        let mut ingest = Ingest::start(exactly_once).await;
        assert_eq!(ingest.status.borrow().problem, None);
        publish_by_tool(broker.port(), "sensors/S/temp", "1", &["-q", "2"]);
        deliver(ingest.ingest_batches(1).await);
        ingest.finish().await;
    }
}

fn gauge(name: &str, broker: &Mosquitto) -> f64 {
    let start = format!(
        "hourbucket_{name}{{broker=\"127.0.0.1:{}\"}} ",
        broker.port()
    );
    let text = metrics::render();
    text.lines()
        .find_map(|line| line.strip_prefix(&start))
        .map_or(0.0, |value| value.parse().expect("a number"))
}

/// Acknowledgements are late, later than the broker's limit for a silent client: pings continue,
/// nothing is lost, the window is respected, and its metrics show the waiting messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_may_take_longer_than_the_keep_alive() {
    crate::install_metrics();
    for protocol in [V4, V5] {
        let broker = Mosquitto::start(if protocol == V4 {
            "max_inflight_messages 5"
        } else {
            ""
        });
        let mut small = config(&broker.url(), protocol);
        small.keep_alive = Duration::from_secs(1);
        small.window = 5;
        let mut ingest = Ingest::start(small).await;
        publish_sensors(broker.port(), (0..20).map(|i| format!("S{i}"))).await;
        let held = ingest.ingest_batches(5).await;
        let changed = tokio::time::timeout(Duration::from_secs(4), ingest.status.changed()).await;
        assert!(changed.is_err(), "{:?}", *ingest.status.borrow());
        assert!(ingest.ingest_batches.is_empty(), "more than the window");
        assert_eq!(gauge("mqtt_unacked", &broker), 5.0);
        assert!(gauge("mqtt_oldest_unacked_seconds", &broker) > 2.0);
        // Only MQTT 5 reports the window.
        assert_eq!(
            gauge("mqtt_window_full_seconds_total", &broker) >= 2.0,
            protocol == V5
        );
        deliver(held);
        let mut seen = 5;
        while seen < 20 {
            let ingest_batch = ingest.ingest_batch().await;
            seen += ingest_batch.batch.len();
            deliver(vec![ingest_batch]);
        }
        assert_eq!(seen, 20);
        ingest.finish().await;
    }
}
