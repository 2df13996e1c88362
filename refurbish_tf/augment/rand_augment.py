"""RandAugment: layers that each apply one of 14 distortions."""

from typing import Any, get_args

from refurbish_tf._internal import checks
from .layers import checked_whole
from .native_layers import MOST_LAYERS
from .policy_layer import PolicyLayer, Ranges, distortions_at, torchvision_distortions

_LAST_STEP = 30


def rand_augment(num_ops: int = 2, magnitude: float = 9, *, ranges: Ranges = "paper") -> list[Any]:
  """Returns layers that each apply one of RandAugment's 14 distortions, all with the same probability.

  >>> fn = rtf.augment.compose(rtf.augment.rand_augment(num_ops=2, magnitude=9))
  >>> fn(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  `num_ops` and `magnitude` are the N and M of the paper. The layers are the same and draw independently, so you can
  split them anywhere.

  The magnitude sets how far every distortion goes, as in the reference implementation of RandAugment, or as in
  torchvision:

  | Distortion                             | Parameter                    | At M = 9     | Sign   | torchvision, M = 9 |
  | -------------------------------------- | ---------------------------- | ------------ | ------ | ------------------ |
  | identity, auto_contrast, equalize      | none                         |              |        |                    |
  | rotate                                 | 30 degrees * M / 10          | 27 degrees   | random | 9 degrees          |
  | shear_x, shear_y                       | 0.3 * M / 10                 | 0.27         | random | 0.09               |
  | translate_x, translate_y               | side * 150 / 331 * M / 10    | 41 % of side | random | 14 % of side       |
  | color, contrast, brightness, sharpness | factor 0.1 + 1.8 * M / 10    | 1.72         |        | 1.27 or 0.73       |
  | solarize                               | threshold int(256 * M / 10)  | 230          |        | 179                |
  | posterize                              | bits max(1, int(4 * M / 10)) | 3            |        | 7                  |

  With `ranges="torchvision"` the layers are torchvision's `RandAugment(num_ops, magnitude)`, and each distortion gives
  the same bytes as torchvision's on a Pillow image. The magnitude is out of 30, all distortions get stronger with it,
  factors have a random direction, and pixels from outside the image are black, not grey.

  In the paper's ranges, as in its reference implementation, a factor grows with M from weakening (0) through no change
  (5) to strengthening (10), without a random direction, and solarize and posterize get milder as M grows. Two things
  differ: translation is proportional to the image, not 100 pixels for every size, and posterize keeps at least one bit.
  The reference keeps none below M = 2.5, which makes the image black.

  Args:
    num_ops: a whole number of at least 1, at most 64.
    magnitude: a real number from 0 to 10. The papers use 9 for ImageNet and 10 for CIFAR-10. With
      `ranges="torchvision"`, a whole number from 0 to 30.
    ranges: "paper" or "torchvision".

  Returns:
    A list of functions `layer(image, seed)` of an image, uint8 `[height, width, 3]`, or of a batch of them, `[batch,
    height, width, 3]`, with sides of 1 to 32767 pixels, known while tracing or not, and a seed, int32 or int64 `[2]` as
    for `tf.random.stateless_uniform`. They return the same shape and dtype; equal images and seeds give equal results.
    Image b of a batch gets the seed `seed_at(seed, b)`. They raise `TypeError` for another dtype and `ValueError` for
    another shape. Like the layer that `random_crop` returns, they have `draws(seed, batch_size=None)`, one number from
    0 to 27 for the distortion and its sign, and `pixels(image, draws)`.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements Cubuk et al., *RandAugment*, NeurIPS 2020, section 3. It is the expensive augmentation that Lee et al.,
  *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2 and 7.1, put into the partial augmentation.
  """
  checked_whole("num_ops of rand_augment", num_ops, 1, MOST_LAYERS, "Without layers, leave the augmentation out.")
  checks.check_choice("ranges of rand_augment", ranges, get_args(Ranges))
  if ranges == "torchvision":
    advice = 'With ranges="torchvision" the magnitude is out of 30, as in torchvision, whose default is 9.'
    checked_whole("magnitude of rand_augment", magnitude, 0, _LAST_STEP, advice)
    pairs = torchvision_distortions(int(magnitude), _LAST_STEP)
    return [_layer(pairs, f"magnitude={magnitude}, ranges={ranges!r}", fill=0) for _ in range(num_ops)]
  allowed = "a real number from 0 to 10, in the papers 9 for ImageNet and 10 for CIFAR-10"
  checks.check_real("magnitude of rand_augment", magnitude, lambda value: 0 <= value <= 10, allowed)
  return [_layer(distortions_at(float(magnitude) / 10), f"magnitude={float(magnitude):g}") for _ in range(num_ops)]


def _layer(pairs, shown, **fill):
  unsigned = [(name, positive) for name, (positive, negative) in pairs.items() if negative is None and name != "invert"]
  signed = {name: pair for name, pair in pairs.items() if pair[1] is not None}
  # Every distortion has two outcomes, which differ in the sign if it has one. So the sign needs no separate draw.
  outcomes = unsigned + unsigned + [(name, pair[sign]) for sign in (0, 1) for name, pair in signed.items()]
  return PolicyLayer("rand_augment", outcomes, range(1, len(outcomes) + 1), shown, **fill)
