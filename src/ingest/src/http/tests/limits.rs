//! Limits of size, time, number and memory, and the answer when one is reached.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::rig::{Answer, BATCHES_MAX, LONG, Rig, post};
use journal::admission::IngestBatch;
use model::ReadingBatch;
use model::ack::Ack;

const S1: &str = r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":22.5}"#;

/// A valid body of exactly `n` bytes.
fn body_of(n: usize) -> String {
    format!("{S1}{}", " ".repeat(n - S1.len()))
}

#[tokio::test]
async fn the_body_limit_holds_to_the_byte_with_and_without_content_length() {
    let mut rig = Rig::new(|cfg| cfg.body_max_bytes = 300_000).await;
    let (answer, _) = rig.delivered(post(body_of(300_000))).await;
    assert_eq!(answer.status, 200);
    let larger = post(body_of(300_001));
    for answer in [
        larger.send(rig.addr).await,
        larger.send_chunked(rig.addr).await,
    ] {
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (413, "body_too_large")
        );
        assert!(
            answer.text.contains("300000 bytes as sent"),
            "{}",
            answer.text
        );
    }
    // The whole body is on its way when the answer is sent; the answer must arrive nevertheless.
    // Of the larger one, a part is still to come then.
    for (mib, connection) in [(10, None), (40, Some("close"))] {
        let much = post(" ".repeat(mib << 20));
        for answer in [much.send(rig.addr).await, much.send_chunked(rig.addr).await] {
            assert_eq!(
                (answer.status, answer.header("connection")),
                (413, connection),
                "{mib} MiB"
            );
        }
    }
    rig.nothing_came();
}

/// A body names a sensor once for many readings, each of which repeats it in the journal.
#[tokio::test]
async fn readings_that_never_fit_into_the_journal_are_refused_for_good() {
    let mut rig = Rig::limiting_readings(1 << 20).await;
    let body = |records: usize| {
        let records: String = (1..records)
            .map(|t| format!(",{{\"t\":{t},\"v\":1}}"))
            .collect();
        let name = "S".repeat(200);
        post(format!(
            "[{{\"bn\":\"{name}\",\"bt\":1709287200,\"v\":1}}{records}]"
        ))
        .header("content-type", "application/senml+json")
    };
    let (answer, readings) = rig.delivered(body(1000)).await;
    assert_eq!((answer.status, readings.len()), (200, 1000));
    let answer = body(10_000).send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (413, "body_too_large")
    );
    assert!(
        answer.text.contains("journal.max_bytes") && answer.text.contains("several requests"),
        "{}",
        answer.text
    );
    assert_eq!(answer.header("retry-after"), None);
    rig.nothing_came();
}

#[tokio::test]
async fn a_refused_body_leaves_the_connection_usable() {
    let mut rig = Rig::new(|cfg| cfg.body_max_bytes = 1000).await;
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    let large = body_of(100_000);
    for (body, status) in [(large.as_str(), 413), ("[]", 400), (large.as_str(), 413)] {
        let head = format!("{}content-length: {}\r\n\r\n", post("").head(), body.len());
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .unwrap();
        assert_eq!(Answer::read(&mut stream).await.unwrap().status, status);
    }
    rig.nothing_came();
}

#[tokio::test]
async fn a_slow_head_loses_its_connection() {
    let rig = Rig::new(|cfg| cfg.times.header_timeout = Duration::from_millis(100)).await;
    // No bytes, the beginning of HTTP/2's preface, and half a head.
    for begun in ["", "P", "POST /v1/readings HTTP/1.1\r\nhost: te"] {
        let mut stream = TcpStream::connect(rig.addr).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the connection stays open after {begun:?}");
    }
}

#[tokio::test]
async fn a_slow_body_is_408() {
    let mut rig = Rig::new(|cfg| cfg.body_timeout = Duration::from_millis(100)).await;
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!("{}content-length: 1000\r\n\r\n{S1}", post("").head());
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = Answer::read(&mut stream).await.unwrap();
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (408, "body_timeout")
    );
    assert_eq!(answer.header("connection"), Some("close"));
    rig.nothing_came();
}

/// Opens a connection and sends the head of a request and the first bytes of its body of 1000.
async fn begun(rig: &Rig) -> TcpStream {
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    stream
        .write_all(format!("{}content-length: 1000\r\n\r\n{S1}", post("").head()).as_bytes())
        .await
        .unwrap();
    stream
}

#[tokio::test]
async fn a_body_that_arrives_too_slowly_is_408() {
    let grace = Duration::from_millis(200);
    let mut rig = Rig::new(|cfg| (cfg.body_grace, cfg.body_rate_min) = (grace, 100)).await;
    let mut slow = begun(&rig).await;
    // 2000 bytes per second.
    let mut good = begun(&rig).await;
    let sender = tokio::spawn(async move {
        for _ in (S1.len()..1000).step_by(50) {
            tokio::time::sleep(grace / 8).await;
            good.write_all(&[b' '; 50]).await.unwrap();
        }
        Answer::read(&mut good).await.unwrap().status
    });
    let answer = Answer::read(&mut slow).await.unwrap();
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (408, "body_too_slow")
    );
    assert!(
        answer.text.contains("100 bytes per second"),
        "{}",
        answer.text
    );
    assert_eq!(answer.header("connection"), Some("close"));
    rig.ingest_batch().await.1.delivered();
    assert_eq!(sender.await.unwrap(), 200);
}

#[tokio::test]
async fn a_body_that_is_still_arriving_takes_no_place_of_the_running_requests() {
    let mut rig = Rig::new(|cfg| cfg.concurrency_max = 2).await;
    let mut arriving = Vec::new();
    for _ in 0..8 {
        arriving.push(begun(&rig).await);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..3 {
        assert_eq!(
            rig.delivered(post(S1)).await.0.status,
            200,
            "the slow ones are in the way"
        );
    }
    // They lose nothing: as soon as one has arrived, it is taken.
    for mut stream in arriving {
        stream
            .write_all(&vec![b' '; 1000 - S1.len()])
            .await
            .unwrap();
        rig.ingest_batch().await.1.delivered();
        assert_eq!(Answer::read(&mut stream).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_body_that_has_arrived_waits_for_its_turn() {
    let mut rig = Rig::new(|cfg| (cfg.concurrency_max, cfg.queue_timeout) = (1, LONG)).await;
    let mut second = begun(&rig).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let addr = rig.addr;
    let first = tokio::spawn(async move { post(S1).send(addr).await.status });
    let (_, ack) = rig.ingest_batch().await;
    second
        .write_all(&vec![b' '; 1000 - S1.len()])
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    rig.nothing_came();
    ack.delivered();
    rig.ingest_batch().await.1.delivered();
    assert_eq!(
        (
            first.await.unwrap(),
            Answer::read(&mut second).await.unwrap().status
        ),
        (200, 200)
    );
}

#[tokio::test]
async fn one_request_more_than_allowed_is_429_at_once() {
    let mut rig = Rig::new(|cfg| cfg.concurrency_max = 1).await;
    let addr = rig.addr;
    let first = tokio::spawn(async move { post(S1).send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    let answer = post(S1).send(addr).await;
    assert_eq!((answer.status, answer.reason().as_str()), (429, "busy"));
    assert!((1..=2).contains(&answer.retry_after_s()));
    ack.delivered();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(rig.delivered(post(S1)).await.0.status, 200);
}

/// Waits until this much of the bodies' budget is free.
async fn until_free(rig: &Rig, bytes: u64) {
    let is_free = async {
        while rig.renewal.shared.bodies.free() != bytes {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let free = tokio::time::timeout(LONG, is_free).await;
    assert!(
        free.is_ok(),
        "{} bytes free",
        rig.renewal.shared.bodies.free()
    );
}

#[tokio::test]
async fn a_token_with_many_large_bodies_leaves_room_for_the_bodies_of_others() {
    const MIB: u64 = 1 << 20;
    let entry = |id: &str| {
        let hash = net::access::hash_secret("secret");
        format!("[[tokens]]\nid = \"{id}\"\nsha256 = \"{hash}\"\n")
    };
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(&tokens, entry("gw1") + &entry("gw2")).unwrap();
    // The least budget: four of the largest bodies.
    let mut rig =
        Rig::new(|cfg| (cfg.bodies_max_bytes, cfg.tokens_file) = (MIB, Some(tokens))).await;
    let of =
        |id: &str, body: &str| post(body).header("authorization", format!("Bearer {id}.secret"));
    let body = body_of(MIB as usize);
    let head = format!("{}content-length: {MIB}\r\n\r\n", of("gw1", "").head());
    let (begin, rest) = body.split_at(body.len() - 500);
    let mut arriving = Vec::new();
    for free in [3 * MIB, 2 * MIB] {
        let mut stream = TcpStream::connect(rig.addr).await.unwrap();
        let bytes = format!("{head}{begin}");
        stream.write_all(bytes.as_bytes()).await.unwrap();
        until_free(&rig, free).await;
        arriving.push(stream);
    }
    let answer = of("gw1", &body).send(rig.addr).await;
    assert_eq!((answer.status, answer.reason().as_str()), (429, "busy"));
    assert!((1..=2).contains(&answer.retry_after_s()));
    let (answer, _) = rig.delivered(of("gw2", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    for mut stream in arriving {
        stream.write_all(rest.as_bytes()).await.unwrap();
        rig.ingest_batch().await.1.delivered();
        assert_eq!(Answer::read(&mut stream).await.unwrap().status, 200);
    }
    until_free(&rig, 4 * MIB).await;
}

#[tokio::test]
async fn a_full_admission_queue_is_429_after_the_queue_timeout() {
    let mut rig = Rig::new(|cfg| cfg.queue_timeout = Duration::from_millis(20)).await;
    for _ in 0..BATCHES_MAX {
        let batch = ReadingBatch::default();
        let ack = Ack::none();
        rig.admission
            .submit(IngestBatch::new(batch, vec![], ack))
            .await
            .unwrap();
    }
    let answer = post(S1).send(rig.addr).await;
    assert_eq!((answer.status, answer.reason().as_str()), (429, "busy"));
    assert!(answer.retry_after_s() >= 1);
    for _ in 0..BATCHES_MAX {
        assert!(rig.ingest_batch().await.0.is_empty());
    }
    rig.nothing_came();
}

#[tokio::test]
async fn closed_admission_says_why() {
    let mut rig = Rig::new(|_| {}).await;
    rig.admission_control.full(true);
    let answer = post(S1).send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (429, "journal_full")
    );
    assert!(answer.retry_after_s() >= 10);
    rig.admission_control.full(false);
    assert_eq!(rig.delivered(post(S1)).await.0.status, 200);
    rig.admission_control.stop();
    let answer = post(S1).send(rig.addr).await;
    assert_eq!((answer.status, answer.reason().as_str()), (503, "stopping"));
    assert!(answer.retry_after_s() >= 1 && answer.header("connection") == Some("close"));
    rig.admission_control.broken();
    let answer = post(S1).send(rig.addr).await;
    assert_eq!((answer.status, answer.reason().as_str()), (503, "broken"));
    assert!(answer.retry_after_s() >= 1);
    rig.nothing_came();
}

/// Readings of `sensor`, each with a different field.
fn with_fields(sensor: &str, from: usize, to: usize) -> String {
    let reading = |i| {
        format!(r#"{{"sensor_id":"{sensor}","ts":"2024-03-01T10:00:00Z","values":{{"n{i}":1}}}}"#)
    };
    format!(
        "[{}]",
        (from..to).map(reading).collect::<Vec<_>>().join(",")
    )
}

#[tokio::test]
async fn a_sensor_that_brings_too_many_field_names_is_told_and_what_was_taken_stays() {
    let mut rig = Rig::new(|_| {}).await;
    let (answer, readings) = rig.delivered(post(with_fields("S1", 0, 1030))).await;
    let json = answer.json();
    assert_eq!(
        (answer.status, &json["accepted"], &json["rejected"]),
        (200, &1024.into(), &6.into())
    );
    assert_eq!(readings.len(), 1024);
    let errors = json["errors"].as_array().unwrap();
    for (error, index) in errors.iter().zip(1024..) {
        assert_eq!(
            (&error["index"], &error["reason"]),
            (&index.into(), &"bucket_fields".into())
        );
        let detail = error["detail"].as_str().unwrap();
        assert!(
            detail.contains("S1") && detail.contains("limits.bucket_fields_max = 1024"),
            "{detail}"
        );
    }
    let (answer, _) = rig.delivered(post(with_fields("S1", 500, 600))).await;
    assert_eq!(answer.status, 200, "existing field names");
    let answer = post(with_fields("S1", 1024, 1026)).send(rig.addr).await;
    assert_eq!(
        (answer.status, &answer.json()["rejected"]),
        (400, &2.into()),
        "also over several requests"
    );
    let (answer, readings) = rig.delivered(post(with_fields("S2", 1000, 1100))).await;
    assert_eq!(
        (answer.status, readings.len()),
        (200, 100),
        "another sensor"
    );
    let lines: String = (1020..1026)
        .map(|i| format!("m,sensor_id=S1 n{i}=1i 1709287200000000000\n"))
        .collect();
    let (answer, readings) = rig.delivered(post(lines).to("/api/v2/write")).await;
    assert_eq!(
        (answer.status, readings.len()),
        (400, 4),
        "as line protocol: {}",
        answer.text
    );
    rig.nothing_came();
}
