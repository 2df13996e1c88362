"""The images for the benchmarks of augmentation: small ones as arrays, photographs as JPEG."""

import pathlib

import numpy as np
import tensorflow as tf

import common
from refurbish_tf.experiments import images as image_sets

# Data sets of photographs, as JPEG; the first one that TFDS has prepared on this machine is used.
PHOTOGRAPHS = ("tf_flowers", "imagenette/320px-v2", "groceries")


def small(count):
  """Images of 32x32: uint8 `[n, 32, 32, 3]`, at most `count`, and their origin in words.

  The images come from CIFAR-10. They are generated shapes if TFDS can neither find nor download CIFAR-10, or if `count`
  is below 1000, as in a test.
  """
  images = image_sets.load("cifar10" if count >= 1000 else "shapes", count)
  if images.note:
    common.say(images.note)
  decoded = images.train.map(lambda record, label: images.decode(record), tf.data.AUTOTUNE).batch(len(images.train))
  array = next(iter(decoded)).numpy()
  return array, f"{len(array):,} images of {images.title.partition(':')[0]}"


def photographs(count):
  """Photographs: a list of `count` JPEG files as bytes, and their origin in words."""
  if count >= 100:
    import tensorflow_datasets as tfds
  for name in PHOTOGRAPHS if count >= 100 else ():
    try:
      builder = tfds.builder(name)
    except Exception:
      # TFDS may raise anything, depending on the name and on what is installed.
      continue
    if builder.is_prepared():
      records = builder.as_dataset(
        split="all", decoders={"image": tfds.decode.SkipDecoding()}, shuffle_files=False
      ).take(count)
      files = [element["image"].numpy() for element in records]
      return files, _described(files, f"photographs of {builder.info.full_name} (TFDS)")
  if count >= 100:
    common.say(
      f"none of {', '.join(PHOTOGRAPHS)} is prepared on this machine: using generated pictures instead of "
      f"photographs. To prepare one, run `tfds build {PHOTOGRAPHS[0]}`, which needs a network"
    )
  files = image_sets.draw_photographs(count)
  return files, _described(files, "generated pictures")


def of_folder(folder):
  """The JPEG files in and below a folder, in the order of their names, and their origin in words."""
  paths = sorted(path for path in pathlib.Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
  if not paths:
    raise ValueError(f"there must be JPEG files, *.jpg or *.jpeg, in or below {folder}, but there are none")
  files = [path.read_bytes() for path in paths]
  return files, _described(files, "photographs")


def _described(files, what):
  sizes = np.array([tf.io.extract_jpeg_shape(file).numpy()[:2] for file in files])
  height, width = np.median(sizes, axis=0).astype(int)
  kilobytes = np.mean([len(file) for file in files]) / 1000
  return f"{len(files):,} {what}, mostly {width}x{height} pixels and {kilobytes:.0f} kB"
