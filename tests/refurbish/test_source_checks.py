"""A source that has changed is refused on disk and causes a warning in memory. An unchanged source causes no alarm."""

import gc
import os
import pathlib
import random
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, datasets, stores
from support.datasets import read
from support.warned import told

pytestmark = cases.slow

Dataset = tf.data.Dataset
N = 100
IMAGES = np.random.RandomState(0).randint(0, 255, (N, 4, 4, 3), np.uint8)
LABELS = np.arange(N)
REFUSED = "was filled from another source.*overwrite=True"


def arrays(order=LABELS, labels=LABELS):
  return Dataset.from_tensor_slices((IMAGES[order], labels[order]))


def by_index(numbers):
  return Dataset.from_tensor_slices(np.asarray(numbers))


def stream(numbers):
  return by_index(numbers).filter(lambda *x: True)


def stage(source, store=None, **arguments):
  return source.refurbish(lambda *x: x if len(x) > 1 else x[0], **{"r": 3, "seed": 7, "store": store, **arguments})


def epochs(dataset, number=3):
  """Reads some epochs. Returns how many elements each had."""
  return [int(dataset.reduce(0, lambda count, *_: count + 1)) for _ in range(number)]


def filled(path, source, **arguments):
  """Runs a job on the store. Afterwards all samples are on the disk, and nothing uses the store."""
  epochs(stage(source, path, **arguments))
  gc.collect()


# A store on disk, and a source that is read by index: another source is refused at once.


def split(seed):
  return np.random.RandomState(seed).permutation(N)[:80]


CHANGES = {
  "new split": (lambda: arrays(split(1)), lambda: arrays(split(2))),
  "other order": (arrays, lambda: arrays(LABELS[::-1])),
  "other labels": (arrays, lambda: arrays(labels=(LABELS + 1) % N)),
  "other labels, which come first": (
    lambda: arrays().map(lambda x, y: (y, x)),
    lambda: arrays(labels=(LABELS + 1) % N).map(lambda x, y: (y, x)),
  ),
  "other strings": (
    lambda: by_index([b"%03d" % i for i in range(N)]),
    lambda: by_index([b"%03d" % (i + 1) for i in range(N)]),
  ),
  # The same bytes, split differently.
  "other lengths": (lambda: by_index([[b"ab", b"c"]] * N), lambda: by_index([[b"a", b"bc"]] * N)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_source_by_index_is_refused(name, tmp_path):
  path = stores.new_path(tmp_path)
  before, after = CHANGES[name]
  filled(path, before())
  refused = (
    r"has other labels or weights than when .*final_fn.*overwrite=True" if name.startswith("other labels") else REFUSED
  )
  with pytest.raises(ValueError, match=refused):
    stage(after(), path)
  # Nothing was lost.
  assert epochs(stage(before(), path), 1) == [len(before())]
  gc.collect()
  epochs(stage(after(), rtf.CacheStore(path, overwrite=True)))


def test_changed_files_are_refused_and_named(tmp_path):
  path, folder = stores.new_path(tmp_path), tmp_path / "images"
  for i in range(8):
    (folder / "cats").mkdir(parents=True, exist_ok=True)
    (folder / "cats" / f"{i}.png").write_bytes(b"%d" % i)
  filled(path, rtf.sources.image_folder(folder))
  (folder / "cats" / "3.png").write_bytes(b"another image")
  # The probe finds the change if the sample is kept. Otherwise preparing the sample finds it.
  with pytest.raises((ValueError, tf.errors.FailedPreconditionError), match=rf"the file {folder}/cats/3.png,"):
    epochs(stage(rtf.sources.image_folder(folder), path))


@pytest.mark.filterwarnings("ignore:The cache store")
def test_a_sample_that_is_prepared_again_from_another_element_is_an_error(tmp_path):
  path = stores.new_path(tmp_path)
  filled(path, stream(range(N)))
  before = rtf.CacheStore(path).stats().entries
  # A stream is not probed: one element differs, and its sample comes up within r epochs.
  changed = stage(stream([*range(N - 1), 999]), path)
  errors = [error for _ in range(3) for error in read(changed)[1]]
  assert errors and all(isinstance(error, tf.errors.FailedPreconditionError) for error in errors)
  assert "element 99 differs" in str(errors[0]) and "overwrite=True" in str(errors[0]) and str(path) in str(errors[0])
  del changed
  assert rtf.CacheStore(path).stats().entries >= before - N // 3 - 1


@pytest.mark.filterwarnings("ignore:The cache store")
def test_a_change_that_the_probe_misses_is_an_error_later(tmp_path):
  path, many = stores.new_path(tmp_path), 300
  filled(path, by_index(range(many)))
  for changed in range(many):
    numbers = list(range(many))
    numbers[changed] = -1
    try:
      dataset = stage(by_index(numbers), path)
    except ValueError:
      continue
    break
  assert any(f"element {changed} differs" in str(error) for _ in range(3) for error in read(dataset)[1])


@pytest.mark.filterwarnings("ignore:The cache store")
def test_jobs_on_one_store_must_agree(tmp_path):
  path = stores.new_path(tmp_path)
  one = stage(stream(range(N)), path, order_seed=1)
  epochs(one, 1)
  other = stage(stream(range(1, N + 1)), path, order_seed=2)
  assert any("differs" in str(error) for _ in range(3) for error in read(other)[1])
  assert epochs(one, 1) == [N]


def test_overwrite_clear_and_remove_forget(tmp_path):
  path = stores.new_path(tmp_path)
  filled(path, by_index(range(N)))
  epochs(stage(by_index(range(1, N + 1)), rtf.CacheStore(path, overwrite=True)))
  rtf.CacheStore(path).clear()
  epochs(stage(by_index(range(N)), path))
  store = rtf.CacheStore(path)
  for index in range(N):
    store.remove(index)
  del store
  epochs(stage(by_index(range(1, N + 1)), path))


def words(path):
  return np.fromfile(pathlib.Path(path) / "sources", np.uint64)


def test_a_damaged_checksum_is_no_alarm(tmp_path):
  path = stores.new_path(tmp_path)
  filled(path, by_index(range(N)))
  found = words(path)
  assert np.all(found[:N] != 0) and not np.any(found[N:])
  generator = np.random.RandomState(0)
  for damage in (found ^ (1 << generator.randint(0, 63, found.size).astype(np.uint64)), np.roll(found, 1), found[:3]):
    damage.tofile(pathlib.Path(path) / "sources")
    filled(path, by_index(range(N)))
  (pathlib.Path(path) / "sources").unlink()
  filled(path, by_index(range(N)))
  assert np.all(words(path)[:N] == found[:N])


def test_checksums_of_another_store_are_no_alarm(tmp_path):
  one, other = stores.new_path(tmp_path), stores.new_path(tmp_path)
  filled(one, by_index(range(N)))
  filled(other, by_index(range(1, N + 1)))
  words(one).tofile(pathlib.Path(other) / "sources")
  filled(other, by_index(range(1, N + 1)))


def test_a_file_that_was_repaired_is_no_alarm(tmp_path):
  """The store holds nothing of a sample that could not be prepared, so the repaired element contradicts nothing."""
  path, folder = stores.new_path(tmp_path), tmp_path / "images"
  (folder / "cats").mkdir(parents=True)
  for i in range(8):
    (folder / "cats" / f"{i}.png").write_bytes(tf.io.encode_png(tf.fill([2, 2, 3], tf.constant(i, tf.uint8))).numpy())
  whole = (folder / "cats" / "3.png").read_bytes()

  def photographs(store):
    return rtf.sources.image_folder(folder).refurbish(
      lambda file, label: tf.io.decode_png(file, channels=3), r=3, seed=7, store=store
    )

  for store in (path, None):
    (folder / "cats" / "3.png").write_bytes(whole[:40])
    broken = photographs(store)
    assert [len(read(broken)[1]) for _ in range(4)] == [1, 1, 1, 1]
    if store is not None:
      del broken
      broken = None
    (folder / "cats" / "3.png").write_bytes(whole)
    repaired = broken or photographs(store)
    assert not told(lambda repaired=repaired: epochs(repaired, 4))


def test_a_stage_that_keeps_nothing_refuses_no_source(tmp_path):
  path = stores.new_path(tmp_path)
  filled(path, by_index(range(N)), r=1)
  assert rtf.CacheStore(path).stats().entries == 0
  assert not told(lambda: epochs(stage(by_index(range(1, N + 1)), path, r=1)))


def test_a_refusal_hidden_by_ignore_errors_causes_a_warning(tmp_path):
  path = stores.new_path(tmp_path)
  filled(path, stream(range(N)))
  dataset = stage(stream(range(1, N + 1)), path).ignore_errors()
  assert ["was filled from another source" in message for message in told(lambda: epochs(dataset))] == [True]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
@pytest.mark.parametrize("kind", ["stored", "computed"])
def test_with_other_cpu_cores_only_stored_elements_are_compared(tmp_path, kind):
  path = stores.new_path(tmp_path)
  make = {"stored": by_index, "computed": lambda numbers: by_index(np.array(numbers, np.float32)).map(tf.math.exp)}[
    kind
  ]
  filled(path, make(range(N)))
  processors = os.sched_getaffinity(0)
  try:
    os.sched_setaffinity(0, {min(processors)})
    if kind == "stored":
      with pytest.raises(ValueError, match=REFUSED):
        stage(make(range(1, N + 1)), path)
    else:
      stage(make(range(1, N + 1)), path)
  finally:
    os.sched_setaffinity(0, processors)


# A store in memory: another source leads to a warning, once.


def generator(keys, each_time=lambda keys: keys):
  def records():
    yield from each_time(list(keys))

  return Dataset.from_generator(records, output_signature=tf.TensorSpec([], tf.int64))


def shuffled(keys):
  random.shuffle(keys)
  return keys


def test_a_generator_that_shuffles_causes_one_warning():
  dataset = stage(generator(range(50), shuffled)).batch(5)
  with pytest.warns(rtf.PipelineWarning) as caught:
    for _ in range(4):
      for _ in dataset:
        pass
  (message,) = [str(each.message) for each in caught]
  assert "element " in message and "shuffle" in message and "partial_fn" in message
  assert caught[0].filename == __file__
  # Each stage has its own warning.
  assert len(told(lambda: epochs(stage(generator(range(50), shuffled))))) == 1


def test_the_warning_is_raised_within_fit():
  model = keras.Sequential([keras.Input([]), keras.layers.Reshape([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  dataset = stage(generator(range(1, 51), shuffled)).map(lambda x: (tf.cast(x, tf.float32) / 50, 0.0)).batch(5)
  dataset = dataset.apply(tf.data.experimental.assert_cardinality(10))
  with pytest.warns(rtf.PipelineWarning, match="yields different elements") as caught:
    model.fit(dataset, epochs=3, verbose=0)
  (warned,) = [each for each in caught if each.category is rtf.PipelineWarning]
  assert warned.filename == __file__


def test_a_file_that_changes_causes_a_warning(tmp_path):
  for i in range(N):
    (tmp_path / f"{i}").write_text(f"{i}")
  dataset = stage(by_index([str(tmp_path / f"{i}") for i in range(N)]).map(tf.io.read_file), r=1)
  epochs(dataset, 1)
  (tmp_path / "3").write_text("4")
  assert "element 3" in told(lambda: epochs(dataset, 1))[0]


def test_a_source_that_calls_python_is_never_refused(tmp_path):
  path = stores.new_path(tmp_path)
  filled(path, generator(range(N)))
  # A deliberate change causes one warning, and none in the next run.
  for times in (1, 0):
    assert len(told(lambda: epochs(stage(generator(range(1, N + 1)), path), 4))) == times

  def in_python(first):
    return Dataset.range(first, first + N).map(datasets.in_python(lambda x: x))

  def with_state(first):
    return Dataset.zip(Dataset.range(first, first + N), Dataset.random(seed=1)).map(lambda x, _: x)

  for source in (in_python, with_state):
    path = stores.new_path(tmp_path)
    filled(path, source(0))
    (message,) = told(lambda source=source, path=path: epochs(stage(source(1), path)))
    # A stream is not probed.
    expected = "was filled from another source: element" if source is in_python else "filled from another split"
    assert expected in message and "overwrite=True" in message
  listed = lambda change: rtf.sources.data_source([(i, change(i)) for i in range(N)])
  path = stores.new_path(tmp_path)
  filled(path, listed(lambda i: i))
  (message,) = told(lambda path=path: epochs(stage(listed(lambda i: i + 1), path)))
  assert re.search("has other labels or weights than before: in element .* final_fn", message)
  some = lambda first: rtf.sources.data_source([first + i if i % 4 == 0 else i for i in range(N)])
  path = stores.new_path(tmp_path)
  filled(path, some(0))
  (message,) = told(lambda: epochs(stage(some(1), path)))
  assert "yields different elements than before" in message and "Remove shuffles" in message


def with_variable():
  seed = keras.random.SeedGenerator(1)
  return Dataset.range(N).map(lambda x: keras.random.uniform([], seed=seed) + tf.cast(x, tf.float32))


DRAWS = {
  "op": lambda: Dataset.range(N).map(lambda x: tf.random.uniform([])),
  # The next number goes to whichever element is read.
  "op with a seed": lambda: Dataset.range(N).map(lambda x: (x, tf.random.uniform([], seed=3))),
  "image op": lambda: arrays().map(lambda x, y: (tf.image.random_flip_left_right(x), y)),
  "generator": lambda: Dataset.range(N).map(lambda x, g=tf.random.Generator.from_seed(1): g.uniform([])),
  "in a function of a dataset": lambda: Dataset.range(N).flat_map(
    lambda x: Dataset.range(1).map(lambda _: tf.random.normal([]))
  ),
  "Keras": with_variable,
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_source_that_draws_is_not_checked(name, tmp_path):
  path = stores.new_path(tmp_path)
  for store in (None, path, path):
    dataset = stage(DRAWS[name](), store)
    assert not told(lambda dataset=dataset: epochs(dataset))
    assert "; not checked for changes, because it draws random numbers" in rtf.describe(dataset)


SAME = {
  "arrays": arrays,
  "floats with NaN": lambda: by_index(np.where(LABELS % 3, LABELS, np.nan)),
  "stateless draws": lambda: Dataset.range(N).map(lambda x: tf.random.stateless_uniform([], tf.stack([x, 7]))),
  "shuffled once": lambda: arrays().shuffle(N, seed=3, reshuffle_each_iteration=False),
  "interleave": lambda: Dataset.range(10).interleave(
    lambda x: Dataset.range(10 * x, 10 * x + 10), cycle_length=4, num_parallel_calls=4
  ),
  "shard, skip, take": lambda: arrays().shard(2, 1).skip(3).take(40),
  "cache": lambda: arrays().cache(),
  "ragged": lambda: Dataset.range(N).map(lambda x: (x, tf.ragged.range([x % 3, x % 5]))),
  "padded batches": lambda: Dataset.range(N).map(lambda x: tf.range(x % 5)).padded_batch(2).unbatch(),
  "echo": lambda: arrays().echo(1.5, seed=3),
  "generator of the same order": lambda: generator(range(N), lambda keys: random.Random(3).sample(keys, N)),
  "Python": lambda: rtf.sources.data_source(list(range(N))),
}


@pytest.mark.parametrize("name", SAME)
def test_an_unchanged_source_causes_no_alarm(name, tmp_path):
  path = stores.new_path(tmp_path)
  for store in (None, path, path):
    dataset = stage(SAME[name](), store)
    assert not told(lambda dataset=dataset: epochs(dataset, 4))
    assert "not checked" not in rtf.describe(dataset)
  # An early stop or two iterators at once cause no alarm either.
  dataset = stage(SAME[name]())
  next(iter(dataset))
  assert not told(lambda: list(zip(dataset, dataset)))


def test_elements_after_an_error_of_a_stream_cause_no_alarm():
  numbers = [1.0] * 20 + [0.0] + [2.0] * 20
  source = (
    Dataset.from_tensor_slices(numbers).filter(lambda x: True).map(lambda x: tf.debugging.check_numerics(1 / x, "no"))
  )
  dataset = stage(source)
  assert not told(lambda: [read(dataset) for _ in range(4)])


def test_elements_after_a_missing_file_cause_no_alarm(tmp_path):
  paths = [tmp_path / f"{i}" for i in range(N)]
  for i, path in enumerate(paths):
    path.write_text(f"{i}")
  # The error of one file costs two elements.
  pairs = by_index([str(path) for path in paths]).batch(2).map(lambda pair: tf.map_fn(tf.io.read_file, pair))
  dataset = stage(pairs.unbatch(), r=1)
  epochs(dataset, 1)
  paths[5].unlink()
  assert not told(lambda: read(dataset))


@pytest.mark.filterwarnings("ignore:The cache store")
def test_unknown_length(tmp_path):
  path = stores.new_path(tmp_path)
  for store in (None, path, path):
    assert not told(lambda store=store: epochs(stage(stream(range(3000)), store)))
  dataset = stage(stream(np.arange(1, 3001)), path)
  assert "differs" in str(read(dataset, limit=4000)[1][0])
