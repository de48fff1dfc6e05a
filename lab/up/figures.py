#!/usr/bin/env python3
"""Figures of a rack on one machine, for a quiet hour. Nodes and programs run on loopback, over TCP.

  lab/up/figures.py PART... [--rounds N] [--port P] [--farmem PROGRAM]

  drain    the longest stall of a program whose node is emptied, beside that of the same program undisturbed
  mirror   CPU time, elapsed time and bytes of a program with two copies, as multiples of one without
  parity   memory at the nodes with ec:4+2, and the time to read a page without parity, with it, and with a node lost
  kill     the longest stall of a program that loses one of two copies: its node is killed
  repair   how fast copies are made again, in Gbit/s, and the median fetch meanwhile, beside that of an undisturbed run

Each line names the load. A round alternates what it compares. A program checks every byte that it reads;
one that finds a wrong byte, or that ends otherwise than it should, ends the script.
"""

import argparse
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 120


def until(what, holds):
    """Waits until something holds; ends the script if it does not in time."""
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {LIMIT} s")
        time.sleep(0.02)


class Lab:
    """The programs, a directory, and ports."""

    def __init__(self, arguments):
        self.dir = tempfile.TemporaryDirectory(prefix="farmem-figures-")
        self.farmem, self.port, self.nodes = arguments.farmem, arguments.port, []
        self.program = self.path("keeps_checking")
        source = os.path.join(TOP, "tests/programs/keeps_checking.c")
        subprocess.run(["cc", "-O2", "-pthread", "-o", self.program, source], check=True)

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def read(self, name):
        try:
            with open(self.path(name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def start_nodes(self, count):
        """Nodes of this round; their addresses."""
        self.end_nodes()
        for nth in range(count):
            at = f"127.0.0.1:{self.port + nth}"
            log = open(self.path(f"node{nth}"), "w", encoding="utf-8")
            command = [self.farmem, "node", "--lend", "512M", "--rdma", "off", "--listen", at]
            self.nodes.append((at, subprocess.Popen(command, stdout=log, stderr=log)))
        until("the nodes listen", lambda: all(f":{self.port + nth}" in self.read(f"node{nth}") for nth in range(count)))
        return [at for at, _ in self.nodes]

    def end_nodes(self):
        for _, node in self.nodes:
            node.kill()
            node.wait()
        self.nodes = []

    def lent(self, nodes):
        """Bytes of slabs that the nodes have lent."""
        held = 0
        for at in nodes:
            status = subprocess.run([self.farmem, "status", "--json", at], capture_output=True, text=True, check=True)
            held += json.loads(status.stdout)[0]["held"]
        return held


class Run:
    """A program on far memory, at work."""

    def __init__(self, lab, options, mib, threads=2, *words):
        self.lab, self.begun = lab, time.monotonic()
        command = [lab.farmem, "run", "--no-settings", "--transport", "tcp", "--local", "8M"]
        command += ["--stats", "json:" + lab.path("stats"), *options, "--", lab.program, str(mib), str(threads), *words]
        with open(lab.path("out"), "w") as out, open(lab.path("err"), "w") as err:
            self.run = subprocess.Popen(command, stdout=out, stderr=err)
        until("the program is ready", lambda: "ready" in lab.read("out") or self.run.poll() is not None)
        if self.run.poll() is not None:
            sys.exit(f"the program does not start: {lab.read('err')}")
        self.pid = int(lab.read("out").split()[1])

    def says(self, text):
        until(f"the run says “{text}”", lambda: text in self.lab.read("err") or self.run.poll() is not None)

    def end(self):
        """Ends it; the longest stall in ms, and the summary."""
        os.kill(self.pid, signal.SIGUSR1)
        if self.run.wait(LIMIT) != 0:
            sys.exit(f"the program ended with {self.run.returncode}: {self.lab.read('out')} {self.lab.read('err')}")
        stall = int(re.search(r" longest_us (\d+)", self.lab.read("out"))[1]) / 1000
        return stall, json.loads(self.lab.read("stats"))


def summary(values):
    return f"least {min(values):.1f}, median {statistics.median(values):.1f}, most {max(values):.1f}"


def drain(lab, rounds):
    stalls = {"undisturbed": [], "drained": [], "drained, mirror": []}
    for _ in range(rounds):
        for how, into in stalls.items():
            nodes = lab.start_nodes(3)
            mirror = "mirror" in how
            first = nodes[:2] if mirror else nodes[:1]
            with open(lab.path("nodes"), "w", encoding="utf-8") as file:
                file.write("\n".join(first) + "\n")
            run = Run(lab, ["--node-file", lab.path("nodes"), "--protect", "mirror" if mirror else "none"], 96)
            if how == "undisturbed":
                time.sleep(3)
            else:
                with open(lab.path("nodes"), "w", encoding="utf-8") as file:
                    file.write("\n".join(nodes[1:3] if mirror else nodes[1:2]) + "\n")
                run.says("copied in")
            into.append(run.end()[0])
    for how, of in stalls.items():
        print(f"  longest stall, ms, {how}: {summary(of)}; above 50 ms: {sum(ms > 50 for ms in of)} of {len(of)}")


def kill(lab, rounds):
    stalls = []
    for _ in range(rounds):
        nodes = lab.start_nodes(2)
        run = Run(lab, [option for node in nodes for option in ("--node", node)] + ["--protect", "mirror"], 48)
        time.sleep(0.5)
        lab.nodes[0][1].kill()
        run.says("goes on with one copy")
        time.sleep(0.5)
        stalls.append(run.end()[0])
    print(f"  longest stall, ms: {summary(stalls)}; above 50 ms: {sum(ms > 50 for ms in stalls)} of {len(stalls)}")


MIRRORED = """
d = {i: str(i) * 8 for i in range(120000)}
for turn in range(30):
    for i in range(0, 120000, 3):
        d[i] = str(i + turn) * 8
print(sum(len(v) for v in d.values()))
"""


def mirror(lab, rounds):
    ratios = {"CPU time": [], "elapsed time": [], "bytes written back": []}
    for _ in range(rounds):
        nodes, found, said = lab.start_nodes(2), [], set()
        for protect in ("none", "mirror"):
            command = [lab.farmem, "run", "--no-settings", "--transport", "tcp", "--local", "16M"]
            command += ["--stats", "json:" + lab.path("stats"), "--protect", protect]
            command += [option for node in nodes for option in ("--node", node)]
            before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            command += ["--", "/usr/bin/python3", "-c", MIRRORED]
            said.add(subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout)
            after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begun
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found.append((cpu, elapsed, json.loads(lab.read("stats"))["wire_out"]))
        if len(said) != 1:
            sys.exit(f"the outputs differ: {said}")
        for name, one, two in zip(ratios, *found):
            ratios[name].append(two / one)
    for name, of in ratios.items():
        print(f"  mirror against none, {name}: median {statistics.median(of):.2f}, {min(of):.2f} to {max(of):.2f}")


def parity(lab, rounds):
    medians = {"no parity": [], "all nodes": [], "one node lost": []}
    for _ in range(rounds):
        for how, into in medians.items():
            nodes = lab.start_nodes(6)
            protect = "none" if how == "no parity" else "ec:4+2"
            options = [option for node in nodes for option in ("--node", node)] + ["--protect", protect]
            # Nodes lend whole stripes: six slabs for every 256 MiB that are begun.
            run = Run(lab, options, 1000, 1, "reads")
            if how == "all nodes":
                lent = lab.lent(nodes)
            elif how == "one node lost":
                lab.nodes[0][1].kill()
            time.sleep(8)
            stats = run.end()[1]
            # The mean of all pages that it read: those that were fetched ahead, too.
            into.append(int(re.search(r" page_ns (\d+)", lab.read("out"))[1]) / 1000)
            if how == "all nodes" and lent:
                print(f"  lent {lent >> 20} MiB for {stats['far_peak'] >> 20} MiB")
    for how, of in medians.items():
        print(f"  a page read, µs, {how}: {summary(of)}")


def repair(lab, rounds):
    rates, medians = [], {"undisturbed": [], "repaired": []}
    for _ in range(rounds):
        for how, into in medians.items():
            nodes = lab.start_nodes(3)
            options = [option for node in nodes for option in ("--node", node)] + ["--protect", "mirror"]
            run = Run(lab, options, 192, 1)
            if how == "repaired":
                lab.nodes[0][1].kill()
                run.says("two copies again")
            else:
                time.sleep(5)
            into.append(run.end()[1]["demand_latency_ns"]["p50"] / 1000)
            if how == "repaired":
                copied = re.search(r"two copies again: ([\d.]+) (\w+) copied in (\d+) ms", lab.read("err"))
                scale = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[copied[2]]
                rates.append(float(copied[1]) * scale * 8 / 1e6 / int(copied[3]))
    print(f"  copied, Gbit/s: {summary(rates)}")
    for how, of in medians.items():
        print(f"  median fetch, µs, {how}: {summary(of)}")


PARTS = {"drain": drain, "mirror": mirror, "parity": parity, "kill": kill, "repair": repair}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--port", type=int, default=7860, help="six ports from here on")
    parser.add_argument("--farmem", default=os.environ.get("FARMEM_BIN", os.path.join(TOP, "target/release/farmem")))
    arguments = parser.parse_args()
    lab = Lab(arguments)
    try:
        for part in arguments.parts:
            print(f"{part}, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}", flush=True)
            PARTS[part](lab, arguments.rounds)
            print(f"  load at the end {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        lab.end_nodes()


if __name__ == "__main__":
    main()
