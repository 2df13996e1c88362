"""`random_grayscale`: Pillow's grey, how often, and what it takes."""
import numpy as np
from PIL import Image
import pytest

from refurbish_tf import augment
from support import final_reference as reference
from support.images import noise


def test_is_as_its_reference_and_pillow():
  for shape in ((1, 1, 3), (7, 17, 3), (40, 33, 3)):
    image = noise(*shape)
    grey = np.asarray(Image.fromarray(image).convert("L").convert("RGB"))
    for seed in ([0, 1], [2, 3], [4, 5], [6, 7]):
      layer = reference.Grayscale(0.5)
      made = augment.random_grayscale(0.5)(image, seed).numpy()
      np.testing.assert_array_equal(made, layer.pixels(image, layer.draws(seed)))
      np.testing.assert_array_equal(augment.random_grayscale(1)(image, seed), grey)


def test_how_often():
  draws = augment.random_grayscale(0.3).draws([7, 0], 20_000).numpy()
  assert abs((draws < 0.3 * 2**31).mean() - 0.3) < 0.01
  images = noise(300, 4, 4, 3)
  for p, expected in ((0, 0), (1, 300)):
    made = augment.random_grayscale(p)(images, [7, 0]).numpy()
    assert (made != images).any((1, 2, 3)).sum() == expected


def test_of_one_channel_and_with_masks():
  image, mask = noise(5, 6, 1), noise(5, 6)
  np.testing.assert_array_equal(augment.random_grayscale(1)(image, [7, 0]), image)
  _, moved = augment.compose([augment.random_grayscale(1)], targets={1: "mask"})(noise(5, 6, 3), mask, seed=[7, 0])
  np.testing.assert_array_equal(moved, mask)


@pytest.mark.parametrize("p, error", [(-0.1, ValueError), (1.1, ValueError), (float("nan"), ValueError), ("0.1", TypeError),
                                      (True, TypeError)])
def test_refuses_what_is_no_probability(p, error):
  with pytest.raises(error, match="p of random_grayscale must be a probability"):
    augment.random_grayscale(p)


def test_refuses_other_pixels():
  with pytest.raises(TypeError, match="image of random_grayscale must be uint8, got dtype uint16.*tf.uint8"):
    augment.random_grayscale()(np.zeros([4, 4, 3], np.uint16), [7, 0])
  with pytest.raises(ValueError, match=r"image of random_grayscale must have 1 or 3 channels, got shape \(4, 4, 4\)"):
    augment.random_grayscale()(np.zeros([4, 4, 4], np.uint8), [7, 0])
