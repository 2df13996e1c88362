"""The distortions of AutoAugment and RandAugment, each a plain deterministic function of an image.

>>> import tensorflow as tf
>>> from tensorflow_layers import distortions
>>> image = tf.constant([[[10, 20, 30], [40, 50, 60]]], tf.uint8)
>>> distortions.brightness(image, factor=2.0).numpy().tolist()
[[[20, 40, 60], [80, 100, 120]]]

Each takes an image, uint8 `[height, width, 3]` with sides of 1 to 32767 pixels, and at most one parameter, and returns
an image of the same shape and dtype. The parameter is a Python number; or a float64 scalar if it is unknown while
tracing, which costs a little more. The results have exactly Pillow's values: `PIL.ImageOps` and `PIL.ImageEnhance`
for colours, and for geometry `PIL.Image.transform` with an affine matrix, the nearest pixel and `fill` for pixels from
outside the image. AutoAugment and RandAugment were published with these operations (Cubuk et al., *AutoAugment*,
CVPR 2019, section 3 and appendix; *RandAugment*, NeurIPS 2020, section 3).

The costs of TensorFlow's CPU kernels shape the code: an operation takes about 0.3 microseconds before it touches a
pixel, which is most of the time at 32 x 32. At 224 x 224 one pass of integer or float arithmetic takes 5 to 10
microseconds, but `tf.where`, a shift or a table look-up per value 60 to 400, and so does broadcasting along the three
channels.
"""

import math

import numpy as np
import tensorflow as tf

from .images import height_and_width
from .images import rows_of

# The colour of pixels that a geometric distortion takes from outside the image: AutoAugment's grey.
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
  rows, width = rows_of(image), height_and_width(image)[1]
  stretched = tf.cast(rows, tf.float64) * tf.tile(scale, [width]) - tf.tile(offset, [width])
  return tf.reshape(tf.cast(stretched, tf.uint8), tf.shape(image))


def equalize(image):
  """Spreads the values of each channel so that they are about equally frequent (`ImageOps.equalize`)."""
  rows, width = rows_of(image), height_and_width(image)[1]
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


def invert(image):
  """Subtracts every value from 255 (`ImageOps.invert`)."""
  return tf.bitwise.invert(image)


def solarize(image, threshold):
  """Inverts the values from `threshold`, a whole number from 0 to 256, upwards (`ImageOps.solarize`)."""
  if tf.is_tensor(threshold):
    bright = tf.cast(tf.cast(image, tf.int32) >= tf.cast(threshold, tf.int32), tf.uint8)
  elif threshold > 255:
    return tf.identity(image)
  else:
    bright = tf.cast(image >= np.uint8(max(threshold, 0)), tf.uint8)
  # An exclusive or with 255 inverts, in a quarter of the time of `tf.where`.
  return tf.bitwise.bitwise_xor(image, bright * np.uint8(255))


def posterize(image, bits):
  """Keeps the `bits`, 1 to 8, most significant bits of every value (`ImageOps.posterize`)."""
  if tf.is_tensor(bits):
    return tf.bitwise.bitwise_and(image, tf.bitwise.left_shift(np.uint8(255), tf.cast(8 - bits, tf.uint8)))
  return tf.bitwise.bitwise_and(image, np.uint8(256 - 2 ** (8 - bits)))


def color(image, factor):
  """Moves the colours from grey (`factor` 0) by way of the image (1) to stronger ones (`ImageEnhance.Color`)."""
  pixels = _float_pixels(image)
  return tf.reshape(_blend(_grey(pixels, columns=3), pixels, factor), tf.shape(image))


def contrast(image, factor):
  """Moves the values away from (`factor` > 1) or towards (< 1) the mean grey value (`ImageEnhance.Contrast`)."""
  pixels = _float_pixels(image)
  height, width = height_and_width(image)
  grey = _grey(pixels, columns=2)
  # float32 holds the sum of one row exactly (2 * 32767 * 255 < 2**24), but not the sum of all rows.
  row_sums = tf.reduce_sum(tf.reshape(grey, [height, width * 2]), axis=1)
  mean = tf.reduce_sum(tf.cast(row_sums, tf.float64)) / tf.cast(tf.size(grey), tf.float64)
  return tf.reshape(_blend(tf.cast(tf.floor(mean + 0.5), tf.float32), pixels, factor), tf.shape(image))


def brightness(image, factor):
  """Multiplies every value by `factor`, which is at least 0 (`ImageEnhance.Brightness`)."""
  scaled = tf.cast(image, tf.float32) * _float32(factor)
  if tf.is_tensor(factor) or factor > 1:
    scaled = tf.minimum(scaled, 255.0)
  return tf.cast(scaled, tf.uint8)


def sharpness(image, factor):
  """Moves from a smoothed image (`factor` 0) by way of the image (1) to a sharpened one (`ImageEnhance.Sharpness`).

  The outermost pixels have no full neighbourhood and stay as they are.
  """
  rows = rows_of(image)
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


def rotate(image, degrees, fill=FILL):
  """Turns the image counterclockwise about its centre by `degrees` (`Image.rotate`)."""
  # The matrix maps an output position to an input position.
  if tf.is_tensor(degrees):
    cosine, sine = tf.cos(degrees * (math.pi / 180)), tf.sin(degrees * (math.pi / 180))
  else:  # Pillow rounds like this, so that right angles are exact.
    radians = math.radians(degrees % 360.0)
    cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
  height, width = height_and_width(image)
  middle_x, middle_y = _float64(width) / 2, _float64(height) / 2
  first_x = _fixed((cosine * -middle_x + -sine * -middle_y) + middle_x + cosine * 0.5 + -sine * 0.5)
  first_y = _fixed((sine * -middle_x + cosine * -middle_y) + middle_y + sine * 0.5 + cosine * 0.5)
  x, y = _range(width), _range(height)[:, np.newaxis]
  input_x = _whole(tf.add(x * _fixed(cosine), y * _fixed(-sine) + first_x))
  input_y = _whole(tf.add(x * _fixed(sine), y * _fixed(cosine) + first_y))
  return _take(image, input_y, input_x, fill)


def shear_x(image, slope, fill=FILL):
  """Takes the pixel at (x, y) from (x + `slope` * y, y): positive slopes push lower rows to the left."""
  height, width = height_and_width(image)
  y = _range(height)[:, np.newaxis]
  shift = _whole(y * _fixed(slope) + _fixed(0.5 + slope * 0.5))
  return _take(image, y, tf.add(_range(width), shift), fill)


def shear_y(image, slope, fill=FILL):
  """Takes the pixel at (x, y) from (x, y + `slope` * x): positive slopes push columns to the right upwards."""
  height, width = height_and_width(image)
  x = _range(width)
  shift = _whole(x * _fixed(slope) + _fixed(slope * 0.5 + 0.5))
  return _take(image, tf.add(_range(height)[:, np.newaxis], shift), x, fill)


def translate_x(image, fraction, fill=FILL):
  """Moves the image to the left by `fraction` of its width, rounded to whole pixels; to the right if negative."""
  return _translate(image, fraction, 1, fill)


def translate_y(image, fraction, fill=FILL):
  """Moves the image upwards by `fraction` of its height, rounded to whole pixels; downwards if negative."""
  return _translate(image, fraction, 0, fill)


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
  blended = degenerate + _float32(factor) * (values - degenerate)
  if tf.is_tensor(factor) or not 0 <= factor <= 1:
    blended = tf.maximum(tf.minimum(blended, 255.0), 0.0)
  return tf.cast(blended, tf.uint8)


# While tracing, NumPy computes the rows and columns that depend only on a known side, because every node costs some 80
# microseconds whenever an iterator is made. Whole planes would make the graph too large, so TensorFlow folds them into
# constants when it runs.


def _range(size):
  return tf.range(size) if tf.is_tensor(size) else np.arange(size, dtype=np.int32)


def _float32(factor):
  return tf.cast(factor, tf.float32) if tf.is_tensor(factor) else factor


def _float64(size):
  return tf.cast(size, tf.float64) if tf.is_tensor(size) else float(size)


def _fixed(value):
  """Returns a float64 number in Pillow's fixed-point representation, int32 units of 1 / 65536."""
  scaled = value * 65536.0 + 0.5
  return tf.cast(tf.floor(scaled), tf.int32) if tf.is_tensor(scaled) else math.floor(scaled)


def _whole(fixed):
  """Returns the whole part, rounded down, of fixed-point numbers."""
  return tf.bitwise.right_shift(fixed, 16) if tf.is_tensor(fixed) else fixed >> 16


def _clip(values, lowest, highest):
  clip = tf.clip_by_value if tf.is_tensor(values) or tf.is_tensor(highest) else np.clip
  return clip(values, lowest, highest)


def _take(image, input_y, input_x, fill):
  """Returns the image whose pixel at (x, y) is the one at (`input_x`, `input_y`), or `fill` outside."""
  height, width = height_and_width(image)
  # A border of one pixel represents everything outside.
  bordered = tf.reshape(tf.pad(image, [[1, 1], [1, 1], [0, 0]], constant_values=np.uint8(fill)), [-1, 3])
  places = _clip(input_y, -1, height) * (width + 2) + _clip(input_x, -1, width) + (width + 3)
  return tf.gather_nd(bordered, places[..., tf.newaxis])


def _translate(image, fraction, axis, fill):
  size = height_and_width(image)[axis]
  exact = fraction * _float64(size)
  pixels = tf.cast(tf.round(exact), tf.int32) if tf.is_tensor(exact) else round(exact)
  leaving, entering = _clip(pixels, 0, size), _clip(-pixels, 0, size)
  kept = slice(leaving, size - entering)
  kept = image[kept] if axis == 0 else image[:, kept]
  paddings = [[0, 0], [0, 0], [0, 0]]
  paddings[axis] = [entering, leaving]
  return tf.pad(kept, paddings, constant_values=np.uint8(fill))
