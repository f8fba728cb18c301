//! One target for all decoders: `HOURBUCKET_FUZZ` names those that each input is given to,
//! separated by commas (default: all). `mqtt-listen`, alone, is the codec of the port for devices,
//! `proxy-header`, alone, what proxies send, `rows`, alone, the rows of a bucket, and `columns`, alone,
//! days in columns. `run.sh` builds and runs it.
//!
//! It needs neither the MongoDB driver nor a server.
#![no_main]


mod columns;
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
        "columns" => columns::check(payload),
        _ => {
            let bench = BENCH.get_or_init(|| Bench::new(names.split(',').filter(|name| !name.is_empty())));
            bench.check(payload);
        }
    }
});
