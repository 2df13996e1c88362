"""Run as a program: calls functions for the trainer until that is gone, or has not asked for a while.

    python worker.py SOCKET MEMORY_TO_READ MEMORY_TO_WRITE SECONDS, the first three file descriptors
"""
import contextlib
import ctypes
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import traceback

import numpy as np

if __name__ == "__main__":
  sys.path.pop(0)  # This folder, whose modules are no one's business.
  sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
  import channel
  sys.path.pop(0)
  del sys.modules["channel"]  # Others may have a module of this name.

# How often it looks whether the trainer lives.
_EVERY = 1.0
# Into which objects a search for random states goes: so many steps from the function.
_DEEP = 8
# Of libraries that draw from a state of their own.
_SEEDERS = ("set_random_seed", "set_random_state")


class Seeder:
  """What a function draws from besides its generator: seeded for each sample."""

  def __init__(self, function):
    self._found, seen = [], set()
    self._search(function, _DEEP, seen)

  def _search(self, value, deep, seen):
    if id(value) in seen or isinstance(value, (str, bytes, int, float, np.ndarray, type, type(np))):
      return
    seen.add(id(value))
    for name in _SEEDERS:
      if callable(getattr(value, name, None)):
        self._found.append((name, getattr(value, name)))
        return  # It seeds what it holds.
    if deep == 0:
      return
    inner = []
    if isinstance(value, dict):
      inner += value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
      inner += value
    code = getattr(value, "__code__", None)
    if code is not None:
      names = sorted(names_in(code))
      used = [value.__globals__[name] for name in names if name in value.__globals__]
      inner += used
      # Of the user's modules what is used of them.
      inner += [vars(each)[name] for each in used if isinstance(each, type(np)) for name in names if name in vars(each)]
      inner += map(contents_of, value.__closure__ or ())
      inner += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    inner += [getattr(value, name) for name in ("func", "args", "keywords", "__self__", "__func__") if hasattr(value, name)]
    inner += getattr(value, "__dict__", {}).values()
    if code is None and callable(value):
      inner.append(type(value).__call__)
    for each in inner:
      # An object may not like to be looked at.
      with contextlib.suppress(Exception):
        self._search(each, deep - 1, seen)

  def num_found(self):
    return len(self._found) + ("torch" in sys.modules)

  def seed(self, number):
    """`number`: of 32 bits."""
    random.seed(number)
    np.random.seed(number)
    if "torch" in sys.modules:
      sys.modules["torch"].manual_seed(number)
    for name, method in self._found:
      method(number) if name == "set_random_seed" else method(seed=number)


def names_in(code):
  """The names that compiled code uses, and those of the functions in it."""
  return set(code.co_names).union(*(names_in(each) for each in code.co_consts if hasattr(each, "co_names")))


def contents_of(cell):
  """What a cell of a closure holds; None if it is empty."""
  try:
    return cell.cell_contents
  except ValueError:
    return None


class Function:
  """A function of the user's, with what it draws from."""

  def __init__(self, function):
    self._function, self._seeder, self._is_known = function, Seeder(function), False

  def call(self, seed, names, read):
    """What it makes of arrays, as a list of arrays and bytes.

    `names`: None for the image alone. `read()` gives the arrays, which are its own.
    """
    made = self._called(seed, names, read())
    if not self._is_known:
      # The first call may have imported, or made, what draws from a state of its own.
      self._is_known, seeder = True, Seeder(self._function)
      is_new = seeder.num_found() != self._seeder.num_found()
      self._seeder = seeder
      if is_new:
        _lower_threads()
        made = self._called(seed, names, read())
    return made

  def _called(self, seed, names, values):
    # A seed may be negative, which NumPy refuses.
    sequence = np.random.SeedSequence([number & 0xFFFFFFFFFFFFFFFF for number in seed])
    self._seeder.seed(int(sequence.generate_state(1)[0]))
    rng = np.random.Generator(np.random.PCG64(sequence))
    if names is None:
      return [_as_array(self._function(values[0], rng))]
    made = self._function(**dict(zip(names, values)), rng=rng)
    if not isinstance(made, dict) or any(name not in made for name in names):
      raise TypeError(
          f"it must return a dict with the entries {list(names)}, got "
          + (f"one with {list(made)}" if isinstance(made, dict) else f"a {type(made).__name__}") + ".")
    return [_as_array(made[name]) for name in names]


def _as_array(value):
  """An array of a dtype that TensorFlow has, or bytes."""
  if value is None:
    raise TypeError("it returned None. Let it end with `return`.")
  if isinstance(value, (bytes, str)):
    return value if isinstance(value, bytes) else value.encode()
  array = np.asarray(value)
  if array.dtype.kind in "SU":
    array = array.astype(object)
  if array.dtype == object:
    texts = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    for each in texts:
      if not isinstance(each, bytes):
        raise TypeError(f"it returned an array of {type(each).__name__}. Let it be numbers, or strings.")
    made = np.empty(len(texts), object)
    made[:] = texts
    return made.reshape(array.shape)
  if array.dtype.kind in "Mm" or array.dtype.names or array.dtype.itemsize > 16 or array.dtype == np.longdouble:
    raise TypeError(f"it returned an array of {array.dtype}, which TensorFlow has not. Convert it.")
  return array.astype(array.dtype.newbyteorder("="), copy=False)


def told():
  """The traceback of an error that is being handled, in letters that any encoding has."""
  return traceback.format_exc().encode("utf-8", "backslashreplace").decode()


def _watch(parent):
  """Ends this process when the trainer has ended, also one that was killed."""
  while os.getppid() == parent:
    time.sleep(_EVERY)
  os._exit(0)


def _keep_memory():
  """Lets the C library use large blocks again, where it would get each from the system, page by page."""
  with contextlib.suppress(OSError, AttributeError):
    library = ctypes.CDLL(None)
    for option, size in ((-3, 1 << 26), (-1, 1 << 27)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
      library.mallopt(option, size)


def _lower_threads():
  for name, lower in (("cv2", "setNumThreads"), ("torch", "set_num_threads")):
    if name in sys.modules and hasattr(sys.modules[name], lower):
      getattr(sys.modules[name], lower)(0 if name == "cv2" else 1)


def main():
  number, read, write, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
  # Ctrl-C is for the trainer.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  _keep_memory()
  threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
  connection = channel.Connection(socket.socket(fileno=number))
  inputs, outputs = channel.Memory(read), channel.Memory(write)
  functions = {}
  # The trainer may be gone at any time.
  with contextlib.suppress(EOFError, ConnectionError):
    connection.send(("ready",))
    while connection.waits(seconds):
      serve(connection, inputs, outputs, functions)
    connection.send(("ended",))


def serve(connection, inputs, outputs, functions):
  """Does what the next message says. `functions`: those that came before, by name."""
  kind, *message = connection.receive()
  if kind == "define":
    name, pickled, path = message
    sys.path[:] = path
    try:
      functions[name] = Function(pickle.loads(pickled)), None
    except BaseException:
      functions[name] = None, told()
    _lower_threads()
    return
  name, seed, names, described = message
  began = time.perf_counter()
  function, failed = functions[name]
  try:
    if failed:
      raise RuntimeError(f"It cannot be made in another process:\n{failed}")
    reply = "made", outputs.write(function.call(seed, names, lambda: inputs.read(described)))
  except BaseException as error:
    reply = "raised", type(error).__name__, told()
  connection.send((*reply, time.perf_counter() - began))


if __name__ == "__main__":
  main()
