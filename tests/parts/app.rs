//! The whole service on the memory store, and how it reacts if a part fails.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::http_client::agent;
use config::{AckMode, Config};
use hourbucket::app::Service;
use hourbucket::shutdown::ExitReason;
use model::SystemClock;
use testkit::memory_store::{Fault, MemoryStore, Script, Verdict};
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(30);
/// Of 1 MB each: more than the dead letters in memory, 16 MiB.
const MESSAGES: usize = 24;

/// A service that writes immediately, on free ports; the directory holds its journal.
async fn service(ack: AckMode, script: Script) -> (Service, Arc<MemoryStore>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.ingest.ack = ack;
    config.http.listen = "127.0.0.1:0".parse().unwrap();
    config.admin.listen = "127.0.0.1:0".parse().unwrap();
    config.journal.dir = dir.path().join("journal");
    config.flush.max_age = Duration::from_millis(20);
    config.shutdown.deadline = Duration::from_secs(2);
    let store = Arc::new(MemoryStore::with_script(script));
    let service = Service::start(config, store.clone(), Arc::new(SystemClock::new()))
        .await
        .unwrap();
    (service, store, dir)
}

async fn post(url: String) -> Option<u16> {
    post_to(
        format!("{url}/v1/readings"),
        "{\"sensor_id\":\"S1\",\"t\":1}".into(),
    )
    .await
}

async fn post_to(url: String, body: String) -> Option<u16> {
    let send = move || {
        let agent = agent();
        let request = agent.post(url).header("content-type", "application/json");
        let answer = request.send(body).ok();
        answer.map(|answer| answer.status().as_u16())
    };
    tokio::task::spawn_blocking(send).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_shard_ends_the_service_and_its_readings_are_not_acknowledged() {
    let (service, store, _dir) = service(
        AckMode::Stored,
        Box::new(|| panic!("a mistake in the store")),
    )
    .await;
    let url = format!("http://{}", service.http_addr.unwrap());
    let running = tokio::spawn(service.run_until(std::future::pending()));
    assert_ne!(
        post(url.clone()).await,
        Some(200),
        "acknowledged by a service that has failed"
    );
    let ended = tokio::time::timeout(PATIENCE, running)
        .await
        .expect("it ends by itself")
        .unwrap();
    assert!(
        matches!(&ended, ExitReason::Broken(why) if why.contains("a mistake in the store")),
        "{ended:?}"
    );
    assert_eq!(ended.exit_code(), 1);
    assert_eq!(store.pages().readings().count(), 0);
    closes(&url).await;
}

/// Waits until the port refuses connections.
async fn closes(url: &str) {
    let closed = async { while post(url.to_owned()).await.is_some() {} };
    tokio::time::timeout(PATIENCE, closed)
        .await
        .expect("the port is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_get_503_while_a_service_that_stops_waits_for_the_store() {
    let (service, _store, _dir) = service(
        AckMode::Journal,
        Box::new(|| (Fault::NotApplied, Duration::ZERO)),
    )
    .await;
    let url = format!("http://{}", service.http_addr.unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async {
        let _ = stopped.await;
        "the test"
    }));
    assert_eq!(post(url.clone()).await, Some(200));
    stop.send(()).unwrap();
    let mut answers = vec![];
    while !running.is_finished() {
        answers.push(post(url.clone()).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The deadline is two seconds. The first requests may still be accepted or find a connection
    // that ends; the last one may come after the end.
    let given = |wanted| answers.iter().filter(|answer| **answer == wanted).count() as u64;
    let accepted = 1 + given(Some(200));
    let unanswered = given(None);
    let ExitReason::Unstored { left } = running.await.unwrap() else {
        panic!("it ends before the deadline with unstored readings");
    };
    assert!(
        (accepted..=accepted + unanswered).contains(&left),
        "{left} are left, of these requests and the one before them: {answers:?}"
    );
    assert!(given(Some(503)) > 10, "{answers:?}");
    assert!(unanswered <= 2, "{answers:?}");
    closes(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_reading_is_a_stored_dead_letter_before_it_is_acknowledged() {
    for ack in [AckMode::Stored, AckMode::Journal] {
        let (service, store, _dir) =
            service(ack, Box::new(|| (Fault::Rejected, Duration::ZERO))).await;
        let url = format!("http://{}", service.http_addr.unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(service.run_until(async {
            let _ = stopped.await;
            "the test"
        }));
        assert_eq!(post(url).await, Some(200));
        if ack == AckMode::Stored {
            assert_eq!(
                store.pages().dead.len(),
                1,
                "acknowledged before the dead letter was kept"
            );
        }
        stop.send(()).unwrap();
        let ended = tokio::time::timeout(PATIENCE, running)
            .await
            .expect("it ends")
            .unwrap();
        assert_eq!(ended, ExitReason::Clean);
        let pages = store.pages();
        assert_eq!((pages.dead.len(), pages.readings().count()), (1, 0));
        assert_eq!(
            (pages.dead[0].reason.as_str(), pages.dead[0].source.as_str()),
            ("store_rejected", "store")
        );
        let line: serde_json::Value = serde_json::from_slice(&pages.dead[0].payload).unwrap();
        assert_eq!(
            (&line["sensor_id"], &line["values"]["t"]),
            (&"S1".into(), &1.into())
        );
    }
}

/// Messages that cannot be decoded come while the collection `dead_letters` stores none. They take
/// more memory than dead letters may have, and must not delay a reading.
#[tokio::test(flavor = "multi_thread")]
async fn readings_pass_dead_letters_for_which_there_is_no_room() {
    for ack in [AckMode::Journal, AckMode::Stored] {
        let (service, store, _dir) = service(ack, Box::new(|| (Fault::None, Duration::ZERO))).await;
        store.set_judge(Box::new(|_| Verdict::Fails));
        let url = format!("http://{}", service.http_addr.unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(service.run_until(async {
            let _ = stopped.await;
            "the test"
        }));
        let mut messages = vec![];
        for n in 0..MESSAGES {
            let body = format!("{{{n} {}", "x".repeat(1_000_000));
            let message = post_to(format!("{url}/v1/hooks/json?sensor_id=S1"), body);
            if ack == AckMode::Journal {
                assert_eq!(message.await, Some(202));
            } else {
                messages.push(tokio::spawn(message));
            }
        }
        let stored = async {
            while post(url.clone()).await != Some(200) {}
            while store.pages().readings().count() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, stored)
            .await
            .expect("a reading waits behind dead letters");
        assert_eq!(store.pages().dead.len(), 0);
        store.set_judge(Box::new(|_| Verdict::Takes));
        for message in messages {
            assert_eq!(message.await.unwrap(), Some(202));
        }
        let all = async {
            while store.pages().dead.len() < MESSAGES {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all)
            .await
            .expect("dead letters are missing");
        stop.send(()).unwrap();
        assert_eq!(running.await.unwrap(), ExitReason::Clean);
        let dead = &store.pages().dead;
        let numbers: BTreeSet<&[u8]> = dead
            .iter()
            .map(|dead_letter| &dead_letter.payload[..4])
            .collect();
        assert_eq!((dead.len(), numbers.len()), (MESSAGES, MESSAGES));
    }
}
