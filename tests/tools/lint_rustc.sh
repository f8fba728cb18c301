#!/usr/bin/env bash
# What .ci/run compiles the tests with (RUSTC_WORKSPACE_WRAPPER): as rustc.sh, but clippy-driver is the compiler, and rustdoc
# reads the libraries and the load test while they are compiled. Each warning is an error. `cargo clippy` and `cargo doc` find
# the same, but they check all dependencies and our own crates once more for it. .ci/run also sets CLIPPY_ARGS, as
# `cargo clippy` does: clippy-driver makes cargo compare it the next time.
set -u

RUSTC_SH=$(dirname "${BASH_SOURCE[0]}")/rustc.sh

source=''
options=''
previous=''
documentation=(-D warnings)
for argument in "${@:2}"; do
    case $argument in
        --test | --emit=*) options+=$argument ;;
        *)
            [[ $argument == *.rs ]] && source=$argument
            [[ $previous == --out-dir ]] && argument=$argument/../../doc
            documentation+=("$argument")
            ;;
    esac
    previous=$argument
done

# A test program has `--test`, a question to the compiler has no outputs.
if [[ $options != --emit=* || $options == *--test* || ! $source =~ ^((src/[a-z]+|tests/testkit)/src/lib.rs|loadtest/src/main.rs)$ ]]; then
    exec "$RUSTC_SH" clippy-driver "$@"
fi
[[ $source == */main.rs ]] && documentation+=(--document-private-items)

# cargo reads one message per line, so the messages of one program come after those of the other.
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
rustdoc "${documentation[@]}" 2>"$messages" &
documenting=$!
"$RUSTC_SH" clippy-driver "$@"
code=$?
wait "$documenting" || code=$?
cat "$messages" >&2
exit "$code"
