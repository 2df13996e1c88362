"""Boxes, key points and floating maps go where the pixels of their image go."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.augment import composition
from refurbish_tf.augment.policy_layer import PolicyLayer
from refurbish_tf.augment.target_kinds import checked_targets
from support import ROOT, cases
from support.boxes import FORMATS, drawn_boxes, drawn_points, found_boxes, found_points, in_format
from support.images import make_seeds

RIVALS = json.loads((ROOT / "tests" / "support" / "rival_targets.json").read_text(encoding="utf-8"))
SIZE = (64, 72)
TARGETS = {"mask": "mask", "dots": "mask", "boxes": "xyxy", "points": "xy"}
# Layers after which boxes in the middle of the image can be found in the masks.
LAYERS = {
  "random_crop": [augment.random_crop(padding=16)],
  "random_crop, reflected": [augment.random_crop(padding=5, padding_mode="reflect")],
  "random_crop to a size": [augment.random_crop((50, 90), padding=3, pad_if_needed=True)],
  "random_flip": [augment.random_flip()],
  "random_flip of both axes": [augment.random_flip("horizontal_and_vertical")],
  "random_resized_crop": [augment.random_resized_crop((60, 80), scale=(0.4, 1))],
  "resize": [augment.resize((50, 90))],
  "center_crop, random_rotate90": [augment.center_crop(60), augment.random_rotate90()],
  "random_transpose": [augment.random_transpose(1)],
  "pad": [augment.pad((3, 1, 9, 6))],
  "pad, edge": [augment.pad(2, padding_mode="edge")],
  "pad, reflected": [augment.pad(3, padding_mode="reflect")],
  "random_zoom_out": [augment.random_zoom_out(side_range=(1, 1.6))],
  "random_resize": [augment.random_resize(50, 90)],
  "random_choice, random_order": [
    augment.random_choice([augment.random_crop(padding=9), augment.random_zoom_out(p=1)]),
    augment.random_order([augment.random_flip(), augment.random_crop(padding=8)]),
  ],
  "random_rotation": [augment.random_rotation(40)],
  "random_perspective": [augment.random_perspective(0.4, p=0.9)],
  "random_elastic": [augment.random_elastic(60)],
  "rand_augment": augment.rand_augment(2, 10),
  "auto_augment, cifar10": augment.auto_augment("cifar10"),
  "auto_augment, imagenet": augment.auto_augment("imagenet"),
  "deep_auto_augment": composition.flattened([augment.deep_auto_augment("imagenet")])[:3],
}
TURNS = (
  "random_rotation",
  "random_perspective",
  "random_elastic",
  "rand_augment",
  "auto_augment, cifar10",
  "auto_augment, imagenet",
  "deep_auto_augment",
)


def made_up(number):
  """Returns points, and boxes in the middle, which a distortion leaves in the image."""
  rng = np.random.default_rng(number)
  left, top, width, height = (
    rng.integers(20, 36, 3),
    rng.integers(18, 32, 3),
    rng.integers(6, 16, 3),
    rng.integers(6, 14, 3),
  )
  boxes = np.stack([left, top, left + width, top + height], -1)
  return boxes, np.stack([rng.integers(8, SIZE[1] - 8, 4), rng.integers(8, SIZE[0] - 8, 4), np.full(4, 2)], -1)


def element_of(image, boxes, points, size):
  return {
    "image": image,
    "mask": drawn_boxes(boxes, size),
    "dots": drawn_points(points, size),
    "boxes": boxes.astype(np.float32),
    "points": points.astype(np.float32),
  }


def check_found(element, turns):
  """Checks that each box and each point is where its pixels are, within a pixel. Returns how many points were seen.

  `turns`: whether the layers turn boxes, so that a clipped box may be larger than what is seen of it.
  """
  size, boxes, points = element["mask"].shape[:2], element["boxes"].numpy(), element["points"].numpy()
  found = found_boxes(element["mask"].numpy())
  assert np.all(boxes >= 0) and np.all(boxes <= [size[1], size[0]] * 2)
  for box, seen in zip(boxes, found, strict=True):
    if not seen.any():
      assert np.min(box[2:] - box[:2]) < 1
    elif turns and (box[:2].min() <= 0 or np.any(box[2:] >= size[::-1])):
      # A clipped box surrounds what is seen of it.
      assert np.all(seen[:2] >= box[:2] - 1) and np.all(seen[2:] <= box[2:] + 1)
    else:
      np.testing.assert_allclose(box, seen, rtol=0, atol=1)
  seen_points = found_points(element["dots"].numpy())
  for point, seen in zip(points, seen_points, strict=True):
    inside = np.all(point[:2] >= -0.5) and np.all(point[:2] < np.array(size[::-1]) - 0.5)
    assert point[2] in (0, 2) and (inside or point[2] == 0)
    if seen is not None and np.all(point[:2] > 2) and np.all(point[:2] < np.array(size[::-1]) - 3):
      np.testing.assert_allclose(point[:2], seen, rtol=0, atol=1)
  return sum(seen is not None for seen in seen_points)


@cases.slow
@pytest.mark.parametrize("name", LAYERS)
def test_targets_are_found_at_their_pixels_after_each_layer(name):
  """In 200 trials, the targets are checked after each layer."""
  layers = LAYERS[name]
  steps = [
    composition.compose_part(layers, at, at + 1, checked_targets(TARGETS, "compose")) for at in range(len(layers))
  ]
  seen = moved = 0
  for number, seed in enumerate(make_seeds(200)):
    boxes, points = made_up(number)
    element = element_of(np.zeros([*SIZE, 3], np.uint8), boxes, points, SIZE)
    for step, layer in zip(steps, layers, strict=True):
      drawn = element["mask"]
      element = step(element, **({"seed": seed} if layer.takes_seed else {}))
      seen += check_found(element, name in TURNS)
      moved += not np.array_equal(element["mask"], drawn)
      # For the next layer, targets are drawn again at whole numbers.
      size = element["mask"].shape[:2]
      boxes = np.rint(element["boxes"].numpy()).astype(np.int64)
      points = np.clip(np.rint(element["points"].numpy()).astype(np.int64), 2, [size[1] - 3, size[0] - 3, 2])
      element = element_of(element["image"], boxes, points, size)
  assert seen > 300 and moved > 20


EVERY = {
  "mask": "mask",
  "depth": "bilinear",
  "half": "bilinear",
  "boxes": "rel_center_xywh",
  "whole": "xywh",
  "points": "xy",
  "parts": "rel_xy",
  "small": "yxyx",
}


def everything(number, size=SIZE):
  rng = np.random.default_rng(number)
  boxes, points = made_up(number)
  return {
    "image": rng.integers(0, 256, [*size, 3], np.uint8),
    "mask": rng.random([*size, 2], np.float32),
    "depth": rng.random([*size, 1], np.float64),
    "half": rng.random(size).astype(np.float16),
    "boxes": in_format(boxes, "rel_center_xywh", size).astype(np.float32),
    "whole": in_format(boxes, "xywh", size).astype(np.int32),
    "points": points.astype(np.int64),
    "parts": (points[:, :2] / [size[1], size[0]]).astype(np.float64),
    "small": in_format(boxes, "yxyx", size).astype(np.float16),
  }


def assert_same(found, expected):
  for name in expected:
    np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert found[name].dtype == expected[name].dtype, name


@pytest.mark.parametrize(
  "layers",
  [
    [*LAYERS["deep_auto_augment"], *LAYERS["resize"]],
    [
      *LAYERS["random_zoom_out"],
      augment.random_iou_crop(),
      *LAYERS["random_choice, random_order"],
      *LAYERS["random_resize"],
      augment.random_iou_crop(),
    ],
  ],
  ids=range(2),
)
def test_any_split_gives_the_same_bytes(layers):
  """Targets of whole numbers or 16-bit floats, which are rounded after each layer, are also the same. Random chains of
  other layers are in fuzz/fuzz_layers.py."""
  whole = augment.compose(layers, EVERY)
  for number, seed in enumerate(make_seeds(12)):
    expected = whole(everything(number), seed=seed)
    for at in range(1, len(layers)):
      partial, final = augment.split(layers, at, EVERY)
      seeds = {"seed": seed} if any(getattr(layer, "takes_seed", False) for layer in layers[at:]) else {}
      assert_same(final(partial(everything(number), seed=seed), **seeds), expected)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("rel_")])
def test_any_split_gives_the_same_boxes_at_the_edges(name, dtype):
  """At the edges, the sum of two rounded numbers can exceed the image's size."""
  layers = [
    augment.random_resized_crop((33, 41), scale=(0.25, 1)),
    augment.random_crop(padding=4),
    augment.random_flip(),
  ]
  whole = augment.compose(layers, {1: name})
  splits = [augment.split(layers, at, {1: name}) for at in (1, 2)]
  corners = np.random.default_rng(3).integers(0, 54, [60, 2])
  boxes = np.concatenate(
    [corners, np.minimum(corners + np.random.default_rng(4).integers(5, 60, [60, 2]), [79, 63])], -1
  )
  given = tf.cast(in_format(boxes, name, (63, 79)), dtype)
  image = np.zeros([63, 79, 3], np.uint8)
  for seed in make_seeds(25):
    expected = whole(image, given, seed=seed)[1]
    for partial, final in splits:
      np.testing.assert_array_equal(final(*partial(image, given, seed=seed), seed=seed)[1], expected)


def test_a_point_that_reaches_minus_1_is_not_taken_for_padding():
  """Points [n, 2] have no padding, so (-1, -1) is a place."""
  layers = [augment.random_crop(padding=4), augment.random_flip()]
  for seed in make_seeds(200):
    _, near, far = augment.compose(layers, {1: "xy", 2: "xy"})(
      np.zeros([32, 32, 3], np.uint8),
      np.float32([[x, x] for x in range(8)]),
      np.float32([[x + 0.25, x + 0.25] for x in range(8)]),
      seed=seed,
    )
    shift = np.abs(far - near)
    np.testing.assert_allclose(shift, 0.25, rtol=0, atol=1e-5)


def test_the_image_is_the_same_with_targets_and_without():
  layers = [*LAYERS["rand_augment"], *LAYERS["random_resized_crop"]]
  for number, seed in enumerate(make_seeds(8)):
    given = everything(number)
    np.testing.assert_array_equal(
      augment.compose(layers, EVERY)(given, seed=seed)["image"], augment.compose(layers)(given["image"], seed=seed)
    )


def test_a_batch_equals_its_images():
  layers = [*LAYERS["rand_augment"], *LAYERS["random_resized_crop"]]
  each = [everything(number) for number in range(5)]
  batch = augment.compose(layers, EVERY)({name: np.stack([one[name] for one in each]) for name in each[0]}, seed=[7, 0])
  for number, one in enumerate(each):
    assert_same(
      {name: batch[name][number] for name in batch},
      augment.compose(layers, EVERY)(one, seed=augment.seed_at([7, 0], number)),
    )


def layer_of(move):
  """Returns the layer of rtf.augment that makes a rival's move, and its draws."""
  (height, width), arguments = move["image"], move["arguments"]
  if move["operation"] == "horizontal_flip":
    return augment.random_flip(), [1]
  if move["operation"] == "crop":
    return augment.random_crop(padding=6), [arguments["top"] + 6, arguments["left"] + 6]
  if move["operation"] == "resize":
    return augment.resize(arguments["size"]), []
  if move["operation"] == "rotate":
    return PolicyLayer("turn", [("rotate", arguments["degrees"])], [1], exact_turns=True), [0]
  if move["operation"] == "affine":
    return PolicyLayer("affine", [(arguments["kind"], arguments["amount"])], [1]), [0]
  part = arguments["height"], arguments["width"]
  scale, ratio = part[0] * part[1] / (height * width), part[1] / part[0]
  places = [
    int((at + 0.5) / (side - length + 1) * 2**31)
    for at, side, length in ((arguments["top"], height, part[0]), (arguments["left"], width, part[1]))
  ]
  return augment.random_resized_crop(arguments["size"], (scale, scale), (ratio, ratio)), [0] * 20 + places


def moved_by(move, targets):
  layer, draws = layer_of(move)
  return [
    each.numpy()
    for each in layer._chain._made(
      tf.zeros([*move["image"], 3], tf.uint8),
      tf.constant(draws, tf.int32),
      [("it", kind, rows) for kind, rows in targets],
    )[1]
  ]


@pytest.mark.parametrize("number", range(len(RIVALS["moves"])))
def test_boxes_and_points_equal_torchvisions(number):
  """Torchvision's points have (0, 0) at the corner of the image. Only its flip and crop treat points as pixels, whose
  centers have whole numbers."""
  move = RIVALS["moves"][number]
  boxes, points = np.array(move["boxes"]), np.array(move["points"])
  exact = move["operation"] in ("horizontal_flip", "crop")
  found, pixels, places = moved_by(move, [("xyxy", boxes), ("xy", points), ("xy", points - 0.5)])
  expected = np.array(move["moved_boxes"])
  expected[np.any(expected[:, 2:] <= expected[:, :2], -1)] = 0
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
  np.testing.assert_allclose(pixels if exact else places + 0.5, move["moved_points"], rtol=0, atol=1e-3)
  if move["operation"] in ("rotate", "affine"):
    np.testing.assert_allclose(pixels, move["moved_points"], rtol=0, atol=0.5)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_those_of_keras(name):
  size, boxes = tuple(RIVALS["formats"]["image"]), np.array(RIVALS["formats"]["boxes"]["xyxy"])
  given = np.array(RIVALS["formats"]["boxes"][name])
  np.testing.assert_allclose(in_format(boxes, name, size), given, rtol=0, atol=1e-3)
  fn = augment.compose([augment.random_crop(padding=3), augment.resize((31, 90))], {1: name, 2: "xyxy"})
  for seed in make_seeds(5):
    _, found, expected = fn(np.zeros([*size, 3], np.uint8), given, boxes, seed=seed)
    tolerance = 1e-4 if name.startswith("rel_") else 5e-3
    np.testing.assert_allclose(found, in_format(expected, name, (31, 90)), rtol=0, atol=tolerance)


class TestBlendedMaps:
  @pytest.mark.parametrize(
    "layers",
    [
      [augment.random_crop(padding=5)],
      [augment.random_crop(padding=5, padding_mode="reflect")],
      [augment.random_flip()],
      [augment.random_flip("vertical")],
      [augment.random_crop((9, 30), pad_if_needed=True)],
      [PolicyLayer("x", [("translate_x", 0.3)], [1])],
      [PolicyLayer("x", [("translate_y", -0.2)], [1])],
      [augment.decode(apply_exif_orientation=True)],
    ],
    ids=range(8),
  )
  @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
  def test_moves_by_whole_pixels_equal_those_of_masks(self, layers, dtype):
    values = tf.cast(np.random.default_rng(3).random([17, 23, 3]), dtype)
    image = np.zeros([17, 23, 3], np.uint8)
    fn = augment.compose(layers, {1: "mask", 2: "bilinear"})
    for seed in make_seeds(5) if isinstance(layers[0], augment.random_flip().__class__) else [None]:
      given = (image if seed is not None else tf.io.encode_png(image)), values, values
      _, mask, blended = fn(*given, **({} if seed is None else {"seed": seed}))
      assert blended.dtype == dtype
      np.testing.assert_array_equal(mask, blended)

  @pytest.mark.parametrize("antialias", [False, True])
  def test_a_resize_equals_that_of_a_float_image(self, antialias):
    fn = augment.compose([augment.random_resized_crop((9, 40), antialias=antialias)], {1: "bilinear", 2: "bilinear"})
    for number, seed in enumerate(make_seeds(10)):
      image = np.random.default_rng(number).random([17, 23, 3], np.float32)
      image, alone, precise = fn(image, image, image.astype(np.float64), seed=seed)
      np.testing.assert_array_equal(alone, image)
      np.testing.assert_allclose(precise, image, rtol=0, atol=1e-6)

  def test_float64_is_resized_in_float64(self):
    image = np.random.default_rng(3).random([17, 23, 1])
    fn = augment.compose([augment.resize((9, 40))], {1: "bilinear", 2: "bilinear"})
    _, near, far = fn(np.zeros([17, 23, 3], np.uint8), image, image + 2**30)
    # Weights are float32. Their sum differs from 1 in the last digit only.
    np.testing.assert_allclose(
      far / (far.numpy().mean() - near.numpy().mean()) * 2.0**30 - 2**30, near, rtol=0, atol=200
    )
    assert np.any(far.numpy() != np.float32(far))

  @pytest.mark.parametrize(
    "name, parameter", [("rotate", 17.0), ("rotate", -30.0), ("shear_x", 0.23), ("shear_y", -0.3)]
  )
  def test_distortions_blend_four_pixels(self, name, parameter):
    values = np.random.default_rng(3).random([17, 23, 2])
    values[4, 5] = np.nan
    layer = PolicyLayer("x", [(name, parameter)], [1], exact_turns=True)
    _, found = augment.compose([layer], {1: "bilinear"})(np.zeros([17, 23, 3], np.uint8), values, seed=[7, 0])
    y, x = np.mgrid[:17, :23] + 0.5
    angle = np.deg2rad(parameter)
    source_y, source_x = {
      "rotate": (
        np.sin(angle) * (x - 11.5) + np.cos(angle) * (y - 8.5) + 8.5,
        np.cos(angle) * (x - 11.5) - np.sin(angle) * (y - 8.5) + 11.5,
      ),
      "shear_x": (y, x + parameter * y),
      "shear_y": (y + parameter * x, x),
    }[name]
    expected = np.zeros_like(values)
    for row, column in itertools.product(range(17), range(23)):
      at = np.array([source_y[row, column], source_x[row, column]])
      if np.any(at < 1e-9) or np.any(at > np.array([17, 23]) - 1e-9):
        expected[row, column] = found[row, column] if np.any(np.abs(at - np.clip(at, 0, [17, 23])) < 1e-6) else 0
        continue
      low = np.floor(at - 0.5).astype(int)
      for step in itertools.product((0, 1), (0, 1)):
        share = np.prod(np.where(step, at - 0.5 - low, 1 - (at - 0.5 - low)))
        if share > 1e-12:
          expected[row, column] += share * values[tuple(np.clip(low + step, 0, [16, 22]))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert np.isnan(found).any() and np.count_nonzero(np.isnan(found[..., 0])) < 5
