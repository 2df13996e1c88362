"""`random_grayscale`: Pillow's grey, of images of every size and channel count, beside masks."""
import numpy as np
from PIL import Image

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


def test_of_one_channel_and_with_masks():
  image, mask = noise(5, 6, 1), noise(5, 6)
  np.testing.assert_array_equal(augment.random_grayscale(1)(image, [7, 0]), image)
  _, moved = augment.compose([augment.random_grayscale(1)], targets={1: "mask"})(noise(5, 6, 3), mask, seed=[7, 0])
  np.testing.assert_array_equal(moved, mask)
