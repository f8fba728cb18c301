#!/bin/sh
# Every decoder, the codec of the port for devices, and the rows of a bucket, for as many seconds, two at a time:
# fuzz/all.sh 600 (an hour and a bit). The shipped mappings are one
# decoder with different settings, so they share their inputs.
set -eu
cd "$(dirname "$0")"
mappings=$(cd ../config/profiles && printf '%s\n' *.toml | sed 's/\.toml$//' | paste -sd, -)
# shellcheck disable=SC2016  # $0 is the seconds, for the inner shell
printf '%s\n' json ndjson scalar line cbor msgpack senml senml-cbor sparkplug otlp otlp-json mqtt-listen rows "$mappings" |
    xargs -P 2 -I{} sh -c './run.sh "{}" "$0" 2>&1 | grep -E "panicked|ERROR|SUMMARY|^Done" | sed "s/^/{}: /"' "$1"
