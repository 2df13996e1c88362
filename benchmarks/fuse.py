"""What it brings that an accelerator finishes batches together with the CPU."""
import dataclasses
import itertools
import random
import time

import common
import numpy as np
import samples
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import dataset_graph

SIDE, BATCH, PADDING, MAGNITUDE = 224, 64, 4, 9
IMAGES = 16 * BATCH
# Enough policies that most of the CPU's time is in what can be shared.
MANY_POLICIES = 8
# Of the CPU's time for a batch: a training step, and what the accelerator takes for all policies of a batch.
TRAIN, DEVICE = (0.1, 0.5, 1.0, 2.0), (0.001, 0.1, 0.3, 1.0)
# Pairs of the above for what is measured for a few only.
FEW = ((0.5, 0.1), (0.5, 0.3))
SHARES = (0, 1 / 8, 1 / 4, 1 / 2, 1)
# Until fixed shares have filled what is queued, and until AUTOTUNE has found its own; and what is measured then.
SETTLING, FOUND, MEASURED = 12, 100, 80
PREFETCH = 2
# Makes a pipeline endless in practice.
REPEATED = 10**6
# What a pipeline that waits for its turn prepares ahead, at most: above all the calls of `map`.
PREPARED = 24
# By whether each step is waited for, without a prefetch: what the accelerator does.
KINDS = {False: "takes no processor", True: "is waited for at each step"}
BEST, EXTREME = "of the best share, s a batch", "of all here or all there, s a batch"
LEAST_OF_BEST, LEAST_OF_EXTREME = 0.95, 0.97
REUSE_FACTORS = (1, 3, 5)
MOST_OF_CPU = {3: 0.80, 5: 0.70}
MOST_OF_POLICIES = 1.03
WITHOUT = "without fuse"


@dataclasses.dataclass(frozen=True)
class Accelerator:
  """Trains on batches: `train` seconds each, and `device` seconds if all of its images are unfinished.

  Attributes:
    train, device: see above.
    is_waited_for: at each step. Else, as with asynchronous dispatch, the host fetches the next batch while one is trained on.
  """
  train: float = 0.0
  device: float = 0.0
  is_waited_for: bool = False

  def seconds(self, batches, skipped, counted):
    """Seconds a batch, of `counted` batches behind `skipped` others."""
    free = time.perf_counter()
    for number, batch in enumerate(itertools.islice(batches, skipped + counted)):
      if number == skipped:
        began = free
      begins = max(free, time.perf_counter())
      free = begins + self.train + self.device * _unfinished(batch)
      time.sleep(max(0.0, (free if self.is_waited_for else begins) - time.perf_counter()))
    return (free - began) / counted


def _unfinished(batch):
  """The share of a batch's images whose policies are the accelerator's, or 0 for one without `fuse`."""
  return float(batch["draws"][:, 0].numpy().mean()) if isinstance(batch, dict) else 0.0


def batches_of(dataset, prefetch=PREFETCH):
  """An iterator of a training's input."""
  return iter(dataset_graph.without_autotuner(dataset.prefetch(prefetch) if prefetch else dataset))


def measure(quick):
  """Yields the sections."""
  for kind in KINDS:
    yield _grid(quick, kind)
  files, whence = samples.photographs(2 * BATCH if quick else 1500)
  yield _reuse(quick, np.array(files, object), whence)
  yield _cpu_time(quick, np.array(files, object), whence)


def layers(policies):
  return [*augment.rand_augment(policies, MAGNITUDE), *final_layers()]


def final_layers():
  return [augment.random_crop(PADDING), augment.random_flip(), augment.normalize()]


def on_batches():
  """The final layers for whole batches, which is the fastest way on the CPU."""
  return augment.random_crop_and_flip_batch(PADDING, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def _images():
  images = np.random.default_rng(7).integers(0, 256, [IMAGES, SIDE, SIDE, 3], np.uint8)
  return tf.data.Dataset.from_tensor_slices(images)


def _fused(images, share):
  return images.repeat(REPEATED).fuse(layers(MANY_POLICIES), BATCH, on_device=share, seed=7)


def _without(images):
  """The same augmentation without `fuse`: policies on each image, the others on whole batches."""
  policies = augment.rand_augment(MANY_POLICIES, MAGNITUDE)
  return _on_batches(images.refurbish(policies, None, r=1, seed=7)).repeat(REPEATED)


def _on_batches(dataset):
  return dataset.batch(BATCH, drop_remainder=True).map(on_batches(), common.PARALLEL_CALLS)


def _seconds(dataset, accelerator, skipped, counted, prefetch=PREFETCH):
  return accelerator.seconds(batches_of(dataset, prefetch), skipped, counted)


def _grid(quick, kind):
  """The share that is found, by what a step and the policies take."""
  title, key, prefetch = f"A simulated accelerator that {KINDS[kind]}", "waiting" if kind else "idle", 0 if kind else PREFETCH
  common.say(title)
  cells = FEW[:1] if quick else [*itertools.product(TRAIN, DEVICE)] if not kind else FEW
  images = _images()
  found, counted = (4, 4) if quick else (FOUND, MEASURED)
  took = {cell: {way: [] for way in (*SHARES, rtf.AUTOTUNE, WITHOUT)} for cell in cells}
  whole = []
  for number in range(common.rounds(quick, 5)):
    for train, device in random.sample(cells, len(cells)):
      common.say(f"{title}: round {number + 1}, t_train {train}, t_device {device}")
      # Anew for each cell, as the machine is not equally fast at all times.
      cpu = _seconds(_fused(images, 0), Accelerator(), SETTLING, counted)
      whole.append(1e3 * cpu)
      accelerator = Accelerator(train * cpu, device * cpu, kind)
      for way in random.sample(list(took[train, device]), len(took[train, device])):
        dataset = _without(images) if way == WITHOUT else _fused(images, way)
        skipped = found if way == rtf.AUTOTUNE else SETTLING
        took[train, device][way].append(_seconds(dataset, accelerator, skipped, counted, prefetch))
  rows = [common.Row(f"{key}_batch", "the CPU's time for a batch, share 0", "ms", whole)]
  for (train, device), ways in took.items():
    rows += _compared(f"{key}_{train}_{device}", f"t_train {train}, t_device {device}", ways)
  return common.Section(
      title,
      f"Random bytes of {SIDE}x{SIDE} in memory, rand_augment({MANY_POLICIES}), random_crop({PADDING}), random_flip() "
      f"and normalize(), batches of {BATCH}, a prefetch of {prefetch}. Training holds each batch for "
      "t_train and, if all of its images are unfinished, for t_device, else for that part of it; both are multiples of "
      f"the time that the CPU takes for a batch by itself. {counted} batches by the clock, for AUTOTUNE from batch "
      f"{found} on; all ways by turns in random order, each from its beginning. Without fuse: refurbish, r = 1, then "
      f"crop, flip and normalise on whole batches. A limit of {1 / LEAST_OF_BEST:.3f} is {LEAST_OF_BEST} of the "
      f"throughput, one of {1 / LEAST_OF_EXTREME:.3f} is {LEAST_OF_EXTREME}.", rows)


def _compared(key, name, ways):
  """Rows of AUTOTUNE beside the best share, the extremes, and the pipeline without `fuse`."""
  tuned = ways[rtf.AUTOTUNE]
  return [
      common.Row(f"{key}_best", name, BEST, common.quotients(tuned, _fastest(ways, SHARES)), round(1 / LEAST_OF_BEST, 3)),
      common.Row(f"{key}_extreme", name, EXTREME, common.quotients(tuned, _fastest(ways, (0, 1))),
                 round(1 / LEAST_OF_EXTREME, 3)),
      common.Row(f"{key}_without", name, f"times the images/s {WITHOUT}",
                 common.quotients(ways[WITHOUT], tuned))]


def _fastest(ways, shares):
  """The times of that share whose median is the least: the least of each round would be the luckiest."""
  return min((ways[share] for share in shares), key=np.median)


def _reuse(quick, files, whence):
  """Behind refurbish"""
  decode, policies = augment.decode_and_crop(SIDE), augment.rand_augment(2, MAGNITUDE)
  source = tf.data.Dataset.from_tensor_slices(files)
  steps = len(files) // BATCH
  # The first batches were prepared in the turn of the other.
  turn = (2, steps) if quick else (PREPARED, 3 * steps)
  ways = {r: {
      WITHOUT: _on_batches(source.refurbish([decode], policies, r, seed=7)),
      "with": source.refurbish([decode], None, r, seed=7).fuse(layers(2), BATCH)} for r in REUSE_FACTORS}
  rows = []
  accelerator = None
  for r, datasets in ways.items():
    common.say(f"{_reuse.__doc__}, r = {r}")
    batches = {way: batches_of(dataset.repeat(REPEATED)) for way, dataset in datasets.items()}
    took = {way: [] for way in batches}
    if accelerator is None:
      # Of an epoch without a model, which is long enough for it.
      cpu = Accelerator().seconds(batches[WITHOUT], 2, steps)
      accelerator = Accelerator(cpu / 4, cpu / 10)
    for way in batches:  # The first epoch prepares all.
      accelerator.seconds(batches[way], 0, steps)
    for _ in range(common.rounds(quick, 5)):
      for way in random.sample(list(batches), len(batches)):
        took[way].append(accelerator.seconds(batches[way], *turn))
    rows += [*(common.Row(f"reuse_r{r}_{way.split()[0]}", f"r = {r}", f"images/s {way if way == WITHOUT else 'with fuse'}",
                          [BATCH / seconds for seconds in values]) for way, values in took.items()),
             common.Row(f"reuse_r{r}_gain", f"r = {r}", "the gain", common.quotients(took[WITHOUT], took["with"]))]
  return common.Section(
      _reuse.__doc__,
      f"{whence}, in memory: decode_and_crop({SIDE}) in partial_fn, rand_augment(), random_crop({PADDING}), random_flip() "
      "and normalize() behind it. A simulated accelerator as above: t_train is a fourth of the time that the CPU takes for "
      f"a batch without fuse, r = 1, {1e3 * accelerator.train:.1f} ms, t_device a tenth. {turn[1]} batches of {BATCH} a turn. "
      "FusionFlow's figure 11 has 1.52 times, on another machine, with a cache of a part of the samples.", rows)


def _cpu_time(quick, files, whence):
  """The input's CPU time"""
  decode, policies, final = augment.decode_and_crop(SIDE), augment.rand_augment(2, MAGNITUDE), final_layers()
  source = tf.data.Dataset.from_tensor_slices(files)
  rows = []
  for r in REUSE_FACTORS:
    common.say(f"{_cpu_time.__doc__}, r = {r}")
    kept = lambda partial, function, r=r: source.refurbish(partial, function, r, seed=7)
    # In pairs that are compared: with fuse, and without. Some are nearly equal, so they take many rounds.
    costs = common.per_element(len(files) // BATCH * BATCH, common.cpu_of_epochs({
        "in partial_fn": kept([decode, *policies], None).fuse(final, BATCH),
        "in partial_fn, without": _on_batches(kept([decode, *policies], None)),
        "share 0": kept([decode], None).fuse([*policies, *final], BATCH, on_device=0),
        "share 1": kept([decode], None).fuse([*policies, *final], BATCH, on_device=1),
        "fresh, without": _on_batches(kept([decode], policies)),
        "alone": kept([decode], None).fuse(policies, BATCH, on_device=0),
        "alone, without": kept([decode], policies).batch(BATCH, drop_remainder=True),
    }, common.rounds(quick, 15)))
    rows += [common.Row(f"cpu_r{r}_without", f"r = {r}", f"µs an image {WITHOUT}", costs["in partial_fn, without"]),
             common.Row(f"cpu_r{r}_fuse", f"r = {r}", "with fuse", costs["in partial_fn"])]
    rows += [common.Row(f"cpu_r{r}_{key}", f"r = {r}", f"{name}: of that {WITHOUT}",
                        common.quotients(costs[mine], costs[other]), limit)
             for key, name, mine, other, limit in (
                 ("final", "policies in partial_fn", "in partial_fn", "in partial_fn, without", MOST_OF_CPU.get(r)),
                 ("share_0", "policies fresh, share 0", "share 0", "fresh, without", None),
                 ("share_1", "policies fresh, share 1", "share 1", "fresh, without", MOST_OF_CPU.get(r)),
                 ("policies", "policies alone, share 0", "alone", "alone, without", MOST_OF_POLICIES))]
  return common.Section(
      _cpu_time.__doc__,
      f"{whence}, in memory, to a model that takes float32; no model runs. decode_and_crop({SIDE}) in partial_fn, "
      f"rand_augment() there or behind, then random_crop({PADDING}), random_flip() and normalize(): by the accelerator, or "
      f"on whole batches of {BATCH} where there is no fuse, its fastest form. Share: of the policies on the accelerator. "
      "Policies alone: without the final layers, beside refurbish(...).batch. CPU time of all threads of an epoch after the "
      "first.", rows)
