#!/usr/bin/env python3
"""Runs the TypeScript compiler in a memory group that is too small for it, natively and on far memory.

usage: tsc.py [--report FILE] FARMEM

Natively the kernel kills it. On far memory, over TCP to a node outside of the group, it must end with the output that
it has without a group. Needs root, a memory group of version 1 or 2, node and npm. Ends with status 1 if something
differs, with 77, naming the reason, if the machine lacks what it takes.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

VERSION = "5.6.3"
# Interfaces that each file declares, and files. Large enough that the compiler's heap is far beyond the group.
INTERFACES, FILES = 300, 40
LIMIT = 600


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


class Group:
    """A memory group below this process's own, of either version of the interface."""

    def __init__(self, limit):
        with open("/proc/self/cgroup") as own:
            lines = [line.strip().split(":", 2) for line in own]
        first = next((path for _, names, path in lines if "memory" in names.split(",")), None)
        name = f"farmem-tsc-{os.getpid()}"
        if first is not None:
            self.path, file = f"/sys/fs/cgroup/memory{first.rstrip('/')}/{name}", "memory.limit_in_bytes"
        else:
            whole = next((path for number, _, path in lines if number == "0"), "/")
            self.path, file = f"/sys/fs/cgroup{whole.rstrip('/')}/{name}", "memory.max"
        try:
            os.mkdir(self.path)
            with open(f"{self.path}/{file}", "w") as limited:
                limited.write(str(limit))
        except OSError as e:
            skip(f"no memory group: {e}")

    def within(self, command):
        return ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs; exec "$@"', "sh", *command]

    def end(self):
        try:
            os.rmdir(self.path)
        except OSError:
            pass


def source(directory):
    """A program of many types: each file refers to the one before."""
    for number in range(FILES):
        lines = [] if number == 0 else [f'import {{ T0 as Base }} from "./f{number - 1}";']
        for each in range(INTERFACES):
            extends = " extends Omit<Base, 'k'>" if number and each == 0 else ""
            lines.append(f"export interface T{each}{extends} {{ p{number}_{each}: number; k: 'f{number}t{each}' }}")
            lines.append(f"export function g{each}(x: T{each}): T{each}['k'] {{ return x.k; }}")
        with open(f"{directory}/f{number}.ts", "w") as file:
            file.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--report")
    parser.add_argument("farmem")
    options = parser.parse_args()
    for needed in ("node", "npm"):
        if not shutil.which(needed):
            skip(f"no {needed}")
    with tempfile.TemporaryDirectory() as scratch:
        got = subprocess.run(["npm", "install", "--silent", "--prefix", scratch, f"typescript@{VERSION}"],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if got.returncode:
            skip("typescript cannot be had from npm")
        source(scratch)
        outputs = {}

        def compiled(name, before, group=None):
            out = f"{scratch}/{name}"
            # Node would take the group's limit for the size of its heap.
            tsc = ["node", "--max-old-space-size=1024", f"{scratch}/node_modules/typescript/lib/tsc.js"]
            given = ["--strict", "--target", "es2020", "--module", "es2020", "--declaration", "--outDir", out]
            command = before + tsc + given + [f"{scratch}/f{FILES - 1}.ts"]
            done = subprocess.run(group.within(command) if group else command, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=LIMIT)
            files = sorted(os.listdir(out)) if os.path.isdir(out) else []
            outputs[name] = {file: open(f"{out}/{file}").read() for file in files}
            return done

        free = compiled("free", ["/usr/bin/env", "time", "-v"]) if shutil.which("time") else compiled("free", [])
        if free.returncode:
            sys.exit(f"natively, without a group, it ended with {free.returncode}:\n{free.stdout}{free.stderr}")
        peak = re.search(r"Maximum resident set size \(kbytes\): (\d+)", free.stderr)
        print(f"natively: {len(outputs['free'])} files" + (f", {int(peak[1]) // 1024} MiB at its peak" if peak else ""))

        group = Group(170 << 20)
        node = subprocess.Popen([options.farmem, "node", "--lend", "2G", "--listen", "127.0.0.1:0"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            address = next(found[1] for line in node.stdout if (found := re.search(r"at (127\.0\.0\.1:\d+)", line)))
            killed = compiled("killed", [], group)
            print(f"natively, in a group of 170 MiB: status {killed.returncode}")
            far = compiled("far", [options.farmem, "run", "--local", "48M", "--transport", "tcp", "--node", address, "--"], group)
            print(f"on far memory, in the same group: status {far.returncode}")
            print("\n".join(f"  {line}" for line in far.stderr.splitlines()))
        finally:
            node.terminate()
            node.wait()
            group.end()
        wrong = []
        if killed.returncode not in (-9, 137):
            wrong.append("natively the group did not end it: the test is of no use")
        if far.returncode:
            wrong.append(f"on far memory it ended with {far.returncode}: {far.stdout}")
        if outputs["far"] != outputs["free"]:
            wrong.append("on far memory its output differs")
        report = "\n".join(wrong) or "the output is the same"
        if options.report:
            with open(options.report, "w") as file:
                file.write(report + "\n")
        print(report)
        sys.exit(1 if wrong else 0)


main()
