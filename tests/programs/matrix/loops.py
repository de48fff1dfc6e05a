"""Threads, an event loop with sockets, and subprocesses fed from large buffers."""
import asyncio, hashlib, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

n = int(sys.argv[1])


def work(k):
    d = {i: str(i * k) * 5 for i in range(40_000 * n)}
    return hashlib.sha256("".join(sorted(d.values())).encode()).hexdigest()


with ThreadPoolExecutor(6) as pool:
    print(*pool.map(work, range(8)), sep="\n")


async def serve(reader, writer):
    try:
        while True:
            writer.write((await reader.readexactly(65536))[::-1])
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


async def client(port, k):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    digest = hashlib.sha256()
    for i in range(30 * n):
        sent = bytes((i * k + j) % 251 for j in range(256)) * 256
        writer.write(sent)
        await writer.drain()
        got = await reader.readexactly(65536)
        assert got == sent[::-1]
        digest.update(got)
    writer.close()
    return digest.hexdigest()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(*await asyncio.gather(*(client(port, k) for k in range(10))), sep="\n")
    pipe = asyncio.subprocess.PIPE
    children = [await asyncio.create_subprocess_exec("sha256sum", stdin=pipe, stdout=pipe) for _ in range(4)]
    large = bytes(range(256)) * 40000
    for child in children:
        print((await child.communicate(large))[0].decode().strip())


asyncio.run(main())
print(hashlib.sha256(subprocess.run(["cat"], input=b"xyz" * 3000000, stdout=subprocess.PIPE).stdout).hexdigest())
print(subprocess.run("exec tr a b", shell=True, input=b"banana", stdout=subprocess.PIPE).stdout)
