"""A loader's state saved at any edge of an epoch restores the epochs: each is whole, and none is empty."""

import importlib.util
import itertools

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.loaders import state as states
from support import cases
from support.checkpoints import with_checkpoints
from support.loaders import final, loader_of, numpy_loader, partial, values

pytestmark = cases.slow

N = 11
BATCH = 3
EPOCHS = 5
JAX = "jax" if importlib.util.find_spec("jax") else "numpy"


def refurbished(source, **arguments):
  return source.refurbish(partial, final, **{"r": 2, "seed": 7, **arguments}).batch(BATCH).prefetch(2)


def by_index():
  return tf.data.Dataset.range(N)


def stream():
  return by_index().filter(lambda x: x >= 0)


# Each call makes a new pipeline, as in a new process, on a new path.
PIPELINES = {
  "memory": lambda path: refurbished(by_index()),
  "stream on disk": lambda path: refurbished(stream(), store=path, order_seed=3, shuffle_buffer_size=1),
  "unknown length": lambda path: refurbished(by_index()).filter(lambda index, _: tf.size(index) > 0),
  "repeat": lambda path: by_index().refurbish(partial, final, r=2, seed=7).repeat(2).batch(BATCH),
  "disk": lambda path: refurbished(by_index(), store=path),
  "stream": lambda path: refurbished(stream(), shuffle_buffer_size=1),
  "little memory": lambda path: refurbished(by_index(), store=rtf.CacheStore(max_bytes=60)),
  "no remainder": lambda path: refurbished(by_index()).unbatch().batch(BATCH, drop_remainder=True),
  "parallel map": lambda path: refurbished(by_index()).map(lambda *batch: batch, num_parallel_calls=2),
  "symbolic": lambda path: with_checkpoints(refurbished(by_index())),
  "offload": lambda path: (
    by_index()
    .map(lambda index: tf.fill([4, 4, 3], tf.cast(index, tf.uint8)))
    .refurbish(lambda image: image, r=2, seed=7)
    .offload(rtf.augment.rand_augment(1), BATCH, device_fraction=0.5, drop_remainder=False)
  ),
  "offload alone": lambda path: (
    by_index()
    .map(lambda index: tf.fill([4, 4, 3], tf.cast(index, tf.uint8)))
    .offload(rtf.augment.rand_augment(1), BATCH, device_fraction=0.5, seed=7, drop_remainder=False)
  ),
  "no refurbish": lambda path: by_index().batch(BATCH).prefetch(2),
}
SAMPLE = ("memory", "stream on disk", "unknown length", "repeat")
EACH = pytest.mark.parametrize(
  "make",
  [
    pytest.param(make, id=name, marks=() if name in SAMPLE else cases.only_exhaustive)
    for name, make in PIPELINES.items()
  ],
)
# On the CPU, jax_loader hands over at once; the other loader reads a batch ahead, as for a device.
LOADERS = {JAX: lambda dataset: loader_of(JAX, dataset), "a batch ahead": lambda dataset: numpy_loader(dataset, 1)}
if importlib.util.find_spec("torch"):
  LOADERS["torch"] = lambda dataset: loader_of("torch", dataset)
EACH_LOADER = pytest.mark.parametrize(
  "load",
  [
    pytest.param(load, id=name, marks=cases.only_exhaustive if name == "torch" else ())
    for name, load in LOADERS.items()
  ],
)


class Stopped(Exception):
  pass


def train(loader, seen, stop=None):
  """Trains as the guide does. Records the batches of each epoch in `seen`, and calls `stop(epoch, step)` after each of
  the batches."""
  for epoch in range(loader.epoch, EPOCHS):
    batches = seen.setdefault(epoch, [])
    for step, batch in enumerate(loader, 1):
      assert loader.epoch == epoch
      batches += values([batch])
      if stop is not None:
        stop(epoch, step)
    assert step  # Fails if the epoch had no steps.
    del step
    if stop is not None:
      stop(epoch, None)


def stopped_at(loader, seen, edge):
  """Returns the state saved at an edge, (epoch, step). With step None it is after the loop over the epoch, with edge
  None before any reading."""

  def stop(*at):
    if at == edge:
      raise Stopped

  if edge is not None:
    with pytest.raises(Stopped):
      train(loader, seen, stop)
  return loader.state_dict()


@EACH
@EACH_LOADER
@cases.each_value
def test_epochs_resume_from_each_boundary(make, load, tmp_path):
  """The state is saved before the first batch, at an epoch's last one, after one and two epochs, and in mid-epoch."""
  expected = {}
  train(load(make(str(tmp_path / "unbroken"))), expected)
  steps = len(expected[0])
  assert len(expected) == EPOCHS and all(len(batches) == steps for batches in expected.values())
  edges = [None, (0, steps), (2, 2), (0, None), (2, steps), (1, None), (0, 1), (EPOCHS - 1, steps)]
  for number, edge in cases.some(enumerate(edges), 5):
    seen, path = {}, str(tmp_path / str(number))
    state = stopped_at(load(make(path)), seen, edge)
    resumed = load(make(path))
    # Loads the state twice, then saves and loads it again before reading; every second case reads `epoch` in between.
    for each in (state, state, resumed.state_dict):
      resumed.load_state_dict(each() if callable(each) else each)
      assert number % 2 or resumed.epoch == max(seen, default=0) + (edge is not None and edge[1] in (None, steps))
    train(resumed, seen)
    if make in (PIPELINES["stream on disk"], PIPELINES["stream"], PIPELINES["little memory"]):
      # Samples that are prepared again may come in another order.
      indices = {
        epoch: sorted(itertools.chain.from_iterable(batch[0] for batch in batches)) for epoch, batches in seen.items()
      }
      assert indices == {epoch: list(range(N)) for epoch in range(EPOCHS)}
    else:
      assert seen == expected, edge


@EACH_LOADER
def test_peeking_at_a_batch_can_be_undone(load):
  """As the guide says, epoch numbers and batches are then those of an unread loader."""
  seen, expected = {}, {}
  train(load(refurbished(by_index())), expected)
  loader = load(refurbished(by_index()))
  start = loader.state_dict()
  assert values([next(iter(loader))]) == expected[0][:1]
  loader.load_state_dict(start)
  assert loader.epoch == 0
  train(loader, seen)
  assert seen == expected


def test_a_refused_state_keeps_the_unread_rest_of_an_epoch():
  seen, expected = {}, {}
  train(numpy_loader(refurbished(by_index())), expected)
  state = stopped_at(numpy_loader(refurbished(by_index())), seen, (1, 2))
  other = stopped_at(numpy_loader(refurbished(by_index(), r=3)), {}, (0, 1))
  resumed = numpy_loader(refurbished(by_index()))
  resumed.load_state_dict(state)
  assert resumed.epoch == 1
  with pytest.raises(tf.errors.InvalidArgumentError, match="numpy_loader cannot load the state"):
    resumed.load_state_dict(other)
  train(resumed, seen)
  assert seen == expected


def test_a_state_of_another_format_is_refused():
  loader = numpy_loader(refurbished(by_index()))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(states, "_FORMAT", 3)
    state = loader.state_dict()
  with pytest.raises(
    ValueError,
    match="numpy_loader: the state has format 3, but this refurbish_tf reads format 5. Use the version that saved it",
  ):
    loader.load_state_dict(state)


# Simulates Lightning, which passes the number of each epoch to the loader before reading it, and continues from some
# checkpoints without the loader's state. test_loaders_interop.py runs Lightning itself.


def read(loader, epochs=1):
  return [values(loader) for _ in range(epochs)]


@pytest.mark.parametrize(
  "steps, told, left",
  [
    (4, 1, 0),  # After an epoch's last batch Lightning begins the next epoch.
    (4, 0, 0),  # Some versions finish the same epoch first.
    (2, 0, 2),
    (2, 1, 0),  # With limit_train_batches=2 an epoch has only two batches.
  ],
)
def test_the_number_passed_to_set_epoch_determines_the_epoch(steps, told, left):
  expected = read(numpy_loader(refurbished(by_index())), 2)
  loader = numpy_loader(refurbished(by_index()))
  loader.batch_sampler.sampler.set_epoch(0)
  batches = iter(loader)
  for _ in range(steps):
    next(batches)
  resumed = numpy_loader(refurbished(by_index()))
  resumed.load_state_dict(loader.state_dict())
  resumed.load_state_dict(resumed.state_dict())
  for number in range(told, 2):
    resumed.batch_sampler.sampler.set_epoch(number)
    assert read(resumed) == [expected[1] if number else expected[0][len(expected[0]) - left :]]


@pytest.mark.parametrize(
  "name", ["memory", "repeat", "disk", pytest.param("offload alone", marks=cases.only_exhaustive)]
)
def test_a_new_loader_begins_with_the_epoch_given_to_set_epoch(name, tmp_path):
  """As after a checkpoint at an epoch's end, in a new process, the batches are those of the unbroken run."""
  make = PIPELINES[name]
  expected = read(numpy_loader(make(str(tmp_path / "unbroken"))), 4)
  loader = numpy_loader(make(str(tmp_path / "resumed")))
  batches = iter(loader)
  for _ in range(2):
    loader.batch_sampler.sampler.set_epoch(2)
  assert loader.epoch == 2
  assert [values(batches), *read(loader)] == expected[2:]
  # A loader that has been read goes on, whatever epoch number another training passes.
  loader.batch_sampler.sampler.set_epoch(0)
  other = numpy_loader(make(str(tmp_path / "other")))
  list(other)
  other.batch_sampler.sampler.set_epoch(0)
  assert (loader.epoch, other.epoch) == (4, 1)
  assert read(other) == expected[1:2]


def test_set_epoch_warns_if_epochs_cannot_be_identified():
  loader = numpy_loader(by_index().refurbish(partial, final, r=2, seed=7).repeat().batch(BATCH).take(3))
  with pytest.warns(
    rtf.PipelineWarning,
    match="numpy_loader: training continues with epoch 2, but its samples .*Pass a number to .repeat",
  ):
    loader.batch_sampler.sampler.set_epoch(2)


def test_a_batch_may_be_read_before_set_epoch():
  """Lightning does so if it does not know the length. Its checkpoints lack that batch."""
  loader = numpy_loader(PIPELINES["unknown length"](None))
  expected = read(numpy_loader(PIPELINES["unknown length"](None)), 3)
  batches = iter(loader)
  first = values([next(batches)])
  loader.batch_sampler.sampler.set_epoch(1)
  # The first order is used only once.
  assert first + values(batches) == expected[0]
  assert read(loader) == [expected[2]]
  with pytest.warns(rtf.PipelineWarning, match="Lightning does not know how many batches .*assert_cardinality"):
    state = loader.state_dict()
  assert len(state["state"]) == 65536
  # After the end, without an epoch number: Lightning reads the rest of an epoch that has lost one batch.
  batches = iter(loader)
  for _ in range(len(expected[0])):
    next(batches)
  with pytest.warns(rtf.PipelineWarning):
    state = loader.state_dict()
  loader.load_state_dict(state)
  assert read(loader) == [[]]
