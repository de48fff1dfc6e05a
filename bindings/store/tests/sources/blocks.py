"""Blocks from Python, and the connector of LMCache on a stand-in for its interface, or on LMCache itself ("real").

Arguments: a node's address, and that of a node that nobody is at.
"""

import asyncio
import struct
import sys
import time
import types

import farmem


def blocks(node):
    with farmem.Store("blocks", [node]) as s:
        some = {f"block {n}": bytes([n]) * (65536 + n) for n in range(8)}
        assert s.put_blocks(some) == [True] * 8 and s.put_blocks(some) == [False] * 8
        assert s.has_blocks([*some, "none"]) == [65536 + n for n in range(8)] + [None]
        assert s.get_blocks([*some, "none"]) == [*some.values(), None]
        into = [bytearray(len(block)) for block in some.values()]
        assert s.get_blocks_into([*zip(some, into), ("none", bytearray(1))]) == [*map(len, into), None]
        assert into == [*some.values()]
        try:
            s.get_blocks_into({"block 0": bytearray(3)})
            raise AssertionError("it does not fit")
        except ValueError as error:
            assert "65536" in str(error)
        assert s.put_blocks({"empty": b""}) == [True] and s.get_blocks(["empty"]) == [b""]
        assert s.get_blocks_into({"empty": bytearray()}) == [0]
        assert s.pin_blocks(["block 0", "none"], 60) == [True, False]
        assert s.pin_blocks(["block 0", "block 1"], 0) == [True, False]
        large = bytes(range(256)) * 4 * 8192
        s.put_blocks({"large": large})
        assert s.get_blocks(["large"]) == [large]
        assert s.remove_blocks([*some, "large", "empty", "none"]) == 10 and len(s) == 0
        try:
            import numpy
        except ImportError:
            return
        array = numpy.random.rand(32, 1024)
        s.put_blocks({"array": array})
        back = numpy.zeros_like(array)
        assert s.get_blocks_into({"array": back}) == [array.nbytes] and (back == array).all()
        s.remove_blocks(["array"])
        # One buffer for many: the first rows of an array.
        names, rows = [f"row {n}" for n in range(30)], numpy.zeros((32, 8192))
        assert s.put_block_rows(names, array[:, :]) == [True] * 30 and s.put_block_rows(names[:1], array) == [False]
        assert s.put_block_rows(["long"], rows) == [True]
        rows[:] = 1
        assert s.get_block_rows([*names[:2], "none", "long"], rows) == [8192, 8192, None, 65536]
        assert (rows[:2, :1024] == array[:2]).all() and (rows[:2, 1024:] == 1).all() and not rows[3].any()
        for wrong in [lambda: s.get_block_rows(["long"], array), lambda: s.put_block_rows(names, array[:29])]:
            try:
                wrong()
                raise AssertionError("it was not refused")
            except ValueError:
                pass
        s.remove_blocks([*names, "long"])

        class Tensor:
            """What of torch's is used: a pointer, sizes, a device."""

            def __init__(self, array, device="cpu"):
                self.array, self.device = array, device

            def data_ptr(self):
                return self.array.ctypes.data

            def element_size(self):
                return self.array.itemsize

            def numel(self):
                return self.array.size

            def is_contiguous(self):
                return self.array.flags.c_contiguous

        s.put_blocks({"tensor": Tensor(array)})
        assert s.get_blocks_into({"tensor": Tensor(back)}) == [array.nbytes]
        for wrong, kind in [(Tensor(array, "cuda:0"), TypeError), (Tensor(array[:, :3]), BufferError)]:
            try:
                s.put_blocks({"wrong": wrong})
                raise AssertionError(f"{kind} was not raised")
            except kind:
                pass


def stand_in():
    """The part of LMCache's interface that the connector uses."""
    def module(name, **items):
        sys.modules[name] = made = types.ModuleType(name)
        made.__dict__.update(items)

    class RemoteConnector:
        def __init__(self, config, metadata):
            assert metadata is not None

    class ConnectorAdapter:
        def __init__(self, schema):
            self.schema = schema

    class RemoteMetadata:
        def __init__(self, length, shapes, dtypes, fmt):
            self.length, self.shapes, self.dtypes, self.fmt = length, shapes, dtypes, fmt

        def serialize(self):
            return struct.pack("=QQ", self.length, self.shapes[0])

        @staticmethod
        def deserialize(raw):
            length, shape = struct.unpack("=QQ", raw)
            return RemoteMetadata(length, [shape], ["bytes"], 0)

    module("lmcache"), module("lmcache.v1"), module("lmcache.v1.storage_backend")
    module("lmcache.v1.protocol", RemoteMetadata=RemoteMetadata)
    module("lmcache.v1.storage_backend.connector", ConnectorAdapter=ConnectorAdapter)
    module("lmcache.v1.storage_backend.connector.base_connector", RemoteConnector=RemoteConnector)


class Key:
    def __init__(self, name):
        self.name = name

    def to_string(self):
        return f"model@1@0@{self.name}"


class Object:
    live = 0

    def __init__(self, length):
        self.byte_array = memoryview(bytearray(length))
        Object.live += 1

    def get_shapes(self):
        return [len(self.byte_array)]

    def get_dtypes(self):
        return ["bytes"]

    def get_memory_format(self):
        return 0

    def ref_count_down(self):
        Object.live -= 1


class Memory:
    room = 1 << 30

    def allocate(self, shapes, dtypes, fmt):
        return Object(shapes[0]) if shapes[0] <= self.room else None


class Context:
    def __init__(self, url, memory):
        self.url, self.local_cpu_backend = url, memory
        self.loop = self.config = None
        self.metadata = object()


async def connector(node, nobody):
    from farmem import lmcache

    memory = Memory()
    c = lmcache.FarmemAdapter().create_connector(Context(f"farmem://{node}/lm?local=1M&grace=1", memory))
    keys = [Key(n) for n in range(6)]
    objects = [Object(100_000 + n) for n in range(6)]
    for n, object_ in enumerate(objects):
        object_.byte_array[:] = bytes([n]) * len(object_.byte_array)
    assert not await c.exists(keys[0]) and await c.get(keys[0]) is None and c.batched_contains(keys) == 0
    await c.put(keys[0], objects[0])
    await c.batched_put(keys[1:4], objects[1:4])
    assert await c.exists(keys[0]) and c.exists_sync(keys[3]) and c.batched_contains(keys) == 4
    assert await c.batched_async_contains("id", keys, pin=True) == 4
    before = Object.live
    found = await c.batched_get(keys)
    assert [object_ and bytes(object_.byte_array[:1]) for object_ in found] == [b"\0", b"\1", b"\2", b"\3", None, None]
    assert len(await c.batched_get_non_blocking("id", keys)) == 4 and Object.live == before + 8
    assert sorted(await c.list()) == [key.to_string() for key in keys[:4]]
    assert c.remove_sync(keys[1]) and not c.remove_sync(keys[1])
    assert len(await c.batched_get_non_blocking("id", keys)) == 1 and Object.live == before + 9
    memory.room = 10
    assert await c.get(keys[0]) is None, "no local memory is a miss"
    memory.room = 1 << 30

    # A block that is gone, nonsense where a shape should be, an object that is none: misses.
    with farmem.Store("lm", [node]) as s:
        s.remove_blocks([b"lmcache:" + keys[0].to_string().encode()])
        s[b"lmcache:shape:" + keys[2].to_string().encode()] = b"nonsense"
    live = Object.live
    assert await c.get(keys[0]) is None and not await c.exists(keys[0]) and await c.get(keys[2]) is None
    assert Object.live == live
    await c.put(keys[5], None)
    await c.close()
    assert not await c.exists(keys[3]) and await c.get(keys[3]) is None and not c.exists_sync(keys[3])
    await c.put(keys[3], objects[3])

    # A node is lost in the middle: misses from then on, and the store is not asked again before its time.
    class Broken:
        calls = 0

        def __getattr__(self, name):
            def raises(*_):
                Broken.calls += 1
                raise farmem.Lost("a:7411 is lost")
            return raises

    c = lmcache.FarmemAdapter().create_connector(Context(f"farmem://{node}/lm", memory))
    c._far.call(lambda store: store.close(), None)
    c._far._store = Broken()
    assert not await c.exists(keys[3]) and await c.batched_get(keys[:2]) == [None, None]
    await c.put(keys[3], objects[3])
    assert Broken.calls == 1 and await c.list() == [] and not c.remove_sync(keys[3])
    await c.close()

    # No node at all: misses, at once.
    c = lmcache.FarmemAdapter().create_connector(Context(f"farmem://{nobody}/lm", memory))
    begun = time.monotonic()
    assert not await c.exists(keys[0]) and await c.get(keys[0]) is None
    await c.put(keys[0], objects[0])
    assert time.monotonic() - begun < 0.5
    await c.close()
    # As LMCache names a plugin: its settings have the store.
    named = Context("plugin://farmem.second", memory)
    named.config = types.SimpleNamespace(extra_config={"remote_storage_plugin.farmem.second.url": f"farmem://{node}/lm2"})
    adapter = lmcache.FarmemAdapter()
    assert adapter.can_parse(named.url) and adapter.can_parse("farmem://a:1/n") and not adapter.can_parse("redis://a:1")
    c = adapter.create_connector(named)
    await c.put(keys[0], objects[0])
    assert await c.exists(keys[0])
    await c.close()
    named.config.extra_config = None
    try:
        adapter.create_connector(named)
        raise AssertionError("no store is named")
    except ValueError as error:
        assert "remote_storage_plugin.farmem.second.url" in str(error)
    assert lmcache.parse_url("farmem://unix:/run/a.sock,b:1/kv?ttl=5") == (["unix:/run/a.sock", "b:1"], "kv", {"ttl": 5.0})
    for wrong in ["farmem://a:1", "farmem:///name", "farmem://a:1/n?colour=red"]:
        try:
            lmcache.parse_url(wrong)
            raise AssertionError(wrong)
        except ValueError:
            pass


if __name__ == "__main__":
    node, nobody = sys.argv[1:3]
    blocks(node)
    stand_in()
    asyncio.run(connector(node, nobody))
    print("all of it")
