"""The gain when an accelerator finishes batches together with the CPU."""

import itertools
import random
import time

import common
import numpy as np
import samples
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal import dataset_graph

SIDE, BATCH, PADDING, MAGNITUDE = 224, 64, 4, 9
# Makes a pipeline endless in practice.
REPEATED = 10**6
# The most batches that a pipeline prepares ahead while the other pipeline is measured, mainly in the calls of `map`.
PREPARED = 24
REUSE_FACTORS = (1, 3, 5)
MOST_OF_CPU = {3: 0.80, 5: 0.70}
WITHOUT = "without offload"


def measure(quick):
  """Yields the sections."""
  files, whence = samples.photographs(2 * BATCH if quick else 1500)
  yield _reuse(quick, np.array(files, object), whence)
  yield _cpu_time(quick, np.array(files, object), whence)


def _final_layers():
  return [augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize()]


def _on_batches(dataset):
  """The final layers on whole batches, the fastest form on the CPU."""
  return dataset.batch(BATCH, drop_remainder=True).map(
    augment.compose([augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize()], clips=False),
    common.PARALLEL_CALLS,
  )


def _seconds(batches, skipped, counted, train=0.0, device=0.0):
  """Seconds that a simulated accelerator takes for each of `counted` batches after `skipped` others.

  It trains on each for `train` seconds, plus `device` seconds if all images are unfinished. At the same time the host
  fetches the next batch, as with asynchronous dispatch.
  """
  free = time.perf_counter()
  for number, batch in enumerate(itertools.islice(batches, skipped + counted)):
    if number == skipped:
      began = free
    begins = max(free, time.perf_counter())
    # Without `offload`, a batch is a plain tensor, and no image is unfinished.
    unfinished = float(batch["draws"][:, 0].numpy().mean()) if isinstance(batch, dict) else 0.0
    free = begins + train + device * unfinished
    time.sleep(max(0.0, begins - time.perf_counter()))
  return (free - began) / counted


def _reuse(quick, files, whence):
  """After refurbish"""
  decode, policies = augment.decode_random_resized_crop(SIDE), augment.rand_augment(2, MAGNITUDE)
  layers = [*policies, *_final_layers()]
  source = tf.data.Dataset.from_tensor_slices(files)
  steps = len(files) // BATCH
  # Each pipeline prepares batches during the other's turn. These come first, and are not counted.
  turn = (2, steps) if quick else (PREPARED, 3 * steps)
  ways = {
    r: {
      WITHOUT: _on_batches(source.refurbish([decode], policies, r, seed=7)),
      "with": source.refurbish([decode], None, r, seed=7).offload(layers, BATCH),
    }
    for r in REUSE_FACTORS
  }
  rows = []
  train = device = None
  for r, datasets in ways.items():
    common.say(f"{_reuse.__doc__}, r = {r}")
    batches = {
      way: iter(dataset_graph.without_autotuner(dataset.repeat(REPEATED).prefetch(2)))
      for way, dataset in datasets.items()
    }
    took = {way: [] for way in batches}
    if train is None:
      # The accelerator's times are fractions of the input's time for a batch, which one epoch without a model measures.
      cpu = _seconds(batches[WITHOUT], 2, steps)
      train, device = cpu / 4, cpu / 10
    for way in batches:  # Not measured: in the first epoch every sample is fresh.
      _seconds(batches[way], 0, steps, train, device)
    for _ in range(common.rounds(quick, 5)):
      for way in random.sample(list(batches), len(batches)):
        took[way].append(_seconds(batches[way], *turn, train, device))
    rows += [
      *(
        common.Row(
          f"reuse_r{r}_{way.split()[0]}",
          f"r = {r}",
          f"images/s {way if way == WITHOUT else 'with offload'}",
          [BATCH / seconds for seconds in values],
        )
        for way, values in took.items()
      ),
      common.Row(f"reuse_r{r}_gain", f"r = {r}", "the gain", common.quotients(took[WITHOUT], took["with"])),
    ]
  return common.Section(
    _reuse.__doc__,
    f"{whence}, in memory: decode_random_resized_crop({SIDE}) in partial_fn, rand_augment(), "
    f"random_crop(padding={PADDING}), random_flip() and normalize() after it. A simulated accelerator: t_train is a "
    f"quarter of the time that the CPU takes for a batch without offload, r = 1, {1e3 * train:.1f} ms, and t_device a "
    f"tenth. {turn[1]} batches of {BATCH} per turn. FusionFlow's figure 11 has 1.52 times, on another machine, with a "
    "cache of part of the samples.",
    rows,
  )


def _cpu_time(quick, files, whence):
  """The input's CPU time"""
  decode, policies, final = (
    augment.decode_random_resized_crop(SIDE),
    augment.rand_augment(2, MAGNITUDE),
    _final_layers(),
  )
  source = tf.data.Dataset.from_tensor_slices(files)
  rows = []
  for r in REUSE_FACTORS:
    common.say(f"{_cpu_time.__doc__}, r = {r}")
    kept = lambda partial, function, r=r: source.refurbish(partial, function, r, seed=7)
    # Pairs with and without offload are compared. Some are nearly equal, so many rounds are needed.
    costs = common.per_element(
      len(files) // BATCH * BATCH,
      common.cpu_of_epochs(
        {
          "in partial_fn": kept([decode, *policies], None).offload(final, BATCH),
          "in partial_fn, without": _on_batches(kept([decode, *policies], None)),
          "share 0": kept([decode], None).offload([*policies, *final], BATCH, device_fraction=0),
          "share 1": kept([decode], None).offload([*policies, *final], BATCH, device_fraction=1),
          "fresh, without": _on_batches(kept([decode], policies)),
        },
        common.rounds(quick, 15),
      ),
    )
    rows += [
      common.Row(f"cpu_r{r}_without", f"r = {r}", f"µs an image {WITHOUT}", costs["in partial_fn, without"]),
      common.Row(f"cpu_r{r}_offload", f"r = {r}", "with offload", costs["in partial_fn"]),
    ]
    rows += [
      common.Row(
        f"cpu_r{r}_{key}", f"r = {r}", f"{name}: of that {WITHOUT}", common.quotients(costs[mine], costs[other]), limit
      )
      for key, name, mine, other, limit in (
        ("final", "policies in partial_fn", "in partial_fn", "in partial_fn, without", MOST_OF_CPU.get(r)),
        ("share_0", "policies fresh, share 0", "share 0", "fresh, without", None),
        ("share_1", "policies fresh, share 1", "share 1", "fresh, without", MOST_OF_CPU.get(r)),
      )
    ]
  return common.Section(
    _cpu_time.__doc__,
    f"{whence}, in memory, for a model that takes float32; no model runs. decode_random_resized_crop({SIDE}) in "
    f"partial_fn, rand_augment() there or after it, then random_crop(padding={PADDING}), random_flip() and "
    f"normalize(): by the accelerator, or, without offload, on whole batches of {BATCH}, the fastest form. Share: the "
    "fraction of policies on the accelerator. CPU time of all threads of an epoch after the first.",
    rows,
  )
