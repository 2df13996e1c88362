"""`refurbish`, as in with_refurbish.py, behind a `cache()` of the decoded images."""
import tensorflow as tf

import common
import epochs
import refurbish_tf as rtf
import throughput
from with_refurbish import REUSE_FACTOR
from with_tf_data import final_layers
from with_tf_data import take_epochs


def large(files):
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.random_resized_crop(throughput.SIDE), *rtf.augment.rand_augment(), *final_layers()], at=3)
  decoded = tf.data.Dataset.from_tensor_slices(files).map(
      lambda file: tf.io.decode_jpeg(file, channels=3), common.PARALLEL_CALLS).cache()
  return take_epochs(
      decoded.refurbish(partial_fn, final_fn, r=REUSE_FACTOR, shuffle_buffer_size=len(files)).batch(epochs.BATCH),
      len(files))


if __name__ == "__main__":
  epochs.serve(large=large)
