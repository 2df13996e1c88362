"""What the refurbish stage itself costs, beside the best that `tf.data` alone does with the same samples."""
import ctypes
import gc
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

import common
import refurbish_tf as rtf

IMAGENET = 1_281_167
# Larger than any number of epochs here: after the first, every sample is a hit.
NEVER_EVICT = 1e9
REUSE = (2, 3, 4)


def run(quick):
  rounds = 3 if quick else 5
  bars = [
      *_hits(20_000 if quick else 200_000, rounds),
      *_cost_model(1_000 if quick else 50_000, rounds),
      *_first_element(50_000 if quick else IMAGENET, rounds),
      *_memory(50_000 if quick else IMAGENET, 1 if quick else 3),
      *_plumbing(20_000 if quick else 200_000, rounds),
  ]
  return common.Report("What refurbish costs" + (" (quick: too little data to mean anything)" if quick else ""), bars, [
      "A hit: wall time of an epoch of int64 scalars in batches of 1024, over that of cache().shuffle(N).",
      "Cost model: CPU time of a steady epoch over t_p / r + t_f, with two RandAugment layers as partial and crop and",
      "flip as final augmentation of CIFAR-10 in batches of 128. t_p is what map(partial_fn) adds to reading the",
      "source, t_f what cache().map(final_fn) costs, both with their seeds given; random images where TFDS has no CIFAR-10.",
      "Memory: growth of the resident set over that of a filled Dataset.cache() of the same int64 scalars, in fresh",
      "processes; the smallest samples there are, so that all there is beside them shows.",
  ])


def _identity(sample):
  return sample


def _ratios(numerator, denominator):
  return [a / b for a, b in zip(numerator, denominator)]


def _hits(n, rounds):
  source = tf.data.Dataset.range(n)
  datasets = {
      "cache": source.cache().shuffle(n).batch(1024),
      "hits": source.refurbish(_identity, r=NEVER_EVICT).batch(1024),
      "r=3": source.refurbish(_identity, r=3).batch(1024),
  }
  for dataset in datasets.values():
    common.whole_epoch(dataset)
  seconds = common.interleaved(
      {name: lambda dataset=dataset: common.whole_epoch(dataset) for name, dataset in datasets.items()},
      rounds, time.perf_counter)
  microseconds = {name: [value / n * 1e6 for value in values] for name, values in seconds.items()}
  return [
      common.Bar(f"a hit / cache().shuffle(N), N = {n:,}", _ratios(seconds["hits"], seconds["cache"]), "", 0.7),
      common.Bar("  a hit", microseconds["hits"], "µs"),
      common.Bar("  cache().shuffle(N)", microseconds["cache"], "µs"),
      common.Bar("  an element at r = 3, with the map of the fresh ones", microseconds["r=3"], "µs"),
  ]


def _images(n):
  try:
    import tensorflow_datasets as tfds
    builder = tfds.builder("cifar10")
    if (pathlib.Path(builder.data_dir) / "dataset_info.json").exists():
      return np.stack([image for image, _ in tfds.as_numpy(
          builder.as_dataset(split=f"train[:{n}]", as_supervised=True))])
  except ImportError:
    pass
  return np.random.default_rng(0).integers(0, 256, [n, 32, 32, 3], np.uint8)


def _cost_model(n, rounds):
  images = _images(n)
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.rand_augment_layer(), rtf.augment.rand_augment_layer(),
       rtf.augment.random_crop(4), rtf.augment.random_flip()], at=2)
  source = tf.data.Dataset.from_tensor_slices(images)
  # The functions take a seed, which refurbish gives them; here it is read beside the image.
  seeds = np.random.default_rng(1).integers(0, 2**31, [n, 2], np.int32)
  seeded = tf.data.Dataset.from_tensor_slices((images, seeds))
  partial = lambda image, seed: partial_fn(image, seed=seed)
  final = lambda image, seed: final_fn(image, seed=seed)
  # As two maps with something between them are not fused, those measured alone must not be fused with `batch` either.
  unfused = tf.data.Options()
  unfused.experimental_optimization.map_and_batch_fusion = False
  datasets = {
      "source": seeded.batch(128),
      "partial": seeded.map(partial, tf.data.AUTOTUNE).batch(128).with_options(unfused),
      "final": seeded.cache().map(final, tf.data.AUTOTUNE).batch(128).with_options(unfused),
      **{r: source.refurbish(partial_fn, final_fn, r=r).batch(128).with_options(unfused) for r in REUSE},
  }
  for dataset in datasets.values():
    common.whole_epoch(dataset)
  seconds = common.sliced_epochs(datasets, rounds, batches=40)
  partials = [a - b for a, b in zip(seconds["partial"], seconds["source"])]
  bars = []
  for r in REUSE:
    model = [t_p / r + t_f for t_p, t_f in zip(partials, seconds["final"])]
    bars.append(common.Bar(f"CPU time / (t_p / r + t_f), r = {r}", _ratios(seconds[r], model), "", 1.05))
  bars += [
      common.Bar("  t_p", [value / n * 1e6 for value in partials], "µs CPU"),
      common.Bar("  t_f", [value / n * 1e6 for value in seconds["final"]], "µs CPU"),
  ]
  bars += [common.Bar(f"  a sample at r = {r}", [v / n * 1e6 for v in seconds[r]], "µs CPU") for r in REUSE]
  return bars


def _first_element(n, rounds):
  dataset = tf.data.Dataset.range(n).refurbish(_identity, r=3)
  batched = dataset.batch(1024)
  milliseconds = []
  for _ in range(rounds):
    common.whole_epoch(batched)
    begin = time.perf_counter()
    next(iter(dataset))
    milliseconds.append(1000 * (time.perf_counter() - begin))
  return [common.Bar(f"first element of a later epoch, N = {n:,}", milliseconds, "ms", 150)]


def _memory(n, repetitions):
  grown = {kind: [] for kind in ("cache", "filled", "r=3")}
  for _ in range(repetitions):
    for kind, values in grown.items():
      # In a process of its own: freed memory does not all go back to the system.
      output = subprocess.run(
          [sys.executable, __file__, kind, str(n)], check=True, capture_output=True, text=True).stdout
      values.append(json.loads(output.splitlines()[-1]))
  return [
      common.Bar("memory / cache(), nothing evicted", _ratios(grown["filled"], grown["cache"]), "", 1.1),
      common.Bar("memory / cache(), r = 3, after six epochs", _ratios(grown["r=3"], grown["cache"]), "", 1.1),
      common.Bar("  cache()", [value / n for value in grown["cache"]], "bytes a sample"),
  ]


def _plumbing(n, rounds):
  source = tf.data.Dataset.range(n)
  stream = source.filter(lambda index: True)
  datasets = {
      "map": source.map(_increment, tf.data.AUTOTUNE).batch(1024),
      "refurbish": source.refurbish(_increment, r=1).batch(1024),
      "stream map": stream.map(_increment, tf.data.AUTOTUNE).batch(1024),
      "stream": stream.refurbish(_increment, r=1).batch(1024),
  }
  for dataset in datasets.values():
    common.whole_epoch(dataset)
  seconds = common.interleaved(
      {name: lambda dataset=dataset: common.whole_epoch(dataset) for name, dataset in datasets.items()},
      rounds, common.cpu_seconds)
  extra = lambda name, base: [(a - b) / n * 1e6 for a, b in zip(seconds[name], seconds[base])]
  return [
      common.Bar("  a fresh sample more than map, random access", extra("refurbish", "map"), "µs CPU"),
      common.Bar("  a fresh sample more than map, stream", extra("stream", "stream map"), "µs CPU"),
      common.Bar("  map itself", [value / n * 1e6 for value in seconds["map"]], "µs CPU"),
  ]


def _increment(value):
  return value + 1


def _resident_bytes():
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  with open("/proc/self/statm", encoding="ascii") as statm:
    return int(statm.read().split()[1]) * 4096


def _grown(kind, n):
  """Resident bytes that holding `n` int64 scalars takes."""
  def hold(size):
    source = tf.data.Dataset.range(size)
    if kind == "cache":
      dataset, epochs = source.cache().batch(1024), 1
    else:
      dataset, epochs = source.refurbish(_identity, r=3 if kind == "r=3" else NEVER_EVICT).batch(1024), 6
    for _ in range(epochs):
      common.whole_epoch(dataset)
    return dataset
  hold(2048)  # What running it at all takes is not what is asked for.
  before = _resident_bytes()
  held = hold(n)
  grown = _resident_bytes() - before
  del held
  return grown


if __name__ == "__main__":
  print(json.dumps(_grown(sys.argv[1], int(sys.argv[2]))))
