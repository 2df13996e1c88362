"""Sources of batches and sources that shuffle cause a warning with a remedy, unless they may be intended."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.warned import told

Dataset = tf.data.Dataset


def images(n=8):
  """A source of single samples."""
  return Dataset.from_tensor_slices((np.zeros([n, 4, 4, 3], np.uint8), np.zeros(n, np.int32)))


BATCHED = {
  "batch": lambda: images().batch(4),
  "batch of known size": lambda: images().batch(4, drop_remainder=True),
  "parallel batch": lambda: images().batch(4, num_parallel_calls=2),
  "padded batch": lambda: images().padded_batch(4),
  "ragged batch": lambda: Dataset.range(8).map(tf.range).ragged_batch(4),
  "sparse batch": lambda: Dataset.range(8).map(tf.range).apply(tf.data.experimental.dense_to_sparse_batch(4, [8])),
  "rebatch": lambda: images().batch(4).rebatch(2),
  "what hands on": lambda: images().batch(4).prefetch(2).cache().with_options(tf.data.Options()).prefetch(1),
  "filter, take, skip": lambda: (
    images().batch(2).filter(lambda x, y: tf.reduce_all(y >= 0)).take(3).skip(1).ignore_errors()
  ),
  "map": lambda: images().batch(4).map(lambda x, y: (x / 255, y)),
  "maps": lambda: (
    images()
    .batch(4, drop_remainder=True)
    .map(lambda x, y: {"image": x, "label": y})
    .take(2)
    .map(lambda each: (each["image"], tf.one_hot(each["label"], 3)), num_parallel_calls=2)
    .cache()
  ),
  "map to integers, with a scalar beside": lambda: (
    images().batch(4).map(lambda x, y: (tf.cast(x, tf.int32), tf.one_hot(y, 8), 1))
  ),
  "map to ten bands": lambda: images().batch(4).map(lambda x, y: (tf.tile(x, [1, 1, 1, 4])[..., :10], y, 1)),
  "map to images without channels": lambda: images().batch(4).map(lambda x, y: (tf.tile(x[..., 0], [1, 2, 2]), y)),
  "map of features": lambda: (
    Dataset.from_tensor_slices((np.zeros([8, 5]), np.zeros(8))).batch(4).map(lambda x, y: (x / 2, y))
  ),
  "map to what is not known": lambda: (
    images().batch(4).map(lambda *each: tf.numpy_function(lambda *each: each, each, [tf.uint8, tf.int32]))
  ),
  "enumerate": lambda: images().batch(4).enumerate(),
  "map and enumerate": lambda: images().batch(4).map(lambda x, y: (x / 255, y)).enumerate(),
  "a generator of one-hot labels": lambda: generated([None, 4, 4, 3], [None, 10]),
  "images alone": lambda: images().map(lambda x, y: x).batch(4).map(lambda x: tf.cast(x, tf.float32)),
  "a generator": lambda: generated([None, 4, 4, 3], [None]),
  "a generator of one size": lambda: generated([4, 4, 4, 3], [4]).map(lambda x, y: (tf.cast(x, tf.float32), y)),
  "a Python list": lambda: rtf.sources.data_source([(np.zeros([4, 4, 4, 3], np.uint8), np.zeros(4, int))] * 2),
  "read by Python": lambda: Dataset.range(2).map(
    lambda i: (
      tf.ensure_shape(tf.numpy_function(lambda i: np.zeros([4, 4, 4, 3], np.uint8), [i], tf.uint8), [None, 4, 4, 3]),
      tf.ensure_shape(tf.numpy_function(lambda i: np.zeros(4, int), [i], tf.int64), [None]),
    )
  ),
  "zip": lambda: Dataset.zip(images().map(lambda x, y: x).batch(4), images().map(lambda x, y: y).batch(4)),
}


def generated(image, label):
  return Dataset.from_generator(
    lambda: iter([(np.zeros([4, 4, 4, 3], np.uint8), np.zeros(4, np.int32))] * 2),
    output_signature=(tf.TensorSpec(image, tf.uint8), tf.TensorSpec(label, tf.int32)),
  )


@pytest.mark.parametrize("name", BATCHED)
def test_batched_source(name):
  found = told(lambda: BATCHED[name]().refurbish(lambda *x: x))
  assert len(found) == 1
  for way_out in ("source.refurbish(...).batch(...)", ".unbatch()", "rtf.PipelineWarning"):
    assert way_out in found[0]
  # If the source does not show how an element was made, it may be a bag of instances.
  assert ("yields batches" in found[0]) != ("such as a bag of instances" in found[0])


def sequences():
  characters = Dataset.range(40).batch(11, drop_remainder=True)
  return characters.map(lambda chunk: (chunk[:-1], chunk[1:]))


def mean(batch):
  return tf.reduce_mean(tf.cast(batch, tf.float32), axis=0)


NOT_BATCHED = {
  "single": images,
  "unbatch": lambda: images().batch(4).map(lambda x, y: (x, y)).unbatch(),
  # The number of samples equals the rows of a batch, or is unknown.
  "mean of as many": lambda: (
    Dataset.from_tensor_slices(np.zeros([64, 8, 8, 3])).batch(8, drop_remainder=True).map(mean)
  ),
  "one row of several": lambda: Dataset.range(30).map(lambda i: tf.range(i % 5)).padded_batch(3).map(lambda x: x[0]),
  "joined": lambda: (
    Dataset.from_tensor_slices(list("abcd")).batch(2).map(lambda x: tf.strings.split(tf.strings.reduce_join(x)))
  ),
  "of several": lambda: Dataset.zip(Dataset.range(8).batch(2), Dataset.range(8).batch(2)),
  "flat_map": lambda: images().batch(4).flat_map(lambda *x: Dataset.from_tensor_slices(x)),
  "one sample of each batch": lambda: Dataset.range(8).batch(4, drop_remainder=True).map(tf.reduce_sum),
  "a stack and its label": lambda: images().batch(4).map(lambda x, y: (x, y[0])),
  "sequences": sequences,
  "a clip of four frames and a vector of four": lambda: Dataset.from_tensor_slices(
    (np.zeros([8, 4, 4, 4, 3], np.uint8), np.zeros([8, 4]))
  ),
  "the same, mapped": lambda: Dataset.from_tensor_slices((np.zeros([8, 4, 4, 4, 3], np.uint8), np.zeros([8, 4]))).map(
    lambda x, y: (x / 255, y)
  ),
  "the same of two sources": lambda: Dataset.zip(
    Dataset.from_tensor_slices(np.zeros([8, 4, 4, 4, 3], np.uint8)), Dataset.from_tensor_slices(np.zeros([8, 4]))
  ),
  "a video and its sound": lambda: Dataset.from_generator(
    lambda: iter([]), output_signature=(tf.TensorSpec([None, 4, 4, 3], tf.uint8), tf.TensorSpec([None], tf.float32))
  ),
  "sequences of several": lambda: (
    Dataset.zip(Dataset.range(8), Dataset.range(8)).batch(4).map(lambda x, y: (x[:-1], y[1:]))
  ),
  "sequences of features": lambda: Dataset.from_tensor_slices(np.zeros([8, 5])).batch(4).map(lambda x: (x[:-1], x[1:])),
  "clips of files": lambda: (
    Dataset.from_tensor_slices(list("abcd"))
    .batch(2)
    .map(lambda names: tf.numpy_function(lambda _: (np.zeros([2, 4, 4, 3]), 1), [names], [tf.double, tf.int64]))
  ),
  "clips of a generator": lambda: Dataset.from_generator(
    lambda: iter([(np.zeros([4, 4, 4, 3], np.uint8), 1)]),
    output_signature=(tf.TensorSpec([None, 4, 4, 3], tf.uint8), tf.TensorSpec([], tf.int32)),
  ),
  "an image and a vector of four": lambda: Dataset.from_generator(
    lambda: iter([(np.zeros([4, 4, 3], np.uint8), np.zeros(4))]),
    output_signature=(tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([4], tf.float32)),
  ),
  "batches of one": lambda: images().batch(1),
  "rebatch(1)": lambda: Dataset.range(8).batch(4).rebatch(1),
  "zip with single ones": lambda: Dataset.zip(images().batch(4), Dataset.range(2)),
  "windows": lambda: Dataset.range(8).window(2, drop_remainder=True).flat_map(lambda w: w.batch(2)),
  "variable length": lambda: Dataset.from_generator(
    lambda: iter([[1], [1, 2]]), output_signature=tf.TensorSpec([None], tf.int32)
  ),
}


@pytest.mark.parametrize("name", NOT_BATCHED)
def test_sources_that_only_look_batched_cause_no_warning(name):
  assert not told(lambda: NOT_BATCHED[name]().refurbish(lambda *x: x).batch(2))


def epochs(dataset):
  for _ in range(2):
    for _ in dataset:
      pass


def parts(dataset):
  return [dataset.take(8), dataset.skip(8)]


BEHIND = {
  "two parts": lambda ds: [epochs(part) for part in parts(ds)],
  "two parts in batches": lambda ds: [epochs(part) for part in parts(ds.batch(4))],
  "cache": lambda ds: epochs(ds.batch(4).cache()),
  "snapshot": lambda ds, directory: epochs(ds.snapshot(str(directory))),
}


@pytest.mark.parametrize("name", BEHIND)
def test_operations_after_the_stage_cause_no_warning(name, tmp_path):
  """They may be intended, and `rtf.describe` shows them."""
  dataset = Dataset.range(40).refurbish(lambda x: x, r=2, seed=1)
  assert not told(lambda: BEHIND[name](dataset, *[tmp_path] * (name == "snapshot")))


def test_labels_are_not_looked_at():
  labels = np.repeat(np.arange(3), 40)
  weights = np.ones(120, np.float32)
  for components in ((labels, labels), (labels, np.random.default_rng(0).permutation(labels), weights * (labels + 1))):
    stream = Dataset.from_tensor_slices(components).filter(lambda *_: True)
    assert not told(lambda: epochs(stream.refurbish(lambda *x: x, r=2, shuffle_buffer_size=1)))


def test_the_warning_points_to_the_users_line():
  """The warning names the user's line, with the method and with `apply`."""
  for build in (
    lambda: images().batch(2).refurbish(lambda *x: x),
    lambda: images().batch(2).apply(rtf.refurbish(lambda *x: x)),
  ):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      build()
    assert [warning.filename for warning in caught] == [__file__]


@pytest.fixture(scope="module", name="folder")
def make_folder(tmp_path_factory):
  """Makes a folder of images with a subfolder for each class."""
  folder = tmp_path_factory.mktemp("images")
  for label in "ab":
    (folder / label).mkdir()
    for i in range(4):
      tf.io.write_file(str(folder / label / f"{i}.png"), tf.io.encode_png(np.zeros([4, 4, 3], np.uint8)))
  return folder


def test_folder_of_keras(folder):
  """The default of Keras' function causes a warning with a remedy. Applying only part of the remedy still causes it."""

  def read(**options):
    return keras.utils.image_dataset_from_directory(folder, image_size=(4, 4), verbose=False, **options)

  def refurbish(dataset):
    return dataset.refurbish(lambda x, y: (tf.cast(x, tf.uint8), y))

  for shuffled in ({}, {"batch_size": None}):
    with pytest.raises(ValueError, match="rtf.sources.image_folder.*shuffle=False, batch_size=None") as caught:
      refurbish(read(**shuffled))
    assert ("batch out" in str(caught.value)) == (not shuffled)
  assert len(told(lambda: refurbish(read(shuffle=False)))) == 1
  assert not told(lambda: refurbish(read(shuffle=False, batch_size=None)))


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"shuffle": True}], ids=str)
def test_list_files_that_shuffles(folder, options):
  with pytest.raises(ValueError, match=r"list_files\(\.\.\., shuffle=False\)"):
    Dataset.list_files(str(folder / "*/*.png"), **options).map(tf.io.read_file).refurbish(tf.io.decode_png)
  assert len(Dataset.list_files(str(folder / "*/*.png"), shuffle=False).refurbish(tf.io.read_file)) == 8


def test_error_for_other_shuffles_does_not_mention_list_files():
  with pytest.raises(ValueError, match="reshuffle_each_iteration=False") as caught:
    Dataset.range(8).shuffle(8).refurbish(lambda x: x)
  assert "list_files" not in str(caught.value) and "image_dataset_from_directory" not in str(caught.value)


@pytest.mark.parametrize("reads", [None, 2])
def test_error_for_shuffled_records_does_not_mention_list_files(reads):
  """The file names of `TFRecordDataset` are also a dataset, but not one of `list_files`."""
  with pytest.raises(ValueError, match="leave the shuffle out.*reshuffle_each_iteration=False") as caught:
    tf.data.TFRecordDataset(["a", "b"], num_parallel_reads=reads).shuffle(8).refurbish(lambda x: x)
  assert "list_files" not in str(caught.value)
