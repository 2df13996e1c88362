"""Layers that move pixels: crop, padding, transposition, rotation and shear, perspective, elastic deformation."""

import math
from typing import Any, Literal, Sequence

from refurbish_tf._internal.checks import is_real
from .final_layers import LARGEST_PADDING, checked_size
from .layers import checked_fill, checked_real, checked_whole, ends_of, is_pair
from .native_layers import ChanceLayer, DrawingLayer, NativeLayer

_MODES = ("constant", "edge", "reflect", "symmetric")
_STEEPEST = 80
# The forms of a range of angles, and of a translation.
_ANGLES = "a number of at least 0, or two, the smaller one first,"
_PAIR = "two numbers, for the width and the height,"


def center_crop(size: int | Sequence[int]) -> Any:
  """Returns a layer that keeps the middle of the image.

  >>> rtf.augment.center_crop(224)(tf.zeros([256, 341, 3], tf.uint8)).shape
  TensorShape([224, 224, 3])
  >>> rtf.augment.center_crop((1, 4))(tf.constant([[[1], [2]]], tf.uint8)).numpy()[..., 0].tolist()
  [[0, 1, 2, 0]]

  It keeps the same pixels as torchvision's `CenterCrop`. A smaller image gets zeros on both sides. Validation images
  are usually prepared with `resize(256)` and `center_crop(224)`. Keras' `CenterCrop` resizes smaller images.

  Args:
    size: the size of the crop, a whole number of pixels from 1 to 65,535 for a square, or `(height, width)`.

  Returns:
    A function `layer(image)` of an image or a batch, like the one that `random_crop` returns. It draws nothing. Its
    result has that size.

  Raises:
    TypeError, ValueError: `size` has the wrong type or is out of range.
  """
  height, width = checked_size(size, "center_crop")
  return NativeLayer("center_crop", f"height={height} width={width}", f"({height}, {width})")


def pad(
  padding: int | Sequence[int],
  fill: int | Sequence[int] = 0,
  padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant",
) -> Any:
  """Returns a layer that adds pixels on each side of the image.

  >>> image = tf.constant([[[1], [2], [3]]], tf.uint8)
  >>> rtf.augment.pad((1, 0), fill=9)(image).numpy()[..., 0].tolist()
  [[9, 1, 2, 3, 9]]
  >>> rtf.augment.pad((2, 0, 0, 1), padding_mode="edge")(image).numpy()[..., 0].tolist()
  [[1, 1, 1, 2, 3], [1, 1, 1, 2, 3]]

  The arguments have the same meaning as in torchvision's `Pad`. Masks are padded with their image, by 0 for any `fill`.

  Args:
    padding: how many pixels to add, each a whole number from 0 to 16,383: one number for all sides,
      `(left and right, top and bottom)`, or `(left, top, right, bottom)`.
    fill: the value of new pixels with padding_mode="constant", a whole number from 0 to 255, or three, one for each
      channel.
    padding_mode: "constant"; "edge", which repeats the outermost pixels; "reflect", which mirrors the image at the
      middle of its outermost pixels, and needs a padding smaller than the side of the image; or "symmetric", which
      mirrors it at its edge, and needs a padding of at most that side.

  Returns:
    A function `layer(image)` of an image or a batch, like the one that `random_crop` returns. It draws nothing. A
    `fill` other than 0 needs uint8 images with at most four channels; three values need three channels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range, or `fill` is given with another
      `padding_mode`.
  """
  sides = list(padding) if isinstance(padding, (list, tuple)) else [padding]
  if len(sides) not in (1, 2, 4):
    raise ValueError(
      "padding of pad must be one number, (left and right, top and bottom), or (left, top, right, bottom), got "
      f"{padding!r}. Pass 4 for four pixels on each side."
    )
  left, top, right, bottom = [
    checked_whole("padding of pad", side, 0, LARGEST_PADDING, "Pass a number of pixels, such as 4.")
    for side in (sides * 4)[:4]
  ]
  if not isinstance(padding_mode, str) or padding_mode not in _MODES:
    raise ValueError(
      f"padding_mode of pad must be one of {', '.join(_MODES)}, got {padding_mode!r}. Leave it out for a single color."
    )
  values = checked_fill("fill of pad", fill)
  if any(values) and padding_mode != "constant":
    raise ValueError(
      f"fill of pad needs padding_mode='constant', got {fill!r} with {padding_mode!r}. Leave one of them out."
    )
  return NativeLayer(
    "pad",
    f"left={left} top={top} right={right} bottom={bottom} mode={padding_mode} fill={','.join(map(str, values))}",
    f"({left}, {top}, {right}, {bottom}), fill={fill!r}, padding_mode={padding_mode!r}",
  )


def random_rotate90() -> Any:
  """Returns a layer that turns the image by 0, 90, 180 or 270 degrees, each equally likely.

  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_rotate90()(image, seed=[2, 0]).numpy()[..., 0].tolist()
  [[2, 4], [1, 3]]

  It is albumentations' `RandomRotate90(p=1)`, for images without a preferred direction, such as satellite images. It
  moves whole pixels, so it is exact for all dtypes and numbers of channels. With `random_flip` it draws from all eight
  orientations of a square.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. The image must be square: otherwise quarter
    turns would give images of two sizes. Put `random_crop(size)` or `center_crop(size)` before it.
  """
  return DrawingLayer("random_rotate90", outcomes=(4, 4))


def random_transpose(p: float = 0.5) -> Any:
  """Returns a layer that swaps the rows and columns of the image with probability `p`.

  >>> image = tf.constant([[[1], [2], [3]], [[4], [5], [6]]], tf.uint8)
  >>> rtf.augment.random_transpose(p=1)(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[1, 4], [2, 5], [3, 6]]

  It is albumentations' `Transpose`. It mirrors the image at its diagonal, and moves whole pixels, so it is exact for
  all dtypes and numbers of channels.

  Args:
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. The image must be square unless `p` is 1 or
    0: otherwise images would have two sizes. With `p=1` the result is as high as the image was wide.

  Raises:
    TypeError, ValueError: `p` is not a real number from 0 to 1.
  """
  return ChanceLayer("random_transpose", p)


def random_affine(
  degrees: float | Sequence[float],
  translate: Sequence[float] | None = None,
  scale: Sequence[float] | None = None,
  shear: float | Sequence[float] | None = None,
) -> Any:
  """Returns a layer that turns the image by a random angle, and moves, scales and shears it.

  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_affine(degrees=(90, 90))(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[3, 1], [4, 2]]
  >>> rtf.augment.random_affine(15, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5)(image, seed=[7, 0]).shape
  TensorShape([2, 2, 1])

  The arguments have the same meaning as in torchvision's `RandomAffine`. Each amount is drawn uniformly. The image
  keeps its size, and without a translation its middle stays in place. Each pixel is the nearest one, torchvision's
  default, in the arithmetic of Pillow; pixels from outside are 0. Masks, boxes and key points follow.

  Args:
    degrees: a range `(low, high)` of clockwise angles, from -360 to 360; or a number `d`, for the range from `-d` to
      `d`. 0 does not turn.
    translate: how far the image moves at most, to the right or the left and up or down, as fractions of its width and
      height, from 0 to 1. It moves by whole pixels.
    scale: a range of factors, from 0.01 to 100. 2 shows a part of the image twice as large.
    shear: a range of angles in degrees, from -80 to 80, by which vertical edges are slanted; or a number, as for
      `degrees`; or four numbers, the last two for horizontal edges.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but for uint8 images with three channels or
    one, with sides of at most 32,767 pixels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  right = down = 0
  if translate is not None:
    right, down = _checked_amounts("translate", translate, 0, 1, _PAIR, ordered=False)
  ranges = {
    "degrees": _checked_amounts("degrees", _around_zero(degrees), -360, 360, _ANGLES),
    "translate_x": (-right, right),
    "translate_y": (-down, down),
    "scale": (1.0, 1.0),
    **dict.fromkeys(("shear_x", "shear_y"), (0.0, 0.0)),
  }
  if scale is not None:
    ranges["scale"] = _checked_amounts("scale", scale, 0.01, 100, "two numbers, the smaller one first,")
  if shear is not None:
    is_four = isinstance(shear, (list, tuple)) and len(shear) == 4
    for name, angles in zip(("shear_x", "shear_y"), (shear[:2], shear[2:]) if is_four else [_around_zero(shear)]):
      ranges[name] = _checked_amounts("shear", angles, -_STEEPEST, _STEEPEST, _ANGLES)
  number = math.inf if any(high > low for low, high in ranges.values()) else 1
  given = {"translate": translate, "scale": scale, "shear": shear}
  shown = ", ".join([f"{degrees}", *(f"{name}={value}" for name, value in given.items() if value is not None)])
  text = " ".join(f"{name}={low!r},{high!r}" for name, (low, high) in ranges.items())
  return DrawingLayer("random_affine", text, shown, outcomes=(number, number))


def random_rotation(degrees: float | Sequence[float]) -> Any:
  """Returns a layer that turns the image about its middle, counterclockwise by a random angle.

  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_rotation((90, 90))(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[2, 4], [1, 3]]

  It is torchvision's `RandomRotation(degrees)`. The angle is drawn uniformly, and the image keeps its size. Each pixel
  is the nearest one, torchvision's default, in the arithmetic of Pillow; pixels from outside are 0. As in torchvision,
  the angles of `random_affine` are clockwise. Masks, boxes and key points follow.

  Args:
    degrees: a range `(low, high)` of counterclockwise angles, from -360 to 360; or a number `d`, for the range from
      `-d` to `d`.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but for uint8 images with three channels or
    one, with sides of at most 32,767 pixels.

  Raises:
    TypeError, ValueError: `degrees` has the wrong type or is out of range.
  """
  low, high = _checked_amounts("degrees", _around_zero(degrees), -360, 360, _ANGLES, whose="random_rotation")
  number = math.inf if high > low else 1
  return DrawingLayer("random_rotation", f"degrees={low!r},{high!r}", f"{degrees}", outcomes=(number, number))


def random_perspective(distortion_scale: float = 0.5, p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, shows the image from a random viewpoint.

  >>> rtf.augment.random_perspective()
  random_perspective(0.5, p=0.5)
  >>> image = tf.constant([[[10 * y + x] for x in range(8)] for y in range(5)], tf.uint8)
  >>> rtf.augment.random_perspective(p=1)(image, seed=[1, 0]).numpy()[:2, :, 0].tolist()
  [[0, 0, 0, 4, 6, 7, 0, 0], [0, 11, 13, 14, 16, 27, 0, 0]]

  The arguments have the same meaning as in torchvision's `RandomPerspective`: each corner of the image moves inwards,
  in both directions, by a whole number of pixels from 0 to `distortion_scale` times half of the side, each equally
  likely. Each pixel is the nearest one, as with torchvision's `interpolation=NEAREST`; pixels from outside are 0.
  Masks, boxes and key points follow.

  Args:
    distortion_scale: how far corners move, a real number from 0 to 0.5. Larger numbers, which torchvision accepts,
      could fold the image.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but for uint8 images with three channels or
    one, with sides of 5 to 32,767 pixels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  advice = "Pass 0.5, torchvision's default, or less."
  scale = checked_real("distortion_scale of random_perspective", distortion_scale, 0, 0.5, advice)
  number = math.inf if scale else 0
  return ChanceLayer("random_perspective", p, f"scale=0,{scale!r}", f"{scale:g}", outcomes=(number, number))


def random_elastic(
  alpha: float | Sequence[float] = 50.0,
  sigma: float | Sequence[float] = 5.0,
  interpolation: Literal["bilinear", "nearest"] = "bilinear",
  fill: int | Sequence[int] = 0,
) -> Any:
  """Returns a layer that deforms the image by a smooth random field, as if seen through moving water.

  >>> rtf.augment.random_elastic()
  random_elastic(50.0, 5.0, 'bilinear', fill=0)
  >>> rtf.augment.random_elastic(alpha=(300, 100), sigma=10)(tf.zeros([224, 224, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([224, 224, 3])

  It is torchvision's `ElasticTransform` (Simard et al., *Best Practices for Convolutional Neural Networks*, 2003,
  section 3). Each pixel comes from a place nearby. Its offsets in x and in y are random numbers from -1 to 1, blurred
  by a Gaussian and multiplied by `alpha / 2` pixels: typically 0.8 pixels. The field is a function of the seed, the
  same on every machine, in all frames of a clip, and in all slices of a volume, which do not mix.

  Masks take the nearest pixel. A box becomes the bounding box of its moved outline. Boxes and key points are exact to
  0.001 pixels unless the field folds the image; torchvision's are approximate. Flow, vectors and disparities raise an
  error. `random_apply([random_elastic()], p=0.5)` deforms half of the images.

  Args:
    alpha: the strength, a real number from 0 to 100,000, or two, for x and y. More than `5 * sigma**2` folds images.
    sigma: the standard deviation of the Gaussian in pixels, at most 100, or two, for x and y. 0 does not blur.
    interpolation: "bilinear", or "nearest", which creates no new values.
    fill: the value of pixels from outside, a whole number from 0 to 255, or three, one for each channel.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, with sides of at most 32,767 pixels. A
    `fill` other than 0 needs uint8 images with at most four channels; three values need three channels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  advice = "Leave it out for torchvision's default."
  checked = lambda name, value, most: [
    checked_real(f"{name} of random_elastic", each, 0, most, advice) for each in ends_of(value)
  ]
  pairs = {"alpha": checked("alpha", alpha, 100_000), "sigma": checked("sigma", sigma, 100)}
  if pairs["sigma"].count(0) == 1:
    raise ValueError(f"sigma of random_elastic must be 0, or above 0 for both axes, got {sigma!r}. {advice}")
  if not isinstance(interpolation, str) or interpolation not in ("bilinear", "nearest"):
    raise ValueError(f"interpolation of random_elastic must be bilinear or nearest, got {interpolation!r}. {advice}")
  fills, number = checked_fill("fill of random_elastic", fill), math.inf if any(pairs["alpha"]) else 1
  text = " ".join(f"{name}_{axis}=0,{value!r}" for name, pair in pairs.items() for axis, value in zip("xy", pair))
  return DrawingLayer(
    "random_elastic",
    f"{text} nearest={int(interpolation == 'nearest')} fill={','.join(map(str, fills))}",
    f"{alpha}, {sigma}, {interpolation!r}, fill={fill}",
    outcomes=(number, number),
  )


def _around_zero(value):
  return (-value, value) if is_real(value) else value


def _checked_amounts(name, values, lowest, highest, form, *, ordered=True, whose="random_affine"):
  """Returns two floats; raises unless they are in their range."""
  within = is_pair(values) and all(lowest <= value <= highest for value in values)
  if not within or ordered and values[0] > values[1]:
    way = "Pass 0 for no turn." if name == "degrees" else "Leave it out for no change."
    raise (ValueError if is_pair(values) else TypeError)(
      f"{name} of {whose} must be {form} from {lowest} to {highest}, got {values!r}. {way}"
    )
  return float(values[0]), float(values[1])
