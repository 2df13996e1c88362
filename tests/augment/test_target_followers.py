"""A second image goes where the pixels of the first one go; splits and pipelines with all kinds of followers."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment import composition
from refurbish_tf.augment.policy_layer import PolicyLayer
from support import cases
from support.images import make_seeds, noise, window

SIZE = (24, 30)


def policy(name, parameter):
  return PolicyLayer("x", [(name, parameter)], [1])


# These layers move whole pixels. In a larger second image, the parts that `erasing` and `cutout` draw are larger.
WHOLE = {
  "crop": [augment.random_crop(padding=4)],
  "crop, reflected": [augment.random_crop(padding=5, padding_mode="reflect")],
  "crop to a size": [augment.random_crop((19, 40), padding=2, pad_if_needed=True)],
  "flip": [augment.random_flip("horizontal_and_vertical")],
  "transpose": [augment.random_transpose(1)],
  "center_crop, rotate90": [augment.center_crop(20), augment.random_rotate90()],
  "pad": [augment.pad((3, 1, 9, 6), 7)],
  "pad, edge": [augment.pad((2, 5), padding_mode="symmetric"), augment.pad(2, padding_mode="edge")],
  "pad, reflected": [
    augment.pad((0, 4, 3, 1), padding_mode="reflect"),
    augment.random_crop(padding=9, padding_mode="reflect"),
  ],
  "cutout, erasing": [augment.cutout(9), augment.random_erasing(0.9, value=9)],
  "translate": [policy("translate_x", 0.31), policy("translate_y", -0.23)],
  "move": [policy("move_y", 3), policy("move_x", -7)],
  "affine": [augment.random_affine(0, (0.3, 0.2))],
  "quarter turn": [augment.center_crop(20), augment.random_rotation((90, 90))],
  "deep crop": composition.flattened(
    [PolicyLayer("x", [("random_crop", 4)], [1]), PolicyLayer("x", [("random_cutout", 6)], [1])]
  ),
  "all": [
    augment.random_crop((20, 20), padding=6),
    augment.random_flip(),
    augment.cutout(5),
    augment.random_rotate90(),
    augment.pad(2),
  ],
}
BETWEEN = {
  "rotation": [augment.random_rotation(50)],
  "perspective": [augment.random_perspective(0.5, p=1)],
  "elastic": [augment.random_elastic()],
  "affine": [augment.random_affine(20, (0.2, 0.1), (0.8, 1.3), 10)],
  "shears": [policy("shear_x", 0.3), policy("shear_y", -0.2)],
  "resized_crop": [augment.random_resized_crop((20, 26), scale=(0.3, 1), antialias=True)],
  "resize": [augment.resize((33, 26))],
  "short side": [augment.resize(17)],
  "deep crop": [PolicyLayer("x", [("random_resized_crop", 0)], [1])],
  "all": [
    augment.random_affine(20),
    augment.random_resized_crop((20, 20), scale=(0.5, 1)),
    augment.random_perspective(0.3, p=0.7),
  ],
}
COLORS = {
  "jitter": [augment.color_jitter(0.5, 0.5, 0.5, 0.2)],
  "blur": [augment.gaussian_blur(5)],
  "normalize": [augment.normalize()],
  "some": [
    augment.random_grayscale(0.3),
    augment.random_solarize(100, 0.5),
    augment.random_apply([augment.gaussian_blur(3)], 0.5),
  ],
  "rand_augment": augment.rand_augment(2, 10),
  "auto_augment": augment.auto_augment("imagenet"),
  "deep_auto_augment": composition.flattened([augment.deep_auto_augment("imagenet")])[:3],
  "of tables": [policy("equalize", 0), policy("auto_contrast", 0), policy("contrast", 1.6), policy("sharpness", 1.7)],
}
EVERY = [*WHOLE.values(), *BETWEEN.values(), *COLORS.values()]


def enlarged(image, times):
  return np.repeat(np.repeat(image, times, -3), times, -2)


def called(fn, layers, *element, seed):
  return fn(*element, **({"seed": seed} if any(getattr(layer, "takes_seed", False) for layer in layers) else {}))


class TestImage:
  @pytest.mark.parametrize("layers", EVERY, ids=range(len(EVERY)))
  def test_an_image_of_the_same_size_is_augmented_as_if_alone(self, layers):
    """Equalize and auto-contrast use tables computed from each image's own pixels."""
    fn, alone = augment.compose(layers, {1: "image"}), augment.compose(layers)
    first, second = noise(*SIZE, 3), noise(*SIZE, 3) // 2 + np.uint8(40)
    for seed in make_seeds(cases.examples(5)):
      found = called(fn, layers, first, second, seed=seed)
      for image, expected in zip(
        found, (called(alone, layers, each, seed=seed) for each in (first, second)), strict=True
      ):
        assert image.dtype == expected.dtype
        np.testing.assert_array_equal(image, expected)

  @cases.each_value
  @pytest.mark.parametrize("name", WHOLE)
  @pytest.mark.parametrize("times", [2, 4, 3])
  def test_moves_are_multiplied_by_the_scale_of_a_larger_image(self, name, times):
    """For example, a padding of 4 becomes 16 if the second image is four times as large."""
    layers, small = WHOLE[name], noise(*SIZE, 3)
    fn, changed = augment.compose(layers, {1: "image"}), 0
    for seed in make_seeds(12):
      image, large = called(fn, layers, small, enlarged(small, times), seed=seed)
      np.testing.assert_array_equal(large, enlarged(image.numpy(), times))
      changed += not np.array_equal(image, small)
    assert changed > 5

  @pytest.mark.parametrize("name", BETWEEN)
  def test_each_place_in_a_larger_image_follows_the_first_image(self, name):
    """The pixels of the images encode their own place."""
    layers = BETWEEN[name]
    fn = augment.compose(layers, {1: "image"})

    def shaded(times):
      """The channels encode the row, the column, and the constant 30, which no layer uses outside the image."""
      y, x = np.meshgrid(*((np.arange(side * times) + 0.5) / times for side in SIZE), indexing="ij")
      return np.uint8(np.rint(30 + 7 * np.stack([y, x, np.zeros_like(x)], -1)))

    compared = 0
    for seed in make_seeds(cases.examples(20)):
      image, large = (each.numpy().astype(int) for each in called(fn, layers, shaded(1), shaded(4), seed=seed))
      assert large.shape == (4 * image.shape[0], 4 * image.shape[1], 3)
      blocks = large.reshape(image.shape[0], 4, image.shape[1], 4, 3)
      # Edges, where one of the images may be outside, are not compared.
      whole = np.all(blocks[..., 2] == 30, (1, 3)) & (image[..., 2] == 30)
      whole[[0, -1]] = whole[:, [0, -1]] = False
      difference = np.abs(blocks.mean((1, 3)) - image)[whole]
      assert difference.max(initial=0) <= 10  # Moving by one pixel changes a value by 7.
      compared += len(difference)
    assert compared > 2000

  def test_resizes_and_blurs_scale_with_a_larger_image(self):
    small, large = noise(*SIZE, 3), noise(96, 120, 3)
    crop = augment.compose([augment.random_resized_crop((10, 15), antialias=True)], {1: "image"})
    for seed in make_seeds(8):
      y, x, height, width = np.multiply(window(*SIZE, augment.seed_at(seed, 0)), 4)
      np.testing.assert_array_equal(
        crop(small, large, seed=seed)[1], augment.resize((40, 60))(large[y : y + height, x : x + width])
      )
    blur = augment.compose([augment.gaussian_blur(7, (2, 2))], {1: "image"})
    np.testing.assert_array_equal(blur(small, large, seed=[7, 0])[1], augment.gaussian_blur(25, (8, 8))(large, [7, 0]))
    for layer in COLORS["of tables"]:
      np.testing.assert_array_equal(
        augment.compose([layer], {1: "image"})(small, large, seed=[7, 0])[1], layer(large, [7, 0])
      )

  @pytest.mark.parametrize(
    "dtype, channels", [("uint8", 2), ("uint16", 1), ("int16", 5), ("float32", 20), ("bfloat16", 1), ("float16", 4)]
  )
  def test_any_dtype_and_number_of_channels(self, dtype, channels):
    layers, small = [augment.random_crop(padding=3), augment.random_flip()], noise(*SIZE, channels)
    for seed in make_seeds(4):
      _, found = augment.compose(layers, {1: "image"})(noise(*SIZE, 3), tf.cast(enlarged(small, 2), dtype), seed=seed)
      assert found.dtype == dtype
      np.testing.assert_array_equal(
        tf.cast(found, tf.uint8), enlarged(augment.compose(layers)(small, seed=seed).numpy(), 2)
      )

  def test_normalize_makes_floats_of_both(self):
    first, second = noise(*SIZE, 3), noise(48, 60, 3)
    for dtype in ("float32", "bfloat16", "float16"):
      layer = augment.normalize(dtype=dtype)
      for given in (second, np.float32(second / 255)):
        found = augment.compose([layer], {1: "image"})(first, given)
        assert found[0].dtype == found[1].dtype == dtype
        np.testing.assert_array_equal(found[1], layer(given))
    in_units = [augment.normalize(100, 50), augment.random_crop(padding=2)]
    found = augment.compose(in_units, {1: "image"})(first, second, seed=[7, 0])
    np.testing.assert_array_equal(found[0], augment.compose(in_units)(first, seed=[7, 0]))
    with pytest.raises(
      ValueError, match="'image', must have the dtype of its image, float32, because of a normalize .* got uint8"
    ):
      augment.compose(in_units, {1: "image"})(np.float32(first), second, seed=[7, 0])
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match="component 1, 'image', follows as an image: image of normalize must have values",
    ):
      augment.compose([augment.normalize()], {1: "image"})(first, np.float32(second))

  def test_has_noise_of_its_own(self):
    first = np.full([*SIZE, 3], 128, np.uint8)
    fn = augment.compose([augment.gaussian_noise(0, 0.1)], {1: "image", 2: "image"})
    made = fn(first, first, first, seed=[7, 0])
    np.testing.assert_array_equal(made[0], augment.compose([augment.gaussian_noise(0, 0.1)])(first, seed=[7, 0]))
    np.testing.assert_array_equal(made, fn(first, first, first, seed=[7, 0]))
    assert np.abs(np.corrcoef(np.reshape(made, [3, -1])) - np.eye(3)).max() < 0.1

  def test_batches_and_clips_equal_their_single_images(self):
    layers = [*COLORS["rand_augment"], *BETWEEN["resized_crop"], augment.random_flip(), augment.normalize()]
    small, large = noise(4, *SIZE, 3), noise(4, 72, 90, 3)
    batch = augment.compose(layers, {1: "image"})(small, large, seed=[7, 0])
    clip = augment.compose(layers, {1: "image"}, clips=True)(small, large, seed=[7, 0])
    for number in range(4):
      for made, seed in ((batch, augment.seed_at([7, 0], number)), (clip, [7, 0])):
        for each, expected in zip(
          made, augment.compose(layers, {1: "image"})(small[number], large[number], seed=seed), strict=True
        ):
          np.testing.assert_array_equal(each[number], expected)

  def test_static_shapes(self):
    layers = [augment.random_crop(16), augment.random_flip(), augment.resize((20, 10)), augment.normalize()]
    spec = lambda *shape: tf.TensorSpec(shape, tf.uint8)

    def made(layers, *specs):
      fn = augment.compose(layers, {1: "image"})
      return (
        tf.function(lambda *images: called(fn, layers, *images, seed=[7, 0]))
        .get_concrete_function(*specs)
        .structured_outputs[1]
      )

    assert made(layers, spec(24, 30, 3), spec(96, 120, 3)).shape == [80, 40, 3]
    assert made(layers, spec(24, None, 3), spec(96, None, 3)).shape.as_list() == [80, None, 3]
    assert made(layers, spec(None, None, 3), spec(96, None, 3)).shape.as_list() == [None, None, 3]
    assert made(layers[1:2], spec(None, None, 3), spec(96, 120, 1)).shape == [96, 120, 1]
    assert made(layers, spec(24, 30, 3), spec(96, 120, 3)).dtype == tf.float32

  @pytest.mark.parametrize(
    "second, error, said",
    [
      (
        noise(48, 30, 3),
        ValueError,
        r"must have the height and width of the image, \(24, 30\), or the same multiple of both, got shape",
      ),
      (noise(12, 15, 3), ValueError, "the smaller one is the image"),
      (noise(25, 31, 3), ValueError, "multiple"),
      (noise(48, 60), ValueError, r"must be \[height, width, channels\], got shape"),
      (noise(3, 48, 60), ValueError, "multiple"),
      (noise(48, 60, 3).astype(np.int64), TypeError, "must have the dtype of an image: uint8.* got dtype int64"),
      (
        noise(48, 60, 3).astype(np.float32),
        TypeError,
        "component 1, 'image', follows as an image: image of color_jitter must be uint8, got dtype float32",
      ),
      (noise(48, 60, 1), ValueError, "follows as an image: image of color_jitter must have 3 channels, got shape"),
    ],
  )
  def test_bad_input(self, second, error, said):
    layers = [augment.random_flip(), augment.color_jitter(0.2)]
    with pytest.raises(error, match=said):
      tf.data.Dataset.from_tensors((noise(*SIZE, 3), second)).refurbish(layers, targets={1: "image"})
    if second.ndim == 3 and second.dtype != np.int64:
      unknown = tf.data.Dataset.from_tensors((noise(*SIZE, 3), second)).map(
        lambda first, second: (
          tf.ensure_shape(tf.numpy_function(np.copy, [first], tf.uint8), [None] * 3),
          tf.ensure_shape(tf.numpy_function(np.copy, [second], second.dtype), [None] * 3),
        )
      )
      with pytest.raises((error, tf.errors.InvalidArgumentError), match="targets: the component 1, 'image', "):
        list(unknown.refurbish(layers, targets={1: "image"}))

  def test_refuses_sides_that_a_layer_does_not_support(self):
    fn = augment.compose([augment.resize((2, 20000))], {1: "image"})
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match="follows as an image: image of resize must have sides of at most 65535 pixels, got 8 x 80000",
    ):
      fn(noise(2, 3, 1), noise(8, 12, 1))
    turn = augment.compose([augment.random_rotation(9)], {1: "image"})
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match="image of random_rotation must have sides of at most 32767 pixels, got 4 x 40000",
    ):
      turn(noise(1, 10000, 1), noise(4, 40000, 1), seed=[7, 0])
    assert fn(noise(1, 1, 1), noise(3, 3, 1))[1].shape == [6, 60000, 1]

  @pytest.mark.parametrize("times", [1, 2])
  def test_a_second_image_follows_a_decoded_file(self, times):
    image = enlarged(noise(20, 25, 3), 4)
    for layer in (
      augment.decode_random_resized_crop(20, apply_exif_orientation=True),
      augment.decode(apply_exif_orientation=True),
      augment.decode((31, 20), apply_exif_orientation=False),
      augment.decode_random_resized_crop(apply_exif_orientation=True),
    ):
      fn = augment.compose([layer, augment.random_flip()], {1: "image"})
      for seed in make_seeds(4):
        first, second = fn(tf.io.encode_png(image), enlarged(image, times), seed=seed)
        assert second.shape == [times * first.shape[0], times * first.shape[1], 3]
        mean = tf.nn.avg_pool2d(tf.cast(second, tf.float32)[None], times, times, "VALID")[0]
        assert np.abs(mean - tf.cast(first, tf.float32)).mean() < 12
    with pytest.raises(
      tf.errors.InvalidArgumentError, match="component 1, 'image', must be .* 80 x 100, or the same multiple"
    ):
      fn(tf.io.encode_png(image), image[:, 1:], seed=[7, 0])
    own = augment.compose([lambda file: tf.io.decode_png(file, 3)], {1: "image"})
    assert own(tf.io.encode_png(image), enlarged(image, times))[1].shape == [80 * times, 100 * times, 3]
    unknown = tf.data.Dataset.from_tensors(tf.io.encode_png(image)).map(lambda file: (file, image[:, 1:]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="or the same multiple of both. Got both sizes"):
      list(unknown.map(own))

  def test_python_functions_get_the_second_image(self):
    swapped = augment.numpy_layer(lambda image, second, rng: {"image": image ^ 1, "second": second}, processes=0)
    small = noise(*SIZE, 3)
    image, second = augment.compose([swapped, augment.random_flip()], {1: "image"})(
      small, enlarged(small, 2), seed=[7, 0]
    )
    np.testing.assert_array_equal(second, enlarged(image.numpy() ^ 1, 2))

  @pytest.mark.parametrize(
    "layer",
    [
      tf.keras.layers.RandomBrightness(0.2),
      functools.partial(tf.image.stateless_random_contrast, lower=0.5, upper=0.9),
    ],
  )
  def test_random_functions_of_the_first_image_alone_cause_a_warning(self, layer):
    with pytest.warns(
      rtf.PipelineWarning, match="at position 1 gets only the first image, and leaves the component 'next'"
    ):
      augment.compose([tf.identity, layer], {"next": "image"})
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      augment.compose([layer], {"next": "mask"})
      augment.compose([lambda image: tf.cast(image, tf.uint8), tf.keras.layers.Rescaling(1)], {"next": "image"})


@pytest.mark.parametrize(
  "layers",
  [
    [*WHOLE["crop"], *COLORS["rand_augment"], *BETWEEN["resized_crop"], augment.random_flip(), augment.normalize()],
    [
      *WHOLE["pad, reflected"],
      *BETWEEN["affine"],
      *BETWEEN["perspective"],
      *COLORS["some"],
      *WHOLE["center_crop, rotate90"],
    ],
  ],
  ids=range(2),
)
def test_any_split_gives_the_same_bytes(layers):
  kinds = {"large": "image", "next": "image", "flow": "flow", "half": "flow", "limbs": "vectors"}
  whole = augment.compose(layers, kinds)
  for number, seed in enumerate(make_seeds(8)):
    flow = np.random.default_rng(number).normal(size=[*SIZE, 2]).astype(np.float32)
    element = {
      "image": noise(*SIZE, 3),
      "next": noise(*SIZE, 3),
      "large": noise(48, 60, 3),
      "flow": flow,
      "half": np.float16(flow),
    }
    element["limbs"] = np.concatenate([flow, flow[::-1]], -1)
    expected = whole(element, seed=seed)
    for at in range(1, len(layers)):
      partial, final = augment.split(layers, at, kinds)
      found = called(final, layers[at:], called(partial, layers[:at], element, seed=seed), seed=seed)
      for name in element:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name], err_msg=f"{name}, split at {at}")


class TestPipelines:
  """Pipelines of native layers only."""

  def test_super_resolution(self):
    small = np.stack([noise(20, 26, 3) // (1 + number) for number in range(12)])
    source = tf.data.Dataset.from_tensor_slices({"image": small, "high": enlarged(small, 4)})
    stage = source.refurbish(
      [augment.random_crop(16), augment.color_jitter(0.3, 0.3, 0.3, 0.1)],
      [augment.random_flip(), augment.random_rotate90(), augment.normalize()],
      r=2,
      targets={"high": "image"},
      seed=7,
      num_parallel_calls=3,
    )
    assert stage.element_spec["high"] == tf.TensorSpec([64, 64, 3], tf.float32)
    seen = set()
    for _ in range(2):
      for batch in stage.batch(4).as_numpy_iterator():
        # Contrast is relative to the mean, which does not change if each pixel is repeated.
        np.testing.assert_array_equal(batch["high"], enlarged(batch["image"], 4))
        seen.update(image.tobytes() for image in batch["image"])
    assert len(seen) > 20

  def test_optical_flow(self):
    """The next frame is the first one moved right and down. Where both are known, the flow leads to the same pixel."""
    frames = np.stack([np.kron(noise(10, 12, 3) // (1 + number), np.ones([6, 6, 1], np.uint8)) for number in range(8)])
    flow = np.broadcast_to(np.float32([4, 2]), [8, 60, 72, 2])
    source = tf.data.Dataset.from_tensor_slices(
      {"image": frames, "next": np.roll(frames, (2, 4), (1, 2)), "flow": flow, "known": np.ones([8, 60, 72], np.uint8)}
    )
    for final in ([augment.random_affine(10, (0.05, 0.05), (0.9, 1.1))], [augment.resize((60, 90))]):
      stage = source.refurbish(
        [augment.random_crop(54)],
        [augment.random_flip(), *final],
        r=2,
        targets={"next": "image", "flow": "flow", "known": "mask"},
        seed=7,
      )
      signs = set()
      for element in [*stage.as_numpy_iterator(), *stage.as_numpy_iterator()]:
        height, width = element["known"].shape
        y, x = np.mgrid[12 : height - 12, 12 : width - 12]
        vectors = element["flow"][y, x]
        signs.add(bool(vectors[0, 0, 0] > 0))
        to_x, to_y = (np.rint(np.stack([x, y], -1) + vectors).astype(int)).transpose(2, 0, 1)
        known = element["known"][y, x] > 0
        same = np.abs(element["next"][to_y, to_x].astype(int) - element["image"][y, x]).max(-1) < 12
        stays = np.abs(element["next"][y, x].astype(int) - element["image"][y, x]).max(-1) < 12
        assert same[known].mean() > 0.6 > stays[known].mean() + 0.1
      assert signs == {True, False}
