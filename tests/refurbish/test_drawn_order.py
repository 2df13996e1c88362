"""A source that draws its order in a function is refused, and one that never ends causes a warning. Similar but valid
sources do not."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_random_index_shuffle_ops

import refurbish_tf as rtf
from support.datasets import in_python

Dataset = tf.data.Dataset
N = 60
IMAGES = np.random.default_rng(0).integers(0, 256, [N, 8, 8, 3], np.uint8)


def shuffled(value):
  """Returns a different order each time, even if another test has called `tf.random.set_seed`."""
  return tf.raw_ops.RandomShuffle(value=value, seed=0, seed2=0)


def drawn_indices():
  return shuffled(tf.range(N, dtype=tf.int64))


def of_hugging_face(draw):
  """The source of `to_tf_dataset(shuffle=True)`: each epoch draws a seed in its first step."""

  def scan(state, index):
    state = tf.cond(tf.reduce_all(state == -1), draw, lambda: state)
    return state, gen_random_index_shuffle_ops.random_index_shuffle(index, state, max_index=N - 1)

  indices = Dataset.range(N).scan(tf.fill([3], tf.constant(-1, tf.int64)), scan)
  return indices.map(in_python(lambda i: i))


def chosen(choices):
  return Dataset.choose_from_datasets([Dataset.range(k * N, k * N + N // 6) for k in range(6)], choices)


DRAWN = {
  "flat_map": lambda: Dataset.range(1).flat_map(lambda _: Dataset.from_tensor_slices(drawn_indices())),
  "images": lambda: Dataset.range(1).flat_map(lambda _: Dataset.from_tensor_slices(shuffled(IMAGES))),
  "files": lambda: Dataset.range(3).flat_map(
    lambda k: Dataset.from_tensor_slices(tf.strings.as_string(20 * k + shuffled(tf.range(20, dtype=tf.int64))))
  ),
  "choices": lambda: chosen(
    Dataset.range(1).flat_map(lambda _: Dataset.from_tensor_slices(shuffled(tf.range(N, dtype=tf.int64) % 6)))
  ),
  "some twice": lambda: Dataset.range(1).flat_map(
    lambda _: Dataset.from_tensor_slices(tf.gather(IMAGES // 200, drawn_indices()))
  ),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_dataset_of_shuffled_tensors_is_refused(kind):
  with pytest.raises(ValueError, match=r"changes its order .*tf\.random\.shuffle.*stateless_shuffle, may stay"):
    DRAWN[kind]().refurbish(tf.identity, r=2)


def test_a_random_seed_of_index_shuffle_is_refused():
  for draw in (
    lambda: tf.random.uniform([3], maxval=2**62, dtype=tf.int64),
    tf.function(lambda: tf.random.uniform([3], maxval=2**62, dtype=tf.int64)),
  ):
    with pytest.raises(
      ValueError, match=r"\(an index_shuffle with a seed that is drawn .*to_tf_dataset\(shuffle=False\)"
    ):
      of_hugging_face(draw).refurbish(tf.identity, r=2)
  # Drawn numbers elsewhere do not matter.
  source = of_hugging_face(lambda: tf.constant([3, 4, 5], tf.int64)).map(lambda i: (i, tf.random.uniform([])))
  train = source.refurbish(lambda i, _: i, r=2)
  for _ in range(3):
    assert sorted(train.as_numpy_iterator()) == list(range(N))


# Sources that draw random numbers and keep their order.
KEEPS_ORDER = {
  "augmentation": lambda: Dataset.from_tensor_slices(IMAGES).map(tf.image.random_flip_left_right),
  "only noise": lambda: Dataset.range(N).map(lambda _: tf.random.uniform([]), num_parallel_calls=4),
  "repeated": lambda: Dataset.from_tensor_slices(IMAGES).repeat(8).map(tf.image.random_flip_left_right),
  "shuffled content": lambda: Dataset.range(N).batch(4).map(lambda x: (x[0], tf.random.shuffle(x))),
  "shuffled in a dataset that yields one element": lambda: Dataset.range(N).map(
    lambda i: Dataset.from_tensors(tf.random.shuffle(tf.fill([4], i))).get_single_element()[0]
  ),
  "shuffled once": lambda: Dataset.range(1).flat_map(
    lambda _: Dataset.from_tensor_slices(tf.random.experimental.stateless_shuffle(tf.range(N), seed=[1, 2]))
  ),
}


@pytest.mark.parametrize("kind", KEEPS_ORDER)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.filterwarnings("error::refurbish_tf.PipelineWarning")
def test_no_false_alarm(kind, streamed):
  source = KEEPS_ORDER[kind]()
  train = (source.filter(lambda *x: True) if streamed else source).refurbish(lambda *x: x, r=2, seed=1)
  lengths = {sum(1 for _ in train) for _ in range(6)}
  assert len(lengths) == 1


def generated(make, *, shape=(8, 8, 3), dtype=tf.uint8):
  return Dataset.from_generator(make, output_signature=tf.TensorSpec(shape, dtype))


@pytest.mark.parametrize("period", [5, 300])
@pytest.mark.parametrize("buffer", [1, None])
def test_a_generator_that_never_ends(period, buffer):
  source = generated(lambda: itertools.cycle(np.arange(period)), shape=(), dtype=tf.int64)
  iterator = iter(source.refurbish(tf.identity, r=3, shuffle_buffer_size=buffer))
  with pytest.warns(rtf.PipelineWarning, match=rf"again after every {period}, .*Put \.take\({period}\) after"):
    for _ in range(1100 if period < 16 else 12 * period + 1000):
      next(iterator)
  train = source.take(period).refurbish(tf.identity, r=3)
  for _ in range(3):
    assert sorted(train.as_numpy_iterator()) == list(range(period))


@pytest.mark.parametrize(
  ("lap", "length"),
  [
    (lambda rng: rng.permutation(40), 1500),
    (lambda rng: rng.permutation(300), 4600),
    (lambda rng: rng.integers(40, size=40), 1500),
  ],
)
def test_a_generator_that_never_ends_and_has_no_order(lap, length):
  laps = lambda: itertools.chain.from_iterable(map(lap, itertools.repeat(np.random.default_rng(3))))
  iterator = iter(generated(laps, shape=(), dtype=tf.int64).refurbish(tf.identity, r=3))
  with pytest.warns(rtf.PipelineWarning, match=r"again and again, .*Put \.take\(n\) after"):
    for _ in range(length):
      next(iterator)


ENDS = {
  "once": lambda: iter(IMAGES),
  "twice": lambda: iter(np.concatenate([IMAGES, IMAGES])),
  "eight times": lambda: iter(np.concatenate(8 * [IMAGES])),
  "each four times": lambda: iter(np.repeat(IMAGES, 4, 0)),
  "each twenty times": lambda: iter(np.repeat(IMAGES, 20, 0)),
  "ten values in order": lambda: iter(np.repeat(IMAGES[:10], 500, 0)),
  "blank": lambda: iter(np.zeros([500, 8, 8, 3], np.uint8)),
  "ten values": lambda: (np.full([8, 8, 3], i % 10, np.uint8) for i in range(500)),
  "a few duplicates": lambda: iter(
    np.random.default_rng(2).integers(0, 256, [1500, 8, 8, 3], np.uint8)[np.r_[:1500, :1500:50]]
  ),
  "many duplicates": lambda: iter(IMAGES[np.random.default_rng(1).integers(0, N, 1000)]),
}


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.filterwarnings("error::refurbish_tf.PipelineWarning")
def test_a_generator_that_ends(kind):
  train = generated(ENDS[kind]).refurbish(tf.identity, r=2, seed=1)
  assert len({sum(1 for _ in train) for _ in range(3)}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("error::refurbish_tf.PipelineWarning")
def test_a_million_different_elements_are_not_taken_for_repetitions():
  """With checksums of 16 bits, each of these elements would seem to come twenty times."""
  number, size = 1_400_000, 10_000
  blocks = generated(lambda: np.split(np.arange(number), number // size), shape=[size], dtype=tf.int64)
  train = blocks.unbatch().refurbish(tf.identity, r=2, seed=1, shuffle_buffer_size=1).batch(size)
  assert sum(1 for _ in train) == number // size
