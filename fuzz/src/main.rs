//! One target for all decoders: `HOURBUCKET_FUZZ` names those that each input is given to, separated by commas (default:
//! all); `rows` stands for the rows of a bucket, which are no decoder. `run.sh` builds and runs it.
//!
//! The three modules are compiled here directly. They are pure and name nothing else of the service (`tests/architecture.rs`
//! holds that), so the fuzzer needs neither the MongoDB driver nor an async runtime.
#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the service uses the rest of these modules")]

#[path = "../../src/config/mod.rs"]
mod config;
#[path = "../../src/decode/mod.rs"]
mod decode;
#[path = "../../src/model/mod.rs"]
mod model;

mod invariants;
mod rows;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use self::invariants::Bench;

fuzz_target!(|payload: &[u8]| {
    static NAMES: OnceLock<String> = OnceLock::new();
    static BENCH: OnceLock<Bench> = OnceLock::new();
    let names = NAMES.get_or_init(|| std::env::var("HOURBUCKET_FUZZ").unwrap_or_default());
    if names == "rows" {
        return rows::check(payload);
    }
    let bench = BENCH.get_or_init(|| Bench::new(names.split(',').filter(|name| !name.is_empty())));
    bench.check(payload);
});
