"""Functions for `refurbish`, by name, with the same fingerprints in every process. As a program it prints them."""

import sys

import keras
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

IMAGE = tf.TensorSpec([8, 8, 3], tf.uint8)
LARGE = np.arange(300, dtype=np.float32).reshape(1, 10, 10, 3)[:, :8, :8] / 300


def functions(constant=3, layers=(1, 2)):
  """Functions by name. With other arguments each is a different function."""
  tensor, large, array = tf.constant(constant), tf.constant(LARGE * constant), np.full(5, constant, np.uint8)
  table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(9), tf.range(9)), -1)
  variable = tf.Variable(np.random.rand(), dtype=tf.float32)
  augment = [rtf.augment.rand_augment(1, constant), rtf.augment.random_crop(padding=1), rtf.augment.random_flip()]
  preprocess = [keras.layers.RandomFlip(), keras.layers.Rescaling(1 / constant), keras.layers.Resizing(5, 6)]
  preprocess = [preprocess[0], *(preprocess[place] for place in layers)]

  def control_flow(x):
    a = b = c = tf.reduce_sum(tf.cast(x, tf.int32))
    while a > 10:
      a, b, c = a // 2, b + constant, c - b
    if b > c:
      return a + b
    return table.lookup(c) - a

  def in_numpy(image):
    if image.shape[0] in {8, 9, "x"}:
      return image * 2
    return image

  def other_in_numpy(image):
    return image * 3

  @tf.function
  def inner(x):
    tf.print("an inner function", x)
    return x * constant

  return {
    "lambda": lambda x: tf.cast(x, tf.int32) * constant,
    "captured": lambda x: tf.cast(x, tf.int32) + tensor,
    "captured large": lambda x: tf.cast(x, tf.float32) * large,
    "array": lambda x: x[0, :5, 0] + array,
    "variable": lambda x: (tf.cast(x, tf.float32) + variable) / constant,
    "strings": lambda x: (x, tf.constant(["a", "b" * constant])),
    "draws": lambda x: tf.image.random_brightness(x, 0.1 * constant),
    "stateless": lambda x, seed: tf.image.stateless_random_contrast(x, 0.1, constant, seed),
    "compose": rtf.augment.compose(augment),
    "split": rtf.augment.split(augment, 2)[0],
    "keras": lambda x: _apply(preprocess, x),
    "control flow": control_flow,
    "inner": lambda x: inner(inner(tf.cast(x, tf.int32))),
    "map_fn": lambda x: tf.map_fn(lambda row: row * constant, tf.cast(x, tf.int32)),
    "numpy_function": lambda x: tf.numpy_function(in_numpy if constant == 3 else other_in_numpy, [x], tf.uint8),
    "py_function": lambda x: tf.py_function(in_numpy if constant == 3 else other_in_numpy, [x], tf.uint8),
  }


def _apply(layers, x):
  for layer in layers:
    x = layer(x, training=True)
  return x


def of(function, element_spec=IMAGE):
  source = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=element_spec)
  dataset = source.refurbish(function, seed=7)
  return dataset.fingerprint_of_samples()


if __name__ == "__main__":
  # Traces them in a different order than they are defined, so that tokens and numbers of functions differ.
  for name, function in list(functions().items())[:: int(sys.argv[1])]:
    result = of(function)
    print(name, result["function"], result["constants"], sep="\t")
