"""What rtf.advise predicts of each way, beside what is measured; and whether its pick is the fastest.

With --all also large photographs, audio, Keras' layers and a layer in Python.
"""
import dataclasses
import gc
import math
import pathlib
import random
import shutil
import tempfile
import time

import advise_scenarios
import common
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph
from refurbish_tf._internal.processes import pool

EPOCHS = 90
# Epochs after the first that are measured.
LATER = 3
# Of the bytes of all that can be kept. A quick run takes them in turns.
BUDGETS = {"all": 1.5, "a quarter": 0.25}
# Others that are measured again with the pick.
RIVALS = 3
# Below so many samples r = 2 is the most that is proposed.
FEW = 10_000
MIN_DIVERSITY = 0.95
CPU, CLOCK = range(2)
# What all are compared with.
PLAIN = "the best plain tf.data"
# The bars: predicted over measured, or the reverse; the best of all over the pick; part of the images kept beside r = 3.
MOST_OF_MEDIAN, MOST_OF_NINE_OF_TEN, MOST_OF_EACH = 1.1, 1.25, 1.5
MOST_OVER_PICK_OF_NINE_OF_TEN, MOST_OVER_PICK = 1 / 0.9, 1 / 0.8
MOST_OF_R_3_ALONE = 0.8


@dataclasses.dataclass
class Epochs:
  """What a training takes, of its first epoch and a later one: tuples of CPU time, other processes' included, and clock."""
  first: tuple
  later: tuple

  def mean(self, what):
    """Mean seconds of all epochs, CPU or CLOCK."""
    return (self.first[what] + (EPOCHS - 1) * self.later[what]) / EPOCHS


class Running:
  """A pipeline, epoch by epoch."""

  def __init__(self, dataset):
    # Without a prefetch behind repeat, which would begin the next epoch in the time of this one.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    self._batches = len(dataset)
    self._iterator = iter(dataset.repeat().with_options(options))

  def epoch(self):
    """Seconds of CPU time, and by the clock."""
    clock, cpu = time.perf_counter(), pool.cpu_seconds()
    for _ in range(self._batches):
      next(self._iterator)
    clock = time.perf_counter() - clock
    # What it writes in the background is its own.
    common.wait_until_idle()
    return pool.cpu_seconds() - cpu, clock


def measure(quick, everything=False):
  """Yields the sections."""
  cells, picks, missing = [], [], []
  with tempfile.TemporaryDirectory(prefix="refurbish-advise-") as directory:
    directory = pathlib.Path(directory)
    disk = directory / "disk"
    for number, scenario in enumerate(advise_scenarios.scenarios(directory, quick, everything)):
      for budget in [list(BUDGETS)[number % 2]] if quick else BUDGETS:
        common.say(f"{scenario.name}, memory for {budget}")
        _empty(disk)
        advice = rtf.advise(
            scenario.source, scenario.layers, batch_size=scenario.batch, epochs=EPOCHS,
            memory=int(BUDGETS[budget] * len(scenario.source) * scenario.bytes), disk=disk,
            min_diversity=MIN_DIVERSITY, max_seconds=1 if quick else 30)
        ways = _chosen(advice, quick)
        makers = {name: lambda way=way: way.apply(scenario.source) for name, way in ways.items()}
        measured = _measured(plain(scenario), makers, disk, scenario.files, common.rounds(quick, 3))
        # Of many that are about as fast, chance makes one the fastest.
        again = _fastest(scenario, advice, ways, measured)
        for name, pairs in _measured(
            plain(scenario), {name: makers[name] for name in again}, disk, scenario.files, common.rounds(quick, 6)).items():
          measured[name] += pairs
        speeds = {name: 1 / np.median(_of_plain(measured[name], CLOCK)) for name in again}
        picks.append(float(max(speeds.values()) / speeds[advice.best.name]))
        absent = scenario.admits - {_place(way) for way in advice.ways}
        for place in absent:
          common.say(f"missing: {place}")
        missing.append(len(absent))
        yield _compared(scenario, budget, advice, ways, measured, cells)
    common.say("r = 3 with half of the decoded images beside")
    yield _beside(quick, directory, disk)
  yield _shown(cells, picks, missing)


def plain(scenario):
  """The best that plain tf.data has."""
  count = len(scenario.source)
  fn = rtf.augment.compose(scenario.layers)
  seeds = np.random.default_rng(7).integers(2**31, size=[count, 2], dtype=np.int32)
  pairs = tf.data.Dataset.zip(scenario.source, tf.data.Dataset.from_tensor_slices(seeds))

  def augmented(element, seed):
    return fn(*element, seed=seed) if isinstance(element, tuple) else fn(element, seed=seed)

  return dataset_graph.without_autotuner(
      pairs.shuffle(count).map(augmented, common.PARALLEL_CALLS).batch(scenario.batch).prefetch(tf.data.AUTOTUNE))


def _place(way):
  """What a scenario can admit."""
  return way.kind, way.form, way.form_in, way.samples_in


def _chosen(advice, quick):
  """By name: the best of all that differ in what is kept where; if `quick`, of each kind."""
  best = {}
  for way in (*advice.shown, *advice.ways):
    best.setdefault(way.kind if quick else _place(way), way)
  return {way.name: way for way in (advice.best, *best.values())}


def _measured(beside, makers, disk, files, rounds):
  """Pairs of `Epochs` by name, for each later epoch of each round: of a way, and of the dataset `beside`.

  A round takes each way, new, in random order. Its first epoch reads files from the disk; each later one stands next to
  one of `beside`, as what else runs on the machine changes within seconds.
  """
  measured = {name: [] for name in makers}
  beside = Running(beside)
  first_beside = beside.epoch()
  for _ in range(rounds):
    for name in random.sample(list(makers), len(makers)):
      _empty(disk)
      running = Running(makers[name]())
      if files is not None:
        common.drop_from_page_cache(files)
      first = running.epoch()
      measured[name] += [
          (Epochs(first, running.epoch()), Epochs(first_beside, beside.epoch())) for _ in range(LATER)]
      del running
      gc.collect()
  return measured


def _empty(directory):
  shutil.rmtree(directory, ignore_errors=True)
  directory.mkdir()


def _of_plain(pairs, what):
  return [own.mean(what) / beside.mean(what) for own, beside in pairs]


def _fastest(scenario, advice, ways, measured):
  """The names of the pick and of the fastest others that it may have been."""
  allowed = [name for name, way in ways.items() if way.diversity >= MIN_DIVERSITY and (
      way.r <= 2 or len(scenario.source) >= FEW) and name != advice.best.name]
  return [advice.best.name, *sorted(allowed, key=lambda name: np.median(_of_plain(measured[name], CLOCK)))[:RIVALS]]


def _compared(scenario, budget, advice, ways, measured, cells):
  """The section of a scenario and a budget. Adds to `cells`."""
  count = len(scenario.source)
  rows = []
  prefix = f"{scenario.key}_{budget.replace(' ', '_')}"

  def add(key, name, epochs, way):
    rows.extend(common.Row(f"{prefix}_{key}_{what}", name, unit, values) for what, unit, values in (
        ("ms", "CPU ms an image", [1e3 * each.mean(CPU) / count for each in epochs]),
        ("ms_predicted", "predicted", [1e3 * way.cpu_seconds]),
        ("images", "images/s", [count / each.mean(CLOCK) for each in epochs]),
        ("images_predicted", "predicted images/s", [way.images_per_second])))

  add("plain", PLAIN, [beside for pairs in measured.values() for _, beside in pairs], advice.standard)
  for number, (name, way) in enumerate(ways.items()):
    title = f"{name} (the pick)" if name == advice.best.name else name
    add(number, title, [own for own, _ in measured[name]], way)
    cpu, clock = (_of_plain(measured[name], what) for what in (CPU, CLOCK))
    predicted = way.cpu_seconds / advice.standard.cpu_seconds
    quotient = predicted / float(np.median(cpu))
    cells.append(quotient)
    rows += [common.Row(f"{prefix}_{number}_{what}", title, unit, values) for what, unit, values in (
        ("of_plain", "CPU time, of plain", cpu), ("of_plain_predicted", "predicted, of plain", [predicted]),
        ("quotient", "predicted over measured", [quotient]), ("speed", "images/s, of plain", [1 / each for each in clock]))]
  return common.Section(
      f"{scenario.name}, memory for {budget}",
      f"Means over {EPOCHS} epochs: a first one, and a later one for all others. Plain is the best plain "
      f"tf.data, one map of {common.PARALLEL_CALLS} calls without the autotuner: an epoch of it is measured next to each later one "
      "of a way. A round has every way, new, in random order. Files come from the disk in the first epoch.",
      rows)


def _beside(quick, directory, disk):
  """r = 3 with memory for its samples, alone and with half of the decoded images beside"""
  scenario = advise_scenarios.photographs(directory / "beside", 24 if quick else 384, 350)
  decode = rtf.augment.compose([rtf.augment.decode()])
  decoded = scenario.source.map(decode, tf.data.AUTOTUNE)
  half = sum(image.numpy().nbytes for image, _ in decoded) // 2
  crop = rtf.augment.random_resized_crop(advise_scenarios.SIDE, antialias=True)

  def train(source, *beginning):
    layers = advise_scenarios.layers_of_photographs(*beginning)
    return source.refurbish(*rtf.augment.split(layers, 3), r=3).batch(scenario.batch).prefetch(tf.data.AUTOTUNE)

  measured = _measured(
      train(scenario.source), {"both": lambda: train(rtf.sources.cached(decoded, rtf.CacheStore(max_bytes=half)), crop)}, disk,
      scenario.files, common.rounds(quick, 5))
  both, alone = ([1e3 * each.mean(CPU) / len(scenario.source) for each in epochs] for epochs in zip(*measured["both"]))
  return common.Section(
      _beside.__doc__, f"{scenario.name}. Means over {EPOCHS} epochs.",
      [common.Row("beside_alone", "r = 3 alone", "CPU ms an image", alone),
       common.Row("beside_both", "both", "CPU ms an image", both),
       common.Row("beside", "both", "of r = 3 alone", common.quotients(both, alone), MOST_OF_R_3_ALONE)])


def _shown(cells, picks, missing):
  """What advise must show"""
  errors = [math.exp(abs(math.log(quotient))) for quotient in cells]
  whats = f"CPU time of {len(cells)} ways, predicted over measured or the reverse"
  best = f"images/s of the best way over those of the pick, {len(picks)} times"
  return common.Section(
      _shown.__doc__,
      "Of all sections above. CPU time is relative to that of plain tf.data. The best way has the most images/s among those measured "
      f"that keep a diversity of {MIN_DIVERSITY}, on less than {FEW:,} samples with r = 2 at most. The pick and the {RIVALS} fastest "
      "others were measured for six more rounds.",
      [common.Row("cells_median", f"{whats}, median", "times", [float(np.median(errors))], MOST_OF_MEDIAN),
       common.Row("cells_nine_of_ten", f"{whats}, nine of ten", "times", [_nine_of_ten(errors)], MOST_OF_NINE_OF_TEN),
       common.Row("cells_each", f"{whats}, the worst", "times", [max(errors)], MOST_OF_EACH),
       common.Row("picks_nine_of_ten", f"{best}, nine of ten", "times", [_nine_of_ten(picks)], MOST_OVER_PICK_OF_NINE_OF_TEN),
       common.Row("picks_each", f"{best}, the worst", "times", [max(picks)], MOST_OVER_PICK),
       common.Row("missing", "ways that a scenario admits, and that are missing", "ways", [sum(missing)], 0)])


def _nine_of_ten(values):
  """What nine of ten do not exceed."""
  return float(np.quantile(values, 0.9, method="inverted_cdf"))
