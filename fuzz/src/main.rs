//! One target for all decoders: `HOURBUCKET_FUZZ` names those that each input is given to,
//! separated by commas (default: all). `mqtt-listen`, alone, is the codec of the port for devices,
//! `proxy-header`, alone, what proxies send, and `rows`, alone, the rows of a bucket. `run.sh`
//! builds and runs it.
//!
//! The modules are compiled here directly. They are pure and name nothing else of the service
//! (`tests/architecture.rs` holds that), so the fuzzer needs neither the MongoDB driver nor an
//! async runtime.
#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the service uses the rest of these \
    modules")]

#[path = "../../src/ingest/listen/codec.rs"]
mod codec;
#[path = "../../src/ingest/listen/frames.rs"]
mod frames;
#[path = "../../src/net/src/proxy/forwarded.rs"]
mod forwarded;
#[path = "../../src/net/src/proxy/header.rs"]
mod header;
#[path = "../../src/ingest/packet_fields.rs"]
mod packet_fields;
#[path = "../../src/ingest/listen/strict.rs"]
mod strict;

mod invariants;
mod proxies;
mod rows;
mod wire;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use self::invariants::Bench;

fuzz_target!(|payload: &[u8]| {
    static NAMES: OnceLock<String> = OnceLock::new();
    static BENCH: OnceLock<Bench> = OnceLock::new();
    let names = NAMES.get_or_init(|| std::env::var("HOURBUCKET_FUZZ").unwrap_or_default());
    match names.as_str() {
        wire::NAME => wire::check(payload),
        proxies::NAME => proxies::check(payload),
        "rows" => rows::check(payload),
        _ => {
            let bench = BENCH.get_or_init(|| Bench::new(names.split(',').filter(|name| !name.is_empty())));
            bench.check(payload);
        }
    }
});
