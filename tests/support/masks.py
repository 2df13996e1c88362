"""Images with masks, and a check that a mask still fits its image."""

import collections

import numpy as np
import tensorflow as tf

ALL_DTYPES = [tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64]
# Blurs and interpolation in several layers may mix colours this far from an edge.
_MIXED = 4


def _pairs():
  """40 images of four rectangles, each of one colour, and masks with the rectangles' numbers from 1."""
  generator, images, masks = np.random.default_rng(5), [], []
  for _ in range(40):
    y, x = generator.integers(14, 50, 2)
    mask = np.repeat(np.repeat([[1, 2], [3, 4]], [y, 64 - y], axis=0), [x, 64 - x], axis=1)
    colours = generator.permuted(np.linspace(10, 250, 4).astype(np.uint8)[:, np.newaxis].repeat(3, 1), axis=0)
    images.append(colours[mask - 1])
    masks.append(mask[..., np.newaxis].astype(np.int32))
  return np.stack(images), np.stack(masks)


PAIRS = IMAGES, MASKS = _pairs()
SOURCE = tf.data.Dataset.from_tensor_slices((IMAGES, MASKS, np.arange(len(IMAGES))))


def aligned(image, mask, share=1.0):
  """Returns whether each part of the mask, or `share` of it, has one colour in the image, except for edges and regions
  that were cut out."""
  mask = mask[..., 0]
  assert image.shape[:2] == mask.shape
  shifts = [shift for shift in range(-_MIXED, _MIXED + 1) if shift]
  inner = np.all([np.roll(mask, shift, axis) == mask for shift in shifts for axis in (0, 1)], axis=0)
  image = image @ [1, 256, 65536]
  parts = [collections.Counter(image[inner & (mask == number)].tolist()) for number in range(1, 5)]
  cut_out = set().union(*(part for part in parts if len(part) > 1))
  return any(all(_is_one(part, hole, share) for part in parts) for hole in cut_out or {None})


def _is_one(colours, hole, share):
  counts = [count for colour, count in colours.items() if colour != hole]
  return not counts or max(counts) >= share * sum(counts)
