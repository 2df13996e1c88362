"""How fast the input pipelines are, without a model (images/s of Lee et al., 2021, Figures 9 to 12).

    python -m refurbish_tf.experiments.speed

The pipelines are those of `refurbish_tf.experiments.accuracy`. They take turns, epoch by epoch, so that whatever else the
machine does falls upon all of them alike; the first epochs, in which caches fill, are not counted. A row for each epoch.
"""
import argparse
import pathlib
import sys

from refurbish_tf.experiments import accuracy
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments import results
from refurbish_tf.experiments.pipelines import measure_input

KEY = ("dataset", "images", "augmentation", "setting", "epoch")


def main(argv=None):
  """Measures what is missing in the table: an augmentation is measured as a whole, or not at all."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("--dataset", default="cifar10", help="an image classification set of TensorFlow Datasets")
  parser.add_argument("--images", type=int, default=1_536, help="the first so many, rounded to whole batches")
  parser.add_argument("--epochs", type=int, default=5, help="of each pipeline")
  parser.add_argument("--output", type=pathlib.Path, default=results.DIRECTORY / "speed.csv")
  args = parser.parse_args(argv)
  table = results.Table(args.output, KEY)
  images = accuracy.whole_batches(args.images)
  loaded = image_sets.load(args.dataset, images)
  for augmentation in accuracy.AUGMENTATIONS:
    rows = {setting: {"dataset": args.dataset, "images": images, "augmentation": augmentation, "setting": setting}
            for setting in accuracy.settings(augmentation)}
    if all(table.has({**row, "epoch": epoch}) for row in rows.values() for epoch in range(1, 1 + args.epochs)):
      print(f"{augmentation} is in {table.path}")
      continue
    measured = measure_input(
        {setting: accuracy.pipeline(loaded, augmentation, setting, seed=0) for setting in rows}, 1 + args.epochs,
        on_epoch=lambda number, setting: print(f"{augmentation}, epoch {number} of {args.epochs}: {setting}", flush=True))
    for setting, seconds in measured.items():
      for epoch, (wall, cpu) in enumerate(seconds):
        if epoch and not table.has({**rows[setting], "epoch": epoch}):
          table.add({**rows[setting], "epoch": epoch, "images_per_second": round(images / wall),
                     "cpu_microseconds": round(1e6 * cpu / images, 1)})


if __name__ == "__main__":
  sys.exit(main())
