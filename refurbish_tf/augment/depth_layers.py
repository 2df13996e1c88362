"""Layers along the first axis of a volume, its depth, or of a clip, its time."""

from typing import Any

import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings
from .layers import checked_probability, checked_seed, checked_when_it_runs, checked_whole
from .layers import looks_like_volume_of_channels, of_rank, way_to_channels
from .target_kinds import shown

_LARGEST_DEPTH = 65_535
# This algorithm draws the same numbers on every device.
_ALGORITHM = "philox"


def random_depth_crop(size: int) -> Any:
  """Returns a layer that keeps `size` consecutive slices of a volume, or frames of a clip, from a random position.

  >>> volume = tf.reshape(tf.range(6), [6, 1, 1, 1])
  >>> rtf.augment.random_depth_crop(3)(volume, seed=[7, 0]).numpy().ravel().tolist()
  [3, 4, 5]
  >>> patch = [rtf.augment.random_depth_crop(32), rtf.augment.random_crop((64, 64))]
  >>> rtf.augment.compose(patch, clips=True)(tf.zeros([48, 96, 96, 1]), seed=[7, 0]).shape
  TensorShape([32, 64, 64, 1])

  With `random_crop` after it, it is MONAI's `RandSpatialCrop` with `random_size=False`. All positions are equally
  likely. Put it first in its list, so that later layers have less to do. Every declared target loses the same slices.

  Args:
    size: the number of slices to keep, a whole number from 1 to 65,535.

  Returns:
    A function `layer(image, seed)` of a volume `[depth, height, width, channels]` of any dtype, and an int32 or int64
    seed `[2]`. In a list of layers, `compose` and `split` need `clips=True`; `refurbish` needs nothing.

  Raises:
    TypeError, ValueError: `size` is not a whole number, or out of range. When the layer is called: the image does not
      have four dimensions, or has too few slices. If only a run shows this, `tf.errors.InvalidArgumentError`.
  """
  advice = "Pass a number of slices, such as 64."
  return _DepthCrop(checked_whole("size of random_depth_crop", size, 1, _LARGEST_DEPTH, advice))


def random_depth_flip(p: float = 0.5) -> Any:
  """Returns a layer that reverses the slices of a volume, or the frames of a clip, with probability `p`.

  >>> volume = tf.reshape(tf.range(4), [4, 1, 1, 1])
  >>> rtf.augment.random_depth_flip(p=1)(volume, seed=[7, 0]).numpy().ravel().tolist()
  [3, 2, 1, 0]

  Together with `random_flip("horizontal_and_vertical")` it mirrors all three axes of a volume, each with probability
  1/2. Every declared target is reversed with the image. In a target of the kind `"vectors"` with x, y and z, a flip
  also changes the sign of z, which points along the depth of a volume.

  Args:
    p: the probability of a flip, a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_depth_crop` returns.

  Raises:
    TypeError, ValueError: `p` is not a real number from 0 to 1.
  """
  return _DepthFlip(checked_probability("random_depth_flip", p, "Pass 0.5 to flip half of the volumes."))


class DepthLayer:
  """A layer that selects slices of the image and of its targets."""

  moves_pixels = True

  def __call__(self, image, seed):
    return self.with_targets(image, [], seed)[0]

  @tf.autograph.experimental.do_not_convert
  def with_targets(self, image, targets, seed):
    """Returns the image and a list of its targets. `targets`: triples of a path, a kind and a tensor."""
    image, seed = tf.convert_to_tensor(image), checked_seed(seed, self.__name__)
    form = "[depth, height, width, channels]"
    if image.shape.rank is None:
      image = of_rank(image, 4, form, "tf.ensure_shape(image, [None, None, None, 1])")
    if image.shape.rank != 4:
      must, way = f"be a volume {form}, or a clip", way_to_channels(image.shape)
      if image.shape.rank == 5:
        must, way = f"be one volume {form}", "Put the layer before batch."
      raise ValueError(f"image of {self.__name__} must {must}, got shape {image.shape}. {way}")
    if looks_like_volume_of_channels(image.shape):
      pipeline_warnings.warn(
        f"image of {self.__name__} has the shape {image.shape}, which is read as {form}. "
        f"{way_to_channels(image.shape)} If the shape is right, silence this: {pipeline_warnings.SILENCE}."
      )
    chosen = self._chosen(tf.shape(image)[0], image.shape[0], seed)
    return chosen(image), [self._followed(chosen, image, *target) for target in targets]

  def _followed(self, chosen, image, path, kind, tensor):
    sides, of_image = tf.shape(tensor)[:3], tf.shape(image)[:3]
    is_alike = tf.reduce_all(tf.equal(sides, of_image)) if tensor.shape.rank in (3, 4) else False
    if kind == "unnamed":
      told = (
        f"The component {shown(path)} has the sides of the volume, but `targets` does not name it. Name it there as a "
        "'mask', or as None if it stays as it is. Got its sides:"
      )
      return checked_when_it_runs(tensor, tf.logical_not(is_alike), told, sides)
    told = (
      f"targets: the component {shown(path)} must have one part for each slice of its volume, or frame of its clip. "
      "Got the numbers of its parts and of the slices:"
    )
    tensor = checked_when_it_runs(tensor, tf.equal(sides[0], of_image[0]), told, sides[0], of_image[0])
    return chosen(tensor, is_vectors=kind == "vectors")


class _DepthCrop(DepthLayer):
  def __init__(self, size):
    self.__name__, self._size = "random_depth_crop", size

  def __repr__(self):
    return f"{self.__name__}({self._size})"

  def _chosen(self, depth, known_depth, seed):
    must = f"image of {self.__name__} must have at least {self._size} slices"
    way = "Pass a smaller size, or pad the volumes first, for example with MONAI's SpatialPad."
    if known_depth is not None and known_depth < self._size:
      raise ValueError(f"{must}, got {known_depth}. {way}")
    depth = checked_when_it_runs(depth, depth >= self._size, f"{must}. {way} Got:", depth)
    begin = tf.random.stateless_uniform([], seed, maxval=depth - self._size + 1, dtype=tf.int32, alg=_ALGORITHM)

    def chosen(tensor, is_vectors=False):
      del is_vectors
      made = tensor[begin : begin + self._size]
      made.set_shape([self._size, *tensor.shape[1:]])
      return made

    return chosen


class _DepthFlip(DepthLayer):
  def __init__(self, p):
    self.__name__, self._p = "random_depth_flip", p

  def __repr__(self):
    return f"{self.__name__}(p={self._p:g})"

  def _chosen(self, depth, known_depth, seed):
    del known_depth
    flips = tf.random.stateless_uniform([], seed, alg=_ALGORITHM) < self._p
    order = tf.where(flips, tf.range(depth - 1, -1, -1), tf.range(depth))

    def chosen(tensor, is_vectors=False):
      made = tf.gather(tensor, order)
      if is_vectors:
        # Three channels are x, y and z; any other number of channels is pairs of x and y.
        channels = tf.shape(tensor)[-1]
        is_turned = flips & tf.equal(channels, 3) & tf.equal(tf.range(channels), 2)
        made *= tf.where(is_turned, tf.cast(-1, made.dtype), tf.cast(1, made.dtype))
      made.set_shape(tensor.shape)
      return made

    return chosen
