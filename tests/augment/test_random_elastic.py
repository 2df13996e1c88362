"""`random_elastic`: its field, computed here from its definition; torchvision's pixels for that field; its targets."""

import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import torchvision_policies, words
from support.images import noise

SEED = [7, 0]
INNER = np.s_[9:-9, 9:-9]


def torchvisions(*jobs):
  """The results of functions of torchvision, from their names and arguments."""
  return torchvision_policies.made([(job, None, None, [], 0) for job in jobs])


def uniforms(draws, height, width):
  """The numbers of x and of y before they are blurred."""
  first, second = (np.uint32(words.word(draws, k)) for k in (0, 1))
  bits = np.arange(height * width, dtype=np.uint32).reshape(height, width) + first
  bits = (bits ^ bits >> 16) * np.uint32(0x21F0AAAD)
  bits = ((bits ^ bits >> 15) + second) * np.uint32(0xD35A2D97)
  bits ^= bits >> 15
  return [(half.astype(np.float32) - np.float32(32767.5)) / np.float32(32768) for half in (bits & 0xFFFF, bits >> 16)]


def blurred(numbers, sigma, radius, scale):
  """Blurred along rows."""
  distance = np.arange(radius + 1)
  weights = np.exp(-0.5 * (distance / sigma) ** 2)
  weights = np.float32(weights / (2 * weights.sum() - weights[0]) * scale)
  # Repeated reflection, which `np.pad` also does for images that are smaller than the kernel.
  padded = np.pad(numbers, [(0, 0), (radius, radius)], "reflect")
  line = lambda k: padded[:, radius + k :][:, : numbers.shape[1]]
  made = weights[0] * line(0)
  for k in distance[1:]:
    made += weights[k] * (line(-k) + line(k))
  return made


def field_of(draws, size, alpha, sigma):
  """How far to the right and below of a pixel its source is, float32, by the definition of the layer."""
  fields = []
  for axis, numbers in enumerate(uniforms(draws, *size)):
    radius = int(8 * sigma[axis] + 1) // 2 if sigma[axis] else 0
    of_x, of_y = sigma if radius else (1, 1)
    fields.append(blurred(blurred(numbers, of_x, radius, 1).T, of_y, radius, alpha[axis] / 2).T)
  return fields


def test_the_field_is_that_of_torchvision_for_the_same_numbers():
  draws = augment.random_elastic().draws(SEED).numpy()
  numbers = uniforms(draws, 70, 90)
  assert all(abs(each.mean()) < 0.03 and abs(each.std() - 1 / math.sqrt(3)) < 0.01 for each in numbers)
  assert abs(np.corrcoef([numbers[0].ravel(), numbers[1].ravel()])[0, 1]) < 0.05
  sigma = (3.0, 5.2)
  found = field_of(draws, (70, 90), (50, 80), sigma)
  jobs = [("gaussian_blur", each[np.newaxis], [int(8 * s + 1) | 1] * 2, [*sigma]) for each, s in zip(numbers, sigma)]
  for field, expected, factor in zip(found, torchvisions(*jobs), (25, 40)):
    np.testing.assert_allclose(field, factor * expected[0], rtol=0, atol=1e-4)


CASES = {
  "uint8": ((224, 224, 3), np.uint8, {}),
  "fill": ((60, 83, 3), np.uint8, {"alpha": (900, 300), "fill": (9, 255, 77)}),
  "nearest": ((60, 83, 4), np.uint8, {"alpha": 400, "sigma": (9, 4), "interpolation": "nearest", "fill": 200}),
  "float32": ((64, 50, 1), np.float32, {"sigma": 4.4}),
  "uint16": ((40, 50, 7), np.uint16, {"alpha": 300}),
  "int16": ((40, 50, 2), np.int16, {"alpha": 9, "sigma": 0}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torchvisions_pixels_for_the_same_field(name):
  """Up to the rounding of torchvision's grid, in float32 from -1 to 1: one level in few values."""
  size, dtype, arguments = CASES[name]
  layer = augment.random_elastic(**arguments)
  pair = lambda name, default: np.broadcast_to(arguments.get(name, default), 2).tolist()
  image = (noise(*size) / (255 if dtype == np.float32 else 1)).astype(dtype)
  draws = layer.draws(SEED).numpy()
  field = np.stack(field_of(draws, size[:2], pair("alpha", 50), pair("sigma", 5)), -1) * 2 / np.float32(size[1::-1])
  fill, interpolation = arguments.get("fill", 0), arguments.get("interpolation", "bilinear")
  fill = list(fill) if isinstance(fill, tuple) else [fill]
  (expected,) = torchvisions(("elastic_image", image.transpose(2, 0, 1).copy(), field[np.newaxis], interpolation, fill))
  found = layer.pixels(image, draws).numpy()
  np.testing.assert_array_equal(found, layer(image, SEED))
  difference = np.abs(found.astype(np.float64) - expected.transpose(1, 2, 0))
  if dtype == np.float32:
    assert difference.max() < 3e-4
  else:
    assert np.mean(difference > 0) < 2e-3 and (name == "nearest" or difference.max() <= 1)
  assert np.mean(found != image) > 0.3


def test_targets_are_where_their_pixels_are():
  """Points go to the pixel that comes from them, and boxes around the pixels that come from them."""
  layer, size = augment.random_elastic(60), (90, 110)
  image = noise(*size, 3)
  field = field_of(layer.draws(augment.seed_at(SEED, 0)).numpy(), size, (60, 60), (5, 5))
  y, x = np.mgrid[: size[0], : size[1]]
  places = np.stack([x + field[0], y + field[1]], -1)
  boxes = np.float64([[20, 30, 61, 50], [8.5, 60, 100, 80.25], [0, 0, 110, 90]])
  targets = {1: "mask", 2: "bilinear", 3: "xyxy", 4: "xy", 5: "image"}
  nearest = augment.random_elastic(60, interpolation="nearest")
  given = image, image, np.float32(image), boxes, places.reshape(-1, 2), np.repeat(np.repeat(image, 2, 0), 2, 1)
  deformed, mask, blended, moved, points, double = augment.compose([layer], targets)(*given, seed=SEED)
  np.testing.assert_array_equal(mask, augment.compose([nearest])(image, seed=SEED))
  np.testing.assert_allclose(points.numpy().reshape(*size, 2)[INNER], np.stack([x, y], -1)[INNER], atol=3e-3)
  for box, found in zip(boxes, moved.numpy()):
    within = np.all((places + 0.5 >= box[:2]) & (places + 0.5 <= box[2:]), -1)
    rows, columns = np.flatnonzero(within.any(1)), np.flatnonzero(within.any(0))
    np.testing.assert_allclose(found, [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], atol=1)
  assert np.abs(blended.numpy() - deformed.numpy())[INNER].max() <= 0.51
  # The second image is twice as large: the mean of each four pixels is near the first image's pixel.
  halved = double.numpy().reshape(90, 2, 110, 2, 3).mean((1, 3))
  assert np.corrcoef(halved[INNER].ravel(), deformed.numpy()[INNER].ravel())[0, 1] > 0.9


def test_is_the_same_in_batches_clips_and_stages():
  layers = [augment.random_elastic(), augment.random_flip(), augment.normalize(), augment.random_elastic(20, 2)]
  images = noise(4, 30, 41, 3)
  whole = augment.compose(layers)
  alone = [whole(image, seed=augment.seed_at(SEED, b)) for b, image in enumerate(images)]
  np.testing.assert_array_equal(augment.compose(layers, clips=False)(images, seed=SEED), alone)
  clip = augment.compose(layers, clips=True)(images, seed=SEED)
  np.testing.assert_array_equal(clip, [whole(image, seed=SEED) for image in images])
  first, second = augment.split(layers, 2)
  np.testing.assert_array_equal(second(first(images[0], seed=SEED), seed=SEED), whole(images[0], seed=SEED))
  for size in ((1, 1), (1, 9), (7, 2)):
    assert augment.random_elastic(sigma=3)(noise(*size, 1), SEED).shape == (*size, 1)


def test_facts():
  same, layer = augment.random_elastic(0), augment.random_elastic()
  np.testing.assert_array_equal(same(noise(9, 9, 3), SEED), noise(9, 9, 3))
  assert same.outcomes == (1, 1) and layer.outcomes == (math.inf, math.inf)
  assert repr(augment.random_elastic((1, 2), 0, "nearest", 3)) == "random_elastic((1, 2), 0, 'nearest', fill=3)"


def test_bad_arguments_images_and_targets():
  for arguments, error, match in (
    ({"alpha": -1}, ValueError, "alpha of random_elastic must be a number from 0 to 100,000, got -1"),
    ({"sigma": (0, 2)}, ValueError, r"sigma of random_elastic must be 0, or above 0 for both axes, got \(0, 2\)"),
    ({"interpolation": "bicubic"}, ValueError, "must be bilinear or nearest, got 'bicubic'"),
    ({"fill": 256}, ValueError, "fill of random_elastic must be a whole number from 0 to 255"),
  ):
    with pytest.raises(error, match=match):
      augment.random_elastic(**arguments)
  with pytest.raises(TypeError, match="must be uint8, got dtype float32"):
    augment.random_elastic(fill=1)(np.zeros([4, 4, 3], np.float32), SEED)
  with pytest.raises(ValueError, match="sides of at most 32767 pixels"):
    augment.random_elastic()(np.zeros([1, 40_000, 1], np.uint8), SEED)
  with pytest.raises(ValueError, match="the disparity .* cannot follow random_elastic"):
    augment.compose([augment.random_elastic()], {1: "disparity"})
  for kind in ("flow", "vectors"):
    with pytest.raises(tf.errors.InvalidArgumentError, match="bend straight lines"):
      augment.compose([augment.random_elastic()], {1: kind})(noise(8, 8, 3), np.ones([8, 8, 2], np.float32), seed=SEED)
