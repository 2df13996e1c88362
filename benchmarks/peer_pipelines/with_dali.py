"""NVIDIA DALI's CPU operators: a pipeline with `enable_conditionals` and DALI's `rand_augment`, a thread for each core.

It follows the chapters "Automatic Augmentations" and "External Source" of DALI's documentation.
"""

import numpy as np
from nvidia.dali import fn
from nvidia.dali import pipeline_def
from nvidia.dali import types
from nvidia.dali.auto_aug import rand_augment

import epochs

# Magnitude 9 of 10, in DALI's bins from 0 to 30.
MAGNITUDE = 27
PADDING = 4


def small(images):
  source = _batches(images)

  @pipeline_def(enable_conditionals=True)
  def pipeline():
    images = _augmented(fn.external_source(source=source, batch=True, layout="HWC"), 32)
    return fn.flip(images, horizontal=fn.random.coin_flip())

  return _epochs(pipeline, len(images))


def large(files):
  source = _batches([np.frombuffer(file, np.uint8) for file in files])

  @pipeline_def(enable_conditionals=True)
  def pipeline():
    batch = fn.external_source(source=source, batch=True)
    decoded = fn.decoders.image_random_crop(
      batch, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    images = _augmented(fn.resize(decoded, size=[224, 224]), 224)
    return fn.crop_mirror_normalize(
      images,
      mirror=fn.random.coin_flip(),
      mean=[255 * mean for mean in epochs.MEAN],
      std=[255 * std for std in epochs.STD],
      dtype=types.FLOAT,
      output_layout="HWC",
    )

  return _epochs(pipeline, len(files))


def _augmented(images, side):
  """The augmentation without the flip."""
  images = rand_augment.rand_augment(images, n=2, m=MAGNITUDE, shape=[side, side], fill_value=0)
  # The crop may reach outside the image, as far as the crop of a padded image would.
  places = [float(place) for place in range(-PADDING, PADDING + 1)]
  corner = fn.cast(fn.random.uniform(values=places, shape=[2]), dtype=types.INT32)
  return fn.slice(images, start=corner, shape=[side, side], axis_names="HW", out_of_bounds_policy="pad", fill_values=0)


def _batches(samples):
  """Endless whole batches in random order. The last, smaller batch of an epoch is filled up from the next epoch."""

  def forever():
    generator = np.random.default_rng(7)
    places = np.empty([0], int)
    while True:
      while len(places) < epochs.BATCH:
        places = np.concatenate([places, generator.permutation(len(samples))])
      batch, places = places[: epochs.BATCH], places[epochs.BATCH :]
      yield samples[batch] if isinstance(samples, np.ndarray) else [samples[place] for place in batch]

  return forever()


def _epochs(pipeline, count):
  built = pipeline(batch_size=epochs.BATCH, num_threads=epochs.PROCESSORS, device_id=None, prefetch_queue_depth=2)
  built.build()

  def epoch():
    for _ in range(count // epochs.BATCH):
      yield built.run()[0]

  return epoch


if __name__ == "__main__":
  epochs.serve(small=small, large=large)
