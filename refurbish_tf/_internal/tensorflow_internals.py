"""The modules of TensorFlow that the package uses and that TensorFlow does not promise to keep, each with what needs it."""
import tensorflow as tf

try:
  from tensorflow.python.autograph.pyct import errors, inspect_utils, parser  # functions of the user: whether AutoGraph can convert them, and where they are
  from tensorflow.python.data.ops import dataset_ops  # all stages and sources: the classes that datasets derive from
  from tensorflow.python.data.ops import debug_mode  # `batch` in tf.data's debug mode
  from tensorflow.python.data.ops import structured_function  # all stages: functions are traced as `Dataset.map` traces them
  from tensorflow.python.data.util import nest  # elements of several components, as tf.data flattens them
  from tensorflow.python.data.util import structure  # elements of several components, as tf.data flattens them
  from tensorflow.python.eager import context  # stores on disk: fingerprints of traced functions
  from tensorflow.python.framework import config  # deterministic mode
  from tensorflow.python.framework import none_tensor  # components that are None
  from tensorflow.python.framework import op_def_registry  # `advise`: which operations a pipeline has
  from tensorflow.python.framework import random_seed  # `tf.random.set_seed` seeds stages without a seed
  from tensorflow.python.ops import gen_script_ops  # `data_source`: Python calls that are not traced again
  from tensorflow.python.ops import script_ops  # `data_source`, and fingerprints of functions in Python
  from tensorflow.python.saved_model import nested_structure_coder  # `CacheStore` on disk: the structure of its samples
  from tensorflow.python.util import nest as util_nest  # loaders and `data_source`: elements with lists
except ImportError as error:
  raise ImportError(
      f"refurbish_tf does not know TensorFlow {tf.__version__}, which has changed what is internal to it: {error}. Install a "
      "TensorFlow that refurbish_tf supports: pip install --upgrade refurbish_tf tensorflow") from error
