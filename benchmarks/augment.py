"""Each layer and the papers' pipelines, compared with TensorFlow's operations, DALI, torchvision, Pillow and
albumentations.

`pip install -e '.[bench]'` installs the libraries; if one is missing or fails, its rows say so.
"""

import functools

import augment_peers as peers
import common
import numpy as np
import tensorflow as tf
import tensorflow_layers

from refurbish_tf import augment
from refurbish_tf._internal import dataset_graph

# Images per batch, by the side of an image. A batch has at most 10 MB as float32: malloc returns larger blocks to the
# system and requests them again, and page faults would dominate for all libraries but DALI, which keeps its blocks.
BATCHES = {32: 128, 224: 16, 348: 6}
# How many times larger an image is before it is resized than after.
ENLARGED = 348 / 224
PADDING, MEAN, STD = peers.PADDING, peers.MEAN, peers.STD
ROUNDS = 9
# A reuse factor so large that nothing is ever evicted: after the first epoch there are only hits.
ONLY_HITS = 1e12
COPY, FILL, NOTHING = "copy, uint8", "fill, {}", "nothing"
RAND, CROP_FLIP, NORMALIZED = peers.RAND, peers.CROP_FLIP, peers.NORMALIZED
# The layers in README.md.
IN_README = (CROP_FLIP, NORMALIZED, peers.RESIZED, peers.JITTER, peers.BLUR, RAND)
# Upper limits of the cost of one image, in µs, by side.
MOST = {32: {RAND: 5, CROP_FLIP: 4}, 224: {RAND: 60}, 348: {RAND: 130}}
# Upper limits of a row's cost relative to another row's, by side and whether images are batched.
MOST_OF = {
  (224, False): [
    (peers.RESIZE, f"TensorFlow: {peers.RESIZE}", 0.5),
    (peers.RESIZE_SMOOTH, f"TensorFlow: {peers.RESIZE_SMOOTH}", 0.2),
  ],
  (32, True): [(CROP_FLIP, COPY, 2), (NORMALIZED, FILL.format("float32"), 2)],
  (224, True): [
    (CROP_FLIP, COPY, 4.5),
    (NORMALIZED, FILL.format("float32"), 1.5),
    (NORMALIZED, f"DALI: {NORMALIZED}", 0.6),
  ],
}


def measure(quick):
  """Yields the sections."""
  # Checked once, before minutes of measuring. A module that cannot be imported leaves a row of each section empty.
  absent = peers.installed()
  for side in (32, 224) if quick else BATCHES:
    for batched in (False, True):
      yield _section(quick, side, batched, absent)


def layers(side):
  """By name: the layers of each row, and whether its input is the larger image."""
  crop, flip, cutout = augment.random_crop(padding=PADDING), augment.random_flip(), augment.cutout(side // 4)
  normalize = {dtype: augment.normalize(MEAN, STD, dtype) for dtype in ("float32", "bfloat16")}
  resized = augment.random_resized_crop(side)
  return {
    peers.CROP: ([crop], False),
    "crop, reflected": ([augment.random_crop(padding=PADDING, padding_mode="reflect")], False),
    peers.FLIP: ([flip], False),
    peers.CUTOUT: ([cutout], False),
    peers.NORMALIZE: ([normalize["float32"]], False),
    CROP_FLIP: ([crop, flip], False),
    NORMALIZED: ([crop, flip, normalize["float32"]], False),
    "crop, flip, normalize bfloat16": ([crop, flip, normalize["bfloat16"]], False),
    peers.RESIZED: ([resized], True),
    peers.RESIZED_SMOOTH: ([augment.random_resized_crop(side, antialias=True)], True),
    peers.RESIZE: ([augment.resize((side, side), antialias=False)], True),
    peers.RESIZE_SMOOTH: ([augment.resize((side, side))], True),
    peers.RAND_ONE: (augment.rand_augment(1), False),
    peers.JITTER: ([augment.color_jitter(*[peers.STRENGTH] * 3, peers.TURN)], False),
    peers.SOLARIZE: ([augment.random_solarize(128, p=1)], False),
    peers.POSTERIZE: ([augment.random_posterize(4, p=1)], False),
    peers.EQUALIZE: ([augment.random_equalize(p=1)], False),
    peers.AUTOCONTRAST: ([augment.random_autocontrast(p=1)], False),
    peers.SHARPNESS: ([augment.random_adjust_sharpness(2, p=1)], False),
    peers.INVERT: ([augment.random_invert(p=1)], False),
    peers.PERMUTATION: ([augment.random_channel_permutation()], False),
    peers.NOISE: ([augment.gaussian_noise()], False),
    peers.PHOTOMETRIC: ([augment.random_photometric_distort()], False),
    peers.BLUR: ([augment.gaussian_blur(peers.kernel_size(side), peers.SIGMA)], False),
    peers.ELASTIC: ([augment.random_elastic()], False),
    peers.ERASING: ([augment.random_erasing(1)], False),
    peers.AFFINE: ([augment.random_affine(peers.DEGREES, peers.MOVE, peers.ZOOM, peers.SHEAR)], False),
    peers.TRIVIAL: (augment.trivial_augment(), False),
    peers.AUGMIX: ([augment.augmix()], False),
    # These end with a resize, because the images of a batch need the same size.
    peers.ZOOM_OUT: ([augment.random_zoom_out(p=1), augment.resize((side, side))], False),
    peers.IOU_CROP: ([augment.random_iou_crop(), augment.resize((side, side))], False),
    peers.RANDOM_SIZE: ([augment.random_resize(*peers.sizes(side)), augment.random_crop(side)], True),
    peers.CHOICE: ([augment.random_choice([crop, flip, cutout])], False),
    peers.ORDER: ([augment.random_order([crop, flip, cutout])], False),
    RAND: (augment.rand_augment(2, 9), False),
    peers.AUTO: (augment.auto_augment("cifar10" if side == 32 else "imagenet"), False),
    peers.DEEP: (augment.deep_auto_augment("cifar10" if side == 32 else "imagenet"), False),
    peers.PIPELINE: ([*augment.rand_augment(2, 9), *_end()], False),
  }


def _end():
  return [augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize(MEAN, STD)]


def _composed(sequence, side, batched):
  """The layers as one function of an image and a seed. It also passes boxes if a layer needs them."""
  looks = any(layer.looks_at_boxes for layer in sequence)
  function = augment.compose(sequence, {1: "xyxy"} if looks else None, clips=False if batched else None)
  boxes = tf.constant(peers.boxes(side))
  return (
    (lambda image, seed: function(image, tf.broadcast_to(boxes, [*image.shape[:-3], *boxes.shape]), seed=seed)[0])
    if looks
    else function
  )


def _mosaic(side):
  """A mosaic of a batch with boxes, as a function of images and a seed."""
  function, boxes = augment.mosaic(None, {1: "xyxy"}), tf.constant(peers.boxes(side))
  return lambda images, seed: function(images, tf.broadcast_to(boxes, [images.shape[0], *boxes.shape]), seed=seed)


def _section(quick, side, batched, absent):
  """All candidates, which process one image, or one batch of this size, at a time."""
  how = "by batch" if batched else "image by image"
  common.say(f"{side}x{side}, {how}")
  batch = 8 if quick else BATCHES[side]
  images = _smooth(batch, side)
  # DALI's crop reads images that are padded already.
  padded = np.pad(images, [(0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)])
  large = _smooth(batch, round(side * ENLARGED))
  steps = 1 if quick else max(1, 10_000_000 // images.nbytes)
  count = steps * batch
  inputs = {"images": images, "padded": padded, "large": large}
  feed = functools.partial(_reader, batched=batched, times=steps)
  # The value depends on the seed, because TensorFlow would fold a fill with a known value into a constant.
  calls = {
    FILL.format(dtype): feed(images, lambda image, seed, dtype=dtype: tf.fill(image.shape, tf.cast(seed[0] % 2, dtype)))
    for dtype in ("uint8", "float32", "bfloat16")
  }
  calls[COPY] = feed(images, lambda image, seed: tf.raw_ops.DeepCopy(x=image))
  calls[NOTHING] = feed(images, lambda image, seed: image)
  for name, (sequence, is_large) in layers(side).items():
    calls[name] = feed(large if is_large else images, _composed(sequence, side, batched))
  if not batched:
    # Works on batches; the peers make one image at a time.
    calls[peers.MOSAIC] = _reader(images, _mosaic(side), batched=True, times=steps)
    calls.update({name: feed(inputs[fed], function) for name, (function, fed) in peers.in_dataset(side).items()})
    in_ops = tensorflow_layers.rand_augment(2, 9)
    for name, end in ((RAND, []), (peers.PIPELINE, _end())):
      calls[f"TensorFlow: {name}"] = feed(images, augment.compose([*in_ops, *end]))
  absent = _add_peers(calls, peers.Inputs(side, count, **inputs), batched, absent)
  return _measured(
    f"{side}x{side}, {how}",
    f"{side}_{'batch' if batched else 'image'}",
    calls,
    absent,
    common.rounds(quick, ROUNDS),
    count,
    {} if batched else MOST[side],
    MOST_OF.get((side, batched), []),
    f"CPU time of all threads per image, uint8 [{side}, {side}, 3], "
    + (f"in batches of {batch}, each image with its own draws. " if batched else "one at a time. ")
    + f"Crops have a padding of {PADDING}; DALI gets images that are already padded. "
    f"Resized images are made from {large.shape[1]}x{large.shape[2]}, by crops with a scale of 0.08 to 1, bilinear. "
    "RandAugment has two layers with magnitude 9 of 10. A blur has a kernel of a tenth of the side; Pillow uses three "
    "boxes. Copy: into a new tensor. Fill: a new tensor of that dtype and the output's size. TensorFlow: its "
    "operations in the stage.",
    side == 224 and not batched,
  )


def _smooth(count, side):
  """Images with some noise, like photographs."""
  random = np.random.default_rng(7)
  coarse = tf.image.resize(random.uniform(0, 255, [count, 8, 8, 3]), [side, side], "bicubic").numpy()
  return np.clip(coarse + random.normal(0, 4, coarse.shape), 0, 255).astype(np.uint8)


def _add_peers(calls, inputs, batched, absent):
  """Adds the calls of the peers that are installed; returns why others are missing."""
  why = {}
  for peer, about in peers.PEERS.items():
    if batched != about.batched:
      continue
    if peer in absent:
      why.update({f"{peer}: {name}": absent[peer] for name in about.names})
      continue
    try:
      made = about.make(inputs)
    except Exception as error:
      # Another version of a peer may raise any exception.
      why.update({f"{peer}: {name}": f"failed: {common.last_line(str(error))}" for name in about.names})
      continue
    calls.update({f"{peer}: {name}": call for name, call in made.items()})
  return why


def _measured(title, prefix, calls, absent, rounds, count, most, most_of, definition, in_readme):
  """The section of all calls, with the given bars, and a bar for each peer."""
  costs, failed = _costs(calls, rounds, count)
  absent = {**absent, **failed}

  def around(name):
    whose, colon, _ = name.partition(": ")
    return costs.get(f"{whose}{colon}{NOTHING}" if whose in peers.PEERS else NOTHING, [0] * rounds)

  whole = costs
  costs = {
    name: [cost - base for cost, base in zip(values, around(name))]
    for name, values in costs.items()
    if not name.endswith(NOTHING)
  }
  # A line for each of our layers, a column for each library.
  rows = []
  for name, values in costs.items():
    whose, colon, what = name.rpartition(": ")
    rows.append(common.Row(f"{prefix}_{common.key(name)}", what, f"{whose}{colon}µs an image", values, most.get(name)))
  for name, beside, limit in most_of:
    # For the ratio to a mere copy or fill, both costs include the overhead of a call.
    of = whole if beside in (COPY, FILL.format("float32")) else costs
    rows.append(
      common.Row(
        f"{prefix}_{common.key(name)}_of_{common.key(beside)}",
        name + (f": {absent[beside]}" if beside in absent else ""),
        f"of {beside}",
        common.quotients(of[name], of[beside]) if beside in costs else [],
        limit=limit,
      )
    )
  for peer, about in peers.PEERS.items():
    cells = [
      common.Row(
        f"{prefix}_{common.key(name)}_of_{common.key(peer)}",
        name,
        f"of {peer}'s",
        common.quotients(costs[name], costs[f"{peer}: {name}"]),
      )
      for name in about.names
      if name in costs and f"{peer}: {name}" in costs
    ]
    rows += cells
    why = [why for name, why in absent.items() if name.startswith(f"{peer}: ")]
    if cells or why:
      dearest = max(cells, key=lambda row: row.median) if cells else None
      rows.append(
        common.Row(
          f"{prefix}_of_{common.key(peer)}",
          f"the dearest of {len(cells)}: {dearest.name}" if cells else f"{peer}: {why[0]}",
          f"of {peer}'s",
          dearest.values if cells else [],
          limit=1,
        )
      )
  return common.Section(
    title,
    f"{definition} {count:,} at a time. Each row is the time of a final_fn of refurbish on cached images, with "
    "num_parallel_calls=None, minus the time of a final_fn that does nothing; for DALI, the time of a pipeline minus "
    "that of an empty one. torchvision, Pillow and albumentations run in a loop.",
    rows,
    in_readme and (lambda row: row.unit.endswith("µs an image") and row.name in IN_README),
  )


def _reader(images, function, *, batched, times):
  """Returns a function that applies `function` to each image, or to the batch, `times` times in one call."""
  source = tf.data.Dataset.from_tensors(images) if batched else tf.data.Dataset.from_tensor_slices(images)
  # Several repetitions per call, because the end of an epoch costs time and should count once.
  source = source.repeat(times)
  dataset = source.refurbish(tf.identity, function, r=ONLY_HITS, seed=7, num_parallel_calls=None)
  # `shard` drops all elements but the last of each pass in C++, so one `next` runs the whole pass without Python.
  iterator = iter(dataset_graph.without_autotuner(dataset.repeat().shard(len(source), len(source) - 1)))
  return lambda: next(iterator)


def _costs(calls, rounds, count):
  """By name, the CPU time per image in µs; and by name, the last line of the error of each call that fails."""
  failed = {}
  for name, call in list(calls.items()):
    try:
      call()
    except Exception as error:
      # Another version of a peer may raise any exception. Our own errors are raised.
      if name.partition(": ")[0] not in peers.PEERS:
        raise
      failed[name] = f"failed: {common.last_line(str(error))}"
      del calls[name]
  return common.per_element(count, common.cpu_of_calls(calls, rounds)), failed
