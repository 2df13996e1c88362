"""What the tests of mistakes share."""
import warnings

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf


def told(function):
  """What `function` is warned of: the messages of this package's warnings."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function()
  return [str(warning.message) for warning in caught if warning.category is rtf.PipelineWarning]


def images(n=8):
  """A source of single samples."""
  return tf.data.Dataset.from_tensor_slices((np.zeros([n, 4, 4, 3], np.uint8), np.zeros(n, np.int32)))
