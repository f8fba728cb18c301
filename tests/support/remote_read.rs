//! A client of Prometheus' remote read: writes requests, and reads answers.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::collections::BTreeMap;

/// Labels, and samples as time (ms) and value.
pub type Series = (BTreeMap<String, String>, Vec<(i64, f64)>);

/// A matcher: type (0 `=`, 1 `!=`, 2 `=~`, 3 `!~`), name and value.
pub type Matcher<'a> = (u64, &'a str, &'a str);

/// A compressed `ReadRequest` with queries from a time to a time (ms, both inclusive).
pub fn request(queries: &[(i64, i64, &[Matcher<'_>])], accepted: &[u8]) -> Vec<u8> {
    let mut message = vec![];
    for (from_ms, to_ms, matchers) in queries {
        let mut query = vec![];
        number(1, *from_ms as u64, &mut query);
        number(2, *to_ms as u64, &mut query);
        for (kind, name, value) in *matchers {
            let mut matcher = vec![];
            number(1, *kind, &mut matcher);
            bytes(2, name.as_bytes(), &mut matcher);
            bytes(3, value.as_bytes(), &mut matcher);
            bytes(3, &matcher, &mut query);
        }
        bytes(1, &query, &mut message);
    }
    if !accepted.is_empty() {
        bytes(2, accepted, &mut message);
    }
    snap::raw::Encoder::new().compress_vec(&message).unwrap()
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(field: u64, value: u64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(value, out);
}

fn bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn read_varint(from: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = from.split_first().unwrap();
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return value;
        }
    }
    unreachable!()
}

/// The fields of a message: number, value of a number, bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut all = vec![];
    while !message.is_empty() {
        let tag = read_varint(&mut message);
        let (value, bytes) = match tag & 7 {
            0 => (read_varint(&mut message), &[][..]),
            1 => {
                let (fixed, rest) = message.split_first_chunk::<8>().unwrap();
                message = rest;
                (u64::from_le_bytes(*fixed), &[][..])
            }
            2 => {
                let length = read_varint(&mut message) as usize;
                let (bytes, rest) = message.split_at(length);
                message = rest;
                (0, bytes)
            }
            other => panic!("wire type {other}"),
        };
        all.push((tag >> 3, value, bytes));
    }
    all
}

fn label(message: &[u8]) -> (String, String) {
    let text = |n| {
        let all = fields(message);
        let found = all.iter().find(|(field, ..)| *field == n).unwrap().2;
        std::str::from_utf8(found).unwrap().to_owned()
    };
    (text(1), text(2))
}

/// Labels must be sorted.
fn labels<'a>(of: impl Iterator<Item = &'a [u8]>) -> BTreeMap<String, String> {
    let pairs: Vec<(String, String)> = of.map(label).collect();
    assert!(pairs.is_sorted(), "{pairs:?}");
    pairs.into_iter().collect()
}

/// The series of each query of a `ReadResponse`.
pub fn samples(body: &[u8]) -> Vec<Vec<Series>> {
    let message = snap::raw::Decoder::new().decompress_vec(body).unwrap();
    let series = |message: &[u8]| {
        let all = fields(message);
        let sample = |message: &[u8]| {
            let of = |n| {
                fields(message)
                    .iter()
                    .find(|(field, ..)| *field == n)
                    .unwrap()
                    .1
            };
            (of(2) as i64, f64::from_bits(of(1)))
        };
        let of = |n| {
            all.iter()
                .filter(move |(field, ..)| *field == n)
                .map(|(.., bytes)| *bytes)
        };
        (labels(of(1)), of(2).map(sample).collect())
    };
    let results = |message: &[u8]| {
        fields(message)
            .into_iter()
            .map(|(.., message)| series(message))
            .collect()
    };
    fields(&message)
        .into_iter()
        .map(|(.., message)| results(message))
        .collect()
}
