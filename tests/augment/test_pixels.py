"""Images of any pixels: several channels, 16 bits and floats, in the layers that ignore colours."""

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases
from support.images import assert_same
from support.moved_pixels import CHANNELS, DTYPES, noise

# The warning says that small images with many channels are usually a mistake. Here they are intended.
pytestmark = pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")
SIZES = [(1, 1), (1, 7), (9, 1), (7, 17), (20, 33)]
SEED = [7, 3]


# The `max_pixel_value` of dtypes that require one.
UNITS = {np.uint16: 65535, np.int16: 400.5}


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalize_is_one_product_and_one_sum_in_float32(dtype, channels):
  """The mean and the deviation are fractions of the largest pixel value, or are in the image's own units."""
  mean, std = np.linspace(0.1, 0.6, channels), np.linspace(0.2, 0.5, channels)
  unit = UNITS.get(dtype)
  for size in [*cases.some(SIZES, 2), *[(500, 333)] * (channels == 5)]:
    image = noise(dtype, *size, channels)
    for (low, high), divisor, options in (
      ((mean, std), unit or (255 if dtype == np.uint8 else 1), {"max_pixel_value": unit}),
      ((-30, 58.4), 1, {}),
    ):
      expected = np.float32(image) * np.float32(1 / (divisor * np.float64(high))) + np.float32(-np.float64(low) / high)
      for made in ("float32", "bfloat16", "float16"):
        layer = augment.normalize(np.asarray(low).tolist(), np.asarray(high).tolist(), made, **options)
        assert_same(layer(image), expected.astype(tf.as_dtype(made).as_numpy_dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_are_one_operation(dtype):
  """This includes layers after a normalisation, which accept its floats, and batches."""
  unit = UNITS.get(dtype)
  layers = [
    augment.random_crop(padding=2),
    augment.normalize(0.4, 0.2, max_pixel_value=unit),
    augment.random_flip(),
    augment.resize((9, 7)),
    augment.cutout(3),
  ]
  fn = augment.compose(layers)
  images = noise(dtype, 6, 12, 15, 5)
  graph = tf.function(lambda image, seed: fn(image, seed=seed), autograph=False).get_concrete_function(
    tf.TensorSpec([None, None, None, 5], dtype), tf.TensorSpec([2], tf.int32)
  )
  assert [op.type for op in graph.graph.get_operations() if "Refurbish" in op.type] == ["RefurbishTf>ImageLayers"]
  made = graph(tf.constant(images), tf.constant(SEED))
  for number, (image, one) in enumerate(zip(images, made, strict=True)):
    for position, layer in enumerate(layers):
      image = (
        layer(image, augment.seed_at(augment.seed_at(SEED, number), position)) if layer.takes_seed else layer(image)
      )
    assert_same(one, image)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize(
  "size, to_size",
  [((348, 348), (224, 224)), ((37, 53), (224, 131)), ((9, 17), (9, 17)), ((1, 1), (3, 5)), ((300, 200), (2, 3))],
)
def test_resize_is_that_of_tensorflow(size, to_size, antialias):
  for channels in (3, 13):
    values = np.random.default_rng(7).random([*size, channels], np.float32)
    for image, most in (
      (values, 1e-5),
      ((values * 65535).astype(np.uint16), 65535 / 255 / 255),
      ((values * 9999 - 5000).astype(np.int16), 0.6),
    ):
      made = augment.resize(to_size, antialias)(image)
      expected = tf.image.resize(image, to_size, antialias=antialias)
      assert made.dtype == image.dtype
      np.testing.assert_allclose(tf.cast(made, tf.float64), tf.cast(expected, tf.float64), rtol=0, atol=most)


def test_resize_to_the_same_size_is_a_copy():
  for dtype in DTYPES:
    for antialias in (False, True):
      image = noise(dtype, 13, 18, 5)
      assert_same(augment.resize((13, 18), antialias)(image), image)


def test_nan_and_inf_stay_in_place():
  image = noise(np.float32, 13, 11, 2)
  image[4, 3, 1], image[0, 5, 0], image[7, 8, 0] = np.nan, np.nan, np.inf
  assert_same(augment.random_flip()(image, [1, 0]), image[:, ::-1])
  # If the size does not change, neighbours have no weight.
  for antialias in (False, True):
    np.testing.assert_array_equal(augment.resize((13, 11), antialias)(image), image)
  # In the halved image, only a pixel that covers NaN or infinity becomes NaN or infinity.
  halved = augment.resize((6, 5), antialias=False)(image[:12, :10]).numpy()
  assert np.argwhere(np.isnan(halved)).tolist() == [[0, 2, 0], [2, 1, 1]] and np.argwhere(
    np.isinf(halved)
  ).tolist() == [[3, 4, 0]]


def test_small_floats_can_only_be_moved():
  """Layers that only move pixels accept them, including in a chain with `normalize`, which makes small floats, and
  after that chain."""
  for dtype in (tf.bfloat16, tf.float16):
    image = tf.cast(noise(np.float32, 7, 9, 3), dtype)
    np.testing.assert_array_equal(augment.random_flip()(image, [1, 0]), image[:, ::-1])
    for layer in (augment.resize((4, 4)), augment.normalize()):
      with pytest.raises(TypeError, match=f"got dtype {dtype.name}. Put it before the layer that returns this dtype"):
        layer(image)


def test_normalizing_twice_is_refused():
  with pytest.raises(ValueError, match="image of normalize must not be normalized already.*Leave one out"):
    augment.compose([augment.normalize(), augment.random_flip(), augment.normalize()])(
      noise(np.uint8, 8, 8, 3), seed=SEED
    )


def test_remedy_fits_the_image_that_the_layer_gets():
  with pytest.raises(
    TypeError, match="rand_augment must be uint8, got dtype float32. Put it before any conversion to float"
  ):
    augment.compose([augment.normalize(), *augment.rand_augment(1)])(noise(np.uint8, 8, 8, 3), seed=SEED)
  with pytest.raises(ValueError, match=r"3 channels, got shape \(20, 20, 13\). .*three channels: image\[..., :3\]"):
    augment.rand_augment(1)[0](noise(np.uint8, 20, 20, 13), SEED)


def test_ragged_and_sparse_images_are_refused():
  ragged = tf.ragged.constant([[[[1]], [[2], [3]]]], dtype=tf.uint8)
  with pytest.raises(TypeError, match="dense tensor, got a RaggedTensor.*to_tensor"):
    augment.random_flip()(ragged, SEED)


def test_layers_work_in_a_graph_that_is_run_later():
  image = noise(np.uint16, 8, 9, 5)
  with tf.Graph().as_default() as graph:
    made = augment.compose([augment.random_crop(padding=2), augment.normalize(1000, 250)])(
      tf.constant(image), seed=SEED
    )
    with pytest.raises(TypeError, match="must be uint8, got dtype uint16"):
      augment.rand_augment(1)[0](tf.constant(image[..., :3]), SEED)
  with tf.compat.v1.Session(graph=graph) as session:
    found = session.run(made)
  assert_same(found, augment.compose([augment.random_crop(padding=2), augment.normalize(1000, 250)])(image, seed=SEED))
