//! Devices that connect to the binary directly, with a real MongoDB: every acknowledged reading is
//! stored once, after any kill; paho-mqtt without changes; thousands of connections.
//!
//! The largest number: `cargo test --test servers mqtt_direct_service:: -- --ignored --nocapture`,
//! `HOURBUCKET_CONNECTIONS` for another.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, python_packages, unique_database};
use crate::support::raw_mqtt::{Raw, connect, packet, publish};
use crate::support::service::Service;
use crate::support::stored::Stored;
use crate::support::usage::resident_kib;
use crate::support::{free_port, setting, stored, wait_until};
use net::access::hash_secret;

const PATIENCE: Duration = Duration::from_secs(120);

/// A service on the shared MongoDB with a port for devices; `more` is added to `[listen.mqtt]`.
fn service(test: &str, first: &str, more: &str) -> (Service, u16, String) {
    let uri = Mongod::shared().uri();
    let database = unique_database(test);
    let port = free_port();
    let text = format!(
        "store.mode = \"bucket\"\nflush.max_age = \"300ms\"\n{first}\n[listen.mqtt]\n\
         enabled = true\n\
         listen = \"127.0.0.1:{port}\"\n{more}\n[[listen.mqtt.topics]]\nfilter = \"fleet/+\"\n\
         topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n"
    );
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    (service, port, database)
}

/// A device that publishes one reading at a time with QoS 1 and repeats it until it is
/// acknowledged, over as many connections as necessary.
fn device(port: u16, name: String, stop: Arc<AtomicBool>, acked: Arc<AtomicUsize>) -> Vec<Stored> {
    let mut record: Vec<Stored> = vec![];
    let mut waiting: Option<(Stored, Vec<u8>)> = None;
    while !stop.load(Ordering::Relaxed) || waiting.is_some() {
        let Some(mut socket) = open(port, &name) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        loop {
            if waiting.is_none() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let reading = (name.clone(), now_ms(), record.len() as i64);
                let payload = format!("{{\"ts\":{},\"n\":{}}}", reading.1, reading.2);
                waiting = Some((
                    reading,
                    publish(4, &format!("fleet/{name}"), &payload, 1, 7),
                ));
            }
            let Some((_, bytes)) = &waiting else { break };
            let mut answer = [0; 4];
            if socket.write_all(bytes).is_err() || socket.read_exact(&mut answer).is_err() {
                break;
            }
            assert_eq!(answer, [0x40, 2, 0, 7], "a PUBACK");
            acked.fetch_add(1, Ordering::Relaxed);
            record.extend(waiting.take().map(|(reading, _)| reading));
        }
    }
    record
}

fn open(port: u16, name: &str) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_nodelay(true).ok()?;
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .ok()?;
    socket.write_all(&connect(4, name, 60, None)).ok()?;
    let mut answer = [0; 4];
    socket.read_exact(&mut answer).ok()?;
    (answer == [0x20, 2, 0, 0]).then_some(socket)
}

fn killed(ack: &str) {
    const DEVICES: usize = 20;
    let (mut service, port, database) =
        service("direct_kill", &format!("ingest.ack = \"{ack}\""), "");
    let stop = Arc::new(AtomicBool::new(false));
    let acked = Arc::new(AtomicUsize::new(0));
    let devices: Vec<_> = (0..DEVICES)
        .map(|i| {
            let stop = stop.clone();
            let acked = acked.clone();
            std::thread::spawn(move || device(port, format!("d{i}"), stop, acked))
        })
        .collect();
    for kill in 1..=5 {
        let more = acked.load(Ordering::Relaxed) + 50;
        wait_until("devices are acknowledged", PATIENCE, || {
            (acked.load(Ordering::Relaxed) >= more).then_some(())
        });
        // This does not wait for a condition: the moment varies.
        std::thread::sleep(Duration::from_millis(kill * 37));
        service.restart();
    }
    stop.store(true, Ordering::Relaxed);
    let sent: Vec<Stored> = devices
        .into_iter()
        .flat_map(|device| device.join().expect("the device"))
        .collect();
    println!(
        "ack = {ack}: {} readings acknowledged over 5 kills",
        sent.len()
    );
    let uri = Mongod::shared().uri();
    wait_until("everything is stored", PATIENCE, || {
        (stored::readings(&uri, &database).len() >= sent.len()).then_some(())
    });
    stored::exactly_once(&stored::readings(&uri, &database), sent);
    let code = service.terminate(Duration::from_secs(40));
    assert_eq!(code, 0, "{}", service.log());
}

#[test]
fn killed_at_any_instant_with_the_journal() {
    killed("journal");
}

#[test]
fn killed_at_any_instant_without_a_journal() {
    killed("stored");
}

/// Publishes with each protocol and QoS, prints the answers, and checks that subscriptions are
/// refused.
const PAHO: &str = r#"
import json, ssl, sys, time
import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.packettypes import PacketTypes
port, ca = int(sys.argv[1]), sys.argv[2]
now = int(time.time() * 1000)
for version in (mqtt.MQTTv311, mqtt.MQTTv5):
    refused = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="paho", protocol=version)
    client.username_pw_set("d1", "geheim")
    client.tls_set(ca)
    client.on_subscribe = lambda c, u, mid, codes, p: refused.extend(code.is_failure for code in codes)
    client.will_set("fleet/will", "offline", qos=1, retain=True)
    client.connect("127.0.0.1", port, keepalive=1)
    client.loop_start()
    sent = []
    for n in range(200):
        qos = n % 3
        payload = json.dumps({"ts": now + n, "n": n, "version": int(version)})
        sent.append(client.publish(f"fleet/v{int(version)}", payload, qos=qos))
    for info in sent:
        info.wait_for_publish(60)
        assert info.is_published()
    client.subscribe('#', qos=1)
    deadline = time.time() + 30
    while not refused:
        assert time.time() < deadline
        time.sleep(0.01)
    assert refused == [True], refused
    # Silent for longer than the keep-alive: paho's pings are answered.
    time.sleep(2.5)
    assert client.is_connected()
    client.disconnect()
    client.loop_stop()
print("done")
"#;

#[test]
fn paho_publishes_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let tokens = file(
        "tokens.toml",
        &format!(
            "[[tokens]]\nid = \"d1\"\nsha256 = \"{}\"\n",
            hash_secret("geheim")
        ),
    );
    let cert = file(
        "server.pem",
        include_str!("../support/mqtt_tls/mutual/server.pem"),
    );
    let key = file(
        "server.key",
        include_str!("../support/mqtt_tls/mutual/server.key"),
    );
    let ca = file("ca.pem", include_str!("../support/mqtt_tls/mutual/ca.pem"));
    let keys = format!("tokens_file = \"{tokens}\"\ncert_file = \"{cert}\"\nkey_file = \"{key}\"");
    let (service, port, database) = service("paho", "", &keys);
    let done = Command::new("python3")
        .args(["-c", PAHO, &port.to_string(), &ca])
        .env(
            "PYTHONPATH",
            python_packages("HOURBUCKET_PYTHONPATH", "paho-mqtt"),
        )
        .output()
        .expect("python3");
    assert!(
        done.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&done.stderr),
        service.log()
    );
    let metrics = service.wait_settled(400, PATIENCE);
    assert_eq!(
        metrics.labelled("readings_accepted_total", "source", "mqtt_direct"),
        400.0
    );
    assert_eq!(
        metrics.labelled("mqtt_direct_connects_total", "result", "accepted"),
        2.0
    );
    assert_eq!(
        metrics.labelled("mqtt_direct_disconnects_total", "reason", "left"),
        2.0
    );
    assert_eq!(
        metrics.labelled("acks_pending", "source", "mqtt_direct"),
        0.0
    );
    let stored = stored::readings(&Mongod::shared().uri(), &database);
    let sensors = |name: &str| stored.keys().filter(|(sensor, ..)| sensor == name).count();
    assert_eq!(
        (sensors("v4"), sensors("v5"), stored.len()),
        (200, 200, 400)
    );
}

/// Raises the limit of open files to the maximum.
fn allow_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )
    .expect("files");
}

/// All devices connect and stay; then each sends a reading and is acknowledged; then each pings.
fn held(connections: usize) {
    allow_files();
    let (service, port, database) =
        service("held", "", &format!("connections_max = {connections}"));
    let idle_kib = resident_kib(service.pid());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let begun = Instant::now();
    runtime.block_on(async {
        let mut devices = vec![];
        for part in (0..connections).step_by(100) {
            let some = (part..connections.min(part + 100)).map(|i| async move {
                Raw::connect(port, if i % 2 == 0 { 4 } else { 5 }, &format!("d{i}")).await
            });
            devices.extend(futures_util::future::join_all(some).await);
        }
        let metrics = service.metrics();
        assert_eq!(metrics.get("mqtt_direct_connections"), connections as f64);
        let each_kib =
            resident_kib(service.pid()).saturating_sub(idle_kib) as f64 / connections as f64;
        println!(
            "{connections} connections in {:?}, {each_kib:.1} KiB each",
            begun.elapsed()
        );
        assert_eq!(
            Raw::open(port).await.answer().await,
            None,
            "one more than allowed"
        );
        let now = now_ms();
        let begun = Instant::now();
        for (i, device) in devices.iter_mut().enumerate() {
            let payload = format!("{{\"ts\":{now},\"n\":{i}}}");
            let protocol = if i % 2 == 0 { 4 } else { 5 };
            device
                .send(&publish(protocol, &format!("fleet/d{i}"), &payload, 1, 1))
                .await;
        }
        for device in &mut devices {
            let (first, body) = device.answer().await.expect("a PUBACK");
            assert_eq!((first, &body[..2]), (0x40, &[0, 1][..]));
        }
        println!("a reading of each acknowledged in {:?}", begun.elapsed());
        for device in &mut devices {
            device.send(&packet(0xc0, &[])).await;
            assert_eq!(device.answer().await, Some((0xd0, vec![])));
        }
        assert_eq!(
            service.metrics().get("mqtt_direct_connections"),
            connections as f64
        );
        service.wait_settled(connections as u64, PATIENCE);
        let sent = (0..connections).map(|i| (format!("d{i}"), now, i as i64));
        stored::exactly_once(&stored::readings(&Mongod::shared().uri(), &database), sent);
    });
    wait_until("all have left", PATIENCE, || {
        (service.metrics().get("mqtt_direct_connections") == 0.0).then_some(())
    });
}

#[test]
fn many_connections_are_held() {
    held(500);
}

#[test]
#[ignore = "ten thousand connections: needs as many open files twice"]
fn ten_thousand_connections_are_held() {
    held(setting("HOURBUCKET_CONNECTIONS", 10_000));
}
