//! The whole service in the process of the test: from a configuration file, on the memory store,
//! with all ports.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hourbucket::app::{Reloaded, Reloader, Service};
use hourbucket::shutdown::ExitReason;
use model::SystemClock;
use serde_json::Value;
use testkit::memory_store::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

/// A service with HTTP, admin and MQTT ports on loopback; devices send to `sensors/SENSOR/FIELD`.
pub struct InProcess {
    pub http: SocketAddr,
    pub admin: SocketAddr,
    pub mqtt: SocketAddr,
    pub store: Arc<MemoryStore>,
    file: PathBuf,
    reloader: Reloader,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<ExitReason>,
}

/// The settings that every test has. `sections` must not repeat a table.
fn settings(dir: &Path, http: &str, mqtt: &str, sections: &str) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n{http}\n[admin]\nlisten = \"127.0.0.1:0\"\n[journal]\n\
         dir = \"{}/journal\"\n\
         [flush]\nmax_age = \"20ms\"\n{sections}\n\
         [listen.mqtt]\nenabled = true\nlisten = \"127.0.0.1:0\"\n{mqtt}\n\
         [[listen.mqtt.topics]]\nfilter = \"sensors/+/+\"\n\
         topic = \"sensors/{{sensor_id}}/{{field}}\"\nformat = \"scalar\"\n",
        dir.display()
    )
}

impl InProcess {
    /// Starts it with further keys of `[http]` and `[listen.mqtt]`, and further sections.
    pub async fn start(dir: &Path, http: &str, mqtt: &str, sections: &str) -> InProcess {
        let file = dir.join("hourbucket.toml");
        std::fs::write(&file, settings(dir, http, mqtt, sections)).unwrap();
        let config = config::load(Some(&file), std::iter::empty())
            .unwrap_or_else(|e| panic!("{e}"))
            .config;
        let store = Arc::new(MemoryStore::default());
        let service = Service::start(config, store.clone(), Arc::new(SystemClock::new()))
            .await
            .unwrap();
        let http = service.http_addr.unwrap();
        let admin = service.admin_addr;
        let mqtt = service.mqtt_addr.unwrap();
        let reloader = service.reloader();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(service.run_until(async move {
            stopped.cancelled().await;
            "the test"
        }));
        InProcess {
            http,
            admin,
            mqtt,
            store,
            file,
            reloader,
            stop,
            running,
        }
    }

    /// Reads its files again, as on SIGHUP.
    pub async fn reload(&self) -> Reloaded {
        let file = self.file.clone();
        self.reloader
            .reload(move || config::load(Some(&file), std::iter::empty()))
            .await
    }

    /// The sensors of the stored readings, once there are `n` of them, in order.
    pub async fn stored(&self, n: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let mut ids: Vec<String> = self
                .store
                .pages()
                .readings()
                .map(|reading| reading.sensor_id.to_string())
                .collect();
            if ids.len() >= n {
                ids.sort();
                return ids;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{n} readings are not stored: {ids:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What `/readyz` reports.
    pub async fn readyz(&self) -> Value {
        let (_, body) = ask(self.admin, "GET", "/readyz", "", "").await;
        serde_json::from_str(&body).unwrap()
    }

    /// Stops it and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.running)
            .await
            .expect("it ends")
            .unwrap();
        assert_eq!(ended, ExitReason::Clean);
    }
}

/// Sends a request with this value of `Authorization`; returns status and body.
pub async fn ask(
    addr: SocketAddr,
    method: &str,
    path: &str,
    authorization: &str,
    body: &str,
) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let authorization = if authorization.is_empty() {
        String::new()
    } else {
        format!("authorization: {authorization}\r\n")
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: application/json\r\n\
         {authorization}content-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .expect("an answer");
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}
