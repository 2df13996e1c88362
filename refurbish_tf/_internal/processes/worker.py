"""A program that calls functions for the trainer, until the trainer ends it or has died.

python worker.py SOCKET MEMORY_TO_READ MEMORY_TO_WRITE PIPE, all of them file descriptors
"""

import contextlib
import ctypes
import fcntl
import gc
import heapq
import itertools
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
  _here = os.path.dirname(os.path.abspath(__file__))
  # Python may have added this folder to the path, but functions must not import its modules.
  sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
  sys.path.insert(0, _here)
  import channel

  sys.path.pop(0)
  del sys.modules["channel"]  # The user may have a module of this name.

# Seconds between two checks that the trainer is alive.
_EVERY = 1.0
# Limits of a search for random states: steps from the function, objects examined and found, elements of one container.
_DEEP, _MOST, _MOST_FOUND, _MOST_OF_EACH = 8, 10_000, 50_000, 1000
# Types that cannot hold a random state.
_PLAIN = (str, bytes, int, float, complex, np.generic, np.ndarray, type(np), type(None))
# The first call is repeated, to check that the result is the same, unless it took more seconds than this.
_LONGEST_CHECK = 1.0


class Seeder:
  """Finds the random states that a function uses besides its generator, and seeds them for each sample."""

  def __init__(self, function):
    # For each state, a function that seeds it with a number of 32 bits.
    self._found = []
    # Objects by id. They are kept alive, because Python reuses the ids of deleted objects.
    self._seen = {}
    # Members of large containers come last, so that they do not exhaust the limits before other objects.
    order = itertools.count()
    found, found_so_far = [(1, next(order), 0, function)], 0
    while found and len(self._seen) < _MOST:
      many, _, deep, value = heapq.heappop(found)
      held = [each for each in self._look_at(value) if not issubclass(type(each), _PLAIN)]
      if deep < _DEEP and found_so_far < _MOST_FOUND:
        found_so_far += len(held)
        for each in held:
          heapq.heappush(found, (many * len(held), next(order), deep + 1, each))

  def _look_at(self, value):
    """Notes how to seed an object, or returns what it holds."""
    if id(value) in self._seen:
      return []
    self._seen[id(value)] = value
    # Examining an object may raise any exception.
    with contextlib.suppress(Exception):
      seed = _seed_of(value)
      if seed is None:
        return [] if isinstance(value, type) else _inside(value)
      self._found.append(seed)
    return []

  def num_found(self):
    return len(self._found) + ("torch" in sys.modules)

  def seed(self, number):
    """Seeds all states with a `number` of 32 bits."""
    random.seed(number)
    np.random.seed(number)
    if "torch" in sys.modules:
      sys.modules["torch"].manual_seed(number)
    for place, seed in enumerate(self._found):
      # Every state gets a different seed. None gets `number`, which seeds the modules.
      seed((number + 1 + place) % 2**32)


def _inside(value):
  """The objects that `value` holds or uses, in which the search for random states continues."""
  inner = []
  if isinstance(value, dict):
    inner += itertools.islice(value.values(), _MOST_OF_EACH)
  elif isinstance(value, (list, tuple, set, frozenset)):
    inner += itertools.islice(value, _MOST_OF_EACH)
  if attribute_of(value, "__code__") is not None:
    inner += used_by(value)
    inner += map(contents_of, value.__closure__ or ())
    inner += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
  names = ("func", "args", "keywords", "__self__", "__func__", "__wrapped__", "fget")
  inner += [attribute_of(value, name) for name in names]
  return inner + list(itertools.islice(held_by(value).values(), _MOST_OF_EACH))


def _seed_of(value):
  """Returns a function that seeds `value` with a number if `value` is or has a random state, otherwise None."""
  if isinstance(value, type):
    return None
  if isinstance(value, np.random.Generator):
    made = type(value.bit_generator)

    def set_state(number):
      value.bit_generator.state = made(number).state

    return set_state
  if isinstance(value, (np.random.RandomState, random.Random)):
    return value.seed
  # The first is for PyTorch's generators, the second for albumentations. MONAI has `set_random_state`.
  for name in ("manual_seed",) * (type(value).__name__ == "Generator") + ("set_random_seed",):
    if callable(attribute_of(value, name)):
      return attribute_of(value, name)
  if callable(attribute_of(value, "set_random_state")):
    return lambda number: value.set_random_state(seed=number)
  return None


def used_by(function):
  """The global variables that a function uses, and the attributes of modules, including those that it imports."""
  names = sorted(names_in(function.__code__))
  found = [function.__globals__[name] for name in names if name in function.__globals__]
  found += [sys.modules[name] for name in names if name in sys.modules]
  modules = [each for each in found if isinstance(each, type(np))]
  for module in modules:  # The loop appends to `modules`.
    for name in names:
      each = vars(module).get(name)
      if isinstance(each, type(np)):
        modules += [each] * (not any(each is other for other in modules))
      elif each is not None:
        found.append(each)
  return found


def held_by(value):
  """The attributes of an object by name, including those of its class if the class is the user's own."""
  held = dict(attribute_of(value, "__dict__") or {})
  for each in type(value).__mro__:
    slots = each.__dict__.get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
      with contextlib.suppress(AttributeError):
        held.setdefault(name, object.__getattribute__(value, name))
    if _is_own(each):
      held.update(
        (name, inner)
        for name, inner in vars(each).items()
        if name not in held
        and (name == "__call__" or not name.startswith("__"))
        and not hasattr(type(inner), "__set__")
      )
  return held


def attribute_of(value, name):
  """An attribute, or None. `__getattr__` is not called: it may make up attributes without end."""
  try:
    return object.__getattribute__(value, name)
  except AttributeError:
    return None


def _is_own(kind):
  """Whether a class is the user's own, not one of Python or of an installed package."""
  if kind.__module__.split(".")[0] in sys.stdlib_module_names - {"__main__"}:
    return False
  # A class that was pickled by value is in no module.
  file = getattr(sys.modules.get(kind.__module__), "__file__", None)
  installed = {"site-packages", "dist-packages", "refurbish_tf"}
  return not isinstance(file, str) or installed.isdisjoint(file.split(os.sep))


def names_in(code):
  """The names that compiled code uses, including the functions in it."""
  return set(code.co_names).union(*(names_in(each) for each in code.co_consts if hasattr(each, "co_names")))


def contents_of(cell):
  """What a cell of a closure holds; None if it is empty."""
  try:
    return cell.cell_contents
  except ValueError:
    return None


class Function:
  """A user's function, with the random states that it uses.

  Attributes:
    is_unsteady: whether it has returned two different results for the same input and seed.
  """

  def __init__(self, function):
    self._function, self._seeder = function, Seeder(function)
    self._num_modules, self._is_known, self.is_unsteady = len(sys.modules), False, False

  def call(self, seed, names, read):
    """Calls the function. Returns its results, as a list of arrays and bytes.

    `names`: None for the image alone. `read()` returns a new copy of the arrays, which the function may change.
    """
    began = time.perf_counter()
    made = self._called(seed, names, read())
    if not self._is_known or len(sys.modules) != self._num_modules:
      # The call may have imported modules, or made objects, that have random states.
      self._num_modules, seeder = len(sys.modules), Seeder(self._function)
      is_new = seeder.num_found() != self._seeder.num_found()
      self._seeder = seeder
      if is_new:
        _lower_threads()
        made = self._called(seed, names, read())
    if not self._is_known:
      self._is_known = True
      if time.perf_counter() - began < _LONGEST_CHECK:
        # Copies, because the function may write each result to the same array.
        made = [each if isinstance(each, bytes) else each.copy() for each in made]
        self.is_unsteady = not all(map(_is_same, made, self._called(seed, names, read())))
    return made

  def _called(self, seed, names, values):
    # A seed may be negative, which NumPy refuses.
    sequence = np.random.SeedSequence([number & 0xFFFFFFFFFFFFFFFF for number in seed])
    self._seeder.seed(int(sequence.generate_state(1)[0]))
    rng = np.random.Generator(np.random.PCG64(sequence))
    if names is None:
      return [_as_array(self._function(values[0], rng))]
    made = self._function(**dict(zip(names, values)), rng=rng)
    if not isinstance(made, dict) or {*made} != {*names}:
      got = f"one with {list(made)}" if isinstance(made, dict) else f"a {type(made).__name__}"
      raise TypeError(
        f"it must return a dict with exactly the entries {list(names)}, got {got}. Other entries would be lost."
      )
    return [_as_array(made[name]) for name in names]


def _is_same(one, other):
  if isinstance(one, bytes) or isinstance(other, bytes):
    return one is other or isinstance(one, bytes) and isinstance(other, bytes) and one == other
  if (one.dtype, one.shape) != (other.dtype, other.shape):
    return False
  return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


def _as_array(value):
  """An array of a dtype that TensorFlow has, or bytes."""
  if value is None:
    raise TypeError("it returned None. Let it end with `return`.")
  if type(value).__name__ == "MetaTensor":
    raise TypeError(
      "it returned MONAI's MetaTensor, but a tensor has no affine or other metadata. Apply all transforms that need "
      "them in this function, and return np.asarray(tensor)."
    )
  if isinstance(value, (bytes, str)):
    return value if isinstance(value, bytes) else value.encode()
  if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
    raise TypeError("it returned a masked array, but a tensor has no mask. Fill it, for example with array.filled(0).")
  array = np.asarray(value)
  if array.dtype.kind in "SU":
    # As an array of objects: in an array of strings, NumPy would cut zeros off the end.
    array = np.asarray(value, object)
  if array.dtype == object:
    texts = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    for each in texts:
      if not isinstance(each, bytes):
        raise TypeError(f"it returned an array of {type(each).__name__}. Return an array of numbers or strings.")
    made = np.empty(len(texts), object)
    made[:] = texts
    return made.reshape(array.shape)
  if array.dtype.kind in "Mm" or array.dtype.names or array.dtype.itemsize > 16 or array.dtype == np.longdouble:
    raise TypeError(f"it returned an array of {array.dtype}, which TensorFlow lacks. Convert it to another dtype.")
  return array.astype(array.dtype.newbyteorder("="), copy=False)


def told():
  """The traceback of the error that is being handled, without characters that UTF-8 cannot encode."""
  return traceback.format_exc().encode("utf-8", "backslashreplace").decode()


def _watch(parent):
  """Ends this process when the trainer has ended, even if it was killed."""
  while os.getppid() == parent:
    time.sleep(_EVERY)
  os._exit(0)


def _lower_threads():
  for name, lower in (("cv2", "setNumThreads"), ("torch", "set_num_threads")):
    if name in sys.modules and hasattr(sys.modules[name], lower):
      getattr(sys.modules[name], lower)(0 if name == "cv2" else 1)


def _close_all(descriptors):
  for each in descriptors:
    with contextlib.suppress(OSError):
      os.close(each)


def main():
  descriptors = list(map(int, sys.argv[1:]))
  number, read, write, pipe = descriptors
  # Processes that the function starts must not inherit these, or the trainer would not notice that this one has died.
  for each in descriptors:
    os.set_inheritable(each, False)
  os.register_at_fork(after_in_child=lambda: _close_all(descriptors))
  # The terminal also sends Ctrl-C to this process, but only the trainer should react.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # Lets the C library reuse large blocks; otherwise it would get each from the system, page by page.
  with contextlib.suppress(OSError, AttributeError):
    for option, size in ((-3, 1 << 26), (-1, 1 << 27)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
      ctypes.CDLL(None).mallopt(option, size)
  # Ends this process, even in a long call of C code, when no process holds the other end of the pipe any more.
  fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
  fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends the process.
  threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
  connection = channel.Connection(socket.socket(fileno=number))
  inputs, outputs = channel.Memory(read), channel.Memory(write)
  functions = {}
  # The connection breaks if the trainer ends.
  with contextlib.suppress(EOFError, ConnectionError):
    connection.send(("ready",))
    while True:
      serve(connection, inputs, outputs, functions)


def serve(connection, inputs, outputs, functions):
  """Handles the next message. `functions`: those that were defined before, by name."""
  kind, *message = connection.receive()
  if kind == "define":
    name, paths, size = message
    pickled = connection.read(size)
    sys.path[:] = paths
    try:
      functions[name] = Function(pickle.loads(pickled)), None
    except BaseException:
      functions[name] = None, told()
    _lower_threads()
    return
  if kind == "forget":
    for name in message[0]:
      del functions[name]
    gc.collect()  # Functions that were pickled by value are in reference cycles.
    return
  number, name, seed, names, described = message
  began = time.perf_counter()
  function, failed = functions[name]
  try:
    if failed:
      raise RuntimeError(f"It cannot be made in another process:\n{failed}")
    made = outputs.write(function.call(seed, names, lambda: inputs.read(described)))
    reply = "made", number, made, function.is_unsteady
  except BaseException as error:
    reply = "raised", number, type(error).__name__, told()
  connection.send((*reply, time.perf_counter() - began))


if __name__ == "__main__":
  main()
