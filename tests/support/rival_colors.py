"""Results of torchvision and Pillow for small images, for tests without torchvision, torch and Pillow.

`python tests/support/rival_colors.py` writes rival_colors.json again, next to this file. It needs torchvision, torch
and Pillow. The stored file was made with torchvision 0.29.1, torch 2.14.1, pillow 13.0.0 and numpy 2.4.6, and it names
them. The same versions make the same bytes.

- "image": uint8 `[height, width, 3]`, flattened like all images here: noise, a tenth of it grey, black or white.
- "adjusted": results of torchvision.transforms.v2.functional for the image as a uint8 tensor ("torchvision") and,
  except for the hue, of Pillow's ImageEnhance ("pillow").
- "solarized": the same, for each threshold.
- "blurred": torchvision's gaussian_blur of a uint8 tensor, with kernels up to the largest that the image allows.
- "affine": torchvision's affine of a uint8 tensor and of a Pillow image, nearest pixel, fill 0.
- "wide": the space of TrivialAugmentWide: the magnitudes of each operation, and whether they are signed.
"""

from importlib import metadata
import itertools
import json
import pathlib

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

FILE = pathlib.Path(__file__).with_suffix(".json")
SIZE = 9, 11


def picture():
  random = np.random.default_rng(7)
  image = random.integers(0, 256, [*SIZE, 3], np.uint8)
  image[0, :5] = image[0, :5, :1]
  image[1, :3], image[1, 3:6] = 0, 255
  return image


IMAGE = picture()
TENSOR = torch.from_numpy(IMAGE.transpose(2, 0, 1).copy())


def values(image):
  array = np.asarray(image if isinstance(image, Image.Image) else image.numpy().transpose(1, 2, 0))
  return array.reshape(-1).tolist()


def adjusted():
  enhancers = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
  }
  for name, factor in itertools.product(enhancers, (0, 0.25, 0.8125, 1, 1.375, 1.9375)):
    yield {
      "name": name,
      "amount": factor,
      "torchvision": values(getattr(functional, f"adjust_{name}")(TENSOR, factor)),
      "pillow": values(enhancers[name](Image.fromarray(IMAGE)).enhance(factor)),
    }
  for turn in (-0.5, -0.3125, -0.0625, 0, 0.015625, 0.1875, 0.4375):
    yield {"name": "hue", "amount": turn, "torchvision": values(functional.adjust_hue(TENSOR, turn))}


def solarized():
  for threshold in (0, 1, 100, 128, 255):
    yield {
      "threshold": threshold,
      "torchvision": values(functional.solarize(TENSOR, threshold)),
      "pillow": values(ImageOps.solarize(Image.fromarray(IMAGE), threshold)),
    }


def blurred():
  for sigma, kernel in ((0.1, 3), (0.5, 5), (1.0, 9), (1.7, 13), (2.0, 17), (5.0, 11)):
    yield {
      "sigma": sigma,
      "kernel": kernel,
      "torchvision": values(functional.gaussian_blur(TENSOR, [kernel] * 2, [sigma] * 2)),
    }


def affine():
  for angle, translate, scale, shear in (
    (0, (3, -2), 1, (0, 0)),
    (30, (0, 0), 1, (0, 0)),
    (-75, (1, 2), 1.25, (0, 0)),
    (10, (0, 0), 0.6, (20, 0)),
    (200, (-2, 0), 0.9, (-15, 10)),
    (0, (0, 0), 1.4, (0, -30)),
  ):
    arguments = {"angle": angle, "translate": translate, "scale": scale, "shear": shear}
    yield {
      **arguments,
      "torchvision": values(functional.affine(TENSOR, **arguments)),
      "pillow": values(functional.affine(Image.fromarray(IMAGE), **arguments)),
    }


def wide():
  space = v2.TrivialAugmentWide()._AUGMENTATION_SPACE
  for name, (magnitudes, signed) in space.items():
    found = magnitudes(31, *SIZE)
    yield {"name": name, "signed": signed, "magnitudes": None if found is None else [float(value) for value in found]}


def main():
  torch.set_num_threads(1)
  made = {
    "versions": {name: metadata.version(name) for name in ("torchvision", "torch", "pillow", "numpy")},
    "size": SIZE,
    "image": IMAGE.reshape(-1).tolist(),
    "adjusted": list(adjusted()),
    "solarized": list(solarized()),
    "blurred": list(blurred()),
    "affine": list(affine()),
    "wide": list(wide()),
  }
  text = ",\n".join(
    f'"{name}":'
    + (
      "[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in value) + "\n]"
      if name not in ("versions", "size", "image")
      else json.dumps(value, separators=(",", ":"))
    )
    for name, value in made.items()
  )
  FILE.write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
  main()
