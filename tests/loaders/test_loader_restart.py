"""A loader's state is its position after the last batch that was handed out. Restoring it yields exactly the rest of
the epoch."""

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import with_checkpoints
from support.datasets import with_options
from support.loaders import FRAMEWORKS, as_numpy, final, loader_of, numpy_loader, partial, values
from support.processes import run_forked

Dataset = tf.data.Dataset

pytestmark = cases.slow

N = 23
BATCH = 4


def refurbished(n=N, **arguments):
  return Dataset.range(n).refurbish(partial, final, **{"r": 2, "seed": 7, **arguments})


def offloaded(source):
  """Offloads batches of the elements. Each element has an image, whose layers have draws."""
  layers = [*rtf.augment.rand_augment(1), rtf.augment.random_flip()]
  return source.map(
    lambda *element: (element[0], tf.zeros([4, 4, 3], tf.uint8) + tf.cast(element[0], tf.uint8))
  ).offload(layers, BATCH, component=1, device_fraction=0.5, seed=5, drop_remainder=False)


# Ordered by how they are saved: by snapshots, with buffered elements, symbolically.
PIPELINES = {
  "batch, prefetch": lambda: refurbished().batch(BATCH).prefetch(tf.data.AUTOTUNE),
  "batch": lambda: refurbished().batch(BATCH),
  "no remainder": lambda: refurbished().batch(BATCH, drop_remainder=True).prefetch(3),
  "echo after batch": lambda: refurbished().batch(BATCH).echo(2).prefetch(2),
  "several epochs": lambda: refurbished().repeat(2).batch(BATCH).prefetch(2),
  "zip": lambda: (
    Dataset.zip(refurbished().batch(BATCH), Dataset.random(seed=1)).map(lambda batch, _: batch).prefetch(2)
  ),
  "no refurbish": lambda: Dataset.range(N).batch(BATCH).prefetch(2),
  "parallel map": lambda: refurbished().batch(BATCH).map(lambda *batch: batch, num_parallel_calls=2).prefetch(2),
  "parallel map at the end": lambda: Dataset.range(N).batch(BATCH).map(lambda batch: batch, num_parallel_calls=2),
  "shuffle": lambda: refurbished().shuffle(5, seed=3, reshuffle_each_iteration=False).batch(BATCH).prefetch(2),
  "cache after batch": lambda: Dataset.range(N).batch(BATCH).cache().prefetch(2),
  "offload": lambda: offloaded(Dataset.range(N)),
  "offload after a final function": lambda: offloaded(refurbished()).prefetch(2),
  "symbolic": lambda: with_checkpoints(refurbished().batch(BATCH).prefetch(2)),
  "symbolic, parallel map": lambda: with_checkpoints(
    refurbished().batch(BATCH).map(lambda *batch: batch, num_parallel_calls=2).prefetch(2)
  ),
}
# Their states are saved in the same way as those of other pipelines, so only the exhaustive run tests them.
ALIKE = ("batch", "no remainder", "several epochs", "shuffle", "symbolic, parallel map")
EACH = pytest.mark.parametrize(
  "make",
  [
    pytest.param(make, id=name, marks=cases.only_exhaustive if name in ALIKE else ())
    for name, make in PIPELINES.items()
  ],
)
AHEAD = pytest.mark.parametrize("num_ahead", [0, 1])


def indices(batches):
  return sorted(int(index) for batch in batches for index in tf.nest.flatten(batch)[0])


@EACH
@pytest.mark.parametrize("num_ahead", [1, pytest.param(0, marks=cases.only_exhaustive)])
def test_the_state_of_every_step_restores_exactly_the_rest(make, num_ahead):
  """Tests the second epoch. The resuming loader may be in an epoch of its own, and its state is saved again."""
  whole = numpy_loader(make(), num_ahead)
  list(whole)
  batches, states = iter(whole), [whole.state_dict()]
  seen = []
  for batch in batches:
    seen += values([batch])
    states.append(whole.state_dict())
  after = values(whole)
  for step, state in cases.some(enumerate(states), 5):
    resumed = numpy_loader(make(), num_ahead)
    if step % 2:
      next(iter(resumed))
    resumed.load_state_dict(state)
    resumed.load_state_dict(resumed.state_dict())  # Loaded but not read, the loader saves the same position.
    rest = iter(resumed)
    again = step + 1
    if again < len(states):
      assert values([next(rest)]) == seen[step:again]
      # Resumes a second time within the epoch.
      resumed.load_state_dict(resumed.state_dict())
      assert values(resumed) == seen[again:]
      assert values(resumed) == after
    else:
      assert values(rest) == after


@AHEAD
def test_a_stream_and_a_small_store_resume_to_the_same_set(num_ahead):
  """The fresh samples of such stages may come in another order."""
  sample = 12  # The size of a sample in bytes.
  for make in (
    lambda: Dataset.range(N).filter(lambda x: x >= 0).refurbish(partial, final, r=2, seed=7).batch(BATCH),
    lambda: refurbished(store=rtf.CacheStore(max_bytes=8 * sample)).batch(BATCH),
  ):
    first = numpy_loader(make().prefetch(2), num_ahead)
    list(first)
    batches = iter(first)
    seen = [next(batches) for _ in range(3)]
    resumed = numpy_loader(make().prefetch(2), num_ahead)
    resumed.load_state_dict(first.state_dict())
    assert indices(seen) + indices(resumed) != indices(seen)
    resumed.load_state_dict(first.state_dict())
    assert sorted(indices(seen) + indices(resumed)) == list(range(N))
    assert indices(resumed) == list(range(N))


@AHEAD
def test_states_between_epochs(num_ahead):
  make = PIPELINES["batch, prefetch"]
  first = numpy_loader(make(), num_ahead)
  states, epochs = [first.state_dict()], []
  for _ in range(3):
    epochs.append(values(first))
    states.append(first.state_dict())
  for epoch, state in enumerate(states[:3]):
    resumed = numpy_loader(make(), num_ahead)
    resumed.load_state_dict(state)
    for later in range(epoch, 3):
      assert values(resumed) == epochs[later]


def test_iterators_made_before_the_state_is_loaded():
  make = PIPELINES["batch, prefetch"]
  first = numpy_loader(make())
  batches = iter(first)
  next(batches)
  state, rest = first.state_dict(), values(batches)
  resumed = numpy_loader(make())
  unread, read = iter(resumed), iter(resumed)
  next(read)
  resumed.load_state_dict(state)
  with pytest.raises(
    RuntimeError, match="numpy_loader: load_state_dict\\(\\) has moved to another position since this iterator"
  ):
    next(read)
  third = numpy_loader(make())
  third.load_state_dict(resumed.state_dict())  # Loaded but not read, the loader still has that state.
  assert values(third) == rest
  assert values(unread) == rest


@pytest.mark.parametrize("num_ahead", [0, 1])
def test_a_state_holds_nothing_that_is_read_ahead(num_ahead):
  """A state has the same size at each step, because some libraries only restore into arrays of the same shape."""
  noise = np.random.default_rng(7).integers(0, 256, [N, 100, 100, 3], np.uint8)  # Noise, because states are compressed.
  images = Dataset.from_tensor_slices(noise)
  loader = numpy_loader(images.refurbish(lambda image: image, r=2, seed=7).batch(BATCH).prefetch(2), num_ahead)
  sizes = [len(loader.state_dict()["state"])]
  for _ in range(2):
    for _ in loader:
      sizes.append(len(loader.state_dict()["state"]))
  assert set(sizes) == {65536}


def resume_in_a_new_process(path, expected):
  loader = numpy_loader(PIPELINES["batch, prefetch"](), 1)
  loader.load_state_dict({"state": np.load(path)})
  assert [values(loader), values(loader)] == expected


def test_a_state_is_restored_in_a_new_process(tmp_path):
  loader = numpy_loader(PIPELINES["batch, prefetch"]())
  list(loader)
  batches = iter(loader)
  next(batches)
  np.save(tmp_path / "state.npy", loader.state_dict()["state"])
  assert run_forked(resume_in_a_new_process, tmp_path / "state.npy", [values(batches), values(loader)]) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_state_is_restored_with_each_framework(framework):
  make = PIPELINES["batch, prefetch"]
  loader = loader_of(framework, make())
  batches = iter(loader)
  next(batches)
  state = loader.state_dict()
  assert type(state["state"]).__module__ == ("torch" if framework == "torch" else "numpy")
  resumed = loader_of(framework, make())
  resumed.load_state_dict(state)
  assert values(as_numpy(framework, each) for each in resumed) == values(as_numpy(framework, each) for each in batches)


def damaged(state, change):
  array = state["state"].copy()
  change(array)
  return {"state": array}


@pytest.mark.parametrize("place", [0, 20, 25, 60, 400])
def test_a_damaged_state_changes_nothing(place):
  make = PIPELINES["batch, prefetch"]
  loader, untouched = numpy_loader(make()), numpy_loader(make())
  batches = iter(loader)
  next(batches)

  def flip(array):
    array[place] ^= 1

  with pytest.raises(ValueError, match='numpy_loader: "state" is damaged, or not what state_dict\\(\\) has returned'):
    loader.load_state_dict(damaged(loader.state_dict(), flip))
  expected = iter(untouched)
  next(expected)
  assert values(batches) == values(expected)
  assert values(loader) == values(untouched)


def test_another_state_is_refused():
  loader = numpy_loader(PIPELINES["batch, prefetch"]())
  for given, described in (
    (None, "NoneType"),
    ({}, "{}"),
    ({"state": [1]}, "{'state': list}"),
    ({"epoch": 3}, "{'epoch': int}"),
    ({"state": np.zeros([2, 2], np.uint8)}, "{'state': ndarray}"),
  ):
    with pytest.raises(TypeError, match="load_state_dict takes the result of state_dict\\(\\)") as error:
      loader.load_state_dict(given)
    assert f"got {described}." in str(error.value)
  with pytest.raises(ValueError, match="is damaged"):
    loader.load_state_dict({"state": np.zeros([0], np.uint8)})
  other = numpy_loader(PIPELINES["no refurbish"]())
  with pytest.raises(
    ValueError, match="numpy_loader: the state belongs to another pipeline, with {'elements': .*, 'stages': 0}"
  ):
    loader.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
  "other, error, text",
  [
    (lambda: refurbished(r=3).batch(BATCH), tf.errors.InvalidArgumentError, "The checkpoint was saved by another"),
    # The state of the stage fits, but not that of the dataset.
    (
      lambda: refurbished().batch(BATCH).map(lambda index, value: (index, -value)),
      tf.errors.NotFoundError,
      "Failed to restore dataset iterator",
    ),
  ],
)
def test_a_state_that_does_not_fit_changes_nothing(other, error, text):
  """If the iterator's state is refused, the restored states of the stages are undone."""
  saved, (loader, untouched) = numpy_loader(refurbished().batch(BATCH)), (numpy_loader(other()) for _ in range(2))
  for _ in range(3):
    list(saved)
  next(iter(saved))
  list(loader), list(untouched)
  with pytest.raises(error, match=f"^numpy_loader cannot load the state: {text}"):
    loader.load_state_dict(saved.state_dict())
  assert values(loader) == values(untouched)


@pytest.mark.parametrize(
  "make",
  [
    lambda: Dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)),
    lambda: Dataset.range(3).map(lambda x: tf.random.uniform([])),
    lambda: Dataset.range(3).map(lambda x: tf.random.uniform([])).prefetch(2),
  ],
)
def test_a_pipeline_that_cannot_be_saved_raises_a_clear_error(make):
  loader = numpy_loader(make())
  assert len(list(loader)) == 3
  next(iter(loader))
  with pytest.raises(
    tf.errors.FailedPreconditionError,
    match="^numpy_loader cannot save the pipeline: .* is stateful. Draw random numbers with a seed",
  ):
    loader.state_dict()


@pytest.mark.parametrize("prefetched", [0, 2])
def test_stateful_random_functions_are_saved_if_state_is_ignored(prefetched, capfd):
  dataset = with_options(
    Dataset.range(5).map(lambda x: (x, tf.random.uniform([]))),
    experimental_external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE,
  )
  loader = numpy_loader(dataset.prefetch(prefetched) if prefetched else dataset)
  next(iter(loader))
  loader.load_state_dict(loader.state_dict())
  assert [int(index) for index, _ in loader] == [1, 2, 3, 4]
  assert "stateful" not in capfd.readouterr().err
