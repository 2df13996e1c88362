"""Accuracy with enough images and epochs for RandAugment to help (Lee et al., 2021, sections 7.1 and 7.5).

    python -m refurbish_tf.experiments.full_length choice
    python -m refurbish_tf.experiments.full_length comparison
    python -m refurbish_tf.experiments.full_length hyperparameters
    python -m refurbish_tf.experiments.full_length echoing
    python -m refurbish_tf.experiments.full_length cifar10

`choice` trains a small ResNet on a part of CIFAR-10, in the standard way and with crop and flip alone. It is validated on
training images that are not trained on. By it images, epochs and learning rate were chosen. `comparison` trains in all ways
what was chosen, and is validated on the test images. The number of seeds was fixed before. Behind these it trains the echoing of
Lee et al., 2021: docs/results.md has the plan.

The other two are for a GPU, with ResNet-18 on all images: `hyperparameters` is the paper's Figure 15, `echoing` Figure 3 of
Choi et al., 2019, with more factors.

`cifar10` also needs a GPU: it trains all ways on all images, with 5 or 10 seeds and a network that trains in seconds.

Each training adds a row to a table; it can be stopped at any time, and the same command goes on where it was. Nothing else
should run on the machine, as a row also has the processor's time.
"""
import argparse
import pathlib
import sys
import time

from refurbish_tf.experiments import accuracy, cifar10, echoing, positive_number, results, training, whole_number
from refurbish_tf.experiments.pipelines import measure_input

DATASET = "cifar10"
CROP_AND_FLIP = "simplified by 2"
KEY = ("dataset", "validation", "images", "epochs", "width", "precision", "learning_rate", "magnitude", "setting", "seed")
# Standard training beside crop and flip alone: images, epochs, width, precision, learning rate, magnitude, settings.
CHOICE = (
    (9_984, 50, 48, "float32", 0.2, 9, ("standard", CROP_AND_FLIP)),
    (4_608, 80, 48, "float32", 0.2, 9, ("standard", CROP_AND_FLIP)),
    (4_608, 80, 48, "float32", 0.4, 9, ("standard",)),
    # Faster on a processor that has bfloat16.
    (4_608, 80, 48, "mixed_bfloat16", 0.1, 9, ("standard",)),
    (4_608, 80, 48, "mixed_bfloat16", 0.2, 9, ("standard",)),
)
# What was chosen, likewise. The number of trainings in each setting.
CHOSEN = (4_608, 80, 48, "mixed_bfloat16", 0.2, 9)
SEEDS = {"standard": 16, "refurbish r=2": 16, "refurbish r=3": 16, "echo augmented e=3": 4, "cache after augmentation": 4,
         CROP_AND_FLIP: 4}
# Planned later, and trained behind all others: all augmentation is partial, none final, the paper's echoing.
PAPER_ECHO_SEEDS = {"refurbish r=2 split 4": 8, "refurbish r=3 split 4": 8}
OUTPUTS = {"choice": "choice.csv", "comparison": "comparison.csv", "hyperparameters": "hyperparameters.csv",
           "echoing": "echoing_resnet18.csv", "cifar10": "cifar10.csv"}
RESNET18_WIDTH = 64
PRECISION = "mixed_bfloat16"
# Learning rate and magnitude. Each is varied alone; the paper's magnitude for CIFAR-10 is 10.
HYPERPARAMETERS = ((0.1, 10), (0.05, 10), (0.2, 10), (0.4, 10), (0.1, 7), (0.1, 4))
HYPERPARAMETER_SETTINGS = ("standard", "refurbish r=2", "refurbish r=3")
ECHOING_FACTORS = (2, 3, 4, 5)
# Of the baseline, a multiple of the steps between validations. An echo by e may take e times as many, which need as many
# fresh samples.
ECHOING_MOST_STEPS = 3_968
ECHOING_SAMPLES_BETWEEN = 16_384


def choice():
  """The trainings of the choice, as keys of its table."""
  return [_row("train", *how, setting) for *how, settings in CHOICE for setting in settings]


def comparison():
  """The trainings of the comparison, as keys of its table. The settings of each plan take turns."""
  return [_row("test", *CHOSEN, setting, seed) for plan in (SEEDS, PAPER_ECHO_SEEDS)
          for seed in range(max(plan.values())) for setting, seeds in plan.items() if seed < seeds]


def hyperparameters(images, epochs):
  """The trainings of the hyperparameters, as keys of their table."""
  return [
      {"network": "resnet18",
       **_row("test", images, epochs, RESNET18_WIDTH, PRECISION, learning_rate, magnitude, setting)}
      for learning_rate, magnitude in HYPERPARAMETERS for setting in HYPERPARAMETER_SETTINGS]


def echoes(images, target):
  """The trainings with echoes, as keys of their table: the baseline, and each place with each factor."""
  return [
      {"network": "resnet18", "precision": PRECISION, "dataset": DATASET, "images": images, "target": target,
       "learning_rate": training.ECHOING_LEARNING_RATE, "where": where, "e": e, "batch_size": 128,
       "shuffle_buffer_size": echoing.SHUFFLE_BUFFER_SIZE, "most_steps": e * ECHOING_MOST_STEPS,
       "samples_between": min(images, ECHOING_SAMPLES_BETWEEN), "seed": 0}
      for where, e in [("baseline", 1), *((where, e) for e in ECHOING_FACTORS for where in echoing.PLACES)]]


def _row(validation, images, epochs, width, precision, learning_rate, magnitude, setting, seed=0):
  return dict(zip(KEY, (DATASET, validation, images, epochs, width, precision, learning_rate, magnitude, setting, seed)))


def train(row):
  """Trains once. Returns the results, as columns of the table; "cpu_seconds" are those of input and training together."""
  began = time.process_time()
  found = accuracy.run(augmentation="RandAugment", **row)
  return {**found, "cpu_seconds": round(time.process_time() - began, 1)}


def train_and_measure_input(row):
  """As `train`, and the CPU time of the same input for as many epochs, without a training: "input_cpu_seconds"."""
  loaded = accuracy.load(row["dataset"], row["images"], row["seed"], row["validation"])
  pipeline = accuracy.pipeline(loaded, "RandAugment", row["setting"], row["seed"], row["magnitude"])
  (_, seconds), = measure_input({row["setting"]: pipeline}, rounds=1, epochs=row["epochs"])[row["setting"]]
  return {**train(row), "input_cpu_seconds": round(seconds, 3)}


def run_echo(row):
  """Trains once until the target is reached. Returns the results, as columns of the table."""
  return echoing.run(accuracy.load(row["dataset"], row["images"], row["seed"], "test"), row)


def main(argv=None):
  """Runs the trainings that are missing in the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  programs = parser.add_subparsers(dest="what", required=True)
  for name, help_text in (
      ("choice", "images, epochs and learning rate for standard training"),
      ("comparison", "all ways with what was chosen"), ("hyperparameters", "learning rate and magnitude, on a GPU"),
      ("echoing", "fresh samples to a target, on a GPU"), ("cifar10", "all ways on all images, on a GPU")):
    program = programs.add_parser(name, help=help_text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    program.add_argument("--output", type=pathlib.Path, default=OUTPUTS[name], help="the table; an existing one is completed")
    if name in ("hyperparameters", "echoing"):
      program.add_argument("--images", type=whole_number(accuracy.LEAST_IMAGES), default=50_000,
                           help=f"train on this many images, at least {accuracy.LEAST_IMAGES}, rounded down to whole batches")
    if name == "hyperparameters":
      program.add_argument("--epochs", type=whole_number(1), default=20, help="of each training")
    if name == "echoing":
      program.add_argument("--target", type=positive_number(1), default=0.8,
                           help=f"accuracy on the first {echoing.VALIDATION_IMAGES:,} test images")
    if name == "cifar10":
      program.add_argument("--minutes", type=positive_number(), default=8.0, help="begin nothing that would end later")
      program.add_argument("--data", type=pathlib.Path, help="the images, as benchmarks/offline.py writes them; default: TFDS")
      program.add_argument("--quick", action="store_true", help="run all of it on a few drawn images, on any machine, as a test")
  args = parser.parse_args(argv)
  if args.what == "cifar10":
    return _all_images(parser, args)
  prices = (*accuracy.COLUMNS, "cpu_seconds")
  run, rows, columns = {
      "choice": lambda: (train, choice(), prices),
      "comparison": lambda: (train_and_measure_input, comparison(), (*prices, "input_cpu_seconds")),
      "hyperparameters": lambda: (train, hyperparameters(accuracy.whole_batches(args.images), args.epochs), prices),
      "echoing": lambda: (run_echo, echoes(accuracy.whole_batches(args.images), args.target), echoing.COLUMNS),
  }[args.what]()
  table, _ = results.open_table(parser, args.output, tuple(rows[0]), columns, lambda: [
      accuracy.load(DATASET, images, 0, rows[0].get("validation", "test")) for images in {row["images"] for row in rows}])
  table.complete(rows, run, _name, lambda row: (
      f"accuracy {row['accuracy']:.4f}" if "accuracy" in row else echoing.told(row)) + f" after {row['seconds']:.0f} s")


def _all_images(parser, args):
  """Adds to the table of `cifar10` what ends in time."""
  backend, devices = results.backend()
  if not (devices or args.quick):
    parser.error(f"cifar10 needs a GPU, and Keras{backend} finds none. KERAS_BACKEND chooses the backend; --quick runs anywhere.")
  plan = cifar10.QUICK if args.quick else cifar10.Plan()
  table, data = results.open_table(parser, args.output, cifar10.KEY, cifar10.COLUMNS, lambda: cifar10.load(args.data, plan))
  cifar10.complete(table, cifar10.Trainings(data), plan, args.minutes)


def _name(row):
  return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in (
      "images", "epochs", "width", "precision", "learning_rate", "magnitude", "setting", "where", "e", "seed") if name in row)


if __name__ == "__main__":
  sys.exit(main())
