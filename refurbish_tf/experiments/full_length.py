"""Accuracy on all images of CIFAR-10 (Lee et al., 2021, section 7.1), on a GPU.

    KERAS_BACKEND=jax python -m refurbish_tf.experiments.full_length cifar10 --minutes 8

All ways, with 5 or 10 seeds and a network that trains in seconds: `cifar10.py`. Each turn adds its rows to a table; it can be
stopped at any time, and the same command goes on where it was. Nothing else should run on the machine, as a row also has the
processor's time.
"""
import argparse
import pathlib
import sys

from refurbish_tf.experiments import cifar10, positive_number, results


def main(argv=None):
  """Adds to the table what ends in time."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument("what", choices=["cifar10"], help="all ways on all images")
  parser.add_argument("--output", type=pathlib.Path, default="cifar10.csv", help="the table; an existing one is completed")
  parser.add_argument("--minutes", type=positive_number, default=8.0, help="begin nothing that would end later")
  parser.add_argument("--data", type=pathlib.Path, help="the images, as benchmarks/offline.py writes them; default: TFDS")
  parser.add_argument("--quick", action="store_true", help="run all of it on a few drawn images, on any machine, as a test")
  args = parser.parse_args(argv)
  backend, devices = results.backend()
  if not (devices or args.quick):
    parser.error(f"cifar10 needs a GPU, and Keras{backend} finds none. KERAS_BACKEND chooses the backend; --quick runs anywhere.")
  plan = cifar10.QUICK if args.quick else cifar10.Plan()
  table, data = results.open_table(parser, args.output, cifar10.KEY, cifar10.COLUMNS, lambda: cifar10.load(args.data, plan))
  cifar10.complete(table, cifar10.Trainings(data), plan, args.minutes)


if __name__ == "__main__":
  sys.exit(main())
