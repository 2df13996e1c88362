"""What a checkpoint of an iterator over refurbish costs: time to save and to restore, and bytes, against N.

Beside it, what the same costs for a pipeline of tf.data's own that only maps, and for one with a shuffle buffer, whose
contents go into its checkpoints.
"""
import itertools
import pathlib
import tempfile
import time

import common
import tensorflow as tf

SIZES = (10_000, 100_000, 1_281_167, 10_000_000)
QUICK_SIZES = (1_000, 10_000)
IMAGENET = 1_281_167
# Checkpoints are saved in the middle of an epoch, where their bits are least compressible, but after at most these
# samples.
MOST_READ = IMAGENET // 2
BATCH = 1024
# Bytes of a sample in all pipelines, so that a shuffle buffer has something to save.
SAMPLE_BYTES = 64
BUFFER = 10_000


def measure(quick):
  """Yields the sections."""
  for section in (against_n, beside_tf_data):
    common.say(section.__doc__)
    yield section(quick)


def against_n(quick):
  """Against the number of samples"""
  rows = []
  for count in QUICK_SIZES if quick else SIZES:
    for symbolic in (False, True):
      found = _measure(
          {"refurbish": lambda count=count: _refurbish(count)}, count, symbolic, common.rounds(quick, 3))["refurbish"]
      key, name = f"{count}_{'symbolic' if symbolic else 'plain'}", f"N = {count:,}{', symbolic' if symbolic else ''}"
      # The bar is for ImageNet, and holds for smaller sets.
      limit = 1.0 if count <= IMAGENET else None
      rows += [
          common.Row(f"save_{key}", f"{name}: save", "ms", found["save"]),
          common.Row(f"restore_{key}", f"{name}: restore, first batch", "ms", found["restore"]),
          common.Row(f"bytes_{key}", f"{name}: bytes", "MB", found["bytes"], limit=limit)]
  return common.Section(
      against_n.__doc__,
      f"Time of tf.train.Checkpoint(iterator=...).write in the middle of an epoch, after at most {MOST_READ:,} samples; time "
      "of iter, read and the first batch, in a dataset made anew as in a new process, whose store is empty; and the size of "
      f"the checkpoint's files. r = 2, batches of {BATCH:,} samples of {SAMPLE_BYTES} bytes. symbolic: with the option of "
      "tf.data that keeps a checkpoint up to date with every element.", rows)


def beside_tf_data(quick):
  """Beside tf.data's own"""
  count = QUICK_SIZES[-1] if quick else 100_000
  buffer = min(BUFFER, count // 4)
  pipelines = {
      "refurbish": lambda: _refurbish(count),
      "map": lambda: _source(count).map(_sample).batch(BATCH),
      "shuffle": lambda: _source(count).map(_sample).shuffle(buffer, seed=1).batch(BATCH),
  }
  found = _measure(pipelines, count, False, common.rounds(quick, 5))
  names = {"map": "map, batch", "shuffle": f"map, shuffle({buffer:,}), batch"}
  rows = []
  for what, unit in (("save", "ms"), ("restore", "ms"), ("bytes", "MB")):
    rows.append(common.Row(f"{what}_refurbish", f"{what}: refurbish", unit, found["refurbish"][what]))
    for other, name in names.items():
      rows.append(common.Row(f"{what}_{other}", f"{what}: {name}", unit, found[other][what]))
      rows.append(common.Row(
          f"{what}_to_{other}", f"{what}: refurbish to {name}", "×",
          common.quotients(found["refurbish"][what], found[other][what])))
  return common.Section(
      beside_tf_data.__doc__,
      f"The same of {count:,} samples, all three one after the other in each round. The checkpoint of refurbish holds a bit "
      "for each sample, and that of shuffle what is in its buffer.", rows)


def _source(count):
  return tf.data.Dataset.range(count)


def _sample(index):
  return tf.fill([SAMPLE_BYTES], tf.cast(index, tf.uint8))


def _refurbish(count):
  return _source(count).refurbish(_sample, r=2, seed=1, num_parallel_calls=None).batch(BATCH)


def _measure(pipelines, count, symbolic, rounds):
  """By pipeline, and by "save", "restore" (milliseconds) and "bytes" (megabytes): the values of all rounds."""
  options = tf.data.Options()
  options.experimental_symbolic_checkpoint = symbolic
  # With prefetch, a checkpoint would have a batch that was read ahead, and restoring would yield that first.
  options.experimental_optimization.inject_prefetch = False
  datasets = {name: make().with_options(options) for name, make in pipelines.items()}
  iterators = {}
  for name, dataset in datasets.items():
    iterators[name] = iter(dataset)
    for _ in itertools.islice(iterators[name], min(count // 2, MOST_READ) // BATCH):
      pass
  found = {name: {"save": [], "restore": [], "bytes": []} for name in pipelines}
  # The first round is not counted, as it includes one-off work.
  for counted in [False] + [True] * rounds:
    for name, make in pipelines.items():
      with tempfile.TemporaryDirectory(prefix="refurbish-restart-") as directory:
        began = time.perf_counter()
        path = tf.train.Checkpoint(iterator=iterators[name]).write(f"{directory}/checkpoint")
        saved = time.perf_counter() - began
        size = sum(file.stat().st_size for file in pathlib.Path(directory).iterdir())
        anew = make().with_options(options)
        began = time.perf_counter()
        iterator = iter(anew)
        tf.train.Checkpoint(iterator=iterator).read(path)
        next(iterator, None)
        restored = time.perf_counter() - began
        del iterator, anew
      if counted:
        found[name]["save"].append(1e3 * saved)
        found[name]["restore"].append(1e3 * restored)
        found[name]["bytes"].append(size / 1e6)
  return found
