#!/usr/bin/env bash
# Runs the tests of the store and of the main job on each version of MongoDB that tests/tools/setup.sh can download, and prints
# a table. `tests/all_servers.sh` for all of them, `tests/all_servers.sh 5.0.32` for one.
set -uo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/setup.sh"

# The store by itself, then the service: readings of both modes, clean-up and conversion while it runs, and SIGKILL for the
# service and MongoDB.
TESTS=(store_contract:: store_schema:: store_series:: store_dead_letters:: catalog_contract:: catalog:: latest_store::
    retention:: reconcile_duplicates:: convert:: hours_pages_duplicates_and_late_readings convert_service::
    overflow_service:: reconcile_service:: retention_service:: rollup_service:: chaos::killed_at)
# What needs no time-series collections.
TESTS_44=(mongodb_4_4_keeps of_4_4 store_dead_letters:: reconcile_service:: repeat_are_stored_in_bucket_mode
    instants_with_the_journal)

OUTPUT=$(mktemp)
# shellcheck disable=SC2329  # clean_up_at_exit is given its name
remove_output() { rm -f "$OUTPUT"; }
clean_up_at_exit 50 remove_output

ROWS=()
CODE=0
VERSIONS=("$@")
((${#VERSIONS[@]} > 0)) || VERSIONS=("${MONGODS[@]%% *}")
for version in "${VERSIONS[@]}"; do
    downloaded_mongod "$version" HOURBUCKET_MONGOD
    step "MongoDB $version"
    tests=("${TESTS[@]}")
    [[ $version != 4.4.* ]] || tests=("${TESTS_44[@]}")
    SECONDS=0
    # shellcheck disable=SC2016  # the dollars are for the inner shell
    HOURBUCKET_MONGOD=$MONGOD run_child bash -c 'set -o pipefail; "$@" 2>&1 | tee "$0"' "$OUTPUT" \
        bash "$REPO/tests/run.sh" --test servers -- "${tests[@]}" || CODE=1
    ROWS+=("$(printf '%-10s%6d s   %s' "$version" "$SECONDS" "$(tail -n 1 "$OUTPUT")")")
done

say
step "the store and the main job on ${#ROWS[@]} versions of MongoDB"
printf '    %s\n' "${ROWS[@]}"
exit "$CODE"
