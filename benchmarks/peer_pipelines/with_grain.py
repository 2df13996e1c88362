"""Grain: a `MapDataset` with a worker process for each core.

Grain has no augmentations of its own: its documentation lets users write theirs, on arrays. Here Pillow does the
operations of RandAugment and the resize, and NumPy does the rest.
"""

import io

from absl import flags
import grain
import numpy as np
from PIL import Image
from PIL import ImageEnhance
from PIL import ImageOps

import epochs

# The parameters of `rand_augment` at magnitude 9.
FACTOR = 0.1 + 1.8 * 0.9
DEGREES = 27
SLOPE = 0.27
SHARE = 0.9 * 150 / 331
PADDING = 4
SCALE = np.float32(1 / (255 * np.array(epochs.STD)))
OFFSET = np.float32(-np.array(epochs.MEAN) / epochs.STD)


def _affine(image, coefficients):
  return image.transform(image.size, Image.Transform.AFFINE, coefficients)


OPERATIONS = (
  lambda image, sign: image,
  lambda image, sign: ImageOps.autocontrast(image),
  lambda image, sign: ImageOps.equalize(image),
  lambda image, sign: ImageOps.solarize(image, 230),
  lambda image, sign: ImageOps.posterize(image, 3),
  lambda image, sign: ImageEnhance.Color(image).enhance(FACTOR),
  lambda image, sign: ImageEnhance.Contrast(image).enhance(FACTOR),
  lambda image, sign: ImageEnhance.Brightness(image).enhance(FACTOR),
  lambda image, sign: ImageEnhance.Sharpness(image).enhance(FACTOR),
  lambda image, sign: image.rotate(sign * DEGREES),
  lambda image, sign: _affine(image, (1, sign * SLOPE, 0, 0, 1, 0)),
  lambda image, sign: _affine(image, (1, 0, 0, sign * SLOPE, 1, 0)),
  lambda image, sign: _affine(image, (1, 0, sign * SHARE * image.width, 0, 1, 0)),
  lambda image, sign: _affine(image, (1, 0, 0, 0, 1, sign * SHARE * image.height)),
)


class ReadArray(grain.transforms.Map):
  def map(self, element):
    return Image.fromarray(element)


class ReadRandomPart(grain.transforms.RandomMap):
  """Decodes a JPEG file and resizes a random part of it."""

  def random_map(self, element, rng):
    image = Image.open(io.BytesIO(element))
    for _ in range(10):
      area = image.width * image.height * rng.uniform(0.08, 1)
      aspect_ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
      width, height = round((area * aspect_ratio) ** 0.5), round((area / aspect_ratio) ** 0.5)
      if width <= image.width and height <= image.height:
        break
    else:
      width, height = image.size
    left, top = rng.integers(image.width - width + 1), rng.integers(image.height - height + 1)
    return image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)).convert(
      "RGB"
    )


class RandAugment(grain.transforms.RandomMap):
  def random_map(self, element, rng):
    for _ in range(2):
      element = OPERATIONS[rng.integers(len(OPERATIONS))](element, 2 * rng.integers(2) - 1)
    return element


class CropAndFlip(grain.transforms.RandomMap):
  def random_map(self, element, rng):
    image = np.asarray(element)
    padded = np.pad(image, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
    top, left = rng.integers(2 * PADDING + 1, size=2)
    image = padded[top : top + image.shape[0], left : left + image.shape[1]]
    return image[:, ::-1] if rng.integers(2) else image


class Normalize(grain.transforms.Map):
  def map(self, element):
    return (element * SCALE + OFFSET).astype(np.float32, copy=False)


def small(images):
  return _epochs(images, ReadArray())


def large(files):
  return _epochs(files, ReadRandomPart(), Normalize())


def _epochs(samples, read, *last):
  dataset = grain.MapDataset.source(samples).seed(7).shuffle()
  dataset = dataset.map(read) if isinstance(read, grain.transforms.Map) else dataset.random_map(read)
  dataset = dataset.random_map(RandAugment()).random_map(CropAndFlip())
  for transform in last:
    dataset = dataset.map(transform)
  # Repeated, so that the workers continue from epoch to epoch.
  dataset = dataset.repeat().batch(epochs.BATCH)
  # Threads that read ahead are for slow storage. Here they would fill a buffer of 500 batches.
  dataset = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
  iterator = iter(dataset.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=epochs.PROCESSORS)))

  def epoch():
    for _ in range(len(samples) // epochs.BATCH):
      yield next(iterator)

  return epoch


if __name__ == "__main__":
  # Grain's workers read absl's flags, which must count as parsed, although this program parses none.
  flags.FLAGS.mark_as_parsed()
  epochs.serve(small=small, large=large)
