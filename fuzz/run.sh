#!/bin/sh
# Fuzzes decoders for SECONDS: fuzz/run.sh FORMAT[,FORMAT...] SECONDS [libFuzzer's options]
# FORMAT `mqtt-listen`, alone, is the codec of the MQTT listener (src/wire.rs).
#
# It uses the stable compiler and no sanitizers: the decoders are safe Rust, so the possible failures are a panic, a
# violated invariant of src/invariants.rs, too much memory, or a hang. The equivalent with cargo-fuzz:
#   HOURBUCKET_FUZZ=json cargo +nightly fuzz run decode fuzz/corpus/json -- -max_total_time=600
# New inputs go to fuzz/found/FORMAT (not committed); a crash leaves its input in fuzz/found/.
set -eu
cd "$(dirname "$0")"
formats=$1 seconds=$2
shift 2
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
    cargo build --release --quiet --target-dir target --target x86_64-unknown-linux-gnu
found=found/$(echo "$formats" | tr , + | cut -c1-60)
mkdir -p "$found"
for format in $(echo "$formats" | tr , ' '); do
    [ -d "corpus/$format" ] && set -- "corpus/$format" "$@"
done
HOURBUCKET_FUZZ=$formats exec target/x86_64-unknown-linux-gnu/release/decode \
    -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=1024 -artifact_prefix=found/crash- "$found" "$@"
