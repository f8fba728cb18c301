//! Sparkplug B against a real mosquitto: a node whose births are unknown gets a request for a
//! rebirth, and answers. A host publishes its STATE.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::mosquitto::{Mosquitto, retained_by_tool};
use crate::support::mqtt_rig::*;
use config::Mqtt;
use config::MqttProtocol::{self, V4, V5};
use model::{Reading, Value};
use rumqttc_v4 as mqtt;

/// Protocol Buffers: a field of bytes.
fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, value.len() as u8][..], value].concat()
}

/// Protocol Buffers: a small number.
fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn double(value: f64) -> Vec<u8> {
    [&[13 << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn message(seq: u8, metrics: &[Vec<u8>]) -> Vec<u8> {
    let metrics: Vec<u8> = metrics.iter().flat_map(|metric| bytes(2, metric)).collect();
    [metrics, number(3, seq)].concat()
}

/// A metric of a birth: name, alias, a double.
fn born(name: &str, alias: u8, value: f64) -> Vec<u8> {
    [
        bytes(1, name.as_bytes()),
        number(2, alias),
        number(4, 10),
        double(value),
    ]
    .concat()
}

/// A metric of a data message: alias and a double.
fn data(alias: u8, value: f64) -> Vec<u8> {
    [number(2, alias), double(value)].concat()
}

fn topic(kind: &str) -> String {
    let device = if kind.starts_with('D') { "/D" } else { "" };
    format!("spBv1.0/G/{kind}/N{device}")
}

fn sparkplug(url: &str, protocol: MqttProtocol) -> Mqtt {
    // Everything except our own commands, which would be left over in an ingest batch at the end.
    // All subscriptions share the state of a node.
    let kind = |kind: &str| subscription(&format!("spBv1.0/+/{kind}/#"), "spBv1.0/#", "sparkplug");
    let subscriptions = ["NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA", "DDEATH"]
        .map(kind)
        .to_vec();
    Mqtt {
        subscriptions,
        ..config(url, protocol)
    }
}

/// Receives the commands for the node.
struct Commands {
    // If it was dropped, the connection would end.
    _client: mqtt::AsyncClient,
    events: mqtt::EventLoop,
}

impl Commands {
    async fn listen(port: u16) -> Commands {
        Commands::subscribe(port, "spBv1.0/+/NCMD/#").await
    }

    async fn subscribe(port: u16, filter: &str) -> Commands {
        let options =
            mqtt::MqttOptions::new(format!("node-{}", fastrand::u64(..)), ("127.0.0.1", port));
        let (client, mut events) = mqtt::AsyncClient::builder(options).capacity(10).build();
        client
            .subscribe(filter, mqtt::QoS::AtLeastOnce)
            .await
            .unwrap();
        let subscribed = async {
            while !matches!(
                events.poll().await.unwrap(),
                mqtt::Event::Incoming(mqtt::Packet::SubAck(_))
            ) {}
        };
        tokio::time::timeout(PATIENCE, subscribed)
            .await
            .expect("the broker does not answer");
        Commands {
            _client: client,
            events,
        }
    }

    /// The next command: topic and payload.
    async fn next(&mut self) -> (String, Vec<u8>) {
        let command = async {
            loop {
                if let mqtt::Event::Incoming(mqtt::Packet::Publish(publish)) =
                    self.events.poll().await.unwrap()
                {
                    assert!(!publish.retain);
                    return (
                        String::from_utf8(publish.topic.to_vec()).unwrap(),
                        publish.payload.to_vec(),
                    );
                }
            }
        };
        tokio::time::timeout(PATIENCE, command)
            .await
            .expect("no command arrived")
    }

    async fn is_asked_for_a_rebirth(&mut self) {
        let (topic, payload) = self.next().await;
        assert_eq!(topic, "spBv1.0/G/NCMD/N");
        let name = bytes(1, b"Node Control/Rebirth");
        assert!(
            payload.windows(name.len()).any(|part| part == name)
                && payload.ends_with(&[14 << 3, 1]),
            "{payload:x?}"
        );
    }
}

/// The result of a published message: its readings, and the reasons of its dead letters.
async fn taken(
    ingest: &mut Ingest,
    broker: &Mosquitto,
    kind: &str,
    payload: Vec<u8>,
) -> (Vec<Reading>, Vec<String>) {
    publish(broker.port(), [(topic(kind), payload)]).await;
    let ingest_batch = ingest.ingest_batch().await;
    let readings = ingest_batch.batch.to_readings();
    let dead = ingest_batch
        .dead
        .iter()
        .map(|dead_letter| dead_letter.reason.clone())
        .collect();
    deliver(vec![ingest_batch]);
    (readings, dead)
}

fn only(readings: &[Reading], sensor: &str, field: &str, value: f64) {
    let [reading] = readings else {
        panic!("{readings:?}")
    };
    assert_eq!(
        (reading.sensor_id.as_str(), &reading.values[field]),
        (sensor, &Value::Double(value))
    );
}

async fn births_are_requested(protocol: MqttProtocol) {
    let mut broker = Mosquitto::start("");
    let mut commands = Commands::listen(broker.port()).await;
    let mut ingest = Ingest::start(sparkplug(&broker.url(), protocol)).await;

    // The service started after the node: its data cannot be decoded and are kept, and a rebirth is
    // requested.
    let (readings, dead) = taken(&mut ingest, &broker, "DDATA", message(9, &[data(2, 1.0)])).await;
    assert_eq!(
        (readings.len(), dead),
        (0, vec!["unknown_metric".to_owned()])
    );
    commands.is_asked_for_a_rebirth().await;

    // The node answers; from then on its data have names. Missing births are not requested again so
    // soon.
    let birth = message(
        0,
        &[
            [bytes(1, b"bdSeq"), number(11, 3)].concat(),
            born("volt", 1, 12.0),
        ],
    );
    only(
        &taken(&mut ingest, &broker, "NBIRTH", birth).await.0,
        "G/N",
        "volt",
        12.0,
    );
    let (_, dead) = taken(&mut ingest, &broker, "DDATA", message(1, &[data(2, 1.0)])).await;
    assert_eq!(dead, ["unknown_metric"]);
    only(
        &taken(
            &mut ingest,
            &broker,
            "DBIRTH",
            message(2, &[born("temp", 2, 20.0)]),
        )
        .await
        .0,
        "G/N/D",
        "temp",
        20.0,
    );
    only(
        &taken(&mut ingest, &broker, "NDATA", message(3, &[data(1, 12.5)]))
            .await
            .0,
        "G/N",
        "volt",
        12.5,
    );
    only(
        &taken(&mut ingest, &broker, "DDATA", message(4, &[data(2, 20.5)]))
            .await
            .0,
        "G/N/D",
        "temp",
        20.5,
    );

    // A connection with a session: births are still known. Unacknowledged messages are received
    // again first.
    broker.stop();
    ingest.until(|status| !status.connected).await;
    broker.restart();
    ingest
        .until(|status| status.connected && status.subscribed)
        .await;
    publish(
        broker.port(),
        [(topic("NDATA"), message(5, &[data(1, 13.0)]))],
    )
    .await;
    let mut seen = false;
    while !seen {
        let ingest_batch = ingest.ingest_batch().await;
        assert!(ingest_batch.dead.is_empty(), "{:?}", ingest_batch.dead);
        let value = |r: &Reading| r.values.get("volt") == Some(&Value::Double(13.0));
        seen = ingest_batch.batch.to_readings().iter().any(value);
        deliver(vec![ingest_batch]);
    }

    // A connection without a session: births may have been missed, so none is used.
    broker.kill();
    ingest.until(|status| !status.connected).await;
    broker.forget();
    broker.restart();
    ingest
        .until(|status| status.connected && status.subscribed)
        .await;
    let mut commands = Commands::listen(broker.port()).await;
    let (_, dead) = taken(&mut ingest, &broker, "NDATA", message(6, &[data(1, 13.5)])).await;
    assert_eq!(dead, ["unknown_metric"]);
    commands.is_asked_for_a_rebirth().await;
    ingest.finish().await;

    // The service restarts with its session, but without knowledge of the node.
    let mut ingest = Ingest::start(sparkplug(&broker.url(), protocol)).await;
    let (_, dead) = taken(&mut ingest, &broker, "NDATA", message(7, &[data(1, 13.5)])).await;
    assert_eq!(dead, ["unknown_metric"]);
    commands.is_asked_for_a_rebirth().await;
    ingest.finish().await;
}

#[tokio::test]
async fn v4_births_are_requested() {
    births_are_requested(V4).await;
}

#[tokio::test]
async fn v5_births_are_requested() {
    births_are_requested(V5).await;
}

#[tokio::test]
async fn a_rebirth_is_requested_once_for_a_gap() {
    let broker = Mosquitto::start("");
    let mut commands = Commands::listen(broker.port()).await;
    let mut ingest = Ingest::start(sparkplug(&broker.url(), V5)).await;
    only(
        &taken(
            &mut ingest,
            &broker,
            "NBIRTH",
            message(0, &[born("volt", 1, 12.0)]),
        )
        .await
        .0,
        "G/N",
        "volt",
        12.0,
    );
    let messages =
        [3, 5, 7, 9].map(|seq| (topic("NDATA"), message(seq, &[data(1, f64::from(seq))])));
    publish(broker.port(), messages).await;
    let mut seen = vec![];
    while seen.len() < 4 {
        let ingest_batch = ingest.ingest_batch().await;
        assert!(ingest_batch.dead.is_empty(), "{:?}", ingest_batch.dead);
        seen.extend(
            ingest_batch
                .batch
                .to_readings()
                .iter()
                .map(|r| r.values["volt"].clone()),
        );
        deliver(vec![ingest_batch]);
    }
    assert_eq!(seen, [3.0, 5.0, 7.0, 9.0].map(Value::Double));
    commands.is_asked_for_a_rebirth().await;
    only(
        &taken(&mut ingest, &broker, "NDATA", message(11, &[data(1, 11.0)]))
            .await
            .0,
        "G/N",
        "volt",
        11.0,
    );
    // All its requests have reached the broker when it has ended.
    ingest.finish().await;
    publish(broker.port(), [("spBv1.0/G/NCMD/end".to_owned(), vec![1])]).await;
    assert_eq!(commands.next().await.0, "spBv1.0/G/NCMD/end");
}

/// Receives the STATE of hosts.
struct States(Commands);

impl States {
    async fn listen(port: u16) -> States {
        States(Commands::subscribe(port, "spBv1.0/STATE/#").await)
    }

    /// Whether the host is online, and the time.
    async fn next(&mut self) -> (bool, i64) {
        let (topic, payload) = self.0.next().await;
        assert_eq!(topic, "spBv1.0/STATE/H");
        let state: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(state.as_object().unwrap().len(), 2, "{state}");
        let online = state["online"].as_bool().unwrap();
        (online, state["timestamp"].as_i64().unwrap())
    }
}

async fn host(broker: &Mosquitto, protocol: MqttProtocol) -> Ingest {
    let mut ingest = Ingest::spawn_as(sparkplug(&broker.url(), protocol), Some("H"));
    ingest.until(|status| status.is_ready()).await;
    ingest
}

fn offline(at_ms: i64) -> Vec<(String, String)> {
    let payload = format!("{{\"online\":false,\"timestamp\":{at_ms}}}");
    vec![("spBv1.0/STATE/H".to_owned(), payload)]
}

async fn the_state_of_a_host_is_published(protocol: MqttProtocol) {
    let broker = Mosquitto::start("");
    let mut states = States::listen(broker.port()).await;
    let retained = || retained_by_tool(broker.port(), "spBv1.0/STATE/H");

    let killed = host(&broker, protocol).await;
    let (is_online, first_ms) = states.next().await;
    assert!(is_online);
    assert!(retained().contains("true"), "the birth is retained");
    // The will of an earlier connection, or another program with this id.
    publish(broker.port(), offline(first_ms - 1000)).await;
    assert_eq!(states.next().await, (false, first_ms - 1000));
    assert_eq!(states.next().await, (true, first_ms));

    // Its connection ends without DISCONNECT.
    drop(killed);
    assert_eq!(states.next().await, (false, first_ms), "the will");
    assert!(retained().contains("false"), "the will is retained");

    let stopped = host(&broker, protocol).await;
    let (is_online, second_ms) = states.next().await;
    assert!(is_online && second_ms >= first_ms);
    stopped.finish().await;
    let (is_online, end_ms) = states.next().await;
    assert!(!is_online && end_ms >= second_ms);
    let last = retained();
    assert!(last.contains(&format!("{end_ms}")), "{last}");

    // The clock was set back meanwhile: nodes would ignore what is older than this.
    let ahead_ms = end_ms + 3_600_000;
    let host = host(&broker, protocol).await;
    assert!(states.next().await.0);
    publish(broker.port(), offline(ahead_ms)).await;
    while states.next().await != (true, ahead_ms + 1) {}
    host.finish().await;
}

#[tokio::test]
async fn v4_the_state_of_a_host_is_published() {
    the_state_of_a_host_is_published(V4).await;
}

#[tokio::test]
async fn v5_the_state_of_a_host_is_published() {
    the_state_of_a_host_is_published(V5).await;
}
