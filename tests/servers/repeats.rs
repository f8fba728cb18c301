//! A request with an `Idempotency-Key` is sent again after the service was killed: nothing of it is
//! stored twice, although its readings have no time. The binary and a real MongoDB.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::stored::counted;
use crate::support::wait_until;

const PATIENCE: Duration = Duration::from_secs(60);

/// Three readings of two sensors, two of them equal.
fn body(n: usize) -> String {
    format!(
        "{{\"sensor_id\":\"S1\",\"n\":{n}}}\n{{\"sensor_id\":\"S1\",\"n\":{n}}}\n\
         {{\"sensor_id\":\"S2\",\"n\":{n}}}\n"
    )
}

fn send(service: &Service, n: usize) {
    let sent = agent()
        .post(format!("{}/v1/readings", service.http()))
        .header("content-type", "application/x-ndjson")
        .header("idempotency-key", format!("\"request-{n}\""))
        .send(body(n));
    let mut answer = sent.expect("an answer");
    let text = answer.body_mut().read_to_string().unwrap();
    assert_eq!(answer.status(), 200, "{text}");
    assert!(text.contains("\"accepted\":3"), "{text}");
}

fn stored_once(mode: &str) {
    let mongod = Mongod::shared();
    let database = unique_database(&format!("repeats_{mode}"));
    let config = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"200ms\"\njournal.max_bytes = \"1MiB\"\n\
         journal.segment_bytes = \"64KiB\""
    );
    let settings = [
        ("STORE__URI", &*mongod.uri()),
        ("STORE__DATABASE", &*database),
    ];
    let mut service = Service::start(&config, &settings);
    let mut n = 0;
    // The first time right after the answer, so that the journal has the keys; then after their
    // segments were reused.
    for requests in [20, 2000, 20] {
        (n..n + requests).for_each(|n| send(&service, n));
        n += requests;
        if requests > 20 {
            service.wait_settled(3 * requests as u64, PATIENCE);
            let keys = service.dir().join("journal/keys");
            wait_until("keys of reused segments", PATIENCE, || {
                keys.exists().then_some(())
            });
        }
        service.kill9();
        service.restart();
        for again in [0, n / 2, n - 1] {
            send(&service, again);
        }
        let repeats = service.metrics().get("idempotency_repeats_total");
        assert_eq!(repeats, 3.0);
    }
    service.terminate(PATIENCE);
    assert_eq!(counted(&mongod.uri(), &database), 3 * n as u64);
}

#[test]
fn a_repeat_after_a_kill_stores_nothing_bucket_mode() {
    stored_once("bucket");
}

#[test]
fn a_repeat_after_a_kill_stores_nothing_time_series_mode() {
    stored_once("timeseries");
}
