"""AugMix: blends an image with the results of chains of random distortions."""

import math
from typing import Any

from refurbish_tf._internal import checks
from .inner_layers import text_of
from .layers import checked_real, checked_whole
from .native_layers import DrawingLayer
from .policy_layer import PolicyLayer, all_strengths, equally_likely, torchvision_distortions

_LAST_STEP = 9
_COLORS = ("brightness", "color", "contrast", "sharpness")


def augmix(
  severity: int = 3,
  mixture_width: int = 3,
  chain_depth: int = -1,
  alpha: float = 1.0,
  all_ops: bool = True,
  *,
  fill: int = 0,
) -> Any:
  """Returns a layer that blends an image with the results of several chains of random distortions.

  >>> rtf.augment.augmix(severity=3)(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `AugMix` with `interpolation="nearest"` (torchvision's default is bilinear). Each distortion gives
  the same bytes as torchvision's on a Pillow image. All distortions are equally likely, and so are their strengths:

  | Distortion                              | Parameter, k from 0 to severity - 1       |
  | --------------------------------------- | ----------------------------------------- |
  | auto_contrast, equalize                 | none                                      |
  | rotate                                  | plus or minus 30 degrees * k / 9          |
  | shear_x, shear_y                        | plus or minus 0.3 * k / 9                 |
  | translate_x, translate_y                | plus or minus side / 3 * k / 9            |
  | solarize                                | threshold 255 - 255 * k / 9               |
  | posterize                               | 4 - 4 * k / 9 bits, rounded: 0 is black   |
  | color, contrast, brightness, sharpness  | factor 1 plus or minus 0.9 * k / 9        |

  The result is `(1 - m) * image + m * (w[0] * chain[0] + w[1] * chain[1] + ...)`, with m from Beta(alpha, alpha) and w
  from Dirichlet(alpha, ..., alpha), in float32 and truncated to uint8. An object may then appear in several places, so
  `compose` refuses `targets` such as masks and boxes. torchvision leaves them as they are.

  Args:
    severity: a whole number from 1 to 10.
    mixture_width: the number of chains, a whole number from 1 to 16.
    chain_depth: the number of distortions in a chain, a whole number from 1 to 16; -1 draws 1, 2 or 3 for each chain.
    alpha: a real number from 0.001 to 1,000. The smaller it is, the more one image dominates the mix.
    all_ops: whether to include the distortions in the last row of the table.
    fill: the value of pixels that come from outside the image, a whole number from 0 to 255.

  Returns:
    A function `layer(image, seed)` like those that `rand_augment` returns. Its `draws` are m and all weights but the
    last, in units of 2^-24, and for each chain its distortions and by how much its depth exceeds the smallest one.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements Hendrycks et al., *AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty*, ICLR
  2020, section 3.
  """
  whole = lambda name, value, *limits: checked_whole(f"{name} of augmix", value, *limits)
  severity = whole("severity", severity, 1, _LAST_STEP + 1, "Pass 3, or 1 for the weakest distortions.")
  width = whole("mixture_width", mixture_width, 1, 16, "Pass 3, as in the paper.")
  if not (checks.is_real(chain_depth) and chain_depth == -1):
    chain_depth = whole("chain_depth", chain_depth, 1, 16, "Pass -1 to draw a depth of 1, 2 or 3 for each chain.")
  alpha = checked_real("alpha of augmix", alpha, 0.001, 1000, "Pass 1, as in the paper, to draw all weights uniformly.")
  all_ops = checks.checked_flag("all_ops of augmix", all_ops, "Pass False to leave out distortions of colors.")
  fill = whole("fill", fill, 0, 255, "Pass 0 for black, 128 for grey.")
  steps = [torchvision_distortions(k, _LAST_STEP) | _own(k / _LAST_STEP) for k in range(severity)]
  unused = {"identity", "invert", *(() if all_ops else _COLORS)}
  found = {name: parameters for name, parameters in all_strengths(steps).items() if name not in unused}
  operation = PolicyLayer("augmix", *equally_likely(found, 2 * severity), fill=fill)
  depths = "1,3" if chain_depth == -1 else f"{chain_depth},{chain_depth}"
  text = f"layers={text_of([operation])} width={width} depths={depths} alpha={alpha!r}"
  shown = f"{severity}, {width}, {chain_depth}, {alpha:g}, {all_ops}, fill={fill}"
  return DrawingLayer("augmix", text, shown, outcomes=(math.inf, math.inf))


def _own(level):
  """The distortions whose strengths differ from torchvision's other policies."""
  moves = {f"truncate_{axis}": (level / 3, -level / 3) for axis in "xy"}
  return {**moves, "posterize": (4 - round(4 * level), None)}
