"""The strategies to prepare samples that `rtf.advise` compares, and what each is predicted to cost."""

import collections
import dataclasses
import itertools
import math
from typing import Any

from refurbish_tf import diversity

# Replaces infinity in Theorem 1, which stays exact to all printed digits.
UNBOUNDED = 1e12
# The reuse factors of the paper. With fewer than FEW_SAMPLES samples, only the first.
REUSE_FACTORS, FEW_SAMPLES = (2, 3), 10_000
# The least gain over standard training that is worth a change of the pipeline. It exceeds the error of measurement.
LEAST_GAIN = 1.1
# Among strategies with at least this fraction of the fastest one's speed, diversity and size decide.
ALMOST_AS_FAST = 0.97
# A store with room for a smaller fraction of the elements or samples is not worth it.
LEAST_SHARE = 0.05
# Costs of a sample in one epoch: CPU seconds, wall-clock seconds, wall-clock seconds of the input alone, bytes read.
_Epoch = collections.namedtuple("_Epoch", ["cpu", "seconds", "input_seconds", "read_bytes"])


@dataclasses.dataclass(frozen=True)
class Strategy:
  """One strategy to prepare samples, and what is predicted of it: means over all epochs, the first included.

  Attributes:
    kind: "standard" (plain tf.data), "kept" (elements are kept, `rtf.sources.cached`), "refurbish", or "both".
    elements: of the elements that are kept: "encoded", as the source yields them, or "decoded", after the first layers.
      None if none are.
    elements_in: where they are: "memory" or "disk".
    elements_fraction: how much of them is kept, 0 to 1.
    split: the number of layers before the cache store of `refurbish`, or None.
    r: the reuse factor.
    samples_in: where the samples of `refurbish` are: "memory" or "disk".
    cpu_seconds: of the input, per sample. `first_cpu_seconds` in the first epoch, `later_cpu_seconds` in later ones.
    samples_per_second: the least that processors, disk and, where its step is known, accelerator allow.
      `input_per_second` without the accelerator.
    kept_bytes, disk_bytes: in memory and on disk.
    read_bytes: read from the source and from `disk`, per sample.
    diversity: the normalised diversity, of `rtf.diversity.normalized_unique_samples`.
  """

  kind: str
  elements: str | None = None
  elements_in: str | None = None
  elements_fraction: float = 0.0
  split: int | None = None
  r: float = 1
  samples_in: str | None = None
  cpu_seconds: float = 0.0
  first_cpu_seconds: float = 0.0
  later_cpu_seconds: float = 0.0
  samples_per_second: float = 0.0
  input_per_second: float = 0.0
  kept_bytes: float = 0.0
  disk_bytes: float = 0.0
  read_bytes: float = 0.0
  diversity: float = 1.0
  # The most bytes of each store, None if it needs no limit; whether all samples fit.
  elements_limit: int | None = None
  samples_limit: int | None = None
  fits: bool = True
  # The `Plan` that writes the lines of code.
  plan: Any = dataclasses.field(default=None, repr=False, compare=False)

  @property
  def name(self) -> str:
    if self.kind == "standard":
      return "standard"
    parts = []
    if self.elements:
      share = "" if self.elements_fraction > 0.995 else f"{100 * self.elements_fraction:.0f} % of "
      parts.append(f"{share}{self.elements} elements {'on disk' if self.elements_in == 'disk' else 'in memory'}")
    if self.split is not None:
      parts.append(f"r = {self.r:g} after layer {self.split}" + (", on disk" if self.samples_in == "disk" else ""))
    return ", ".join(parts)

  @property
  def code(self) -> str:
    """The lines that do it, for `source` and `layers`."""
    return self.plan.code(self)

  def apply(self, source: Any) -> Any:
    """Runs these lines: a dataset of batches."""
    return self.plan.apply(self, source)


@dataclasses.dataclass(frozen=True)
class Settings:
  """What all strategies have in common."""

  costs: Any
  forms: tuple[Any, ...]
  splits: tuple[int, ...]
  num_samples: int | None
  is_by_index: bool
  epochs: int
  batch_size: int
  processors: int
  step_seconds: float | None
  trains_on_cpu: bool
  memory: float
  disk: float
  free_memory: float
  # For each layer: CPU seconds of calls to Python, which run one at a time; outcomes; effective outcomes.
  serial: tuple[float, ...]
  outcomes: tuple[float, ...]
  effective: tuple[float, ...]

  def factors(self):
    few = self.num_samples is None or self.num_samples < FEW_SAMPLES
    return [r for r in REUSE_FACTORS[: 1 if few else None] if r <= self.epochs]

  def read_seconds(self, is_first, kept):
    """Wall-clock seconds to read an element. Elements in the page cache do not come from a disk."""
    size = self.costs.element_bytes["encoded"] * (self.num_samples or math.inf)
    is_warm = not is_first and size < self.free_memory / 2 - kept
    return self.costs.read_warm if is_warm else self.costs.read_cold

  def form(self, name):
    return next(form for form in self.forms if form.name == name)


class Model:
  """Predicts costs. CPU times add up; the slowest resource (cores, Python, reading, disk, step) sets the speed."""

  def __init__(self, given, plan):
    self._given, self._plan = given, plan

  def strategies(self):
    """All strategies, the fastest first."""
    found = [Strategy("standard"), *self._with_elements(Strategy("kept"))]
    for strategy in self._stages():
      found += [strategy, *self._with_elements(strategy)]
    return sorted(map(self.predicted, found), key=lambda strategy: -strategy.samples_per_second)

  def _places(self):
    return [(place, room) for place, room in (("memory", self._given.memory), ("disk", self._given.disk)) if room > 0]

  def _with_elements(self, strategy):
    """Yields the strategy with elements kept, in each form and place, in the room that its samples leave."""
    given = self._given
    if given.num_samples is None or given.epochs == 1 or not strategy.fits:
      return  # If the stage's own samples do not fit, they are worth more than elements.
    for form, (place, room) in itertools.product(given.forms, self._places()):
      if not form.kept or strategy.split is not None and form.replaced >= strategy.split:
        continue
      size = given.costs.element_bytes[form.name]
      whole = given.num_samples * size
      room -= self._bytes_of_samples(strategy) if strategy.samples_in == place else 0
      # cache() of a stream keeps all or nothing, and on a disk it would not notice another source.
      enough = max(LEAST_SHARE * whole, size) <= room if given.is_by_index else whole <= room and place == "memory"
      if enough:
        yield dataclasses.replace(
          strategy,
          kind="kept" if strategy.split is None else "both",
          elements=form.name,
          elements_in=place,
          elements_fraction=min(1.0, room / whole),
          elements_limit=_limit(whole, room),
        )

  def _stages(self):
    given = self._given
    if given.num_samples is None:
      return
    for at, r, (place, room) in itertools.product(given.splits, given.factors(), self._places()):
      strategy = Strategy("refurbish", split=at, r=r, samples_in=place)
      needed = self._bytes_of_samples(strategy)
      if room >= max(LEAST_SHARE * needed, given.costs.sample_bytes[at]):
        yield dataclasses.replace(strategy, samples_limit=_limit(needed, room), fits=needed <= room)

  def _bytes_of_samples(self, strategy):
    """Bytes of the samples that will be used again. A sample in the last of its r uses is not kept."""
    return self._given.num_samples * (1 - 1 / strategy.r) * self._given.costs.sample_bytes[strategy.split]

  def predicted(self, strategy):
    """The strategy with what is predicted of it."""
    given, costs = self._given, self._given.costs
    number, fresh = given.num_samples, 1.0
    sizes = {None: 0.0, "memory": 0.0, "disk": 0.0}
    if strategy.elements:
      sizes[strategy.elements_in] += strategy.elements_fraction * number * costs.element_bytes[strategy.elements]
    if strategy.split is not None:
      size, fresh = self._bytes_of_samples(strategy), 1 / strategy.r
      if not strategy.fits:
        size = strategy.samples_limit
        fresh = 1 - size / (number * costs.sample_bytes[strategy.split])
      sizes[strategy.samples_in] += size
    kept, on_disk = sizes["memory"], sizes["disk"]
    first = self._epoch(strategy, True, 1.0, 0.0, kept, on_disk)
    later = self._epoch(strategy, False, fresh, strategy.elements_fraction, kept, on_disk)

    def mean(one, other):
      return (one + (given.epochs - 1) * other) / given.epochs

    return dataclasses.replace(
      strategy,
      cpu_seconds=mean(first.cpu, later.cpu),
      first_cpu_seconds=first.cpu,
      later_cpu_seconds=later.cpu,
      samples_per_second=1 / mean(first.seconds, later.seconds),
      input_per_second=1 / mean(first.input_seconds, later.input_seconds),
      kept_bytes=kept,
      disk_bytes=on_disk,
      read_bytes=mean(first.read_bytes, later.read_bytes),
      plan=self._plan,
      diversity=1.0
      if strategy.r == 1
      else diversity_of(given, range(strategy.split, len(given.effective)), strategy.r),
    )

  def _epoch(self, strategy, is_first, fresh, share, kept, on_disk):
    """What a sample costs in an epoch. `fresh`, `share`: the fractions of samples to prepare and of elements kept."""
    given, costs = self._given, self._given.costs
    read = fresh * (1 - share) if given.is_by_index or strategy.elements else 1.0
    if strategy.kind == "standard":
      cpu = costs.standard
    elif strategy.split is None:
      cpu = costs.fresh["encoded"]
    else:
      cpu = costs.hit[strategy.split] + fresh * (costs.first[strategy.split] - costs.hit[strategy.split])
    if strategy.kind != "standard":
      cpu += costs.batch
    if strategy.elements:
      cpu += fresh * (
        share * costs.fresh[strategy.elements] + (1 - share) * costs.missed[strategy.elements] - costs.fresh["encoded"]
      )
    # The parts are measured one by one, so with their errors the sum could be negative.
    cpu = max(cpu, 0.02 * costs.standard) + read * costs.read
    from_disk = 0.0
    sample_size, element_size = costs.sample_bytes.get(strategy.split), costs.element_bytes.get(strategy.elements)
    for place, size, hits, puts in (
      (strategy.samples_in, sample_size, 1 - fresh, fresh if strategy.split is not None else 0),
      (strategy.elements_in, element_size, fresh * share, strategy.elements_fraction if is_first else 0),
    ):
      if place == "disk":
        for number, (each, of_byte) in ((hits, costs.disk_hit), (puts, costs.disk_put)):
          cpu += number * (each + of_byte * size)
        from_disk += hits * size
    room, at = given.free_memory / 2 - kept, strategy.split
    # Calls to Python run one at a time: layers before the split, except layers of kept elements, then layers after it.
    replaced = sum(given.serial[: given.form(strategy.elements).replaced]) if strategy.elements else 0.0
    serial = fresh * (sum(given.serial[:at]) - share * replaced) + (0.0 if at is None else sum(given.serial[at:]))
    seconds = [
      cpu / given.processors,
      serial,
      read * given.read_seconds(is_first, kept),
      from_disk / costs.disk_rate if on_disk > room else 0.0,
    ]
    step = (given.step_seconds or 0.0) / given.batch_size
    whole = max(step + seconds[0], *seconds[1:]) if given.trains_on_cpu else max(step, *seconds)
    return _Epoch(cpu, whole, max(seconds), read * costs.element_bytes["encoded"] + from_disk)


def _limit(needed, room):
  """The limit of a store; None if twice the need fits, because samples may be larger than the measured ones."""
  return None if needed <= room / 2 else int(room)


def diversity_of(given, final, r):
  """The normalised diversity if the layers at the places in `final` are the final augmentation.

  For the final augmentation the effective number of outcomes counts. For the partial one their number counts: a smaller
  one would make standard training seem less diverse than it is. Each is limited, so that their product is exact.
  """
  partial = min(UNBOUNDED, math.prod(number for place, number in enumerate(given.outcomes) if place not in final))
  behind = min(UNBOUNDED, math.prod(given.effective[place] for place in final))
  return min(1.0, diversity.normalized_unique_samples(partial * behind, behind, given.epochs, r))


def picked(strategies, min_diversity):
  """The strategy to propose: the most diverse of the fastest, then the smallest; standard if the gain is small."""
  standard = next(strategy for strategy in strategies if strategy.kind == "standard")
  allowed = [strategy for strategy in strategies if strategy.diversity >= min_diversity]
  most = max(strategy.samples_per_second for strategy in allowed)
  if most < LEAST_GAIN * standard.samples_per_second:
    return standard
  best = [strategy for strategy in allowed if strategy.samples_per_second >= ALMOST_AS_FAST * most]
  size = lambda strategy: strategy.kept_bytes + strategy.disk_bytes
  return min(best, key=lambda each: (-round(each.diversity, 3), size(each), -each.samples_per_second))
