#!/usr/bin/env bash
# boot.sh ROOT: starts a separate systemd in ROOT, a Debian with the package in tmp/hourbucket.deb. It starts, watches
# and stops the unit with sandbox, system call filter, credentials, notify protocol and watchdog as on a real machine.
# For tests/deploy.sh; needs root. systemd is process 1 of its own namespaces (processes, mounts, network, cgroups),
# sees the kernel's settings read-only, and ends with them.
set -euo pipefail

# ---- inside: prepares the root and becomes systemd ----------------------------------------------------------------

if [[ $1 == --inside ]]; then
    ROOT=$2
    mount --make-rprivate /
    ip link set lo up
    mount --bind "$ROOT" "$ROOT"
    mount -t proc proc "$ROOT/proc"
    mount --bind "$ROOT/proc/sys" "$ROOT/proc/sys"
    mount -o remount,bind,ro "$ROOT/proc/sys"
    mount -t sysfs -o ro sysfs "$ROOT/sys"
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        mount -t cgroup2 cgroup2 "$ROOT/sys/fs/cgroup"
    else
        mount -t tmpfs tmpfs "$ROOT/sys/fs/cgroup"
        mkdir "$ROOT/sys/fs/cgroup/systemd"
        mount -t cgroup -o none,name=systemd cgroup "$ROOT/sys/fs/cgroup/systemd"
    fi
    mount -t tmpfs -o mode=755 tmpfs "$ROOT/run"
    mount -t tmpfs -o mode=755 tmpfs "$ROOT/dev"
    for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
        read -r name major minor <<<"$node"
        mknod -m 666 "$ROOT/dev/$name" c "$major" "$minor"
    done
    mkdir "$ROOT/dev/pts" "$ROOT/dev/shm" "$ROOT/run/lock"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$ROOT/dev/pts"
    ln -s pts/ptmx "$ROOT/dev/ptmx"
    ln -s /proc/self/fd "$ROOT/dev/fd"
    cd "$ROOT"
    mkdir -p old
    # Not chroot: a process in a chroot may not create a user namespace (PrivateUsers=). And shared, so that the mounts of
    # the credentials propagate.
    pivot_root . old
    exec env -i container=hourbucket-check PATH=/usr/bin:/bin:/usr/sbin:/sbin sh -c \
        'umount -l /old; mount --make-rshared /; exec /lib/systemd/systemd --system --show-status=no --unit=basic.target'
fi

# ---- outside ------------------------------------------------------------------------------------------------------

ROOT=$1
CGROUP=/sys/fs/cgroup/systemd
[[ -e /sys/fs/cgroup/cgroup.controllers ]] && CGROUP=/sys/fs/cgroup
CGROUP=$CGROUP/hourbucket-check-$$
RUN=

good() { printf 'ok   %s\n' "$*"; }
bad() {
    printf 'WRONG %s\n' "$*" >&2
    inside journalctl --no-pager -u hourbucket -n 15 -o cat >&2 || true
    exit 1
}
clean_up() {
    [[ -z $RUN ]] || kill -KILL "$RUN" 2>/dev/null || true
    wait "$RUN" 2>/dev/null || true
    sleep 0.5
    find "$CGROUP" -depth -type d -exec rmdir {} \; 2>/dev/null || true
}
trap clean_up EXIT
inside() {
    nsenter --target "$SYSTEMD" --mount --pid --uts --ipc --net --cgroup --root --wd \
        env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C SYSTEMD_PAGER= "$@"
}
property() { inside systemctl show hourbucket -p "$1" --value; }
# until SECONDS COMMAND...
until_good() {
    local tries=$(($1 * 10))
    shift
    while ! "$@" >/dev/null 2>&1; do
        ((tries-- > 0)) || return 1
        sleep 0.1
    done
}
drop_in() {
    mkdir -p "$ROOT/etc/systemd/system/hourbucket.service.d"
    cat >"$ROOT/etc/systemd/system/hourbucket.service.d/check.conf"
    inside systemctl daemon-reload
}

# shellcheck disable=SC2016  # $1 is for the inner shell
unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$1/proc" && DEBIAN_FRONTEND=noninteractive chroot "$1" sh -c "
    apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd /tmp/hourbucket.deb" >"$1/tmp/apt.log" 2>&1' - "$ROOT" || {
    tail -n 10 "$ROOT/tmp/apt.log" >&2
    exit 1
}
mkdir -p "$CGROUP"
# The shell moves itself into the cgroup before it becomes unshare, so that the cgroup namespace starts there.
sh -c 'echo $$ >"$1/cgroup.procs"; exec unshare --cgroup --mount --pid --uts --ipc --net --fork --kill-child bash "$2" --inside "$3"' - \
    "$CGROUP" "$0" "$ROOT" >"$ROOT/tmp/console.log" 2>&1 &
RUN=$!
systemd_pid() { SYSTEMD=$(tr -d ' ' <"/proc/$RUN/task/$RUN/children") && [[ -n $SYSTEMD && $(cat "/proc/$SYSTEMD/comm") == systemd ]]; }
until_good 10 systemd_pid || { cat "$ROOT/tmp/console.log" >&2; exit 1; }
until_good 20 inside systemctl is-system-running || bad "systemd does not come up: $(inside systemctl is-system-running)"
inside systemd-tmpfiles --create hourbucket.conf
good "$(inside systemctl --version | head -n 1) runs as process 1"

inside systemctl start hourbucket 2>/dev/null && bad "it starts without the credential"
[[ $(property ActiveState) == failed || $(property SubState) == auto-restart ]] || bad "without the credential: $(property ActiveState)"
inside systemctl stop hourbucket
# MongoDB is unreachable here: that must not matter to systemd.
printf 'mongodb://127.0.0.1:1/?replicaSet=rs0' >"$ROOT/etc/hourbucket/credentials/mongodb-uri"
inside systemctl reset-failed hourbucket 2>/dev/null || true # it may be forgotten already
inside systemctl start hourbucket || bad "it does not start"
[[ $(property ActiveState) == active && $(property Type) == notify ]] || bad "not active after its READY=1"
inside hourbucket --config /etc/hourbucket/hourbucket.toml probe --ready >/dev/null || bad "probe"
[[ $(property StatusText) == "accepting readings"* ]] || bad "its status: $(property StatusText)"
PID=$(property MainPID)
STATUS=$(inside cat "/proc/$PID/status")
[[ $STATUS == *$'CapBnd:\t0000000000000000'* && $STATUS == *$'Seccomp:\t2'* && $STATUS == *$'NoNewPrivs:\t1'* ]] || bad "its rights: $STATUS"
[[ $(inside stat -c %U:%a /var/lib/hourbucket) == hourbucket:750 ]] || bad "the state directory"
good "started by the unit, sandbox, system call filter and credential in force; Status: $(property StatusText)"

printf '[Service]\nWatchdogSec=3s\nRestartSec=100ms\n' | drop_in
inside systemctl restart hourbucket
sleep 5
[[ $(property NRestarts) == 0 ]] || bad "the watchdog ends a service that lives"
inside kill -STOP "$(property MainPID)"
restarted() { [[ $(property NRestarts) == 1 && $(property ActiveState) == active ]]; }
until_good 30 restarted || bad "a service that hangs is not started again: $(property NRestarts) $(property Result)"
good "watchdog: one that lives is left alone for longer than its time, one that hangs is ended and started again"

printf '[Service]\nEnvironment=HOURBUCKET_SHUTDOWN__DEADLINE=1s\n' | drop_in
inside systemctl restart hourbucket
inside bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080; printf "POST /v1/readings HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 32\r\n\r\n{\"sensor_id\":\"S1\",\"temp\":21.555}" >&3; grep -q "\"accepted\":1" <&3' ||
    bad "a reading is not taken"
inside systemctl stop hourbucket
# systemd drops a successfully ended unit immediately, and its exit code with it.
inside journalctl --no-pager -u hourbucket -n 3 -o cat | grep -q 'the journal keeps the rest' || bad "it did not say that something is left"
[[ $(inside systemctl is-failed hourbucket) == inactive ]] || bad "exit code 3 counts as a failure"
good "stopped while MongoDB is away: the journal has the reading, and that is no failure"

printf '[Service]\nEnvironment=HOURBUCKET_HTTP__LISTEN=0.0.0.0:8080\nRestartSec=100ms\n' | drop_in
inside systemctl start hourbucket 2>/dev/null && bad "it starts with settings that cannot be used"
sleep 1
[[ $(property ExecMainStatus) == 78 && $(property NRestarts) == 0 ]] || bad "$(property ExecMainStatus), restarts: $(property NRestarts)"
good "settings that cannot be used: exit code 78, and no second try"
