#!/usr/bin/env bash
# Compares hourbucket with other programs: gets Telegraf, VictoriaMetrics and QuestDB into HOURBUCKET_TOOLS, and runs
# `loadtest compare` with them; options are passed on, such as --record. Requires a release build of hourbucket and loadtest,
# Go, Java 17 and Maven.
set -euo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/tools/setup.sh"
trap setup_cleanup EXIT

QUESTDB_VERSION=9.3.4
QUESTDB_SHA256=939bc53ab22f93dbaa6545143a6e7c536d4904c07b7f2d381e8eef10436be062

ensure_mongod
ensure_mosquitto
go_tool telegraf github.com/influxdata/telegraf/cmd/telegraf@v1.39.3 \
    custom,inputs.mqtt_consumer,outputs.mongodb,parsers.json
export HOURBUCKET_TELEGRAF=${HOURBUCKET_TELEGRAF:-$GO_TOOL}
go_tool victoria-metrics github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics@v1.150.0
export HOURBUCKET_VICTORIA_METRICS=${HOURBUCKET_VICTORIA_METRICS:-$GO_TOOL}

jar=$TOOLS/questdb-$QUESTDB_VERSION.jar
if [[ ! -e $jar ]]; then
    ensure_packages "QuestDB" mvn=maven java=default-jre-headless
    lock_tools
    step "downloading QuestDB $QUESTDB_VERSION (31 MB) into $TOOLS"
    run_child mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        "-Dartifact=org.questdb:questdb:$QUESTDB_VERSION" "-DoutputDirectory=$TOOLS/partial" ||
        fail "Maven could not download QuestDB (above)"
    sha256sum --check --status <<<"$QUESTDB_SHA256  $TOOLS/partial/questdb-$QUESTDB_VERSION.jar" ||
        fail "QuestDB is not the file that it was (SHA-256 differs); nothing of it is used"
    mv "$TOOLS/partial/questdb-$QUESTDB_VERSION.jar" "$jar"
    unlock_tools
fi
export HOURBUCKET_QUESTDB=${HOURBUCKET_QUESTDB:-$jar}

cd "$REPO"
[[ -x target/release/loadtest ]] || fail "build it first: cargo build --release -p hourbucket -p loadtest"
exec target/release/loadtest compare \
    --only gateway-line,questdb,victoria-metrics,fleet,telegraf,telegraf-batch "$@"
