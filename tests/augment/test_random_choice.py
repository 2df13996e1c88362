"""`random_choice` applies one of several layers, `random_order` all of them in any order. Each is one layer."""

import json

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import ROOT, cases
from support.images import chi_square, make_seeds, noise

RIVALS = json.loads((ROOT / "tests" / "support" / "rival_detection.json").read_text(encoding="utf-8"))
SEED, UNIT = [7, 0], 2**31
FLIP, CROP, CUTOUT = augment.random_flip(), augment.random_crop(padding=3), augment.cutout(4)


def test_draws_are_those_of_the_layers_at_their_positions():
  """Positions are counted through all choices, and through all layers of an order, even if choices and orders are
  nested in each other."""
  images, identity = noise(40, 9, 13, 3), augment.random_flip(p=0)
  inner = augment.random_order([[CUTOUT], [FLIP, CROP]])
  layer = augment.random_choice([CROP, [CUTOUT, FLIP], inner], [2, 0, 5])
  draws, first, last = layer.draws(SEED, 40).numpy(), augment.compose([CROP]), augment.compose([identity] * 3 + [inner])
  for image, drawn, seed in zip(images, draws, (augment.seed_at(SEED, k) for k in range(40))):
    np.testing.assert_array_equal(drawn, layer.draws(seed))
    np.testing.assert_array_equal(layer(image, seed), (first if drawn[0] < UNIT * 2 / 7 else last)(image, seed=seed))
  assert 0 < (draws[:, 0] < UNIT * 2 / 7).sum() < 40
  np.testing.assert_array_equal(layer(images, SEED), layer.pixels(images, draws))
  nested = augment.random_order([[FLIP, layer], CUTOUT])
  steps = [augment.compose([FLIP, layer]), augment.compose([identity, identity, CUTOUT])]
  for image, seed in zip(images, make_seeds(20)):
    first, second = reversed(steps) if nested.draws(seed)[0] else steps
    np.testing.assert_array_equal(nested(image, seed), second(first(image, seed=seed), seed=seed))


@pytest.mark.parametrize("case", RIVALS["order"], ids=range(6))
def test_order_is_torchvisions(case):
  layer = augment.random_order([augment.random_flip(p=1), augment.random_crop(padding=6), augment.random_rotate90()])
  left, drawn = [0, 1, 2], []
  for each in case["order"][:2]:
    drawn.append(left.index(each))
    left.remove(each)
  image = np.arange(1, 37, dtype=np.uint8).reshape(6, 6, 1)
  made = layer.pixels(image, np.int32([*drawn, 1, *np.add(case["moved"], 6), 1]))
  np.testing.assert_array_equal(made[..., 0], case["made"])


@pytest.mark.parametrize("case", RIVALS["choice"], ids=range(3))
def test_choice_probabilities_equal_torchvisions(case):
  layer = augment.random_choice([augment.random_crop((1, width)) for width in (1, 2, 3)], case["p"])
  widths = [layer(noise(4, 4, 1), seed).shape[1] for seed in make_seeds(2000)]
  counts = np.bincount(widths, minlength=4)[1:] / 2000
  assert np.abs(counts - case["parts"]).max() < 0.05 and (counts[np.equal(case["parts"], 0)] == 0).all()


def test_draws_at_the_boundary_select_the_next_choice():
  layer = augment.random_choice([augment.random_crop((1, width)) for width in (1, 2, 3)], [0, 1, 1])
  assert [
    layer.pixels(noise(4, 4, 1), np.int32([drawn, 0, 0])).shape[1] for drawn in (0, 2**30 - 1, 2**30, UNIT - 1)
  ] == [2, 2, 3, 3]


def test_all_orders_are_equally_likely():
  layer = augment.random_order(
    [augment.random_flip(p=1), augment.cutout(1), augment.random_crop(padding=1), augment.random_rotate90()]
  )
  drawn, counts = np.unique(layer.draws(SEED, 4800).numpy()[:, :3], axis=0, return_counts=True)
  assert len(drawn) == 24 and chi_square(counts) < 23 + 4 * 46**0.5
  made = {layer(np.arange(36, dtype=np.uint8).reshape(6, 6, 1), seed).numpy().tobytes() for seed in make_seeds(50)}
  assert len(made) > 40


def test_targets_follow_what_was_chosen():
  """Choices may have results of different sizes. The mask shows where each pixel went."""
  crops = [
    augment.random_crop(8),
    [augment.pad(2), augment.random_flip(p=1)],
    augment.random_transpose(1),
    augment.random_zoom_out(),
  ]
  layers = [augment.random_choice(crops), augment.random_order([augment.random_flip(), augment.random_crop(padding=3)])]
  kinds, image = {1: "mask", 2: "xyxy"}, np.arange(1, 181, dtype=np.uint8).reshape(12, 15, 1)
  fn, sizes = augment.compose(layers, kinds), set()
  for seed in make_seeds(60):
    made, mask, boxes = fn(image, image[..., 0], np.float32([[4, 4, 8, 8]]), seed=seed)
    np.testing.assert_array_equal(made[..., 0], mask)
    sizes.add(tuple(mask.shape))
    inside = np.isin(mask, image[4:8, 4:8, 0])
    rows, columns = np.nonzero(inside)
    expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if inside.any() else [0] * 4
    np.testing.assert_array_equal(boxes[0], expected)
    first, second = augment.split(layers, 1, kinds)
    for one, other in zip(
      second(*first(image, image[..., 0], np.float32([[4, 4, 8, 8]]), seed=seed), seed=seed),
      (made, mask, boxes),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)
  assert {(8, 8), (16, 19), (15, 12)} < sizes and len(sizes) > 5


def test_boxes_are_read_if_an_iou_crop_is_chosen():
  layer = augment.random_choice([augment.random_iou_crop(sampler_options=[0]), augment.random_flip(p=1)])
  fn, sizes = augment.compose([augment.random_zoom_out(p=1), layer], {1: "xyxy"}), set()
  for seed in make_seeds(20):
    first = augment.random_zoom_out(p=1)(noise(9, 9, 3), augment.seed_at(seed, 0))
    made, boxes = fn(noise(9, 9, 3), np.float32([[1, 1, 8, 8]]), seed=seed)
    crops = layer.draws(augment.seed_at(seed, 1))[0] < 2**30
    assert crops or made.shape == first.shape
    sizes.add((bool(crops), made.shape == first.shape))
    assert boxes.numpy().any()
  assert sizes == {(True, False), (False, True)}


def test_a_policy_is_one_choice():
  layer = augment.random_choice([augment.auto_augment("cifar10"), augment.rand_augment(2), augment.trivial_augment()])
  images = noise(30, 9, 9, 3)
  made = layer(images, SEED).numpy()
  for policy, k in ((augment.auto_augment("cifar10"), 0), (augment.rand_augment(2), 2)):
    fn = augment.compose([*[augment.random_flip(p=0)] * k, *policy])
    chosen = layer.draws(SEED, 30).numpy()[:, 0] * np.int64(3) // UNIT == k // 2
    assert chosen.any()
    for number in np.flatnonzero(chosen):
      np.testing.assert_array_equal(made[number], fn(images[number], seed=augment.seed_at(SEED, int(number))))


def test_static_sizes():
  same = augment.random_choice([augment.random_resized_crop(8), [augment.resize(9), augment.random_crop(8)]])
  assert same(noise(5, 20, 30, 3), SEED).shape == [5, 8, 8, 3]
  for layer, known in (
    (same, 8),
    (augment.random_choice([augment.random_flip(), augment.random_flip("vertical")]), 12),
    (augment.random_choice([augment.resize((8, 8)), augment.random_flip()]), None),
  ):
    traced = tf.function(lambda image, layer=layer: layer(image, SEED)).get_concrete_function(
      tf.TensorSpec([12, 12, 3], tf.uint8)
    )
    assert traced.structured_outputs.shape.as_list() == [known, known, 3]


def test_outcomes_and_text():
  flip, blur, inner = (
    augment.random_flip(),
    augment.gaussian_blur(3),
    augment.random_order([augment.random_flip(), augment.random_flip()]),
  )
  assert augment.random_choice([flip, [flip, flip]]).outcomes == (6, 1 / (0.25 / 2 + 0.25 / 4))
  assert repr(augment.random_choice([flip, blur], np.array([0.25, 0.75]))) == repr(
    augment.random_choice([flip, blur], [0.25, 0.75])
  )
  assert (
    augment.random_choice([flip, blur], [1, 0]).outcomes == (2, 2)
    and augment.random_choice([flip, augment.cutout(3)]).outcomes is None
  )
  assert inner.outcomes == (4, 4) and repr(inner) == "random_order([random_flip(), random_flip()])"
  assert repr(augment.random_choice([flip, [flip, inner]], [1, 2])) == (
    "random_choice([random_flip(), [random_flip(), random_order([random_flip(), random_flip()])]], p=[1, 2])"
  )


@pytest.mark.parametrize(
  "make, match, error",
  cases.refused(
    ValueError=[
      (
        lambda: augment.random_choice([augment.normalize(), augment.random_flip()]),
        "layers of random_choice must keep the dtype",
      ),
      (lambda: augment.random_order([augment.resize(4)]), "layers of random_order must keep the size and the dtype"),
      (lambda: augment.random_order([augment.random_zoom_out()]), "must keep the size"),
      (lambda: augment.random_choice(augment.auto_augment("cifar10")), "both layers of auto_augment"),
      (lambda: augment.random_choice([augment.random_flip()] * 65), "1 to 64 layers"),
      (
        lambda: augment.random_choice([augment.random_flip()], [0]),
        "p of random_choice must have a number from 0 to .* for each of the 1 choices, and not only zeros",
      ),
      (lambda: augment.random_choice([augment.random_flip()] * 2, [1e308, 1e308]), "p of random_choice"),
      (
        lambda: augment.random_choice([augment.random_solarize(), augment.random_flip()])(noise(4, 4, 2), SEED),
        "image of random_solarize in random_choice must have 1 or 3 channels",
      ),
    ],
    TypeError=[
      (lambda: augment.random_choice(augment.random_flip()), "must be a list or tuple"),
      (lambda: augment.random_order([lambda image: image]), "layers of random_order must be layers of rtf.augment"),
      (lambda: augment.random_choice([augment.random_flip()], np.array(0.5)), "p of random_choice"),
    ],
  ),
)
def test_refuses_bad_layers_and_probabilities(make, error, match):
  with pytest.raises(error, match=match):
    make()


def test_draws_out_of_range_are_refused():
  layer = augment.random_choice([augment.random_flip(), augment.random_crop(padding=2)])
  for draws in ([-1, 0, 0], [0, 2, 0], [0, 1, 1], [UNIT - 1, 5, 0]):
    with pytest.raises(tf.errors.InvalidArgumentError, match="A draw must be from 0 to"):
      layer.pixels(noise(4, 4, 3), np.int32(draws))
  inner = augment.random_order([augment.random_flip(), augment.random_crop(padding=2), augment.cutout(2)])
  for draws, most in (([3, 0], 2), ([0, 2], 1)):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"A draw must be from 0 to {most}, got {most + 1}"):
      inner.pixels(noise(4, 4, 3), np.int32([*draws, 0, 0, 0, 0, 0]))
