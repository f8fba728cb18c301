//! Devices that send invalid or excessive messages, to the binary with a real MongoDB: memory use
//! while the journal is full, the dead letters of their messages, and their log lines and metrics.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use crate::support;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::raw_mqtt::{
    Raw, connect, connect_with, disconnect_reason, packet, publish, publish_with,
};
use crate::support::service::Service;
use crate::support::usage::resident_kib;
use crate::support::{block_on, free_port, setting, stored, wait_until};
use net::access::hash_secret;

const PATIENCE: Duration = Duration::from_secs(120);

/// A service with a port for devices; `first` comes before and `more` inside `[listen.mqtt]`.
fn service(uri: &str, database: &str, first: &str, more: &str) -> (Service, u16) {
    let port = free_port();
    let text = format!(
        "store.mode = \"bucket\"\nflush.max_age = \"300ms\"\n{first}\n[listen.mqtt]\n\
         enabled = true\n\
         listen = \"127.0.0.1:{port}\"\n{more}\n[[listen.mqtt.topics]]\nfilter = \"fleet/+\"\n\
         topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n"
    );
    (
        Service::start(&text, &[("STORE__URI", uri), ("STORE__DATABASE", database)]),
        port,
    )
}

/// Sends readings over HTTP until the journal accepts no more.
fn fill_journal(service: &Service) {
    let begun = Instant::now();
    for batch in 0.. {
        let readings: Vec<String> = (0..500)
            .map(|i| {
                format!(
                    "{{\"sensor_id\":\"fill\",\"ts\":{},\"values\":{{\"n\":{batch}}}}}",
                    now_ms() - i
                )
            })
            .collect();
        match service.post(
            "/v1/readings",
            "application/json",
            format!("[{}]", readings.join(",")).as_bytes(),
        ) {
            Some((503 | 429, _))
                if service
                    .metrics()
                    .labelled("intake_closed", "reason", "full")
                    == 1.0 =>
            {
                return;
            }
            Some(_) => {}
            None => panic!("no answer"),
        }
        assert!(begun.elapsed() < PATIENCE, "the journal is never full");
    }
}

/// Sends these messages on one connection after another, as fast as they are accepted; counts the
/// bytes.
fn hostile(
    port: u16,
    name: String,
    protocol: u8,
    message: Vec<u8>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else {
            continue;
        };
        socket
            .set_write_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        if socket
            .write_all(&connect(protocol, &name, 60, None))
            .is_err()
        {
            continue;
        }
        while !stop.load(Ordering::Relaxed) {
            match socket.write(&message) {
                Ok(n) if n == message.len() => sent.fetch_add(n as u64, Ordering::Relaxed),
                // A message that was written in part is not continued: the next connection sends it
                // from the start.
                Ok(_) => break,
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    continue;
                }
                Err(_) => break,
            };
        }
    }
}

/// The growth of the service in KiB within `time`, while its journal is full and each of these is
/// sent on four connections.
fn growth(mongod: &mut Mongod, what: &str, messages: &[(u8, Vec<u8>)], time: Duration) -> u64 {
    let first = "journal.segment_bytes = \"64KiB\"\njournal.max_bytes = \"1MiB\"\n\
        accumulate.max_bytes = \"1MiB\"";
    let (service, port) = service(
        &mongod.uri(),
        &unique_database("direct_memory"),
        first,
        "window = 65535",
    );
    mongod.kill9();
    fill_journal(&service);
    let idle_kib = resident_kib(service.pid());
    let stop = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let senders: Vec<_> = (0..messages.len() * 4)
        .map(|i| {
            let (protocol, message) = messages[i % messages.len()].clone();
            let stop = stop.clone();
            let sent = sent.clone();
            std::thread::spawn(move || {
                hostile(port, format!("h{i}"), protocol, message, stop, sent)
            })
        })
        .collect();
    let begun = Instant::now();
    let mut most_kib = 0;
    while begun.elapsed() < time {
        most_kib = most_kib.max(resident_kib(service.pid()));
        std::thread::sleep(Duration::from_millis(20));
    }
    stop.store(true, Ordering::Relaxed);
    senders
        .into_iter()
        .for_each(|sender| sender.join().expect("a sender"));
    println!(
        "{what}: {} KiB sent; resident {idle_kib} KiB before, {most_kib} KiB at most",
        sent.load(Ordering::Relaxed) / 1024
    );
    assert!(sent.load(Ordering::Relaxed) > 0, "nothing was sent");
    assert_eq!(
        service
            .metrics()
            .labelled("intake_closed", "reason", "full"),
        1.0,
        "the journal was full until the end"
    );
    mongod.restart();
    most_kib - idle_kib
}

/// Streams that try to use memory, while the journal is full. Each kind is sent separately, because
/// one kind fills the queues in which another would grow. `HOURBUCKET_HOSTILE`: factor for the time.
#[test]
fn memory_stays_within_the_budgets_while_the_journal_is_full() {
    let mut mongod = Mongod::start();
    let empty = |n| [0x26, 0, 0, 0, 0].repeat(n);
    let properties = vec![(5, publish_with("fleet/d", &empty(50_000), b"{}", 0, 0))];
    let unwanted: Vec<u8> = publish(4, "unmapped/wants/this", "1", 1, 7).repeat(1000);
    let unwanted_5 = publish_with("unmapped/wants/this", &empty(3), b"1", 0, 0).repeat(1000);
    let large = (
        4,
        publish(4, "unmapped/wants/this", &"x".repeat(200_000), 2, 7),
    );
    let oversize = (4, publish(4, "fleet/d", &"x".repeat(400_000), 1, 7));
    let half = (
        4,
        publish(4, "fleet/d", &"x".repeat(200_000), 1, 7)[..100_000].to_vec(),
    );
    let time = Duration::from_secs(3 * setting("HOURBUCKET_HOSTILE", 1));
    for (what, messages) in [
        ("empty user properties", properties),
        (
            "topics that no rule wants",
            vec![(4, unwanted), (5, unwanted_5)],
        ),
        ("large packets", vec![large, oversize, half]),
    ] {
        let grown_kib = growth(&mut mongod, what, &messages, time);
        // Two budgets of 32 MiB, the queued ingest batches and the allocator's slack.
        assert!(grown_kib < 150 * 1024, "{what}: {grown_kib} KiB more");
    }
}

/// Publishes with QoS 2 and a message that is too large before good ones, on one connection.
const PAHO: &str = r#"
import json, sys, time
import paho.mqtt.client as mqtt
port = int(sys.argv[1])
now = int(time.time() * 1000)
for version in (mqtt.MQTTv311, mqtt.MQTTv5):
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="paho", protocol=version)
    client.connect("127.0.0.1", port, keepalive=60)
    client.loop_start()
    sent = []
    for n in range(30):
        payload = json.dumps({"ts": now + n, "n": n})
        sent.append(client.publish(f"fleet/v{int(version)}", payload, qos=n % 3))
        if n % 10 == 5:
            sent.append(client.publish(f"fleet/v{int(version)}", "x" * 100000, qos=n // 10))
            sent.append(client.publish(f"unmapped/v{int(version)}", "21.5", qos=n // 10))
    for info in sent:
        info.wait_for_publish(60)
        assert info.is_published()
    client.disconnect()
    client.loop_stop()
print("done")
"#;

#[test]
fn every_paho_message_is_stored_or_a_dead_letter_and_none_blocks() {
    let uri = Mongod::shared().uri();
    let database = unique_database("direct_letters");
    let (service, port) = service(&uri, &database, "", "packet_max_bytes = \"20KiB\"");
    let done = Command::new("python3")
        .args(["-c", PAHO, &port.to_string()])
        .env(
            "PYTHONPATH",
            support::mongod::python_packages("HOURBUCKET_PYTHONPATH", "paho-mqtt"),
        )
        .output()
        .expect("python3");
    assert!(
        done.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&done.stderr),
        service.log()
    );
    let metrics = service.wait_settled(60, PATIENCE);
    assert_eq!(
        metrics.labelled("mqtt_direct_connects_total", "result", "accepted"),
        2.0,
        "no client had to reconnect"
    );
    assert_eq!(stored::readings(&uri, &database).len(), 60);
    let dead_letters = wait_until("the dead letters are there", PATIENCE, || {
        let dead_letters = dead_letters(&uri, &database);
        (dead_letters.len() >= 12).then_some(dead_letters)
    });
    let of = |reason: &str| {
        dead_letters
            .iter()
            .filter(|(_, r, _)| r == reason)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (
            of("payload_too_large").len(),
            of("no_subscription").len(),
            dead_letters.len()
        ),
        (6, 6, 12),
        "{dead_letters:?}"
    );
    assert!(
        of("no_subscription")
            .iter()
            .all(|(topic, ..)| topic.starts_with("unmapped/v"))
    );
    for (topic, _, detail) in of("payload_too_large") {
        assert!(
            topic.starts_with("fleet/v")
                && detail.ends_with("the first 16384 of 100000 bytes are kept"),
            "{detail}"
        );
    }
    let log = service.log();
    let line = log
        .lines()
        .find(|l| l.contains("dead letter") && l.contains("unmapped/v"))
        .expect("a line");
    assert!(
        line.contains("paho") && line.contains("127.0.0.1:") && line.contains("no_subscription"),
        "{line}"
    );
}

/// Topic, reason and detail of each dead letter.
fn dead_letters(uri: &str, database: &str) -> Vec<(String, String, String)> {
    use futures_util::TryStreamExt;
    use mongodb::bson::{Document, doc};
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let dead_letters = client
            .database(database)
            .collection::<Document>("dead_letters");
        let all: Vec<Document> = dead_letters
            .find(doc! {})
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        let text = |dead_letter: &Document, key: &str| dead_letter.get_str(key).unwrap().to_owned();
        all.iter()
            .map(|l| (text(l, "topic"), text(l, "reason"), text(l, "detail")))
            .collect()
    })
}

/// A token `d1` with the secret `geheim`; a device that repeats the same error.
#[test]
fn a_disconnected_device_is_logged_a_few_times_and_counted_each_time() {
    const TIMES: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"d1\"\nsha256 = \"{}\"\n",
            hash_secret("geheim")
        ),
    )
    .unwrap();
    let uri = Mongod::shared().uri();
    let database = unique_database("direct_ends");
    let more = format!("tokens_file = \"{}\"", tokens.display());
    let (mut service, port) = service(&uri, &database, "", &more);
    block_on(async {
        for i in 0..TIMES {
            let mut device = Raw::open(port).await;
            // In every second case its client id contains the secret.
            let id = if i % 2 == 0 { "pump-7" } else { "geheim-7" };
            device
                .send(&connect(5, id, 60, Some(("d1", "geheim"))))
                .await;
            assert_eq!(device.answer().await.unwrap().0, 0x20);
            device
                .send(&packet(0x30, &[0, 0, 3, 0x23, 0, 1, b'1']))
                .await;
            let (first, body) = device.answer().await.unwrap();
            let (code, why) = disconnect_reason(&body);
            assert_eq!((first, code), (0xe0, 0x94));
            assert!(why.contains("alias"), "{why}");
        }
        let mut stranger = Raw::open(port).await;
        stranger
            .send(&connect_with(5, "pump-8", 60, Some(("d1", "falsch")), &[]))
            .await;
        assert_eq!(stranger.answer().await.unwrap().0, 0x20);
    });
    wait_until("all are counted", PATIENCE, || {
        let metrics = service.metrics();
        (metrics.labelled("mqtt_direct_disconnects_total", "reason", "protocol") == TIMES as f64)
            .then_some(())
    });
    assert_eq!(service.terminate(Duration::from_secs(40)), 0);
    let log = service.log();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("device disconnected"))
        .collect();
    assert_eq!(lines.len(), 10, "{log}");
    for part in ["pump-7", "d1", "127.0.0.1:", "protocol", "alias"] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
    let rest = log
        .lines()
        .filter(|line| line.contains("log lines suppressed"))
        .collect::<Vec<_>>();
    assert!(
        rest.len() == 1 && rest[0].contains("suppressed") && rest[0].contains("30"),
        "{rest:?}"
    );
    let stranger = log
        .lines()
        .find(|line| line.contains("authentication failed"))
        .expect("a line");
    assert!(
        stranger.contains("pump-8") && stranger.contains("wrong_credentials"),
        "{stranger}"
    );
    assert!(
        !log.contains("geheim") && !log.contains("falsch"),
        "a secret is in the log"
    );
}
