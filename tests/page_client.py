"""Opens the fleet page in headless Chromium, as a person would, and compares it with the data that was sent.

Run by tests/servers/page.rs: page_client.py SCENARIO CHROMIUM ADMIN_URL HTTP_URL [TOKEN]. What only the test can do (end a server)
is asked for by a line `DO something` on standard output, and done when a line comes back. Any exception is a failure.
"""

import json
import math
import re
import shlex
import sys
import time
import urllib.request
from contextlib import contextmanager
from datetime import datetime, timezone

from playwright.sync_api import expect, sync_playwright

SCENARIO, CHROMIUM, ADMIN, HTTP = sys.argv[1:5]
TOKEN = sys.argv[5] if len(sys.argv) > 5 else None
# The other switches keep Chromium from requests to its vendor.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
HOUR = 3600
PATIENCE_MS = 30_000
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
EVIL = "<img src=x onerror=document.title='owned'>"
LONG = "hall/" + "x" * 200
TURNED = "pump \u202egnp"

expect.set_options(timeout=PATIENCE_MS)


def post(path, body, content_type="application/json"):
    headers = {"content-type": content_type} | ({"authorization": f"Bearer {TOKEN}"} if TOKEN else {})
    request = urllib.request.Request(HTTP + path, body, headers)
    with OPENER.open(request, timeout=60) as answer:
        return answer.status


def send(readings):
    assert post("/v1/readings", json.dumps(readings).encode()) == 200


def ask_the_test(what):
    print("DO", what, flush=True)
    assert sys.stdin.readline().strip() == "done", what


def early_now():
    """Now, in seconds, but not just before the end of an hour: what is sent next belongs to the same hour."""
    if time.time() % HOUR > HOUR - 20:
        time.sleep(20)
    return int(time.time())


def hour_of_now():
    return int(time.time()) // HOUR * HOUR


# ---- the browser


class Look:
    """A page with its console, its requests and its violations watched. `allowed` are failed loads that belong to it."""

    def __init__(self, browser, allowed=(), **context):
        self.context = browser.new_context(timezone_id="UTC", **({"viewport": {"width": 1280, "height": 900}} | context))
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.problems = []
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", lambda message: self.console(message, allowed))
        self.page.on("request", self.request)
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def console(self, message, allowed):
        url = message.location.get("url", "")
        # On a busy machine the service may be unready for a moment, and the page shows that.
        is_unready = url.endswith("/readyz") and "503" in message.text
        if message.type in ("error", "warning") and not is_unready and not any(w in message.text for w in allowed):
            self.problems.append(f"console: {message.text} ({url})")

    def request(self, request):
        if not request.url.startswith((ADMIN + "/", "data:")):
            self.problems.append(f"request: {request.url}")

    def go(self, path=""):
        self.page.goto(f"{ADMIN}/{path}")

    def done(self):
        title = self.page.title()
        assert "owned" not in title, title
        assert not self.problems, self.problems
        self.context.close()


@contextmanager
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def card(page, name):
    return page.get_by_role("region", name=name, exact=True)


def figures(page, name):
    """The rows of a card's table: heading to cells."""
    rows = {}
    for row in card(page, name).locator("tbody tr").all():
        cells = row.locator("td").all_inner_texts()
        rows[row.locator("th").inner_text().split("\n")[0].strip()] = [cell.strip() for cell in cells]
    return rows


def number(text):
    found = re.match(r"[-−]?[\d,]+(\.\d+)?(e[-+]?\d+)?", text)
    assert found, f"no number in {text!r}"
    return float(found[0].replace(",", "").replace("−", "-"))


def until(what, condition):
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        seen = condition()
        if seen is True:
            return
        assert time.monotonic() < deadline, f"{what}: {seen}"
        time.sleep(0.1)


def fits(look):
    """Nothing is wider than the window."""
    wide = look.page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? null : [...document.querySelectorAll("body *")]
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120)).slice(0, 5)"""
    )
    assert wide is None, wide


# Contrast of text and its background, by WCAG 2.2 (1.4.3): 4.5:1; disabled controls are exempt.
CONTRAST = """() => {
    const parse = (c) => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
    const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
    const weak = [];
    for (const e of document.querySelectorAll("body *")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own || e.disabled || !e.checkVisibility() || e.closest("noscript, script, style")) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < 4.5) weak.push([e.textContent.slice(0, 30), ratio.toFixed(2)]);
    }
    return weak;
}"""


def readable(look):
    weak = look.page.evaluate(CONTRAST)
    assert not weak, weak


def named(look):
    """Every control has an accessible name."""
    nameless = look.page.evaluate(
        """() => [...document.querySelectorAll("a, button, input, [tabindex='0']")].filter(e => e.checkVisibility()
            && !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
            .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert not nameless, nameless


def drawn(page, selector):
    """Whether a plot's canvas holds more than one colour."""
    return page.evaluate(
        """(selector) => { const c = document.querySelector(selector + " canvas"); if (!c) return "no canvas";
            const d = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer);
            const n = new Set(d).size; return n > 3 || `${n} colours`; }""",
        selector,
    )


# ---- the data to send


def value_at(hour, minute):
    """Temperatures with two decimals, another mean and spread in each hour."""
    return round(20 + hour % 5 + math.sin(minute / 9) * (1 + hour % 3), 2)


def known_fleet(now_hour):
    """The data to send, as sensor -> [(second, values)]."""
    day = {}
    for hour in range(now_hour // HOUR - 6, now_hour // HOUR):
        if hour % 6 != 2:  # one hour without readings
            for minute in range(60):
                day[hour * HOUR + minute * 60] = {"temp": value_at(hour, minute), "open": minute % 2 == 0}
    fleet = {"room 1": sorted(day.items())}
    latest = early_now()
    for name in (EVIL, LONG, TURNED):
        fleet[name] = [(latest, {"n": 7, "<b>field</b>": 1.5, "note": EVIL})]
    fleet |= {f"many/{n:03}": [(latest, {"n": n})] for n in range(120)}
    # More than the page requests for one window, in one hour; an hour has too few seconds, so fractions are used.
    fleet["dense"] = [(now_hour - HOUR + n * 0.5, {"n": n}) for n in range(6000)]
    return fleet


def send_fleet(fleet):
    tags = {"site": "north", "<i>tag</i>": EVIL}
    readings = [
        {"sensor_id": sensor, "ts": round(at * 1000), "values": values, "tags": tags}
        for sensor, sent in fleet.items()
        for at, values in sent
    ]
    for at in range(0, len(readings), 5000):
        send(readings[at : at + 5000])
    return len(readings)


# ---- scenarios


def sent_is_shown(browser):
    first = empty(browser)
    fleet = known_fleet(hour_of_now())
    total = first + send_fleet(fleet)
    again = [{"sensor_id": "room 1", "ts": at * 1000, "values": values} for at, values in fleet["room 1"][:40]]
    send(again)
    total += len(again)
    assert post("/v1/hooks/json", f'{{"temp": {EVIL}'.encode()) == 202
    assert post("/v1/hooks/json", bytes([0xFF, 0xFE, 0, 1, 2, 255]), "application/json") == 202

    for scheme in ("light", "dark"):
        look = Look(browser, color_scheme=scheme)
        fleet_view(look, total, len(again))
        sensor_view(look, fleet)
        letters_view(look)
        look.done()
    look = Look(browser)
    live_view(look)
    look.done()
    silent_for_days(browser)
    fleet_figures(browser)
    odd_names(browser)
    limits(browser)
    keyboard(browser)
    filtered_lists(browser)
    phone(browser)


def empty(browser):
    """Before the first reading the page shows a command to send one; the command works."""
    look = Look(browser)
    look.go()
    hint = card(look.page, "No readings yet")
    expect(hint.locator("pre")).to_contain_text(f"{HTTP}/v1/readings")
    words = shlex.split(hint.locator("pre").inner_text())
    assert words[0] == "curl" and words[1] == f"{HTTP}/v1/readings", words
    header, body = words[words.index("-H") + 1], words[words.index("-d") + 1]
    request = urllib.request.Request(words[1], body.encode(), dict([header.split(": ")]))
    with OPENER.open(request, timeout=60) as answer:
        assert json.load(answer)["accepted"] == 1
    readable(look)
    until("the first sensor appears", lambda: press_and_see(look.page, hint))
    expect(card(look.page, "Newest").get_by_role("link", name="S1", exact=True)).to_be_visible()
    look.done()
    return 1


def press_and_see(page, hint):
    if hint.is_visible():
        hint.get_by_role("button", name="Check again").click(timeout=5000)
        time.sleep(0.5)
    return not hint.is_visible() or "still empty"


def fleet_view(look, total, duplicates):
    page = look.page
    look.go()
    expect(page.locator("#state")).to_have_text("ready")
    until("totals", lambda: settled(figures(page, "Throughput"), total, duplicates))
    brokers = figures(page, "MQTT brokers")
    assert [cells[0] for cells in brokers.values()] == ["connected"], brokers
    store = dict(zip(card(page, "Store").locator("dt").all_inner_texts(), card(page, "Store").locator("dd").all_inner_texts()))
    assert (store["State"], store["Mode"], store["Errors"]) == ("answers", "bucket", "0"), store
    assert store["MongoDB"][0].isdigit(), store
    refused = figures(page, "Refused")
    assert sum(number(cells[1]) for cells in refused.values()) == 2, refused
    until("the rejected senders", lambda: rejected_match(page))
    busiest = card(page, "Busiest").locator("tbody a").all_inner_texts()
    assert len(busiest) > 0, "no sensor is listed as busy"
    newest = card(page, "Newest")
    newest.get_by_role("button", name=re.compile("All")).click()
    assert newest.locator("tbody tr").count() > 6
    expect(page.locator(".active")).to_have_text(re.compile(r"0 late of \d+ heard since the service started"))
    assert [drawn(page, f".live .card:nth-child({n})") for n in (1, 2, 4)] == [True] * 3
    readable(look)
    named(look)
    fits(look)


def rejected_match(page):
    """The list matches /v1/fleet, which has exactly the two invalid messages."""
    with OPENER.open(f"{ADMIN}/v1/fleet", timeout=60) as answer:
        rejected = json.load(answer)["rejected"]
    assert sum(entry["count"] for entry in rejected) in ((2,) if rejected else (0,)), rejected
    shown = figures(page, "Rejected")
    wanted = {entry["name"]: f"{entry['count']:,}" for entry in rejected}
    return {name: cells[1] for name, cells in shown.items()} == wanted or (shown, rejected)


def settled(shown, total, duplicates):
    sums = {name: number(cells[1]) for name, cells in shown.items() if cells[1] != "–"}
    wanted = {"Accepted": total, "Stored": total - duplicates, "Duplicate": duplicates}
    return all(sums.get(name) == n for name, n in wanted.items()) or f"{sums}, wanted {wanted}"


def sensor_view(look, fleet):
    page = look.page
    look.go("#/sensors?search=ROOM")
    page.get_by_role("link", name="room 1", exact=True).click()
    page.get_by_role("radio", name="temp").check()
    shown = figures(page, "Hourly summaries")
    wanted = {}
    for at, values in fleet["room 1"]:
        wanted.setdefault(at // HOUR * HOUR, []).append(values["temp"])
    names = {datetime.fromtimestamp(hour, timezone.utc).strftime("%m-%d %H:%M"): v for hour, v in wanted.items()}
    assert set(shown) == set(names), (sorted(shown), sorted(names))
    for name, values in names.items():
        count, low, mean, high = map(number, shown[name])
        assert (count, low, high) == (len(values), min(values), max(values)), (name, shown[name])
        assert abs(mean - sum(values) / len(values)) <= 0.005, (name, shown[name], sum(values) / len(values))
    until("the band is drawn", lambda: drawn(page, ".band"))
    last = fleet["room 1"][-1][1]
    assert number(page.locator("tr", has=page.get_by_role("radio", name="temp")).locator("td").first.inner_text()) == last["temp"]
    expect(page.locator("tr", has=page.get_by_role("radio", name="open")).locator("td").first).to_have_text(str(last["open"]).lower())
    assert EVIL in page.locator(".about").inner_text()

    # Drag over the last third of the plot: exactly the readings of that window.
    over = page.locator(".band .u-over").bounding_box()
    page.mouse.move(over["x"] + over["width"] * 0.80, over["y"] + 40)
    page.mouse.down()
    page.mouse.move(over["x"] + over["width"] * 0.97, over["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile("from="))
    window = {key: int(v) / 1000 for key, v in re.findall(r"(from|to)=(\d+)", page.url)}
    inside = [(at, values) for at, values in fleet["room 1"] if window["from"] <= at < window["to"]]
    assert 60 < len(inside) <= 300, (len(inside), window)
    expect(page.locator(".note")).to_contain_text(f"{len(inside)} readings in this window")
    rows = card(page, "Readings").locator("tbody tr")
    expect(rows).to_have_count(min(len(inside), 200))
    texts = rows.all_inner_texts()
    for (at, values), text in zip(inside, texts):
        assert datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.000") in text, text
        assert f"temp {values['temp']:g}" in text.replace("\n", " "), (values, text)
    # A deep link shows the same; a double click shows everything.
    page.reload()
    expect(page.locator(".note")).to_contain_text(f"{len(inside)} readings in this window")
    page.locator(".band .u-over").dblclick()
    expect(page).not_to_have_url(re.compile("from="))
    expect(card(page, "Readings")).to_be_hidden()
    readable(look)
    named(look)

    # Names that look like markup, or change the text direction, are shown as text.
    look.go(f"#/sensors?search={'%3Cimg'}")
    page.get_by_role("link", name=EVIL, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(EVIL)
    expect(page.get_by_role("radio", name="<b>field</b>")).to_be_visible()
    assert page.locator("main img, main b.x, main i i").count() == 0
    look.go("#/sensors?search=pump")
    expect(page.get_by_role("link", name="pump \\u202egnp", exact=True)).to_be_visible()


def letters_view(look):
    page = look.page
    look.go("#/letters")
    groups = page.locator("details.kind")
    expect(groups).to_have_count(2)
    # The newest group is open.
    expect(page.locator("article").first).to_be_visible()
    expect(page.locator("article").last).to_be_hidden()
    groups.last.locator("summary").click()
    letters = page.locator("article")
    newer, older = groups.all_inner_texts()
    assert "ff fe 00 01 02 ff" in newer and "6 B" in newer and "1 shown" in newer, newer
    assert f'{{"temp": {EVIL}' in older and "/v1/hooks/json" in older and "http" in older, older
    reason = groups.last.locator(".reason").inner_text()
    look.go(f"#/letters?reason={reason}")
    expect(page.get_by_role("link", name="Show all")).to_be_visible()
    expect(letters.last).to_contain_text(EVIL)
    readable(look)
    named(look)


def limits(browser):
    """The page reports if it draws only a part, and if readings are not in memory yet."""
    look = Look(browser)
    page = look.page
    start = (hour_of_now() - HOUR) * 1000
    look.go(f"#/sensor/dense?from={start}&to={start + 3_600_000}")
    expect(page.locator(".note")).to_contain_text("The first 5,000 readings of this window; there are more")
    page.get_by_role("button", name="Zoom in").click()
    expect(page.locator(".note")).not_to_contain_text("there are more")

    def incomplete(route):
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"complete": False})

    page.route("**/hourly*", incomplete)
    look.go("#/sensor/room%201")
    expect(page.locator(".note")).to_contain_text("Incomplete")
    look.done()


def keyboard(browser):
    """From the first view to a reading's value and back, without a mouse."""
    look = Look(browser)
    page, press = look.page, look.page.keyboard.press
    look.go()
    expect(page.locator("#state")).to_have_text("ready")
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("/")
    page.keyboard.type("many/")
    expect(page.locator("table.list tbody tr")).to_have_count(50)
    press("ArrowDown")
    press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "many/001"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is not seen"
    press("ArrowUp")
    press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "find"
    # Pages of fifty: 120 sensors need three.
    seen = page.locator("table.list tbody th a").all_inner_texts()
    for size in (50, 20):
        page.get_by_role("link", name="Next page").focus()
        press("Enter")
        expect(page.locator("table.list tbody th a").first).to_have_text(f"many/{len(seen):03}")
        expect(page.locator("table.list tbody tr")).to_have_count(size)
        seen += page.locator("table.list tbody th a").all_inner_texts()
    assert seen == [f"many/{n:03}" for n in range(120)]
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    page.get_by_role("link", name="Previous page").click()
    expect(page.locator("table.list tbody th a").first).to_have_text("many/050")
    expect(page.locator("table.list tbody tr")).to_have_count(50)

    press("/")
    page.keyboard.type("room 1")
    expect(page.locator("table.list tbody tr")).to_have_count(1)
    press("Enter")
    press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("room 1")
    expect(page.locator(".band canvas")).to_be_visible()
    page.get_by_role("radio", name="temp").check()
    for _ in range(60):
        press("Tab")
        if page.evaluate("document.activeElement.classList.contains('band')"):
            break
    else:
        raise AssertionError("the plot cannot be reached by Tab")
    press("ArrowRight")
    expect(page.locator(".readout")).to_contain_text(re.compile(r"min [\d.]+, avg [\d.]+, max [\d.]+, 60 readings"))
    press("+")
    expect(page).to_have_url(re.compile("from="))
    press("0")
    expect(page).not_to_have_url(re.compile("from="))
    # Back in the list that was searched.
    press("Escape")
    expect(page).to_have_url(re.compile("#/sensors\\?search=room"))
    expect(page.locator("table.list tbody tr")).to_have_count(1)
    press("/")
    press("Escape")
    expect(page.locator("#find")).to_have_value("room 1")
    # The theme switch is an ordinary button, and its state is remembered.
    page.locator("#theme").focus()
    press("Enter")
    press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    look.done()


def filtered_lists(browser):
    """Searched by a part of an id or tag in any case, sorted, by tag; with a chart of all sensors of the tag."""
    start = (hour_of_now() - 3 * HOUR) * 1000
    readings = [
        {"sensor_id": f"Valve-{n}", "ts": start + at * 60_000, "values": {"bar": n, "open": at < 30}, "tags": {"line": f"L{n % 2}"}}
        for n in range(1, 5)
        for at in range(60)
    ]
    send(readings)
    look = Look(browser)
    page = look.page
    ids = page.locator("table.list tbody th a")
    for search, found in (("aLVE-3", ["Valve-3"]), ("line=l1", ["Valve-1", "Valve-3"])):
        look.go(f"#/sensors?search={search}")
        expect(ids).to_have_text(found)
    page.get_by_label("Order").select_option("by id, last first")
    expect(ids).to_have_text(["Valve-3", "Valve-1"])
    expect(page.locator("#find")).to_have_value("line=l1")
    page.locator("table.list tbody td").get_by_role("link", name="line L1").first.click()
    expect(page).to_have_url(re.compile("tag=line%3DL1"))
    expect(ids).to_have_text(["Valve-1", "Valve-3"])
    chart = card(page, "All sensors with line L1")
    chart.get_by_label("Field").select_option("bar")
    until("the chart is drawn", lambda: drawn(page, ".band"))
    for _ in range(40):
        chart.locator(".band").press("ArrowRight")
        if "avg 2" in chart.locator(".readout").inner_text():
            break
    expect(chart.locator(".readout")).to_contain_text("min 1, avg 2, max 3")
    readable(look)
    named(look)
    fits(look)
    page.get_by_role("link", name="Without line=L1").click()
    expect(page).not_to_have_url(re.compile("tag="))
    look.done()
    # A boolean has a band: the share of its readings that are true.
    look = Look(browser)
    page = look.page
    look.go("#/sensor/Valve-2?field=open&span=24h")
    expect(page.get_by_role("radio", name="open")).to_be_checked()
    expect(card(page, "Hourly summaries").locator("tbody tr td")).to_have_text(["60", "0", "0.5", "1"])
    expect(page.locator(".note")).to_contain_text("the share of readings that are true")
    look.done()


def phone(browser):
    look = Look(browser, viewport={"width": 360, "height": 740}, has_touch=True, color_scheme="dark")
    for path, ready in [
        ("#/", ".cards.two tbody a"),
        ("#/sensors", "table.list tbody a"),
        ("#/sensor/room%201", ".band canvas"),
        (f"#/sensor/{LONG.replace('/', '%2F')}", ".band canvas"),
        ("#/letters", "article"),
    ]:
        look.go(path)
        expect(look.page.locator(ready).first).to_be_visible()
        fits(look)
        readable(look)
        labels(look)
    look.done()


def labels(look):
    """No label stands alone on a phone."""
    empty = """[...document.querySelectorAll(".stack td[data-label]")].filter(
        (cell) => cell.offsetParent && !cell.textContent.trim()).map((cell) => cell.dataset.label)"""
    assert look.page.evaluate(empty) == [], look.page.url


def unstored(page):
    """Two readings, not the preallocated segments."""
    shown = figures(page, "Backlog")["Unstored"][0]
    return (bool(re.fullmatch(r"\d+ B", shown)) and shown != "0 B") or shown


def live_view(look):
    """Readings are shown as they are accepted, and only while someone watches."""
    page = look.page
    look.go()
    tail = card(page, "Live")
    tail.get_by_label("Only these sensors").fill("tail*")
    # Only readings after the answer are shown.
    with page.expect_response(re.compile("/v1/tail")):
        tail.get_by_role("button", name="Watch").click()
    expect(tail).to_contain_text("waiting for readings")
    send([{"sensor_id": "tail 1", "values": {"temp": 7.25}}, {"sensor_id": "other", "values": {"temp": 1}}])
    expect(tail.locator("li")).to_have_count(1)
    expect(tail.locator("li")).to_contain_text("temp 7.25")
    expect(tail.get_by_role("link", name="tail 1")).to_be_visible()
    readable(look)
    tail.get_by_role("button", name="Stop").click()
    send([{"sensor_id": "tail 1", "values": {"temp": 8.25}}])
    expect(tail.locator("li")).to_have_count(1)


def silent_for_days(browser):
    """The page of a sensor that is silent for long opens on its last data, on its newest field; plus leads to the end."""
    end = early_now() - 30 * 24 * HOUR
    send([{"sensor_id": "old", "ts": (end - 7200 + s) * 1000, "values": {"a": s}} for s in range(0, 3600, 60)])
    send([{"sensor_id": "old", "ts": (end - 1200 + s) * 1000, "values": {"b": s}} for s in range(0, 1200, 60)])
    look = Look(browser)
    look.go("#/sensor/old")
    expect(look.page.get_by_role("radio", name="b")).to_be_checked()
    until("the band is drawn", lambda: drawn(look.page, ".band"))
    look.page.get_by_role("button", name="Zoom in").click()
    expect(look.page.locator(".note")).to_contain_text("readings in this window")
    to = int(re.search(r"to=(\d+)", look.page.url)[1]) / 1000
    assert end - 60 <= to <= end + 2 * HOUR, (to, end)
    look.done()


def written_per_statement():
    """From /metrics: readings in each statement that holds readings, and the mean time of such a command, in seconds."""
    with OPENER.open(f"{ADMIN}/metrics", timeout=60) as answer:
        text = answer.read().decode()

    def total(name, labels=""):
        return sum(float(v) for v in re.findall(rf"^hourbucket_{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", text, re.M))

    writes = 'kind="(?:insert|update)"'
    seconds, commands = (total(f"store_write_seconds_{part}", writes) for part in ("sum", "count"))
    return total("readings_stored_total") / total("store_statements_total", writes), seconds / commands


def fleet_figures(browser):
    """Queries change no figure of writing; a sensor that begins with history is new; a fleet that has stopped is seen."""
    look = Look(browser)
    page = look.page
    send([{"sensor_id": "backfilled", "ts": (hour_of_now() - 5 * HOUR + s) * 1000, "values": {"n": s}} for s in range(9)])
    for _ in range(30):
        with OPENER.open(f"{ADMIN}/v1/sensors?limit=1", timeout=60) as answer:
            answer.read()
    look.go()
    newest = card(page, "Newest").get_by_role("link", name="backfilled", exact=True)
    expect(newest).to_be_visible()
    store = card(page, "Store")

    def shown(name):
        return store.locator("div", has=page.locator("dt", has_text=name)).locator("dd").inner_text()

    def as_written():
        readings, seconds = written_per_statement()
        per_statement, mean = number(shown("Readings per statement")), shown("Write command, mean")
        unit = {"ms": 0.001, "s": 1}[mean.split()[1]]
        is_near = abs(per_statement - readings) <= 0.06 * readings and abs(number(mean) * unit - seconds) <= 0.2 * seconds
        return is_near or f"{per_statement} and {mean}, wanted {readings} and {seconds} s"

    until("the figures of writing", as_written)
    rule = card(page, "Late or silent").locator("p.quiet")
    expect(rule).to_contain_text("three times the sensor's usual interval")
    expect(page.locator("#state")).to_have_text("ready")

    def stopped(route):
        answer = route.fetch()
        late = {"half_away": True, "late_total": 9, "heard": 10, "known": 12, "silent_total": 1}
        route.fulfill(response=answer, json=answer.json() | late)

    page.route("**/v1/fleet", stopped)
    page.reload()
    for view in ("#/", "#/sensors"):
        look.go(view)
        expect(page.locator("#state")).to_have_text("sensors late")
        expect(page.locator("#state")).to_have_class("pill warn")
        expect(page.locator("#notices .sentence")).to_contain_text("9 of 10 sensors heard are late; 1 of 12 known")
    look.go()
    expect(page.locator(".active")).to_contain_text("12 sensors known, 1 of them silent for 1.0 d; 9 late of 10 heard")
    readable(look)
    fits(look)
    page.unroute("**/v1/fleet")
    look.done()


def odd_names(browser):
    """Names of JavaScript's own members, names that the path of a URL cannot have, and addresses with impossible times."""
    start = (hour_of_now() - 2 * HOUR) * 1000
    send([{"sensor_id": "odd", "ts": start, "values": {"constructor": 3}}])
    send([{"sensor_id": "odd", "ts": start + HOUR * 1000, "values": {"n": 1}}])
    send([{"sensor_id": name, "values": {"n": 7}} for name in (".", "..")])
    look = Look(browser)
    page = look.page
    value = page.locator("table.fields tbody tr").first.locator("td").first
    look.go("#/sensor/odd?field=constructor")
    expect(page.get_by_role("radio", name="constructor")).to_be_checked()
    # Only its hour has the field, and it is not the newest.
    expect(card(page, "Hourly summaries").locator("tbody tr")).to_have_count(1)
    expect(value).to_have_text("–")
    for name in (".", ".."):
        look.go(f"#/sensor/{name}")
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.locator(".note")).to_contain_text("A browser cannot request")
        expect(value).to_have_text("7")
    look.done()
    for query in ("span=constructor", "from=1&to=1e300", "from=1e15&to=1e16"):
        look = Look(browser)
        look.go(f"#/sensor/odd?{query}")
        expect(look.page.get_by_role("radio", name="constructor")).to_be_visible()
        look.done()


def with_token(browser):
    send([{"sensor_id": "secret room", "values": {"temp": 1.5}}])
    look = Look(browser, allowed=["status of 401"])
    page = look.page
    look.go("#/sensors")
    form = page.get_by_role("form", name="Token")
    expect(form).to_contain_text("Reading requires a token.")
    readable(look)
    form.get_by_label("Token").fill("gw1.wrong")
    page.keyboard.press("Enter")
    expect(form).to_contain_text("Token rejected.")
    form.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="secret room")).to_be_visible()
    kept = page.evaluate("[location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    assert [TOKEN in where for where in kept] == [False, False, False, True], kept
    look.go("#/sensor/secret%20room")
    expect(page.get_by_role("radio", name="temp")).to_be_visible()
    page.get_by_role("button", name="Forget the token").click()
    expect(form).to_be_visible()
    look.go("#/")
    expect(form).to_be_visible()
    # The public figures are shown without it.
    until("one accepted", lambda: figures(page, "Throughput")["Accepted"][1] == "1" or "not yet")
    look.done()


# Whether a click on "Try now" sends requests before the click's handler returns. It does not while a poll is under way.
ASKS_AT_CLICK = """() => {
    const [real, asked] = [window.fetch, []];
    window.fetch = (path, ...more) => { asked.push(path); return real(path, ...more); };
    [...document.querySelectorAll("#notices button")].find((button) => button.textContent === "Try now").click();
    window.fetch = real;
    return asked.includes("readyz");
}"""


def store_away(browser):
    at = early_now() * 1000
    send([{"sensor_id": "room 1", "ts": at, "values": {"temp": 20.5}}])
    allowed = [
        "status of 503",
        "status of 500",
        "status of 504",
        "ERR_CONNECTION",
        "ERR_EMPTY_RESPONSE",
        "ERR_INCOMPLETE",
    ]
    look = Look(browser, allowed=allowed)
    page = look.page
    look.go()
    expect(page.locator("#state")).to_have_text("ready")
    expect(card(page, "Newest").get_by_role("link", name="room 1")).to_be_visible()
    ask_the_test("kill the store")
    send([{"sensor_id": "room 1", "ts": at + 500, "values": {"temp": 21.5}}])
    expect(page.locator("#state")).to_have_text("degraded")
    expect(page.locator("#notices .sentence")).to_have_text(re.compile("MongoDB is away; readings are kept in the journal, "))
    expect(page.locator("#notices li").first).to_be_hidden()
    page.locator("#notices summary").click()
    expect(page.locator("#notices li").first).to_contain_text("the journal keeps the readings")
    backlog = figures(page, "Backlog")
    until("the backlog is what is unstored", lambda: unstored(page))
    assert "Lasts for" in backlog, backlog
    expect(card(page, "Store").locator("dd").first).to_have_text("unreachable")
    look.go("#/letters")
    expect(page.locator(".problem")).to_contain_text("Try again")
    readable(look)
    ask_the_test("kill the service")
    expect(page.locator("#state")).to_have_text("no answer")
    expect(page.locator("#notices")).to_contain_text("has not answered since")
    # It asks immediately, not at its next interval. The button is clicked while the service is down: afterwards it may
    # disappear at any moment.
    page.wait_for_function(ASKS_AT_CLICK)
    ask_the_test("start both")
    # The intervals have doubled meanwhile, up to 30 s.
    expect(page.locator("#state")).to_have_text("ready", timeout=PATIENCE_MS + 30_000)
    expect(page.locator("#notices")).to_be_empty()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("main")).to_contain_text("No dead letters.")
    look.go("#/sensor/room%201")
    expect(card(page, "Hourly summaries").locator("tbody tr td").first).to_have_text("2")
    look.done()


if __name__ == "__main__":
    with chromium() as opened:
        {"sent": sent_is_shown, "token": with_token, "away": store_away}[SCENARIO](opened)
    print("OK", flush=True)
