"""Mosaic and copy-paste: functions of a batch that combine parts of several images."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import native
from . import layers, target_hints
from .composition import image_of, with_image
from .final_layers import checked_size
from .mixing import Mixing
from .target_kinds import BOXES, WITH_SIDES, checked_names, checked_targets, shown
from .targets import Following, beginning_in, checked_rows, kept_rows


def mosaic(
  size: int | Sequence[int] | None = None,
  targets: dict[str | int, Any] | None = None,
  *,
  with_rows: str | int | Sequence[str | int] = (),
  instances: dict[str | int, str | int] | None = None,
  components: dict[str | int, Any] | None = None,
  num_classes: int | None = None,
  p: float = 1.0,
  fill_value: float | None = None,
  min_visibility: float = 0.1,
) -> Callable[..., Any]:
  """Returns a function that makes each image of a batch a mosaic of four, with their boxes, masks and labels.

  >>> batch = {"image": tf.zeros([8, 64, 64, 3], tf.uint8), "boxes": tf.tile([[[8.0, 8, 60, 60]]], [8, 1, 1])}
  >>> batch = rtf.augment.mosaic(128, targets={"boxes": "xyxy"})(batch, seed=[7, 0])
  >>> batch["image"].shape, batch["boxes"].shape
  (TensorShape([8, 128, 128, 3]), TensorShape([8, 4, 4]))

  For each image, a center is drawn in the middle half of the result's height and width. The image is placed with its
  lower right corner there, and three partners to the right, below, and below on the right. They are not scaled, and are
  cut off at the edge of the result. Image b gets the images b + shift of the batch, counted around its end, with three
  different shifts that are drawn for the batch. So each image is once in each corner. With fewer than four images in a
  batch they repeat, each as seldom as possible. The rest of the result is `fill_value`.

  Put it after `batch`, `padded_batch` or `ragged_batch`. `targets` declares what follows the images, as for `compose`;
  each component has a batch dimension. Maps move with their images, and are 0 outside. Rows of boxes and key points,
  and of `with_rows`, are joined for the four images in the order above: up to four times as many. Dense rows are
  padded at the end with -1, or with 0 if unsigned, False or "". Points outside their part of the image get visibility
  0. A row of key points that `with_rows` does not name is dropped if all its points are outside.

  Args:
    size: the size of the result, a whole number or `(height, width)`; None for the size of the images, as in KerasCV.
      For YOLOX' canvas pass twice the size s of training, and then `compose([random_affine(...), center_crop(s)],
      targets, clips=False)` and `sanitize_boxes`.
    targets: as for `compose`, with at most one component of boxes.
    with_rows: as for `sanitize_boxes`: the components that have a row for each box, such as labels or key points.
    instances: `{"segments": "ids"}`: a map of the images' size, whose pixels have the number of an object, from 1 to
      65,535, or 0, and the component with the number of each box. Both become int32, and the rows are numbered from 1.
    components, num_classes: as for `mixup`, labels and weights of whole images, which are mixed by visible area. Other
      components must be named; None leaves one as it is. With boxes, also name components of two dimensions.
    p: the probability that an image becomes a mosaic. Otherwise it is placed in the middle of the result. A call may
      pass another one, a scalar or `[batch]`, such as 0 in the last epochs: `fn(batch, p=tf.where(epoch < 285, 1, 0))`.
    fill_value: the value of pixels that no image covers; None for 114 in uint8 images, and 0 in float32.
    min_visibility: a cut box stays if this fraction of its area is left, and at least a pixel in height and width.

  Returns:
    A function `fn(images, *rest, seed=None, p=None)` like the one that `mixup` returns. It raises the same errors as
    `mixup` and `compose`, and when it runs `tf.errors.InvalidArgumentError` for rows that do not fit, or a `p` outside
    0 to 1.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements Bochkovskiy et al., *YOLOv4: Optimal Speed and Accuracy of Object Detection*, 2020, section 3.3.
  """
  size = (0, 0) if size is None else checked_size(size, "mosaic")
  if fill_value is not None:
    fill_value = layers.checked_real("fill_value of mosaic", fill_value, -1e30, 1e30, "Pass 114 for grey.")
  labels = {"components": components, "num_classes": num_classes}
  return _Composite("mosaic", targets, with_rows, instances, size, fill_value, p, min_visibility, **labels)


def copy_paste(
  targets: dict[str | int, Any],
  *,
  instances: dict[str | int, str | int],
  with_rows: str | int | Sequence[str | int] = (),
  p: float = 0.5,
  min_visibility: float = 0.1,
) -> Callable[..., Any]:
  """Returns a function that pastes objects of another image of the batch onto each image.

  >>> batch = {"image": tf.zeros([2, 64, 64, 3]), "boxes": tf.tile([[[8.0, 8, 60, 60]]], [2, 1, 1])}
  >>> batch.update(ids=tf.ones([2, 1], tf.int32), segments=tf.ones([2, 64, 64], tf.int32))
  >>> paste = rtf.augment.copy_paste({"boxes": "xyxy"}, instances={"segments": "ids"}, p=1)
  >>> paste(batch, seed=[7, 0])["ids"].numpy().tolist()
  [[1, -1], [1, -1]]

  Image b gets objects of the image b + shift of the batch, with one shift for the batch, as in `mixup`. Objects keep
  their place. The map of instances says which pixels they have; maps in `targets` are pasted with them. The box of a
  partly covered object shrinks to its visible pixels. Rows of the image precede the pasted ones; padding and key points
  are as for `mosaic`. Objects without pixels in the map are neither pasted nor covered. An image that is alone in its
  batch stays as it is.

  Args:
    targets: as for `mosaic`, with boxes. None leaves a component as it is.
    instances, with_rows: as for `mosaic`. Components with a row for each object must be named.
    p: the probability that an object is pasted. A call may pass another one, as for `mosaic`.
    min_visibility: the fraction of an object's pixels that must be left. Otherwise its rows are dropped, and it becomes
      0 in the map.

  Returns:
    A function like the one that `mosaic` returns.

  Raises:
    TypeError, ValueError: as for `mosaic`.

  Implements Ghiasi et al., *Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation*, CVPR
  2021, without the scale jitter: use `random_resized_crop` for that.
  """
  return _Composite("copy_paste", targets, with_rows, instances, (0, 0), 0, p, min_visibility)


class _Composite(Mixing):
  """A function of a batch, with or without a seed. It is a class, so that it can be pickled."""

  _FIRST = "If it has a row for each box, pass with_rows={!r}. "
  _ADVICE = "Name masks, boxes and key points in targets, and components with a row for each box in with_rows."

  def __init__(self, whose, targets, with_rows, instances, size, fill_value, p, min_visibility, **labels):
    super().__init__(whose, labels.get("num_classes"), labels.get("components"))
    self.targets, self.pastes = checked_targets(targets, whose) or {}, whose == "copy_paste"
    self.boxes = [path for path, kind in self.targets.items() if kind in BOXES]
    self.fill_value = fill_value
    self._p = layers.checked_probability(whose, p, "To change it during training, pass p when you call the function.")
    advice = "Pass 0 to drop only objects that are not visible."
    visibility = layers.checked_real(f"min_visibility of {whose}", min_visibility, 0, 1, advice)
    self.arguments = {"height": size[0], "width": size[1], "min_visibility": visibility}
    if not (isinstance(instances, dict) and len(instances) == 1 or instances is None and not self.pastes):
      raise TypeError(
        f"instances of {whose} must be a dict from a map to a component with the number of each box, got "
        f'{instances!r}. Pass instances={{"segments": "ids"}}.'
      )
    # The map of instances and their numbers, if any, and the components that have rows.
    self.pair = [name for pair in (instances or {}).items() for name in pair]
    self.with_rows = checked_names(f"with_rows of {whose}", with_rows)
    names = self.with_rows + checked_names(f"instances of {whose}", self.pair)
    masks = [shown(path) for path, kind in self.targets.items() if kind == "mask"]
    if masks and not self.pair and "ids" in self.with_rows:
      raise ValueError(
        f'instances of {whose} must name a map of objects, because numbers would repeat in the four images, got "ids" '
        f'in with_rows and {" and ".join(masks)} as "mask". Pass instances={{{masks[0]}: "ids"}} in place of both. If '
        'the map holds classes, rename "ids" in Dataset.map first.'
      )
    if len(self.boxes) > 1 or names and not self.boxes:
      raise ValueError(
        f"targets of {whose} must name one component of boxes, to which the other rows belong, got {targets!r}. Pass "
        'targets={"boxes": "xyxy"}; join several components of boxes in Dataset.map first.'
      )

  @tf.autograph.experimental.do_not_convert
  def __call__(self, images, *rest, seed=None, p=None):
    element, images = images, self._checked_images(image_of(images))
    seed = layers.new_seed() if seed is None else layers.checked_seed(seed, self.__name__)
    p = tf.cast(self._p if p is None else p, tf.float32)
    batch = _Batch(self, self._kinds, element, rest, images)
    kinds = self._kinds_of(batch.whole)
    batch.compose(seed=seed, p=tf.fill(tf.shape(images)[:1], p) if p.shape.rank == 0 else p)
    for path, value in batch.whole:
      if kinds[path] is not None:
        batch.put(path, self._mixed(path, kinds[path], value, images, batch.pieces))
    return batch.beside(with_image(element, batch.placed((), images, self.fill_value)))

  def _usual_kind(self, path, value):
    # Several integers per image are not its label: each box has a row. With boxes, floats are also rows, of scores.
    may_be_label = tf.as_dtype(getattr(value, "dtype", tf.float32)).is_floating and not self.boxes
    shape = getattr(value, "shape", None)
    has_rows = isinstance(value, tf.RaggedTensor) or shape and len(shape) > 1 and not may_be_label
    return None if self.pastes or has_rows else super()._usual_kind(path, value)

  def _mixed(self, path, kind, value, images, pieces):
    """Labels or weights, mixed by the area of the pieces."""
    rows, num_classes = self._checked_rows(path, kind, value, images.shape[0])
    own, called = tf.range(tf.shape(images)[0]), self._called(path, kind)
    # Mixes each with itself: they become one-hot, and are checked.
    rows = native.ops().refurbish_tf_mix_rows(
      rows=rows, lambdas=tf.ones_like(own, tf.float32), partners=own, num_classes=num_classes, called=called
    )
    areas = tf.reduce_prod(tf.cast(pieces[..., 3:5], tf.float64), 2)
    shares = tf.cast(tf.math.divide_no_nan(areas, tf.reduce_sum(areas, 1, keepdims=True)), tf.float32)
    parts = zip(tf.unstack(pieces[..., 0], pieces.shape[1], 1), tf.unstack(shares, pieces.shape[1], 1))
    # A transposition makes the fractions broadcast over [batch, n] and [batch].
    return sum(tf.transpose(share * tf.transpose(tf.gather(rows, source))) for source, share in parts)


class _Batch(Following):
  """The components of a batch, and the C++ ops that compose them."""

  def __init__(self, fn, kinds, element, rest, images):
    self._fn, self._images, self._element, self._rest = fn, images, element, rest
    self._boxes = self._component(fn.boxes[0], "xyxy")[0] if fn.boxes else None
    self._pair = [self._place(name) for name in fn.pair]
    self._rows = dict.fromkeys([*self._pair[1:], *map(self._place, fn.with_rows)])
    beside = {path: None for path in [*kinds, *self._rows] if path not in fn.targets}
    maps = dict.fromkeys(self._pair[:1], "mask")
    super().__init__({**fn.targets, **beside, **maps}, element, rest, images, moves=False)
    named = {*(path for path, kind in fn.targets.items() if kind is None), *self._kinds, *self._rows}
    # Components of whole images, as pairs of a path and a value.
    self.whole = [each for each in target_hints.components(element, rest) if not beginning_in(named, each[0])]
    boxes = self._ragged.get(self._boxes, self._tensors.get(self._boxes))
    what = f"with_rows and instances of {fn.__name__}"
    for path in self._rows:
      rows = checked_rows(what, shown(path), self._component(path, None)[1], boxes)
      self._tensors[path] = self._dense(path, rows)

  def put(self, path, tensor):
    self._tensors[path] = tensor

  def compose(self, **draws):
    """Replaces the components that follow the images by the composed ones."""
    given, pastes = dict(self._tensors), self._fn.pastes
    self._pasted, visible = tf.zeros([0, 0, 0], tf.bool), tf.zeros([0, 0, 0], tf.float64)
    for path in self._pair:
      if not given[path].dtype.is_integer:
        raise TypeError(
          f"instances must have whole numbers, got dtype {given[path].dtype.name} in {shown(path)}. Convert it with "
          "tf.cast(..., tf.int32) in Dataset.map first."
        )
      is_right = tf.reduce_all(tf.cast(given[path], tf.int64) <= 65535)
      told = f"instances must have numbers of at most 65,535, got in {shown(path)}:"
      given[path] = layers.checked_when_it_runs(given[path], is_right, told, given[path])
    maps, ids = [tf.cast(given[path], tf.int32) for path in self._pair] or (None, None)
    if pastes:
      instances = maps if maps.shape.rank == 4 else maps[..., tf.newaxis]
      made = self._call("pasted_objects", self._pair[0], **draws, instances=instances, ids=ids)
      self.pieces, self._pasted, stays, visible = made
    else:
      self.pieces = self._call("mosaic_pieces", (), **draws)
    self.pieces.set_shape([self._images.shape[0], 2 if pastes else 4, 7])
    # Boxes come first: they decide which rows stay.
    for path, kind in sorted(self._kinds.items(), key=lambda item: item[0] != self._boxes):
      if kind in WITH_SIDES:
        self.put(path, self.placed(path, given[path], self._fn.fill_value if kind == "image" else 0))
        continue
      moved, own = self._moved(path, kind, given[path], visible if path == self._boxes else visible[:0])
      if path == self._boxes:
        stays = own = tf.reshape(stays, tf.shape(own)) & own if pastes else own
      self._put_rows(path, moved, stays if path in self._rows else own)
    for path in self._rows:
      if path not in (*self._kinds, *self._pair):
        self._put_rows(path, _joined(tf.gather(given[path], self.pieces[..., 0])), stays)
    if self._pair:
      new = tf.cumsum(tf.cast(stays, tf.int32), 1) * tf.cast(stays, tf.int32)
      self.put(self._pair[0], self.placed(self._pair[0], maps, 0, self._renumbered(ids, new)))
      self._put_rows(self._pair[1], new, stays)

  def placed(self, path, maps, fill, numbers=None):
    """Images or maps made of the pieces."""
    fill = (114 if maps.dtype == tf.uint8 else 0) if fill is None else fill
    if maps.dtype.is_integer and not (maps.dtype.min <= fill <= maps.dtype.max and fill == int(fill)):
      raise ValueError(
        f"fill_value of {self._fn.__name__} must be a value of {maps.dtype.name}, the dtype of the images, got {fill}. "
        "Pass 114."
      )
    given = maps if maps.shape.rank == 4 else maps[..., tf.newaxis]
    draws = {"pieces": self.pieces, "pasted": self._pasted}
    numbers = tf.zeros([0, 0, 0], tf.int32) if numbers is None else numbers
    made = self._call("place_pieces", path, maps=given, fill=tf.cast(fill, maps.dtype), numbers=numbers, **draws)
    size, sides = [self._fn.arguments[name] for name in ("height", "width")], self._images.shape[1:3]
    # A second image may be larger.
    times = [side and own and side // own for side, own in zip(given.shape[1:3], sides)]
    times = times if self._kinds.get(path) == "image" else (1, 1)
    sides = [by and side and by * side for by, side in zip(times, size if all(size) else sides)]
    made.set_shape([given.shape[0], *sides, given.shape[3]])
    return made if maps.shape.rank == 4 else made[..., 0]

  def _moved(self, path, kind, rows, visible):
    """Boxes or key points of all pieces, `[batch, pieces * n, ...]`, and which rows of them stay."""
    size = max(self._fn.arguments["height"], self._fn.arguments["width"])
    if kind in BOXES and rows.dtype.is_integer and rows.dtype.max < size:
      raise ValueError(
        f"targets of {self._fn.__name__}: boxes must have a dtype that holds the size, {size}, got {rows.dtype.name}. "
        "Convert them with tf.cast(boxes, tf.int32) in Dataset.map first."
      )
    shape = tf.shape(rows)
    flat = tf.reshape(tf.cast(rows, tf.float64), [shape[0], tf.reduce_prod(shape[1:-1]), shape[-1]])
    moved, stays = self._call("piece_rows", path, rows=flat, visible=visible, pieces=self.pieces, kind=kind)
    lead = [shape[0], self.pieces.shape[1], shape[1]]
    moved = _joined(tf.reshape(moved, tf.concat([lead, shape[2:]], 0)))
    stays = tf.reduce_any(tf.reshape(stays, [*lead, tf.reduce_prod(shape[2:-1])]), 3)
    return tf.cast(tf.round(moved) if rows.dtype.is_integer else moved, rows.dtype), _joined(stays)

  def _renumbered(self, ids, new):
    """The new numbers of instances, `[batch, pieces, n]`."""
    old = tf.gather(ids, self.pieces[..., 0])
    end = 1 + tf.clip_by_value(tf.reduce_max(tf.pad(old, [[0, 1], [0, 0], [0, 1]])), 0, 65535)
    first = end * tf.reshape(tf.range(tf.size(self.pieces) // 7), tf.shape(self.pieces[..., :1]))
    # A number below 0 drops an entry.
    places = tf.where((old > 0) & (old < end), old + first, -1)
    numbers = tf.math.unsorted_segment_max(tf.reshape(new, tf.shape(old)), places, tf.size(first) * end)
    return tf.reshape(tf.maximum(numbers, 0), tf.concat([tf.shape(first)[:2], [end]], 0))

  def _call(self, op, path, **inputs):
    called = f"the component {shown(path)[:35]}" if path else "images"
    op = getattr(native.ops(), f"refurbish_tf_{op}")
    return op(images=self._images, called=f"{called} of {self._fn.__name__}", **inputs, **self._fn.arguments)

  def _put_rows(self, path, rows, stays):
    """Keeps the rows that stay, of `[batch, rows]`, before padding."""
    given = self._tensors[path].shape
    if path in self._ragged:
      made = tf.ragged.boolean_mask(rows, stays).with_row_splits_dtype(self._ragged.pop(path).row_splits.dtype)
    else:
      made = kept_rows(rows, stays)
      made.set_shape([given[0], given[1] and given[1] * self.pieces.shape[1], *given[2:]])
    self.put(path, made)

  def _place(self, name):
    """The path of a component with rows: in the dict of the boxes, or in the batch."""
    beside = (*(self._boxes or ())[:-1], name)
    try:
      return self._component(beside, "mask")[0]
    except ValueError:
      return self._component((name,), "mask")[0]


def _joined(rows):
  """Rows of all pieces, `[batch, pieces * n, ...]`, from `[batch, pieces, n, ...]`."""
  shape = tf.shape(rows)
  return tf.reshape(rows, tf.concat([shape[:1], shape[1:2] * shape[2:3], shape[3:]], 0))
