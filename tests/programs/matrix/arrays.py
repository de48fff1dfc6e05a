"""numpy and a large dict. Sums of integers only, or of floats in a fixed order: threads may not change the bytes."""
import hashlib, sys
import numpy as np

n = int(sys.argv[1])


def show(what, a):
    print(what, hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest())


r = np.random.default_rng(7)
a = r.random(400_000 * n)
show("random", a)
show("argsort", np.argsort(a, kind="stable"))
a.sort()
show("sorted", a)
m = r.integers(0, 100, (400, 400)).astype(np.float64)
show("matmul", m @ m @ m.T)
d = {i * 7919 % 1_000_003: i for i in range(500_000 * n)}
print("dict", len(d), sum(d), d[12345])
for k in range(0, 500_000, 3):
    d.pop(k, None)
print("popped", len(d), sum(k for k in d) % 1000007)
