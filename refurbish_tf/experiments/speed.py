"""How fast the input pipelines are, without a model (images/s of Lee et al., 2021, Figures 9 to 12).

    python -m refurbish_tf.experiments.speed

The pipelines are those of `refurbish_tf.experiments.accuracy`. They take turns, so that other work on the machine
affects all of them alike; the first round, in which caches fill, is not counted. Each turn makes a row.
"""
import argparse
import pathlib
import sys

from refurbish_tf.experiments import accuracy
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments import results, whole_number
from refurbish_tf.experiments.pipelines import measure_input

KEY = ("dataset", "images", "augmentation", "setting", "round")
LEAST_IMAGES = 10_000


def main(argv=None):
  """Measures the augmentations that are missing in the table, each with all its pipelines."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("--dataset", default="cifar10", help="an image classification set of TensorFlow Datasets")
  parser.add_argument("--images", type=whole_number(accuracy.LEAST_IMAGES), default=1_536,
                      help=f"take this many images, at least {accuracy.LEAST_IMAGES}, rounded down to whole batches")
  parser.add_argument("--rounds", type=whole_number(1), default=5, help="turns of each pipeline")
  parser.add_argument("--output", type=pathlib.Path, default="speed.csv", help="the table; an existing one is completed")
  args = parser.parse_args(argv)
  images = accuracy.whole_batches(args.images)
  # Enough that little of it is read ahead in the turn of another pipeline.
  epochs = max(1, LEAST_IMAGES // images)
  table, loaded = results.open_table(
      parser, args.output, KEY, ("images_per_second", "cpu_microseconds"), lambda: image_sets.load_all(args.dataset, images))
  for augmentation in accuracy.AUGMENTATIONS:
    rows = {setting: {"dataset": args.dataset, "images": images, "augmentation": augmentation, "setting": setting}
            for setting in accuracy.settings(augmentation)}
    if all(table.has({**row, "round": number}) for row in rows.values() for number in range(1, args.rounds + 1)):
      print(f"{augmentation} is in {table.path}")
      continue
    measured = measure_input(
        {setting: accuracy.pipeline(loaded, augmentation, setting, seed=0) for setting in rows}, 1 + args.rounds, epochs,
        on_turn=lambda number, setting: print(f"{augmentation}, round {number} of {args.rounds}: {setting}", flush=True))
    # All at once, so that a round's rows are of one session.
    table.add([
        {**rows[setting], "round": number, "images_per_second": round(epochs * images / wall),
         "cpu_microseconds": round(1e6 * cpu / (epochs * images), 1)}
        for setting, turns in measured.items() for number, (wall, cpu) in enumerate(turns) if number])


if __name__ == "__main__":
  sys.exit(main())
