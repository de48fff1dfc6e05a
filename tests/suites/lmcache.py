#!/usr/bin/env python3
"""Runs the connector for LMCache on LMCache itself: its storage backends put and fetch chunks in a store.

usage: lmcache.py [--venv DIR] [--report FILE] FARMEM LIBRARY

LIBRARY is libfarmem_store.so. DIR is an environment that has lmcache; without it, one is made with pip, which fetches
some 4 GB: LMCache needs torch and CUDA's libraries, though no GPU. Ends with status 1 if something fails, with 77 if the
packages cannot be had.
"""
import argparse
import os
import subprocess
import sys
import tempfile

from store import Store

VERSION = "0.5.6"
LIMIT = 300

JOB = r"""
import asyncio, logging, os, signal, sys, threading, time
os.environ["LMCACHE_LOG_LEVEL"] = "WARNING"
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

node, node_process, named = sys.argv[1], int(sys.argv[2]), sys.argv[3]
url = f"farmem://{node}/{named}?local=8M&grace=1"
extra = {
    "remote_storage_plugin.farmem.module_path": "farmem.lmcache",
    "remote_storage_plugin.farmem.class_name": "FarmemAdapter",
}
if named == "plugin":
    extra["remote_storage_plugin.farmem.url"] = url
config = LMCacheEngineConfig.from_defaults(
    chunk_size=256, local_cpu=False, max_local_cpu_size=0.25, remote_serde="naive", extra_config=extra,
    remote_storage_plugins=["farmem"], remote_url=url if named == "url" else None, blocking_timeout_secs=20,
)
metadata = LMCacheMetadata("model/with a name", 2, 2, 1, 1, torch.bfloat16, (4, 2, 256, 8, 64))
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
backends = CreateStorageBackends(config, metadata, loop, dst_device="cpu")
memory = backends["LocalCPUBackend"]
far = backends["RemoteBackend-farmem" if named == "plugin" else "RemoteBackend"]
assert far.connection is not None, list(backends)

def key(n):
    return CacheEngineKey(metadata.model_name, 2, 1, n, torch.bfloat16)

def chunk(n, tokens=256):
    made = memory.allocate(torch.Size([2, 4, tokens, 512]), torch.bfloat16)
    made.tensor.copy_(torch.full_like(made.tensor, n))
    return made

def put(keys, objects):
    # As a batch. LMCache tells of each key when it is over.
    left, over = set(keys), threading.Event()

    def told(key):
        left.discard(key)
        left or over.set()

    far.batched_submit_put_task(keys, objects, on_complete_callback=told)
    assert over.wait(60), "a put does not end"
    [one.ref_count_down() for one in objects]
    assert [one.get_ref_count() for one in objects] == [0] * len(objects), "somebody keeps a chunk"

def same(found, n, tokens=256):
    assert found is not None and found.get_shape() == torch.Size([2, 4, tokens, 512]), found
    assert found.get_dtype() == torch.bfloat16 and bool((found.tensor == n).all())
    found.ref_count_down()

assert not far.contains(key(1)) and far.get_blocking(key(1)) is None
first = chunk(1)
far.submit_put_task(key(1), first).result(60)
first.ref_count_down()
assert far.contains(key(1))
same(far.get_blocking(key(1)), 1)
# A batch, the last of which has fewer tokens than a chunk.
put([key(2), key(3), key(4)], [chunk(2), chunk(3), chunk(4, 100)])
keys = [key(n) for n in (1, 2, 3, 4, 5, 6)]
assert far.batched_contains(keys) == 4 and far.batched_contains(keys[4:]) == 0
found = far.batched_get_blocking(keys)
assert found[4:] == [None, None]
for n, one in enumerate(found[:3]):
    same(one, n + 1)
same(found[3], 4, 100)
later = lambda call: asyncio.run_coroutine_threadsafe(call, loop).result(60)
assert later(far.batched_async_contains("lookup", keys, pin=True)) == 4
found = later(far.batched_get_non_blocking("lookup", [key(2), key(9), key(3)]))
assert len(found) == 1
same(found[0], 2)
assert far.remove(key(2)) and not far.contains(key(2)) and far.batched_contains(keys) == 1
# Another process's view of it: the same store, by another backend of LMCache's.
other = CreateStorageBackends(config, metadata, loop, dst_device="cpu")
there = other["RemoteBackend-farmem" if named == "plugin" else "RemoteBackend"]
same(there.get_blocking(key(3)), 3)
there.close()
# A worker of another rank has its own chunks.
assert not far.contains(CacheEngineKey(metadata.model_name, 2, 0, 1, torch.bfloat16))
# The node is lost: misses, and nothing is raised. A put is given up.
os.kill(node_process, signal.SIGKILL)
last = chunk(7)
end = time.monotonic() + 60
while far.contains(key(3)):
    assert time.monotonic() < end, "nobody has noticed"
    time.sleep(0.01)
begun = time.monotonic()
assert far.get_blocking(key(3)) is None and far.batched_contains(keys) == 0
put([key(7)], [last])
assert far.batched_get_blocking(keys) == [None] * 6 and time.monotonic() - begun < 60
far.close()
for backend in backends.values():
    backend is far or backend.close()
print("all of it")
os._exit(0)
"""


def environment(scratch):
    """A Python that has the packages, or None."""
    python = f"{scratch}/venv/bin/python"
    for command in ([sys.executable, "-m", "venv", f"{scratch}/venv"],
                    [python, "-m", "pip", "install", "--quiet", f"lmcache=={VERSION}"]):
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
            return None
    return python


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--venv")
    parser.add_argument("--report")
    parser.add_argument("farmem")
    parser.add_argument("library")
    options = parser.parse_args()
    bindings = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bindings/python")
    bad, lines = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        python = f"{options.venv}/bin/python" if options.venv else environment(scratch)
        if not python:
            print("skipped: pip cannot install lmcache")
            sys.exit(77)
        # By the plugin's own setting, and by the setting that LMCache calls deprecated.
        for named in ("plugin", "url"):
            with Store(options.farmem) as store:
                node = f"unix:{store.scratch.name}/node.sock"
                there = {**os.environ, "PYTHONPATH": bindings, "FARMEM_STORE_LIBRARY": options.library}
                try:
                    ended = subprocess.run([python, "-c", JOB, node, str(store.children[0].pid), named], text=True,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT,
                                           stderr=subprocess.STDOUT, env=there, cwd=scratch)
                    status, said = ended.returncode, ended.stdout
                except subprocess.TimeoutExpired as expired:
                    status, said = "no end", (expired.stdout or b"").decode(errors="replace")
            fine = status == 0 and said.rstrip().endswith("all of it")
            bad += not fine
            lines.append(f"LMCache {VERSION}, named by {named}: {'passed' if fine else f'failed ({status})'}")
            print(lines[-1], flush=True)
            if not fine:
                print("    " + "\n    ".join(said.splitlines()[-40:]))
    if options.report:
        with open(options.report, "w") as report:
            report.write("\n".join(lines) + "\n")
    sys.exit(bool(bad))


main()
