"""Seconds to a target accuracy with data echoing, when reading is slow (Choi et al., 2019, Figures 3, 4 and 8).

Trains a small network on images that are read as if from a slow disk: one file after the other, each in a latency plus
its bytes divided by a rate. Reading a batch takes R times as long as a training step.

A step takes `STEP_SECONDS` of wall-clock time: the CPU computes it in less and sleeps for the rest, like a host that
waits for its accelerator. A network that needed all this time would occupy the cores that prepare the input. Only
reading and training time counts: the disk pauses during validation. Keras must use its TensorFlow backend.
"""

import dataclasses
import time

import keras
import tensorflow as tf

from refurbish_tf.experiments import echoing, training
from refurbish_tf.experiments.pipelines import decoded
from refurbish_tf.experiments.slow_disk import SlowDisk

STEP_SECONDS = 0.024
BATCH_SIZE = 64
# A fifth of the package's images, as in the paper for CIFAR-10.
SHUFFLE_BUFFER_SIZE = 2_000
# The number of reads requested at the same time. The disk reads one at a time.
CALLS = 4
# More than CALLS, because each call sleeps in a thread.
INPUT_THREADS = 8


def by_index(images, ratio):
  """`images` in memory, with a source by index, on a disk where a batch takes `ratio` steps, half of it latency.

  Returns:
    The images and the disk.
  """
  files, labels = zip(*images.train.as_numpy_iterator())
  seconds = ratio * STEP_SECONDS / BATCH_SIZE
  disk = SlowDisk(files, sum(map(len, files)) / len(files) / (seconds / 2), seconds / 2)
  labels = tf.constant(labels)
  train = tf.data.Dataset.range(len(files)).map(lambda index: (disk.read(index), labels[index]), CALLS)
  return dataclasses.replace(images, train=train), disk


def pipeline(images, where, e, seed):
  """Endless batches."""
  train = echoing.pipeline(images, where, e, BATCH_SIZE, SHUFFLE_BUFFER_SIZE, seed)
  # A separate thread pool: reading sleeps in its threads, and must not occupy the threads of the training.
  options = tf.data.Options()
  options.threading.private_threadpool_size = INPUT_THREADS
  return train.with_options(options)


def train(images, where, e, ratio, learning_rate, target, most_steps, steps_between, seed):
  """Trains until the target is reached, or for `most_steps`.

  Args:
    images: `Images`.
    where: "baseline", or a place of the echo.
    e: the echoing factor.
    ratio: R, the time to read a batch divided by the time of a training step.
    learning_rate: the constant learning rate of SGD with Nesterov momentum.
    target: accuracy on the validation images, from 0 to 1.
    most_steps: optimizer steps after which the training ends.
    steps_between: optimizer steps between two validations.
    seed: the seed of the weights, the order and the augmentation.

  Returns:
    A dict. "fresh": fresh samples on which the network was trained until it reached the target, -1 if it did not.
    "steps": optimizer steps. "accuracy": the best of "accuracies", one for each validation. "seconds": time for reading
    and training. "read": samples that were read, including those in buffers. "late_steps": steps that took longer than
    `STEP_SECONDS`.
  """
  keras.utils.set_random_seed(seed)
  step, right = _training_step(images, learning_rate)
  validation = [*decoded(images.validation.take(echoing.VALIDATION_IMAGES), images).batch(500)]
  images, disk = by_index(images, ratio)
  batches = iter(pipeline(images, where, e, seed))
  accuracies, late, paused = [], 0, 0.0
  began = time.perf_counter()
  for steps in range(1, most_steps + 1):
    batch = next(batches)
    due = time.perf_counter() + STEP_SECONDS
    step(*batch)
    left = due - time.perf_counter()
    late += left < 0
    time.sleep(max(0.0, left))
    if steps % steps_between == 0:
      stopped = time.perf_counter()
      with disk.paused():
        accuracies.append(sum(int(right(*some)) for some in validation) / sum(len(labels) for _, labels in validation))
      paused += time.perf_counter() - stopped
      if accuracies[-1] >= target:
        break
  seconds = time.perf_counter() - began - paused
  keras.backend.clear_session()
  return {
    "fresh": steps * BATCH_SIZE // e if accuracies[-1] >= target else -1,
    "steps": steps,
    "accuracy": round(max(accuracies), 4),
    "accuracies": " ".join(f"{found:.4f}" for found in accuracies),
    "seconds": round(seconds, 2),
    "read": disk.reads,
    "late_steps": late,
  }


def _training_step(images, learning_rate):
  """Functions of a batch: one trains a new network on it, and one counts the network's correct answers."""
  model = training.small_cnn(images)
  optimizer = keras.optimizers.SGD(learning_rate, momentum=training.MOMENTUM, nesterov=True)
  optimizer.build(model.trainable_variables)

  # Not `train_on_batch`, which takes longer than a step of this network.
  @tf.function(reduce_retracing=True)
  def step(batch, labels):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(batch, training=True)))
    optimizer.apply(tape.gradient(loss, model.trainable_variables))

  @tf.function(reduce_retracing=True)
  def right(batch, labels):
    return tf.math.count_nonzero(tf.argmax(model(batch, training=False), -1) == labels)

  # The first call, which traces, is made before the clock starts. Then all variables are restored.
  variables = [*model.variables, *optimizer.variables]
  before = [variable.numpy() for variable in variables]
  for function, count in ((step, BATCH_SIZE), (right, 500)):
    function(tf.zeros([count, *images.shape], tf.uint8), tf.zeros([count], tf.int64))
  for variable, value in zip(variables, before):
    variable.assign(value)
  return step, right
