#!/usr/bin/env python3
"""Changes two stores for hours, kills their front ends again and again, and watches what memory they take.

usage: store_churn.py [--minutes N] [--rate N] [--kill SECONDS] [--report FILE] FARMEM

One store has --maxmemory and evicts; the other keeps what it is given. Each has three front ends on one node, which
is reached over TCP. Every value names its key, and is looked at when it is read. Values have 16 bytes to 300 KiB;
keys are replaced, deleted, and end by themselves; elements move between lists and sets. Ends with status 1 if a value
is wrong, a request is refused, an element is lost, memory grows, or a store's records do not agree at the end.
"""
import argparse
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MAXMEMORY = 8 << 20
KEYS = 2000
MEMBERS = 40
FRONTS = 3


class Gone(Exception):
    """A front end was killed, or told its clients that it was shut out."""


class Client:
    """A redis client, as small as can be."""

    def __init__(self, port, patience=120):
        deadline = time.monotonic() + patience
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self.file = self.socket.makefile("rb")

    def ask(self, *requests):
        """The replies to some requests at once."""
        parts = []
        for words in requests:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            parts.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        try:
            self.socket.sendall(b"".join(parts))
            return [self.reply() for _ in requests]
        except (OSError, Gone) as e:
            raise Gone from e

    def reply(self):
        line = self.file.readline()
        if not line:
            raise Gone
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            n = int(rest)
            if n < 0:
                return None
            value = self.file.read(n + 2)
            if len(value) < n + 2:
                raise Gone
            return value[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(max(0, int(rest)))]
        if kind == b"-":
            if rest.startswith(b"IOERR"):
                raise Gone
            return Exception(rest.decode())
        return int(rest) if kind == b":" else rest


def value_of(key, numbers):
    length = int(2 ** numbers.uniform(4, 12)) if numbers.random() < 0.98 else numbers.randrange(4096, 300 << 10)
    name = f"{key}|{numbers.randrange(1 << 30)}|".encode()
    return (name * (length // len(name) + 1))[: max(length, len(name))]


class Store:
    """A store's front ends, and who uses them."""

    def __init__(self, farmem, scratch, node, name, options):
        self.farmem, self.scratch, self.node, self.name, self.options = farmem, scratch, node, name, options
        self.fronts, self.ports = [None] * FRONTS, []
        self.wrong, self.requests, self.kills, self.ended = [], [0] * FRONTS, 0, 0
        for _ in range(FRONTS):
            with socket.socket() as some:
                some.bind(("127.0.0.1", 0))
                self.ports.append(some.getsockname()[1])
        for n in range(FRONTS):
            self.start(n)

    def start(self, n):
        with open(f"{self.scratch}/{self.name}-{n}.log", "ab") as said:
            args = ["kv", "--name", self.name, "--node", self.node, "--transport", "tcp", "--local", "8M"]
            args += ["--listen", f"127.0.0.1:{self.ports[n]}", *self.options]
            self.fronts[n] = subprocess.Popen([self.farmem, *args], stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def kill(self, n):
        self.fronts[n].kill()
        self.fronts[n].wait()
        self.kills += 1

    def mend(self, fronts=FRONTS):
        """Starts the first front ends again if they have ended by themselves: on a busy machine the others may take one for
        dead."""
        for n, front in enumerate(self.fronts[:fronts]):
            if front.poll() is not None:
                self.ended += 1
                self.start(n)

    def use(self, n, rate, ends):
        """Requests of one client until a moment."""
        numbers, client = random.Random(n), None
        if n == 0:
            self.fill()
        while time.monotonic() < ends:
            try:
                client = client or Client(self.ports[n])
                begun = time.monotonic()
                self.requests[n] += self.some(client, numbers)
                time.sleep(max(0, 8 / rate - (time.monotonic() - begun)))
            except Gone:
                client = None
                time.sleep(0.2)
            except Exception as e:  # A thread's own end would not be seen.
                self.wrong.append(f"{type(e).__name__}: {e}")
                return

    def fill(self):
        """The members that move."""
        client = Client(self.ports[0])
        client.ask(*[("RPUSH", "list0", n) for n in range(MEMBERS)], *[("SADD", "set0", n) for n in range(MEMBERS)])

    def some(self, client, numbers):
        """Eight requests at once, or a few on two keys."""
        if numbers.random() < 0.1:
            a = numbers.randrange(2)
            replies = client.ask(
                ("LMOVE", f"list{a}", f"list{1 - a}", "LEFT", "RIGHT"),
                ("SMOVE", f"set{a}", f"set{1 - a}", numbers.randrange(MEMBERS)),
            )
            self.judge([reply for reply in replies if isinstance(reply, Exception)])
            return 2
        requests, keys = [], []
        for _ in range(8):
            key = f"k{numbers.randrange(KEYS)}"
            kind = numbers.random()
            if kind < 0.35:
                requests.append(("GET", key))
            elif kind < 0.7:
                requests.append(("SET", key, value_of(key, numbers)))
            elif kind < 0.8:
                requests.append(("SET", key, value_of(key, numbers), "PX", numbers.randrange(50, 20000)))
            elif kind < 0.9:
                requests.append(("DEL", key))
            else:
                requests.append(("HSET", f"h{numbers.randrange(100)}", f"f{numbers.randrange(30)}", key))
            keys.append(key)
        for request, key, reply in zip(requests, keys, client.ask(*requests)):
            if request[0] == "GET" and isinstance(reply, bytes) and not reply.startswith(key.encode() + b"|"):
                self.wrong.append(f"{key} is {reply[:40]}")
            self.judge([reply] if isinstance(reply, Exception) else [])
        return len(requests)

    def judge(self, refused):
        self.wrong.extend(f"refused: {reply}" for reply in refused)

    def held(self):
        """Bytes of all front ends' pieces, as a living one knows them. None: none is there."""
        for port in self.ports:
            try:
                said = Client(port, 0).ask(("INFO", "memory"))[0].decode()
            except (Gone, OSError, AttributeError):  # It may answer by an error.
                continue
            return sum(int(re.search(rf"{word}:(\d+)", said)[1]) for word in ("used_memory", "farmem_memory_of_others"))
        return None

    def check(self):
        args = ["kv", "check", self.name, "--node", self.node, "--transport", "tcp"]
        return subprocess.run([self.farmem, *args], capture_output=True, text=True)

    def settle(self, what, seconds=90):
        """Waits until a check finds nothing wrong."""
        deadline = time.monotonic() + seconds
        while True:
            said = self.check()
            if said.returncode == 0:
                return said.stdout.strip().replace("\n", "; ")
            if time.monotonic() > deadline:
                self.wrong.append(f"{what}: {said.stdout} {said.stderr}")
                return "records do not agree"
            time.sleep(1)

    def end(self):
        """Ends all front ends but the first, counts, empties the store and counts again."""
        lines = []
        for n in range(1, FRONTS):
            self.kill(n)
        time.sleep(8)  # Until the first has taken over what they had.
        self.mend(1)
        client = Client(self.ports[0])
        lines.append(f"{self.name}, one front end left: " + self.settle("full"))
        if "--maxmemory" not in self.options:
            count = sum(client.ask(("LLEN", "list0"), ("LLEN", "list1"), ("SCARD", "set0"), ("SCARD", "set1")))
            if count != 2 * MEMBERS:
                self.wrong.append(f"{count} of {2 * MEMBERS} members are left")
        try:
            client.ask(("FLUSHALL",))
        except Gone:
            self.wrong.append(f"the front end went in FLUSHALL, with status {self.fronts[0].poll()}")
            return lines
        lines.append(f"{self.name}, emptied: " + self.settle("emptied"))
        deadline = time.monotonic() + 60
        while (held := self.held() or 0) > 16 << 20 and time.monotonic() < deadline:
            time.sleep(0.5)
        if held > 16 << 20:  # Two pieces of each size may stay.
            self.wrong.append(f"{held} bytes are held by a store without keys")
        return lines


def resident(pid):
    """Bytes of a process that are in memory."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) << 10
    except (OSError, TypeError):
        return 0


def mib(bytes_):
    return f"{bytes_ / (1 << 20):8.1f}"


def grows(samples):
    """Whether the last quarter takes more than the second one."""
    quarter = len(samples) // 4
    if quarter < 20:
        return False
    before, after = statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])
    return after > 1.15 * before + (2 << 20)


def churn(options, scratch, said):
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{some.getsockname()[1]}"
    node = subprocess.Popen([options.farmem, "node", "--lend", "512M", "--listen", at], stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        bounded = Store(options.farmem, scratch, at, "bounded", ("--maxmemory", str(MAXMEMORY)))
        kept = Store(options.farmem, scratch, at, "kept", ())
        stores, ends = (bounded, kept), time.monotonic() + options.minutes * 60
        users = [threading.Thread(target=store.use, args=(n, options.rate, ends)) for store in stores for n in range(FRONTS)]
        for user in users:
            user.start()
        said("minute   bounded      kept      node  fronts (MiB)   requests  kills")
        numbers, samples, begun, shown = random.Random(1), [], time.monotonic(), 0
        next_kill = begun + options.kill
        while time.monotonic() < ends and not any(store.wrong for store in stores):
            time.sleep(2)
            for store in stores:
                store.mend()
            fronts = sum(resident(front.pid) for store in stores for front in store.fronts)
            sample = (bounded.held(), kept.held(), resident(node.pid), fronts)
            if None in sample:
                continue  # All of a store are busy, or on their way.
            samples.append(sample)
            minute = (time.monotonic() - begun) / 60
            if minute >= shown:
                done, kills = sum(sum(store.requests) for store in stores), sum(store.kills for store in stores)
                said(f"{minute:6.1f}  " + "  ".join(map(mib, sample)) + f"  {done:15}  {kills:5}")
                shown += max(1, options.minutes / 60)
            if time.monotonic() >= next_kill:
                store, n = numbers.choice(stores), numbers.randrange(FRONTS)
                store.kill(n)
                time.sleep(numbers.choice((0, 1, 7)))  # Back at once, or when the others have taken over.
                store.start(n)
                next_kill = time.monotonic() + options.kill
        for user in users:
            user.join()
        wrong = [f"{store.name}: {what}" for store in stores for what in store.wrong]
        if not wrong:
            for store in stores:
                for line in store.end():
                    said(line)
                wrong += [f"{store.name}: {what}" for what in store.wrong]
        for n, what in enumerate(("bounded", "kept", "node", "fronts")):
            if grows([sample[n] for sample in samples]):
                wrong.append(f"the memory of {what} grows")
        most = max(sample[0] for sample in samples)
        if most > MAXMEMORY + (4 << 20):
            wrong.append(f"bounded took {most} bytes")
        done, kills = sum(sum(store.requests) for store in stores), sum(store.kills for store in stores)
        for line in wrong[:20]:
            said(f"WRONG {line}")
        ended = sum(store.ended for store in stores)
        said(f"{options.minutes:g} minutes, {done} requests, {kills} kills, {ended} ended by themselves, {len(wrong)} wrong")
        return bool(wrong)
    finally:
        for store in [one for one in (locals().get("bounded"), locals().get("kept")) if one]:
            for front in store.fronts:
                front.send_signal(signal.SIGKILL)
                front.wait()
        node.kill()
        node.wait()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2][7:])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=300, help="requests a second of each of six clients, at most")
    parser.add_argument("--kill", type=float, default=20)
    parser.add_argument("--report")
    parser.add_argument("farmem")
    options = parser.parse_args()
    options.farmem = os.path.abspath(options.farmem)
    report = open(options.report, "w") if options.report else None

    def said(line):
        print(line, flush=True)
        if report:
            print(line, file=report, flush=True)

    with tempfile.TemporaryDirectory(prefix="farmem-churn-") as scratch:
        failed = churn(options, scratch, said)
        if failed:
            for name in sorted(os.listdir(scratch)):
                with open(f"{scratch}/{name}", errors="replace") as log:
                    said(f"{name}: " + " | ".join(line.strip() for line in log.readlines()[-4:]))
        sys.exit(failed)


if __name__ == "__main__":
    main()
