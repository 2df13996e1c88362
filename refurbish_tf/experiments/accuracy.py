"""Accuracy beside speed: standard, refurbished, echoed, cached and simplified (Lee et al., 2021, Figures 9 to 12, 14).

    python -m refurbish_tf.experiments.accuracy
    python -m refurbish_tf.experiments.accuracy --images 50000 --epochs 200 --seeds 3 --width 64

Trains a small ResNet on CIFAR-10 in every setting with every seed, all for the same number of optimizer steps, and writes
a row for each training. All use the same learning rate, by default the best one for standard training, see
`training.py`. Validation is on CIFAR-10's test images, which also served to choose the learning rate.
"""
import argparse
import dataclasses
import pathlib
import sys
import time

import keras

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments import positive_number, results, training, whole_number
from refurbish_tf.experiments.pipelines import BATCH_SIZE, Pipelines, decoded

MAGNITUDE = 9
PADDING = 4
LEAST_IMAGES = 6 * BATCH_SIZE
# Images of the training set on which choices are validated.
HELD_OUT = 10_000
KEY = ("dataset", "images", "epochs", "width", "learning_rate", "augmentation", "setting", "seed")
# What `run` returns.
COLUMNS = ("steps", "fresh", "accuracy", "train_accuracy", "accuracies", "validation_images", "parameters", "seconds")
AUGMENTATIONS = ("RandAugment", "AutoAugment")
# The settings of the paper's comparison. MORE_SETTINGS, with RandAugment alone: its Figures 12, the split, and 14, the
# order.
SETTINGS = {
    "standard": Pipelines.standard,
    "refurbish r=2": lambda ways: ways.refurbished(2),
    "refurbish r=3": lambda ways: ways.refurbished(3),
    "echo augmented e=2": lambda ways: ways.echoed(2, "after_augment"),
    "echo augmented e=3": lambda ways: ways.echoed(3, "after_augment"),
    "echo batches e=2": lambda ways: ways.echoed(2, "after_batch"),
    "echo batches e=3": lambda ways: ways.echoed(3, "after_batch"),
    "cache after augmentation": Pipelines.cached,
    "simplified by 1": Pipelines.standard,
    "simplified by 2": Pipelines.standard,
}
MORE_SETTINGS = {
    **{f"refurbish r=3 split {at}": lambda ways: ways.refurbished(3) for at in (1, 3, 4)},
    "refurbish r=3 balanced only": lambda ways: ways.refurbished(3, shuffle="uniform"),
    "refurbish r=3 naive": lambda ways: ways.refurbished(3, eviction="reference_count", shuffle="uniform"),
}
# Of the comparison at full length alone.
FULL_LENGTH_SETTINGS = {"refurbish r=2 split 4": lambda ways: ways.refurbished(2)}


def main(argv=None):
  """Runs the trainings that are missing in the table."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("--dataset", default="cifar10", help="an image classification set of TensorFlow Datasets")
  parser.add_argument("--images", type=whole_number(LEAST_IMAGES), default=1_536,
                      help=f"train on this many images, at least {LEAST_IMAGES}, rounded down to whole batches")
  parser.add_argument("--epochs", type=whole_number(1), default=50)
  parser.add_argument("--seeds", type=whole_number(1), default=3, help="trainings in each setting")
  parser.add_argument("--width", type=whole_number(1), default=16, help="channels of the first stage of the network")
  parser.add_argument("--learning-rate", type=positive_number(), default=training.LEARNING_RATE)
  parser.add_argument("--settings", nargs="+", choices=[*SETTINGS, *MORE_SETTINGS], default=[*SETTINGS, *MORE_SETTINGS])
  parser.add_argument("--augmentations", nargs="+", choices=AUGMENTATIONS, default=AUGMENTATIONS)
  parser.add_argument("--output", type=pathlib.Path, default="accuracy.csv", help="the table; an existing one is completed")
  args = parser.parse_args(argv)
  table, _ = results.open_table(
      parser, args.output, KEY, COLUMNS, lambda: image_sets.load_all(args.dataset, whole_batches(args.images)))
  rows = [
      {"dataset": args.dataset, "images": whole_batches(args.images), "epochs": args.epochs, "width": args.width,
       "learning_rate": args.learning_rate, "augmentation": augmentation, "setting": setting, "seed": seed}
      # The most important comparisons run first.
      for group in (SETTINGS, MORE_SETTINGS) for seed in range(args.seeds) for augmentation in args.augmentations
      for setting in settings(augmentation) if setting in group and setting in args.settings]
  table.complete(
      rows, lambda row: run(**row), lambda row: f"{row['augmentation']}, {row['setting']}, seed {row['seed']}",
      lambda row: f"accuracy {row['accuracy']:.4f} after {row['seconds']:.0f} s")


def whole_batches(images):
  """The most images, up to `images`, with which echoing by 2 and by 3 leaves whole batches: the same steps for all."""
  return images // LEAST_IMAGES * LEAST_IMAGES


def settings(augmentation):
  """The settings in which an augmentation is trained."""
  return [*SETTINGS, *MORE_SETTINGS] if augmentation == "RandAugment" else [*SETTINGS]


def pipeline(images, augmentation, setting, seed, magnitude=MAGNITUDE):
  """The pipeline of a setting, from `Images`."""
  simplified, at = split_of(setting)
  ways = Pipelines(images, layers(augmentation, simplified, magnitude), at, seed)
  return {**SETTINGS, **MORE_SETTINGS, **FULL_LENGTH_SETTINGS}[setting](ways)


def split_of(setting):
  """The number of expensive layers that a setting leaves out, and the number of layers in its partial augmentation."""
  number = int(setting.rpartition(" ")[2]) if "simplified" in setting or "split" in setting else 2
  return (number, 1) if "simplified" in setting else (0, number)


def layers(augmentation, simplified=0, magnitude=MAGNITUDE):
  """Two expensive layers, less the `simplified` ones, a random crop and a random flip. The magnitude is RandAugment's."""
  if augmentation == "AutoAugment":
    first, second = augment.auto_augment("cifar10")
    # The first layer returns more than the image, for the second one.
    expensive = [[first, second], [lambda image, seed: first(image, seed).image], []][simplified]
  else:
    expensive = augment.rand_augment(2, magnitude)[simplified:]
  return [*expensive, augment.random_crop(PADDING), augment.random_flip()]


def load(dataset, images, seed, validation):
  """The `Images` of a training; `validation` as in `run`."""
  if validation == "test":
    return image_sets.load_all(dataset, images, seed)
  loaded = image_sets.load_all(dataset, images + HELD_OUT, seed)
  return dataclasses.replace(loaded, train=loaded.train.take(images), validation=loaded.train.skip(images))


def run(dataset, images, epochs, width, learning_rate, augmentation, setting, seed, magnitude=MAGNITUDE,
        validation="test", network="small_resnet", precision="float32"):
  """Trains once.

  Args:
    dataset, images, epochs, width, learning_rate, augmentation, setting, seed: see `KEY`.
    magnitude: of RandAugment.
    validation: "test", or "train": images of the training set that are not trained on, for choices.
    network: a name in `training.NETWORKS`.
    precision: of Keras, "float32" or "mixed_bfloat16".

  Returns:
    The results: a dict with `COLUMNS`. "accuracies" are after each fifth of the epochs.
  """
  keras.utils.set_random_seed(seed)
  loaded = load(dataset, images, seed, validation)
  train = pipeline(loaded, augmentation, setting, seed, magnitude)
  # Decoded once and kept.
  validated = decoded(loaded.validation, loaded).batch(500).cache()
  with training.computing_with(precision):
    model = training.compiled(training.NETWORKS[network](loaded, width), epochs * len(train), learning_rate)
  began = time.perf_counter()
  history = model.fit(
      train, epochs=epochs, validation_data=validated,
      validation_freq=[*range(epochs, 0, -max(1, epochs // 5))], shuffle=False, verbose=0).history
  seconds = time.perf_counter() - began
  keras.backend.clear_session()
  return found(model, history, train, setting, images * epochs, len(loaded.validation), seconds)


def found(model, history, train, setting, samples, validation_images, seconds):
  """The results of a training in `setting` that has used `samples` images, as a dict with `COLUMNS`."""
  stages = rtf.stats(train)
  if stages:
    fresh = stages[0].total.fresh
  else:
    # Without `refurbish` nothing counts them.
    factor = int(setting[-1]) if setting.startswith("echo") else 1
    fresh = samples // len(history["accuracy"]) if setting.startswith("cache") else samples // factor
  return {
      "steps": int(model.optimizer.iterations), "fresh": fresh, "accuracy": round(history["val_accuracy"][-1], 4),
      "train_accuracy": round(history["accuracy"][-1], 4),
      "accuracies": " ".join(f"{accuracy:.4f}" for accuracy in history["val_accuracy"]),
      "validation_images": validation_images, "parameters": model.count_params(), "seconds": round(seconds, 1)}


if __name__ == "__main__":
  sys.exit(main())
