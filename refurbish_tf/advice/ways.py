"""The ways to prepare samples that `rtf.advise` compares, and what each is predicted to cost."""
from __future__ import annotations

import dataclasses
import math
from typing import Any

from refurbish_tf import diversity

# Replaces infinity in Theorem 1, which stays exact to all printed digits.
UNBOUNDED = 1e12
# The reuse factors of the paper. On fewer samples than this, only the first.
REUSE_FACTORS, FEW_SAMPLES = (2, 3), 10_000
# The least gain over standard training that is worth a change of the pipeline. It exceeds the error of measurement.
LEAST_GAIN = 1.1
# Ways that are at most this much slower than the fastest may be better in something else.
ALMOST_AS_FAST = 0.97
# A smaller part of the elements is not worth keeping.
LEAST_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Way:
  """One way to prepare samples, and what is predicted of it: means over all epochs, the first included.

  Attributes:
    kind: "standard" (plain tf.data), "batched" (the same with the last layers on whole batches), "kept" (elements are kept,
      `rtf.sources.cached`), "refurbish", or "both".
    form: of the elements that are kept: "encoded", as the source yields them, or "decoded", behind the first layers. None if
      none are.
    form_in: where they are: "memory" or "disk".
    share: how much of them is kept, 0 to 1.
    split: the number of layers before the cache store of `refurbish`, or None.
    r: the reuse factor.
    samples_in: where the samples of `refurbish` are: "memory" or "disk".
    batched: the number of layers before those that run on whole batches, or None if none do.
    cpu_seconds: of the input, per sample. `first_cpu_seconds` in the first epoch, `later_cpu_seconds` in each later one.
    images_per_second: the least that processors, disk and, where its step is known, accelerator allow. `input_per_second`
      without the accelerator.
    kept_bytes, disk_bytes: in memory and on disk.
    read_bytes: read from the source and from `disk`, per sample.
    diversity: the normalised diversity, of `rtf.diversity.normalized_unique_samples`.
  """
  kind: str
  form: str | None = None
  form_in: str | None = None
  share: float = 0.0
  split: int | None = None
  r: float = 1
  samples_in: str | None = None
  batched: int | None = None
  cpu_seconds: float = 0.0
  first_cpu_seconds: float = 0.0
  later_cpu_seconds: float = 0.0
  images_per_second: float = 0.0
  input_per_second: float = 0.0
  kept_bytes: float = 0.0
  disk_bytes: float = 0.0
  read_bytes: float = 0.0
  diversity: float = 1.0
  # The most bytes of each store, None where all fits.
  elements_limit: int | None = None
  samples_limit: int | None = None
  # Makes the lines of code.
  plan: Any = dataclasses.field(default=None, repr=False, compare=False)

  @property
  def name(self) -> str:
    if self.kind == "standard":
      return "standard"
    parts = []
    if self.form:
      share = "" if self.share > 0.995 else f"{100 * self.share:.0f} % of "
      parts.append(f"{share}{self.form} elements in {self.form_in}" if self.form_in == "memory" else
                   f"{share}{self.form} elements on disk")
    if self.split is not None:
      parts.append(f"r = {self.r:g} behind layer {self.split}" + (", on disk" if self.samples_in == "disk" else ""))
    if self.batched is not None:
      parts.append(f"layers from {self.batched + 1} on in batches")
    return ", ".join(parts)

  @property
  def code(self) -> str:
    """The lines that do it, for `source` and `layers`."""
    return self.plan.code(self)

  def apply(self, source: Any) -> Any:
    """Runs these lines: a dataset of batches."""
    return self.plan.apply(self, source)


@dataclasses.dataclass(frozen=True)
class Given:
  """What does not differ between ways."""
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
  # Of each layer: CPU seconds of calls to Python, which run one at a time; outcomes; effective outcomes.
  serial: tuple[float, ...]
  outcomes: tuple[float, ...]
  effective: tuple[float, ...]

  def factors(self):
    few = self.num_samples is None or self.num_samples < FEW_SAMPLES
    return [r for r in REUSE_FACTORS[:1 if few else None] if r <= self.epochs]

  def form(self, name):
    return next(form for form in self.forms if form.name == name)


class Model:
  """Predicts. Times add; the samples a second are the least over what does the work of what it can do in a second."""

  def __init__(self, given, plan):
    self._given, self._plan = given, plan

  def ways(self):
    """All ways, the fastest first."""
    found = [self.predicted(Way("standard"))]
    given = self._given
    for in_batches in (False, True) if given.costs.batched else (False,):
      batched = self._batched(1) if in_batches else None
      if in_batches:
        found.append(self.predicted(Way("batched", batched=batched)))
      kept = self._fronts()
      found += [self.predicted(self._limited(dataclasses.replace(front, batched=batched))) for front in kept]
      for way in self._stages(in_batches):
        found.append(self.predicted(way))
        for front in self._fronts(way):
          both = self._limited(dataclasses.replace(
              way, kind="both", form=front.form, form_in=front.form_in, share=front.share))
          # Where the stage's own samples do not fit, they are worth more than elements.
          if way.samples_limit is None and given.form(front.form).replaced < way.split:
            found.append(self.predicted(both))
    return sorted(found, key=lambda way: -way.images_per_second)

  def _room(self, place):
    return self._given.memory if place == "memory" else self._given.disk

  def _places(self):
    return [place for place in ("memory", "disk") if self._room(place) > 0]

  def _fronts(self, stage=None):
    """What may be kept of the elements in the room that a stage leaves."""
    given, found = self._given, []
    if given.num_samples is None or given.epochs == 1:
      return found
    for form in given.forms:
      for place in self._places():
        room = self._room(place)
        if stage is not None and stage.samples_in == place:
          room -= self._bytes_of_samples(stage)
        share = min(1.0, room / (given.num_samples * given.costs.element_bytes[form.name]))
        # cache() of a stream keeps all or nothing.
        if share >= (LEAST_SHARE if given.is_by_index else 1):
          found.append(Way("kept", form=form.name, form_in=place, share=share))
    return found

  def _batched(self, least):
    """From which layer on to run them on batches; None if it cannot be behind `least` layers."""
    return max((at for at in self._given.costs.batched if at >= least), key=self._saved, default=None)

  def _saved(self, at):
    """What it saves to run all layers behind these on batches."""
    costs = self._given.costs
    return costs.hit[at] + costs.batch - costs.batched[at]

  def _stages(self, in_batches):
    given = self._given
    if given.num_samples is None:
      return
    for at in given.splits:
      batched = self._batched(at) if in_batches else None
      if in_batches and batched is None:
        continue
      for r in given.factors():
        for place in self._places():
          way = Way("refurbish", split=at, r=r, samples_in=place, batched=batched)
          needed, room = self._bytes_of_samples(way), self._room(place)
          if needed <= room:
            yield way
          elif room >= LEAST_SHARE * needed:
            yield dataclasses.replace(way, samples_limit=int(room))

  def _bytes_of_samples(self, way):
    """Of all that are used again, which the last of r uses leaves out."""
    return self._given.num_samples * (1 - 1 / way.r) * self._given.costs.sample_bytes[way.split]

  def _limited(self, way):
    if way.share >= 1:
      return way
    size = self._given.costs.element_bytes[way.form] * self._given.num_samples
    return dataclasses.replace(way, elements_limit=int(way.share * size))

  def predicted(self, way):
    """The way with what is predicted of it."""
    given, costs = self._given, self._given.costs
    number = given.num_samples
    kept, on_disk = 0.0, 0.0
    if way.form:
      size = way.share * number * costs.element_bytes[way.form]
      kept, on_disk = (kept + size, on_disk) if way.form_in == "memory" else (kept, on_disk + size)
    fresh_share = 1.0
    if way.split is not None:
      size = self._bytes_of_samples(way)
      fresh_share = 1 / way.r
      if way.samples_limit is not None:
        size = way.samples_limit
        fresh_share = 1 - size / (number * costs.sample_bytes[way.split])
      kept, on_disk = (kept + size, on_disk) if way.samples_in == "memory" else (kept, on_disk + size)
    first, later = (
        self._epoch(way, is_first, *shares, kept, on_disk) for is_first, shares in (
            (True, (1.0, 0.0)), (False, (fresh_share, way.share))))

    def mean(one, other):
      return (one + (given.epochs - 1) * other) / given.epochs

    return dataclasses.replace(
        way, cpu_seconds=mean(first.cpu, later.cpu), first_cpu_seconds=first.cpu, later_cpu_seconds=later.cpu,
        images_per_second=1 / mean(first.seconds, later.seconds),
        input_per_second=1 / mean(first.input_seconds, later.input_seconds), kept_bytes=kept, disk_bytes=on_disk,
        read_bytes=mean(first.read_bytes, later.read_bytes), diversity=self.diversity(way), plan=self._plan)

  def _epoch(self, way, is_first, fresh, share, kept, on_disk):
    """What a sample costs in an epoch that prepares `fresh` of all samples and finds `share` of the elements kept."""
    given, costs = self._given, self._given.costs
    read = fresh * (1 - share) if given.is_by_index or way.form else 1.0
    if way.kind == "standard":
      cpu = costs.standard
    elif way.split is None:
      cpu = costs.fresh["encoded"]
    else:
      cpu = costs.hit[way.split] + fresh * (costs.first[way.split] - costs.hit[way.split])
    if way.kind != "standard":
      cpu += costs.batch if way.batched is None else costs.batch - self._saved(way.batched)
    if way.form:
      cpu -= fresh * share * (costs.fresh["encoded"] - costs.fresh[way.form])
    # The parts are measured one by one, so their errors could add up to less than nothing.
    cpu = max(cpu, 0.02 * costs.standard) + read * costs.read
    from_disk = 0.0
    for place, size, hits, puts in (
        (way.samples_in, costs.sample_bytes.get(way.split), 1 - fresh, fresh if way.split is not None else 0),
        (way.form_in, costs.element_bytes.get(way.form), fresh * share, 1 if way.form and is_first else 0)):
      if place == "disk":
        cpu += hits * _at(costs.disk_hit, size) + puts * _at(costs.disk_put, size)
        from_disk += hits * size
    seconds = [cpu / given.processors, self._serial(way, fresh, share), read * self._read_seconds(is_first, kept)]
    # What is in the page cache does not come from the disk.
    if from_disk and on_disk > given.free_memory / 2 - kept:
      seconds.append(from_disk / costs.disk_rate)
    input_seconds = max(seconds)
    step = (given.step_seconds or 0.0) / given.batch_size
    whole = max(step + seconds[0], *seconds[1:]) if given.trains_on_cpu else max(step, *seconds)
    return _Epoch(cpu, whole, input_seconds, read * costs.element_bytes["encoded"] + from_disk)

  def _read_seconds(self, is_first, kept):
    given = self._given
    size = given.costs.element_bytes["encoded"] * (given.num_samples or math.inf)
    in_page_cache = not is_first and size < given.free_memory / 2 - kept
    return given.costs.read_warm if in_page_cache else given.costs.read_cold

  def _serial(self, way, fresh, share):
    serial = self._given.serial
    kept = sum(serial[:self._given.form(way.form).replaced]) if way.form else 0.0
    return fresh * (sum(serial[:way.split]) - share * kept) + (sum(serial[way.split:]) if way.split is not None else 0.0)

  def diversity(self, way):
    if way.r == 1:
      return 1.0
    given = self._given
    # For the final augmentation the effective number counts, for the partial one the number: fewer partial outcomes would
    # overstate what standard training loses by rare ones. Each part is limited, so that a float is exact for the product.
    partial = min(UNBOUNDED, math.prod(given.outcomes[:way.split]))
    final = min(UNBOUNDED, math.prod(given.effective[way.split:]))
    return min(1.0, diversity.normalized_unique_samples(partial * final, final, given.epochs, way.r))


@dataclasses.dataclass(frozen=True)
class _Epoch:
  """Of a sample in one epoch: CPU seconds, seconds by the clock, those of the input alone, bytes read."""
  cpu: float
  seconds: float
  input_seconds: float
  read_bytes: float


def _at(line, size):
  return line[0] + line[1] * size


def picked(ways, min_diversity):
  """The way to propose: the most diverse of the fastest ones, which then takes the fewest bytes; standard if little is gained."""
  standard = next(way for way in ways if way.kind == "standard")
  allowed = [way for way in ways if way.diversity >= min_diversity]
  most = max(way.images_per_second for way in allowed)
  if most < LEAST_GAIN * standard.images_per_second:
    return standard
  best = [way for way in allowed if way.images_per_second >= ALMOST_AS_FAST * most]
  return min(best, key=lambda way: (-round(way.diversity, 3), way.kept_bytes + way.disk_bytes, -way.images_per_second))
