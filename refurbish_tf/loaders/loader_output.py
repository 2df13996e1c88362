"""The end of a pipeline that goes to another framework."""

import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops, none_tensor, util_nest as nest

# The dtypes that both PyTorch and JAX have.
DTYPES = (tf.bool, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64)
DTYPES += (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)
# In place of `prefetch(AUTOTUNE)`: one batch to hand out, and one that is being made.
_AUTOTUNED_BUFFER = 2
# Datasets that hold no elements: saving them takes some microseconds, and waits for nothing. Before a refurbish stage
# any dataset will do, because the stage's checkpoint has nothing of the source.
_HOLDS_NOTHING = frozenset(
  "_BatchDataset _ConcatenateDataset _EchoDataset _FilterDataset _MapDataset _OptionsDataset _PaddedBatchDataset "
  "_RandomDataset _RangeDataset _RepeatDataset _ShardDataset _SkipDataset _TakeDataset _TensorDataset "
  "_TensorSliceDataset _UnbatchDataset _ZipDataset".split()
)

_told_of_gpu = False


class LoaderOutputDataset(dataset_ops.UnaryUnchangedStructureDataset):
  """The elements of a dataset, in memory that can be handed over. Its checkpoint is at the last element handed out."""

  def __init__(self, input_dataset, buffer_size, num_ahead, exclusive):
    self._input_dataset = input_dataset
    # Whether its checkpoint is that of its input after the last element that was handed out.
    self.holds_nothing = buffer_size > 0 or num_ahead == 0
    self._name = None
    arguments = {"buffer_size": buffer_size, "num_ahead": num_ahead, "exclusive": exclusive, **self._common_args}
    variant = native.ops().refurbish_tf_loader_output_dataset(input_dataset._variant_tensor, **arguments)
    super().__init__(input_dataset, variant)


def pipeline(function, dataset, num_ahead, exclusive):
  """The dataset given to the loader `function`, with the end that hands it over; raises unless that is possible.

  `num_ahead` elements are on their way to a device, and not handed out. If `exclusive`, the user may write into them.
  """
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(f"{function} takes a tf.data.Dataset, got {type(dataset).__name__}.")
  if not tf.executing_eagerly():
    raise RuntimeError(f"{function} cannot be part of a tf.function, because it leaves TensorFlow: call it outside.")
  _check_elements(function, dataset.element_spec)
  if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
    raise ValueError(
      f"{function} needs a dataset that ends, got one that repeats without end. Leave .repeat() out, or pass it a "
      "number, and iterate over the loader once for each epoch. TensorFlow also considers sample_from_datasets(..., "
      "stop_on_empty_dataset=True) infinite: put .take(n) after it, with its number of elements."
    )
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False  # Otherwise tf.data may add a prefetch, which reads ahead.
  buffer_size = 0
  if not dataset.options().experimental_symbolic_checkpoint:
    upstream, prefetched = _without_prefetch(dataset)
    if _holds_nothing(upstream):
      buffer_size = max(prefetched, num_ahead)
      dataset = upstream.with_options(dataset.options())
  return LoaderOutputDataset(dataset, buffer_size, num_ahead, exclusive).with_options(options)


def tell_of_gpu(function):
  """Warns, once in a process, if TensorFlow sees a GPU: TensorFlow takes all of its memory at the first use."""
  global _told_of_gpu
  if not _told_of_gpu and tf.config.get_visible_devices("GPU"):
    _told_of_gpu = True
    pipeline_warnings.warn(
      f"{function} loads to an accelerator, but TensorFlow can see a GPU and will take nearly all of its memory. Call "
      'tf.config.set_visible_devices([], "GPU") at the beginning of the program, before other calls of TensorFlow.'
    )


def _check_elements(function, element_spec):
  for path, spec in nest.flatten_with_joined_string_paths(element_spec):
    if isinstance(spec, none_tensor.NoneTensorSpec):
      continue
    name = f"component {path}" if path else "the dataset's element"
    if not isinstance(spec, tf.TensorSpec):
      raise TypeError(
        f"{function} needs dense tensors, but {name} is a {type(spec).__name__.removesuffix('Spec')}. Make it dense "
        "in .map, with to_tensor() or tf.sparse.to_dense, or leave it out."
      )
    if spec.dtype not in DTYPES:
      way_out = "Decode" if spec.dtype == tf.string else "Cast"
      raise TypeError(
        f"{function} cannot pass on {name} of dtype {spec.dtype.name}. {way_out} it, or leave it out, with .map. "
        f"Allowed dtypes are {', '.join(dtype.name for dtype in DTYPES)}."
      )


def _without_prefetch(dataset):
  """The dataset before the `prefetch` at the end, and how many elements the `prefetch` reads ahead."""
  upstream, most = dataset, 0
  while type(upstream).__name__ in ("_OptionsDataset", "_PrefetchDataset"):
    if type(upstream).__name__ == "_PrefetchDataset":
      size = int(tf.get_static_value(upstream._buffer_size))
      most = max(most, _AUTOTUNED_BUFFER if size == tf.data.AUTOTUNE else size)
    (upstream,) = upstream._inputs()
  return upstream, most


def _holds_nothing(dataset):
  if hasattr(dataset, "refurbish_stage"):
    return True
  if hasattr(dataset, "offload_stage"):
    return dataset.seeded  # Otherwise its checkpoint contains the batches that have been begun.
  return type(dataset).__name__ in _HOLDS_NOTHING and all(map(_holds_nothing, dataset._inputs()))
