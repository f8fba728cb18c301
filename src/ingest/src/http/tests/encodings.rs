//! Compressed bodies, good and hostile.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use super::rig::{Rig, post};

const S1: &[u8] = br#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":22.5}"#;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(vec![], Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn raw_deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(vec![], Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn each(bytes: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    [
        ("gzip", gzip(bytes)),
        ("zstd", zstd(bytes)),
        ("deflate", zlib(bytes)),
        ("deflate", raw_deflate(bytes)),
    ]
}

#[tokio::test]
async fn each_encoding_is_taken_small_and_large() {
    let mut rig = Rig::new(|_| {}).await;
    let large = [b"[", vec![S1; 10_000].join(&b","[..]).as_slice(), b"]"].concat();
    for (bytes, n) in [(S1, 1), (&large[..], 10_000)] {
        for (encoding, body) in each(bytes) {
            let (answer, readings) = rig
                .delivered(post(body).header("content-encoding", encoding))
                .await;
            assert_eq!(
                (answer.status, readings.len()),
                (200, n),
                "{encoding}: {}",
                answer.text
            );
        }
        let (answer, _) = rig
            .delivered(post(bytes).header("content-encoding", "identity"))
            .await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn several_gzip_members_are_one_body() {
    let mut rig = Rig::new(|_| {}).await;
    let body = [gzip(b"["), gzip(S1), gzip(b"]")].concat();
    let (answer, readings) = rig
        .delivered(post(body).header("content-encoding", "gzip"))
        .await;
    assert_eq!((answer.status, readings.len()), (200, 1));
}

#[tokio::test]
async fn a_body_that_does_not_decompress_to_its_end_is_refused_whole() {
    let mut rig = Rig::new(|_| {}).await;
    for (encoding, body) in each(S1) {
        for body in [
            &body[..body.len() - 1],
            b"plain text",
            &[&body[..], b"more"].concat(),
        ] {
            let answer = post(body)
                .header("content-encoding", encoding)
                .send(rig.addr)
                .await;
            assert_eq!(
                (answer.status, answer.reason().as_str()),
                (400, "bad_compression"),
                "{encoding}"
            );
        }
    }
    rig.nothing_came();
}

#[tokio::test]
async fn chained_and_unknown_encodings_are_refused() {
    let mut rig = Rig::new(|_| {}).await;
    let twice = gzip(&gzip(S1));
    for request in [
        post(twice.clone()).header("content-encoding", "gzip, gzip"),
        post(twice)
            .header("content-encoding", "gzip")
            .header("content-encoding", "gzip"),
        post(S1).header("content-encoding", "br"),
    ] {
        let answer = request.send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (415, "unsupported_content_encoding")
        );
        assert_eq!(
            answer.header("accept-encoding"),
            Some("gzip, zstd, deflate")
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn bombs_are_413() {
    let mut rig = Rig::new(|_| {}).await;
    let bombs = tokio::task::spawn_blocking(|| each(&vec![b' '; 100 << 20]))
        .await
        .unwrap();
    for (encoding, bomb) in bombs {
        assert!(bomb.len() < 1 << 20, "it is to pass the limit as sent");
        let answer = post(bomb)
            .header("content-encoding", encoding)
            .send(rig.addr)
            .await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (413, "body_too_large"),
            "{encoding}"
        );
        assert!(
            answer.text.contains("1048576 bytes after decompression"),
            "{}",
            answer.text
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn a_body_is_recognised_by_its_first_bytes_if_its_label_is_wrong() {
    let mut rig = Rig::new(|_| {}).await;
    let all = [("gzip", gzip(S1)), ("zstd", zstd(S1)), ("zlib", zlib(S1))];
    for (is, body) in all {
        for label in ["identity", "gzip", "zstd", "deflate"] {
            let request = post(body.clone()).header("content-encoding", label);
            let (answer, readings) = rig.delivered(request).await;
            assert_eq!((answer.status, readings.len()), (200, 1), "{is} as {label}");
        }
        let (answer, readings) = rig.delivered(post(body)).await;
        assert_eq!((answer.status, readings.len()), (200, 1), "{is}");
    }
    for label in ["gzip", "zstd", "deflate"] {
        let answer = post(S1)
            .header("content-encoding", label)
            .send(rig.addr)
            .await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (400, "bad_compression")
        );
        assert!(
            answer.text.contains(label) && answer.text.contains("not compressed"),
            "{}",
            answer.text
        );
    }
    rig.nothing_came();
}
