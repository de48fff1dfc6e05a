"""A store as a Python program uses it. Arguments: a node's address, and where the tests of one kind are named."""

import array
import asyncio
import os
import pickle
import subprocess
import sys
import threading
import time

import farmem

assert "farmem.store" not in sys.modules, "hints must not need the library"
from farmem import hints  # noqa: E402

hints.read(b"nothing happens")
assert "farmem._native" not in sys.modules


def refused(kind, act, *words):
    try:
        act()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return
    raise AssertionError(f"nothing was refused by {kind}")


def mapping(s):
    s["k"] = b"v"
    assert s["k"] == b"v" and s[b"k"] == b"v" and "k" in s and "none" not in s
    refused(KeyError, lambda: s["none"])
    del s["k"]
    refused(KeyError, lambda: s.__delitem__("k"))
    assert s.get("k") is None and s.get("k", 7) == 7 and not s.remove("k")
    s.update({"a": b"1", "b": memoryview(b"22"), "c": array.array("H", [3, 3])})
    assert sorted(s) == [b"a", b"b", b"c"] and len(s) == 3 and s["c"] == b"\3\0\3\0"
    assert s.pop("c") == b"\3\0\3\0" and s.pop("c", None) is None
    assert s.setdefault("a", b"x") == b"1" and s.setdefault("n", b"x") == b"x"
    s["empty"] = b""
    assert s["empty"] == b"" and s.get_into("empty", bytearray()) == 0
    assert s.put_new("once", b"1") and not s.put_new("once", b"2") and s["once"] == b"1"
    assert s.get_many(["a", "none", b"b"]) == [b"1", None, b"22"]
    s.put_many({f"many {n}": b"%d" % n for n in range(1000)})
    assert s.get_many(f"many {n}" for n in range(1000)) == [b"%d" % n for n in range(1000)]
    assert s.remove_many(f"many {n}" for n in range(2000)) == 1000
    assert sorted(s.keys()) == [b"a", b"b", b"empty", b"n", b"once"], sorted(s)
    big = bytes(range(256)) * 8000
    s["big"] = big
    into = bytearray(len(big) + 1)
    assert s.get_into("big", into) == len(big) and into[:-1] == big and s["big"] == big
    refused(ValueError, lambda: s.get_into("big", bytearray(7)), "2048000", "7")
    assert s.get_into("none", into) is None
    refused(BufferError, lambda: s.get_into("big", b"read only"))


def time_to_live(s):
    s.put("short", b"x", ttl=0.05)
    assert 0 < s.ttl("short") <= 0.06
    s.put("long", b"x", ttl=100)
    assert 99 < s.ttl("long") <= 100 and s.expire("long", None) and s.ttl("long") is None and s["long"] == b"x"
    assert not s.expire("none", 1)
    refused(KeyError, lambda: s.ttl("none"))
    refused(ValueError, lambda: s.put("k", b"v", ttl=0), "ttl is 0")
    time.sleep(0.2)
    assert "short" not in s


def refusals(s, node):
    refused(TypeError, lambda: s.put("k", "text"), "encode()")
    refused(TypeError, lambda: s.put("k", 7), "int")
    refused(TypeError, lambda: s.put(7, b"v"), "int")
    s.put("long", bytes(3 << 20) + b"end")
    assert s["long"] == bytes(3 << 20) + b"end" and len(s["long"]) == (3 << 20) + 3
    del s["long"]
    refused(farmem.TooLarge, lambda: s.put("k", bytes((512 << 20) + 1)), "512 MiB")
    refused(farmem.Unreached, lambda: farmem.Store("bad name", [node]), "bad name")
    refused(farmem.Unreached, lambda: farmem.Store("s", ["127.0.0.1:1"]), "127.0.0.1:1")
    refused(farmem.Unreached, lambda: farmem.Store("s", [node], token="/no/token"), "/no/token")
    refused(ValueError, lambda: farmem.Store("s", []), "HOST:PORT")
    refused(ValueError, lambda: farmem.Store("s", [node], transport="pigeon"), "verbs")
    refused(ValueError, lambda: farmem.Store("s", [node], local="lots"), "64M")
    refused(ValueError, lambda: farmem.Store("s", [node], protect="all"), "mirror")
    refused(farmem.Unreached, lambda: farmem.Store("s", [node], protect="mirror"), "store s")


def threads(s):
    failures = []

    def work(number):
        try:
            for n in range(100):
                s[f"{number}/{n}"] = b"%d" % n
                assert s[f"{number}/{n}"] == b"%d" % n
        except BaseException as error:
            failures.append(error)

    at_work = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in at_work:
        thread.start()
    for thread in at_work:
        thread.join()
    assert not failures, failures


def processes(s, node):
    """Programs beside this one, each a front end of its own."""
    program = """
import sys, farmem
node, number = sys.argv[1:]
with farmem.Store("python", [node]) as s:
    for n in range(100):
        s[f"process {number}, {n}"] = b"%d" % n
    s.get_many(f"process {number}, {n}" for n in range(100))
"""
    began = [subprocess.Popen([sys.executable, "-c", program, node, str(number)]) for number in range(3)]
    assert [one.wait() for one in began] == [0, 0, 0]
    found = s.get_many(f"process {number}, {n}" for number in range(3) for n in range(100))
    assert found == [b"%d" % n for n in range(100)] * 3
    refused(TypeError, lambda: pickle.dumps(s), "in each process")


async def awaited(node):
    async with await farmem.AsyncStore.open("python", [node], local="4M") as s:
        await s.put("k", b"v")
        assert await s.get("k") == b"v" and await s.get("none") is None and await s.get("none", 7) == 7
        await asyncio.gather(*(s.put(f"a{n}", b"%d" % n) for n in range(3000)))
        assert await s.get_many(f"a{n}" for n in range(3000)) == [b"%d" % n for n in range(3000)]
        into = bytearray(4)
        assert await s.get_into("a1234", into) == 4 and into == b"1234" and await s.get_into("none", into) is None
        assert await s.put_new("new", memoryview(b"1")) and not await s.put_new("new", b"2") and await s.contains("new")
        assert await s.expire("new", 100) and await s.remove("new") and not await s.remove("new")
        await s.put_many({"empty": b""}, ttl=100)
        assert await s.get("empty") == b""
        small = bytearray(3)
        for kind, ask, word in [
            (ValueError, s.get_into("a1234", small), "4 bytes"), (TypeError, s.put("k", "text"), "encode()"),
            (TypeError, s.put(7, bytearray(1)), "int"), (ValueError, s.put("k", b"", ttl=0), "ttl is 0"),
            (farmem.TooLarge, s.put("k", bytes((512 << 20) + 1)), "512 MiB"),
        ]:
            try:
                await ask
                raise AssertionError(word)
            except kind as error:
                assert word in str(error), error
        small.append(1)  # Nothing holds it any more.
        cancelled = asyncio.ensure_future(s.get("k"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await s.get("k") == b"v"
        await asyncio.gather(*(s.remove(f"a{n}") for n in range(3000)))
    try:
        await s.get("k")
        raise AssertionError("it was closed")
    except farmem.Closed:
        pass


def forks(s, node):
    s["before"] = b"fork"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused(farmem.Forked, lambda: s["before"], "in the child")
            s.close()
            with farmem.Store("python", [node]) as own:
                own["of child"] = own["before"]
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert s["of child"] == b"fork"


def beside_another(s, node):
    """A program that makes no call for longer than a silent front end is spared stays a member."""
    with farmem.Store("python", [node], local="1M", grace=2) as other:
        other["k"] = b"of the other"
        assert s["k"] == b"of the other"
    refused(farmem.Closed, lambda: other["k"])
    assert "closed" in repr(other)
    del other


node = sys.argv[1]
with farmem.Store("python", nodes=[node]) as s:
    mapping(s)
    time_to_live(s)
    refusals(s, node)
    threads(s)
    processes(s, node)
    asyncio.run(awaited(node))
    forks(s, node)
    beside_another(s, node)
    try:
        import numpy
    except ImportError:
        print("without numpy")
    else:
        s["array"] = numpy.arange(1000, dtype=numpy.float32)
        array_ = numpy.zeros(1000, dtype=numpy.float32)
        assert s.get_into("array", array_) == 4000 and (array_ == numpy.arange(1000)).all()
        refused((ValueError, BufferError), lambda: s.put("k", numpy.zeros((4, 4))[:, 0]))
        rows = numpy.arange(40, dtype="f8").reshape(10, 4)
        s.put_many((f"row {n}", row) for n, row in enumerate(rows))
        back = numpy.full((12, 4), -1.0)
        lengths = s.get_many_into([*(f"row {n}" for n in range(10)), "none", "row 0"], back)
        assert lengths == [32] * 10 + [None, 32]
        assert (back[:10] == rows).all() and (back[10] == -1).all() and (back[11] == rows[0]).all()
        refused(ValueError, lambda: s.get_many_into(["row 0", "row 1"], numpy.zeros(6, "f4")), "32 bytes", "12")
        refused(ValueError, lambda: s.get_many_into(["row 0", "row 1"], bytearray(3)), "equal shares")
        assert s.get_many_into([], bytearray()) == []
print("all of it")
