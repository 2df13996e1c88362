"""`partial_fn` may take the generation and `final_fn` the epoch: the numbers that decide their seeds, however a sample
comes. tests/test_reference.py compares them with the schedule."""

import gc

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.plotting import copies
from support import cases, schedule
from support.checkpoints import assert_restored_at_every_step
from support.offloading import finished_by_host, layers, source

Dataset = tf.data.Dataset
N, SEED = 13, 7


def partial_fn(index, *, seed, generation):
  return tf.concat([[index, generation], tf.cast(seed, tf.int64)], axis=0)


def final_fn(sample, *, seed, epoch):
  return tf.concat([sample, [epoch], tf.cast(seed, tf.int64)], axis=0)


def make(r=2, source=Dataset.range(N), **options):
  return source.refurbish(partial_fn, final_fn, r, seed=SEED, **options)


def checked(elements):
  """Pairs of generation and epoch by index. Checks that they are the numbers from which the seeds were made."""
  found = {}
  for index, generation, *partial_seed, epoch, first, second in (each.numpy().tolist() for each in elements):
    made = [(schedule.PARTIAL_FN, generation, partial_seed), (schedule.FINAL_FN, epoch, [first, second])]
    for purpose, number, given in made:
      assert schedule.stateless_seed(SEED, purpose, number, index) == tuple(value % 2**32 for value in given)
    found[index] = generation, epoch
  return found


@pytest.mark.filterwarnings("error::refurbish_tf.PipelineWarning")
@pytest.mark.parametrize("r", [2, 3, 2.7])
def test_the_next_run_on_a_store_continues_both(tmp_path, r):
  by_hand = schedule.Schedule(SEED, N, r)
  for epoch in range(6):
    if epoch % 3 == 0:
      dataset = None
      gc.collect()  # Closing a store writes its samples in memory.
      dataset = make(r, store=tmp_path / "store")
    assert checked(dataset) == {index: (by_hand.generation(index, epoch), epoch) for index in range(N)}


@pytest.mark.parametrize("r", [2, 2.7])
def test_a_restart_continues_both_in_an_epoch_and_between_two(tmp_path, r):
  assert_restored_at_every_step(lambda: make(r).repeat(3), tmp_path)


@cases.each_value
@pytest.mark.parametrize("r", [2, 2.7])
@pytest.mark.parametrize("kind", ["jobs", "jobs without room", "shards", "show"])
def test_both_are_what_decides_the_seeds(tmp_path, r, kind):
  if kind == "show":
    [*map(checked, copies.samples_of(make(r), 5, 4).epochs)]
    return
  store = {"jobs": tmp_path / "store", "jobs without room": rtf.CacheStore(tmp_path / "store", max_bytes=400)}.get(kind)
  shards = [Dataset.range(N).shard(2, i) if kind == "shards" else Dataset.range(N) for i in range(2)]
  stages = [make(r, of, store=store, order_seed=i, num_parallel_calls=None) for i, of in enumerate(shards)]
  for epoch in range(4):
    for elements in zip(*stages):
      assert {number for _, number in checked(elements).values()} == {epoch}


def test_native_layers_among_functions_that_take_numbers():
  """Their images are those of the layers alone, in rows of batches and before `offload`."""
  flip = augment.compose([augment.random_flip()])
  partial_fn = lambda image, label, *, seed, generation: flip(image + tf.cast(generation, tf.uint8), label, seed=seed)
  final_fn = lambda image, label, *, seed, epoch: (*augment.compose(layers())(image, label, seed=seed), epoch)
  unused = lambda *element, seed, epoch: final_fn(*element, seed=seed, epoch=epoch)[:2]
  used, unused = (source(N).refurbish(partial_fn, each, r=2, seed=SEED) for each in (final_fn, unused))
  offloaded = source(N).refurbish(partial_fn, r=2, seed=SEED).offload(layers(), 4, drop_remainder=False)
  images = lambda pairs: {int(label): image.tobytes() for image, label in pairs}
  for epoch in range(3):
    *made, numbers = zip(*used.as_numpy_iterator())
    assert set(numbers) == {epoch}
    batches = [(finished_by_host(batch, layers(), 2), labels.numpy()) for batch, labels in offloaded]
    assert images(zip(*made)) == images(unused.batch(5).unbatch().as_numpy_iterator())
    assert images(zip(*made)) == images(pair for batch in batches for pair in zip(*batch))


def test_a_component_of_that_name_is_passed_as_before():
  pairs = Dataset.from_tensor_slices((tf.range(4), 10 * tf.range(4)))
  assert sorted(pairs.refurbish(lambda x, epoch: x + epoch).as_numpy_iterator()) == [0, 11, 22, 33]
  with_default = Dataset.range(4).refurbish(tf.identity, lambda x, epoch=-1: epoch)
  assert [set(with_default.as_numpy_iterator()) for _ in range(2)] == [{0}, {1}]


@pytest.mark.parametrize(
  "functions, text",
  [
    ([lambda x, *, seed, epoch=0: x], "partial_fn must not take `epoch`, because its result is used"),
    ([tf.identity, lambda x, generation: x], "final_fn must not take `generation`, .*Return it from partial_fn"),
    ([tf.identity, lambda x, y, *, epoch: x], "with seed and epoch if it has parameters with these names"),
  ],
)
def test_errors_say_which_number_to_take(functions, text):
  with pytest.raises(TypeError, match=text):
    Dataset.range(4).refurbish(*functions)
