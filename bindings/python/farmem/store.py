"""A key-value store in the memory of nodes, within the program.

    import farmem
    store = farmem.Store("sessions", nodes=["a:7411", "b:7411"])
    store["user:17"] = b"..."                  # bytes or anything with the buffer protocol; keys are bytes or str
    store.put("user:18", b"...", ttl=60)       # ends after a minute
    store.get("user:17"), "user:17" in store, len(store)
    values = store.get_many(["user:17", "user:18"])      # the round trips of one
    del store["user:17"]

The program is one front end of the store, beside others and beside `farmem kv`, whose redis clients see the same keys. Each
operation on one key is linearizable among all of them. Any number of threads may use a store. A thread of the library
shows the others that this front end is alive, so a program may do something else for any time.
"""

import ctypes
import os
import time
import weakref
from collections.abc import MutableMapping

from farmem import _native
from farmem._native import Held, Op

__all__ = ["Store", "Error", "Lost", "Unreached", "Full", "TooLarge", "Unsure", "WrongType", "Forked", "Closed"]


class Error(Exception):
    """The store did not do what it was asked for. The text says why, and what to do."""


class Unreached(Error):
    """The store cannot be opened: its nodes cannot be reached, want a token, or hold something else."""


class Lost(Error):
    """A node is lost, and its keys with it. Close the store, and open it anew when the node is back."""


class Full(Error):
    """The nodes have no memory left for it."""


class TooLarge(Error, ValueError):
    """The value is too large."""


class Unsure(Error):
    """The operation may have taken effect, or not."""


class WrongType(Error, TypeError):
    """The key holds a list, a hash, a set or a sorted set of redis clients'."""


class Forked(Error):
    """The store was opened before a fork. Open one in the child."""


class Closed(Error, ValueError):
    """The store was closed."""


_do = _native.library.farmem_store_do
_ERRORS = {-1: ValueError, -2: Unreached, -3: Lost, -4: Full, -5: TooLarge, -6: Unsure, -7: WrongType, -8: Forked, -9: Closed}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _raised(code, text):
    return _ERRORS.get(code, Error)(text)


def _failed(why):
    return _raised(why.code, why.text.decode("utf-8", "replace"))


def _key(key):
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    try:
        return bytes(memoryview(key))
    except TypeError:
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}") from None


def _value(value):
    if isinstance(value, str):
        raise TypeError("a value is bytes, not str: use text.encode()")
    try:
        return Held(value, False)
    except TypeError:
        if hasattr(value, "data_ptr"):
            raise
        raise TypeError(f"a value is bytes or has the buffer protocol; {type(value).__name__} has not") from None


def _size(size):
    """Bytes of 64M and the like."""
    if isinstance(size, int):
        return size
    digits = size.rstrip("KMGTkmgt")
    unit = size[len(digits):].upper()
    if not digits.isdigit() or unit not in _UNITS:
        raise ValueError(f"{size!r} is not a size: write bytes, or 64M, 2G")
    return int(digits) * _UNITS[unit]


def _expires(ttl):
    if ttl is None:
        return 0
    if ttl <= 0:
        raise ValueError(f"ttl is {ttl}: seconds above 0, or None")
    return time.time_ns() // 1_000_000 + max(1, round(ttl * 1000))


def _leave(handle):
    _native.library.farmem_store_leave(handle, None)


class Store(MutableMapping):
    """One front end of a store. See the module."""

    def __init__(self, name, nodes, *, token=None, local="64M", maxmemory=None, transport="auto", grace=5.0,
                 protect=None):
        """Opens the store of this name at these nodes, or makes it.

        nodes       "HOST:PORT" or "unix:PATH" each; every front end names the same ones
        token       the file of a token, if the nodes want one; else what FARMEM_TOKEN names
        local       memory for the near cache, as 64M
        maxmemory   what all front ends may take from the nodes; beyond, keys are evicted
        transport   "auto", "shm", "tcp" or "verbs"
        grace       seconds for which a node may be out of reach
        protect     "mirror": every key lies at two nodes; every front end says the same
        """
        if isinstance(nodes, (str, bytes)):
            nodes = [nodes]
        if protect not in (None, "mirror"):
            raise ValueError(f'protect is {protect!r}; it can be None or "mirror"')
        addresses = [node.encode() if isinstance(node, str) else node for node in nodes]
        options = _native.Options(
            ctypes.sizeof(_native.Options), _size(local), _size(maxmemory or 0),
            os.fsencode(token) if token is not None else None, transport.encode(), max(1, int(grace * 1000)), int(protect is not None),
        )
        why = _native.Error()
        listed = (ctypes.c_char_p * len(addresses))(*addresses)
        handle = _native.library.farmem_store_open(name.encode(), listed, len(addresses), ctypes.byref(options), why)
        if not handle:
            raise _failed(why)
        self.name, self._handle = name, handle
        self._desks = []  # of calls that have ended
        # At the program's end threads may still be within calls: the store is left then, and not freed.
        self._leaves = weakref.finalize(self, _leave, handle)

    _handle = None

    def __reduce__(self):
        raise TypeError(f"a store cannot be pickled: open one in each process, by farmem.Store({self.name!r}, nodes)")

    def __del__(self):
        if self._handle:
            self._leaves.detach()
            _native.library.farmem_store_close(self._handle, None)

    def _do(self, ops, n):
        why = _native.Error()
        if _native.library.farmem_store_do(self._handle, ops, n, why) != 0:
            raise _failed(why)
        return why

    def _desk(self):
        try:
            return self._desks.pop()
        except IndexError:  # All are in other threads' hands.
            return _native.Desk()

    def _call(self, what, key, value=None, length=0, expires=0):
        """Carries out one operation. Returns a desk with its outcome: append it to `_desks` when that was read."""
        if type(key) is not bytes:
            key = key.encode() if type(key) is str else _key(key)
        desk = self._desk()
        op = desk.op
        op.what, op.key, op.key_bytes, op.value, op.value_bytes, op.expires_ms = what, key, len(key), value, length, expires
        if _do(self._handle, desk.to_op, 1, desk.to_why) != 0 or op.status < 0:
            raise _failed(desk.why)
        return desk

    def _one(self, what, key, value=None, length=0, expires=0):
        """Carries out one operation; how it ended."""
        desk = self._call(what, key, value, length, expires)
        status = desk.op.status
        self._desks.append(desk)
        return status

    def _found(self, key):
        """A key's value as bytes, or None."""
        if type(key) is not bytes:
            key = key.encode() if type(key) is str else _key(key)
        desk = self._desk()
        op = desk.op
        op.what, op.key, op.key_bytes, op.value, op.value_bytes = _native.GET, key, len(key), desk.room_at, _native.ROOM
        if _do(self._handle, desk.to_op, 1, desk.to_why) != 0 or op.status < 0:
            raise _failed(desk.why)
        if op.status == 0:
            value = desk.room[:op.found_bytes].tobytes()
        elif op.status == _native.SMALL:
            op.value = None
            if _do(self._handle, desk.to_op, 1, desk.to_why) != 0 or op.status < 0:
                raise _failed(desk.why)
            value = _taken(op)
        else:
            value = None
        self._desks.append(desk)
        return value

    def _many(self, what, keys, expires=0):
        keys = [_key(key) for key in keys]
        ops = (Op * len(keys))()
        for op, key in zip(ops, keys):
            op.what, op.key, op.key_bytes, op.expires_ms = what, key, len(key), expires
        return ops

    def _checked(self, ops, allocated=False):
        """Carries out many; raises the first one's error. `allocated`: values that are found are the library's memory."""
        why = self._do(ops, len(ops))
        if any(op.status < 0 for op in ops):
            if allocated:
                for op in ops:
                    _taken(op)
            raise _failed(why)
        return ops

    # A mapping.

    def __getitem__(self, key):
        value = self._found(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key, value):
        self.put(key, value)

    def __delitem__(self, key):
        if not self.remove(key):
            raise KeyError(key)

    def __contains__(self, key):
        return self._one(_native.LOOK, key) == _native.OK

    def __len__(self):
        keys, why = ctypes.c_uint64(), _native.Error()
        if _native.library.farmem_store_size(self._handle, ctypes.byref(keys), why) != 0:
            raise _failed(why)
        return keys.value

    def __iter__(self):
        """Keys, as bytes. A key that is there all the time comes once; one that comes or goes meanwhile may be missed."""
        seen, place = set(), 0
        while True:
            place, keys = self.scan(place)
            for key in keys:
                if key not in seen:
                    seen.add(key)
                    yield key
            if place == 0:
                return

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__

    def __repr__(self):
        return f"<farmem.Store {self.name!r}{'' if self._leaves.alive else ', closed'}>"

    def get(self, key, default=None):
        """A key's value, as bytes."""
        value = self._found(key)
        return default if value is None else value

    def pop(self, key, *default):
        """A key's value, and takes the key out. Not one step: another front end may write the key in between."""
        value = self.get(key)
        if value is not None and self.remove(key):
            return value
        if default:
            return default[0]
        raise KeyError(key)

    def setdefault(self, key, default):
        """A key's value, which is set if there is none."""
        while True:
            if self.put_new(key, default):
                with _value(default) as held:
                    return ctypes.string_at(held.address, held.length) if held.length else b""
            value = self.get(key)
            if value is not None:
                return value

    # Beyond a mapping.

    def put(self, key, value, ttl=None):
        """Stores a value, whatever the key is; it ends after `ttl` seconds."""
        expires = 0 if ttl is None else _expires(ttl)
        if type(value) is not bytes:
            with _value(value) as held:
                self._one(_native.PUT, key, held.address, held.length, expires)
            return
        if type(key) is not bytes:
            key = key.encode() if type(key) is str else _key(key)
        desk = self._desk()
        put = desk.put
        put.what, put.key, put.key_bytes, put.value, put.value_bytes = _native.PUT, key, len(key), value, len(value)
        put.expires_ms = expires
        if _do(self._handle, desk.to_op, 1, desk.to_why) != 0 or put.status < 0:
            raise _failed(desk.why)
        put.value = None  # Else the desk keeps the value alive.
        self._desks.append(desk)

    def put_new(self, key, value, ttl=None):
        """Stores a value if there is no such key; whether it was stored."""
        with _value(value) as held:
            return self._one(_native.PUT_NEW, key, held.address, held.length, _expires(ttl)) == _native.OK

    def remove(self, key):
        """Takes a key out; whether it was there."""
        return self._one(_native.REMOVE, key) == _native.OK

    def get_into(self, key, buffer):
        """Copies a value to the start of a writable buffer. Returns its bytes; None if there is no such key."""
        with Held(buffer, True) as held:
            desk = self._call(_native.GET, key, held.address or 1, held.length)
            status, found = desk.op.status, desk.op.found_bytes
            self._desks.append(desk)
            if status == _native.SMALL:
                raise ValueError(f"the value has {found} bytes, the buffer {held.length}")
            return found if status == _native.OK else None

    def ttl(self, key):
        """Seconds until a key ends; None if it does not. KeyError if there is none."""
        desk = self._call(_native.LOOK, key)
        status, expires = desk.op.status, desk.op.expires_ms
        self._desks.append(desk)
        if status != _native.OK:
            raise KeyError(key)
        return max(0.0, expires / 1000 - time.time()) if expires else None

    def expire(self, key, ttl):
        """Changes when a key ends: after `ttl` seconds, or never (None). Whether there is such a key."""
        return self._one(_native.EXPIRE, key, expires=_expires(ttl)) == _native.OK

    def get_many(self, keys):
        """Values of keys, None for one that is not there. All are fetched at once."""
        return [_taken(op) for op in self._checked(self._many(_native.GET, keys), True)]

    def get_many_into(self, keys, buffer):
        """Copies values to equal shares of one writable buffer, such as the rows of a numpy array. Returns the bytes of
        each, None for one that is not there, whose share stays as it was."""
        ops = self._many(_native.GET, keys)
        with Held(buffer, True) as held:
            share = held.length // len(ops) if ops else 0
            if share * len(ops) != held.length:
                raise ValueError(f"the buffer has {held.length} bytes: no equal shares for {len(ops)} keys")
            for n, op in enumerate(ops):
                op.value, op.value_bytes = held.address + n * share or 1, share
            self._checked(ops)
        for n, op in enumerate(ops):
            if op.status == _native.SMALL:
                raise ValueError(f"value {n} has {op.found_bytes} bytes, its share of the buffer {share}")
        return [op.found_bytes if op.status == _native.OK else None for op in ops]

    def put_many(self, items, ttl=None):
        """Stores a mapping, or pairs, key by key and all at once."""
        pairs = list(items.items() if hasattr(items, "items") else items)
        self._with_values(_native.PUT, pairs, _expires(ttl), False)

    def _with_values(self, what, pairs, expires, writable):
        """Carries out many whose values are buffers of the caller's."""
        ops = self._many(what, [key for key, _ in pairs], expires)
        held = []
        try:
            for op, (_, value) in zip(ops, pairs):
                held.append(Held(value, True) if writable else _value(value))
                # An empty buffer has no address; any but 0 says that there is one.
                op.value, op.value_bytes = held[-1].address or 1, held[-1].length
            return self._checked(ops)
        finally:
            for one in held:
                one.__exit__()

    def remove_many(self, keys):
        """Takes keys out; how many were there."""
        return sum(op.status == _native.OK for op in self._checked(self._many(_native.REMOVE, keys)))

    # Blocks: large values that are written once. Their keys are apart from those of the mapping.

    def put_blocks(self, blocks, ttl=None):
        """Stores each block of a mapping, or of pairs, if there is none of its key. Returns for each whether it was
        stored. A block has 256 MiB at most."""
        pairs = list(blocks.items() if hasattr(blocks, "items") else blocks)
        ops = self._with_values(_native.PUT_BLOCK, pairs, _expires(ttl), False)
        return [op.status == _native.OK for op in ops]

    def get_blocks_into(self, buffers):
        """Copies blocks to the start of writable buffers: a mapping of keys to buffers, or pairs. Returns the bytes of
        each, None for one that is not there."""
        pairs = list(buffers.items() if hasattr(buffers, "items") else buffers)
        ops = self._with_values(_native.GET_BLOCK, pairs, 0, True)
        for op, (key, _) in zip(ops, pairs):
            if op.status == _native.SMALL:
                raise ValueError(f"block {key!r} has {op.found_bytes} bytes, its buffer {op.value_bytes}")
        return [op.found_bytes if op.status == _native.OK else None for op in ops]

    def put_block_rows(self, keys, rows, ttl=None):
        """`put_blocks` of the first rows of one contiguous array or tensor, a row for each key: one buffer for all."""
        ops = self._with_rows(_native.PUT_BLOCK, keys, rows, _expires(ttl), False)
        return [op.status == _native.OK for op in ops]

    def get_block_rows(self, keys, rows):
        """`get_blocks_into` of the first rows of one contiguous array or tensor, a row for each key."""
        ops = self._with_rows(_native.GET_BLOCK, keys, rows, 0, True)
        for n, op in enumerate(ops):
            if op.status == _native.SMALL:
                raise ValueError(f"block {n} has {op.found_bytes} bytes, its row {op.value_bytes}")
        return [op.found_bytes if op.status == _native.OK else None for op in ops]

    def _with_rows(self, what, keys, rows, expires, writable):
        ops, n = self._many(what, keys, expires), len(rows)
        if len(ops) > n:
            raise ValueError(f"{len(ops)} keys have {n} rows")
        with Held(rows, writable) as held:
            at, share = held.address or 1, held.length // max(n, 1)
            for op in ops:
                op.value, op.value_bytes = at, share
                at += share
            return self._checked(ops)

    def get_blocks(self, keys):
        """Blocks, each as bytes; None for one that is not there."""
        return [_taken(op) for op in self._checked(self._many(_native.GET_BLOCK, keys), True)]

    def has_blocks(self, keys):
        """The bytes of each block; None for one that is not there. Reads none of them: one of which a part has been
        evicted is told only when it is read."""
        ops = self._checked(self._many(_native.LOOK_BLOCK, keys))
        return [op.found_bytes if op.status == _native.OK else None for op in ops]

    def remove_blocks(self, keys):
        """Takes blocks out; how many were there."""
        return sum(op.status == _native.OK for op in self._checked(self._many(_native.REMOVE_BLOCK, keys)))

    def pin_blocks(self, keys, seconds):
        """Keeps blocks from being evicted for so long, by any front end; 0: no longer. Returns for each whether it is
        there, or was pinned. A pin takes the place of the one before."""
        ops = self._many(_native.PIN_BLOCK, keys, _expires(seconds) if seconds else 0)
        return [op.status == _native.OK for op in self._checked(ops)]

    def scan(self, place=0, count=256):
        """About `count` keys from a place on: (the next place, keys). 0 is the start, and the end."""
        at, keys, length, why = ctypes.c_uint64(place), ctypes.c_void_p(), ctypes.c_size_t(), _native.Error()
        code = _native.library.farmem_store_scan(
            self._handle, ctypes.byref(at), count, ctypes.byref(keys), ctypes.byref(length), why
        )
        if code != 0:
            raise _failed(why)
        packed = ctypes.string_at(keys, length.value)
        _native.library.farmem_store_free(keys)
        found, begin = [], 0
        while begin < len(packed):
            end = begin + 4 + int.from_bytes(packed[begin:begin + 4], "little")
            found.append(packed[begin + 4:end])
            begin = end
        return at.value, found

    def close(self):
        """Leaves the store when the calls of other threads have ended: what it held is the others' at once."""
        self._leaves()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _taken(op):
    """The bytes of a value that the library allocated; None if there is none."""
    if op.status != _native.OK or not op.value:
        return None
    value = ctypes.string_at(op.value, op.found_bytes)
    _native.library.farmem_store_free(op.value)
    return value
