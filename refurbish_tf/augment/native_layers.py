"""The base of all native layers: adjacent ones become a single C++ op.

The op draws int32 numbers from a seed and applies them to the image, in the fewest passes over its bytes that give the
same values. The draws depend on the seed alone. Drawing and applying are also separate ops, so that draws can be sent
to the device that has the pixels.
"""

import collections
import functools
import math
import re
from typing import Any, NamedTuple

import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings, native, tracing
from .layers import check_is_one, checked_probability, checked_seed
from .layers import looks_like_volume_of_channels, of_known_rank, way_to_channels, way_to_dtype
from .target_kinds import BOXES, KEY_POINTS, named, shown

# The most layers of one op. Further layers go to another op.
MOST_LAYERS = 64
# TensorFlow's cache of kernels only compares the ends of strings of 80 or more characters, and would confuse layers.
_LONGEST_PIECE = 79
# A chain with one of these layers, possibly inside another one, also takes sound: [samples] and [time, mel].
_OF_SOUND = re.compile("time_mask|frequency_mask|time_shift")


class Facts(NamedTuple):
  """What layers report. For each layer: how many numbers it draws for an image, whether it is a policy, and whether it
  moves pixels. For all together: the dtype that they return, or why they refuse the images, and which layer refuses."""

  num_draws: tuple[int, ...]
  is_policy: tuple[bool, ...]
  moves: tuple[bool, ...]
  dtype: tf.DType | None
  problem: str
  problem_layer: int
  version: int
  refused_in: str  # Which inner layers of that layer refuse, such as "cutout in ".
  changes: tuple[str, ...]  # For each layer: a change that a disparity, or any target, cannot follow, or "".


@functools.lru_cache(maxsize=4096)
def facts_of(texts: tuple[str, ...], dtype: tf.DType = tf.uint8, shape: tuple[int | None, ...] = (None,) * 3) -> Facts:
  """Describes layers, in pieces as for the ops, for images of this dtype and shape."""
  num_draws, is_policy, returned, problem, problem_layer, version, moves, refused_in, changes = _run(
    lambda: native.ops().refurbish_tf_describe_layers(layers=list(texts), S=dtype, shape=shape)
  )
  return Facts(
    tuple(num_draws.tolist()),
    tuple(is_policy.tolist()),
    tuple(moves.tolist()),
    None if problem else tf.as_dtype(int(returned)),
    problem.decode(),
    int(problem_layer),
    int(version),
    refused_in.decode(),
    tuple(change.decode() for change in changes.tolist()),
  )


def _run(op):
  """Runs an op without inputs and returns its outputs, even while a graph is being traced."""
  with tf.init_scope():
    if tf.executing_eagerly():
      with tf.device("CPU:0"):
        return [output.numpy() for output in op()]
  with tf.Graph().as_default() as graph:
    outputs = list(op())
  with tf.compat.v1.Session(graph=graph) as session:
    return session.run(outputs)


def draws_version() -> int:
  """The version of the layers' draws and results, which stores on disk record: a run must not mix two versions."""
  return facts_of(("random_flip position=-1",)).version


@functools.lru_cache(maxsize=4096)
def pieces(text: str, position: int) -> tuple[str, ...]:
  """A layer as an attribute of the ops. `position` derives its seed, unless it is -1."""
  name, _, arguments = text.partition(" ")
  made = [""]
  for word in re.split("(?= |,)", f"{name} position={position} {arguments}".rstrip()):
    if len(made[-1]) + len(word) > _LONGEST_PIECE:
      made.append(word.lstrip())
    else:
      made[-1] += word
  return tuple(made)


class HalfAugmented(collections.namedtuple("HalfAugmented", ["image", "sub_policy"])):
  """The output of AutoAugment's first layer and the input of its second: the image, and the drawn sub-policy (int32).

  `Dataset.map` unpacks plain tuples into arguments, but not this one, so it passes through a dataset in one piece.
  """

  __slots__ = ()


class NativeLayer:
  """A layer that `compose` joins with adjacent ones into one op. This one takes no seed."""

  takes_seed = False
  # How many outcomes it has for an image, and their effective number: among that many equally likely outcomes, two
  # draws would coincide equally often. None if the numbers depend on the image.
  outcomes: tuple[float, float] | None = (1, 1)
  # Equal texts of AutoAugment's two layers: the first passes its sub-policy to the second.
  hands_on: str | None = None
  takes_over: str | None = None
  # Whether its draws depend on the boxes that follow the image.
  looks_at_boxes = False

  # `kind` and `arguments` describe the layer to the ops.
  def __init__(self, name, arguments="", shown="", *, kind=None):
    self.__name__ = name
    # What the layer does, without the position that derives its seed.
    self.text = f"{kind or name} {arguments}".rstrip()
    self._shown = shown
    self._chain = LayerChain([(self, -1)])
    self.draws = self._chain.draws
    self.pixels = self._chain.pixels

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any) -> tf.Tensor:
    return self._chain(image)

  def text_of(self, dtype):
    """The text for images of this dtype; `text` is the one for uint8."""
    del dtype
    return self.text

  def __repr__(self):
    return f"{self.__name__}({self._shown})"


class DrawingLayer(NativeLayer):
  """A random layer."""

  takes_seed = True

  def __init__(self, name, arguments="", shown="", *, kind=None, outcomes=None, looks_at_boxes=False):
    self.outcomes, self.looks_at_boxes = outcomes, looks_at_boxes
    super().__init__(name, arguments, shown, kind=kind)

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any, seed: Any) -> tf.Tensor:
    return self._chain(image, seed)


class ChanceLayer(DrawingLayer):
  """A random layer that changes an image with probability `p`, or leaves it as it is.

  `outcomes` counts the changed images, as for a `NativeLayer`; (0, 0) if the layer never changes one.
  """

  def __init__(self, name, p, arguments="", shown="", *, outcomes=(1, 1)):
    p = checked_probability(name, p, "Pass 0.1 for a tenth of the images.")
    if outcomes == (0, 0):
      outcomes = (1, 1)
    elif outcomes is not None:
      number, effective = outcomes
      same = (1 - p) ** 2 + p**2 / effective
      outcomes = (p < 1) + (number if p > 0 else 0), 1 / same if same else math.inf
    arguments = f"below={round(p * 2**31)} {arguments}".rstrip()
    super().__init__(name, arguments, f"{shown}{', ' if shown else ''}p={p:g}", outcomes=outcomes)


def target_arguments(targets):
  """The arguments of an op for the targets of its images, triples of a path, a kind and a tensor."""
  # At most `_LONGEST_PIECE` characters, so that TensorFlow's cache of kernels does not confuse them.
  names = [
    f"the component {shown(path)[:40]}" + ("" if kind == "unnamed" else f", '{kind}',") for path, kind, _ in targets
  ]
  return {"targets": [tensor for _, _, tensor in targets], "kinds": [kind for _, kind, _ in targets], "names": names}


class LayerChain:
  """Adjacent layers as one op, or as two: draws and pixels."""

  def __init__(self, layers, whose=None, clips=None):
    """`layers`: pairs of a layer and the position that derives its seed, or -1. `clips`: as for `compose`."""
    self._layers = [layer for layer, _ in layers]
    self._positions = [position for _, position in layers]
    self.texts = self._texts_of(tf.uint8)
    self._whose = whose or self._layers[0].__name__
    self._takes_seed = any(layer.takes_seed for layer in self._layers)
    # Not None if the sub-policy comes from, or goes to, another chain.
    self._takes_over, self._hands_on = self._layers[0].takes_over, self._layers[-1].hands_on
    self._clips = clips

  def __call__(self, image, seed=None):
    return self.with_targets(image, [], seed)[0]

  @property
  def moves_pixels(self):
    return any(facts_of(self.texts).moves)

  def check_follows(self, path, kind):
    """Raises ValueError if a layer may move pixels in a way that the target at `path` cannot follow."""
    for layer, position, change in zip(self._layers, self._positions, facts_of(self.texts).changes):
      if "rollover=1" in layer.text and kind in (*BOXES, *KEY_POINTS):
        raise ValueError(
          f"targets: the {kind} {shown(path)} cannot follow {layer!r} at position {position}, which would cut boxes in "
          "two. Pass rollover=False."
        )
      blends = change.startswith("blend")
      if blends and kind not in ("image", None) or change and kind == "disparity":
        raise ValueError(
          f"targets: the {'component' if blends else kind} {shown(path)} cannot follow {layer!r} at position "
          f"{position}, which may {change}. "
          + (
            f"Use rand_augment(), which it can follow. To leave it as it is, as torchvision does, pass "
            f"{named(path, None)} to a compose of augmix() alone."
            if blends
            else 'Use layers that keep rows: crops, resizes, random_flip("vertical"), padding with zeros.'
          )
        )

  @tf.autograph.experimental.do_not_convert
  def with_targets(self, image, targets, seed=None):
    """Returns the image and a list of its targets, moved by the same draws.

    `targets`: triples of a path, a kind and a tensor.
    """
    sub_policy = None
    if self._takes_over:
      if not isinstance(image, HalfAugmented):
        raise TypeError(
          f"image of {self._whose} must be the result of the first layer of {self._takes_over}, got a "
          f"{type(image).__name__}. Keep the two layers together, with nothing between them."
        )
      image, sub_policy = image
    check_is_one(image, self._whose)
    image = self._checked_image(of_known_rank(image))
    if self.is_whole and self._takes_seed:
      seed, arguments = checked_seed(seed, self._whose), self._arguments(image, targets)
      return tuple(native.ops().refurbish_tf_image_layers(images=image, seed=seed, **arguments))
    if not self._takes_seed:
      return self._made(image, tf.zeros([0], tf.int32), targets)
    draws = self._draws(seed, tf.shape(image)[0] if image.shape.rank == self._batch_rank else None)
    if sub_policy is not None:
      draws = tf.concat([draws[..., :1] + sub_policy[..., tf.newaxis] * self._layers[0].group, draws[..., 1:]], -1)
    image, moved = self._made(image, draws, targets)
    return HalfAugmented(image, draws[..., -1] // self._layers[-1].group) if self._hands_on else image, moved

  @property
  def _batch_rank(self):
    return 5 if self._clips else 4

  @property
  def is_whole(self):
    """Whether its draws depend on the seed alone, and its result is an image."""
    return not self._takes_over and not self._hands_on

  @tf.autograph.experimental.do_not_convert
  def draws(self, seed: Any, batch_size: Any = None) -> tf.Tensor:
    """Returns the draws for a seed, int32 `[number]`, or `[batch_size, number]` for the images of a batch."""
    if self._takes_over:
      raise ValueError(
        f"draws of {self._whose} continue the draws of the first layer of {self._takes_over}. Compose both layers, and "
        "use the draws of the composed function."
      )
    return self._draws(seed, batch_size)

  def _draws(self, seed, batch_size):
    seed = checked_seed(seed, self._whose)
    sizes = [] if batch_size is None else [_checked_batch_size(batch_size, self._whose)]
    return native.ops().refurbish_tf_image_draws(seed=seed, batch_size=sizes, layers=self.texts)

  @tf.autograph.experimental.do_not_convert
  def pixels(self, image: Any, draws: Any) -> tf.Tensor:
    """Applies the draws to an image, or to each image of a batch."""
    check_is_one(image, self._whose)
    image, draws = self._checked_image(image, in_stage=False), tf.convert_to_tensor(draws)
    rank = None if image.shape.rank is None else 1 + (image.shape.rank == self._batch_rank)
    if draws.dtype != tf.int32:
      raise TypeError(f"draws of {self._whose} must be the int32 that draws returns, got dtype {draws.dtype.name}.")
    if self._takes_seed and None not in (rank, draws.shape.rank) and draws.shape.rank != rank:
      raise ValueError(
        f"draws of {self._whose} must be [batch_size, number] for a batch, otherwise [number], got shape {draws.shape} "
        f"for images of shape {image.shape}. Pass what draws returns."
      )
    return self._made(image, draws)[0]

  def _made(self, image, draws, targets=()):
    return tuple(native.ops().refurbish_tf_image_pixels(images=image, draws=draws, **self._arguments(image, targets)))

  def _arguments(self, image, targets):
    looking = [layer.__name__ for layer in self._layers if layer.looks_at_boxes]
    if looking and not any(kind in BOXES for _, kind, _ in targets):
      raise TypeError(
        f"{looking[0]} needs the boxes of an image, got none. Put it into the layers of compose, split or refurbish, "
        'and name the component that holds the boxes there: targets={"boxes": "xyxy"}.'
      )
    texts = self._texts_of(image.dtype)
    of_second = lambda path, tensor: self._dtype_of_second(path, tensor, image.dtype)
    return {
      "layers": texts,
      "clips": bool(self._clips),
      "looks_at_channels": _has_more_channels_than_rows(image.shape) is None,
      "T": facts_of(texts, image.dtype).dtype,
      "Tmoved": [of_second(path, each) if kind == "image" else each.dtype for path, kind, each in targets],
      **target_arguments(targets),
    }

  def _dtype_of_second(self, path, image, first_dtype):
    """The dtype of a second image after the layers; raises unless they take it."""
    dtype, shape = image.dtype, image.shape
    whose, texts = f"targets: the component {shown(path)}, 'image',", self._texts_of(dtype)
    if texts != self._texts_of(first_dtype):
      raise ValueError(
        f"{whose} must have the dtype of its image, {first_dtype.name}, because of a normalize that depends on the "
        f"dtype, got {dtype.name}. Cast one of them in Dataset.map first."
      )
    told = facts_of(texts, dtype, (None, None, None if shape.rank is None else shape[-1]))
    if told.problem:
      error = self._refusal(told, dtype, shape)
      raise type(error)(f"{whose} follows as an image: {error}")
    return told.dtype

  def _texts_of(self, dtype):
    """The layers, in pieces, for images of this dtype."""
    placed = zip(self._layers, self._positions)
    return tuple(piece for layer, position in placed for piece in pieces(layer.text_of(dtype), position))

  def _checked_image(self, image, in_stage=True):
    image = tf.convert_to_tensor(image)
    dtype, shape = image.dtype, image.shape
    if dtype == tf.string:
      raise TypeError(
        f"image of {self._whose} must be pixels, got strings of shape {shape}, such as the bytes of a file. Put "
        "rtf.augment.decode() before this layer."
      )
    sizes = (None,) * 3 if shape.rank is None else tuple(shape.as_list())
    sound = set(_OF_SOUND.findall(" ".join(layer.text for layer in self._layers)))
    least = 3 if not sound else 2 if "frequency_mask" in sound else 1
    if least <= len(sizes) < 3:
      sizes = (*sizes, 1, 1)[:3]
    if not 3 <= len(sizes) <= self._batch_rank or 0 in sizes[-3:-1]:
      forms = "[height, width, channels] or, for a batch, [batch, height, width, channels]"
      if self._clips:
        forms = "[frames, height, width, channels] or, for a batch of clips, [batch, frames, height, width, channels]"
      forms = "[samples], " * (least == 1) + "[time, mel], " * (least < 3) + forms
      way = "For clips, pass clips=True to rtf.augment.compose. " * (len(sizes) == 5) + way_to_channels(shape)
      raise ValueError(f"image of {self._whose} must be {forms}, with at least one pixel, got shape {shape}. {way}")
    if in_stage and len(sizes) == 4 and self._clips is None and tracing.is_in_stage():
      raise ValueError(
        f"image of {self._whose} must be [height, width, channels] inside a stage of samples, got shape {shape}. If it "
        "is a clip or a volume, whose frames are to be treated alike, pass clips=True to rtf.augment.compose or split, "
        "or the list of layers to refurbish itself. If it is a batch, each of whose images has its own draws, pass "
        "clips=False."
      )
    told = facts_of(self._texts_of(dtype), dtype, sizes[-3:])
    if told.problem:
      raise self._refusal(told, dtype, shape)
    if _has_more_channels_than_rows(shape) or self._clips and looks_like_volume_of_channels(list(sizes)):
      pipeline_warnings.warn(
        f"image of {self._whose} has the shape {shape}, which is read as "
        f"{'[frames, ' if self._clips and shape.rank == 4 else '['}height, width, channels], with {shape[-1]} channels."
        f" {way_to_channels(shape)} If the shape is right, silence this: {pipeline_warnings.SILENCE}."
      )
    return image

  def _refusal(self, told, dtype, shape):
    # The problem says what the image must be, what it is, and the layer's own advice, if it has any.
    must, _, advice = told.problem.partition(". ")
    must, _, got = must.partition(", got ")
    error, way = ValueError, advice
    if must.startswith("be "):
      # The dtype of the layer's input, which another layer may have made.
      dtype = tf.as_dtype(got.removeprefix("dtype ") or dtype)
      error, got = TypeError, f"dtype {dtype.name}"
      way = advice or way_to_dtype(dtype, must == "be uint8")
    elif "channels" in must and shape.rank is not None:
      # The limit depends on the layers: policies take fewer channels than others.
      takes = lambda number: not facts_of(self._texts_of(dtype), dtype, (*shape[-3:-1].as_list(), number)).problem
      most = next(filter(takes, (64, 3)), None) if "to 64" in must and not advice else None
      got, way = f"shape {shape}", advice or way_to_channels(shape, most)
    whose = f"{told.refused_in}{self._layers[told.problem_layer].__name__}"
    return error(f"image of {whose} must {must}, got {got}. {way}".rstrip(". ") + ".")


def _has_more_channels_than_rows(shape):
  """Whether channels probably come first, or are missing. None if the op must check this at run time."""
  *sides, channels = [None] * 3 if (shape.rank or 0) < 3 else shape[-3:].as_list()
  if channels is not None and (channels <= 4 or any(side is not None and side <= channels for side in sides)):
    return channels > 4
  return None if channels is None or None in sides else False


def _checked_batch_size(batch_size, whose):
  size = tf.convert_to_tensor(batch_size)
  if not size.dtype.is_integer:
    raise TypeError(f"batch_size of {whose} must be a whole number, got {batch_size!r}.")
  value = tf.get_static_value(size)
  if size.shape.rank not in (0, None) or value is not None and value < 0:
    raise ValueError(f"batch_size of {whose} must be one whole number of at least 0, got {batch_size!r}.")
  return tf.cast(size, tf.int64)
