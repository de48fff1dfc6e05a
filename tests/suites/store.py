"""A store to test: a node and a front end as processes. And other people's sources, by package name."""
import os
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


class Store:
    """A node that lends 1 GiB on a socket, or two for a mirrored store, and a front end at a port of its own. Ends with
    the block."""

    def __init__(self, farmem, port=0, options=(), mirror=False):
        self.farmem, self.port, self.options = os.path.abspath(farmem), port, list(options)
        self.children, self.nodes = [], ["node", "other"] if mirror else ["node"]
        if mirror:
            self.options += ["--protect", "mirror"]

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="farmem-suite-")
        self.port = self.port or free_port()
        for node in self.nodes:
            self.start("node", "--lend", "1G", "--listen", f"unix:{self.scratch.name}/{node}.sock")
        self.front(self.port)
        return self

    def front(self, port):
        """Starts a front end at this port."""
        nodes = ",".join(f"unix:{self.scratch.name}/{node}.sock" for node in self.nodes)
        self.start("kv", "--name", "suite", "--node", nodes, "--listen", f"127.0.0.1:{port}", *self.options)

    def start(self, *args):
        """Starts farmem, and waits until it says that it is ready."""
        log = f"{self.scratch.name}/{args[0]}-{len(self.children)}.log"
        with open(log, "wb") as said:
            child = subprocess.Popen([self.farmem, *args], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self.children.append(child)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and child.poll() is None:
            if any(word in self.said(log) for word in ("node lends", "is served at")):
                return
            time.sleep(0.05)
        raise SystemExit(f"farmem {' '.join(args)}: not ready: {self.said(log)}")

    @staticmethod
    def said(log):
        with open(log, errors="replace") as lines:
            return lines.read()

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.scratch.cleanup()


def debian_source(package, into):
    """Fetches and unpacks a Debian source package, without a change to the system's sources. Its folder, or None."""
    for folder in ("lists/partial", "cache/archives/partial"):
        os.makedirs(f"{into}/{folder}", exist_ok=True)
    with open(f"{into}/sources.list", "w") as sources:
        sources.write("deb-src http://deb.debian.org/debian bookworm main\n")
    options = ["SourceList=" + f"{into}/sources.list", "SourceParts=/dev/null"]
    apt = ["apt-get", "-qq"] + [f"-oDir::Etc::{option}" for option in options]
    apt += [f"-oDir::State::Lists={into}/lists", f"-oDir::Cache={into}/cache", "-oAPT::Sandbox::User=root"]
    for command in (["update"], ["source", "--download-only", package]):
        if subprocess.run(apt + command, cwd=into, stdout=subprocess.DEVNULL).returncode:
            return None
    archives = [name for name in os.listdir(into) if ".orig.tar" in name]
    if not archives or subprocess.run(["tar", "xf", archives[0]], cwd=into).returncode:
        return None
    return next((f"{into}/{name}" for name in os.listdir(into) if name.startswith(package + "-")), None)


def skip_list(path):
    """Entries of a skip list: a test's name, ` :: `, the reason."""
    entries = {}
    with open(path) as lines:
        for line in lines:
            line = line.rstrip("\n")
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.partition(" :: ")
                if not reason.strip():
                    raise SystemExit(f"{path}: no reason is given for {name!r}")
                entries[name.strip()] = reason.strip()
    return entries
