"""Callables of libraries that work on other arrays than TensorFlow's: in a list they would leave its tensors as they are, or fail."""
from __future__ import annotations

import functools

import numpy as np

# By the package of a class or function. The first that a class is made of counts.
_LIBRARIES = ("albumentations", "imgaug", "kornia", "monai", "torch", "torchaudio", "torchvision")
_LONGEST_SHOWN = 80


def library_of(function):
  """The library that a callable is of, or that its class is made of; None if it is of none of these."""
  while isinstance(function, functools.partial):
    function = function.func
  function = getattr(function, "__self__", function)
  kinds = function.__mro__ if isinstance(function, type) else type(function).__mro__
  packages = [(getattr(each, "__module__", None) or "").split(".")[0] for each in (function, *kinds)]
  return next((package for package in packages if package in _LIBRARIES), None)


def check_is_none(what, function, where=""):
  """Raises TypeError if `function`, which is called `what`, is of a library. `where` says where it stands."""
  library = library_of(function)
  if library:
    shown = repr(function)
    if "\n" in shown or "<" in shown or len(shown) > _LONGEST_SHOWN:
      shown = _name_of(function) if hasattr(function, "__name__") else f"{_name_of(function)}(...)"
    raise TypeError(
        f"{what} must take TensorFlow's tensors, got {shown} of {library}{where}, which leaves them as they are or fails. Put "
        f"rtf.augment.numpy_layer({shown}) into a list: processes call it with arrays. Or use a layer of rtf.augment, which is faster: the "
        "page From torchvision, albumentations, Keras has a table.")


def adapted(fn):
  """`fn`, or for a callable of a library a function `augment(image, rng)` that calls it with what it takes."""
  library = library_of(fn)
  if library is None:
    return fn
  adapters = {"albumentations": _by_keywords, "imgaug": _by_keywords, "kornia": _with_fractions, "monai": _with_channels_first}
  augment = adapters.get(library, _with_tensors)(fn)
  augment.__name__ = _name_of(fn)
  return augment


def _name_of(fn):
  while isinstance(fn, functools.partial):
    fn = fn.func
  return getattr(fn, "__name__", type(fn).__name__)


# They run in processes that have no TensorFlow, and so do not name anything of this package.

def _by_keywords(fn):

  def augment(image, rng, **targets):
    if image.ndim > 3:
      raise ValueError("It takes one image [height, width, channels]. Call it for each frame, in a function of your own.")
    made = fn(image=image, **targets)
    return {name: made[name] for name in ("image", *targets)} if targets else made["image"] if isinstance(made, dict) else made

  return augment


def _with_channels_first(fn):

  def augment(image, rng):
    return np.moveaxis(np.asarray(fn(np.ascontiguousarray(np.moveaxis(image, -1, 0)))), 0, -1)

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
