"""`tf.data` alone, with the layers of refurbish_tf as its map."""
import itertools

import tensorflow as tf

import common
import epochs
import refurbish_tf as rtf
import throughput
from refurbish_tf._internal import dataset_graph

ENDLESS = 10**9


def small(images, rand_augment=rtf.augment.rand_augment):
  augment = rtf.augment.compose(rand_augment())
  # For small images crop and flip of whole batches are much cheaper.
  crop_and_flip = rtf.augment.random_crop_and_flip_batch(4)
  return take_epochs(_augmented(images, augment).batch(epochs.BATCH).map(crop_and_flip, tf.data.AUTOTUNE), len(images))


def large(files, rand_augment=rtf.augment.rand_augment, decode=rtf.augment.decode_and_crop(throughput.SIDE)):
  augment = rtf.augment.compose([decode, *rand_augment(), *final_layers()])
  return take_epochs(_augmented(files, augment).batch(epochs.BATCH), len(files))


def final_layers():
  """The final augmentation of photographs."""
  return [rtf.augment.random_crop(4), rtf.augment.random_flip(), rtf.augment.normalize(epochs.MEAN, epochs.STD)]


def _augmented(images, augment):
  source = tf.data.Dataset.from_tensor_slices(images).shuffle(len(images))
  seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)
  return tf.data.Dataset.zip(source, seeds).map(lambda image, seed: augment(image, seed=seed), common.PARALLEL_CALLS)


def take_epochs(dataset, count, read=iter):
  # One iterator, as in the others, as making one takes the same time for any number of images. Loaders take none that
  # repeats without end.
  iterator = iter(read(dataset_graph.without_autotuner(dataset.repeat(ENDLESS).prefetch(tf.data.AUTOTUNE))))
  return lambda: itertools.islice(iterator, count // epochs.BATCH)


if __name__ == "__main__":
  epochs.serve(small=small, large=large)
