"""The connector of LMCache, whose node is killed while chunks are put and fetched. Nothing is raised, a chunk is whole or a
miss, and a node that comes in its place is used.

Arguments: the command of a node, to which its address is added.
"""

import asyncio
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

from blocks import Context, Key, Memory, Object, stand_in

stand_in()

from farmem import lmcache  # noqa: E402: it needs the stand-in

# Seconds between attempts to open the store again.
lmcache._RETRY = 0.3
#: Seconds within which a killed node is a miss, on a machine that does much else.
NOTICED = 30
CHUNKS = 12


def node(address):
    return subprocess.Popen([*sys.argv[1:], address], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def content(n):
    return bytes([n]) * (200_000 + 1000 * n)


def filled(n):
    made = Object(len(content(n)))
    made.byte_array[:] = content(n)
    return made


class Job:
    """Puts and fetches on one connector, until it is told to end."""

    def __init__(self, c):
        self.c, self.over, self.put, self.found, self.calls = c, False, 0, 0, 0

    def judge(self, keys, objects):
        assert len(objects) == len(keys)
        for key, object_ in zip(keys, objects):
            if object_ is not None:
                self.found += 1
                assert object_.byte_array == content(int(key.name.split("-")[1])), "another chunk, or a part of one"
                object_.ref_count_down()

    async def puts(self, name):
        while not self.over:
            some = random.sample(range(CHUNKS), 3)
            objects = [filled(n) for n in some]
            self.put += 1
            # Each time under a new name: a block that is there is not written again.
            keys = [Key(f"{name}.{self.put}-{n}") for n in some]
            await self.c.batched_put(keys, objects)
            [object_.ref_count_down() for object_ in objects]
            self.judge(keys, await self.c.batched_get(keys))
            assert all([self.c.remove_sync(key) in (True, False) for key in keys])
            self.calls += 1

    async def gets(self):
        keys = [Key(f"stays-{n}") for n in range(CHUNKS)]
        while not self.over:
            self.judge(keys, await self.c.batched_get(keys))
            there = await self.c.batched_async_contains("id", keys, pin=True)
            assert 0 <= there <= CHUNKS and self.c.batched_contains(keys) <= CHUNKS
            self.judge(keys[:1], [await self.c.get(keys[0])])
            found = await self.c.batched_get_non_blocking("id", keys)
            self.judge(keys[:len(found)], found)
            assert isinstance(await self.c.list(), list)
            self.calls += 1


async def killed(address, delay):
    process = node(address)
    live, memory = Object.live, Memory()
    url = f"farmem://{address}/killed?local=1M&grace=1"
    c = lmcache.FarmemAdapter().create_connector(Context(url, memory))
    keys = [Key(f"stays-{n}") for n in range(CHUNKS)]

    async def stored():
        """Puts the chunks that stay, once the node is there; whether they are all found."""
        end = time.monotonic() + NOTICED
        while time.monotonic() < end:
            objects = [filled(n) for n in range(CHUNKS)]
            await c.batched_put(keys, objects)
            [object_.ref_count_down() for object_ in objects]
            if c.batched_contains(keys) == CHUNKS:
                return True
            await asyncio.sleep(0.05)
        return False

    assert await stored(), "no store"
    job = Job(c)
    tasks = [asyncio.create_task(one) for one in (job.puts("a"), job.puts("b"), job.gets(), job.gets())]
    timer = threading.Timer(delay, process.kill)
    timer.start()
    end = time.monotonic() + NOTICED
    while process.poll() is None or await c.exists(keys[0]):
        assert time.monotonic() < end, "nobody has noticed"
        assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
        await asyncio.sleep(0.005)
    before, found = job.calls, job.found
    while job.calls < before + 20:
        assert time.monotonic() < end, "a miss takes long"
        assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
        await asyncio.sleep(0.005)
    # All of these are misses.
    assert await c.batched_get(keys) == [None] * CHUNKS and c.batched_contains(keys) == 0 and await c.list() == []
    process = node(address)
    try:
        assert await stored(), "the node that came in its place is not used"
        job.over = True
        await asyncio.gather(*tasks)
        job.judge(keys, await c.batched_get(keys))
        assert job.found > found, "nothing is found again"
        await c.close()
        assert Object.live == live, f"{Object.live - live} chunks are kept"
    finally:
        process.kill()
        process.wait()


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


with tempfile.TemporaryDirectory(prefix="farmem-killed-") as folder:
    for n, delay in enumerate([0.02, 0.3, 0.6]):
        for address in (f"unix:{folder}/{n}.sock", f"127.0.0.1:{free_port()}"):
            asyncio.run(killed(address, delay + random.random() / 10))
            if os.path.exists(f"{folder}/{n}.sock"):
                os.remove(f"{folder}/{n}.sock")
print("all of it")
