"""Decoding as the first layer of a partial augmentation: decodes only the random crop of a photograph."""
from __future__ import annotations

import math
from typing import Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import native
from .final_layers import random_resized_crop
from .layers import checked_range
from .layers import checked_seed


def decode_and_crop(
    scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3)) -> Callable[..., tf.Tensor]:
  """Returns a layer that decodes only a random part of a JPEG file.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> file = tf.io.encode_jpeg(tf.zeros([300, 400, 3], tf.uint8))
  >>> resize = lambda image: tf.cast(tf.image.resize(image, [224, 224]) + 0.5, tf.uint8)
  >>> layers = [augment.decode_and_crop(), resize, *augment.rand_augment(), augment.random_crop(4),
  ...           augment.random_flip()]
  >>> partial_fn, final_fn = augment.split(layers, at=3)
  >>> train = tf.data.Dataset.from_tensors((file, 1)).refurbish(partial_fn, final_fn, r=3, seed=7)
  >>> train.element_spec[0].shape
  TensorShape([224, 224, 3])

  With `rtf.sources.image_folder(directory)` in place of `from_tensors` this is the pipeline for a directory of
  photographs.

  The window has a random share of the image's area and a random aspect ratio, uniform in its logarithm, at a random
  place. Up to ten are drawn until one fits into the image; if none fits, the layer takes the largest window in the
  middle of the image whose aspect ratio is allowed. It does not resize: put `tf.image.resize`, or another layer that
  gives all images one size, next.

  Args:
    scale: the least and the largest share of the image's area, above 0 and at most 1.
    ratio: the least and the largest aspect ratio, width divided by height, above 0.

  Returns:
    A function `layer(file, seed)` of the bytes of a JPEG file, string `[]`, and a seed, int32 or int64 `[2]` as for
    `tf.random.stateless_uniform`. It returns uint8 `[height, width, 3]`, of a size that differs from call to call, the same
    for the same file and seed. It raises `TypeError` for another dtype and `ValueError` for another shape, and
    `tf.errors.InvalidArgumentError`, when it runs, for a damaged file or one that is not a JPEG: for PNG, GIF and BMP
    use `tf.io.decode_image(file, channels=3, expand_animations=False)`.

  Raises:
    TypeError: `scale` or `ratio` is not a pair of real numbers.
    ValueError: they are not in order, or beyond what is allowed.

  Implements the random crop of Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, section 6, by
  `tf.io.decode_and_crop_jpeg`. It is the first layer that Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021,
  section 7.1, put into the partial augmentation for ImageNet.
  """
  scale, ratio = checked_range("decode_and_crop", "scale", scale, 1), checked_range("decode_and_crop", "ratio", ratio, math.inf)
  # Only its window is used, so its size does not matter.
  crop = random_resized_crop(1, scale, ratio).described(-1)

  @tf.autograph.experimental.do_not_convert
  def decode_part(file, seed):
    file, seed = _checked_file(file), checked_seed(seed, "decode_and_crop")
    check = tf.debugging.Assert(tf.io.is_jpeg(file), [
        "file of decode_and_crop must be a JPEG file. For PNG, GIF and BMP use tf.io.decode_image(file, channels=3, "
        "expand_animations=False) instead; TensorFlow decodes no other formats. Got bytes that begin with",
        # As text, which a message must be.
        tf.strings.unicode_transcode(tf.strings.substr(file, 0, 8), "UTF-8", "UTF-8")])
    with tf.control_dependencies([] if check is None else [check]):
      shape = tf.io.extract_jpeg_shape(file)
    window = native.ops().refurbish_tf_resized_crop_box(shape=shape, seed=seed, layers=crop)
    return tf.ensure_shape(tf.io.decode_and_crop_jpeg(file, window, channels=3), [None, None, 3])

  return decode_part


def _checked_file(file):
  file = tf.convert_to_tensor(file)
  if file.dtype != tf.string:
    raise TypeError(
        f"file of decode_and_crop must be the bytes of a JPEG file, a string, got dtype {file.dtype.name}. Put it "
        "first, before anything else that decodes; for decoded images use random_resized_crop.")
  if not file.shape.is_compatible_with([]):
    raise ValueError(
        f"file of decode_and_crop must be a single one, of shape [], got {file.shape}. Put the layer before batch.")
  return tf.ensure_shape(file, [])
