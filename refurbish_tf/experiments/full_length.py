"""Accuracy with enough images and epochs for RandAugment to help (Lee et al., 2021, section 7.1).

    python -m refurbish_tf.experiments.full_length choice

Trains a small ResNet on a part of CIFAR-10, in the standard way and with crop and flip alone, validated on training images
that are not trained on. So network, number of images, epochs, learning rate and magnitude can be chosen before anything is
compared on the test images. Each training adds a row to a table; it can be stopped at any time, and goes on where it was.
Nothing else should run on the machine, as a row also has the processor's time.
"""
import argparse
import pathlib
import sys
import time

from refurbish_tf.experiments import accuracy
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments import results

DATASET = "cifar10"
CROP_AND_FLIP = "simplified by 2"
EVALUATIONS = 10
KEY = ("dataset", "validation", "images", "epochs", "width", "learning_rate", "magnitude", "setting", "seed")
# Standard training beside crop and flip alone: images, epochs, width, learning rate, magnitude, settings.
CHOICE = (
    (9_984, 50, 48, 0.2, 9, ("standard", CROP_AND_FLIP)),
    (4_608, 80, 48, 0.2, 9, ("standard", CROP_AND_FLIP)),
    (4_608, 80, 48, 0.2, 4, ("standard",)),
    (2_304, 160, 48, 0.2, 9, ("standard", CROP_AND_FLIP)),
)


def choice():
  """The trainings of the choice, as keys of its table."""
  return [
      {"dataset": DATASET, "validation": "train", "images": images, "epochs": epochs, "width": width,
       "learning_rate": learning_rate, "magnitude": magnitude, "setting": setting, "seed": 0}
      for images, epochs, width, learning_rate, magnitude, settings in CHOICE for setting in settings]


def run(dataset, **row):
  """Trains once. Returns the results, as columns of the table."""
  began = time.process_time()
  found = accuracy.run(dataset, augmentation="RandAugment", evaluations=EVALUATIONS, **row)
  return {**found, "cpu_seconds": round(time.process_time() - began, 1)}


def main(argv=None):
  """Runs the trainings that are missing in the table."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("what", choices=["choice"], help="which trainings to run")
  parser.add_argument("--output", type=pathlib.Path, help="the table; an existing one is completed")
  args = parser.parse_args(argv)
  rows = choice()
  try:
    table = results.Table(args.output or f"{args.what}.csv", KEY)
    for images in {row["images"] for row in rows}:
      accuracy.load(DATASET, images, 0, "train")
  except (OSError, ValueError, image_sets.DatasetError) as error:
    parser.error(str(error))
  table.complete(
      rows, lambda row: run(**row), lambda row: f"{row['setting']}, {row['images']:,} images, {row['epochs']} epochs, width "
      f"{row['width']}, learning rate {row['learning_rate']}, magnitude {row['magnitude']}, seed {row['seed']}: "
      f"{row['accuracy']:.4f} after {row['seconds']:.0f} s")


if __name__ == "__main__":
  sys.exit(main())
