"""`refurbish-tf demo`: compares standard training with reuse of samples.

    refurbish-tf demo
    refurbish-tf demo --dataset mnist --epochs 10 --reuse 2 4 --output figures/
    refurbish-tf demo --photos ~/Pictures
"""
import argparse
import importlib.util
import math
import pathlib
import sys
import tempfile

from refurbish_tf.cli.startup import FAILED
from refurbish_tf.cli.startup import stderr_held_back
from refurbish_tf.experiments import whole_number

FIGURE = "refurbish_demo.png"
IMAGES, PHOTOGRAPHS, VALIDATION_IMAGES = 5_000, 384, 2_500
GENERATED = ""


def add_parser(commands):
  """Adds the subcommand to those of the command line."""
  parser = commands.add_parser(
      "demo", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
      help="train a small CNN with and without reuse and compare speed and accuracy",
      description=(
          "Trains a small CNN on the same images with standard augmentation, with refurbish for each reuse factor, "
          "with echo in its three places, and with Dataset.cache after the augmentation as the warning example; prints "
          "one table and draws one figure. Takes three to four minutes on two CPU cores that do nothing else."))
  parser.add_argument(
      "--dataset", default="cifar10", metavar="NAME",
      help="an image classification set of TensorFlow Datasets, or `shapes`, which is built in")
  parser.add_argument(
      "--photos", nargs="?", const=GENERATED, default=argparse.SUPPRESS, metavar="DIRECTORY",
      help="instead of all this, measure the input alone with photographs at 224x224: the JPEG files in DIRECTORY and "
      "below, or generated ones. No model is trained, no figure drawn; --images and --reuse count")
  parser.add_argument(
      "--images", type=whole_number(2), default=argparse.SUPPRESS, metavar="N",
      help=f"use the first N images at most (default: {IMAGES:,}; with --photos: {PHOTOGRAPHS})")
  parser.add_argument("--epochs", type=whole_number(1), default=8, metavar="N", help="epochs of each training")
  parser.add_argument(
      "--seeds", type=whole_number(1), default=3, metavar="N",
      help="trainings of each kind: with other initial weights, another order and another augmentation, to see what is "
      "chance in the accuracy")
  parser.add_argument(
      "--reuse", type=_reuse_factor, nargs="+", default=_Factors([2.0, 3.0]), metavar="R",
      help="reuse factors, real numbers of at least 1")
  parser.add_argument(
      "--output", type=pathlib.Path, default=FIGURE, metavar="PATH",
      help="the figure: a file ending in .png, or a directory to write it into")
  parser.set_defaults(run=lambda args: (_photographs if hasattr(args, "photos") else _training)(parser, args))


def _training(parser, args):
  # Found out now and not after minutes of training.
  if importlib.util.find_spec("matplotlib") is None:
    parser.error("the figure needs Matplotlib: `pip install matplotlib`, or install refurbish-tf with its extra `demo`")
  try:
    figure = _writable(args.output)
  except OSError as error:
    parser.error(f"argument --output: {error}")
  experiment, report, images = _modules()
  try:
    source = images.load(args.dataset, getattr(args, "images", IMAGES), most_validation=VALIDATION_IMAGES)
  except images.DatasetError as error:
    parser.error(f"argument --dataset: {error}")
  settings = experiment.Settings(epochs=args.epochs, reuse=_distinct(args.reuse), seeds=args.seeds)
  print(report.introduction(source, settings), flush=True)
  with report.Progress() as progress:
    result = experiment.run(source, settings, progress)
  print(report.table(result))
  print()
  print(report.findings(result))
  try:
    report.draw(result, figure)
  except OSError as error:
    print(f"refurbish-tf demo: cannot write {figure}: {error.strerror}", file=sys.stderr)
    return FAILED
  print(f"\nFigure: {figure}")
  return 0


def _photographs(parser, args):
  experiment, report, images = _modules()
  import tensorflow as tf
  try:
    directory = None if args.photos == GENERATED else args.photos
    source = images.photographs(directory, getattr(args, "images", PHOTOGRAPHS))
    print(report.introduction_to_photographs(source), flush=True)
    with report.Progress() as progress:
      result = experiment.run_photographs(source, _distinct(args.reuse), progress)
  except images.DatasetError as error:
    parser.error(f"argument --photos: {error}")
  except tf.errors.OpError as error:
    # A file that is damaged, or was deleted meanwhile.
    print(f"refurbish-tf demo: {error.message.partition(chr(10))[0]}", file=sys.stderr)
    return FAILED
  print(report.table_of_photographs(result))
  print()
  print(report.findings_of_photographs(result))
  return 0


def _modules():
  """What runs the demo: it imports Keras, so only now."""
  with stderr_held_back():
    from refurbish_tf.cli.demo import experiment, report
    from refurbish_tf.experiments import images
    experiment.start_tensorflow()
  return experiment, report, images


def _distinct(factors):
  return tuple(dict.fromkeys(factors))


class _Factors(list):
  """Reuse factors that --help shows, as the default, just as one types them."""

  def __str__(self):
    return " ".join(f"{r:g}" for r in self)


def _reuse_factor(text):
  try:
    r = float(text)
  except ValueError:
    r = math.nan
  if not (r >= 1 and math.isfinite(r)):
    raise argparse.ArgumentTypeError(
        f"a reuse factor must be a real number of at least 1, such as 2 or 1.5, got {text!r}")
  return r


def _writable(output):
  """The path of the figure, in a directory that exists and can be written."""
  if output.suffix and not output.is_dir():
    if output.suffix.lower() != ".png":
      raise OSError(f"must end in .png or be a directory, got {str(output)!r}")
    path = output
  else:
    path = output / FIGURE
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
      pass
  except OSError as error:
    raise OSError(f"cannot write into {str(path.parent)!r}: {error.strerror}") from None
  return path
