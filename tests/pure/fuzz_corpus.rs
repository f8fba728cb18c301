//! Runs the fuzzer's corpus through every decoder, unchanged and mutated in many ways: like
//! `fuzz/run.sh`, but for a moment instead of minutes. The mutations come from a seed, so a failure
//! can be repeated.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../fuzz/src/invariants.rs"]
mod invariants;
#[path = "../../fuzz/src/proxies.rs"]
mod proxies;
#[path = "../../fuzz/src/rows.rs"]
mod rows;
#[path = "../../fuzz/src/wire.rs"]
mod wire;

use std::path::Path;

use self::invariants::Bench;

/// Mutations of each input.
const MUTATIONS: usize = 1000;

/// Byte strings that the decoders search for.
const PIECES: [&[u8]; 16] = [
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"-1e999",
    b"NaN",
    b"\\u0000",
    b"\n",
    b"=",
    b"\xff\xff",
    b"\0",
    b"ts",
];

/// The inputs of all decoders, or those of the rows.
fn inputs(of_rows: bool) -> Vec<(String, Vec<u8>)> {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fuzz/corpus");
    let mut inputs = vec![];
    for format in std::fs::read_dir(corpus).unwrap() {
        let format = format.unwrap();
        if (format.file_name() == "rows") != of_rows {
            continue;
        }
        for file in std::fs::read_dir(format.path()).unwrap() {
            let file = file.unwrap().path();
            inputs.push((file.display().to_string(), std::fs::read(&file).unwrap()));
        }
    }
    inputs.sort();
    inputs
}

/// Changes, cuts, doubles or adds something.
fn mutate(payload: &mut Vec<u8>, other: &[u8], rng: &mut fastrand::Rng) {
    let at = rng.usize(..=payload.len());
    match rng.u8(..7) {
        0 => payload.truncate(at),
        1 if at < payload.len() => payload[at] = rng.u8(..),
        2 if at < payload.len() => payload[at] ^= 1 << rng.u8(..8),
        3 => drop(payload.drain(at..payload.len().min(at + rng.usize(..8)))),
        4 => drop(payload.splice(at..at, PIECES[rng.usize(..PIECES.len())].iter().copied())),
        5 => drop(payload.splice(at..at, other.iter().copied().take(64))),
        _ => payload.extend_from_within(at..),
    }
    payload.truncate(4096);
}

#[test]
fn every_decoder_reads_the_corpus_without_a_violation() {
    let bench = Bench::new(std::iter::empty());
    let inputs = inputs(false);
    for name in ["json", "line", "otlp"] {
        assert!(
            bench.names().any(|n| n == name) && inputs.iter().any(|(path, _)| path.contains(name)),
            "{name}"
        );
    }
    let mut rng = fastrand::Rng::with_seed(20_240_301);
    for (path, input) in &inputs {
        let look = |payload: &[u8]| {
            let held =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.check(payload)));
            assert!(held.is_ok(), "{path} as {}", payload.escape_ascii());
        };
        look(input);
        let mut mutated = input.clone();
        for n in 0..MUTATIONS {
            if n.is_multiple_of(10) {
                mutated.clone_from(input);
            }
            mutate(&mut mutated, &inputs[rng.usize(..inputs.len())].1, &mut rng);
            look(&mutated);
        }
    }
}

#[test]
fn the_codec_of_the_mqtt_listener_keeps_its_invariants() {
    keeps_its_invariants(wire::NAME, wire::check);
}

#[test]
fn the_headers_of_proxies_keep_their_invariants() {
    keeps_its_invariants(proxies::NAME, proxies::check);
}

fn keeps_its_invariants(name: &str, check: fn(&[u8])) {
    let mark = format!("/{name}/");
    let inputs: Vec<_> = inputs(false)
        .into_iter()
        .filter(|(path, _)| path.contains(&mark))
        .collect();
    assert!(inputs.len() > 5, "{} inputs", inputs.len());
    let mut rng = fastrand::Rng::with_seed(20_261_122);
    for (path, input) in &inputs {
        let look = |bytes: &[u8]| {
            let held = std::panic::catch_unwind(|| check(bytes));
            assert!(held.is_ok(), "{path} as {}", bytes.escape_ascii());
        };
        look(input);
        let mut mutated = input.clone();
        for n in 0..MUTATIONS * 10 {
            if n.is_multiple_of(10) {
                mutated.clone_from(input);
            }
            mutate(&mut mutated, &inputs[rng.usize(..inputs.len())].1, &mut rng);
            look(&mutated);
        }
    }
}

#[test]
fn the_rows_of_a_bucket_match_a_plain_list() {
    let mut rng = fastrand::Rng::with_seed(20_240_301);
    let mut inputs = inputs(true);
    assert!(!inputs.is_empty());
    // Random inputs, in addition to the corpus.
    inputs.extend((0..300).map(|n| {
        (
            format!("seed {n}"),
            (0..rng.usize(..2000)).map(|_| rng.u8(..)).collect(),
        )
    }));
    for (name, input) in &inputs {
        let held = std::panic::catch_unwind(|| rows::check(input));
        assert!(held.is_ok(), "{name}: {}", input.escape_ascii());
    }
}
