"""Distortions as rows of numbers: the parameters of the one formula by which the accelerator computes all of them.

A policy layer has a row for each of its outcomes. Images differ in the row that was drawn, but not in the formula, so a
batch needs no branch. In offloaded_pixels.py, a distortion is

    pixel   = the pixel at 16.16 fixed-point affine (x, y), or the fill colour outside
    value   = ((pixel >= threshold ? pixel ^ 255 : pixel) & mask), looked up in the image's table if it has one
    result  = clip(base + factor * (value - base)),  base: 0 | mean grey of the image | grey of the pixel | smooth pixel

and the row of a distortion makes the other parts of the formula do nothing.
"""

import collections
import functools
import math

import numpy as np

# The columns of `ints` after those of the affine map.
THRESHOLD, MASK, TABLE, BASE, FILL = range(6, 11)
# Kinds of tables, where 0 is no table, and kinds of bases, where 0 is black.
AUTO_CONTRAST, EQUALIZE = 1, 2
MEAN_GREY, GREY, SMOOTHED = 1, 2, 3

_TABLES = {"auto_contrast": AUTO_CONTRAST, "equalize": EQUALIZE}
_BASES = {"brightness": 0, "contrast": MEAN_GREY, "color": GREY, "sharpness": SMOOTHED}

# The rows of consecutive policy layers. `ints` int32 `[rows, 11]` and `factors` float32 `[rows]` begin with the
# identity; the outcomes of layer l begin at row `first[l]`. A draw selects the first outcome whose edge is above it;
# `edges` int32 `[layers, most outcomes]` is padded with a number that is never drawn.
PolicyRows = collections.namedtuple("PolicyRows", ["ints", "factors", "first", "edges"])


def policy_rows(policies, height, width):
  """The `PolicyRows` of layers of `DeviceLayers` for images of this size."""
  rows, first, edges = [_row("identity", 0.0, 0, False, height, width)], [], []
  for policy in policies:
    first.append(len(rows))
    edges.append(policy.numbers("edges"))
    fill, exact = policy.number("fill"), policy.number("exact_turns")
    for name, parameter in zip(policy.arguments["operations"], policy.numbers("parameters")):
      rows.append(_row(name, parameter, fill, exact, height, width))
  most = max(map(len, edges))
  ints, factors = zip(*rows)
  return PolicyRows(
    np.array(ints, np.int32),
    np.array(factors, np.float32),
    np.array(first, np.int32),
    np.array([each + [2**31 - 1] * (most - len(each)) for each in edges], np.int32),
  )


@functools.cache
def stretch_errors():
  """Where Pillow's float64 contrast stretch falls just below a whole number: int16 `[256 * span + value]`, `[result]`.

  With s = 255 / span it computes trunc(v * s - darkest * s), each product rounded. If the exact quotient is a whole k >
  0, the result is k - 1 if and only if 2 * (errors[v] - errors[darkest]) < -below[k]: errors are those of the rounded
  products in units of 2**-52, `below` the distance from k to the next float64 below it in units of 2**-52 (0 where
  that is less). Checked for all 2.8 million (darkest, brightest, value).
  """
  errors = np.zeros((256, 256), np.int16)
  for span in range(1, 256):
    products = np.arange(256) * (np.float64(255) / np.float64(span))
    errors[span] = [int(float(product) * 2**52) - (255 * v * 2**52) // span for v, product in enumerate(products)]
  below = np.array([0, 0] + [2 ** ((k - 1).bit_length() - 1) for k in range(2, 256)], np.int16)
  return errors.reshape(-1), below


def _row(name, value, fill, exact, height, width):
  affine, threshold, mask, factor = [65536, 0, 0, 0, 65536, 0], 256, 255, 1.0
  kind, _, axis = name.partition("_")
  slope, offset, side = (3, 5, height) if axis == "y" else (1, 2, width)
  if name == "rotate" and value:
    affine = _turn(value, exact, height, width)
  elif kind == "shear":
    affine[slope], affine[offset] = _fixed(value), _fixed(value * 0.5 + 0.5)
  elif kind == "translate":
    affine[offset] = round(value * side) << 16
  # Truncated with a tolerance, because a product that should be whole may be just below the whole number.
  elif kind == "truncate":
    affine[offset] = int(value * side + math.copysign(1e-6, value)) << 16
  elif kind == "move":
    affine[offset] = round(value) << 16
  elif name == "invert":
    threshold = 0
  elif name == "solarize":
    threshold = int(value)
  elif name == "posterize":
    mask = 256 - (1 << (8 - int(value)))
  elif name in _BASES:
    factor = value
  return affine + [threshold, mask, _TABLES.get(name, 0), _BASES.get(name, 0), fill * 0x10101], factor


def _fixed(value):
  """Pillow's fixed-point numbers, in units of 1 / 65536."""
  return math.floor(value * 65536 + 0.5)


def _turn(degrees, exact, height, width):
  if exact:
    sine, cosine = _sine_and_cosine(degrees * (math.pi / 180))
  else:
    sine, cosine = (round(value, 15) for value in _sine_and_cosine(degrees % 360.0 * (math.pi / 180)))
  x, y = width / 2, height / 2
  # The order of the operations decides the last digit.
  return [
    _fixed(cosine),
    _fixed(-sine),
    _fixed((cosine * -x + -sine * -y) + x + cosine * 0.5 + -sine * 0.5),
    _fixed(sine),
    _fixed(cosine),
    _fixed((sine * -x + cosine * -y) + y + sine * 0.5 + cosine * 0.5),
  ]


def _sine_and_cosine(radians):
  """As in base/elementary.cc: `math` uses the C library, whose last digits differ between systems."""
  quarter_turn, rest = float.fromhex("0x1.921fb544p+0"), float.fromhex("0x1.0b4611a626331p-34")
  quarters = math.floor(radians / quarter_turn + 0.5)
  x = (radians - quarters * quarter_turn) - quarters * rest
  sine = cosine = 1.0
  for k in range(17, 3, -2):
    sine = 1 - sine * (x * x) / (k * (k - 1))
  for k in range(16, 0, -2):
    cosine = 1 - cosine * (x * x) / (k * (k - 1))
  sine = x - x * (sine * (x * x) / 6)
  return ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[quarters % 4]
