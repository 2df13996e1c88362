"""TrivialAugment: one of 14 distortions, of any strength."""

from typing import Any

from .policy_layer import PolicyLayer, all_strengths, equally_likely, torchvision_distortions

# The number of strengths of a distortion. Each has two draws, one for each sign.
_BINS = 31


def trivial_augment() -> list[Any]:
  """Returns the layer of TrivialAugment, in a list: one of 14 equally likely distortions, of a random strength.

  >>> fn = rtf.augment.compose([rtf.augment.trivial_augment(), rtf.augment.random_flip()])
  >>> fn(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `TrivialAugmentWide()`, and gives the same bytes as torchvision on a Pillow image. It has no
  parameters:

  | Distortion                             | Parameter                 | Sign   |
  | -------------------------------------- | ------------------------- | ------ |
  | identity, auto_contrast, equalize      | none                      |        |
  | rotate                                 | 0 to 135 degrees          | random |
  | shear_x, shear_y                       | 0 to 0.99                 | random |
  | translate_x, translate_y               | 0 to 32 pixels            | random |
  | color, contrast, brightness, sharpness | 1 plus or minus 0 to 0.99 | random |
  | solarize                               | threshold 255 to 0        |        |
  | posterize                              | 8 to 2 bits               |        |

  The distortions are those of `rand_augment`, except that the translation is in pixels, and pixels from outside the
  image are black.

  Returns:
    A list of one function like those that `rand_augment` returns. Its draws are one number, from 0 to 867.

  Implements Mueller & Hutter, *TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation*, ICCV 2021, section
  3, with its wide space.
  """
  return [PolicyLayer("trivial_augment", *equally_likely(_distortions(), 2 * _BINS), fill=0)]


def _distortions():
  """A dict from the name of a distortion to its parameters, all equally likely."""
  found = all_strengths(torchvision_distortions(k, _BINS - 1, wide=True) for k in range(_BINS))
  return {name: parameters for name, parameters in found.items() if name != "invert"}
