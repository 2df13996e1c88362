"""What a cache store on disk costs: its reads beside bare ones, beside tf.data's own, and an epoch on it.

Writes some gigabytes below the directory for temporary files (TMPDIR) and deletes them. For cold reads
posix_fadvise drops the files from the page cache first.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import common
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import native

ROOT = pathlib.Path(__file__).resolve().parent.parent
# As often as training ever uses a sample: from the second epoch on all are hits.
ONLY_HITS = 10**6
KIB = 1024
CASES = (("small", "3 KiB", 200_000, 3 * KIB, 256), ("large", "150 KiB", 5_000, 150 * KIB, 16))


def measure(quick):
  """Yields the sections."""
  directory = pathlib.Path(tempfile.mkdtemp(prefix="refurbish-disk-"))
  try:
    stores = {}
    for case in CASES:
      common.say(f"filling a store with samples of {case[1]}")
      stores[case[0]] = _fill(directory, quick, *case)
    for section in (bare_reads, peers, steady_epochs, space):
      common.say(section.__doc__)
      yield section(quick, directory, stores)
  finally:
    shutil.rmtree(directory)


def bare_reads(quick, directory, stores):
  """Reads of the store beside the same reads alone"""
  program = directory / "bare_reads"
  sources = [ROOT / "benchmarks" / "bare_reads.cc", *sorted((ROOT / "refurbish_tf/cc/store/disk").glob("*.cc"))]
  library = tf.sysconfig.get_link_flags()
  subprocess.run(
      [*native.compiler(), "-std=c++17", "-O3", "-iquote", ROOT, "-isystem", tf.sysconfig.get_include(), *sources, "-o",
       program, "-pthread", "-Wl,--as-needed", *library, f"-Wl,-rpath,{library[0][2:]}"], check=True)
  rows = []
  for key, name, *_ in CASES:
    for cold in (False, True):
      done = subprocess.run(
          [program, stores[key]["path"], "1", str(common.rounds(quick, 5)), str(int(cold))], check=True, capture_output=True,
          text=True)
      times = [list(map(float, line.split())) for line in done.stdout.splitlines()]
      pread, queue, store = ([1e-3 * value for value in column] for column in zip(*times))
      which = f"{name}, {'cold' if cold else 'warm'}"
      row = f"{key}_{'cold' if cold else 'warm'}"
      rows += [
          common.Row(f"{row}_pread", f"{which}: pread, one by one", "µs", pread),
          common.Row(f"{row}_queue", f"{which}: several at once, as many as the store", "µs", queue),
          common.Row(f"{row}_store", f"{which}: the store", "µs", store),
          common.Row(f"{row}_of_bare", f"Store against bare reads, {which}", "of the baseline",
                     common.quotients(store, queue), limit=1.25)]
  return common.Section(
      bare_reads.__doc__,
      "Wall time per sample, in random order. The baseline makes the very same reads of the same files, at the depth at "
      "which the store makes them, into buffers that it uses again and again, and does nothing else: no look-up, no "
      "checksum, no memory for the sample. A limit of 1.25 is a throughput of 0.8.", rows)


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
            _drop_from_page_cache(paths[way])
          times[way].append(1e6 * _drain(dataset) / count)
      which = f"{name}, {'cold' if cold else 'warm'}"
      row = f"{key}_{'cold' if cold else 'warm'}"
      rows += [
          common.Row(f"{row}_refurbish", f"{which}: refurbish, only hits", "µs", times["store"]),
          common.Row(f"{row}_load", f"{which}: Dataset.load of Dataset.save", "µs", times["load"]),
          common.Row(f"{row}_cache", f"{which}: Dataset.cache(filename)", "µs", times["cache"]),
          common.Row(f"{row}_of_cache", f"Refurbish against cache(filename), {which}", "of the baseline",
                     common.quotients(times["store"], times["cache"]), limit=0.333)]
    shutil.rmtree(os.path.dirname(cache))
    shutil.rmtree(saved)
  return common.Section(
      peers.__doc__,
      "Wall time per sample of an epoch, without .batch() or a loop in Python. The other two yield the samples in the order "
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
  costs = common.per_element(count, common.cpu_of_epochs(datasets, rounds=common.rounds(quick, 7), turn=50))
  return common.Section(
      steady_epochs.__doc__,
      f"CPU time per image of {count:,} images of 3 KiB, r = 3, partial_fn rand_augment(), final_fn "
      "random_crop(4) and random_flip().",
      [common.Row("steady_memory", "In memory", "µs", costs["memory"]),
       common.Row("steady_disk", "On disk", "µs", costs["disk"]),
       common.Row("steady", "A steady epoch on disk", "of one in memory",
                  common.quotients(costs["disk"], costs["memory"]), limit=1.1)])


def space(quick, directory, stores):
  """Space on the disk and bytes written"""
  del stores
  rows = []
  for r in (2, 3, 4, 5):
    for name, size in (("3 KiB", 3 * KIB), ("40 KiB", 40 * KIB)):
      count = _count(quick, 120_000_000 // size)
      store = rtf.CacheStore(directory / f"space-{r}-{size}")
      dataset = _source(count, size).refurbish(tf.identity, r=r, store=store).batch(64)
      most = 0
      for _ in range(3 * r):
        for step, _ in enumerate(dataset):
          if step % 32 == 0:
            stats = store.stats()
            if stats.entries >= count * (1 - 1 / r):
              most = max(most, stats.disk_bytes / stats.bytes)
      stats = store.stats()
      written = sum(epoch.fresh for epoch in rtf.stats(dataset)[0].epochs) * stats.bytes / stats.entries
      rows += [
          common.Row(f"space_r{r}_{size}", f"Space, r = {r}, {name}", "of what is live", [most], limit=2),
          common.Row(f"written_r{r}_{size}", f"Written, r = {r}, {name}", "of what was put",
                     [1 + stats.moved_bytes / written], limit=2)]
      del dataset, store
      shutil.rmtree(directory / f"space-{r}-{size}")
  return common.Section(
      space.__doc__,
      "The most that the files have taken at any time after the first epoch, and all bytes written, with those moved by "
      "compaction, over 3 r epochs. Preparing costs nothing here, so the disk is written as fast as it ever will be.", rows)


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


def _drop_from_page_cache(directory):
  for root, _, names in os.walk(directory):
    for name in names:
      fd = os.open(os.path.join(root, name), os.O_RDONLY)
      os.fdatasync(fd)  # Unwritten pages would not be dropped.
      os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
      os.close(fd)


def _count(quick, count):
  return max(64, count // 200) if quick else count
