"""Images of all kinds, to check where each pixel of a moved image comes from."""

import numpy as np
import tensorflow as tf

from support import cases

DTYPES, CHANNELS = (np.uint8, np.uint16, np.int16, np.float32), (1, 2, 3, 4, 5, 13, 64)


def noise(dtype, *shape):
  generator = np.random.default_rng(sum(shape))
  if dtype == np.float32:
    return generator.normal(size=shape).astype(np.float32)
  return generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape, dtype)


def taken(image, sources, fill=0):
  """Returns the pixels with these numbers, counted row by row from 1; `fill` for 0."""
  height, width, channels = image.shape
  flat = np.concatenate([np.full([1, channels], fill, image.dtype), image.reshape(height * width, channels)])
  return flat[np.asarray(sources)]


def check_pixels(layer, draws, size, sources, fill=0):
  """Checks that a layer moves pixels as a rival does: images of all kinds, alone and in batches, and maps that follow
  them."""
  draws = np.int32(draws)
  sources = np.where(np.asarray(sources) == fill, 0, sources)
  kinds = (
    [(np.uint8, channels) for channels in (1, 3, 4)]
    if fill
    else [(dtype, channels) for dtype in DTYPES for channels in cases.some(CHANNELS, 2)]
  )
  for dtype, channels in kinds:
    image = noise(dtype, *size, channels)
    expected = taken(image, sources, fill)
    np.testing.assert_array_equal(layer.pixels(image, draws), expected, err_msg=f"{dtype} {channels}")
    pair = np.stack([image, image[::-1, ::-1]])
    np.testing.assert_array_equal(layer.pixels(pair, np.stack([draws] * 2))[0], expected)
  image, depth = np.zeros([*size, 3], np.uint8), np.random.default_rng(3).random([*size, 2])
  for moved in followers(layer, draws, image, ("mask", depth), ("bilinear", depth)):
    np.testing.assert_array_equal(moved, taken(depth, sources))


def followers(layer, draws, image, *targets):
  """Returns the targets, given as pairs of kind and value, after a layer with these draws."""
  _, moved = layer._chain._made(
    tf.constant(image), tf.constant(draws, tf.int32), [("it", kind, tf.constant(value)) for kind, value in targets]
  )
  return [each.numpy() for each in moved]
