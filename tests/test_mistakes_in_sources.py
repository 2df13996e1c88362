"""A source of batches, and one that shuffles, are told of, with the way out; what only looks like one is not."""
import keras
import numpy as np
import pytest
import tensorflow as tf

from support.mistakes import images, told

Dataset = tf.data.Dataset


BATCHED = {
    "batch": lambda: images().batch(4),
    "batch of known size": lambda: images().batch(4, drop_remainder=True),
    "parallel batch": lambda: images().batch(4, num_parallel_calls=2),
    "padded batch": lambda: images().padded_batch(4),
    "map behind": lambda: images().batch(4).map(lambda x, y: (x + 1, y)).prefetch(2).cache().take(3),
    "zip": lambda: Dataset.zip(Dataset.range(8).batch(2), Dataset.range(8).batch(2)),
    "concatenate": lambda: images().batch(4).concatenate(images().batch(4)).with_options(tf.data.Options()),
    "dict": lambda: images().map(lambda x, y: {"image": x, "label": y}).batch(4).shard(2, 0).filter(lambda x: True),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batched_source(name):
  found = told(lambda: BATCHED[name]().refurbish(lambda *x: x))
  assert len(found) == 1
  for way_out in ("source.refurbish(...).batch(...)", "batch_size=None", ".unbatch()", "rtf.PipelineWarning"):
    assert way_out in found[0]


def sequences():
  characters = Dataset.range(40).batch(11, drop_remainder=True)
  return characters.map(lambda chunk: (chunk[:-1], chunk[1:]))


NOT_BATCHED = {
    "single": images,
    "unbatch": lambda: images().batch(4).map(lambda x, y: (x, y)).unbatch(),
    "flat_map": lambda: images().batch(4).flat_map(lambda *x: Dataset.from_tensor_slices(x)),
    "one sample of each batch": lambda: Dataset.range(8).batch(4, drop_remainder=True).map(tf.reduce_sum),
    "a stack and its label": lambda: images().batch(4).map(lambda x, y: (x, y[0])),
    "sequences": sequences,
    "batches of one": lambda: images().batch(1),
    "zip with single ones": lambda: Dataset.zip(images().batch(4), Dataset.range(2)),
    "windows": lambda: Dataset.range(8).window(2, drop_remainder=True).flat_map(lambda w: w.batch(2)),
    "variable length": lambda: Dataset.from_generator(
        lambda: iter([[1], [1, 2]]), output_signature=tf.TensorSpec([None], tf.int32)),
}


@pytest.mark.parametrize("name", NOT_BATCHED)
def test_what_looks_like_a_batched_source(name):
  assert not told(lambda: NOT_BATCHED[name]().refurbish(lambda *x: x).batch(2))


@pytest.fixture(scope="module", name="folder")
def make_folder(tmp_path_factory):
  """A folder of images, with one of its own for each class."""
  folder = tmp_path_factory.mktemp("images")
  for label in "ab":
    (folder / label).mkdir()
    for i in range(4):
      tf.io.write_file(str(folder / label / f"{i}.png"), tf.io.encode_png(np.zeros([4, 4, 3], np.uint8)))
  return folder


def test_folder_of_keras(folder):
  """Its default is told what to write; what is left out of that is warned of; all of it is fine."""
  def read(**options):
    return keras.utils.image_dataset_from_directory(folder, image_size=(4, 4), verbose=False, **options)

  def refurbish(dataset):
    return dataset.refurbish(lambda x, y: (tf.cast(x, tf.uint8), y))

  for shuffled in ({}, {"batch_size": None}):
    with pytest.raises(ValueError, match="rtf.sources.image_folder.*shuffle=False, batch_size=None will") as caught:
      refurbish(read(**shuffled))
    assert ("batch out" in str(caught.value)) == (not shuffled)
  assert len(told(lambda: refurbish(read(shuffle=False)))) == 1
  assert not told(lambda: refurbish(read(shuffle=False, batch_size=None)))


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"shuffle": True}], ids=str)
def test_list_files_that_shuffles(folder, options):
  with pytest.raises(ValueError, match=r"list_files\(\.\.\., shuffle=False\)"):
    Dataset.list_files(str(folder / "*/*.png"), **options).map(tf.io.read_file).refurbish(tf.io.decode_png)
  assert len(Dataset.list_files(str(folder / "*/*.png"), shuffle=False).refurbish(tf.io.read_file)) == 8


def test_another_shuffle_is_not_told_of_list_files():
  with pytest.raises(ValueError, match="reshuffle_each_iteration=False") as caught:
    Dataset.range(8).shuffle(8).refurbish(lambda x: x)
  assert "list_files" not in str(caught.value) and "image_dataset_from_directory" not in str(caught.value)


@pytest.mark.parametrize("reads", [None, 2])
def test_a_shuffle_of_records_is_not_told_of_list_files(reads):
  """Which files `TFRecordDataset` reads is a dataset, too."""
  with pytest.raises(ValueError, match="leave the shuffle out.*reshuffle_each_iteration=False") as caught:
    tf.data.TFRecordDataset(["a", "b"], num_parallel_reads=reads).shuffle(8).refurbish(lambda x: x)
  assert "list_files" not in str(caught.value)
