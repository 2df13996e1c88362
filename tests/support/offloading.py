"""Batches of `offload`, finished by the host's layers instead of an accelerator."""

import numpy as np
import tensorflow as tf

from refurbish_tf import augment

SIDES = (9, 7)


def images(n, height=SIDES[0], width=SIDES[1]):
  return np.random.default_rng(1).integers(0, 256, (n, height, width, 3), np.uint8)


def source(n, height=SIDES[0], width=SIDES[1]):
  return tf.data.Dataset.from_tensor_slices((images(n, height, width), np.arange(n)))


def policies(number=2):
  return augment.rand_augment(number, 9)


def layers():
  return [*policies(), augment.random_crop(padding=2), augment.random_flip(), augment.normalize()]


def failing_at(failure):
  """A function of an element that fails at this label."""

  def fail(image, label):
    with tf.control_dependencies(
      [tf.debugging.assert_none_equal(label, tf.constant(failure, tf.int64), message="bad label")]
    ):
      return tf.identity(image), label

  return fail


def labels_of(batches):
  return [label for _, labels in batches for label in labels.numpy()]


def unfinished(batch):
  """Returns column 0 of the draws: 1 for an image whose policy layers are left to the device, otherwise 0."""
  return batch["draws"].numpy()[:, 0].tolist()


def finished_by_host(batch, made_of, num_policy_layers):
  """The result of `Offloaded` for a batch, computed by the host's layers."""
  flat = batch["unfinished_image"]
  n, height, width = flat.shape[0], flat.shape[1], flat.shape[2] // 3
  given, draws, todo = tf.reshape(flat, [n, height, width, 3]), batch["draws"][:, 1:], batch["draws"][:, 0] == 1
  whole = augment.compose(made_of).pixels(given, draws)
  if not num_policy_layers:
    return whole.numpy()
  divided, rest = augment.split(made_of, at=num_policy_layers)
  number = divided.draws([0, 0]).shape[0]
  return tf.where(todo[:, None, None, None], whole, rest.pixels(given, draws[:, number:]) if rest else given).numpy()


def values(batches):
  """Returns the labels of each batch, and its images as the accelerator makes them."""
  return [(labels.numpy().tolist(), finished_by_host(batch, layers(), 2).tobytes()) for batch, labels in batches]
