"""What a cache store on disk costs: its reads beside tf.data's own caches, and an epoch on it.

Writes some gigabytes below the directory for temporary files (TMPDIR) and deletes them. For cold reads
posix_fadvise drops the files from the page cache first.
"""
import os
import pathlib
import shutil
import tempfile
import time

import common
import tensorflow as tf

import refurbish_tf as rtf

# As often as training ever uses a sample: from the second epoch on all are hits.
ONLY_HITS = 10**6
KIB = 1024
CASES = (("small", "3 KiB", 200_000, 3 * KIB, 256), ("large", "150 KiB", 5_000, 150 * KIB, 16))


def measure(quick):
  """Yields the sections."""
  with tempfile.TemporaryDirectory(prefix="refurbish-disk-") as directory:
    directory = pathlib.Path(directory)
    stores = {}
    for case in CASES:
      common.say(f"filling a store with samples of {case[1]}")
      stores[case[0]] = _fill(directory, quick, *case)
    for section in (peers, steady_epochs):
      common.say(section.__doc__)
      yield section(quick, directory, stores)


def peers(quick, directory, stores):
  """Reads of the store beside tf.data's own caches"""
  rows = []
  for key, name, count, size, batch in CASES:
    count = _count(quick, count)
    source = _source(count, size)
    cache = str(directory / f"{key}-cache" / "cache")
    os.makedirs(os.path.dirname(cache))
    saved = str(directory / f"{key}-saved")
    source.save(saved)
    datasets = {
        "store": stores[key]["dataset"],
        "cache": source.cache(cache),
        "load": tf.data.Dataset.load(saved)}
    paths = {"store": stores[key]["path"], "cache": os.path.dirname(cache), "load": saved}
    # Without the cost of a further stage: skip reads and drops all elements but one.
    datasets = {way: dataset.skip(count - 1) for way, dataset in datasets.items()}
    for _ in source.cache(cache).batch(batch):  # Fills it: only what was read to its end stays.
      pass
    for dataset in datasets.values():
      _drain(dataset)
    for cold in (False, True):
      times = {way: [] for way in datasets}
      for _ in range(common.rounds(quick, 3)):
        for way, dataset in datasets.items():
          if cold:
            common.drop_from_page_cache(paths[way])
          times[way].append(1e6 * _drain(dataset) / count)
      which = f"{name}, {'cold' if cold else 'warm'}"
      row = f"{key}_{'cold' if cold else 'warm'}"
      rows += [
          common.Row(f"{row}_refurbish", f"{which}: refurbish", "µs", times["store"]),
          common.Row(f"{row}_load", f"{which}: Dataset.load of Dataset.save", "µs", times["load"]),
          common.Row(f"{row}_cache", f"{which}: Dataset.cache(filename)", "µs", times["cache"]),
          common.Row(f"{row}_of_cache", f"{which}: refurbish", "of cache(filename)",
                     common.quotients(times["store"], times["cache"]), limit=0.333)]
    shutil.rmtree(os.path.dirname(cache))
    shutil.rmtree(saved)
  return common.Section(
      peers.__doc__,
      "Wall time per sample of an epoch of hits alone, without .batch() or a loop in Python. The other two yield the samples in the order "
      "in which they were written, so they read at the bandwidth of the disk; refurbish reads in random order, which is "
      "bounded by the reads that the disk serves in a second.", rows)


def steady_epochs(quick, directory, stores):
  """Cost of a steady epoch on disk beside one in memory"""
  del stores
  count, batch = (1024 if quick else 20_000), 128
  images = tf.cast(tf.random.stateless_uniform([count, 32, 32, 3], [1, 2], 0, 256, tf.int32), tf.uint8)
  source = tf.data.Dataset.from_tensor_slices(images)
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.rand_augment(), rtf.augment.random_crop(4),
       rtf.augment.random_flip()], at=2)
  datasets = {
      "memory": source.refurbish(partial_fn, final_fn, r=3).batch(batch),
      "disk": source.refurbish(partial_fn, final_fn, r=3, store=directory / "steady").batch(batch)}
  costs = common.per_element(count, common.cpu_of_epochs(datasets, rounds=common.rounds(quick, 7)))
  return common.Section(
      steady_epochs.__doc__,
      f"CPU time per image of {count:,} images of 3 KiB, r = 3, partial_fn rand_augment(), final_fn "
      "random_crop(4) and random_flip().",
      [common.Row("steady_memory", "In memory", "µs", costs["memory"]),
       common.Row("steady_disk", "On disk", "µs", costs["disk"]),
       common.Row("steady", "On disk", "of in memory",
                  common.quotients(costs["disk"], costs["memory"]), limit=1.1)])


def _source(count, size):
  # Incompressible, and different for each sample.
  return tf.data.Dataset.range(count).map(
      lambda i: tf.random.stateless_uniform([size // 4], [1, i], None, None, tf.int32), tf.data.AUTOTUNE)


def _fill(directory, quick, key, name, count, size, batch):
  path = directory / key
  dataset = _source(_count(quick, count), size).refurbish(tf.identity, r=ONLY_HITS, seed=1, store=path)
  for _ in range(2):
    _drain(dataset.batch(batch))
  return {"dataset": dataset, "path": path}


def _drain(dataset):
  began = time.perf_counter()
  for _ in dataset:
    pass
  return time.perf_counter() - began


def _count(quick, count):
  return max(64, count // 200) if quick else count
