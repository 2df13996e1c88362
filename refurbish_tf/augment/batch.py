"""Crop, flip and normalisation of a whole batch at once, for use after `batch`."""
from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import mistakes
from . import final_layers, layers
from .composition import image_of, with_image
from .native_layers import LayerChain
from .targets import Following
from .unnamed_targets import OTHERWISE


def random_crop_and_flip_batch(
    padding: int, mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None, *,
    max_pixel_value: float | None = None) -> Callable[..., Any]:
  """Returns a function that crops, flips and normalises a batch of images, each in its own random way.

  >>> images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  >>> batched = rtf.augment.random_crop_and_flip_batch(4, mean=[0.491, 0.482, 0.447], std=[0.247, 0.243, 0.262])
  >>> train = images.refurbish([rtf.augment.rand_augment()], r=3).batch(4)
  >>> train.map(batched, tf.data.AUTOTUNE).element_spec[0]
  TensorSpec(shape=(None, 32, 32, 3), dtype=tf.float32, name=None)

  It is `compose([random_crop(padding=...), random_flip(), normalize(mean, std)])`, except that the seed may be left out. On
  a batch it takes a fraction of the time, as an operation's cost before it touches a pixel is the same for many images
  as for one. So it is the right final augmentation for small images: `refurbish(partial_fn, None,
  r).batch(B).map(batched)`.

  `refurbish` gives no seed to functions behind it. Without a seed this function draws other numbers in each epoch and
  each run. `tf.random.set_seed` does not change that, because in `Dataset.map` it would make all epochs draw the same
  numbers. For reproducible runs, and if the iterator is saved in a checkpoint (`BackupAndRestore`), which cannot hold the
  state of such draws, give it one seed a batch:

  >>> seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)
  >>> train = tf.data.Dataset.zip(train, seeds).map(lambda batch, seed: batched(*batch, seed=seed))

  Args:
    padding: a whole number of pixels, from 0 to 16,383, as for `random_crop`.
    mean: a real number, or one for each channel; None to leave the images' values as they are.
    std: likewise, and above 0. There must be both or none.
    max_pixel_value: as for `normalize`.

  Returns:
    A function that is called as `Dataset.map` calls its own, `fn(images, *rest, seed=None)`, with images
    `[batch, height, width, channels]` as for `random_crop`, sizes known while tracing or not, and a seed, int32 or int64
    `[2]` as for `tf.random.stateless_uniform`. It returns the images with the same shape and dtype, or with `mean` and
    `std` float32 as `normalize` does, including the black pixels from outside the image. It treats the
    rest, and a dict in place of the images, as `compose` does. It raises `TypeError` for another dtype and `ValueError`
    for another shape. Its two steps are `draws(seed, batch_size)` and `pixels(images, draws)`, as for `random_crop`.

  Raises:
    TypeError: `padding` is not a whole number, or `mean` or `std` does not consist of real numbers.
    ValueError: `padding` is negative or above 16,383, there is one of `mean` and `std` only, or `normalize` refuses them.

  Implements the final augmentation of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 7.1.
  """
  whose = "random_crop_and_flip_batch"
  drawn = [final_layers.random_crop(padding=layers.checked_padding(padding, whose)), final_layers.random_flip()]
  if (mean is None) != (std is None):
    raise ValueError(
        f"mean and std of {whose} must both be given, or neither, got mean={mean!r} and std={std!r}. Pass mean=0 or "
        "std=1 to leave one out.")
  if mean is None and max_pixel_value is not None:
    raise ValueError(
        f"max_pixel_value of {whose} must come with mean and std, got {max_pixel_value!r} alone. Pass mean=0 and std=1 to divide only.")
  if mean is not None:
    drawn.append(final_layers.normalize(mean, std, max_pixel_value=max_pixel_value))
  chain = LayerChain([(layer, position) for position, layer in enumerate(drawn)], whose, clips=False)
  return _BatchFunction(chain, whose)


class _BatchFunction:
  """Layers as a function of a batch, with or without a seed. A class, so that it can be pickled."""

  def __init__(self, chain, whose):
    self.__name__ = whose
    self._chain, self.draws, self.pixels = chain, chain.draws, chain.pixels

  @tf.autograph.experimental.do_not_convert
  def __call__(self, images, *rest, seed=None):
    element = images
    images = layers.checked_batch(
        image_of(element), self.__name__, "Put it after batch, and use random_crop and random_flip before it.")
    if seed is None:
      seed = layers.new_seed()
    in_its_place = "rtf.augment.compose([random_crop(...), random_flip(), normalize(...)], targets=...)"
    try:
      following = Following(None, element, rest, images, moves=True, way_out=(
          f"use {in_its_place} in place of {self.__name__}; {OTHERWISE}, silence this: {mistakes.SILENCE}."))
    except ValueError as error:
      raise ValueError(f"{self.__name__} moves images alone: in its place use {in_its_place}. {error}") from None
    images = following.through_layer(self._chain, images, seed)
    return following.beside(with_image(element, images))
