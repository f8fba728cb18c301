//! Runs MQTT ingest with a test at both ends: a publisher before the broker, and the next stage
//! after ingest.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::sync::Arc;
use std::time::Duration;

use config::{AckMode, Decoding, Live, Mqtt, MqttProtocol, Retained, Subscription};
use ingest::IngestDeps;
use ingest::mqtt::{BrokerStatus, spawn};
use journal::admission::{AdmissionControl, IngestBatch, IngestReceiver, admission_channel};
use model::SystemClock;
use net::access::GrantDefaults;
use rumqttc_v4 as mqtt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A limit for every wait in these tests; reached only if something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The default settings.
pub fn decoding() -> Decoding {
    config::Config::default().decoding()
}

/// The configuration of a broker, with `sensors/+/+` as scalars.
pub fn config(url: &str, protocol: MqttProtocol) -> Mqtt {
    Mqtt {
        url: url.into(),
        client_id: "hourbucket-test".into(),
        protocol,
        clean_start: false,
        session_expiry: Duration::from_secs(3600),
        username: None,
        password: None,
        password_file: None,
        ca_file: None,
        cert_file: None,
        key_file: None,
        keep_alive: Duration::from_secs(30),
        packet_max_bytes: 1024 * 1024,
        window: 10_000,
        status_topic: None,
        subscriptions: vec![subscription(
            "sensors/+/+",
            "sensors/{sensor_id}/{field}",
            "scalar",
        )],
    }
}

/// A subscription with QoS 1.
pub fn subscription(filter: &str, topic: &str, format: &str) -> Subscription {
    Subscription {
        filter: filter.into(),
        qos: 1,
        topic: topic.into(),
        format: format.into(),
        ts_unit: None,
        zone: None,
        retained: Retained::Once,
        user_property_tags: vec![],
    }
}

/// Ingest of one broker, and the receiving end of the next stage.
pub struct Ingest {
    /// The ingest batches that ingest submits.
    pub ingest_batches: IngestReceiver,
    /// Opens and closes admission.
    pub admission_control: AdmissionControl,
    /// The status of the broker's connection.
    pub status: watch::Receiver<BrokerStatus>,
    /// Cancelled: accept no more.
    pub stop: CancellationToken,
    drained: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Ingest {
    /// Starts ingest and waits until it is subscribed.
    pub async fn start(config: Mqtt) -> Ingest {
        let mut ingest = Ingest::spawn(config);
        ingest.until(BrokerStatus::is_ready).await;
        ingest
    }

    /// Starts ingest.
    pub fn spawn(config: Mqtt) -> Ingest {
        Ingest::spawn_as(config, None)
    }

    /// The same as a Sparkplug host with this id.
    pub fn spawn_as(config: Mqtt, host_id: Option<&str>) -> Ingest {
        let sparkplug_host = host_id.map(Arc::from);
        let admission_control = AdmissionControl::default();
        let (admission, ingest_batches) =
            admission_channel(1024, 64 * 1024 * 1024, admission_control.clone());
        let stop = CancellationToken::new();
        let drained = CancellationToken::new();
        let none = BrokerStatus {
            broker: String::new(),
            connected: false,
            subscribed: false,
            problem: None,
        };
        let (tx, status) = watch::channel(none);
        let on_status = Arc::new(move |status| drop(tx.send(status)));
        let env = IngestDeps {
            decoding: Live::fixed(decoding()),
            on_tls: Arc::new(|_| {}),
            ack: AckMode::Journal,
            grants: GrantDefaults::unlimited(),
            admission,
            commit_delay: Duration::from_millis(2),
            clock: Arc::new(SystemClock::new()),
            births_dir: None,
            sparkplug_host,
            stop: stop.clone(),
            drained: drained.clone(),
        };
        let task = spawn(config, &[], env, on_status);
        Ingest {
            ingest_batches,
            admission_control,
            status,
            stop,
            drained,
            task: Some(task.unwrap()),
        }
    }

    /// Waits for a status.
    pub async fn until(&mut self, wanted: impl Fn(&BrokerStatus) -> bool) {
        let seen =
            tokio::time::timeout(PATIENCE, self.status.wait_for(|status| wanted(status))).await;
        assert!(
            seen.is_ok_and(|s| s.is_ok()),
            "the status stays {:?}",
            *self.status.borrow()
        );
    }

    /// Returns the next ingest batch.
    pub async fn ingest_batch(&mut self) -> IngestBatch {
        tokio::time::timeout(PATIENCE, self.ingest_batches.recv())
            .await
            .expect("no ingest batch arrived")
            .expect("ingest has ended")
    }

    /// Returns ingest batches with exactly `n` readings and dead letters in total.
    pub async fn ingest_batches(&mut self, n: usize) -> Vec<IngestBatch> {
        let mut ingest_batches = vec![];
        let mut got = 0;
        while got < n {
            let ingest_batch = self.ingest_batch().await;
            got += ingest_batch.batch.len() + ingest_batch.dead.len();
            ingest_batches.push(ingest_batch);
        }
        assert_eq!(got, n, "more arrived than was sent");
        ingest_batches
    }

    /// Stops ingest as the service does, and waits for its end.
    pub async fn finish(mut self) {
        self.stop.cancel();
        let task = self.task.take().unwrap();
        let ended = tokio::time::timeout(PATIENCE, task).await;
        assert!(ended.is_ok_and(|e| e.is_ok()), "ingest did not end");
    }

    /// Stops ingest although not everything is acknowledged.
    pub async fn cut(self) {
        self.drained.cancel();
        self.finish().await;
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Whether the status says that another client has the same client id. Old versions of mosquitto,
/// and all with MQTT 3.1.1, give no reason, so that only a series of short sessions shows it.
pub fn names_another_client(status: &BrokerStatus) -> bool {
    let names_it = |problem: &String| {
        problem.contains("another client uses this client_id")
            || problem.contains("another client may use this client_id")
    };
    status.problem.as_ref().is_some_and(names_it)
}

/// The sensor ids of ingest batches, in order.
pub fn sensors(ingest_batches: &[IngestBatch]) -> Vec<String> {
    ingest_batches
        .iter()
        .flat_map(|p| p.batch.to_readings())
        .map(|r| r.sensor_id)
        .collect()
}

/// Acknowledges ingest batches.
pub fn deliver(ingest_batches: Vec<IngestBatch>) {
    for ingest_batch in ingest_batches {
        ingest_batch.into_parts().2.delivered();
    }
}

/// Publishes messages with QoS 1 (MQTT 3.1.1), and returns when the broker has acknowledged all of
/// them.
pub async fn publish<P: Into<Vec<u8>>>(port: u16, messages: impl IntoIterator<Item = (String, P)>) {
    let mut options = mqtt::MqttOptions::new(
        format!("publisher-{}", fastrand::u64(..)),
        ("127.0.0.1", port),
    );
    options
        .set_max_packet_size(1 << 28, 1 << 28)
        .set_inflight(1000)
        .set_max_request_batch(100);
    let (client, mut events) = mqtt::AsyncClient::builder(options).capacity(1000).build();
    let messages: Vec<_> = messages
        .into_iter()
        .map(|(topic, payload)| (topic, payload.into()))
        .collect();
    let mut missing = messages.len();
    let sending = async {
        for (topic, payload) in messages {
            client
                .publish(topic, payload, mqtt::PublishOptions::at_least_once())
                .await
                .unwrap();
        }
    };
    let acknowledged = async {
        while missing > 0 {
            if let mqtt::Event::Incoming(mqtt::Packet::PubAck(_)) = events.poll().await.unwrap() {
                missing -= 1;
            }
        }
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(sending, acknowledged) })
        .await
        .expect("the broker accepts nothing");
}

/// Publishes a scalar for each sensor.
pub async fn publish_sensors(port: u16, sensors: impl IntoIterator<Item = String>) {
    publish(
        port,
        sensors
            .into_iter()
            .map(|s| (format!("sensors/{s}/temp"), b"21.5".to_vec())),
    )
    .await;
}
