"""TrivialAugment: one of 14 distortions, of any strength."""

from __future__ import annotations

from typing import Any

from .policy_layer import PolicyLayer, torchvision_distortions

# The number of strengths of a distortion, and how many draws each distortion has: one for each strength and sign.
_BINS = 31
_CELLS = 2 * _BINS


def trivial_augment() -> list[Any]:
  """Returns the layer of TrivialAugment, in a list: one of 14 distortions, each as likely, of a random strength.

  >>> fn = rtf.augment.compose([rtf.augment.trivial_augment(), rtf.augment.random_flip()])
  >>> fn(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `TrivialAugmentWide()`: it returns the bytes that torchvision makes of a Pillow image. It has no
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

  The distortions are those of `rand_augment`, but for the translation, which is in pixels, and the outside of the
  image, which is black.

  Returns:
    A list of one function like those that `rand_augment` returns, with draws of one number, from 0 to 867.

  Implements Mueller & Hutter, *TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation*, ICCV 2021, section
  3 and its wide space.
  """
  outcomes, edges = [], []
  for position, (name, parameters) in enumerate(_distortions().items()):
    for k, parameter in enumerate(parameters):
      outcomes.append((name, parameter))
      edges.append(position * _CELLS + (k + 1) * _CELLS // len(parameters))
  return [PolicyLayer("trivial_augment", outcomes, edges, fill=0)]


def _distortions():
  """A dict from the name of a distortion to its parameters, all equally likely."""
  steps = [torchvision_distortions(k, _BINS - 1, wide=True) for k in range(_BINS)]
  found = {
    name: [step[name][sign] for sign in (0, 1) for step in steps if step[name][sign] is not None]
    for name in steps[0]
    if name != "invert"
  }
  return {name: parameters if any(parameters) else [0.0] for name, parameters in found.items()}
