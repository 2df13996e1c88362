"""The distortions of RandAugment, each a plain deterministic function of an image.

>>> import tensorflow as tf
>>> from tensorflow_layers import distortions
>>> image = tf.constant([[[10, 20, 30], [40, 50, 60]]], tf.uint8)
>>> distortions.brightness(image, factor=2.0).numpy().tolist()
[[[20, 40, 60], [80, 100, 120]]]

Each takes an image, uint8 `[height, width, 3]` with known sides of 1 to 32767 pixels, and at most one parameter, a
Python number, and returns an image of the same shape and dtype. The results have exactly Pillow's values:
`PIL.ImageOps` and `PIL.ImageEnhance` for colours, and for geometry `PIL.Image.transform` with an affine matrix, the
nearest pixel and `FILL` for pixels from outside the image (Cubuk et al., *RandAugment*, NeurIPS 2020, section 3).

The costs of TensorFlow's CPU kernels shape the code: an operation takes about 0.3 microseconds before it touches a
pixel, which is most of the time at 32 x 32. At 224 x 224 one pass of integer or float arithmetic takes 5 to 10
microseconds, but `tf.where`, a shift or a table look-up per value 60 to 400, and so does broadcasting along the three
channels.
"""

import math

import numpy as np
import tensorflow as tf

# The colour of pixels that a geometric distortion takes from outside the image: grey.
FILL = 128

# Pillow's weights of red, green and blue in the grey value, in units of 1 / 65536. Sums of whole multiples of them are
# exact in float32, because 255 * 65536 + 32768 < 2**24.
_GREY_WEIGHTS = np.array([19595, 38470, 7471], np.float32) / 65536


def identity(image):
  """Returns the unchanged image."""
  return tf.identity(image)


def auto_contrast(image):
  """Stretches each channel so that its darkest value becomes 0 and its brightest 255 (`ImageOps.autocontrast`).

  A channel of one value stays as it is.
  """
  # float64, as in Pillow, which truncates: in another precision, a quotient could fall just below a whole number.
  darkest = tf.cast(tf.reduce_min(image, axis=[0, 1]), tf.float64)
  brightest = tf.cast(tf.reduce_max(image, axis=[0, 1]), tf.float64)
  span = brightest - darkest
  scale = tf.math.divide_no_nan(tf.constant(255, tf.float64), span)
  offset = tf.where(span > 0, darkest * scale, -darkest)
  rows, width = _rows(image), image.shape[1]
  stretched = tf.cast(rows, tf.float64) * tf.tile(scale, [width]) - tf.tile(offset, [width])
  return tf.reshape(tf.cast(stretched, tf.uint8), tf.shape(image))


def equalize(image):
  """Spreads the values of each channel so that they are about equally frequent (`ImageOps.equalize`)."""
  rows, width = _rows(image), image.shape[1]
  # One histogram of 3 * 256 bins in place of three of 256.
  bins = tf.reshape(tf.cast(rows, tf.int32) + tf.tile([0, 256, 512], [width]), [-1])
  no_weights = tf.constant([], tf.int32)
  histogram = tf.reshape(tf.raw_ops.DenseBincount(input=bins, size=768, weights=no_weights), [3, 256])
  darker = tf.cumsum(histogram, axis=1, exclusive=True)
  # The pixels darker than the brightest value that occurs. Beyond that value `darker` counts all pixels.
  pixels = tf.size(rows) // 3
  step = tf.reduce_max(tf.where(darker < pixels, darker, 0), axis=1, keepdims=True) // 255
  spread = tf.minimum((darker + step // 2) // tf.maximum(step, 1), 255)
  table = tf.where(step > 0, spread, tf.range(256))
  # `gather_nd` looks single values up in two thirds of the time of `gather`.
  values = tf.gather_nd(tf.reshape(tf.cast(table, tf.uint8), [768]), bins[:, tf.newaxis])
  return tf.reshape(values, tf.shape(image))


def solarize(image, threshold):
  """Inverts the values from `threshold`, a whole number from 0 to 256, upwards (`ImageOps.solarize`)."""
  if threshold > 255:
    return tf.identity(image)
  bright = tf.cast(image >= np.uint8(max(threshold, 0)), tf.uint8)
  # An exclusive or with 255 inverts, in a quarter of the time of `tf.where`.
  return tf.bitwise.bitwise_xor(image, bright * np.uint8(255))


def posterize(image, bits):
  """Keeps the `bits`, 1 to 8, most significant bits of every value (`ImageOps.posterize`)."""
  return tf.bitwise.bitwise_and(image, np.uint8(256 - 2 ** (8 - bits)))


def color(image, factor):
  """Moves the colours from grey (`factor` 0) via the image itself (1) to stronger ones (`ImageEnhance.Color`)."""
  pixels = _float_pixels(image)
  return tf.reshape(_blend(_grey(pixels, columns=3), pixels, factor), tf.shape(image))


def contrast(image, factor):
  """Moves the values away from (`factor` > 1) or towards (< 1) the mean grey value (`ImageEnhance.Contrast`)."""
  pixels = _float_pixels(image)
  height, width, _ = image.shape
  grey = _grey(pixels, columns=2)
  # float32 holds the sum of one row exactly (2 * 32767 * 255 < 2**24), but not the sum of all rows.
  row_sums = tf.reduce_sum(tf.reshape(grey, [height, width * 2]), axis=1)
  mean = tf.reduce_sum(tf.cast(row_sums, tf.float64)) / (2 * height * width)
  return tf.reshape(_blend(tf.cast(tf.floor(mean + 0.5), tf.float32), pixels, factor), tf.shape(image))


def brightness(image, factor):
  """Multiplies every value by `factor`, which is at least 0 (`ImageEnhance.Brightness`)."""
  scaled = tf.cast(image, tf.float32) * factor
  if factor > 1:
    scaled = tf.minimum(scaled, 255.0)
  return tf.cast(scaled, tf.uint8)


def sharpness(image, factor):
  """Moves from a smoothed image (`factor` 0) via the image itself (1) to a sharpened one (`ImageEnhance.Sharpness`).

  The outermost pixels have no full neighbourhood and stay as they are.
  """
  rows = _rows(image)
  values = tf.cast(rows, tf.float32)
  columns = values[:-2] + values[1:-1] + values[2:]
  around = columns[:, :-6] + columns[:, 3:-3] + columns[:, 6:]
  middle = values[1:-1, 3:-3]
  # The neighbourhood weighs 1 and the pixel itself 5. A sum of whole numbers divided by 13 is never near a half, so
  # rounding it does not depend on the order of the arithmetic.
  smooth = tf.floor((around + 4.0 * middle) * (1 / 13) + 0.5)
  inner = _blend(smooth, middle, factor)
  inner = tf.concat([rows[1:-1, :3], inner, rows[1:-1, 3:][:, -3:]], axis=1)
  return tf.reshape(tf.concat([rows[:1], inner, rows[1:][-1:]], axis=0), tf.shape(image))


def rotate(image, degrees):
  """Turns the image counterclockwise about its centre by `degrees` (`Image.rotate`)."""
  # The matrix maps an output position to an input position. Pillow rounds like this, so that right angles are exact.
  radians = math.radians(degrees % 360.0)
  cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
  height, width, _ = image.shape
  middle_x, middle_y = width / 2, height / 2
  first_x = _fixed((cosine * -middle_x + -sine * -middle_y) + middle_x + cosine * 0.5 + -sine * 0.5)
  first_y = _fixed((sine * -middle_x + cosine * -middle_y) + middle_y + sine * 0.5 + cosine * 0.5)
  x, y = _places(image)
  input_x = tf.bitwise.right_shift(tf.add(x * _fixed(cosine), y * _fixed(-sine) + first_x), 16)
  input_y = tf.bitwise.right_shift(tf.add(x * _fixed(sine), y * _fixed(cosine) + first_y), 16)
  return _take(image, input_y, input_x)


def shear_x(image, slope):
  """Takes the pixel at (x, y) from (x + `slope` * y, y): positive slopes push lower rows to the left."""
  x, y = _places(image)
  return _take(image, y, tf.add(x, y * _fixed(slope) + _fixed(0.5 + slope * 0.5) >> 16))


def shear_y(image, slope):
  """Takes the pixel at (x, y) from (x, y + `slope` * x): positive slopes push columns to the right upwards."""
  x, y = _places(image)
  return _take(image, tf.add(y, x * _fixed(slope) + _fixed(slope * 0.5 + 0.5) >> 16), x)


def translate_x(image, fraction):
  """Moves the image to the left by `fraction` of its width, rounded to whole pixels; to the right if negative."""
  return _translate(image, fraction, 1)


def translate_y(image, fraction):
  """Moves the image upwards by `fraction` of its height, rounded to whole pixels; downwards if negative."""
  return _translate(image, fraction, 0)


def _rows(image):
  """Returns the image as `[height, width * 3]`, because passes are cheap if the innermost dimension is long."""
  return tf.reshape(image, [image.shape[0], -1])


def _float_pixels(image):
  """Returns the image as float32 `[height * width, 3]`."""
  return tf.reshape(tf.cast(image, tf.float32), [-1, 3])


def _grey(pixels, columns):
  """Returns the whole grey values of float32 `[n, 3]` pixels, repeated in each of the columns of `[n, columns]`.

  At least two columns, because a product with a single one takes twice as long.
  """
  weights = np.repeat(_GREY_WEIGHTS[:, np.newaxis], columns, axis=1)
  return tf.floor(tf.matmul(pixels, weights) + 0.5)


def _blend(degenerate, values, factor):
  """Returns `Image.blend(degenerate, values, factor)` of whole float32 values, in Pillow's order of operations."""
  blended = degenerate + factor * (values - degenerate)
  if not 0 <= factor <= 1:
    blended = tf.maximum(tf.minimum(blended, 255.0), 0.0)
  return tf.cast(blended, tf.uint8)


# While tracing, NumPy computes the rows and columns that depend only on a side, because every node costs some 80
# microseconds whenever an iterator is made. Whole planes would make the graph too large, so TensorFlow folds them into
# constants when it runs.


def _places(image):
  """Returns the columns, int32 `[width]`, and the rows, int32 `[height, 1]`."""
  height, width, _ = image.shape
  return np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, np.newaxis]


def _fixed(value):
  """Returns a number in Pillow's fixed-point representation, in units of 1 / 65536."""
  return math.floor(value * 65536.0 + 0.5)


def _take(image, input_y, input_x):
  """Returns the image whose pixel at (x, y) is the one at (`input_x`, `input_y`), or `FILL` outside."""
  height, width, _ = image.shape
  # A border of one pixel represents everything outside.
  bordered = tf.reshape(tf.pad(image, [[1, 1], [1, 1], [0, 0]], constant_values=np.uint8(FILL)), [-1, 3])
  places = _clip(input_y, height) * (width + 2) + _clip(input_x, width) + (width + 3)
  return tf.gather_nd(bordered, places[..., tf.newaxis])


def _clip(values, highest):
  return (tf.clip_by_value if tf.is_tensor(values) else np.clip)(values, -1, highest)


def _translate(image, fraction, axis):
  size = image.shape[axis]
  pixels = round(fraction * size)
  leaving, entering = np.clip((pixels, -pixels), 0, size)
  kept = slice(leaving, size - entering)
  kept = image[kept] if axis == 0 else image[:, kept]
  paddings = [[0, 0], [0, 0], [0, 0]]
  paddings[axis] = [entering, leaving]
  return tf.pad(kept, paddings, constant_values=np.uint8(FILL))
