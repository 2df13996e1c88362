"""Processes that call Python functions: one pool for each number of processes, made on demand."""

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

# Processes end this many seconds after their last call, but not while a stage that has called them exists.
IDLE_SECONDS = 300.0
_WORKER = pathlib.Path(__file__).parent / "worker.py"
# Limits libraries to one thread in each process, so that the processes do not compete for the cores.
_ONE_THREAD = dict.fromkeys(
  "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS BLIS_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS "
  "OPENCV_FOR_THREADS_NUM".split(),
  "1",
)
# How many seconds the end of the program waits for a function that runs in this process.
_LONGEST_END = 4.0
# How many seconds a process that has closed its connection has to exit by itself, with its own exit status.
_SELF_END = 5
# A call gives up when this many processes have ended before they were ready.
_MOST_STARTS = 10
_lock = threading.Lock()
# The number of running calls, whether new ones are forbidden, and whether `_end` is registered.
_num_under_way, _ending, _is_registered = 0, False, False
_seconds_of_functions = 0.0
# The pool for each number of processes.
_pools: dict[int, Pool] = {}
_names = itertools.count()


class Raised(Exception):
  """The function raised an error, with this name and traceback, after this many seconds."""

  def __init__(self, name, text, seconds):
    super().__init__(name, text, seconds)
    self.name, self.text, self.seconds = name, text, seconds


class Died(Exception):
  """The process ended. `code`: as in `subprocess`, negative for a signal. `in_call`: whether it was in a call."""

  def __init__(self, code, in_call):
    super().__init__(code, in_call)
    self.code, self.in_call = code, in_call


def pool_of(size):
  """The pool of `size` processes. Raises RuntimeError in a process that was forked from the one that uses pools."""
  with _lock:
    is_forked = any(pool.parent != os.getpid() for pool in _pools.values())
    if not is_forked and size not in _pools:
      _pools[size] = Pool(size)
  if is_forked:
    raise RuntimeError(
      "numpy_layer cannot run in a process that was forked from one that uses it, because the two would read each "
      "other's samples. Start processes with spawn instead of fork, or pass processes=0."
    )
  return _pools[size]


def cpu_seconds():
  """The CPU seconds of this process, plus the seconds of functions that other processes have called for it."""
  return time.process_time() + _seconds_of_functions


class Sent:
  """A pickled function for processes, which drop it once nothing in this process refers to this object."""

  def __init__(self, pickled):
    self.name, self.pickled = next(_names), pickled
    # The calls that were traced into a dataset or a `tf.function`, as long as these exist.
    self.traced = weakref.WeakSet()


class Pool:
  """At most `size` processes."""

  def __init__(self, size):
    self.size, self.parent = size, os.getpid()
    # The `Sent` functions that were called, by name.
    self._functions = weakref.WeakValueDictionary()
    self._workers = [_Worker(self._functions) for _ in range(size)]
    # The most recently used worker is used first, so that others can stay idle.
    self._idle = queue.LifoQueue()
    for worker in self._workers:
      self._idle.put(worker)
    self._lock = threading.Lock()
    self._watcher, self._used = None, 0.0

  def call(self, sent, seed, names, values):
    """Waits for a free process and calls a function in it. If the process dies, the call is repeated once.

    Returns a list of arrays, whether the function has returned different results for one seed, and the seconds that it
    took. Raises `Raised`, or `Died` if the second process also dies.
    """
    deaths = deaths_before = 0
    while True:
      worker = self._idle.get()
      try:
        _check_not_ending()  # The program may have begun to end in the meantime.
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
    """Starts the thread that ends processes that are no longer needed, and cleans up after those that have ended."""
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
        # `sum` and not `any`, because every worker must be checked.
        if not sum(worker.is_needed(may_end) for worker in self._workers):
          self._watcher = None
          return

  def kill(self):
    """Ends all processes, which also ends the calls that wait for them."""
    for worker in self._workers:
      worker.kill()


def _count(seconds):
  global _seconds_of_functions
  with _lock:
    _seconds_of_functions += seconds


def _check_not_ending():
  if _ending:
    raise RuntimeError("The program is ending and calls no more functions.")


class UnderWay:
  """Entered while a function is called, in this process or another. RuntimeError if the program is ending."""

  def __enter__(self):
    global _num_under_way, _is_registered
    with _lock:
      if not _is_registered:
        # Handlers run in reverse order. Because it is registered only now, this one runs before TensorFlow's.
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
  """Ends all processes, and waits until the remaining stages make no more calls: Python must not end during a call.

  TensorFlow would wait for that call forever.
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
  """Calls `call`. If it uses processes, not in the main thread: Ctrl-C could interrupt it there, and lose a process."""
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
  """How a process ended, in words."""
  return f"exit status {code}" if code >= 0 else f"signal {-code}" + " (perhaps out of memory)" * (code == -9)


class _Worker:
  """A slot for a process, which may not be running."""

  def __init__(self, functions):
    self._functions = functions
    self._process = self._connection = None
    self._inputs = self._outputs = self._pipe = None
    self._known, self._number = set(), 0
    # Held during a call, and while a process is ended or forgotten.
    self._lock = threading.Lock()

  def is_alive(self):
    process = self._process
    return process is not None and process.poll() is None

  def is_needed(self, may_end):
    """Whether a process is running. Ends it if it is idle and `may_end`, and cleans up after one that has died."""
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
        raise RuntimeError("A process has answered a different call from the one that was made.")
    except (EOFError, ConnectionError):
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(_SELF_END)
      raise Died(self._end(), in_call) from None
    except BaseException:
      # The process may be in any state, so it is ended.
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
    """Ends the process and waits for it, so that it cannot answer any more. Returns its exit code."""
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
    # This process keeps the write end. When this process ends, the pipe closes, and the worker ends itself.
    ends, self._pipe = os.pipe()
    try:
      descriptors = [theirs.fileno(), *memories, ends]
      self._process = subprocess.Popen(
        [sys.executable, str(_WORKER), *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env={"PYTHONHASHSEED": "0", **os.environ, **_ONE_THREAD},
      )
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
  """A descriptor that becomes readable when the process has ended; None if the system cannot make one."""
  try:
    return os.pidfd_open(process)
  except (AttributeError, OSError):
    return None
