"""A store for programs of asyncio.

    import farmem
    async with await farmem.AsyncStore.open("sessions", nodes=["a:7411"]) as store:
        await store.put("user:17", b"...", ttl=60)
        value = await store.get("user:17")
        values = await asyncio.gather(*(store.get(key) for key in keys))     # the round trips of one

One thread carries out what was asked for. All calls that come meanwhile are its next batch. So many coroutines that wait for
one value each are as fast as one `get_many`. Calls that are awaited one after the other take effect in this order; others on
one key in any. A call that is cancelled may have been carried out all the same.
"""

import asyncio
import threading
from collections import deque

from farmem import _native
from farmem.store import Closed, Store, _expires, _failed, _key, _taken, _value
from farmem._native import Held, Op

__all__ = ["AsyncStore"]

#: Calls of a batch, at most.
_TOGETHER = 1024


class _Call:
    """An operation that was asked for: what to do, and the future of its outcome."""

    __slots__ = ("what", "key", "held", "expires", "answer", "loop", "future")

    def __init__(self, what, key, held, expires, answer):
        self.what, self.key, self.held, self.expires, self.answer = what, key, held, expires, answer
        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()

    def end(self, outcome, error=None):
        if self.held is not None:
            self.held.__exit__()
        try:
            self.loop.call_soon_threadsafe(_settle, self.future, outcome, error)
        except RuntimeError:  # The loop was closed: nobody waits.
            pass


def _settle(future, outcome, error):
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


async def _elsewhere(act):
    return await asyncio.get_running_loop().run_in_executor(None, act)


class AsyncStore:
    """A `farmem.Store` whose calls are awaited. See the module."""

    def __init__(self, store):
        """Takes a store that is open. `AsyncStore.open` opens one."""
        self._store, self._calls, self._closed = store, deque(), False
        self._come = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="farmem-aio", daemon=True)
        self._thread.start()

    @classmethod
    async def open(cls, name, nodes, **settings):
        """Opens the store of this name, as `farmem.Store` does, without holding up the loop."""
        return cls(await _elsewhere(lambda: Store(name, nodes, **settings)))

    # In the thread.

    def _work(self):
        while True:
            with self._come:
                self._come.wait_for(lambda: self._calls or self._closed)
                calls = [self._calls.popleft() for _ in range(min(len(self._calls), _TOGETHER))]
            if not calls:
                return
            try:
                self._carry_out(calls)
            except Exception as error:
                for call in calls:
                    call.end(None, error)

    def _carry_out(self, calls):
        ops, why = (Op * len(calls))(), _native.Error()
        for op, call in zip(ops, calls):
            op.what, op.key, op.key_bytes, op.expires_ms = call.what, call.key, len(call.key), call.expires
            if call.held is not None:
                # An empty buffer has no address; any but 0 says that there is one.
                op.value, op.value_bytes = call.held.address or 1, call.held.length
        if _native.library.farmem_store_do(self._store._handle, ops, len(ops), why) != 0:
            raise _failed(why)
        for op, call in zip(ops, calls):
            if op.status < 0:
                call.end(None, self._of(op, why))
                continue
            try:
                call.end(call.answer(op))
            except Exception as error:
                call.end(None, error)

    @staticmethod
    def _of(op, why):
        """The error of one of several operations: the text is that of the first that failed."""
        if op.status != why.code:
            why = _native.Error(op.status, b"it failed, as did another operation of its batch: " + why.text[:400])
        return _failed(why)

    # In the loop.

    def _ask(self, what, key, hold=None, expires=0, answer=lambda op: op.status == _native.OK):
        key = _key(key)
        call = _Call(what, key, hold and hold(), expires, answer)
        with self._come:
            if not self._closed:
                self._calls.append(call)
                self._come.notify()
                return call.future
        call.end(None, Closed("the store was closed"))
        return call.future

    async def get(self, key, default=None):
        """A key's value, as bytes."""
        value = await self._ask(_native.GET, key, answer=_taken)
        return default if value is None else value

    async def get_into(self, key, buffer):
        """Copies a value to the start of a writable buffer, which must not be used until then. Returns its bytes; None if
        there is no such key."""
        def answer(op):
            if op.status == _native.SMALL:
                raise ValueError(f"the value has {op.found_bytes} bytes, the buffer {op.value_bytes}")
            return op.found_bytes if op.status == _native.OK else None
        return await self._ask(_native.GET, key, lambda: Held(buffer, True), answer=answer)

    async def put(self, key, value, ttl=None):
        """Stores a value, whatever the key is; it ends after `ttl` seconds."""
        await self._ask(_native.PUT, key, lambda: _value(value), _expires(ttl))

    async def put_new(self, key, value, ttl=None):
        """Stores a value if there is no such key; whether it was stored."""
        return await self._ask(_native.PUT_NEW, key, lambda: _value(value), _expires(ttl))

    async def remove(self, key):
        """Takes a key out; whether it was there."""
        return await self._ask(_native.REMOVE, key)

    async def contains(self, key):
        """Whether there is such a key."""
        return await self._ask(_native.LOOK, key)

    async def expire(self, key, ttl):
        """Changes when a key ends: after `ttl` seconds, or never (None). Whether there is such a key."""
        return await self._ask(_native.EXPIRE, key, expires=_expires(ttl))

    async def get_many(self, keys):
        """Values of keys, None for one that is not there."""
        return await asyncio.gather(*(self.get(key) for key in keys))

    async def put_many(self, items, ttl=None):
        """Stores a mapping, or pairs."""
        pairs = items.items() if hasattr(items, "items") else items
        await asyncio.gather(*(self.put(key, value, ttl) for key, value in pairs))

    async def close(self):
        """Leaves the store when what was asked for is done."""
        with self._come:
            self._closed = True
            self._come.notify()
        await _elsewhere(self._thread.join)
        await _elsewhere(self._store.close)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()
