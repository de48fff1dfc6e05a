"""Runs the Python that pages of docs/ show, as it stands there. Arguments: a node's address, the folder docs.

Without pyarrow a page that needs it ends before its frames.
"""

import asyncio
import re
import sys

NODE, DOCS = sys.argv[1:]


def shown(page):
    """The blocks of Python of a page, with this node for the page's."""
    with open(f"{DOCS}/{page}", encoding="utf-8") as text:
        blocks = re.findall(r"^```python\n(.*?)^```$", text.read(), re.M | re.S)
    assert blocks, f"{page} shows no Python"
    return [block.replace("bighost:7411", NODE) for block in blocks]


def run(page, names):
    for number, block in enumerate(shown(page), 1):
        code = compile(block, f"{page}, block {number}", "exec", flags=2 ** 13)  # PyCF_ALLOW_TOP_LEVEL_AWAIT
        made = eval(code, names)
        if asyncio.iscoroutine(made):
            asyncio.run(made)
    return names


chunk = bytes(range(256)) * 4096
names = run("store-library.md", {"array": chunk, "tensor": chunk, "into": bytearray(len(chunk)), "keys": ["greeting"]})
assert names["into"] == chunk and names["store"]["greeting"] == b"hello"
names["store"].close()

try:
    import numpy
    import pyarrow
except ImportError as missing:
    print(f"skipped: python.md: {missing}")
else:
    table = pyarrow.table({
        "day": pyarrow.array(range(1000), pyarrow.int32()),
        "fare": [n * 0.5 for n in range(1000)],
        "tip": [n % 7 if n % 3 else None for n in range(1000)],
        "zone": [f"zone {n % 4}" for n in range(1000)],
    })
    zones = pyarrow.table({"zone": ["zone 1", "zone 2"], "name": ["one", "two"]})
    near = {"array": numpy.arange(3000, dtype="f8"), "table": table, "zones": zones}
    names = run("python.md", near)
    assert names["prices"][7] == 1.5 and len(names["part"]) == 1000 and names["table"].num_rows == 1000
    assert names["days"].num_rows == 1000 and len(names["cheap"]) == 20
print("all of it")
