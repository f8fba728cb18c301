#!/usr/bin/env bash
# Installs what the tests need and runs all of them, including those with a real MongoDB and a real mosquitto.
# Options are passed to cargo test: `tests/run.sh --test servers`, `tests/run.sh chaos::`, `tests/run.sh -- --ignored`.
#
# Each test starts the servers that it needs on free ports, and stops them; none uses a server that is already running.
set -uo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/tools/setup.sh"

SECONDS=0
OUTPUT=

# shellcheck disable=SC2329  # clean_up_at_exit is given its name
remove_output() { [[ -z $OUTPUT ]] || rm -f "$OUTPUT"; }
clean_up_at_exit 50 remove_output

ensure_build_tools
ensure_test_tools

# The whole workspace, unless the caller chose a package.
SCOPE=--workspace
for option in "$@"; do
    [[ $option == -- ]] && break
    [[ $option == -p || $option == -p* || $option == --package* || $option == --manifest-path* ]] && SCOPE=
done

# A test program that hangs would block everything after it. The longest, tests/servers, takes some minutes; only runs
# requested with --ignored may take hours, so they have no limit (0).
if [[ " $* " == *" --ignored "* || " $* " == *" --include-ignored "* ]]; then
    export HOURBUCKET_TEST_LIMIT=0
else
    export HOURBUCKET_TEST_LIMIT=${HOURBUCKET_TEST_LIMIT:-1800}
fi
RUNNER=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${RUNNER}_RUNNER=tests/tools/run_program.sh"

export RUSTC_WORKSPACE_WRAPPER=${RUSTC_WORKSPACE_WRAPPER:-$REPO/tests/tools/rustc.sh}

step "cargo test"
# A pipe hides the terminal from cargo; on a terminal, colours are kept.
[[ -t 1 && -n $BOLD ]] && export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
cd "$REPO" || exit 1
OUTPUT=$(mktemp)
# shellcheck disable=SC2086  # SCOPE is one word or none
# shellcheck disable=SC2016  # the dollars are for the inner shell
run_child bash -c 'output=$1; shift; set -o pipefail; "$@" 2>&1 | tee "$output"' - \
    "$OUTPUT" cargo test --locked --no-fail-fast $SCOPE "$@"
CODE=$?

# The sum over all test binaries, as one plain line.
SUM=$(sed $'s/\e\\[[0-9;]*m//g' "$OUTPUT" | awk '
    /^test result: / { for (i = 3; i < NF; i++) { if ($(i + 1) == "passed;") passed += $i
                                                  if ($(i + 1) == "failed;") failed += $i
                                                  if ($(i + 1) == "ignored;") skipped += $i } }
    END { printf "%d passed, %d failed, %d skipped", passed, failed, skipped }')
say
if ((CODE == 0)); then
    step "all tests passed in $SECONDS s"
else
    step "${RED}failed${PLAIN} after $SECONDS s (cargo test ended with exit code $CODE)"
fi
say "$SUM"
exit "$CODE"
