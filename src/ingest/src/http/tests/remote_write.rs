//! Prometheus remote write: the answers that its senders react to, in both versions.

use super::readings::tokens_file;
use super::rig::{Request, Rig, post};
use crate::http::routes::REMOTE_WRITE;
use model::Value;
use model::protobuf::{put_bytes, put_varint};

/// The body of a series `temp{instance="S1"}` with one sample; with `histograms` native histograms.
fn v1(value: f64, histograms: usize) -> Vec<u8> {
    let mut series = vec![];
    let mut request = vec![];
    for (name, value) in [("__name__", "temp"), ("instance", "S1")] {
        let mut label = vec![];
        put_bytes(1, name.as_bytes(), &mut label);
        put_bytes(2, value.as_bytes(), &mut label);
        put_bytes(1, &label, &mut series);
    }
    put_bytes(2, &sample(value), &mut series);
    (0..histograms).for_each(|_| put_bytes(4, &[8, 1], &mut series));
    put_bytes(1, &series, &mut request);
    request
}

fn v2(value: f64) -> Vec<u8> {
    let mut series = vec![];
    let mut request = vec![];
    for symbol in ["", "__name__", "temp", "instance", "S1"] {
        put_bytes(4, symbol.as_bytes(), &mut request);
    }
    put_bytes(1, &[1, 2, 3, 4], &mut series);
    put_bytes(2, &sample(value), &mut series);
    put_bytes(5, &series, &mut request);
    request
}

fn sample(value: f64) -> Vec<u8> {
    let mut sample = [&[0x09][..], &value.to_bits().to_le_bytes()].concat();
    put_varint(2, 1_709_290_800_000, &mut sample);
    sample
}

fn write(body: &[u8]) -> Request {
    let packed = snap::raw::Encoder::new().compress_vec(body).unwrap();
    post(packed)
        .to(REMOTE_WRITE)
        .header("content-encoding", "snappy")
}

const V1: &str = "application/x-protobuf";
const V2: &str = "application/x-protobuf;proto=io.prometheus.write.v2.Request";
const WRITTEN: &str = "x-prometheus-remote-write-samples-written";

#[tokio::test]
async fn samples_of_both_versions_are_taken() {
    let mut rig = Rig::new(|_| {}).await;
    for request in [
        write(&v1(21.5, 0)),
        write(&v1(21.5, 0)).header("content-type", V1),
        write(&v1(21.5, 0)).header(
            "content-type",
            "application/x-protobuf; proto=prometheus.WriteRequest",
        ),
        write(&v2(21.5)).header("content-type", V2),
        post(zstd::encode_all(&v1(21.5, 0)[..], 3).unwrap())
            .to(REMOTE_WRITE)
            .header("content-encoding", "zstd"),
    ] {
        let (answer, readings) = rig.delivered(request).await;
        assert_eq!(
            (answer.status, answer.text.as_str(), answer.header(WRITTEN)),
            (204, "", Some("1"))
        );
        assert_eq!(
            (readings[0].sensor_id.as_str(), &readings[0].values["temp"]),
            ("S1", &Value::Double(21.5))
        );
    }
    let (answer, readings) = rig.delivered(write(&v1(1.0, 2))).await;
    assert_eq!(
        (answer.status, readings.len(), answer.header(WRITTEN)),
        (400, 1, Some("1"))
    );
    assert!(
        answer
            .text
            .starts_with("2 rejected, the others are stored: `temp` is a native histogram"),
        "{}",
        answer.text
    );
    // A stale marker and others are written as far as the sender is concerned.
    let stale = f64::from_bits(0x7ff0_0000_0000_0002);
    for value in [stale, f64::NAN, f64::INFINITY] {
        let request = write(&v2(value)).header("content-type", V2);
        let answer = request.send(rig.addr).await;
        assert_eq!((answer.status, answer.header(WRITTEN)), (204, Some("1")));
    }
    assert_eq!(write(b"").send(rig.addr).await.status, 204);
    rig.nothing_came();
}

#[tokio::test]
async fn what_may_be_sent_again_is_told_from_what_may_not() {
    let mut rig = Rig::new(|cfg| cfg.body_max_bytes = 10_000).await;
    for (request, status) in [
        (write(&v1(1.0, 0)).header("content-type", V2), 400),
        (write(b"\x0a\x05"), 400),
        (
            post("not snappy")
                .to(REMOTE_WRITE)
                .header("content-encoding", "snappy"),
            400,
        ),
        (
            write(&v1(1.0, 0)).header("content-type", "application/json"),
            415,
        ),
        (
            write(&v1(1.0, 0)).header("content-type", "application/x-protobuf;proto=other"),
            415,
        ),
        (
            post(v1(1.0, 0))
                .to(REMOTE_WRITE)
                .header("content-encoding", "br"),
            415,
        ),
        (write(&[0; 20_000]), 413),
    ] {
        let answer = request.send(rig.addr).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.header("retry-after").is_none() && !answer.text.is_empty());
    }
    rig.admission_control.full(true);
    let answer = write(&v1(1.0, 0)).send(rig.addr).await;
    assert_eq!(
        answer.status, 503,
        "Prometheus drops samples on 429: {}",
        answer.text
    );
    assert!(answer.retry_after_s() > 0);
    rig.admission_control.full(false);
    rig.admission_control.stop();
    let answer = write(&v1(1.0, 0)).send(rig.addr).await;
    assert_eq!((answer.status, answer.retry_after_s() > 0), (503, true));
    rig.nothing_came();
}

#[tokio::test]
async fn tokens_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    assert_eq!(write(&v1(1.0, 0)).send(rig.addr).await.status, 401);
    let request = write(&v1(1.0, 0)).header("authorization", "Bearer gw1.secret");
    assert_eq!(rig.delivered(request).await.0.status, 204);
}
