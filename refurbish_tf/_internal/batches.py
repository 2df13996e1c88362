"""Stages whose workers make the batches if `batch` directly follows them."""

import tensorflow as tf

from refurbish_tf._internal import dataset_graph
from refurbish_tf._internal.tensorflow_internals import dataset_ops, debug_mode


class ReadsFewAhead:
  """A mixin for datasets without tf.data's autotuner: their `prefetch(AUTOTUNE)` has a small, fixed buffer."""

  def prefetch(self, buffer_size, name=None):
    """Like `tf.data.Dataset.prefetch`, but without the autotuner AUTOTUNE is two elements, not a growing buffer."""
    if buffer_size is None or isinstance(buffer_size, int) and buffer_size == tf.data.AUTOTUNE:
      buffer_size = tf.data.AUTOTUNE if dataset_graph.given_autotune(self).enabled else 2
    return super().prefetch(buffer_size, name)


class MakesBatches(ReadsFewAhead):
  """A mixin for stages that can make batches. `_variant` takes the arguments that `_BatchDataset` passes."""

  def batch(self, batch_size, drop_remainder=False, num_parallel_calls=None, deterministic=None, name=None):
    """Like `tf.data.Dataset.batch`, but the workers of the stage write each element into its row."""
    as_usual = super().batch(batch_size, drop_remainder, num_parallel_calls, deterministic, name)
    if debug_mode.DEBUG_MODE or not all(shape is not None and shape.is_fully_defined() for shape in self._flat_shapes):
      return as_usual
    return _BatchDataset(self, as_usual)

  def with_options(self, options, name=None):
    return _OptionsDataset(self, options, name)


class _OptionsDataset(ReadsFewAhead, dataset_ops._OptionsDataset):
  """A stage with options. The stage's workers also make the batches of a `batch` that directly follows the options."""

  def batch(self, *args, **kwargs):
    return self._input_dataset.batch(*args, **kwargs).with_options(self.options())

  with_options = MakesBatches.with_options


class _BatchDataset(ReadsFewAhead, dataset_ops.UnaryDataset):
  """Batches that the workers of a stage make."""

  def __init__(self, stage, as_usual):
    self._name, self._batch_size, self._structure = as_usual._name, as_usual._batch_size, as_usual.element_spec
    super().__init__(stage, stage._variant(self._batch_size, as_usual._drop_remainder, self))

  @property
  def element_spec(self):
    return self._structure
