"""The demo's simulated fleet. It records all sent and acknowledged readings, independently of the service, so that
recount.py can compare the stored readings with them.

It has three kinds of senders, as in real fleets:
- rooms publish JSON over MQTT with the sensor's time and, in the topic, their site; some publish a message twice,
  as after a lost PUBACK;
- machines publish bare values, one topic per field, without a time (the service uses the receipt time);
- a gateway posts batches over HTTP, some of them twice, as after a lost answer.
In addition: broken MQTT messages, and one reading without a sensor id, which must not affect their neighbours.
"""

import gzip
import json
import math
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import paho.mqtt.client as mqtt

ROOMS, ROOM_PERIOD_MS = 40, 15_000
MACHINES, MACHINE_FIELDS, MACHINE_PERIOD_S = 6, ("rpm", "current"), 0.5
PUMPS, PUMP_PERIOD_MS = 4, 2_000  # 1800 an hour: more than one page
POST_READINGS = 500
TWICE_MQTT, TWICE_HTTP = 50, 8  # every how many messages or posts are sent a second time
BROKEN = (b'{"temp": 21.', b'{"temp": NaN}', b"\xff\xfe not even text")
UNACKED_MAX = 2_000
TRIES_MAX = 30
HOUR_MS = 3_600_000

ROOM_FILTER, MACHINE_FILTER = "rooms/+/+", "sensors/+/+"


class Fleet:
    """Sends for about `seconds`; the readings with a time cover the last hours up to now."""

    def __init__(self, mqtt_port, http, seconds):
        self.mqtt_port, self.http, self.seconds = mqtt_port, http, seconds
        self.now_ms = int(time.time() * 1000)
        self.from_ms = self.now_ms - self.now_ms % HOUR_MS - 2 * HOUR_MS
        self.random = random.Random(1)

        self.timed = {}  # (sensor_id, ts_ms) -> values: each must be stored exactly once
        self.untimed = {}  # (sensor_id, field) -> Counter of values: as many must be stored as were sent
        self.sent = Counter()  # by way: "mqtt json", "mqtt scalar", "http"; readings, second sendings included
        self.twice = 0
        self.broken = 0
        self.rejected = 0
        self.pubacks = 0
        self.http_accepted = 0
        self.errors = []

        self.stopping = threading.Event()
        self.threads = []
        self.client = None

    def sent_total(self):
        return sum(self.sent.values())

    def acknowledged(self):
        return max(0, self.pubacks - self.broken) + self.http_accepted

    def start(self):
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id="hourbucket-demo-fleet", protocol=mqtt.MQTTv5)
        self.client.max_inflight_messages_set(UNACKED_MAX)
        self.client.on_publish = self._on_puback
        self.client.connect("127.0.0.1", self.mqtt_port)
        self.client.loop_start()
        for work in (self._rooms, self._machines, self._gateway):
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def running(self):
        return any(thread.is_alive() for thread in self.threads)

    def all_pubacks(self):
        return self.pubacks == self.sent["mqtt json"] + self.sent["mqtt scalar"] + self.broken

    def stop(self):
        self.stopping.set()
        if self.client is not None:
            self.client.disconnect()
            self.client.loop_stop()

    def _guarded(self, work):
        try:
            work()
        except Exception as error:  # noqa: BLE001  # a thread's error would be lost otherwise
            self.errors.append(f"{work.__name__.strip('_')}: {error!r}")

    def _on_puback(self, _client, _userdata, _mid, reason, _properties):
        # Anything else than success, "no matching subscribers" too, is not an acknowledgement.
        if reason.value == 0:
            self.pubacks += 1
        else:
            self.errors.append(f"PUBACK: {reason}")

    def _publish(self, topic, payload):
        self.client.publish(topic, payload, qos=1)
        waited = 0.0
        while not self.stopping.is_set():
            sent = self.sent["mqtt json"] + self.sent["mqtt scalar"] + self.broken
            if sent - self.pubacks < UNACKED_MAX:
                return
            time.sleep(0.005)
            waited += 0.005
            if waited > 60:
                raise RuntimeError("no PUBACK for a minute")

    def _pace(self, started, part):
        """Waits until `part` (0 to 1) of the time is over; a delay does not cause a burst afterwards."""
        wait = started + part * self.seconds - time.monotonic()
        if wait > 0:
            self.stopping.wait(wait)

    def _rooms(self):
        started, n = time.monotonic(), 0
        times = range(self.from_ms, self.now_ms, ROOM_PERIOD_MS)
        for tick, ts_ms in enumerate(times):
            self._pace(started, tick / len(times))
            for room in range(ROOMS):
                if self.stopping.is_set():
                    return
                sensor, site = f"room-{room + 1:02}", "north" if room % 2 == 0 else "south"
                at_ms = ts_ms + room * 37
                values = {
                    "temp": round(21 + room / 20 + 3 * math.sin(at_ms / 2e6 + room) + self.random.gauss(0, 0.1), 2),
                    "humid": int(45 + 10 * math.cos(at_ms / 3e6 + room)),
                    "door_open": self.random.random() < 0.05,
                }
                payload = json.dumps({"ts": at_ms, **values})
                self.timed[(sensor, at_ms)] = values
                n += 1
                for again in range(2 if n % TWICE_MQTT == 0 else 1):
                    self.sent["mqtt json"] += 1
                    self.twice += again
                    self._publish(f"rooms/{site}/{sensor}", payload)
            if tick % (len(times) // len(BROKEN)) == 7 and self.broken < len(BROKEN):
                self.broken += 1
                self._publish("rooms/north/room-broken", BROKEN[self.broken - 1])

    def _machines(self):
        started, ticks = time.monotonic(), int(self.seconds / MACHINE_PERIOD_S)
        for tick in range(ticks):
            self._pace(started, tick / ticks)
            for machine in range(MACHINES):
                for field in MACHINE_FIELDS:
                    if self.stopping.is_set():
                        return
                    sensor = f"machine-{machine + 1}"
                    value = self.random.randint(1400, 1500) if field == "rpm" else round(self.random.uniform(9, 12), 1)
                    self.untimed.setdefault((sensor, field), Counter())[value] += 1
                    self.sent["mqtt scalar"] += 1
                    self._publish(f"sensors/{sensor}/{field}", str(value))

    def _gateway(self):
        readings = []
        for ts_ms in range(self.from_ms, self.now_ms, PUMP_PERIOD_MS):
            for pump in range(PUMPS):
                values = {"pressure": round(4 + pump + self.random.gauss(0, 0.05), 3), "flow": self.random.randint(80, 120)}
                self.timed[(f"pump-{pump + 1}", ts_ms)] = values
                readings.append({"sensor_id": f"pump-{pump + 1}", "ts": iso(ts_ms), "values": values,
                                 "tags": {"site": "north" if pump % 2 == 0 else "south"}})
        posts = [readings[at:at + POST_READINGS] for at in range(0, len(readings), POST_READINGS)]
        started = time.monotonic()
        for n, post in enumerate(posts):
            self._pace(started, n / len(posts))
            if self.stopping.is_set():
                return
            bad = n == len(posts) // 2
            # One reading without a sensor id in the middle of good ones.
            nameless = [{"ts": iso(self.now_ms), "values": {"pressure": 1.0}}] if bad else []
            batch = [*post[:250], *nameless, *post[250:]]
            for again in range(2 if n % TWICE_HTTP == 1 else 1):
                self.sent["http"] += len(batch) - bad
                self.twice += again * (len(batch) - bad)
                answer = self._post(batch, as_lines=n % 2 == 0)
                self.http_accepted += answer["accepted"]
                self.rejected += answer["rejected"]
                if answer["accepted"] != len(batch) - bad or answer["rejected"] != bad:
                    raise RuntimeError(f"an answer that does not fit the request: {str(answer)[:300]}")

    def _post(self, batch, as_lines):
        """Like a correct gateway: sends an unacknowledged batch again, after the Retry-After time of the service."""
        if as_lines:
            body = gzip.compress("".join(json.dumps(reading) + "\n" for reading in batch).encode())
            headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        else:
            body, headers = json.dumps(batch).encode(), {"Content-Type": "application/json"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(TRIES_MAX):
            request = urllib.request.Request(f"{self.http}/v1/readings", body, headers, method="POST")
            try:
                with opener.open(request, timeout=90) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise RuntimeError(f"{error.code}: {error.read(300).decode(errors='replace')}") from None
                wait = error.headers.get("Retry-After", "1")
                if self.stopping.wait(min(int(wait) if wait.isdigit() else 1, 5)):
                    raise RuntimeError("stopped") from None
        raise RuntimeError(f"a post was refused {TRIES_MAX} times")


def iso(ts_ms):
    seconds, ms = divmod(ts_ms, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ms:03}Z"
