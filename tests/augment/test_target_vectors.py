"""Optical flows, vectors and disparities point where the pixels of their images go."""

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal import native
from support import cases
from support.images import make_seeds, noise
from test_target_followers import BETWEEN, SIZE, WHOLE, called, policy


def inner(mask):
  """Returns the mask without two pixels at each edge."""
  known = np.zeros(mask.shape, bool)
  known[2:-2, 2:-2] = mask[2:-2, 2:-2]
  return known


def places(height, width):
  return np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), -1)


def homography(given, moved):
  """Returns the projection that maps four points to where they moved."""
  rows = [
    row
    for (x, y), (u, v) in zip(given, moved)
    for row in ([x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y])
  ]
  return np.append(np.linalg.solve(rows, np.ravel(moved)), 1).reshape(3, 3)


def projected(matrix, points):
  made = np.concatenate([points, np.ones_like(points[..., :1])], -1) @ matrix.T
  return made[..., :2] / made[..., 2:]


CORNERS = np.float64([[0, 0], [30, 0], [30, 24], [0, 24]])


def moves(layers, kind, *maps):
  """Moves maps of this kind with their image, for several seeds.

  Yields the height and width of the moved image, the projection of its points, which places are known, and the maps.
  Places at the edges count as unknown, because a map is not blended at an edge.
  """
  fn = augment.compose(layers, {1: "xy", 2: "mask", **{3 + number: kind for number in range(len(maps))}})
  others = CORNERS - 0.5, np.pad(np.ones([18, 24], np.uint8), 3)
  for seed in make_seeds(cases.examples(20)):
    made = called(fn, layers, noise(*SIZE, 3), *others, *maps, seed=seed)
    image, corners, known, *moved = (each.numpy() for each in made)
    yield image.shape[:2], homography(CORNERS, corners + 0.5), inner(known), moved


# Layers that mirror or repeat pixels at an edge are left out, because a later layer could bring these pixels into the
# middle of the image.
UNMIRRORED = [layers for name, layers in WHOLE.items() if "reflected" not in name and "edge" not in name]


class TestFlow:
  MOVES = [*UNMIRRORED, *(layers for name, layers in BETWEEN.items() if name not in ("elastic", "all"))]

  @cases.each_value
  @pytest.mark.parametrize("layers", MOVES, ids=range(len(MOVES)))
  @pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
  def test_is_that_of_the_moved_images(self, layers, dtype):
    """The second image is an affine map of the first. The expected flow follows from how the layers move points."""
    matrix = np.array([[1.02, 0.03, -2.5], [-0.04, 0.97, 1.5], [0, 0, 1]])
    flow = projected(matrix, places(*SIZE)) - places(*SIZE)
    compared = 0
    for size, to, known, (found,) in moves(layers, "flow", tf.cast(flow, dtype)):
      assert found.dtype == dtype and found.shape == (*size, 2)
      there = places(*size)
      expected = projected(to, projected(matrix, projected(np.linalg.inv(to), there))) - there
      np.testing.assert_allclose(found[known], expected[known], rtol=0, atol=0.05)
      compared += known.sum()
      assert np.all(found[np.all(found == 0, -1)] == 0)
    assert compared > 1000

  @pytest.mark.parametrize("mode", ["reflect", "symmetric"])
  def test_mirrored_pixels_have_mirrored_vectors(self, mode):
    flow = np.random.default_rng(3).normal(size=[*SIZE, 2]).astype(np.float32)
    found = augment.compose([augment.pad((3, 2), padding_mode=mode)], {1: "flow"})(noise(*SIZE, 3), flow)[1]
    expected = np.pad(flow, [(2, 2), (3, 3), (0, 0)], mode)
    expected[:, :3, 0] *= -1
    expected[:, -3:, 0] *= -1
    expected[:2, :, 1] *= -1
    expected[-2:, :, 1] *= -1
    np.testing.assert_array_equal(found, expected)

  def test_unknown_vectors_stay_unknown_and_outside_is_0(self):
    flow = np.full([*SIZE, 2], np.nan, np.float32)
    flow[:, 15:] = [3, -1]
    found = augment.compose([augment.random_rotation((30, 30)), augment.pad(2)], {1: "flow"})(
      noise(*SIZE, 3), flow, seed=[7, 0]
    )[1].numpy()
    assert {tuple(each) for each in np.round(found[~np.isnan(found[..., 0])], 3)} == {
      (0, 0),
      *(
        tuple(
          np.round(
            np.float32([3 * np.cos(np.pi / 6) - np.sin(np.pi / 6), -3 * np.sin(np.pi / 6) - np.cos(np.pi / 6)]), 3
          )
        ),
      ),
    }


class TestVectors:
  MOVES = [*UNMIRRORED, *(BETWEEN[name] for name in ("rotation", "perspective", "affine", "shears"))]
  RESIZED = [BETWEEN[name] for name in ("resized_crop", "resize", "short side", "deep crop")]

  @staticmethod
  def directions(*angles):
    return np.broadcast_to(
      np.float32([[np.cos(angle), np.sin(angle)] for angle in angles]).ravel(), [*SIZE, 2 * len(angles)]
    )

  @cases.each_value
  @pytest.mark.parametrize("layers", MOVES, ids=range(len(MOVES)))
  @pytest.mark.parametrize("dtype, form", [("float32", "normals"), ("float16", "limbs"), ("float64", "limbs")])
  def test_point_to_the_same_content_in_the_moved_image(self, layers, dtype, form):
    """The expected direction follows from how two close points move. Length and z stay."""
    given = self.directions(0.3) if form == "normals" else self.directions(0.3, 1.9, 4)
    stored = np.concatenate([given, np.full([*SIZE, 1], 0.5)], -1) if form == "normals" else given
    compared = 0
    for size, to, known, (found,) in moves(layers, "vectors", tf.cast(stored, dtype)):
      assert found.dtype == dtype and found.shape == (*size, stored.shape[-1])
      there = places(*size)
      for begin in range(0, given.shape[-1], 2):
        step = projected(to, projected(np.linalg.inv(to), there) + 1e-4 * given[0, 0, begin : begin + 2]) - there
        expected = step / np.linalg.norm(step, axis=-1, keepdims=True)
        np.testing.assert_allclose(found[known][:, begin : begin + 2], expected[known], rtol=0, atol=0.01)
      if form == "normals":
        np.testing.assert_allclose(found[known][:, 2], 0.5, atol=1e-6)
      compared += known.sum()
    assert compared > 1000

  def test_error_for_uint8_vectors_suggests_the_conversion(self):
    fn = augment.compose([augment.random_flip(p=1)], {1: "vectors"})
    with pytest.raises(TypeError, match="got dtype uint8.*with tf.cast.v, tf.float32. / 127.5 - 1 for vectors v"):
      fn(noise(*SIZE, 3), noise(*SIZE, 3), seed=[7, 0])

  @pytest.mark.parametrize("layers", RESIZED, ids=range(len(RESIZED)))
  def test_resizing_leaves_them_as_they_are(self, layers):
    for seed in make_seeds(5):
      found = called(augment.compose(layers, {1: "vectors"}), layers, noise(*SIZE, 3), self.directions(0.3), seed=seed)[
        1
      ].numpy()
      np.testing.assert_allclose(found, np.broadcast_to(self.directions(0.3)[0, 0], found.shape), atol=1e-6)


def run(layers, kind, tensor, draws):
  native.ops().refurbish_tf_image_pixels(
    images=noise(*SIZE, 3),
    draws=tf.constant(draws, tf.int32),
    targets=[tensor],
    kinds=[kind],
    names=["it"],
    layers=layers,
    clips=False,
    T=tf.uint8,
    Tmoved=[tensor.dtype],
  )


class TestDisparity:
  KEPT = [
    [augment.random_flip("vertical")],
    [augment.random_crop(padding=4), augment.center_crop(20)],
    [augment.random_flip(p=0)],
    [augment.random_resized_crop((19, 40), scale=(0.4, 1))],
    [augment.resize((40, 19))],
    [augment.pad((0, 3), padding_mode="reflect")],
    [augment.random_affine(0, (0.1, 0.1), (0.7, 1.4), shear=(-10, 10, 0, 0))],
    [augment.random_rotation((0, 0))],
    [policy("shear_x", 0.2)],
    [augment.random_apply([augment.random_flip()], p=0), policy("translate_y", 0.2)],
    [augment.random_crop((30, 40), pad_if_needed=True)],
    [
      augment.color_jitter(0.4),
      augment.cutout(4),
      augment.random_transpose(0),
      augment.random_perspective(p=0),
      policy("shear_y", 0),
    ],
  ]
  CHANGED = [
    (augment.random_flip(), "random_flip", "mirror"),
    (augment.random_flip("horizontal_and_vertical", 0.01), "random_flip", "mirror"),
    (augment.random_rotate90(), "random_rotate90", "rows"),
    (augment.random_transpose(0.1), "random_transpose", "rows"),
    (augment.random_rotation(3), "random_rotation", "rows"),
    (augment.random_affine(3), "random_affine", "rows"),
    (augment.random_affine(0, shear=(0, 0, -3, 3)), "random_affine", "rows"),
    (augment.random_perspective(), "random_perspective", "rows"),
    (augment.random_elastic(1), "random_elastic", "rows"),
    (augment.random_crop(padding=3, padding_mode="reflect"), "random_crop", "mirror"),
    (augment.pad(3, padding_mode="symmetric"), "pad", "mirror"),
    (augment.random_apply([augment.random_crop(padding=3), augment.random_flip()], 0.1), "random_apply", "mirror"),
    (augment.rand_augment()[0], "rand_augment", "rows"),
    (policy("random_flip", 0), "x", "mirror"),
    (policy("shear_y", 0.1), "x", "rows"),
  ]

  @cases.each_value
  @pytest.mark.parametrize("layers", KEPT, ids=range(len(KEPT)))
  @pytest.mark.parametrize("form", [(), (1,)])
  def test_is_that_of_the_moved_views(self, layers, form):
    """The expected disparity follows from how two points move, one in each view."""
    disparity = (places(*SIZE)[..., 0] * 0.2 + 1).reshape(*SIZE, *form).astype(np.float32)
    for size, to, known, (found, half) in moves(layers, "disparity", disparity, np.float16(disparity)):
      assert found.shape == (*size, *form)
      there = places(*size)
      left = projected(np.linalg.inv(to), there)
      right = left - np.stack([left[..., 0] * 0.2 + 1, np.zeros(left.shape[:2])], -1)
      expected = there - projected(to, right)
      np.testing.assert_allclose(found.reshape(size)[known], expected[known][:, 0], rtol=0, atol=0.03)
      np.testing.assert_allclose(half, found, rtol=0, atol=0.03)
      assert np.abs(expected[..., 1]).max() < 1e-9 and known.any()

  @pytest.mark.parametrize("layer, name, said", CHANGED, ids=range(len(CHANGED)))
  def test_layers_that_may_change_rows_are_refused_when_it_is_built(self, layer, name, said):
    layers = [augment.random_crop(padding=2), layer]
    for build in (
      lambda: augment.compose(layers, {"disparity": "disparity"}),
      lambda: augment.split(layers, 1, {1: "disparity"}),
      lambda: tf.data.Dataset.range(3).refurbish(layers[:1], layers[1:], targets={1: "disparity"}),
    ):
      with pytest.raises(
        ValueError, match=rf"targets: the disparity .* cannot follow {name}\(.* at position 1, which may .*{said}"
      ):
        build()
    augment.compose(layers, {"disparity": "bilinear"})

  def test_layers_with_probability_0_may_change_rows(self):
    augment.compose(
      [augment.random_choice([augment.random_flip(), augment.center_crop(20)], p=[0, 1])], {"disparity": "disparity"}
    )

  @pytest.mark.parametrize(
    "layer, draws, said",
    [
      ("random_flip", [1], "mirror left"),
      ("random_transpose below=2147483648", [0], "out of their rows"),
      ("random_rotation degrees=180,180", [0], "out of their rows"),
      ("pad left=2 top=0 right=0 bottom=0 mode=reflect fill=0", [], "mirror left"),
    ],
  )
  def test_layers_that_may_change_rows_are_refused_at_run_time(self, layer, draws, said):
    name, *arguments = layer.split(" ")
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match=f"targets: it must have layers that keep its rows, got one that may .*{said}",
    ):
      run([" ".join([name, "position=-1", *arguments])], "disparity", tf.zeros(SIZE), draws)


@pytest.mark.parametrize(
  "kind, shape, dtype, error, said",
  [
    (
      "flow",
      [24, 30, 3],
      "float32",
      ValueError,
      r"'flow', must be \[height, width, 2\], got shape \(24, 30, 3\).* is a \"mask\"",
    ),
    ("flow", [24, 30], "float32", ValueError, "got shape"),
    ("flow", [24, 30, 2], "int16", TypeError, "a floating dtype, got dtype int16"),
    ("flow", [12, 15, 2], "float32", ValueError, "must have the height and width of the image"),
    (
      "vectors",
      [24, 30, 5],
      "float32",
      ValueError,
      r"'vectors', must be \[height, width, 3\], .* got shape \(24, 30, 5\)\. Put anything else",
    ),
    ("vectors", [24, 30, 1], "float32", ValueError, r"tf.stack\(\[tf.cos\(angles\), tf.sin\(angles\)\], axis=-1\)"),
    ("vectors", [24, 30], "float32", ValueError, r"tf.stack\(\[tf.cos\(angles\), tf.sin\(angles\)\], axis=-1\)"),
    ("vectors", [24, 30, 3], "int16", TypeError, "a floating dtype, got dtype int16"),
    (
      "disparity",
      [24, 30, 2],
      "float32",
      ValueError,
      r"'disparity', must be \[height, width\] or \[height, width, 1\], got shape",
    ),
  ],
)
def test_bad_input(kind, shape, dtype, error, said):
  with pytest.raises(error, match=said):
    augment.compose([augment.resize((9, 9))], {1: kind})(noise(*SIZE, 3), np.zeros(shape, dtype))
  if len(shape) == 3 and shape[0] == 24 and dtype == "float32":
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"targets: it must be \[height, width"):
      run(["random_flip position=-1"], kind, tf.zeros(shape), [0])
