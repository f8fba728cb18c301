"""The simulated fleet of deploy/compose.yaml: sends readings with current times until it is stopped.

The same senders as in the demo (deploy/lib/fleet.py, whose topics and names are used here): rooms publish JSON over MQTT,
machines bare values, a gateway posts the pumps over HTTP. Undelivered readings are retried without end, as a correct
device does. Passwords are in files named by environment variables.
"""

import argparse
import json
import math
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request

import paho.mqtt.client as mqtt
from fleet import MACHINE_FIELDS, MACHINE_PERIOD_S, MACHINES, PUMPS, ROOMS, iso

ROOM_PERIOD_S, POST_PERIOD_S = 5, 10
UNACKED_MAX = 2_000
REPORT_PERIOD_S = 60

stopping = threading.Event()


def secret(variable):
    """The content of the file that the variable names; None if it is not set."""
    path = os.environ.get(variable)
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def host_and_port(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def every(seconds):
    """Yields ticks until the end; missed ticks are skipped."""
    due = time.monotonic()
    while not stopping.is_set():
        yield time.time()
        due = max(due + seconds, time.monotonic())
        stopping.wait(due - time.monotonic())


def publish(client, topic, payload):
    info = client.publish(topic, payload, qos=1)
    if info.rc == mqtt.MQTT_ERR_QUEUE_SIZE:  # the broker is away: newer values follow
        return False
    return True


def rooms(client, sent):
    for now in every(ROOM_PERIOD_S):
        for room in range(ROOMS):
            site = "north" if room % 2 == 0 else "south"
            reading = {
                "ts": int(now * 1000) + room,
                "temp": round(21 + room / 20 + 3 * math.sin(now / 2e3 + room) + random.gauss(0, 0.1), 2),
                "humid": int(45 + 10 * math.cos(now / 3e3 + room)),
                "door_open": random.random() < 0.05,
            }
            sent["mqtt"] += publish(client, f"rooms/{site}/room-{room + 1:02}", json.dumps(reading))


def machines(client, sent):
    for now in every(MACHINE_PERIOD_S):
        for machine in range(MACHINES):
            for field in MACHINE_FIELDS:
                value = 1450 + 50 * math.sin(now / 60 + machine) if field == "rpm" else random.uniform(9, 12)
                sent["mqtt"] += publish(client, f"sensors/machine-{machine + 1}/{field}", f"{value:.1f}")


def gateway(url, token, sent):
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    batch = []
    for now in every(POST_PERIOD_S):
        for pump in range(PUMPS):
            for second in range(POST_PERIOD_S):
                batch.append({
                    "sensor_id": f"pump-{pump + 1}", "ts": iso(int((now - POST_PERIOD_S + second) * 1000)),
                    "values": {"pressure": round(4 + pump + random.gauss(0, 0.05), 3), "flow": random.randint(80, 120)},
                    "tags": {"site": "north" if pump % 2 == 0 else "south"}})
        request = urllib.request.Request(f"{url}/v1/readings", json.dumps(batch).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                sent["http"] += json.load(answer)["accepted"]
            batch = []
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise SystemExit(f"gateway: request refused: {error.code}: {error.read(300).decode(errors='replace')}")
        except OSError as error:
            print(f"gateway: {error}; sending again", flush=True)
        batch = batch[-100_000:]  # after an outage keep only the newest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mqtt", default="127.0.0.1:1883", type=host_and_port, metavar="HOST:PORT")
    parser.add_argument("--http", default="http://127.0.0.1:8080", metavar="URL")
    arguments = parser.parse_args()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="hourbucket-fleet", protocol=mqtt.MQTTv5)
    client.username_pw_set(os.environ.get("FLEET_MQTT_USER"), secret("FLEET_MQTT_PASSWORD_FILE"))
    client.max_inflight_messages_set(UNACKED_MAX)
    client.max_queued_messages_set(100_000)
    client.on_connect = lambda _c, _u, _f, reason, _p: print(f"broker: {reason}", flush=True)
    client.connect_async(*arguments.mqtt)
    client.loop_start()

    sent = {"mqtt": 0, "http": 0}
    work = [(rooms, client, sent), (machines, client, sent),
            (gateway, arguments.http, secret("FLEET_HTTP_TOKEN_FILE"), sent)]
    threads = [threading.Thread(target=one[0], args=one[1:], daemon=True) for one in work]
    for thread in threads:
        thread.start()
    since = time.monotonic()
    while not stopping.wait(1):
        if not all(thread.is_alive() for thread in threads):
            raise SystemExit("a sender thread ended; see its error above")
        if time.monotonic() - since >= REPORT_PERIOD_S:
            print(f"sent so far: {sent['mqtt']} messages over MQTT, {sent['http']} readings over HTTP", flush=True)
            since = time.monotonic()
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
