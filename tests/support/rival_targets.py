"""Results of torchvision and Keras for bounding boxes and key points, for tests without torchvision, Keras and torch.

`python tests/support/rival_targets.py` writes rival_targets.json again, next to this file. It needs torchvision, torch,
Keras and JAX (the backend of Keras). The stored file was made with torchvision 0.29.1, torch 2.14.1, keras 3.15.1, jax
0.10.2 and numpy 2.4.6, and it names the first three. The same versions make the same bytes.

- "moves": results of torchvision.transforms.v2.functional for tv_tensors.BoundingBoxes and
  tv_tensors.KeyPoints. "image" is height and width before the operation, "made" after it. A box is [x1, y1, x2, y2], a
  point [x, y]. Boxes have the clamping mode "soft", torchvision's default: crops, rotations and affine maps clip the
  axis-aligned box to the image. Flips and resizes need no clipping. Key points are not clipped.
  torchvision flips a point to width - 1 - x, as if (0, 0) were the middle of the first pixel; other operations move
  points like corners of boxes, as if (0, 0) were the corner of the image.
- "formats": the same boxes in each format of keras.utils.bounding_boxes.convert_format.

Moves are computed in float64, formats in float32. Numbers have 4 decimals, in relative formats 6; inputs are rounded
before they are used.
"""

from importlib import metadata
import itertools
import json
import math
import os
import pathlib

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

FILE = pathlib.Path(__file__).with_suffix(".json")
SIZES = [(60, 80), (33, 47), (224, 160)]
# Boxes, and points, per case. With 12 the file has 120 kB, with 5 half of that.
NUMBER = 5
FORMATS = ["xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw", "rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh"]


def rounded(values, decimals=4):
  # Adding zero turns -0 into 0.
  return (np.round(np.asarray(values, np.float64), decimals) + 0.0).tolist()


def random_boxes(random, height, width):
  """Boxes at least one pixel wide and high. A fifth of their sides touch an edge of the image."""
  size = np.array([width, height])
  low = random.uniform(0, size - 1, (NUMBER, 2))
  high = random.uniform(low + 1, size)
  low = np.where(random.uniform(size=low.shape) < 0.2, 0, low)
  high = np.where(random.uniform(size=high.shape) < 0.2, size, high)
  return rounded(np.concatenate([low, high], axis=1))


def random_points(random, height, width):
  """Points between the middles of the first and last pixels, if (0, 0) is the middle of the first pixel."""
  return rounded(random.uniform(0, [width - 1, height - 1], (NUMBER, 2)))


def rotate(value, degrees):
  return functional.rotate(value, angle=degrees)


def affine(value, kind, amount):
  """At (x, y), "shear_x" shows the input at (x + amount * y, y), "translate_x" the input at (x + round(amount * width),
  y).

  (0, 0) is the top left corner of the image. "shear_y" and "translate_y" change y, by amount * x or round(amount *
  height).
  """
  height, width = value.canvas_size
  axis = "xy".index(kind[-1])
  translate, shear = [0, 0], [0.0, 0.0]
  if kind.startswith("translate"):
    translate[axis] = -round(amount * (width, height)[axis])
  else:
    shear[axis] = math.degrees(math.atan(amount))
  return functional.affine(value, angle=0, translate=translate, scale=1, shear=shear, center=[0, 0])


def crop(value, top, left):
  return functional.crop(value, top, left, *value.canvas_size)


FUNCTIONS = {
  "horizontal_flip": functional.horizontal_flip,
  "crop": crop,
  "resized_crop": functional.resized_crop,
  "resize": functional.resize,
  "rotate": rotate,
  "affine": affine,
}


def operations(random, height, width):
  """The operations for images of one size, with their arguments."""
  yield "horizontal_flip", {}
  for signs in itertools.product([-1, 1], repeat=2):
    top, left = (signs * random.integers(1, 7, 2)).tolist()
    yield "crop", {"top": top, "left": left}
  for size in [24, 24], [50, 90], [180, 70]:
    part = random.integers([height // 3, width // 3], [height, width])
    top, left = random.integers(0, [height, width] - part + 1).tolist()
    yield "resized_crop", {"top": top, "left": left, "height": int(part[0]), "width": int(part[1]), "size": size}
  for size in [48, 48], [100, 30]:
    yield "resize", {"size": size}
  for degrees in -30, -13.5, 7, 30:
    yield "rotate", {"degrees": degrees}
  for kind, amount in itertools.product(["shear_x", "shear_y", "translate_x", "translate_y"], [-0.3, -0.07, 0.11, 0.3]):
    yield "affine", {"kind": kind, "amount": amount}


def move(random, image, operation, arguments):
  boxes, points = random_boxes(random, *image), random_points(random, *image)
  moved_boxes = FUNCTIONS[operation](tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=image), **arguments)
  moved_points = FUNCTIONS[operation](tv_tensors.KeyPoints(points, canvas_size=image), **arguments)
  assert moved_boxes.canvas_size == moved_points.canvas_size
  return {
    "operation": operation,
    "arguments": arguments,
    "image": image,
    "made": moved_boxes.canvas_size,
    "boxes": boxes,
    "moved_boxes": rounded(moved_boxes),
    "points": points,
    "moved_points": rounded(moved_points),
  }


def formats(random, height, width):
  boxes = random_boxes(random, height, width)
  converted = {
    name: keras.ops.convert_to_numpy(
      keras.utils.bounding_boxes.convert_format(np.array(boxes), "xyxy", name, height, width)
    )
    for name in FORMATS
  }
  return {
    "image": [height, width],
    "boxes": {name: rounded(values, 6 if name.startswith("rel_") else 4) for name, values in converted.items()},
  }


def dump(value):
  return json.dumps(value, separators=(",", ":"))


def main():
  # torchvision computes the factors of a resize in the default type.
  torch.set_default_dtype(torch.float64)
  random = np.random.default_rng(7)
  moves = [
    move(random, size, operation, arguments) for size in SIZES for operation, arguments in operations(random, *size)
  ]
  versions = {name: metadata.version(name) for name in ("torchvision", "torch", "keras")}
  FILE.write_text(
    f'{{\n"versions":{dump(versions)},\n"moves":[\n'
    + ",\n".join(map(dump, moves))
    + f'\n],\n"formats":{dump(formats(random, *SIZES[0]))}\n}}\n'
  )


if __name__ == "__main__":
  main()
