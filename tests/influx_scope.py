"""Writes with InfluxDB's official client inside and outside of what its token may do; run by tests/servers/influx.rs.

Usage: influx_scope.py URL FIRST_TS_MS. Prints what the test looks for; any exception is a failure.
"""

import sys

from influxdb_client import InfluxDBClient, Point, WritePrecision
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException

URL, FIRST = sys.argv[1], int(sys.argv[2])


def point(sensor, n):
    return Point("p").tag("sensor_id", sensor).field("n", n).time(FIRST + n * 1000, WritePrecision.MS)


def write(token, *points, user=None):
    """The status and message of an error; 204 if all points were accepted."""
    login = {"username": user, "password": token} if user else {"token": token}
    with InfluxDBClient(url=URL, org="o", **login) as client:
        try:
            client.write_api(write_options=SYNCHRONOUS).write(bucket="b", org="o", record=list(points))
            return 204, ""
        except ApiException as e:
            return e.status, e.message


assert write("gw1.secret", point("gw1-1", 1), point("shared", 1)) == (204, "")
status, message = write("gw1.secret", point("gw1-1", 2), point("gw2-1", 2), point("gw1-2", 2))
assert status == 400 and "gw2-1" in message and "not" in message, (status, message)
print("outside", message)
for token, expected in (("old.secret", 401), ("reader.secret", 403), ("mqtt.secret", 403), ("gw1.wrong", 401)):
    status, message = write(token, point("gw1-1", 3))
    assert status == expected, (token, status, message)
    print("refused", token.split(".")[0], message)
