"""Images per second with refurbish and its alternatives, compared with the limit.

The limit applies to images per CPU second, which depend little on other users of the machine; a training sees images
per second. Both are measured in whole epochs after the first, which fills caches and the store.
"""

import dataclasses
import random
import time

import common
import samples
import numpy as np
import tensorflow as tf
import tensorflow_layers

import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph

# Images per batch. For more than 32 MB, malloc would request memory from the system for each batch, and page faults
# would dominate.
BATCHES = {"32": 128, "224": 32}
SIDE = 224
# With these arguments, TensorFlow's decoders make the same pixels as `rtf.augment.decode`.
LIKE_DECODE = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
REUSE_FACTORS = (1, 2, 3, 5)
MAGNITUDE = 9
PARTIAL, FINAL = "partial augmentation only", "final augmentation only"
STANDARD, STANDARD_OPS = "standard, native layers", "standard, TensorFlow-op layers"
REFURBISHED, CACHED = "refurbish, r = {}", "cache after augmentation"
GAIN, LIMIT, OVER = "gain", "its limit", "over t_p / r + t_f"
OPS = "refurbish, r = {}, TensorFlow-op layers"
# The column that README.md shows.
IN_README = "RandAugment, images/CPU s"
# Upper limits. The first two limit the cost of a stage relative to the sum of its parts: of each stage, and the median.
# MOST_OF, for RandAugment, lists r, another pipeline, and the limit relative to that pipeline.
MOST_OF_PARTS, MEDIAN_OF_PARTS = 1.12, 1.05
MOST_OF = {
  "rand_32": [(1, STANDARD_OPS, 0.32), (3, STANDARD_OPS, 0.26), (1, STANDARD, 1)],
  "rand_224": [(1, OPS.format(1), 0.50), (3, OPS.format(3), 0.60)],
}


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """An augmentation of one kind of images.

  Attributes:
    key, name: its name in the JSON, and elsewhere.
    layers: all of them, in order.
    at: how many of the layers are the partial augmentation.
    in_ops: the same layers, but with TensorFlow's operations for the first ones; or None.
  """

  key: str
  name: str
  layers: list
  at: int
  in_ops: list | None = None


def measure(quick):
  """Yields the sections."""
  images, whence = samples.small(512 if quick else 12_800)
  yield from _sections(quick, "32", "32x32", images, whence, small_augmentations(), rounds=5)
  files, whence = samples.photographs(32 if quick else 1500)
  yield from _sections(quick, "224", f"{SIDE}x{SIDE}", np.array(files, object), whence, large_augmentations(), rounds=3)


def small_augmentations():
  final = [rtf.augment.random_crop(padding=4), rtf.augment.random_flip()]
  rand, in_ops = (module.rand_augment(2, MAGNITUDE) for module in (rtf.augment, tensorflow_layers))
  # The later layers of Deep AutoAugment do the crop and flip.
  return [
    Augmentation("rand", "RandAugment", [*rand, *final], 2, [*in_ops, *final]),
    Augmentation("auto", "AutoAugment", [*rtf.augment.auto_augment("cifar10"), *final], 2),
    Augmentation("deep", "Deep AutoAugment", rtf.augment.deep_auto_augment("cifar10"), 2),
  ]


def large_augmentations():
  end = [rtf.augment.normalize()]
  final = [rtf.augment.random_crop(padding=4), rtf.augment.random_flip(), *end]
  rand, in_ops = (module.rand_augment(2, MAGNITUDE) for module in (rtf.augment, tensorflow_layers))
  decode = rtf.augment.decode_random_resized_crop(SIDE)
  return [
    Augmentation("rand", "RandAugment", [decode, *rand, *final], 3, [decode_part, *in_ops, *final]),
    Augmentation("auto", "AutoAugment", [decode, *rtf.augment.auto_augment("imagenet"), *final], 3),
    Augmentation("deep", "Deep AutoAugment", [decode, *rtf.augment.deep_auto_augment("imagenet"), *end], 3),
  ]


def decode_part(record, seed):
  """Does the same as `decode_random_resized_crop(SIDE)`, but with TensorFlow's operations."""
  begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
    tf.io.extract_jpeg_shape(record),
    tf.zeros([1, 0, 4]),
    seed,
    aspect_ratio_range=(3 / 4, 4 / 3),
    area_range=(0.08, 1.0),
    use_image_if_no_bounding_boxes=True,
  )
  part = tf.io.decode_and_crop_jpeg(record, tf.concat([begin[:2], size[:2]], axis=0), **LIKE_DECODE)
  return tf.cast(tf.image.resize(part, [SIDE, SIDE]) + 0.5, tf.uint8)


def _sections(quick, key, size, images, whence, augmentations, rounds):
  speeds, gains = [], []
  for number, augmentation in enumerate(augmentations):
    # A quick run measures all pipelines for the first augmentation only.
    complete = number == 0 or not quick
    common.say(f"{size}: {augmentation.name}")
    epochs = _measure(pipelines(images, augmentation, complete, BATCHES[key]), common.rounds(quick, rounds))
    for name, measured in epochs.items():
      speeds += [
        common.Row(
          f"{kind}_{augmentation.key}_{key}_{common.key(name)}",
          name,
          f"{augmentation.name}, {unit}",
          [len(images) / s for s in seconds],
        )
        for seconds, unit, kind in zip(zip(*measured), ("images/s", "images/CPU s"), ("wall", "cpu"))
      ]
    cpu = {name: [seconds for _, seconds in measured] for name, measured in epochs.items()}
    gains += _gains(f"{augmentation.key}_{key}", augmentation.name, len(images), cpu)
  splits = "; ".join(
    f"{augmentation.name}: {augmentation.at} of {len(augmentation.layers)}" for augmentation in augmentations
  )
  parts = [row for row in gains if row.limit == MOST_OF_PARTS]
  gains.append(
    common.Row(
      f"parts_{key}",
      f"in the median of {len(parts)}",
      OVER,
      [float(np.median([row.values[number] for row in parts])) for number in range(len(parts[0].values))],
      limit=MEDIAN_OF_PARTS,
    )
  )
  layers = "decoding with a random resized crop, then two layers" if key == "224" else "two layers"
  end = ", random_flip() and normalize() to float32" if key == "224" else " and random_flip()"
  yield common.Section(
    f"{size}: speed",
    f"{whence}. All are in memory; each pipeline shuffles, augments with {common.PARALLEL_CALLS} calls at once, or "
    f"refurbish's own workers, ends in .batch({BATCHES[key]}) and a prefetch, and is read without a model and without "
    f"tf.data's autotuner, on all cores. The augmentation is {layers} of RandAugment or AutoAugment, "
    f"random_crop(padding=4){end}; Deep AutoAugment includes crop and flip. TensorFlow-op layers: RandAugment and the "
    "decoding as TensorFlow's operations, as they once were here; all other pipelines have native layers. Layers in "
    f"the partial augmentation: {splits}. The contents of a cache after the augmentation never change.",
    speeds,
    lambda row: row.unit == IN_README and row.name in (STANDARD, REFURBISHED.format(1), REFURBISHED.format(3), CACHED),
  )
  yield common.Section(
    f"{size}: gain",
    "CPU time of standard divided by that of refurbish, both with native layers, in the epochs of the same round. The "
    "limit of the gain is the CPU time of standard divided by t_p / r + t_f: t_p is the cost of an epoch with only the "
    "partial augmentation, r = 1, including reading, batching and iteration, and t_f the cost of an epoch with only "
    "the final augmentation, of partially augmented samples in memory. Epochs do not include making an iterator.",
    gains,
    lambda row: row.unit in (GAIN, LIMIT) and row.name == "RandAugment, r = 3",
  )


def _gains(key, name, count, cpu):
  """Rows that compare the measured gain with its limit, for every reuse factor in `cpu`."""
  standard, partial, final = cpu[STANDARD], cpu[PARTIAL], cpu[FINAL]
  rows = [
    common.Row(f"{key}_t_p", name, "t_p, µs", [1e6 * t / count for t in partial]),
    common.Row(f"{key}_t_f", name, "t_f, µs", [1e6 * t / count for t in final]),
  ]
  for r in REUSE_FACTORS:
    if REFURBISHED.format(r) not in cpu:
      continue
    refurbished = cpu[REFURBISHED.format(r)]
    parts = [p / r + f for p, f in zip(partial, final)]
    rows += [
      common.Row(f"{key}_{what}_r{r}", f"{name}, r = {r}", unit, common.quotients(one, other), limit)
      for what, unit, one, other, limit in (
        ("gain", GAIN, standard, refurbished, None),
        ("limit", LIMIT, standard, parts, None),
        # No limit with r = 1: the parts count reading and batching twice, which is more than the overhead of refurbish.
        ("over", OVER, refurbished, parts, MOST_OF_PARTS if r > 1 else None),
        *(
          ("of_" + common.key(beside), f"of {beside}", refurbished, cpu[beside], most)
          for at, beside, most in MOST_OF.get(key, [])
          if at == r
        ),
      )
    ]
  return rows


def pipelines(images, augmentation, complete, batch):
  """Returns batched datasets by name: all if `complete`, otherwise those that the limit and the gains need."""
  layers, at, count = augmentation.layers, augmentation.at, len(images)
  partial_fn, final_fn = rtf.augment.split(layers, at)
  source = tf.data.Dataset.from_tensor_slices(images)
  # The functions need seeds, and only refurbish makes its own. Ready-made seeds are the cheapest.
  seeds = np.random.default_rng(7).integers(2**31, size=[count, 2], dtype=np.int32)
  seeded = tf.data.Dataset.from_tensor_slices((images, seeds))

  def augmented(dataset, layers):
    fn = rtf.augment.compose(layers)
    return dataset.map(lambda image, seed: fn(image, seed=seed), common.PARALLEL_CALLS)

  standard = lambda layers: augmented(seeded.shuffle(count), layers).batch(batch)

  datasets = {STANDARD: standard(layers)}
  for r in REUSE_FACTORS if complete else (3,):
    datasets[REFURBISHED.format(r)] = source.refurbish(partial_fn, final_fn, r=r).batch(batch)
  if augmentation.in_ops:
    datasets[STANDARD_OPS] = standard(augmentation.in_ops)
    of_ops = rtf.augment.split(augmentation.in_ops, at)
    for r in (1, 3):
      datasets[OPS.format(r)] = source.refurbish(*of_ops, r=r).batch(batch)
  if complete:
    datasets[CACHED] = augmented(seeded, layers).cache().shuffle(count).batch(batch)
  datasets[PARTIAL] = source.refurbish(partial_fn, r=1).batch(batch)
  half_way = tf.data.Dataset.from_tensor_slices(np.concatenate(list(datasets[PARTIAL].as_numpy_iterator())))
  datasets[FINAL] = half_way.refurbish(final_fn, r=1).batch(batch)
  return {name: dataset.prefetch(tf.data.AUTOTUNE) for name, dataset in datasets.items()}


def _measure(datasets, rounds):
  """Wall and CPU seconds of whole epochs: a list of pairs for each dataset.

  Every round reads one epoch of each, in random order, so that a slow phase of the machine affects all of them. The
  first round is not counted.
  """
  # One iterator for all epochs, because making one takes the same time for any number of images. No prefetch after
  # repeat, because it would work ahead during the turns of others.
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False
  iterators = {
    name: iter(dataset_graph.without_autotuner(dataset.repeat()).with_options(options))
    for name, dataset in datasets.items()
  }
  epochs = {name: [] for name in datasets}
  for counted in [False] + [True] * rounds:
    for name in random.sample(list(datasets), len(datasets)):
      wall, cpu = time.perf_counter(), time.process_time()
      for _ in range(len(datasets[name])):
        next(iterators[name])
      measured = time.perf_counter() - wall, time.process_time() - cpu
      if counted:
        epochs[name].append(measured)
  return epochs
