"""farmem as LMCache's remote storage: the key-value cache of an inference server, in the memory of nodes.

    # LMCache's configuration
    remote_storage_plugins: ["farmem"]
    extra_config:
      remote_storage_plugin.farmem.module_path: farmem.lmcache
      remote_storage_plugin.farmem.class_name: FarmemAdapter
      remote_storage_plugin.farmem.url: "farmem://a:7411,b:7411/kvcache?maxmemory=256G"

Behind the "?": local, maxmemory, transport, token and grace as farmem.Store takes them, and ttl in seconds.

Its rule: nothing here raises. What fails counts as a miss, or is not stored, and is logged. After a failure of the store it
is opened anew in the background, at most every ten seconds; until then everything is a miss at once.

A chunk is a block. Its shape lies beside it under a key of its own, and is stored last: a chunk without it is a miss.
"""

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl

from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from farmem import store as _store

__all__ = ["FarmemAdapter", "FarmemConnector"]

_log = logging.getLogger("farmem.lmcache")
_SCHEME = "farmem://"
#: By which LMCache names a plugin, as "farmem" or "farmem.INSTANCE".
_PLUGIN = "plugin://farmem"
#: Seconds between attempts to open the store.
_RETRY = 10.0
#: Seconds for which what was looked up is spared from eviction, so that it is there when it is fetched.
_PIN = 60.0
_SETTINGS = {"local": str, "maxmemory": str, "transport": str, "token": str, "grace": float, "ttl": float}


def parse_url(url):
    """Nodes, name and settings of farmem://NODE,…/NAME?SETTING=VALUE&…"""
    place, _, query = url[len(_SCHEME):].partition("?")
    nodes, _, name = place.rpartition("/")  # A node can be a path: unix:/run/farmem.sock.
    if not url.startswith(_SCHEME) or not nodes or not name:
        raise ValueError(f"{url!r} is not farmem://HOST:PORT,…/NAME")
    settings = dict(parse_qsl(query, strict_parsing=bool(query)))
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise ValueError(f"{url!r}: {unknown[0]} is no setting; there are {', '.join(_SETTINGS)}")
    return nodes.split(","), name, {key: _SETTINGS[key](value) for key, value in settings.items()}


class _Far:
    """The store, opened when it is needed and anew after a failure. `call` never raises."""

    def __init__(self, nodes, name, settings):
        settings = dict(settings)
        self.ttl = settings.pop("ttl", None)
        self._how = (name, nodes, settings)
        self._store, self._next, self._opening = None, 0.0, False
        self._lock = threading.Lock()
        self._closed = False

    def open(self):
        """Opens the store in this thread. Whether it is open."""
        with self._lock:
            if self._closed or self._store is not None or self._opening or time.monotonic() < self._next:
                return self._store is not None
            self._opening, self._next = True, time.monotonic() + _RETRY
        name, nodes, settings = self._how
        opened = None
        try:
            opened = _store.Store(name, nodes, **settings)
        except Exception as error:
            _log.warning("farmem: %s; everything is a miss until it can be opened", error)
        with self._lock:
            self._opening = False
            if not self._closed:
                self._store = opened
        return opened is not None

    def call(self, act, missed):
        """What `act` returns for the store; `missed` if there is none, or it fails."""
        opened = self._store
        if opened is None:
            if time.monotonic() >= self._next and not self._opening:
                threading.Thread(target=self.open, name="farmem-opens", daemon=True).start()
            return missed
        try:
            return act(opened)
        except (_store.Lost, _store.Closed, _store.Forked) as error:
            with self._lock:
                if self._store is opened:
                    self._store, self._next = None, time.monotonic() + _RETRY
            _log.warning("farmem: %s", error)
        except Exception as error:
            _log.warning("farmem: %s: %s", type(error).__name__, error)
        return missed

    def close(self):
        with self._lock:
            self._closed, opened, self._store = True, self._store, None
        if opened is not None:
            try:
                opened.close()
            except Exception as error:
                _log.warning("farmem: %s", error)


class FarmemConnector(RemoteConnector):
    """A remote connector of LMCache's on a store. See the module."""

    def __init__(self, url, loop, local_cpu_backend, config, metadata):
        super().__init__(config, metadata)
        self._loop, self._memory = loop, local_cpu_backend
        self._far = _Far(*parse_url(url))
        # The store carries out one call at a time; a second thread prepares the next one.
        self._threads = ThreadPoolExecutor(2, "farmem-lmcache")
        self._far.open()

    # In the caller's thread.

    def _has(self, keys):
        """How many of the first keys are there without a gap."""
        def act(store):
            found = store.get_many([_shape_key(key) for key in keys])
            blocks = store.has_blocks([_key(key) for key in keys])
            return next((n for n, (shape, block) in enumerate(zip(found, blocks)) if shape is None or block is None), len(keys))
        return self._far.call(act, 0)

    def _get(self, keys):
        taken = []

        def act(store):
            shapes = store.get_many([_shape_key(key) for key in keys])
            objects = [None if shape is None else self._allocated(shape) for shape in shapes]
            taken.extend(object_ for object_ in objects if object_ is not None)
            wanted = [n for n, object_ in enumerate(objects) if object_ is not None]
            into = [(_key(keys[n]), objects[n].byte_array) for n in wanted]
            for n, length, (_, buffer) in zip(wanted, store.get_blocks_into(into), into):
                # Another length than its shape says: a chunk of another version of the model.
                if length != memoryview(buffer).nbytes:
                    objects[n] = None
            return objects

        found = self._far.call(act, [None] * len(keys))
        for object_ in taken:
            if not any(object_ is kept for kept in found):
                _quietly(object_.ref_count_down)
        return found

    def _allocated(self, shape):
        shape = RemoteMetadata.deserialize(shape)
        return self._memory.allocate(shape.shapes, shape.dtypes, shape.fmt)

    def _put(self, keys, objects):
        def act(store):
            pairs, shapes = [], []
            for key, object_ in zip(keys, objects):
                buffer = object_.byte_array
                pairs.append((_key(key), buffer))
                shape = RemoteMetadata(
                    memoryview(buffer).nbytes, object_.get_shapes(), object_.get_dtypes(), object_.get_memory_format()
                )
                shapes.append((_shape_key(key), bytes(shape.serialize())))
            store.put_blocks(pairs, self._far.ttl)
            store.put_many(shapes, self._far.ttl)
        self._far.call(act, None)

    def _pin(self, keys):
        self._far.call(lambda store: store.pin_blocks([_key(key) for key in keys], _PIN), None)

    async def _elsewhere(self, missed, act, *arguments):
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)
        except RuntimeError:  # The threads have ended: it was closed.
            return missed

    # LMCache's interface.

    async def exists(self, key):
        return await self._elsewhere(0, self._has, [key]) == 1

    def exists_sync(self, key):
        return self._has([key]) == 1

    async def get(self, key):
        return (await self._elsewhere([None], self._get, [key]))[0]

    async def put(self, key, memory_obj):
        await self._elsewhere(None, self._put, [key], [memory_obj])

    async def list(self):
        def act(store):
            begin = b"farmem:block:" + _PREFIX
            return [key[len(begin):].decode("utf-8", "replace") for key in store if key.startswith(begin)]
        return await self._elsewhere([], self._far.call, act, [])

    async def close(self):
        await self._elsewhere(None, self._far.close)
        self._threads.shutdown(wait=False)

    def support_batched_get(self):
        return True

    async def batched_get(self, keys):
        return await self._elsewhere([None] * len(keys), self._get, list(keys))

    def support_batched_put(self):
        return True

    async def batched_put(self, keys, memory_objs):
        await self._elsewhere(None, self._put, list(keys), list(memory_objs))

    def support_batched_contains(self):
        return True

    def batched_contains(self, keys):
        return self._has(list(keys))

    def support_batched_async_contains(self):
        return True

    async def batched_async_contains(self, lookup_id, keys, pin=False):
        there = await self._elsewhere(0, self._has, list(keys))
        if pin and there:
            await self._elsewhere(None, self._pin, list(keys[:there]))
        return there

    def support_batched_get_non_blocking(self):
        return True

    async def batched_get_non_blocking(self, lookup_id, keys):
        found = await self._elsewhere([None] * len(keys), self._get, list(keys))
        there = next((n for n, object_ in enumerate(found) if object_ is None), len(found))
        for object_ in found[there:]:
            if object_ is not None:
                _quietly(object_.ref_count_down)
        return found[:there]

    def remove_sync(self, key):
        def act(store):
            store.remove(_shape_key(key))
            return store.remove_blocks([_key(key)]) == 1
        return self._far.call(act, False)


class FarmemAdapter(ConnectorAdapter):
    """Makes connectors for farmem://."""

    def __init__(self):
        super().__init__(_SCHEME)

    def can_parse(self, url):
        return url.startswith((_SCHEME, _PLUGIN))

    def create_connector(self, context):
        url = context.url
        if url.startswith(_PLUGIN):
            setting = f"remote_storage_plugin.{url[len('plugin://'):]}.url"
            url = (context.config.extra_config or {}).get(setting)
            if not url:
                raise ValueError(f"LMCache's extra_config has no {setting}: farmem://HOST:PORT,…/NAME")
        return FarmemConnector(url, context.loop, context.local_cpu_backend, context.config, context.metadata)


_PREFIX = b"lmcache:"


def _key(key):
    return _PREFIX + key.to_string().encode()


def _shape_key(key):
    return b"lmcache:shape:" + key.to_string().encode()


def _quietly(act):
    try:
        act()
    except Exception as error:
        _log.warning("farmem: %s", error)
