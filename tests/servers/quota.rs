//! One sender floods the service over HTTP; another one, with a separate token, sends as always.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use net::access::hash_secret;

use crate::support::fleet::now_ms;
use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::wait_until;

/// Connections of the sender that floods.
const FLOOD_CONNECTIONS: usize = 32;
const FLOOD_TIME: Duration = Duration::from_secs(6);

/// Posts readings with a token; returns the status and the reason of an error.
fn post(agent: &ureq::Agent, url: &str, token: &str, body: &str) -> (u16, String) {
    let request = agent
        .post(url)
        .header("authorization", format!("Bearer {token}.secret"));
    let mut answer = request
        .header("content-type", "application/x-ndjson")
        .send(body)
        .unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    (
        answer.status().as_u16(),
        json["error"]["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    )
}

/// `n` readings of sensors with this prefix, each with its own time.
fn lines(prefix: &str, n: usize, first_ms: u64) -> String {
    let line = |i: usize| {
        let ts = first_ms + i as u64;
        format!(
            "{{\"sensor_id\":\"{prefix}{}\",\"ts\":{ts},\"values\":{{\"temp\":{i}.5,\"humid\":{i}}}}}\n",
            i % 50
        )
    };
    (0..n).map(line).collect()
}

/// The flood of one token.
struct Flood {
    url: String,
    now_ms: u64,
    stop: AtomicBool,
    /// Readings.
    accepted: AtomicU64,
    /// Requests.
    held_back: AtomicU64,
}

impl Flood {
    /// Sends readings over one connection until it is stopped.
    fn send(&self, connection: usize) {
        let agent = agent();
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let first_ms = self.now_ms - 3_000_000 + 2000 * (round % 1000);
            let body = lines(&format!("flood-{connection}-"), 2000, first_ms);
            match post(&agent, &self.url, "flood", &body) {
                (200, _) => self.accepted.fetch_add(2000, Ordering::Relaxed),
                (429, reason) => {
                    assert_eq!(reason, "quota", "it is held back by its own limits only");
                    std::thread::sleep(Duration::from_millis(5));
                    self.held_back.fetch_add(1, Ordering::Relaxed)
                }
                other => panic!("{other:?}"),
            };
        }
    }
}

#[test]
fn a_flood_of_one_token_is_held_back_and_another_token_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    let entry = |id: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        )
    };
    std::fs::write(&tokens, entry("flood") + &entry("other")).unwrap();
    // A small journal and few requests: a sender may take a quarter of the first and half of the
    // second.
    let text = format!(
        "http.tokens_file = {:?}\nhttp.concurrency_max = 32\nquota.requests_max = 16\n\
         journal.max_bytes = \"64MiB\"\njournal.segment_bytes = \"4MiB\"\n",
        tokens.display().to_string()
    );
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let database = unique_database("quota");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    wait_until("the service is ready", Duration::from_secs(60), || {
        service
            .get_admin("/readyz")
            .filter(|(status, _)| *status == 200)
            .map(drop)
    });
    let now_ms = now_ms() as u64;
    let flood = Flood {
        url: format!("{}/v1/readings", service.http()),
        now_ms,
        stop: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
        held_back: AtomicU64::new(0),
    };
    let mut latencies = vec![];
    std::thread::scope(|scope| {
        for connection in 0..FLOOD_CONNECTIONS {
            let flood = &flood;
            scope.spawn(move || flood.send(connection));
        }
        // A hundred readings per second.
        let agent = agent();
        let begun = Instant::now();
        for round in 0u64.. {
            if begun.elapsed() > FLOOD_TIME {
                break;
            }
            let sent = Instant::now();
            let answer = post(
                &agent,
                &flood.url,
                "other",
                &lines("other-", 10, now_ms + 10 * round),
            );
            latencies.push(sent.elapsed());
            assert_eq!(answer.0, 200, "the other sender got {answer:?}");
            std::thread::sleep(Duration::from_millis(100).saturating_sub(sent.elapsed()));
        }
        flood.stop.store(true, Ordering::Relaxed);
    });
    latencies.sort_unstable();
    let p50 = latencies[latencies.len() / 2];
    let p99 = latencies[latencies.len() * 99 / 100];
    let accepted = flood.accepted.into_inner();
    let held_back = flood.held_back.into_inner();
    println!(
        "flood: {:.0} readings/s accepted, {held_back} requests held back; other: {} requests, p50 \
         {p50:?}, p99 {p99:?}",
        accepted as f64 / FLOOD_TIME.as_secs_f64(),
        latencies.len()
    );
    assert!(accepted > 0 && held_back > 0, "{accepted} {held_back}");
    // Far above the value of a quiet machine; a queue that others fill would take seconds.
    assert!(p99 < Duration::from_secs(2), "{p99:?}");
    assert!(service.metrics().get("quota_exceeded_total") >= held_back as f64);
}
