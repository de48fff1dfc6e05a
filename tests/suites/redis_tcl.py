#!/usr/bin/env python3
"""Runs units of Redis's own test suite against a front end of `farmem kv`.

usage: redis_tcl.py [--source DIR] [--skip FILE] [--port PORT] [--report FILE] [--slow] [--limit SECONDS] FARMEM [UNIT...]

Without units: all of the suite's own list. DIR is an unpacked source of Redis 7.0; without it, Debian's source package
`redis` is fetched. FILE names the tests and the units that are left out, each with its reason. Ends with status 1 if a
test fails or a unit does not come to its end, with 77 if the source or tclsh cannot be had.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

from store import Store, debian_source, skip_list

# The unit of scripts runs each test by functions and by EVAL. A store has no functions.
TWICE = ("tests/unit/scripting.tcl", "foreach is_eval {0 1} {", "foreach is_eval {1} {")
OUTCOME = re.compile(r"^\[(ok|err|skip|ignore|exception)\]:? ?(.*)$")


def run(unit, source, port, skips, slow, limit):
    """Counts of a unit's tests by outcome, and its output."""
    tags = "-needs:debug -needs:repl -needs:config-maxmemory -needs:pfdebug -large-memory" + ("" if slow else " -slow")
    command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", str(port), "--singledb"]
    command += ["--ignore-encoding", "--ignore-digest", "--durable", "--skipfile", skips, "--tags", tags]
    # Of ports of its own, so that several of these can run at a time.
    command += ["--single", f"unit/{unit}", "--baseport", str(22000 + os.getpid() % 24 * 300), "--portcount", "250"]
    try:
        said = subprocess.run(command, cwd=source, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=limit).stdout
    except subprocess.TimeoutExpired as expired:
        said = (expired.stdout or b"").decode(errors="replace") + "\n[exception]: took too long\n"
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)
    counts = dict.fromkeys(("ok", "err", "skip", "ignore", "exception"), 0)
    for line in said.splitlines():
        found = OUTCOME.match(line)
        if found:
            counts[found[1]] += 1
    counts["ended"] = "All tests passed without errors!" in said or "The following tests failed" in said
    return counts, said


def all_units(source):
    """The suite's own list, without what tests a server's files and replicas from outside."""
    with open(f"{source}/tests/test_helper.tcl") as lines:
        return re.findall(r"^    unit/(\S+)$", lines.read(), re.MULTILINE)


def by_eval(source, scratch):
    """A copy of the source whose unit of scripts uses EVAL alone."""
    copy = shutil.copytree(source, f"{scratch}/by-eval", ignore=lambda folder, _: ["deps", "src"] if folder == source else [])
    os.makedirs(f"{copy}/src", exist_ok=True)
    unit, before, after = TWICE
    with open(f"{copy}/{unit}") as lines:
        text = lines.read()
    assert before in text, f"{unit} is not what was expected"
    with open(f"{copy}/{unit}", "w") as out:
        out.write(text.replace(before, after))
    return copy


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--source")
    parser.add_argument("--skip", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "redis-7.0.skip"))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--limit", type=int, default=1500, help="seconds that a unit may take")
    parser.add_argument("--report")
    parser.add_argument("farmem")
    parser.add_argument("units", nargs="*")
    options = parser.parse_args()
    if not shutil.which("tclsh"):
        print("skipped: no tclsh")
        sys.exit(77)
    bad, lines = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        source = options.source or debian_source("redis", scratch)
        if not source:
            print("skipped: the source package redis cannot be had")
            sys.exit(77)
        source = by_eval(source, scratch)
        skips, left_out = f"{scratch}/skips", skip_list(options.skip)
        with open(skips, "w") as out:
            out.write("\n".join(left_out))
        units = options.units or [unit for unit in all_units(source) if f"unit/{unit}" not in left_out]
        if not options.units:
            units_left = [name for name in left_out if name.startswith("unit/")]
            lines.append(f"{len(units)} units; left out: {' '.join(units_left)}")
            print(lines[0], flush=True)
        for unit in units:
            # A fresh one for each, as redis's own runner has a fresh server.
            with Store(options.farmem, options.port) as store:
                counts, said = run(unit, source, store.port, skips, options.slow, options.limit)
            failed = counts["err"] + counts["exception"] + (not counts["ended"])
            bad += failed
            line = f"{unit}: {counts['ok']} passed, {counts['err']} failed, {counts['skip']} left out by name, "
            line += f"{counts['ignore']} by tag" + ("" if counts["ended"] else "; it did not come to its end")
            lines.append(line)
            print(line, flush=True)
            if failed:
                wrong = [n for n, text in enumerate(said.splitlines()) if re.match(r"\[(err|exception)\]", text)]
                text = said.splitlines()
                for n in wrong[:100]:
                    print("    " + "\n    ".join(text[n:n + 4]))
                if not wrong or not counts["ended"]:
                    print("    " + "\n    ".join(text[-12:]))
    if options.report:
        with open(options.report, "w") as report:
            report.write("\n".join(lines) + "\n")
    sys.exit(bool(bad))


main()
