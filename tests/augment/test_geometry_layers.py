"""Layers of geometry: compared with torchvision, Pillow and albumentations; their draws; how targets follow."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import ROOT, cases
from support.images import chi_square, make_seeds
from support.moved_pixels import check_pixels, followers, noise, taken

# The warning says that small images with many channels are usually a mistake. Here they are intended.
pytestmark = pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")
RIVALS = json.loads((ROOT / "tests" / "support" / "rival_geometry.json").read_text(encoding="utf-8"))
UNIT = 2**31
NOTHING = np.zeros([0], np.int32)


def rivals(name):
  return pytest.mark.parametrize("case", RIVALS[name], ids=range(len(RIVALS[name])))


@rivals("center_crop")
def test_center_crop_is_torchvisions(case):
  check_pixels(augment.center_crop(case["size"]), NOTHING, case["image"], case["made"])


@rivals("pad")
def test_pad_is_torchvisions(case):
  padding = case["padding"] if len(case["padding"]) > 1 else case["padding"][0]
  check_pixels(
    augment.pad(padding, case["fill"], case["mode"]), NOTHING, case["image"], case["made"], fill=case["fill"]
  )


@rivals("quarter_turns")
def test_quarter_turns_are_albumentations(case):
  layer = augment.random_rotate90()
  check_pixels(layer, [case["turns"]], (8, 8), case["made"])
  check_followers(layer, [case["turns"]], (8, 8), case)


@rivals("transpose")
def test_transpose_is_albumentations(case):
  layer = augment.random_transpose(0.3)
  check_pixels(layer, [0], (8, 8), case["made"])
  check_followers(layer, [0], (8, 8), case)
  image = noise(np.uint8, 8, 8, 3)
  np.testing.assert_array_equal(layer.pixels(image, np.int32([UNIT - 1])), image)


def check_followers(layer, draws, size, case):
  given = RIVALS["given"]
  found = followers(layer, draws, np.zeros([*size, 3], np.uint8), ("xyxy", given["boxes"]), ("xy", given["points"]))
  for made, expected in zip(found, (case["boxes"], case["points"]), strict=True):
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3)


def drawn_of(name, case):
  """Returns the layer that does what a rival library did, and its draws."""
  if name == "center_crop":
    return augment.center_crop(case["size"]), NOTHING
  if name == "pad":
    return augment.pad(case["padding"] if len(case["padding"]) > 1 else case["padding"][0]), NOTHING
  if name == "rotate":
    return augment.random_rotation((case["angle"],) * 2), [0]
  draws, (height, width) = [0], case["image"]
  for (x, y), right, bottom in zip(case["corners"], (0, 1, 1, 0), (0, 0, 1, 1)):
    for inwards, side in ((width - 1 - x if right else x, width), (height - 1 - y if bottom else y, height)):
      draws.append(int((inwards + 0.5) / (side // 2 // 2 + 1) * UNIT))
  return augment.random_perspective(0.5, p=1), draws


def places_of(name, case):
  """Returns where in the image, by definition, the centers of the result's pixels come from: x and y in pixels."""
  height, width = case["image"]
  y, x = np.mgrid[:height, :width] + 0.5
  if name == "rotate":
    cosine, sine = math.cos(math.radians(case["angle"])), math.sin(math.radians(case["angle"]))
    x, y = x - width / 2, y - height / 2
    return np.stack([cosine * x - sine * y + width / 2, sine * x + cosine * y + height / 2])
  return projected(source_of(case), x, y)


def projected(matrix, x, y):
  *places, depth = np.einsum("ij,j...->i...", matrix, np.stack([x, y, np.ones_like(x)]))
  return np.stack(places) / depth


def source_of(case):
  """Returns the matrix that maps (x, y, 1) in the result to the place in the image it comes from, for moved corners."""
  height, width = case["image"]
  rows, given = [], []
  for (x1, y1), to in zip(case["corners"], [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]):
    rows += [[x1, y1, 1, 0, 0, 0, -to[0] * x1, -to[0] * y1], [0, 0, 0, x1, y1, 1, -to[1] * x1, -to[1] * y1]]
    given += to
  return np.append(np.linalg.solve(rows, given), 1).reshape(3, 3)


@pytest.mark.parametrize(
  "name, number", [(name, number) for name in ("rotate", "perspective") for number in range(len(RIVALS[name]))]
)
def test_rotation_and_perspective_equal_torchvision_and_pillow(name, number):
  """Pixels are not compared if rounding decides which pixel of the image they come from."""
  case = RIVALS[name][number]
  layer, draws = drawn_of(name, case)
  places = places_of(name, case)
  unsure = (np.abs(places - np.rint(places)) < 1e-3).any(0)
  for channels in (1, 3):
    image = noise(np.uint8, *case["image"], channels)
    made = layer.pixels(image, np.int32(draws)).numpy()
    for rival in ("torchvision", "pillow"):
      np.testing.assert_array_equal(made[~unsure], taken(image, case[rival])[~unsure], err_msg=rival)
  assert unsure.mean() < 0.3
  np.testing.assert_array_equal(followers(layer, draws, image, ("mask", image))[0], made)


@pytest.mark.parametrize("move", RIVALS["moves"], ids=lambda move: f"{move['name']} {move['number']}")
def test_boxes_and_points_go_where_torchvisions_go(move):
  """Boxes are clipped as in torchvision. Torchvision's points have (0, 0) at the image's corner, except for layers that
  move whole pixels."""
  case = RIVALS[move["name"]][move["number"]]
  layer, draws = drawn_of(move["name"], case)
  boxes, points = np.array(move["boxes"]), np.array(move["points"])
  shift = 0.5 if move["name"] in ("rotate", "perspective") else 0
  found, moved = followers(
    layer, draws, np.zeros([*case["image"], 3], np.uint8), ("xyxy", boxes), ("xy", points - shift)
  )
  expected = np.array(move["moved_boxes"])
  expected[np.any(expected[:, 2:] <= expected[:, :2], -1)] = 0
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
  np.testing.assert_allclose(moved + shift, move["moved_points"], rtol=0, atol=2e-3)


class TestDraws:
  def test_quarter_turns_and_orientations_are_equally_likely(self):
    fn = augment.compose([augment.random_rotate90(), augment.random_flip()])
    count = 8 * 500
    by_seed = np.array([fn.draws(seed) for seed in make_seeds(count)])
    for drawn in (fn.draws([7, 0], count).numpy(), by_seed):
      _, counts = np.unique(drawn, axis=0, return_counts=True)
      assert len(counts) == 8 and chi_square(counts) < 7 + 4 * 14**0.5
    image = np.arange(1, 10, dtype=np.uint8).reshape(3, 3, 1)
    made = np.stack([fn(image, seed=seed).numpy().ravel() for seed in make_seeds(200)])
    assert len(np.unique(made, axis=0)) == 8

  @pytest.mark.parametrize("p", [0, 0.3, 1])
  def test_images_are_transposed_with_probability_p(self, p):
    images = np.broadcast_to(np.uint8([[1, 2], [3, 4]])[..., np.newaxis], [2000, 2, 2, 1])
    made = augment.random_transpose(p)(images, [7, 0]).numpy()[..., 0]
    swapped = (made == [[1, 3], [2, 4]]).all((1, 2))
    assert (swapped | (made == images[..., 0]).all((1, 2))).all() and abs(swapped.mean() - p) < 0.04

  def test_angles_are_uniform(self):
    layer = augment.random_rotation((-30, 60))
    drawn = layer.draws([7, 0], 6400).numpy()
    assert chi_square(np.bincount(drawn[:, 0] >> 25, minlength=64)) < 63 + 4 * (2 * 63) ** 0.5
    image = noise(np.uint8, 40, 50, 3)
    for share in (0, 0.2, 0.5, 0.9):
      np.testing.assert_array_equal(
        layer.pixels(image, [int(share * UNIT)]), augment.random_rotation((-30 + 90 * share,) * 2).pixels(image, [0])
      )
    assert augment.random_rotation(20).text == augment.random_rotation((-20, 20)).text

  def test_corners_are_uniform(self):
    """Each corner moves by 0 to 5 pixels in 20 columns and 0 to 3 in 12 rows. All moves are independent."""
    drawn = augment.random_perspective(0.5, p=1).draws([7, 0], 8000).numpy()
    assert chi_square(np.bincount(drawn[:, 1] * np.int64(6) >> 31, minlength=6)) < 5 + 4 * 10**0.5
    assert np.abs(np.corrcoef(drawn.T.astype(np.float64)) - np.eye(9)).max() < 5 / 8000**0.5
    image = np.ones([40, 60, 1], np.uint8)
    made = augment.random_perspective(0.5, p=0.4)(np.stack([image] * 2000), [7, 0]).numpy()
    assert abs((made == 0).any((1, 2, 3)).mean() - 0.4) < 0.04

  def test_outcomes(self):
    assert augment.random_rotate90().outcomes == (4, 4) and augment.random_transpose().outcomes == (2, 2)
    assert augment.center_crop(3).outcomes == augment.pad(1).outcomes == augment.random_rotation(0).outcomes == (1, 1)
    assert augment.random_rotation(3).outcomes == (math.inf, math.inf) and augment.random_perspective(p=1).outcomes == (
      math.inf,
      math.inf,
    )


class TestPerspective:
  def test_equals_its_definition_for_any_draws(self):
    """Compares images of all shapes, with the largest distortions. A moved box surrounds its moved corners."""
    layer, random = augment.random_perspective(0.5, p=1), np.random.default_rng(3)
    empty = taken_from = behind = 0
    for number in range(cases.examples(60)):
      height, width = sizes = random.integers(5, 70, 2).tolist()
      shares = random.integers(0, 2, 8) * (1 - 2.0**-31) if number % 3 == 0 else random.random(8)
      draws = np.int32([0, *(shares * UNIT).astype(np.int64)])
      inwards = [
        [int(share * (int(0.5 * (side // 2)) + 1)) for share, side in zip(pair, (width, height))]
        for pair in shares.reshape(4, 2)
      ]
      corners = [
        [abs(x - dx), abs(y - dy)]
        for (x, y), (dx, dy) in zip([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)], inwards)
      ]
      image = noise(np.uint8, *sizes, 3)
      x, y = places_of("perspective", {"image": sizes, "corners": corners})
      unsure = (np.abs(np.stack([x, y]) - np.rint([x, y])) < 1e-4).any(0)
      inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
      expected = (
        image[np.clip(y, 0, height - 1).astype(int), np.clip(x, 0, width - 1).astype(int)] * inside[..., np.newaxis]
      )
      made = layer.pixels(image, draws).numpy()
      np.testing.assert_array_equal(made[~unsure], expected[~unsure], err_msg=f"{sizes} {corners}")
      empty, taken_from = empty + (~inside).sum(), taken_from + inside.sum()
      box = np.float64([width / 4, height / 4, width / 2, height])
      far = np.float64([-900, 700])
      mask, moved, point, far_point = followers(
        layer,
        draws,
        image,
        ("mask", image),
        ("xyxy", box[np.newaxis]),
        ("xy", box[np.newaxis, :2] - 0.5),
        ("xy", far[np.newaxis] - 0.5),
      )
      np.testing.assert_array_equal(mask, made)
      to = np.linalg.inv(source_of({"image": sizes, "corners": corners}))
      seen = projected(to, box[[0, 0, 2, 2]], box[[1, 3, 1, 3]])
      expected = np.clip([*seen.min(1), *seen.max(1)], 0, [width, height] * 2)
      np.testing.assert_allclose(moved[0], expected, rtol=0, atol=1e-6)
      np.testing.assert_allclose(point[0] + 0.5, seen[:, 0], rtol=0, atol=1e-6)
      # If the two depths differ in sign, one of the points is behind the viewer.
      if (to[2] @ [*far, 1]) * (to[2] @ [width / 2, height / 2, 1]) > 0:
        np.testing.assert_allclose(far_point[0] + 0.5, projected(to, *far), rtol=1e-6, atol=1e-3)
      else:
        behind += 1
        assert (far_point < -1000).all()
    assert min(empty, taken_from) > 1000 and behind

  def test_blended_maps_follow(self):
    """The blended values of a smooth map are close to those of the nearest pixels."""
    layer = augment.random_perspective(0.4, p=1)
    depth = np.float32(np.add.outer(np.arange(40), np.arange(50)) + 1)
    for seed in make_seeds(10):
      _, nearest, blended = augment.compose([layer], {1: "mask", 2: "bilinear"})(
        np.zeros([40, 50, 3], np.uint8), depth, depth, seed=seed
      )
      assert np.abs(nearest - blended)[(nearest.numpy() > 0) & (blended.numpy() > 0)].max() < 2
      assert np.mean((nearest.numpy() > 0) != (blended.numpy() > 0)) < 0.01


@pytest.mark.parametrize(
  "make, known, partly",
  [
    (lambda: augment.center_crop((5, 20)), (5, 20), (5, 20)),
    (lambda: augment.pad((1, 2, 3, 4)), (15, 15), (15, None)),
    (lambda: augment.pad(0), (9, 11), (9, None)),
    (lambda: augment.random_transpose(1), (11, 9), (None, 9)),
    (lambda: augment.random_transpose(0), (9, 11), (9, None)),
    (lambda: augment.random_rotation(9), (9, 11), (9, None)),
    (lambda: augment.random_perspective(), (9, 11), (9, None)),
  ],
)
def test_static_shapes(make, known, partly):
  """If a size is known before the layer runs, it is in the static shape, and the result has that size."""
  layer = make()
  seeds = {"seed": [7, 0]} if layer.takes_seed else {}
  image = noise(np.uint8, 9, 11, 3)
  made = layer(image, **seeds)
  assert made.shape == [*known, 3]
  for given, expected in (((9, 11), known), ((9, None), partly)):
    traced = tf.function(lambda image: layer(image, **seeds)).get_concrete_function(
      tf.TensorSpec([*given, 3], tf.uint8)
    )
    assert traced.structured_outputs.shape.as_list() == [*expected, 3]
    np.testing.assert_array_equal(traced(tf.constant(image)), made)


class TestRefuses:
  @pytest.mark.parametrize(
    "make, error, match",
    [
      (lambda: augment.pad(-1), ValueError, "padding of pad must be a whole number from 0 to 16,383, got -1"),
      (lambda: augment.pad((1, 2, 3)), ValueError, r"\(left, top, right, bottom\), got \(1, 2, 3\). Pass 4"),
      (
        lambda: augment.pad(1, padding_mode="wrap"),
        ValueError,
        "one of constant, edge, reflect, symmetric, got 'wrap'",
      ),
      (lambda: augment.pad(1, fill=256), ValueError, "fill of pad must be a whole number from 0 to 255"),
      (lambda: augment.pad(1, fill=(1, 2)), ValueError, "fill of pad must be one whole number, or three"),
      (
        lambda: augment.pad(1, fill=3, padding_mode="edge"),
        ValueError,
        "fill of pad needs padding_mode='constant', got 3 with 'edge'",
      ),
      (lambda: augment.random_rotation(-1), ValueError, "degrees of random_rotation must be a number of at least 0"),
      (lambda: augment.random_rotation((0, 400)), ValueError, "from -360 to 360"),
      (
        lambda: augment.random_perspective(0.6),
        ValueError,
        "distortion_scale of random_perspective must be a number from 0 to 0.5, got 0.6",
      ),
    ],
  )
  def test_arguments(self, make, error, match):
    with pytest.raises(error, match=match):
      make()

  @pytest.mark.parametrize(
    "make, shape, match",
    [
      (augment.random_rotate90, [4, 5, 3], "have equal sides.*got 4 x 5 pixels. Crop or resize it to a square"),
      (augment.random_transpose, [4, 5, 3], "have equal sides.*got 4 x 5 pixels"),
      *(
        (lambda side=side, mode=mode: augment.pad((0, side), padding_mode=mode), [4, 9, 1], f"{told}, got 4 x 9")
        for side, mode, told in (
          (4, "reflect", "have a side of at least 5 pixels for a padding of 4 with padding_mode='reflect'"),
          (5, "symmetric", "at least 5 pixels for a padding of 5 with padding_mode='symmetric'"),
        )
      ),
      (lambda: augment.pad(1, fill=9), [4, 9, 5], "have 1 or 2 or 3 or 4 channels"),
      (lambda: augment.pad(1, fill=9), [4, 9, 3], "be uint8"),
      (lambda: augment.pad(1, fill=(9, 8, 7)), [4, 9, 1], "have 3 channels"),
      (lambda: augment.random_rotation(5), [4, 4, 3], "be uint8"),
      (lambda: augment.random_rotation(5), [4, 4, 2], "have 1 or 3 channels"),
      (augment.random_perspective, [4, 9, 3], "sides of at least 5 pixels, got 4 x 9"),
      (augment.random_perspective, [9, 40_000, 1], "sides of at most 32767 pixels"),
      (augment.random_perspective, [9, 9, 4], "have 1 or 3 channels"),
    ],
  )
  def test_images(self, make, shape, match):
    """Unsupported images are refused at tracing, or at run time if their sizes are unknown at tracing."""
    dtype, error = (np.float32, TypeError) if match == "be uint8" else (np.uint8, ValueError)
    layer, image = make(), np.zeros(shape, dtype)
    seeds = {"seed": [7, 0]} if layer.takes_seed else {}
    with pytest.raises(error, match=f"image of {layer.__name__} must .*{match}"):
      layer(image, **seeds)
    if error is TypeError:
      return
    traced = tf.function(lambda image: layer(image, **seeds)).get_concrete_function(tf.TensorSpec([None] * 3, dtype))
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      traced(tf.constant(image))

  def test_random_apply_of_layers_that_change_the_size(self):
    for layer in (augment.center_crop(5), augment.pad(1), augment.random_transpose(1)):
      with pytest.raises(ValueError, match="layers of random_apply must keep the size"):
        augment.random_apply([layer])
    for layer in (
      augment.random_rotate90(),
      augment.random_transpose(),
      augment.random_rotation(9),
      augment.random_perspective(),
      augment.pad(0),
    ):
      image = noise(np.uint8, 9, 9, 3)
      assert augment.random_apply([layer], 0.5)(image, [7, 0]).shape == image.shape


def test_fill_of_three_channels():
  image = noise(np.uint8, 4, 6, 3)
  made = augment.pad((1, 0, 0, 2), fill=(9, 200, 31))(image).numpy()
  np.testing.assert_array_equal(made[:4, 1:], image)
  assert (made[4:] == [9, 200, 31]).all() and (made[:, 0] == [9, 200, 31]).all()
