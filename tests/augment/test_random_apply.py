"""`random_apply` applies all of its layers or none, as one layer, with targets and in splits."""

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support.images import noise

SEED = [7, 0]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_is_all_of_its_layers_or_none():
  """This holds even if layers are nested three deep. They draw the same numbers as in `compose`."""
  images, crop, jitter = noise(20, 9, 13, 3), augment.random_crop(padding=3), augment.color_jitter(0.4, hue=0.2)
  flip, cutout = augment.random_flip(), augment.cutout(4)
  nested = augment.random_apply([crop, augment.random_apply([jitter, cutout], 0.6), jitter], 0.7)
  for inner in ([crop], [jitter, flip, cutout], [flip, nested, crop]):
    layer, plain = augment.random_apply(inner, 0.5), augment.compose(inner)
    draws, applied = layer.draws(SEED, 20).numpy(), 0
    for number, image in enumerate(images):
      seed = augment.seed_at(SEED, number)
      np.testing.assert_array_equal(draws[number], layer.draws(seed))
      happens = draws[number, 0] < 2**30
      applied += happens
      np.testing.assert_array_equal(layer(image, seed), plain(image, seed=seed) if happens else image)
    assert 0 < applied < 20
    np.testing.assert_array_equal(layer(images, SEED), layer.pixels(images, draws))


def test_applies_with_probability_p():
  layer = augment.random_apply([augment.random_apply([augment.random_solarize(0, p=1)], p=0.5)], p=0.6)
  images = np.zeros([4000, 1, 1, 3], np.uint8)
  assert abs((layer(images, SEED).numpy() == 255).all((1, 2, 3)).mean() - 0.3) < 0.02
  for p, expected in ((0, 0), (1, 255)):
    assert (augment.random_apply([augment.random_solarize(0, p=1)], p)(images, SEED).numpy() == expected).all()


def test_in_compositions_with_targets_and_splits():
  layers = [
    augment.random_flip(),
    augment.random_apply([augment.random_crop(padding=3), *augment.rand_augment(2), augment.random_flip()], 0.7),
    augment.random_apply([augment.color_jitter(0.5)], 0.5),
    augment.random_apply(augment.auto_augment("cifar10"), 0.6),
    augment.normalize(MEAN, STD),
  ]
  kinds = {"mask": "mask", "depth": "bilinear", "boxes": "xyxy", "points": "xy"}
  whole = augment.compose(layers, kinds)
  element = {
    "image": noise(15, 22, 3),
    "mask": noise(15, 22),
    "depth": np.float32(noise(15, 22)),
    "boxes": np.float32([[3, 4, 12, 9]]),
    "points": np.float32([[5, 6], [10, 2]]),
  }
  moved = 0
  for number in range(8):
    expected = whole(element, seed=[number, 5])
    moved += not np.array_equal(expected["mask"], element["mask"])
    for at in range(1, len(layers) - 1):
      first, second = augment.split(layers, at, kinds)
      found = second(first(element, seed=[number, 5]), seed=[number, 5])
      for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=f"{name}, split at {at}")
  assert moved


def test_targets_move_as_those_of_its_layers():
  inner = [augment.random_crop(padding=5), augment.random_flip(), augment.random_affine(40)]
  layer = augment.random_apply(inner, 0.5)
  fn, plain = augment.compose([layer], {1: "mask", 2: "xyxy"}), augment.compose(inner, {1: "mask", 2: "xyxy"})
  element = noise(15, 22, 3), noise(15, 22), np.float32([[3, 4, 12, 9]])
  applied = 0
  for number in range(12):
    seed = [number, 0]
    own = augment.seed_at(seed, 0)
    happens = layer.draws(own).numpy()[0] < 2**30
    applied += happens
    expected = plain(*element, seed=own) if happens else element
    for value, found in zip(expected, fn(*element, seed=seed), strict=True):
      np.testing.assert_array_equal(found, value)
  assert 0 < applied < 12


def test_color_layers_alone_move_no_targets():
  boxes = np.float32([[0, 0, 2, 2]])
  fn = augment.compose([augment.random_apply([augment.color_jitter(0.4)], 1)])
  assert fn({"image": noise(4, 4, 3), "boxes": boxes}, seed=SEED)["boxes"] is not None
  with pytest.raises(ValueError, match="boxes"):
    augment.compose([augment.random_apply([augment.random_flip()], 1)])(
      {"image": noise(4, 4, 3), "boxes": boxes}, seed=SEED
    )


def test_the_number_of_outcomes():
  assert augment.random_apply([augment.random_flip(), augment.random_flip()], 0.5).outcomes == (
    5,
    1 / (0.25 + 0.25 / 4),
  )
  assert augment.random_apply([augment.random_flip()], 1).outcomes == (2, 2)
  assert augment.random_apply([augment.random_flip(), augment.cutout(3)], 0.5).outcomes is None


def test_refuses_bad_layers_and_probabilities():
  for inner in (
    [augment.resize((4, 4))],
    [augment.random_flip(), augment.random_resized_crop(4)],
    [augment.normalize()],
    [augment.random_apply([augment.random_flip()]), augment.normalize()],
  ):
    with pytest.raises(
      ValueError, match="layers of random_apply must keep the size and the dtype of an image.*before or after"
    ):
      augment.random_apply(inner)
  with pytest.raises(ValueError, match="at least one layer"):
    augment.random_apply([])
  with pytest.raises(ValueError, match="p of random_apply must be a probability"):
    augment.random_apply([augment.random_flip()], 1.5)
  layer = augment.random_apply([augment.random_flip(), augment.random_solarize()])
  for each, inner in ((layer, ""), (augment.random_apply([layer]), " in random_apply")):
    message = rf"image of random_solarize in random_apply{inner} must have 1 or 3 channels, got "
    with pytest.raises(ValueError, match=message):
      each(noise(4, 4, 2), SEED)
    unknown = tf.data.Dataset.from_tensors(noise(4, 4, 2)).map(
      lambda image: tf.numpy_function(lambda image: image, [image], tf.uint8)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      list(unknown.refurbish([each]))
