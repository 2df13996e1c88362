"""Callables of libraries that do not take TensorFlow's tensors: as layers they would leave them unchanged, or fail."""

import inspect
import types

import numpy as np
import tensorflow as tf

from .layers import layer_name, unwrapped, way_to_uint8
from .target_kinds import BOXES, KEY_POINTS, shown

_LIBRARIES = ("albumentations", "imgaug", "kornia", "monai", "torch", "torchaudio", "torchvision")
_LONGEST_SHOWN = 80
# For albumentations: its names of targets, the arguments of Compose for their format, and its names of formats.
_KEYWORDS = dict.fromkeys(("mask", "bilinear"), "mask")
_KEYWORDS |= dict.fromkeys(BOXES, "bboxes") | dict.fromkeys(KEY_POINTS, "keypoints")
_PARAMETERS = {"bboxes": "bbox_params=BboxParams", "keypoints": "keypoint_params=KeypointParams"}
_FORMATS = {"xyxy": "pascal_voc", "xywh": "coco", "rel_center_xywh": "yolo", "rel_xyxy": "albumentations", "xy": "xy"}


def library_of(function):
  """The library that a callable, or a base of its class, comes from; otherwise None, such as for Keras layers."""
  function = unwrapped(function)
  if isinstance(function, types.MethodType):
    if function.__name__ not in ("__call__", "forward"):
      return _first_of([function.__func__])  # The user's class may inherit from a library's.
    function = function.__self__
  return _first_of([function, *(function if isinstance(function, type) else type(function)).__mro__])


def _first_of(objects):
  packages = [(getattr(each, "__module__", None) or "").split(".")[0] for each in objects]
  # With KERAS_BACKEND=torch, Keras layers are also torch modules.
  known = next((package for package in packages if package in ("keras", *_LIBRARIES)), None)
  return None if known == "keras" else known


def check_is_none(what, function, where=""):
  """Raises TypeError if `function`, the argument `what`, comes from a library. `where`: its place in the argument."""
  library = library_of(function)
  if library:
    shown = getattr(function, "__name__", repr(function))
    if "\n" in shown or "<" in shown or len(shown) > _LONGEST_SHOWN:
      shown = None
    raise TypeError(
      f"{what} must take TensorFlow's tensors, got {shown or layer_name(function)} of {library}{where}, which would "
      f"leave them as they are, or fail. Put rtf.augment.numpy_layer({shown or 'transform'}) into a list, which calls "
      "it with arrays in processes. A layer of rtf.augment is faster: the page From torchvision, albumentations, Keras "
      "has a table."
    )


def adapted(fn):
  """`fn` itself or, for a library's callable, a function `augment(image, rng)` that calls it with its arrays."""
  library = library_of(fn)
  if library is None or _takes_rng(fn):
    return fn
  if library == "monai" and _takes_dict(fn):
    raise TypeError(
      f"fn of numpy_layer must take an image, got {layer_name(fn)} of monai, which takes a dict. Pass a function of "
      "arrays that calls it: the page Volumes has a program."
    )
  if library == "torchvision" and layer_name(fn) in ("CutMix", "MixUp"):
    raise TypeError(
      f"fn of numpy_layer must take a single image, got {layer_name(fn)} of torchvision, which mixes the images of a "
      f"batch. Put our own after batch: .batch(B).map(rtf.augment.{layer_name(fn).lower()}(...))."
    )
  adapters = {
    "albumentations": _by_keywords,
    "imgaug": lambda fn: lambda image, rng: fn(image=image),
    "kornia": _with_fractions,
  }
  augment = {**adapters, "monai": _with_channels_first}.get(library, _with_tensors)(fn)
  augment.__name__, augment.library = layer_name(fn), library
  return augment


def check_is_decoded(augment, image):
  """Raises TypeError if `adapted` made the function, which needs pixels, and the image is the bytes of a file."""
  if hasattr(augment, "library") and image.dtype == tf.string:
    raise TypeError(
      f"image of {augment.__name__} of {augment.library} must be pixels, got strings of shape {image.shape}, such as "
      f"the bytes of a file. {way_to_uint8(image.dtype)}"
    )


def keywords(augment, fn, names, targets):
  """The keywords for a function's targets, triples of a path, a kind and a tensor, that have these names.

  Raises if `adapted` made the function from a transform `fn` that does not move these targets.
  """
  library = getattr(augment, "library", None)
  if library is None:
    return names
  whose = f"fn of numpy_layer, {augment.__name__} of {library},"
  own = (
    "Pass your own function with a parameter for each target, fn(image, mask, rng), which calls the transform and "
    "returns a dict."
  )
  if library != "albumentations":
    raise ValueError(f"{whose} is called with the image alone, but targets are declared. {own}")
  transform, found = unwrapped(fn), []
  more = getattr(transform, "additional_targets", None) or {}
  for name, (path, kind, _) in zip(names, targets):
    keyword = name if name in more else _KEYWORDS.get(kind)
    if keyword is None or keyword in found:
      raise ValueError(
        f"{whose} cannot take the component {shown(path)}, a target {kind!r}: without additional_targets in its "
        f"Compose, albumentations takes one mask, one array of boxes and one of key points. {own}"
      )
    found.append(keyword)
    processor = more.get(name, keyword)
    if processor in _PARAMETERS:
      params = getattr(getattr(transform, "processors", {}).get(processor), "params", None)
      there, wanted = getattr(params, "format", None), _FORMATS.get(kind)
      if wanted is None or there != wanted:
        way = f"It takes the kinds {', '.join(map(repr, _FORMATS))}: convert the target in Dataset.map first."
        if wanted:
          way = f"Create it with Compose([...], {_PARAMETERS[processor]}({wanted!r}))."
        raise ValueError(
          f"{whose} must have the format of the component {shown(path)}, a target {kind!r}, got {there!r}. {way}"
        )
  return found


def _takes_rng(fn):
  """Whether `fn` has a parameter `rng`: then it is of the user's own class, and is called like a user's function."""
  for each in (fn, getattr(fn, "forward", None)):
    try:
      if "rng" in inspect.signature(each).parameters:
        return True
    except (TypeError, ValueError):  # Built-in functions, and None.
      pass
  return False


def _takes_dict(fn):
  return hasattr(fn, "keys") or any(map(_takes_dict, getattr(fn, "transforms", ())))


# The adapters run in processes without TensorFlow, so they do not use this package.


def _by_keywords(fn):

  def augment(image, rng, **targets):
    if image.ndim > 3:
      raise ValueError(
        "It takes one image [height, width, channels]. Call it for each frame, in a function of your own."
      )
    made = fn(image=image, **targets)
    if targets:
      return {name: made[name] for name in ("image", *targets)}
    return made["image"] if isinstance(made, dict) else made

  return augment


def _with_channels_first(fn):

  def augment(image, rng):
    has_channels = image.ndim > 2
    made = np.asarray(fn(np.ascontiguousarray(np.moveaxis(image, -1, 0) if has_channels else image[np.newaxis])))
    return np.moveaxis(made, 0, -1) if has_channels else made[0]

  return augment


def _with_tensors(fn):

  def augment(image, rng):
    import torch

    has_channels, tensor = image.ndim > 2, torch.from_numpy(image)
    made = fn(tensor.movedim(-1, -3) if has_channels else tensor)
    if not isinstance(made, torch.Tensor):
      raise TypeError(
        f"It must return one tensor, got {type(made).__name__}. End a Compose that has ToPILImage with PILToTensor. "
        "For several crops, call it in a function of your own."
      )
    return (made.movedim(-3, -1) if has_channels else made).detach().numpy()

  return augment


def _with_fractions(fn):

  def augment(image, rng):
    import torch

    if image.ndim != 3:
      raise ValueError("It takes one image [height, width, channels]. Call it in a function of your own.")
    is_whole = image.dtype == np.uint8
    if not is_whole and image.size and image.max() > 20:
      raise ValueError(
        f"kornia takes floats from 0 to 1, got values up to {image.max():g}. Divide by 255 first, or pass uint8."
      )
    tensor = torch.from_numpy(image).movedim(-1, 0)[None]
    made = fn(tensor.float() / 255 if is_whole else tensor)[0].movedim(0, -1).detach()
    return ((255 * made).round().clamp(0, 255).to(torch.uint8) if is_whole else made).numpy()

  return augment
