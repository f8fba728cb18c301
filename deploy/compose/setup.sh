#!/bin/sh
# Creates the secrets of deploy/compose.yaml in deploy/compose/secrets (ignored by git). Existing files stay. Needs only
# a shell and coreutils. The directory is private to its owner; the files in it are readable, because the containers
# that mount them run as different users.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
chmod 700 secrets
cd secrets

# random BYTES: prints random bytes as hexadecimal digits.
random() { head -c "$1" /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

# keep NAME: writes standard input to the file, unless it exists. The write is atomic.
keep() {
    if [ -e "$1" ]; then
        cat >/dev/null
        return
    fi
    cat >"$1.new"
    chmod 444 "$1.new"
    mv "$1.new" "$1"
    echo "made deploy/compose/secrets/$1"
}

# Authenticates the members of the replica set to each other.
head -c 500 /dev/urandom | base64 -w 0 | keep mongodb_keyfile
random 24 | keep mongodb_root_password
random 24 | keep mongodb_password
printf 'mongodb://hourbucket:%s@mongodb:27017/hourbucket?replicaSet=rs0&authSource=hourbucket' \
    "$(cat mongodb_password)" | keep mongodb_uri

random 24 | keep mqtt_password
random 24 | keep fleet_mqtt_password
# One name:password per line; the broker's container hashes them at its start. Add devices here.
printf 'hourbucket:%s\nfleet:%s\n' "$(cat mqtt_password)" "$(cat fleet_mqtt_password)" | keep mosquitto_users

# The tokens for posting and reading over HTTP, and for the edge that forwards: a client sends id.secret, the service has
# only the hash.
random 24 | keep http_secret
random 24 | keep forward_secret
hash() { sha256sum "$1" | cut -d ' ' -f 1; }
printf '[[tokens]]\nid = "compose"\nsha256 = "%s"\n\n[[tokens]]\nid = "site"\nsha256 = "%s"\nforward = true\n' \
    "$(hash http_secret)" "$(hash forward_secret)" | keep tokens.toml
printf 'compose.%s' "$(cat http_secret)" | keep http_token
printf 'site.%s' "$(cat forward_secret)" | keep forward_token

random 12 | keep grafana_password
