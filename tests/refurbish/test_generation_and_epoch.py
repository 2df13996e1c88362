"""`partial_fn` may take the generation and `final_fn` the epoch: the numbers that decide their seeds, however a sample
comes. tests/test_reference.py compares them with the schedule."""

import functools
import gc
import re

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.plotting import copies
from support import cases, schedule
from support.checkpoints import restore, save, take
from support.offloading import finished_by_host, layers, source

Dataset = tf.data.Dataset
N, SEED = 13, 7


def partial_fn(index, *, seed, generation):
  return tf.concat([[index, generation], tf.cast(seed, tf.int64)], axis=0)


def final_fn(sample, *, seed, epoch):
  return tf.concat([sample, [epoch], tf.cast(seed, tf.int64)], axis=0)


def make(r=2, n=N, *, of=lambda source: source, **options):
  return of(Dataset.range(n)).refurbish(partial_fn, final_fn, r, seed=SEED, **options)


def checked(elements):
  """Pairs of generation and epoch by index. Checks that they are the numbers from which the seeds were made."""
  found = {}
  for index, generation, *partial_seed, epoch, first, second in elements:
    made = [(schedule.PARTIAL_FN, generation, partial_seed), (schedule.FINAL_FN, epoch, [first, second])]
    for purpose, number, given in made:
      assert schedule.stateless_seed(SEED, purpose, number, index) == tuple(value % 2**32 for value in given)
    found[index] = generation, epoch
  return found


def epoch_of(dataset):
  return checked(element.tolist() for element in dataset.as_numpy_iterator())


@pytest.mark.parametrize("r", [1, 2, 3, 2.7])
@pytest.mark.parametrize("batched", [False, True])
def test_all_samples_of_an_epoch_have_its_number_and_their_generations(r, batched):
  by_hand = schedule.Schedule(SEED, N, r)
  dataset = make(r).batch(5).unbatch() if batched else make(r)
  for epoch in range(6):
    assert epoch_of(dataset) == {index: (by_hand.generation(index, epoch), epoch) for index in range(N)}


@pytest.mark.parametrize("r", [2, 2.7])
def test_a_restart_continues_them_in_an_epoch_and_between_two(tmp_path, r):
  expected = take(iter(make(r).repeat(4)))
  for number in (5, N, 2 * N + 1):
    iterator = iter(make(r).repeat(4))
    assert take(iterator, number) == expected[:number]
    assert take(restore(make(r).repeat(4), save(iterator, tmp_path))) == expected[number:]


@pytest.mark.filterwarnings("error::refurbish_tf.PipelineWarning")
@pytest.mark.parametrize("r", [2, 3, 2.7])
def test_a_store_on_disk_keeps_the_generations(tmp_path, r):
  """A new run on the store continues the schedule, and with it both numbers. Nobody is warned."""
  by_hand = schedule.Schedule(SEED, N, r)
  for run in range(3):
    dataset = make(r, store=tmp_path / "store")
    for epoch in range(3 * run, 3 * run + 3):
      assert epoch_of(dataset) == {index: (by_hand.generation(index, epoch), epoch) for index in range(N)}
    del dataset
    gc.collect()  # Closing a store writes its samples in memory.


@cases.slow
@pytest.mark.parametrize("r", [2, 2.7])
@pytest.mark.parametrize("max_bytes", [None, 400])
def test_jobs_on_one_store(tmp_path, r, max_bytes):
  store = rtf.CacheStore(tmp_path / "store", max_bytes=max_bytes)
  jobs = [make(r, store=store, order_seed=number, num_parallel_calls=None) for number in (1, 2)]
  for _ in range(5):
    for elements in zip(*(map(list, zip(*map(iter, jobs))))):
      checked(element.numpy().tolist() for element in elements)


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_count_alike(shards):
  """The union of the shards has, in each epoch, the generations of unsharded stages of the same sizes."""
  made = [make(of=lambda source, i=i: source.shard(shards, i)) for i in range(shards)]
  for epoch in range(4):
    found = [epoch_of(each) for each in made]
    assert sorted(index for each in found for index in each) == list(range(N))
    assert {number for each in found for _, number in each.values()} == {epoch}


def test_offload_after_either_function():
  grown = lambda image, label, *, generation: (image + tf.cast(generation, tf.uint8), label)
  expected = source(N).refurbish(grown, augment.compose(layers()), r=2, seed=SEED)
  stage = source(N).refurbish(grown, r=2, seed=SEED).offload(layers(), 4, drop_remainder=False)
  for _ in range(3):
    made = {
      int(label): image.tobytes()
      for batch, labels in stage
      for label, image in zip(labels, finished_by_host(batch, layers(), 2))
    }
    assert made == {int(label): image.numpy().tobytes() for image, label in expected}
  numbered = source(N).refurbish(
    lambda *element: element, lambda image, label, *, epoch: (image, epoch), r=2, seed=SEED
  )
  stage = numbered.offload(layers(), 4, drop_remainder=False, seed=1)
  for epoch in range(3):
    assert {int(number) for _, numbers in stage for number in numbers} == {epoch}


def test_native_layers_among_functions_that_take_numbers():
  """The layers alone are called without TensorFlow's executor unless the number is used."""
  flip = augment.compose([augment.random_flip()])
  expected = source(N).refurbish(flip, flip, r=2, seed=SEED)
  partial_fn = lambda image, label, *, seed, generation: flip(image, label, seed=seed)
  final_fn = lambda image, label, *, seed, epoch: (*flip(image, label, seed=seed), epoch)
  unused = lambda image, label, *, seed, epoch: flip(image, label, seed=seed)
  used, unused = (source(N).refurbish(partial_fn, each, r=2, seed=SEED).batch(5) for each in (final_fn, unused))
  for epoch in range(3):
    rows = [list(each.unbatch().as_numpy_iterator()) for each in (expected.batch(5), used, unused)]
    for (image, label), (*others, number), alike in zip(*rows):
      assert number == epoch and int(label) == others[1] == alike[1]
      assert image.tobytes() == others[0].tobytes() == alike[0].tobytes()


def test_show_passes_them():
  found = copies.samples_of(make(2.7), 5, 4)
  for epoch, elements in enumerate(found.epochs):
    shown = checked(element.numpy().tolist() for element in elements)
    assert {number for _, number in shown.values()} == {epoch}


def test_a_component_or_a_bound_value_of_that_name_is_passed_as_before():
  pairs = Dataset.from_tensor_slices((tf.range(4), 10 * tf.range(4)))
  assert sorted(pairs.refurbish(lambda x, epoch: x + epoch).as_numpy_iterator()) == [0, 11, 22, 33]
  bound = functools.partial(lambda x, epoch: x + epoch, epoch=5)
  assert sorted(Dataset.range(4).refurbish(bound).as_numpy_iterator()) == [5, 6, 7, 8]
  with_default = Dataset.range(4).refurbish(tf.identity, lambda x, epoch=-1: epoch)
  assert [set(with_default.as_numpy_iterator()) for _ in range(2)] == [{0}, {1}]


@pytest.mark.parametrize(
  "functions, text",
  [
    ([lambda x, *, epoch: x], "partial_fn must not take `epoch`: its result is used in several epochs"),
    ([lambda x, *, seed, epoch=0: x], "or use `epoch` in final_fn"),
    ([tf.identity, lambda x, generation: x], "final_fn must not take `generation`, .*Return it from partial_fn"),
  ],
)
def test_the_other_number_is_refused(functions, text):
  with pytest.raises(TypeError, match=text):
    Dataset.range(4).refurbish(*functions)
  with pytest.raises(TypeError, match=re.escape("with seed and epoch if it has parameters of that name")):
    Dataset.range(4).refurbish(tf.identity, lambda x, y, *, epoch: x)
