"""The final augmentation compared with TensorFlow, Keras, DALI and torchvision, and with merely moving the bytes.

`pip install -e '.[bench]'` installs DALI and torchvision; the rows of one that is missing or fails say so.
"""
import functools
import time

import common
import final_peers
import numpy as np
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal import dataset_graph

# The images of a batch, by side. Less than 32 MB as float32: malloc requests larger blocks from the system each time,
# and then page faults dominate for all but DALI, which keeps its blocks.
BATCHES = {32: 128, 96: 128, 224: 32, 384: 16}
# The side of the image that a resized crop is taken from, for each pixel of its result.
ENLARGED = 348 / 224
PADDING, MEAN, STD = final_peers.PADDING, final_peers.MEAN, final_peers.STD
ROUNDS = 5
# The calls of a round for functions that take less than SLOW seconds; slower ones are called once.
TURNS, SLOW = 3, 0.2
# So large that nothing is ever evicted: after the first epoch there are only hits.
ONLY_HITS = 1e12
CROP_FLIP, NORMALIZED, RESIZED = "crop, flip", "crop, flip, normalize float32", "resized crop"
COPY, FILL = "copy, uint8", "fill, {}"
# The bars of batches, by side: (what, compared with what, limit).
BARS = {
    32: [(CROP_FLIP, COPY, 2), (NORMALIZED, FILL.format("float32"), 2)],
    224: [(CROP_FLIP, COPY, 4.5), (CROP_FLIP, f"DALI: {CROP_FLIP}", 1), (NORMALIZED, f"DALI: {NORMALIZED}", 0.6),
          (NORMALIZED, FILL.format("float32"), 1.5), (RESIZED, f"DALI: {RESIZED}", 1)],
}


def measure(quick):
  """Yields the sections."""
  # Before minutes of measuring, as a module that cannot be imported would cost a row of each section.
  peers, absent = final_peers.installed()
  for side in (32, 224) if quick else BATCHES:
    for batched in (True, False):
      yield _section(quick, side, batched, peers, absent)
  yield _in_refurbish(quick)


def layers(side):
  """By name: the layers of each row, and whether its input is the larger image for resized crops."""
  crop, flip, cutout = augment.random_crop(PADDING), augment.random_flip(), augment.cutout(side // 4)
  normalize = {dtype: augment.normalize(MEAN, STD, dtype) for dtype in ("float32", "bfloat16", "float16")}
  resized = augment.random_resized_crop(side)
  return {
      "crop": ([crop], False),
      "crop, reflected": ([augment.random_crop(PADDING, "reflect")], False),
      "flip": ([flip], False),
      "cutout": ([cutout], False),
      "normalize float32": ([normalize["float32"]], False),
      CROP_FLIP: ([crop, flip], False),
      "crop, flip, cutout": ([crop, flip, cutout], False),
      NORMALIZED: ([crop, flip, normalize["float32"]], False),
      "crop, flip, normalize bfloat16": ([crop, flip, normalize["bfloat16"]], False),
      "crop, flip, normalize float16": ([crop, flip, normalize["float16"]], False),
      RESIZED: ([resized], True),
      "resized crop, antialiased": ([augment.random_resized_crop(side, antialias=True)], True),
      "resized crop, flip, normalize float32": ([resized, flip, normalize["float32"]], True),
  }


def _section(quick, side, batched, peers, absent):
  """All candidates, one image or one batch of this size at a time."""
  how = "by batch" if batched else "image by image"
  common.say(f"{side}x{side}, {how}")
  random = np.random.default_rng(7)
  batch = 8 if quick else BATCHES[side]
  images = random.integers(256, size=[batch, side, side, 3], dtype=np.uint8)
  # Keras, DALI and torchvision crop images that are padded before.
  padded = np.pad(images, [(0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)])
  large = random.integers(256, size=[batch, *[round(side * ENLARGED)] * 2, 3], dtype=np.uint8)
  steps = 1 if quick else max(1, 10_000_000 // images.nbytes)
  count = steps * batch
  feed = functools.partial(_reader, batched=batched, times=steps)
  calls = {name: feed(large if is_large else images, augment.compose(sequence))
           for name, (sequence, is_large) in layers(side).items()}
  calls[COPY] = feed(images, lambda image, seed: tf.raw_ops.DeepCopy(x=image))
  for dtype in ("uint8", "float32", "bfloat16"):
    # With a number that is unknown while tracing, as TensorFlow would fold a known one into a constant.
    calls[FILL.format(dtype)] = feed(
        images, lambda image, seed, dtype=dtype: tf.fill(image.shape, tf.cast(seed[0] % 2, dtype)))
  calls["nothing"] = feed(images, lambda image, seed: image)
  for name, (function, fed) in final_peers.in_dataset(side, batched).items():
    calls[name] = feed({"padded": padded, "large": large, "images": images}[fed], function)
  for peer, make in peers.items():
    for name, call in make(padded, large, side, batched, count).items():
      calls[f"{peer}: {name}"] = call
  costs, failed = _costs(calls, common.rounds(quick, ROUNDS), count)
  absent = {
      **{f"{peer}: {name}": why for peer, why in absent.items() if final_peers.TAKES_BATCHES[peer] == batched
         for name in (CROP_FLIP, NORMALIZED, RESIZED)},
      **failed}
  prefix = f"{side}_{'batch' if batched else 'image'}"
  rows = [common.Row(f"{prefix}_{_key(name)}", name, "µs an image", values) for name, values in costs.items()]
  rows += [common.Row(f"{prefix}_{_key(name)}", f"{name}: {why}", "µs an image", []) for name, why in absent.items()]
  for name, beside, limit in BARS.get(side, []) if batched else []:
    rows.append(common.Row(
        f"{prefix}_{_key(name)}_of_{_key(beside)}",
        f"{side}x{side} batches: {name}, beside {beside}" + (f": {absent[beside]}" if beside in absent else ""),
        f"of {beside}", common.quotients(costs[name], costs[beside]) if beside in costs else [], limit=limit))
  return common.Section(
      f"{side}x{side}, {how}",
      f"CPU time of all threads for an image of uint8 [{side}, {side}, 3], "
      + (f"in batches of {batch}, each image with draws of its own but for Keras', which draws one crop for a batch. "
         if batched else "one at a time. ")
      + f"{count:,} images at a time, {TURNS} times a round where that takes less than {SLOW} s. Each row is the final_fn of "
      "a refurbish with num_parallel_calls=None, of cached images, "
      f"but DALI's in its pipeline, torchvision's in a loop. Crops have a padding of {PADDING}; Keras and DALI are given "
      "images that are padded already. A resized crop is taken of "
      f"{large.shape[1]}x{large.shape[2]}, scale 0.08 to 1, bilinear. Copy: into a fresh tensor. Fill: a fresh tensor of "
      "that dtype and the output's size. Nothing: refurbish alone, which is in all rows but those two's.", rows)


def _reader(images, function, *, batched, times):
  """Returns a function that applies `function` to each image, or to the batch, `times` times in one call."""
  source = tf.data.Dataset.from_tensors(images) if batched else tf.data.Dataset.from_tensor_slices(images)
  # So that a call includes one end of an epoch, which costs time.
  source = source.repeat(times)
  steps = len(source)
  stage = source.refurbish(tf.identity, function, r=ONLY_HITS, seed=7, num_parallel_calls=None)
  # `shard` reads the elements that it leaves out one by one, without Python.
  iterator = iter(dataset_graph.without_autotuner(stage.repeat().shard(steps, steps - 1)))
  return lambda: next(iterator)


def _costs(calls, rounds, count):
  """CPU time an image in µs, by name; and, by name, the last line of the error of those that fail."""
  failed, turns = {}, {}
  for name, call in list(calls.items()):
    try:
      call()
      began = time.process_time()
      call()
      turns[name] = TURNS if time.process_time() - began < SLOW else 1
    except Exception as error:  # pylint: disable=broad-exception-caught
      # A peer of another version may raise anything; our own errors are raised.
      if ":" not in name:
        raise
      failed[name] = "failed: " + (str(error).strip().splitlines() or [type(error).__name__])[-1][:60]
      del calls[name]
  return common.per_element(count, common.cpu_of_calls(calls, rounds, turns)), failed


def _in_refurbish(quick):
  """The cost that a final_fn adds to a cached sample."""
  common.say("in refurbish")
  count = 2048 if quick else 51_200
  images = np.random.default_rng(7).integers(256, size=[count, 32, 32, 3], dtype=np.uint8)
  source = tf.data.Dataset.from_tensor_slices(images)

  def stage(final_fn):
    return source.refurbish(tf.identity, final_fn, r=ONLY_HITS, seed=7).batch(1024)

  tensorflow, _ = final_peers.in_dataset(32, False)[f"TensorFlow: {CROP_FLIP}"]
  costs = common.per_element(count, common.cpu_of_epochs({
      "none": stage(None),
      "ours": stage(augment.compose([augment.random_crop(PADDING), augment.random_flip()])),
      "tensorflow": stage(lambda image, seed: tensorflow(image, seed)),
  }, rounds=common.rounds(quick, ROUNDS), turn=10))
  return common.Section(
      "A final augmentation in refurbish",
      f"CPU time a sample of an epoch of {count:,} images of 32x32, all cached, with .batch(1024), whose own cost is in all "
      "of them.",
      [common.Row("final_none", "final_fn=None", "µs", costs["none"]),
       common.Row("final_crop_flip", "final_fn of random_crop(4), random_flip()", "µs", costs["ours"]),
       common.Row("final_tensorflow", "final_fn of TensorFlow's pad, random_crop and random_flip_left_right", "µs",
                  costs["tensorflow"]),
       common.Row("final", "32x32 in refurbish: crop and flip more than final_fn=None", "µs",
                  [ours - none for ours, none in zip(costs["ours"], costs["none"])], limit=4)])


def _key(name):
  return "_".join("".join(letter if letter.isalnum() else " " for letter in name).split()).lower()
