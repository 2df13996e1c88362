"""TrivialAugment: one of 14 distortions, of any strength."""
from __future__ import annotations

from typing import Any

from .policy_layer import PolicyLayer

# Strengths of a distortion, and how many of the numbers that are drawn each distortion has: one for each strength and sign.
_BINS = 31
_CELLS = 2 * _BINS


def trivial_augment() -> list[Any]:
  """Returns the layer of TrivialAugment, in a list: one of 14 distortions, each as likely, of a random strength.

  >>> fn = rtf.augment.compose([rtf.augment.trivial_augment(), rtf.augment.random_flip()])
  >>> fn(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is TrivialAugmentWide, with 31 strengths as torchvision has them, and nothing to tune:

  | Distortion                             | Parameter                 | Sign   |
  | -------------------------------------- | ------------------------- | ------ |
  | identity, auto_contrast, equalize      | none                      |        |
  | rotate                                 | 0 to 135 degrees          | random |
  | shear_x, shear_y                       | 0 to 0.99                 | random |
  | translate_x, translate_y               | 0 to 32 pixels            | random |
  | color, contrast, brightness, sharpness | 1 plus or minus 0 to 0.99 | random |
  | solarize                               | threshold 255 to 0        |        |
  | posterize                              | 8 to 2 bits               |        |

  The distortions are those of `rand_augment`, but for the translation, which is in pixels, and the outside of the image, which
  is black.

  Returns:
    A list of one function like those that `rand_augment` returns, with draws of one number, from 0 to 867.

  Implements Mueller & Hutter, *TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation*, ICCV 2021, section 3 and
  its wide space.
  """
  outcomes, edges = [], []
  for position, (name, parameters) in enumerate(_distortions().items()):
    for k, parameter in enumerate(parameters):
      outcomes.append((name, parameter))
      edges.append(position * _CELLS + (k + 1) * _CELLS // len(parameters))
  return [PolicyLayer("trivial_augment", outcomes, edges, fill=0)]


def _distortions():
  """A dict from the name of a distortion to its parameters, all as likely."""
  shares = [k / (_BINS - 1) for k in range(_BINS)]
  # So many digits that the steps are as they are published.
  signed = {
      "rotate": [round(135 * share, 3) for share in shares], "shear_x": [round(0.99 * share, 3) for share in shares],
      "shear_y": [round(0.99 * share, 3) for share in shares], "move_x": [int(32 * share) for share in shares],
      "move_y": [int(32 * share) for share in shares]}
  factors = [round(1 + sign * 0.99 * share, 3) for sign in (1, -1) for share in shares]
  return {
      "identity": [0.0], "auto_contrast": [0.0], "equalize": [0.0],
      **{name: [sign * value for sign in (1, -1) for value in values] for name, values in signed.items()},
      **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), factors),
      # What is at least a threshold is at least the next whole number.
      "solarize": [-(-255 * (_BINS - 1 - k) // (_BINS - 1)) for k in range(_BINS)],
      "posterize": [8 - round(6 * share) for share in shares]}
