"""`random_affine`: compared with torchvision and Pillow, the ranges of its draws, and how targets follow."""

import math

import numpy as np
import pytest

from refurbish_tf import augment
from support.images import RIVAL_IMAGE as IMAGE, RIVALS, noise

SEED = [7, 0]
UNIT = 2**31


def source_of(degrees, translate, scale, shear, size):
  """Returns the matrix that maps a place (x, y, 1) of the result to its place in the given image, in pixels, by
  torchvision's definition."""
  turn, shear_x, shear_y = (math.radians(angle) for angle in (degrees, *shear))
  rotated = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
  slanted = np.array([[1, 0], [-math.tan(shear_y), 1]]) @ np.array([[1, -math.tan(shear_x)], [0, 1]])
  matrix = np.eye(3)
  matrix[:2, :2] = scale * rotated @ slanted
  height, width = size
  middle, back = np.eye(3), np.eye(3)
  middle[:2, 2] = -width / 2, -height / 2
  back[:2, 2] = width / 2 + translate[0], height / 2 + translate[1]
  return np.linalg.inv(back @ matrix @ middle)


def nearest(image, source):
  height, width = image.shape[:2]
  y, x = np.mgrid[:height, :width] + 0.5
  places = np.einsum("ij,jyx->iyx", source, np.stack([x, y, np.ones_like(x)]))[:2]
  columns, rows = np.floor(places).astype(int)
  inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
  made = image[np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)]
  made[~inside] = 0
  # The second result marks pixels that come from so near a border that rounding may decide.
  return made, (np.abs(places - np.rint(places)) < 1e-3).any(0)


@pytest.mark.parametrize(
  "case", RIVALS["affine"], ids=lambda case: f"{case['angle']} {case['translate']} {case['scale']} {case['shear']}"
)
def test_is_torchvisions_and_pillows(case):
  angle, (right, down), (shear_x, shear_y) = case["angle"], case["translate"], case["shear"]
  height, width = IMAGE.shape[:2]
  layer = augment.random_affine(
    (angle, angle), (abs(right) / width, abs(down) / height), (case["scale"],) * 2, (shear_x, shear_x, shear_y, shear_y)
  )
  # These draws select the largest translation, in either direction.
  draws = [0, 0 if right < 0 else UNIT - 1, 0 if down < 0 else UNIT - 1, 0, 0, 0]
  made = layer.pixels(IMAGE, np.int32(draws)).numpy()
  expected, unsure = nearest(IMAGE, source_of(angle, (right, down), case["scale"], case["shear"], IMAGE.shape[:2]))
  np.testing.assert_array_equal(made[~unsure], expected[~unsure])
  for rival in ("torchvision", "pillow"):
    np.testing.assert_array_equal(made[~unsure], np.uint8(case[rival]).reshape(IMAGE.shape)[~unsure], err_msg=rival)
  assert unsure.mean() < 0.15


def test_parameters_are_drawn_from_their_ranges():
  layer = augment.random_affine((10, 50), (0.3, 0.2), (0.8, 1.5), (5, 15, -20, 30))
  image = noise(40, 50, 1)
  for share in (0, 0.25, 0.5, 0.9):
    drawn = np.full([6], share * UNIT, np.int64)
    low, high = np.array([[10, -0.3, -0.2, 0.8, 5, -20], [50, 0.3, 0.2, 1.5, 15, 30]])
    degrees, x, y, scale, shear_x, shear_y = low + (high - low) * share
    expected, unsure = nearest(
      image, source_of(degrees, (round(x * 50), round(y * 40)), scale, (shear_x, shear_y), (40, 50))
    )
    np.testing.assert_array_equal(layer.pixels(image, drawn.astype(np.int32)).numpy()[~unsure], expected[~unsure])


def test_a_number_is_a_range_around_zero():
  for layer, same in (
    (augment.random_affine(30, shear=7), augment.random_affine((-30, 30), shear=(-7, 7))),
    (augment.random_affine(0, shear=(2, 9)), augment.random_affine((0, 0), shear=(2, 9, 0, 0))),
  ):
    assert layer.text == same.text
  image = noise(7, 9, 3)
  np.testing.assert_array_equal(augment.random_affine(0)(image, SEED), image)
  assert augment.random_affine(0).outcomes == (1, 1) and augment.random_affine(1).outcomes == (math.inf, math.inf)


def test_targets_follow_the_image():
  """A mask moves like the image's pixels. Boxes and key points move as the matrix says."""
  layer = augment.random_affine((-40, 40), (0.2, 0.1), (0.7, 1.4), (-10, 10, -15, 15))
  fn = augment.compose([layer], {"mask": "mask", "depth": "bilinear", "boxes": "xyxy", "points": "rel_xy"})
  image = noise(40, 50, 1)
  # The map is smooth, so that blended pixels are close to the nearest ones.
  depth = np.float32(np.add.outer(np.arange(40), np.arange(50)))
  boxes, points = np.float32([[20, 15, 30, 22]]), np.float32([[0.5, 0.5], [0.4, 0.6]])
  for number in range(6):
    seed = [number, 3]
    made = fn({"image": image, "mask": image[..., 0], "depth": depth, "boxes": boxes, "points": points}, seed=seed)
    np.testing.assert_array_equal(made["mask"], made["image"][..., 0])
    low, high = np.array([[-40, -0.2, -0.1, 0.7, -10, -15], [40, 0.2, 0.1, 1.4, 10, 15]])
    shares = layer.draws(augment.seed_at(seed, 0)).numpy() / UNIT
    degrees, x, y, scale, shear_x, shear_y = low + (high - low) * shares
    source = source_of(degrees, (round(x * 50), round(y * 40)), scale, (shear_x, shear_y), (40, 50))
    to = np.linalg.inv(source)
    corners = to @ np.array([[20, 30, 20, 30], [15, 15, 22, 22], [1, 1, 1, 1]])
    expected = np.clip([corners[0].min(), corners[1].min(), corners[0].max(), corners[1].max()], 0, [50, 40, 50, 40])
    np.testing.assert_allclose(made["boxes"][0], expected, atol=1e-3)
    moved = to @ np.concatenate([points.T * [[50], [40]], [[1, 1]]])
    np.testing.assert_allclose(made["points"], moved[:2].T / [50, 40], atol=1e-4)
    expected, _ = nearest(depth[..., np.newaxis], source)
    inside = expected[..., 0] > 0
    assert np.abs(made["depth"].numpy() - expected[..., 0])[inside].max() < 3


@pytest.mark.parametrize(
  "arguments, error, match",
  [
    ({"degrees": -1}, ValueError, "degrees of random_affine must be a number of at least 0, or two"),
    ({"degrees": 400}, ValueError, "from -360 to 360"),
    ({"translate": (0.1, 1.1)}, ValueError, "translate"),
    ({"scale": (0, 1)}, ValueError, "from 0.01 to 100"),
    ({"shear": 85}, ValueError, "shear"),
    ({"shear": (1, 2, 4, 3)}, ValueError, "shear"),
  ],
  ids=str,
)
def test_refuses_invalid_ranges(arguments, error, match):
  with pytest.raises(error, match=match):
    augment.random_affine(**{"degrees": 0, **arguments})
