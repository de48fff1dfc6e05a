#!/usr/bin/env python3
"""Runs the tests of redis-py, the Python client of redis, against a front end of `farmem kv`.

usage: redis_py.py [--source DIR] [--skip FILE] [--port PORT] [--report FILE] FARMEM [MODULE...]

Without modules: MODULES. DIR is an unpacked source distribution of redis-py; without it, pip fetches VERSION. FILE
names the tests that are left out, each with its reason; a name that ends with * stands for all that begin so. Ends
with status 1 if a test fails, with 77 if the source or pytest cannot be had.
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile

from store import Store, skip_list

VERSION = "8.1.0"
MODULES = "commands pipeline encoding lock connection_pool pubsub"
NEEDS = ["pytest", "pytest-asyncio", "pytest-timeout", "packaging", "numpy"]
LIMIT = 1500


def pip(*args):
    return subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *args]).returncode == 0


def fetched(scratch):
    """The folder of the unpacked source distribution, or None."""
    if not pip("download", "--no-deps", "--no-binary", ":all:", "-d", scratch, f"redis=={VERSION}"):
        return None
    archive = f"{scratch}/redis-{VERSION}.tar.gz"
    if subprocess.run(["tar", "xf", archive, "-C", scratch]).returncode:
        return None
    return f"{scratch}/redis-{VERSION}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--source")
    parser.add_argument("--skip", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "redis-py-8.1.skip"))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--report")
    parser.add_argument("farmem")
    parser.add_argument("modules", nargs="*")
    options = parser.parse_args()
    skips = skip_list(options.skip)
    with tempfile.TemporaryDirectory() as scratch, Store(options.farmem, options.port) as store:
        source = options.source or fetched(scratch)
        if not source or not pip("install", "--target", f"{scratch}/lib", *NEEDS):
            print("skipped: pip cannot fetch redis-py or pytest")
            sys.exit(77)
        modules = [f"tests/test_{module}.py" for module in options.modules or MODULES.split()]
        environment = {**os.environ, "PYTHONPATH": f"{scratch}/lib:{source}"}
        base = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--timeout", "30",
                "--redis-url", f"redis://127.0.0.1:{store.port}/0"]
        listed = subprocess.run(base + ["--collect-only", *modules], cwd=source, env=environment, text=True,
                                stdin=subprocess.DEVNULL, capture_output=True).stdout
        tests = [line for line in listed.splitlines() if "::" in line and " " not in line.split("[")[0]]
        if not tests:
            sys.exit(f"no tests were found: {listed[-2000:]}")
        name = lambda test: "::".join(part.removeprefix("tests/test_").removesuffix(".py") for part in test.split("::"))
        left = [test for test in tests if any(fnmatch.fnmatchcase(name(test), skip) for skip in skips)]
        deselected = [option for test in left for option in ("--deselect", test)]
        try:
            said = subprocess.run(base + ["-rfE", "--tb=line", *deselected, *modules], cwd=source, env=environment,
                                  text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT).stdout
        except subprocess.TimeoutExpired as expired:
            said = (expired.stdout or b"").decode(errors="replace") + "\nERROR took too long\n"
    bad = [line for line in said.splitlines() if re.match(r"(FAILED|ERROR) ", line)]
    print("\n".join(bad))
    last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    line = f"redis-py {VERSION}: {last.strip('= ')}; {len(left)} left out by name"
    print(line)
    if options.report:
        with open(options.report, "w") as report:
            report.write("\n".join(bad + [line]) + "\n")
    sys.exit(bool(bad) or " passed" not in last)


main()
