"""The library libfarmem_store.so as ctypes sees it, and where it is found. farmem_store.h describes its functions."""

import ctypes
import os

from farmem.hints import _Buffer

OK, ABSENT, PRESENT, SMALL = 0, 1, 2, 3
GET, PUT, PUT_NEW, REMOVE, LOOK, EXPIRE = 1, 2, 3, 4, 5, 6
GET_BLOCK, PUT_BLOCK, REMOVE_BLOCK, LOOK_BLOCK, PIN_BLOCK = 7, 8, 9, 10, 11


class Error(ctypes.Structure):
    """`struct farmem_store_error`."""

    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 508)]


class Options(ctypes.Structure):
    """`struct farmem_store_options`."""

    _fields_ = [
        ("bytes", ctypes.c_size_t),
        ("local", ctypes.c_uint64),
        ("maxmemory", ctypes.c_uint64),
        ("token", ctypes.c_char_p),
        ("transport", ctypes.c_char_p),
        ("grace_ms", ctypes.c_uint32),
        ("mirror", ctypes.c_uint32),
    ]


class Op(ctypes.Structure):
    """`struct farmem_store_op`."""

    _fields_ = [
        ("what", ctypes.c_int),
        ("status", ctypes.c_int),
        ("key", ctypes.c_char_p),
        ("key_bytes", ctypes.c_size_t),
        ("value", ctypes.c_void_p),
        ("value_bytes", ctypes.c_size_t),
        ("found_bytes", ctypes.c_size_t),
        ("expires_ms", ctypes.c_uint64),
    ]


class _Put(ctypes.Structure):
    """`Op` whose value is a `bytes` object's memory, as it lies there."""

    _fields_ = [(name, ctypes.c_char_p if name == "value" else kind) for name, kind in Op._fields_]


#: Bytes of a desk's room: values above take a second call.
ROOM = 4096


class Desk:
    """Memory for one call of a store, used for one after the other."""

    def __init__(self):
        self.op, self.why = Op(), Error()
        self.put = _Put.from_buffer(self.op)
        room = (ctypes.c_char * ROOM)()
        self.room, self.room_at = memoryview(room).cast("B"), ctypes.addressof(room)
        self.to_op, self.to_why = ctypes.byref(self.op), ctypes.byref(self.why)


def _candidates():
    given = os.environ.get("FARMEM_STORE_LIBRARY")
    if given:
        return [given]
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, "libfarmem_store.so"), "/usr/lib/farmem/libfarmem_store.so"]


def _load():
    tried = _candidates()
    for path in tried:
        if os.path.exists(path):
            return ctypes.CDLL(path)
    raise ImportError(
        f"libfarmem_store.so is not at {' or '.join(tried)}: `pip install ./bindings/python` builds and installs it, "
        "or name one that you have built by FARMEM_STORE_LIBRARY"
    )


library = _load()
_why = ctypes.POINTER(Error)
_store, _size = ctypes.c_void_p, ctypes.c_size_t
for _name, _result, _arguments in [
    ("open", _store, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), _size, ctypes.POINTER(Options), _why]),
    ("leave", ctypes.c_int, [_store, _why]),
    ("close", ctypes.c_int, [_store, _why]),
    ("do", ctypes.c_int, [_store, ctypes.POINTER(Op), _size, _why]),
    ("scan", ctypes.c_int,
     [_store, ctypes.POINTER(ctypes.c_uint64), _size, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_size), _why]),
    ("size", ctypes.c_int, [_store, ctypes.POINTER(ctypes.c_uint64), _why]),
    ("free", None, [ctypes.c_void_p]),
]:
    _function = getattr(library, f"farmem_store_{_name}")
    _function.restype, _function.argtypes = _result, _arguments

_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_Buffer)], None


class Held:
    """The memory of an object with the buffer protocol, or of a torch tensor, while a call uses it."""

    def __init__(self, of, writable):
        self._view = self._keeps = None
        if hasattr(of, "data_ptr") and hasattr(of, "element_size"):
            self._tensor(of)
            return
        view = _Buffer()
        _get_buffer(of, ctypes.byref(view), 1 if writable else 0)
        self._view = view
        self.address, self.length = view.buf or 0, view.len

    def _tensor(self, of):
        device = str(getattr(of, "device", "cpu"))
        if device != "cpu":
            raise TypeError(f"the tensor is on {device}: the store reads and writes memory of the CPU; use tensor.cpu()")
        if not of.is_contiguous():
            raise BufferError("the tensor is not contiguous: use tensor.contiguous()")
        self._keeps = of
        self.address, self.length = of.data_ptr(), of.numel() * of.element_size()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._keeps = None
        if self._view is not None:
            _release_buffer(ctypes.byref(self._view))
            self._view = None
