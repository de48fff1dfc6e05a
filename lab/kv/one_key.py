#!/usr/bin/env python3
"""INCR on one key by several front ends of one store.

    lab/kv/one_key.py [--farmem PATH] [--fronts 1,2,4] [--requests N] [--clients N] [--transport shm|tcp] [--rounds N]

Starts a node, and for each number of front ends a fresh store. One redis-benchmark asks each front end, all at the same time.
At the end the key has as many INCRs as were answered, or the script fails. It prints INCRs a second of all, the CPU time of the
front ends for an INCR, and the verbs and round trips for an INCR. Needs redis-benchmark and redis-cli.
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, process):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"{process.args} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{process.args} does not answer")


def cpu(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cli(port, *words):
    return subprocess.run(["redis-cli", "-p", str(port), *words], check=True, capture_output=True, text=True).stdout


def verbs(port):
    """Verbs and round trips since the start, of those that INFO names."""
    return [int(n) for name in ("verbs", "round_trips") for n in re.findall(rf"^{name}:(\d+)", cli(port, "info"), re.M)]


def measure(options, address, fronts, name):
    started = []
    try:
        for _ in range(fronts):
            port = free_port()
            command = [options.farmem, "kv", "--name", name, "--node", address, "--transport", options.transport,
                       "--listen", f"127.0.0.1:{port}"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.append((process, port))
            wait_for(port, process)
        cli(started[0][1], "set", "counter:__rand_int__", "0")
        before = [(cpu(process), verbs(port)) for process, port in started]
        begun = time.monotonic()
        benches = [
            subprocess.Popen(["redis-benchmark", "-p", str(port), "-t", "incr", "-n", str(options.requests), "-q", "-c",
                              str(options.clients)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _, port in started
        ]
        failed = [bench.wait() for bench in benches]
        took = time.monotonic() - begun
        if any(failed):
            sys.exit("redis-benchmark failed")
        total = options.requests * fronts
        counted = int(cli(started[0][1], "get", "counter:__rand_int__"))
        # redis-benchmark may ask a little more than it was told.
        if counted < total or counted > total + options.clients * fronts:
            sys.exit(f"{fronts} front ends: {total} INCRs were answered, and the key is {counted}")
        spent = sum(cpu(process) - was for (process, _), (was, _) in zip(started, before))
        asked = [sum(now) for now in zip(*([b - a for a, b in zip(was, verbs(port))]
                                           for (_, port), (_, was) in zip(started, before)))]
        return counted / took, spent / counted * 1e6, [n / counted for n in asked]
    finally:
        for process, _ in started:
            process.terminate()
            process.wait()


def main():
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("--farmem", default=str(ROOT / "target/release/farmem"))
    known.add_argument("--fronts", default="1,2,4")
    known.add_argument("--requests", type=int, default=20_000, help="of each front end")
    known.add_argument("--clients", type=int, default=4, help="connections of each front end")
    known.add_argument("--transport", choices=["shm", "tcp"], default="shm")
    known.add_argument("--rounds", type=int, default=1)
    options = known.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        port = free_port()
        address = f"unix:{scratch}/node.sock" if options.transport == "shm" else f"127.0.0.1:{port}"
        node = subprocess.Popen(
            [options.farmem, "node", "--lend", "512M", "--listen", f"127.0.0.1:{port}", "--listen", f"unix:{scratch}/node.sock"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(port, node)
            print(f"{options.clients} connections to each front end, {options.requests} INCRs by each, {options.transport}")
            for number in range(options.rounds):
                for fronts in map(int, options.fronts.split(",")):
                    rate, spent, asked = measure(options, address, fronts, f"one-key-{number}-{fronts}")
                    each = ", ".join(f"{n:.2f} {what}" for n, what in zip(asked, ("verbs", "round trips")))
                    print(f"front ends: {fronts}  INCRs a second: {rate:8.0f}  CPU time of one: {spent:6.2f} µs  {each}", flush=True)
        finally:
            node.terminate()
            node.wait()


if __name__ == "__main__":
    main()
