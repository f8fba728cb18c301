"""Runs the build stage of deploy/docker/Dockerfile without Docker: `image.py TARGET PROFILE`.

It runs the file's COPY and RUN instructions in an empty directory, with only the files that .dockerignore allows. WORKDIR
/src is that directory and /image is TARGET. So a missing COPY makes the build fail. This machine's Rust replaces that of the
base image. CARGO_TARGET_DIR may name a directory with compiled dependencies.
"""

import fnmatch
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def instructions(path):
    """The instructions of the build stage, lines joined."""
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if not line.startswith("#")]
    found = []
    for part in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = part.strip().partition(" ")
        if word == "FROM" and found:
            break
        if word:
            found.append((word, rest.strip()))
    return found


def context(target):
    """Copies what .dockerignore allows."""
    with open(f"{REPO}/.dockerignore", encoding="utf-8") as file:
        rules = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    assert rules[0] == "*", ".dockerignore is an allow-list"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    left_out = [rule.rsplit("/", 1)[-1] for rule in rules[1:] if not rule.startswith("!")]
    listed = subprocess.run(["git", "-C", REPO, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    for path in listed.stdout.splitlines():
        fits = any(path == a or path.startswith(f"{a}/") or fnmatch.fnmatch(path, a) for a in allowed)
        if fits and os.path.exists(f"{REPO}/{path}") and not any(part in left_out for part in path.split("/")):
            os.makedirs(os.path.dirname(f"{target}/{path}"), exist_ok=True)
            shutil.copy2(f"{REPO}/{path}", f"{target}/{path}")


def copy(sources, target):
    for source in sources:
        if os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            os.makedirs(target, exist_ok=True)
            shutil.copy2(source, target)


def main():
    image, profile = os.path.abspath(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="hourbucket-image.") as top:
        here, source = f"{top}/context", f"{top}/src"
        os.makedirs(source)
        context(here)
        environment = {**os.environ, "PROFILE": profile, "CARGO_TERM_COLOR": "never"}
        target = environment.get("CARGO_TARGET_DIR")
        if target:
            # The instructions name target/.
            os.symlink(os.path.abspath(target), f"{source}/target")
            del environment["CARGO_TARGET_DIR"]
        for word, rest in instructions(f"{REPO}/deploy/docker/Dockerfile"):
            if word == "COPY":
                *sources, to = shlex.split(rest)
                copy([os.path.normpath(f"{here}/{part}") for part in sources], os.path.normpath(f"{source}/{to}"))
            elif word == "RUN":
                words = rest.split(" ")
                while not words[0] or words[0].startswith("--mount="):
                    words = words[1:]
                command = " ".join(words).replace("/image/", f"{shlex.quote(image)}/")
                subprocess.run(["sh", "-euc", command], cwd=source, env=environment, check=True)
    print(f"the build stage has made {sorted(os.listdir(image))} in {image}")


if __name__ == "__main__":
    main()
