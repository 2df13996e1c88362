"""Computes what a pipeline yields for a few samples in its first epochs, without beginning an epoch.

A sample of `refurbish` is a function of an element of the source and of seeds. So the stage is not run: its functions
are called with the seeds that the schedule gives them. Copies of the datasets after the stage get the results.
"""

import contextlib
import dataclasses
import itertools
import math
import warnings
from typing import Any

import tensorflow as tf

from refurbish_tf import stats
from refurbish_tf._internal import dataset_graph, pipeline_warnings, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops, nest, structure
from refurbish_tf.plotting import schedule

# Class names of datasets that a copy leaves out, because they keep, repeat or reorder samples.
_LEFT_OUT = frozenset({"CacheDataset", "_AdaptiveEchoDataset", "_CachedDataset", "_EchoDataset", "_RepeatDataset"})
# Class names of datasets that pass a few samples on unchanged.
_HANDS_ON = frozenset(
  {"_AssertCardinalityDataset", "_IgnoreErrorsDataset", "_OptionsDataset", "_PrefetchDataset", "_TakeDataset"}
)
_MAPS = frozenset({"AugmentDataset", "_DenseToRaggedDataset", "_MapDataset", "_ParallelMapDataset"})
_BATCHES = frozenset({"_BatchDataset", "_PaddedBatchDataset", "_ParallelBatchDataset"})
_WAY_OUT = "Pass rtf.show the dataset from before it"


@dataclasses.dataclass
class Samples:
  """The first samples of a dataset in its first epochs: for each epoch the samples, and whether they are fresh.

  Also their stage, if any, the first sample as the stage yields it, and how many samples the stage yielded.
  """

  epochs: list[list[Any]]
  fresh: list[list[bool]]
  stage: Any = None
  of_stage: Any = None
  num_yielded: int | None = None


def samples_of(dataset, num_samples, num_epochs):
  """The `Samples` of a dataset."""
  found = stats.datasets("rtf.show", dataset)
  # Datasets that rerandomize at each iteration are replaced by copies that start over.
  swapped = {id(each): _random_again(each) for each in found if getattr(each, "_rerandomize", False)}
  with _undisturbed(found):
    made, depth = _elements(dataset, num_samples, num_epochs, swapped)
    rows = [[row for element in epoch for row in _rows(element, depth)] for epoch in made.epochs]
  if len({*map(len, rows), made.num_yielded} - {None}) > 1:
    raise ValueError(
      "dataset must yield a sample for each of its stage, as a row is a sample, but what follows the stage changes "
      f"their number. {_WAY_OUT}."
    )
  # The datasets after the stage were given whole batches, so there may be more samples than were asked for.
  number = min([num_samples, *map(len, made.fresh)])
  made.epochs = [samples[:number] for samples in rows]
  return made


def _elements(dataset, num_samples, num_epochs, swapped):
  """The `Samples` with elements that may be batches, and how many batches are nested around a sample."""
  keeper, path = _keeper(dataset)
  sizes = [int(tf.get_static_value(each._batch_size)) for each in path if type(each).__name__ in _BATCHES]
  # Elements are made in whole batches, so that the static shapes of the batches are correct.
  size, depth = math.prod(sizes), len(sizes)
  if keeper is None:
    copy = dataset_graph.without_autotuner(_copied(dataset, swapped)).take(-(-num_samples // size))
    return Samples([list(copy) for _ in range(num_epochs)], [[True] * num_samples] * num_epochs), depth
  if hasattr(keeper, "refurbish_stage"):
    made = _of_stage(keeper, num_samples, num_epochs, swapped)
  else:
    # Later epochs only read what the first one has kept.
    made, inner = _elements(keeper._input_dataset, num_samples, 1, swapped)
    made.epochs, made.fresh = made.epochs * num_epochs, made.fresh + [[False] * num_samples] * (num_epochs - 1)
    depth += inner
  for epoch, elements in enumerate(made.epochs) if made.epochs[0] else ():
    number = -(-len(elements) // size)
    given = _dataset_of([elements[k % len(elements)] for k in range(number * size)], keeper.element_spec)
    made.epochs[epoch] = list(_copied(dataset, {**swapped, id(keeper): given}))
    # Samples that a later dataset keeps are the same in all epochs, so their number is not checked.
    made.num_yielded = number * size if keeper is made.stage else None
  return made, depth


def _of_stage(stage, num_samples, num_epochs, swapped):
  """The `Samples` of a `refurbish` stage."""
  described = stage.described()
  arguments, seed = stage._op_arguments, described["seed"]
  sharded = [each for each in dataset_graph.upstream_first(stage) if type(each).__name__ == "_ShardDataset"]
  shards = math.prod(int(tf.get_static_value(each._num_shards)) for each in sharded)
  made = Samples([[] for _ in range(num_epochs)], [[] for _ in range(num_epochs)], stage)
  for index, element in _first_elements(stage, seed, described["order_seed"], num_samples, swapped):
    before = None
    for epoch in range(num_epochs):
      generation = int(
        native.ops().refurbish_tf_refurbish_generation(stage=stage.refurbish_stage, index=index // shards, epoch=epoch)
      )
      made.fresh[epoch].append(generation != before)
      if generation != before:
        given = schedule.seed_of(seed, schedule.PARTIAL_FN, generation, index), generation
        prepared = _called(stage._partial, element, given, [arguments["partial_seed"], arguments["partial_generation"]])
      before, yielded = generation, prepared
      if stage._final is not None:
        given = schedule.seed_of(seed, schedule.FINAL_FN, epoch, index), epoch
        yielded = _called(stage._final, prepared, given, [arguments["final_seed"], arguments["final_epoch"]])
      made.epochs[epoch].append(structure.from_compatible_tensor_list(stage.element_spec, yielded))
  made.of_stage = made.epochs[0][0]
  return made


def _first_elements(stage, seed, order_seed, num_samples, swapped):
  """Yields a sample's number and its source element, for the first samples of the first epoch, or of a stream."""
  source = _copied(stage._input_dataset, swapped)
  # A second stage with the same order, which keeps nothing and yields the seeds: they tell the samples' numbers.
  keeps_nothing = {"final_fn": None, "r": 1, "store": None, "num_partial_layers": 0}
  in_order = {"shuffle_buffer_size": 1, "num_parallel_calls": 0, "deterministic": "true"}
  seeds = {"seed": seed, "order_seed": order_seed, "any_seed": False}
  untuned, how = dataset_graph.without_autotuner(source), {**keeps_nothing, **in_order}
  with_seed = lambda *element, seed: (element, seed)
  numbered = type(stage)(untuned, with_seed, **how, seeds=seeds, order=stage._order, name=None)
  for element, given in numbered.take(num_samples):
    element = element if type(source.element_spec) is tuple else element[0]
    index = schedule.index_of(seed, schedule.PARTIAL_FN, given.numpy())
    yield index, structure.to_tensor_list(source.element_spec, element)


def _called(wrapper, tensors, given, takes):
  # tf.data calls functions on the CPU, even if there are other devices.
  with tf.device("CPU:0"):
    seed, number = given
    added = tf.constant(seed), tf.constant(number, tf.int64)
    return list(wrapper.function(*tensors, *itertools.compress(added, takes)))


def _dataset_of(elements, spec):
  """A dataset of elements that may differ in their shapes."""
  made = tf.data.Dataset.from_tensors(elements[0])
  for each in elements[1:]:
    made = made.concatenate(tf.data.Dataset.from_tensors(each))
  return dataset_ops._VariantDataset(made._variant_tensor, spec)


def _rows(element, depth):
  """The samples of an element that consists of `depth` nested batches."""
  if depth <= 0:
    return [element]
  # Not `tf.nest`, which would take a ragged tensor apart.
  rows = iter(dataset_ops.Dataset.from_tensor_slices(element))
  return [row for each in rows for row in _rows(each, depth - 1)]


def _keeper(dataset):
  """The last dataset that keeps samples between epochs, or None, and those after it; raises if there are several."""
  if hasattr(dataset, "refurbish_stage") or type(dataset).__name__ in ("CacheDataset", "_CachedDataset"):
    return dataset, []
  # After `offload`, a part of the work is left to the model. A tf.data service's workers would begin an epoch.
  if type(dataset).__name__.startswith(("_OffloadDataset", "_DataServiceDataset")):
    raise _refusal(dataset)
  found = [_keeper(each) for each in dataset._inputs()]
  keepers = [each for each in found if each[0] is not None]
  if len({id(keeper) for keeper, _ in keepers}) > 1:
    raise ValueError(
      "dataset must have one stage that keeps samples, as a row is a sample, got several side by side in "
      f"{dataset_graph.method_name(type(dataset).__name__)}. {_WAY_OUT}."
    )
  keeper, path = (keepers or found or [(None, [])])[0]
  return keeper, [*path, dataset]


def _refusal(dataset):
  return ValueError(
    f"rtf.show cannot follow samples through {dataset_graph.method_name(type(dataset).__name__)}. {_WAY_OUT}."
  )


def _copied(dataset, swapped):
  """A copy of the dataset, with the inputs whose ids are in `swapped` replaced; itself if nothing changes."""
  if id(dataset) in swapped:
    return swapped[id(dataset)]
  kind, before = type(dataset).__name__, dataset._inputs()
  inputs = [_copied(each, swapped) for each in before]
  if kind in _LEFT_OUT or kind == "_ShuffleDataset" and dataset._reshuffle_each_iteration is not False:
    return inputs[0]
  if all(each is other for each, other in zip(inputs, before)):
    return dataset
  if kind in _HANDS_ON:
    return inputs[0]
  if kind == "_ZipDataset":
    return tf.data.Dataset.zip(nest.pack_sequence_as(dataset._datasets, inputs))
  given = {"input_dataset": inputs[0]._variant_tensor, "output_shapes": dataset._flat_shapes}
  types = {"output_types": dataset._flat_types}
  if kind in _MAPS:
    (wrapper,) = dataset._functions() or dataset._mapped_dataset._functions()
    made = tf.raw_ops.ParallelMapDatasetV2(
      other_arguments=wrapper.function.captured_inputs,
      num_parallel_calls=tf.constant(tf.data.AUTOTUNE, tf.int64),
      f=wrapper.function,
      deterministic="true",
      preserve_cardinality=True,
      **given,
      **types,
    )
  elif kind == "_PaddedBatchDataset":
    made = tf.raw_ops.PaddedBatchDatasetV2(
      batch_size=dataset._batch_size,
      padded_shapes=nest.flatten(dataset._padded_shapes),
      padding_values=nest.flatten(dataset._padding_values),
      drop_remainder=False,
      **given,
    )
  elif kind in _BATCHES:
    made = tf.raw_ops.BatchDatasetV2(batch_size=dataset._batch_size, drop_remainder=False, **given, **types)
  else:
    raise _refusal(dataset)
  return dataset_ops._VariantDataset(made, dataset.element_spec)


def _random_again(dataset):
  """A copy of a `Dataset.random` that starts with its first iteration."""
  made = tf.raw_ops.RandomDatasetV2(
    seed=dataset._seed,
    seed2=dataset._seed2,
    seed_generator=tf.raw_ops.DummySeedGenerator(),
    rerandomize_each_iteration=True,
    output_types=dataset._flat_types,
    output_shapes=dataset._flat_shapes,
  )
  return dataset_ops._VariantDataset(made, dataset.element_spec)


@contextlib.contextmanager
def _undisturbed(datasets):
  """A context that restores variables of functions, such as the seeds of Keras layers, when it ends."""
  wrappers = [wrapper for dataset in datasets for wrapper in dataset._functions()]
  variables = {id(each): each for wrapper in wrappers for each in wrapper.function.graph.variables}
  before = [(each, each.value()) for each in variables.values()]
  try:
    with warnings.catch_warnings():
      # The user's own stage has already warned.
      warnings.simplefilter("ignore", pipeline_warnings.PipelineWarning)
      yield
  finally:
    for each, value in before:
      each.assign(value)
