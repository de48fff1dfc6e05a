"""Far vectors and frames: data in the memory of nodes, of which a part is local.

    import farmem
    from farmem import col
    heap = farmem.Heap(nodes=["bighost:7411"], local="512M")

    prices = farmem.Vec(heap, "f8")                  # numbers, as numpy names their types
    prices.append(numpy_array)
    some = prices[1000:2000]                         # a numpy array, copied

    trips = farmem.Frame.from_arrow(table, heap)     # a pyarrow Table or reader, a polars or pandas DataFrame
    trips.filter(col("day") < 90).sum("fare")
    days = trips.group("day").agg(("mean", "fare"), "rows")      # a pyarrow table
    whole = trips.to_arrow()                         # also pyarrow.table(trips), polars.DataFrame(trips)

Frames need pyarrow, vectors numpy. Calls may come from any thread; a heap carries out one at a time.
"""

import ctypes
import json
import os
import threading

from farmem import _native
from farmem.store import _failed, _size as _bytes

__all__ = ["Heap", "Vec", "Frame", "col"]

_ROWS = 1 << 16  # of a batch that comes out
_u64, _size, _int = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int
_heap, _why = ctypes.c_void_p, ctypes.POINTER(_native.Error)
for _name, _result, _arguments in [
    ("heap_open", _heap, [ctypes.POINTER(ctypes.c_char_p), _size, _u64, ctypes.c_char_p, _why]),
    ("heap_close", None, [_heap]),
    ("vec_new", _int, [_heap, ctypes.POINTER(_u64), _why]),
    ("vec_append", _int, [_heap, _u64, ctypes.c_void_p, _size, _why]),
    ("vec_read", _int, [_heap, _u64, _u64, ctypes.c_void_p, _size, _why]),
    ("vec_write", _int, [_heap, _u64, _u64, ctypes.c_void_p, _size, _why]),
    ("object_drop", _int, [_heap, _u64, _why]),
    ("frame_append", _int, [_heap, ctypes.POINTER(_u64), ctypes.c_void_p, ctypes.c_void_p, _why]),
    ("frame_finish", _int, [_heap, _u64, _why]),
    ("frame_query", _int,
     [_heap, _u64, ctypes.c_char_p, ctypes.POINTER(_u64), ctypes.c_void_p, ctypes.c_void_p, _why]),
]:
    _function = getattr(_native.library, f"farmem_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


def _call(name, *arguments):
    why = _native.Error()
    if getattr(_native.library, f"farmem_{name}")(*arguments, ctypes.byref(why)) < 0:
        raise _failed(why)


class Heap:
    """Far memory on nodes, with `local` bytes of it here. Ends with the last of its vectors and frames."""

    def __init__(self, nodes, local="64M", transport=None):
        if isinstance(nodes, str):
            nodes = [nodes]
        named = (ctypes.c_char_p * len(nodes))(*[node.encode() for node in nodes])
        way = transport.encode() if transport else None
        why = _native.Error()
        self._as, self._process = None, os.getpid()
        self._as = _native.library.farmem_heap_open(named, len(nodes), _bytes(local), way, ctypes.byref(why))
        if not self._as:
            raise _failed(why)

    def __del__(self):
        if getattr(self, "_as", None) and self._process == os.getpid():
            _native.library.farmem_heap_close(self._as)
            self._as = None


class _Object:
    """A vector or a frame, by its number."""

    def __init__(self, heap, number):
        self._heap, self._number = heap, number

    def __del__(self):
        heap = getattr(self, "_heap", None)
        if heap is not None and heap._as and heap._process == os.getpid() and self._number:
            _native.library.farmem_object_drop(heap._as, self._number, None)


class Vec(_Object):
    """A vector of numbers in far memory. Slices are numpy arrays: copies."""

    def __init__(self, heap, dtype="u1"):
        import numpy
        number = _u64()
        self.dtype = numpy.dtype(dtype)
        if self.dtype.hasobject or self.dtype.itemsize == 0 or self.dtype.subdtype:
            raise TypeError(f"{self.dtype} is no type of numbers: a far vector has numbers, or records of them")
        _call("vec_new", heap._as, ctypes.byref(number))
        super().__init__(heap, number.value)
        self._len, self._counts = 0, threading.Lock()

    def __len__(self):
        return self._len

    def _array(self, values):
        import numpy
        return numpy.ascontiguousarray(values, dtype=self.dtype)

    def append(self, values):
        """Appends an array's elements."""
        array = self._array(values)
        _call("vec_append", self._heap._as, self._number, array.ctypes.data, array.nbytes)
        # Threads append at the same time. A forked child was refused above, so it never waits for a lock of its parent's.
        with self._counts:
            self._len += array.size

    def _range(self, at):
        first, end, step = at.indices(self._len)
        if step != 1:
            raise IndexError("a slice of a far vector has no step: take it of the array that comes")
        return first, max(first, end)

    def _place(self, at):
        try:
            return range(self._len)[at]
        except IndexError:
            raise IndexError(f"index {at} of a far vector of {self._len}") from None

    def __getitem__(self, at):
        import numpy
        if not isinstance(at, slice):
            at = self._place(at)
            return self[at:at + 1][0]
        first, end = self._range(at)
        array = numpy.empty(end - first, self.dtype)
        if array.size:
            place = first * self.dtype.itemsize
            _call("vec_read", self._heap._as, self._number, place, array.ctypes.data, array.nbytes)
        return array

    def __setitem__(self, at, values):
        if not isinstance(at, slice):
            at = self._place(at)
            at, values = slice(at, at + 1), [values]
        (first, end), array = self._range(at), self._array(values)
        if array.size != end - first:
            raise ValueError(f"{array.size} values for {end - first} places: a far vector does not shift")
        _call("vec_write", self._heap._as, self._number, first * self.dtype.itemsize, array.ctypes.data, array.nbytes)

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("a far vector has no memory here to share: np.asarray(vec) copies")
        array = self[:]
        return array if dtype is None else array.astype(dtype)

    def __repr__(self):
        return f"<farmem.Vec of {self._len} {self.dtype}>"


class col:
    """A column in a condition: `col("day") < 90`. Conditions are joined by &, | and ~."""

    __hash__ = None

    def __init__(self, name):
        self._name = name

    def __lt__(self, than):
        return _Condition(["lt", self._name, than])

    def __le__(self, than):
        return _Condition(["le", self._name, than])

    def __gt__(self, than):
        return _Condition(["gt", self._name, than])

    def __ge__(self, than):
        return _Condition(["ge", self._name, than])

    def __eq__(self, to):
        return _Condition(["eq", self._name, to])

    def __ne__(self, to):
        return _Condition(["ne", self._name, to])

    def is_null(self):
        return _Condition(["is_null", self._name])


class _Condition:
    def __init__(self, said):
        self._said = said

    def __and__(self, other):
        return _Condition(["and", self._said, other._said])

    def __or__(self, other):
        return _Condition(["or", self._said, other._said])

    def __invert__(self):
        return _Condition(["not", self._said])

    def __bool__(self):
        raise TypeError("a condition is true of some rows: join conditions by &, | and ~")


def _plain(value):
    """A constant of numpy's as Python's own."""
    return value.item() if hasattr(value, "item") else value


def _pyarrow():
    try:
        import pyarrow
    except ImportError:
        raise ImportError("frames go in and out by pyarrow: pip install pyarrow") from None
    return pyarrow


def _widened(table):
    """Columns in types that frames have, where nothing is lost by it. Others are refused by the library, by name."""
    pa = _pyarrow()
    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()):
            kind = pa.int32()
        elif kind == pa.uint32():
            kind = pa.uint64()
        elif kind in (pa.float16(), pa.float32()):
            kind = pa.float64()
        elif str(kind) == "string_view":
            kind = pa.large_string()
        fields.append(pa.field(field.name, kind))
    return table.cast(pa.schema(fields))


class _Rows:
    """Rows of a frame that pass a condition."""

    def __init__(self, frame, condition=None):
        self._frame, self._condition = frame, condition

    def _ask(self, **query):
        if self._condition is not None:
            query["filter"] = self._condition._said
        return self._frame._query(query)

    def filter(self, condition):
        return _Rows(self._frame, condition if self._condition is None else self._condition & condition)

    def count(self):
        return self._ask(op="count")["count"][0].as_py()

    def _total(self, what, column):
        return self._ask(op="totals", column=column)[what][0].as_py()

    def sum(self, column):
        return self._total("sum", column)

    def min(self, column):
        return self._total("min", column)

    def max(self, column):
        return self._total("max", column)

    def mean(self, column):
        return self._total("mean", column)

    def head(self, n=5):
        """The first rows, as a pyarrow table."""
        return self._ask(op="head", n=n)

    def group(self, *keys):
        return _Groups(self, keys)

    def collect(self):
        """A frame of these rows."""
        return self._ask(op="collect")


class _Groups:
    def __init__(self, rows, keys):
        self._rows, self._keys = rows, list(keys)

    def agg(self, *aggs):
        """A pyarrow table: a row a group. An aggregate is ("sum" | "min" | "max" | "mean" | "count", column) or "rows"."""
        aggs = [[agg] if isinstance(agg, str) else list(agg) for agg in aggs]
        return self._rows._ask(op="group", keys=self._keys, aggs=aggs)


class Frame(_Object):
    """A table whose columns lie in far memory. A frame does not change: operations make new ones."""

    @staticmethod
    def from_arrow(data, heap):
        """A frame of a pyarrow Table, RecordBatch or RecordBatchReader, of a polars or pandas DataFrame, or
        of anything else with Arrow's C stream."""
        pa = _pyarrow()
        if type(data).__module__.split(".")[0] == "pandas":
            data = pa.Table.from_pandas(data, preserve_index=False)
        elif hasattr(data, "to_arrow"):
            data = data.to_arrow()
        elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, (pa.Table, pa.RecordBatchReader)):
            data = pa.RecordBatchReader.from_stream(data)
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        batches = data if isinstance(data, pa.RecordBatchReader) else [data]
        number = _u64()
        try:
            for batch in batches:
                whole = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
                whole = _widened(whole)
                parts = whole.to_batches(max_chunksize=_ROWS) or [pa.RecordBatch.from_pylist([], schema=whole.schema)]
                for part in parts:
                    array, schema = (ctypes.c_uint64 * 10)(), (ctypes.c_uint64 * 9)()
                    part._export_to_c(ctypes.addressof(array), ctypes.addressof(schema))
                    _call("frame_append", heap._as, ctypes.byref(number), array, schema)
            if not number.value:
                raise ValueError("there is no batch: a frame has columns at least")
            _call("frame_finish", heap._as, number)
        except BaseException:
            if number.value:
                _native.library.farmem_object_drop(heap._as, number, None)
            raise
        return Frame(heap, number.value)

    def _query(self, query):
        made, array, schema = _u64(), (ctypes.c_uint64 * 10)(), (ctypes.c_uint64 * 9)()
        said = json.dumps(query, default=_plain).encode()
        _call("frame_query", self._heap._as, self._number, said, ctypes.byref(made), array, schema)
        if made.value:
            return Frame(self._heap, made.value)
        pa = _pyarrow()
        batch = pa.RecordBatch._import_from_c(ctypes.addressof(array), ctypes.addressof(schema))
        return pa.Table.from_batches([batch])

    def __len__(self):
        return self._query({"op": "len"})["len"][0].as_py()

    def rows(self, first, end):
        """Copies of a range of rows, as a pyarrow table."""
        return self._query({"op": "rows", "from": first, "until": end})

    def filter(self, condition):
        return _Rows(self, condition)

    def count(self):
        return _Rows(self).count()

    def sum(self, column):
        return _Rows(self).sum(column)

    def min(self, column):
        return _Rows(self).min(column)

    def max(self, column):
        return _Rows(self).max(column)

    def mean(self, column):
        return _Rows(self).mean(column)

    def head(self, n=5):
        return _Rows(self).head(n)

    def group(self, *keys):
        return _Rows(self).group(*keys)

    def take(self, rows):
        """A frame of these rows, by their numbers."""
        return self._query({"op": "take", "rows": [int(row) for row in rows]})

    def sort(self, *by, descending=False):
        return self._query({"op": "sort", "by": list(by), "descending": descending})

    def join(self, right, on, how="inner"):
        if right._heap is not self._heap:
            raise ValueError("both frames of a join are of one heap")
        return self._query({"op": "join", "right": right._number, "on": on, "how": how})

    def to_reader(self):
        """A pyarrow RecordBatchReader: rows come as they are asked for, copied once."""
        pa = _pyarrow()
        schema, rows = self.rows(0, 0).schema, len(self)

        def batches():
            for first in range(0, rows, _ROWS):
                yield from self.rows(first, min(rows, first + _ROWS)).to_batches()
        return pa.RecordBatchReader.from_batches(schema, batches())

    def to_arrow(self):
        """All rows, as a pyarrow table."""
        return self.to_reader().read_all()

    def to_pandas(self):
        return self.to_arrow().to_pandas()

    def __arrow_c_stream__(self, requested_schema=None):
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self):
        return f"<farmem.Frame of {len(self)} rows>"
