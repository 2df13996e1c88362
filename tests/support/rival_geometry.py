"""Results of torchvision, Pillow and albumentations for small images, for tests without these packages.

`python tests/support/rival_geometry.py` writes rival_geometry.json again, next to this file. It needs torchvision,
torch, Pillow, albumentations and NumPy. The stored file names the versions it was made with. The same versions make the
same bytes.

An image has one channel and the values 1, 2, ..., row by row, so that each value shows where it comes from; 0 is empty.

- "center_crop", "pad": torchvision's functions of an int32 tensor. "constant" also has the fill, 0 or 255.
- "rotate": torchvision's function of a uint8 tensor ("torchvision"), and of a Pillow image ("pillow"), nearest pixel,
  fill 0.
- "perspective": the same; "corners" are torchvision's endpoints, as (x, y), for the first and last pixels of the image.
- "quarter_turns": albumentations' RandomRotate90, for each number of turns; "transpose": its Transpose. Boxes are
  [x1, y1, x2, y2] in pixels, points [x, y].
- "moves": torchvision's functions of bounding boxes and key points, with the arguments of the named entry above. A
  center_crop to a side longer by an odd number of pixels is left out: torchvision moves boxes by one pixel more than
    the image.
"""

from importlib import metadata
import itertools
import json
import pathlib

import albumentations
import numpy as np
from PIL import Image
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

FILE = pathlib.Path(__file__).with_suffix(".json")
BOXES = [[1, 2, 5, 6], [0, 0, 3, 1], [2.5, 3.25, 7, 7.5]]
POINTS = [[0, 0], [4, 2], [3.5, 6]]


def picture(height, width, dtype=np.uint8):
  return np.arange(1, 1 + height * width).reshape(height, width).astype(dtype)


def tensor(*size, dtype=np.uint8):
  return torch.from_numpy(picture(*size, dtype=dtype)[np.newaxis].copy())


def values(image):
  array = np.asarray(image)
  return array.reshape(array.shape[-2:]).tolist()


def center_crop():
  for image, size in itertools.product(
    [(9, 11), (10, 8), (5, 4), (6, 7)], [(4, 4), (3, 6), (12, 5), (5, 12), (13, 14), (9, 10)]
  ):
    yield {"image": image, "size": size, "made": values(functional.center_crop(tensor(*image, dtype=np.int32), size))}


def pad():
  for padding, mode in itertools.product(
    [[2], [1, 3], [1, 2, 3, 0], [0, 0, 4, 3]], ["constant", "edge", "reflect", "symmetric"]
  ):
    for fill in (0, 255) if mode == "constant" else (0,):
      yield {
        "image": [5, 6],
        "padding": padding,
        "mode": mode,
        "fill": fill,
        "made": values(functional.pad(tensor(5, 6, dtype=np.int32), padding, fill=fill, padding_mode=mode)),
      }


def both(image, function):
  return {"torchvision": values(function(tensor(*image))), "pillow": values(function(Image.fromarray(picture(*image))))}


def rotate():
  for image, angle in itertools.product([(9, 11), (8, 8)], [0, 17, -30.5, 45, 90, 180, 201.5, 359]):
    yield {"image": image, "angle": angle, **both(image, lambda value: functional.rotate(value, angle))}


def perspective():
  for (height, width), inwards in itertools.product(
    [(12, 20), (15, 16)],
    [
      [(0, 0), (0, 0), (0, 0), (0, 0)],
      [(2, 1), (0, 0), (0, 0), (0, 0)],
      [(1, 2), (3, 1), (2, 2), (0, 1)],
      [(4, 3), (4, 3), (0, 0), (0, 0)],
      [(3, 3), (0, 1), (4, 2), (1, 0)],
    ],
  ):
    right, bottom = width - 1, height - 1
    start = [[0, 0], [right, 0], [right, bottom], [0, bottom]]
    corners = [[abs(x - dx), abs(y - dy)] for (x, y), (dx, dy) in zip(start, inwards)]
    yield {
      "image": (height, width),
      "corners": corners,
      **both(
        (height, width),
        lambda value: functional.perspective(
          value, start, corners, interpolation=functional.InterpolationMode.NEAREST, fill=0
        ),
      ),
    }


def of_albumentations(layer, seed):
  image = picture(8, 8)
  transform = albumentations.Compose(
    [layer],
    bbox_params=albumentations.BboxParams(format="pascal_voc", label_fields=["labels"]),
    keypoint_params=albumentations.KeypointParams(format="xy"),
    seed=seed,
  )
  made = transform(image=image[..., np.newaxis], bboxes=BOXES, labels=[0, 1, 2], keypoints=POINTS)
  return {
    "made": values(made["image"].squeeze(-1)),
    "boxes": rounded(made["bboxes"]),
    "points": rounded(made["keypoints"]),
  }


def quarter_turns():
  found = {}
  for seed in range(100):
    made = of_albumentations(albumentations.RandomRotate90(p=1), seed)
    (turns,) = [turns for turns in range(4) if np.rot90(picture(8, 8), turns).tolist() == made["made"]]
    found.setdefault(turns, {"turns": turns, **made})
  return [found[turns] for turns in range(4)]


def rounded(numbers):
  return (np.round(np.asarray(numbers, np.float64), 4) + 0.0).tolist()


def moves(entries):
  functions = {
    "center_crop": lambda value, entry: functional.center_crop(value, entry["size"]),
    "pad": lambda value, entry: functional.pad(value, entry["padding"]),
    "rotate": lambda value, entry: functional.rotate(value, entry["angle"]),
    "perspective": lambda value, entry: functional.perspective(value, corners_of(entry["image"]), entry["corners"]),
  }
  for name, function in functions.items():
    for number, entry in enumerate(entries[name]):
      if entry.get("mode", "constant") != "constant" or max(entry["image"]) < 6:
        continue
      if any(made > side and (made - side) % 2 for side, made in zip(entry["image"], entry.get("size", ()))):
        continue
      canvas = tuple(entry["image"])
      boxes = [[0, 0, 3, 2], [1, 1, 4.5, 4.25]]
      made = function(tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas, dtype=torch.float64), entry)
      points = function(tv_tensors.KeyPoints(POINTS[:2], canvas_size=canvas, dtype=torch.float64), entry)
      yield {
        "name": name,
        "number": number,
        "boxes": boxes,
        "moved_boxes": rounded(made),
        "points": POINTS[:2],
        "moved_points": rounded(points),
      }


def corners_of(size):
  height, width = size
  return [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]


def main():
  torch.set_num_threads(1)
  entries = {
    "center_crop": list(center_crop()),
    "pad": list(pad()),
    "rotate": list(rotate()),
    "perspective": list(perspective()),
    "quarter_turns": quarter_turns(),
    "transpose": [of_albumentations(albumentations.Transpose(p=1), 0)],
  }
  entries["moves"] = list(moves(entries))
  versions = {name: metadata.version(name) for name in ("torchvision", "torch", "pillow", "albumentations", "numpy")}
  given = {"boxes": BOXES, "points": POINTS}
  text = ",\n".join(
    f'"{name}":[\n' + ",\n".join(json.dumps(each, separators=(",", ":")) for each in value) + "\n]"
    for name, value in entries.items()
  )
  FILE.write_text(f'{{\n"versions":{json.dumps(versions)},\n"given":{json.dumps(given)},\n{text}\n}}\n')


if __name__ == "__main__":
  main()
