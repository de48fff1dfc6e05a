#!/usr/bin/env python3
"""Large collections of a store beside redis.

    lab/kv/beside_redis.py [--farmem PATH] [--items N] [--each N] [--pipelines 16,1] [--clients N] [--requests N] [--transport shm|tcp]
                          [--only NAME,…] [--servers redis,farmem] [--local SIZE] [--names 10,100,1000]

Builds those of a list, a set, a hash and a sorted set that the commands ask, of so many items. Says how long that took, what
memory it needs, and how long a scan of all takes. Then redis-benchmark asks for random elements. A line has requests a second
and the CPU time of a request: of redis, or of the front end and the node. One server runs at a time. With --names commands also name
so many random elements each: eight clients, without a pipeline. A stream has a group, which --only jobs uses: one client adds an
entry, reads one for the group, and acknowledges it, one after the other. Needs redis-server, redis-benchmark and redis-cli.
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
R = "__rand_int__"
COMMANDS = {
    "lpush": ["lpush", "list", f"item:{R}"],
    "rpush": ["rpush", "list", f"item:{R}"],
    "lpop": ["lpop", "list"],
    "rpop": ["rpop", "list"],
    "lindex": ["lindex", "list", "100000"],
    "lrange": ["lrange", "list", "0", "99"],
    "sadd": ["sadd", "set", f"new:{R}"],
    "srem": ["srem", "set", f"element:{R}"],
    "sismember": ["sismember", "set", f"element:{R}"],
    "hset": ["hset", "hash", f"element:{R}", f"value:{R}"],
    "hincrby": ["hincrby", "counts", f"element:{R}", "1"],
    "hget": ["hget", "hash", f"element:{R}"],
    "zadd": ["zadd", "sorted", f"{R}", f"element:{R}"],
    "zincrby": ["zincrby", "sorted", "1", f"element:{R}"],
    "zscore": ["zscore", "sorted", f"element:{R}"],
    "zrank": ["zrank", "sorted", f"element:{R}"],
    "zrevrange": ["zrevrange", "sorted", "0", "9", "withscores"],
    "xadd": ["xadd", "stream", "*", "job", f"{R}"],
    "xadd-maxlen": ["xadd", "stream", "maxlen", "~", "100000", "*", "job", f"{R}"],
    "xreadgroup": ["xreadgroup", "group", "workers", "one", "count", "1", "streams", "stream", ">"],
    "xrange": ["xrange", "stream", "-", "+", "count", "10"],
    "jobs": ["jobs", "stream"],
}
# Those that name many: what comes before the names, and what each of them is.
MANY = {
    "hmget": (["hmget", "hash"], [f"element:{R}"]),
    "hset": (["hset", "hash"], [f"element:{R}", f"value:{R}"]),
    "hdel": (["hdel", "hash"], [f"element:{R}"]),
    "smismember": (["smismember", "set"], [f"element:{R}"]),
    "srem": (["srem", "set"], [f"element:{R}"]),
    "sadd": (["sadd", "set"], [f"element:{R}"]),
    "zmscore": (["zmscore", "sorted"], [f"element:{R}"]),
    "zadd": (["zadd", "sorted"], [f"{R}", f"element:{R}"]),
    "zrem": (["zrem", "sorted"], [f"element:{R}"]),
}
NAMED = 40_000
ALL = "lpush,rpush,lpop,lindex,lrange,sadd,sismember,hset,hget,zadd,zincrby,zscore,zrank,zrevrange"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """Processes, the first of which serves clients."""

    def __init__(self, name, options):
        self.name, self.port, self.started = name, free_port(), []
        self.scratch = tempfile.TemporaryDirectory(prefix="farmem-collections-")
        if name == "redis":
            self.start("redis-server", "--port", str(self.port), "--save", "", "--dir", self.scratch.name)
        else:
            at = f"unix:{self.scratch.name}/node.sock" if options.transport == "shm" else f"127.0.0.1:{free_port()}"
            node = self.start(options.farmem, "node", "--lend", options.lend, "--listen", at)
            time.sleep(1)
            own = ["--local", options.local] + (["--transport", "tcp"] if options.transport == "tcp" else [])
            self.start(options.farmem, "kv", "--name", "c", "--node", at, "--listen", f"127.0.0.1:{self.port}", *own)
            self.started.append(self.started.pop(self.started.index(node)))
        until = time.monotonic() + 30
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", self.port))
                break
            except OSError:
                if time.monotonic() > until or self.started[0].poll() is not None:
                    sys.exit(f"{name} does not answer")
                time.sleep(0.05)
        self.file = self.socket.makefile("rb")

    def start(self, *args):
        log = open(f"{self.scratch.name}/log-{len(self.started)}", "wb")
        self.started.append(subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return self.started[-1]

    def cpu(self):
        def of(process):
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / TICKS
        return [of(process) for process in self.started]

    def memory(self):
        """MiB: resident and not shared, of each process, and what the node has lent."""
        def of(process):
            text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) / 1024
        told = dict(re.findall(r"^(\w+):(\d+)", self.ask("info").decode(), re.M))
        return [of(process) for process in self.started], int(told.get("farmem_bytes", told["used_memory"])) / 2**20

    def send(self, requests):
        out = []
        for words in requests:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            out.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        self.socket.sendall(b"".join(out))

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            sys.exit(f"{self.name}: {line.decode()}")
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2] if rest != b"-1" else None
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return rest

    def ask(self, *words):
        self.send([words])
        return self.reply()

    def build(self, requests):
        begun, n = time.monotonic(), 0
        while some := requests[n:n + 16]:
            self.send(some)
            for _ in some:
                self.reply()
            n += 16
        return time.monotonic() - begun

    def end(self):
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.wait()


def build(server, items, each, only):
    """Each collection that is asked, by commands of so many items."""
    name = [b"element:%012d" % n for n in range(items)]
    parts = [name[n:n + each] for n in range(0, items, each)]
    kinds = {
        "list": [[b"rpush", b"list", *(b"item:" + one[8:] for one in part)] for part in parts],
        "set": [[b"sadd", b"set", *part] for part in parts],
        "hash": [[b"hset", b"hash", *(word for one in part for word in (one, b"value"))] for part in parts],
        "sorted": [[b"zadd", b"sorted", *(word for one in part for word in (b"%d" % (hash(one) % items), one))]
                   for part in parts],
        "stream": [[b"xadd", b"stream", b"*", b"job", one] for one in name],
    }
    asked = {COMMANDS[name][1] for name in only}
    for kind, requests in kinds.items():
        if kind not in asked:
            continue
        before = server.memory()
        took = server.build(requests)
        if kind == "stream":
            server.ask("xgroup", "create", "stream", "workers", "0")
        own, told = server.memory()
        grown = " + ".join(f"{now - then:.0f}" for now, then in zip(own, before[0]))
        scan, scanned = {"set": "sscan", "hash": "hscan", "sorted": "zscan"}.get(kind), ""
        if scan:
            begun, cursor, found = time.monotonic(), b"0", 0
            while True:
                cursor, some = server.ask(scan, kind, cursor, "count", 1000)
                found += len(some) // (1 if kind == "set" else 2)
                if cursor == b"0":
                    break
            assert found >= items, (kind, found)
            scanned = f"; scan of all {time.monotonic() - begun:.2f} s"
        print(f"{server.name:8} {kind:8} {items} items: built in {took:.2f} s, anonymous MiB {grown}, "
              f"told {told - before[1]:.0f} MiB{scanned}", flush=True)


def jobs(server, count):
    before, begun = server.cpu(), time.monotonic()
    for n in range(count):
        server.ask("xadd", "stream", "*", "job", n)
        [[_, [[entry, _]]]] = server.ask("xreadgroup", "group", "workers", "one", "count", "1", "streams", "stream", ">")
        assert server.ask("xack", "stream", "workers", entry) == b"1"
    took, after = time.monotonic() - begun, server.cpu()
    costs = " + ".join(f"{(now - then) * 1e6 / count:.1f}" for now, then in zip(after, before))
    print(f"{server.name:8} jobs {count / took:10.0f} a second, {costs} µs of CPU ({took:.1f} s)", flush=True)


def measure(server, options, name, words, count, clients, pipeline):
    words = ["redis-benchmark", "-p", str(server.port), "-c", str(clients), "-P", str(pipeline), "-r", str(options.items),
             "-n", str(count), "--csv", *words]
    before, begun = server.cpu(), time.monotonic()
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=900).stdout
    took, after = time.monotonic() - begun, server.cpu()
    rate = float(said.strip().splitlines()[-1].replace('"', "").split(",")[1])
    costs = " + ".join(f"{(now - then) * 1e6 / count:.1f}" for now, then in zip(after, before))
    print(f"{server.name:8} {name:24} {rate:10.0f} a second, {costs} µs of CPU ({took:.1f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--farmem", default=str(ROOT / "target/release/farmem"))
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--pipelines", default="16,1")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--servers", default="redis,farmem")
    parser.add_argument("--only", default=ALL)
    parser.add_argument("--names", default="")
    parser.add_argument("--local", default="256M")
    parser.add_argument("--lend", default="2G")
    options = parser.parse_args()
    for name in options.servers.split(","):
        server = Server(name, options)
        try:
            print(f"load {os.getloadavg()[0]:.1f}")
            build(server, options.items, options.each, options.only.split(","))
            for pipeline in map(int, filter(None, options.pipelines.split(","))):
                for command in options.only.split(","):
                    if command == "jobs":
                        jobs(server, options.requests // 20)
                        continue
                    count = options.requests if pipeline > 1 else options.requests // 4
                    measure(server, options, f"pipeline {pipeline:2} {command}", COMMANDS[command], count, options.clients, pipeline)
            for names in map(int, filter(None, options.names.split(","))):
                for command, (head, each) in MANY.items():
                    if head[1] in {COMMANDS[name][1] for name in options.only.split(",")}:
                        count = max(NAMED // names, 100)
                        measure(server, options, f"{command} of {names}", head + each * names, count, 8, 1)
            print(f"load {os.getloadavg()[0]:.1f}")
        finally:
            server.end()


main()
