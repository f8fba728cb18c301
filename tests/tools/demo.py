"""The end-to-end demo, started by deploy/demo.sh, which owns the directory and the clean-up.

Order: start MongoDB, mosquitto and the service; let the fleet send; wait until all accepted readings are stored; verify
the stored readings; stop the service and check its exit code. A failed step ends the demo with a nonzero exit code.
"""

import argparse
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import time
from datetime import datetime, timezone

import fleet as fleets
import pymongo
from recount import MISTAKES_MAX, recount
from servers import DemoError, start_mongod, start_mosquitto, start_service

FLEET_SECONDS = 30
DRAIN_SECONDS = 90
STOP_SECONDS = 40
TABLE_ROWS = 12
LOG_LINES = 20
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)

TTY = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
COLOUR = TTY and not os.environ.get("NO_COLOR")
BOLD, DIM, RED, GREEN, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m") if COLOUR else ("",) * 5

CONFIG = """\
# Written by deploy/demo.sh. The MongoDB URI is in the environment (HOURBUCKET_STORE__URI).
[ingest]
ack = "journal"

[http]
listen = "127.0.0.1:{{http_port}}"

[admin]
listen = "127.0.0.1:{{admin_port}}"

[store]
database = "{database}"
mode = "bucket"

[flush]
max_age = "3s"                   # short, so that something is to be seen

[journal]
dir = "{directory}/journal"
max_bytes = "1GiB"

[[mqtt]]
url = "mqtt://127.0.0.1:{mqtt_port}"
client_id = "hourbucket-demo"

[[mqtt.subscriptions]]
filter = "{rooms}"
qos = 1
topic = "rooms/{{{{site}}}}/{{{{sensor_id}}}}"
format = "json"

[[mqtt.subscriptions]]
filter = "{machines}"
qos = 1
topic = "sensors/{{{{sensor_id}}}}/{{{{field}}}}"
format = "scalar"
"""


def step(text):
    print(f"{BOLD}==>{PLAIN} {text}", flush=True)


def headline(text):
    print(f"\n{BOLD}{text}{PLAIN}")


class Demo:
    """The started processes, so that they can be ended."""

    def __init__(self, directory, keep):
        self.directory, self.keep = directory, keep
        self.processes = []
        self.uri = os.environ.get("HOURBUCKET_STORE__URI") or None
        self.theirs = self.uri is not None
        # On the user's server, a separate database for the demo, dropped afterwards.
        self.database = f"hourbucket_demo_{secrets.token_hex(4)}" if self.theirs else "hourbucket"
        self.to_drop = False
        self.fleet = None

    def run(self, binary):
        if self.theirs:
            step(f"MongoDB: {masked(self.uri)}, database {self.database}")
            self.check_theirs()
        else:
            step("MongoDB: a replica set of one member")
            mongod, self.uri = start_mongod(self.directory, self.keep)
            self.processes.append(mongod)
        step("mosquitto: the MQTT broker")
        broker, mqtt_port = start_mosquitto(self.directory, self.keep)
        self.processes.append(broker)

        step("hourbucket: the service")
        config = CONFIG.format(database=self.database, directory=self.directory, mqtt_port=mqtt_port,
                               rooms=fleets.ROOM_FILTER, machines=fleets.MACHINE_FILTER)
        filters = [fleets.ROOM_FILTER, fleets.MACHINE_FILTER]
        service = start_service(self.directory, binary, config, self.uri, filters, broker, self.keep)
        self.processes.append(service.process)

        step(f"the fleet: {fleets.ROOMS} rooms (MQTT, JSON), {fleets.MACHINES} machines (MQTT, bare values), "
             f"a gateway with {fleets.PUMPS} pumps (HTTP)")
        self.fleet = fleets.Fleet(mqtt_port, service.http, FLEET_SECONDS)
        numbers = self.watch(service)
        with pymongo.MongoClient(self.uri, serverSelectionTimeoutMS=20_000) as client:
            database = client[self.database]
            step("recounting in MongoDB")
            stored, pages, sensors, mistakes = recount(database, self.fleet)
            letters = database.dead_letters.count_documents({})
            if letters < self.fleet.broken:
                mistakes.append(f"{letters} messages are in dead_letters, {self.fleet.broken} broken ones were sent")
            if mistakes:
                shown = "\n".join(f"  {mistake}" for mistake in mistakes[:MISTAKES_MAX])
                raise DemoError(f"{len(mistakes)} mistakes in MongoDB:\n{shown}", service.process.log)
            self.report(database, stored, pages, sensors, letters, numbers)
        print_metrics(service, numbers)
        if self.keep:
            self.print_kept(service, mqtt_port)
        else:
            self.stop_service(service)
            self.print_next()

    def check_theirs(self):
        try:
            with pymongo.MongoClient(self.uri, serverSelectionTimeoutMS=5_000) as client:
                client.admin.command("ping")
        except (pymongo.errors.PyMongoError, ValueError) as error:
            raise DemoError(f"the MongoDB on HOURBUCKET_STORE__URI does not answer: {brief(error)}") from None
        self.to_drop = True

    def watch(self, service):
        """Lets the fleet send, shows the progress, and returns when everything that was accepted is stored."""
        fleet, progress = self.fleet, Progress()
        fleet.start()
        started = quiet_since = time.monotonic()
        stored_before = False
        while True:
            if not service.process.alive():
                raise DemoError("the service has ended", service.process.log)
            if fleet.errors:
                raise DemoError(f"the fleet: {fleet.errors[0]}", service.process.log)
            numbers = service.metrics()
            accepted, settled = (int(sum(numbers.get(name, 0) for name in names)) for names in (
                ["readings_accepted_total"], ["readings_stored_total", "readings_duplicate_total"]))
            if settled and not stored_before:
                stored_before = True
                progress.end()
                since = time.time() - float(os.environ.get("DEMO_STARTED") or time.time())
                step(f"the first readings are stored in MongoDB, {since:.0f} s after the start; the fleet sends for "
                     f"{FLEET_SECONDS} s in all")
            sending = fleet.running() or not fleet.all_pubacks()
            if sending:
                quiet_since = time.monotonic()
            # A broker may redeliver, so the service may have accepted more than was sent, never less.
            done = not sending and accepted >= fleet.sent_total() and settled == accepted
            progress.show(
                f"{time.monotonic() - started:3.0f} s   sent {fleet.sent_total():,}   "
                f"acknowledged {fleet.acknowledged():,}   stored {int(numbers.get('readings_stored_total', 0)):,}   "
                f"duplicates {int(numbers.get('readings_duplicate_total', 0)):,}   "
                f"waiting {max(0, accepted - settled):,}", last=done)
            if done:
                fleet.stop()
                return numbers
            if time.monotonic() - quiet_since > DRAIN_SECONDS:
                progress.end()
                raise DemoError(
                    f"not everything was stored within {DRAIN_SECONDS} s: sent {fleet.sent_total()}, "
                    f"accepted {accepted}, stored or duplicate {settled}", service.process.log)
            time.sleep(0.5)

    def report(self, database, stored, pages, sensors, letters, numbers):
        fleet = self.fleet
        sent = fleet.sent_total()
        if fleet.acknowledged() != sent:
            raise DemoError(f"{sent} readings were sent, {fleet.acknowledged()} acknowledged")
        by_way = ", ".join(f"{count:,} {way}" for way, count in fleet.sent.items())
        headline("What happened")
        print(f"  sent          {sent:>9,}  readings ({by_way}); {fleet.twice:,} of them a second time, on purpose")
        print(f"  acknowledged  {fleet.acknowledged():>9,}")
        print(f"  stored        {stored:>9,}  in {pages:,} pages of {sensors} sensors: {GREEN}every reading exactly once{PLAIN},")
        print("                           and every summary equal to the one recomputed from the readings")
        print(f"  duplicates    {int(numbers.get('readings_duplicate_total', 0)):>9,}  recognised and not stored again")
        print(f"  rejected      {fleet.rejected:>9,}  by HTTP, named in the answer (it has no sensor id)")
        print(f"  dead letters  {letters:>9,}  MQTT messages that could not be decoded, kept in dead_letters")

        headline("One bucket document (sensor_buckets)")
        page = database.sensor_buckets.find_one({"sensor_id": "room-01", "bucket_start": from_ms(fleet.from_ms)})
        print(pretty(page, "  "))
        if page.get("storage") == "timeseries":
            print(f"  {DIM}Its readings are measurements of the time-series collection sensor_readings, such as{PLAIN}")
            print(pretty(database.sensor_readings.find_one({"meta.sensor_id": "room-01"}, {"_id": 0}), "  "))

        headline("The hourly summary (view sensor_summaries)")
        print_table(database)

    def stop_service(self, service):
        step("stopping the service")
        code = service.process.stop(STOP_SECONDS)
        if code != 0:
            raise DemoError(f"the service ended with exit code {code} instead of 0", service.process.log)

    def print_next(self):
        headline("Next")
        print("  deploy/demo.sh --keep        the same, and it stays up for you to publish and post to")
        print("  tests/run.sh                 every test, the ones with real MongoDB and mosquitto too")
        print("  README.md and docs/          how to run it for real, its configuration and its limits")

    def print_kept(self, service, mqtt_port):
        now = fleets.iso(int(time.time()) * 1000)
        with open(os.path.join(self.directory, "kept"), "w", encoding="utf-8") as kept:
            kept.write(f"{self.database} on {masked(self.uri)}\n" if self.theirs else "")
        headline("It stays up; try")
        print(f"  curl -i {service.http}/v1/readings -H 'Content-Type: application/json' \\")
        print(f"       -d '{{\"sensor_id\": \"mine\", \"ts\": \"{now}\", \"temp\": 21.5}}'")
        print(f"  mosquitto_pub -p {mqtt_port} -q 1 -t sensors/mine/temp -m 21.7")
        print(f"  curl -s {service.admin}/readyz")
        print(f"  curl -s {service.admin}/metrics")
        print(f"  MongoDB       {masked(self.uri)}   database {self.database}")
        print(f"  configuration {service.config}")
        print(f"  logs          {self.directory}/*.log")
        headline("To stop it and remove everything")
        print(f"  {shlex.join([os.environ['DEMO_COMMAND'], '--stop', self.directory])}")

    def end(self):
        """Ends everything immediately; the stored data is no longer needed."""
        if self.fleet is not None:
            self.fleet.stopping.set()
        for process in reversed(self.processes):
            process.stop(0 if process.name == "mongod" else 2)
        if self.to_drop:
            try:
                with pymongo.MongoClient(self.uri, serverSelectionTimeoutMS=5_000) as client:
                    client.drop_database(self.database)
            except (pymongo.errors.PyMongoError, ValueError) as error:
                print(f"could not drop the database {self.database}: {brief(error)}", file=sys.stderr)


class Progress:
    """One line that is overwritten on a terminal; elsewhere a new line every few seconds."""

    def __init__(self):
        self.next_at = 0.0

    def show(self, text, last=False):
        if TTY:
            width = shutil.get_terminal_size().columns - 3
            sys.stdout.write(f"\r\x1b[2K  {text[:width]}" + ("\n" if last else ""))
        elif last or time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + 5
            print(f"  {text}")
        sys.stdout.flush()

    def end(self):
        if TTY:
            print()


def print_table(database):
    """A few sensors of each kind, one numeric field each."""
    chosen = [("room-01", "temp"), ("room-02", "temp"), ("machine-1", "rpm"), ("pump-1", "pressure"), ("pump-2", "flow")]
    print(f"  {DIM}{'sensor':<11}{'hour (UTC)':<18}{'readings':>9}  {'field':<10}{'min':>10}{'avg':>10}{'max':>10}{PLAIN}")
    shown = 0
    for sensor, field in chosen:
        for row in database.sensor_summaries.find({"sensor_id": sensor}).sort("bucket_start", 1):
            numbers = row["summary"].get(field)
            if numbers is None or shown == TABLE_ROWS:
                continue
            shown += 1
            print(f"  {sensor:<11}{row['bucket_start']:%Y-%m-%d %H:%M}  {row['count']:>9,}  {field:<10}"
                  f"{numbers['min']:>10.2f}{numbers['avg']:>10.2f}{numbers['max']:>10.2f}")
    print(f"  {DIM}{shown} of {len(list(database.sensor_summaries.find({}, {'_id': 1}))):,} rows{PLAIN}")


def print_metrics(service, numbers):
    headline("Metrics")
    print(f"  {service.admin}/metrics (Prometheus) and {service.admin}/readyz while it runs; among them:")
    for name in ("readings_accepted_total", "readings_stored_total", "readings_duplicate_total",
                 "store_statements_total", "journal_bytes"):
        if name in numbers:
            print(f"  hourbucket_{name:<28}{numbers[name]:>14,.0f}")


def pretty(value, indent):
    """The way mongosh shows a document, with long arrays cut."""
    deeper = indent + "  "
    if isinstance(value, (dict, list)) and not value:
        return "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        flat = "{ " + ", ".join(f"{key}: {pretty(item, '')}" for key, item in value.items()) + " }"
        if len(indent + flat) <= 110 and "\n" not in flat:
            return (indent if indent == "  " else "") + flat
        lines = [f"{deeper}{key}: {pretty(item, deeper)}" for key, item in value.items()]
        return (indent if indent == "  " else "") + "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        return "[" + ", ".join(pretty(item, "") for item in value) + "]"
    if isinstance(value, list):
        lines = [deeper + pretty(item, deeper) for item in value[:3]]
        more = f"\n{deeper}… {len(value) - 3:,} more" if len(value) > 3 else ""
        return "[\n" + ",\n".join(lines) + more + f"\n{indent}]"
    if isinstance(value, datetime):
        return f'ISODate("{value.isoformat(timespec="milliseconds")}Z")'
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(round(value, 6) if isinstance(value, float) else value)


def from_ms(ms):
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc)


def brief(error):
    """The driver's message without its state, which fills a screen."""
    return str(error).split(" (configured timeouts", 1)[0].split(", full error", 1)[0][:300]


def masked(uri):
    return re.sub(r"//[^@/]*@", "//***@", uri)


def print_failure(error, directory):
    print(f"{RED}error:{PLAIN} {error}", file=sys.stderr)
    if getattr(error, "log", None) and os.path.exists(error.log):
        with open(error.log, encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()[-LOG_LINES:]
        print(f"{DIM}the last lines of {os.path.basename(error.log)}:{PLAIN}", file=sys.stderr)
        print("\n".join(f"  {line[:400]}" for line in lines), file=sys.stderr)
    if not os.environ.get("DEMO_LOGS") and os.listdir(directory):
        print("All logs went with the demo's directory; --logs DIR keeps them.", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("binary")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()

    def interrupted(number, _frame):
        # Python drops an exception raised inside a finaliser, so it is raised again every second until it has passed.
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        raise SystemExit(128 + number)

    for number in ENDING_SIGNALS:
        signal.signal(number, interrupted)

    demo = Demo(arguments.directory, arguments.keep)
    kept = False
    try:
        demo.run(arguments.binary)
        kept = arguments.keep
    except (DemoError, pymongo.errors.PyMongoError, OSError) as error:
        print_failure(error, arguments.directory)
        sys.exit(1)
    finally:
        # A second signal must not interrupt the clean-up.
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if not kept:
            demo.end()
    sys.exit(0)


main()
