"""The command `refurbish-tf advise FOLDER`: advice for a folder of images, before any code is written."""

import pathlib
import sys

import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import checks
from refurbish_tf.cli.startup import FAILED
from refurbish_tf.sources.image_folder import FORMATS

_IMPORTS = "import tensorflow as tf\nimport refurbish_tf as rtf"
_WITH_CLASSES = "source = rtf.sources.image_folder({folder!r})"
_WITHOUT_CLASSES = """\
import pathlib

files = [str(path) for path in sorted(pathlib.Path({folder!r}).iterdir())
         if path.suffix.lower() in {formats}]
source = tf.data.Dataset.from_tensor_slices(files).map(tf.io.read_file, tf.data.AUTOTUNE)"""
# The layers that docs/photographs.md recommends.
_LAYERS = """\
layers = [
    rtf.augment.decode_random_resized_crop({size}), *rtf.augment.rand_augment(),
    rtf.augment.random_crop(padding=4), rtf.augment.random_flip(), rtf.augment.normalize()]"""


def run(args):
  """Runs the subcommand. Returns its exit status."""
  parser = args.parser
  if checks.scheme_of(args.folder) is not None:
    parser.error(
      f"argument FOLDER: must be a local directory, got {args.folder!r}. For gs://, write Python: "
      "rtf.advise(rtf.sources.image_folder(FOLDER), layers, batch_size=64)."
    )
  args.folder = pathlib.Path(args.folder)
  try:
    inside = list(args.folder.iterdir()) if args.folder.is_dir() else []
    has_classes = any(path.is_dir() and not path.name.startswith(".") for path in inside)
    # `image_folder` also raises the error for a folder without images.
    has_images = any(path.suffix.lower() in FORMATS for path in inside)
    of_source = (_WITH_CLASSES if has_classes or not has_images else _WITHOUT_CLASSES).format(
      folder=str(args.folder), formats=FORMATS
    )
    # Run the program that is printed below, so that the advice is for exactly these lines.
    program = f"{_IMPORTS}\n\n{of_source}\n{_LAYERS.format(size=args.size)}"
    names = {}
    exec(program, names)
  except OSError as error:
    parser.error(f"FOLDER {str(args.folder)!r} cannot be read: {error.strerror}")
  except ValueError as error:
    parser.error(f"argument FOLDER: {error}")
  if args.disk is not None and not args.disk.is_dir():
    parser.error(f"argument --disk: {str(args.disk)!r} is not a directory")
  try:
    options = ("batch_size", "epochs", "memory", "disk", "network", "step_seconds", "max_seconds")
    advice = rtf.advise(names["source"], names["layers"], **{name: getattr(args, name) for name in options})
  except (ValueError, tf.errors.OpError) as error:
    # For example, a file is damaged.
    print(f"refurbish-tf advise: {getattr(error, 'message', str(error)).partition(chr(10))[0]}", file=sys.stderr)
    return FAILED
  # The advice ends with its lines of code; the lines for the source and the layers go before them.
  print(f"{str(advice).removesuffix(advice.code)}{program}\n{advice.code}")
  return 0
