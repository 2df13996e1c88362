"""Random chains of layers of all kinds, with targets. One op gives what one op per layer gives, at every split, for
each image of a batch, and in a graph that knows no shape. Layers without chance do what NumPy does."""

import functools

import numpy as np
import tensorflow as tf

from refurbish_tf import augment
from run import tell
from support.images import assert_same
from support.moved_pixels import DTYPES, followers, noise

KINDS = {1: "mask", 2: "bilinear", 3: "rel_xyxy", 4: "xy"}
MEAN, STD = (0.4914, 0.4822, 0.4465, 0.5), (0.247, 0.243, 0.262, 0.3)
SIDES = (1, 2, 3, 5, 7, 9, 13, 17, 33, 64)
MODES = ("horizontal", "vertical", "horizontal_and_vertical")


def size_of(chance):
  return chance.choice(SIDES[:-1]), chance.choice(SIDES[:-1])


def padding_of(chance):
  return chance.choice([0, 3, (2, 1), (1, 2, 3, 2)])


def fraction(chance, most=1):
  return round(chance.uniform(0, most), 2)


# All layers leave a square image square if their size is square. Those of the second list only allow square images,
# those of the third only three channels.
LAYERS = [
  lambda chance: augment.random_crop(padding=chance.randint(0, 5)),
  lambda chance: augment.random_crop(padding=1, padding_mode="reflect"),
  lambda chance: augment.random_crop(size_of(chance), padding=chance.randint(0, 3), pad_if_needed=True),
  lambda chance: augment.random_resized_crop(size_of(chance), antialias=chance.choice([False, True])),
  lambda chance: augment.random_flip(chance.choice(MODES), fraction(chance)),
  lambda chance: augment.cutout(chance.randint(1, 9)),
  lambda chance: augment.time_mask(chance.randint(1, 9), num_masks=chance.randint(1, 3)),
  lambda chance: augment.frequency_mask(chance.randint(1, 9)),
  lambda chance: augment.time_shift(rollover=False),
  lambda chance: augment.random_solarize(chance.randint(0, 255)),
  lambda chance: augment.gaussian_blur(chance.choice([None, 3, 5])),
  lambda chance: augment.resize(size_of(chance), chance.choice([False, True])),
  lambda chance: augment.resize(size_of(chance), pad_to_aspect_ratio=True, fill_value=chance.randint(0, 255)),
  lambda chance: augment.resize(size_of(chance), crop_to_aspect_ratio=True),
  lambda chance: augment.center_crop(size_of(chance)),
  lambda chance: augment.pad(padding_of(chance), chance.randint(0, 255)),
  lambda chance: augment.pad(padding_of(chance), padding_mode=chance.choice(["edge", "reflect", "symmetric"])),
  lambda chance: augment.random_rotation(chance.randint(0, 180)),
  lambda chance: augment.random_perspective(fraction(chance, 0.5), p=0.8),
  lambda chance: augment.random_elastic(chance.randint(1, 50), chance.randint(1, 9)),
  lambda chance: augment.random_affine(30, (0.1, 0.3), (0.5, 2), chance.choice([None, 10, (-5, 5, 0, 9)])),
  lambda chance: augment.random_grayscale(0.5),
  lambda chance: augment.gaussian_noise(sigma=fraction(chance)),
  lambda chance: augment.random_autocontrast(0.8),
  lambda chance: augment.random_equalize(0.8),
  lambda chance: augment.random_invert(0.8),
  lambda chance: augment.random_posterize((2, 6), 0.8),
  lambda chance: augment.random_adjust_sharpness((0, 3), 0.8),
  lambda chance: augment.random_channel_permutation(),
  lambda chance: augment.random_apply([augment.random_flip(), augment.cutout(3)], fraction(chance)),
  lambda chance: augment.random_choice([augment.random_flip(), augment.cutout(3), augment.random_invert()]),
  lambda chance: augment.random_order([augment.random_flip(), augment.cutout(3)]),
]
SQUARES = [lambda chance: augment.random_rotate90(), lambda chance: augment.random_transpose(fraction(chance))]
COLORS = [
  lambda chance: augment.rand_augment(1, chance.randint(0, 10))[0],
  lambda chance: chance.choice(augment.auto_augment("cifar10")),
  lambda chance: augment.trivial_augment()[0],
  lambda chance: augment.augmix(),
  lambda chance: augment.random_photometric_distort(),
  lambda chance: augment.color_jitter(fraction(chance), 0.5, fraction(chance), fraction(chance, 0.5)),
  lambda chance: augment.random_erasing(1, value=(5, 6, 7)),
]


def crop(image, height, width):
  """The middle, in a black frame where the image is smaller."""
  before = [max(0, to - side) // 2 for to, side in zip((height, width), image.shape)]
  after = [max(0, to - side - each) for to, side, each in zip((height, width), image.shape, before)]
  image = np.pad(image, [*zip(before, after), (0, 0)])
  top, left = (round((side - to) / 2) for side, to in zip(image.shape, (height, width)))
  return image[top : top + height, left : left + width]


def posterized(bits):
  return lambda image: image & (255 << 8 - bits & 255)


# Pairs of a layer and a function in NumPy.
REFERENCES = [
  lambda chance: (augment.random_flip("horizontal", 1), lambda image: image[:, ::-1]),
  lambda chance: (augment.random_flip("vertical", 1), lambda image: image[::-1]),
  lambda chance: (augment.random_invert(1), lambda image: 255 - image),
  lambda chance: (augment.random_solarize(k := chance.randint(0, 255), 1), lambda x: np.where(x < k, x, 255 - x)),
  lambda chance: (augment.random_posterize(k := chance.randint(1, 8), 1), posterized(k)),
  lambda chance: (augment.center_crop(to := size_of(chance)), lambda image: crop(image, *to)),
  lambda chance: (
    augment.pad((left := chance.randint(0, 9), top := chance.randint(0, 9), 2, 5), padding_mode="edge"),
    lambda image: np.pad(image, [(top, 5), (left, 2), (0, 0)], "edge"),
  ),
]


def seeded(function, layers, seed):
  return functools.partial(function, seed=seed) if any(layer.takes_seed for layer in layers) else function


def one_by_one(layers, seed, element, targets):
  """Each layer as an op of its own, by its draws and pixels; a layer without them is called."""
  for position, layer in enumerate(layers):
    own = augment.seed_at(seed, position)
    if not hasattr(layer, "draws"):
      element = (seeded(layer, [layer], own)(element[0]),)
      continue
    draws, (image, *others) = layer.draws(own), element
    element = layer.pixels(image, draws), *followers(layer, draws, image, *zip(KINDS.values(), others))
  return element


def drawn(chance):
  """Draws layers, an element with or without targets, and a seed."""
  channels, dtype = chance.choice([3, 1, 3, 4, 5]), chance.choice([np.uint8] * 4 + list(DTYPES[1:]))
  is_square, with_targets = chance.choice([False, True]), chance.choice([False, True])
  height, width = chance.choice(SIDES), chance.choice(SIDES)
  choices = [*LAYERS, *COLORS * (channels == 3), *SQUARES * 4 * is_square]
  layers = [chance.choice(choices)(chance) for _ in range(chance.randint(1, 6))]
  if not with_targets and dtype == np.uint8 and chance.choice([False, True]):
    number = channels if channels < 5 and chance.choice([False, True]) else 1
    layers.append(augment.normalize(MEAN[:number], STD[:number], chance.choice(["float32", "bfloat16", "float16"])))
  if is_square:
    width = height
  element = (noise(dtype, height, width, channels),)
  if with_targets:
    boxes = np.float32([[0.2, 0.3, 0.6, 0.7], [0, 0, 1, 1]])[: chance.randint(0, 2)]
    points = np.float32([[0, 0, 1], [height / 2, width / 3, 2]])
    points[:, 0] = np.minimum(points[:, 0], width)
    points[:, 1] = np.minimum(points[:, 1], height)
    element += noise(np.uint8, height, width), noise(np.float32, height, width), boxes, points
  return layers, element, [chance.randint(-(2**31), 2**31 - 1), chance.randint(0, 2**31 - 1)]


def compare_with_numpy(chance):
  pairs = [chance.choice(REFERENCES)(chance) for _ in range(chance.randint(1, 5))]
  layers, functions = zip(*pairs)
  image = noise(np.uint8, chance.choice(SIDES), chance.choice(SIDES), chance.choice([1, 3]))
  tell(f"{layers} {image.shape} in NumPy")
  made = seeded(augment.compose(list(layers)), layers, [7, 0])(image)
  for function in functions:
    image = function(image)
  np.testing.assert_array_equal(made, image, err_msg=repr(layers))


def case(chance, directory):
  if chance.randint(0, 4) == 4:
    return compare_with_numpy(chance)
  layers, element, seed = drawn(chance)
  targets = KINDS if len(element) > 1 else None
  said = f"{layers} seed={seed} {[(each.dtype.name, each.shape) for each in element]}"
  tell(said)
  try:
    whole = seeded(augment.compose(layers, targets), layers, seed)
    expected = tf.nest.flatten(whole(*element))
  except (TypeError, ValueError, tf.errors.InvalidArgumentError):
    return  # Such as a dtype that a layer does not take. Each layer alone refuses it as well, or another one before it.
  for found, value in zip(one_by_one(layers, seed, element, targets), expected, strict=True):
    assert_same(np.asarray(found), np.asarray(value))
  at = chance.randint(1, len(layers))
  partial, final = augment.split(layers, at, targets)
  made = tf.nest.flatten(seeded(partial, layers[:at], seed)(*element))
  made = tf.nest.flatten(seeded(final, layers[at:], seed)(*made)) if final else made
  specs = [tf.TensorSpec([None] * each.ndim, each.dtype) for each in element]
  traced = tf.nest.flatten(tf.function(whole, input_signature=specs, autograph=False)(*element))
  for found, other, value in zip(made, traced, expected, strict=True):
    assert_same(np.asarray(found), np.asarray(value))
    assert_same(np.asarray(other), np.asarray(value))
  if len(element) == 1:
    images = np.stack([element[0], element[0][::-1, ::-1], element[0][:, ::-1]])[: chance.randint(1, 3)]
    try:
      batch = seeded(augment.compose(layers, clips=False), layers, seed)(images)
    except tf.errors.InvalidArgumentError:
      return
    for number, image in enumerate(images):
      alone = seeded(augment.compose(layers), layers, augment.seed_at(seed, number))(image)
      assert_same(np.asarray(batch[number]), np.asarray(alone))
