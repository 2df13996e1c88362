"""`tf.data` alone, as in with_tf_data.py, with a `cache()` of the decoded images, for users with enough memory."""
import tensorflow as tf

import common
import epochs
import refurbish_tf as rtf
import throughput
from with_tf_data import final_layers
from with_tf_data import take_epochs


def large(files):
  augment = rtf.augment.compose([
      rtf.augment.random_resized_crop(throughput.SIDE), *rtf.augment.rand_augment(), *final_layers()])
  decoded = tf.data.Dataset.from_tensor_slices(files).map(
      lambda file: tf.io.decode_jpeg(file, channels=3), common.PARALLEL_CALLS).cache().shuffle(len(files))
  seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)
  augmented = tf.data.Dataset.zip(decoded, seeds).map(
      lambda image, seed: augment(image, seed=seed), common.PARALLEL_CALLS)
  return take_epochs(augmented.batch(epochs.BATCH), len(files))


if __name__ == "__main__":
  epochs.serve(large=large)
