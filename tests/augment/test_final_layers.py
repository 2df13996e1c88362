"""The layers of a final augmentation: draws and pixels, alone and in sequences, of images and of batches."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases, words
from support.datasets import with_options
from support.images import assert_same, chi_square, make_seeds, window
from support.waiting import ends

MEAN, STD = (0.4914, 0.4822, 0.4465, 0.5), (0.247, 0.243, 0.262, 0.3)
MODES = ("horizontal", "vertical", "horizontal_and_vertical")


def noise(*shape):
  """Noise with all values of uint8, if there is room for them."""
  return np.random.default_rng(sum(shape)).permutation(np.arange(np.prod(shape)) % 256).astype(np.uint8).reshape(shape)


def of_any_number_of_threads(function, value):
  """Applies `function` in a dataset with different numbers of threads, and checks that the results are the same."""
  made = []
  for threads in (1, 2, 7):
    dataset = tf.data.Dataset.from_tensors(value).map(function)
    made += with_options(
      dataset, "threading", private_threadpool_size=threads, max_intra_op_parallelism=threads
    ).as_numpy_iterator()
  assert_same(made[1], made[0])
  assert_same(made[2], made[0])
  return made[0]


class TestSeeds:
  def test_are_the_same_on_every_machine(self):
    for seed, index, expected in (([7, 0], 0, [1442818155, -214055235]), ([-1, 5], 2**40, [1873043972, 481458598])):
      assert words.seed_at(seed, index).tolist() == augment.seed_at(seed, index).numpy().tolist() == expected
      assert augment.seed_at(np.array(seed, np.int64), index).numpy().tolist() == expected
    assert [words.word([7, 0], k) for k in range(3)] == [432010989, 229190106, 1559807924]

  @pytest.mark.parametrize("dtype", [tf.uint8, tf.int16, tf.int32, tf.uint32, tf.int64, tf.uint64])
  def test_a_vector_of_positions_gives_a_seed_for_each(self, dtype):
    expected = np.stack([augment.seed_at([3, -4], index) for index in (0, 1, 2, 100)])
    indices = tf.constant([0, 1, 2, 100], dtype)
    assert_same(augment.seed_at([3, -4], indices), expected)
    traced = tf.function(augment.seed_at).get_concrete_function(
      tf.TensorSpec([2], tf.int64), tf.TensorSpec([None], dtype)
    )
    assert traced.structured_outputs.shape.as_list() == [None, 2]
    assert_same(traced(tf.constant([3, -4], tf.int64), indices), expected)
    assert augment.seed_at([3, -4], tf.zeros([0], dtype)).shape == [0, 2]

  def test_are_all_different(self):
    """The seeds for all pairs of seed and position differ from each other and from the given seeds, and half of their
    bits are set."""
    seeds = np.concatenate([augment.seed_at(seed, tf.range(200)) for seed in make_seeds(100)])
    assert len(np.unique([*seeds, *make_seeds(100)], axis=0)) == 20_100
    set_bits = np.unpackbits(seeds.view(np.uint8), axis=1).mean(axis=0)
    assert np.abs(set_bits - 0.5).max() < 5 * 0.5 / 20_000**0.5


class TestDraws:
  LAYERS = [
    augment.random_crop(padding=16_383),
    augment.random_crop((5, 9), padding=3),
    augment.random_flip(p=0.3),
    augment.random_flip("horizontal_and_vertical"),
    augment.cutout(5),
    augment.random_resized_crop((3, 4)),
    augment.resize((3, 4)),
  ]

  @pytest.mark.parametrize("layer", LAYERS)
  @pytest.mark.parametrize("batch_size", [0, 1, 37])
  def test_batch_draws_equal_those_of_its_images_seeds(self, layer, batch_size):
    expected = [layer.draws(augment.seed_at([7, 1], image)) for image in range(batch_size)]
    expected = np.array(expected, np.int32).reshape(batch_size, *layer.draws([7, 1]).shape)
    for seed in ([7, 1], np.int64([7, 1])):
      assert_same(layer.draws(seed, batch_size), expected)
    assert_same(tf.function(layer.draws)(tf.constant([7, 1]), tf.constant(batch_size)), expected)

  def test_do_not_depend_on_threads(self):
    """There are more images than one thread handles."""
    layer = augment.random_resized_crop(4)
    drawn = of_any_number_of_threads(lambda seed: layer.draws(seed, 20_000), np.array([7, 1]))
    for image in (0, 1, 9_999, 19_999):
      assert_same(drawn[image], layer.draws(augment.seed_at([7, 1], image)))

  @pytest.mark.parametrize("padding", cases.some([3, 1], 1))
  def test_all_places_and_directions_are_equally_likely(self, padding):
    """This holds for the images of a batch and for consecutive seeds. The outcomes of both layers are counted together,
    so crop and flip must be independent."""
    fn = augment.compose([augment.random_crop(padding=padding), augment.random_flip()])
    count = 200 * 2 * (2 * padding + 1) ** 2
    for drawn in (fn.draws([7, 0], count).numpy(), np.array([fn.draws(seed) for seed in make_seeds(count)])):
      places, counts = np.unique(drawn, axis=0, return_counts=True)
      assert len(places) == 2 * (2 * padding + 1) ** 2
      degrees = len(places) - 1
      assert chi_square(counts) < degrees + 4 * (2 * degrees) ** 0.5

  def test_flips_have_the_given_probability(self):
    for mode, p in itertools.product(MODES, (0, 0.3, 1)):
      drawn = augment.random_flip(mode, p).draws([7, 0], 4000).numpy()
      assert set(np.unique(drawn)) <= {0, 1} and np.abs(drawn.mean(0) - p).max() <= 0.03 * (0 < p < 1)

  def test_fractions_are_uniform_and_independent(self):
    drawn = augment.random_resized_crop(8).draws([11, 3], 20_000).numpy()
    assert drawn.min() >= 0
    for column in drawn.T:
      assert chi_square(np.bincount(column >> 25, minlength=64)) < 63 + 4 * (2 * 63) ** 0.5
      assert chi_square(np.bincount(column & 63, minlength=64)) < 63 + 4 * (2 * 63) ** 0.5
    correlation = np.corrcoef(drawn.T.astype(np.float64)) - np.eye(22)
    assert np.abs(correlation).max() < 5 / 20_000**0.5


class TestPixels:
  @pytest.mark.parametrize("mode", ["constant", "reflect"])
  @pytest.mark.parametrize(
    "padding, to, places",
    [(4, None, None), (0, (3, 4), 9), (1, (3, 6), 15), (0, (8, 9), 16), (1, (8, 4), 10), (0, (5, 6), 1)],
  )
  def test_every_place_of_a_crop(self, mode, padding, to, places):
    """If an image is too small, each of its ends is padded by all of the missing pixels, as in torchvision. So there
    are several places."""
    image = noise(5, 6, 3)
    height, width = to or image.shape[:2]
    around = [padding + max(0, least - side - 2 * padding) for least, side in zip((height, width), image.shape)]
    padded = np.pad(image, [*((each, each) for each in around), (0, 0)], mode)
    draws = np.array(list(itertools.product(range(0, 2**31, 2**31 // 60) if to else range(9), repeat=2)), np.int32)
    corners = draws * (np.array(padded.shape[:2], np.int64) - [height, width] + 1) >> 31 if to else draws
    expected = np.stack([padded[y : y + height, x : x + width] for y, x in corners])
    layer = augment.random_crop(to, padding=padding, padding_mode=mode, pad_if_needed=to is not None)
    assert_same(layer.pixels(np.stack([image] * len(draws)), draws), expected)
    assert to is None or len({each.tobytes() for each in expected}) == places

  def test_padding_far_beyond_the_image(self):
    image, padded = noise(2, 3, 3), np.pad(noise(2, 3, 3), [(300, 300), (300, 300), (0, 0)])
    for y, x in ([0, 0], [300, 300], [301, 299], [600, 600], [302, 300], [299, 303]):
      assert_same(augment.random_crop(padding=300).pixels(image, [y, x]), padded[y : y + 2, x : x + 3])
    furthest = augment.random_crop(padding=16_383)
    assert_same(furthest.pixels(image, [16_383, 16_383]), image)
    assert not furthest.pixels(image, [0, 32_766]).numpy().any()

  def test_flips_and_the_largest_cutout(self):
    image = noise(4, 7, 3)
    for flips in itertools.product((0, 1), repeat=2):
      expected = image[:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]]
      assert_same(augment.random_flip("horizontal_and_vertical").pixels(image, flips), expected)
    assert_same(augment.random_flip("vertical").pixels(image, [1]), image[::-1])
    for draws in itertools.product([0, 2**31 - 1], repeat=2):
      assert not augment.cutout(2**31 - 1).pixels(image, draws).numpy().any()

  def test_more_cutouts_than_one_pass_can_make(self):
    """Nested lists may have more layers than a single list."""
    fn = augment.compose([augment.random_apply([augment.cutout(1)] * 60, p=1) for _ in range(3)])
    made = fn(np.full([2048, 2048, 3], 255, np.uint8), seed=[7, 1]).numpy()
    assert 170 < np.count_nonzero(made[..., 0] == 0) <= 180

  def test_a_large_batch_does_not_depend_on_the_number_of_threads(self):
    """The batch is larger than what one thread handles."""
    fn = augment.compose([augment.random_crop(padding=4), augment.random_flip(), augment.normalize(MEAN[:3], STD[:3])])
    images = noise(24, 224, 224, 3)
    made = of_any_number_of_threads(lambda images: fn(images, seed=[7, 1]), images)
    assert_same(fn(images, seed=[7, 1]), made)
    for number in (0, 1, 11, 23):
      assert_same(made[number], fn(images[number], seed=augment.seed_at([7, 1], number)))

  def test_the_input_is_not_modified(self):
    """The output has the size and dtype of the input, so a layer could overwrite its input by mistake."""
    fn = augment.compose([augment.random_crop(padding=4), augment.random_flip(), augment.cutout(3)])
    image = noise(9, 8, 3)

    @tf.function
    def both(seed):
      given_image = tf.constant(image) + tf.cast(seed[0] * 0, tf.uint8)
      return fn(given_image, seed=seed), given_image

    for seed in make_seeds(20):
      made, given_image = both(tf.constant(seed))
      assert_same(given_image, image)
      assert_same(made, fn(image, seed=seed))


class TestResizedCrop:
  def test_takes_the_box_that_is_drawn(self):
    """Compares with a plain slice: without a change of size, the result is a copy."""
    image = noise(9, 13, 3)
    for seed in make_seeds(200):
      y, x, height, width = window(9, 13, seed)
      assert_same(augment.random_resized_crop((height, width))(image, seed), image[y : y + height, x : x + width])

  @pytest.mark.parametrize(
    "height, width, expected", [(1, 40, (0, 19, 1, 1)), (40, 1, (19, 0, 1, 1)), (6, 30, (0, 11, 6, 8))]
  )
  def test_falls_back_to_the_middle(self, height, width, expected):
    """No box with the full area is as close to a square as the ratios require."""
    image = noise(height, width, 3)
    y, x, h, w = expected
    assert_same(augment.random_resized_crop((h, w), scale=(1.0, 1.0))(image, [7, 0]), image[y : y + h, x : x + w])


class TestComposition:
  LAYERS = [
    augment.random_crop((7, 5), padding=2, pad_if_needed=True),
    augment.random_flip(),
    augment.cutout(4),
    augment.normalize(MEAN[:3], STD[:3]),
  ]

  def test_is_one_op(self):
    """For small images, the overhead of ops takes longer than the pixels."""
    for at, count in ((4, 1), (3, 2), (2, 2)):
      fn = augment.compose(self.LAYERS) if at == 4 else _interrupted(self.LAYERS, at)
      spec = tf.TensorSpec([32, 32, 3], tf.uint8), tf.TensorSpec([2], tf.int32)
      ops = _ops(lambda image, seed, fn=fn: fn(image, seed=seed), spec)
      ours = [op for op in ops if op.startswith("RefurbishTf>")]
      # No layer after the third draws.
      last = "RefurbishTf>ImagePixels" if at == 3 else "RefurbishTf>ImageLayers"
      assert [op for op in ours if "Image" in op] == ["RefurbishTf>ImageLayers", last][2 - count :]
      if at == 4:
        assert set(ops) <= {*ours, "Placeholder", "Identity", "NoOp"}

  @pytest.mark.parametrize("shape", [[32, 32, 3], [None, None, 3], [8, 32, 32, 3], [None, None, None, None]])
  def test_is_one_op_for_images_and_batches_of_any_shape(self, shape):
    fn = augment.compose(self.LAYERS)
    ops = _ops(lambda image, seed: fn(image, seed=seed), (tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int32)))
    assert [op for op in ops if op.startswith("RefurbishTf>")] == ["RefurbishTf>ImageLayers"]

  def test_eager_calls_distinguish_similar_layers(self):
    """TensorFlow's kernel cache confuses strings of 80 characters that begin and end alike."""
    image = noise(3, 4, 4)
    for mean in (0.111111111111, 0.222222222222, 0.333333333333):
      layer = augment.normalize((0.123456789012345, mean, 0.5, 0.123456789012345), (0.123456789012345,) * 4)
      assert_same(layer(image), tf.function(layer)(image))
    for number in cases.some(range(40), 14):
      # The cutout of side 2 is drawn in the middle of the image, the others at its corner.
      fn = augment.compose([augment.cutout(1 + (other == number)) for other in range(40)])
      made = fn.pixels(image, [2**30 * (place // 2 == number) for place in range(80)])
      expected = image.copy()
      expected[0, :3] = expected[1, 1:3] = 0
      assert_same(made, expected)
    for size in ((3, 4), (5, 6)):
      assert augment.random_resized_crop(size, (0.123456789, 0.987654321))(image, [7, 0]).shape == [*size, 4]

  def test_empty_draws_take_no_time(self):
    """If each image of the batch took a step, this would never end."""
    drawn = []
    layer = augment.normalize(0.5, 0.5)
    assert ends(lambda: drawn.append(layer.draws([1, 2], 2**62)), 60)
    assert [draws.shape for draws in drawn] == [[2**62, 0]]

  def test_draws_and_pixels_are_two_steps(self):
    """The draws can then be sent to another device."""
    fn = augment.compose(self.LAYERS)
    image, seed = noise(9, 8, 3), [7, 3]
    draws = fn.draws(seed)
    assert_same(
      draws,
      np.concatenate([layer.draws(augment.seed_at(seed, position)) for position, layer in enumerate(self.LAYERS)]),
    )
    assert_same(fn.pixels(image, draws), fn(image, seed=seed))
    images = np.stack([image] * 3)
    assert fn.draws(seed, 3).shape == [3, 5]
    assert_same(fn.pixels(images, fn.draws(seed, 3)), fn(images, seed=seed))
    with tf.Graph().as_default():
      assert fn.draws(tf.constant(seed), 3).shape == [3, 5]
      assert fn.draws(tf.constant(seed)).shape == [5]

  def test_user_functions_get_the_seeds_of_their_positions(self):
    noted = []

    def note(image, seed):
      noted.append(seed.numpy().tolist())
      return image

    crop, flip, _, _ = self.LAYERS
    image, seed = noise(9, 8, 3), [7, 3]
    actual = augment.compose([note, crop, note, flip])(image, seed=seed)
    seeds = [augment.seed_at(seed, position) for position in range(4)]
    assert noted == [seeds[0].numpy().tolist(), seeds[2].numpy().tolist()]
    assert_same(actual, flip(crop(image, seeds[1]), seeds[3]))


def _interrupted(layers, at):
  """Composes the layers with another function in between."""
  return augment.compose([*layers[:at], functools.partial(tf.ensure_shape, shape=[None, None, 3]), *layers[at:]])


def _ops(function, spec):
  """Returns the types of all nodes of the traced graph."""
  graph = tf.function(function, autograph=False).get_concrete_function(*spec).graph.as_graph_def()
  return [node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes]
