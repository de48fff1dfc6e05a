"""The blocks of an inference service's cache, in a store of farmem's and in Mooncake Store, side by side.

    pip install mooncake-transfer-engine-non-cuda numpy
    FARMEM_STORE_LIBRARY=target/release/libfarmem_store.so PYTHONPATH=bindings/python \\
        python lab/kv/beside_mooncake.py conversation.jsonl --farmem target/release/farmem

Both keep the blocks in another process, over TCP, in the same number of bytes, and the client keeps none. Each request
of the trace reads the blocks of its prompt that are there by one call and stores the others by another. Systems take
turns, each started anew. A block that is read is compared with what was stored.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

import numpy

MOST = 256  # blocks of a request that are read or stored at a time


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Farmem:
    name = "farmem"

    def __init__(self, options):
        import farmem

        lend = f"{options.memory * 3 // 2 + 64}M"
        command = [options.farmem, "node", "--lend", lend, "--listen", "127.0.0.1:0"]
        self.node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        at = None
        for line in self.node.stdout:
            at = re.search(r"127\.0\.0\.1:\d+", line)
            if at:
                break
        self.store = farmem.Store("blocks", [at.group()], local="1M", maxmemory=f"{options.memory}M", transport="tcp")

    def ask(self, keys, buffer):
        return [bytes is not None for bytes in self.store.get_block_rows(keys, buffer)]

    def put(self, keys, buffer):
        self.store.put_block_rows(keys, buffer)

    def close(self):
        self.store.close()
        self.node.kill()
        self.node.wait()


class Mooncake:
    name = "Mooncake Store"

    def __init__(self, options):
        import mooncake
        from mooncake.store import MooncakeDistributedStore

        port, metrics = free_port(), free_port()
        master = os.path.join(list(mooncake.__path__)[0], "mooncake_master")
        os.chmod(master, 0o755)
        # Leases of 10 s, its default, would keep what was read from being evicted.
        command = [master, f"-rpc_port={port}", f"-metrics_port={metrics}", "-default_kv_lease_ttl=100"]
        self.log = tempfile.TemporaryFile()
        self.children = [subprocess.Popen(command, stdout=self.log, stderr=self.log)]
        wait_for(port)
        self.master = f"127.0.0.1:{port}"
        command = [sys.executable, __file__, "--segment", self.master, "--memory", str(options.memory)]
        self.children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True))
        said = self.children[1].stdout.readline()
        while said not in ("", "ready\n", "failed\n"):
            said = self.children[1].stdout.readline()
        if said != "ready\n":
            raise SystemExit("the segment does not start")
        self.store = MooncakeDistributedStore()
        if self.store.setup(f"127.0.0.1:{free_port()}", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", self.master):
            raise SystemExit("Mooncake Store does not start")
        self.registered = set()

    def places(self, buffer):
        if buffer.ctypes.data not in self.registered:
            self.registered.add(buffer.ctypes.data)
            if self.store.register_buffer(buffer.ctypes.data, buffer.nbytes):
                raise SystemExit("Mooncake Store registers no buffer")
        return [buffer.ctypes.data + n * buffer.shape[1] for n in range(buffer.shape[0])]

    def ask(self, keys, buffer):
        places = self.places(buffer)[: len(keys)]
        return [got > 0 for got in self.store.batch_get_into(keys, places, [buffer.shape[1]] * len(keys))]

    def put(self, keys, buffer):
        places = self.places(buffer)[: len(keys)]
        self.refused = sum(put < 0 for put in self.store.batch_put_from(keys, places, [buffer.shape[1]] * len(keys)))

    def close(self):
        self.store.close()
        for child in reversed(self.children):
            child.kill()
            child.wait()


def wait_for(port):
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def segment(options):
    """The process that has Mooncake's memory."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    failed = store.setup(
        f"127.0.0.1:{free_port()}", "P2PHANDSHAKE", options.memory << 20, 16 << 20, "tcp", "", options.segment)
    print("failed" if failed else "ready", flush=True)
    while os.getppid() != 1:
        time.sleep(0.1)


def replay(system, requests, size):
    hits = blocks = 0
    reads, writes = numpy.zeros((MOST, size), numpy.uint8), numpy.zeros((MOST, size), numpy.uint8)
    begun = time.monotonic()
    for ids in requests:
        keys = [f"b{block}" for block in ids]
        there = system.ask(keys, reads)
        absent = []
        for n, (block, is_there) in enumerate(zip(ids, there)):
            if is_there:
                if int(reads[n, :8].view(numpy.uint64)[0]) != block or reads[n, -1] != block & 0xFF:
                    raise SystemExit(f"{system.name}: block {block} is another")
                hits += 1
            else:
                writes[len(absent), :8].view(numpy.uint64)[0] = block
                writes[len(absent), -1] = block & 0xFF
                absent.append(keys[n])
        blocks += len(ids)
        if absent:
            system.put(absent, writes)
    return {"hit": hits / blocks, "bytes_s": blocks * size / (time.monotonic() - begun)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", help="JSON lines with hash_ids")
    parser.add_argument("--farmem", default="farmem", help="the binary")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--block", type=int, default=65536, help="bytes of a block")
    parser.add_argument("--memory", type=int, default=256, help="MiB for the blocks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write all figures")
    parser.add_argument("--segment", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.segment:
        return segment(options)
    with open(options.trace) as trace:
        requests = [json.loads(line)["hash_ids"][:MOST] for _, line in zip(range(options.requests), trace)]
    distinct = len({block for ids in requests for block in ids})
    print(f"{len(requests)} requests, {sum(map(len, requests))} blocks of {options.block} bytes, {distinct} distinct, "
          f"{options.memory} MiB")
    found = {}
    for n in range(options.rounds):
        for kind in (Farmem, Mooncake) if n % 2 == 0 else (Mooncake, Farmem):
            system = kind(options)
            figures = replay(system, requests, options.block)
            system.close()
            found.setdefault(kind.name, []).append(figures)
            print(f"round {n + 1}: {kind.name}: {figures['bytes_s'] / 1e6:.0f} MB/s, "
                  f"{figures['hit'] * 100:.1f} % of the blocks were there", flush=True)
    middle = {name: {what: sorted(one[what] for one in all)[len(all) // 2] for what in all[0]} for name, all in found.items()}
    ours, theirs = middle[Farmem.name], middle[Mooncake.name]
    print(f"medians: {ours['bytes_s'] / theirs['bytes_s']:.2f} times the bytes a second, "
          f"{ours['hit'] * 100:.1f} % against {theirs['hit'] * 100:.1f} %")
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"options": vars(options), "found": found}, out, indent=1)


if __name__ == "__main__":
    main()
