"""Layers that run Python functions in worker processes."""

import random
import sys
import threading
import time
from typing import Any, Callable
import weakref

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import machine, pipeline_warnings, tracing
from refurbish_tf._internal.processes import pickling, pool, worker
from .layers import checked_seed, checked_whole
from .other_libraries import adapted, check_is_decoded, keywords
from .target_kinds import BOXES, KEY_POINTS, WITH_SIDES

_MOST_PROCESSES = 1024
# Held while a function runs in this process, because all threads share the states that functions draw from.
_here = threading.RLock()
_UNSTEADY = (
  "fn of numpy_layer, {name}, returned two different results for the same sample and seed. It draws from something "
  "that is not seeded, such as a generator inside a library, or the clock. Draw from rng alone, or pass it on, for "
  "example as seed=int(rng.integers(2**31)). If results need not be the same after a restart, silence this: "
  f"{pipeline_warnings.SILENCE}."
)


def numpy_layer(
  fn: Callable[..., Any],
  output_signature: tf.TensorSpec | None = None,
  *,
  processes: int | None = None,
  name: str | None = None,
) -> Any:
  """Wraps a function in Python and NumPy, and runs it in worker processes, as many as there are CPU cores.

  >>> import numpy as np
  >>> def noise(image, rng):
  ...   return np.clip(image + rng.normal(0, 8, image.shape), 0, 255).astype(image.dtype)
  >>> layer = rtf.augment.numpy_layer(noise, processes=0)
  >>> layer(tf.zeros([32, 40, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 40, 3])
  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([8, 32, 40, 3], tf.uint8))
  >>> partial = [rtf.augment.numpy_layer(noise), rtf.augment.resize((32, 32))]
  >>> train = images.refurbish(partial, [rtf.augment.random_flip()], r=3)
  >>> train.element_spec.shape
  TensorShape([32, 32, 3])

  In a `tf.numpy_function` Python runs one thread at a time, regardless of the number of cores. Here each sample goes to
  a process through shared memory and comes back: about 0.2 ms for an image of 150 kB. So it pays for functions that
  take a millisecond or more, such as those of albumentations, torchvision and MONAI.

  The generator `rng` is made from the layer's seed. As long as the function draws from it alone, the same sample gets
  the same bytes in every process. For each sample the layer also seeds `random`, `numpy.random`, `torch` if it is
  imported, and everything that the function holds, or uses as a global variable, that is a random number generator or
  has a method `set_random_seed` (albumentations) or `set_random_state` (MONAI). A first call that takes less than a
  second is repeated, and a `rtf.PipelineWarning` reports it if the results differ.

  cloudpickle (`pip install 'refurbish_tf[python]'`) sends the function to the processes, as it is when the layer is
  called or traced. It may be a lambda or be defined in a notebook, and a script needs no `if __name__ == "__main__"`.
  Modules outside Python's own folders are sent with it. Global variables that it changes stay in its process. Processes
  end with this one, and five minutes after the last pipeline that uses them is gone.

  Args:
    fn: a transform of albumentations, imgaug, kornia, MONAI or torchvision, which is called as it expects, or a
      function, called as `fn(image, rng)`, with an array, `bytes` for a string, and a `numpy.random.Generator`; it may
      write into the array. It returns an array. With `targets` it is called by keywords, with the names of the targets,
      and returns a dict: `fn(image=..., mask=..., bboxes=..., rng=...)`. A target in a tuple is called `mask`,
      `bboxes`, `keypoints`, `second` (an image), `flow`, `vectors` or `disparity`, after its kind. Among these
      libraries, only albumentations accepts targets.
    output_signature: the `tf.TensorSpec` of its result. None: the dtype, the rank and the channels of the image, with
      unknown sides.
    processes: the number of processes, a whole number. Layers with the same number share them. None: one for each CPU
      core of this process or its container. 0: this process calls the function, one call at a time, for debugging.
    name: the name that errors show. None uses the name of `fn`.

  Returns:
    A function `layer(image, seed)` of a tensor of any shape and dtype, and a seed, int32 or int64 `[2]` as for
    `tf.random.stateless_uniform`. When it runs, it raises `tf.errors.InvalidArgumentError`, with the function's own
    traceback, if the function raises an error, or its result does not match `output_signature`; and
    `tf.errors.UnknownError` if a process dies twice on the same sample, for example for lack of memory: it is retried
    once.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
    ImportError: cloudpickle is not installed.
  """
  if not callable(fn):
    raise TypeError(f"fn of numpy_layer must be callable as fn(image, rng), got {fn!r}. Pass a function of arrays.")
  if output_signature is not None and not isinstance(output_signature, tf.TensorSpec):
    raise TypeError(
      f"output_signature of numpy_layer must be a tf.TensorSpec or None, got {output_signature!r}. Pass "
      "tf.TensorSpec([224, 224, 3], tf.uint8), with None for sides that vary."
    )
  if processes is not None:
    advice = "Leave it out for one per CPU core; 0 calls fn in this process."
    processes = checked_whole("processes of numpy_layer", processes, 0, _MOST_PROCESSES, advice)
  if name is not None and not isinstance(name, str):
    raise TypeError(f"name of numpy_layer must be a string or None, got {name!r}.")
  return NumpyLayer(fn, output_signature, processes, name)


class NumpyLayer:
  """A function that worker processes call."""

  def __init__(self, fn, output_signature, processes, name):
    self.fn, self._called, self._signature = fn, adapted(fn), output_signature
    self.processes = machine.processors() if processes is None else processes
    self.__name__ = name or getattr(self._called, "__name__", type(fn).__name__)
    # It is unknown whether a function moves pixels; True would mean that it certainly does.
    self.moves_pixels = False
    self._sent, self._here, self._has_warned = None, None, False
    # Seconds that the function took, added up over processes; when the first call began and the last one ended.
    self._lock, self.num_calls, self.busy_seconds, self.began, self.ended = threading.Lock(), 0, 0.0, None, None

  def __repr__(self):
    return f"numpy_layer({self.__name__})"

  def __reduce__(self):
    return NumpyLayer, (self.fn, self._signature, self.processes, self.__name__)

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image, seed):
    return self.with_targets(image, [], seed)[0]

  @tf.autograph.experimental.do_not_convert
  def with_targets(self, image, targets, seed):
    """Returns the image and a list of its targets. `targets`: triples of a path, a kind and a tensor."""
    image, seed = tf.convert_to_tensor(image), checked_seed(seed, self.__name__)
    tracing.note_layer(self)
    check_is_decoded(self._called, image)
    specs = [self._signature or _of_unknown_sides(image), *(_spec_behind(kind, each) for _, kind, each in targets)]
    names = [_name_in_call(path, kind) for path, kind, _ in targets]
    names = ("image", *keywords(self._called, self.fn, names, targets)) if targets else None
    if targets and "rng" in names:
      raise ValueError(
        f"fn of numpy_layer, {self.__name__}, gets its generator as rng, but a target has that name. Rename the target "
        "in Dataset.map first."
      )
    if targets and len(set(names)) < len(names):
      raise ValueError(
        f"fn of numpy_layer, {self.__name__}, gets the targets by their names, but two have the same name, got "
        f"{list(names)}. Put them into a dict in Dataset.map first, where each has its own name."
      )
    call = _Call(self, names, specs, targets)
    given = [seed, image, *(each for _, _, each in targets)]
    if tf.executing_eagerly():
      # `numpy_function` would cut zeros off the end of strings.
      made = [tf.convert_to_tensor(each) for each in call(*(each.numpy() for each in given))]
      return made[0], made[1:]
    dtypes = [spec.dtype for spec in specs]
    made = tf.nest.flatten(tf.numpy_function(_held_by_its_graph(call), given, dtypes, stateful=False))
    for each, spec in zip(made, specs):
      each.set_shape(spec.shape)
    return made[0], made[1:]

  def pool(self):
    return pool.pool_of(self.processes)

  def sent(self):
    """The function in its current state, for processes; None if it is called in this process."""
    if not self.processes:
      return None
    pickled = pickling.pickled(self._called, self.__name__)
    if self._sent is None or self._sent.pickled != pickled:
      self._sent = pool.Sent(pickled)
    return self._sent

  def call(self, sent, seed, names, values):
    """Calls the function with arrays; returns a list of them."""
    began, seconds = time.perf_counter(), 0.0
    try:
      if self.processes:
        made, is_unsteady, seconds = self.pool().call(sent, seed, names, values)
      else:
        made, is_unsteady, seconds = self._called_here(seed, names, values)
    except pool.Raised as raised:
      seconds = raised.seconds
      raise
    finally:
      self._count(began, seconds)
    if is_unsteady and not self._has_warned:
      self._has_warned = True
      pipeline_warnings.warn(_UNSTEADY.format(name=self.__name__))
    return made

  def _called_here(self, seed, names, values):
    with _here:
      entered = time.perf_counter()
      torch = sys.modules.get("torch")
      before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
      try:
        self._here = self._here or worker.Function(self._called)
        read = lambda: [each if isinstance(each, bytes) else np.array(each) for each in values]
        made = self._here.call(seed, names, read)
        # Copies, because the function may reuse its arrays for the next sample.
        made = [each if isinstance(each, bytes) else each.copy() for each in made]
      except BaseException as error:
        # The same error as from a process: a StopIteration would end the epoch.
        raise pool.Raised(type(error).__name__, worker.told(), time.perf_counter() - entered) from None
      finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch:
          torch.set_rng_state(before[2])
      return made, self._here.is_unsteady, time.perf_counter() - entered

  def counts(self):
    """The counts that `rtf.stats` shows."""
    with self._lock:
      span = (self.ended - self.began) * max(1, self.processes) if self.num_calls else 0
      return {
        "name": self.__name__,
        "processes": self.processes,
        "calls": self.num_calls,
        "seconds": self.busy_seconds,
        "busy": self.busy_seconds / span if span else 0.0,
      }

  def _count(self, began, seconds):
    with self._lock:
      self.began = began if self.began is None else self.began
      self.ended = time.perf_counter()
      self.num_calls += 1
      self.busy_seconds += seconds


def _held_by_its_graph(call):
  """Returns a function that makes `call` as long as the graph that is being traced lives.

  TensorFlow never frees a function that was given to `tf.numpy_function`, so the result must not hold call and layer.
  """
  graph = tf.compat.v1.get_default_graph()
  graph.refurbish_tf_calls = [*getattr(graph, "refurbish_tf_calls", ()), call]
  if call.sent:
    call.sent.traced.add(call)
  held, name = weakref.ref(call), call.layer.__name__

  def called(*arguments):
    call = held()
    if call is None:
      raise RuntimeError(
        f"fn of numpy_layer, {name}, is called for a tf.data.Dataset that is gone. Keep the dataset as long as "
        "something reads it."
      )
    return call(*arguments)

  # Used for the fingerprint of a store's samples.
  called.fingerprinted = lambda: held().layer.fn
  return called


class _Call:
  """What `tf.numpy_function` calls for a layer: it calls the layer's function and checks the results."""

  def __init__(self, layer, names, specs, targets):
    self.sent = layer.sent()
    # The results that have a row for each box or key point.
    self._has_rows = [number for number, (_, kind, _) in enumerate(targets, 1) if kind not in WITH_SIDES]
    self.layer, self._names, self._specs = layer, names, specs
    # NumPy's dtypes and shapes, with which the results of every call are compared.
    self._declared = [
      (spec.dtype.as_numpy_dtype, None if spec.shape.rank is None else tuple(spec.shape)) for spec in specs
    ]

  def __call__(self, seed, *values):
    whose = f"fn of numpy_layer, {self.layer.__name__},"
    try:
      with pool.UnderWay():
        made = pool.apart(self.layer.call, self.layer.processes, self.sent, tuple(seed.tolist()), self._names, values)
    except pool.Raised as raised:
      raise ValueError(f"{whose} raised {raised.name}:\n{raised.text}") from None
    except pool.Died as died:
      told = f"no process: each ends with {pool.told(died.code)} before it is ready. See its output above."
      if died.in_call:
        told = (
          f"ended its process twice for this sample, with {pool.told(died.code)}. Check what it does to memory: "
          "processes=0 calls it in this process."
        )
      raise RuntimeError(f"{whose} has {told}") from None
    for number in self._has_rows:
      if made[number].shape[:-1] != values[number].shape[:-1]:
        raise ValueError(
          f"{whose} must return as many rows as it gets, got {self._names[number]!r} of shape "
          f"{list(made[number].shape)} for one of {list(values[number].shape)}: other components, such as labels, "
          "would no longer match. Return zeros for a box that is gone, and let sanitize_boxes(with_rows=...) drop it."
        )
    return [self._checked(each, whose, number) for number, each in enumerate(made)]

  def _checked(self, value, whose, number):
    value = np.asarray(value, object) if isinstance(value, bytes) else value
    spec, (dtype, sides) = self._specs[number], self._declared[number]
    if number and value.dtype.kind == "f" and spec.dtype.is_floating:
      value = value.astype(dtype)  # Some libraries compute boxes in float64.
    fits = (
      sides is None
      or len(sides) == value.ndim
      and all(side in (None, there) for side, there in zip(sides, value.shape))
    )
    if value.dtype != dtype or not fits:
      dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
      what = f"the entry {self._names[number]!r}" if self._names else "its result"
      raise ValueError(
        f"{whose} must return as declared, {spec.dtype.name} of shape {spec.shape}, got {what} of {dtype.name} and "
        f"shape {value.shape}. {self._remedy(value, spec, dtype, number)}"
      )
    return value

  @staticmethod
  def _remedy(value, spec, dtype, number):
    if number:
      return "Convert its result."
    if spec.shape.rank == value.ndim == 3 and value.shape[0] == spec.shape[-1] != value.shape[-1]:
      return (
        "Its channels come first: leave out the transform that moves them, such as ToTensorV2, ToTensor or "
        "EnsureChannelFirst."
      )
    return (
      f"Pass output_signature=tf.TensorSpec({list(value.shape)}, tf.{dtype.name}), with None for sides that vary, or "
      "convert its result."
    )


def _of_unknown_sides(image):
  rank = image.shape.rank
  if rank is None:
    return tf.TensorSpec(None, image.dtype)
  return tf.TensorSpec([None] * (rank - 1) + ([image.shape[-1]] if rank > 2 else [None] * (rank > 0)), image.dtype)


def _spec_behind(kind, target):
  """The spec of a target after the function: maps of any size, as many boxes and key points as before."""
  if kind == "image":
    return _of_unknown_sides(target)
  shape = target.shape if kind not in WITH_SIDES or target.shape.rank is None else [None] * target.shape.rank
  return tf.TensorSpec(shape, target.dtype)


def _name_in_call(path, kind):
  """The keyword by which the function gets a target."""
  usual = {"bilinear": "mask", "image": "second", **dict.fromkeys(BOXES, "bboxes")}
  usual |= dict.fromkeys(KEY_POINTS, "keypoints")
  return next((key for key in reversed(path) if isinstance(key, str)), None) or usual.get(kind, kind)
