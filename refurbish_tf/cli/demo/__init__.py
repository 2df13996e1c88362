"""The command `refurbish-tf demo`: compares standard training with reuse of samples.

    refurbish-tf demo
    refurbish-tf demo --dataset mnist --epochs 10 --reuse 2 4 --output figures/
    refurbish-tf demo --photos               # generated ones
    refurbish-tf demo --photos DIRECTORY     # yours
"""
import importlib.util
import sys
import tempfile

from refurbish_tf.cli.startup import FAILED, FIGURE, GENERATED, IMAGES, PHOTOGRAPHS, stderr_held_back

VALIDATION_IMAGES = 2_500


def run(args):
  """Runs the subcommand. Returns its exit status."""
  return (_photographs if hasattr(args, "photos") else _training)(args.parser, args)


def _training(parser, args):
  # Checked now and not after minutes of training.
  if importlib.util.find_spec("matplotlib") is None:
    parser.error("the figure needs Matplotlib: `pip install matplotlib`, or install the extra `demo` of refurbish-tf")
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
    reuse = _distinct(args.reuse)
    print(report.introduction_to_photographs(source, reuse), flush=True)
    with report.Progress() as progress:
      result = experiment.run_photographs(source, reuse, progress)
  except images.DatasetError as error:
    parser.error(f"argument --photos: {error}")
  except tf.errors.OpError as error:
    # A file is damaged, or was deleted meanwhile.
    print(f"refurbish-tf demo: {error.message.partition(chr(10))[0]}", file=sys.stderr)
    return FAILED
  print(report.table_of_photographs(result))
  print()
  print(report.findings_of_photographs(result))
  return 0


def _modules():
  """Imports the modules that run the demo. Only now, as they import Keras."""
  with stderr_held_back():
    from refurbish_tf.cli.demo import experiment, report
    from refurbish_tf.experiments import images
    experiment.start_tensorflow()
  return experiment, report, images


def _distinct(factors):
  return tuple(dict.fromkeys(factors))


def _writable(output):
  """The path of the figure. Makes its directory and checks that it can be written."""
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
