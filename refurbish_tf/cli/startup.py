"""Reads the command line, runs the command and returns the exit status. Starts before TensorFlow is imported.

`refurbish_tf_launcher` loads this file by its path. At the top it imports neither the package nor anything slow, so
--help, --version and a mistyped option do not wait for TensorFlow.
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

# The units that `refurbish-tf store` prints.
UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

FAILED = 1
# The status that a shell reports for a process ended by a signal: 128 + SIGINT and 128 + SIGPIPE.
INTERRUPTED = 128 + 2
BROKEN_PIPE = 128 + 13


def main(argv=None):
  """Runs the command line `argv`, by default the command line of the process.

  Returns:
    The exit status: 0; 1 if the command failed or found a damaged store; 130 if Ctrl-C interrupted it; 141 if its
    output is no longer read, for example by `| head`.

  Raises:
    SystemExit: from argparse, with 0 after --help and --version, and with 2 for an invalid command line.
  """
  # Hides warnings that TensorFlow logs later, after `stderr_held_back`.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  try:
    args = _parser().parse_args(argv)
    with stderr_held_back():
      command = importlib.import_module(f"refurbish_tf.cli.{args.command}")
    status = command.run(args)
    # Flush here, where a broken pipe can still be handled, not when the interpreter exits.
    sys.stdout.flush()
    return status
  except KeyboardInterrupt:
    print("\ninterrupted", file=sys.stderr)
    return INTERRUPTED
  except BrokenPipeError:
    # The interpreter writes the rest of the buffer when it exits, which would fail again.
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


@contextlib.contextmanager
def stderr_held_back():
  """Hides what native libraries write to stderr when they start, unless something fails.

  TensorFlow writes some messages before its logging is set up, so no environment variable silences them all.
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
  """The parser of the command line. Its result, with the subcommand's parser, goes to the subcommand's `run`."""
  parser = argparse.ArgumentParser(
    prog="refurbish-tf", description="Reuse partially augmented training samples in tf.data pipelines."
  )
  parser.add_argument("--version", action="version", version=f"refurbish-tf {_version()}")
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
  _add_advise(commands)
  _add_demo(commands)
  _add_info(commands)
  _add_store(commands)
  for each in commands.choices.values():
    each.set_defaults(parser=each)
  return parser


def _version():
  file = pathlib.Path(__file__).resolve().parent.parent / "_internal" / "version.py"
  return re.search('^VERSION = "(.*)"$', file.read_text(encoding="utf-8"), re.MULTILINE)[1]


def _add_advise(commands):
  parser = commands.add_parser(
    "advise",
    help="measure the input pipeline for a folder of images, and recommend a strategy",
    description=(
      "Measures the input pipeline of a training run on the images of a folder, with RandAugment, crop and flip, and "
      "predicts how much faster each strategy would make it. Prints a table with the best strategy first, and a "
      "program to start from. It is rtf.advise for users who have no pipeline yet."
    ),
  )
  told = "a directory of images, or of one directory of images per class"
  parser.add_argument("folder", metavar="FOLDER", help=told)
  number = _number(int, "a whole number", 1)
  told = "height and width of the prepared images (default: %(default)s)"
  parser.add_argument("--size", type=number, default=224, metavar="PIXELS", help=told)
  told = "images per training step (default: %(default)s)"
  parser.add_argument("--batch-size", type=number, default=64, metavar="N", help=told)
  told = (
    "the time of a training step when its input is ready; with it, the first line says whether the input is too slow"
  )
  parser.add_argument("--step-seconds", type=_number(float, "a real number", 1e-6), metavar="S", help=told)
  told = "training epochs (default: %(default)s)"
  parser.add_argument("--epochs", type=number, default=90, metavar="N", help=told)
  told = "the most memory to use for kept samples, such as 8GB (default: half of the free memory)"
  parser.add_argument("--memory", type=_size, metavar="SIZE", help=told)
  told = "also consider keeping samples in this directory on a local disk (default: memory only)"
  parser.add_argument("--disk", type=pathlib.Path, metavar="DIRECTORY", help=told)
  told = "also say whether machines should share samples, at this many bytes per second, such as 125MB for 1 Gbit/s"
  parser.add_argument("--network", type=_size, metavar="SIZE", help=told)
  number, told = _number(float, "a real number", 1e-3), "seconds to measure, roughly (default: %(default)s)"
  parser.add_argument("--max-seconds", type=number, default=30, metavar="N", help=told)


def _add_demo(commands):
  parser = commands.add_parser(
    "demo",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    help="measure how fast photographs are prepared with and without reuse",
    description=(
      "Prepares photographs at 224x224 with a standard pipeline, with refurbish for each reuse factor, and with a "
      "cache of the decoded images. Prints images per second, CPU time and memory for each. Takes less than a minute "
      "on two idle CPU cores. Does not train a model."
    ),
  )
  told = "use the JPEG files in and below DIRECTORY (default: generated photographs)"
  parser.add_argument("--photos", nargs="?", default=argparse.SUPPRESS, metavar="DIRECTORY", help=told)
  number, told = _number(int, "a whole number", 2), "use at most the first N"
  parser.add_argument("--images", type=number, default=384, metavar="N", help=told)
  number, told = _number(float, "a real number", 1), "reuse factors, real numbers of at least 1"
  default = _Factors([2.0, 3.0])
  parser.add_argument("-r", dest="reuse", type=number, nargs="+", default=default, metavar="R", help=told)


def _add_info(commands):
  parser = commands.add_parser(
    "info",
    help="print facts for a bug report: versions, the machine, and a folder's images",
    description=(
      "Prints versions, CPU cores, memory and its limits, and how the library was built. For a folder, also prints the "
      "formats and sizes of its images, how EXIF turns them, and which ones cannot be decoded."
    ),
  )
  parser.add_argument("folder", metavar="FOLDER", nargs="?", help="examine the images in and below it")
  number, told = _number(int, "a whole number", 1), "examine at most N images (default: %(default)s)"
  parser.add_argument("--images", type=number, default=1000, metavar="N", help=told)


def _add_store(commands):
  parser = commands.add_parser(
    "store",
    help="print the contents of a cache store on disk, or of a level that machines share",
    description=(
      "Prints the contents of a cache store on disk, how it was written, and the training jobs that use it, with their "
      "progress in the epoch. For a level that machines share, prints the samples and bytes of each prefix."
    ),
  )
  told = "the directory of the store, or the address of a shared level, such as redis://host:6379/0"
  parser.add_argument("path", metavar="PATH", help=told)
  told = "read every sample; if checksums are wrong, those samples then count as missing, and the exit status is 1"
  parser.add_argument("--verify", action="store_true", help=told)
  told = "delete all samples of a shared level under this prefix, such as refurbish/0123456789abcdef0123"
  parser.add_argument("--delete", metavar="PREFIX", help=told)


class _Factors(list):
  """Reuse factors that --help prints as the user would type them."""

  def __str__(self):
    return " ".join(f"{r:g}" for r in self)


def _number(kind, what, least):
  """A type for argparse whose errors say what is allowed."""

  def parse(text):
    try:
      number = kind(text)
    except ValueError:
      number = math.nan
    if not least <= number < math.inf:
      raise argparse.ArgumentTypeError(f"must be {what} of at least {least}, got {text!r}")
    return number

  return parse


def _size(text):
  """A type for argparse: a number of bytes."""
  found = re.fullmatch(rf"(\d+(?:\.\d*)?)\s*({'|'.join(UNITS)})", text)
  number = int(float(found[1]) * UNITS[found[2]]) if found else 0
  if number < 1:
    raise argparse.ArgumentTypeError(f"must be a size such as 8GB or 500MB, got {text!r}")
  return number
