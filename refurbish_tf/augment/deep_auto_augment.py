"""Deep AutoAugment: each layer draws an operation and its magnitude from its own distribution."""

import math
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from refurbish_tf._internal.checks import is_real
from . import deep_auto_augment_policies as policies
from .policy_layer import PolicyLayer

# Draws are at least 0 and below this.
_END = 2**31 - 1


def deep_auto_augment(policy: str | Sequence[Any]) -> list[Any]:
  """Returns the layers of Deep AutoAugment, each of which applies one operation drawn from its own distribution.

  >>> layers = rtf.augment.deep_auto_augment("cifar10")
  >>> len(layers)
  6
  >>> partial_fn, final_fn = rtf.augment.split(layers, at=2)
  >>> image = tf.zeros([32, 32, 3], tf.uint8)
  >>> final_fn(partial_fn(image, seed=[7, 0]), seed=[8, 0]).shape
  TensorShape([32, 32, 3])

  The layers draw independently, so you can split them anywhere. The published policies need no additional crop and
  flip: the later layers mostly do that, and the first one does most of the distorting.

  | Operation                                      | Parameter             | From magnitude 0 to 12 | Sign   |
  | ---------------------------------------------- | --------------------- | ---------------------- | ------ |
  | identity, auto_contrast, equalize, invert      | none                  |                        |        |
  | shear_x, shear_y                               | slope                 | -0.3 to 0.3            | random |
  | translate_x, translate_y                       | fraction of a side    | -0.45 to 0.45          | random |
  | rotate                                         | degrees               | -30 to 30              | random |
  | solarize                                       | threshold, rounded up | 0 to 256               |        |
  | posterize                                      | bits, rounded down    | 4 to 8                 |        |
  | color, contrast, brightness, sharpness         | factor                | 0.1 to 1.9             |        |
  | random_flip, random_crop_4, random_cutout_16,  |                       |                        |        |
  | random_cutout_60, random_resized_crop          | none                  |                        |        |

  As in the authors' implementation, shears, translations and rotations fill with black; crops by 4 pixels and cutouts
  fill with the mean colour (125, 123, 114). A cutout is a square, one pixel wider than its name says, centred at any
  pixel of the image. A resized crop has 8 to 100 % of the area and is 3 / 4 to 4 / 3 as wide as high; one that does not
  fit is replaced by the largest in the middle. Unlike theirs, it is resized to the size of the image, not to 224 x 224:
  give ImageNet's policy images of the training size.

  Args:
    policy: "cifar10" (six layers, also for CIFAR-100) or "imagenet" (five), the probabilities that the authors publish
      with their code, rounded to a millionth. Or a policy of your own: a list of layers, each a list of tuples
      `(operation, magnitude, probability)`, with a name from the table, a real number from 0 to 12 or None if the
      operation has no magnitude, and a number above 0. The probabilities of a layer add up to 1.

  Returns:
    A list of functions `layer(image, seed)` like those that `rand_augment` returns.

  Raises:
    TypeError: `policy` is neither a string nor a list or tuple.
    ValueError: there is no such policy, or your own policy does not have this form.

  Implements Zheng et al., *Deep AutoAugment*, ICLR 2022, section 3, with the policies of their section 4.
  """
  return [_layer(outcomes, position) for position, outcomes in enumerate(outcomes_of(policy))]


class _Operation(NamedTuple):
  """An operation of the native layers, with the values of its parameter at the magnitudes 0 and 12."""

  name: str
  lowest: float
  highest: float | None = None  # None: it has no magnitude.
  signed: bool = False
  whole: Callable[[float], float] = float


_LARGEST_MAGNITUDE = 12
_OPERATIONS = {
  **{
    name: _Operation(name, 0.0)
    for name in ("identity", "auto_contrast", "invert", "equalize", "random_flip", "random_resized_crop")
  },
  **{name: _Operation(name, -0.3, 0.3, signed=True) for name in ("shear_x", "shear_y")},
  **{name: _Operation(name, -0.45, 0.45, signed=True) for name in ("translate_x", "translate_y")},
  "rotate": _Operation("rotate", -30.0, 30.0, signed=True),
  **{name: _Operation(name, 0.1, 1.9) for name in ("contrast", "color", "brightness", "sharpness")},
  "solarize": _Operation("solarize", 0.0, 256.0, whole=math.ceil),
  "posterize": _Operation("posterize", 4.0, 8.0, whole=math.floor),
  "random_crop_4": _Operation("random_crop", 4.0),
  "random_cutout_16": _Operation("random_cutout", 16.0),
  "random_cutout_60": _Operation("random_cutout", 60.0),
}


def outcomes_of(policy):
  """Returns a list of `(operation, magnitude, probability)` for each layer; raises unless it is a policy."""
  if isinstance(policy, str):
    tables = {"cifar10": policies.CIFAR, "imagenet": policies.IMAGENET}
    if policy not in tables:
      raise ValueError(
        f"policy of deep_auto_augment must be one of {sorted(tables)}, or a list of layers, got {policy!r}. Pass the "
        "data set that is most like yours: 'cifar10' for small images, otherwise 'imagenet'."
      )
    return [_outcomes(table) for table in tables[policy]]
  if not isinstance(policy, (list, tuple)):
    raise TypeError(
      f"policy of deep_auto_augment must be 'cifar10', 'imagenet' or a list of layers, got {policy!r}. Pass the name "
      "of the data set that is most like yours."
    )
  if not policy:
    raise ValueError(
      f"policy of deep_auto_augment must have at least one layer, got {policy!r}. Without layers, leave the "
      "augmentation out."
    )
  return [_checked_outcomes(outcomes, position) for position, outcomes in enumerate(policy)]


def _outcomes(table):
  """Returns a list of `(operation, magnitude, probability)` for a layer of a published policy."""
  outcomes = []
  for name, millionths in table.items():
    if isinstance(millionths, int):
      outcomes.append((name, None, millionths))
    else:
      unchanged = 12 if name in ("solarize", "posterize") else 6
      magnitudes = [magnitude for magnitude in range(_LARGEST_MAGNITUDE + 1) if magnitude != unchanged]
      outcomes += [(name, *both) for both in zip(magnitudes, millionths)]
  total = sum(millionths for _, _, millionths in outcomes)  # Not exactly a million, because of rounding.
  return [(name, magnitude, millionths / total) for name, magnitude, millionths in outcomes if millionths]


def _layer(outcomes, position):
  drawn, probabilities = [], []
  for name, magnitude, probability in outcomes:
    operation = _OPERATIONS[name]
    parameter = _parameter(operation, magnitude)
    for value in (parameter, -parameter) if operation.signed else (parameter,):
      drawn.append((operation.name, value))
      probabilities.append(probability / (2 if operation.signed else 1))
  # An outcome is chosen by the draws from the previous edge up to, but not including, its own.
  edges = np.floor(np.cumsum(probabilities) / sum(probabilities) * _END).astype(np.int64)
  return PolicyLayer(f"deep_auto_augment_{position + 1}", drawn, [*edges.tolist()[:-1], _END], fill=0, exact_turns=True)


def _parameter(operation, magnitude):
  if operation.highest is None:
    return operation.lowest
  share = magnitude / _LARGEST_MAGNITUDE
  return float(operation.whole(operation.lowest + (operation.highest - operation.lowest) * share))


def _checked_outcomes(outcomes, position):
  where = f"policy of deep_auto_augment, layer {position},"
  if not isinstance(outcomes, (list, tuple)) or not outcomes:
    raise ValueError(
      f"{where} must be a list of one or more tuples (operation, magnitude, probability), got {outcomes!r}. Pass "
      "[('identity', None, 1.0)] for a layer that does nothing."
    )
  for outcome in outcomes:
    if not isinstance(outcome, (list, tuple)) or len(outcome) != 3:
      raise ValueError(
        f"{where} must have tuples (operation, magnitude, probability), got {outcome!r}. Pass None for an operation "
        "without a magnitude."
      )
    name, magnitude, probability = outcome
    if not isinstance(name, str) or name not in _OPERATIONS:
      raise ValueError(
        f"{where} must have operations from {sorted(_OPERATIONS)}, got {name!r}. For another operation, write your own "
        "layer: compose and split take any function layer(image, seed)."
      )
    if _OPERATIONS[name].highest is None:
      if magnitude is not None:
        raise ValueError(f"{where} must have None as the magnitude of {name}, got {outcome!r}. It has no magnitude.")
    elif not is_real(magnitude) or not 0 <= magnitude <= _LARGEST_MAGNITUDE:
      raise ValueError(
        f"{where} must have a real number from 0 to {_LARGEST_MAGNITUDE} as the magnitude of {name}, got {outcome!r}. "
        "Pass 6 for the middle of its range."
      )
    if not is_real(probability) or not 0 < probability <= 1:
      raise ValueError(
        f"{where} must have probabilities above 0 and at most 1, got {outcome!r}. Leave out operations that never "
        "happen."
      )
  total = sum(probability for _, _, probability in outcomes)
  if abs(total - 1) > 1e-3:
    raise ValueError(
      f"{where} must have probabilities that add up to 1, got a sum of {total:g}. Divide each of them by {total:g}."
    )
  return outcomes
