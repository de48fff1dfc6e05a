#!/usr/bin/env python3
"""Overwrites redis's keys for ever, with new values of 300 bytes: load.py SOCKET KEYS random|in-order"""
import os, random, socket, sys

path, keys, order = sys.argv[1], int(sys.argv[2]), sys.argv[3]
redis = socket.socket(socket.AF_UNIX)
redis.connect(path)
draw = random.Random(7)


def overwrite(batch):
    words = [b"*3\r\n$3\r\nSET\r\n$12\r\nkey:%08d\r\n$300\r\n%s\r\n" % (key, os.urandom(150).hex().encode()) for key in batch]
    redis.sendall(b"".join(words))
    expected = len(batch) * len(b"+OK\r\n")
    while expected:
        expected -= len(redis.recv(expected))


for start in range(0, keys, 32):
    overwrite(range(start, start + 32))
print("filled", flush=True)
at = 0
while True:
    overwrite([draw.randrange(keys) for _ in range(32)] if order == "random" else [(at + n) % keys for n in range(32)])
    at += 32
