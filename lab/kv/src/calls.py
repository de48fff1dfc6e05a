"""NODE get|put CALLS: the CPU time of one call, in ns. See calls.rs."""

import sys
import time

import farmem

node, what, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
keys = [b"key:%04d" % n for n in range(1000)]
value = bytes(512)
with farmem.Store("calls", [node]) as store:
    for key in keys:
        store.put(key, value)
    time.sleep(2)
    for key in keys:
        assert store.get(key) == value
    get, put = store.get, store.put
    begun = time.thread_time_ns()
    for n in range(calls // len(keys)):
        if what == "get":
            for key in keys:
                get(key)
        else:
            for key in keys:
                put(key, value)
    print((time.thread_time_ns() - begun) / (calls // len(keys) * len(keys)))
