#!/usr/bin/env python3
"""Runs small jobs of frameworks for Python that keep their queues in redis on a store of `farmem kv`.

usage: store_clients.py [--venv DIR] [--report FILE] FARMEM [FRAMEWORK...]

Frameworks: celery, rq, dramatiq, huey, django-redis; without any, all. DIR is an environment that has them; without
it, one is made with pip. Each uses one front end, but celery-two and rq-two: jobs come and are done by two, of which
one is killed in the middle. Ends with status 1 if a job fails, with 77 if the packages cannot be had.
"""
import argparse
import socket
import subprocess
import sys
import tempfile

from store import Store

# Those that were tried; others by --venv.
PACKAGES = ["celery==5.7.0", "kombu==5.7.0", "packaging", "dramatiq==2.2.1", "rq==3.0.0", "huey==3.5.4",
            "Django==5.2.19", "django-redis==7.0.0", "redis==8.1.0"]
# Seconds that a framework may take.
LIMIT = 180

JOBS = {
    "celery": """
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.result import allow_join_result
worker = Celery("jobs", broker=here, backend=here)
worker.conf.task_default_queue = "jobs"
@worker.task(name="add")
def add(a, b):
    return a + b
giver = Celery("jobs", broker=here, backend=here)
giver.conf.task_default_queue = "jobs"
with start_worker(worker, perform_ping_check=False, pool="solo"):
    assert giver.send_task("add", (4, 5)).get(timeout=60) == 9
    many = [giver.send_task("add", (n, 1)) for n in range(20)]
    assert [one.get(timeout=60) for one in many] == list(range(1, 21))
""",
    "rq": """
import operator, redis
from rq import Queue, SimpleWorker
store = redis.Redis.from_url(here)
queue = Queue(connection=store)
jobs = [queue.enqueue(operator.add, n, 3) for n in range(5)]
failing = queue.enqueue(operator.truediv, 1, 0)
SimpleWorker([queue], connection=store).work(burst=True, logging_level="CRITICAL")
assert [job.return_value(refresh=True) for job in jobs] == [3, 4, 5, 6, 7]
assert failing.get_status() == "failed" and failing.latest_result().type.name == "FAILED"
""",
    "celery-two": """
from celery import Celery
from celery.contrib.testing.worker import start_worker
worker = Celery("jobs", broker=there, backend=there)
worker.conf.task_default_queue = "jobs"
@worker.task(name="add")
def add(a, b):
    return a + b
givers = [Celery("jobs", broker=at, backend=at) for at in (here, there)]
for giver in givers:
    giver.conf.task_default_queue = "jobs"
with start_worker(worker, perform_ping_check=False, pool="solo"):
    many = [givers[n % 2].send_task("add", (n, 1)) for n in range(20)]
    assert [one.get(timeout=60) for one in many] == list(range(1, 21))
    many = [givers[n % 2].send_task("add", (n, 1)) for n in range(20)]
    kill()
    # Their results are read where there is a front end still.
    again = [givers[1].AsyncResult(one.id) for one in many]
    assert [one.get(timeout=60) for one in again] == list(range(1, 21))
""",
    "rq-two": """
import operator, threading, redis
from rq import Queue, SimpleWorker
stores = [redis.Redis.from_url(at) for at in (here, there)]
queues = [Queue(connection=store) for store in stores]
jobs = [queues[n % 2].enqueue(operator.add, n, 3) for n in range(60)]
def work(n):
    try:
        SimpleWorker([queues[n]], connection=stores[n]).work(burst=True, max_jobs=10, logging_level="CRITICAL")
    except redis.exceptions.RedisError:
        pass
for n in (0, 1):
    work(n)
kill()
SimpleWorker([queues[1]], connection=stores[1]).work(burst=True, logging_level="CRITICAL")
for n, job in enumerate(jobs):
    job.connection = stores[1]
    assert job.return_value(refresh=True) == n + 3, n
""",
    "dramatiq": """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
broker = RedisBroker(url=here)
dramatiq.set_broker(broker)
done = []
@dramatiq.actor
def note(n):
    done.append(n)
for n in range(20):
    note.send(n)
worker = dramatiq.Worker(broker, worker_threads=2)
worker.start()
broker.join("default", timeout=60000)
worker.join()
worker.stop()
assert sorted(done) == list(range(20)), done
""",
    "huey": """
from huey import PriorityRedisHuey
jobs = PriorityRedisHuey("jobs", url=here)
@jobs.task()
def add(a, b):
    return a + b
result = add(1, 2)
jobs.execute(jobs.dequeue())
assert result(blocking=True, timeout=60) == 3
""",
    "django-redis": """
from django.conf import settings
settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": here}})
from django.core.cache import cache
cache.set("key", {"a": [1, 2]}, 30)
cache.set_many({"x": 1, "y": 2})
assert cache.incr("x") == 2 and cache.get_many(["x", "y"]) == {"x": 2, "y": 2}
with cache.lock("lock", timeout=5):
    assert cache.get("key") == {"a": [1, 2]} and cache.ttl("key") > 20
assert cache.delete_pattern("*") == 3
""",
}


def environment(scratch):
    """A Python that has the packages, or None."""
    python = f"{scratch}/venv/bin/python"
    for command in ([sys.executable, "-m", "venv", f"{scratch}/venv"],
                    [python, "-m", "pip", "install", "--quiet", *PACKAGES]):
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
            return None
    return python


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--venv")
    parser.add_argument("--report")
    parser.add_argument("farmem")
    parser.add_argument("frameworks", nargs="*")
    options = parser.parse_args()
    bad, lines = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        python = f"{options.venv}/bin/python" if options.venv else environment(scratch)
        if not python:
            print(f"skipped: pip cannot install {' '.join(PACKAGES)}")
            sys.exit(77)
        for name in options.frameworks or JOBS:
            with Store(options.farmem) as store:
                here = f"redis://127.0.0.1:{store.port}/0"
                program = f"here = {here!r}\n"
                if name.endswith("-two"):
                    with socket.socket() as some:
                        some.bind(("127.0.0.1", 0))
                        port = some.getsockname()[1]
                    first = store.children[-1].pid
                    store.front(port)
                    program += f"there = 'redis://127.0.0.1:{port}/0'\nimport os, signal\n"
                    program += f"kill = lambda: os.kill({first}, signal.SIGKILL)\n"
                program += JOBS[name]
                try:
                    ended = subprocess.run([python, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
                    status, said = ended.returncode, ended.stdout
                except subprocess.TimeoutExpired as expired:
                    status, said = "no end", (expired.stdout or b"").decode(errors="replace")
            bad += status != 0
            lines.append(f"{name}: {'its jobs were done' if status == 0 else f'failed ({status})'}")
            print(lines[-1], flush=True)
            if status:
                print("    " + "\n    ".join(said.splitlines()[-20:]))
    if options.report:
        with open(options.report, "w") as report:
            report.write("\n".join(lines) + "\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
