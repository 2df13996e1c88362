"""What is drawn for a sample: its images, their targets, and its labels in words."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf.augment import decode
from refurbish_tf.augment.target_kinds import BOXES, IMAGE_NAMES, KEY_POINTS, named, shown
from refurbish_tf.augment.target_hints import leaves

_LABELS = ("label", "labels", "class", "classes", "category")
# The smallest side of a matrix that is taken for an image without channels.
_SMALLEST_SIDE = 8
# The tolerance for rounding, such as to bfloat16.
_ROUNDED = 0.02
# Common normalisations (mean, standard deviation): images of 0 to 1, of 0 to 255, of -1 to 1, and ImageNet's.
_USUAL = ((0, 1), (0, 1 / 255), (0.5, 0.5), (np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])))


@dataclasses.dataclass
class Panel:
  """An image as the pipeline yields it, and what is drawn over it, in pixels.

  `maps` are pairs of a kind and an array [height, width, channels]; `boxes` are a row's number, the corners x, y, x, y
  and a text; `points` are a row's number and x, y. Panels with the same `view` have a common range of values.
  """

  image: np.ndarray
  view: Any
  maps: list[Any] = dataclasses.field(default_factory=list)
  boxes: list[Any] = dataclasses.field(default_factory=list)
  points: list[Any] = dataclasses.field(default_factory=list)


def kinds_of(targets, sample, of_stage=None):
  """The kinds of `targets`, which `checked_targets` returned, by path in a sample.

  With `of_stage`, a sample as the stage yields it, the targets are those of the stage. If a later function has moved a
  component, it is found by its values.
  """
  found, there = {}, _arrays(sample)
  before = {} if of_stage is None else _arrays(of_stage)
  for path, kind in (targets or {}).items():
    if kind is None:
      continue
    places = _inside(path, there, sample)
    if not places and before:
      own = [before[place] for place in _inside(path, before, of_stage)]
      places = [place for place, value in there.items() if any(_is_same(value, each) for each in own)]
    if not places:
      raise ValueError(
        f"targets: there is no component {shown(path)} in the samples to be drawn, which have {list(there)}. Name it "
        f"as it is there, as by {named((1,), kind)}, or pass targets={{}} to draw none."
      )
    found[places[0]] = kind
  return found


def _inside(path, there, sample):
  """The path of the component, in a list. For a dict of boxes and labels, the list has the paths of the boxes."""
  path = (0, *path) if isinstance(sample, tuple) and isinstance(path[0], str) else path
  return (
    [path] if path in there else [each for each, value in there.items() if each[: len(path)] == path and value.ndim > 1]
  )


def _is_same(value, before):
  """Whether the values are equal, apart from dimensions of 1 and rows of padding."""
  value = value[: len(before)] if value.ndim and before.ndim else value
  return np.array_equal(np.squeeze(value), np.squeeze(before))


def _arrays(sample):
  """The components as NumPy arrays, by path."""
  made = {}
  for path, value in leaves(sample):
    if isinstance(value, tf.RaggedTensor) and value.dtype.is_integer | value.dtype.is_floating:
      value = value.to_tensor(-1)  # Layers also treat -1 as padding of boxes and points.
    value = tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value
    made[path] = np.asarray(tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value)
  return made


def panels_of(sample, kinds, class_names, most_frames):
  """The panels of a sample, and its labels in words."""
  there = _arrays(sample)
  others = {path: value for path, value in there.items() if path not in kinds}
  images = {path: value for path, value in others.items() if _is_image(path, value)} or {
    path: _decoded(value) for path, value in others.items() if _is_file(value)
  }
  if not images:
    described = ", ".join(f"{value.dtype.name}{list(value.shape)}" for value in there.values())
    raise ValueError(
      f"dataset must yield images, [height, width, channels], clips of them, or image files, got {described}. Pass "
      "the dataset from before they become something else."
    )
  labels = {path: value for path, value in others.items() if path not in images}
  of_rows = {place: there[place].shape[:-1] for place, kind in kinds.items() if kind in BOXES and there[place].ndim > 1}
  # The image that targets follow comes first.
  main = min(images, key=lambda path: (not {*path}.intersection(IMAGE_NAMES), path[:1] != (0,)))
  images.update((path, there[path]) for path, kind in kinds.items() if kind == "image")
  following = {place: kind for place, kind in kinds.items() if kind != "image"}
  panels = []
  for path in (main, *(path for path in images if path != main)):
    value = images[path]
    frames = np.linspace(0, len(value) - 1, min(len(value), most_frames)).astype(int) if value.ndim > 3 else [...]
    for frame in frames:
      panels.append(Panel(value[frame], path))
      for place, kind in following.items() if path == main else ():
        rows = next(
          (each for each in labels.values() if each.shape == of_rows.get(place) and each.dtype.kind in "iuO"), None
        )
        texts = None if rows is None else [_name(each, class_names) for each in rows[frame].ravel()]
        _follow(panels[-1], kind, there[place][frame], texts)
  return panels, _label(
    {path: value for path, value in labels.items() if value.shape not in of_rows.values()}, class_names
  )


def _is_image(path, value):
  if value.dtype.kind not in "buif" or not value.size:
    return False
  is_first = path in ((), (0,)) or path[-1] in IMAGE_NAMES
  if value.ndim == 2:
    return min(value.shape) >= _SMALLEST_SIDE
  return value.ndim in (3, 4) and (is_first or value.shape[-1] <= 4)


def _is_file(value):
  beginnings = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")
  if value.dtype.kind != "O" or value.ndim > 1:
    return False
  return all(isinstance(each, bytes) and each.startswith(beginnings) for each in value.ravel())


def _decoded(files):
  made = [decode()(file).numpy() for file in files.ravel()]
  return np.stack(made) if files.ndim else made[0]


def _follow(panel, kind, value, texts):
  """Adds a target to a panel. Boxes also get their texts."""
  height, width = panel.image.shape[:2]
  if kind in BOXES:
    value = value.reshape(-1, 4)
    corners = keras.ops.convert_to_numpy(
      keras.utils.bounding_boxes.convert_format(value.astype(np.float32), kind, "xyxy", height=height, width=width)
    )
    # Boxes without area were cropped away, or are padding.
    panel.boxes += [
      (row, corner, text)
      for row, (corner, text) in enumerate(zip(corners, texts or [""] * len(corners)))
      if (corner[2:] > corner[:2]).all()
    ]
  elif kind in KEY_POINTS:
    points = value.reshape(-1, value.shape[-1]).astype(np.float64)
    is_seen = (points != -1).any(axis=1) & (points[:, 2:] != 0).all(axis=1)
    points = points[:, :2] * ((width, height) if kind.startswith("rel_") else 1)
    panel.points += [(row, points[row]) for row in np.flatnonzero(is_seen)]
  else:
    panel.maps.append((kind, value.reshape(height, width, -1)))


def _name(value, class_names):
  if isinstance(value, bytes):
    return value.decode("utf-8", "replace")
  is_class = class_names is not None and isinstance(value, np.integer) and 0 <= value < len(class_names)
  return class_names[value] if is_class else f"{value:.4g}" if isinstance(value, np.floating) else str(value)


def _label(others, class_names):
  """Labels in words: scalars, and the largest entries of vectors of fractions, such as mixed labels."""
  words = []
  for path, value in others.items():
    name = next((f"{key} " for key in path[-1:] if isinstance(key, str) and key not in _LABELS), "")
    names = None if name else class_names
    is_vector = value.ndim == 1 and value.dtype.kind in "fiu"
    if value.size == 1:
      words.append(name + _name(value.ravel()[0], names))
    elif is_vector and value.min() >= 0 and math.isclose(value.sum(), 1, abs_tol=_ROUNDED):
      most = [place for place in np.argsort(-value, kind="stable")[:2] if value[place] > _ROUNDED]
      words.append(name + " + ".join(_name(place, names) + f" {value[place]:.0%}" * (len(most) > 1) for place in most))
  return ", ".join(words)


def visible(images, normalization=None):
  """Returns a function that scales all images of a view to 0 to 1: [height, width], or with 3 or 4 channels.

  `normalization`: the mean and the standard deviation of the stage, or None. The function undoes it, or a common
  normalisation if the result would not be 0 to 1, because another function may have changed the images.
  """
  known = [] if normalization is None else [normalization, tuple(each / 255 for each in normalization)]
  for mean, std in (*known, *_USUAL):
    made = [_undone(image, mean, std) for image in images]
    rounded = _ROUNDED * min(1, np.min(std))
    lowest, highest = _range(made)
    if lowest >= -rounded and highest <= 1 + rounded:
      break
  else:
    lowest, highest = _range(images)
    std = 1 / max(highest - lowest, 1e-9)
    mean = -lowest * std
  return lambda image: np.clip(np.nan_to_num(_undone(image, mean, std)), 0, 1)


def _range(images):
  """The lowest and the highest of the finite values."""
  finite = [values for values in (image[np.isfinite(image)] for image in images) if values.size]
  return float(min(map(np.min, finite), default=0)), float(max(map(np.max, finite), default=0))


def _undone(image, mean, std):
  image = image / 255 if image.dtype == np.uint8 else image.astype(np.float64)
  if np.ndim(mean) == 0 or image.ndim == 3 and len(mean) in (1, image.shape[2]):
    image = image * std + mean
  return (
    image if image.ndim == 2 or image.shape[2] in (3, 4) else image[..., :3] if image.shape[2] > 4 else image[..., 0]
  )
