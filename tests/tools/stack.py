"""Runs deploy/compose.yaml without Docker, as far as that goes: `python3 tests/tools/stack.py`, as root, on Linux.

It reads commands, users, read-only roots, mounts, secrets, tmpfs and environment from compose.yaml. Each container becomes
a process in a separate root (mount and process namespaces, chroot, no capability, no new privileges), and its /etc/hosts has
the names of the services. MongoDB (with key file, replica set and passwords), mosquitto (with passwords and ACL), mongosh,
hourbucket in the layout of its image, and the fleet are real.

The images are not: a debootstrap Debian replaces debian:12.12-slim, this machine's programs replace those of the other
images, and this script creates the root user that the MongoDB image creates at its first start.

At the end it prints hourbucket's status. The exit code is 0 if every check passed.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import yaml

DEPLOY = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "deploy")
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
# Creates a service's mounts, as in its container, then starts its process.
ENTER = r"""
set -e
root=$1 read_only=$2 user=$3 work=$4
shift 4
mount --make-rprivate /
# A separate root mount, which can be made read-only without affecting the machine's.
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
    kind=$1 from=$2 to=$root$3
    shift 3
    case $kind in
    tmpfs) mkdir -p "$to"; mount -t tmpfs -o "$from" tmpfs "$to" ;;
    *)
        if [ -d "$from" ]; then mkdir -p "$to"; elif [ ! -e "$to" ]; then mkdir -p "${to%/*}"; : >"$to"; fi
        mount --bind "$from" "$to"
        [ "$kind" = rw ] || mount -o remount,bind,ro "$to" ;;
    esac
done
shift
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
[ "$read_only" = no ] || mount -o remount,bind,ro "$root"
exec chroot "$root" /usr/bin/setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \
    --inh-caps=-all --bounding-set=-all --no-new-privs /usr/bin/env -C "$work" "$@"
"""


def end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Failed(Exception):
    """A failed check."""


def wait_until(what, seconds, condition):
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.1)


class Stack:
    def __init__(self, arguments):
        self.arguments = arguments
        self.directory = tempfile.mkdtemp(prefix="hourbucket-stack.")
        os.chmod(self.directory, 0o755)
        with open(f"{DEPLOY}/compose.yaml", encoding="utf-8") as file:
            self.compose = yaml.safe_load(file)
        self.processes = {}
        self.hosts = f"{self.directory}/hosts"
        with open(self.hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost " + " ".join(self.compose["services"]) + "\n")
        # The secrets come from the script that a user runs, in a copy: nothing is left in the repository.
        shutil.copytree(f"{DEPLOY}/compose", f"{self.directory}/compose", ignore=shutil.ignore_patterns("secrets"))
        subprocess.run([f"{self.directory}/compose/setup.sh"], check=True, stdout=subprocess.DEVNULL)
        self.secrets = f"{self.directory}/compose/secrets"

    def secret(self, name):
        with open(f"{self.secrets}/{name}", encoding="ascii") as file:
            return file.read()

    def mounts(self, name):
        """The service's mounts as ENTER takes them."""
        service = self.compose["services"][name]
        found = ["ro", self.hosts, "/etc/hosts"]
        for secret in service.get("secrets", []):
            found += ["ro", self.compose["secrets"][secret]["file"].replace("./", f"{self.directory}/", 1),
                      f"/run/secrets/{secret}"]
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("./"):
                found += [mode[0], source.replace("./", f"{self.directory}/", 1), target]
                continue
            path = f"{self.directory}/volumes/{source}"
            if not os.path.isdir(path):
                # As with Docker: a new volume has the owner of its directory in the image.
                os.makedirs(path)
                uid, gid = (int(part) for part in service.get("user", "0:0").split(":"))
                os.chown(path, uid, gid)
            found += ["rw", path, target]
        for tmpfs in service.get("tmpfs", []):
            place, _, options = tmpfs.partition(":")
            found += ["tmpfs", options, place]
        return found

    def run(self, name, root, command, extra=(), work="/"):
        """The service as a process in `root`; `extra` are mounts that stand for the image's own files."""
        service = self.compose["services"][name]
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", **service.get("environment", {})}
        user = service.get("user", "0:0")
        read_only = "yes" if service.get("read_only") else "no"
        # compose writes $$ for a dollar.
        command = [part.replace("$$", "$") for part in command]
        with open(f"{self.directory}/{name}.log", "ab") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", root, read_only, user, work,
                 *extra, *self.mounts(name), "--", *command],
                env={key: str(value) for key, value in environment.items()}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # This program has one thread.
                start_new_session=True, preexec_fn=end_with_parent)  # noqa: PLW1509
        self.processes[name] = process
        return process

    def inner_pid(self, name):
        """The service's process itself, as this machine counts: the child of unshare."""
        def child():
            pid = self.processes[name].pid
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                return file.read().split()

        return int(wait_until(f"{name} runs", 10, child)[0])

    def root(self, name, *parts):
        """An empty root with this machine's programs in it, for images that are not here."""
        root = f"{self.directory}/roots/{name}"
        for part in ("tmp", "run", "etc", "mosquitto/config", *parts):
            os.makedirs(f"{root}/{part}", exist_ok=True)
        os.chmod(f"{root}/tmp", 0o1777)
        for link in ("bin", "lib", "lib64", "sbin"):
            if os.path.islink(f"/{link}") and not os.path.lexists(f"{root}/{link}"):
                os.symlink(os.readlink(f"/{link}"), f"{root}/{link}")
        extra = ["ro", "/usr", "/usr"]
        for file in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ssl", "alternatives"):
            if os.path.exists(f"/etc/{file}"):
                extra += ["ro", f"/etc/{file}", f"/etc/{file}"]
        return root, extra

    # ---- the services ---------------------------------------------------------------------------------------------

    def mongodb(self):
        service = self.compose["services"]["mongodb"]
        root, extra = self.root("mongodb", "data/db", "data/configdb", "opt")
        with open(f"{root}/opt/docker-entrypoint.sh", "w", encoding="ascii") as file:
            # What the entry point of the image does on an empty volume: a server without replica set and key file
            # creates the root user.
            file.write("""#!/bin/bash
set -e
if [ ! -e /data/db/WiredTiger ]; then
    /opt/mongod --dbpath /data/db --port 27017 --bind_ip 127.0.0.1 --fork --logpath /tmp/init.log >/dev/null
    /opt/mongosh/mongosh --quiet --norc mongodb://127.0.0.1:27017/admin --eval '
        const password = require("fs").readFileSync(process.env.MONGO_INITDB_ROOT_PASSWORD_FILE, "utf8").trim();
        db.createUser({ user: process.env.MONGO_INITDB_ROOT_USERNAME, pwd: password, roles: ["root"] })'
    /opt/mongod --dbpath /data/db --shutdown >/dev/null
fi
shift
exec /opt/mongod --dbpath /data/db --wiredTigerCacheSizeGB 0.5 "$@"
""")
        os.chmod(f"{root}/opt/docker-entrypoint.sh", 0o755)
        os.symlink("/opt/docker-entrypoint.sh", f"{root}/data/docker-entrypoint.sh")
        extra += ["ro", self.arguments.mongod, "/opt/mongod", "ro", self.arguments.mongosh, "/opt/mongosh"]
        command = service["entrypoint"] + service["command"]
        # The user mongodb of the image is root here, and its key file must belong to the user that the server runs as.
        command[-1] = command[-1].replace("-o mongodb -g mongodb", "-o root -g root").replace("docker-entrypoint", "/opt/docker-entrypoint")
        service.setdefault("environment", {})["HOME"] = "/tmp"
        self.run("mongodb", root, command, extra)
        extra = [*extra[:-6], "ro", self.arguments.mongosh, "/opt/mongosh"]

    def mongodb_init(self):
        service = self.compose["services"]["mongodb-init"]
        root, extra = self.root("mongodb-init", "opt")
        extra += ["ro", self.arguments.mongosh, "/opt/mongosh"]
        service["environment"] = {"HOME": "/tmp"}
        command = ["/opt/mongosh/mongosh", *service["command"]]
        for _ in range(30):  # restart: on-failure
            if self.run("mongodb-init", root, command, extra).wait(120) == 0:
                return
            time.sleep(1)
        raise Failed("mongodb-init does not end well")

    def mosquitto(self):
        service = self.compose["services"]["mosquitto"]
        root, extra = self.root("mosquitto", "mosquitto/data", "run/mosquitto", "run/secrets")
        for place in ("mosquitto/config/mosquitto.conf", "mosquitto/config/acl", "run/secrets/mosquitto_users", "etc/hosts"):
            open(f"{root}/{place}", "a", encoding="ascii").close()
        for place in ("usr", "proc", "dev", *(extra[i][1:] for i in range(2, len(extra), 3))):
            (os.makedirs if os.path.isdir(f"/{place}") else lambda p, exist_ok: open(p, "a", encoding="ascii").close())(
                f"{root}/{place}", exist_ok=True)
        self.run("mosquitto", root, service["entrypoint"] + service["command"], extra)
        wait_until("mosquitto listens", 20, lambda: listens(1883))

    def image(self):
        """The root of hourbucket's image, as the Dockerfile's last stage makes it."""
        root = f"{self.directory}/roots/hourbucket"
        subprocess.run(["cp", "-a", self.arguments.debian, root], check=True)
        for source, place, mode in ((self.arguments.binary, "usr/local/bin/hourbucket", "0755"),
                                    (f"{DEPLOY}/../config/hourbucket.toml", "etc/hourbucket/hourbucket.toml", "0644"),
                                    (f"{DEPLOY}/../config/hourbucket.schema.json", "etc/hourbucket/hourbucket.schema.json", "0644")):
            subprocess.run(["install", "-D", "-m", mode, source, f"{root}/{place}"], check=True)
        subprocess.run(["install", "-d", "-o", "10001", "-g", "10001", "-m", "0750", f"{root}/var/lib/hourbucket"], check=True)
        for secret in self.compose["services"]["hourbucket"]["secrets"]:
            os.makedirs(f"{root}/run/secrets", exist_ok=True)
            open(f"{root}/run/secrets/{secret}", "a", encoding="ascii").close()
        return root

    def hourbucket(self):
        root = f"{self.directory}/roots/hourbucket"
        if not os.path.isdir(root):
            root = self.image()
        entrypoint, command = dockerfile_list("ENTRYPOINT"), dockerfile_list("CMD")
        self.run("hourbucket", root, entrypoint + command, work="/var/lib/hourbucket")
        wait_until("hourbucket is healthy", 60, self.healthy)

    def healthy(self):
        """The healthcheck of compose.yaml, inside of the container."""
        if self.processes["hourbucket"].poll() is not None:
            raise Failed("hourbucket has ended")
        test = self.compose["services"]["hourbucket"]["healthcheck"]["test"]
        inside = ["nsenter", "--target", str(self.inner_pid("hourbucket")), "--mount", "--root", "--wd", "env",
                  "HOURBUCKET_STORE__URI_FILE=/run/secrets/mongodb_uri", *test[1:]]
        return subprocess.run(inside, capture_output=True, check=False).returncode == 0

    def fleet(self):
        root, extra = self.root("fleet", "fleet", "opt/python", "run/secrets")
        service = self.compose["services"]["fleet"]
        service["environment"]["PYTHONPATH"] = "/opt/python"
        extra += ["ro", self.arguments.paho, "/opt/python", "ro", f"{DEPLOY}/compose/fleet.py", "/fleet/fleet.py",
                  "ro", f"{DEPLOY}/compose/simulate.py", "/fleet/simulate.py"]
        service["read_only"] = False  # the mounts make the places that the image has
        self.run("fleet", root, ["/usr/bin/env", "python3", "-B", "/fleet/simulate.py", *service["command"]], extra)

    def stop(self, name, seconds):
        """SIGTERM to the service itself, as `docker stop` sends it; its exit code."""
        process = self.processes[name]
        if process.poll() is None:
            os.kill(self.inner_pid(name), signal.SIGTERM)
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.wait()

    def clean_up(self):
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.kill()
                process.wait()
        if self.arguments.logs:
            os.makedirs(self.arguments.logs, exist_ok=True)
            for name in self.processes:
                shutil.copy(f"{self.directory}/{name}.log", self.arguments.logs)
        shutil.rmtree(self.directory, ignore_errors=True)


def listens(port):
    with open("/proc/net/tcp", encoding="ascii") as one, open("/proc/net/tcp6", encoding="ascii") as two:
        return any(f":{port:04X} " in line.split(maxsplit=2)[1] + " " and " 0A " in line for line in [*one, *two])


def dockerfile_list(instruction):
    with open(f"{DEPLOY}/docker/Dockerfile", encoding="utf-8") as file:
        line = next(line for line in reversed(file.readlines()) if line.startswith(f"{instruction} "))
    return json.loads(line.removeprefix(f"{instruction} "))


def get(url, token=None, body=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, body, {**headers, "Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def total(metrics, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.split("{")[0].split(" ")[0] == name)


def check(what, good, detail=""):
    if not good:
        raise Failed(f"{what} {detail}")
    print(f"ok   {what}", flush=True)


def whole_run(stack):
    stack.mongodb()
    wait_until("MongoDB listens", 90, lambda: listens(27017))
    stack.mongodb_init()
    stack.mongodb_init()
    check("mongodb and mongodb-init: replica set, key file, user; and again without harm", True)
    stack.mosquitto()
    check("mosquitto: passwords hashed at the start, listening, read-only root, uid 1883", True)
    stack.hourbucket()
    check("hourbucket: healthy by its healthcheck; read-only root, uid 10001, no capability", True)
    pid = stack.inner_pid("hourbucket")
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = file.read()
    check("its process has uid 10001, no capability and no way to new privileges",
          "Uid:\t10001\t10001" in status and "CapBnd:\t0000000000000000" in status and "NoNewPrivs:\t1" in status, status)
    write = subprocess.run(["nsenter", "--target", str(pid), "--mount", "--root", "touch", "/etc/x"], capture_output=True, check=False)
    check("nothing but its volume can be written", b"Read-only" in write.stderr, write.stderr)

    def ready():
        return json.loads(get("http://127.0.0.1:8081/readyz")[1])

    wait_until("nothing is wrong by /readyz", 30, lambda: ready()["reasons"] == [])
    state = ready()
    check(f"/readyz: MongoDB {state['server_version']} with its password, the broker connected",
          state["ready"] and state["mqtt"][0]["connected"], state)
    reading = b'{"sensor_id":"S1","temp":21.5}'
    check("HTTP without a token is refused", get("http://127.0.0.1:8080/v1/readings", None, reading)[0] == 401)
    check("HTTP with the token of the script is taken",
          get("http://127.0.0.1:8080/v1/readings", stack.secret("http_token"), reading)[0] == 200)
    stack.fleet()

    def stored():
        return total(get("http://127.0.0.1:8081/metrics")[1], "hourbucket_readings_stored_total")

    count = wait_until("the fleet's readings are stored", 60, lambda: stored() > 300 and stored())
    check(f"the fleet sends over MQTT and HTTP: {count:.0f} readings stored", stack.processes["fleet"].poll() is None)
    limit = int(stack.compose["services"]["hourbucket"]["stop_grace_period"].removesuffix("s"))
    began = time.monotonic()
    code = stack.stop("hourbucket", limit)
    check(f"hourbucket stopped within its grace period ({time.monotonic() - began:.1f} of {limit} s), everything stored", code == 0, code)
    stack.hourbucket()
    check("hourbucket started again on the same volume", json.loads(get("http://127.0.0.1:8081/readyz")[1])["ready"])
    check("the fleet stops by SIGTERM", stack.stop("fleet", 20) == 0)
    check("mosquitto stops by SIGTERM", stack.stop("mosquitto", 20) == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="hourbucket")
    parser.add_argument("--debian", required=True, help="a Debian root, made by debootstrap --variant=minbase bookworm")
    parser.add_argument("--mongod", default=os.environ.get("HOURBUCKET_MONGOD"), help="the server (HOURBUCKET_MONGOD)")
    parser.add_argument("--mongosh", required=True, help="the directory of mongosh")
    parser.add_argument("--paho", default=os.environ.get("HOURBUCKET_PYTHONPATH"), help="paho-mqtt (HOURBUCKET_PYTHONPATH)")
    parser.add_argument("--logs", help="copy all logs to this directory")
    arguments = parser.parse_args()
    for port in (1883, 8080, 8081, 27017):
        if listens(port):
            raise SystemExit(f"port {port} is taken; the services of compose.yaml need it")
    stack = Stack(arguments)
    try:
        whole_run(stack)
    except Failed as error:
        print(f"FAILED {error}", file=sys.stderr)
        for name in stack.processes:
            with open(f"{stack.directory}/{name}.log", encoding="utf-8", errors="replace") as file:
                print(f"---- {name}\n" + "".join(file.readlines()[-15:]), file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        stack.clean_up()


if __name__ == "__main__":
    main()
