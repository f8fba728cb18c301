//! Requests with the header `Idempotency-Key`, and their repeats.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::rig::{Request, Rig, post};
use journal::RequestKeys;
use model::SystemClock;

/// Two equal readings without a time.
const TWINS: &str = r#"[{"sensor_id":"S1","temp":22.5},{"sensor_id":"S1","temp":22.5},{"temp":1}]"#;

async fn rig() -> Rig {
    let clock = Arc::new(SystemClock::new());
    Rig::remembering(RequestKeys::new(Duration::from_secs(60), 100, clock)).await
}

fn keyed(body: &str, key: &str) -> Request {
    post(body).header("idempotency-key", format!("\"{key}\""))
}

#[tokio::test]
async fn a_repeat_gets_the_answer_of_the_first_request_and_nothing_of_it_goes_on() {
    let mut rig = rig().await;
    let (first, readings) = rig.delivered(keyed(TWINS, "k1")).await;
    assert_eq!((first.status, readings.len()), (200, 2));
    assert_eq!(readings[0], readings[1]);
    assert!(readings.iter().all(|reading| reading.receipt_time));
    for _ in 0..2 {
        let repeat = keyed(TWINS, "k1").send(rig.addr).await;
        assert_eq!((repeat.status, repeat.json()), (200, first.json()));
        rig.nothing_came();
    }
    assert_eq!(first.json()["accepted"], json!(2));
    // Without the key, and with another one, it is another request.
    for request in [post(TWINS), keyed(TWINS, "k2")] {
        assert_eq!(rig.delivered(request).await.1.len(), 2);
    }
}

#[tokio::test]
async fn a_key_in_flight_is_a_conflict_also_after_its_sender_has_left() {
    let mut rig = rig().await;
    let addr = rig.addr;
    let sender = tokio::spawn(async move { keyed(TWINS, "k").send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    for has_left in [false, true] {
        let early = keyed(TWINS, "k").send(rig.addr).await;
        assert_eq!(
            (early.status, early.reason()),
            (409, "idempotency_key_in_flight".into())
        );
        assert!(early.retry_after_s() >= 1, "{has_left}");
        sender.abort();
        tokio::task::yield_now().await;
    }
    ack.delivered();
    assert_eq!(keyed(TWINS, "k").send(rig.addr).await.status, 200);
    rig.nothing_came();
}

#[tokio::test]
async fn influx_clients_get_503_while_their_key_is_in_flight() {
    let mut rig = rig().await;
    let addr = rig.addr;
    let request = || keyed("m,sensor_id=S1 v=1", "k").to("/write");
    let first = request();
    let first = tokio::spawn(async move { first.send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    assert_eq!(request().send(rig.addr).await.status, 503);
    ack.delivered();
    assert_eq!(first.await.unwrap().status, 204);
    assert_eq!(request().send(rig.addr).await.status, 204);
    rig.nothing_came();
}

#[tokio::test]
async fn a_request_that_was_not_accepted_does_not_use_up_its_key() {
    let mut rig = rig().await;
    let addr = rig.addr;
    let lost = tokio::spawn(async move { keyed(TWINS, "k").send(addr).await });
    drop(rig.ingest_batch().await);
    assert_eq!(lost.await.unwrap().status, 503);
    let bad = keyed("[{\"temp\":1}]", "k").send(rig.addr).await;
    assert_eq!(bad.status, 400);
    let (answer, readings) = rig.delivered(keyed(TWINS, "k")).await;
    assert_eq!((answer.status, readings.len()), (200, 2));
}

#[tokio::test]
async fn a_key_belongs_to_one_content_and_one_path() {
    let mut rig = rig().await;
    rig.delivered(keyed(TWINS, "k")).await;
    let others = [
        keyed(r#"{"sensor_id":"S1","temp":23}"#, "k"),
        keyed(TWINS, "k").to("/v1/readings?sensor_id=S2"),
        keyed(TWINS, "k").header("content-type", "application/cbor"),
        keyed(TWINS, "k").to("/v1/hooks/json"),
    ];
    for other in others {
        let answer = other.send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason()),
            (422, "idempotency_key_reused".into())
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn a_malformed_key_is_refused_and_without_a_memory_the_header_has_no_effect() {
    let mut rig = rig().await;
    let malformed = [
        post(TWINS).header("idempotency-key", "8e03978e"),
        post(TWINS).header("idempotency-key", "\"\""),
        keyed(TWINS, "a").header("idempotency-key", "\"b\""),
    ];
    for request in &malformed {
        let answer = request.send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason()),
            (400, "bad_idempotency_key".into())
        );
    }
    rig.nothing_came();
    let mut rig = Rig::new(|_| {}).await;
    for request in malformed {
        assert_eq!(rig.delivered(request).await.0.status, 200);
    }
}

#[tokio::test]
async fn a_hook_keeps_a_message_that_cannot_be_decoded_once() {
    let mut rig = rig().await;
    let request = || keyed("[{\"temp\":1}]", "k").to("/v1/hooks/json");
    let addr = rig.addr;
    let first = request();
    let first = tokio::spawn(async move { first.send(addr).await });
    let ingest_batch = rig.ingest_batches.recv().await.unwrap();
    assert!(ingest_batch.key.is_some());
    let (_, dead, ack) = ingest_batch.into_parts();
    assert_eq!(dead.len(), 1);
    ack.delivered();
    let first = first.await.unwrap();
    let repeat = request().send(rig.addr).await;
    assert_eq!((repeat.status, repeat.json()), (first.status, first.json()));
    rig.nothing_came();
}
