#!/usr/bin/env python3
"""Sends the same random commands to redis and to a front end of `farmem kv`, and compares every reply.

usage: redis_differs.py [--seed N] [--seeds COUNT] [--commands COUNT] [--only NAME,...] [--fronts N] [--mirror] [--scripts] [--keep-going] FARMEM

The forms of commands are redis's own (COMMAND DOCS): all that it has, with their options in every mixture. Keys are few,
so that commands meet values of their own kind and of others. A part of the arguments is wrong on purpose. After each
hundred commands all keys are compared. With several front ends of one store each gets some of the commands. By --scripts a script carries out each command. Ends with status 1 at the first difference, which it prints with the commands
on its keys; with 77 without redis-server.
"""
import argparse
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from store import Store, free_port

# What a store has not, and says so: commands for a server's own files, replicas, modules, users and clusters.
ABSENT = """acl asking bgrewriteaof bgsave cluster failover function fcall fcall_ro latency lolwut memory migrate module
monitor move pfdebug pfselftest psync readonly readwrite replconf replicaof restore restore-asking dump role save shutdown
slaveof swapdb sync wait debug script config client command info hello dbsize scan auth select reset quit save lastsave time slowlog
eval evalsha eval_ro evalsha_ro subscribe psubscribe unsubscribe punsubscribe ssubscribe sunsubscribe spublish publish
pubsub multi exec discard watch unwatch keys object randomkey substr flushall flushdb""".split()
# Their replies are drawn, or tell the time or a representation: only the kind of the reply is compared.
DRAWN = {"spop", "srandmember", "hrandfield", "zrandmember"}
# Their replies tell times, or for how long something has rested: those are compared with a margin.
TIMED = {"xinfo stream", "xinfo consumers", "xautoclaim", "xpending"}
MARGIN_MS = 5000
# What a stream is made of is each server's own.
OWN = {b"radix-tree-keys", b"radix-tree-nodes"}
# Drawing changes the value: left out, but for counts that take all.
DRAWS = {"spop"}
UNORDERED = {"smembers", "sinter", "sunion", "sdiff", "hkeys", "hvals", "hgetall", "scan", "sscan", "hscan"}
CLOCKS = {"ttl", "pttl", "expiretime", "pexpiretime"}

KINDS = {"string": "s", "bitmap": "s", "hyperloglog": "p", "hash": "h", "list": "l", "set": "e", "sorted-set": "z",
         "geo": "g", "stream": "x"}
WORDS = [b"", b"a", b"b", b"c", b"foo", b"bar", b"hello world", b"\xff\0\x01", b"x" * 70, b"\xc3\xa9", b"10", b"-3", b"007"]
INTEGERS = [b"0", b"1", b"-1", b"2", b"3", b"5", b"10", b"-2", b"-5", b"100"]
ODD_INTEGERS = [b"9223372036854775807", b"-9223372036854775808", b"9223372036854775808", b"4294967296", b"1.5", b"x", b"",
                b" 1", b"1 ", b"+1", b"-0", b"00", b"1e3", b"0x10", b"512", b"1000000"]
DOUBLES = [b"0", b"1", b"-1", b"1.5", b"2.25", b"3e2", b"-0.1", b"1000000", b"0.1", b"17.3333333333333333"]
ODD_DOUBLES = [b"inf", b"-inf", b"+inf", b"nan", b"1e400", b"x", b"", b" 1", b"1 ", b"0x1p3", b"1e-320", b"-0", b"1e17",
               b"infinity", b"123456789012345678", b"5.0", b".5", b"5."]
IDS = [b"1-1", b"1-2", b"2-1", b"2-*", b"3-1", b"5", b"5-0", b"9-9", b"0-1", b"100-1"]


class Peer:
    """A connection that speaks redis's protocol."""

    def __init__(self, port, version):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(60)
        self.held = b""
        if version == 3:
            self(b"HELLO", b"3")

    def __call__(self, *args):
        text = b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(arg), arg) for arg in args)
        self.socket.sendall(text)
        return self.reply()

    def line(self):
        while b"\r\n" not in self.held:
            self.more()
        line, self.held = self.held.split(b"\r\n", 1)
        return line

    def more(self):
        more = self.socket.recv(1 << 16)
        if not more:
            raise EOFError("closed the connection")
        self.held += more

    def reply(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind in b"$=":
            count = int(rest)
            if count < 0:
                return None
            while len(self.held) < count + 2:
                self.more()
            value, self.held = self.held[:count], self.held[count + 2:]
            return value if kind == b"$" else ("verbatim", value)
        if kind in b"*~>":
            if int(rest) < 0:
                return ("nil array",)
            return ({b"*": "array", b"~": "set", b">": "push"}[kind], [self.reply() for _ in range(int(rest))])
        if kind == b"%":
            return ("map", [(self.reply(), self.reply()) for _ in range(int(rest))])
        if kind == b":":
            return int(rest)
        return {b"+": "status", b"-": "error", b",": "double", b"#": "boolean", b"_": "null", b"(": "big"}[kind], rest


class Fronts:
    """A connection to each front end of a store. Each command goes to one of them, a transaction's to the same."""

    def __init__(self, ports, version, draw):
        self.peers, self.draw, self.at = [Peer(port, version) for port in ports], draw, 0
        self.stays = False

    def __call__(self, *args):
        if not self.stays:
            self.at = self.draw.randrange(len(self.peers))
        self.stays = args[0] == b"MULTI" or self.stays and args[0] != b"EXEC"
        return self.peers[self.at](*args)


class Forms:
    """Commands drawn from what redis says of its own."""

    def __init__(self, docs, only):
        self.commands = {}
        for name, doc in docs.items():
            for full, about in self.names(name, doc):
                if name not in ABSENT and (not only or full in only or name in only):
                    self.commands[full] = about

    @staticmethod
    def names(name, doc):
        if "subcommands" in doc:
            return [(sub.replace("|", " "), about) for sub, about in doc["subcommands"].items() if not sub.endswith("help")]
        return [(name, doc)]

    def draw(self, draw, name=None):
        name = name or draw.choice(list(self.commands))
        about = self.commands[name]
        self.kind = KINDS.get(about["group"])
        self.command = name
        words = [word.encode() for word in name.split()]
        for argument in about.get("arguments", []):
            words += self.argument(draw, argument)
        roll = draw.random()
        if roll < 0.02 and len(words) > 1:
            words.pop(draw.randrange(1, len(words)))
        elif roll < 0.03:
            words.insert(draw.randrange(1, len(words) + 1), draw.choice(WORDS))
        elif roll < 0.04 and len(words) > 2:
            one, other = draw.randrange(1, len(words)), draw.randrange(1, len(words))
            words[one], words[other] = words[other], words[one]
        return name, words

    def argument(self, draw, argument):
        flags = argument.get("flags", [])
        if "optional" in flags and draw.random() < 0.6:
            return []
        several = draw.choice([1, 1, 2, 3]) if "multiple" in flags else 1
        words, token = [], argument.get("token", "").encode()
        if argument["type"] == "pure-token":
            # An ID by the clock differs.
            return [token if token != b"*" else draw.choice(IDS)]
        # numkeys, and how many keys follow.
        if argument["name"] == "numkeys":
            self.several = draw.choice([1, 2, 2, 3])
            return [b"%d" % (self.several if draw.random() < 0.95 else draw.randrange(-1, 5))]
        if argument.get("token") == "DB":
            return []
        if argument["type"] == "key" and "multiple" in flags and getattr(self, "several", 0):
            several, self.several = self.several, 0
        for n in range(several):
            if token and (n == 0 or "multiple-token" in flags):
                words.append(token)
            words += self.value(draw, argument)
        return words

    def value(self, draw, argument):
        kind, name = argument["type"], argument["name"]
        if kind == "oneof":
            return self.argument(draw, {**draw.choice(argument["arguments"]), "flags": []})
        if kind == "block":
            return [word for one in argument["arguments"] for word in self.argument(draw, one)]
        odd = draw.random() < 0.05
        if kind == "key":
            letter = self.kind if self.kind and draw.random() < 0.93 else draw.choice("sphlezgx")
            return [b"%s%d" % (letter.encode(), draw.randrange(3))]
        if name == "timeout":
            return [b"0.01"] if not odd else [draw.choice([b"-1", b"x", b"nan", b"inf"])]
        if name == "milliseconds" and self.command.startswith("xread"):
            return [b"1"]
        if kind == "unix-time" or name in ("seconds", "milliseconds"):
            if odd:
                return [draw.choice(ODD_INTEGERS)]
            unit = 1000 if "milli" in name or "px" in argument.get("token", "").lower() else 1
            return [b"%d" % ((time.time() // 1000 * 1000 + 5000 if kind == "unix-time" else 1000) * unit)]
        if kind == "double":
            return [draw.choice(ODD_DOUBLES if odd else DOUBLES)]
        if kind == "integer":
            if name == "cursor":
                return [b"0"]
            if self.command.endswith("scan"):
                return [b"1000"]
            return [draw.choice(ODD_INTEGERS if odd else INTEGERS)]
        if kind == "pattern":
            return [draw.choice([b"*", b"?", b"[a-c]*", b"s*", b"\\*", b"[^a]", b"", b"*oo*", b"[", b"a[b"])]
        if name in ("min", "max") and self.command.startswith("z"):
            lex = "lex" in self.command
            choices = [b"-", b"+", b"[a", b"(b", b"[foo", b"[", b"("] if lex else [b"-inf", b"+inf", b"1", b"(1", b"2", b"(inf", b"0"]
            return [draw.choice(choices if not odd else WORDS)]
        if name in ("start", "end", "stop") and self.command.startswith("x"):
            return [draw.choice([b"-", b"+", b"(1-1", b"(2"] + IDS)]
        if name in ("id", "lastid", "last-id", "threshold", "min-idle-time", "entriesadded", "max-deleted-id", "last-delivered-id") \
                or self.command.startswith("x") and "id" in name.lower():
            return [draw.choice(IDS + ([b"$", b">", b"0", b"+"] if "xadd" not in self.command else []))]
        if name in ("group", "groupname"):
            return [draw.choice([b"g", b"h"])]
        if name in ("consumer", "consumername"):
            return [draw.choice([b"one", b"two"])]
        if name in ("encoding", "type"):
            return [draw.choice([b"u8", b"i5", b"u63", b"i64", b"u64", b"string", b"zset"])]
        if name == "offset":
            return [draw.choice([b"0", b"3", b"#1", b"100", b"#x", b"-1"])]
        if self.kind in ("l", "s", "h", "e") and draw.random() < 0.3:
            return [draw.choice(INTEGERS)]
        return [draw.choice(WORDS)]


def plain(value):
    """A reply that can be sorted."""
    return repr(value)


def timed(one, other, name=b""):
    """Whether two replies are the same but for times. `name`: what is said before them."""
    if isinstance(one, int) and isinstance(other, int):
        is_time = name in (b"seen-time", b"idle") or min(one, other) > 10 ** 12 or name == b"(place)"
        return one == other or name in OWN or is_time and abs(one - other) <= MARGIN_MS
    if not isinstance(one, tuple) or not isinstance(other, tuple) or one[0] != other[0] or one[0] not in ("array", "map"):
        return one == other
    ones, others = one[1], other[1]
    if one[0] == "map":
        ones, others = ([part for pair in pairs for part in pair] for pairs in (ones, others))
    # Of a pending entry: its ID, its consumer, for how long it has rested, and how often it was delivered.
    rests = len(ones) == 4 and isinstance(ones[0], bytes) and isinstance(ones[2], int)
    names = [b"(place)" if rests and n == 2 else before if isinstance(before, bytes) else b""
             for n, before in enumerate([b""] + ones[:-1])]
    return len(ones) == len(others) and all(map(timed, ones, others, names))


def same(name, one, other, words):
    """Whether two replies are the same, as far as redis promises it."""
    if one == other:
        return True
    if name in TIMED and not (isinstance(one, tuple) and one[0] == "error"):
        return timed(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        kind, one_in, other_in = one[0], one[-1], other[-1]
        if kind == "error":
            # Where several things are wrong, either may be told first.
            return True
        if kind == "double":
            return math.isclose(float(one_in), float(other_in), rel_tol=1e-12, abs_tol=1e-16)
        if name in DRAWN and kind in ("array", "set"):
            return len(one_in) == len(other_in)
        if name == "hgetall" and kind == "array":
            pairs = [sorted(zip(map(plain, flat[::2]), map(plain, flat[1::2]))) for flat in (one_in, other_in)]
            return pairs[0] == pairs[1]
        # Cursors, and how much an answer has, are each server's own.
        if name.endswith("scan") and kind == "array" and len(one_in) == len(other_in) == 2:
            if name == "zscan":
                pairs = [{flat[n]: float(flat[n + 1]) for n in range(0, len(flat), 2)} for flat in (one_in[1][1], other_in[1][1])]
                return one_in[0] != b"0" or pairs[0] == pairs[1]
            return one_in[0] != b"0" or sorted(map(plain, one_in[1][1])) == sorted(map(plain, other_in[1][1]))
        if (name in UNORDERED or kind in ("set", "map")) and kind != "nil array":
            return sorted(map(plain, one_in)) == sorted(map(plain, other_in))
        if name == "sort" or name == "sort_ro":
            return b"BY" in words and b"*" in b"".join(words[words.index(b"BY"):]) and sorted(map(plain, one_in)) == sorted(map(plain, other_in))
        if kind in ("array", "push"):
            return len(one_in) == len(other_in) and all(same(name, a, b, words) for a, b in zip(one_in, other_in))
    if isinstance(one, bytes) and isinstance(other, bytes):
        # Doubles by 17 digits, as redis 7.0 writes them, or by the fewest that tell them apart, as 7.2 does.
        if re.fullmatch(rb"-?\d+\.\d{6,}|-?\d+(\.\d+)?e[+-]?\d+", one):
            try:
                return float(one) == float(other)
            except ValueError:
                return False
        # A HyperLogLog's header has a count that need not be valid.
        if one[:2] == other[:2] == b"HY":
            return one[:4] == other[:4] and one[16:] == other[16:]
    if name in CLOCKS and isinstance(one, int) and isinstance(other, int):
        return abs(one - other) <= (3 if not name.startswith("p") else 3000)
    if name in DRAWN and type(one) is type(other) and isinstance(one, bytes):
        return True
    return False


def by_order(redis, name, words):
    """Whether a command wants members in their order, which only those of one score have."""
    if "lex" not in name and b"BYLEX" not in words:
        return True
    scores = set()
    for key in words[1:3]:
        reply = redis(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")
        flat = reply[1] if reply[0] == "array" else []
        scores |= {plain(one[1][1]) for one in flat} if flat and isinstance(flat[0], tuple) else set(map(plain, flat[1::2]))
    return len(scores) < 2


def is_strict(redis, one, other, words):
    """Whether only the store refuses wrong arguments: redis does not look at them where the key is missing."""
    empty = one in (0, None, ("nil array",), ("null", b""), ("status", b"none")) or isinstance(one, tuple) and not one[-1] \
        or one == ("array", [b"0", ("array", [])])
    return empty and isinstance(other, tuple) and other[0] == "error" and not redis(b"EXISTS", *words[1:3]) == 2


def state(peer, key):
    """All that a key is."""
    kind = peer(b"TYPE", key)[1]
    ask = {b"string": [b"GET", key], b"list": [b"LRANGE", key, b"0", b"-1"], b"hash": [b"HGETALL", key], b"set": [b"SMEMBERS", key],
           b"zset": [b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"], b"stream": [b"XRANGE", key, b"-", b"+"]}
    return kind, peer(*ask[kind]) if kind in ask else None, peer(b"TTL", key)


def shown(words):
    return " ".join(word.decode() if re.fullmatch(rb"[\w.*+-]+", word) else repr(word)[1:] for word in words)


def compare(forms, ports, seed, count, keep_going, seen, scripts):
    draw = random.Random(seed)
    version = draw.choice([2, 3])
    redis, farmem = Peer(ports[0], version), Fronts(ports[1], version, random.Random(seed))
    asked = Peer(ports[0], version)
    for peer in (redis, farmem):
        peer(b"FLUSHALL")
    log, bad = [], 0
    keys = [b"%s%d" % (letter.encode(), n) for letter in "sphlezgx" for n in range(3)]
    in_transaction, queued = False, []

    def told(name, words, one, other):
        nonlocal bad
        what = f"{name}: {one!r:.300}\n{' ' * len(name)}  {other!r:.300}"
        if name + plain(one)[:40] + plain(other)[:40] in seen:
            return
        seen.add(name + plain(one)[:40] + plain(other)[:40])
        bad += 1
        print(f"seed {seed}, RESP{version}, command {len(log)}: {shown(words)}\n  redis:  {one!r:.600}\n  farmem: {other!r:.600}")
        named = [key for key in keys if key in words]
        for before in [past for past in log if any(key in past for key in named)][-12:]:
            print("    after", shown(before)[:200])
        sys.stdout.flush()

    for n in range(count):
        if not in_transaction and draw.random() < 0.02:
            for peer in (redis, farmem):
                peer(b"MULTI")
            in_transaction, queued = True, []
        if in_transaction and (draw.random() < 0.15 or n + 1 == count):
            one, other = redis(b"EXEC"), farmem(b"EXEC")
            in_transaction = False
            if one[0] != other[0]:
                told("exec", [b"EXEC"], one, other)
            elif one[0] == "array":
                for (name, words), a, b in zip(queued, one[1], other[1]):
                    if not same(name, a, b, words) and not is_strict(asked, a, b, words):
                        told(name, words + [b"(in EXEC)"], a, b)
            elif one != other:
                told("exec", [b"EXEC"], one, other)
            continue
        name, words = forms.draw(draw)
        if name in DRAWS and b"999" not in words:
            words = words[:2] + [b"999"]
        if not in_transaction and not by_order(asked, name, words) or in_transaction and ("lex" in name or b"BYLEX" in words):
            continue
        sent = words
        if scripts:
            named = asked(b"COMMAND", b"GETKEYS", *words)
            named = named[1] if named[0] == "array" else []
            sent = [b"EVAL", b"return redis.pcall(unpack(ARGV))", b"%d" % len(named), *named, *words]
        one, other = redis(*sent), farmem(*sent)
        log.append(words)
        if in_transaction:
            if one == other == ("status", b"QUEUED"):
                queued.append((name, words))
            elif one != other and not same(name, one, other, words):
                told(name, words, one, other)
        elif not same(name, one, other, words):
            if is_strict(asked, one, other, words):
                # Redis may have emptied a destination.
                for peer in (redis, farmem):
                    peer(b"DEL", *[key for key in keys if key in words] or [b"-"])
            else:
                told(name, words, one, other)
        if bad and not keep_going:
            return bad
        if n % 100 == 99 and not in_transaction:
            for key in keys:
                one, other = state(redis, key), state(farmem, key)
                names = {b"hash": "hgetall", b"set": "smembers"}
                if one[0] != other[0] or not same(names.get(one[0], ""), one[1], other[1], []) or abs(one[2] - other[2]) > 3:
                    told("all of", [key], one, other)
                    for peer in (redis, farmem):
                        peer(b"DEL", key)
            if bad and not keep_going:
                return bad
    return bad


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--commands", type=int, default=2000)
    parser.add_argument("--only", default="")
    parser.add_argument("--fronts", type=int, default=1)
    parser.add_argument("--mirror", action="store_true")
    parser.add_argument("--scripts", action="store_true")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("farmem")
    options = parser.parse_args()
    if not shutil.which("redis-server"):
        print("skipped: no redis-server")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch, Store(options.farmem, mirror=options.mirror) as store:
        fronts = [store.port]
        for _ in range(options.fronts - 1):
            fronts.append(free_port())
            store.front(fronts[-1])
        port = free_port()
        server = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--dir", scratch],
                                  stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        try:
            for _ in range(100):
                try:
                    redis = Peer(port, 2)
                    break
                except OSError:
                    time.sleep(0.1)

            def tidy(value):
                kind = value[0] if isinstance(value, tuple) else None
                if kind in ("array", "set"):
                    return [tidy(one) for one in value[1]]
                if kind == "map":
                    return {tidy(key): tidy(one) for key, one in value[1]}
                if kind == "status":
                    return value[1].decode()
                return value.decode() if isinstance(value, bytes) else value

            redis(b"HELLO", b"3")
            forms = Forms(tidy(redis(b"COMMAND", b"DOCS")), [name for name in options.only.split(",") if name])
            bad, seen = 0, set()
            for seed in range(options.seed, options.seed + options.seeds):
                bad += compare(forms, (port, fronts), seed, options.commands, options.keep_going, seen, options.scripts)
                if bad and not options.keep_going:
                    break
            print(f"{options.seeds} seeds of {options.commands} commands, of {len(forms.commands)} kinds: {bad} differences")
            sys.exit(bool(bad))
        finally:
            server.send_signal(signal.SIGKILL)


main()
