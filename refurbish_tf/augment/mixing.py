"""mixup and CutMix: functions of a batch that mix each image, and its label, with another one."""

import numbers
from typing import Any, Callable

import tensorflow as tf

from refurbish_tf._internal import native
from . import layers, target_kinds, target_hints
from .composition import image_of, with_image
from .target_kinds import named, shown
from .targets import beginning_in, replaced

LABEL, WEIGHT = "label", "weight"
_LABEL_NAMES = ("label", "labels")
_WEIGHT_NAMES = ("weight", "weights", "sample_weight", "sample_weights")
# Limits of alpha: beyond them, lambda is always 0 or 1, or always 1/2.
_ALPHAS = (0.001, 1000)
_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def mixup(
  alpha: float = 0.2, num_classes: int | None = None, components: dict[str | int, Any] | None = None
) -> Callable[..., Any]:
  """Returns a function that blends each image of a batch, and its label, with another one.

  >>> images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  >>> train = images.batch(4).map(rtf.augment.mixup(0.2, num_classes=10), tf.data.AUTOTUNE)
  >>> train.element_spec[1]
  TensorSpec(shape=(None, 10), dtype=tf.float32, name=None)

  An image becomes `lambda * image + (1 - lambda) * partner`, and so does its label, with lambda drawn for each image
  from Beta(alpha, alpha). The partner is another image of the batch: image b has image b + shift, counted around the
  end of the batch, with one shift that is drawn for the batch. So no image is mixed with itself, each is a partner
  once, and all pairs are equally likely. An image that is alone in its batch stays as it is, with its label as float32.

  The labels become probabilities: train with `keras.losses.CategoricalCrossentropy`, which also has `label_smoothing`.

  Put it after `batch`, and per-image random layers before it. The seed may be left out. The same seed gives draws that
  are independent of those layers' draws and of `compose`:

  >>> seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)
  >>> mixed = rtf.augment.mixup(0.2, num_classes=10)
  >>> train = tf.data.Dataset.zip(images.batch(4), seeds).map(lambda batch, seed: mixed(*batch, seed=seed))

  Args:
    alpha: a number from 0.001 to 1,000. The smaller it is, the less images are mixed; 1 draws lambda evenly.
    num_classes: a whole number of at least 2, if labels are numbers of classes, from 0: they become one-hot. None if
      they are one-hot already, or other floats.
    components: a dict for the other components, from names of a dict's entries, or positions in a tuple, to
      `"label"`, `"weight"` or None, such as `{"fine": "label", "id": None}`. If a component is itself a dict or a
      tuple, all its entries have the same kind, or one each: `{1: {"fine": "label", "id": None}}`. You need not name
      entries that are called `label` or `labels`, or `weight`, `weights`, `sample_weight` or `sample_weights`, nor the
      labels and sample weights of `keras.Model.fit` in a tuple, at positions 1 and 2.

  | kind | shape | becomes, float32 |
  | --- | --- | --- |
  | `"label"` | any integer `[batch]` or `[batch, 1]` | `[batch, num_classes]`, one-hot and mixed |
  | `"label"` | floating `[batch, num_classes]`; without `num_classes` `[batch]` or `[batch, n]` | the same, mixed |
  | `"weight"` | floating `[batch]` or `[batch, n]` | the same, mixed |
  | None | any | the same, unchanged |

  Returns:
    A function `fn(images, *rest, seed=None)` for `Dataset.map`. It takes images `[batch, height, width, channels]`,
    uint8 or float32, sizes known while tracing or not, or a dict that has them, and a seed, int32 or int64 `[2]` as for
    `tf.random.stateless_uniform`. It returns the images with the same shape and dtype, and the other components. lambda
    is a multiple of 1/32,768. float32 is computed as written above, each step rounded; uint8 exactly, and rounded to
    the nearest number, a half up. Images, lambdas and partners depend on the seed alone, on every machine. It raises
    `TypeError` or `ValueError` for another dtype or shape, such as for masks and boxes, and for components that are not
    named; and, when it runs, `tf.errors.InvalidArgumentError` for a class beyond `num_classes`.

  Raises:
    TypeError: `alpha` is not a number, `num_classes` is not a whole number, or `components` is not a dict as above.
    ValueError: an argument is out of range, or a kind is not one of these.

  Implements Zhang et al., *mixup: Beyond Empirical Risk Minimization*, ICLR 2018.
  """
  return Mixing("mixup", num_classes, components, mixup_alpha=_checked_alpha("alpha", alpha, "mixup"))


def cutmix(
  alpha: float = 1.0, num_classes: int | None = None, components: dict[str | int, Any] | None = None
) -> Callable[..., Any]:
  """Returns a function that pastes a box of another image into each image of a batch, and mixes the labels by area.

  >>> images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  >>> train = images.batch(4).map(rtf.augment.cutmix(num_classes=10), tf.data.AUTOTUNE)

  For an image of H x W pixels with lambda from Beta(alpha, alpha), the box has the sides `int(H * sqrt(1 - lambda))`
  and `int(W * sqrt(1 - lambda))`, made even. Its center is any pixel of the image with equal probability, and it ends
  where the image ends. It has the same position in both images. For the labels, lambda is the fraction of the pixels
  that are left of the image. Partners, seeds and components are as for `mixup`, as is the rest.

  Args:
    alpha, num_classes, components: as for `mixup`.

  Returns:
    A function like the one that `mixup` returns.

  Raises:
    TypeError, ValueError: as for `mixup`.

  Implements Yun et al., *CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features*, ICCV
  2019.
  """
  alpha = _checked_alpha("alpha", alpha, "cutmix")
  return Mixing("cutmix", num_classes, components, cutmix_alpha=alpha, switch_prob=1.0)


def mixup_or_cutmix(
  mixup_alpha: float = 0.2,
  cutmix_alpha: float = 1.0,
  switch_prob: float = 0.5,
  num_classes: int | None = None,
  components: dict[str | int, Any] | None = None,
) -> Callable[..., Any]:
  """Returns a function that applies either `mixup` or `cutmix` to each image of a batch.

  >>> images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  >>> train = images.batch(4).map(rtf.augment.mixup_or_cutmix(0.8, 1.0, num_classes=10), tf.data.AUTOTUNE)

  The arguments are named as in timm's `Mixup`. The defaults match torchvision's training of ResNet-50.

  Args:
    mixup_alpha, cutmix_alpha: `alpha` of `mixup` and of `cutmix`.
    switch_prob: the probability that an image gets CutMix and not mixup, from 0 to 1. It is drawn for each image.
    num_classes, components: as for `mixup`.

  Returns:
    A function like the one that `mixup` returns.

  Raises:
    TypeError, ValueError: as for `mixup`, or `switch_prob` is not a number from 0 to 1.
  """
  whose, advice = "mixup_or_cutmix", "It is the probability of CutMix: pass 0.5 for both alike."
  switch_prob = layers.checked_real(f"switch_prob of {whose}", switch_prob, 0, 1, advice)
  mixup_alpha = _checked_alpha("mixup_alpha", mixup_alpha, whose)
  cutmix_alpha = _checked_alpha("cutmix_alpha", cutmix_alpha, whose)
  return Mixing(whose, num_classes, components, mixup_alpha, cutmix_alpha, switch_prob)


class Mixing:
  """A function of a batch, with or without a seed. It is a class, so that it can be pickled."""

  # It must get whole elements: without the labels it would mix the images alone.
  needs_labels = True
  # Advice for rows of boxes, and for targets.
  _FIRST = ""
  _ADVICE = "Masks, boxes and key points cannot be mixed: leave it out, or drop them in Dataset.map first."

  def __init__(self, whose, num_classes, components, mixup_alpha=1.0, cutmix_alpha=1.0, switch_prob=0.0):
    self.__name__ = whose
    if num_classes is not None:
      advice = "Pass the number of classes, or None if labels are one-hot. Labels 0.0 and 1.0 of two classes need None."
      num_classes = layers.checked_whole(f"num_classes of {whose}", num_classes, 2, 2**31 - 1, advice)
    self._num_classes = num_classes
    self._kinds = _checked_kinds(components, whose)
    self._arguments = {"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha, "switch_prob": switch_prob}

  @tf.autograph.experimental.do_not_convert
  def __call__(self, images, *rest, seed=None):
    element = images
    images = self._checked_images(image_of(element))
    seed = layers.new_seed() if seed is None else layers.checked_seed(seed, self.__name__)
    found = list(target_hints.components(element, rest))
    kinds = self._kinds_of(found)
    mixed, lambdas, partners = native.ops().refurbish_tf_mix_images(images=images, seed=seed, **self._arguments)
    element, rest = with_image(element, mixed), [element, *rest]
    for path, value in found:
      if kinds[path] is None:
        continue
      rows, num_classes = self._checked_rows(path, kinds[path], value, images.shape[0])
      called = self._called(path, kinds[path])
      made = native.ops().refurbish_tf_mix_rows(
        rows=rows, lambdas=lambdas, partners=partners, num_classes=num_classes, called=called
      )
      if isinstance(path[0], int):
        rest[path[0]] = replaced(rest[path[0]], path[1:], made)
      else:
        element = replaced(element, path, made)
    return (element, *rest[1:]) if len(rest) > 1 else element

  def _called(self, path, kind):
    # Keeps the text below 80 characters: see `native_layers._LONGEST_PIECE`.
    return f"{kind}s of {self.__name__}, component {shown(path)[:35]},"

  def _checked_images(self, images):
    images = layers.checked_batch(images, self.__name__, "Put it after batch.")
    if images.dtype not in (tf.uint8, tf.float32):
      way = "Convert them with tf.cast(images, tf.float32)."
      if not images.dtype.is_floating:
        way = layers.way_to_dtype(images.dtype, only_uint8=False)
      raise TypeError(f"images of {self.__name__} must be uint8 or float32, got dtype {images.dtype.name}. {way}")
    return images

  def _kinds_of(self, found):
    """A dict from the path of each component to its kind; raises if one is neither given nor obvious."""
    kinds, used = {}, set()
    for path, value in found:
      prefix = beginning_in(self._kinds, path)
      used.add(prefix)
      kinds[path] = self._kinds[prefix] if prefix else self._usual_kind(path, value)
      if kinds[path] is None and not prefix:
        raise ValueError(
          f"components of {self.__name__} must say what the component {shown(path)} is, of shape "
          f"{getattr(value, 'shape', None)}: labels are mixed with their images, and positions in an image are no "
          f"longer valid. {self._FIRST.format(path[-1])}Pass {_named(path, LABEL)} or {_named(path, WEIGHT)} to mix it,"
          f" or {_named(path, None)} to leave it as it is. {self._ADVICE}"
        )
    for path in self._kinds:
      if path not in used:
        raise ValueError(
          f"components of {self.__name__}: there is no {shown(path)} with the images, but "
          f"{', '.join(shown(path) for path, _ in found) or 'nothing'}. {_TELL}"
        )
    return kinds

  def _usual_kind(self, path, value):
    """The kind of a component that is not declared, or None."""
    place, name = path[0], str(path[-1]).lower()
    if target_hints.kind_by_name(path, value, 1) is None:
      if place == 1 or name in _LABEL_NAMES:
        return LABEL
      is_floating = getattr(value, "dtype", None) is not None and tf.as_dtype(value.dtype).is_floating
      if is_floating and (path == (2,) or name in _WEIGHT_NAMES):
        return WEIGHT
    return None

  def _checked_rows(self, path, kind, value, batch_size):
    """Returns the component as int64 or float32, and its number of classes, 0 if it is not given."""
    whose = self._called(path, kind)
    try:
      rows = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
      rows = None
    if rows is None or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
      raise TypeError(
        f"{whose} must be a dense tensor, got a {type(value).__name__}. Convert it in Dataset.map first, with "
        f"tf.sparse.to_dense or to_tensor(), or pass {_named(path, None)} to leave it as it is."
      )
    shape, dtype = rows.shape, rows.dtype
    classes = kind == LABEL and dtype.is_integer
    if not classes and dtype not in _FLOATS:
      way = "Convert it with tf.cast(..., tf.float32)"
      if dtype == tf.string:
        way = "Convert them to numbers, for example with tf.keras.layers.StringLookup"
      raise TypeError(
        f"{whose} must be {'numbers of classes, or floats' if kind == LABEL else 'floats'}, got dtype {dtype.name}. "
        f"{way}. Or pass {_named(path, None)} to leave it as it is."
      )
    if shape.rank is not None and (not 1 <= shape.rank <= 2 or not shape[:1].is_compatible_with([batch_size])):
      raise ValueError(
        f"{whose} must be [batch] or [batch, n], got shape {shape} for {batch_size or 'a batch of'} images. Masks, "
        f"boxes and key points cannot be mixed: leave {self.__name__} out, or drop them in Dataset.map first. Pass "
        f"{_named(path, None)} to leave other components as they are."
      )
    if classes and self._num_classes is None:
      raise ValueError(
        f"{whose} are whole numbers, {dtype.name}, which cannot be mixed. Pass num_classes= if they are numbers of "
        "classes, or convert them with tf.cast(labels, tf.float32) if they are one-hot or quantities."
      )
    if classes and shape.rank == 2 and shape[1] not in (1, None):
      raise ValueError(
        f"{whose} must be [batch] or [batch, 1] as numbers of classes, got shape {shape}. If they are one-hot, or "
        "several labels per image, convert them with tf.cast(labels, tf.float32)."
      )
    one_hot = kind == LABEL and not classes and self._num_classes is not None
    if one_hot and not shape.is_compatible_with([None, self._num_classes]):
      raise ValueError(
        f"{whose} must be [batch, {self._num_classes}] as floats, because of num_classes={self._num_classes}, got "
        f"shape {shape}. If they are numbers of classes, convert them with tf.cast(labels, tf.int32); otherwise leave "
        "num_classes out."
      )
    return tf.cast(rows, tf.int64 if classes else tf.float32), (self._num_classes or 0) if kind == LABEL else 0


_TELL = 'Pass components={"fine": "label", "id": None} for entries of a dict, components={2: "weight"} for a tuple.'


def _named(path, kind):
  return named(path, kind).replace("targets=", "components=", 1)


def _checked_alpha(name, alpha, whose):
  advice = f"Pass 0.2 for little mixing, or 1 for uniform lambdas; to mix nothing, leave {whose} out."
  return layers.checked_real(f"{name} of {whose}", alpha, *_ALPHAS, advice)


def _checked_kinds(components, whose):
  """Returns a dict from paths to kinds."""
  if components is None:
    return {}
  if not isinstance(components, dict):
    raise TypeError(
      f"components of {whose} must be a dict from names or positions to kinds, or None, got {components!r}. {_TELL}"
    )
  return dict(_paths((), components, whose))


def _paths(path, components, whose):
  for name, kind in components.items():
    target_kinds.checked_names(f"components of {whose}", [name], _TELL)
    if not path and (name in target_kinds.IMAGE_NAMES or isinstance(name, numbers.Integral) and name < 1):
      raise ValueError(
        f"components of {whose} must not name the images, which are the first one, 0, got {name!r}. {_TELL}"
      )
    inner = (*path, name if isinstance(name, str) else int(name))
    if isinstance(kind, dict):
      yield from _paths(inner, kind, whose)
    elif kind not in (LABEL, WEIGHT, None):
      raise (ValueError if isinstance(kind, str) else TypeError)(
        f'components of {whose} must give {shown(inner)} the kind "{LABEL}" or "{WEIGHT}", or None to leave it as it '
        f"is, got {kind!r}. {_TELL}"
      )
    else:
      yield inner, kind
