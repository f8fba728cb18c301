//! Writes the answers of remote read: `prometheus.ReadResponse`, and frames with
//! `prometheus.ChunkedReadResponse` (prompb/remote.proto, storage/remote/chunked.go). Pure.

use crate::promql::chunk::{CHUNK_SAMPLES_MAX, xor_chunk};
use crate::promql::{Labels, Sample};
use model::protobuf::{put_bytes, put_double, put_varint};

/// Bytes after which a frame ends; Prometheus' default of `storage.remote.read-max-bytes-in-frame`.
const FRAME_BYTES: usize = 1 << 20;
/// `Chunk.Encoding.XOR`.
const XOR: u64 = 1;

/// One series of an answer, its samples ordered by time.
pub(super) type Found = (Labels, Vec<Sample>);

/// A `ReadResponse`: the series of each query.
pub(super) fn samples(results: Vec<Vec<Found>>) -> Vec<u8> {
    let mut response = vec![];
    let mut message = vec![];
    let mut sample = vec![];
    for found in results {
        let mut result = vec![];
        for (labels, samples) in found {
            message.clear();
            put_labels(&labels, &mut message);
            for Sample { ts_ms, value } in samples {
                sample.clear();
                put_double(1, value, &mut sample);
                put_varint(2, ts_ms as u64, &mut sample);
                put_bytes(2, &sample, &mut message);
            }
            put_bytes(1, &message, &mut result);
        }
        put_bytes(1, &result, &mut response);
    }
    response
}

/// The frames of a series with samples: each has a part of its chunks.
pub(super) fn frames(query: usize, labels: &Labels, samples: &[Sample]) -> Vec<Vec<u8>> {
    let mut head = vec![];
    put_labels(labels, &mut head);
    let mut chunks = samples.chunks(CHUNK_SAMPLES_MAX).peekable();
    let mut frames = vec![];
    let mut series = head.clone();
    while let Some(samples) = chunks.next() {
        let mut chunk = vec![];
        put_varint(1, samples[0].ts_ms as u64, &mut chunk);
        put_varint(2, samples[samples.len() - 1].ts_ms as u64, &mut chunk);
        put_varint(3, XOR, &mut chunk);
        put_bytes(4, &xor_chunk(samples), &mut chunk);
        put_bytes(2, &chunk, &mut series);
        if series.len() >= FRAME_BYTES || chunks.peek().is_none() {
            let mut message = vec![];
            put_bytes(1, &series, &mut message);
            put_varint(2, query as u64, &mut message);
            frames.push(frame(&message));
            series.clone_from(&head);
        }
    }
    frames
}

/// Length as a varint, CRC-32C in four bytes (big-endian), message.
fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(message.len() + 14);
    let mut length = message.len();
    while length >= 0x80 {
        frame.push(length as u8 | 0x80);
        length >>= 7;
    }
    frame.push(length as u8);
    frame.extend_from_slice(&crc32c::crc32c(message).to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

fn put_labels(labels: &Labels, out: &mut Vec<u8>) {
    let mut label = vec![];
    for (name, value) in labels.iter() {
        label.clear();
        put_bytes(1, name.as_bytes(), &mut label);
        put_bytes(2, value.as_bytes(), &mut label);
        put_bytes(1, &label, out);
    }
}
