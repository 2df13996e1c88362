"""What operations on an image need to know and to do."""
import tensorflow as tf


def height_and_width(image):
  """Returns height and width, as Python numbers where they are known."""
  dynamic = tf.shape(image)
  return tuple(dynamic[axis] if size is None else size for axis, size in enumerate(image.shape[:2]))


def rows_of(image):
  """Returns the image as `[height, width * 3]`: its innermost dimension is long, which is what makes passes cheap."""
  height, width = height_and_width(image)
  return tf.reshape(image, [height, width * 3])
