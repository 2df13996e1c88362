"""Seconds to a target accuracy with data echoing, where reading is slow (Choi et al., 2019, Figures 3, 4 and 8).

    python -m refurbish_tf.experiments.echoing_time

Trains a small network on a part of CIFAR-10 that is read as from a slow disk: one file after the other, each in a latency
and its bytes over a rate. Reading a batch takes R times as long as a training step. docs/results.md has the plan, which was
fixed before the first training. In this order, each training being a row of the table:

- `tuning`: learning rates for each place and factor, on training images that are not trained on.
- `time`: seconds to the target on test images. Nothing else may run on the machine.
- `budget tuning`, `budget`: likewise for the best accuracy with as many fresh samples.

A step takes `STEP_SECONDS` of the clock: the processors compute it in less, and the rest is slept, as a host waits for its
accelerator. A network as slow as that would take the processors from the input. Tuning and budget do not depend on the
clock, so there nothing is slowed. Seconds are those of reading and of training: while the network is validated, they do not
count, and the disk pauses.

It can be stopped at any time, and the same command goes on where it was. It needs TensorFlow as Keras' backend.
"""
import argparse
import contextlib
import dataclasses
import itertools
import pathlib
import statistics
import sys
import time

import keras
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import accuracy, echoing, results, training
from refurbish_tf.experiments.pipelines import decoded
from refurbish_tf.experiments.slow_disk import SlowDisk

DATASET, IMAGES = "cifar10", 9_984
KEY = ("what", "dataset", "images", "validation", "where", "e", "ratio", "learning_rate", "target", "most_steps",
       "steps_between", "seed")
# What `train` returns.
COLUMNS = ("fresh", "steps", "accuracy", "accuracies", "seconds", "read", "late_steps")
AUTOTUNE = "AUTOTUNE"
BASELINE, REFURBISH = ("baseline", 1), "refurbish"
# Place, factor and R.
RATIO = 4
WAYS = (
    (*BASELINE, RATIO), *((where, e, RATIO) for e in (2, 3, 4, 6, 8) for where in echoing.PLACES),
    ("before_augment", AUTOTUNE, RATIO), (REFURBISH, 2, RATIO), (REFURBISH, 4, RATIO),
    (*BASELINE, 2), ("before_augment", 2, 2), (*BASELINE, 8), ("before_augment", 8, 8))
BUDGET_WAYS = (BASELINE, *((where, 4) for where in echoing.PLACES))
LEARNING_RATES = (0.005, 0.01, 0.02, 0.04)
SEEDS = range(5)
# Of no other training.
TUNING_SEED = 100
TARGET = 0.5
STEP_SECONDS = 0.024
# Computed in less than this, so that what the input does at the same time makes few steps late.
MOST_COMPUTED_SECONDS = 0.018
BATCH_SIZE = 64
# A fifth of the images, as the paper has it for CIFAR-10.
SHUFFLE_BUFFER_SIZE = 2_000
# A training ends without the target when the baseline would have read this many batches: about twice as many as it needs.
MOST_BATCHES = {"time": 936, "tuning": 624}
STEPS_BETWEEN = 32
# Fresh samples of Figure 8, in batches: four epochs. Validated after each quarter of an epoch.
BUDGET_BATCHES, BUDGET_BATCHES_BETWEEN = 624, 39
# Reads that are asked for at once. One alone is read at a time.
CALLS = 4
# More than CALLS, as each sleeps in one.
INPUT_THREADS = 8


def plan(what, known=()):
  """The trainings of a part, as keys of the table. `known`: rows of the table, with all of the tuning that it needs."""
  if what == "tuning":
    # What AUTOTUNE does depends on the clock.
    ways = dict.fromkeys((where, e) for where, e, _ in WAYS if e != AUTOTUNE)
    return [_time_row(what, where, e, RATIO, rate, TUNING_SEED) for where, e in ways for rate in LEARNING_RATES]
  if what == "budget tuning":
    return [_budget_row(what, where, e, rate, TUNING_SEED) for where, e in BUDGET_WAYS for rate in LEARNING_RATES]
  # All ways take turns.
  if what == "time":
    return [_time_row(what, where, e, ratio, tuned_rate(known, "tuning", where, RATIO if e == AUTOTUNE else e), seed)
            for seed in SEEDS for where, e, ratio in WAYS]
  return [_budget_row(what, where, e, tuned_rate(known, "budget tuning", where, e), seed)
          for seed in SEEDS for where, e in BUDGET_WAYS]


def tuned_rate(known, what, where, e):
  """The best learning rate of a tuning: that of the fewest steps to the target, or else of the highest accuracy."""
  rows = [row for row in known if (row["what"], row["where"], row["e"]) == (what, where, e)]
  return min(rows, key=lambda row: (
      row["steps"] if row["fresh"] >= 0 else float("inf"), -row["accuracy"], row["learning_rate"]))["learning_rate"]


def _time_row(what, where, e, ratio, learning_rate, seed):
  # As many as the baseline's time has room for.
  most = MOST_BATCHES[what] * min(ratio, ratio if e == AUTOTUNE else e)
  return _row(what, where, e, ratio if what == "time" else 0, learning_rate, TARGET, most, STEPS_BETWEEN, seed)


def _budget_row(what, where, e, learning_rate, seed):
  # No training reaches 1, so each uses all fresh samples.
  return _row(what, where, e, 0, learning_rate, 1, BUDGET_BATCHES * e, BUDGET_BATCHES_BETWEEN * e, seed)


def _row(what, where, e, ratio, learning_rate, target, most_steps, steps_between, seed):
  validation = "train" if what.endswith("tuning") else "test"
  return dict(zip(KEY, (what, DATASET, IMAGES, validation, where, e, ratio, learning_rate, target, most_steps, steps_between,
                        seed)))


def by_index(images, ratio):
  """`images` in memory, with a source by index, on a disk where reading a batch takes `ratio` steps, half of it latency.

  Returns:
    The images and the disk, None if `ratio` is 0.
  """
  files, labels = zip(*images.train.as_numpy_iterator())
  if not ratio:
    return dataclasses.replace(images, train=tf.data.Dataset.from_tensor_slices((list(files), list(labels)))), None
  seconds = ratio * STEP_SECONDS / BATCH_SIZE
  disk = SlowDisk(files, sum(map(len, files)) / len(files) / (seconds / 2), seconds / 2)
  labels = tf.constant(labels)
  train = tf.data.Dataset.range(len(files)).map(lambda index: (disk.read(index), labels[index]), CALLS)
  return dataclasses.replace(images, train=train), disk


def pipeline(images, where, e, seed):
  """Endless batches."""
  if where == REFURBISH:
    layers = augment.split(
        [images.decode, augment.random_crop(echoing.PADDING), augment.random_flip()], 1)
    train = images.train.refurbish(*layers, r=e, seed=seed).batch(BATCH_SIZE).repeat().prefetch(
        tf.data.AUTOTUNE)
  else:
    train = echoing.pipeline(
        images, where, rtf.AUTOTUNE if e == AUTOTUNE else e, BATCH_SIZE, SHUFFLE_BUFFER_SIZE, seed)
  # Not those of the training, as reading sleeps in them.
  options = tf.data.Options()
  options.threading.private_threadpool_size = INPUT_THREADS
  return train.with_options(options)


def train(images, where, e, ratio, learning_rate, target, most_steps, steps_between, seed):
  """Trains until the target is reached, or for `most_steps`.

  Args:
    images: `Images`.
    where: "baseline", a place of the echo, or "refurbish".
    e: the echoing factor, "AUTOTUNE", or the reuse factor.
    ratio: R; 0 to slow neither reading nor steps.
    learning_rate: of SGD with Nesterov momentum, constant.
    target: accuracy on the validation images, from 0 to 1.
    most_steps: optimizer steps after which the training ends.
    steps_between: optimizer steps between two validations.
    seed: of weights, order and augmentation.

  Returns:
    A dict with `COLUMNS`. "fresh": fresh samples on which the network was trained until it reached the target, -1 if it did
    not; with AUTOTUNE and refurbish those that were read. "steps": of the optimizer. "accuracy": the best of "accuracies",
    one for each validation. "seconds": of reading and training. "read": samples that were read, those in buffers, too, 0 if
    nothing is slowed. "late_steps": those that took longer than `STEP_SECONDS`.
  """
  keras.utils.set_random_seed(seed)
  step, right = _training_step(images, learning_rate)
  validation = [*decoded(images.validation.take(echoing.VALIDATION_IMAGES), images).batch(500)]
  images, disk = by_index(images, ratio)
  batches = iter(pipeline(images, where, e, seed))
  step_seconds, accuracies, late, paused = STEP_SECONDS if ratio else 0.0, [], 0, 0.0
  began = time.perf_counter()
  for steps in range(1, most_steps + 1):
    batch = next(batches)
    due = time.perf_counter() + step_seconds
    step(*batch)
    left = due - time.perf_counter()
    late += left < 0
    time.sleep(max(0.0, left))
    if steps % steps_between == 0:
      stopped = time.perf_counter()
      with disk.paused() if disk else contextlib.nullcontext():
        accuracies.append(sum(int(right(*some)) for some in validation) / sum(len(labels) for _, labels in validation))
      paused += time.perf_counter() - stopped
      if accuracies[-1] >= target:
        break
  seconds = time.perf_counter() - began - paused
  read = disk.reads if disk else 0
  fresh = read if e == AUTOTUNE or where == REFURBISH else steps * BATCH_SIZE // e
  keras.backend.clear_session()
  return {
      "fresh": fresh if accuracies[-1] >= target else -1, "steps": steps, "accuracy": round(max(accuracies), 4),
      "accuracies": " ".join(f"{found:.4f}" for found in accuracies), "seconds": round(seconds, 2), "read": read,
      "late_steps": late if ratio else 0}


def _training_step(images, learning_rate):
  """Functions of a batch: one that trains a new network on it, and one that counts what the network has right."""
  model = training.small_cnn(images)
  optimizer = keras.optimizers.SGD(learning_rate, momentum=training.MOMENTUM, nesterov=True)
  optimizer.build(model.trainable_variables)

  # Not `train_on_batch`, which takes longer than such a network's step.
  @tf.function(reduce_retracing=True)
  def step(batch, labels):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(batch, training=True)))
    optimizer.apply(tape.gradient(loss, model.trainable_variables))

  @tf.function(reduce_retracing=True)
  def right(batch, labels):
    return tf.math.count_nonzero(tf.argmax(model(batch, training=False), -1) == labels)

  # Once before the clock starts, as the first call traces. Then all is as before.
  variables = [*model.variables, *optimizer.variables]
  before = [variable.numpy() for variable in variables]
  for function, count in ((step, BATCH_SIZE), (right, 500)):
    function(tf.zeros([count, *images.shape], tf.uint8), tf.zeros([count], tf.int64))
  for variable, value in zip(variables, before):
    variable.assign(value)
  return step, right


def computed_seconds(images, steps=50):
  """Seconds in which the processors compute a step, the median."""
  step, _ = _training_step(images, LEARNING_RATES[0])
  batch = tf.zeros([BATCH_SIZE, *images.shape], tf.uint8), tf.zeros([BATCH_SIZE], tf.int64)
  times = [time.perf_counter()]
  for _ in range(steps):
    step(*batch)
    times.append(time.perf_counter())
  return statistics.median(after - before for before, after in itertools.pairwise(times))


def main(argv=None):
  """Runs the trainings that are missing in the table."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("--output", type=pathlib.Path, default="echoing_time.csv", help="the table; an existing one is completed")
  args = parser.parse_args(argv)
  if keras.backend.backend() != "tensorflow":
    parser.error(f"Keras must compute with TensorFlow, got {keras.backend.backend()}. Set KERAS_BACKEND=tensorflow.")
  table, loaded = results.open_table(parser, args.output, KEY, COLUMNS, lambda: {
      validation: accuracy.load(DATASET, IMAGES, 0, validation) for validation in ("train", "test")})

  def run(row):
    how = {name: value for name, value in row.items() if name not in ("what", "dataset", "images", "validation")}
    return train(loaded[row["validation"]], **how)

  for what in ("tuning", "time", "budget tuning", "budget"):
    rows = plan(what, results.read(table.path) if what in ("time", "budget") else ())
    if what == "time" and not all(map(table.has, rows)) and (
        found := computed_seconds(loaded["train"])) > MOST_COMPUTED_SECONDS:
      parser.error(f"a step must be computed in {1000 * MOST_COMPUTED_SECONDS:.0f} ms, got {1000 * found:.0f} ms. Stop what else "
                   "runs on this machine, or take a faster one; the same command goes on.")
    table.complete(rows, run, _name, _told)


def _name(row):
  return ", ".join(f"{name} {row[name]}" for name in ("what", "where", "e", "ratio", "learning_rate", "seed"))


def _told(row):
  reached = f"{row['target']:g} reached" if row["fresh"] >= 0 else f"at best {row['accuracy']:.4f}"
  return f"{reached} after {row['steps']:,} steps, {row['seconds']:.0f} s"


if __name__ == "__main__":
  sys.exit(main())
