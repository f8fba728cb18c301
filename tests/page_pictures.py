"""Creates the pictures of the fleet page in docs/images from a small fleet on the real service; run by tests/servers/page.rs:

    cargo test --locked --test servers page::pictures -- --ignored

page_pictures.py SCENARIO CHROMIUM ADMIN_URL HTTP_URL BROKER_PORT DIRECTORY. It sends a day of the past, then five minutes live
so that the plots are full.
"""

import json
import math
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import paho.mqtt.client as mqtt
from playwright.sync_api import expect, sync_playwright

CHROMIUM, ADMIN, HTTP, PORT, DIRECTORY = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), Path(sys.argv[6])
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LIVE_SECONDS = 310
RANDOM = random.Random(7)
MACHINES = [
    f"hall-{hall}/{kind}-{n:02}" for hall in (1, 2, 3) for kind in ("press", "oven", "pump") for n in range(1, 7)
]
GONE = {"hall-2/pump-03": 5 * 3600, "hall-3/oven-06": 47 * 60}


def post(path, body):
    request = urllib.request.Request(HTTP + path, body, {"content-type": "application/json"})
    try:
        with OPENER.open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def values(machine, at):
    n = MACHINES.index(machine)
    day = math.sin((at % 86400) / 86400 * 2 * math.pi - 1.9 + n / 9)
    work = 1 if (at // 1800 + n) % 7 else 0.2
    return {
        "temp": round(42 + n % 5 * 3 + 6 * day + 2 * work + RANDOM.gauss(0, 0.5), 1),
        "power": round(max(0.3, 11.5 * work + day + RANDOM.gauss(0, 0.6)), 2),
        "cycles": int(at // 20) % 100_000 + n,
    }


def reading(machine, at):
    hall, kind = machine.split("/")
    return {
        "sensor_id": machine,
        "ts": round(at * 1000),
        "values": values(machine, at),
        "tags": {"site": "Aalen", "hall": hall[-1], "kind": kind[:-3]},
    }


def past(now):
    batch = []
    for machine in MACHINES:
        for at in range(int(now) - 86_400, int(now) - GONE.get(machine, 0), 60):
            batch.append(reading(machine, at))
            if len(batch) == 4000:
                assert post("/v1/readings", json.dumps(batch).encode()) == 200
                batch = []
    assert post("/v1/readings", json.dumps(batch).encode()) == 200


def present(stop):
    """An MQTT message of each machine every second, the posts of a gateway, and the usual errors of a fleet."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", PORT)
    client.loop_start()
    turn = 0
    while not stop.wait(0.5):
        turn, now = turn + 1, time.time()
        for machine in MACHINES[turn % 2 :: 2]:
            if machine not in GONE:
                client.publish(f"plant/{machine}", json.dumps(reading(machine, now)), qos=1)
        meters = range(60 + int(25 * math.sin(now / 40)))
        batch = [
            {
                "sensor_id": f"meter/{n:04}",
                "ts": round(now * 1000) - n % 3 * 100,
                "values": {"kwh": round(now / 3600 % 900 + n, 3)},
            }
            for n in meters
        ]
        post("/v1/readings", json.dumps(batch).encode())
        if turn % 6 == 0:
            post("/v1/readings", json.dumps(batch[:20]).encode())
        if turn % 10 == 0:
            old = [{"sensor_id": "meter/0099", "ts": "2019-01-01T00:00:00Z", "values": {"kwh": 1}} for _ in range(3)]
            post("/v1/readings", json.dumps(old).encode())
        if turn % 90 == 5:
            client.publish("plant/hall-1/press-09", b'{"temp": 41.', qos=1)
        if turn % 200 == 9:
            client.publish("plant/hall-3/oven-07", bytes([0xA2, 0x64, 0x74, 0x65, 0x6D, 0x70, 0xFB, 0x40, 0x45]), qos=1)
    client.loop_stop()


def shoot(page, name, path, ready, height=None):
    page.goto(f"{ADMIN}/{path}") if path is not None else None
    expect(page.locator(ready).first).to_be_visible(timeout=30_000)
    time.sleep(1)
    full = {} if height is None else {"clip": {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}}
    page.screenshot(path=DIRECTORY / f"{name}.png", full_page=True, **full)


def main():
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    past(time.time())
    stop = threading.Event()
    sender = threading.Thread(target=present, args=[stop])
    sender.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)

            def window(scheme, width, height):
                return browser.new_context(
                    color_scheme=scheme, timezone_id="UTC", viewport={"width": width, "height": height}
                ).new_page()

            light, dark, phone = window("light", 1280, 900), window("dark", 1280, 900), window("light", 360, 740)
            time.sleep(30)  # until the day of the past is stored, which would dwarf the rest
            for page in (light, dark, phone):
                page.goto(ADMIN)
            time.sleep(LIVE_SECONDS)
            shoot(light, "fleet", None, ".cards.two tbody a")
            shoot(dark, "fleet-dark", None, ".cards.two tbody a")
            shoot(phone, "fleet-phone", None, ".cards.two tbody a", height=740)
            shoot(light, "sensor", "#/sensor/hall-1%2Fpress-01?field=temp", ".band canvas", height=900)
            zoomed = f"&from={round(time.time() * 1000) - 3 * 3_600_000}&to={round(time.time() * 1000) - 3_600_000}"
            shoot(
                dark,
                "sensor-zoomed-dark",
                f"#/sensor/hall-1%2Fpress-01?field=power{zoomed}",
                ".band canvas",
                height=900,
            )
            shoot(phone, "sensor-phone", "#/sensor/hall-1%2Fpress-01?field=temp", ".band canvas", height=740)
            shoot(light, "dead-letters", "#/letters", "article", height=700)
            browser.close()
    finally:
        stop.set()
        sender.join()
    print("OK", flush=True)


main()
