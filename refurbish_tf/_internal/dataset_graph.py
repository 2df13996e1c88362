"""The datasets of a pipeline: finds them, names them in messages, and runs them in parallel without the autotuner."""

import collections
import math
import os
import re

import tensorflow as tf

from refurbish_tf._internal import machine

PROCESSORS = machine.processors()
# The number of parallel calls at which tf.data's own map is fastest, for comparisons. With one call per core, the
# number that AUTOTUNE uses, its threads run out of work and are woken again for each element.
PLAIN_MAP_CALLS = max(16, 2 * PROCESSORS)
# Operations and datasets that read from a disk, or may do so.
_READS = re.compile(
  "ReadFile|.*(TFRecord|Tfrecord|ImageFiles|TextLine|FixedLengthRecord|DataSource|Csv|Sql|Snapshot|Load).*"
  "|(Eager)?PyFunc(Stateless)?"
)


def without_autotuner(dataset):
  """Turns tf.data's autotuner off and bounds the memory of `prefetch(AUTOTUNE)`, unless options set these.

  The destructor of an iterator waits for the autotuner's thread. That thread sleeps 10 ms at first and up to a minute
  later in the epoch, and misses the cancellation that should wake it. Keras destroys an iterator at the end of each
  epoch, which would take up to a second after an epoch of a few seconds and up to a minute after a long one.

  Without the autotuner, `prefetch(AUTOTUNE)` still doubles its buffer after each pause, within the autotuner's budget.
  By default the budget is half of the machine's free memory, whatever a container's limit and the stores' needs are.
  """
  given = given_autotune(dataset)
  options = tf.data.Options()
  if given.enabled is None:
    options.autotune.enabled = False
    if given.initial_parallelism is None:
      # How many calls AUTOTUNE means in other stages when the autotuner is off. They limit it to the threads of their
      # pool; the default would be 16.
      options.autotune.initial_parallelism = 1024
  if not given.enabled and not given.ram_budget:
    options.autotune.ram_budget = machine.room_for_reading_ahead()
  return dataset if options == tf.data.Options() else dataset.with_options(options)


def given_autotune(dataset):
  """The options of tf.data's autotuner."""
  # While a function is traced, only the options that Python knows can be read.
  return (dataset.options() if tf.executing_eagerly() else dataset._options_attr).autotune


def upstream_first(dataset):
  """A list of `dataset` and all datasets that it is made from, each once, upstream first and from left to right."""
  found, seen, waiting = [], set(), [(dataset, False)]
  while waiting:
    each, is_entered = waiting.pop()
    if is_entered:
      found.append(each)
    elif id(each) not in seen:
      seen.add(id(each))
      waiting.append((each, True))
      waiting += [(upstream, False) for upstream in reversed(each._inputs())]
  return found


def without_options(dataset):
  """The dataset before the options at its end, if there are any."""
  while type(dataset).__name__ == "_OptionsDataset":
    (dataset,) = dataset._inputs()
  return dataset


def passes(dataset, upstream):
  """How often `dataset`, read once, reads each of `upstream`; infinity after a `repeat` without a number."""
  times = collections.Counter({id(dataset): 1})
  for each in reversed(upstream_first(dataset)):
    count = int(tf.get_static_value(each._count)) if type(each).__name__ == "_RepeatDataset" else 1
    for read in each._inputs():
      times[id(read)] += times[id(each)] * (math.inf if count < 0 else count)
  return [times[id(each)] for each in upstream]


def reads_endless_service(datasets):
  """Whether one of `datasets` is a tf.data service whose jobs never end: only its workers know how far they are."""
  return any(
    type(each).__name__.startswith("_DataServiceDataset") and each.cardinality() == tf.data.INFINITE_CARDINALITY
    for each in datasets
  )


def stage_title(kind, name):
  """The title of a stage in a description: its kind, and the name that the user gave it, if any."""
  return kind if name is None else f'{kind} "{name}"'


def method_name(name):
  """The method that makes datasets of this class, such as `filter` for _FilterDataset; otherwise the class."""
  name = re.sub(r"(Dataset)?(V\d+)?$", "", name.rpartition(">")[2].lstrip("_"))
  method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub("^(Parallel|Adaptive)", "", name)).lower()
  return method if hasattr(tf.data.Dataset, method) else f"{name}Dataset"


def operations(wrapper):
  """The names of all operations of a traced function, and of the functions that it calls."""
  graph = wrapper.function.graph.as_graph_def()
  return {node.op for nodes in (graph.node, *(each.node_def for each in graph.library.function)) for node in nodes}


def decodes(source, *functions):
  """Whether a source, or one of these traced functions, calls `decode` or `decode_random_resized_crop`."""
  functions = [*functions, *(function for dataset in upstream_first(source) for function in dataset._functions())]
  return any("RefurbishTf>DecodeResized" in operations(function) for function in functions)


def files_of(source):
  """The files that a source reads, in its order, or None if they are unknown; and whether it may read from a disk."""
  last, reads = source, False
  # Skips stages that yield one element for each element, in the same order.
  while not hasattr(last, "file_paths") and re.fullmatch(
    "_(Parallel)?MapDataset|_OptionsDataset|_PrefetchDataset", type(last).__name__
  ):
    (last,) = last._inputs()
  if hasattr(last, "file_paths"):
    return [os.fsencode(path) for path in last.file_paths], True
  for dataset in upstream_first(source):
    names = {type(dataset).__name__}.union(*map(operations, dataset._functions()))
    reads = reads or any(map(_READS.fullmatch, names))
  return None, reads
