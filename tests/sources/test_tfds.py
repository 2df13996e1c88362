"""Real sources: TFDS, which puts a cache() into small data sets, and data sorted by class."""

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf  # noqa: F401  (attaches the methods)

N = 2000


@pytest.fixture(name="cifar10", scope="module")
def fixture_cifar10():
  """The first 2000 images of CIFAR-10, encoded, as TFDS gives them."""
  tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")
  builder = tfds.builder("cifar10")
  if not builder.data_path.exists():
    pytest.skip(f"CIFAR-10 is not prepared in {builder.data_path}: tensorflow_datasets.load('cifar10') does it")
  return lambda **options: builder.as_dataset(
    split=f"train[:{N}]", decoders={"image": tfds.decode.SkipDecoding()}, **options
  )


class Decoder:
  """A partial_fn that decodes, and counts its calls for each image."""

  def __init__(self):
    self.calls = tf.Variable(tf.zeros([50_000], tf.int64))

  def __call__(self, element):
    number = tf.strings.to_number(tf.strings.substr(element["id"], len("train_"), -1), tf.int64)
    self.calls.scatter_nd_add([[number]], [1])
    return {"number": number, "image": tf.io.decode_png(element["image"], channels=3), "label": element["label"]}


def test_cifar10_as_source(cifar10, capfd):
  """Decoding runs only for fresh samples, epochs are whole, and the cache() that TFDS adds logs no warning."""
  source = cifar10()
  assert b"CacheDatasetV2" in source._as_serialized_graph().numpy()  # Otherwise this test shows nothing.
  decode = Decoder()
  train = source.refurbish(decode, r=2, seed=1).batch(125)
  expected = sorted((int(element["id"][len("train_") :]), element["label"]) for element in source.as_numpy_iterator())
  capfd.readouterr()
  calls = 0
  for epoch in range(3):
    iterator = iter(train)
    # Like Keras, reads all batches but not the end.
    batches = [next(iterator) for _ in range(N // 125)]
    del iterator
    assert (
      sorted(pair for batch in batches for pair in zip(batch["number"].numpy(), batch["label"].numpy())) == expected
    )
    assert {tuple(batch["image"].shape) for batch in batches} == {(125, 32, 32, 3)}
    calls += N if epoch == 0 else N // 2
    assert int(tf.reduce_sum(decode.calls)) == calls
  # Each image was decoded once in the first epoch, and once in the two after it.
  assert set(tf.gather(decode.calls, [number for number, _ in expected]).numpy()) == {2}
  errors = capfd.readouterr().err
  assert "did not fully read" not in errors and "cache" not in errors, errors


def test_cifar10_with_shuffled_files_is_refused(cifar10):
  """shuffle_files=True lets the order change between epochs; the message names it."""
  with pytest.raises(ValueError, match="shuffle_files=False"):
    cifar10(shuffle_files=True).shuffle(100).refurbish(Decoder())


CLASSES, OF_EACH = 10, 100


def sorted_by_class():
  return tf.data.Dataset.from_tensor_slices(np.repeat(np.arange(CLASSES), OF_EACH))


def classes_per_batch(dataset):
  """Returns the number of classes in each batch of 100."""
  batches = list(dataset.batch(100).as_numpy_iterator())
  assert sorted(np.concatenate(batches)) == sorted(list(range(CLASSES)) * OF_EACH)
  return [len(set(batch)) for batch in batches]


def test_sorted_data_give_mixed_batches():
  """This holds from the first epoch on: fresh samples are read in random order by index, or drawn from the shuffle
  buffer of a stream.

  To mix all ten classes, a buffer must be as large as the source. Here the default is that large."""
  stream = sorted_by_class().filter(lambda label: True)
  for source in (sorted_by_class().map(tf.identity), stream):
    train = source.refurbish(tf.identity, r=3, seed=1)
    for _ in range(3):
      # A batch of 100 random samples has fewer than 8 of 10 classes once in a million cases.
      assert min(classes_per_batch(train)) >= 8
  half = stream.refurbish(tf.identity, r=3, seed=1, shuffle_buffer_size=CLASSES * OF_EACH // 2)
  assert min(classes_per_batch(half)[:5]) >= 5
  # Cached samples come in uniformly random order with any source.
  assert min(classes_per_batch(half)) >= 6
