"""farmem for Python programs.

    import farmem
    store = farmem.Store("sessions", nodes=["bighost:7411"])     # a key-value store in the memory of nodes
    store["greeting"] = b"hello"

    heap = farmem.Heap(nodes=["bighost:7411"], local="512M")     # vectors and frames in the memory of nodes
    trips = farmem.Frame.from_arrow(table, heap)

    from farmem import hints                                     # what a program says about its memory under `farmem run`

The library is loaded when `farmem.Store` or `farmem.Heap` is first used. Hints need none.
"""

_OF_STORE = (
    "Store", "Error", "Lost", "Unreached", "Full", "TooLarge", "Unsure", "WrongType", "Forked", "Closed",
)
_OF_OBJECTS = ("Heap", "Vec", "Frame", "col")
__all__ = ["hints", "AsyncStore", *_OF_STORE, *_OF_OBJECTS]


def __getattr__(name):
    from importlib import import_module
    if name in _OF_STORE:
        return getattr(import_module("farmem.store"), name)
    if name == "AsyncStore":
        return import_module("farmem.aio").AsyncStore
    if name in _OF_OBJECTS:
        return getattr(import_module("farmem.objects"), name)
    if name in ("aio", "hints", "store", "objects"):
        return import_module(f"farmem.{name}")
    raise AttributeError(f"module 'farmem' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
