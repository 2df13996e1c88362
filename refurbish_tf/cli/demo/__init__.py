"""`refurbish-tf demo`: compares standard training with reuse of samples.

    refurbish-tf demo
    refurbish-tf demo --dataset mnist --epochs 10 --reuse 2 4 --output figures/
"""
import argparse
import math
import pathlib
import tempfile

from refurbish_tf.cli.startup import stderr_held_back
from refurbish_tf.experiments import whole_number

FIGURE = "refurbish_demo.png"


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
      "--images", type=whole_number(2), default=10_000, metavar="N", help="train on the first N images at most")
  parser.add_argument("--epochs", type=whole_number(1), default=20, metavar="N", help="epochs of each training")
  parser.add_argument(
      "--reuse", type=_reuse_factor, nargs="+", default=_Factors([2.0, 3.0]), metavar="R",
      help="reuse factors, real numbers of at least 1")
  # Of the seeds 0 to 4, this one's accuracies are the nearest to the means; between seeds they differ by some points.
  parser.add_argument(
      "--seed", type=whole_number(0, 2**31 - 1), default=1, metavar="N",
      help="of the initial weights, the order of the samples and the augmentation")
  parser.add_argument(
      "--output", type=pathlib.Path, default=FIGURE, metavar="PATH",
      help="the figure: a file ending in .png, or a directory to write it into")
  parser.set_defaults(run=lambda args: _demo(parser, args))


def _demo(parser, args):
  # Found out now and not after minutes of training.
  try:
    figure = _writable(args.output)
  except OSError as error:
    parser.error(f"argument --output: {error}")
  with stderr_held_back():
    from refurbish_tf.cli.demo import experiment, report
    from refurbish_tf.experiments import images
    experiment.start_tensorflow()

  progress = report.Progress()
  try:
    source = images.load(args.dataset, args.images, args.seed)
  except images.DatasetError as error:
    parser.error(f"argument --dataset: {error}")
  settings = experiment.Settings(epochs=args.epochs, reuse=tuple(dict.fromkeys(args.reuse)), seed=args.seed)
  print(report.introduction(source, settings), flush=True)
  with progress:
    result = experiment.run(source, settings, progress)
  print(report.table(result))
  print()
  print(report.findings(result))
  report.draw(result, figure)
  print(f"\nFigure: {figure}")
  return 0


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
