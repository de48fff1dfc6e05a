"""multiprocessing: a pool of forked children that read the parent's data, queues both ways."""
import hashlib, sys
import multiprocessing as mp

n = int(sys.argv[1])
data = [bytes([i % 251]) * (i % 97) + str(i).encode() for i in range(100_000 * n)]


def part(k):
    mine = sorted(data[k::8], key=lambda b: b[::-1])
    return hashlib.sha256(b"".join(mine)).hexdigest(), [len(b) for b in mine[:1000]]


def square(todo, done):
    while (x := todo.get()) is not None:
        done.put((x, x * x, "y" * 100000))


if __name__ == "__main__":
    mp.set_start_method("fork")
    with mp.Pool(3) as pool:
        for digest, head in pool.map(part, range(8)):
            print(digest, sum(head))
    data.reverse()
    todo, done = mp.Queue(), mp.Queue()
    children = [mp.Process(target=square, args=(todo, done)) for _ in range(2)]
    for child in children:
        child.start()
    for i in range(200):
        todo.put(i)
    for child in children:
        todo.put(None)
    print(sorted((a, b, len(c)) for a, b, c in (done.get() for _ in range(200)))[-1])
    for child in children:
        child.join()
        print(child.exitcode)
    print(hashlib.sha256(b"".join(data)).hexdigest())
