"""Shared levels for tests: real servers, a proxy that delays them, and jobs whose samples show their generation."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import gc
import itertools
import math
import multiprocessing
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
import weakref

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import schedule
from support.processes import TIMEOUT, end_of, free_port, start_forked
from support.waiting import until

SEED, CALLS = 1, 2
# Their functions refer to them, which keeps their stages, and so the threads that serve the levels.
_jobs = weakref.WeakSet()
KINDS = ("redis", "s3", "file", "object")
RECORD = re.compile(r"refurbish/[0-9a-f]{20}/\d+/(\d+)$")


class Level:
  """A level, seen from outside. `address`: the argument `shared`. `slow`: seconds in which it certainly answers."""

  slow = 0.5

  def records(self):
    """The records by the index of their sample. The level has one prefix."""
    return {int(match[1]): value for key, value in self.entries().items() if (match := RECORD.search(key))}

  def generations(self):
    return {index: int.from_bytes(record[8:12], "little") for index, record in self.records().items()}

  def change(self, changed):
    """Replaces each record by `changed(index, record)`."""
    for key, value in self.entries().items():
      if match := RECORD.search(key):
        self.put(key, changed(int(match[1]), value))

  def wait_for(self, job):
    """Waits until everything that the job has prepared is here, because it writes in the background."""
    latest = dict(sorted(job.prepared))
    is_here = lambda: latest.items() <= self.generations().items()
    assert until(is_here, 30), latest.items() - self.generations().items()


class Object(Level):
  """A level of a user's own, in this process. `fault` takes the place of its methods."""

  def __init__(self):
    self.address, self.fault, self.held = self, None, {}

  def get_many(self, keys):
    return self.fault(keys) if self.fault else [self.held.get(key) for key in keys]

  def put(self, key, value):
    assert type(key) is str and type(value) is bytes
    self.held[key] = self.fault([key])[0] if self.fault else value

  def entries(self):
    return dict(self.held)


class Bucket(Level):
  """A directory, or a bucket of an S3 server."""

  def __init__(self, address, slow):
    import obstore.store

    self.address, self.slow, self._store = address, slow, obstore.store.from_url(address)

  def put(self, key, value):
    self._store.put(key, value)

  def entries(self):
    found = {}
    for name in [each["path"] for part in self._store.list() for each in part]:
      with contextlib.suppress(FileNotFoundError):  # obstore writes a file under another name first.
        found[name] = bytes(self._store.get(name).bytes())
    return found


class Redis(Level):
  """A database of a redis-server of its own, without persistence. `options`: arguments of the server."""

  def __init__(self, *options, password=None):
    redis = pytest.importorskip("redis", reason="redis is not installed; pip install -e '.[test]' does it")
    self.port, self._client = free_port(), functools.partial(redis.Redis, password=password)
    self._command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *options]
    self._command += ["--requirepass", password] if password else []
    self.start()
    self.use(0)

  def use(self, database):
    """Uses this database from now on, so that what former jobs still write is elsewhere."""
    self.address = f"redis://127.0.0.1:{self.port}/{database}"
    self.client = self._client(port=self.port, db=database)
    self.client.flushdb()

  def start(self):
    try:
      self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    except FileNotFoundError:
      pytest.skip("redis-server is not installed; apt-get install redis-server does it")
    with socket.socket() as found:
      assert until(lambda: found.connect_ex(("127.0.0.1", self.port)) == 0, TIMEOUT), "redis-server does not start"

  def kill(self):
    self._process.kill()
    self._process.wait()

  def put(self, key, value):
    self.client.set(key, value)

  def entries(self):
    keys = list(self.client.scan_iter(count=1000))
    values = self.client.mget(keys) if keys else []
    return {key.decode(): value for key, value in zip(keys, values) if value is not None}

  def lives(self):
    """By the index of a sample: the seconds until its record expires, or -1 if it stays."""
    return {int(match[1]): self.client.ttl(key) for key in self.entries() if (match := RECORD.search(key))}


@contextlib.contextmanager
def redis_server(*options, **more):
  level = Redis(*options, **more)
  try:
    yield level
  finally:
    level.kill()


@contextlib.contextmanager
def s3_server():
  """Yields the address of an S3 server in this process. The environment has what its clients need."""
  server = pytest.importorskip("moto.server", reason="moto is not installed; pip install -e '.[test]' does it")
  started = server.ThreadedMotoServer(port=0, verbose=False)
  started.start()
  address = "http://{}:{}".format(*started.get_host_and_port())
  names = ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
  with pytest.MonkeyPatch.context() as here:
    for name, value in zip(names, (address, "true", "us-east-1", "key", "the-key-of-s3")):
      here.setenv(name, value)
    yield address
  started.stop()


@contextlib.contextmanager
def empty_levels(root):
  """Yields a function that makes an empty level of a kind. Each server starts when it is first needed."""
  with contextlib.ExitStack() as stack:
    server, numbers = functools.cache(lambda make: stack.enter_context(make())), itertools.count()

    def empty(kind):
      if kind == "object":
        return Object()
      if kind == "redis":
        server(redis_server).use(next(numbers) % 16)
        return server(redis_server)
      pytest.importorskip("obstore", reason="obstore is not installed; pip install -e '.[test]' does it")
      name = f"level-{next(numbers)}"
      if kind == "file":
        (root / name).mkdir()
        return Bucket(f"file://{root / name}", slow=0.5)
      request = urllib.request.Request(f"{server(s3_server)}/{name}", method="PUT")
      urllib.request.urlopen(request, timeout=TIMEOUT).close()
      return Bucket(f"s3://{name}/levels", slow=1.5)

    yield empty


class Proxy:
  """Passes TCP on to a port: `delay` seconds later each way, and at most `rate` bytes a second. It can be cut, which
  closes all connections and refuses new ones."""

  def __init__(self, port, delay=0.0, rate=1e12):
    self.delay, self.rate, self._to, self.is_cut = delay, rate, port, False
    self._open, self._free, self._loop = [], [0.0, 0.0], asyncio.new_event_loop()
    threading.Thread(target=self._loop.run_forever, daemon=True).start()
    server = asyncio.start_server(self._connected, "127.0.0.1", 0)
    self._server = asyncio.run_coroutine_threadsafe(server, self._loop).result()
    self.port = self._server.sockets[0].getsockname()[1]

  def cut(self, is_cut=True):
    self.is_cut = is_cut
    for each in self._open if is_cut else ():
      self._loop.call_soon_threadsafe(each.transport.abort)

  async def _connected(self, *client):
    try:
      if self.is_cut:
        raise ConnectionError
      server = await asyncio.open_connection("127.0.0.1", self._to)
    except OSError:
      return client[1].close()
    self._open += [client[1], server[1]]
    await asyncio.gather(self._pass(client[0], server[1], 0), self._pass(server[0], client[1], 1))

  async def _pass(self, source, to, way):
    data = b"any"
    while data:
      try:
        data = await source.read(2**16)
      except OSError:
        data = b""
      self._free[way] = max(self._free[way], self._loop.time()) + (len(data) + 1) / self.rate
      self._loop.call_at(self._free[way] + self.delay, *([to.write, data] if data else [to.close]))


def bytes_of(index, generation, size):
  return np.random.default_rng([int(index), generation]).bytes(size)


def generation_of(index, seed):
  """The generation that a seed of `partial_fn` was made for."""
  first, second = (int(number) & 2**32 - 1 for number in seed)
  word = schedule.unmix(first << 32 | second) ^ schedule.key(SEED, schedule.PARTIAL_FN)
  assert word >> 32 == index
  return word & 2**32 - 1


def end_jobs():
  """Ends the stages of all jobs, so that their threads do not slow down later tests: a bucket's level has 80."""
  if _jobs:
    for job in list(_jobs):
      job.dataset = job.store = None
    gc.collect()


class Job:
  """A stage whose samples are their index, generation, and bytes made from both. `prepared` has the calls of
  `partial_fn`.

  A job never waits for a level. So a job that is to find samples there needs `seconds` for a preparation: then it
  prepares those that it begins with, at most CALLS in each epoch, and finds the others.
  """

  def __init__(self, shared=None, n=48, r=2, *, source=None, indices=None, size=16, seconds=0.0, batch=None, **options):
    _jobs.add(self)
    self.indices, self.r, self.batch = indices or range(n), r, batch
    self.prepared, self.uses, self.longest = [], collections.Counter(), 0.0

    def prepare(index, seed):
      generation = generation_of(index, seed)
      time.sleep(seconds)
      self.prepared.append((int(index), generation))
      return np.int64(generation), np.frombuffer(bytes_of(index, generation, size), np.uint8)

    def partial_fn(index, seed):
      generation, payload = tf.numpy_function(prepare, [index, seed], (tf.int64, tf.uint8))
      return index, tf.ensure_shape(generation, []), tf.ensure_shape(payload, [size])

    of_store = {name: options.pop(name) for name in ("version", "shared_max_bytes") if name in options}
    self.store = None if shared is None else rtf.CacheStore(shared=shared, **{"version": "1", **of_store})
    self.dataset = (tf.data.Dataset.range(n) if source is None else source).refurbish(
      partial_fn, r=r, seed=SEED, store=self.store, **{"num_parallel_calls": CALLS, "order_seed": 1, **options}
    )

  def elements(self, iterator):
    """The elements of an iterator, (index, generation), checked: their bytes, and that none is used more than r
    times."""
    began = time.monotonic()
    for element in iterator:
      self.longest = max(self.longest, time.monotonic() - began)
      for index, generation, payload in zip(*element) if self.batch else [element]:
        index, generation = int(index), int(generation)
        assert np.asarray(payload).tobytes() == bytes_of(index, generation, len(payload)), "wrong bytes"
        self.uses[index, generation] += 1
        assert self.uses[index, generation] <= math.ceil(self.r)  # G2.
        yield index, generation
      began = time.monotonic()

  def epoch(self, on_element=lambda number: None):
    """Reads an epoch, which must be whole (G1). Returns its elements, in order."""
    elements = []
    for element in self.elements((self.dataset.batch(self.batch) if self.batch else self.dataset).as_numpy_iterator()):
      elements.append(element)
      on_element(len(elements))
    assert sorted(index for index, _ in elements) == list(self.indices)
    return elements


@dataclasses.dataclass(frozen=True)
class Machine:
  """A job in a process of its own, which begins `start` seconds after the others. `options`: of `Job`."""

  shared: str
  options: dict
  epochs: int = 3
  start: float = 0.0

  def run(self, environment, barrier, results):
    """Puts into `results`: the calls of `partial_fn`, the seconds, and the longest wait for an element."""
    os.environ.update(environment)
    job = Job(self.shared, **self.options)
    barrier.wait(TIMEOUT)
    began = time.monotonic() + self.start
    time.sleep(self.start)
    for _ in range(self.epochs):
      job.epoch()
    results.put((len(job.prepared), time.monotonic() - began, job.longest))


def start_machines(*machines):
  """Starts machines together. Returns their processes, and a function that waits for them and returns the results."""
  context = multiprocessing.get_context("forkserver")
  barrier, results = context.Barrier(len(machines)), context.SimpleQueue()
  processes = [start_forked(machine.run, dict(os.environ), barrier, results) for machine in machines]

  def finish(kept=barrier):  # Unkept, the barrier would be gone before the processes have it.
    assert [end_of(process) for process in processes] == [0] * len(processes)
    return [results.get() for _ in processes]

  return processes, finish
