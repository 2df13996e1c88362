"""The internals of TensorFlow that the package uses. Each comment says what they are needed for."""

import tensorflow as tf

try:
  # Users' functions: where they are defined, and whether AutoGraph can convert them.
  from tensorflow.python.autograph.pyct import errors, inspect_utils, parser

  # The classes of all stages and sources; tracing functions as `Dataset.map` does; `batch` in debug mode.
  from tensorflow.python.data.ops import dataset_ops, debug_mode, structured_function

  # Checkpoints of iterators, which get the position of the stages.
  from tensorflow.python.data.ops import iterator_ops

  # Elements of several components, as tf.data flattens them.
  from tensorflow.python.data.util import nest, structure

  # Fingerprints of functions, for stores on disk; reading the free memory when a stage is built in a graph.
  from tensorflow.python.eager import context

  # Determinism mode; components that are None; the operations that `advise` finds; `tf.random.set_seed`.
  from tensorflow.python.framework import config, none_tensor, op_def_registry, random_seed

  # `data_source`, which calls Python; fingerprints of functions that do.
  from tensorflow.python.ops import gen_script_ops, script_ops

  # The structure of samples in a `CacheStore` on disk.
  from tensorflow.python.saved_model import nested_structure_coder

  # Elements with lists, in `data_source` and loaders.
  from tensorflow.python.util import nest as util_nest
except ImportError as error:
  raise ImportError(
    f"refurbish_tf does not support TensorFlow {tf.__version__}, whose internals have changed ({error}). "
    "Install a newer refurbish_tf, or the TensorFlow that it requires, with `pip install --force-reinstall "
    "refurbish_tf`."
  ) from error

__all__ = ["config", "context", "dataset_ops", "debug_mode", "errors", "gen_script_ops", "inspect_utils"]
__all__ += ["iterator_ops", "nest", "nested_structure_coder", "none_tensor", "op_def_registry", "parser"]
__all__ += ["random_seed", "script_ops", "structure", "structured_function", "util_nest"]
