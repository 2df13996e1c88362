"""Reads the command line and runs the command, from before TensorFlow is imported until its exit status.

`refurbish_tf_launcher` loads this file by its path: it imports nothing of the package and nothing slow at its top. So
--help and --version do not wait for TensorFlow, nor does who mistypes an option.
"""
import argparse
import contextlib
import importlib
import math
import os
import pathlib
import re
import sys
import tempfile

# Of `demo`.
FIGURE = "refurbish_demo.png"
IMAGES, PHOTOGRAPHS = 5_000, 384
GENERATED = ""

FAILED = 1
# What a shell reports of a process that was ended by this signal: 128 + SIGINT and 128 + SIGPIPE.
INTERRUPTED = 128 + 2
BROKEN_PIPE = 128 + 13


def main(argv=None):
  """Runs the command line `argv`, that of the process if None.

  Returns:
    The exit status: 0, or 1 if the command failed or found what it was to look for (a damaged store), 130 if it was
    interrupted by Ctrl-C, 141 if nobody reads its output any more, as behind `| head`.

  Raises:
    SystemExit: argparse's, with 0 after --help and --version, and with 2 for a command line that is not understood.
  """
  # For what TensorFlow logs later.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  try:
    args = _parser().parse_args(argv)
    with stderr_held_back():
      command = importlib.import_module(f"refurbish_tf.cli.{args.command}")
    status = command.run(args)
    # Here, where a broken pipe can still be told, and not when the interpreter exits.
    sys.stdout.flush()
    return status
  except KeyboardInterrupt:
    print("\ninterrupted", file=sys.stderr)
    return INTERRUPTED
  except BrokenPipeError:
    # What is still buffered is written when the interpreter exits, and would fail once more.
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


@contextlib.contextmanager
def stderr_held_back():
  """Keeps off the terminal what native libraries write when they start, unless something fails.

  TensorFlow writes some of it before its logging is set up, so no environment variable silences it all.
  """
  sys.stderr.flush()
  with tempfile.TemporaryFile() as held_back:
    stderr = os.dup(2)
    os.dup2(held_back.fileno(), 2)
    try:
      yield
    except KeyboardInterrupt:
      raise
    except BaseException:
      held_back.seek(0)
      os.write(stderr, held_back.read())
      raise
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)


def _parser():
  """Of the command line. What it finds is given to `run` of the subcommand's module, with the subcommand's parser."""
  parser = argparse.ArgumentParser(
      prog="refurbish-tf", description="Reuse partially augmented training samples in tf.data pipelines.")
  parser.add_argument("--version", action="version", version=f"refurbish-tf {_version()}")
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
  _add_demo(commands)
  _add_store(commands)
  return parser


def _version():
  file = pathlib.Path(__file__).resolve().parent.parent / "_internal" / "version.py"
  return re.search('^VERSION = "(.*)"$', file.read_text(encoding="utf-8"), re.MULTILINE)[1]


def _add_demo(commands):
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
      "--images", type=_number(int, "a whole number", 2), default=argparse.SUPPRESS, metavar="N",
      help=f"use the first N images at most (default: {IMAGES:,}; with --photos: {PHOTOGRAPHS})")
  parser.add_argument(
      "--epochs", type=_number(int, "a whole number", 1), default=8, metavar="N", help="epochs of each training")
  parser.add_argument(
      "--seeds", type=_number(int, "a whole number", 1), default=3, metavar="N",
      help="trainings of each kind: with other initial weights, another order and another augmentation, to see what is "
      "chance in the accuracy")
  parser.add_argument(
      "--reuse", type=_number(float, "a real number", 1), nargs="+", default=_Factors([2.0, 3.0]), metavar="R",
      help="reuse factors, real numbers of at least 1")
  parser.add_argument(
      "--output", type=pathlib.Path, default=FIGURE, metavar="PATH",
      help="the figure: a file ending in .png, or a directory to write it into")
  parser.set_defaults(parser=parser)


def _add_store(commands):
  parser = commands.add_parser(
      "store", help="print what is in a cache store on disk",
      description="Prints what is in a cache store on disk and how it was written. Training jobs may use it meanwhile.")
  parser.add_argument("path", metavar="PATH", type=pathlib.Path, help="the directory of the store")
  parser.add_argument(
      "--verify", action="store_true",
      help="read every sample; those whose checksum is wrong are absent from then on; exit status 1 if there are")
  parser.set_defaults(parser=parser)


class _Factors(list):
  """Reuse factors that --help shows, as the default, just as one types them."""

  def __str__(self):
    return " ".join(f"{r:g}" for r in self)


def _number(kind, what, least):
  """A type for argparse, whose complaint says what is allowed."""

  def parse(text):
    try:
      number = kind(text)
    except ValueError:
      number = math.nan
    if not least <= number < math.inf:
      raise argparse.ArgumentTypeError(f"must be {what} of at least {least}, got {text!r}")
    return number

  return parse
