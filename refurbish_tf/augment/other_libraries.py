"""Callables of libraries that work on other arrays than TensorFlow's: in a list they would leave its tensors as they are, or fail."""
from __future__ import annotations

import functools
import inspect
import types

import numpy as np
import tensorflow as tf

from .layers import way_to_uint8

_LIBRARIES = ("albumentations", "imgaug", "kornia", "monai", "torch", "torchaudio", "torchvision")
_LONGEST_SHOWN = 80


def library_of(function):
  """The library that a callable is of, or that its class inherits from; None for other callables, also those of Keras."""
  function = _unwrapped(function)
  if isinstance(function, types.MethodType):
    if function.__name__ not in ("__call__", "forward"):
      return _first_of([function.__func__])  # A class of the user's may inherit from a library's.
    function = function.__self__
  return _first_of([function, *(function if isinstance(function, type) else type(function)).__mro__])


def _unwrapped(function):
  while isinstance(function, functools.partial):
    function = function.func
  return function


def _first_of(objects):
  packages = [(getattr(each, "__module__", None) or "").split(".")[0] for each in objects]
  # With KERAS_BACKEND=torch its layers are torch modules, too.
  return next((package if package != "keras" else None for package in packages if package in ("keras", *_LIBRARIES)), None)


def check_is_none(what, function, where=""):
  """Raises TypeError if `function`, the argument `what`, is of a library. `where`: its place in the argument."""
  library = library_of(function)
  if library:
    shown = getattr(function, "__name__", repr(function))
    if "\n" in shown or "<" in shown or len(shown) > _LONGEST_SHOWN:
      shown = None
    raise TypeError(
        f"{what} must take TensorFlow's tensors, got {shown or _name_of(function)} of {library}{where}. It would leave them as they are, or "
        f"fail. Put rtf.augment.numpy_layer({shown or 'transform'}) into a list, which calls it with arrays in processes; or a layer of "
        "rtf.augment, which is faster: the page From torchvision, albumentations, Keras has a table.")


def adapted(fn):
  """`fn`, or for a callable of a library a function `augment(image, rng)` that calls it with what it takes."""
  library = library_of(fn)
  if library is None or _takes_rng(fn):
    return fn
  if library == "monai" and any(hasattr(each, "keys") for each in (fn, *getattr(fn, "transforms", ()))):
    raise TypeError(
        f"fn of numpy_layer must take an image, got {_name_of(fn)} of monai, which takes a dict. Pass a function of arrays that calls it: "
        "the page Volumes has a program.")
  adapters = {"albumentations": _by_keywords, "imgaug": _by_keyword, "kornia": _with_fractions, "monai": _with_channels_first}
  augment = adapters.get(library, _with_tensors)(fn)
  augment.__name__, augment.library = _name_of(fn), library
  return augment


def check_can_take(augment, image, targets):
  """Raises unless what `adapted` made can be called with these."""
  library = getattr(augment, "library", None)
  if library and image.dtype == tf.string:
    raise TypeError(
        f"image of {augment.__name__} of {library} must be pixels, got strings of shape {image.shape}, such as the bytes of a file. "
        f"{way_to_uint8(image.dtype)}")
  if library not in (None, "albumentations") and targets:
    raise ValueError(
        f"fn of numpy_layer, {augment.__name__} of {library}, takes the image alone, and targets are to follow it. Pass a "
        "function of yours with a parameter for each, which calls it, as in fn(image, mask, rng), and returns a dict of their names.")


def _takes_rng(fn):
  """Whether it is of a class of the user's, and called as a function of the user's."""
  for each in (fn, getattr(fn, "forward", None)):
    try:
      if "rng" in inspect.signature(each).parameters:
        return True
    except (TypeError, ValueError):  # Built-in functions, and None.
      pass
  return False


def _name_of(fn):
  fn = _unwrapped(fn)
  return getattr(fn, "__name__", type(fn).__name__)


# They run in processes that have no TensorFlow, and so do not name anything of this package.

def _by_keywords(fn):

  def augment(image, rng, **targets):
    if image.ndim > 3:
      raise ValueError("It takes one image [height, width, channels]. Call it for each frame, in a function of your own.")
    made = fn(image=image, **targets)
    return {name: made[name] for name in ("image", *targets)} if targets else made["image"] if isinstance(made, dict) else made

  return augment


def _by_keyword(fn):
  return lambda image, rng: fn(image=image)


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
    return (made.movedim(-3, -1) if has_channels else made).detach().numpy()

  return augment


def _with_fractions(fn):

  def augment(image, rng):
    import torch
    if image.ndim != 3:
      raise ValueError("It takes one image [height, width, channels]. Call it in a function of your own.")
    is_whole = image.dtype == np.uint8
    tensor = torch.from_numpy(image).movedim(-1, 0)[None]
    made = fn(tensor.float() / 255 if is_whole else tensor)[0].movedim(0, -1).detach()
    return ((255 * made).round().clamp(0, 255).to(torch.uint8) if is_whole else made).numpy()

  return augment
