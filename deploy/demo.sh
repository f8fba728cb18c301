#!/usr/bin/env bash
# Demonstrates the service on this machine: MongoDB, an MQTT broker, the service and a small simulated fleet, then a
# check of the stored readings. `deploy/demo.sh --help` lists the options.
#
# This script installs and builds, and is the guard: tests/tools/demo.py does the rest as its child. Whatever ends the
# run, this shell ends every process and removes the directory; it waits in `wait` only, so that a signal is answered
# immediately.
set -uo pipefail

# A shell that starts this in the background without job control makes it ignore SIGINT, and bash itself cannot undo
# that. A SIGINT must still end the demo.
if (($(sed -n 's/^SigIgn:\s*/0x/p' /proc/self/status 2>/dev/null || echo 0) & 2)) && [[ -z ${DEMO_SIGNALS:-} ]]; then
    DEMO_SIGNALS=reset exec env --default-signal=INT bash "${BASH_SOURCE[0]}" "$@"
fi

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/tools/setup.sh"

usage() {
    cat <<'TEXT'
deploy/demo.sh [--keep] [--logs DIR]
deploy/demo.sh --stop DIR

Installs missing servers (MongoDB, mosquitto), builds hourbucket, lets a simulated fleet publish over MQTT and post over
HTTP, verifies the stored readings in MongoDB and prints the result. Exit code 0: everything sent was acknowledged and is
stored exactly once. The demo ends by itself and removes everything it started.

  --keep       leave everything running at the end, and print how to stop it
  --stop DIR   stop the demo that --keep left running in DIR, and remove DIR
  --logs DIR   copy all logs to DIR at the end

Environment:
  HOURBUCKET_STORE__URI   use this MongoDB, in a separate database, which is dropped at the end
  HOURBUCKET_MONGOD       otherwise start this mongod (default: the one on the path, else one from a Python package)
  HOURBUCKET_TOOLS        directory for downloaded tools (default: .tools in the repository)
  HOURBUCKET_PROFILE      cargo profile: demo (default: the quickest to compile), dev or release
  HOURBUCKET_BIN          use this hourbucket instead of building one
TEXT
}

DIRECTORY=
KEEP=
KEPT=
LOGS=
export DEMO_COMMAND=${BASH_SOURCE[0]}

# Ends the processes recorded in a demo's directory. A process id may have been reused, so only processes with that
# working directory are ended.
end_processes_of() {
    local directory=$1 pid tries
    [[ -f $directory/pids ]] || return 0
    while read -r pid; do
        [[ $(readlink "/proc/$pid/cwd") == "$directory" ]] || continue
        kill -TERM "$pid" 2>/dev/null
        for ((tries = 0; tries < 100; tries++)); do
            [[ $(readlink "/proc/$pid/cwd") == "$directory" ]] || break
            sleep 0.1
        done
        [[ $(readlink "/proc/$pid/cwd") == "$directory" ]] && kill -KILL "$pid" 2>/dev/null
    done < <(tac "$directory/pids")
    return 0
}

# Removes the directory. A process that was just killed may still be writing, hence the retries.
remove() {
    local tries
    for ((tries = 0; tries < 20; tries++)); do
        rm -rf "$1" 2>/dev/null && return
        sleep 0.1
    done
}

# Ends and removes the demo, unless it is kept.
# shellcheck disable=SC2329  # clean_up_at_exit is given its name
end_demo() {
    [[ -n $DIRECTORY && -z $KEPT ]] || return 0
    end_processes_of "$DIRECTORY"
    if [[ -n $LOGS ]]; then
        cp "$DIRECTORY"/*.log "$DIRECTORY"/*.toml "$LOGS"/ 2>/dev/null && say "logs: $LOGS"
    fi
    remove "$DIRECTORY"
}

stop_kept() {
    local directory
    directory=$(cd -P "$1" 2>/dev/null && pwd) && [[ -f $directory/pids && $directory == */hourbucket-demo.* ]] ||
        fail "$1 is not the directory of a demo"
    end_processes_of "$directory"
    if [[ -s $directory/kept ]]; then
        say "the database stays; drop it when you no longer need it: $(cat "$directory/kept")"
    fi
    remove "$directory"
    say "stopped, and $directory removed"
}

while (($# > 0)); do
    case $1 in
    --keep) KEEP=--keep ;;
    --logs)
        [[ -n ${2:-} ]] || fail "--logs needs a directory"
        { mkdir -p "$2" && LOGS=$(cd "$2" && pwd); } || fail "cannot create $2"
        shift
        ;;
    --stop)
        if [[ -z ${2:-} ]]; then
            usage >&2
            say "--stop needs the directory that --keep named" >&2
            exit 2
        fi
        stop_kept "$2"
        exit 0
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        fail "unknown option $1"
        ;;
    esac
    shift
done
export DEMO_LOGS=$LOGS

clean_up_at_exit 200 end_demo
trap 'echo >&2; say "interrupted; cleaning up" >&2; exit 130' INT

SECONDS=0
DEMO_STARTED=$(date +%s)
export DEMO_STARTED
DIRECTORY=$(mktemp -d "${TMPDIR:-/tmp}/hourbucket-demo.XXXXXXXX") || fail "cannot create a directory in ${TMPDIR:-/tmp}"
DIRECTORY=$(cd -P "$DIRECTORY" && pwd)

[[ -n ${HOURBUCKET_BIN:-} ]] || ensure_build_tools
ensure_python
[[ -n ${HOURBUCKET_STORE__URI:-} ]] || ensure_mongod
ensure_mosquitto

# Builds, with progress: cargo's bar on a terminal, otherwise a line every 15 s. Sets BINARY.
build() {
    local profile=${HOURBUCKET_PROFILE:-demo} log=$DIRECTORY/build.log target code watcher
    local command=(cargo build --locked --bin hourbucket --profile "$profile" --manifest-path "$REPO/Cargo.toml")
    step "building hourbucket (profile $profile; the first time it compiles some 300 crates, which takes some minutes)"
    if [[ -t 2 ]]; then
        run_child "${command[@]}" || fail "the build failed (above)"
    else
        : >"$log"
        # shellcheck disable=SC2016  # $0 and $SECONDS are for the inner shell
        setsid bash -c 'while sleep 15; do echo "    $SECONDS s, $(grep -c "^ *Compiling" "$0") crates"; done' "$log" \
            </dev/null &
        watcher=$!
        run_child "${command[@]}" >"$log" 2>&1
        code=$?
        kill -TERM -- "-$watcher" 2>/dev/null
        wait "$watcher" 2>/dev/null
        if ((code != 0)); then
            tail -n 30 "$log" >&2
            fail "the build failed (above)"
        fi
    fi
    target=$(cargo metadata --format-version 1 --no-deps --offline --manifest-path "$REPO/Cargo.toml" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])') || fail "cargo metadata failed"
    BINARY=$target/${profile/#dev/debug}/hourbucket
    say "    built in $SECONDS s"
}

if [[ -n ${HOURBUCKET_BIN:-} ]]; then
    BINARY=$(cd "$(dirname "$HOURBUCKET_BIN")" && pwd)/$(basename "$HOURBUCKET_BIN")
else
    build
fi
[[ -x $BINARY ]] || fail "$BINARY is not an executable program"

# The simulated fleet is the one of deploy/compose.yaml.
PYTHONPATH=$REPO/deploy/compose:$HOURBUCKET_PYTHONPATH PYTHONDONTWRITEBYTECODE=1 \
    run_child python3 "$REPO/tests/tools/demo.py" $KEEP "$DIRECTORY" "$BINARY"
CODE=$?
if ((CODE == 0)); then
    [[ -n $KEEP ]] && KEPT=1
    say
    say "done in $SECONDS s: everything sent was acknowledged and is stored exactly once"
fi
exit "$CODE"
