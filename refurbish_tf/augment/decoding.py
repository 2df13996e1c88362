"""Decoding as the first layer of a partial augmentation: it decodes only the part and the size that are needed."""

import math
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import checks, native
from .final_layers import checked_size, name_of_dtype, random_resized_crop, resized
from .layers import checked_range, checked_seed, checked_whole, of_rank
from .native_layers import NativeLayer, pieces, target_arguments

# Pillow's limit on the pixels that a file may claim.
MAX_PIXELS = 178_956_970


def decode_random_resized_crop(
  size: int | Sequence[int] | None = None,
  *,
  scale: Sequence[float] = (0.08, 1.0),
  ratio: Sequence[float] = (3 / 4, 4 / 3),
  apply_exif_orientation: bool | None = None,
  max_pixels: int = MAX_PIXELS,
  dtype: Any = "uint8",
) -> Callable[..., tf.Tensor]:
  """Returns a layer that decodes only a random part of an image file, and resizes it.

  >>> file = tf.io.encode_jpeg(tf.zeros([300, 400, 3], tf.uint8))
  >>> train = tf.data.Dataset.from_tensors((file, 1)).refurbish(
  ...     [rtf.augment.decode_random_resized_crop(224), rtf.augment.rand_augment()],
  ...     [rtf.augment.random_crop(padding=4), rtf.augment.random_flip()], r=3)
  >>> train.element_spec[0].shape
  TensorShape([224, 224, 3])

  With `rtf.sources.image_folder(directory)` in place of `from_tensors`, this is the pipeline for a directory of
  photographs.

  The window has a random fraction of the image's area, a random aspect ratio, uniform in its logarithm, and a random
  place. Up to ten are drawn until one fits into the image; if none fits, the layer takes the largest window in the
  middle of the image whose aspect ratio is allowed. It is resized as by `augment.resize(size)`. A JPEG file whose
  window is at least twice the size, in both directions, is decoded at 1/2, 1/4 or 1/8 of its size, which takes less
  time and gives nearly the same pixels; at full size they equal Pillow's. Other files are decoded whole.

  Several files are the frames of a clip: all have the same window. In a list of layers, masks, boxes and key points
  follow if `targets` of `compose` names them. They must match the decoded image: turned, unless
  `apply_exif_orientation` is False.

  Args:
    size: the size of the result, a whole number of pixels from 1 to 65,535, or `(height, width)`. None keeps the size
      of the window: then add a layer that gives all images one size.
    scale: the smallest and the largest fraction of the image's area, above 0 and at most 1.
    ratio: the smallest and the largest aspect ratio, width divided by height, above 0.
    apply_exif_orientation: whether to first turn or mirror a photograph as the EXIF block of a JPEG, PNG or WebP file
      says. Cameras and phones store photographs in sensor orientation; viewers turn them. None turns them, but raises
      an error with targets: pass True if they were drawn on turned photographs, and False if they were drawn on the
      pixels as stored. A damaged block is ignored.
    max_pixels: the most pixels that a file may claim, height times width, a whole number of at least 1. A larger file
      raises an error before memory is allocated, because a few bytes can claim any size. The default is Pillow's limit.
    dtype: "uint8" or "uint16", or TensorFlow's names for them. A PNG file with 16 bits per value needs uint16, because
      uint8 would truncate it; other files need uint8.

  Returns:
    A function `layer(file, seed)` of the bytes of a JPEG, PNG, GIF (its first frame), BMP or WebP file, string `[]`, or
    of several, `[frames]`, and a seed, int32 or int64 `[2]` as for `tf.random.stateless_uniform`. It returns `[height,
    width, 3]`, or `[frames, height, width, 3]`, in `dtype`, the same for the same file and seed. Without `size`, the
    size varies between calls. It raises `TypeError` for another dtype, `ValueError` for another shape, and, when it
    runs, `tf.errors.InvalidArgumentError` for a file that is damaged, has another format, claims more than `max_pixels`
    or does not fit `dtype`, and for frames of unequal size.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements the random crop of Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, section 6. Lee et al.,
  *Refurbish Your Training Data*, USENIX ATC 2021, section 7.1, begin their partial augmentation for ImageNet with it.
  """
  scale = checked_range("decode_random_resized_crop", "scale", scale, 1)
  ratio = checked_range("decode_random_resized_crop", "ratio", ratio, math.inf)
  # Without a size the crop is not resized, so the 1 has no effect.
  to_size = 1 if size is None else checked_size(size, "decode_random_resized_crop")
  crop = random_resized_crop(to_size, scale, ratio, antialias=True)
  shown, options = f"{size}, scale={scale}, ratio={ratio}", (apply_exif_orientation, max_pixels, dtype)
  return _DrawingDecoder("decode_random_resized_crop", crop, size is not None, shown, *options)


def decode(
  size: int | Sequence[int] | None = None,
  *,
  crop_to_aspect_ratio: bool = False,
  pad_to_aspect_ratio: bool = False,
  fill_value: int = 0,
  apply_exif_orientation: bool | None = None,
  max_pixels: int = MAX_PIXELS,
  dtype: Any = "uint8",
) -> Callable[..., tf.Tensor]:
  """Returns a layer that decodes an image file and resizes it: `decode_random_resized_crop` for validation data.

  >>> file = tf.io.encode_jpeg(tf.zeros([300, 400, 3], tf.uint8))
  >>> rtf.augment.decode(256)(file).shape, rtf.augment.decode((224, 224), crop_to_aspect_ratio=True)(file).shape
  (TensorShape([256, 341, 3]), TensorShape([224, 224, 3]))

  It resizes as `augment.resize` does. A JPEG file that is at least twice as large, in both directions, is decoded at
  1/2, 1/4 or 1/8 of its size.

  Args:
    size: the shortest side, a whole number from 1 to 65,535, or the exact `(height, width)`. None keeps the image's.
    crop_to_aspect_ratio, pad_to_aspect_ratio, fill_value: as for `resize`. They need a `size`.
    apply_exif_orientation, max_pixels, dtype: as for `decode_random_resized_crop`.

  Returns:
    A function `layer(file)` of the bytes of one file, or of the frames of a clip, like the one that
    `decode_random_resized_crop` returns. It returns `[height, width, 3]`, or `[frames, height, width, 3]`, in `dtype`,
    and raises the same errors.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  to_size = (1, 1) if size is None else size
  arguments, shown = resized("decode", to_size, True, crop_to_aspect_ratio, pad_to_aspect_ratio, fill_value)
  if size is None and (crop_to_aspect_ratio or pad_to_aspect_ratio):
    raise ValueError(
      "size of decode must be (height, width) with crop_to_aspect_ratio or pad_to_aspect_ratio, got None. "
      "Pass (224, 224)."
    )
  if fill_value and name_of_dtype(dtype) == "uint16":
    raise ValueError(
      f"fill_value of decode must be 0 with dtype=tf.uint16, got {fill_value}. Leave it out for black borders."
    )
  shown = "" if size is None else shown.replace(", antialias=True", "")
  options = apply_exif_orientation, max_pixels, dtype
  return Decoder("decode", NativeLayer("resize", arguments), size is not None, shown, *options)


class Decoder:
  """Decodes the part of an image file that `layer` uses, possibly all of it, and resizes it if `resizes`."""

  def __init__(self, name, layer, resizes, shown, applies_orientation, max_pixels, dtype):
    self._turns, way = applies_orientation, "True turns photographs as viewers do."
    if applies_orientation is not None:
      self._turns = checks.checked_flag(f"apply_exif_orientation of {name}", applies_orientation, way)
    dtype_name = name_of_dtype(dtype)
    if dtype_name not in ("uint8", "uint16"):
      raise ValueError(
        f"dtype of {name} must be uint8 or uint16, got {dtype!r}. Pass tf.uint16 for PNG files with 16 bits per value, "
        "and leave it out for all others. For floats, add normalize."
      )
    self.__name__ = name
    self._layer, self._resizes = layer, resizes
    # See `NativeLayer.outcomes`.
    self.outcomes = layer.outcomes
    way = f"Leave it out for {MAX_PIXELS:,}, Pillow's limit."
    self._arguments = {
      "layers": pieces(layer.text, -1),
      "resizes": resizes,
      "apply_exif_orientation": self._turns is not False,
      "max_pixels": checked_whole(f"max_pixels of {name}", max_pixels, 1, 2**62, way),
      "T": tf.as_dtype(dtype_name),
    }
    self._shown = shown
    self._shown += "" if self._turns is None else f", apply_exif_orientation={self._turns}"
    self._shown += f", max_pixels={max_pixels}" if max_pixels != MAX_PIXELS else ""
    self._shown += ", dtype=tf.uint16" if dtype_name == "uint16" else ""
    self._shown = self._shown.removeprefix(", ")
    # Whether pixels may move. They may also move if the user has not chosen whether to turn photographs.
    self.moves_pixels = layer.takes_seed or resizes or self._turns is None

  def check_targets(self):
    """Raises ValueError unless the user has said whether targets belong to the turned photograph."""
    if self._turns is None:
      raise ValueError(
        f"apply_exif_orientation of {self.__name__} must be given with targets, got None: boxes and masks match only "
        "one of the two. Pass True if yours were drawn on photographs as viewers show them, and False if they were "
        "drawn on the pixels as they are stored."
      )

  def __repr__(self):
    return f"{self.__name__}({self._shown})"

  @tf.autograph.experimental.do_not_convert
  def __call__(self, file):
    return self.with_targets(file, [])[0]

  @tf.autograph.experimental.do_not_convert
  def with_targets(self, file, targets, seed=None):
    """Returns the image and its targets. `targets`: triples of a path, a kind and a tensor."""
    seed = tf.zeros([2], tf.int32) if seed is None else checked_seed(seed, self.__name__)
    file, arguments = _checked_file(file, self.__name__), {**target_arguments(targets), **self._arguments}
    return tuple(native.ops().refurbish_tf_decode_resized(file=file, seed=seed, **arguments))


class _DrawingDecoder(Decoder):
  """Decodes a random part."""

  def apart(self):
    """Returns two layers: a deterministic one that decodes the whole image, and a crop; or None without a size.

    Their pixels differ from this layer's, which decodes a large window of a JPEG file at a smaller size.
    """
    if not self._resizes:
      return None
    arguments = self._arguments
    whole = decode(apply_exif_orientation=self._turns, max_pixels=arguments["max_pixels"], dtype=arguments["T"])
    return whole, self._layer

  @tf.autograph.experimental.do_not_convert
  def __call__(self, file, seed):
    return self.with_targets(file, [], seed)[0]


def _checked_file(file, whose):
  file = tf.convert_to_tensor(file)
  if file.dtype != tf.string:
    raise TypeError(
      f"file of {whose} must be the bytes of an image file, a string, got dtype {file.dtype.name}. Put the layer "
      "first, before any other decoding; for decoded images use random_resized_crop or resize."
    )
  if file.shape.rank is not None and file.shape.rank > 1:
    raise ValueError(
      f"file of {whose} must be a single file, of shape [], or the frames of a clip, [frames], got shape {file.shape}. "
      "Put the layer before batch."
    )
  if file.shape.rank is None:
    return of_rank(file, 0, "a single file, of shape []", "tf.ensure_shape(files, [None]) for the frames of a clip")
  return file
