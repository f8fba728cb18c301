"""The demo's processes: MongoDB, mosquitto and the service, each on a free port, with its log in the demo's directory.

Whatever is started is written to `<directory>/pids` first thing, so that `demo.sh` can end it even when this program
was killed itself; and unless it is to be kept, the kernel ends it together with this program.
"""

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pymongo

STARTS_MAX = 5  # another process may take a port between the check and the start; then another port is tried
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class DemoError(Exception):
    """An error that ends the demo; `log` is the file with the details."""

    def __init__(self, message, log=None):
        super().__init__(message)
        self.log = log


def free_port():
    """A free port below the range that the kernel uses for outgoing connections."""
    while True:
        port = random.randint(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(what, seconds, condition, log=None, alive=None):
    """Asks every 50 ms; the first true answer is returned."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if alive is not None and not alive():
            raise DemoError(f"{what}: it has ended", log)
        if time.monotonic() > deadline:
            raise DemoError(f"{what}: not within {seconds} s", log)
        time.sleep(0.05)


class Process:
    """A child in a separate session, so that Ctrl-C on the terminal reaches only the demo."""

    def __init__(self, directory, name, command, env=None, keep=False):
        self.name = name
        self.log = os.path.join(directory, f"{name}.log")
        parent = os.getpid()

        def in_child():
            if not keep:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)

        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                command, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # The servers start before the fleet's threads do.
                start_new_session=True, preexec_fn=in_child,  # noqa: PLW1509
            )
        with open(os.path.join(directory, "pids"), "a", encoding="ascii") as pids:
            pids.write(f"{self.child.pid}\n")

    def alive(self):
        return self.child.poll() is None

    def log_has(self, text):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return text in log.read()

    def stop(self, seconds):
        """Sends SIGTERM, and SIGKILL after the timeout; returns the exit code."""
        if self.alive():
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.child.kill()
        return self.child.wait()


def start(what, attempt):
    """`attempt` starts a process on new ports and returns it with its result, or None if a port was in use."""
    for _ in range(STARTS_MAX):
        started = attempt()
        if started is not None:
            return started
    raise DemoError(f"{what} found no free port in {STARTS_MAX} starts")


def start_mongod(directory, keep):
    """A replica set of one member, which majority writes need; returns the process and its URI."""

    def attempt():
        port = free_port()
        data = os.path.join(directory, "mongodb")
        os.makedirs(data, exist_ok=True)
        process = Process(directory, "mongod", [
            os.environ["HOURBUCKET_MONGOD"], "--replSet", "rs0", "--bind_ip", "127.0.0.1", "--port", str(port),
            "--dbpath", data, "--wiredTigerCacheSizeGB", "0.5", "--nounixsocket",
        ], keep=keep)
        client = pymongo.MongoClient(
            f"mongodb://127.0.0.1:{port}/?directConnection=true", serverSelectionTimeoutMS=200, connectTimeoutMS=2000)
        with client:
            try:
                wait_until("MongoDB does not answer", 60, lambda: answers(client), process.log, process.alive)
            except DemoError:
                if not process.alive() and process.log_has("Address already in use"):
                    return None
                raise
            client.admin.command("replSetInitiate", {
                "_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]})
            wait_until("MongoDB does not become primary", 60, lambda: is_primary(client), process.log, process.alive)
        return process, f"mongodb://127.0.0.1:{port}/?replicaSet=rs0"

    return start("MongoDB", attempt)


def answers(client):
    try:
        return client.admin.command("ping")
    except pymongo.errors.PyMongoError:
        return None


def is_primary(client):
    try:
        return client.admin.command("hello").get("isWritablePrimary")
    except pymongo.errors.PyMongoError:
        return None


MOSQUITTO_CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
# The defaults (20 in flight, 1000 queued, then messages are dropped) are far below what a fleet sends while the
# service waits for its disk: the broker before hourbucket should not be the one that loses readings.
max_inflight_messages 10000
max_queued_messages 1000000
log_dest stderr
log_type error
log_type warning
log_type notice
log_type information
log_type subscribe
"""


def start_mosquitto(directory, keep):
    """A broker that listens on loopback only; returns the process and its port."""

    def attempt():
        port = free_port()
        config = os.path.join(directory, "mosquitto.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write(MOSQUITTO_CONFIG.format(port=port))
            if os.geteuid() == 0:
                file.write("user root\n")  # its own user could not read the demo's directory
        process = Process(directory, "mosquitto", [os.environ["HOURBUCKET_MOSQUITTO"], "-c", config], keep=keep)
        try:
            wait_until("mosquitto does not answer", 20, lambda: connects(port), process.log, process.alive)
        except DemoError:
            if not process.alive() and process.log_has("Address already in use"):
                return None
            raise
        return process, port

    return start("mosquitto", attempt)


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


class Service:
    """hourbucket itself."""

    def __init__(self, process, config, http, admin):
        self.process, self.config, self.http, self.admin = process, config, http, admin

    def metrics(self):
        """Every counter and gauge, summed over its labels."""
        sums = {}
        for line in get(f"{self.admin}/metrics").splitlines():
            if line.startswith("hourbucket_"):
                series, value = line.rsplit(None, 1)
                name = series.split("{", 1)[0].removeprefix("hourbucket_")
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums


def start_service(directory, binary, config_text, uri, filters, broker, keep):
    """Writes the configuration, starts the service and waits until it is ready and subscribed."""

    def attempt():
        http, admin = free_port(), free_port()
        config = os.path.join(directory, "hourbucket.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(config_text.format(http_port=http, admin_port=admin))
        # None of the caller's own settings may reach the demo's service; the URI is a secret and is not written to the
        # file.
        env = {key: value for key, value in os.environ.items() if not key.startswith("HOURBUCKET_")}
        env["HOURBUCKET_STORE__URI"] = uri
        process = Process(directory, "hourbucket", [binary, "run", "--config", config], env=env, keep=keep)
        service = Service(process, config, f"http://127.0.0.1:{http}", f"http://127.0.0.1:{admin}")
        try:
            wait_until("the service is not ready", 60, lambda: ready(service.admin), process.log, process.alive)
        except DemoError:
            if not process.alive() and process.log_has("in use"):
                return None
            raise
        # A message published before the subscription exists would be lost; the broker's log shows when it exists.
        wait_until("the service has not subscribed", 30,
                   lambda: all(broker.log_has(f" 1 {name}\n") for name in filters), process.log, process.alive)
        return service

    return start("the service", attempt)


def get(url):
    # Without the proxy that the environment may name: all connections here are on loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read().decode()


def ready(admin):
    try:
        return json.loads(get(f"{admin}/readyz"))
    except (OSError, ValueError, urllib.error.URLError):
        return None
