"""Measures what the layers of an augmentation cost and how many outcomes they have, for `rtf.recommend_split`."""
import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import statistics
import time

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import none_tensor

from refurbish_tf import echo_op
from refurbish_tf._internal import dataset_graph, tracing
from refurbish_tf._internal.processes import pool
from refurbish_tf.augment import composition
from refurbish_tf.augment.targets import layer_name

# Turns of each pipeline that is measured; the median counts.
ROUNDS = 7
# Samples of a first, rough measurement, which tells how many samples fit into the time.
PROBE_SAMPLES = 4
# At most, of the samples kept for measuring before and behind every layer.
MAX_BYTES = 2**29
# The most samples and bytes taken from a pipeline at a time. Larger blocks malloc requests from the system each time
# anew.
MAX_WINDOW = 256
MAX_WINDOW_BYTES = 2**23
# Outcomes are counted with at least this many seeds. If no two draws are the same, there are hundreds of outcomes.
FEWEST_DRAWS = 64
# If no two of these draws are the same, there are many thousands of outcomes.
UNBOUNDED_DRAWS = 1024
# All outcomes count as seen when each was drawn this often.
EACH_DRAWN = 4
# Outcomes count as equally likely if their effective number is this share of their number.
ALMOST_EQUAL = 0.8
# More outcomes make no difference to a training run of hundreds of epochs.
MOST_DRAWS = 4096
# A flat image hides what a layer does, so the sample with the most outcomes counts.
COUNTED_SAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Costs:
  """CPU seconds per sample. All but `memory` are beyond what reading from memory takes.

  Attributes:
    read: of reading the dataset.
    memory: of reading a sample from memory.
    standard: of all layers in one parallel `map` of tf.data.
    stage: of a stage that does nothing.
    partial: of the first 1, 2, ... layers on a stage's workers.
    final: of all layers behind the first 1, 2, ... there; one value fewer.
  """
  read: float
  memory: float
  standard: float
  stage: float
  partial: tuple
  final: tuple

  def layers(self):
    """What each layer costs alone."""
    count = len(self.partial)
    # The cost of all layers before, and of all layers behind, each place.
    before, behind = (self.stage, *self.partial), (self.partial[-1], *self.final, self.stage)
    times = []
    for i in range(count):
      # The difference of the two smaller times is more exact.
      by_partial = before[i + 1] - before[i]
      by_final = behind[i] - behind[i + 1]
      times.append(max(0.0, by_partial if before[i + 1] <= behind[i] else by_final))
    return tuple(times)


class Measurement:
  """Measures layers on the first samples of a dataset, kept as they are before and behind each layer."""

  def __init__(self, layers, dataset, num_samples, max_seconds, targets=None):
    self._layers = layers
    self._targets = targets
    self._dataset = dataset
    self._max_seconds = max_seconds
    rng = np.random.default_rng(0)
    # Their number is odd, so that a seed does not meet the same sample again soon.
    self._seeds = tf.data.Dataset.from_tensor_slices(rng.integers(2**31, size=[16_383, 2], dtype=np.int32)).repeat()
    self._alone = [self._part(i, i + 1) for i in range(len(layers))]

    inputs = self._prepare(PROBE_SAMPLES)
    size = sum(samples.sample_bytes for samples in inputs)
    # A layer at place i of n is in n - i of the partial augmentations and in i of the final ones.
    per_sample = len(layers) * sum(self._probe(position, inputs[position]) for position in range(len(layers)))
    affordable = max_seconds / ((ROUNDS + 1) * max(per_sample, 1e-9))
    number = int(min(num_samples, MAX_BYTES / max(1, size), max(affordable, 2 * PROBE_SAMPLES)))
    # A power of two, so that it is a multiple of the window.
    self._inputs = self._prepare(2 ** int(math.log2(max(1, number))))

  @property
  def sample_bytes(self):
    """Bytes of a sample behind each layer."""
    return [layer_input.sample_bytes for layer_input in self._inputs[1:]]

  def _part(self, start, stop):
    return composition.compose_part(self._layers, start, stop, self._targets, clips=True)

  def _prepare(self, number):
    """The inputs of each layer, and the outputs of the last one, for `number` samples."""
    prepared = [_Samples(self._dataset.take(number))]
    for position in range(len(self._layers)):
      with _naming(self._layers, position):
        prepared.append(_Samples(self._map(prepared[-1].dataset, self._alone[position])))
    return prepared

  def _probe(self, position, samples):
    """Roughly the CPU seconds per sample of a layer."""
    outputs = iter(self._map(samples.dataset.repeat(), self._alone[position]))
    # The first time includes one-off work, such as tracing.
    for _ in range(2):
      began = _cpu_time()
      for _ in range(4 * PROBE_SAMPLES):
        next(outputs)
    return (_cpu_time() - began) / (4 * PROBE_SAMPLES)

  def _seeded(self, dataset):
    return tf.data.Dataset.zip((dataset, self._seeds))

  def _map(self, dataset, function):
    return self._seeded(dataset).map(functools.partial(_call, function), num_parallel_calls=dataset_graph.PLAIN_MAP_CALLS)

  def costs(self):
    """Measures all partial and final augmentations in turns.

    Each runs in a `map`: its buffer is full whenever it is idle, so a turn computes as many samples as it takes from
    it. A stage's workers would run several turns ahead. The costs of a map and of workers alone are measured with a
    function that does nothing.
    """
    count, source = len(self._layers), self._inputs[0]
    memory = source.dataset.repeat()
    pipelines = {
        "read": self._windows(self._dataset.repeat(), source),
        "memory": self._windows(self._seeded(memory), source),
        "map": self._windows(self._map(memory, _do_next_to_nothing), source),
        "stage": self._windows(echo_op.AugmentDataset(
            self._seeded(memory), functools.partial(_call, _do_next_to_nothing), None), source)}
    for at in range(1, count + 1):
      pipelines["partial", at] = self._windows(
          self._map(memory, self._part(0, at)), self._inputs[at])
    for at in range(1, count):
      pipelines["final", at] = self._windows(
          self._map(self._inputs[at].dataset.repeat(), self._part(at, count)), self._inputs[count])
    measured = _cpu_seconds(pipelines, source.num_samples, self._max_seconds)
    memory = measured["memory"]
    stage = max(0.0, measured["stage"] - memory)

    def on_workers(name):
      return stage + max(0.0, measured[name] - measured["map"])

    return Costs(
        read=max(0.0, measured["read"] - memory), memory=memory, stage=stage,
        standard=max(0.0, measured["partial", count] - memory),
        partial=tuple(on_workers(("partial", at)) for at in range(1, count + 1)),
        final=tuple(on_workers(("final", at)) for at in range(1, count)))

  def _windows(self, dataset, samples):
    """The dataset in windows, which unlike `batch` copy nothing, and the number of elements of a window."""
    size = min(MAX_WINDOW, samples.num_samples, max(1, int(MAX_WINDOW_BYTES / max(1, samples.sample_bytes))))
    while samples.num_samples % size:
      size -= 1
    options = tf.data.Options()
    # Otherwise a window is computed ahead, possibly in the turn of another pipeline.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return dataset.window(size).with_options(options), size

  def count_outcomes(self, position):
    """Returns what `count_distinct` returns for the outputs of a layer for one input."""
    inputs, function = self._inputs[position], self._alone[position]
    # A layer without a seed mostly has one outcome; a few draws show whether it is random in another way.
    fewest = FEWEST_DRAWS if tracing.takes_seed(function, inputs.dataset.element_spec) else 8
    until = time.perf_counter() + self._max_seconds / len(self._layers)
    counts = []
    for element in inputs.dataset.take(COUNTED_SAMPLES):
      draws = self._map(tf.data.Dataset.from_tensors(element).repeat(), function)
      counts.append(count_distinct(map(_digest, draws), fewest, lambda: time.perf_counter() > until))
    # If several have the most outcomes, prefer a lower bound: more draws might contradict the number.
    number, is_lower_bound, effective = max(counts)
    # A random layer whose outputs were all the same may have a rare other outcome.
    return number, is_lower_bound or number == 1 and fewest == FEWEST_DRAWS, effective


class _Samples:
  """A dataset of a few elements of any shape, computed once and kept in memory."""

  def __init__(self, dataset):
    self.dataset = dataset.cache()
    sizes = [_bytes(element) for element in self.dataset]
    if not sizes:
      raise ValueError(
          "dataset must have at least one element, got an empty one. Check the file names, filters and splits it is "
          "made from.")
    self.num_samples = len(sizes)
    self.sample_bytes = statistics.mean(sizes)


@contextlib.contextmanager
def _naming(layers, position):
  """Turns any exception into a ValueError that names the layer."""
  try:
    yield
  except Exception as error:
    message = getattr(error, "message", None) or str(error)
    raise ValueError(
        f"layers: layer {position + 1} of {len(layers)}, {layer_name(layers[position])}, fails on its input: "
        f"{message.strip()} Every layer must take what the one before it returns, the first one the image of an "
        "element; see rtf.augment.compose.") from error


def specs_of(layers, dataset, targets=None):
  """The types of the inputs of all layers and of the last one's output. ValueError if the layers cannot be chained."""
  specs = []
  for position in range(len(layers)):
    with _naming(layers, position):
      several = _is_tuple(dataset.element_spec)
      given = _image_spec(dataset.element_spec)
      dataset = tf.data.Dataset.zip((dataset, tf.data.Dataset.from_tensors(tf.zeros([2], tf.int32)))).map(
          functools.partial(_call, composition.compose_part(layers, position, position + 1, targets, clips=True)))
      # If an image without a label becomes a tuple, that tuple is not an image with a label.
      returned = dataset.element_spec
      if several or not _is_tuple(returned):
        returned = _image_spec(returned)
    # The two layers of AutoAugment pass their own structure between them.
    in_a_pair = any(getattr(layers[position], side, None) for side in ("hands_on", "takes_over"))
    if not in_a_pair and not _same_structure(given, returned):
      raise ValueError(
          f"layers: layer {position + 1} of {len(layers)}, {layer_name(layers[position])}, must return the structure "
          "that it is given, one image for one image, so that the augmentation can be split behind it; it was given "
          f"{given} and returned {returned}. Put functions that make several components from one before or behind "
          "refurbish.")
    specs.append(given)
  return (*specs, returned)


def _is_tuple(element_spec):
  return type(element_spec) is tuple


def _image_spec(element_spec):
  return composition.image_of(element_spec[0] if _is_tuple(element_spec) else element_spec)


def _same_structure(given, returned):
  if any(isinstance(spec, none_tensor.NoneTensorSpec) for spec in tf.nest.flatten(returned)):
    return False
  try:
    tf.nest.assert_same_structure(given, returned)
  except (TypeError, ValueError):
    return False
  return True


def _call(function, element, seed):
  # As refurbish does: a seed for a function that takes one.
  if tracing.takes_seed(function, element):
    return tracing.call(function, element, seed=seed)
  return tracing.call(function, element)


def _do_next_to_nothing(*element, seed):
  # tf.data does not even call a function that only passes on its arguments.
  return (*element, tf.bitwise.invert(seed))


def _cpu_time():
  """Of this process, and of the functions that others call for it."""
  return time.process_time() + pool.seconds_of_functions()


def _cpu_seconds(pipelines, num_samples, max_seconds):
  """CPU seconds per sample of every pipeline, each an endless dataset of windows and the number of elements of a window.

  They take turns, so that a slow period of the machine affects all alike. A turn takes all `num_samples`, once or several
  times, as some samples cost more than others.
  """
  iterators, passes, costs = {}, {}, {name: [] for name in pipelines}
  turn = max_seconds / ((ROUNDS + 1) * len(pipelines))
  for name, (dataset, size) in pipelines.items():
    iterators[name] = iter(dataset)
    steps = num_samples // size
    # Once for one-off work, such as starting threads, and once to see how long it takes.
    for _ in range(2):
      began = time.perf_counter()
      for _ in itertools.islice(iterators[name], steps):
        pass
      seconds = time.perf_counter() - began
    passes[name] = steps * max(1, int(turn / max(seconds, 1e-4)))
  for _ in range(ROUNDS):
    for name, (_, size) in pipelines.items():
      began = _cpu_time()
      for _ in itertools.islice(iterators[name], passes[name]):
        pass
      # Work ahead in the background must not count for another pipeline.
      _wait_until_idle()
      costs[name].append((_cpu_time() - began) / (passes[name] * size))
  return {name: statistics.median(seconds) for name, seconds in costs.items()}


def _wait_until_idle():
  """Waits until the stages have computed the few elements that they work ahead."""
  # Bounded, as a process with other work is never idle.
  for _ in range(50):
    began = _cpu_time()
    time.sleep(0.01)
    if _cpu_time() - began < 0.0005:
      return


def count_distinct(draws, fewest, is_time_up):
  """Counts the values that an iterator of draws can yield; returns whether there may be more, and the effective number, too.

  All count as seen when each has come several times; if no two draws are the same, the number is unbounded. With the
  effective number of equally likely values, two draws would be the same as often as they were.
  """
  seen, number = collections.Counter(), 0
  end = fewest
  for value in draws:
    number += 1
    seen[value] += 1
    if number < end:
      continue
    time_is_up = is_time_up()
    if len(seen) == number and (number >= UNBOUNDED_DRAWS or time_is_up and number >= FEWEST_DRAWS):
      return math.inf, False, math.inf
    if time_is_up or number >= MOST_DRAWS or min(seen.values()) >= EACH_DRAWN:
      break
    end += fewest
  all_seen = min(seen.values()) >= EACH_DRAWN
  same = sum(times * (times - 1) for times in seen.values())
  effective = number * (number - 1) / same if same else math.inf
  # Values this close to equally likely may well be so.
  if effective > ALMOST_EQUAL * len(seen):
    effective = len(seen)
  return len(seen), not all_seen, effective


def _digest(element):
  """A digest by which outputs are compared."""
  parts = hashlib.blake2b(digest_size=16)
  for tensor in tf.nest.flatten(element, expand_composites=True):
    array = tensor.numpy()
    content = repr(array.tolist() if isinstance(array, np.ndarray) else array).encode() if (
        tensor.dtype == tf.string) else np.ascontiguousarray(array).tobytes()
    parts.update(repr((tensor.shape, tensor.dtype.name, len(content))).encode() + content)
  return parts.digest()


def _bytes(element):
  """The bytes of an element, as the cache store counts them: a string takes 24 besides its content."""
  return sum(
      sum(24 + len(value) for value in np.ravel(tensor.numpy()).tolist()) if tensor.dtype == tf.string else
      tensor.dtype.size * int(tf.size(tensor)) for tensor in tf.nest.flatten(element, expand_composites=True))
