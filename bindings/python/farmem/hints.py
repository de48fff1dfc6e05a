"""What a Python program can say about its memory under `farmem run`.

    from farmem import hints
    hints.read(array)                  # I will use it: bring it in, as far as there is room
    hints.cold(array)                  # I will not use it soon: it leaves first
    hints.pattern(array, "random")

Takes anything with the buffer protocol in one piece: bytes, bytearray, memoryview, mmap, array.array, numpy arrays.
Without `farmem run` nothing happens. A wrong hint costs time and
changes nothing. No compiled part: `ctypes` only.
"""

import ctypes

__all__ = ["runs", "read", "write", "cold", "pageout", "pattern"]

_PAGE = 4096
_PATTERNS = {"normal": 0, "random": 1, "sequential": 2}
_COLD, _PAGEOUT = 20, 21


class _Table(ctypes.Structure):
    """`struct farmem_v1` of farmem.h."""

    _fields_ = [
        ("bytes", ctypes.c_size_t),
        ("far_start", ctypes.c_size_t),
        ("far_pages", ctypes.c_size_t),
        ("words", ctypes.c_void_p),
        ("use_range", ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)),
        ("use_each", ctypes.c_void_p),
        ("advise", ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)),
    ]


class _Buffer(ctypes.Structure):
    """`Py_buffer`."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _find():
    try:
        table = _Table.in_dll(ctypes.CDLL(None), "farmem_v1")
    except ValueError:
        return None
    return table if table.far_pages else None


_table = _find()


def _place(of):
    """Where an object's bytes lie: address and length. Of a read-only buffer too, which ctypes would refuse."""
    view = _Buffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
    release.argtypes = [ctypes.POINTER(_Buffer)]
    release.restype = None
    get(of, ctypes.byref(view), 0)
    try:
        return view.buf or 0, view.len
    finally:
        release(ctypes.byref(view))


def runs():
    """Whether the program runs on far memory."""
    return _table is not None


def _use(of, writes):
    addr, length = _place(of)
    if _table is not None and length > 0:
        _table.use_range(addr, (addr + length - 1) // _PAGE - addr // _PAGE + 1, writes)


def read(of):
    """I will read it. One call brings in at most a 32nd of local memory; what is behind that comes with its faults."""
    _use(of, 0)


def write(of):
    """I will write to it: its pages come in ready to be written to."""
    _use(of, 1)


def _advise(of, advice):
    addr, length = _place(of)
    first, last = -(-addr // _PAGE) * _PAGE, (addr + length) // _PAGE * _PAGE
    if _table is not None and first < last:
        _table.advise(first, last - first, advice)


def cold(of):
    """I will not use it soon: its pages leave before all others."""
    _advise(of, _COLD)


def pageout(of):
    """I will not use it for long: its pages leave now."""
    _advise(of, _PAGEOUT)


def pattern(of, how):
    """How I will use it: "normal", "random" or "sequential". Holds for its blocks of 2 MiB."""
    if how not in _PATTERNS:
        raise ValueError(f'the pattern is {how!r}; it can be "normal", "random" or "sequential"')
    _advise(of, _PATTERNS[how])
