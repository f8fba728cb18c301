"""Writes to the service with InfluxDB's official client, as its documentation shows; run by tests/servers/influx.rs.

Usage: influx_client.py URL TOKEN FIRST_TS_MS. Prints what the test looks for; any exception is a failure.
"""

import sys
from datetime import datetime, timezone

from influxdb_client import InfluxDBClient, Point, WriteOptions, WritePrecision
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException

URL, TOKEN, FIRST = sys.argv[1], sys.argv[2], int(sys.argv[3])
BUCKET = {"bucket": "b", "org": "o"}


def point(room, n):
    """A point of every type, with names that need escapes."""
    return (
        Point("home,sweet home")
        .tag("room", room)
        .tag("sensor_id", f"{room} 1")
        .field("n", n)
        .field("temp", 21.5 + n)
        .field("on", n % 2 == 0)
        .field("say what", 'a "word", and\nanother\\')
        .time(FIRST + n * 1000, WritePrecision.MS)
    )


def main():
    with InfluxDBClient(url=URL, token=TOKEN, org="o", enable_gzip=True) as client:
        assert client.ping(), "ping"
        assert client.health().status == "pass", client.health()
        print("version", client.version())

        # One after another, in each form in which the client accepts points.
        api = client.write_api(write_options=SYNCHRONOUS)
        api.write(record=point("sync", 0), **BUCKET)
        api.write(record=[point("sync", n) for n in range(1, 100)], write_precision=WritePrecision.MS, **BUCKET)
        api.write(record=f"lines,sensor_id=lines n=1i {FIRST // 1000}", write_precision=WritePrecision.S, **BUCKET)
        when = datetime.fromtimestamp(FIRST / 1000, timezone.utc)
        api.write(record={"measurement": "d", "tags": {"sensor_id": "dict"}, "fields": {"n": 1}, "time": when}, **BUCKET)

        # Batches in the background, whose errors are reported by a callback. They end by their size or the client's end:
        # the timer of flush_interval runs in another thread without a lock, and loses points that are written meanwhile.
        failed = []
        options = WriteOptions(batch_size=300, flush_interval=60_000)
        with client.write_api(write_options=options, error_callback=lambda *e: failed.append(e)) as batching:
            for n in range(1000):
                batching.write(record=point("batching", n), **BUCKET)
        assert not failed, failed

        # Valid lines are stored, and the invalid one is reported.
        try:
            api.write(record=[f"p,sensor_id=partial n=1i {FIRST}000000", "p,sensor_id=partial n=oops"], **BUCKET)
            raise AssertionError("a bad line must be an error")
        except ApiException as e:
            assert e.status == 400 and "line 2" in e.message, (e.status, e.message)
            print("partial", e.message)

    for token in ("gw1.wrong", "my-token"):
        with InfluxDBClient(url=URL, token=token, org="o", enable_gzip=True) as client:
            try:
                client.write_api(write_options=SYNCHRONOUS).write(record=point("wrong", 0), **BUCKET)
                raise AssertionError("a wrong token must be an error")
            except ApiException as e:
                assert e.status == 401, e.status
                print("unauthorized", e.message)


main()
