#!/usr/bin/env python3
"""Runs the test suite of a Python interpreter natively and on far memory, module by module, and compares.

usage: python.py [--local SIZE] [--jobs N] [--skip FILE] [--report FILE] FARMEM INTERPRETER [MODULE...]

Without modules: all that `INTERPRETER -m test --list-tests` names. FILE has a module and a reason a line.
A module passes if the far run ends with the native run's status, and as many of its tests run. A module that
fails natively says nothing about farmem: it is named, and not run on far memory. Ends with status 1 if one differs.
"""
import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

# Natively. On far memory ten times as long as natively, and this.
LIMIT = 120
STATUSES = {0: "passed", 2: "failed", 3: "changed its environment", 4: "ran no tests", 130: "interrupted"}
COUNTED = re.compile(r"^Ran (\d+) tests? in ", re.M)


def ended(command, limit):
    """Status (None: too long), tests that ran, seconds, what it said."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, cwd=work, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        # What a test left behind must not burden the next.
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    return status, sum(map(int, COUNTED.findall(text))), time.monotonic() - begun, text


def name_of(status):
    return "took too long" if status is None else STATUSES.get(status, f"status {status}")


def compared(options, module):
    """How a module went: a verdict, and a line about it."""
    command = [options.interpreter, "-m", "test", "-v", module]
    status, count, seconds, _ = ended(command, LIMIT)
    if status not in (0, 3, 4):
        return "unfit", f"{module}: natively it {name_of(status)}"
    far = [options.farmem, "run", "--no-settings", "--local", options.local, "--stats", "none", "--", *command]
    for attempt in (1, 2):
        far_status, far_count, far_seconds, said = ended(far, 10 * seconds + LIMIT)
        times = f"{seconds:.1f} s natively, {far_seconds:.1f} s far"
        if (far_status, far_count) == (status, count):
            return "same" if attempt == 1 else "again", f"{module}: {name_of(status)}, {count} tests, {times}"
    tail = "\n".join("    " + line for line in said.splitlines()[-25:])
    line = f"{module}: natively it {name_of(status)}, {count} tests; far it {name_of(far_status)}, {far_count} tests"
    return "differs", f"{line}; {times}\n{tail}"


def skipped(path):
    if not path:
        return {}
    with open(path) as lines:
        entries = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
        return {module: why.strip() for module, why in entries}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--local", default="32M")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--skip")
    parser.add_argument("--report")
    parser.add_argument("farmem")
    parser.add_argument("interpreter")
    parser.add_argument("modules", nargs="*")
    options = parser.parse_args()
    options.farmem = os.path.abspath(options.farmem)
    skip = skipped(options.skip)
    modules = options.modules
    if not modules:
        listed = subprocess.run([options.interpreter, "-m", "test", "--list-tests"], capture_output=True, text=True)
        modules = [module.removeprefix("test.") for module in listed.stdout.split()]
    if not modules:
        sys.exit(f"{options.interpreter} has no tests")
    left_out = [module for module in modules if module in skip]
    verdicts = {"same": [], "again": [], "differs": [], "unfit": []}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        todo = (module for module in modules if module not in skip)
        for verdict, line in pool.map(lambda module: compared(options, module), todo):
            verdicts[verdict].append(line)
            print(f"{verdict}: {line}", flush=True)
    counts = ", ".join(f"{len(lines)} {name}" for name, lines in verdicts.items())
    summary = f"{options.interpreter}: {counts}, {len(left_out)} left out"
    print(summary)
    if options.report:
        with open(options.report, "w") as report:
            report.write(summary + "\n\n")
            for name, lines in verdicts.items():
                report.writelines(f"{name}: {line}\n" for line in lines)
            report.writelines(f"left out: {module}: {skip[module]}\n" for module in left_out)
    sys.exit(bool(verdicts["differs"]))


main()
