//! Runs the MQTT listener with a test at both ends: the test sends to the port, and plays the next
//! stage.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::sync::Arc;
use std::time::Duration;

use config::{AckMode, Config, ListenMqtt, Live, Retained, Subscription};
use ingest::IngestDeps;
use ingest::listen::MqttListener;
use journal::admission::{AdmissionControl, IngestBatch, IngestReceiver, admission_channel};
use model::SystemClock;
use net::access::GrantDefaults;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A limit for every wait in these tests; reached only if something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The defaults, on a free port, with `sensors/+/+` as scalars.
pub fn settings() -> ListenMqtt {
    let mut settings = Config::default().listen.mqtt;
    settings.enabled = true;
    settings.listen.set_port(0);
    settings.topics = vec![Subscription {
        filter: "sensors/+/+".into(),
        qos: 1,
        topic: "sensors/{sensor_id}/{field}".into(),
        format: "scalar".into(),
        ts_unit: None,
        zone: None,
        retained: Retained::Always,
        user_property_tags: vec!["site".into()],
    }];
    settings
}

/// The listener, and the receiving end of the next stage.
pub struct Direct {
    /// The ingest batches that the listener submits.
    pub ingest_batches: IngestReceiver,
    /// Opens and closes admission.
    pub admission_control: AdmissionControl,
    /// Cancelled: accept no more.
    pub stop: CancellationToken,
    /// The port for devices.
    pub port: u16,
    drained: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Direct {
    /// Starts the listener.
    pub async fn start(settings: &ListenMqtt) -> Direct {
        let admission_control = AdmissionControl::default();
        let (admission, ingest_batches) =
            admission_channel(1024, 64 * 1024 * 1024, admission_control.clone());
        let stop = CancellationToken::new();
        let drained = CancellationToken::new();
        let env = IngestDeps {
            decoding: Live::fixed(Config::default().decoding()),
            on_tls: Arc::new(|_| {}),
            ack: AckMode::Journal,
            grants: GrantDefaults::unlimited(),
            admission,
            commit_delay: Duration::from_millis(2),
            clock: Arc::new(SystemClock::new()),
            births_dir: None,
            sparkplug_host: None,
            stop: stop.clone(),
            drained: drained.clone(),
        };
        let listener = MqttListener::bind(settings, env)
            .await
            .unwrap_or_else(|e| panic!("{e}"));
        let port = listener.local_addr().port();
        Direct {
            ingest_batches,
            admission_control,
            stop,
            port,
            drained,
            task: Some(listener.spawn()),
        }
    }

    /// Returns the next ingest batch.
    pub async fn ingest_batch(&mut self) -> IngestBatch {
        tokio::time::timeout(PATIENCE, self.ingest_batches.recv())
            .await
            .expect("no ingest batch arrived")
            .expect("the listener has ended")
    }

    /// Acknowledges every ingest batch until `n` readings and dead letters have arrived; returns
    /// the sensors.
    pub async fn deliver(&mut self, n: usize) -> Vec<String> {
        let mut sensors = vec![];
        let mut dead = 0;
        while sensors.len() + dead < n {
            let ingest_batch = self.ingest_batch().await;
            dead += ingest_batch.dead.len();
            sensors.extend(
                ingest_batch
                    .batch
                    .to_readings()
                    .into_iter()
                    .map(|r| r.sensor_id),
            );
            ingest_batch.into_parts().2.delivered();
        }
        sensors
    }

    /// Acknowledges every ingest batch for as long as this is alive; the metrics count the
    /// readings.
    pub fn deliver_all(mut self) -> JoinHandle<()> {
        tokio::spawn(async move {
            while let Some(ingest_batch) = self.ingest_batches.recv().await {
                ingest_batch.into_parts().2.delivered();
            }
        })
    }

    /// Stops the listener as the service does, and waits for its end.
    pub async fn finish(mut self) {
        self.stop.cancel();
        let task = self.task.take().unwrap();
        let ended = tokio::time::timeout(PATIENCE, task).await;
        assert!(ended.is_ok_and(|e| e.is_ok()), "the listener did not end");
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.drained.cancel();
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
