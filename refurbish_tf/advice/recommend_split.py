"""Recommends where to split an augmentation, and a reuse factor: `rtf.recommend_split`."""
from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from typing import Any, Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf import diversity
from refurbish_tf._internal import checks, native
from refurbish_tf.advice import measure_split
from refurbish_tf.augment import composition
from refurbish_tf.augment.target_kinds import checked_targets

# Replaces infinity in Theorem 1, which stays exact to all printed digits.
UNBOUNDED = 1e12
# The least gain over standard training that is worth a change of the pipeline. It exceeds the error of measurement.
LEAST_GAIN = 1.1
# The least further gain for which another order of the layers is suggested. It is computed from differences of times,
# so it is less exact.
LEAST_GAIN_OF_ORDER = 1.25


@dataclasses.dataclass(frozen=True)
class SplitLayer:
  """A layer and what was measured of it.

  Attributes:
    name: of the function.
    time: CPU seconds per sample.
    num_outcomes: how many different outputs it has for one input; `math.inf` if all that were drawn differ.
    is_lower_bound: whether there may be more outcomes, as counting ended before each had come several times.
    effective_outcomes: the number of equally likely outcomes with which two draws would be the same as often as they
      were. Diversity is predicted with it.
    sample_bytes: of a sample behind this layer with all its components, which the cache store would hold for a split
      here.
  """
  name: str
  time: float
  num_outcomes: float
  is_lower_bound: bool
  effective_outcomes: float
  sample_bytes: float


@dataclasses.dataclass(frozen=True)
class SplitPrediction:
  """The predicted cost and diversity of one split and one reuse factor.

  Attributes:
    split: how many layers are in the partial augmentation, as `at` of `rtf.augment.split`.
    r: the reuse factor.
    t_p: CPU seconds per sample of the partial augmentation.
    t_f: CPU seconds per sample of the final augmentation and of taking a sample out of memory.
    time: predicted CPU seconds per sample: t_p / r + t_f and reading.
    gain: the CPU time of standard training divided by `time`.
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
    best: the recommended one, the fastest with enough diversity. Standard training if none is faster.
    read_time: CPU seconds per sample for reading the dataset.
    reads_all: whether all samples are read in every epoch (a stream) or only those that are prepared (random access).
    num_samples: the number of samples, None if the dataset does not know it.
    epochs, min_diversity: as given.
    warnings: a tuple of strings: why there is little to gain, and which order of the layers would change that.
    partial_fn, final_fn, r: the recommended arguments of `refurbish`.
  """
  layers: tuple[SplitLayer, ...]
  predictions: tuple[SplitPrediction, ...]
  best: SplitPrediction
  read_time: float
  reads_all: bool
  num_samples: int | None
  epochs: int
  min_diversity: float
  warnings: tuple[str, ...]
  partial_fn: Callable[..., Any] = dataclasses.field(repr=False)
  final_fn: Callable[..., Any] | None = dataclasses.field(repr=False)

  @property
  def r(self) -> float:
    return self.best.r

  # `**recommendation` calls these two.
  def keys(self) -> tuple[str, ...]:
    return ("partial_fn", "final_fn", "r")

  def __getitem__(self, name: str) -> Any:
    if name not in self.keys():
      raise KeyError(name)
    return getattr(self, name)

  def __str__(self) -> str:
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
    layers: Sequence[Any], dataset: tf.data.Dataset[Any], *, epochs: int, min_diversity: float = 0.95,
    reuse_factors: Iterable[float] | None = None, num_outcomes: Sequence[float | None] | None = None,
    num_batched_outcomes: float = 1, num_samples: int = 256, max_seconds: float = 20,
    targets: dict[str | int, Any] | None = None) -> SplitRecommendation:
  """Measures the cost and the outcomes of each layer, and recommends a split and a reuse factor.

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([64, 32, 32, 3], tf.uint8))
  >>> layers = [rtf.augment.rand_augment(), rtf.augment.random_crop(4), rtf.augment.random_flip()]
  >>> choice = rtf.recommend_split(layers, images, epochs=90, num_outcomes=[14, 14, 81, 2], max_seconds=1)
  >>> print(choice)  # doctest: +SKIP
  Split behind layer 2 of 4, r = 4: 8.2 µs of CPU time per sample, standard 30 µs: 3.68x, normalised diversity 0.991
  ...
  >>> train = images.refurbish(**choice).batch(32)

  Of all pairs of a split and a reuse factor that keep enough diversity, it recommends the one that takes the least CPU
  time per sample, t_p / r + t_f. A good final augmentation gives many outcomes for little work (Lee et al., "Refurbish
  Your Training Data", USENIX ATC 2021, section 4). If the last layers are the expensive ones or have few outcomes, no
  split gains much; the result then warns, and names the order of the layers that would help, if their order does not
  matter. It never changes the order itself.

  It measures the CPU time of all threads of this process, on the first samples of the dataset. The process should do
  nothing else meanwhile. Every partial and every final augmentation runs alone, and they take turns. Their times
  include the cost of `refurbish`'s workers, that of standard training the cost of a parallel `map` of tf.data. The time
  of a layer is a difference of two such times. Batching, shuffling and training are not included; they cost the same
  with and without `refurbish`.

  Args:
    layers: a list or tuple of functions, or of lists of them, as for `rtf.augment.split`: `layer(image, seed)` or
      `layer(image)` of any component, image or not. Each member of a list is a layer of its own: `rand_augment()` has
      two. Other components of an element, such as a label, are passed through.
    dataset: the `tf.data.Dataset` behind which `refurbish` would stand: unbatched, finite, with the same order in every
      epoch. Only its first samples are read.
    epochs: the number of training epochs, a whole number of up to 10,000. Diversity depends on it.
    min_diversity: the least normalised diversity, a number above 0 and up to 1, that of standard training. With two
      RandAugment layers, crop and flip, 90 epochs and r = 3, caching before crop and flip, as the paper does, leaves
      0.99, caching before the flip alone 0.59.
    reuse_factors: the reuse factors to choose from, real numbers from 1 to `epochs`. None for those of 2, 3 and 4 that
      are not above `epochs`: the paper takes 2 and 3, and calls factors below five typical.
    num_outcomes: how many different outputs each layer has for one input: a list with a number of at least 1, or None,
      for each layer; `math.inf` for a continuous layer, 1 for one without randomness. For None the outputs are counted,
      with many seeds on a few samples. The count is a lower bound if the result says so, and unbounded if no two
      outputs were the same. If some outcomes are likelier than others, diversity is predicted from how often two draws
      were the same (`SplitLayer.effective_outcomes`). Numbers that you give stand for equally likely outcomes.
    num_batched_outcomes: the number of outcomes of an augmentation behind `refurbish`, on whole batches: 162 for
      `.batch(B).map(random_crop_and_flip_batch(4))`. It counts as a part of the final augmentation. Its cost is not
      measured, as it is the same for every split.
    num_samples: how many samples to measure at most. Fewer are measured if they take too long or are too large.
    max_seconds: about how long measuring may take, in seconds; counting may take as long again. With very slow layers
      it takes longer.
    targets: what follows the image, as for `rtf.augment.split`.

  Returns:
    A `SplitRecommendation`.

  Raises:
    ValueError: `layers` is empty, a layer fails or returns another structure than it was given, a number is out of
      range, or `dataset` is empty, infinite or changes its order.
    TypeError: an argument is of the wrong type.
  """
  layers = composition.checked_layers(layers, "recommend_split")
  checked = checked_targets(targets, "recommend_split")
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(f"dataset must be a tf.data.Dataset, the one behind which refurbish would stand, got {dataset!r}.")
  checks.check_whole_number("epochs", epochs, 1)
  if epochs > diversity.MAX_EPOCHS:
    raise ValueError(f"epochs must be at most {diversity.MAX_EPOCHS:,}, got {epochs}. With more, diversity hardly changes.")
  checks.check_real(
      "min_diversity", min_diversity, lambda value: 0 < value <= 1,
      "a fraction of the unique samples of standard training, above 0 and up to 1")
  reuse_factors = _checked_reuse_factors(reuse_factors, epochs)
  num_outcomes = _checked_outcomes(num_outcomes, len(layers))
  checks.check_real(
      "num_batched_outcomes", num_batched_outcomes, lambda value: value >= 1, "a number of at least 1, or math.inf")
  checks.check_whole_number("num_samples", num_samples, 1)
  checks.check_real("max_seconds", max_seconds, lambda value: 0 < value < math.inf, "a positive number of seconds")

  # Building a stage checks the dataset.
  stage = dataset.refurbish(lambda *components: components if len(components) > 1 else components[0])
  described, = native.rows(native.ops().refurbish_tf_refurbish_description(stage=stage.refurbish_stage))
  length = described["num_samples"]
  specs = measure_split.specs_of(layers, dataset, checked)
  measurement = measure_split.Measurement(layers, dataset, num_samples, max_seconds, checked)
  costs = measurement.costs()
  outcomes = [
      (given, False, given) if given is not None else measurement.count_outcomes(position)
      for position, given in enumerate(num_outcomes)]
  found = _recommend(
      layers, costs, outcomes, num_batched_outcomes, specs, measurement.sample_bytes, None if length < 0 else length,
      not described["random_access"], epochs, min_diversity, reuse_factors, targets)
  # For users who pass the result on without printing it.
  for warning in found.warnings:
    warnings.warn(f"recommend_split: {warning}", stacklevel=2)
  return found


def _recommend(
    layers, costs, outcomes, batched_outcomes, specs, sample_bytes, num_samples, reads_all, epochs, min_diversity,
    reuse_factors, targets=None):
  """Makes the recommendation from what was measured. `outcomes` are results of `count_distinct`."""
  names, times = [measure_split.layer_name(layer) for layer in layers], costs.layers()
  described = tuple(
      SplitLayer(name, seconds, *counted, size)
      for name, seconds, counted, size in zip(names, times, outcomes, sample_bytes))
  # For the final augmentation the effective number counts, for the partial one the number: fewer partial outcomes would
  # overstate what standard training loses by rare ones.
  # The augmentation behind all layers is part of the final one for every split.
  partial_outcomes = [UNBOUNDED if layer.is_lower_bound else layer.num_outcomes for layer in described]
  final_outcomes = [*(layer.effective_outcomes for layer in described), batched_outcomes]
  count = len(layers)
  standard = costs.standard + costs.memory + costs.read

  def predict(split, r, t_p, t_f, final):
    read = costs.read if reads_all else costs.read / r
    seconds = t_p / r + t_f + read
    kept = _diversity(partial_outcomes, final_outcomes, {*final, count}, epochs, r)
    return SplitPrediction(split, r, t_p, t_f, seconds, standard / seconds, kept)

  predictions = [predict(count, 1, costs.standard, costs.memory, range(count, count))]
  # A final augmentation costs at least what it adds to the partial one. The floor corrects errors of the two
  # measurements.
  final = (*(max(seconds, costs.partial[-1] - costs.partial[i]) for i, seconds in enumerate(costs.final)), 0.0)
  for split, r in itertools.product(range(1, count + 1), reuse_factors):
    if r > 1:
      predictions.append(
          predict(split, r, costs.partial[split - 1], final[split - 1] + costs.memory, range(split, count)))
  predictions.sort(key=lambda row: row.time)
  best = min((row for row in predictions if row.diversity >= min_diversity), key=lambda row: row.time)
  partial_fn, final_fn = composition.split(layers, best.split, targets, clips=True)
  reasons = _warnings(described, predictions, best, min_diversity)

  def reordered(final, r):
    t_p = costs.stage + sum(times[i] for i in range(count) if i not in final)
    return predict(count - len(final), r, t_p, costs.memory + costs.stage + sum(times[i] for i in final), final)

  reasons += _reordering(described, _units(layers), specs, best, min_diversity, reuse_factors, reordered)
  return SplitRecommendation(
      described, tuple(predictions), best, costs.read, reads_all, num_samples, epochs, min_diversity, tuple(reasons),
      partial_fn, final_fn)


def _diversity(partial_outcomes, final_outcomes, final, epochs, r):
  """The normalised diversity if the layers at the places in `final` are the final augmentation."""
  if r == 1:
    return 1.0
  # Each part is limited, so that a float is exact for the product.
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
        f"{most.split} with r = {most.r:g}. The last layers have too few outcomes: lower min_diversity, or put layers "
        "with more outcomes at the end."]
  last = max(row.split for row in allowed)
  behind, whole = sum(layer.time for layer in layers[last:]), sum(layer.time for layer in layers)
  if behind > whole / 2:
    return [
        f"No split helps much: the last layers are the expensive ones. The layers behind layer {last}, the last place "
        f"for a split with enough diversity, take {_microseconds(behind)} of the {_microseconds(whole)} µs of all "
        "layers."]
  return [
      "No split helps much: the layers that can be cached with enough diversity take only "
      f"{_microseconds(whole - behind)} µs, and refurbish cannot save its own work and reading."]


def _units(layers):
  """The places of the layers, in groups that must stay together: AutoAugment's two."""
  starts = [i for i, layer in enumerate(layers) if i == 0 or not getattr(layer, "takes_over", None)]
  return [list(range(*ends)) for ends in zip(starts, [*starts[1:], len(layers)])]


def _reordering(layers, units, specs, best, min_diversity, reuse_factors, reordered):
  """Suggests an order of the layers that would gain clearly more, if they may change places."""
  count = len(layers)

  def can_pass(one, other):
    return specs[one[0]] == specs[one[-1] + 1] == specs[other[0]] == specs[other[-1] + 1]

  def cost_of_outcomes(unit):
    outcomes = min(UNBOUNDED, math.prod(layers[i].effective_outcomes for i in unit))
    return sum(layers[i].time for i in unit) / math.log(outcomes) if outcomes > 1 else math.inf

  # The layers with the most outcomes for their time go last.
  costs = [cost_of_outcomes(unit) for unit in units]
  order = sorted((u for u, cost in enumerate(costs) if cost < math.inf), key=costs.__getitem__)
  found = []
  for number in range(1, len(order) + 1):
    behind = set(order[:number])
    # Layers behind it that it cannot pass go with it.
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
  # The present order, computed in the same way, is what another order must beat.
  same = [each.gain for each, last in found if min(last) == count - len(last)]
  if row.gain < LEAST_GAIN_OF_ORDER * max([best.gain, *same]):
    return []
  arranged = [i for i in range(count) if i not in final] + sorted(final)
  named = ", ".join(f"{i + 1} {layers[i].name}" for i in arranged)
  return [
      f"Another order would help: {named}, split behind {layers[arranged[row.split - 1]].name} "
      f"({arranged[row.split - 1] + 1}), r = {row.r:g}: about {_microseconds(row.time)} µs, {row.gain:.2f}x, "
      f"normalised diversity {row.diversity:.3f}. You decide whether the layers may change places, or whether that "
      "changes their results too little to matter (Lee et al., section 4)."]


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
  """The lines of a table: numbers to the right, text to the left."""
  columns = [column for column in zip(*rows) if any(column)]
  text = [column[0] in ("layer", "") and not column[1].isdigit() for column in columns]
  widths = [max(map(len, column)) for column in columns]
  lines = []
  for row in zip(*columns):
    cells = (cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(row, widths, text))
    lines.append("  ".join(cells).rstrip())
  return lines


def _checked_reuse_factors(reuse_factors, epochs):
  allowed = f"real numbers from 1 to epochs={epochs}, as a sample is used once in an epoch"
  if reuse_factors is None:
    return tuple(r for r in (2, 3, 4) if r <= epochs)
  try:
    factors = tuple(reuse_factors)
  except TypeError:
    raise TypeError(f"reuse_factors must be a list of {allowed}, such as [2, 3], got {reuse_factors!r}.") from None
  if not factors:
    raise ValueError(f"reuse_factors must be {allowed}, got an empty list. Leave it out for 2, 3 and 4.")
  for factor in factors:
    checks.check_real("reuse_factors", factor, lambda value: 1 <= value <= epochs, allowed)
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
      checks.check_real("num_outcomes", value, lambda value: value >= 1, allowed)
  return given
