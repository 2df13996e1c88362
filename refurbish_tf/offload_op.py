"""The `offload` stage, `tf.data.Dataset.offload`, and batches that are already finished."""

import functools
import math
import numbers
import os
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import batches, checks, dataset_graph, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops, nest
from refurbish_tf.augment import composition, device_layers, target_kinds, target_hints
from refurbish_tf.augment import layers as image_layers
from refurbish_tf.augment.native_layers import LayerChain
from refurbish_tf.augment.targets import Following
from refurbish_tf.echo_op import AUTOTUNE

# The allowed values of `device_fraction`, in eighths.
_EIGHTHS = (0, 1, 2, 4, 8)
# The entries of a batch that replace the image, and the numbers that stand for them in the op's `components`.
_ENTRIES = {"unfinished_image": -1, "draws": -2, "layers": -3}


def offload(
  layers: Sequence[Any],
  batch_size: int,
  *,
  targets: dict[str | int, Any] | None = None,
  clips: bool = False,
  device_fraction: float = AUTOTUNE,
  num_replicas: int | None = None,
  component: str | int | None = None,
  seed: int | None = None,
  drop_remainder: bool = True,
  name: str | None = None,
) -> Callable[[tf.data.Dataset[Any]], tf.data.Dataset[Any]]:
  """Batches images and leaves their last layers to the model's first layer, on the model's device.

  It replaces the final augmentation and `batch`:

  >>> import numpy as np
  >>> images = tf.data.Dataset.from_tensor_slices((np.zeros([8, 32, 32, 3], np.uint8), np.arange(8)))
  >>> layers = [*rtf.augment.rand_augment(), rtf.augment.random_flip(), rtf.augment.normalize()]
  >>> train = images.refurbish(lambda image, label: (image, label), None, r=3).offload(layers, 4).prefetch(2)
  >>> batch, labels = next(iter(train))
  >>> batch["unfinished_image"].shape, batch["draws"].shape, labels.shape
  (TensorShape([4, 32, 96]), TensorShape([4, 4]), TensorShape([4]))

  Train `rtf.keras.with_offloaded(layers, model)` on it, or a model that begins with `rtf.keras.Offloaded(layers)`; any
  other model raises an error at its first step. A batch leaves the host as uint8, a quarter of the size of float32,
  with the numbers that its layers draw. The accelerator runs the layers after the last policy (`rand_augment`,
  `auto_augment`, `trivial_augment`) for all images, because they are cheap there. It runs the *policy layers*, those up
  to the last policy, for a fraction of the images, and the host runs them for the rest. Both sides make the same
  images, bit for bit.

  Directly after `refurbish(partial_fn, None, r)` the layers draw the same numbers as its final augmentation would.
  After any other source the stage yields the elements in their order, with new draws in each epoch. docs/offload.md
  says when it pays.

  Args:
    layers: a list of layers of `rtf.augment`: `rand_augment`, `auto_augment`, `trivial_augment`, `random_crop` with
      `padding_mode="constant"` and without a size, `random_flip`, `cutout`, `random_grayscale`, `random_solarize`, and
      `normalize` as the last one. Put other layers before `offload`, on the host.
    batch_size: how many elements a batch has, a whole number.
    targets: masks, boxes and other components that move with the image, as for `rtf.augment.compose`. The host moves
      them, with the numbers that it draws for the accelerator. Only allowed directly after `refurbish`.
    clips: whether samples are clips or volumes, uint8 `[frames, height, width, 3]`, whose frames share the same draws.
      Policies are not allowed among their layers.
    device_fraction: the fraction of the images whose policy layers the accelerator runs: 0, 1/8, 1/4, 1/2 or 1. With
      `rtf.AUTOTUNE` it rises by an eighth while training waits for batches, and falls while batches wait for training.
    num_replicas: into how many equal parts a batch is split, each with the same fraction. None uses the number of
      replicas of `tf.distribute.get_strategy()`. Give the number of devices for `jax.sharding` and
      `keras.distribution`.
    component: where the image is: the name of a dict's entry or a position in a tuple. None looks for it as the element
      itself, its first component, or the entry `"image"` or `"images"`.
    seed: an int that fixes the numbers that the layers draw, unless the source is `refurbish`. None derives one from
      `tf.random.set_seed`, or uses a random one.
    drop_remainder: whether to drop a smaller last batch. If it is kept, the host runs its policy layers.
    name: a name for the stage, shown by `rtf.stats`.

  Returns:
    A transformation for `tf.data.Dataset.apply`; the method `offload` applies it. Three entries of a dict replace the
    image: `"unfinished_image"`, the rows of bytes, uint8 `[batch, height, width * 3]`, with `frames` after `batch` for
    clips; `"draws"`, int32 `[batch, 1 + number]`, 1 if the policy layers are not yet done, then the numbers drawn;
    `"layers"`, int32 `[batch, 0, number]`, which identifies the layers.

  Raises:
    TypeError: an argument is of the wrong type; the image is not uint8; a component is ragged or sparse.
    ValueError: an argument is out of range; an accelerator cannot run the layers; the shape of the image is not known,
      or not `[height, width, 3]`; there is no such component; a component must move with the image but is not in
      `targets`; `targets` are given and the source is not `refurbish`; `seed` is given after `refurbish`, which has
      its own; or `batch_size` is not a multiple of `num_replicas`.
    tf.errors.InvalidArgumentError: during an epoch, the elements have different shapes.

  Implements Kim et al., *FusionFlow: Accelerating Data Preprocessing for Machine Learning with CPU-GPU Cooperation*,
  VLDB 2023, sections 4 and 5.2, without a second runtime.
  """
  layers = device_layers.checked_layers(layers, "offload")
  checks.check_whole_number("batch_size", batch_size, 1)
  if num_replicas is not None:
    checks.check_whole_number("num_replicas", num_replicas, 1)
  if seed is not None:
    checks.check_whole_number("seed", seed, -(2**63))
  if isinstance(component, bool) or not isinstance(component, (str, numbers.Integral, type(None))):
    raise TypeError(f"component must be the key of a dict, a position in a tuple, or None, got {component!r}.")
  drop_remainder = checks.checked_flag("drop_remainder", drop_remainder)
  clips = checks.checked_flag("clips", clips)
  checks.check_name(name)
  eighths, targets = _checked_eighths(device_fraction), target_kinds.checked_targets(targets, "offload")

  def transformation(source):
    checks.check_not_in_function("offload", "files.interleave(read_file).offload(...)")
    replicas = tf.distribute.get_strategy().num_replicas_in_sync if num_replicas is None else num_replicas
    if batch_size % replicas:
      raise ValueError(
        f"batch_size of offload must be a multiple of the number of replicas, {replicas}, got {batch_size}. Pass "
        f"{batch_size // replicas * replicas or replicas}."
      )
    return _OffloadDataset(
      source, layers, batch_size, targets, clips, eighths, replicas, component, seed, drop_remainder, name
    )

  return transformation


def as_offloaded(
  dataset: tf.data.Dataset[Any], component: str | int | None = None, *, clips: bool = False
) -> tf.data.Dataset[Any]:
  """Makes validation data for a model that begins with `rtf.keras.Offloaded`; nothing random is applied to it.

  >>> import numpy as np
  >>> images = tf.data.Dataset.from_tensor_slices((np.zeros([8, 32, 32, 3], np.uint8), np.arange(8)))
  >>> batch, labels = next(iter(rtf.as_offloaded(images.batch(4))))
  >>> batch["unfinished_image"].shape, batch["draws"].shape
  (TensorShape([4, 32, 96]), TensorShape([4, 0]))

  `Offloaded` does not change such images, except by a `normalize` among its layers, which is not random. A model
  without `Offloaded` takes plain images: `model.evaluate(images)`.

  Args:
    dataset: a dataset of images, or of batches of them, uint8 `[height, width, 3]` or `[batch, height, width, 3]`, of
      known height and width.
    component, clips: as in `offload`. Clips may also be batched.

  Returns:
    A `tf.data.Dataset` in which the image is replaced by the same entries as in `offload`.

  Raises:
    TypeError: the image is not uint8.
    ValueError: there is no such component, or its shape is different or not known.
  """
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(f"dataset of as_offloaded must be a tf.data.Dataset, got {dataset!r}.")
  clips = checks.checked_flag("clips", clips)
  path = _path_of_image(dataset.element_spec, component, "as_offloaded")
  spec = _at(dataset.element_spec, path)
  batched = isinstance(spec, tf.TensorSpec) and spec.shape.rank == 4 + clips
  *frames, height, width = _checked_image(spec, "as_offloaded", batched, clips)

  def entries(image):
    lead = tf.shape(image)[:1] if batched else tf.zeros([0], tf.int32)
    static = spec.shape[:1] if batched else tf.TensorShape([])
    empty = lambda dtype, *dims: tf.ensure_shape(tf.zeros(tf.concat([lead, dims], 0), dtype), static.concatenate(dims))
    return {
      "unfinished_image": tf.reshape(image, tf.concat([lead, [*frames, height, width * 3]], 0)),
      # Because `layers` is uint8, tf.function distinguishes this batch from the batches of offload. If they differed
      # only in shape, it would make one trace for both, with unknown sizes.
      "draws": empty(tf.int32, 0),
      "layers": empty(tf.uint8, 0, 0),
    }

  def convert(*element):
    element = element if type(dataset.element_spec) is tuple else element[0]
    return _replaced(element, path, entries(_at(element, path)))

  return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


class _OffloadDataset(batches.ReadsFewAhead, dataset_ops.UnaryDataset):
  """Yields batches of images that an accelerator finishes."""

  def __init__(
    self, source, layers, batch_size, targets, clips, eighths, num_replicas, component, seed, drop_remainder, name
  ):
    self._name = name
    self._given, self._batch_size, self._targets = layers, batch_size, targets
    given = source.element_spec
    path = _path_of_image(given, component, "offload")
    *frames, height, width = _checked_image(_at(given, path), "offload", batched=False, clips=clips)
    self._frames = frames
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if batch_size > (most := memory // (3 * math.prod([*frames, height, width]))):
      raise ValueError(f"batch_size of offload must be at most {most:,} to fit into memory, got {batch_size:,}.")
    numbered = nest.pack_sequence_as(given, list(range(len(nest.flatten(given)))))
    self._layers = device_layers.DeviceLayers.of(layers, "offload")
    if clips and self._layers.num_policy_layers:
      raise ValueError(
        f"layers of offload with clips=True must not have policies, got {list(layers)}. Put {layers[0].__name__} into "
        "partial_fn of refurbish."
      )
    moves = device_layers.chain_of(layers, 0).moves_pixels
    if any((targets or {}).values()) and not _is_usual(path):
      raise ValueError(
        f"targets of offload need an image that comes first or is called 'image', got component={component!r}. Rename "
        "the image to 'image', or put it first in a tuple, in Dataset.map before refurbish, and leave component out."
      )
    _check_others(given, path, targets, moves)
    mover = functools.partial(_moving, layers, targets, moves) if any((targets or {}).values()) else None
    stage, first_position = _refurbish_stage(source, mover)
    if mover and stage is None:
      raise ValueError(
        "targets of offload need a refurbish stage without final_fn directly before offload, because that stage moves "
        "them. Put .refurbish([lambda image: image], r=1, targets=...) there, or leave final_fn out."
      )
    # Whether a refurbish stage yields the seeds and has the position. Otherwise this stage has its own state.
    self.seeded = seeded = stage is not None
    if seeded:
      if seed is not None:
        raise ValueError(
          f"seed of offload must not be given after refurbish, whose seed fixes the draws, got {seed!r}. Give it to "
          "refurbish instead."
        )
      source = stage
      given = source.element_spec[0]
    else:
      source = dataset_graph.without_autotuner(source)
      stage_seed = checks.stage_seed(seed)
      self.saved_state, self.restore_state = self._saved_state, self._restore_state
    chain = device_layers.chain_of(layers, first_position)
    num_policy_layers = self._layers.num_policy_layers
    # Without policy layers, host and accelerator have no work to divide.
    self._eighths = eighths if num_policy_layers else 8
    batch = batch_size if drop_remainder else None
    entries = {
      "unfinished_image": tf.TensorSpec([batch, *frames, height, width * 3], tf.uint8),
      "draws": tf.TensorSpec([batch, 1 + self._layers.num_draws], tf.int32),
      "layers": tf.TensorSpec([batch, 0, self._layers.fingerprint], tf.int32),
    }
    others = nest.map_structure(lambda spec: tf.TensorSpec([batch, *spec.shape], spec.dtype), given)
    self._element_spec = _replaced(others, path, entries)
    # The op finds its state by this name in every graph into which it is copied.
    self.offload_stage = native.ops().refurbish_tf_stage_name()
    with checks.build_errors():
      variant = native.ops().refurbish_tf_offload_dataset(
        source._variant_tensor,
        stage=self.offload_stage,
        seed=0 if seeded else stage_seed,
        layers=chain.texts,
        batch_size=batch_size,
        num_parts=num_replicas,
        eighths=self._eighths,
        group=device_layers.GROUP,
        tables=self._layers.num_tables,
        drop_remainder=drop_remainder,
        image=_at(numbered, path),
        image_height=height,
        image_width=width,
        image_frames=sum(frames),
        seeded=seeded,
        any_seed=seed is None,
        components=nest.flatten(_replaced(numbered, path, _ENTRIES)),
        **self._common_args,
      )
    super().__init__(source, variant)

  @property
  def element_spec(self):
    return self._element_spec

  def _saved_state(self):
    """The state of the stage between two epochs, as a dict for JSON."""
    return native.rows(native.ops().refurbish_tf_offload_state(stage=self.offload_stage))[0]

  def _restore_state(self, saved):
    state = tf.constant(native.numbers_of(dict(saved), self._saved_state()), tf.int64)
    native.ops().refurbish_tf_offload_restore(stage=self.offload_stage, state=state)

  def describe_stage(self):
    names = [layer.__name__ for layer in self._given]
    num_policy_layers = self._layers.num_policy_layers
    fraction = "AUTOTUNE" if self._eighths == AUTOTUNE else f"{self._eighths / 8:g}"
    policy = f"{', '.join(names[:num_policy_layers])}; device fraction {fraction}" if num_policy_layers else "none"
    rows = [
      ("batch", f"{self._batch_size:,} " + (f"clips of {self._frames[0]:,} frames" if self._frames else "images")),
      ("policy", policy),
      ("device", ", ".join(names[num_policy_layers:]) or "none"),
    ]
    targets = {path: kind for path, kind in (self._targets or {}).items() if kind}
    rows += [("targets", f"{target_kinds.shown(path)}: {kind}, moved by the host") for path, kind in targets.items()]
    title = dataset_graph.stage_title("offload", self._name)
    return "\n".join([title, *(f"  {name:<7} {text}" for name, text in rows)])


def _refurbish_stage(source, mover):
  """The refurbish stage at the end of `source`, changed to yield seeds, and its number of partial layers; or None, 0.

  `mover`: None, or a function that takes this number and returns the stage's final function.
  """
  stage, seeded = dataset_graph.without_options(source), None
  if hasattr(stage, "with_final_seeds"):
    seeded = stage.with_final_seeds(mover and mover(stage.num_partial_layers))
  if seeded is None:
    return None, 0
  return seeded if stage is source else seeded.with_options(source.options()), stage.num_partial_layers


def _moving(layers, targets, moves, first_position):
  """A final function for a refurbish stage that moves the image's targets, and leaves the image to the accelerator."""
  # The targets move with a blank image of one channel, or of three if a target is an image, which is also normalized.
  channels = 3 if "image" in targets.values() else 1
  blank_layers = layers if channels == 3 else [layer for layer in layers if layer.text.split(" ")[0] != "normalize"]
  placed = [(layer, first_position + i) for i, layer in enumerate(blank_layers)]
  chain = LayerChain(placed, clips=True) if placed else None

  def move(element, *rest, seed):
    image = composition.image_of(element)
    following = Following(targets, element, rest, image, moves)
    if chain:
      following.through_layer(chain, tf.zeros([*image.shape[:-1], channels], tf.uint8), seed)
    return following.beside(composition.with_image(element, image)), seed

  return move


def _checked_eighths(device_fraction):
  if checks.is_real(device_fraction):
    if device_fraction == AUTOTUNE:
      return AUTOTUNE
    if 8 * device_fraction in _EIGHTHS:
      return int(8 * device_fraction)
  raise ValueError(
    "device_fraction must be 0, 1/8, 1/4, 1/2 or 1, the fraction of a batch that the accelerator augments, or "
    f"rtf.AUTOTUNE, got {device_fraction!r}."
  )


def _path_of_image(spec, component, whose):
  """The keys that lead to the image in an element."""
  path, inner = ((0,), spec[0]) if isinstance(spec, tuple) and spec else ((), spec)
  if isinstance(component, numbers.Integral):
    if isinstance(spec, tuple) and 0 <= component < len(spec):
      return (int(component),)
  elif isinstance(inner, dict):
    names = [name for name in target_kinds.IMAGE_NAMES if name in inner] if component is None else [component]
    if len(names) == 1 and names[0] in inner:
      return (*path, names[0])
  elif component is None:
    return path
  raise ValueError(
    f"{whose} looks for the image as "
    + ("the element, its first component or an entry 'image' or 'images'" if component is None else repr(component))
    + f", but the elements are {spec}. Pass component, the key of a dict or a position in a tuple."
  )


def _at(element, path):
  for key in path:
    element = element[key]
  return element


def _replaced(element, path, entries):
  """The element with the dict `entries`, or its entries, in place of the component at `path`."""
  if not path:
    return dict(entries)
  if isinstance(element, dict):
    (key,) = path
    return {**{name: value for name, value in element.items() if name != key}, **entries}
  parts = list(element)
  parts[path[0]] = _replaced(parts[path[0]], path[1:], entries)
  return type(element)(*parts) if hasattr(element, "_fields") else tuple(parts)


def _checked_image(spec, whose, batched, clips):
  """The height and width of images of this spec, after the number of frames if they are clips."""
  image_layers.check_is_one(spec, whose)
  if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.uint8:
    way = "Make them dense with map, for example by tf.ensure_shape(image.to_tensor(), [height, width, 3])."
    if isinstance(spec, tf.TensorSpec):
      way = image_layers.way_to_uint8(spec.dtype)
    raise TypeError(f"{whose} takes uint8 images, got {spec}. {way}")
  shape = spec.shape[1:] if batched else spec.shape
  form = "[frames, height, width, 3]" if clips else "[height, width, 3]"
  is_known = shape.rank == 3 + clips and shape.is_fully_defined()
  if not is_known or shape[-1] != 3 or 0 in shape or clips and shape[-2] == 1:
    way = "Crop or resize them to one size before it, or, if they have one, declare it by tf.ensure_shape(image, "
    way += f"{form}) in map" + (".", ", and batch afterwards.")[whose == "offload"]
    way += " For clips, pass clips=True." * (not clips and shape.rank in (4, 5))
    if shape.rank in (2, 3, 3 + clips) and shape[-1] not in (None, 3):
      way = image_layers.way_to_channels(shape)
    raise ValueError(f"{whose} takes images of one known size, {form}, got shape {spec.shape}. {way}")
  if max(shape[-3:-1]) > device_layers.LARGEST_SIDE:
    raise ValueError(
      f"{whose} takes images with sides of at most {device_layers.LARGEST_SIDE:,} pixels, got shape {spec.shape}. Crop "
      "or resize them before it."
    )
  return shape[:-1].as_list()


def _is_usual(path):
  """Whether layers find the image at `path` without being told."""
  return path in ((), (0,)) or path[-1] in target_kinds.IMAGE_NAMES


def _check_others(spec, path, targets, moves):
  """Raises unless all other components can be batched with the image. `moves`: whether the layers move pixels."""
  image = _at(spec, path)
  if path and isinstance(_at(spec, path[:-1]), dict):
    taken = sorted(set(_ENTRIES) & set(_at(spec, path[:-1])) - {path[-1]})
    if taken:
      raise ValueError(
        f"offload adds the entries {sorted(_ENTRIES)}, but the elements already have {taken}. Rename them with map."
      )
  others = [(name, each) for name, each in target_hints.leaves(spec) if each is not image]
  for _, each in others:
    if not isinstance(each, tf.TensorSpec) or each.shape.rank is None:
      raise TypeError(
        f"offload batches dense tensors of known rank, got {each}. Make it dense with map, or leave it out."
      )
  if any((targets or {}).values()) or targets == {}:
    return  # Targets are checked when they are traced.
  if _is_usual(path):
    element, rest = (spec[0], spec[1:]) if isinstance(spec, tuple) else (spec, ())
    Following(targets, element, rest, image, moves)
    return
  if len(path) > 1:
    others = [(name[1:] if name[0] == 0 else name, each) for name, each in others]
  others = [(name, each) for name, each in others if not any(name[: len(stays)] == stays for stays in targets or {})]
  target_hints.check_sizes(others, image.shape[:-1].as_list())
  if moves:
    lead = image.shape.rank - 3
    target_hints.check_names(others, lead)
    target_hints.warn_of_companions(others, lead)
