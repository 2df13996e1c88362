"""How fast the input pipelines are, without a model (images/s of Lee et al., 2021, Figures 9 to 12).

    python -m refurbish_tf.experiments.speed

The pipelines are those of `refurbish_tf.experiments.accuracy`. They take turns, so that whatever else the machine does falls
upon all of them alike; the first round, in which caches fill, is not counted. A row for each turn.
"""
import argparse
import pathlib
import sys

from refurbish_tf.experiments import accuracy
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments import results
from refurbish_tf.experiments.pipelines import measure_input

KEY = ("dataset", "images", "augmentation", "setting", "round")
LEAST_IMAGES = 10_000


def main(argv=None):
  """Measures what is missing in the table: an augmentation is measured as a whole, or not at all."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("--dataset", default="cifar10", help="an image classification set of TensorFlow Datasets")
  parser.add_argument("--images", type=int, default=1_536, help="the first so many, rounded to whole batches")
  parser.add_argument("--rounds", type=int, default=5, help="turns of each pipeline")
  parser.add_argument("--output", type=pathlib.Path, default=results.DIRECTORY / "speed.csv")
  args = parser.parse_args(argv)
  table = results.Table(args.output, KEY)
  images = accuracy.whole_batches(args.images)
  # So many that what is read ahead in the turn of another is little.
  epochs = max(1, LEAST_IMAGES // images)
  loaded = image_sets.load(args.dataset, images)
  for augmentation in accuracy.AUGMENTATIONS:
    rows = {setting: {"dataset": args.dataset, "images": images, "augmentation": augmentation, "setting": setting}
            for setting in accuracy.settings(augmentation)}
    if all(table.has({**row, "round": number}) for row in rows.values() for number in range(1, 1 + args.rounds)):
      print(f"{augmentation} is in {table.path}")
      continue
    measured = measure_input(
        {setting: accuracy.pipeline(loaded, augmentation, setting, seed=0) for setting in rows}, 1 + args.rounds, epochs,
        on_turn=lambda number, setting: print(f"{augmentation}, round {number} of {args.rounds}: {setting}", flush=True))
    for setting, seconds in measured.items():
      for number, (wall, cpu) in enumerate(seconds):
        if number and not table.has({**rows[setting], "round": number}):
          table.add({**rows[setting], "round": number, "images_per_second": round(epochs * images / wall),
                     "cpu_microseconds": round(1e6 * cpu / (epochs * images), 1)})


if __name__ == "__main__":
  sys.exit(main())
