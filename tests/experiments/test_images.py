"""The sources of the experiments' images."""

import functools
import sys
import threading
import urllib.request

import numpy as np
import pytest
import tensorflow_datasets as tfds

from refurbish_tf.experiments import images
from support import cases

pytestmark = cases.slow


def test_generated_photographs():
  source = images.photographs(None, 2, seed=3)
  first, second = source.train.as_numpy_iterator()
  assert first[0] != second[0] and source.title.startswith("2 generated photographs, about 500 x 375 pixels")
  assert [record for record, _ in images.photographs(None, 2, seed=3).train.as_numpy_iterator()] == [
    first[0],
    second[0],
  ]


def test_shapes_are_balanced_and_reproducible():
  pictures, labels = images.draw_shapes(40, seed=3)
  again, _ = images.draw_shapes(40, seed=3)
  assert pictures.shape == (40, 32, 32, 3) and pictures.dtype == np.uint8
  assert np.bincount(labels).tolist() == [4] * 10
  np.testing.assert_array_equal(pictures, again)
  assert (pictures != images.draw_shapes(40, seed=4)[0]).any()
  assert len(images.load("shapes", 100).validation) == 25


@pytest.fixture
def absent(monkeypatch, tmp_path):
  """Makes every data set missing and every download fail."""

  def download(*_, **__):
    raise ConnectionError("the line is cut\nand more")

  monkeypatch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path))
  monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)


def test_falls_back_at_once_without_a_network(absent, monkeypatch, tmp_path):
  # A name lookup hangs, which a socket timeout does not bound.
  answered = threading.Event()

  def never(*_, **__):
    answered.wait()
    raise OSError

  monkeypatch.setattr(urllib.request, "urlopen", never)
  try:
    source = images.load("cifar10", 20)
  finally:
    answered.set()
  assert source.note.startswith("cifar10 is not prepared on this machine")
  assert "www.cs.toronto.edu does not answer" in source.note and str(tmp_path) in source.note
  assert source.note.endswith("using the built-in shapes instead.")
  assert source.title.startswith("shapes (generated): 20 training")
  assert len(source.train) == 20 and source.classes == 10


def test_falls_back_when_the_download_fails(absent, monkeypatch):
  monkeypatch.setattr(images, "_answers", lambda url: True)
  assert "(the line is cut): using the built-in shapes" in images.load("mnist", 20).note


def test_no_other_images_than_asked_for(absent, monkeypatch):
  """A table about CIFAR-10 must not come from drawn shapes, or from fewer images."""
  monkeypatch.setattr(images, "_answers", lambda url: True)
  with pytest.raises(images.DatasetError, match="cifar10 .*downloaded"):
    images.load_all("cifar10", 768)
  monkeypatch.setattr(images, "load", lambda name, *_: images.shapes(767))
  with pytest.raises(images.DatasetError, match="cifar10 has only 767 training images, but 768"):
    images.load_all("cifar10", 768)


def test_reads_images_from_tfds(monkeypatch, tmp_path):
  """Grey images become RGB. Records stay compressed, in the order in which they were written."""
  rng = np.random.default_rng(0)

  def examples(count):
    for i in range(count):
      yield i, {"name": str(i), "image": rng.integers(0, 256, [40, 50, 1], np.uint8), "label": i % 2}

  features = tfds.features.FeaturesDict(
    {
      "name": tfds.features.Text(),
      "image": tfds.features.Image(shape=(40, 50, 1)),
      "label": tfds.features.ClassLabel(names=["a", "b"]),
    }
  )
  tfds.dataset_builders.store_as_tfds_dataset(
    name="greys",
    version="1.0.0",
    features=features,
    split_datasets={"train": examples(10), "test": examples(2)},
    data_dir=str(tmp_path),
    disable_shuffling=True,
  )
  monkeypatch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path))
  source = images.load("greys", 5)
  assert (source.shape, source.classes, source.note) == ((40, 50, 3), 2, "")
  assert source.title == "greys/1.0.0 (TFDS): 5 of 10 train images; validation on 2 test images"
  assert [label.numpy() for _, label in source.train] == [0, 1, 0, 1, 0]
  assert [label.numpy() for _, label in source.validation] == [0, 1]
  for record, _ in source.train:
    image = source.decode(record).numpy()
    assert record.dtype.name == "string" and image.shape == (40, 50, 3) and image.dtype == np.uint8
    assert (image[..., 0] == image[..., 2]).all() and 110 < image.mean() < 145


def test_what_cannot_be_loaded(monkeypatch):
  with pytest.raises(
    images.DatasetError, match="^TensorFlow Datasets cannot load 'cifer10': Dataset cifer10 not found"
  ):
    images.load("cifer10", 20)
  # Without the extra `demo`, one sentence says what to install.
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(
    images.DatasetError, match="tensorflow-datasets, which cannot be imported .*: install the extra `demo`"
  ):
    images.load("cifar10", 20)
