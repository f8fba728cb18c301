#!/usr/bin/env bash
# Compiles test programs (and benchmarks, which no test runs) without optimization, which takes a third of the time; the
# library and the service that they test stay as they are. A profile of cargo cannot do this: it applies to a package, not
# to its test programs. cargo calls this script in place of rustc for the workspace's own crates (RUSTC_WORKSPACE_WRAPPER,
# set by tests/run.sh).
set -u

arguments=("$@")
is_test=
name=
for i in "${!arguments[@]}"; do
    case ${arguments[i]} in
        --test | *benches/*.rs) is_test=yes ;;
        --crate-name) name=${arguments[i + 1]:-} ;;
        opt-level=*) level=$i ;;
    esac
done
# The simulation needs more time to run than to compile.
if [[ -n $is_test && $name != simulation && -n ${level:-} ]]; then
    arguments[level]=opt-level=0
fi
exec "${arguments[@]}"
