"""Crop, flip and normalisation of a whole batch at once, for use after `batch`."""
from __future__ import annotations

import numbers
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from . import layers
from .composition import image_of
from .composition import with_image
from .images import sizes


def random_crop_and_flip_batch(
    padding: int, mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None) -> Callable[..., Any]:
  """Returns a function that crops, flips and normalises a batch of images, each in its own random way.

  >>> import tensorflow as tf
  >>> import refurbish_tf as rtf
  >>> images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  >>> batched = rtf.augment.random_crop_and_flip_batch(4, mean=[0.491, 0.482, 0.447], std=[0.247, 0.243, 0.262])
  >>> partial_fn = rtf.augment.compose([rtf.augment.rand_augment_layer(9)])
  >>> train = images.refurbish(partial_fn, None, r=3).batch(4)
  >>> train.map(batched, tf.data.AUTOTUNE).element_spec[0]
  TensorSpec(shape=(None, 32, 32, 3), dtype=tf.float32, name=None)

  It is what `random_crop(padding)`, `random_flip()` and the normalisation make of each image, in distribution, and
  takes a fraction of their time: operations cost the same for many images as for one, before they touch a pixel. So it
  is the right final augmentation where images are small: `refurbish(partial_fn, None, r).batch(B).map(batched)`.

  `refurbish` gives no seed to what comes after it, and without one the function draws anew in each epoch and each run.
  `tf.random.set_seed` does not change that, because in `Dataset.map` it would make all epochs draw the same. For
  reproducible runs, and where the iterator is saved in a checkpoint (`RestoreDataset`), which cannot hold such draws, give
  it one seed a batch:

  >>> seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)
  >>> train = tf.data.Dataset.zip(train, seeds).map(lambda batch, seed: batched(*batch, seed=seed))

  Args:
    padding: a whole number of pixels, from 0 to 16,383, as for `random_crop`. The padded batch must have less than 2**31
      values, else TensorFlow says that it is too large for its indices.
    mean: a real number, or one for each channel, of the images' values divided by 255; None to leave them as they are.
    std: likewise, and above 0. There must be both or none.

  Returns:
    A function that is called as `Dataset.map` calls its own, `fn(images, *rest, seed=None)`, with uint8 images
    `[batch, height, width, channels]`, sizes known while tracing or not, and a seed, int32 or int64 `[2]` as for
    `tf.random.stateless_uniform`. It returns the images with the same shape, uint8, or with `mean` and `std`
    float32 `(images / 255 - mean) / std`; what was black outside an image, too. The rest, and a dict in place of the
    images, it treats as `compose` does. It raises `TypeError` for another dtype and `ValueError` for another shape.

  Raises:
    TypeError: `padding` is not a whole number, or `mean` or `std` does not consist of real numbers.
    ValueError: `padding` is negative or above 16,383, there is one of `mean` and `std` only, `mean` is not from 0 to 1,
      or `std` is not above 0 and at most 1.

  Implements the final augmentation of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 7.1.
  """
  whose = "random_crop_and_flip_batch"
  padding = layers.checked_padding(padding, whose)
  normalisation = _checked_normalisation(mean, std)

  @tf.autograph.experimental.do_not_convert
  def crop_and_flip(images, *rest, seed=None):
    element = images
    images = _checked_images(image_of(element), whose)
    places = 2 * padding + 1
    batch_size = tf.shape(images)[0]
    # One draw for the three of an image.
    if seed is None:
      # Not `tf.random.uniform`, which after `tf.random.set_seed` begins anew with each iterator.
      draws = tf.raw_ops.RandomUniformInt(shape=[batch_size], minval=0, maxval=2 * places**2)
    else:
      draws = layers.draw([batch_size], 2 * places**2, layers.checked_seed(seed, whose))
    images = cropped_and_flipped(images, padding, draws // (2 * places), draws // 2 % places, draws % 2)
    if normalisation is not None:
      images = _normalised(images, *normalisation)
    element = with_image(element, images)
    return (element, *rest) if rest else element

  return crop_and_flip


def cropped_and_flipped(images, padding, y, x, flip):
  """Returns the images, padded and then cropped at int32 `[batch]` places `y` and `x`, mirrored where `flip` is 1.

  Pixels are looked up in the padded batch as a list of them all. `gather` takes almost twice as long for that as
  `gather_nd`, and `pad` three times as long where the innermost dimension is that of the channels.
  """
  batch_size, height, width, channels = sizes(images)
  rows = tf.reshape(images, [batch_size, height, width * channels])
  padded = tf.pad(rows, [[0, 0], [padding, padding], [padding * channels, padding * channels]])
  padded_height, padded_width = height + 2 * padding, width + 2 * padding
  row = (tf.range(batch_size) * padded_height + y)[:, tf.newaxis] + tf.range(height)
  column = (x + flip * (width - 1))[:, tf.newaxis] + (1 - 2 * flip)[:, tf.newaxis] * tf.range(width)
  place = (row * padded_width)[:, :, tf.newaxis] + column[:, tf.newaxis]
  cropped = tf.gather_nd(tf.reshape(padded, [-1, channels]), place[..., tf.newaxis])
  return tf.ensure_shape(cropped, images.shape)


def _normalised(images, mean, std):
  known = images.shape[3]
  if known is not None and len(mean) not in (1, known):
    raise ValueError(
        f"random_crop_and_flip_batch was given mean and std of {len(mean)} channels and images of {known}; there "
        "must be as many. Pass one number for all channels, or one for each.")
  _, _, width, channels = shape = sizes(images)
  # In rows: to broadcast along the few channels takes four times as long.
  scale, shift = (
      tf.tile(tf.broadcast_to(values, [channels]), [width])
      for values in (np.float32(1 / (255 * std)), np.float32(mean / std)))
  rows = tf.cast(tf.reshape(images, [-1, width * channels]), tf.float32)
  return tf.ensure_shape(tf.reshape(rows * scale - shift, shape), images.shape)


def _checked_images(images, whose):
  images = tf.convert_to_tensor(images)
  if images.dtype != tf.uint8:
    raise TypeError(
        f"{whose} was given images of dtype {images.dtype.name}; they must be uint8. Put it before any conversion to "
        "float: it can normalise, too, with mean and std.")
  if not images.shape.is_compatible_with([None] * 4):
    raise ValueError(
        f"{whose} was given images of shape {images.shape}; they must be [batch, height, width, channels]. Put it "
        "after batch, and use random_crop and random_flip before it.")
  return tf.ensure_shape(images, [None] * 4)


def _checked_normalisation(mean, std):
  if mean is None and std is None:
    return None
  if mean is None or std is None:
    raise ValueError(
        f"random_crop_and_flip_batch was given mean={mean!r} and std={std!r}; there must be both or none. Pass mean=0 "
        "or std=1 to leave one out.")
  checked = []
  for name, values in (("mean", mean), ("std", std)):
    channels = np.atleast_1d(values).tolist() if isinstance(values, (np.ndarray, np.number)) else values
    channels = channels if isinstance(channels, (list, tuple)) else [channels]
    if not channels or not all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in channels):
      raise TypeError(
          f"random_crop_and_flip_batch was given {name}={values!r}; it must be a real number, or a list of one for "
          "each channel. Pass Python numbers, such as 0.5.")
    checked.append(np.asarray(channels, np.float64))
  mean, std = checked
  if not ((mean >= 0) & (mean <= 1)).all():
    raise ValueError(
        f"random_crop_and_flip_batch was given mean={mean.tolist()}; it must be from 0 to 1, the mean of values divided by "
        "255. Divide a mean of 0 to 255, and its std, by 255.")
  if not ((std > 0) & (std <= 1)).all():
    raise ValueError(
        f"random_crop_and_flip_batch was given std={std.tolist()}; it must be above 0 and at most 1, of values divided by "
        "255. Divide a std of 0 to 255 by 255, and pass 1 for a channel that is not to be scaled.")
  if 1 not in (len(mean), len(std)) and len(mean) != len(std):
    raise ValueError(
        f"random_crop_and_flip_batch was given mean of {len(mean)} and std of {len(std)} channels; there must be as "
        "many. Pass one number for all channels, or one for each.")
  return np.broadcast_arrays(mean, std)
