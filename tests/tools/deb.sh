#!/usr/bin/env bash
# deb.sh ROOT MONGOD: the steps of a user with the package in ROOT/tmp/hourbucket.deb, in that Debian; for
# tests/deploy.sh, in separate mount and process namespaces. systemd is not process 1 there, so the unit's lines are
# read from the file: its user, directory, environment, credentials and command.
set -euo pipefail
ROOT=$1 MONGOD=$2

good() { printf 'ok   %s\n' "$*"; }
bad() {
    printf 'WRONG %s\n' "$*" >&2
    exit 1
}
inside() { chroot "$ROOT" "$@"; }
# unit KEY: its last value.
unit() { sed -n "s/^$1=//p" "$ROOT/usr/lib/systemd/system/hourbucket.service" | tail -n 1; }

mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

inside apt-get update -qq
inside apt-get install -y -qq --no-install-recommends /tmp/hourbucket.deb >"$ROOT/tmp/apt.log" 2>&1 || {
    tail -n 15 "$ROOT/tmp/apt.log" >&2
    bad "the package cannot be installed"
}
inside hourbucket --version >/dev/null
inside getent passwd hourbucket >/dev/null || bad "there is no user hourbucket"
[[ $(inside systemctl is-enabled hourbucket 2>/dev/null) == disabled ]] || bad "it starts by itself"
inside systemd-analyze verify hourbucket.service || bad "systemd-analyze verify, with the program in its place"
[[ $(inside stat -c %a:%U /etc/hourbucket/hourbucket.toml) == 644:root ]] || bad "the settings' rights"
good "installed by apt: user, unit (disabled, verified in place), settings"

# If systemd runs, the package's own script does it.
inside systemd-tmpfiles --create hourbucket.conf
[[ $(inside stat -c %a:%U /etc/hourbucket/credentials) == 700:root ]] || bad "the credentials' directory"

# MongoDB of this machine, in the same network.
DATA=$(mktemp -d)
"$MONGOD" --replSet rs0 --bind_ip 127.0.0.1 --port 27917 --dbpath "$DATA" --nounixsocket --wiredTigerCacheSizeGB 0.25 >"$DATA.log" 2>&1 &
SERVER=$!
trap 'kill $SERVER 2>/dev/null; wait; rm -rf "$DATA" "$DATA.log"' EXIT
PYTHONPATH=$HOURBUCKET_PYTHONPATH python3 -B - <<'PYTHON'
import time, pymongo
client = pymongo.MongoClient("mongodb://127.0.0.1:27917/?directConnection=true", serverSelectionTimeoutMS=30000)
client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": "127.0.0.1:27917"}]})
while not client.admin.command("hello")["isWritablePrimary"]:
    time.sleep(0.1)
PYTHON

# What systemd does for StateDirectory= and LoadCredential=.
inside install -d -o hourbucket -g hourbucket -m "$(unit StateDirectoryMode)" "/var/lib/$(unit StateDirectory)"
printf 'mongodb://127.0.0.1:27917/?replicaSet=rs0' >"$ROOT/etc/hourbucket/credentials/mongodb-uri"
inside install -d -o hourbucket -m 0500 /run/credentials/hourbucket.service
inside install -o hourbucket -m 0400 /etc/hourbucket/credentials/mongodb-uri /run/credentials/hourbucket.service/

ENVIRONMENT=("HOURBUCKET_HTTP__LISTEN=127.0.0.1:27980" "HOURBUCKET_ADMIN__LISTEN=127.0.0.1:27981")
while read -r variable; do
    ENVIRONMENT+=("${variable//%d//run/credentials/hourbucket.service}")
done < <(sed -n 's/^Environment=//p' "$ROOT/usr/lib/systemd/system/hourbucket.service")
AS_UNIT=(setpriv --reuid "$(unit User)" --regid "$(unit Group)" --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs
    env -i -C "$(unit WorkingDirectory)" PATH=/usr/bin:/bin "${ENVIRONMENT[@]}")
as_unit() { inside "${AS_UNIT[@]}" "$@"; }
read -ra START <<<"$(unit ExecStart)"
as_unit "${START[@]/%run/check}" | grep '^PROBLEM' && bad "check finds a problem"
TRACE=()
command -v strace >/dev/null && TRACE=(strace -f -qq -o "$ROOT/tmp/calls")
"${TRACE[@]}" chroot "$ROOT" "${AS_UNIT[@]}" "${START[@]}" 2>"$ROOT/tmp/run.log" &
RUN=$!
for _ in {1..100}; do
    as_unit "${START[@]/%run/probe}" --ready >/dev/null 2>&1 && break
    sleep 0.1
done
as_unit "${START[@]/%run/probe}" --ready | grep -q '"ready":true' || bad "it does not become ready: $(tail -n 3 "$ROOT/tmp/run.log")"
[[ $(inside stat -c %U /var/lib/hourbucket/journal) == hourbucket ]] || bad "the journal's owner"
good "run by its unit's lines: user, state directory, credential; ready with a real MongoDB"

# Some readings. A reload's signal would end a service that does not handle it, so there is none here.
body='[{"sensor_id":"S1","temp":1.5},{"sensor_id":"S2","temp":2.5}]'
python3 -c 'import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(r.Request("http://127.0.0.1:27980/v1/readings", sys.argv[1].encode(), {"Content-Type": "application/json"})).read()' "$body" ||
    bad "a reading is not taken"
kill -TERM "$(inside pgrep -x hourbucket)"
wait $RUN || bad "it ended with exit code $?"
good "a reading taken; SIGTERM: ended with exit code 0"

# The unit's filter must allow all system calls of the service from its start to its end.
if [[ -s $ROOT/tmp/calls ]]; then
    # members SET: its calls, including those of nested sets.
    members() {
        local name
        while read -r name; do
            if [[ $name == @* ]]; then members "$name"; else echo "$name"; fi
        done < <(inside systemd-analyze syscall-filter "$1" | sed -n '2,$s/^ *//p' | grep -v '^#')
    }
    mapfile -t FILTERS < <(sed -n 's/^SystemCallFilter=//p' "$ROOT/usr/lib/systemd/system/hourbucket.service")
    : >"$ROOT/tmp/allowed"
    for filter in "${FILTERS[@]}"; do
        for set in ${filter#\~}; do
            if [[ $set == @* ]]; then members "$set"; else echo "$set"; fi
        done | sort -u >"$ROOT/tmp/set"
        if [[ $filter == ~* ]]; then
            sort -u "$ROOT/tmp/allowed" | comm -23 - "$ROOT/tmp/set" >"$ROOT/tmp/left"
        else
            sort -u "$ROOT/tmp/allowed" "$ROOT/tmp/set" >"$ROOT/tmp/left"
        fi
        mv "$ROOT/tmp/left" "$ROOT/tmp/allowed"
    done
    sed '1,/execve("\/usr\/bin\/hourbucket"/d' "$ROOT/tmp/calls" | sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' | sort -u >"$ROOT/tmp/used"
    refused=$(comm -23 "$ROOT/tmp/used" "$ROOT/tmp/allowed" | tr '\n' ' ')
    [[ -z $refused ]] || bad "SystemCallFilter= refuses what the service calls: $refused"
    good "SystemCallFilter= lets through all $(wc -l <"$ROOT/tmp/used") calls that it makes ($(wc -l <"$ROOT/tmp/allowed") are allowed)"
fi

echo '# mine' >>"$ROOT/etc/hourbucket/hourbucket.toml"
inside apt-get install -y -qq --reinstall --no-install-recommends /tmp/hourbucket.deb >"$ROOT/tmp/apt.log" 2>&1 || bad "reinstall"
tail -n 1 "$ROOT/etc/hourbucket/hourbucket.toml" | grep -q mine || bad "an upgrade has overwritten the settings"
good "installed again: changed settings stay"
inside apt-get remove -y -qq hourbucket >"$ROOT/tmp/apt.log" 2>&1 || bad "remove"
[[ -e $ROOT/etc/hourbucket/hourbucket.toml && -d $ROOT/var/lib/hourbucket/journal && ! -e $ROOT/usr/bin/hourbucket ]] || bad "what remove leaves"
inside apt-get purge -y -qq hourbucket >"$ROOT/tmp/apt.log" 2>&1 || bad "purge"
[[ ! -e $ROOT/etc/hourbucket && -d $ROOT/var/lib/hourbucket/journal ]] || bad "what purge leaves: $(ls -d "$ROOT"/etc/hourbucket* "$ROOT"/var/lib/hourbucket* 2>/dev/null)"
grep -q 'the journal, stays' "$ROOT/tmp/apt.log" || bad "purge does not say that the journal stays"
good "removed and purged: settings and secrets gone, the journal stays, and that is reported"
