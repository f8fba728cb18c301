#!/bin/sh
# Fuzzes every decoder, the codec of the MQTT listener, the headers of proxies, the rows of a bucket, and days in
# columns for the given seconds each, two at a time: `fuzz/all.sh 600` takes a little more than an hour. The shipped mappings are one decoder with different
# settings, so they share their inputs.
set -eu
cd "$(dirname "$0")"
mappings=$(cd ../config/profiles && printf '%s\n' *.toml | sed 's/\.toml$//' | paste -sd, -)
# shellcheck disable=SC2016  # $0 is the seconds, for the inner shell
printf '%s\n' json ndjson scalar line cbor msgpack senml senml-cbor sparkplug otlp otlp-json remote-write remote-write-2 mqtt-listen proxy-header rows columns "$mappings" |
    xargs -P 2 -I{} sh -c './run.sh "{}" "$0" 2>&1 | grep -E "panicked|ERROR|SUMMARY|^Done" | sed "s/^/{}: /"' "$1"
