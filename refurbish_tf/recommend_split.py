"""Where to split an augmentation, and how often to use what is cached: `rtf.recommend_split`."""
import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import statistics
import time
import typing
import warnings

import numpy as np
import tensorflow as tf

from refurbish_tf import arguments
from refurbish_tf import diversity
from refurbish_tf import native
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
# In place of infinity in Theorem 1, which is then exact to all digits that are printed.
UNBOUNDED = 1e12
# A gain over standard training that is worth a change of the pipeline, and more than measuring is wrong by.
LEAST_GAIN = 1.1
# What another order of the layers must gain on top to be worth a thought. It is a sum of the times of layers, which are
# differences, and so less exact.
LEAST_GAIN_OF_ORDER = 1.25


@dataclasses.dataclass(frozen=True)
class SplitLayer:
  """A layer and what was measured of it.

  Attributes:
    name: of the function.
    time: CPU seconds per sample.
    num_outcomes: how many different outputs it has for one input; `math.inf` where all that were drawn differ.
    is_lower_bound: whether there may be more outcomes than that, as counting ended before all had come several times.
    effective_outcomes: of how many equally likely ones two would be the same as often. Diversity is predicted with it.
    sample_bytes: of a sample behind this layer, all its components, as the cache store must hold it for a split here.
  """
  name: str
  time: float
  num_outcomes: float
  is_lower_bound: bool
  effective_outcomes: float
  sample_bytes: float


@dataclasses.dataclass(frozen=True)
class SplitPrediction:
  """What a split and a reuse factor make of the times that were measured.

  Attributes:
    split: how many layers are in the partial augmentation, as `at` of `rtf.augment.split`.
    r: the reuse factor.
    t_p: CPU seconds per sample of the partial augmentation.
    t_f: CPU seconds per sample of the final augmentation and of taking a sample out of memory.
    time: CPU seconds per sample that are predicted, t_p / r + t_f and reading.
    gain: how many times the CPU time of standard training that saves.
    diversity: the normalised diversity, of `rtf.diversity.normalized_unique_samples`.
  """
  split: int
  r: float
  t_p: float
  t_f: float
  time: float
  gain: float
  diversity: float


@dataclasses.dataclass(frozen=True)
class SplitRecommendation:
  """What `rtf.recommend_split` found. Prints as tables; `refurbish(**recommendation)` takes it.

  Attributes:
    layers: a tuple of `SplitLayer`.
    predictions: a tuple of `SplitPrediction`, the fastest first. That of standard training has r = 1.
    best: the one recommended, the fastest with enough diversity. Standard training where none is faster.
    read_time: CPU seconds per sample for reading the dataset.
    reads_all: whether all samples are read in every epoch (a stream) or just those that are prepared (random access).
    num_samples: the number of samples, None if the dataset does not know it.
    epochs: as given.
    min_diversity: as given.
    warnings: a tuple of strings: why there is little to gain, and which order of the layers would change that.
    partial_fn: for `refurbish`.
    final_fn: for `refurbish`.
    r: the reuse factor recommended, for `refurbish`.
  """
  layers: tuple
  predictions: tuple
  best: SplitPrediction
  read_time: float
  reads_all: bool
  num_samples: typing.Optional[int]
  epochs: int
  min_diversity: float
  warnings: tuple
  partial_fn: typing.Callable = dataclasses.field(repr=False)
  final_fn: typing.Optional[typing.Callable] = dataclasses.field(repr=False)

  @property
  def r(self):
    return self.best.r

  # These two are what ** asks for.
  def keys(self):
    return ("partial_fn", "final_fn", "r")

  def __getitem__(self, name):
    if name not in self.keys():
      raise KeyError(name)
    return getattr(self, name)

  def __str__(self):
    return "\n".join([
        self._headline(), "", *_table(self._layer_rows()), "", *_table(self._prediction_rows()), self._reading(),
        *(f"Warning: {warning}" for warning in self.warnings)])

  def _headline(self):
    best = self.best
    if best.r == 1:
      return f"Standard training, r = 1: {_microseconds(best.time)} µs of CPU time per sample"
    standard = best.time * best.gain
    return (
        f"Split behind layer {best.split} of {len(self.layers)}, r = {best.r:g}: {_microseconds(best.time)} µs of CPU "
        f"time per sample, standard {_microseconds(standard)} µs: {best.gain:.2f}x, normalised diversity "
        f"{best.diversity:.3f}")

  def _layer_rows(self):
    total = "" if self.num_samples is None else f"of {self.num_samples:,}"
    unequal = any(layer.effective_outcomes != layer.num_outcomes for layer in self.layers)
    rows = [["", "layer", "µs", "outcomes", "as if equally likely" if unequal else "", "bytes of a sample behind it", total]]
    for position, layer in enumerate(self.layers, 1):
      rows.append([
          str(position), layer.name, _microseconds(layer.time), _outcomes(layer),
          "" if layer.effective_outcomes == layer.num_outcomes else f"{layer.effective_outcomes:,.3g}",
          f"{layer.sample_bytes:,.0f}",
          "" if self.num_samples is None else _size(self.num_samples * layer.sample_bytes)])
    return rows

  def _prediction_rows(self):
    rows = [["split", "r", "t_p µs", "t_f µs", "predicted µs", "gain", "normalised diversity", ""]]
    for row in self.predictions:
      note = ("<- recommended" if row == self.best else
              f"below {self.min_diversity:g}" if row.diversity < self.min_diversity else "")
      if row.r == 1:
        note = f"standard {note}".rstrip()
      rows.append([
          "-" if row.r == 1 else str(row.split), f"{row.r:g}", _microseconds(row.t_p), _microseconds(row.t_f),
          _microseconds(row.time), f"{row.gain:.2f}x", f"{row.diversity:.3f}", note])
    return rows

  def _reading(self):
    which = "every sample in every epoch" if self.reads_all else "only what is prepared"
    return f"Predicted: t_p / r + t_f, and {_microseconds(self.read_time)} µs for reading ({which})."


def recommend_split(
    layers, dataset, *, epochs, min_diversity=0.95, reuse_factors=None, num_outcomes=None, num_batched_outcomes=1,
    num_samples=256, max_seconds=20):
  """Measures what each layer costs and brings, and recommends where to split and how often to use what is cached.

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([64, 32, 32, 3], tf.uint8))
  >>> layers = [rtf.augment.rand_augment_layer(), rtf.augment.rand_augment_layer(),
  ...           rtf.augment.random_crop(4), rtf.augment.random_flip()]
  >>> choice = rtf.recommend_split(layers, images, epochs=90, num_outcomes=[14, 14, 81, 2], max_seconds=1)
  >>> print(choice)  # doctest: +SKIP
  Split behind layer 2 of 4, r = 4: 38 µs of CPU time per sample, standard 97 µs: 2.55x, normalised diversity 0.991
  ...
  >>> train = images.refurbish(**choice).batch(32)

  Of all pairs of a split and a reuse factor that keep enough diversity, it recommends the one that takes the least CPU
  time per sample, t_p / r + t_f. A good final augmentation gives many outcomes for little work (Lee et al., "Refurbish
  Your Training Data", USENIX ATC 2021, section 4). Where the last layers are the expensive ones or have few outcomes,
  no split does much; the result then warns, and says which order of the layers would help, if their order does not
  matter. It never changes the order itself.

  What is measured is CPU time of this process, of all its threads, on the first samples of the dataset; it should do
  nothing else meanwhile. Every partial and every final augmentation runs in a `map` of its own, as in `refurbish`, side
  by side: so t_f has the cost of the second `map`, which standard training is spared (about 10 µs per element, more
  on a busy machine), and a split that does not earn that is not recommended. The time of a layer is a difference of
  two such times. Batching, shuffling and training come in addition, and are the same with and without `refurbish`.

  Args:
    layers: a list or tuple of functions as for `rtf.augment.split`: `layer(image, seed)` or `layer(image)` of any
      component, image or not. Other components of an element, such as a label, are passed through.
    dataset: the `tf.data.Dataset` that `refurbish` would stand behind: unbatched, finite, with the same order in every
      epoch. Only some of it is read.
    epochs: for how many epochs will be trained, a whole number of up to 10,000. Diversity depends on it.
    min_diversity: the least normalised diversity, a number above 0 and up to 1, that of standard training. With two
      RandAugment layers, crop and flip, 90 epochs and r = 3, caching before crop and flip, as the paper does, leaves
      0.99, caching before the flip alone 0.59.
    reuse_factors: the reuse factors to choose from, real numbers from 1 to `epochs`. None for 2, 3 and 4, as far as
      they are not above `epochs`: the paper takes 2 and 3, and calls those below five typical.
    num_outcomes: how many different outputs each layer has for one input, a list of a number, of at least 1, or None
      for each layer: `math.inf` for a continuous one, 1 for one without randomness. What is None is counted, with
      many seeds on a few samples; the count is a lower bound where it says so, and unbounded where no two outputs
      were the same. Where some are likelier than others, diversity is predicted with how often two draws were the
      same (`SplitLayer.effective_outcomes`); what you give are equally likely ones.
    num_batched_outcomes: how many outcomes an augmentation has that stands behind `refurbish`, on whole batches: 162 for
      `.batch(B).map(random_crop_and_flip_batch(4))`. It counts as a part of the final augmentation; what it costs is
      the same for every split and is not measured.
    num_samples: how many samples to measure at most. There are fewer where they take too long or are too large.
    max_seconds: about how long measuring may take, in seconds, and counting as long again. With very slow layers it
      takes longer.

  Returns:
    A `SplitRecommendation`.

  Raises:
    ValueError: `layers` is empty, a layer fails or returns another structure than it was given, a number is out of
      range, or `dataset` is empty, infinite or of changing order.
    TypeError: an argument is of the wrong type.
  """
  layers = composition.checked_layers(layers, "recommend_split")
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(f"dataset must be a tf.data.Dataset, what refurbish would stand behind, got {dataset!r}.")
  _check_epochs(epochs)
  arguments.check_real(
      "min_diversity", min_diversity, lambda value: 0 < value <= 1,
      "a fraction of the unique samples of standard training, above 0 and up to 1")
  reuse_factors = _checked_reuse_factors(reuse_factors, epochs)
  num_outcomes = _checked_outcomes(num_outcomes, len(layers))
  arguments.check_real(
      "num_batched_outcomes", num_batched_outcomes, lambda value: value >= 1, "a number of at least 1, or math.inf")
  arguments.check_whole_number("num_samples", num_samples, 1)
  arguments.check_real("max_seconds", max_seconds, lambda value: 0 < value < math.inf, "a positive number of seconds")

  # The stage itself knows best what it can stand behind.
  stage = dataset.refurbish(lambda *components: components if len(components) > 1 else components[0])
  length, _, random_access, *_ = native.ops().refurbish_tf_refurbish_description(
      stage=stage.refurbish_stage).numpy().tolist()
  specs = _specs(layers, dataset)
  measurement = _Measurement(layers, dataset, num_samples, max_seconds)
  costs = measurement.costs()
  outcomes = [
      (given, False, given) if given is not None else measurement.count_outcomes(position)
      for position, given in enumerate(num_outcomes)]
  found = _recommend(
      layers, costs, outcomes, num_batched_outcomes, specs, measurement.sample_bytes, None if length < 0 else length,
      not random_access, epochs, min_diversity, reuse_factors)
  # For those who pass it on without printing it.
  for warning in found.warnings:
    warnings.warn(f"recommend_split: {warning}", stacklevel=2)
  return found


@dataclasses.dataclass(frozen=True)
class _Costs:
  """CPU seconds per sample, from every `map` what it costs with everything that is in it.

  Attributes:
    read: of the dataset, beyond what reading from memory takes.
    memory: of reading a sample from memory.
    map: of a `map` that does nothing, beyond reading from memory.
    partial: of the first 1, 2, ... layers, beyond reading from memory.
    final: of all layers behind the first 1, 2, ..., beyond reading from memory; one fewer.
  """
  read: float
  memory: float
  map: float
  partial: tuple
  final: tuple

  def layers(self):
    """What each layer costs by itself."""
    count = len(self.partial)
    # What the layers before and behind a place take.
    before, behind = (self.map, *self.partial), (self.partial[-1], *self.final, self.map)
    times = []
    for i in range(count):
      # The difference of two small times is more exact than the one of two large times.
      by_partial = before[i + 1] - before[i]
      by_final = behind[i] - behind[i + 1]
      times.append(max(0.0, by_partial if before[i + 1] <= behind[i] else by_final))
    return tuple(times)


class _Measurement:
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

  def _map(self, dataset, function):
    zipped = tf.data.Dataset.zip((dataset, self._seeds))
    return zipped.map(functools.partial(_call, function), num_parallel_calls=arguments.PLAIN_MAP_CALLS)

  def costs(self):
    """Runs all partial and final augmentations side by side."""
    count, source = len(self._layers), self._inputs[0]
    memory = source.dataset.repeat()
    pipelines = {
        "read": self._windows(self._dataset.repeat(), source),
        "memory": self._windows(tf.data.Dataset.zip((memory, self._seeds)), source),
        "map": self._windows(self._map(memory, _do_next_to_nothing), source)}
    for at in range(1, count + 1):
      pipelines["partial", at] = self._windows(
          self._map(memory, composition.compose_part(self._layers, 0, at)), self._inputs[at])
    for at in range(1, count):
      pipelines["final", at] = self._windows(
          self._map(self._inputs[at].dataset.repeat(), composition.compose_part(self._layers, at, count)),
          self._inputs[count])
    measured = _cpu_seconds(pipelines, source.num_samples, self._max_seconds)
    memory = measured["memory"]
    return _Costs(
        read=max(0.0, measured["read"] - memory), memory=memory, map=max(0.0, measured["map"] - memory),
        partial=tuple(max(0.0, measured["partial", at] - memory) for at in range(1, count + 1)),
        final=tuple(max(0.0, measured["final", at] - memory) for at in range(1, count)))

  def _windows(self, dataset, samples):
    """The dataset and how many of its elements it yields at a time, without copying them as `batch` does."""
    size = min(MAX_WINDOW, samples.num_samples, max(1, int(MAX_WINDOW_BYTES / max(1, samples.sample_bytes))))
    while samples.num_samples % size:
      size -= 1
    options = tf.data.Options()
    # Else a window is computed ahead: as much as a turn takes, and maybe in another one's time.
    options.experimental_optimization.inject_prefetch = False
    return dataset.window(size).with_options(options), size

  def count_outcomes(self, position):
    """Returns what `count_distinct` does of the outputs of a layer for one input."""
    inputs, function = self._inputs[position], self._alone[position]
    # A layer that takes no seed mostly has one outcome; a few draws show whether it is random in another way.
    fewest = FEWEST_DRAWS if arguments.takes_seed(function, inputs.dataset.element_spec) else 8
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
        f"Layer {position + 1} of {len(layers)}, {_name(layers[position])}, fails on what it is given: "
        f"{message.strip()} Every layer must take what the one before it returns, the first one an element's image; "
        "see rtf.augment.compose.") from error


def _specs(layers, dataset):
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
          f"Layer {position + 1} of {len(layers)}, {_name(layers[position])}, was given {given} and returned "
          f"{returned}; a layer must return the same structure that it is given, one image for one image, for the "
          "augmentation to be split behind it. Put what makes several components of one before or behind refurbish.")
    specs.append(given)
  return (*specs, returned)


def _is_tuple(element_spec):
  return type(element_spec) is tuple  # pylint: disable=unidiomatic-typecheck


def _image_spec(element_spec):
  return composition.image_of(element_spec[0] if _is_tuple(element_spec) else element_spec)


def _same_structure(given, returned):
  if any(isinstance(spec, tf.NoneTensorSpec) for spec in tf.nest.flatten(returned)):
    return False
  try:
    tf.nest.assert_same_structure(given, returned)
  except (TypeError, ValueError):
    return False
  return True


def _call(function, element, seed):
  # As refurbish does: a seed for those who take one.
  if arguments.takes_seed(function, element):
    return arguments.call(function, element, seed=seed)
  return arguments.call(function, element)


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


def _recommend(
    layers, costs, outcomes, batched_outcomes, specs, sample_bytes, num_samples, reads_all, epochs, min_diversity,
    reuse_factors):
  """Ranks, from what was measured. Outcomes are what `count_distinct` returns."""
  names, times = [_name(layer) for layer in layers], costs.layers()
  described = tuple(
      SplitLayer(name, seconds, *counted, size)
      for name, seconds, counted, size in zip(names, times, outcomes, sample_bytes))
  # Of the final augmentation it counts how often two draws are the same, of the partial one how many there are: taking
  # rare ones there for fewer would make too much of what standard training loses by them.
  # What stands behind all layers is in the final augmentation whatever the split.
  partial_outcomes = [UNBOUNDED if layer.is_lower_bound else layer.num_outcomes for layer in described]
  final_outcomes = [*(layer.effective_outcomes for layer in described), batched_outcomes]
  count = len(layers)
  standard = costs.partial[-1] + costs.memory + costs.read

  def predict(split, r, t_p, t_f, final):
    read = costs.read if reads_all else costs.read / r
    seconds = t_p / r + t_f + read
    kept = _diversity(partial_outcomes, final_outcomes, {*final, count}, epochs, r)
    return SplitPrediction(split, r, t_p, t_f, seconds, standard / seconds, kept)

  predictions = [predict(count, 1, costs.partial[-1], costs.memory, range(count, count))]
  # What is behind a split costs at least what it adds to what is before: a floor under two times measured one by one.
  final = (*(max(seconds, costs.partial[-1] - costs.partial[i]) for i, seconds in enumerate(costs.final)), 0.0)
  for split, r in itertools.product(range(1, count + 1), reuse_factors):
    if r > 1:
      predictions.append(
          predict(split, r, costs.partial[split - 1], final[split - 1] + costs.memory, range(split, count)))
  predictions.sort(key=lambda row: row.time)
  best = min((row for row in predictions if row.diversity >= min_diversity), key=lambda row: row.time)
  partial_fn, final_fn = composition.split(layers, best.split)
  reasons = _warnings(described, predictions, best, min_diversity)

  def reordered(final, r):
    t_p = costs.map + sum(times[i] for i in range(count) if i not in final)
    return predict(count - len(final), r, t_p, costs.memory + costs.map + sum(times[i] for i in final), final)

  reasons += _reordering(described, _units(layers), specs, best, min_diversity, reuse_factors, reordered)
  return SplitRecommendation(
      described, tuple(predictions), best, costs.read, reads_all, num_samples, epochs, min_diversity, tuple(reasons),
      partial_fn, final_fn)


def _diversity(partial_outcomes, final_outcomes, final, epochs, r):
  """The normalised diversity with those layers in the final augmentation whose places are in `final`."""
  if r == 1:
    return 1.0
  # Each part is limited by itself, for the whole to stay within what a float is exact for.
  partial_outcomes = min(UNBOUNDED, math.prod(n for i, n in enumerate(partial_outcomes) if i not in final))
  final_outcomes = min(UNBOUNDED, math.prod(final_outcomes[i] for i in final))
  return min(1.0, diversity.normalized_unique_samples(partial_outcomes * final_outcomes, final_outcomes, epochs, r))


def _warnings(layers, predictions, best, min_diversity):
  """Why there is little to gain."""
  if best.gain >= LEAST_GAIN:
    return []
  allowed = [row for row in predictions if row.r > 1 and row.diversity >= min_diversity]
  if not allowed:
    most = max((row for row in predictions if row.r > 1), key=lambda row: row.diversity, default=None)
    if most is None:
      return []
    return [
        f"No split keeps a normalised diversity of {min_diversity:g}; the most is {most.diversity:.3f}, behind layer "
        f"{most.split} with r = {most.r:g}. The last layers have too few outcomes: lower min_diversity, or have layers "
        "with more outcomes at the end."]
  last = max(row.split for row in allowed)
  behind, whole = sum(layer.time for layer in layers[last:]), sum(layer.time for layer in layers)
  if behind > whole / 2:
    return [
        f"No split helps much: the last layers are the expensive ones. What is behind layer {last}, the last place for "
        f"a split with enough diversity, takes {_microseconds(behind)} of the {_microseconds(whole)} µs of all layers."]
  return [
      f"No split helps much: the layers that can be cached with enough diversity take {_microseconds(whole - behind)} "
      "µs, hardly more than what refurbish cannot save: another map, and reading."]


def _units(layers):
  """The places of the layers, those together that stay together: AutoAugment's two."""
  units = []
  for position, layer in enumerate(layers):
    if units and hasattr(layer, "takes_over"):
      units[-1].append(position)
    else:
      units.append([position])
  return units


def _reordering(layers, units, specs, best, min_diversity, reuse_factors, reordered):
  """Which order of the layers would gain clearly more, if they are interchangeable."""
  count = len(layers)

  def can_pass(one, other):
    return specs[one[0]] == specs[one[-1] + 1] == specs[other[0]] == specs[other[-1] + 1]

  def cost_of_outcomes(unit):
    outcomes = min(UNBOUNDED, math.prod(layers[i].effective_outcomes for i in unit))
    return sum(layers[i].time for i in unit) / math.log(outcomes) if outcomes > 1 else math.inf

  # Those that give the most outcomes for their time last.
  costs = [cost_of_outcomes(unit) for unit in units]
  order = sorted((u for u, cost in enumerate(costs) if cost < math.inf), key=costs.__getitem__)
  found = []
  for number in range(1, len(order) + 1):
    behind = set(order[:number])
    # What it cannot change places with goes with it.
    for u, unit in enumerate(units):
      if any(v in behind and not can_pass(units[v], unit) for v in range(u)):
        behind.add(u)
    final = {i for u in behind for i in units[u]}
    if len(final) < count:
      found += [(reordered(final, r), final) for r in reuse_factors if r > 1]
  found = [(row, final) for row, final in found if row.diversity >= min_diversity]
  if not found:
    return []
  row, final = min(found, key=lambda pair: pair[0].time)
  if row.gain < LEAST_GAIN_OF_ORDER * best.gain:
    return []
  arranged = [i for i in range(count) if i not in final] + sorted(final)
  named = ", ".join(f"{i + 1} {layers[i].name}" for i in arranged)
  return [
      f"Another order would help: {named}, split behind {layers[arranged[row.split - 1]].name} "
      f"({arranged[row.split - 1] + 1}), r = {row.r:g}: about {_microseconds(row.time)} µs, {row.gain:.2f}x, "
      f"normalised diversity {row.diversity:.3f}. It is for you to say whether the layers may change places, or "
      "whether that makes little difference to what comes out (Lee et al., section 4)."]


def _name(layer):
  while isinstance(layer, functools.partial):
    layer = layer.func
  return getattr(layer, "__name__", type(layer).__name__)


def _microseconds(seconds):
  microseconds = 1e6 * seconds
  return f"{microseconds:,.0f}" if microseconds >= 9.95 else f"{microseconds:.1f}"


def _outcomes(layer):
  if layer.num_outcomes == math.inf:
    return "unbounded"
  return f"{'at least ' if layer.is_lower_bound else ''}{layer.num_outcomes:,.12g}"


def _size(number):
  for unit in ("bytes", "kB", "MB", "GB"):
    if number < 999.5:
      return f"{number:.3g} {unit}"
    number /= 1000
  return f"{number:,.3g} TB"


def _table(rows):
  """Lines, numbers to the right and text to the left."""
  columns = [column for column in zip(*rows) if any(column)]
  text = [column[0] in ("layer", "") and not column[1].isdigit() for column in columns]
  widths = [max(map(len, column)) for column in columns]
  lines = []
  for row in zip(*columns):
    cells = (cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(row, widths, text))
    lines.append("  ".join(cells).rstrip())
  return lines


def _check_epochs(epochs):
  arguments.check_whole_number("epochs", epochs, 1)
  if epochs > diversity.MAX_EPOCHS:
    raise ValueError(f"epochs must be at most {diversity.MAX_EPOCHS:,}, got {epochs}. Diversity hardly changes beyond.")


def _checked_reuse_factors(reuse_factors, epochs):
  allowed = f"real numbers from 1 to epochs={epochs}, as a sample is used once in an epoch"
  if reuse_factors is None:
    return tuple(r for r in (2, 3, 4) if r <= epochs)
  try:
    factors = tuple(reuse_factors)
  except TypeError:
    raise TypeError(f"reuse_factors must be a list of {allowed}, such as [2, 3], got {reuse_factors!r}.") from None
  if not factors:
    raise ValueError(f"reuse_factors must be at least one of {allowed}, got none. Leave it out for 2, 3 and 4.")
  for factor in factors:
    arguments.check_real("reuse_factors", factor, lambda value: 1 <= value <= epochs, allowed)
  return tuple(sorted(set(factors)))


def _checked_outcomes(num_outcomes, count):
  if num_outcomes is None:
    return [None] * count
  allowed = "a number of at least 1, or None to have it counted, for each layer"
  if not isinstance(num_outcomes, (list, tuple, np.ndarray)):
    raise TypeError(f"num_outcomes must be a list of {allowed}, got {num_outcomes!r}.")
  given = list(num_outcomes)
  if len(given) != count:
    raise ValueError(
        f"num_outcomes must have {allowed}, got {len(given)} for {count} layers. Write None for those that are not "
        "known.")
  for value in given:
    if value is not None:
      arguments.check_real("num_outcomes", value, lambda value: value >= 1, allowed)
  return given
