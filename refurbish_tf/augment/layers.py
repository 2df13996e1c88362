"""Seeds of augmentation layers, and checks of arguments that several layers share."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import sys
from typing import Any

import tensorflow as tf

from refurbish_tf._internal import native
from refurbish_tf._internal.checks import is_real


@tf.autograph.experimental.do_not_convert
def seed_at(seed: Any, index: Any) -> tf.Tensor:
  """Returns the seed at `index` of many independent seeds derived from `seed`.

  >>> rtf.augment.seed_at([7, 0], 3).numpy().tolist()
  [-171796697, 266284296]
  >>> rtf.augment.seed_at([7, 0], [0, 1, 2]).shape
  TensorShape([3, 2])

  A layer treats image b of a batch like an image with `seed_at(seed, b)`; `compose` gives layer p `seed_at(seed, p)`.

  Args:
    seed: int32 or int64 `[2]`, as for `tf.random.stateless_uniform`.
    index: a whole number of at least 0, or `[n]` of them, of any integer dtype.

  Returns:
    int32 `[2]`, or `[n, 2]`. Different for different indices.

  Raises:
    TypeError: the seed or the index has the wrong dtype.
    ValueError: the seed or the index has the wrong shape, or the index is a negative Python number.
  """
  seed, index = checked_seed(seed, "seed_at"), tf.convert_to_tensor(index)
  if not index.dtype.is_integer:
    raise TypeError(
      f"index of seed_at must have an integer dtype, got dtype {index.dtype.name}. Pass a position, such as 3."
    )
  if index.shape.rank not in (None, 0, 1):
    raise ValueError(
      f"index of seed_at must be [] or [n], got shape {index.shape}. Pass one position, or a list of them."
    )
  known = tf.get_static_value(index)
  if known is not None and (known < 0).any():
    raise ValueError(
      f"index of seed_at must be at least 0, got {known.tolist()}. Pass the position of an image in its batch, or of "
      "a layer among its layers."
    )
  return native.ops().refurbish_tf_seed_at(seed=seed, index=tf.cast(index, tf.int64))


def checked_seed(seed, whose):
  """Returns `seed` as a tensor; raises unless `tf.random.stateless_*` would take it."""
  seed = tf.convert_to_tensor(seed)
  if seed.dtype not in (tf.int32, tf.int64):
    raise TypeError(
      f"seed of {whose} must be int32 or int64, got dtype {seed.dtype.name}. Pass a seed as for "
      "tf.random.stateless_uniform, such as [7, 0]."
    )
  if not seed.shape.is_compatible_with([2]):
    raise ValueError(
      f"seed of {whose} must be [2], got shape {seed.shape}. Pass a seed as for tf.random.stateless_uniform, such as "
      "[7, 0]."
    )
  return seed


def unwrapped(function):
  """The function within a `functools.partial`, maybe nested; any other function itself."""
  while isinstance(function, functools.partial):
    function = function.func
  return function


def layer_name(layer):
  layer = unwrapped(layer)
  return getattr(layer, "__name__", type(layer).__name__)


def new_seed():
  """A seed for a function that is called without one. It differs in each epoch and each run."""
  # Not `tf.random.uniform`, which repeats its numbers with each iterator after `tf.random.set_seed`.
  return tf.raw_ops.RandomUniformInt(shape=[2], minval=tf.int32.min, maxval=tf.int32.max)


def checked_when_it_runs(value, condition, told, *tensors):
  """Returns the value, maybe nested. At run time, raises with this text and the tensors unless the condition holds."""
  check = tf.debugging.Assert(condition, [told, *tensors])
  with tf.control_dependencies([] if check is None else [check]):
    return tf.nest.map_structure(tf.identity, value)


def way_to_uint8(dtype):
  """For errors: how to convert images of another dtype to uint8 without losing their content."""
  if dtype.is_floating:
    return (
      "Put it before any conversion to float. Or convert values from 0 to 1 with tf.image.convert_image_dtype(image, "
      "tf.uint8, saturate=True), values from 0 to 255 with tf.saturate_cast(tf.round(image), tf.uint8), and scale "
      "others first."
    )
  if dtype == tf.string:
    return "Decode it first, for example with rtf.augment.decode()."
  if dtype == tf.bool:
    return "Convert it with tf.cast(image, tf.uint8) * 255."
  of_16_bits = ", values that reach 65,535 with tf.image.convert_image_dtype(image, tf.uint8)" * (dtype == tf.uint16)
  return f"Convert values from 0 to 255 with tf.cast(image, tf.uint8){of_16_bits}, and scale others to 0 to 255 first."


def way_to_dtype(dtype, only_uint8):
  """For errors: how to convert images to a dtype that layers take without losing their content."""
  if only_uint8 or dtype in (tf.string, tf.bool):
    return way_to_uint8(dtype)
  if dtype.is_complex:
    return "Use its magnitude, tf.abs(image), or its two parts as channels, and cast them to tf.float32."
  if dtype.is_floating:
    return "Put it before the layer that returns this dtype, or convert it with tf.cast(image, tf.float32)."
  return (
    "Convert values from 0 to 255 with tf.cast(image, tf.uint8), and others with tf.cast(image, tf.float32), which "
    "keeps 24 bits."
  )


def way_to_channels(shape, most=None):
  """For errors: how images of this shape become [height, width, channels], with channels that a layer takes."""
  shape = shape.as_list()
  if len(shape) > 4:
    return (
      "If each image may be augmented separately, make one batch of them: tf.reshape(image, tf.concat([[-1], "
      "tf.shape(image)[-3:]], 0))."
    )
  if len(shape) < 2:
    return "Give it a height and a width with tf.reshape."
  if len(shape) == 2:
    return "Add a channel axis: image[..., tf.newaxis]."
  if 0 in shape[-3:-1]:
    return "Leave out images without pixels, with Dataset.filter."
  if shape[-1] == 1:
    return "Convert it to three colors with tf.image.grayscale_to_rgb(image)."
  if shape[-1] == 4:
    return "Leave the fourth channel out: image[..., :3]."
  ways = []
  # `most` is given if the image has more channels than that: the layer takes no more.
  if most:
    ways.append(
      f"If the last axis holds bands, make those after the first {most} a separate component that follows the image: "
      f'image[..., :{most}], image[..., {most}:] with targets={{1: "mask"}}, or "bilinear" for floats.'
    )
  if looks_like_volume_of_channels(shape):
    ways.append("If it is a volume whose channels come first, put them last: tf.transpose(image, [1, 2, 3, 0]).")
  if all(None not in (shape[-3], side) and shape[-3] < side for side in shape[-2:]):
    last = "[1, 2, 0]" if len(shape) == 3 else "[0, 2, 3, 1]"
    ways.append(f"If channels come first, put them last: tf.transpose(image, {last}).")
  if len(shape) == 3 and any(side is not None and side <= (shape[-1] or 0) for side in shape[:2]):
    ways.append(
      "If the last axis is the width, because a batch, a clip or a volume has no channels, add a channel axis: "
      "image[..., tf.newaxis]."
    )
  if not ways:
    of_three = ", or apply the layer to three channels: image[..., :3]" if (shape[-1] or 0) > 4 else ""
    ways.append(f"Use a function of your own in place of the layer{of_three}.")
  return " ".join(ways)


def looks_like_volume_of_channels(shape):
  """Whether a clip of this shape is probably a volume whose channels come first: few frames of many channels."""
  return len(shape) == 4 and None not in (shape[0], shape[-1]) and shape[0] <= 4 < shape[-1]


def checked_whole(what, value, least, most, advice):
  """Returns `value` as a Python integer; raises unless it is a whole number from `least` to `most`."""
  is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not is_whole or not least <= value <= most:
    raise (ValueError if is_whole else TypeError)(
      f"{what} must be a whole number from {least} to {most:,}, got {value!r}. {advice}"
    )
  return operator.index(value)


def checked_fill(what, value):
  """Returns a list of one whole number from 0 to 255, for all channels, or of three; raises unless `value` is that."""
  values = list(value) if isinstance(value, (list, tuple)) else [value]
  if len(values) not in (1, 3):
    raise ValueError(
      f"{what} must be one whole number, or three, got {value!r}. Leave it out for black, or pass one for each channel."
    )
  return [checked_whole(what, each, 0, 255, "Leave it out for black.") for each in values]


def checked_real(what, value, least, most, advice, form="a number"):
  """Returns `value` as a float; raises unless it is a real number from `least` to `most`."""
  if not is_real(value) or not least <= value <= most:
    raise (ValueError if is_real(value) else TypeError)(
      f"{what} must be {form} from {least:,} to {most:,}, got {value!r}. {advice}"
    )
  return float(value)


def checked_probability(whose, p, advice):
  """Returns `p` as a float; raises unless it is a probability."""
  return checked_real(f"p of {whose}", p, 0, 1, advice, form="a probability, a real number")


def is_pair(values):
  """Whether `values` is a list or tuple of two real numbers."""
  return isinstance(values, (list, tuple)) and len(values) == 2 and all(map(is_real, values))


def check_is_one(image, whose):
  """Raises ValueError for a tuple of images, which TensorFlow would stack into a batch."""
  if isinstance(image, tuple) and not hasattr(image, "_fields"):
    raise ValueError(
      f"image of {whose} must be one tensor, got a tuple of {len(image)}. For a model with several inputs, make a dict "
      'in Dataset.map first, {"image": first, "second": second}. Then pass targets={"second": "image"} to refurbish or '
      'compose if the second is to be augmented like the first, "mask" if it follows by its nearest pixels, or None if '
      "it stays as it is."
    )


def checked_batch(images, whose, advice):
  """Returns `images` as a tensor of four dimensions; raises unless it can be a batch of images."""
  check_is_one(images, whose)
  images = dense(images)
  if images.shape.rank is None:
    images = of_rank(
      images, 4, "[batch, height, width, channels], as after .batch(...),", "images.set_shape([None] * 4)"
    )
  if images.shape.rank != 4:
    raise ValueError(
      f"images of {whose} must be [batch, height, width, channels], got shape {images.shape}. {advice} Add a channel "
      "axis to images that have none: images[..., tf.newaxis]."
    )
  return images


def dense(image):
  """The image, or the batch, as a tensor; raises if it is ragged or sparse."""
  if isinstance(image, (tf.RaggedTensor, tf.SparseTensor)):
    raise TypeError(
      f"image must be a dense tensor, got a {type(image).__name__}. Resize the images to one size in Dataset.map, "
      "before .batch(...), or convert the tensor there: image.to_tensor()."
    )
  return tf.convert_to_tensor(image)


def of_known_rank(image):
  """The image as a tensor. One of unknown rank is taken for a single image, not for a batch."""
  image = dense(image)
  if image.shape.rank is not None:
    return image
  return of_rank(image, 3, "[height, width, channels]", "tf.ensure_shape(image, [None, None, None, 3]) for a clip")


def of_rank(tensor, rank, form, way):
  """Sets the rank of a tensor that is not known while tracing; raises at run time if it has another."""
  told = (
    f"It must be {form} if its rank is unknown while tracing, such as after tf.numpy_function. Otherwise, set its "
    f"shape in Dataset.map first: {way}. Got shape:"
  )
  tensor = checked_when_it_runs(tensor, tf.equal(tf.rank(tensor), rank), told, tf.shape(tensor))
  tensor.set_shape([None] * rank)
  return tensor


def checked_range(whose, name, values, highest, advice="Leave it out for Inception's range."):
  """Returns `values` as two floats; raises unless they are above 0, at most `highest` and in order."""
  low, high = map(float, values) if is_pair(values) else (0.0, 0.0)
  # The op treats smaller numbers, which are denormal, as 0.
  if not sys.float_info.min <= low <= high <= highest or math.isinf(high):
    bound = "" if highest == math.inf else f" and at most {highest}"
    raise (ValueError if is_pair(values) else TypeError)(
      f"{name} of {whose} must be two numbers above 0{bound}, the smaller one first, got {values!r}. {advice}"
    )
  return low, high


def checked_around(what, value, middle, lowest, highest, most):
  """Returns `value` as a range; a number from 0 to `most` means a range around `middle`, the value of no change."""
  is_number = is_real(value)
  low, high = (max(lowest, middle - value), middle + value) if is_number else value if is_pair(value) else (1, 0)
  if not lowest <= low <= high <= highest or is_number and not 0 <= value <= most:
    raise (ValueError if is_number or is_pair(value) else TypeError)(
      f"{what} must be a number from 0 to {most:,}, or two from {lowest:,} to {highest:,}, the smaller one first, got "
      f"{value!r}. Pass 0 for no change."
    )
  return float(low), float(high)


def ends_of(value):
  """The two ends of a range; a single value is both."""
  return value if isinstance(value, (list, tuple)) and len(value) == 2 else (value, value)


def check_ordered(what, low, high):
  """Raises ValueError unless the first end of a range is not above the second."""
  if low > high:
    raise ValueError(f"{what} must be a range with the smaller end first, got ({low!r}, {high!r}). Swap the two.")
