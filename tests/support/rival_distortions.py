"""torchvision's results of the policies' operations for an image, for tests without torchvision and torch.

`python tests/support/rival_distortions.py` writes rival_distortions.json, next to this file. It needs torchvision and
torch. The file names their versions. Images are uint8, flattened, as base64: with three channels ("image"), or only the
first.

- "distorted": a function of torchvision.transforms.v2.functional, its arguments, and its results for the image
  ("colors") and the first channel ("grey").
- "photometric": the results of RandomPhotometricDistort for the image, with the given parameters.
"""

import base64
from importlib import metadata
import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_suffix(".json")
SIZE = 21, 29
CASES = [
  ("invert", []),
  ("autocontrast", []),
  ("equalize", []),
  *(("posterize", [bits]) for bits in (1, 4, 7)),
  *(("adjust_sharpness", [factor]) for factor in (0.0, 0.5, 1.0, 2.0, 3.75)),
]
# Named as in torchvision.
PARAMETERS = [
  {
    "brightness_factor": 1.0625,
    "contrast_factor": 0.625,
    "saturation_factor": 1.375,
    "hue_factor": -0.03125,
    "contrast_before": True,
    "channel_permutation": [2, 0, 1],
  },
  {
    "brightness_factor": 0.9375,
    "contrast_factor": 1.25,
    "saturation_factor": 0.75,
    "hue_factor": 0.046875,
    "contrast_before": False,
    "channel_permutation": None,
  },
]


def picture():
  """A smooth image with noise. No channel has all values."""
  y, x = np.mgrid[: SIZE[0], : SIZE[1]]
  image = np.stack([40 + 5 * y + x, 30 + 2 * x + y * x // 4, 200 - 3 * y - x], -1) + np.random.default_rng(7).integers(
    -9, 10, [*SIZE, 3]
  )
  return np.clip(image, 20, 240).astype(np.uint8)


def text(image):
  return base64.b64encode(np.ascontiguousarray(image).tobytes()).decode()


def array(encoded):
  return np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(*SIZE, -1)


def main():
  import torch
  from torchvision.transforms import v2

  torch.set_num_threads(1)
  tensor = torch.from_numpy(picture().transpose(2, 0, 1).copy())

  def made(function, *arguments):
    return {
      name: text(function(image, *arguments).numpy().transpose(1, 2, 0))
      for name, image in (("colors", tensor), ("grey", tensor[:1]))
    }

  distorted = [
    {"name": name, "arguments": arguments, **made(getattr(v2.functional, name), *arguments)}
    for name, arguments in CASES
  ]
  photometric = []
  for given in PARAMETERS:
    order = given["channel_permutation"]
    parameters = {**given, "channel_permutation": None if order is None else torch.tensor(order)}
    result = v2.RandomPhotometricDistort().transform(tensor, parameters)
    photometric.append({"parameters": given, "colors": text(result.numpy().transpose(1, 2, 0))})
  versions = {name: metadata.version(name) for name in ("torchvision", "torch", "numpy")}
  FILE.write_text(
    json.dumps(
      {"versions": versions, "image": text(picture()), "distorted": distorted, "photometric": photometric}, indent=1
    )
    + "\n"
  )


if __name__ == "__main__":
  main()
