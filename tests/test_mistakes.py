"""Mistakes that do not fail by themselves: each is warned of, once, with the way out; what only looks like one is not."""
import gc
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import arguments
from refurbish_tf import mistakes
from support.mistakes import images, told

Dataset = tf.data.Dataset
CLASSES, EACH = 3, 40
N = CLASSES * EACH


# Sorted streams. ------------------------------------------------------------------------------------------------------------


def labelled(labels, known=True):
  """A stream of (sample, label)."""
  labels = np.asarray(labels)
  stream = Dataset.from_tensor_slices((np.arange(len(labels), dtype=np.float32), labels)).filter(lambda *_: True)
  return stream.apply(tf.data.experimental.assert_cardinality(len(labels))) if known else stream


SORTED = np.repeat(np.arange(CLASSES), EACH)
MIXED = np.random.default_rng(0).permutation(SORTED)


def same(*x):
  return x


def epochs(dataset, number=3):
  for _ in range(number):
    for _ in dataset:
      pass


LABELS = {
    **{dtype.__name__: SORTED.astype(dtype) for dtype in (np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64)},
    # As keras.datasets.cifar10 has them, and image_dataset_from_directory with two classes.
    "of one": SORTED[:, np.newaxis],
    "float of one": SORTED[:, np.newaxis].astype(np.float32),
    "names": np.array(["cat", "dog", "a name that is longer than fits into the string itself"])[SORTED],
    **{f"one-hot {dtype.__name__}": np.eye(CLASSES, dtype=dtype)[SORTED]
       for dtype in (bool, np.uint8, np.int32, np.float16, np.float32, np.float64)},
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("known", [True, False])
def test_sorted_stream(labels, known):
  """Once, however many epochs there are."""
  found = told(lambda: epochs(labelled(LABELS[labels], known).refurbish(same, r=2, seed=1).batch(8).prefetch(2)))
  assert len(found) == 1 and "shuffle_buffer_size" in found[0] and "rtf.sources" in found[0]


def test_batches_that_are_shuffled():
  """They stay of one class each."""
  dataset = labelled(SORTED).refurbish(same, r=2, seed=1).batch(20).shuffle(6)
  assert len(told(lambda: epochs(dataset))) == 1


def test_label_that_partial_fn_reads():
  """The source has records; and final_fn may make something else of the label."""
  records = Dataset.from_tensor_slices([f"{i},{label}" for i, label in enumerate(SORTED)]).filter(lambda _: True)

  def parse(record):
    parts = tf.strings.split(record, ",")
    return {"image": tf.strings.to_number(parts[0]), "label": tf.strings.to_number(parts[1], tf.int32)}

  dataset = records.refurbish(parse, lambda x: (x["image"], tf.one_hot(x["label"], CLASSES)), r=2, seed=1)
  assert len(told(lambda: epochs(dataset))) == 1


def test_a_look_does_not_silence_it():
  """What was looked at before is cached in the first whole epoch."""
  dataset = labelled(SORTED).refurbish(same, r=2, seed=1, num_parallel_calls=None)
  assert not told(lambda: [next(iter(dataset)), epochs(dataset.take(8), 2)])
  assert len(told(lambda: epochs(dataset))) == 1


def test_sorted_in_training():
  """Keras trains to the end and hears of it."""
  dataset = labelled(SORTED).refurbish(lambda x, y: ([x], y), r=2, seed=1).batch(8).prefetch(tf.data.AUTOTUNE)
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(CLASSES)])
  model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  assert len(told(lambda: model.fit(dataset, epochs=2, verbose=0))) == 1


NOT_SORTED = {
    "mixed": lambda: labelled(MIXED).refurbish(same, r=2),
    "with a shuffle buffer": lambda: labelled(SORTED).refurbish(same, r=2, shuffle_buffer_size=N),
    "shuffled behind": lambda: labelled(SORTED).refurbish(same, r=2).shuffle(N).batch(8),
    "shuffled before": lambda: labelled(SORTED).shuffle(N, reshuffle_each_iteration=False, seed=1).refurbish(same, r=2),
    "random access": lambda: Dataset.from_tensor_slices((SORTED, SORTED)).refurbish(same, r=2),
    "one class": lambda: labelled(np.zeros(N, np.int32)).refurbish(same, r=2),
    "few samples": lambda: labelled([0, 0, 0, 1, 1, 1]).refurbish(same, r=2),
    "positions": lambda: labelled(np.arange(N)).refurbish(same, r=2),
    "measurements": lambda: labelled(SORTED + 0.5).refurbish(same, r=2),
    "infinities": lambda: labelled(np.where(SORTED, np.inf, np.nan)).refurbish(same, r=2),
    "no label": lambda: Dataset.from_tensor_slices(SORTED).filter(lambda _: True).refurbish(same, r=2),
    "matrices": lambda: labelled(SORTED[:, np.newaxis, np.newaxis]).refurbish(same, r=2),
    "vectors of none": lambda: labelled(np.zeros([N, 0], np.int32)).refurbish(same, r=2),
    "vectors": lambda: labelled(2 * np.eye(CLASSES)[SORTED]).refurbish(same, r=2),
    "several at once": lambda: labelled(1 - np.eye(CLASSES)[SORTED]).refurbish(same, r=2),
    "nothing at all": lambda: labelled(np.zeros([N, CLASSES])).refurbish(same, r=2),
    "texts": lambda: labelled(np.array([100 * "cat", 100 * "dog", 100 * "cow"])[SORTED]).refurbish(same, r=2),
    "not read to its end": lambda: labelled(SORTED).refurbish(same, r=2).take(N - 1),
}


@pytest.mark.parametrize("name", NOT_SORTED)
def test_what_looks_like_a_sorted_stream(name):
  assert not told(lambda: epochs(NOT_SORTED[name]()))


# Splits behind the stage. ---------------------------------------------------------------------------------------------------


def stage(n=40):
  return Dataset.range(n).refurbish(lambda x: x, r=2, seed=1)


def read(*datasets):
  for dataset in datasets:
    for _ in dataset:
      pass


SPLITS = {
    "at the stage": lambda ds: (ds.skip(8).batch(4).prefetch(1), ds.take(8).batch(4)),
    "in batches": lambda ds: [(b.skip(2).prefetch(2), b.take(2)) for b in [ds.batch(4).map(lambda x: x + 1)]][0],
    "of other batches": lambda ds: (ds.batch(4).skip(2), ds.batch(4).take(2).cache()),
    "validation first": lambda ds: (ds.take(8), ds.skip(8)),
    "all that is left": lambda ds: (ds.take(8), ds.skip(8).take(32)),
    "at most what is left": lambda ds: (ds.take(8), ds.skip(8).take(100)),
    "batches that are left": lambda ds: (ds.batch(4).take(2), ds.batch(4).skip(2).take(8)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_split_behind(name):
  """Told once, when the second part is read first."""
  train, validation = SPLITS[name](stage())
  found = told(lambda: [read(train, validation) for _ in range(3)])
  assert len(found) == 1
  count = 2 if "batches" in name else 8
  assert f"take({count}) and skip({count})" in found[0] and "source.skip(n).refurbish(...)" in found[0]


@pytest.mark.parametrize("rest", [lambda ds: ds.skip(8).batch(4), lambda ds: ds.skip(8).take(32)], ids=["skip", "take"])
def test_parts_that_live_as_long_as_they_are_read(rest):
  """When the second part is made the first is gone."""
  whole = stage()
  def once(part):
    read(part())
    gc.collect()
  found = told(lambda: [(once(lambda: whole.take(8).batch(4)), once(lambda: rest(whole))) for _ in range(3)])
  assert len(found) == 1 and "take(8) and skip(8)" in found[0]


def test_phases_of_steps_are_no_parts():
  """What is taken of repeated epochs is a number of steps, and all samples are in it."""
  steps = stage().repeat(6).batch(10)
  assert not told(lambda: read(steps.take(12), steps.skip(12)))
  for dataset in (steps.take(12), stage().skip(0)):
    assert "part  " not in rtf.describe(dataset)


def test_odd_objects_are_no_parts():
  """Some cannot be told from others."""
  class Meta(type):
    def __eq__(cls, other):
      raise TypeError("not comparable")
    __hash__ = None
  odd = Meta("Odd", (), {})()
  whole = stage()
  found = told(lambda: read(whole.skip(8), whole.take(8)))
  assert len(found) == 1 and type(odd).__name__ == "Odd"


def test_a_function_that_is_being_traced_stays_as_it_is():
  """What is told meanwhile puts nothing into its graph."""
  whole = stage()
  train, validation = whole.skip(8).take(100), whole.take(8)

  @tf.function
  def traced():
    thread = threading.Thread(target=lambda: (iter(train), iter(validation)))
    thread.start()
    thread.join()
    return sum(range(10))  # Some lines, between which it can be told.

  found = told(lambda: traced.get_concrete_function())  # pylint: disable=unnecessary-lambda
  assert len(found) == 1 and "take(8) and skip(8)" in found[0]
  assert not any(each.type.endswith("Cardinality") for each in traced.get_concrete_function().graph.get_operations())


def test_parts_that_are_taken_in_a_function():
  """Of these it is not known if a take takes all."""
  whole = stage()

  @tf.function
  def count(number):
    return whole.skip(8).take(number).reduce(0, lambda total, _: total + 1)

  assert not told(lambda: [read(whole.take(8)), count(tf.constant(32, tf.int64)), read(whole.skip(4).take(4))])


def test_validation_of_keras():
  whole = Dataset.from_tensor_slices((np.zeros([40, 1], np.float32), np.zeros(40))).refurbish(same, r=2).batch(4)
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  found = told(lambda: model.fit(whole.skip(2), validation_data=whole.take(2), epochs=1, verbose=0))
  assert len(found) == 1 and "take(2) and skip(2)" in found[0]


def split_before():
  source = Dataset.range(40)
  train = source.skip(8).refurbish(lambda x: x, r=2).batch(4)
  return train, source.take(8).refurbish(lambda x: x, r=2)


NO_SPLITS = {
    "before the stage": split_before,
    "a look": lambda: [(ds.take(1), ds.batch(4), ds.take(3)) for ds in [stage()]][0],
    "a look and a start later": lambda: [(ds.take(1), ds.skip(20)) for ds in [stage()]][0],
    "a part in the middle": lambda: [(ds.skip(8).take(8), ds) for ds in [stage()]][0],
    "one page after the other": lambda: [(ds.take(8), ds.skip(8).take(8)) for ds in [stage()]][0],
    "of two stages": lambda: (stage().take(8), stage().skip(8)),
    "all and nothing": lambda: [(ds.take(-1), ds.skip(0)) for ds in [stage()]][0],
}


@pytest.mark.parametrize("name", NO_SPLITS)
def test_what_looks_like_a_split_behind(name):
  datasets = NO_SPLITS[name]()
  assert not told(lambda: [read(*datasets) for _ in range(2)])


def test_description_tells_of_parts():
  whole = stage()
  for part in (whole.take(8), whole.batch(2).skip(3).prefetch(1)):
    assert rtf.describe(part).splitlines()[-1] == f"  part    {mistakes.PART_OF_EPOCH}"
  for other in (whole, whole.batch(2).prefetch(1), whole.take(40), Dataset.range(40).take(8).refurbish(lambda x: x)):
    assert "part  " not in rtf.describe(other)


# A cache behind the stage. --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "file"])
def test_cache_behind(where, tmp_path):
  """Told when it is first iterated; cached is what is meant to be."""
  dataset = stage().batch(4).cache(str(tmp_path / "cache") if where == "file" else "").prefetch(1)
  found = told(lambda: epochs(dataset, 2))
  assert len(found) == 1 and "cache() behind refurbish" in found[0] and "source.cache().refurbish(...)" in found[0]


def test_what_looks_like_a_cache_behind():
  """One before the stage, and some elements to look at."""
  assert not told(lambda: [epochs(Dataset.range(8).cache().refurbish(lambda x: x), 2), epochs(stage().take(3).cache(), 2)])


# How it is told. ------------------------------------------------------------------------------------------------------------


# What a program begins with: three stages that are built in one line, and two epochs of each.
TRAIN = """
import numpy as np
import tensorflow as tf
import refurbish_tf as rtf

labels = np.repeat([0, 1], 60)

def make():
  stream = tf.data.Dataset.from_tensor_slices((labels, labels)).filter(lambda *x: True)
  return stream.refurbish(lambda *x: x)

def train():
  for _ in range(3):
    dataset = make()
    for epoch in range(2):
      for _ in dataset:
        pass
  print("trained")
"""


def run(program):
  """A program of its own: its exit status, and what it has printed, as a pair."""
  found = subprocess.run(
      [sys.executable, "-c", TRAIN + textwrap.dedent(program)], capture_output=True, text=True, timeout=600, check=False)
  return found.returncode, found.stdout, found.stderr


def test_a_line_is_warned_of_once():
  """By Python's own filters, whatever the number of stages; with the line of the user's, and not with one of TensorFlow's."""
  status, output, errors = run("train()")
  assert (status, output) == (0, "trained\n")
  assert len(re.findall(r"<string>:10: PipelineWarning: The source of refurbish is a stream", errors)) == 1
  assert errors.count(": PipelineWarning: ") == 1


def test_warnings_that_are_errors_break_no_training():
  """What is seen while a stage runs is printed; what is seen when it is built can be caught, and is raised there."""
  status, output, errors = run("""
      import warnings
      warnings.filterwarnings("error", category=rtf.PipelineWarning)
      try:
        tf.data.Dataset.range(8).batch(2).refurbish(lambda x: x)
      except rtf.PipelineWarning:
        print("caught")
      train()
      """)
  assert (status, output) == (0, "caught\ntrained\n")
  assert errors.count("PipelineWarning: The source of refurbish is a stream") == 3


def test_a_showwarning_that_fails_breaks_no_training():
  status, output, errors = run("""
      import warnings
      def fail(*args, **kwargs):
        raise RuntimeError("of the user")
      warnings.showwarning = fail
      train()
      """)
  assert (status, output) == (0, "trained\n")
  assert "could not warn: RuntimeError('of the user')" in errors


def test_an_interrupt_while_it_is_told_arrives():
  """It ends the program, though TensorFlow, which it may meet as it makes an error, makes a RuntimeError of it."""
  status, output, errors = run("""
      import warnings
      def interrupted(*args, **kwargs):
        raise KeyboardInterrupt
      warnings.showwarning = interrupted
      train()
      """)
  assert status != 0 and output == "" and "KeyboardInterrupt" in errors


def test_told_while_another_thread_trains():
  """The main thread tells it, with the line of the stage."""
  dataset = labelled(SORTED).refurbish(same, r=2)
  def train():
    thread = threading.Thread(target=epochs, args=(dataset,))
    thread.start()
    thread.join()
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    train()
  warning, = [warning for warning in caught if warning.category is rtf.PipelineWarning]
  assert pathlib.Path(warning.filename).name == "test_mistakes.py"


def test_the_line_is_that_of_the_user():
  """By method and by apply."""
  for build in (lambda: images().batch(2).refurbish(same), lambda: images().batch(2).apply(rtf.refurbish(same))):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      build()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_stage_that_is_gone_is_told_of():
  """Only its iterator is left."""
  def train():
    iterator = labelled(SORTED).refurbish(same, r=2).as_numpy_iterator()
    gc.collect()
    for _ in iterator:
      pass
  assert len(told(train)) == 1


def test_nothing_is_kept_of_a_stage():
  before = len(mistakes._stages)  # pylint: disable=protected-access
  dataset = stage()
  assert len(mistakes._stages) == before + 1  # pylint: disable=protected-access
  del dataset
  gc.collect()
  assert len(mistakes._stages) <= before  # pylint: disable=protected-access


# Walks. ---------------------------------------------------------------------------------------------------------------------


def test_each_dataset_is_visited_once():
  """Forty levels, each of which has the one below it twice: a walk by all ways would not end."""
  below = diamond = stage()
  for _ in range(40):
    diamond = diamond.concatenate(diamond)
  found = arguments.upstream_first(diamond)
  assert len(found) == len({id(each) for each in found}) and found[-1] is diamond
  assert found.index(below) < len(found) - 40
  assert len(rtf.stats(diamond)) == 1
  assert "part  " not in rtf.describe(diamond)
  assert len(mistakes.parts_behind(diamond.take(3), below)) == 1
  assert not mistakes._yields_batches(diamond)  # pylint: disable=protected-access


def test_order_of_the_walk():
  left, right = Dataset.range(3), Dataset.range(4)
  first = Dataset.zip(left, right)
  both = Dataset.zip(first, left, right.batch(2))
  found = arguments.upstream_first(both)
  names = [type(each).__name__ for each in found]
  assert found[:3] == [left, right, first] and names[3:] == ["_BatchDataset", "_ZipDataset"]


def test_stats_without_a_stage():
  found = rtf.stats(Dataset.range(3).batch(2))
  assert found == [] and len(found) == 0 and found[:1] == []
  for index in (0, -1):
    with pytest.raises(IndexError, match="no stage that rtf.stats counts for.*not the source"):
      found[index]  # pylint: disable=pointless-statement
  with pytest.raises(IndexError, match="out of range"):
    rtf.stats(stage())[1]  # pylint: disable=expression-not-assigned
