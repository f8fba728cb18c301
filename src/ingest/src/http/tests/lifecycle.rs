//! Acknowledgements that arrive, fail or never arrive; senders that disconnect; shutdown; metrics.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::rig::{LONG, Rig, post};
use telemetry::metrics;

const S1: &str = r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":22.5}"#;

#[tokio::test]
async fn no_answer_before_the_acknowledgement_and_503_where_it_fails() {
    let mut rig = Rig::new(|_| {}).await;
    let addr = rig.addr;
    let request = tokio::spawn(async move { post(S1).send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    let part = ack.clone();
    part.delivered();
    assert!(!request.is_finished());
    drop(ack);
    let answer = request.await.unwrap();
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (503, "not_stored")
    );
    assert!(answer.retry_after_s() >= 1);
}

#[tokio::test]
async fn an_acknowledgement_that_stays_away_is_503_after_the_timeout() {
    let mut rig = Rig::new(|cfg| cfg.ack_timeout = Duration::from_millis(50)).await;
    let addr = rig.addr;
    let request = tokio::spawn(async move { post(S1).send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    let answer = request.await.unwrap();
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (503, "not_stored_in_time")
    );
    ack.delivered();
}

#[tokio::test]
async fn a_next_stage_that_is_gone_is_503() {
    let rig = Rig::new(|_| {}).await;
    drop(rig.ingest_batches);
    let answer = post(S1).send(rig.addr).await;
    assert_eq!((answer.status, answer.reason().as_str()), (503, "broken"));
}

#[tokio::test]
async fn a_sender_that_leaves_gives_back_its_place() {
    let mut rig = Rig::new(|cfg| cfg.concurrency_max = 1).await;
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!(
        "{}content-length: {}\r\n\r\n{S1}",
        post("").head(),
        S1.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (readings, ack) = rig.ingest_batch().await;
    assert_eq!(readings.len(), 1);
    drop(stream);
    // Handed-over readings continue. The permit is free again as soon as the server notices that
    // the sender has disconnected.
    let addr = rig.addr;
    let next = tokio::spawn(async move {
        loop {
            let answer = post(S1).send(addr).await;
            if answer.status != 429 {
                return answer.status;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let (_, next_ack) = rig.ingest_batch().await;
    next_ack.delivered();
    assert_eq!(next.await.unwrap(), 200);
    ack.delivered();
}

#[tokio::test]
async fn stopping_lets_running_requests_finish_and_refuses_new_ones() {
    let mut rig = Rig::new(|_| {}).await;
    let addr = rig.addr;
    let running = tokio::spawn(async move { post(S1).send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    rig.shutdown.cancel();
    // A task sets the flag. From then on new requests are refused while the running one is
    // completed.
    let answer = loop {
        let probe = post("[]").send(addr).await;
        if probe.status != 400 {
            break probe;
        }
    };
    assert_eq!((answer.status, answer.reason().as_str()), (503, "stopping"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.retry_after_s() >= 1);
    assert!(!rig.task.is_finished());
    ack.delivered();
    assert_eq!(running.await.unwrap().status, 200);
    tokio::time::timeout(LONG, rig.task)
        .await
        .expect("the port stays open")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_stopped_port_refuses_until_it_is_closed_and_holds_no_handle_to_the_next_stage() {
    let mut rig = Rig::new(|_| {}).await;
    let addr = rig.addr;
    let mut arriving = TcpStream::connect(addr).await.unwrap();
    let head = format!("{}content-length: 100\r\n\r\n{{", post("").head());
    arriving.write_all(head.as_bytes()).await.unwrap();
    rig.admission_control.stop();
    rig.shutdown.cancel();
    tokio::time::timeout(LONG, rig.task)
        .await
        .expect("the port waits for a body that is still arriving")
        .unwrap()
        .unwrap();
    drop((rig.admission, rig.renewal));
    let next = tokio::time::timeout(LONG, rig.ingest_batches.recv()).await;
    assert!(
        next.expect("the port holds a handle to the next stage")
            .is_none()
    );
    for _ in 0..3 {
        let answer = post(S1).send(addr).await;
        assert_eq!((answer.status, answer.reason().as_str()), (503, "stopping"));
        assert!(answer.retry_after_s() >= 1);
    }
    let lines = post("temp,sensor_id=S1 value=1")
        .to("/write")
        .send(addr)
        .await;
    assert_eq!(lines.status, 503);
    rig.closed.cancel();
    let closed = async { while TcpStream::connect(addr).await.is_ok() {} };
    tokio::time::timeout(LONG, closed)
        .await
        .expect("the port is still open");
}

/// The value of the metric line that starts with `name` and contains each of `labels`; 0 if there
/// is none.
pub(super) fn metric(name: &str, labels: &[&str]) -> f64 {
    let text = metrics::render();
    let found =
        |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    text.lines().find(found).map_or(0.0, |line| {
        line.rsplit(' ').next().unwrap().parse().unwrap()
    })
}

#[tokio::test]
async fn requests_and_readings_are_counted() {
    metrics::install().unwrap();
    let mut rig = Rig::new(|_| {}).await;
    // Other tests of this process count too, so the test checks a rare reason and status, and the
    // rest with "at least".
    let requests = |status: &str| {
        metric(
            "hourbucket_http_requests_total",
            &["route=\"/v1/readings\"", status],
        )
    };
    let taken = || metric("hourbucket_readings_accepted_total", &["source=\"http\""]);
    let too_old = || {
        metric(
            "hourbucket_readings_rejected_total",
            &["source=\"http\"", "reason=\"too_old\""],
        )
    };
    let received = || metric("hourbucket_readings_received_total", &["source=\"http\""]);
    let before = (requests("status=\"200\""), taken(), too_old(), received());
    let old = r#"{"sensor_id":"S1","ts":"2001-06-01T00:00:00Z","temp":1}"#;
    let (answer, _) = rig
        .delivered(post(format!("[{S1},{old},{S1},{old},{old}]")))
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(too_old() - before.2, 3.0);
    assert!(taken() - before.1 >= 2.0 && received() - before.3 >= 5.0);
    assert!(requests("status=\"200\"") - before.0 >= 1.0);
    let not_found = || {
        metric(
            "hourbucket_http_requests_total",
            &["route=\"unmatched\"", "status=\"404\""],
        )
    };
    let before = not_found();
    post("")
        .to("/a/path/that/must/not/become/a/label")
        .send(rig.addr)
        .await;
    assert!(not_found() - before >= 1.0);
    assert!(!metrics::render().contains("must/not/become"));
    assert!(
        metric(
            "hourbucket_http_request_seconds_count",
            &["route=\"/v1/readings\""]
        ) >= 1.0
    );
}
