"""Processes that call Python functions: one pool for each number of them, started when it is first asked."""
from __future__ import annotations

import atexit
import concurrent.futures
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
import weakref

from . import channel

# Processes end so many seconds after their last call, but not before the last stage is gone that has called them.
IDLE_SECONDS = 300.0
_WORKER = pathlib.Path(__file__).parent / "worker.py"
# So that processes do not fight for the processors.
_ONE_THREAD = dict.fromkeys((
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1")
# Seconds that the end of the program waits for a function that runs in this process.
_LONGEST_END = 4.0
# Seconds in which a process that has closed its end may tell what it has ended with.
_SELF_END = 5
# How many processes a call starts that end before they are ready.
_MOST_STARTS = 10
_lock = threading.Lock()
# Of all calls, and whether there are to be no more.
_num_under_way, _ending, _is_registered = 0, False, False
_seconds_of_functions = 0.0
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
    is_forked = any(pool.parent != os.getpid() for pool in _pools.values())
    if not is_forked and size not in _pools:
      _pools[size] = Pool(size)
  if is_forked:
    raise RuntimeError(
        "numpy_layer works in the process that uses it first, and this one was forked from it: the two would read each other's "
        "samples. Start processes by spawn, not fork, or pass processes=0.")
  return _pools[size]


def cpu_seconds():
  """Of this process, and of the functions that others have called for it."""
  return time.process_time() + _seconds_of_functions


class Sent:
  """A function as it goes to processes, which forget it once nothing in this process refers to this object."""

  def __init__(self, pickled):
    self.name, self.pickled = next(_names), pickled
    # What calls it for a dataset or a `tf.function`, as long as that lives.
    self.traced = weakref.WeakSet()


class Pool:
  """So many processes at most."""

  def __init__(self, size):
    self.size, self.parent = size, os.getpid()
    # Those that were called, by name.
    self._functions = weakref.WeakValueDictionary()
    self._workers = [_Worker(self._functions) for _ in range(size)]
    # The one that was used last comes first, so that others may rest.
    self._idle = queue.LifoQueue()
    for worker in self._workers:
      self._idle.put(worker)
    self._lock = threading.Lock()
    self._watcher, self._used = None, 0.0

  def call(self, sent, seed, names, values):
    """Calls a function; waits for a process that is free. A process that dies is replaced, and the call made once more.

    Returns a list of arrays, whether the function has made others of the same seed, and the seconds that it took. Raises
    `Raised`, and `Died` if the second one has died, too.
    """
    deaths = deaths_before = 0
    while True:
      worker = self._idle.get()
      try:
        _check_not_ending()  # It may have begun to end in the meantime.
        self._used = time.monotonic()
        self._watch()
        made, is_unsteady, seconds = worker.call(sent, seed, names, values)
        _count(seconds)
        return made, is_unsteady, seconds
      except Raised as raised:
        _count(raised.seconds)
        raise
      except Died as died:
        deaths += died.in_call
        deaths_before += not died.in_call
        if deaths == 2 or deaths_before == _MOST_STARTS:
          raise
      finally:
        self._used = time.monotonic()
        self._watch()
        self._idle.put(worker)

  def num_alive(self):
    return sum(worker.is_alive() for worker in self._workers)

  def _watch(self):
    """Sees to it that processes end when they are no longer needed, and that nothing is left of those that have ended."""
    with self._lock:
      if self._watcher is None:
        self._watcher = threading.Thread(target=self._wait_for_ends, name="refurbish_tf_processes", daemon=True)
        self._watcher.start()

  def _wait_for_ends(self):
    while True:
      time.sleep(1)
      if any(sent.traced for sent in filter(None, (each() for each in self._functions.valuerefs()))):
        self._used = time.monotonic()
      may_end = time.monotonic() - self._used > IDLE_SECONDS
      with self._lock:
        # All of them are to be looked at.
        if not sum(worker.is_needed(may_end) for worker in self._workers):
          self._watcher = None
          return

  def kill(self):
    """Ends all processes, and so the calls that wait for them."""
    for worker in self._workers:
      worker.kill()


def _count(seconds):
  global _seconds_of_functions
  with _lock:
    _seconds_of_functions += seconds


def _check_not_ending():
  if _ending:
    raise RuntimeError("The program ends, and calls no function any more.")


class UnderWay:
  """Entered while a function is called, here or in a process. RuntimeError when the program ends."""

  def __enter__(self):
    global _num_under_way, _is_registered
    with _lock:
      if not _is_registered:
        # Now, as what was registered last comes first: before TensorFlow's end.
        atexit.register(_end)
        _is_registered = True
      _num_under_way += 1
    try:
      _check_not_ending()
    except RuntimeError:
      self.__exit__()
      raise

  def __exit__(self, *_):
    global _num_under_way
    with _lock:
      _num_under_way -= 1


def _end():
  """Ends all processes, and waits until a stage that still lives asks for no more: Python must not end within a call.

  TensorFlow would wait for that call permanently.
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


def apart(call, processes, *arguments):
  """Calls it in another thread, if this is the main one, which Ctrl-C may interrupt anywhere: a process would be lost."""
  if not processes or threading.current_thread() is not threading.main_thread():
    return call(*arguments)
  outcome = concurrent.futures.Future()

  def run():
    try:
      outcome.set_result(call(*arguments))
    except BaseException as error:
      outcome.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return outcome.result()


def told(code):
  """What a process has ended with, in words."""
  return f"exit status {code}" if code >= 0 else f"signal {-code}" + " (out of memory, perhaps)" * (code == -9)


class _Worker:
  """A process, or the place for one."""

  def __init__(self, functions):
    self._functions = functions
    self._process = self._connection = None
    self._inputs = self._outputs = self._pipe = None
    self._known, self._number = set(), 0
    # Held while it is called, or forgotten.
    self._lock = threading.Lock()

  def is_alive(self):
    process = self._process
    return process is not None and process.poll() is None

  def is_needed(self, may_end):
    """Whether there is a process, or something of it that cannot be given back now. Ends it if it may end and is idle."""
    if not self._lock.acquire(blocking=False):
      return True
    try:
      if self.is_alive() and not may_end:
        with contextlib.suppress(ConnectionError):
          self._tell_what_is_gone()
        return True
      self._end()
      return False
    finally:
      self._lock.release()

  def call(self, *arguments):
    with self._lock:
      return self._call(*arguments)

  def _call(self, sent, seed, names, values):
    in_call = False
    try:
      if not self.is_alive():
        self._start()
      self._tell_what_is_gone()
      if sent.name not in self._known:
        paths = [path for path in sys.path if isinstance(path, str)]
        self._connection.send(("define", sent.name, paths, len(sent.pickled)), sent.pickled)
        self._functions[sent.name] = sent
        self._known.add(sent.name)
      described = self._inputs.write(values)
      in_call, self._number = True, self._number + 1
      self._connection.send(("call", self._number, sent.name, seed, names, described))
      kind, number, *reply = self._connection.receive()
      if number != self._number:
        raise RuntimeError("A process has answered another call than the one that was made.")
    except (EOFError, ConnectionError):
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(_SELF_END)
      raise Died(self._end(), in_call) from None
    except BaseException:
      # What has come of it is not known.
      self._end()
      raise
    if kind == "raised":
      raise Raised(*reply)
    described, is_unsteady, seconds = reply
    return self._outputs.read(described), is_unsteady, seconds

  def _tell_what_is_gone(self):
    gone = [name for name in self._known if name not in self._functions]
    if gone:
      self._connection.send(("forget", gone))
      self._known.difference_update(gone)

  def _end(self):
    """Ends the process, and waits for it: it must not answer once more. Returns what it has ended with."""
    process = self._process
    if process is None:
      return 0
    self.kill()
    code = process.wait()
    self._forget()
    return code

  def _start(self):
    self._forget()
    ours, theirs = socket.socketpair()
    memories = [channel.new_memory() for _ in range(2)]
    # Of which the process has the other end: that it is closed says that this process has ended.
    ends, self._pipe = os.pipe()
    try:
      descriptors = [theirs.fileno(), *memories, ends]
      self._process = subprocess.Popen(
          [sys.executable, str(_WORKER), *map(str, descriptors)], pass_fds=descriptors, stdin=subprocess.DEVNULL,
          env={"PYTHONHASHSEED": "0", **os.environ, **_ONE_THREAD})
    except BaseException:
      ours.close()
      for each in (*memories, self._pipe):
        os.close(each)
      self._pipe = None
      raise
    finally:
      theirs.close()
      os.close(ends)
    self._connection = channel.Connection(ours, _descriptor_of(self._process.pid))
    self._inputs, self._outputs = map(channel.Memory, memories)
    self._known = set()
    self._connection.receive()

  def kill(self):
    process = self._process
    if process is not None:
      with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)

  def _forget(self):
    if self._connection is not None:
      self._connection.close()
      self._inputs.close()
      self._outputs.close()
      os.close(self._pipe)
      self._connection = self._inputs = self._outputs = self._process = self._pipe = None


def _descriptor_of(process):
  """A descriptor that can be read when the process has ended; None where the system has none."""
  try:
    return os.pidfd_open(process)
  except (AttributeError, OSError):
    return None
