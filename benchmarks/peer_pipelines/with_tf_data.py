"""`tf.data` alone, with the layers of refurbish_tf in a map, or `refurbish` instead of the map.

The third argument says which: "tf_data", "refurbish", or "torch_loader" and "jax_loader", which hand over batches of
refurbish. With "_ops" the layers are TensorFlow's operations, as they once were in refurbish_tf; with "_decoded" the
pipeline follows a `cache()` of the decoded images, for users with enough memory.
"""

import itertools
import sys

import tensorflow as tf

import common
import epochs
import refurbish_tf as rtf
import tensorflow_layers
import throughput
from refurbish_tf._internal import dataset_graph

ENDLESS = 10**9
# A fixed number, because tf.data without its autotuner doubles the buffer of AUTOTUNE whenever it was empty. Then an
# epoch would make more batches than it yields, and the buffer would take gigabytes.
BATCHES_AHEAD = 2
KEY = sys.argv[3]
IN_OPS, DECODED = KEY.endswith("_ops"), KEY.endswith("_decoded")


def small(images):
  # Crop and flip run on whole batches, which is much cheaper for small images.
  return _epochs(
    tf.data.Dataset.from_tensor_slices(images),
    len(images),
    _rand_augment(),
    [],
    lambda dataset: dataset.map(
      rtf.augment.compose([rtf.augment.random_crop(padding=4), rtf.augment.random_flip()], clips=False),
      tf.data.AUTOTUNE,
    ),
  )


def large(files):
  source = tf.data.Dataset.from_tensor_slices(files)
  read = throughput.decode_part if IN_OPS else rtf.augment.decode_random_resized_crop(throughput.SIDE)
  if DECODED:
    source = source.map(lambda file: tf.io.decode_jpeg(file, **throughput.LIKE_DECODE), common.PARALLEL_CALLS).cache()
    read = rtf.augment.random_resized_crop(throughput.SIDE)
  final = [
    rtf.augment.random_crop(padding=4),
    rtf.augment.random_flip(),
    rtf.augment.normalize(epochs.MEAN, epochs.STD),
  ]
  return _epochs(source, len(files), [read, *_rand_augment()], final)


def _rand_augment():
  return (tensorflow_layers if IN_OPS else rtf.augment).rand_augment()


def _epochs(source, count, partial, final, on_batches=lambda dataset: dataset):
  if KEY.startswith("tf_data"):
    augment = rtf.augment.compose([*partial, *final])
    seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)
    dataset = tf.data.Dataset.zip(source.shuffle(count), seeds).map(
      lambda image, seed: augment(image, seed=seed), common.PARALLEL_CALLS
    )
  else:
    dataset = source.refurbish(partial, final or None, r=3, shuffle_buffer_size=count)
  read = next((getattr(rtf, name) for name in ("torch_loader", "jax_loader") if KEY.startswith(name)), iter)
  # One iterator for all epochs, as with the other libraries, because making one takes the same time for any number of
  # images. The number of repetitions is finite, because loaders reject an endless pipeline.
  iterator = iter(
    read(
      dataset_graph.without_autotuner(on_batches(dataset.batch(epochs.BATCH)).repeat(ENDLESS).prefetch(BATCHES_AHEAD))
    )
  )
  return lambda: itertools.islice(iterator, count // epochs.BATCH)


if __name__ == "__main__":
  epochs.serve(small=small, large=large)
