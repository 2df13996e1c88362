"""`five_crop` and `ten_crop`: torchvision's crops, in its order."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases, torchvision_policies
from support.images import noise


@cases.slow
def test_crops_are_torchvisions():
  found, jobs = [], []
  for size in [(9, 9), (4, 7), (9, 8), (1, 1)]:
    for fn, *kind in (
      (augment.five_crop(size), "FiveCrop", size),
      (augment.ten_crop(size), "TenCrop", size),
      (augment.ten_crop(size, vertical_flip=True), "TenCrop", size, True),
    ):
      found.append(fn(noise(9, 14, 3)))
      jobs.append((kind, noise(9, 14, 3), None, [], 0))
  for made, expected in zip(found, torchvision_policies.made(jobs), strict=True):
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("shape", [(9, 14, 3), (2, 9, 14, 1)])
def test_corners_middle_and_mirror_images(shape):
  images, fn = noise(*shape).astype(np.float32), augment.ten_crop((4, 7))
  made = fn(images)
  assert made.shape == (*shape[:-3], 10, 4, 7, shape[-1]) and made.dtype == tf.float32
  # The rest of 5 rows and 7 columns is halved to even: 2 and 4.
  for k, (y, x) in enumerate([(0, 0), (0, 7), (5, 0), (5, 7), (2, 4)]):
    for number, each in ((k, images), (5 + k, images[..., ::-1, :])):
      np.testing.assert_array_equal(made[..., number, :, :, :], each[..., y : y + 4, x : x + 7, :])
  unknown = tf.data.Dataset.from_generator(lambda: [images], output_signature=tf.TensorSpec([None] * len(shape)))
  dataset = unknown.map(pickle.loads(pickle.dumps(fn)))
  assert dataset.element_spec.shape.as_list()[-4:-1] == [10, 4, 7]
  np.testing.assert_array_equal(next(iter(dataset)), made)


def test_bad_input():
  fn = augment.five_crop(10)
  with pytest.raises(ValueError, match="must be at least as large as its crops, 10 x 10. Resize it first. Got 9 x 14"):
    fn(noise(9, 14, 3))
  traced = tf.function(fn, input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
  with pytest.raises(tf.errors.InvalidArgumentError, match="must be at least as large as its crops, 10 x 10"):
    traced(noise(9, 14, 3))
  with pytest.raises(ValueError, match=r"got shape \(14, 14\). Add a channel axis"):
    fn(noise(14, 14))
  for element in (noise(14, 14, 3), 1), {"image": noise(14, 14, 3)}:
    for call in (lambda fn: fn(element), tf.data.Dataset.from_tensors(element).map):
      with pytest.raises(TypeError, match=r"five_crop must be called with an image alone, .*\.map\(lambda"):
        call(fn)
  for make in (augment.compose, augment.random_apply, lambda layers: augment.split(layers, 1)):
    with pytest.raises(ValueError, match=r"five_crop at position 1 returns several crops. Call it in Dataset.map"):
      make([augment.random_flip(), fn])
