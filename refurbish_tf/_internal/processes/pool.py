"""Processes that call Python functions: one pool for each number of them, started when it is first asked."""
from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

from . import channel

# A process that is not asked for so many seconds ends. The next call starts another one.
IDLE_SECONDS = 4.0
_WORKER = pathlib.Path(__file__).parent / "worker.py"
# So that processes do not fight for the processors.
_ONE_THREAD = dict.fromkeys((
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1")
# Seconds that the end of the program waits for a function that runs in this process.
_LONGEST_END = 4.0
# How many processes a call starts that end before they are ready.
_MOST_STARTS = 10
_lock = threading.Lock()
# Of all calls, and whether there are to be no more.
_num_under_way, _ending = 0, False
# By the number of processes.
_pools: dict[int, Pool] = {}
_names = itertools.count()


class Raised(Exception):
  """The function raised an error, with this name and traceback, after so many seconds."""

  def __init__(self, name, text, seconds):
    super().__init__(name, text, seconds)
    self.name, self.text, self.seconds = name, text, seconds


class Died(Exception):
  """The process ended. `code`: as `subprocess` has it, of a signal negative. `in_call`: whether it had been called."""

  def __init__(self, code, in_call):
    super().__init__(code, in_call)
    self.code, self.in_call = code, in_call


def pool_of(size):
  """The pool of so many processes. RuntimeError in a process that was forked from the one that uses it."""
  with _lock:
    pool = _pools.get(size)
    if pool is None:
      pool = _pools[size] = Pool(size)
  if pool.parent != os.getpid():
    raise RuntimeError(
        "numpy_layer works in the process that uses it first, and this one was forked from it: the two would read each other's "
        "samples. Start processes by spawn, not fork, or pass processes=0.")
  return pool


def new_name():
  """A name for a function, which no other one has in this process."""
  return next(_names)


class Pool:
  """So many processes at most."""

  def __init__(self, size):
    self.size, self.parent = size, os.getpid()
    self._workers = [_Worker() for _ in range(size)]
    # The one that was used last comes first, so that others may rest.
    self._idle = queue.LifoQueue()
    for worker in self._workers:
      self._idle.put(worker)
    self._lock = threading.Lock()
    self._watcher = None

  def call(self, name, pickled, seed, names, values):
    """Calls a function; waits for a process that is free. A process that dies is replaced, and the call made once more.

    Returns a list of arrays, and the seconds that the function took. Raises `Raised`, and `Died` if the second one has died,
    too.
    """
    deaths = deaths_before = 0
    while True:
      if _ending:
        raise RuntimeError("The program ends, and calls no function any more.")
      worker = self._idle.get()
      try:
        self._watch()
        return worker.call(name, pickled, seed, names, values)
      except Died as died:
        # One that was not asked for long ends by itself, perhaps just now.
        deaths += died.in_call and died.code != 0
        deaths_before += not died.in_call
        if deaths == 2 or deaths_before == _MOST_STARTS:
          raise
      finally:
        self._idle.put(worker)

  def num_alive(self):
    return sum(worker.is_alive() for worker in self._workers)

  def _watch(self):
    """Sees to it that the system forgets processes that have ended."""
    with self._lock:
      if self._watcher is None:
        self._watcher = threading.Thread(target=self._wait_for_ends, name="refurbish_tf_processes", daemon=True)
        self._watcher.start()

  def _wait_for_ends(self):
    while True:
      time.sleep(1)
      with self._lock:
        if not self.num_alive():
          self._watcher = None
          return

  def kill(self):
    """Ends all processes, and so the calls that wait for them."""
    for worker in self._workers:
      worker.kill()


@contextlib.contextmanager
def under_way():
  """While a function is called, here or in a process. RuntimeError when the program ends."""
  global _num_under_way
  with _lock:
    if _num_under_way == 0 and not _ending:
      atexit.unregister(_end)
      atexit.register(_end)  # The last that was registered comes first.
    _num_under_way += 1
  try:
    if _ending:
      raise RuntimeError("The program ends, and calls no function any more.")
    yield
  finally:
    with _lock:
      _num_under_way -= 1


def _end():
  """Ends all processes, and waits until a stage that still lives asks for no more: Python must not end within a call.

  TensorFlow would wait for that call for ever.
  """
  global _ending
  _ending = True
  for pool in _pools.values():
    if pool.parent == os.getpid():
      pool.kill()
  quiet, deadline = 0, time.monotonic() + _LONGEST_END
  while quiet < 5 and time.monotonic() < deadline:
    time.sleep(0.02)
    quiet = 0 if _num_under_way else quiet + 1


class _Worker:
  """A process, or the place for one."""

  def __init__(self):
    self._process = self._socket = None
    self._inputs = self._outputs = None
    self._known = set()

  def is_alive(self):
    return self._process is not None and self._process.poll() is None

  def call(self, name, pickled, seed, names, values):
    in_call = False
    try:
      if not self.is_alive():
        self._start()
      if name not in self._known:
        channel.send(self._socket, ("define", name, pickled, sys.path))
        self._known.add(name)
      described = self._inputs.write(values)
      in_call = True
      channel.send(self._socket, ("call", name, seed, names, described))
      kind, *reply = channel.receive(self._socket)
    except (EOFError, ConnectionError, BrokenPipeError):
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(5)
      self.kill()
      code = self._process.wait()
      self._forget()
      raise Died(code, in_call) from None
    except BaseException:
      # What has come of it is not known.
      self.kill()
      raise
    if kind == "raised":
      raise Raised(*reply)
    return self._outputs.read(reply[0]), reply[1]

  def _start(self):
    self._forget()
    ours, theirs = socket.socketpair()
    memories = [channel.new_memory() for _ in range(2)]
    try:
      descriptors = [theirs.fileno(), *memories]
      self._process = subprocess.Popen(
          [sys.executable, str(_WORKER), *map(str, descriptors), str(IDLE_SECONDS)], pass_fds=descriptors,
          stdin=subprocess.DEVNULL, env={**os.environ, **_ONE_THREAD})
    except BaseException:
      ours.close()
      for memory in memories:
        os.close(memory)
      raise
    finally:
      theirs.close()
    self._socket = ours
    self._inputs, self._outputs = map(channel.Memory, memories)
    self._known = set()
    channel.receive(ours)

  def kill(self):
    if self._process is not None:
      with contextlib.suppress(ProcessLookupError):
        self._process.send_signal(signal.SIGKILL)

  def _forget(self):
    if self._socket is not None:
      self._socket.close()
      self._inputs.close()
      self._outputs.close()
      self._socket = self._inputs = self._outputs = self._process = None
