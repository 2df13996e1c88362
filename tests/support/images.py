"""Images for augmentation tests, Pillow's results for them, and frequencies of draws."""

import functools
import json

import numpy as np
from PIL import Image
from PIL import ImageEnhance
from PIL import ImageOps
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import ROOT

GREY = (128, 128, 128)
# False for TensorFlow 2.19.
DECODES_WEBP = hasattr(tf.raw_ops, "DecodeWebP")
needs_webp = pytest.mark.skipif(not DECODES_WEBP, reason="TensorFlow before 2.20 decodes no WebP")
# torchvision's results for a small image, from rival_colors.py.
RIVALS = json.loads((ROOT / "tests" / "support" / "rival_colors.json").read_text(encoding="utf-8"))
RIVAL_IMAGE = np.uint8(RIVALS["image"]).reshape([*RIVALS["size"], 3])


def noise(*shape):
  return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def decoded(kinds):
  """Kinds of files as parameters of a test that decodes them."""
  return [pytest.param(kind, marks=needs_webp if "webp" in kind.lower() else ()) for kind in kinds]


def _images():
  random = np.random.RandomState(0)
  gradient = np.add.outer(3 * np.arange(40), 2 * np.arange(61))[..., np.newaxis] + [0, 40, 90]
  return {
    "noise": random.randint(0, 256, (32, 32, 3)),
    "odd noise": random.randint(0, 256, (33, 47, 3)),
    "large noise": random.randint(0, 256, (224, 224, 3)),
    "few values": random.randint(90, 110, (47, 33, 3)),
    "two values": random.choice([3, 250], (17, 18, 3)),
    "rare values": np.where(random.rand(40, 40, 3) < 0.002, 255, random.randint(0, 3, (40, 40, 3))),
    "gradient": np.clip(gradient, 0, 255),
    "steep gradient": gradient[:16, ::4] * 7 % 256,
    "black": np.zeros((9, 9, 3)),
    "white": np.full((9, 9, 3), 255),
    "one colour": np.full((8, 9, 3), [0, 7, 255]),
    "1 x 1": random.randint(0, 256, (1, 1, 3)),
    "1 x 9": random.randint(0, 256, (1, 9, 3)),
    "9 x 1": random.randint(0, 256, (9, 1, 3)),
    "2 x 5": random.randint(0, 256, (2, 5, 3)),
    "5 x 2": random.randint(0, 256, (5, 2, 3)),
    "3 x 3": random.randint(0, 256, (3, 3, 3)),
  }


IMAGES = {name: image.astype(np.uint8) for name, image in _images().items()}


def _affine(*matrix, fill=GREY):
  return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=fill)


def _enhanced(enhance, factor):
  return lambda image: enhance(image).enhance(factor)


# Each distortion in Pillow, as a function of its parameter.
PILLOW = {
  "identity": lambda _: lambda image: image,
  "auto_contrast": lambda _: ImageOps.autocontrast,
  "equalize": lambda _: ImageOps.equalize,
  "rotate": lambda degrees, fill=GREY: lambda image: image.rotate(degrees, Image.Resampling.NEAREST, fillcolor=fill),
  "invert": lambda _: ImageOps.invert,
  "solarize": lambda threshold: lambda image: ImageOps.solarize(image, threshold),
  "color": functools.partial(_enhanced, ImageEnhance.Color),
  "posterize": lambda bits: lambda image: ImageOps.posterize(image, bits),
  "contrast": functools.partial(_enhanced, ImageEnhance.Contrast),
  "brightness": functools.partial(_enhanced, ImageEnhance.Brightness),
  "sharpness": functools.partial(_enhanced, ImageEnhance.Sharpness),
  "shear_x": lambda slope, **fill: _affine(1, slope, 0, 0, 1, 0, **fill),
  "shear_y": lambda slope, **fill: _affine(1, 0, 0, slope, 1, 0, **fill),
  "translate_x": lambda fraction, **fill: (
    lambda image: _affine(1, 0, round(fraction * image.width), 0, 1, 0, **fill)(image)
  ),
  "translate_y": lambda fraction, **fill: (
    lambda image: _affine(1, 0, 0, 0, 1, round(fraction * image.height), **fill)(image)
  ),
}


def by_pillow(name, parameter, image, **fill):
  return np.asarray(PILLOW[name](parameter, **fill)(Image.fromarray(image)))


def assert_equal(actual, expected, what):
  assert actual.dtype == np.uint8 and actual.shape == expected.shape, what
  different = np.count_nonzero(actual != expected)
  assert not different, f"{what}: {different} of {expected.size} values differ"


def assert_same(actual, expected):
  """Compares bits, whatever the dtype."""
  actual, expected = np.asarray(actual), np.asarray(expected)
  assert actual.dtype == expected.dtype and actual.shape == expected.shape
  assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()


def levels_apart(made, expected):
  return np.abs(np.asarray(made, int) - np.reshape(expected, np.shape(made))).max()


def make_seeds(count, salt=0):
  """Consecutive seeds, as a user would count them, not well-mixed ones."""
  return np.stack([np.arange(count), np.full(count, salt)], axis=1).astype(np.int32)


def mapped(layer, image, seeds):
  """The results of `layer` for one image and each of `seeds`, in one dataset."""
  dataset = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed: layer(tf.constant(image), seed=seed))
  return np.stack(list(dataset.as_numpy_iterator()))


@functools.lru_cache
def _places(height, width):
  """A lossless file in which the value of each pixel is its number."""
  numbers = np.arange(height * width, dtype=np.int32).reshape(height, width)
  return tf.io.encode_png(np.stack([numbers % 256, numbers // 256 % 256, numbers // 65_536], axis=-1).astype(np.uint8))


def window(height, width, seed, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
  """The window of a random resized crop: y, x, height and width."""
  part = (
    augment.decode_random_resized_crop(scale=scale, ratio=ratio)(_places(height, width), seed=seed)
    .numpy()
    .astype(np.int32)
  )
  top, left = divmod(int(part[0, 0] @ [1, 256, 65_536]), width)
  return [top, left, *part.shape[:2]]


def chi_square(counts):
  counts = np.asarray(counts, np.float64)
  return np.sum((counts - counts.mean()) ** 2) / counts.mean()


# Every distortion at magnitude 9 makes a different image from this one.
TELLING = np.clip(IMAGES["odd noise"], 5, 250)
