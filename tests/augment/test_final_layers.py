"""The layers of a final augmentation, compared with their reference in NumPy: draws and pixels, alone and in sequences."""
import functools
import itertools

from hypothesis import example, given, settings, strategies as st
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases
from support import final_reference as reference
from support.datasets import with_options
from support.images import chi_square, make_seeds
from support.waiting import ends
from support.words import word

MEAN, STD = (0.4914, 0.4822, 0.4465, 0.5), (0.247, 0.243, 0.262, 0.3)
DTYPES = ("float32", "bfloat16", "float16")
MODES = ("horizontal", "vertical", "horizontal_and_vertical")
SIZES = [(1, 1), (1, 7), (1, 64), (9, 1), (2, 5), (5, 3), (7, 17), (13, 33), (32, 32), (3, 131)]
int32s = st.integers(-2**31, 2**31 - 1)
MANY = settings(max_examples=cases.examples(30), derandomize=True)
SOME = settings(max_examples=cases.examples(12), derandomize=True)


def built(layer):
  """The layer that corresponds to the reference."""
  return {
      "random_crop": lambda: augment.random_crop(
          layer.to, padding=layer.padding, padding_mode=layer.mode, pad_if_needed=layer.to is not None),
      "random_flip": lambda: augment.random_flip(layer.mode, layer.p),
      "cutout": lambda: augment.cutout(layer.side),
      "random_resized_crop": lambda: augment.random_resized_crop(
          (layer.height, layer.width), layer.scale, layer.ratio, layer.antialias),
      "resize": lambda: augment.resize((layer.height, layer.width), layer.antialias),
      "normalize": lambda: augment.normalize(layer.mean, layer.std, layer.dtype, max_pixel_value=layer.max_pixel_value),
  }[layer.name]()


def noise(*shape):
  """Noise with all values of uint8, if there is room for them."""
  return np.random.default_rng(sum(shape)).permutation(np.arange(np.prod(shape)) % 256).astype(np.uint8).reshape(shape)


def assert_same(actual, expected):
  """Compares bits, whatever the dtype."""
  actual = np.asarray(actual)
  assert actual.dtype == expected.dtype and actual.shape == expected.shape
  assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()


@st.composite
def sequences(draw, height, width, channels, resizing=False):
  """Sequences of layers that an image of this size allows."""
  layers = []
  for _ in range(draw(st.integers(1, 4))):
    kinds = ["crop", "flip", "cutout", "crop to a size"] + (["reflected"] if min(height, width) > 1 else [])
    kinds += ["resized crop", "resized"] * resizing
    kind = draw(st.sampled_from(kinds))
    if kind == "crop":
      layers.append(reference.Crop(draw(st.integers(0, 5))))
    elif kind == "reflected":
      layers.append(reference.Crop(draw(st.integers(0, min(6, height - 1, width - 1))), "reflect"))
    elif kind == "flip":
      layers.append(reference.Flip(draw(st.sampled_from(MODES)), draw(st.sampled_from([0.5, 0.9]))))
    elif kind == "crop to a size":
      to, padding = (draw(st.integers(1, 20)), draw(st.integers(1, 20))), draw(st.integers(0, 3))
      reflects = all(padding + max(0, least - side - 2 * padding) < side for least, side in zip(to, (height, width)))
      layers.append(reference.Crop(padding, draw(st.sampled_from(["constant", "reflect"])) if reflects else "constant", to))
      height, width = to
    elif kind == "cutout":
      layers.append(reference.Cutout(draw(st.integers(1, 9))))
    else:
      height, width = draw(st.integers(1, 20)), draw(st.integers(1, 20))
      layer = reference.Resize if kind == "resized" else reference.ResizedCrop
      layers.append(layer(height, width, antialias=draw(st.booleans())))
  normal = draw(st.sampled_from(["", *DTYPES]))
  if normal:
    several = channels if draw(st.booleans()) else 1
    layers.append(reference.Normalize(MEAN[:several], STD[:several], normal))
  return layers


@st.composite
def problems(draw, **options):
  """An image, layers for it, and a seed."""
  height, width = draw(st.sampled_from(SIZES))
  channels = draw(st.sampled_from([1, 3, 4]))
  layers = draw(sequences(height, width, channels, **options))
  return noise(height, width, channels), layers, draw(st.tuples(int32s, int32s))


def of_any_number_of_threads(function, value):
  """Applies `function` in a dataset with different numbers of threads, and checks that the results are the same."""
  made = []
  for threads in (1, 2, 7):
    dataset = tf.data.Dataset.from_tensors(value).map(function)
    made += with_options(
        dataset, "threading", private_threadpool_size=threads, max_intra_op_parallelism=threads).as_numpy_iterator()
  assert_same(made[1], made[0])
  assert_same(made[2], made[0])
  return made[0]


def takes_seed(layers):
  return any(layer.size for layer in layers)


def called(function, layers, image, seed):
  return function(image, seed=seed) if takes_seed(layers) else function(image)


class TestSeeds:

  def test_are_the_same_on_every_machine(self):
    """Written down once, so that reference and layers cannot change together."""
    for seed, index, expected in (([7, 0], 0, [1442818155, -214055235]), ([-1, 5], 2**40, [1873043972, 481458598])):
      assert reference.seed_at(seed, index).tolist() == expected
      assert augment.seed_at(seed, index).numpy().tolist() == expected
    assert [word([7, 0], k) for k in range(3)] == [432010989, 229190106, 1559807924]

  @SOME
  @given(seed=st.one_of(st.tuples(int32s, int32s), st.tuples(*[st.integers(-2**63, 2**63 - 1)] * 2)),
         index=st.integers(0, 2**63 - 1))
  def test_equal_the_reference(self, seed, index):
    given_seed = np.array(seed, np.int64)
    assert_same(augment.seed_at(given_seed, tf.constant(index, tf.int64)), reference.seed_at(seed, index))

  @pytest.mark.parametrize("dtype", [tf.uint8, tf.int16, tf.int32, tf.uint32, tf.int64, tf.uint64])
  def test_of_several_positions(self, dtype):
    expected = np.stack([reference.seed_at([3, -4], index) for index in (0, 1, 2, 100)])
    indices = tf.constant([0, 1, 2, 100], dtype)
    assert_same(augment.seed_at([3, -4], indices), expected)
    traced = tf.function(augment.seed_at).get_concrete_function(
        tf.TensorSpec([2], tf.int64), tf.TensorSpec([None], dtype))
    assert traced.structured_outputs.shape.as_list() == [None, 2]
    assert_same(traced(tf.constant([3, -4], tf.int64), indices), expected)
    assert augment.seed_at([3, -4], tf.zeros([0], dtype)).shape == [0, 2]

  def test_int32_and_int64_are_the_same(self):
    for seed in ([7, 0], [-2**31, -1]):
      layer = augment.random_crop(padding=4)
      assert_same(layer.draws(np.array(seed, np.int64)), layer.draws(np.array(seed, np.int32)).numpy())
      assert_same(augment.seed_at(np.array(seed, np.int64), 3), reference.seed_at(seed, 3))

  def test_do_not_meet(self):
    """Seeds of consecutive positions and seeds: all different, with half of their bits set."""
    seeds = np.concatenate([augment.seed_at(seed, tf.range(200)) for seed in make_seeds(100)])
    assert len(np.unique(seeds, axis=0)) == 20_000
    set_bits = np.unpackbits(seeds.view(np.uint8), axis=1).mean(axis=0)
    assert np.abs(set_bits - 0.5).max() < 5 * 0.5 / 20_000**0.5


class TestDraws:

  LAYERS = [
      reference.Crop(0), reference.Crop(4), reference.Crop(16_383), reference.Crop(3, to=(5, 9)), reference.Flip(),
      *(reference.Flip(mode, p) for mode in MODES[1:] for p in (0, 0.3, 1)), reference.Cutout(5),
      reference.ResizedCrop(3, 4), reference.Resize(3, 4), reference.Normalize(MEAN[:3], STD[:3])]

  @pytest.mark.parametrize("layer", LAYERS)
  def test_equal_the_reference(self, layer):
    made = built(layer)
    for seed in (*make_seeds(20), [-1, 2**31 - 1], [-2**31, 5]):
      assert_same(made.draws(seed), np.array(layer.draws(seed), np.int32))

  @pytest.mark.parametrize("layer", LAYERS)
  @pytest.mark.parametrize("batch_size", [0, 1, 37])
  def test_of_a_batch_are_those_of_the_seeds_of_its_images(self, layer, batch_size):
    expected = [layer.draws(reference.seed_at([7, 1], image)) for image in range(batch_size)]
    expected = np.array(expected, np.int32).reshape(batch_size, layer.size)
    assert_same(built(layer).draws([7, 1], batch_size), expected)
    drawn = tf.function(built(layer).draws)(tf.constant([7, 1]), tf.constant(batch_size))
    assert_same(drawn, expected)

  def test_do_not_depend_on_threads(self):
    """With more images than one thread would take."""
    layer = augment.random_resized_crop(4)
    drawn = of_any_number_of_threads(lambda seed: layer.draws(seed, 20_000), np.array([7, 1]))
    for image in (0, 1, 9_999, 19_999):
      assert_same(drawn[image], layer.draws(reference.seed_at([7, 1], image)).numpy())

  @pytest.mark.parametrize("padding", cases.some([3, 1], 1))
  def test_each_place_and_direction_is_as_likely(self, padding):
    """For the images of a batch and for consecutive seeds. Whole outcomes are counted, so crop and flip are independent."""
    fn = augment.compose([augment.random_crop(padding=padding), augment.random_flip()])
    count = 200 * 2 * (2 * padding + 1)**2
    by_seed = np.array([reference.composed_draws([reference.Crop(padding), reference.Flip()], seed)
                        for seed in make_seeds(count)])
    for drawn in (fn.draws([7, 0], count).numpy(), by_seed):
      places, counts = np.unique(drawn, axis=0, return_counts=True)
      assert len(places) == 2 * (2 * padding + 1)**2
      degrees = len(places) - 1
      assert chi_square(counts) < degrees + 4 * (2 * degrees)**0.5

  def test_fractions_are_uniform_and_independent(self):
    drawn = augment.random_resized_crop(8).draws([11, 3], 20_000).numpy()
    assert drawn.min() >= 0
    for column in drawn.T:
      assert chi_square(np.bincount(column >> 25, minlength=64)) < 63 + 4 * (2 * 63)**0.5
      assert chi_square(np.bincount(column & 63, minlength=64)) < 63 + 4 * (2 * 63)**0.5
    correlation = np.corrcoef(drawn.T.astype(np.float64)) - np.eye(22)
    assert np.abs(correlation).max() < 5 / 20_000**0.5


class TestPixels:

  @MANY
  @given(problem=problems())
  def test_of_layers_in_a_row(self, problem):
    image, layers, seed = problem
    expected = reference.composed(layers, image, seed)
    assert_same(called(augment.compose([built(layer) for layer in layers]), layers, image, seed), expected)

  @MANY
  @given(problem=problems(), batch_size=st.integers(0, 4))
  def test_of_each_image_of_a_batch(self, problem, batch_size):
    image, layers, seed = problem
    images = image + np.arange(batch_size, dtype=np.uint8)[:, np.newaxis, np.newaxis, np.newaxis]
    of_nothing = reference.composed(layers, image, seed)[np.newaxis][:0]
    expected = [reference.composed(layers, each, reference.seed_at(seed, number)) for number, each in enumerate(images)]
    expected = np.stack(expected) if batch_size else of_nothing
    assert_same(called(augment.compose([built(layer) for layer in layers]), layers, images, seed), expected)

  @SOME
  @given(problem=problems(resizing=True), batched=st.booleans(), known=st.booleans())
  def test_in_a_graph_as_eagerly(self, problem, batched, known):
    image, layers, seed = problem
    image = np.stack([image, 255 - image]) if batched else image
    fn = augment.compose([built(layer) for layer in layers])
    spec = tf.TensorSpec(image.shape if known else [None] * image.ndim, tf.uint8)
    traced = tf.function(lambda image, seed: called(fn, layers, image, seed), autograph=False).get_concrete_function(
        spec, tf.TensorSpec([2], tf.int32))
    actual = traced(tf.constant(image), tf.constant(seed, tf.int32))
    assert actual.shape.is_compatible_with(traced.structured_outputs.shape)
    assert_same(actual, called(fn, layers, image, seed).numpy())

  @MANY
  @given(problem=problems(resizing=True), data=st.data())
  def test_of_a_row_are_those_of_its_parts(self, problem, data):
    image, layers, seed = problem
    made = [built(layer) for layer in layers]
    at = data.draw(st.integers(1, len(layers)))
    whole = called(augment.compose(made), layers, image, seed)
    by_hand = image
    for position, (layer, one) in enumerate(zip(layers, made, strict=True)):
      by_hand = called(one, [layer], by_hand, augment.seed_at(seed, position))
    assert_same(whole, by_hand.numpy())
    partial_fn, final_fn = augment.split(made, at)
    parts = called(partial_fn, layers[:at], image, seed)
    if final_fn:
      parts = called(final_fn, layers[at:], parts, seed)
    assert_same(whole, parts.numpy())

  @pytest.mark.parametrize("first", [reference.Crop(2), reference.Flip(), reference.Cutout(9)])
  def test_of_a_box_of_what_layers_have_made(self, first):
    """Only the rows and columns in the box are made."""
    layers = [first, reference.ResizedCrop(5, 4, scale=(0.05, 0.2))]
    image = noise(23, 20, 3)
    made = [built(layer) for layer in layers]
    for seed in make_seeds(10):
      by_hand = image
      for position, layer in enumerate(made):
        by_hand = layer(by_hand, seed=augment.seed_at(seed, position))
      assert_same(augment.compose(made)(image, seed=seed), by_hand.numpy())

  @pytest.mark.parametrize("channels", [1, 3, 4])
  @pytest.mark.parametrize("dtype", DTYPES)
  def test_every_value_is_normalized_alike_wherever_it_stands(self, channels, dtype):
    """Vector code takes several values at once, and the rest at the end one by one."""
    layer = reference.Normalize(MEAN[:channels], STD[:channels], dtype)
    for width in (1, 2, 5, 11, 16, 257):
      image = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, np.newaxis, np.newaxis], [256, width, channels])
      assert_same(built(layer)(image), layer.pixels(image, []))

  @pytest.mark.parametrize("mode", ["constant", "reflect"])
  @pytest.mark.parametrize("padding, to, places", [
      (4, None, None), (0, (3, 4), 9), (1, (3, 6), 15), (0, (8, 9), 16), (1, (8, 4), 10), (0, (5, 6), 1)])
  def test_every_place_of_a_crop(self, mode, padding, to, places):
    """Padded by what is missing at both ends, as torchvision pads, there are more places than one."""
    layer, image = reference.Crop(padding, mode, to), noise(5, 6, 3)
    draws = np.array(list(itertools.product(range(0, 2**31, 2**31 // 60) if to else range(9), repeat=2)), np.int32)
    expected = np.stack([layer.pixels(image, drawn) for drawn in draws])
    assert_same(built(layer).pixels(np.stack([image] * len(draws)), draws), expected)
    assert to is None or len({each.tobytes() for each in expected}) == places

  def test_padding_far_beyond_the_image(self):
    layer = reference.Crop(300)
    image = noise(2, 3, 3)
    for draws in ([0, 0], [300, 300], [301, 299], [600, 600], [302, 300], [299, 303]):
      assert_same(built(layer).pixels(image, draws), layer.pixels(image, draws))
    furthest = augment.random_crop(padding=16_383)
    assert_same(furthest.pixels(image, [16_383, 16_383]), image)
    assert not furthest.pixels(image, [0, 32_766]).numpy().any()

  @pytest.mark.parametrize("side", [1, 2, 5, 40, 2**31 - 1])
  def test_cutout_everywhere(self, side):
    layer = reference.Cutout(side)
    image = noise(4, 7, 3)
    steps = [0, 2**29 - 1, 2**29, 2**30, 2**31 - 1]
    for draws in itertools.product(steps, repeat=2):
      assert_same(built(layer).pixels(image, draws), layer.pixels(image, draws))

  def test_a_large_batch_is_that_of_any_number_of_threads(self):
    """Larger than what one thread takes."""
    layers = [reference.Crop(4), reference.Flip(), reference.Normalize(MEAN[:3], STD[:3])]
    fn = augment.compose([built(layer) for layer in layers])
    images = noise(24, 224, 224, 3)
    made = of_any_number_of_threads(lambda images: fn(images, seed=[7, 1]), images)
    assert_same(fn(images, seed=[7, 1]), made)
    for number in (0, 1, 11, 23):
      assert_same(made[number], reference.composed(layers, images[number], reference.seed_at([7, 1], number)))

  def test_what_it_is_given_stays_as_it_was(self):
    """Though the output could be written over the input."""
    fn = augment.compose([augment.random_crop(padding=4), augment.random_flip(), augment.cutout(3)])
    image = noise(9, 8, 3)

    @tf.function
    def both(seed):
      given_image = tf.constant(image) + tf.cast(seed[0] * 0, tf.uint8)
      return fn(given_image, seed=seed), given_image

    for seed in make_seeds(20):
      made, given_image = both(tf.constant(seed))
      assert_same(given_image, image)
      assert_same(made, fn(image, seed=seed).numpy())


class TestResizedCrop:

  @MANY
  @given(height=st.integers(1, 40), width=st.integers(1, 40), channels=st.sampled_from([1, 3, 4]),
         to_height=st.integers(1, 40), to_width=st.integers(1, 40), antialias=st.booleans(),
         scale=st.sampled_from([(0.08, 1.0), (1.0, 1.0), (0.001, 0.01), (0.5, 0.9)]),
         ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (5.0, 9.0), (0.01, 0.2)]), seed=st.tuples(int32s, int32s))
  @example(height=1, width=37, channels=3, to_height=5, to_width=5, antialias=False, scale=(0.08, 1.0),
           ratio=(3 / 4, 4 / 3), seed=(1, 2))
  def test_is_within_one_grey_level_of_tensorflow(
      self, height, width, channels, to_height, to_width, antialias, scale, ratio, seed):
    layer = reference.ResizedCrop(to_height, to_width, scale, ratio, antialias)
    image = noise(height, width, channels)
    actual = built(layer)(image, seed).numpy().astype(int)
    expected = layer.pixels(image, layer.draws(seed))
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1

  def test_takes_the_box_that_is_drawn(self):
    """Each pixel encodes its position, and without a change of size the result is a copy."""
    image = np.stack(np.broadcast_arrays(np.arange(9)[:, np.newaxis], np.arange(13), 0), axis=-1).astype(np.uint8)
    for seed in make_seeds(200):
      drawn = reference.ResizedCrop(1, 1).draws(seed)
      y, x, height, width = reference.ResizedCrop(1, 1).box(9, 13, drawn)
      made = augment.random_resized_crop((height, width))(image, seed)
      assert_same(made, image[y:y + height, x:x + width])

  @pytest.mark.parametrize("height, width, expected", [
      (1, 40, (0, 19, 1, 1)), (40, 1, (19, 0, 1, 1)), (6, 30, (0, 11, 6, 8))])
  def test_falls_back_to_the_middle(self, height, width, expected):
    """No box of at least this share of the area is that close to a square."""
    layer = reference.ResizedCrop(expected[2], expected[3], scale=(1.0, 1.0))
    assert layer.box(height, width, layer.draws([7, 0])) == expected
    image = noise(height, width, 3)
    y, x, h, w = expected
    assert_same(built(layer)(image, [7, 0]), image[y:y + h, x:x + w])

  def test_size_may_be_one_number(self):
    image = noise(20, 30, 3)
    square = augment.random_resized_crop((5, 5))(image, [7, 0])
    assert_same(augment.random_resized_crop(5)(image, [7, 0]), square.numpy())


class TestComposition:

  LAYERS = [reference.Crop(2, to=(7, 5)), reference.Flip(), reference.Cutout(4), reference.Normalize(MEAN[:3], STD[:3])]

  def test_is_one_op(self):
    """For small images the pixels are not what takes the time."""
    for at, count in ((4, 1), (3, 2), (2, 2)):
      made = [built(layer) for layer in self.LAYERS]
      fn = augment.compose(made) if at == 4 else _interrupted(made, at)
      spec = tf.TensorSpec([32, 32, 3], tf.uint8), tf.TensorSpec([2], tf.int32)
      ops = _ops(lambda image, seed, fn=fn: fn(image, seed=seed), spec)
      ours = [op for op in ops if op.startswith("RefurbishTf>")]
      # After the third layer none draws.
      last = "RefurbishTf>ImagePixels" if at == 3 else "RefurbishTf>ImageLayers"
      assert [op for op in ours if "Image" in op] == ["RefurbishTf>ImageLayers", last][2 - count:]
      if at == 4:
        assert set(ops) <= {*ours, "Placeholder", "Identity", "NoOp"}

  @pytest.mark.parametrize("shape", [[32, 32, 3], [None, None, 3], [8, 32, 32, 3], [None, None, None, None]])
  def test_of_images_and_batches_of_any_shape_too(self, shape):
    fn = augment.compose([built(layer) for layer in self.LAYERS])
    ops = _ops(lambda image, seed: fn(image, seed=seed), (tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int32)))
    assert [op for op in ops if op.startswith("RefurbishTf>")] == ["RefurbishTf>ImageLayers"]

  def test_eager_calls_tell_layers_apart_that_differ_little(self):
    """TensorFlow's kernel cache confuses strings of 80 characters that begin and end alike."""
    image = noise(3, 4, 4)
    for mean in (0.111111111111, 0.222222222222, 0.333333333333):
      layer = reference.Normalize((0.123456789012345, mean, 0.5, 0.123456789012345), (0.123456789012345,) * 4)
      assert_same(built(layer)(image), layer.pixels(image, []))
    for number in cases.some(range(40), 14):
      layers = [reference.Cutout(1 + (other == number)) for other in range(40)]
      draws = [2**30] * 80
      fn = augment.compose([built(layer) for layer in layers])
      assert_same(fn.pixels(image, draws), reference.composed_pixels(layers, image, draws))
    for size in ((3, 4), (5, 6)):
      assert augment.random_resized_crop(size, (0.123456789, 0.987654321))(image, [7, 0]).shape == [*size, 4]

  def test_draws_of_nothing_take_no_time(self):
    """If each image of a batch took a step, this would take permanently, and fail."""
    drawn = []
    layer = augment.normalize(0.5, 0.5)
    assert ends(lambda: drawn.append(layer.draws([1, 2], 2**62)), 60)
    assert [draws.shape for draws in drawn] == [[2**62, 0]]

  def test_draws_and_pixels_are_two_steps(self):
    """So that the draws can be sent to another device."""
    fn = augment.compose([built(layer) for layer in self.LAYERS])
    image, seed = noise(9, 8, 3), [7, 3]
    draws = fn.draws(seed)
    assert_same(draws, np.array(reference.composed_draws(self.LAYERS, seed), np.int32))
    assert_same(fn.pixels(image, draws), fn(image, seed=seed).numpy())
    images = np.stack([image] * 3)
    assert fn.draws(seed, 3).shape == [3, 5]
    assert_same(fn.pixels(images, fn.draws(seed, 3)), fn(images, seed=seed).numpy())
    with tf.Graph().as_default():
      assert fn.draws(tf.constant(seed), 3).shape == [3, 5]
      assert fn.draws(tf.constant(seed)).shape == [5]

  def test_layers_of_others_get_the_seeds_of_their_places(self):
    noted = []

    def note(image, seed):
      noted.append(seed.numpy().tolist())
      return image

    made = [built(layer) for layer in self.LAYERS]
    image, seed = noise(9, 8, 3), [7, 3]
    actual = augment.compose([note, made[0], note, made[1]])(image, seed=seed)
    assert noted == [reference.seed_at(seed, 0).tolist(), reference.seed_at(seed, 2).tolist()]
    crop, flip, _, _ = self.LAYERS
    expected = crop.pixels(image, crop.draws(reference.seed_at(seed, 1)))
    assert_same(actual, flip.pixels(expected, flip.draws(reference.seed_at(seed, 3))))


def _interrupted(layers, at):
  """The layers with another function in between."""
  return augment.compose([*layers[:at], functools.partial(tf.ensure_shape, shape=[None, None, 3]), *layers[at:]])


def _ops(function, spec):
  """The types of the nodes of the traced graph."""
  graph = tf.function(function, autograph=False).get_concrete_function(*spec).graph.as_graph_def()
  return [node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes]
