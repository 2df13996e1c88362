"""Helpers of operations on images."""

import tensorflow as tf


def sizes(images):
  """Returns the size of each dimension, as Python numbers where they are known."""
  dynamic = tf.shape(images)
  return tuple(dynamic[axis] if size is None else size for axis, size in enumerate(images.shape))


def height_and_width(image):
  """Returns height and width, as Python numbers where they are known."""
  return sizes(image)[:2]


def rows_of(image):
  """Returns the image as `[height, width * 3]`, because passes are cheap if the innermost dimension is long."""
  height, width = height_and_width(image)
  return tf.reshape(image, [height, width * 3])
