"""Keras layers in lists: called as in training, with the seeds of the stage."""
from __future__ import annotations

import contextlib
import functools
import itertools
import threading

import keras
import tensorflow as tf

from .layers import seed_at

# Layers of Keras, and their counterparts in rtf.augment.
_OF_BATCHES = {"CutMix": "cutmix", "MixUp": "mixup"}
# Generators of seeds belong to layers, which several threads may trace.
_lock = threading.RLock()


def is_keras(layer):
  return isinstance(layer, keras.Layer)


def check(what, layer, where=""):
  """Raises ValueError if a Keras layer, or one within it, mixes the images of a batch."""
  for each in layer._flatten_layers() if is_keras(layer) else ():
    for name, ours in _OF_BATCHES.items():
      if name in [kind.__name__ for kind in type(each).__mro__]:
        raise ValueError(
            f"{what} must take a single image, but {name} of Keras{where} mixes the images of a batch, and would leave a single one as it "
            f"is. Put it after batch: .batch(B).map(rtf.augment.{ours}(...)).")


def draws(layer):
  """Whether it is a Keras layer that draws by generators of seeds."""
  return is_keras(layer) and bool(_generators(layer))


def as_function(function):
  """`function`, or one that calls it as in training if it is a Keras layer."""
  if not is_keras(function):
    return function
  return functools.partial(_call_with_seed if draws(function) else call, function)


def call(layer, *element, seed=None):
  """What the layer makes in training. Raises ValueError if that changes variables."""
  before = None if tf.executing_eagerly() else len(tf.compat.v1.get_default_graph().get_operations())
  with _seeds_from(layer, seed):
    made = layer(*element, training=True)
  # The states of random generators are whole numbers.
  if before is not None and any(
      op.type.startswith("Assign") and op.get_attr("dtype").is_floating
      for op in tf.compat.v1.get_default_graph().get_operations()[before:]):
    raise ValueError(
        f"{type(layer).__name__}, a Keras layer, changes its variables at each call, as BatchNormalization does: samples would depend on "
        "those before them. Put it into the model, or make it trainable = False.")
  return made


def _call_with_seed(layer, *element, seed):
  return call(layer, *element, seed=seed)


def _generators(layer):
  return [generator for each in layer._flatten_layers() for generator in each._seed_generators]


@contextlib.contextmanager
def _seeds_from(layer, seed):
  """Within it the layer draws from this seed, and not from the state that it keeps."""
  # With other backends Keras makes a generator for tf.data in the call.
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
