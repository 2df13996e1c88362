"""Mosaic and copy-paste: functions of a batch that make each image of parts of several ones."""

from __future__ import annotations

import numbers
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import native
from . import layers, target_hints
from .composition import image_of, with_image
from .final_layers import checked_size
from .mixing import Mixing
from .target_kinds import BOXES, WITH_SIDES, checked_targets, shown
from .targets import Following, padding_of


def mosaic(
  size: int | Sequence[int] | None = None,
  targets: dict[str | int, Any] | None = None,
  *,
  with_rows: str | int | Sequence[str | int] = (),
  instances: dict[str | int, str | int] | None = None,
  components: dict[str | int, Any] | None = None,
  num_classes: int | None = None,
  p: float = 1.0,
  fill_value: float = 114,
  min_visibility: float = 0.1,
) -> Callable[..., Any]:
  """Returns a function that makes each image of a batch a mosaic of four, with their boxes, masks and labels.

  >>> batch = {"image": tf.zeros([8, 64, 64, 3], tf.uint8), "boxes": tf.tile([[[8.0, 8, 60, 60]]], [8, 1, 1])}
  >>> batch = rtf.augment.mosaic(128, targets={"boxes": "xyxy"})(batch, seed=[7, 0])
  >>> batch["image"].shape, batch["boxes"].shape
  (TensorShape([8, 128, 128, 3]), TensorShape([8, 4, 4]))

  A center is drawn for each image in the middle half of the result's height and width. The image lies with its lower
  right corner there, and three partners right of it, below it, and below on the right, unscaled, cut by the edge of the
  result. Image b has the images b + shift of the batch, around its end, with three different shifts that are drawn for
  the batch: so each image is once in each corner. With fewer than four images in a batch they repeat, each as seldom as
  possible. The rest of the result is `fill_value`.

  Put it after `batch`, `padded_batch` or `ragged_batch`, with `targets` for what follows, as for `compose`, with a
  dimension of the batch. Maps move with their images, and are 0 outside. Rows of boxes and key points, and of
  `with_rows`, become those of the four images in the order above, at most four times as many; dense ones are padded at
  the end, by -1, in unsigned integers 0, and False or "". Points that are outside their part of the image get
  visibility 0; a row of key points that is not in `with_rows` is dropped if all its points are outside.

  Args:
    size: the size of the result, a whole number or `(height, width)`; None for that of the images, as in KerasCV. For
      YOLOX' canvas pass twice that, and then `compose([random_affine(...), center_crop(s)], targets, clips=False)`.
    targets: as for `compose`, with one component of boxes at most.
    with_rows: as for `sanitize_boxes`: the components that have a row for each box, such as labels, key points too.
    instances: `{"segments": "ids"}`: a map of the images' size that has in each pixel the number of an object, from 1
      to 65,535, or 0, and the component that has the number of each box. Both become int32, and number the rows from 1.
    components, num_classes: as for `mixup`, whole-image labels and weights, which are mixed by visible area. Other
      components must be named; None says that one stays.
    p: the probability that an image becomes a mosaic. Otherwise it lies in the middle of the result. A call may have
      another one, a scalar or `[batch]`, such as 0 in the last epochs: `fn(batch, p=tf.where(epoch < 285, 1.0, 0.0))`.
    fill_value: the value of pixels without image.
    min_visibility: a cut box stays if this fraction of its area is left, and a pixel of both sides.

  Returns:
    A function `fn(images, *rest, seed=None, p=None)` as `mixup` returns. It raises what those of `mixup` and `compose`
    raise, and when it runs `tf.errors.InvalidArgumentError` for rows that do not fit, or `p` beyond 0 and 1.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.

  Implements Bochkovskiy et al., *YOLOv4: Optimal Speed and Accuracy of Object Detection*, 2020, section 3.3.
  """
  size = (0, 0) if size is None else checked_size(size, "mosaic")
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
  """Returns a function that pastes objects of another image over each image of a batch.

  >>> batch = {"image": tf.zeros([2, 64, 64, 3]), "boxes": tf.tile([[[8.0, 8, 60, 60]]], [2, 1, 1])}
  >>> batch.update(ids=tf.ones([2, 1], tf.int32), segments=tf.ones([2, 64, 64], tf.int32))
  >>> paste = rtf.augment.copy_paste({"boxes": "xyxy"}, instances={"segments": "ids"}, p=1)
  >>> paste(batch, seed=[7, 0])["ids"].numpy().tolist()
  [[1, -1], [1, -1]]

  Image b gets objects of the image b + shift of the batch, with one shift for the batch, as `mixup`. They are pasted at
  the place where they are, through the map of instances, and with them what maps of `targets` say there. The box of
  an object that is partly covered becomes that of its visible pixels. Rows of the image precede the pasted ones;
  padding and key points are as for `mosaic`. Objects without pixels in the map are not pasted, and not covered. An
  image that is alone in its batch stays as it is.

  Args:
    targets: as for `mosaic`, with boxes. None says that a component stays.
    instances, with_rows: as for `mosaic`. What has a row for each object must be named.
    p: the probability that an object is pasted. May also be given at a call, as for `mosaic`.
    min_visibility: the fraction of its pixels that must be left of an object. Otherwise its rows are dropped, and it
      becomes 0 in the map.

  Returns, raises: as `mosaic`.

  Implements Ghiasi et al., *Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation*, CVPR
  2021, without the scale jitter, for which there is `random_resized_crop`.
  """
  return _Composite("copy_paste", targets, with_rows, instances, (0, 0), 0, p, min_visibility)


class _Composite(Mixing):
  """A function of a batch, with or without a seed. A class, so that it can be pickled."""

  _ADVICE = "Name masks, boxes and key points in targets, and what has a row for each box in with_rows."

  def __init__(self, whose, targets, with_rows, instances, size, fill_value, p, min_visibility, **labels):
    super().__init__(whose, labels.get("num_classes"), labels.get("components"))
    self._targets, self._pastes = checked_targets(targets, whose) or {}, whose == "copy_paste"
    self._with_rows = tuple(with_rows) if isinstance(with_rows, (list, tuple)) else (with_rows,)
    self._instances, self._fill_value = instances, fill_value
    self._p = layers.checked_probability(whose, p, "If it changes, pass it when you call the function.")
    advice = "Pass 0 to drop only what is not visible."
    visibility = layers.checked_real(f"min_visibility of {whose}", min_visibility, 0, 1, advice)
    if not (isinstance(instances, dict) and len(instances) == 1 or instances is None and not self._pastes):
      raise TypeError(
        f"instances of {whose} must be a dict from a map to a component with the number of each box, got "
        f'{instances!r}. Pass instances={{"segments": "ids"}}.'
      )
    names = [*self._with_rows, *(instances or {}).keys(), *(instances or {}).values()]
    if any(isinstance(name, bool) or not isinstance(name, (str, numbers.Integral)) for name in names):
      raise TypeError(
        f"with_rows and instances of {whose} must have names, or positions in a tuple, got {names!r}. Pass "
        'with_rows=("labels",).'
      )
    boxes = [path for path, kind in self._targets.items() if kind in BOXES]
    if len(boxes) > 1 or names and not boxes:
      raise ValueError(
        f"targets of {whose} must name one component of boxes, with which the rows of others go, got {targets!r}. Pass "
        'targets={"boxes": "xyxy"}, and join several ones in Dataset.map before.'
      )
    self._arguments = {"height": size[0], "width": size[1], "min_visibility": visibility}

  @tf.autograph.experimental.do_not_convert
  def __call__(self, images, *rest, seed=None, p=None):
    element = images
    images = self._checked_images(image_of(element))
    seed = layers.new_seed() if seed is None else layers.checked_seed(seed, self.__name__)
    p = tf.cast(self._p if p is None else p, tf.float32)
    p = tf.fill(tf.shape(images)[:1], p) if p.shape.rank == 0 else p
    batch = _Batch(self._targets, self._kinds, self._with_rows, self._instances, element, rest, images)
    kinds = self._kinds_of(batch.whole)
    ops = _Ops(self.__name__, self._arguments, images, {"seed": seed, "p": p})
    batch.compose(ops, self._pastes, self._fill_value)
    for path, value in batch.whole:
      if kinds[path] is not None:
        batch.put(path, self._mixed(path, kinds[path], value, images, ops.pieces))
    return batch.beside(with_image(element, ops.placed((), images, self._fill_value)))

  def _usual_kind(self, path, value):
    # Several integers for an image are not its label, but have a row for each box.
    dtype, shape = getattr(value, "dtype", tf.float32), getattr(value, "shape", None)
    has_rows = isinstance(value, tf.RaggedTensor) or shape and len(shape) > 1 and not tf.as_dtype(dtype).is_floating
    return None if self._pastes or has_rows else super()._usual_kind(path, value)

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
    # A transposition makes the shares broadcast over [batch, n] and [batch].
    return sum(tf.transpose(share * tf.transpose(tf.gather(rows, source))) for source, share in parts)


class _Ops:
  """The C++ ops for one batch, and what they have drawn: the pieces of each image."""

  def __init__(self, whose, arguments, images, draws):
    self._whose, self._arguments, self._images, self._draws = whose, arguments, images, draws
    self._pasted, self._visible = tf.zeros([0, 0, 0], tf.bool), tf.zeros([0, 0, 0], tf.float64)

  def draw_mosaic(self):
    self.pieces = self._call("mosaic_pieces", (), images=self._images, **self._draws)
    self.pieces.set_shape([self._images.shape[0], 4, 7])

  def draw_pasted(self, path, instances, ids):
    """Returns which objects of an image and of its partner are in the result, `[batch, 2, n]`."""
    instances = instances[..., 0] if instances.shape.rank == 4 else instances
    made = self._call("pasted_objects", path, instances=instances, ids=ids, **self._draws)
    self.pieces, self._pasted, stays, self._visible = made
    self.pieces.set_shape([self._images.shape[0], 2, 7])
    return stays

  def moved(self, path, kind, rows):
    """Boxes or key points of all pieces, `[batch, pieces * n, ...]`, and which rows of them stay."""
    shape, count = tf.shape(rows), tf.reduce_prod(tf.shape(rows)[1:-1])
    flat = tf.reshape(tf.cast(rows, tf.float64), [shape[0], count, shape[-1]])
    visible = self._visible if kind in BOXES else tf.zeros([0, 0, 0], tf.float64)
    moved, stays = self._call(
      "piece_rows", path, images=self._images, rows=flat, pieces=self.pieces, visible=visible, kind=kind
    )
    number = self.pieces.shape[1] * shape[1]
    stays = tf.reduce_any(tf.reshape(stays, [shape[0], number, tf.reduce_prod(shape[2:-1])]), 2)
    moved = tf.reshape(moved, tf.concat([[shape[0], number], shape[2:]], 0))
    return tf.cast(tf.round(moved) if rows.dtype.is_integer else moved, rows.dtype), stays

  def gathered(self, rows):
    """Other rows of all pieces."""
    shape = tf.shape(rows)
    number = self.pieces.shape[1] * shape[1]
    return tf.reshape(tf.gather(rows, self.pieces[..., 0]), tf.concat([[shape[0], number], shape[2:]], 0))

  def placed(self, path, maps, fill, ids=None, new_ids=None):
    """Images or maps made of the pieces."""
    is_plain = maps.shape.rank == 3
    if maps.dtype.is_integer and not (maps.dtype.min <= fill <= maps.dtype.max and fill == int(fill)):
      raise ValueError(
        f"fill_value of {self._whose} must be a value of {maps.dtype.name}, as the images have, got {fill}. Pass 114."
      )
    made = self._call(
      "place_pieces",
      path,
      images=self._images,
      maps=maps[..., tf.newaxis] if is_plain else maps,
      fill=tf.cast(fill, maps.dtype),
      pieces=self.pieces,
      pasted=self._pasted,
      ids=tf.zeros([0, 0], tf.int32) if ids is None else ids,
      new_ids=tf.zeros([0] * 3, tf.int32) if ids is None else new_ids,
    )
    height, width = self._arguments["height"], self._arguments["width"]
    times = [side // own if side and own else None for side, own in zip(maps.shape[1:3], self._images.shape[1:3])]
    sides = [side * by if by else None for side, by in zip((height, width), times)] if height else maps.shape[1:3]
    made.set_shape([maps.shape[0], *sides, 1 if is_plain else maps.shape[-1]])
    return made[..., 0] if is_plain else made

  def _call(self, op, path, **inputs):
    called = f"the component {shown(path)[:35]} of {self._whose}" if path else f"images of {self._whose}"
    return getattr(native.ops(), f"refurbish_tf_{op}")(called=called, **inputs, **self._arguments)


class _Batch(Following):
  """The components of a batch."""

  def __init__(self, targets, kinds, with_rows, instances, element, rest, images):
    self._element, self._rest = element, rest
    boxes = [path for path, kind in targets.items() if kind in BOXES]
    self._boxes = self._component(boxes[0], "xyxy")[0] if boxes else None
    self._map = [self._place(name) for name in instances or ()]
    self._ids = [self._place(name) for name in (instances or {}).values()]
    self._rows = [path for path in map(self._place, dict.fromkeys(with_rows)) if path not in self._ids]
    beside = {path: None for path in [*kinds, *self._map, *self._ids, *self._rows] if path not in targets}
    super().__init__({**targets, **beside}, element, rest, images, moves=False)
    stays = [path for path, kind in targets.items() if kind is None]
    named = {*stays, *self._kinds, *self._map, *self._ids, *self._rows}
    is_named = lambda path: any(path[: k + 1] in named for k in range(len(path)))
    # What belongs to whole images, as pairs of a path and a value.
    self.whole = [each for each in target_hints.components(element, rest) if not is_named(each[0])]
    for path in [*self._map, *self._ids, *self._rows]:
      if path not in self._kinds:
        value = self._component(path, "mask")[1]
        value = value if isinstance(value, tf.RaggedTensor) else tf.convert_to_tensor(value)
        self._tensors[path] = self._dense(path, value)
    boxes = self._tensors.get(self._boxes)
    for path in [*self._ids, *self._rows]:
      self._tensors[path] = _checked_rows(path, self._tensors[path], boxes)

  def put(self, path, tensor):
    self._tensors[path] = tensor

  def compose(self, ops, pastes, fill_value):
    """Replaces what follows the images by what becomes of it."""
    given = dict(self._tensors)
    ids = [tf.cast(given[path], tf.int32) for path in self._ids]
    maps = [tf.cast(given[path], tf.int32) for path in self._map]
    if pastes:
      stays = ops.draw_pasted(self._map[0], maps[0], ids[0])
    else:
      ops.draw_mosaic()
    number = ops.pieces.shape[1]
    # Boxes come first: they decide about the rows.
    for path, kind in sorted(self._kinds.items(), key=lambda item: item[0] != self._boxes):
      if kind in WITH_SIDES:
        self.put(path, ops.placed(path, given[path], fill_value if kind == "image" else 0))
        continue
      moved, own = ops.moved(path, kind, given[path])
      if path == self._boxes:
        stays = tf.reshape(stays, tf.shape(own)) & own if pastes else own
        order, own = _Order(stays), stays
      self._put_rows(path, moved, order if path in self._rows else _Order(own), number)
    for path in self._rows:
      if path not in self._kinds:
        self._put_rows(path, ops.gathered(given[path]), order, number)
    if ids:
      new_ids = tf.cumsum(tf.cast(stays, tf.int32), 1) * tf.cast(stays, tf.int32)
      by_piece = tf.reshape(new_ids, [tf.shape(stays)[0], number, tf.shape(ids[0])[1]])
      self.put(self._map[0], ops.placed(self._map[0], maps[0], 0, ids[0], by_piece))
      self._put_rows(self._ids[0], new_ids, order, number)

  def _put_rows(self, path, rows, order, pieces):
    made, shape = order.of(rows), self._tensors[path].shape
    made.set_shape([shape[0], shape[1] and shape[1] * pieces, *shape[2:]])
    if path in self._ragged:
      splits = self._ragged[path].args[0].row_splits.dtype
      made = tf.RaggedTensor.from_tensor(made, lengths=tf.cast(order.counts, splits), row_splits_dtype=splits)
      del self._ragged[path]
    self.put(path, made)

  def _place(self, name):
    """The path of a component with rows: beside the boxes, or in the batch."""
    beside = (*(self._boxes or ())[:-1], name)
    try:
      return self._component(beside, "mask")[0]
    except ValueError:
      return self._component((name,), "mask")[0]


def _checked_rows(path, rows, boxes):
  """Returns a component, of which each image must have a row for each of its boxes."""
  told = f"with_rows and instances must name components with a row for each box, got {shown(path)} beside the boxes"
  if rows.shape.rank is None or rows.shape.rank < 2 or not rows.shape[:2].is_compatible_with(boxes.shape[:2]):
    raise ValueError(f"{told}, of shapes {rows.shape} and {boxes.shape}. Leave it out, or give it as many rows.")
  if rows.shape[:2].is_fully_defined() and boxes.shape[:2].is_fully_defined():
    return rows
  shapes = tf.shape(rows)[:2], tf.shape(boxes)[:2]
  return layers.checked_when_it_runs(rows, tf.reduce_all(tf.equal(*shapes)), f"{told}, of the shapes:", *shapes)


class _Order:
  """Puts rows that stay, of `[batch, rows]`, before padding."""

  def __init__(self, stays):
    number = tf.shape(stays)[1]
    self.counts = tf.reduce_sum(tf.cast(stays, tf.int32), 1)
    # Equal ones keep their order.
    self._places = tf.math.top_k(tf.cast(stays, tf.int32), number).indices
    self._are_rows = tf.sequence_mask(self.counts, number)

  def of(self, rows):
    are_rows = tf.reshape(
      self._are_rows, tf.concat([tf.shape(self._are_rows), tf.ones([tf.rank(rows) - 2], tf.int32)], 0)
    )
    return tf.where(are_rows, tf.gather(rows, self._places, batch_dims=1), padding_of(rows.dtype))
