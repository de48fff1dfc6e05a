#!/usr/bin/env python3
"""Runs programs by libraries for Node and PHP on a store of `farmem kv` with two front ends, and on redis.

usage: store_languages.py [--scratch DIR] [--report FILE] FARMEM [LANGUAGE...]

Languages: node (ioredis, node-redis, BullMQ, rate-limiter-flexible), php (php-redis).
Each program prints what it got, which must be the same at both. Its packages are fetched by npm or apt, into
DIR if that is given. Ends with status 1 if an output differs, with 77 if no language can be had.
"""
import argparse
import difflib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from store import Store

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_languages")
# Those that were tried.
NODE = ["ioredis@5", "bullmq@5", "redis@5", "rate-limiter-flexible@5"]
# Seconds that a program may take.
LIMIT = 180


def done(command, cwd, **environment):
    """Whether a command has succeeded."""
    try:
        return not subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL).returncode
    except FileNotFoundError:
        return False


def node(scratch):
    shutil.copy(f"{HERE}/jobs.js", scratch)
    return ["node", "jobs.js"] if done(["npm", "install", "--silent", "--no-audit", *NODE], scratch) else None


def php(scratch):
    shutil.copy(f"{HERE}/session.php", scratch)
    has = ["php", "-r", "exit(extension_loaded('redis') ? 0 : 1);"]
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "php-cli", "php-redis"]
    return ["php", "session.php"] if done(has, scratch) or done(install, scratch) and done(has, scratch) else None


LANGUAGES = {"node": node, "php": php}


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def ran(command, cwd, ports):
    """A program's status and output."""
    try:
        ended = subprocess.run([*command, *map(str, ports)], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
                               env={**os.environ, "NODE_NO_WARNINGS": "1"})  # They have the process's number.
        return ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as expired:
        return "no end", (expired.stdout or b"").decode(errors="replace")


def on_redis(command, cwd):
    """The same at redis, or None if that is not here."""
    if not shutil.which("redis-server"):
        return None
    port = free_port()
    server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=cwd)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        return ran(command, cwd, [port, port])
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--scratch")
    parser.add_argument("--report")
    parser.add_argument("farmem")
    parser.add_argument("languages", nargs="*")
    options = parser.parse_args()
    bad, lines, tried = 0, [], 0
    with tempfile.TemporaryDirectory() as usual:
        for name in options.languages or LANGUAGES:
            scratch = os.path.join(os.path.abspath(options.scratch) if options.scratch else usual, name)
            os.makedirs(scratch, exist_ok=True)
            command = LANGUAGES[name](scratch)
            if not command:
                lines.append(f"{name}: skipped, its packages cannot be had")
                print(lines[-1], flush=True)
                continue
            tried += 1
            with Store(options.farmem) as store:
                other = free_port()
                store.front(other)
                status, said = ran(command, scratch, [store.port, other])
            beside = on_redis(command, scratch)
            same = beside is None or beside == (status, said)
            bad += status != 0 or not same
            lines.append(f"{name}: {'the same as at redis' if same and beside else 'it ended well' if same else 'differs'}"
                         if status == 0 else f"{name}: failed ({status})")
            print(lines[-1], flush=True)
            if status != 0:
                print("    " + "\n    ".join(said.splitlines()[-20:]))
            if not same:
                differ = difflib.unified_diff(beside[1].splitlines(), said.splitlines(), "redis", "farmem", lineterm="")
                print("    " + "\n    ".join(differ))
    if options.report:
        with open(options.report, "w") as report:
            report.write("\n".join(lines) + "\n")
    if not tried:
        print("skipped: no language can be had")
        sys.exit(77)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
