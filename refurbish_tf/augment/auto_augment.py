"""AutoAugment: two layers that apply the two operations of one randomly drawn sub-policy."""

from typing import Any, get_args

from refurbish_tf._internal import checks
from .policy_layer import PolicyLayer, Ranges, distortions_at, torchvision_distortions

# Cubuk et al., *AutoAugment*, CVPR 2019, appendix, Tables 7 and 9: 25 sub-policies of two operations, each with its
# probability in tenths and its magnitude, if it has one. The last five for ImageNet repeat earlier ones, as published.
POLICIES = {
  "cifar10": (
    (("invert", 1), ("contrast", 2, 6)),
    (("rotate", 7, 2), ("translate_x", 3, 9)),
    (("sharpness", 8, 1), ("sharpness", 9, 3)),
    (("shear_y", 5, 8), ("translate_y", 7, 9)),
    (("auto_contrast", 5), ("equalize", 9)),
    (("shear_y", 2, 7), ("posterize", 3, 7)),
    (("color", 4, 3), ("brightness", 6, 7)),
    (("sharpness", 3, 9), ("brightness", 7, 9)),
    (("equalize", 6), ("equalize", 5)),
    (("contrast", 6, 7), ("sharpness", 6, 5)),
    (("color", 7, 7), ("translate_x", 5, 8)),
    (("equalize", 3), ("auto_contrast", 4)),
    (("translate_y", 4, 3), ("sharpness", 2, 6)),
    (("brightness", 9, 6), ("color", 2, 8)),
    (("solarize", 5, 2), ("invert", 0)),
    (("equalize", 2), ("auto_contrast", 6)),
    (("equalize", 2), ("equalize", 6)),
    (("color", 9, 9), ("equalize", 6)),
    (("auto_contrast", 8), ("solarize", 2, 8)),
    (("brightness", 1, 3), ("color", 7, 0)),
    (("solarize", 4, 5), ("auto_contrast", 9)),
    (("translate_y", 9, 9), ("translate_y", 7, 9)),
    (("auto_contrast", 9), ("solarize", 8, 3)),
    (("equalize", 8), ("invert", 1)),
    (("translate_y", 7, 9), ("auto_contrast", 9)),
  ),
  "imagenet": (
    (("posterize", 4, 8), ("rotate", 6, 9)),
    (("solarize", 6, 5), ("auto_contrast", 6)),
    (("equalize", 8), ("equalize", 6)),
    (("posterize", 6, 7), ("posterize", 6, 6)),
    (("equalize", 4), ("solarize", 2, 4)),
    (("equalize", 4), ("rotate", 8, 8)),
    (("solarize", 6, 3), ("equalize", 6)),
    (("posterize", 8, 5), ("equalize", 10)),
    (("rotate", 2, 3), ("solarize", 6, 8)),
    (("equalize", 6), ("posterize", 4, 6)),
    (("rotate", 8, 8), ("color", 4, 0)),
    (("rotate", 4, 9), ("equalize", 6)),
    (("equalize", 0), ("equalize", 8)),
    (("invert", 6), ("equalize", 10)),
    (("color", 6, 4), ("contrast", 10, 8)),
    (("rotate", 8, 8), ("color", 10, 2)),
    (("color", 8, 8), ("solarize", 8, 7)),
    (("sharpness", 4, 7), ("invert", 6)),
    (("shear_x", 6, 5), ("equalize", 10)),
    (("color", 4, 0), ("equalize", 6)),
    (("equalize", 4), ("solarize", 2, 4)),
    (("solarize", 6, 5), ("auto_contrast", 6)),
    (("invert", 6), ("equalize", 10)),
    (("color", 6, 4), ("contrast", 10, 8)),
    (("equalize", 8), ("equalize", 6)),
  ),
}
# How many equally likely draws each sub-policy has. Probabilities are whole tenths, each divided between both signs.
CELLS = 20


def auto_augment(policy: str, *, ranges: Ranges = "paper") -> list[Any]:
  """Returns the two layers of AutoAugment: the first and the second operation of one drawn sub-policy.

  >>> partial_fn, final_fn = rtf.augment.split(
  ...     [*rtf.augment.auto_augment("cifar10"), rtf.augment.random_crop(padding=4), rtf.augment.random_flip()], at=2)
  >>> partial_fn(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  The first layer draws one of the policy's 25 sub-policies, all equally likely, and applies its first operation with
  that operation's probability. The second layer does the same with the second operation of that sub-policy. Magnitudes
  have the same meaning as in `rand_augment(magnitude=...)`, with the values of the table, 0 to 9. If an operation has a
  sign, both signs are equally likely. `invert` has neither.

  Split after both layers (`at=2` above), as the paper on refurbishing does. You can also split between them: the number
  of the sub-policy then goes through the cache store with the image, in 4 bytes. Each use of a sample still has
  AutoAugment's distribution. But all uses of one cached sample have the same sub-policy and the same result of its
  first operation. They differ only in whether the second operation is applied, and in which direction. This adds little
  diversity for the cost of one more operation per use. No other layer can be placed between the two.

  The policies come from Tables 7 and 9 of the paper. Magnitudes follow the authors' TensorFlow implementation, as in
  `rand_augment`: solarize and posterize get milder as the magnitude grows, and factors have no random direction.
  torchvision reads the tables differently. With `ranges="torchvision"` the layers are its `AutoAugment(policy)`: each
  distortion gives the same bytes as torchvision's on a Pillow image, and pixels from outside the image are black, not
  grey. The paper obtained the CIFAR-10 results with crop and flip, and with Cutout last; add these yourself.

  Args:
    policy: "cifar10" or "imagenet", the data set that the policy was found for.
    ranges: "paper" or "torchvision".

  Returns:
    A list of two functions for `compose` and `split`. The first, `layer(image, seed)`, takes the same arguments as the
    layers that `rand_augment` returns, and returns a named tuple of `image`, uint8 `[height, width, 3]`, and
    `sub_policy`, int32 `[]`. The second takes that named tuple in place of the image, and a seed, and returns the
    image, uint8 `[height, width, 3]`. They raise `TypeError` for another dtype and `ValueError` for another shape.
    `compose` and `split` raise `ValueError` if one of the two is missing.

  Raises:
    ValueError: `policy` or `ranges` is not one of these.

  Implements Cubuk et al., *AutoAugment: Learning Augmentation Strategies from Data*, CVPR 2019, section 3 and appendix,
  whose layers Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 7.1, put into the partial
  augmentation.
  """
  if not isinstance(policy, str) or policy not in POLICIES:
    raise ValueError(
      f"policy of auto_augment must be one of {sorted(POLICIES)}, got {policy!r}. Pass the data set that is most like "
      "yours: 'cifar10' for small images, otherwise 'imagenet'."
    )
  checks.check_choice("ranges of auto_augment", ranges, get_args(Ranges))
  shown, fill = (repr(policy), {}) if ranges == "paper" else (f"{policy!r}, ranges={ranges!r}", {"fill": 0})
  # `compose` compares these texts to check that the two layers are adjacent.
  whole = f"auto_augment({shown})"
  return [
    PolicyLayer("auto_augment_first", *_outcomes(policy, ranges, 0), shown, hands_on=whole, group=CELLS, **fill),
    PolicyLayer("auto_augment_second", *_outcomes(policy, ranges, 1), shown, takes_over=whole, group=CELLS, **fill),
  ]


def _outcomes(policy, ranges, place):
  """The outcomes of the first or the second operation of all sub-policies, and their edges."""
  outcomes, edges = [], []
  for number, sub_policy in enumerate(POLICIES[policy]):
    name, tenths, magnitude = (*sub_policy[place], 0)[:3]
    if ranges == "torchvision":
      name = name.replace("translate", "truncate")
    at = distortions_at(magnitude / 10) if ranges == "paper" else torchvision_distortions(magnitude, 9)
    positive, negative = at[name]
    shares = [(positive, 2 * tenths)] if negative is None else [(positive, tenths), (negative, tenths)]
    end = number * CELLS
    for parameter, share in shares:
      end += share
      outcomes.append((name, parameter))
      edges.append(end)
    outcomes.append(("identity", 0.0))
    edges.append((number + 1) * CELLS)
  return outcomes, edges
