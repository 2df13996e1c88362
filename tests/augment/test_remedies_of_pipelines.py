"""Fixes suggested by errors of layers, stages, sources and stores: each is accepted, and keeps the input's content."""

import collections
import sys

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support.loaders import numpy_loader
from test_remedies import COLORED, FLIP, GREY, LAYERS, POLICY, SEED, SLICES, WIDE


def images(n=4):
  return SLICES((np.arange(n * 48, dtype=np.uint8).reshape(n, 4, 4, 3), np.arange(n)))


def source(n=4):
  return tf.data.Dataset.range(n)


def labels(dataset):
  return sorted(
    int(label) for element in dataset for label in np.ravel(element[-1] if isinstance(element, tuple) else element)
  )


def sampled():
  return tf.data.Dataset.sample_from_datasets(
    [source(4), source(100).repeat()], [0.5, 0.5], seed=1, stop_on_empty_dataset=True
  )


def reads(dataset):
  return lambda: labels(dataset())


def shuffled():
  return source().shuffle(4)


def parallel(deterministic):
  return source().map(lambda x: x, num_parallel_calls=2, deterministic=deterministic)


class Repeated:
  """Claims to have endlessly many elements, like the result of Grain's `MapDataset.repeat`."""

  def __len__(self):
    return sys.maxsize

  def __getitem__(self, index):
    return index % 4


def of_unknown_shapes(image, mask):
  specs = (tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec(None, tf.uint8))
  return tf.data.Dataset.from_generator(lambda: [(image, mask)], output_signature=specs).refurbish(
    LAYERS, targets={1: "mask"}
  )


def boxes_of(nothing):
  return rtf.sources.data_source(
    [nothing, np.ones([1, 4], np.float32)], element_spec=tf.TensorSpec([None, 4], tf.float32)
  )


BANDS = np.random.default_rng(7).random([66, 70, 200], np.float32)
MASKS = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
# What a case keeps is by default all four samples.
Case = collections.namedtuple(
  "Case", "fails error says remedied keeps", defaults=[lambda result: result == list(range(4))]
)
NUM_SAMPLED = 5
CASES = {
  # Layers and their functions.
  "nothing is to be cached": Case(
    lambda: images().refurbish([], LAYERS),
    ValueError,
    "To cache nothing, use refurbish(layers, r=1)",
    reads(lambda: images().refurbish(LAYERS, r=1)),
  ),
  "elements are to be cached as they are": Case(
    lambda: images().refurbish([], LAYERS),
    ValueError,
    "To cache the elements as they are, pass [lambda image: image]",
    reads(lambda: images().refurbish([lambda image: image], LAYERS)),
  ),
  "split at 0": Case(
    lambda: augment.split(LAYERS, 0),
    ValueError,
    "to cache nothing, use refurbish(layers, r=1)",
    reads(lambda: images().refurbish(LAYERS, r=1)),
  ),
  "masks of functions": Case(
    lambda: images().refurbish(lambda *each: each, targets={}),
    TypeError,
    "Pass targets to rtf.augment.compose or split",
    reads(lambda: images().refurbish(augment.compose(LAYERS, targets={}))),
  ),
  "another entry is the image": Case(
    lambda: images().map(lambda image, label: {"x": image}).refurbish(LAYERS),
    ValueError,
    "Rename the entry",
    lambda: len(list(images().map(lambda image, label: {"image": image}).refurbish(LAYERS))),
    lambda n: n == 4,
  ),
  "one half of AutoAugment": Case(
    lambda: augment.compose(augment.auto_augment("cifar10")[:1]),
    ValueError,
    "Pass [*auto_augment(policy), ...]",
    lambda: augment.compose([*augment.auto_augment("cifar10")])(COLORED, seed=SEED).shape,
    lambda shape: shape == [4, 4, 3],
  ),
  "a mask that is not named": Case(
    lambda: augment.compose(LAYERS)(COLORED, COLORED[..., 0], seed=SEED),
    ValueError,
    'Pass targets={1: "mask"}',
    lambda: augment.compose(LAYERS, targets={1: "mask"})(COLORED, COLORED[..., 0], seed=SEED),
    lambda pair: (pair[0][..., 0].numpy() == pair[1].numpy()).all(),
  ),
  "a second picture": Case(
    lambda: augment.compose(LAYERS)(COLORED, COLORED, seed=SEED),
    ValueError,
    'targets={1: "image"} for a second picture',
    lambda: augment.compose(LAYERS, {1: "image"})(COLORED, COLORED, seed=SEED),
    lambda pair: (pair[0].numpy() == pair[1].numpy()).all(),
  ),
  "a mask in two places": Case(
    lambda: augment.compose([tf.image.rot90], targets={1: "mask"}),
    ValueError,
    "Use a layer of rtf.augment",
    lambda: augment.compose([FLIP], targets={1: "mask"}),
    callable,
  ),
  "padding as large as the image": Case(
    lambda: augment.random_crop(padding=4, padding_mode="reflect")(COLORED, seed=SEED),
    ValueError,
    "a smaller padding, or padding_mode='constant'",
    lambda: (
      augment.random_crop(padding=3, padding_mode="reflect")(COLORED, seed=SEED),
      augment.random_crop(padding=4)(COLORED, seed=SEED),
    ),
    len,
  ),
  "an image smaller than a crop": Case(
    lambda: augment.random_crop(9)(COLORED, seed=SEED),
    ValueError,
    "Pass pad_if_needed=True",
    lambda: augment.random_crop(9, pad_if_needed=True)(COLORED, seed=SEED).shape,
    lambda shape: shape == [9, 9, 3],
  ),
  "a mean for each of four channels": Case(
    lambda: augment.normalize([0.5] * 4, [0.5] * 4)(COLORED),
    ValueError,
    "Pass one number for all channels, or one for each",
    lambda: augment.normalize(0.5, 0.5)(COLORED),
    lambda made: len(np.unique(made)) == 48,
  ),
  "a range that only its user knows": Case(
    lambda: augment.normalize(0.5, 0.5)(COLORED.astype(np.uint16) * 5),
    ValueError,
    "Pass max_pixel_value, the value that becomes 1",
    lambda: augment.normalize(0.5, 0.5, max_pixel_value=5 * 47)(COLORED.astype(np.uint16) * 5),
    lambda made: len(np.unique(made)) == 48 and abs(made.numpy().max() - 1) < 1e-6,
  ),
  "floats up to 255": Case(
    lambda: augment.normalize()(COLORED.astype(np.float32)),
    tf.errors.InvalidArgumentError,
    "up to 47. Pass max_pixel_value=255",
    lambda: augment.normalize(max_pixel_value=255)(COLORED.astype(np.float32)),
    lambda made: (made.numpy() == augment.normalize()(COLORED).numpy()).all(),
  ),
  "layers between whole batches": Case(
    lambda: augment.decode()(tf.constant([[b"", b""]])),
    ValueError,
    "Put the layer before batch",
    lambda: augment.decode()(tf.io.encode_png(COLORED)),
    lambda image: (image.numpy() == COLORED).all(),
  ),
  "decoded already": Case(
    lambda: augment.decode((4, 4))(COLORED),
    TypeError,
    "use random_resized_crop or resize",
    lambda: augment.resize((4, 4))(COLORED),
    lambda image: (image.numpy() == COLORED).all(),
  ),
  "more bands than an image has": Case(
    lambda: augment.compose(LAYERS)(BANDS, seed=[1, 0]),
    ValueError,
    'image[..., :64], image[..., 64:] with targets={1: "mask"}',
    lambda: tf.concat(augment.compose(LAYERS, {1: "mask"})(BANDS[..., :64], BANDS[..., 64:], seed=[1, 0]), -1).numpy(),
    lambda made: (made == BANDS[:, ::-1]).all(),
  ),
  "more bands than a policy has": Case(
    lambda: POLICY(BANDS.astype(np.uint8)),
    ValueError,
    'image[..., :3], image[..., 3:] with targets={1: "mask"}',
    lambda: (
      augment.compose(augment.rand_augment(1), {1: "mask"})(BANDS[..., :3].astype(np.uint8), BANDS[..., 3:], seed=SEED)[
        1
      ].shape
    ),
    lambda shape: shape == [66, 70, 197],
  ),
  "masks come first": Case(
    lambda: augment.compose(LAYERS, {1: "mask"})(WIDE, MASKS, seed=[1, 0]),
    ValueError,
    "tf.transpose(mask, [1, 2, 0])",
    lambda: augment.compose(LAYERS, {1: "mask"})(WIDE, tf.transpose(MASKS, [1, 2, 0]), seed=[1, 0])[1].numpy(),
    lambda made: (made.transpose(2, 0, 1) == MASKS[..., ::-1]).all(),
  ),
  "masks come first, sizes unknown": Case(
    lambda: next(iter(of_unknown_shapes(WIDE, MASKS))),
    tf.errors.InvalidArgumentError,
    "tf.transpose(mask, [1, 2, 0])",
    lambda: next(iter(of_unknown_shapes(WIDE, MASKS.transpose(1, 2, 0))))[1].shape,
    lambda shape: shape == [4, 5, 3],
  ),
  "a mask of another size": Case(
    lambda: next(iter(of_unknown_shapes(WIDE, GREY))),
    tf.errors.InvalidArgumentError,
    "Resize one of them",
    lambda: next(iter(of_unknown_shapes(WIDE, GREY[:4, :5])))[1].shape,
    lambda shape: shape == [4, 5],
  ),
  "no box": Case(
    lambda: augment.compose(LAYERS, {1: "xyxy"})(WIDE, [], seed=SEED),
    ValueError,
    "tf.reshape(component, [-1, 4])",
    lambda: augment.compose(LAYERS, {1: "xyxy"})(WIDE, tf.reshape([], [-1, 4]), seed=SEED)[1].shape,
    lambda shape: shape == [0, 4],
  ),
  "no box in a source that knows their form": Case(
    lambda: list(boxes_of([])),
    tf.errors.InvalidArgumentError,
    "np.zeros([0, 4], 'float32')",
    lambda: [boxes.shape[0] for boxes in boxes_of(np.zeros([0, 4], "float32"))],
    lambda made: made == [0, 1],
  ),
  # Offload.
  "offload: a layer that resizes": Case(
    lambda: images().offload([augment.resize((4, 4)), FLIP], 2),
    ValueError,
    "into Dataset.map",
    reads(lambda: images().map(augment.compose([augment.resize((4, 4))])).offload(LAYERS, 2)),
  ),
  "offload: sizes that are not known": Case(
    lambda: (
      images()
      .map(lambda image, label: (tf.ensure_shape(tf.numpy_function(np.copy, [image], tf.uint8), [None] * 3), label))
      .offload(LAYERS, 2)
    ),
    ValueError,
    "tf.ensure_shape(image, [height, width, 3])",
    reads(
      lambda: (
        images()
        .map(lambda image, label: (tf.ensure_shape(tf.numpy_function(np.copy, [image], tf.uint8), [4, 4, 3]), label))
        .offload(LAYERS, 2)
      )
    ),
  ),
  "offload: a component like a mask": Case(
    lambda: images().map(lambda image, label: (image, image[..., 0])).offload(LAYERS, 2),
    ValueError,
    "targets={1: None} if it stays",
    lambda: len(list(images().map(lambda image, label: (image, image[..., 0])).offload(LAYERS, 2, targets={1: None}))),
    lambda n: n == 2,
  ),
  "offload: ragged images": Case(
    lambda: images().map(lambda image, label: (tf.RaggedTensor.from_tensor(image), label)).offload(LAYERS, 2),
    TypeError,
    "image.to_tensor()",
    reads(
      lambda: (
        images()
        .map(lambda image, label: (tf.ensure_shape(tf.RaggedTensor.from_tensor(image).to_tensor(), [4, 4, 3]), label))
        .offload(LAYERS, 2)
      )
    ),
  ),
  "offload: batches before it": Case(
    lambda: images().batch(2).offload(LAYERS, 2),
    ValueError,
    "and batch after",
    reads(lambda: images().offload(LAYERS, 2)),
  ),
  "offload: parts that are not equal": Case(
    lambda: images().offload(LAYERS, 3, num_replicas=2),
    ValueError,
    "Pass 2.",
    reads(lambda: images().offload(LAYERS, 2, num_replicas=2)),
  ),
  # Sources.
  "a source that repeats itself": Case(
    lambda: rtf.sources.data_source(Repeated()).refurbish(tf.identity),
    ValueError,
    "put .repeat() after refurbish instead",
    lambda: labels(rtf.sources.data_source(range(4)).refurbish(tf.identity).repeat().take(8)),
    lambda read: read == sorted([*range(4)] * 2),
  ),
  "shuffle before": Case(
    lambda: shuffled().refurbish(tf.identity),
    ValueError,
    "leave the shuffle out",
    reads(lambda: source().refurbish(tf.identity)),
  ),
  "shuffle before, the same each time": Case(
    lambda: shuffled().refurbish(tf.identity),
    ValueError,
    "reshuffle_each_iteration=False",
    reads(lambda: source().shuffle(4, reshuffle_each_iteration=False).refurbish(tf.identity)),
  ),
  "parallel and in any order": Case(
    lambda: parallel(False).refurbish(tf.identity),
    ValueError,
    "as an argument of refurbish",
    reads(lambda: parallel(None).refurbish(tf.identity, deterministic=False)),
  ),
  "two stages": Case(
    lambda: source().refurbish(tf.identity).refurbish(tf.identity),
    ValueError,
    "put both partial augmentations into one",
    reads(lambda: source().refurbish(lambda x: tf.identity(tf.identity(x)))),
  ),
  "echo by time before": Case(
    lambda: source().echo(rtf.AUTOTUNE).refurbish(tf.identity),
    ValueError,
    "put it after refurbish, or give echo a number",
    lambda: set(source().refurbish(tf.identity).echo(rtf.AUTOTUNE).as_numpy_iterator()),
    lambda seen: seen == set(range(4)),
  ),
  "random numbers drawn again": Case(
    lambda: tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True).take(4).refurbish(tf.identity),
    ValueError,
    "rerandomize_each_iteration=False and a seed",
    lambda: [
      labels(each)
      for each in [tf.data.Dataset.random(seed=1, rerandomize_each_iteration=False).take(4).refurbish(tf.identity)] * 2
    ],
    lambda epochs: epochs[0] == epochs[1],
  ),
  "repeated before": Case(
    lambda: source().repeat().refurbish(tf.identity),
    ValueError,
    "Put .repeat() after refurbish",
    reads(lambda: source().refurbish(tf.identity).repeat(1)),
  ),
  "ends, though TensorFlow calls it infinite": Case(
    lambda: sampled().refurbish(tf.identity),
    ValueError,
    "sample_from_datasets(..., stop_on_empty_dataset=True)",
    lambda: len(list(sampled().take(NUM_SAMPLED).refurbish(tf.identity))),
    lambda n: n == NUM_SAMPLED,
  ),
  "ends, and goes to a loader": Case(
    lambda: numpy_loader(sampled()),
    ValueError,
    ".take(n)",
    lambda: len(list(numpy_loader(sampled().take(NUM_SAMPLED)))),
    lambda n: n == NUM_SAMPLED,
  ),
  "repeated, and goes to a loader": Case(
    lambda: numpy_loader(source().repeat()),
    ValueError,
    "Leave .repeat() out, or pass it a number",
    lambda: len(list(numpy_loader(source().repeat(2)))),
    lambda n: n == 8,
  ),
  "ragged, and goes to a loader": Case(
    lambda: numpy_loader(tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))),
    TypeError,
    "with to_tensor()",
    lambda: [
      each.tolist()
      for each in numpy_loader(
        tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]])).map(lambda each: each.to_tensor())
      )
    ],
    lambda read: read == [[[1, 0], [2, 3]]],
  ),
  "files in a set": Case(
    lambda: rtf.sources.tfrecord({"a"}), TypeError, "Pass sorted(files)", lambda: sorted({"a"}), len
  ),
  # The store.
  "room for no sample": Case(
    lambda: rtf.CacheStore(max_bytes=0),
    ValueError,
    "use r=1",
    reads(lambda: source().refurbish(tf.identity, r=1)),
  ),
  "room for less than one": Case(
    lambda: labels(source().refurbish(tf.identity, store=rtf.CacheStore(max_bytes=4))),
    ValueError,
    "use r=1 without a store",
    reads(lambda: source().refurbish(tf.identity, r=1)),
  ),
  "seed of offload after refurbish": Case(
    lambda: images().refurbish(LAYERS).offload(LAYERS, 2, seed=1),
    ValueError,
    "Give it to refurbish",
    reads(lambda: images().refurbish(LAYERS, seed=1).offload(LAYERS, 2)),
  ),
  # Others.
  "axes of diversity": Case(
    lambda: rtf.diversity.expected_unique_samples(8, 4, np.array([3, 4, 5]), np.array([1, 2])),
    ValueError,
    "r[:, np.newaxis]",
    lambda: rtf.diversity.expected_unique_samples(8, 4, np.array([3, 4, 5]), np.array([1, 2])[:, np.newaxis]).shape,
    lambda shape: shape == (2, 3),
  ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_suggested_fixes_work(case):
  with pytest.raises(case.error) as raised:
    case.fails()
  assert case.says in str(raised.value)
  assert case.keeps(case.remedied())
