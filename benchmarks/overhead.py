"""The cost of refurbish itself: CPU time of hits and fresh samples, first element, end of an epoch, and memory.

It does not include the augmentation.
"""

import time

import common
import numpy as np
import tensorflow as tf

from refurbish_tf._internal import dataset_graph

# The number of training samples in ImageNet.
IMAGENET = 1_281_167
# A reuse factor so large that nothing is ever evicted: after the first epoch there are only hits.
ONLY_HITS = 1e12


def measure(quick):
  """Yields the sections."""
  for section in (hits, trivial, epoch_end, first_element, memory):
    common.say(section.__doc__)
    yield section(quick)


def identity(element):
  return element


def plus_one(x):
  return x + 1


def multiply(x):
  matrix = tf.random.stateless_normal([120, 120], [1, 2])
  for _ in range(2):
    matrix = tf.tanh(tf.matmul(matrix, matrix))
  return x + tf.cast(0 * matrix[0, 0], tf.int64)


def hits(quick):
  """Cost of a hit"""
  count, batch = (4096 if quick else 200_000), 1024
  source = tf.data.Dataset.range(count)
  costs = common.per_element(
    count,
    common.cpu_of_epochs(
      {
        "baseline": source.cache().shuffle(count).batch(batch),
        "hits": source.refurbish(identity, r=ONLY_HITS).batch(batch),
        "steady": source.refurbish(identity, r=3).batch(batch),
      },
      rounds=common.rounds(quick, 9),
    ),
  )
  return common.Section(
    hits.__doc__,
    f"CPU time per element of an epoch of {count:,} int64 scalars, including the cost of .batch({batch:,}). All hits: "
    "r is so large that nothing is evicted.",
    [
      common.Row("hit_baseline", "cache().shuffle(N)", "µs", costs["baseline"]),
      common.Row("hit_refurbish", "refurbish, all hits", "µs", costs["hits"]),
      common.Row("hit_r3", "refurbish(identity, r=3)", "µs", costs["steady"]),
      common.Row(
        "hit",
        "refurbish, all hits",
        "of cache().shuffle(N)",
        common.quotients(costs["hits"], costs["baseline"]),
        limit=0.6,
      ),
    ],
  )


def trivial(quick):
  """Cost of a fresh sample with trivial functions"""
  count, batch = (4096 if quick else 200_000), 1024
  source = tf.data.Dataset.range(count)
  # tf.data would otherwise fuse `map` and `batch` into one stage, which `refurbish` and `batch` cannot match.
  unfused = tf.data.Options()
  unfused.experimental_optimization.map_and_batch_fusion = False
  costs = common.per_element(
    count,
    common.cpu_of_epochs(
      {
        "map": source.map(plus_one, common.PARALLEL_CALLS).batch(batch).with_options(unfused),
        "partial": source.refurbish(plus_one, r=1).batch(batch),
        "both": source.refurbish(plus_one, plus_one, r=1).batch(batch),
      },
      rounds=common.rounds(quick, 9),
    ),
  )
  return common.Section(
    trivial.__doc__,
    f"CPU time per element of an epoch of {count:,} int64 scalars with .batch({batch:,}). The function is x + 1.",
    [
      common.Row("trivial_map", f"map(x + 1, {common.PARALLEL_CALLS})", "µs", costs["map"]),
      common.Row("trivial_partial", "refurbish(x + 1, r=1)", "µs", costs["partial"]),
      common.Row("trivial_both", "refurbish(x + 1, x + 1, r=1)", "µs", costs["both"]),
      common.Row(
        "trivial", "refurbish(x + 1, r=1)", "of the map", common.quotients(costs["partial"], costs["map"]), limit=0.7
      ),
    ],
  )


def epoch_end(quick):
  """The end of an epoch"""
  rows = []
  for key, what, count, epochs in (("short", "0.3 s", 2_000, 100), ("long", "5 s", 40_000, 20)):
    dataset = tf.data.Dataset.range(count // 50 if quick else count).refurbish(multiply, plus_one, r=1).batch(32)
    milliseconds = []
    for _ in range(3 if quick else epochs):
      iterator = iter(dataset.prefetch(tf.data.AUTOTUNE))
      for _ in iterator:
        pass
      began = time.perf_counter()
      del iterator
      milliseconds.append(1000 * (time.perf_counter() - began))
    name = f"an epoch of about {what}, {len(milliseconds)} times"
    rows += [
      common.Row(f"end_{key}", name, "ms", milliseconds),
      common.Row(f"end_{key}_95", name, "ms, 95 of 100", [float(np.quantile(milliseconds, 0.95))], limit=5),
      common.Row(f"end_{key}_most", name, "ms, the slowest", [max(milliseconds)], limit=50),
    ]
  return common.Section(
    epoch_end.__doc__,
    "How long it takes to drop an iterator that has come to its end, as Keras does in each epoch.",
    rows,
  )


def first_element(quick):
  """Time to the first element"""
  count = 20_000 if quick else IMAGENET
  source = tf.data.Dataset.range(count)
  datasets = {
    "baseline": dataset_graph.without_autotuner(source.cache().shuffle(count)),
    "refurbish": source.refurbish(identity, r=3),
  }
  waits = {name: [] for name in datasets}
  # Not in turns, because the baseline takes longer to free its memory than refurbish takes to begin.
  for name, dataset in reversed(datasets.items()):
    for epoch in range(1 + common.rounds(quick, 5)):
      began = time.perf_counter()
      iterator = iter(dataset.batch(1 if epoch else 1024))
      next(iterator)
      if epoch > 0:
        waits[name].append(1000 * (time.perf_counter() - began))
      else:
        for _ in iterator:  # Reads to the end, so that the next epoch follows a whole one.
          pass
      del iterator  # Otherwise it would be destroyed within the next measurement.
  return common.Section(
    first_element.__doc__,
    f"From iter() to the first int64 scalar of a later epoch, N = {count:,}, r = 3.",
    [
      common.Row("first_baseline", "cache().shuffle(N)", "ms", waits["baseline"]),
      common.Row("first", "refurbish", "ms", waits["refurbish"], limit=50),
    ],
  )


def memory(quick):
  """Memory"""
  # The first two cases have tiny samples (the images have 192 bytes), for which the overhead per sample weighs most.
  cases = [
    ("int64", "an int64 scalar", 2_000 if quick else IMAGENET, ONLY_HITS, 1),
    ("image_8", "uint8 [8, 8, 3]", 2_000 if quick else IMAGENET // 4, ONLY_HITS, 1),
    ("image_32", "uint8 [32, 32, 3]", 500 if quick else 50_000, 3, 6),
  ]
  rows = []
  with common.fresh_processes() as call:
    for key, what, count, r, epochs in cases:
      cached, refurbished = [], []
      for _ in range(common.rounds(quick, 5)):
        cached.append(call(_resident_growth, key, count, None, 1) / count)
        refurbished.append(call(_resident_growth, key, count, r, epochs) / count)
      how = "all kept" if r == ONLY_HITS else f"r = {r}, after {epochs} epochs"
      rows += [
        common.Row(f"{key}_cache", f"cache(), {what}", "bytes", cached),
        common.Row(f"{key}_refurbish", f"refurbish, {what}, {how}", "bytes", refurbished),
        common.Row(key, f"refurbish, {what}, {how}", "of cache()", common.quotients(refurbished, cached), limit=1.1),
      ]
  return common.Section(
    memory.__doc__,
    "Growth of the resident memory per element, from before the first epoch to after the last, of a process that does "
    "nothing else. cache() holds the results of map(fn), and refurbish the results of the same fn, its partial_fn. N = "
    + ", ".join(f"{count:,} ({what})" for _, what, count, _, _ in cases)
    + ".",
    rows,
  )


def _resident_growth(kind, count, r, epochs):
  """Bytes by which a process grows in epochs of `refurbish`, or of `cache` if `r` is None. Run it in a new process."""
  dataset, small = (_filled(kind, n, r) for n in (count, 2048))
  # Epochs of a small dataset load libraries and start threads before the memory is measured.
  for _ in range(2):
    for _ in small:
      pass
  del small
  before = common.resident_bytes()
  for _ in range(epochs):
    for _ in dataset:
      pass
  return common.resident_bytes() - before


def _filled(kind, count, r):
  functions = {
    "int64": identity,
    "image_8": lambda i: tf.fill([8, 8, 3], tf.cast(i % 256, tf.uint8)),
    "image_32": lambda i: tf.fill([32, 32, 3], tf.cast(i % 256, tf.uint8)),
  }
  source = tf.data.Dataset.range(count)
  if r is None:
    kept = source.map(functions[kind], tf.data.AUTOTUNE).cache()
  else:
    kept = source.refurbish(functions[kind], r=r)
  return kept.batch(128)
