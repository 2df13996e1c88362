"""Bad input of the layers of a final augmentation is refused at tracing if possible, and otherwise at run time."""

import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment

LAYERS = {
  "random_crop": augment.random_crop(padding=2),
  "random_crop reflected": augment.random_crop(padding=2, padding_mode="reflect"),
  "random_flip": augment.random_flip(),
  "cutout": augment.cutout(3),
  "random_resized_crop": augment.random_resized_crop((5, 6)),
  "resize": augment.resize((5, 6)),
  "normalize": augment.normalize(0.5, 0.25),
}
SEEDLESS = ("resize", "normalize")
COMPOSED = augment.compose(
  [augment.random_crop(padding=2), augment.random_flip(), augment.normalize([0.5] * 3, [0.25] * 3)]
)
IMAGE = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
INT32 = 2**31 - 1


def _applied(name):
  layer = LAYERS[name]
  return layer if name in SEEDLESS else lambda image: layer(image, seed=[7, 0])


@pytest.mark.parametrize("name", LAYERS)
class TestEveryLayer:
  @pytest.mark.parametrize(
    "image, error, said",
    [
      (tf.zeros([4, 4, 3], tf.float64), TypeError, "uint8, uint16, int16 or float32, got dtype float64"),
      (tf.zeros([2, 4, 4, 3], tf.complex64), TypeError, "complex64.*tf.abs"),
      (tf.zeros([4, 4, 3], tf.string), TypeError, "string.*decode"),
      (tf.zeros([4, 4], tf.uint8), ValueError, r"shape \(4, 4\)"),
      (tf.zeros([1, 2, 4, 4, 3], tf.uint8), ValueError, r"shape \(1, 2, 4, 4, 3\)"),
      (tf.zeros([4, 4, 65], tf.uint8), ValueError, r"1 to 64 channels.*shape \(4, 4, 65\)"),
      (tf.zeros([0, 4, 3], tf.uint8), ValueError, r"at least one pixel.*shape \(0, 4, 3\)"),
    ],
  )
  def test_refuses_images(self, name, image, error, said):
    expected = f"image of {name.split()[0]} .*{said}"
    with pytest.raises(error, match=expected):
      _applied(name)(image)
    with pytest.raises(error, match=expected):
      tf.data.Dataset.from_tensors(image).map(_applied(name))

  @pytest.mark.parametrize("rank", [None, 3, 4])
  def test_refuses_images_at_run_time_if_shapes_are_unknown(self, name, rank):
    """The images have unknown dimensions of a known rank, or an unknown rank (None)."""
    spec = tf.TensorSpec(None if rank is None else [None] * rank, tf.uint8)
    traced = tf.function(_applied(name), autograph=False).get_concrete_function(spec)
    for shape in ([4, 4], [4, 4, 65], [3, 4, 4, 0], [1, 2, 4, 4, 3], [0, 4, 3], [4, 0, 3]):
      if rank in (None, len(shape)):
        with pytest.raises(tf.errors.InvalidArgumentError):
          traced(tf.zeros(shape, tf.uint8))

  @pytest.mark.parametrize(
    "seed, error, said",
    [(7, ValueError, r"shape \(\)"), ([1, 2, 3], ValueError, r"shape \(3,\)"), ([0.5, 1.5], TypeError, "float32")],
  )
  def test_refuses_a_seed(self, name, seed, error, said):
    if name in SEEDLESS:
      return
    with pytest.raises(error, match=f"seed of {name.split()[0]} .*{said}"):
      LAYERS[name](IMAGE, seed)

  def test_refuses_a_seed_at_run_time_if_its_shape_is_unknown(self, name):
    traced = tf.function(LAYERS[name].draws, autograph=False).get_concrete_function(tf.TensorSpec(None, tf.int32))
    for seed in (tf.constant(7), tf.constant([1, 2, 3])):
      with pytest.raises(tf.errors.InvalidArgumentError):
        traced(seed)

  def test_refuses_a_batch_size_below_0(self, name):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
      LAYERS[name].draws([7, 0], -1)
    traced = tf.function(LAYERS[name].draws, autograph=False).get_concrete_function(
      tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int64)
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
      traced(tf.constant([7, 0]), tf.constant(-1, tf.int64))

  def test_draws_of_another_shape(self, name):
    """The draws have more or fewer numbers, more or fewer images, or another rank."""
    if name in SEEDLESS:
      return  # A layer without a seed needs no draws and accepts any.
    layer = LAYERS[name]
    number = layer.draws([7, 0]).shape[0]
    traced = tf.function(layer.pixels, autograph=False).get_concrete_function(
      tf.TensorSpec(None, tf.uint8), tf.TensorSpec(None, tf.int32)
    )
    batch = np.stack([IMAGE] * 3)
    wrong = [
      (IMAGE, [number + 1]),
      (IMAGE, [1, number]),
      (IMAGE, []),
      (batch, [number]),
      (batch, [2, number]),
      (batch, [4, number]),
      (batch, [3, number + 1]),
      (batch, [3, number, 1]),
      (batch, [0, number]),
    ]
    wrong += [(IMAGE, [number - 1]), (IMAGE, [0]), (batch, [3, number - 1])]
    for images, shape in wrong:
      draws = tf.zeros(shape, tf.int32)
      with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        layer.pixels(images, draws)
      with pytest.raises(tf.errors.InvalidArgumentError):
        traced(tf.constant(images), draws)

  @pytest.mark.parametrize("drawn", [-1, -INT32 - 1, -5, 5, 2**16, 2**30, INT32])
  def test_draws_out_of_range(self, name, drawn):
    """The result is an error, or an image of valid pixels, never other memory."""
    layer = LAYERS[name]
    for images in (IMAGE, np.stack([IMAGE] * 3)):
      drawn_shape = layer.draws([7, 0], *([3] if images.ndim == 4 else [])).shape
      for place in range(max(1, drawn_shape[-1])):
        draws = np.zeros(drawn_shape, np.int32)
        draws[..., place : place + 1] = drawn
        try:
          made = layer.pixels(images, draws)
        except tf.errors.InvalidArgumentError:
          continue
        expected = (5, 6, 3)
        assert made.shape == [*images.shape[:-3], *expected]
        if made.dtype == tf.uint8 and name not in ("random_resized_crop", "resize"):
          # All values of this image are different, so values from other memory would show.
          assert np.isin(made, [0, *IMAGE.flat]).all()

  def test_draws_of_another_dtype(self, name):
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
      LAYERS[name].pixels(IMAGE, tf.zeros(LAYERS[name].draws([7, 0]).shape, tf.float32))


@pytest.mark.parametrize(
  "layer, dtype, shape, error, said",
  [
    (augment.color_jitter(0.4), np.uint16, [4, 4, 3], TypeError, "uint8, got dtype uint16.*tf.uint8"),
    (augment.color_jitter(0.4), np.uint8, [4, 4, 1], ValueError, r"3 channels, got shape \(4, 4, 1\)"),
    (augment.random_solarize(), np.uint8, [4, 4, 2], ValueError, r"1 or 3 channels, got shape \(4, 4, 2\)"),
    (augment.random_grayscale(), np.uint8, [4, 4, 4], ValueError, r"1 or 3 channels, got shape \(4, 4, 4\)"),
    (augment.random_erasing(value=(1, 2, 3)), np.uint8, [4, 4, 1], ValueError, "3 channels"),
    (augment.random_affine(5), np.float32, [4, 4, 3], TypeError, "uint8"),
    (
      augment.random_affine(5),
      np.uint8,
      [1, 40_000, 1],
      ValueError,
      "sides of at most 32767 pixels, got 1 x 40000. Crop or resize",
    ),
  ],
)
def test_refuses_pixels_that_the_layer_does_not_support(layer, dtype, shape, error, said):
  with pytest.raises(error, match=f"image of {layer.__name__} must (be|have) {said}"):
    layer(np.zeros(shape, dtype), [7, 0])


def test_errors_of_composed_layers_name_the_layer():
  with pytest.raises(ValueError, match="image of random_crop "):
    COMPOSED(np.zeros([4, 4, 65], np.uint8), seed=[7, 0])
  with pytest.raises(TypeError, match="image of random_crop .*float64"):
    COMPOSED(np.zeros([4, 4, 3]), seed=[7, 0])
  with pytest.raises(
    ValueError, match=r"image of normalize must have the channels of mean and std, 3, got shape \(4, 4, 1\)"
  ):
    COMPOSED(np.zeros([4, 4, 1], np.uint8), seed=[7, 0])


class TestTooSmall:
  @pytest.mark.parametrize(
    "shape, arguments, said",
    [
      *(
        (shape, {"padding": 3, "padding_mode": "reflect"}, "sides above the padding, 3, ")
        for shape in ((3, 9, 3), (9, 3, 3), (1, 1, 3), (4, 3, 9, 1))
      ),
      (
        (5, 9, 3),
        {"size": (8, 9), "padding": 1},
        "a height of at least 6 pixels for a crop to 8 x 9 with padding=1, got 5. Pass pad_if_needed=True",
      ),
      (
        (2, 6, 6, 3),
        {"size": (8, 9), "padding": 1},
        "a width of at least 7 pixels for a crop to 8 x 9 with padding=1, got 6. Pass pad_if_needed=True",
      ),
    ],
  )
  def test_for_a_crop(self, shape, arguments, said):
    layer, images = augment.random_crop(**arguments), np.zeros(shape, np.uint8)
    with pytest.raises(ValueError, match=f"image of random_crop must have {said}"):
      layer(images, [7, 0])
    with pytest.raises(ValueError, match=f"image of random_crop must have {said}"):
      tf.data.Dataset.from_tensors(images).map(lambda images: layer(images, [7, 0]))
    traced = tf.function(layer, autograph=False).get_concrete_function(
      tf.TensorSpec([None] * len(shape), tf.uint8), tf.TensorSpec([2], tf.int32)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
      traced(tf.constant(images), tf.constant([7, 0]))

  def test_to_be_reflected_after_a_resized_crop(self):
    fn = augment.compose([augment.random_resized_crop(3), augment.random_crop(padding=3, padding_mode="reflect")])
    with pytest.raises(ValueError, match="image of random_crop must have sides above the padding, 3, "):
      fn(np.zeros([9, 9, 3], np.uint8), seed=[7, 0])

  def test_zero_padding_has_no_minimum_size(self):
    assert augment.random_crop(padding=3)(np.zeros([1, 1, 3], np.uint8), [7, 0]).shape == [1, 1, 3]

  def test_to_be_reflected(self):
    layer = augment.random_crop(16, padding_mode="reflect", pad_if_needed=True)
    assert layer(np.zeros([9, 20, 1], np.uint8), [7, 0]).shape == (16, 16, 1)
    with pytest.raises(
      ValueError, match="sides above the padding, 8, for padding_mode='reflect', got 8 x 20 pixels.*'constant'"
    ):
      layer(np.zeros([8, 20, 1], np.uint8), [7, 0])


class TestArguments:
  @pytest.mark.parametrize(
    "layer, arguments, error, said",
    [
      ("random_crop", {"size": 0}, ValueError, "size .* got 0"),
      ("random_crop", {"padding": 4, "pad_if_needed": True}, ValueError, "pad_if_needed=True needs a size, got size"),
      ("random_crop", {"padding": 4, "padding_mode": "zeros"}, ValueError, "padding_mode .*'constant' or 'reflect'"),
      *(
        ("random_crop", {"padding": padding, "padding_mode": mode}, ValueError, f"padding .*{padding}")
        for padding in (-1, 16_384)
        for mode in ("constant", "reflect")
      ),
      ("random_flip", {"mode": "both"}, ValueError, "mode .*'horizontal_and_vertical', got 'both'"),
      ("random_flip", {"p": 1.5}, ValueError, "p .*1.5"),
      *(("cutout", {"size": size}, ValueError, "size ") for size in (0, -3, 2**31)),
      ("random_resized_crop", {"size": (3, 0)}, ValueError, r"size .*\(3, 0\)"),
      ("random_resized_crop", {"size": 10**6}, ValueError, "size .*1000000"),
      ("random_resized_crop", {"size": 8, "scale": (0, 1)}, ValueError, "scale "),
      ("random_resized_crop", {"size": 8, "scale": (0.5, 0.2)}, ValueError, "scale "),
      ("random_resized_crop", {"size": 8, "ratio": (-1, 1)}, ValueError, "ratio "),
      ("random_resized_crop", {"size": 8, "ratio": (2, 1)}, ValueError, "ratio "),
    ],
  )
  def test_layers_refuse_bad_arguments(self, layer, arguments, error, said):
    with pytest.raises(error, match=f"^{said.replace(' ', f' of {layer} ', 1)}"):
      getattr(augment, layer)(**arguments)

  def test_repr_and_outcomes_describe_the_layers(self):
    """`advise` uses the outcomes. It counts the places of a crop to a size itself, because they depend on the image."""
    for layer, shown, outcomes in (
      (
        augment.random_crop(8, padding=2),
        "random_crop((8, 8), padding=2, padding_mode='constant', pad_if_needed=False)",
        None,
      ),
      (augment.random_crop(padding=4), "random_crop(padding=4, padding_mode='constant')", (81, 81)),
      (augment.random_flip(), "random_flip()", (2, 2)),
      (augment.random_flip("vertical", 0.25), "random_flip('vertical', p=0.25)", (2, 1.6)),
      (augment.random_flip("horizontal_and_vertical"), "random_flip('horizontal_and_vertical', p=0.5)", (4, 4)),
      (augment.resize((224, 224)), "resize((224, 224), antialias=True)", (1, 1)),
    ):
      assert (repr(layer), layer.outcomes) == (shown, outcomes)

  @pytest.mark.parametrize(
    "mean, std, error, said",
    [
      (0.5, 0, ValueError, "^std .*above 0"),
      (0.5, math.inf, ValueError, "^std .*finite"),
      ((0, math.inf, 0), 1, ValueError, "^mean .*finite"),
      (0.5, 1e-320, ValueError, "^std "),
      (1e30, 1e-30, ValueError, "^mean / std "),
      ((0.1, 0.2, 0.3), (0.1,) * 4, ValueError, "mean and std .*channels.* 3 and 4"),
      ((0.1,) * 65, 1, ValueError, "^mean .*channels.* 65"),
    ],
  )
  def test_normalize_refuses_a_bad_mean_or_std(self, mean, std, error, said):
    with pytest.raises(error, match=said):
      augment.normalize(mean, std)

  @pytest.mark.parametrize("dtype", ["uint8", "float64", "float", None, 3, np.int32, tf.float64])
  def test_normalize_refuses_unsupported_dtypes(self, dtype):
    with pytest.raises((TypeError, ValueError), match="^dtype of normalize .*float32, bfloat16, float16"):
      augment.normalize(0.5, 0.25, dtype)

  @pytest.mark.parametrize("dtype", [tf.float16, np.float16, "float16"])
  def test_normalize_accepts_dtypes_in_any_form(self, dtype):
    assert augment.normalize(0.5, 0.25, dtype)(IMAGE).dtype == tf.float16

  @pytest.mark.parametrize("channels, images", [(3, 1), (3, 4), (4, 3)])
  def test_normalize_refuses_a_mean_of_the_wrong_length(self, channels, images):
    layer = augment.normalize([0.5] * channels, [0.25] * channels)
    image = np.zeros([4, 4, images], np.uint8)
    with pytest.raises(ValueError, match=f"image of normalize must have the channels of mean and std, {channels}, got"):
      layer(image)
    traced = tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec([None] * 3, tf.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError):
      traced(tf.constant(image))

  def test_color_layers_after_normalize_are_refused(self):
    """The output of normalize is not uint8. Layers that ignore colours accept float32, but resize accepts no smaller
    floats."""
    normalized = [augment.normalize(0.5, 0.25), augment.random_flip()]
    assert augment.compose([*normalized, augment.resize((2, 2))])(IMAGE, seed=[7, 0]).dtype == tf.float32
    with pytest.raises(TypeError, match="image of rand_augment must be uint8, got dtype float32"):
      augment.compose([*normalized, *augment.rand_augment(1)])(IMAGE, seed=[7, 0])
    with pytest.raises(TypeError, match="image of resize must be uint8, uint16, int16 or float32, got dtype bfloat16"):
      augment.compose([augment.normalize(0.5, 0.25, "bfloat16"), augment.resize((2, 2))])(IMAGE)


def test_an_image_of_unknown_rank():
  images = tf.data.Dataset.from_generator(lambda: iter([[[[1], [2]]]]), output_types=tf.uint8)
  assert next(iter(images.map(lambda image: augment.random_crop(padding=0)(image, [7, 0])))).shape == [1, 2, 1]
  with pytest.raises(
    tf.errors.InvalidArgumentError, match="It must be .height, width, channels. if its rank is unknown"
  ):
    next(iter(images.batch(2).map(lambda batch: augment.random_crop(padding=0)(batch, [7, 0]))))
