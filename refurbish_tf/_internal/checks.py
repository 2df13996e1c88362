"""Checks of arguments, with errors that say what was given and what is allowed."""

import contextlib
import numbers
import os
import re
import uuid

import numpy as np
import tensorflow as tf

from refurbish_tf._internal.tensorflow_internals import random_seed


@contextlib.contextmanager
def build_errors():
  """Turns errors that ops raise while a stage is built into ValueErrors, because its arguments caused them."""
  try:
    yield
  except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
    raise ValueError(message_of(error)) from None


@contextlib.contextmanager
def save_errors(function):
  """Adds advice to errors that occur when a checkpoint is written by the function of this name."""
  try:
    yield
  except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
    if isinstance(error, tf.errors.FailedPreconditionError):
      way_out = (
        "Draw random numbers with a seed (tf.random.stateless_*), and read Python objects with "
        "rtf.sources.data_source. Or accept that a resumed run draws different numbers: "
        "options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE."
      )
    else:
      way_out = (
        "TensorFlow cannot save the position in one of its datasets, such as one of a tf.data service. Save only the "
        "weights (with the same job_name and trainer_id a service continues where it is), or prepare in this process."
      )
    message = message_of(error).rstrip(".")
    raise type(error)(error.node_def, error.op, f"{function} cannot save the pipeline: {message}. {way_out}") from error


def message_of(error):
  """The message of an op's error, without the op's name, which TensorFlow adds before and after it."""
  message = re.sub(r"^\{\{.*?\}\}\s*", "", error.message)
  return re.sub(r"\s*\[Op:[\w>]+\].*$", "", message, flags=re.DOTALL)


def check_callable(name, function, or_else=""):
  """Raises TypeError if `function` cannot be called."""
  if not callable(function):
    raise TypeError(f"{name} must be a function as for tf.data.Dataset.map{or_else}, got {function!r}.")


def check_choice(name, value, choices):
  """Raises ValueError if `value` is not one of `choices`."""
  # Other types are rejected before the lookup, because `in` raises an error for an array.
  if value is not None and not isinstance(value, str) or value not in choices:
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def checked_flag(name, value, advice=""):
  """Returns `value` as a bool; raises TypeError unless it is one."""
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(f"{name} must be True or False, got {value!r}. {advice}".rstrip())
  return bool(value)


def check_whole_number(name, value, least, bits=63):
  """Raises TypeError or ValueError if `value` is not a whole number of at least `least` and below 2**bits."""
  if isinstance(value, bool) or not isinstance(value, numbers.Integral):
    raise TypeError(f"{name} must be a whole number of at least {least}, got {value!r}.")
  if not least <= value < 2**bits:
    raise ValueError(f"{name} must be a whole number of at least {least} and below 2**{bits}, got {value!r}.")


def check_name(name):
  if not isinstance(name, (str, type(None))):
    raise TypeError(f"name must be a string or None, got {name!r}.")


def check_not_in_function(method, after):
  """Raises ValueError if a stage is built in a traced function or a graph: each call would make a new stage."""
  if tf.executing_eagerly():
    return
  raise ValueError(
    f"{method} must not be built inside a tf.function, a graph of TensorFlow 1, or a function such as the argument of "
    "interleave or flat_map: each call would make a new stage that begins with its first epoch and knows nothing of "
    f"earlier ones. Build it once, outside: {after}, where read_file(file) returns the elements of a file. "
    "Pass the dataset to a tf.function as an argument."
  )


# Bounded, because each read may occupy a thread.
MOST_READS = 1024


def check_parallel_reads(value):
  """Raises TypeError or ValueError if `value` is not AUTOTUNE or from 1 to 1,024; returns it as an int."""
  is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not is_whole or value != tf.data.AUTOTUNE and not 1 <= value <= MOST_READS:
    raise (ValueError if is_whole else TypeError)(
      f"num_parallel_reads must be tf.data.AUTOTUNE or a whole number from 1 to {MOST_READS:,}, got {value!r}."
    )
  return int(value)


def is_real(value):
  """Whether `value` is a real number, and not a bool."""
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_real(name, value, is_allowed, allowed):
  """Raises TypeError or ValueError if `value` is not a real number or `is_allowed(value)` is false."""
  if not is_real(value) or not is_allowed(value):
    raise (ValueError if is_real(value) else TypeError)(f"{name} must be {allowed}, got {value!r}.")


def absolute_path(name, path):
  """The path, in bytes, made absolute: the working directory may have changed when it is opened."""
  if b"\0" in path:
    raise ValueError(f"{name} must be paths without null characters, got {path!r}.")
  # An absolute path needs no working directory, which may have been deleted.
  return path if scheme_of(path) or os.path.isabs(path) else os.path.join(os.getcwdb(), path)


# TensorFlow's rule: a path that does not begin with a scheme is on this machine.
_SCHEME = re.compile(rb"([a-zA-Z][0-9a-zA-Z.]*)://")


def scheme_of(path):
  """The scheme of a path on another file system, such as "gs"; None for a path on this machine."""
  found = _SCHEME.match(os.fsencode(path))
  return found and found[1].decode()


def check_file_system(name, path):
  """Raises ValueError if `path` is on a file system that this TensorFlow does not support."""
  scheme = scheme_of(path)
  if scheme is None or scheme in tf.io.gfile.get_registered_schemes():
    return
  if scheme in ("http", "https"):
    way_out = "Download files from a web server first, for example with tf.keras.utils.get_file."
  else:
    # The last tensorflow-io, 0.37.1, does not load with TensorFlow 2.19 to 2.21: undefined symbols.
    way_out = (
      "No package adds it: the file systems of tensorflow-io, for s3:// and others, do not load with this TensorFlow. "
      "Copy the files to a local disk, mount them as a directory, or read them in Python, with a class for "
      "rtf.sources.data_source."
    )
  raise ValueError(
    f"{name} must be on a file system that TensorFlow supports, such as gs:// or a local disk, got "
    f"{printable_path(path)}, but TensorFlow {tf.__version__} does not support {scheme}://. {way_out}"
  )


def printable_path(path):
  """A path for a message, with bytes that are not UTF-8 as \\xff."""
  return os.fsencode(path).decode("utf-8", "backslashreplace")


def stage_seed(seed):
  """The seed of a stage: `seed` if given, otherwise one derived from `tf.random.set_seed`, otherwise a random one."""
  if seed is not None:
    return int(seed)
  global_seed, operation_seed = random_seed.get_seed(None)
  if global_seed is None:
    return int.from_bytes(uuid.uuid4().bytes[:7], "little")
  # Both are 31-bit numbers.
  return (global_seed << 31) ^ operation_seed
