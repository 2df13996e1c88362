"""The experiments of the papers, rerun with this package. The notebooks in `notebooks/` show their results.

    python -m refurbish_tf.experiments.plots

This command draws the figures and writes the tables of the documentation. In a clone, trainings/ has programs that
train for hours. The tables in `results/` come with the package; each row names the command and the commit that made it.
TensorFlow Datasets reads CIFAR-10, and Matplotlib draws the figures: the extra `demo` installs both.
"""

import argparse
import math
import numbers


def check_parameters(**parameters):
  """Checks the parameters of a notebook, each given as a pair of its value and its smallest allowed value.

  >>> check_parameters(IMAGES=(1536, 768), EPOCHS=(6, 2))

  Raises:
    TypeError: a value is not a whole number.
    ValueError: a value is below its smallest allowed value.
  """
  for name, (value, least) in parameters.items():
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
      raise (ValueError if is_whole else TypeError)(
        f"{name} must be a whole number of at least {least}, got {value!r}. Change it in the parameters cell."
      )


def positive_number(text):
  """A type for argparse whose errors say what is allowed."""
  try:
    number = float(text)
  except ValueError:
    number = math.nan
  if not 0 < number < math.inf:
    raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
  return number
