"""The experiments of the papers, rerun with this package. The notebooks in `notebooks/` show their results.

    python -m refurbish_tf.experiments.accuracy
    python -m refurbish_tf.experiments.echoing
    python -m refurbish_tf.experiments.echoing_time
    python -m refurbish_tf.experiments.full_length comparison
    python -m refurbish_tf.experiments.full_length cifar10
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
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
      raise (ValueError if is_whole else TypeError)(
          f"{name} must be a whole number of at least {least}, got {value!r}. Change it in the parameters cell.")


def whole_number(least):
  """A type for argparse whose errors say what is allowed."""
  return _number(int, lambda number: number >= least, f"a whole number of at least {least}")


def positive_number(most=math.inf):
  """As `whole_number`, for a number above 0 and at most `most`."""
  return _number(float, lambda number: 0 < number <= most and number < math.inf,
                 "a number above 0" + ("" if most == math.inf else f" and at most {most:g}"))


def _number(kind, is_allowed, allowed):
  def parse(text):
    try:
      if is_allowed(number := kind(text)):
        return number
    except ValueError:
      pass
    raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")

  return parse
