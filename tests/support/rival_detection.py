"""Results of torchvision's RandomZoomOut, RandomIoUCrop, RandomResize, RandomChoice and RandomOrder, for tests without
torch.

`python tests/support/rival_detection.py` writes rival_detection.json again, next to this file. It needs torchvision,
torch and NumPy. The stored file names the versions it was made with. The same versions make the same bytes.

Images are those of rival_geometry.py. torch's random numbers are replaced by given ones, in float64.

- "zoom_out": "drawn" are the factor, left and top, as fractions of their ranges.
- "iou_crop": the random numbers are the words of "seed", in the order in which our layer uses them. The arguments have
  the same names. "crop" is top, left, height and width, found in the image. Boxes are [x1, y1, x2, y2] in pixels,
  points [x, y].
- "resize": "made" is the size of an image whose shortest side becomes "drawn".
- "choice": the fraction of all draws that each option has for p. "order": "made" by a flip, a crop that moves the image
  by "moved", and a quarter turn, in "order".
"""

from importlib import metadata
import itertools
import json
import pathlib
from unittest import mock

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional
from words import below, fraction

FILE = pathlib.Path(__file__).with_suffix(".json")
BOXES, POINTS = [[1, 2, 5, 6], [0, 0, 3, 1], [2.5, 3.25, 7, 7.5]], [[0, 0], [4, 2], [3.5, 6]]
UNIT = 2**31


def tensor(height, width):
  return tv_tensors.Image(torch.arange(1, 1 + height * width, dtype=torch.int32).reshape(1, height, width))


def rounded(numbers):
  return (np.round(np.asarray(numbers, np.float64), 4) + 0.0).tolist()


def moved(transform, size, boxes, points):
  image, boxes, points = transform(
    tensor(*size),
    tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size, dtype=torch.float64),
    tv_tensors.KeyPoints(points, canvas_size=size, dtype=torch.float64),
  )
  return image[0].tolist(), {"moved_boxes": rounded(boxes), "moved_points": rounded(points)}


def given(numbers):
  numbers = iter(numbers)
  return mock.patch(
    "torch.rand", lambda count: torch.tensor([next(numbers) for _ in range(count)], dtype=torch.float64)
  )


def zoom_out():
  for size, drawn, fill in itertools.product(
    [(8, 9), (11, 8)], [(0, 0.5, 0.5), (0.4375, 0, 0.9375), (0.9375, 0.625, 0.125)], (0, 255)
  ):
    with given([0, *drawn]):
      made, followers = moved(
        v2.RandomZoomOut(fill={tv_tensors.Image: fill, "others": 0}, side_range=(1.0, 2.5), p=1), size, BOXES, POINTS
      )
    yield {"image": size, "drawn": drawn, "fill": fill, "made": made, **followers}


class Words:
  """A seed's words: one per option, four per trial, two of them unused if torchvision refuses the trial's aspect
  ratio."""

  def __init__(self, seed, size, crop):
    self._seed, self._size, self._crop, self._word, self._is_place = seed, size, crop, 0, False

  def randint(self, low, high, size):
    self._word += 1
    return torch.tensor(below(self._seed, self._word - 1, high)).expand(size)

  def rand(self, number):
    drawn = torch.tensor([fraction(self._seed, self._word + k) / UNIT for k in range(number)], dtype=torch.float64)
    self._word += 2
    crop, was_place = self._crop, self._is_place
    if not was_place:
      height, width = [
        int(side * (crop.min_scale + (crop.max_scale - crop.min_scale) * part))
        for side, part in zip(self._size, drawn.flip(0))
      ]
      self._is_place = crop.min_aspect_ratio <= width / height <= crop.max_aspect_ratio
      self._word += 0 if self._is_place else 2
    else:
      self._is_place = False
    return drawn


def iou_crop():
  random = np.random.default_rng(7)
  others = [
    {"sampler_options": [0.3], "trials": 9},
    {"min_scale": 0.5, "max_scale": 0.8, "sampler_options": [0.2, 0.3]},
    {"min_aspect_ratio": 0.9, "max_aspect_ratio": 1.1, "sampler_options": [0.9, 0]},
    {"sampler_options": [0, 1.0]},
    {"sampler_options": [0.1, 1.0]},
  ]
  for number, (size, arguments) in enumerate(itertools.product([(40, 60), (33, 21)], [{}] * 6 + others)):
    corners = random.uniform(0, np.array(size[::-1]) - 8, (3, 2))
    boxes = rounded(np.concatenate([corners, random.uniform(corners + 4, size[::-1])], 1))
    crop, seed = v2.RandomIoUCrop(**arguments), [number * 7919, number + 11]
    words = Words(seed, size, crop)
    with mock.patch("torch.rand", words.rand), mock.patch("torch.randint", words.randint):
      made, followers = moved(crop, size, boxes, POINTS)
    top, left = divmod(made[0][0] - 1, size[1])
    yield {
      "image": size,
      "arguments": arguments,
      "seed": seed,
      "crop": [top, left, len(made), len(made[0])],
      "boxes": boxes,
      **followers,
    }


def resize():
  for size, drawn in itertools.product([(9, 11), (40, 7), (6, 6)], (4, 5, 12)):
    with mock.patch("torch.randint", lambda low, high, size, drawn=drawn: torch.tensor(drawn)):
      yield {"image": size, "drawn": drawn, "made": list(v2.RandomResize(4, 13)(torch.zeros(1, *size)).shape[1:])}


def choice():
  for p in ([2, 0, 1], [0.1, 0.2, 0.7], None):
    yield {"p": p, "parts": rounded(v2.RandomChoice([v2.Identity()] * 3, p).p)}


def order():
  by = (2, -1)
  steps = [
    functional.horizontal_flip,
    lambda image: functional.crop(image, *by, 6, 6),
    lambda image: image.rot90(1, (1, 2)),
  ]
  for order in itertools.permutations(range(3)):
    with mock.patch("torch.randperm", lambda number, order=order: torch.tensor(order)):
      yield {"image": [6, 6], "order": order, "moved": by, "made": v2.RandomOrder(steps)(tensor(6, 6))[0].tolist()}


def main():
  torch.set_num_threads(1)
  entries = {name.__name__: list(name()) for name in (zoom_out, iou_crop, resize, choice, order)}
  versions = {name: metadata.version(name) for name in ("torchvision", "torch", "numpy")}
  text = ",\n".join(
    f'"{name}":[\n' + ",\n".join(json.dumps(each, separators=(",", ":")) for each in value) + "\n]"
    for name, value in entries.items()
  )
  FILE.write_text(
    f'{{\n"versions":{json.dumps(versions)},\n"given":{json.dumps({"boxes": BOXES, "points": POINTS})},\n{text}\n}}\n'
  )


if __name__ == "__main__":
  main()
