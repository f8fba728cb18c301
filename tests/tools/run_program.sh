#!/usr/bin/env bash
# Starts one test program for tests/run.sh (cargo's `runner`), and ends it after HOURBUCKET_TEST_LIMIT seconds.
set -u

# Many tests wait: for the start of a server, for an outage, for an interval. With seven tests two cores are busy. Those of
# tests/parts only wait.
for_two_cores=7
[[ ${1##*/} == parts-* ]] && for_two_cores=20
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((for_two_cores * $(nproc) / 2))}

# --verbose: it names the signal that it sends. By then libtest has named the test that is still running.
exec timeout --verbose --kill-after=10 "$HOURBUCKET_TEST_LIMIT" "$@"
