"""Fresh samples to a target accuracy with data echoing (Choi et al., 2019, Figures 3 and 5 to 7).

    python -m refurbish_tf.experiments.echoing

Trains a small network on CIFAR-10 until it reaches the target on the validation images, and counts the fresh samples that
this took: steps times batch size over e. Only the echo differs, and each pipeline has one shuffle buffer of the same
size. All use the same learning rate, the best one for the baseline with batches of 128, see `training.py`.
"""
import argparse
import pathlib
import sys
import time

import keras
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments import positive_number, results, training, whole_number
from refurbish_tf.experiments.pipelines import decoded

PADDING = 4
KEY = ("dataset", "images", "target", "learning_rate", "where", "e", "batch_size", "shuffle_buffer_size", "most_steps",
       "seed")
# What `run` returns.
COLUMNS = ("fresh", "steps", "accuracies", "seconds")
PLACES = ("before_augment", "after_augment", "after_batch")
SHUFFLE_BUFFER_SIZE = 10_000
VALIDATION_IMAGES = 5_000
# The most steps of a training, or the most for each use of a sample if that is more. So "not reached" means for every e
# that more fresh samples were used than the baseline needs, 128,000 in batches of 128.
MOST_STEPS = 4_000
MOST_STEPS_OF_A_USE = 1_000
STEPS_PER_EXECUTION = 4
# What the paper's figures vary. Each has the baseline, e = 1, with the same batch size and shuffle buffer.
BATCH_SIZES = {128: (2, 4, 8), 512: (2,)}
SHUFFLE_BUFFER_SIZES = (1, 1_000)


def main(argv=None):
  """Runs the trainings that are missing in the table."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("--dataset", default="cifar10", help="an image classification set of TensorFlow Datasets")
  parser.add_argument("--target", type=positive_number(1), default=0.6, help="accuracy on the validation images")
  parser.add_argument("--learning-rate", type=positive_number(), default=training.ECHOING_LEARNING_RATE)
  parser.add_argument("--images", type=whole_number(1), default=50_000, help="train on this many images, again and again")
  parser.add_argument("--seeds", type=whole_number(1), default=3, help="trainings of each pipeline")
  parser.add_argument("--output", type=pathlib.Path, default="echoing.csv", help="the table; an existing one is completed")
  args = parser.parse_args(argv)
  table, loaded = results.open_table(
      parser, args.output, KEY, COLUMNS, lambda: image_sets.load_all(args.dataset, args.images))
  rows = [
      {"dataset": args.dataset, "images": args.images, "target": args.target, "learning_rate": args.learning_rate,
       **setting, "seed": seed}
      for setting in settings() for seed in range(args.seeds)]
  table.complete(
      rows, lambda row: run(loaded, row), lambda row: f"{row['where']}, e = {row['e']}, batch {row['batch_size']}, buffer "
      f"{row['shuffle_buffer_size']}, seed {row['seed']}", told)


def run(images, row):
  """Trains once on `images`, as a row of the table says. Returns its other columns."""
  return fresh_samples_to_target(
      images, **{name: value for name, value in row.items() if name not in ("dataset", "images")})


def told(row):
  """What a training has shown, in words."""
  return f"{row['fresh']:,} fresh samples" if row["fresh"] >= 0 else f"{row['target']:g} not reached"


def settings():
  """The pipelines, as arguments of `pipeline`."""
  chosen = []
  for batch_size, factors in BATCH_SIZES.items():
    chosen += [_setting("baseline", 1, batch_size)]
    chosen += [_setting(where, e, batch_size) for e in factors for where in PLACES]
  for size in SHUFFLE_BUFFER_SIZES:
    chosen += [_setting("baseline", 1, buffer_size=size)]
    chosen += [_setting(where, 2, buffer_size=size) for where in PLACES]
  return chosen


def of_figure(rows, by):
  """The rows that vary `by`, "e", "batch_size" or "shuffle_buffer_size", with the usual values of the others."""
  usual = {"batch_size": 128, "shuffle_buffer_size": SHUFFLE_BUFFER_SIZE}
  return [row for row in rows if (by == "e" or row["e"] <= 2) and all(
      row[column] == value for column, value in usual.items() if column != by)]


def _setting(where, e, batch_size=128, buffer_size=SHUFFLE_BUFFER_SIZE):
  return {"where": where, "e": e, "batch_size": batch_size, "shuffle_buffer_size": buffer_size,
          "most_steps": max(MOST_STEPS, e * MOST_STEPS_OF_A_USE)}


def pipeline(images, where, e, batch_size, shuffle_buffer_size, seed):
  """Endless batches; "baseline" is an echo by 1."""
  return decoded(images.train, images).repeat().echo(
      e, "before_augment" if where == "baseline" else where, augment_fn=augment.compose(
          [augment.random_crop(PADDING), augment.random_flip()]),
      batch_size=batch_size, shuffle_buffer_size=shuffle_buffer_size, seed=seed).prefetch(tf.data.AUTOTUNE)


def fresh_samples_to_target(
    images, where, e, batch_size, shuffle_buffer_size, seed, *, target, learning_rate=training.ECHOING_LEARNING_RATE,
    most_steps=MOST_STEPS, samples_between=4096, network="small_cnn", precision="float32"):
  """Trains until the target is reached, or for `most_steps`.

  Args:
    images: `Images`, or an object with its attributes.
    where, e, batch_size, shuffle_buffer_size, seed: as in `pipeline`.
    target: accuracy on the validation images, from 0 to 1.
    learning_rate: of SGD with Nesterov momentum, constant.
    most_steps: optimizer steps after which the training ends.
    samples_between: training samples between two validations.
    network: a name in `training.NETWORKS`.
    precision: of Keras, "float32" or "mixed_bfloat16".

  Returns:
    A dict: "fresh", the fresh samples on which the network was trained until it reached the target, without those left
    in the shuffle buffer; "steps", the optimizer's; both are -1 if the target was not reached. "accuracies", one for
    each validation. "seconds".

  Raises:
    ValueError: the target is not above 0 and at most 1, or as in `Dataset.echo`.
  """
  if not 0 < target <= 1:
    raise ValueError(
        f"target of fresh_samples_to_target must be an accuracy of more than 0 and at most 1, got {target!r}. Pass one "
        "that the baseline reaches, such as 0.6 for CIFAR-10.")
  keras.utils.set_random_seed(seed)
  validation = decoded(images.validation.take(VALIDATION_IMAGES), images).batch(500).cache()
  with training.computing_with(precision):
    model = training.NETWORKS[network](images)
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=training.MOMENTUM, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
        jit_compile=training.jit_compile(),
        # Keras takes a millisecond a call, a good part of a step of such a network.
        steps_per_execution=STEPS_PER_EXECUTION)
  # A multiple of STEPS_PER_EXECUTION, as Keras would round up.
  steps = max(1, samples_between // batch_size // STEPS_PER_EXECUTION) * STEPS_PER_EXECUTION
  began = time.perf_counter()
  accuracies = model.fit(
      pipeline(images, where, e, batch_size, shuffle_buffer_size, seed), steps_per_epoch=steps,
      epochs=max(1, most_steps // steps), validation_data=validation, callbacks=[_StopAt(target)], shuffle=False,
      verbose=0).history["val_accuracy"]
  seconds = time.perf_counter() - began
  reached = accuracies[-1] >= target
  taken = int(model.optimizer.iterations)
  keras.backend.clear_session()
  return {"fresh": taken * batch_size // e if reached else -1, "steps": taken if reached else -1,
          "accuracies": " ".join(f"{accuracy:.4f}" for accuracy in accuracies), "seconds": round(seconds, 1)}


class _StopAt(keras.callbacks.Callback):
  """Ends a training when the validation accuracy reaches the target."""

  def __init__(self, target):
    super().__init__()
    self._target = target

  def on_epoch_end(self, epoch, logs=None):
    if logs["val_accuracy"] >= self._target:
      self.model.stop_training = True


if __name__ == "__main__":
  sys.exit(main())
