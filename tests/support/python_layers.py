"""Images, and a transform in Python, for tests of `numpy_layer`."""

import numpy as np
import tensorflow as tf

N = 12
IMAGES = np.random.default_rng(7).integers(0, 256, [N, 9, 11, 3], np.uint8)
SOURCE = tf.data.Dataset.from_tensor_slices(IMAGES)


def noise(image, rng):
  return np.clip(image + rng.normal(0, 20, image.shape), 0, 255).astype(image.dtype)


def epochs_of(stage, number=2):
  """The bytes of the samples, by epoch."""
  return [[each.tobytes() for each in stage.as_numpy_iterator()] for _ in range(number)]
