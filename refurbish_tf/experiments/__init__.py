"""The experiments of the papers, rerun with this package. The notebooks in `notebooks/` show their results.

    python -m refurbish_tf.experiments.accuracy
    python -m refurbish_tf.experiments.echoing
    python -m refurbish_tf.experiments.full_length comparison
    python -m refurbish_tf.experiments.speed

Each writes a table with a row for each training or measurement, and resumes where it was stopped: rows that are in the
table are not run again. The tables in `results/` come with the package; each row names the command and the commit that
made it. Besides TensorFlow they need Keras and TensorFlow Datasets.
"""
import argparse
import math
import numbers


def check_parameters(**parameters):
  """Checks the parameters of a notebook, each given as a pair of its value and the least allowed value.

  >>> check_parameters(IMAGES=(1536, 768), EPOCHS=(6, 2))

  Raises:
    TypeError: a value is not a whole number.
    ValueError: a value is below the least allowed one.
  """
  for name, (value, least) in parameters.items():
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
      raise TypeError(
          f"{name} must be a whole number of at least {least}, got {value!r}. Change it in the parameters cell.")
    if value < least:
      raise ValueError(
          f"{name} must be a whole number of at least {least}, got {value!r}. Change it in the parameters cell.")


def whole_number(least, most=None):
  """A type for argparse whose errors say what is allowed."""
  allowed = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

  def parse(text):
    try:
      number = int(text)
    except ValueError:
      number = None
    if number is None or number < least or (most is not None and number > most):
      raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
    return number

  return parse


def positive_number(most=math.inf):
  """As `whole_number`, for a number above 0 and at most `most`."""
  allowed = "a number above 0" if most == math.inf else f"a number above 0 and at most {most:g}"

  def parse(text):
    try:
      number = float(text)
    except ValueError:
      number = math.nan
    if not 0 < number <= most or number == math.inf:
      raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
    return number

  return parse
