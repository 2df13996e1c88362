"""Keras layers in lists: called as in training, with the seeds of the stage."""

import contextlib
import functools
import itertools
import re
import threading

import keras
import tensorflow as tf

from refurbish_tf._internal.tensorflow_internals import context

from .layers import seed_at, way_to_uint8

# Layers of Keras that mix images, and their counterparts in rtf.augment.
_OF_BATCHES = {"CutMix": "cutmix", "MixUp": "mixup"}
_NO_STRINGS = (
  f"{{name}}, a Keras layer, takes numbers, got strings, such as the bytes of a file. {way_to_uint8(tf.string)}"
)
_TO_PREDICT = "To call a model as in prediction, pass lambda image: model(image[tf.newaxis], training=False)[0]."
_CHANGES = re.compile("Assign|Resource(Scatter|Apply|SparseApply)")
# Several threads may trace one layer, and its seed generators are replaced during a call.
_lock = threading.RLock()


def is_keras(layer):
  return isinstance(layer, keras.Layer)


def check(what, layer, where=""):
  """Raises ValueError if a Keras layer, or one within it, mixes images, or does not draw for each image."""
  for each in layer._flatten_layers() if is_keras(layer) else ():
    if isinstance(each, getattr(keras.layers, "AugMix", ())):
      raise ValueError(
        f"{what} must draw for each sample, but AugMix of Keras{where} chooses its operations once, when it is "
        "traced. Use rtf.augment.augmix()."
      )
    for name, ours in _OF_BATCHES.items():
      if isinstance(each, getattr(keras.layers, name, ())):
        raise ValueError(
          f"{what} must take a single image, but {name} of Keras{where} mixes the images of a batch, and would leave "
          f"a single one as it is. Put it after batch: .batch(B).map(rtf.augment.{ours}(...))."
        )


def draws(layer):
  """Whether `layer` is a Keras layer that draws with seed generators."""
  return is_keras(layer) and bool(_generators(layer))


def as_function(function):
  """`function`, or one that calls it as in training if it is a Keras layer."""
  if not is_keras(function):
    return function
  return functools.partial(_call_with_seed if draws(function) else call, function)


def call(layer, *element, seed=None):
  """Calls the layer as in training. Raises ValueError if that changes variables."""
  is_alone = len(element) == 1 and _takes_batch(layer, element[0])
  if is_alone:
    element = (element[0][tf.newaxis],)
  graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
  before = len(graph.get_operations()) if graph else 0
  with _explained(layer, element):
    _build(layer, element, seed is not None)
    with _seeds_from(layer, seed):
      made = layer(*element, training=True)
  nodes = [op.node_def for op in graph.get_operations()[before:]] if graph else []
  if any(node.op == "Cast" and node.attr["SrcT"].type == tf.string.as_datatype_enum for node in nodes):
    raise TypeError(_NO_STRINGS.format(name=layer.name))
  if _changes_variables(nodes):
    raise ValueError(
      f"{type(layer).__name__}, a Keras layer, changes its variables at each call in training, so samples would depend "
      f"on those before them. Put it into the model, or set trainable = False. {_TO_PREDICT}"
    )
  return tf.nest.map_structure(lambda each: each[0], made) if is_alone else made


def _build(layer, element, draws):
  builds = not layer.built and not getattr(layer.build, "_is_default", False)
  if builds and len(element) == 1 and tf.is_tensor(element[0]):
    with tf.init_scope():
      layer.build(tuple(element[0].shape))
  if draws and not all(each.built for each in layer._flatten_layers()):
    # Building may also draw, so it happens in a separate graph.
    tf.function(functools.partial(layer, training=True)).get_concrete_function(
      *tf.nest.map_structure(tf.type_spec_from_value, element)
    )


@contextlib.contextmanager
def _explained(layer, element):
  """Adds the layer's input to errors that the `with` block raises."""
  try:
    yield
  except Exception as error:
    if any(getattr(each, "dtype", None) == tf.string for each in tf.nest.flatten(element)):
      raise TypeError(_NO_STRINGS.format(name=layer.name)) from error
    if len(element) > 1:
      raise TypeError(
        f"{layer.name}, a Keras layer, is called with all {len(element)} components, which it cannot take. To call it "
        "with the image alone, put it into a list: refurbish([layer])."
      ) from error
    raise


def _takes_batch(layer, image):
  """Whether a single image must become a batch of one: for most Keras layers, and for layers built for batches."""
  rank = getattr(getattr(image, "shape", None), "rank", None)
  inputs = tf.nest.flatten(getattr(layer, "inputs", None) or layer.input_spec)
  known = [getattr(each, "ndim", None) or getattr(each, "min_ndim", None) for each in inputs]
  shapes = getattr(layer, "_build_shapes_dict", None) or {}
  built = [len(shape) for shape in shapes.values() if isinstance(shape, tuple)]
  for ranks in (known, built):
    if len(ranks) == 1 and ranks[0] and ranks[0] > 1:
      return ranks[0] - 1 == rank
  is_keras_own = type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.layers.Lambda)
  return rank == 3 and len(known) == 1 and image.dtype != tf.string and (is_keras_own or isinstance(layer, keras.Model))


def _changes_variables(nodes, seen=()):
  """Whether one of these operations, or of the functions that they call, changes variables."""
  # With other backends, seed generators change variables of whole numbers, which is allowed.
  only_floats = keras.backend.backend() != "tensorflow"
  for node in nodes:
    if _CHANGES.match(node.op) and not (only_floats and not tf.as_dtype(node.attr["dtype"].type).is_floating):
      return True
  names = {
    function.name for node in nodes for value in node.attr.values() for function in (value.func, *value.list.func)
  } - {"", *seen}
  return any(_changes_variables(context.context().get_function_def(name).node_def, {*names, *seen}) for name in names)


def _call_with_seed(layer, *element, seed):
  return call(layer, *element, seed=seed)


def _generators(layer):
  # Layers may share a generator.
  found = [generator for each in layer._flatten_layers() for generator in each._seed_generators]
  return list({id(generator): generator for generator in found}.values())


@contextlib.contextmanager
def _seeds_from(layer, seed):
  """In the `with` block, the layer draws from this seed, not from its own state."""
  # With other backends, Keras makes a generator for tf.data during the call.
  generators = _generators(layer) if seed is not None and keras.backend.backend() == "tensorflow" else []
  with _lock:
    numbers = itertools.count()
    for generator in generators:
      generator.next = lambda ordered=True, of=generator: tf.cast(seed_at(seed, next(numbers)), of.state.dtype)
    try:
      yield
    finally:
      for generator in generators:
        del generator.next
