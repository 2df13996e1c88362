"""Measures, for `rtf.advise`, what reading, each layer, and a stage cost on samples of a source."""

import contextlib
import dataclasses
import itertools
import math
import os
import statistics
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from refurbish_tf import sources
from refurbish_tf._internal import dataset_graph, machine, pipeline_warnings
from refurbish_tf._internal.processes import pool
from refurbish_tf.advice import outcomes, samples
from refurbish_tf.augment.target_kinds import checked_targets
from refurbish_tf.cache_store import CacheStore

# Each pipeline is measured at most and at least this often; the median counts.
MOST_ROUNDS, FEWEST_ROUNDS = 7, 2
# Fractions of `max_seconds`: for first reading the samples, for an epoch of standard training, for counting outcomes.
READING, EPOCH, COUNTING = 1 / 30, 1 / 60, 1 / 30
# Reading is repeated to last SHORTEST_READING seconds. It is also measured within a pipeline if it takes less than
# SLOW_READING times as long as an epoch. An epoch lasts at most LONGEST_EPOCH seconds.
SHORTEST_READING, SLOW_READING, LONGEST_EPOCH = 0.05, 4, 0.08
# A turn is a multiple of three epochs, in which each sample is fresh once with r = 3.
LEAST_EPOCHS = 3
# The most that is kept for measuring, in bytes and as a fraction of the free memory.
MAX_BYTES, PART_OF_FREE = 2**30, 1 / 8
# The most samples that are read; the most and the fewest in an epoch.
MOST_READ, MOST_SAMPLES, FEWEST_SAMPLES = 4096, 2**16, 16
# A reuse factor so large that no sample is evicted while measuring.
NEVER = 1e6
# How many elements are read at a time, with how many the time of all layers is first estimated, and for how many the
# outcomes are counted. The element with the most outcomes decides, because a uniform image hides what a layer does.
WINDOW, TRIED_SAMPLES, COUNTED_SAMPLES = 64, 64, 3


@dataclasses.dataclass(frozen=True)
class Form:
  """A form in which elements may be kept permanently: the results of the first `prefix` of all `layers`."""

  name: str
  layers: tuple[Any, ...]
  prefix: int
  # Whether `apart` split the first layer into two layers. Together they make different pixels than the one layer.
  apart: bool = False
  kept: bool = True

  @property
  def replaced(self) -> int:
    """How many whole layers of the user come before what is kept."""
    return self.prefix - self.apart


@dataclasses.dataclass
class Costs:
  """CPU seconds per sample, unless a comment says otherwise. Costs named `read` come on top of reading from memory."""

  # On elements in memory: plain tf.data, and a stage that keeps nothing, by the name of the elements' form.
  standard: float = 0.0
  fresh: dict[str, float] = dataclasses.field(default_factory=dict)
  # Like `fresh`, but elements in this form are not kept: a map of the source applies the layers that make the form.
  missed: dict[str, float] = dataclasses.field(default_factory=dict)
  # By split: a cached sample, and a fresh one.
  hit: dict[int, float] = dataclasses.field(default_factory=dict)
  first: dict[int, float] = dataclasses.field(default_factory=dict)
  # A sample's share of making a batch. Of the costs above, only `standard` includes it.
  batch: float = 0.0
  # What a sample on disk adds to one in memory: per sample, and per byte.
  disk_hit: tuple[float, float] = (0.0, 0.0)
  disk_put: tuple[float, float] = (0.0, 0.0)
  # Bytes per second from the disk, without the page cache.
  disk_rate: float = math.inf
  read: float = 0.0
  # Wall-clock seconds to read an element, without parallel reads: the first time, and from the page cache.
  read_cold: float = 0.0
  read_warm: float = 0.0
  # Whether the files were read from the disk, not from the page cache; None if the source reads none.
  disk_is_known: bool | None = None
  # Bytes of an element, by the name of its form, and of a sample by split.
  element_bytes: dict[str, float] = dataclasses.field(default_factory=dict)
  sample_bytes: dict[int, float] = dataclasses.field(default_factory=dict)


class Measurement:
  """Measures a source and layers; `costs` holds what was found. `splits`: after how many layers samples may be kept."""

  def __init__(self, source, forms, splits, *, is_by_index, batch_size, targets, disk, max_seconds, progress):
    self._source, self._forms, self._splits = source, forms, splits
    self._layers, self._given_targets = forms[0].layers, targets
    self._targets = checked_targets(targets, "advise")
    self._is_by_index, self._progress = is_by_index, progress
    self._until, self._max_seconds = time.perf_counter() + max_seconds, max_seconds
    self._max_bytes = min(MAX_BYTES, machine.free_memory() * PART_OF_FREE)
    self.costs = Costs()
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
      # The user's own pipeline will give the same warnings.
      warnings.simplefilter("ignore", pipeline_warnings.PipelineWarning)
      self._folder = disk and stack.enter_context(tempfile.TemporaryDirectory(prefix=".advise-", dir=disk))
      self._read()
      self._choose_sizes(batch_size)
      self._measure(self._pipelines())
      self._count_beginnings()
      if disk:
        self.costs.disk_rate = machine.disk_rate(self._folder)

  def _read(self):
    """Reads the first elements, from the disk if possible, and keeps them."""
    costs = self.costs
    number = size = until = 0
    for number, element in enumerate(self._source, 1):
      # Timed from the first element on, because an epoch takes time to begin.
      until = until or time.perf_counter() + READING * self._max_seconds
      size += _bytes(element)
      is_late = time.perf_counter() > (until if number >= FEWEST_SAMPLES else until + READING * self._max_seconds)
      if number == MOST_READ or size > self._max_bytes / 8 or is_late:
        break
    if not number:
      raise ValueError(
        "source must have at least one element, got an empty one. Check the file names, filters and splits it is made "
        "from."
      )
    self.num_read = number
    self._held = {}
    self._hold("encoded", self._source.take(number))
    files, self._reads_files = dataset_graph.files_of(self._source)
    if self._reads_files:
      costs.disk_is_known = files is not None and machine.drop_from_page_cache(files[:number])
    # `window` copies nothing and, unlike `skip`, lets no map leave its function out. The time to begin an epoch is
    # subtracted, because the epochs are short here. Both datasets are repeated equally often.
    read, one = (_plain(self._source.take(count).window(WINDOW)) for count in (number, 1))
    cold = _seconds_of(read)[1]
    # A slow source is read only once.
    times = math.ceil(SHORTEST_READING / max(_seconds_of(read)[1], 1e-4))
    (cpu, warm), (cpu_of_beginning, beginning) = (
      min(_seconds_of(dataset.repeat(times)) for _ in range(3 if times > 1 else 1)) for dataset in (read, one)
    )
    costs.read = max(0.0, cpu - cpu_of_beginning) / (times * number)
    costs.read_cold = costs.read_warm = max(0.0, warm - beginning) / (times * number)
    if costs.disk_is_known:
      costs.read_cold = max(costs.read_warm, (cold - beginning / times) / number)
    self._progress()

  def _hold(self, name, dataset):
    """Keeps elements in memory, by index if the source is read by index."""
    self._held[name] = sources.cached(dataset) if self._is_by_index else dataset.cache()
    self.costs.element_bytes[name] = statistics.mean(map(_bytes, self._held[name]))

  def _choose_sizes(self, batch_size):
    """Decides how many samples an epoch has."""
    seconds = min(LONGEST_EPOCH, EPOCH * self._max_seconds)
    tried = taken = 0
    # Tries more and more samples: with few, the beginning of an epoch takes most of its time.
    while tried < self.num_read and taken < seconds / 4:
      tried = min(self.num_read, max(TRIED_SAMPLES, 8 * tried))
      stage = _last(self._stage(self._held["encoded"].take(tried), self._layers), tried)
      try:
        _seconds_of(stage)
      except Exception:
        for position in range(len(self._layers)):
          with samples.naming(self._layers, position):
            _seconds_of(_seeded(self._held["encoded"], self._layers, 0, position + 1, self._targets))
        raise
      taken = min(_seconds_of(stage), _seconds_of(stage))[0]
    cpu = taken / tried
    for at in self._splits:
      store = CacheStore()
      for _ in self._stage(self._held["encoded"].take(FEWEST_SAMPLES), self._layers, at, NEVER, store):
        pass
      counts = store.stats()
      self.costs.sample_bytes[at] = counts.bytes / max(1, counts.entries)
    # Twice, because the pipelines with r = 3 keep as many again.
    largest = 2 * sum(self.costs.sample_bytes.values()) + 1
    kept = self._held["encoded"]
    decoded = {form.name: self._front(kept, form) for form in self._forms[1:]}
    largest += sum(max(map(_bytes, dataset.take(FEWEST_SAMPLES))) for dataset in decoded.values())
    number = min(
      max(seconds * machine.processors() / max(cpu, 1e-9), FEWEST_SAMPLES), MOST_SAMPLES, self._max_bytes / largest
    )
    length = int(self._source.cardinality())
    number = max(1, int(min(number, length) if length > self.num_read else number))
    times = max(1, number // self.num_read)
    for name, dataset in decoded.items():
      self._hold(name, dataset.take(number))
    self._held["encoded"] = kept.take(number)
    for name, held in self._held.items():
      self._held[name] = held if times == 1 else held.echo(times) if self._is_by_index else held.repeat(times)
    self.num_samples = times * min(number, self.num_read)
    # Only files that were already read are in the page cache, so others would be read from the disk.
    is_long = not self._reads_files and length >= self.num_samples
    if (times == 1 or is_long) and self.costs.read_warm * self.num_samples < SLOW_READING * seconds:
      self._held["source"] = self._source.take(self.num_samples)
    self._batch_size = min(batch_size, self.num_samples)

  def _front(self, held, form):
    front = samples.part(form.layers, 0, form.prefix, self._targets)
    return held.map(lambda *element: front(*element), num_parallel_calls=tf.data.AUTOTUNE)

  def _stage(self, held, layers, at=None, r=1, store=None):
    final = None if at is None or at == len(layers) else layers[at:]
    partial = layers if at is None else layers[:at]
    return held.refurbish(list(partial), final and list(final), r=r, store=store, targets=self._given_targets, seed=1)

  def _batches(self, dataset):
    """Batches with the prefetch buffer that training reads from."""
    batches = (dataset.batch if samples.is_fixed(dataset.element_spec) else dataset.ragged_batch)(self._batch_size)
    return _plain(batches.prefetch(tf.data.AUTOTUNE))

  def _pipelines(self):
    """The pipelines that are measured, by name."""
    held, layers = self._held["encoded"], self._layers
    # Threads with other work need less CPU time to read, so reading is measured within a pipeline, unless it is slow.
    source = self._held.get("source")
    made = {
      "standard": self._batches(standard(held if source is None else source, layers, self._targets)),
      "in batches": self._batches(self._stage(held, layers)),
    }
    last = lambda *how: _last(self._stage(*how), self.num_samples)
    if source is not None:
      made["reading"] = last(source, layers)
    for form in self._forms:
      made["fresh", form.name] = last(self._held[form.name], form.layers[form.prefix :])
    for form in self._forms[1:]:
      made["missed", form.name] = last(self._front(held, form), form.layers[form.prefix :])
    for at in self._splits:
      made["hit", at], made["third", at] = last(held, layers, at, NEVER), last(held, layers, at, 3)
    if self._folder and self._splits:
      ends = {of(self._splits, key=self.costs.sample_bytes.get) for of in (min, max)}
      for at, (kind, r) in itertools.product(ends, (("hit on disk", NEVER), ("third on disk", 3))):
        store = CacheStore(os.path.join(self._folder, f"{kind} {at}"))
        made[kind, at] = last(held, layers, at, r, store)
    for name, few in (("beginning", held.take(1)), ("beginning to read", (held if source is None else source).take(1))):
      made[name] = _last(self._stage(few, layers), 1)
    made["plain beginning"] = self._batches(standard(few, layers, self._targets))
    return made

  def _measure(self, pipelines):
    """CPU seconds of an epoch of each pipeline, in turns, so that a slow period of the machine affects all alike."""
    shortest, turns = min(LONGEST_EPOCH, EPOCH * self._max_seconds), {}
    for name, dataset in pipelines.items():
      # The first run includes one-off work, such as tracing and keeping. The second shows how long an epoch takes.
      for _ in range(2):
        _, wall = _seconds_of(dataset)
      epochs = LEAST_EPOCHS * max(1, math.ceil(shortest / max(LEAST_EPOCHS * wall, 1e-4)))
      turns[name] = dataset.repeat(epochs), epochs
      self._progress()
    # Measuring stops at `_until`, because the time after it is for counting.
    measured, longest = {name: [] for name in pipelines}, 0.0
    for number in range(MOST_ROUNDS):
      began = time.perf_counter()
      for name, (dataset, epochs) in turns.items():
        measured[name].append(_seconds_of(dataset)[0] / epochs)
      longest = max(longest, time.perf_counter() - began)
      self._progress()
      if number + 1 >= FEWEST_ROUNDS and time.perf_counter() + 1.1 * longest > self._until:
        break
    self._measured = {name: statistics.median(seconds) for name, seconds in measured.items()}

  def _count_beginnings(self):
    """Turns costs of an epoch into costs per sample. Epochs are short here, so the cost to begin one is subtracted."""
    costs, measured, number = self.costs, self._measured, self.num_samples

    def of_sample(name, beginning="beginning"):
      return max(0.05 * measured[name], measured[name] - measured[beginning]) / number

    def first(hit, third):
      return max(3 * third - 2 * hit, third)

    costs.standard = of_sample("standard", "plain beginning")
    costs.batch = max(0.0, of_sample("in batches") - of_sample(("fresh", "encoded")))
    costs.fresh = {form.name: of_sample(("fresh", form.name)) for form in self._forms}
    costs.missed = costs.fresh | {form.name: of_sample(("missed", form.name)) for form in self._forms[1:]}
    if "reading" in measured:
      # Within a pipeline, reading cannot cost more than it does alone.
      costs.read = min(costs.read, max(0.0, of_sample("reading", "beginning to read") - costs.fresh["encoded"]))
      costs.standard -= costs.read  # Reading is added to all strategies later.
    for at in self._splits:
      hit, third = of_sample(("hit", at)), of_sample(("third", at))
      costs.hit[at] = min(hit, third)
      costs.first[at] = first(costs.hit[at], third)
    on_disk = {
      at: [of_sample((f"{which} on disk", at)) for which in ("hit", "third")]
      for at in self._splits
      if ("hit on disk", at) in measured
    }
    if on_disk:
      costs.disk_hit = self._by_size({at: hit - costs.hit[at] for at, (hit, _) in on_disk.items()})
      costs.disk_put = self._by_size({at: first(*pair) - costs.first[at] for at, pair in on_disk.items()})

  def _by_size(self, seconds):
    """Converts seconds by split into seconds per sample and per byte."""
    points = sorted((self.costs.sample_bytes[at], max(0.0, value)) for at, value in seconds.items())
    (small, least), (large, most) = points[0], points[-1]
    of_byte = max(0.0, most - least) / (large - small) if large > 1.5 * small else most / large
    return max(0.0, least - of_byte * small), of_byte

  def count_outcomes(self, position, takes_seed, max_seconds):
    """Returns what `outcomes.count_distinct` returns for the outputs of a layer for one input."""
    held = self._held["encoded"]
    function = samples.part(self._layers, position, position + 1, self._targets)
    before = _seeded(held, self._layers, 0, position, self._targets)
    fewest = outcomes.FEWEST_DRAWS if takes_seed else outcomes.FEWEST_WITHOUT_SEED
    until = time.perf_counter() + max_seconds
    counts = []
    for element in before.take(COUNTED_SAMPLES):
      draws = _mapped(tf.data.Dataset.from_tensors(element).repeat(), function)
      counts.append(
        outcomes.count_distinct(map(outcomes.digest, _plain(draws)), fewest, lambda: time.perf_counter() > until)
      )
    # If several elements have the most outcomes, a lower bound wins: more draws might show further outcomes.
    number, is_lower_bound, effective = max(counts)
    # A random layer whose outputs were all the same may have a rare other outcome.
    return number, is_lower_bound or number == 1 and takes_seed, effective


def standard(source, layers, targets):
  """Plain tf.data: what a user would write without this package's stages."""
  return _seeded(source.shuffle(1000, seed=1), layers, 0, len(layers), targets)


def _seeded(dataset, layers, start, stop, targets):
  return dataset if start == stop else _mapped(dataset, samples.part(layers, start, stop, targets))


def _mapped(dataset, function):
  """What the function makes of each element with a seed, if it takes one."""
  # The number of seeds is odd, so that a seed does not meet the same sample again soon.
  seeds = np.random.default_rng(0).integers(2**31, size=[16_383, 2], dtype=np.int32)
  return tf.data.Dataset.zip(dataset, tf.data.Dataset.from_tensor_slices(seeds).repeat()).map(
    lambda element, seed: samples.call(function, element, seed), num_parallel_calls=dataset_graph.PLAIN_MAP_CALLS
  )


def _plain(dataset):
  """The dataset without tf.data's own prefetching and tuning, which might run in the turn of another pipeline."""
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False
  return dataset_graph.without_autotuner(dataset.with_options(options))


def _last(stage, number):
  """Yields only the last element of a stage: the others are made, but not copied."""
  return _plain(stage.skip(number - 1))


def _seconds_of(dataset):
  """CPU seconds and wall-clock seconds of an epoch."""
  began, cpu = time.perf_counter(), pool.cpu_seconds()
  for _ in dataset:
    pass
  return pool.cpu_seconds() - cpu, time.perf_counter() - began


def _bytes(element):
  return sum(map(len, outcomes.contents(element)))
