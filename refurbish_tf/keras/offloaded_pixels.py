"""Finishes the pixels of a batch on an accelerator, in `keras.ops` alone, with the same bytes as the host.

Every image has its own draws, but the program does not branch on them: policies are one formula with a row of numbers
for each image; see offloaded_rows.py. The only switch is on how many images still need the policy layers. A pixel is
one int32, red + 256 * green + 65536 * blue: one index, one load and one thread for three values.

Images are combined only within groups of `GROUP`, and each look-up has an axis for the images or the groups. So devices
need not exchange pixels of a sharded batch. Each floating-point value is rounded only once, and compilers can neither
skip nor move this rounding.
"""

import functools
import itertools

from keras import ops
import numpy as np

from refurbish_tf.augment.device_layers import GROUP
from . import offloaded_rows
from .offloaded_rows import AUTO_CONTRAST, BASE, FILL, GREY, MASK, MEAN_GREY, SMOOTHED, TABLE, THRESHOLD


def finish(device_layers, images, draws):
  """Applies the layers: uint8 `[n, H, W, 3]`, int32 `[n, 1 + draws]` -> uint8 `[n, H, W, 3]`, or normalize's dtype.

  Column 0 of the draws is 0 for images whose policy layers are already done.
  """
  count = ops.shape(images)[0]
  number = sum(layer.num_draws for layer in device_layers.layers[: device_layers.num_policy_layers])
  x, own = _packed(images), draws[:, 1 + number :]
  if device_layers.num_policy_layers:
    policies = _in_whole_groups(draws[:, : 1 + number])
    x = ops.switch(_which(policies[:, 0]), _branches(device_layers), _in_whole_groups(x), policies)[:count]
  x = _after(x, device_layers.layers[device_layers.num_policy_layers :], own)
  channels = ops.right_shift(ops.expand_dims(x, -1), np.array([0, 8, 16], np.int32)) & 255
  return without_draws(device_layers, channels)


# The fractions of a batch that the accelerator may do: every 8th image of each group, every 4th, every 2nd, or all.
_STRIDES = (8, 4, 2, 1)


def _which(todo):
  """0 if nothing is to do, otherwise the position in `_STRIDES`, from 1, of the least fraction that covers `todo`."""
  row = ops.arange(1, ops.shape(todo)[0] + 1, dtype="int32")
  beside = [ops.any(ops.logical_and(todo > 0, row % stride > 0)) for stride in _STRIDES[:-1]]
  return sum(ops.cast(each, "int32") for each in [ops.any(todo > 0), *beside])


def _branches(device_layers):
  """A function of images and draws for each value of `_which`."""
  layers = device_layers.layers[: device_layers.num_policy_layers]

  def branch(stride):
    def run(x, draws):
      _, height, width = x.shape
      x, draws = ops.reshape(x, (-1, stride, height, width)), ops.reshape(draws, (-1, stride, draws.shape[1]))
      todo = draws[:, -1, 0]
      done = _after(x[:, -1], layers, draws[:, -1, 1:], todo, GROUP // stride, device_layers.num_tables)
      return ops.reshape(ops.concatenate([x[:, :-1], ops.expand_dims(done, 1)], axis=1), (-1, height, width))

    return run

  return [lambda x, draws: x, *map(branch, _STRIDES)]


def _after(x, layers, draws, todo=None, group=0, num_tables=0):
  """int32 `[n, H, W]` after consecutive layers, which leave images with a `todo` of 0 unchanged.

  `group` consecutive images have `num_tables` tables.
  """
  placed, column = [], 0
  for layer in layers:
    if layer.kind != "normalize":  # `without_draws` normalizes.
      placed.append((layer, draws[:, column : column + layer.num_draws], todo))
    column += layer.num_draws
  after_policies = functools.partial(_after_policies, group=group, num_tables=min(group, num_tables))
  doing = {"policy": after_policies, "random_grayscale": _recolored, "random_solarize": _recolored}
  for do, run in itertools.groupby(placed, lambda each: doing.get(each[0].kind, _rearranged)):
    x = do(x, list(run))
  return x


def without_draws(device_layers, images):
  """Applies only what is not random, to whole numbers `[n, H, W, 3]`. Returns images like `finish`."""
  last = device_layers.layers[-1]
  if last.kind != "normalize":
    return ops.cast(images, "uint8")
  # (value / max_pixel_value - mean) / std, rounded as the host does.
  mean, std = (np.array(last.numbers(name)) for name in ("mean", "std"))
  unit = float(last.arguments.get("max_pixel_value", [255])[0])
  scale, offset = (ops.convert_to_tensor(np.float32(numbers)) for numbers in (1 / (unit * std), -mean / std))
  return ops.cast(_rounded(scale * ops.cast(images, "float32")) + offset, last.arguments["dtype"][0])


def dtype(device_layers):
  """The dtype of finished images."""
  last = device_layers.layers[-1]
  return last.arguments["dtype"][0] if last.kind == "normalize" else "uint8"


def _rounded(product):
  """The unchanged product, which no compiler can fuse with a sum: a fused multiply-add would round only once."""
  return ops.maximum(product, np.float32(-65536))


def _in_whole_groups(array):
  """The batch with images added at its end, to fill its last group."""
  count = array.shape[0]
  if count is not None and count % GROUP == 0:
    return array
  padded = ops.pad(array, [[0, GROUP - 1]] + [[0, 0]] * (len(array.shape) - 1))
  return padded[: (ops.shape(array)[0] + GROUP - 1) // GROUP * GROUP]


def _packed(images):
  """Packs the channels of each pixel into a number: uint8 `[n, H, W, 3]` -> int32 `[n, H, W]`."""
  x = ops.cast(images, "int32")
  return _joined([x[..., channel] for channel in range(3)])


def _joined(planes):
  return planes[0] + planes[1] * 256 + planes[2] * 65536


def _planes(x):
  return [ops.right_shift(x, shift) & 255 for shift in (0, 8, 16)]


def _each(numbers):
  """A number for each image, broadcastable to `[n, H, W]`."""
  return ops.reshape(numbers, (-1, 1, 1))


def _places(height, width):
  """The rows and the columns of the pixels of an image, broadcastable to `[n, H, W]`."""
  return (
    ops.reshape(ops.arange(height, dtype="int32"), (1, -1, 1)),
    ops.reshape(ops.arange(width, dtype="int32"), (1, 1, -1)),
  )


def _look_up(values, index):
  """`[k, values]` at int32 `[k, number]`: each row of `index` in its own row of `values`."""
  return ops.take_along_axis(values, index, axis=1)


def _taken(x, row, column, outside):
  """The pixels at these rows and columns, or `outside` for those that are not in the image."""
  _, height, width = x.shape
  in_row, in_column = ops.clip(row, 0, height - 1), ops.clip(column, 0, width - 1)
  pixels = _look_up(ops.reshape(x, (-1, height * width)), ops.reshape(in_row * width + in_column, (-1, height * width)))
  inside = ops.logical_and(in_row == row, in_column == column)
  return ops.where(inside, ops.reshape(pixels, (-1, height, width)), outside)


def _rearranged(x, run):
  """Applies consecutive crops, flips and cutouts: finds where each pixel comes from, from the last layer to the first.

  `run`: for each layer, the layer, its draws, and the `todo` of each image, None if it applies to all.
  """
  _, height, width = x.shape
  row, column = _places(height, width)
  hidden = None
  for layer, drawn, todo in reversed(run):
    number = [_each(drawn[:, k]) for k in range(layer.num_draws)]
    done = 1 if todo is None else _each(todo)
    if layer.kind == "random_flip":
      mode = layer.arguments.get("mode", ["horizontal"])[0]
      if mode != "vertical":
        column = ops.where(number[0] * done > 0, width - 1 - column, column)
      if mode != "horizontal":
        row = ops.where(number[-1] * done > 0, height - 1 - row, row)
      continue
    if layer.kind == "random_crop":
      padding = layer.number("padding")
      row, column = row + (number[0] - padding) * done, column + (number[1] - padding) * done
      outside = [ops.logical_or(place < 0, place >= size) for place, size in ((row, height), (column, width))]
      hides = ops.logical_or(*outside)
    else:
      # A larger side would hide no more, but sums could overflow.
      side = min(layer.number("side"), 2 * max(height, width))
      top, left = (_scaled(each, size) - side // 2 for each, size in zip(number, (height, width)))
      hides = ops.logical_and(
        ops.logical_and(row >= top, row < top + side * done), ops.logical_and(column >= left, column < left + side)
      )
    hidden = hides if hidden is None else ops.logical_or(hidden, hides)
  taken = _taken(x, row, column, 0)
  return taken if hidden is None else ops.where(hidden, 0, taken)


def _recolored(x, run):
  """Applies consecutive layers that each change colours with some probability. `run`: as in `_rearranged`."""
  for layer, drawn, todo in run:
    changes = drawn[:, 0] <= layer.number("below") - 1  # For a probability of 1 it is 2**31, too large for int32.
    if todo is not None:
      changes = ops.logical_and(changes, todo > 0)
    if layer.kind == "random_grayscale":
      made = _grey(_planes(x)) * 0x10101
    else:
      made = _joined([_solarized(value, layer.number("threshold")) for value in _planes(x)])
    x = ops.where(_each(changes), made, x)
  return x


def _grey(planes):
  red, green, blue = planes
  return ops.right_shift(19595 * red + 38470 * green + 7471 * blue + 32768, 16)


def _solarized(value, threshold):
  return ops.where(value >= threshold, value ^ 255, value)


def _scaled(fraction, size):
  """A fraction in units of 2**-31 of a size below 2**15, (fraction * size) >> 31, in 32 bits."""
  high, low = ops.right_shift(fraction, 16), fraction & 0xFFFF
  return ops.right_shift(high * size + ops.right_shift(low * size, 16), 15)


def _after_policies(x, run, group, num_tables):
  """Applies consecutive policy layers. `run`: as in `_rearranged`, with the same `todo` for all layers."""
  _, height, width = x.shape
  policies, drawn, (todo, *_) = zip(*run)
  ints, factors, first, edges = map(ops.convert_to_tensor, offloaded_rows.policy_rows(policies, height, width))
  below = ops.cast(ops.stack(drawn) >= ops.expand_dims(edges, 1), "int32")
  rows = (ops.sum(below, axis=-1) + ops.expand_dims(first, -1)) * ops.expand_dims(todo, 0)

  def distorted(layer, x):
    row = ops.take(rows, layer, axis=0)
    return layer + 1, _distorted(x, ops.take(ints, row, axis=0), ops.take(factors, row, axis=0), group, num_tables)

  # One program for all layers, and nothing is fused across them: on the CPU XLA would compute the first again for each
  # pixel that the second reads, which is ten to twenty times as slow.
  start = ops.convert_to_tensor(0, dtype="int32")
  return ops.while_loop(lambda layer, x: layer < len(policies), distorted, (start, x))[1]


def _distorted(x, ints, factors, group, num_tables):
  """Applies one distortion to each image of int32 `[n, H, W]`. `ints` and `factors` are the images' rows.

  At most `num_tables` of `group` consecutive images need a table.
  """
  _, height, width = x.shape
  whole = lambda k: _each(ints[:, k])
  row, column = _places(height, width)
  pixels = _taken(
    x,
    ops.right_shift(whole(3) * column + whole(4) * row + whole(5), 16),
    ops.right_shift(whole(0) * column + whole(1) * row + whole(2), 16),
    whole(FILL),
  )
  # Channels are packed again between the steps, so that a step keeps at most one array, not three.
  pixels = _joined([_solarized(value, whole(THRESHOLD)) & whole(MASK) for value in _planes(pixels)])
  if num_tables:
    tables = _image_tables(x, ints[:, TABLE], group, num_tables)
    places = [value + 256 * channel for channel, value in enumerate(_planes(ops.reshape(pixels, (-1, height * width))))]
    pixels = ops.reshape(_joined([_look_up(tables, place) for place in places]), (-1, height, width))
  values = _planes(pixels)
  grey = _grey(_planes(x))
  size = height * width
  mean = (2 * ops.sum(grey, axis=(1, 2), keepdims=True) + size) // (2 * size)
  inner = ops.logical_and(ops.logical_and(row > 0, row < height - 1), ops.logical_and(column > 0, column < width - 1))
  kind, factor = whole(BASE), _each(factors)
  flat = ops.where(kind == GREY, grey, ops.where(kind == MEAN_GREY, mean, 0))
  blended = []
  for value, smooth in zip(values, _smoothed(x) if min(height, width) > 2 else values):
    base = ops.where(kind == SMOOTHED, ops.where(inner, smooth, value), flat)
    difference = ops.cast(value - base, "float32")
    total = ops.cast(base, "float32") + _rounded(factor * difference)
    blended.append(ops.cast(ops.clip(total, 0.0, 255.0), "int32"))
  return _joined(blended)


def _smoothed(x):
  """Three planes: 3 x 3 neighbourhoods with weights 1 and 5, divided by 13; 0 at the edges."""
  _, height, width = x.shape
  sums = []
  for half in (x & 0xFF00FF, ops.right_shift(x, 8) & 0xFF):  # Two channels at a time: sums are below 2**12.
    total = 4 * half[:, 1:-1, 1:-1]
    for i in range(3):
      for j in range(3):
        total = total + half[:, i : i + height - 2, j : j + width - 2]
    sums.append(ops.pad(total, [[0, 0], [1, 1], [1, 1]]))
  # A rounded division by 13, as a product and a shift: exact for every sum up to 13 * 255.
  return [
    ops.right_shift((2 * total + 13) * 40330, 20) for total in (sums[0] & 0xFFFF, sums[1], ops.right_shift(sums[0], 16))
  ]


def _image_tables(x, kinds, group, num_tables):
  """int32 `[n, H, W]`, `[n]` kinds -> `[n, 768]`: a table for each channel, the identity for images that need none.

  Tables are made for the first `num_tables` of each `group` images that need one.
  """
  _, height, width = x.shape
  size = height * width
  place = ops.arange(group, dtype="int32")
  kinds = ops.reshape(kinds, (-1, group, 1))
  needed = ops.cast(kinds > 0, "int32")
  before = ops.cast(ops.reshape(place, (1, -1, 1)) < ops.reshape(place, (1, 1, -1)), "int32")
  slot = ops.expand_dims(ops.sum(before * needed, axis=1), -1)
  chosen = needed * ops.cast(slot == ops.arange(num_tables, dtype="int32"), "int32")
  image = ops.sum(chosen * ops.reshape(place, (1, -1, 1)), axis=1)
  index = ops.expand_dims(image * size, -1) + ops.arange(size, dtype="int32")
  some = _look_up(ops.reshape(x, (-1, group * size)), ops.reshape(index, (-1, num_tables * size)))
  tables = _tables(ops.reshape(some, (-1, num_tables, size)), ops.sum(chosen * kinds, axis=1))
  tables = ops.reshape(tables, (-1, 1, num_tables, 768))
  made = ops.sum(ops.expand_dims(chosen, -1) * tables, axis=2)
  return ops.reshape(ops.where(needed > 0, made, ops.arange(768, dtype="int32") & 255), (-1, 768))


def _tables(x, kinds):
  """The tables of images: int32 `[groups, num_tables, pixels]`, and kinds -> int32 `[groups, num_tables, 3, 256]`."""
  _, num_tables, size = x.shape
  every = ops.arange(256, dtype="int32")
  below = _counts_below(ops.stack(_planes(x), axis=2))
  # The tables of equalize.
  step = ops.max(ops.where(below < size, below, 0), axis=-1, keepdims=True) // 255
  spread = ops.minimum((below + step // 2) // ops.maximum(step, 1), 255)
  spread = ops.where(step > 0, spread, every)
  # The tables of auto-contrast. The counts also give the extreme values, without a second reduction over pixels.
  darkest = ops.sum(ops.cast(below == 0, "int32"), axis=-1, keepdims=True) - 1
  brightest = ops.sum(ops.cast(below < size, "int32"), axis=-1, keepdims=True) - 1
  span = brightest - darkest
  some = ops.maximum(span, 1)
  scaled = ops.clip(every - darkest, 0, span) * 255
  stretched = scaled // some
  errors, nearest = map(ops.convert_to_tensor, offloaded_rows.stretch_errors())
  error = lambda value: ops.cast(ops.take(errors, some * 256 + value, axis=0), "int32")
  low = ops.logical_and(
    stretched * some == scaled,
    2 * (error(every) - error(darkest)) < -ops.cast(ops.take(nearest, stretched, axis=0), "int32"),
  )
  stretched = ops.where(span > 0, stretched - ops.cast(low, "int32"), every)
  return ops.where(ops.reshape(kinds, (-1, num_tables, 1, 1)) == AUTO_CONTRAST, stretched, spread)


def _counts_below(values):
  """How many values are below 0 to 255: int32 `[groups, num_tables, 3, pixels]` -> `[groups, num_tables, 3, 256]`."""
  _, num_tables, channels, size = values.shape
  place = values + ops.reshape(ops.arange(num_tables * channels, dtype="int32") * 256, (1, num_tables, channels, 1))
  place = ops.reshape(place, (-1, num_tables * channels * size))
  # Vectorized over groups: with one index for all groups, devices would have to communicate.
  counts = ops.vectorized_map(
    lambda group: ops.segment_sum(ops.ones_like(group), group, num_segments=num_tables * channels * 256), place
  )
  counts = ops.reshape(counts, (-1, num_tables, channels, 256))
  return ops.cumsum(counts, axis=-1) - counts
