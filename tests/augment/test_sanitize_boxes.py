"""Boxes that are too small are removed, together with their rows in other components."""

import collections
import pickle

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.augment import sanitize_boxes
from refurbish_tf.augment.targets import padding_of
from support import cases
from support.boxes import FORMATS, in_format

SIZE = (20, 30)
IMAGE = np.zeros([*SIZE, 3], np.uint8)
# Boxes that are wide, narrow, without area, one pixel, and flat.
BOXES = np.array([[1, 2, 9, 8], [3, 3, 5, 19], [4, 4, 4, 9], [7, 7, 8, 8], [0, 0, 30, 1]])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_every_box_format_is_supported(name, dtype):
  if dtype == "int32" and ("rel_" in name or "center" in name):
    return
  boxes = tf.cast(in_format(BOXES, name, SIZE), dtype)
  for limits, kept in (
    ({}, [0, 1, 3, 4]),
    ({"min_size": 2}, [0, 1]),
    ({"min_area": 30}, [0, 1, 4]),
    ({"min_size": 3}, [0]),
    ({"min_size": 0, "min_area": 0}, [0, 1, 3, 4]),
  ):
    _, found, labels = sanitize_boxes(1, name, with_rows=2, **limits)(IMAGE, boxes, np.arange(5))
    assert labels.numpy().tolist() == kept
    np.testing.assert_array_equal(found, boxes.numpy()[kept])
    assert found.dtype == boxes.dtype


def test_boxes_of_exactly_the_minimum_size_stay_despite_rounding():
  for height in range(3, 60, 7):
    for width in range(3, 60, 4):
      boxes = np.float32([[1 / width, 1 / height, 2 / width, 2 / height]])
      assert sanitize_boxes(1, "rel_xyxy")(np.zeros([height, width, 3], np.uint8), boxes)[1].shape == (1, 4)


def test_finds_the_named_components():
  element = collections.OrderedDict(
    image=IMAGE,
    bounding_boxes={"boxes": BOXES, "labels": np.arange(5), "more": 3},
    scores=np.arange(5) / 2,
    polygons=tf.ragged.constant([[1], [2, 3], [], [4], [5]]),
  )
  clean = sanitize_boxes("bounding_boxes", with_rows=["labels", "scores", "polygons", "labels"], min_size=2)
  found = pickle.loads(pickle.dumps(clean))(element)
  assert (
    isinstance(found, collections.OrderedDict) and list(found) == list(element) and found["bounding_boxes"]["more"] == 3
  )
  assert found["bounding_boxes"]["labels"].numpy().tolist() == [0, 1] and found["scores"].numpy().tolist() == [0, 0.5]
  assert found["polygons"].to_list() == [[1], [2, 3]] and element["bounding_boxes"]["boxes"] is BOXES
  ragged = tf.ragged.constant([[1.0, 2, 9, 8], [0, 0, 0, 0], [-1, -1, -1, -1]])
  assert sanitize_boxes("boxes")({"image": IMAGE, "boxes": ragged})["boxes"].numpy().tolist() == [[1, 2, 9, 8]]


def test_in_a_dataset():
  source = tf.data.Dataset.from_tensors({"image": IMAGE, "boxes": BOXES.astype(np.float32), "labels": np.arange(5)})
  found = source.map(sanitize_boxes("boxes", with_rows=("labels",), min_size=1, min_area=1))
  assert [spec.shape.as_list() for spec in found.element_spec.values()] == [[20, 30, 3], [None, 4], [None]]
  assert next(found.as_numpy_iterator())["labels"].tolist() == [0, 1, 3, 4]
  with pytest.raises(tf.errors.InvalidArgumentError, match="no negative height or width, which they have as xyxy"):
    turned = source.map(lambda element: {"image": element["image"], "boxes": element["boxes"][:, ::-1]})
    list(turned.map(sanitize_boxes("boxes")))
  with pytest.warns(rtf.PipelineWarning, match=r"'labels' of shape \(5,\) stays .* pass with_rows=\('labels',\)"):
    source.map(sanitize_boxes("boxes"))


@pytest.mark.parametrize("name", ["xyxy", "rel_center_xywh"])
def test_a_batch_becomes_what_its_images_become(name):
  """Ragged or padded, with rows of any dtype and shape."""
  random, counts = np.random.default_rng(3), [5, 0, 3, 5]
  names = np.array([[f"{b}{row}" for row in range(5)] for b in range(4)], object)
  whole = {"boxes": np.float32([in_format(random.permutation(BOXES), name, SIZE) for _ in counts]), "names": names}
  whole.update(ids=np.arange(20).reshape(4, 5), flags=names < "2", masks=random.random([4, 5, *SIZE]) < 0.5)
  clean = sanitize_boxes("boxes", name, with_rows=["names", "ids", "flags", "masks"], min_size=2, clips=False)
  ragged = {key: tf.RaggedTensor.from_tensor(value, lengths=counts) for key, value in whole.items()}
  padded = {key: value.to_tensor(padding_of(value.dtype), [4, 5]) for key, value in ragged.items()}
  for given in (padded, ragged):
    stage = tf.data.Dataset.from_tensors({"image": np.stack([IMAGE] * 4), **given}).map(clean)
    (found,) = stage
    for b, count in enumerate(counts):
      expected = clean({"image": IMAGE, **{key: value[b, :count] for key, value in whole.items()}})
      for key, value in given.items():
        assert stage.element_spec[key].is_compatible_with(value)
        rows, kept = found[key][b], len(expected[key])
        np.testing.assert_array_equal(rows[:kept], expected[key])
        assert len(rows) == (5 if given is padded else kept)
        assert np.all(rows[kept:] == padding_of(value.dtype))
  with pytest.raises(tf.errors.InvalidArgumentError, match="a row for each box, got 'ids'. Leave it out"):
    clean({"image": IMAGE[np.newaxis], **ragged, "ids": ragged["ids"][::-1]})


@pytest.mark.parametrize(
  "arguments, error, said",
  [
    ({"boxes": 1, "format": "xyx"}, ValueError, "format of .* xyxy, yxyx"),
    ({"boxes": 1, "min_size": -1}, ValueError, "min_size of .* from 0"),
  ],
)
def test_arguments(arguments, error, said):
  with pytest.raises(error, match=said):
    sanitize_boxes(**arguments)


@pytest.mark.parametrize(
  "function, element, said, error",
  cases.refused(
    ValueError=[
      (sanitize_boxes(1), (IMAGE,), "no component 1 in an element of 1 components"),
      (sanitize_boxes("a"), ({"image": IMAGE},), r"no component 'a' in an element of a dict with \['image'\]"),
      (sanitize_boxes(1), (IMAGE, np.zeros([2, 3])), r"must be \[n, 4\], or \[batch, n, 4\], got 1 of shape \(2, 3\)"),
      (sanitize_boxes(1), (IMAGE, np.zeros([4])), r"Give a single box a row"),
      (sanitize_boxes(1), (IMAGE, np.zeros([2, 2, 3, 4])), "Boxes of clips in a batch keep their rows"),
      (sanitize_boxes(1), (IMAGE, np.zeros([2, 3, 4])), "clips of sanitize_boxes must be False for a batch, got None"),
      (sanitize_boxes(1, with_rows=2, clips=False), (IMAGE, np.zeros([2, 3, 4]), [1, 2]), r"got 2 of shape \(2,\)"),
      (sanitize_boxes(1, with_rows=2), (IMAGE, BOXES, np.zeros([4])), r"a row for each box, got 2 of shape \(4,\)"),
      (sanitize_boxes(1), (IMAGE, {"a": BOXES}), r"must have one of the entries .*got \['a'\]"),
      (sanitize_boxes(1, "rel_xyxy"), (b"file", BOXES / 30), "in pixels if the image is a file"),
    ]
  ),
)
def test_elements(function, element, error, said):
  with pytest.raises(error, match=said):
    function(*element)
