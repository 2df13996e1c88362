"""Images of any pixels: several channels, 16 bits and floats, in the layers that know no colours."""
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases
from support import final_reference as reference

# Small images of many channels are most often meant otherwise; not here.
pytestmark = pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")
DTYPES = (np.uint8, np.uint16, np.int16, np.float32)
CHANNELS = (1, 2, 3, 4, 5, 13, 64)
SIZES = [(1, 1), (1, 7), (9, 1), (7, 17), (20, 33)]
SEED = [7, 3]


def noise(dtype, *shape):
  generator = np.random.default_rng(sum(shape))
  if dtype == np.float32:
    return generator.normal(size=shape).astype(np.float32)
  limits = np.iinfo(dtype)
  return generator.integers(limits.min, limits.max + 1, shape, dtype)


# What becomes 1. Floats of any size, and bytes, need no number.
UNITS = {np.uint16: 65535, np.int16: 400.5}


def pairs(dtype, channels, size):
  """Layers, each with its reference."""
  mean, std = (np.linspace(low, high, channels).tolist() for low, high in ((0.1, 0.6), (0.2, 0.5)))
  unit = UNITS.get(dtype)
  made = [
      (augment.random_crop(padding=3), reference.Crop(3)), (augment.random_flip(), reference.Flip()),
      (augment.cutout(4), reference.Cutout(4)), (augment.normalize(-30, 58.4), reference.Normalize(-30, 58.4)),
      *((augment.normalize(*given, max_pixel_value=unit), reference.Normalize(*given, max_pixel_value=unit)) for given in (
          (mean, std), (0.5, 0.25, "bfloat16"), (mean, std, "float16")))]
  if min(size) > 1:
    made.append((augment.random_crop(padding=min(size) - 1, padding_mode="reflect"), reference.Crop(min(size) - 1, "reflect")))
  for antialias in (False, True):
    made += [
        (augment.resize((6, 11), antialias), reference.Resize(6, 11, antialias=antialias)),
        (augment.random_resized_crop((5, 8), antialias=antialias), reference.ResizedCrop(5, 8, antialias=antialias))]
  return made


def assert_same(made, expected, ulp=0):
  """Compares bits; `ulp` is by how much a value may differ."""
  made = np.asarray(made)
  assert made.dtype == expected.dtype and made.shape == expected.shape
  if ulp:
    assert np.abs(made.astype(int) - expected.astype(int)).max() <= ulp
  else:
    assert np.ascontiguousarray(made).tobytes() == np.ascontiguousarray(expected).tobytes()


def check(layer, expected, image):
  made = layer(image, SEED) if layer.takes_seed else layer(image)
  fixed_point = image.dtype == np.uint8 and expected.name in ("resize", "random_resized_crop")
  assert_same(made, expected.pixels(image, expected.draws(SEED)), ulp=int(fixed_point))


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_do_as_their_reference(dtype, channels):
  for size in cases.some(SIZES, 2):
    for layer, expected in pairs(dtype, channels, size):
      check(layer, expected, noise(dtype, *size, channels))


@pytest.mark.parametrize("dtype, channels", [(np.uint16, 5), (np.float32, 3), (np.int16, 13), (np.uint8, 64)])
def test_of_a_large_image(dtype, channels):
  image = noise(dtype, 500, 333, channels)
  for layer, expected in pairs(dtype, channels, (4, 4)):
    check(layer, expected, image)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_are_one_operation(dtype):
  """Also after a normalisation, whose floats go on, and in a batch."""
  unit = UNITS.get(dtype)
  layers = [augment.random_crop(padding=2), augment.normalize(0.4, 0.2, max_pixel_value=unit), augment.random_flip(), augment.resize((9, 7)),
            augment.cutout(3)]
  expected = [reference.Crop(2), reference.Normalize(0.4, 0.2, max_pixel_value=unit), reference.Flip(), reference.Resize(9, 7),
              reference.Cutout(3)]
  fn = augment.compose(layers)
  images = noise(dtype, 6, 12, 15, 5)
  graph = tf.function(lambda image, seed: fn(image, seed=seed), autograph=False).get_concrete_function(
      tf.TensorSpec([None, None, None, 5], dtype), tf.TensorSpec([2], tf.int32))
  assert [op.type for op in graph.graph.get_operations() if "Refurbish" in op.type] == ["RefurbishTf>ImageLayers"]
  made = graph(tf.constant(images), tf.constant(SEED))
  for number, (image, one) in enumerate(zip(images, made, strict=True)):
    assert_same(one, reference.composed(expected, image, reference.seed_at(SEED, number)))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size, to_size", [
    ((348, 348), (224, 224)), ((37, 53), (224, 131)), ((9, 17), (9, 17)), ((1, 1), (3, 5)), ((300, 200), (2, 3))])
def test_resize_is_that_of_tensorflow(size, to_size, antialias):
  for channels in (3, 13):
    values = np.random.default_rng(7).random([*size, channels], np.float32)
    for image, most in ((values, 1e-5), ((values * 65535).astype(np.uint16), 65535 / 255 / 255)):
      made = augment.resize(to_size, antialias)(image)
      expected = tf.image.resize(image, to_size, antialias=antialias)
      assert made.dtype == image.dtype
      np.testing.assert_allclose(tf.cast(made, tf.float64), tf.cast(expected, tf.float64), rtol=0, atol=most)


def test_to_the_same_size_is_a_copy():
  for dtype in DTYPES:
    for antialias in (False, True):
      image = noise(dtype, 13, 18, 5)
      assert_same(augment.resize((13, 18), antialias)(image), image)


def test_what_is_no_number_stays_where_it_is():
  image = noise(np.float32, 13, 11, 2)
  image[4, 3, 1], image[7, 8, 0] = np.nan, np.inf
  # With digits that a rounding would carry into the sign, in what vectors take and in what is left at the end.
  image[[0, 12], [5, 10], 0] = np.uint32(0x7fffffff).view(np.float32)
  none = np.isnan(image)
  assert_same(augment.random_flip()(image, [1, 0]), image[:, ::-1])
  np.testing.assert_array_equal(np.isnan(augment.normalize(0.5, 0.5, max_pixel_value=1)(image)), none)
  for dtype in ("bfloat16", "float16"):
    np.testing.assert_array_equal(np.isnan(np.float32(augment.normalize(0.5, 0.5, dtype, max_pixel_value=1)(image))), none)
  # To the same size, neighbours have no weight.
  for antialias in (False, True):
    np.testing.assert_array_equal(augment.resize((13, 11), antialias)(image), image)
  # Of the halved image, only the pixel that it is a part of.
  halved = augment.resize((6, 5), antialias=False)(image[:12, :10]).numpy()
  assert np.argwhere(np.isnan(halved)).tolist() == [[0, 2, 0], [2, 1, 1]] and np.argwhere(np.isinf(halved)).tolist() == [[3, 4, 0]]


def test_colours_are_of_bytes():
  """Policies say what they want, and what to do."""
  for policy in ([*augment.rand_augment(1)], augment.auto_augment("cifar10"), augment.deep_auto_augment("cifar10")):
    fn = augment.compose([augment.random_flip(), *policy])
    for dtype in DTYPES[1:]:
      with pytest.raises(TypeError, match=f"must be uint8, got dtype {np.dtype(dtype).name}. .*tf.uint8"):
        fn(noise(dtype, 8, 8, 3), seed=SEED)
    with pytest.raises(ValueError, match=r"must have 3 channels, got shape \(8, 8, 5\)"):
      fn(noise(np.uint8, 8, 8, 5), seed=SEED)


def test_small_floats_are_moved_and_no_more():
  """In one chain with `normalize`, which makes them, and after it."""
  for dtype in (tf.bfloat16, tf.float16):
    image = tf.cast(noise(np.float32, 7, 9, 3), dtype)
    np.testing.assert_array_equal(augment.random_flip()(image, [1, 0]), image[:, ::-1])
    for layer in (augment.resize((4, 4)), augment.normalize()):
      with pytest.raises(TypeError, match=f"got dtype {dtype.name}. Put it before what makes that of it"):
        layer(image)


def test_normalized_is_normalized():
  with pytest.raises(ValueError, match="image of normalize must not be normalized already.*Leave one out"):
    augment.compose([augment.normalize(), augment.random_flip(), augment.normalize()])(noise(np.uint8, 8, 8, 3), seed=SEED)


def test_what_to_do_is_said_of_the_image_that_the_layer_gets():
  with pytest.raises(TypeError, match="rand_augment must be uint8, got dtype float32. Put it before any conversion to float"):
    augment.compose([augment.normalize(), *augment.rand_augment(1)])(noise(np.uint8, 8, 8, 3), seed=SEED)
  with pytest.raises(ValueError, match=r"3 channels, got shape \(20, 20, 13\). Do it .*image\[..., :3\]"):
    augment.rand_augment(1)[0](noise(np.uint8, 20, 20, 13), SEED)


def test_of_what_is_not_dense():
  ragged = tf.ragged.constant([[[[1]], [[2], [3]]]], dtype=tf.uint8)
  with pytest.raises(TypeError, match="dense tensor, got a RaggedTensor.*to_tensor"):
    augment.random_flip()(ragged, SEED)


def test_in_a_graph_that_is_run_later():
  image = noise(np.uint16, 8, 9, 5)
  with tf.Graph().as_default() as graph:
    made = augment.compose([augment.random_crop(padding=2), augment.normalize(1000, 250)])(tf.constant(image), seed=SEED)
    with pytest.raises(TypeError, match="must be uint8, got dtype uint16"):
      augment.rand_augment(1)[0](tf.constant(image[..., :3]), SEED)
  with tf.compat.v1.Session(graph=graph) as session:
    assert_same(session.run(made), reference.composed([reference.Crop(2), reference.Normalize(1000, 250)], image, SEED))
