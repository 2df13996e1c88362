"""What refurbish costs beside the augmentation: CPU time of hits and of epochs, first element, memory."""
import pathlib
import time

import common
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

# The training samples of ImageNet.
IMAGENET = 1_281_167
# So large that nothing is ever evicted: after the first epoch there are only hits.
ONLY_HITS = 1e12


def measure(quick):
  """Yields the sections."""
  for section in (hits, steady_epochs, first_batch, memory, plumbing):
    common.say(section.__doc__)
    yield section(quick)


def identity(element):
  return element


def hits(quick):
  """Cost of a hit"""
  count, batch = (4096 if quick else 200_000), 1024
  source = tf.data.Dataset.range(count)
  costs = common.per_element(count, common.cpu_of_epochs({
      "baseline": source.cache().shuffle(count).batch(batch),
      "hits": source.refurbish(identity, r=ONLY_HITS).batch(batch),
      "steady": source.refurbish(identity, r=3).batch(batch),
  }, rounds=common.rounds(quick, 9)))
  return common.Section(
      hits.__doc__,
      f"CPU time per element of an epoch of {count:,} int64 scalars with .batch({batch:,}), whose own cost is in all of "
      "them. All hits: r is so large that nothing is evicted.",
      [common.Row("hit_baseline", "cache().shuffle(N)", "µs", costs["baseline"]),
       common.Row("hit_refurbish", "refurbish, all hits", "µs", costs["hits"]),
       common.Row("hit_r3", "refurbish, r = 3, with map(identity) for the fresh ones", "µs", costs["steady"]),
       common.Row("hit", "A hit against cache().shuffle(N)", "of the baseline",
                  common.quotients(costs["hits"], costs["baseline"]), limit=0.7)])


def steady_epochs(quick):
  """Cost of a steady epoch"""
  images, whence = _images(512 if quick else 50_000)
  count, batch = len(images), 128
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.rand_augment_layer(), rtf.augment.rand_augment_layer(), rtf.augment.random_crop(4),
       rtf.augment.random_flip()], at=2)
  seeds = np.random.default_rng(7).integers(2**31, size=[count, 2], dtype=np.int32)
  seeded = tf.data.Dataset.from_tensor_slices((images, seeds))
  # tf.data fuses a map with a batch right behind it into one stage. Behind the partial map there is none.
  unfused = tf.data.Options()
  unfused.experimental_optimization.map_and_batch_fusion = False
  datasets = {
      "source": seeded.batch(batch),
      "partial": seeded.map(lambda image, seed: partial_fn(image, seed=seed), common.PARALLEL_CALLS)
                 .batch(batch).with_options(unfused),
      "final": seeded.cache().map(lambda image, seed: final_fn(image, seed=seed), common.PARALLEL_CALLS).batch(batch),
  }
  reuse_factors = (2, 3, 4)
  source = tf.data.Dataset.from_tensor_slices(images)
  datasets |= {r: source.refurbish(partial_fn, final_fn, r=r).batch(batch) for r in reuse_factors}
  costs = common.per_element(count, common.cpu_of_epochs(datasets, rounds=common.rounds(quick, 5), turn=50))
  partial = [partial - source for partial, source in zip(costs["partial"], costs["source"])]
  limits = {r: [p / r + f for p, f in zip(partial, costs["final"])] for r in reuse_factors}
  return common.Section(
      steady_epochs.__doc__,
      f"CPU time per image, epochs of {count:,} images ({whence}). t_f is all that images.cache().map(final_fn, "
      f"{common.PARALLEL_CALLS}).batch({batch}) costs: a refurbished epoch has the cache, the final map, the batching and "
      f"the iteration once for each image, too. t_p is only what .map(partial_fn, {common.PARALLEL_CALLS}) adds to "
      f"images.batch({batch}). All images lie in memory, and both functions are given other seeds for each. partial_fn is two rand_augment_layer(), final_fn "
      "random_crop(4) and random_flip().",
      [common.Row("t_p", "t_p", "µs", partial),
       common.Row("t_f", "t_f", "µs", costs["final"])] +
      [common.Row(f"steady_r{r}", f"refurbish, r = {r}", "µs", costs[r]) for r in reuse_factors] +
      [common.Row(f"epoch_r{r}", f"A steady epoch, r = {r}", "of t_p / r + t_f",
                  common.quotients(costs[r], limits[r]), limit=1.05) for r in reuse_factors])


def first_batch(quick):
  """Time to the first batch"""
  count, batch = (20_000 if quick else IMAGENET), 1024
  source = tf.data.Dataset.range(count)
  datasets = {"baseline": source.cache().shuffle(count).batch(batch),
              "refurbish": source.refurbish(identity, r=3).batch(batch)}
  waits = {name: [] for name in datasets}
  for epoch in range(1 + common.rounds(quick, 5)):
    for name, dataset in datasets.items():
      began = time.perf_counter()
      iterator = iter(dataset)
      next(iterator)
      if epoch > 0:
        waits[name].append(1000 * (time.perf_counter() - began))
      for _ in iterator:  # To the end, for the next epoch to be one after a whole one.
        pass
      del iterator  # Not in the next one's time.
  return common.Section(
      first_batch.__doc__,
      f"From iter() to the first batch of {batch:,} int64 scalars of a later epoch, each after a whole one, "
      f"N = {count:,}, r = 3. The first element comes sooner.",
      [common.Row("first_baseline", "cache().shuffle(N)", "ms", waits["baseline"]),
       common.Row("first", "First batch of a later epoch", "ms", waits["refurbish"], limit=150)])


def memory(quick):
  """Memory"""
  # The image's 192 bytes are the least that make a picture, so that what is held beside the data weighs most.
  cases = [("int64", "an int64 scalar", 2_000 if quick else IMAGENET, ONLY_HITS, 1),
           ("image_8", "uint8 [8, 8, 3]", 2_000 if quick else IMAGENET // 4, ONLY_HITS, 1),
           ("image_32", "uint8 [32, 32, 3]", 500 if quick else 50_000, 3, 6)]
  rows = []
  with common.fresh_processes() as call:
    for key, what, count, r, epochs in cases:
      cached, refurbished = [], []
      for _ in range(common.rounds(quick, 5)):
        cached.append(call(_resident_growth, key, count, None, 1) / count)
        refurbished.append(call(_resident_growth, key, count, r, epochs) / count)
      how = "all kept" if r == ONLY_HITS else f"r = {r}, after {epochs} epochs"
      rows += [common.Row(f"{key}_cache", f"cache(), {what}", "bytes", cached),
               common.Row(f"{key}_refurbish", f"refurbish, {what}, {how}", "bytes", refurbished),
               common.Row(key, f"Memory: {what}, {how}", "of cache()",
                          common.quotients(refurbished, cached), limit=1.1)]
  return common.Section(
      memory.__doc__,
      "Growth of the resident memory per element, from before the first epoch to after the last, of a process that does "
      "nothing else. cache() holds what map(fn) yields and refurbish what its partial_fn, the same function, yields. N = " +
      ", ".join(f"{count:,} ({what})" for _, what, count, _, _ in cases) + ".",
      rows)


def plumbing(quick):
  """Cost of a fresh sample"""
  count, batch = (4096 if quick else 50_000), 1024
  # flat_map has no random access, so it is read as a stream.
  sources = {"access": tf.data.Dataset.range(count),
             "stream": tf.data.Dataset.from_tensors(0).flat_map(lambda _: tf.data.Dataset.range(count))}
  unfused = tf.data.Options()
  unfused.experimental_optimization.map_and_batch_fusion = False
  datasets = {}
  for kind, source in sources.items():
    datasets[kind, "map"] = source.map(identity).batch(batch).with_options(unfused)
    datasets[kind, "refurbish"] = source.refurbish(identity, r=1, num_parallel_calls=None).batch(batch)
  costs = common.per_element(count, common.cpu_of_epochs(datasets, rounds=common.rounds(quick, 9)))
  rows = []
  for kind, name in (("access", "random access"), ("stream", "stream")):
    plain, refurbished = costs[kind, "map"], costs[kind, "refurbish"]
    rows += [common.Row(f"fresh_{kind}_map", f"{name}: map(identity)", "µs", plain),
             common.Row(f"fresh_{kind}", f"{name}: refurbish(identity, r=1)", "µs", refurbished),
             common.Row(f"fresh_{kind}_plumbing", f"{name}: the difference, refurbish's own", "µs",
                        [r - m for r, m in zip(refurbished, plain)])]
  return common.Section(
      plumbing.__doc__,
      f"CPU time per element of an epoch of {count:,} int64 scalars with .batch({batch:,}), all of them fresh. Neither map "
      "is parallel, as the cost of waking threads would hide the difference. For information.",
      rows)


def _images(count):
  """uint8 `[n, 32, 32, 3]`, at most `count`, and in words where they come from."""
  # Looked for by hand: TFDS would try to download what is not prepared. In a quick run importing it takes longer than
  # all else.
  prepared = pathlib.Path.home() / "tensorflow_datasets" / "cifar10"
  if count < 50_000:
    whence = "random, as this is a quick run"
  elif not prepared.is_dir():
    whence = f"random, as there is no CIFAR-10 in {prepared}"
  else:
    import tensorflow_datasets as tfds  # pylint: disable=import-outside-toplevel
    images = tfds.load("cifar10", split="train", download=False, batch_size=-1)["image"].numpy()
    return images[:count], "CIFAR-10 from TFDS"
  return np.random.default_rng(7).integers(256, size=[count, 32, 32, 3], dtype=np.uint8), whence


def _resident_growth(kind, count, r, epochs):
  """Bytes that a process grows by in epochs of `refurbish`, or of `cache` if `r` is None. To be run in a fresh one."""
  dataset, small = (_filled(kind, n, r) for n in (count, 2048))
  # Libraries are loaded and threads begun before.
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
