"""Rows of boxes and key points, including padding and ragged rows: their values, dtypes and shapes."""

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support.boxes import drawn_boxes, drawn_points, found_boxes
from support.images import make_seeds
from test_target_geometry import SIZE, check_found, made_up


def at_flip(rows, kind, size=(8, 10), layer=None):
  layer = layer or augment.random_flip()
  return layer._chain._made(tf.zeros([*size, 3], tf.uint8), tf.ones([1], tf.int32), [("it", kind, tf.constant(rows))])[
    1
  ][0].numpy()


class TestRows:
  """Rows of boxes and of key points."""

  @pytest.mark.parametrize(
    "layer, draws, box, point, visibility",
    [
      (augment.random_flip("vertical"), [1], [1, 3, 4, 6], [2, 6], 1),
      (augment.random_flip("horizontal_and_vertical"), [0, 1], [1, 3, 4, 6], [2, 6], 1),
      (augment.random_flip("horizontal_and_vertical"), [1, 1], [6, 3, 9, 6], [7, 6], 1),
      (augment.random_crop((4, 5)), [2**31 - 1, 0], [1, 0, 4, 1], [2, -3], 0),
      (augment.random_crop((9, 12), pad_if_needed=True), [0, 0], [3, 3, 6, 6], [4, 2], 1),
    ],
  )
  def test_vertical_flips_and_crops_to_a_size(self, layer, draws, box, point, visibility):
    """The expected values follow by hand from torchvision's vertical_flip, pad and crop, which have no visibility."""
    found = layer._chain._made(
      tf.zeros([8, 10, 3], tf.uint8),
      tf.constant(draws),
      [("it", "xyxy", tf.constant([1.0, 2, 4, 5])), ("it", "xy", tf.constant([2.0, 1, 1]))],
    )[1]
    assert [each.numpy().tolist() for each in found] == [box, [*point, visibility]]

  @pytest.mark.parametrize(
    "rows, kind, expected",
    [
      ([[1.0, 2, 4, 5]], "xyxy", [[6, 2, 9, 5]]),
      ([[-1.0] * 4, [0, 0, 10, 8]], "xyxy", [[-1] * 4, [0, 0, 10, 8]]),
      ([[-1] * 4, [1, 2, 1, 5], [0] * 4], "xyxy", [[-1] * 4, [0] * 4, [0] * 4]),
      ([[3.0, 4, 0, 2]], "center_xywh", [[0] * 4]),
      ([[-0.5, 2, 4, 8.75]], "xyxy", [[6, 2, 10, 8]]),
      ([[0.0, 0, 2, 1]], "xywh", [[8, 0, 2, 1]]),
      ([1, 2, 4, 5], "xyxy", [6, 2, 9, 5]),
      ([[1.0, 2], [-3, 9], [-1, -1]], "xy", [[8, 2], [12, 9], [10, -1]]),
      ([1, 2, 1], "xy", [8, 2, 1]),
      (
        [[1, 2, 2], [-1, 2, 2], [3, 8, 1], [0, 0, 0], [-1, -1, -1]],
        "xy",
        [[8, 2, 2], [10, 2, 0], [6, 8, 0], [9, 0, 0], [-1, -1, -1]],
      ),
      (
        [[0.0, 0.5, 1], [1.0, 1.0, 2], [0.5, 0, 1], [1.01, 0, 2]],
        "rel_xy",
        [[1, 0.5, 1], [0, 1, 2], [0.5, 0, 1], [-0.01, 0, 0]],
      ),
      ([[[1.0, 2, 2], [0, 0, 0]], [[-9, 2, 2], [9, 7, 1]]], "xy", [[[8, 2, 2], [9, 0, 0]], [[18, 2, 0], [0, 7, 1]]]),
    ],
  )
  def test_a_flip(self, rows, kind, expected):
    """Padding stays, boxes without area become 0, boxes that reach beyond the image are clipped, points outside become
    invisible."""
    np.testing.assert_allclose(at_flip(rows, kind), np.array(expected, np.asarray(rows).dtype), rtol=1e-6, atol=1e-6)

  @pytest.mark.parametrize("rows, kind", [([[2.0, 2, 2, 5]], "xyxy"), ([[-3.0, 2, 2]], "xy")])
  def test_rows_outside_the_image_are_marked_even_if_no_layer_moves_them(self, rows, kind):
    found = augment.compose([augment.normalize()], {1: kind})(np.zeros([8, 10, 3], np.uint8), np.array(rows))[1]
    assert found.numpy().tolist() == ([[0] * 4] if kind == "xyxy" else [[-3, 2, 0]])

  def test_whole_numbers_are_rounded_half_to_even(self):
    layer = augment.resize((4, 5))
    assert at_flip([[1, 3, 5, 7]], "xyxy", layer=layer).tolist() == [[0, 2, 2, 4]]
    assert at_flip([[2, 2, 3, 3]], "xyxy", layer=layer).tolist() == [[1, 1, 2, 2]]
    # The result is (x + 0.5) / 2 - 0.5.
    assert at_flip([[0, 1], [2, 7]], "xy", layer=layer).tolist() == [[0, 0], [1, 3]]

  @pytest.mark.parametrize(
    "dtype", "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64".split()
  )
  def test_dtypes(self, dtype):
    rows = tf.cast([[1, 2, 4, 5], [0, 0, 10, 8]], dtype)
    found = augment.compose([augment.resize((16, 20))], {1: "xyxy"})(np.zeros([8, 10, 3], np.uint8), rows)[1]
    assert found.dtype == dtype and found.numpy().astype(int).tolist() == [[2, 4, 8, 10], [0, 0, 20, 16]]

  @pytest.mark.parametrize("number", [0, None, 3])
  def test_static_shapes(self, number):
    spec = {
      "image": tf.TensorSpec([None, None, 3], tf.uint8),
      "boxes": tf.TensorSpec([number, 4], tf.float32),
      "points": tf.TensorSpec([number, 3], tf.float32),
      "one": tf.TensorSpec([4], tf.int32),
    }
    fn = augment.compose(
      [augment.random_crop(padding=3), lambda image: image, augment.resize((9, 9))],
      {"boxes": "xyxy", "points": "xy", "one": "yxyx"},
    )
    traced = tf.function(lambda element: fn(element, seed=[7, 0])).get_concrete_function(spec)
    shapes = {name: each.shape.as_list() for name, each in traced.structured_outputs.items()}
    assert shapes == {"image": [9, 9, 3], "boxes": [number, 4], "points": [number, 3], "one": [4]}
    empty = {
      "image": np.zeros([5, 6, 3], np.uint8),
      "boxes": np.zeros([0, 4], np.float32),
      "points": np.zeros([0, 3], np.float32),
      "one": np.array([0, 0, 5, 6]),
    }
    found = fn(empty, seed=[7, 0])
    assert found["boxes"].shape == (0, 4) and found["points"].shape == (0, 3)

  def test_ragged_rows(self):
    """Ragged rows of a batch, of the frames of clips, and of both keep their values and their spec."""
    fn = augment.compose([augment.resize((16, 20))], {1: "xyxy"})
    rows = tf.ragged.constant([[[1.0, 2, 4, 5]], [], [[0.0, 0, 10, 8], [1, 1, 2, 2]]], ragged_rank=1, inner_shape=(4,))
    moved = fn(np.zeros([3, 8, 10, 3], np.uint8), rows)[1]
    assert moved.to_list() == (rows * 2).to_list()
    source = tf.data.Dataset.from_tensors((np.zeros([3, 8, 10, 3], np.uint8), rows))
    stage = source.refurbish([augment.resize((16, 20))], targets={1: "xyxy"})
    assert stage.element_spec[1] == source.element_spec[1]
    assert next(iter(stage))[1].to_list() == (rows * 2).to_list()
    one_by_one = tf.data.Dataset.from_tensor_slices((np.zeros([3, 8, 10, 3], np.uint8), rows))
    found = [
      each.numpy().tolist() for _, each in one_by_one.refurbish([augment.resize((16, 20))], targets={1: "xyxy"}, seed=3)
    ]
    assert sorted(found) == sorted((rows * 2).to_list())
    both = tf.stack([rows, rows])
    moved = augment.compose([augment.resize((16, 20))], {1: "xyxy"}, clips=True)(
      np.zeros([2, 3, 8, 10, 3], np.uint8), both
    )[1]
    assert moved.to_list() == (both * 2).to_list()
    without_shape = tf.data.Dataset.from_tensor_slices(
      (np.zeros([2, 8, 10, 3], np.uint8), tf.ragged.constant([[[1.0, 2, 4, 5]], []]))
    )
    found = [
      each.to_list() for _, each in without_shape.refurbish([augment.resize((16, 20))], targets={1: "xyxy"}, seed=3)
    ]
    assert sorted(found) == [[], [[2, 4, 8, 10]]]
    unsigned = tf.cast(rows, tf.uint16)
    assert fn(np.zeros([3, 8, 10, 3], np.uint8), unsigned)[1].to_list() == (unsigned * 2).to_list()

  def test_the_dict_of_keras(self):
    element = {
      "images": np.zeros([8, 10, 3], np.uint8),
      "bounding_boxes": {"boxes": np.array([[1.0, 2, 4, 5]]), "labels": np.array([3])},
      "label": 5,
    }
    for targets in ({"bounding_boxes": "xyxy"}, {"bounding_boxes": {"boxes": "xyxy"}}):
      found = augment.compose([augment.resize((16, 20))], targets)(element)
      assert list(found) == list(element) and list(found["bounding_boxes"]) == ["boxes", "labels"]
      assert found["bounding_boxes"]["boxes"].numpy().tolist() == [[2, 4, 8, 10]] and found["images"].shape == (
        16,
        20,
        3,
      )
      assert found["bounding_boxes"]["labels"].tolist() == [3] and element["bounding_boxes"]["boxes"].tolist() == [
        [1, 2, 4, 5]
      ]

  @pytest.mark.parametrize(
    "layer",
    [
      lambda: augment.decode_random_resized_crop(40, apply_exif_orientation=True),
      lambda: augment.decode_random_resized_crop(apply_exif_orientation=True),
      lambda: augment.decode((50, 30), apply_exif_orientation=False),
      lambda: augment.decode(apply_exif_orientation=False),
    ],
    ids=["crop", "window", "resize", "whole"],
  )
  def test_targets_of_files_belong_to_the_upright_image(self, layer):
    """Targets belong to the upright image, and move with the part of it that is decoded."""
    boxes, points = made_up(3)
    kinds = {1: "mask", 2: "mask", 3: "xyxy", 4: "xy"}
    layer = layer()
    file = tf.io.encode_png(np.repeat(drawn_boxes(boxes[:1], SIZE) * np.uint8(255), 3, -1))
    for seed in make_seeds(20):
      given = (
        file,
        drawn_boxes(boxes, SIZE),
        drawn_points(points, SIZE),
        boxes.astype(np.float32),
        points.astype(np.float32),
      )
      seeds = {"seed": seed} if "crop" in layer.__name__ else {}
      image, mask, dots, moved, moved_points = augment.compose([layer], kinds)(*given, **seeds)
      assert image.shape[:2] == mask.shape[:2] == dots.shape[:2]
      check_found({"mask": mask, "dots": dots, "boxes": moved, "points": moved_points}, False)
      seen = found_boxes((image.numpy()[..., :1] > 127).astype(np.uint8))[0]
      if seen.any() and moved[0].numpy().any():
        np.testing.assert_allclose(seen, moved[0], rtol=0, atol=1.01)
