"""The pipeline of `tf.data` alone, with `refurbish`."""
import sys

import tensorflow as tf

import epochs
import refurbish_tf as rtf
import throughput
from with_tf_data import final_layers
from with_tf_data import take_epochs

# The third argument, if there is one.
REUSE_FACTOR = int((sys.argv[3:] or [3])[0])


def small(images, read=iter):
  partial_fn = rtf.augment.compose(rtf.augment.rand_augment())
  crop_and_flip = rtf.augment.random_crop_and_flip_batch(4)
  return take_epochs(
      tf.data.Dataset.from_tensor_slices(images)
      .refurbish(partial_fn, None, r=REUSE_FACTOR)
      .batch(epochs.BATCH)
      .map(crop_and_flip, tf.data.AUTOTUNE), len(images), read)


def large(files, read=iter):
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.decode_and_crop(throughput.SIDE), *rtf.augment.rand_augment(), *final_layers()], at=3)
  return take_epochs(
      tf.data.Dataset.from_tensor_slices(files)
      .refurbish(partial_fn, final_fn, r=REUSE_FACTOR)
      .batch(epochs.BATCH), len(files), read)


if __name__ == "__main__":
  epochs.serve(small=small, large=large)
