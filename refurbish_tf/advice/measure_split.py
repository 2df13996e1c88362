"""What the layers of an augmentation cost and how many outcomes they have, measured: for `rtf.recommend_split`."""
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
from refurbish_tf._internal import dataset_graph
from refurbish_tf._internal import tracing
from refurbish_tf.augment import composition

# What is measured side by side takes so many turns, to take the median of.
ROUNDS = 7
# Samples that tell how many can be measured in the time.
PROBE_SAMPLES = 4
# Of the samples that are kept for measuring, before and behind every layer.
MAX_BYTES = 2**29
# What is taken from a pipeline at a time. More is given back to the operating system and asked for anew each time.
MAX_WINDOW = 256
MAX_WINDOW_BYTES = 2**23
# Seeds that outcomes are counted with, whatever the time. If no two draws are the same, there are hundreds of outcomes.
FEWEST_DRAWS = 64
# If no two of these are the same, there are many thousands.
UNBOUNDED_DRAWS = 1024
# All outcomes have been seen when each was drawn so often.
EACH_DRAWN = 4
# Of the number of outcomes.
ALMOST_EQUAL = 0.8
# Whether there are more makes no difference to a training run of hundreds of epochs.
MOST_DRAWS = 4096
# One flat image hides what a layer does, so the one with the most outcomes counts.
COUNTED_SAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Costs:
  """CPU seconds per sample, with everything that is in a pipeline beyond reading from memory.

  Attributes:
    read: of the dataset, beyond what reading from memory takes.
    memory: of reading a sample from memory.
    standard: of all layers in one parallel `map` of tf.data.
    stage: of a stage that does nothing.
    partial: of the first 1, 2, ... layers on a stage's workers.
    final: of all layers behind the first 1, 2, ... there; one fewer.
  """
  read: float
  memory: float
  standard: float
  stage: float
  partial: tuple
  final: tuple

  def layers(self):
    """What each layer costs by itself."""
    count = len(self.partial)
    # What the layers before and behind a place take.
    before, behind = (self.stage, *self.partial), (self.partial[-1], *self.final, self.stage)
    times = []
    for i in range(count):
      # The difference of two small times is more exact than the one of two large times.
      by_partial = before[i + 1] - before[i]
      by_final = behind[i] - behind[i + 1]
      times.append(max(0.0, by_partial if before[i + 1] <= behind[i] else by_final))
    return tuple(times)


class Measurement:
  """The first samples of a dataset, as they are before and behind each layer."""

  def __init__(self, layers, dataset, num_samples, max_seconds):
    self._layers = layers
    self._dataset = dataset
    self._max_seconds = max_seconds
    rng = np.random.default_rng(0)
    # Enough not to meet the same sample soon again, as their number is odd.
    self._seeds = tf.data.Dataset.from_tensor_slices(rng.integers(2**31, size=[16_383, 2], dtype=np.int32)).repeat()
    self._alone = [composition.compose_part(layers, i, i + 1) for i in range(len(layers))]

    inputs = self._prepare(PROBE_SAMPLES)
    size = sum(samples.sample_bytes for samples in inputs)
    # A layer at place i of n is in n - i of the partial augmentations and in i of the final ones.
    per_sample = len(layers) * sum(self._probe(position, inputs[position]) for position in range(len(layers)))
    affordable = max_seconds / ((ROUNDS + 1) * max(per_sample, 1e-9))
    number = int(min(num_samples, MAX_BYTES / max(1, size), max(affordable, 2 * PROBE_SAMPLES)))
    # A power of two, for windows to fit in.
    self._inputs = self._prepare(2 ** int(math.log2(max(1, number))))

  @property
  def sample_bytes(self):
    """Of a sample behind each layer."""
    return [layer_input.sample_bytes for layer_input in self._inputs[1:]]

  def _prepare(self, number):
    """The inputs of each layer, and the outputs of the last one, of so many samples."""
    prepared = [_Samples(self._dataset.take(number))]
    for position in range(len(self._layers)):
      with _naming(self._layers, position):
        prepared.append(_Samples(self._map(prepared[-1].dataset, self._alone[position])))
    return prepared

  def _probe(self, position, samples):
    """CPU seconds per sample of a layer, roughly."""
    outputs = iter(self._map(samples.dataset.repeat(), self._alone[position]))
    # Once for what is only at the beginning, such as tracing.
    for _ in range(2):
      began = time.process_time()
      for _ in range(4 * PROBE_SAMPLES):
        next(outputs)
    return (time.process_time() - began) / (4 * PROBE_SAMPLES)

  def _seeded(self, dataset):
    return tf.data.Dataset.zip((dataset, self._seeds))

  def _map(self, dataset, function):
    return self._seeded(dataset).map(functools.partial(_call, function), num_parallel_calls=dataset_graph.PLAIN_MAP_CALLS)

  def costs(self):
    """Runs all partial and final augmentations side by side.

    Each runs in a `map`, whose buffer is full whenever it is idle, so that a turn computes as much as it takes; workers
    compute several turns at once. What a map and what workers cost by themselves is measured with a function that does
    nothing.
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
          self._map(memory, composition.compose_part(self._layers, 0, at)), self._inputs[at])
    for at in range(1, count):
      pipelines["final", at] = self._windows(
          self._map(self._inputs[at].dataset.repeat(), composition.compose_part(self._layers, at, count)),
          self._inputs[count])
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
    """The dataset and how many of its elements it yields at a time, without copying them as `batch` does."""
    size = min(MAX_WINDOW, samples.num_samples, max(1, int(MAX_WINDOW_BYTES / max(1, samples.sample_bytes))))
    while samples.num_samples % size:
      size -= 1
    options = tf.data.Options()
    # Else a window is computed ahead: as much as a turn takes, and maybe in another one's time.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return dataset.window(size).with_options(options), size

  def count_outcomes(self, position):
    """Returns what `count_distinct` does of the outputs of a layer for one input."""
    inputs, function = self._inputs[position], self._alone[position]
    # A layer that takes no seed mostly has one outcome; a few draws show whether it is random in another way.
    fewest = FEWEST_DRAWS if tracing.takes_seed(function, inputs.dataset.element_spec) else 8
    until = time.perf_counter() + self._max_seconds / len(self._layers)
    counts = []
    for element in inputs.dataset.take(COUNTED_SAMPLES):
      draws = self._map(tf.data.Dataset.from_tensors(element).repeat(), function)
      counts.append(count_distinct(map(_digest, draws), fewest, lambda: time.perf_counter() > until))
    # Of those with the most, a bound rather than a number that more draws might have contradicted.
    number, is_lower_bound, effective = max(counts)
    # What is random and was always the same may be something else once in a hundred times.
    return number, is_lower_bound or number == 1 and fewest == FEWEST_DRAWS, effective


class _Samples:
  """Samples in memory: a dataset of a few elements of any shape, which are computed once."""

  def __init__(self, dataset):
    self.dataset = dataset.cache()
    sizes = [_bytes(element) for element in self.dataset]
    if not sizes:
      raise ValueError(
          "dataset is empty, so there is nothing to measure. Check the file names, filters and splits it is made from.")
    self.num_samples = len(sizes)
    self.sample_bytes = statistics.mean(sizes)


@contextlib.contextmanager
def _naming(layers, position):
  """Turns whatever goes wrong into a ValueError that names the layer."""
  try:
    yield
  except Exception as error:
    message = getattr(error, "message", None) or str(error)
    raise ValueError(
        f"Layer {position + 1} of {len(layers)}, {layer_name(layers[position])}, fails on what it is given: "
        f"{message.strip()} Every layer must take what the one before it returns, the first one an element's image; "
        "see rtf.augment.compose.") from error


def specs_of(layers, dataset):
  """The type of what each layer is given, and of what the last one returns. Raises where they cannot be chained."""
  specs = []
  for position in range(len(layers)):
    with _naming(layers, position):
      several = _is_tuple(dataset.element_spec)
      given = _image_spec(dataset.element_spec)
      dataset = tf.data.Dataset.zip((dataset, tf.data.Dataset.from_tensors(tf.zeros([2], tf.int32)))).map(
          functools.partial(_call, composition.compose_part(layers, position, position + 1)))
      # What an image by itself becomes, if that is a tuple, is not one with a label.
      returned = dataset.element_spec
      if several or not _is_tuple(returned):
        returned = _image_spec(returned)
    # The two layers of AutoAugment agree on what goes between them.
    in_a_pair = hasattr(layers[position], "hands_on") or hasattr(layers[position], "takes_over")
    if not in_a_pair and not _same_structure(given, returned):
      raise ValueError(
          f"Layer {position + 1} of {len(layers)}, {layer_name(layers[position])}, was given {given} and returned "
          f"{returned}; a layer must return the same structure that it is given, one image for one image, for the "
          "augmentation to be split behind it. Put what makes several components of one before or behind refurbish.")
    specs.append(given)
  return (*specs, returned)


def _is_tuple(element_spec):
  return type(element_spec) is tuple  # pylint: disable=unidiomatic-typecheck


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
  # As refurbish does: a seed for those who take one.
  if tracing.takes_seed(function, element):
    return tracing.call(function, element, seed=seed)
  return tracing.call(function, element)


def _do_next_to_nothing(*element, seed):
  # What only passes on its arguments is not even called by tf.data.
  return (*element, tf.bitwise.invert(seed))


def _cpu_seconds(pipelines, num_samples, max_seconds):
  """CPU seconds per sample of every pipeline, in turns: a time in which the machine is slower is the same to all.

  Args:
    pipelines: a dict of pairs: a dataset without end, and how many elements are in what it yields.
    num_samples: of which a turn takes all or a multiple, as some samples cost more than others.
    max_seconds: about how many all turns take together.
  """
  iterators, passes, costs = {}, {}, {name: [] for name in pipelines}
  turn = max_seconds / ((ROUNDS + 1) * len(pipelines))
  for name, (dataset, size) in pipelines.items():
    iterators[name] = iter(dataset)
    steps = num_samples // size
    # Once for what is only at the beginning, such as threads that start, and once to see how long it takes.
    for _ in range(2):
      began = time.perf_counter()
      for _ in itertools.islice(iterators[name], steps):
        pass
      seconds = time.perf_counter() - began
    passes[name] = steps * max(1, int(turn / max(seconds, 1e-4)))
  for _ in range(ROUNDS):
    for name, (_, size) in pipelines.items():
      began = time.process_time()
      for _ in itertools.islice(iterators[name], passes[name]):
        pass
      # What works ahead in the background must not do so at another's cost.
      _wait_until_idle()
      costs[name].append((time.process_time() - began) / (passes[name] * size))
  return {name: statistics.median(seconds) for name, seconds in costs.items()}


def _wait_until_idle():
  """Until the stages have computed the few elements that they work ahead."""
  # A process that has other work to do is never idle.
  for _ in range(50):
    began = time.process_time()
    time.sleep(0.01)
    if time.process_time() - began < 0.0005:
      return


def count_distinct(draws, fewest, is_time_up):
  """Counts the different values that an iterator of draws can yield.

  All have been seen when each has come several times; when no two are the same, there is no telling how many there are.

  Returns:
    How many there are, whether there may be more, and of how many equally likely ones two draws would be the same as
    often as they were.
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
  # What is this near to equally likely may well be that.
  if effective > ALMOST_EQUAL * len(seen):
    effective = len(seen)
  return len(seen), not all_seen, effective


def _digest(element):
  """What tells two outputs apart."""
  parts = hashlib.blake2b(digest_size=16)
  for tensor in tf.nest.flatten(element, expand_composites=True):
    array = tensor.numpy()
    content = repr(array.tolist() if isinstance(array, np.ndarray) else array).encode() if (
        tensor.dtype == tf.string) else np.ascontiguousarray(array).tobytes()
    parts.update(repr((tensor.shape, tensor.dtype.name, len(content))).encode() + content)
  return parts.digest()


def _bytes(element):
  """As the cache store counts them."""
  number = 0
  for tensor in tf.nest.flatten(element, expand_composites=True):
    if tensor.dtype == tf.string:
      # A string has 24 bytes of its own.
      number += sum(24 + len(value) for value in np.ravel(tensor.numpy()).tolist())
    else:
      number += tensor.dtype.size * int(tf.size(tensor))
  return number


def layer_name(layer):
  while isinstance(layer, functools.partial):
    layer = layer.func
  return getattr(layer, "__name__", type(layer).__name__)
