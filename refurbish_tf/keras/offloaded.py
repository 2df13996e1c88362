"""The Keras side of `Dataset.offload`: a layer that finishes its batches, and a model that begins with this layer."""

import functools
from typing import Any, Sequence

import keras
from keras import ops
import tensorflow as tf

from refurbish_tf.augment import device_layers
from refurbish_tf.augment.device_layers import DeviceLayers
from . import offloaded_pixels

IMAGE, DRAWS, LAYERS = "unfinished_image", "draws", "layers"
# `layers` of a finished batch may be uint8: because of the dtype, `tf.function` makes a separate trace. If only shapes
# differed, it would trace again with unknown sizes.
_DTYPES = {IMAGE: ("uint8",), DRAWS: ("int32",), LAYERS: ("int32", "uint8")}
_ENTRIES = f"'{IMAGE}', '{DRAWS}' and '{LAYERS}'"


@keras.saving.register_keras_serializable("refurbish_tf")
class Offloaded(keras.layers.Layer):
  """A layer that runs the remaining layers on a batch of `Dataset.offload`, or of `rtf.as_offloaded`.

  >>> import numpy as np
  >>> finish = rtf.keras.Offloaded([rtf.augment.random_flip(), rtf.augment.normalize(0.5, 0.5)])
  >>> finished = {
  ...     "unfinished_image": np.full([1, 1, 6], 255, np.uint8), "draws": np.zeros([1, 0], np.int32),
  ...     "layers": np.zeros([1, 0, 0], np.uint8)}
  >>> np.array(finish(finished)).tolist()
  [[[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]]

  It is the first layer of a model that is trained on these batches; `rtf.keras.with_offloaded` puts it before an
  existing model. The images equal those that `rtf.augment.compose(layers)` makes on the host, bit for bit: jitted or
  not, on the TensorFlow, JAX and PyTorch backends, with any dtype policy. Each image has its own draws, and the program
  does not branch on them: after `offload(..., device_fraction=1)` this is an exact RandAugment on the accelerator,
  while Keras' own layer draws once for a batch and computes all distortions. One trace serves all fractions: the layers
  up to the last policy are compiled for an eighth, a quarter, half and all of a batch, and the draws select one. For
  this selection a GPU sends the host four bytes per step. Under `jax.sharding`, devices do not exchange pixels if the
  part of each is a multiple of 8 images; make the mesh with `jax.sharding.Mesh`, because the axes of `jax.make_mesh`
  may be explicit.

  It has no weights. Images have sides of 1 to 2,048 pixels. Call it on a dict with these entries, and any others:

  - `"unfinished_image"`: uint8 `[batch, height, 3 * width]`, the bytes of images `[height, width, 3]`, or
    `[batch, frames, height, 3 * width]` for clips. Models that cannot finish them reject them, because they expect
    another rank.
  - `"draws"`: int32 `[batch, 1 + number]`. Column 0 is 1 for the images that still need the layers up to the last
    policy; the other columns hold the numbers that the layers draw. `[batch, 0]` if nothing random is left to do.
  - `"layers"`: int32 `[batch, 0, number]`, without contents: its shape says which layers the batch was made for. uint8
    or int32 `[batch, 0, 0]` if nothing random is left to do.

  Args:
    layers: the list of layers of `rtf.augment` that was passed to `Dataset.offload`.
    **kwargs: as for `keras.layers.Layer`.

  Returns:
    A call returns the images, `[batch, height, width, 3]`, or clips, with `frames` after `batch`: uint8, or the dtype
    of `normalize`.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of `rtf.augment`. When called: the input is not a dict with
      these three entries (plain images, for example), or one of them has the wrong dtype.
    ValueError: `layers` is empty, or has a layer that must stay on the host, as `offload` says. When called: an entry
      has a wrong or unknown shape, or the batch was made for other layers.

  Implements Kim et al., *FusionFlow*, VLDB 2023, section 5: CPU and accelerator augment a batch together.
  """

  def __init__(self, layers: Sequence[Any], **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self._device_layers = layers if isinstance(layers, DeviceLayers) else DeviceLayers.of(layers, "Offloaded")
    self.built = True

  def call(self, inputs):
    *frames, height, width, is_finished = self._checked(inputs)
    images = ops.reshape(inputs[IMAGE], (-1, height, width, 3))
    if is_finished:
      made = offloaded_pixels.without_draws(self._device_layers, images)
    else:
      draws = ops.cast(inputs[DRAWS], "int32")
      if frames:
        # The frames of a clip share the same draws.
        draws = ops.repeat(draws, frames[0], axis=0)
      made = offloaded_pixels.finish(self._device_layers, images, draws)
    return ops.reshape(made, (-1, *frames, height, width, 3)) if frames else made

  def compute_output_spec(self, inputs):
    *frames, height, width, _ = self._checked(inputs)
    shape = (inputs[IMAGE].shape[0], *frames, height, width, 3)
    return keras.KerasTensor(shape, offloaded_pixels.dtype(self._device_layers))

  def get_config(self):
    return {**super().get_config(), "layers": list(self._device_layers.texts)}

  @classmethod
  def from_config(cls, config):
    return cls(**{**config, "layers": DeviceLayers(config["layers"])})

  def _checked(self, inputs):
    """The frames of clips, height, width, and whether nothing random is left to do; raises if shapes are unknown."""
    if not isinstance(inputs, dict) or not _DTYPES.keys() <= inputs.keys():
      given = f"an array of shape {inputs.shape}" if hasattr(inputs, "shape") else f"a {type(inputs).__name__}"
      given = f"one with {sorted(map(str, inputs))}" if isinstance(inputs, dict) else given
      raise TypeError(
        f"Offloaded must be called on a dict with the entries {_ENTRIES}, got {given}. Give it batches of "
        "Dataset.offload or of rtf.as_offloaded. For plain images and for export, use the model that was passed to "
        "with_offloaded."
      )
    # To build the model for a `tf.distribute` strategy, Keras calls it on the mean of the replicas' batches, which has
    # floats. The replicas' own steps check their real batches.
    is_traced = keras.backend.backend() == "tensorflow" and not tf.executing_eagerly()
    is_built = is_traced and tf.distribute.in_cross_replica_context()
    for name, allowed in _DTYPES.items():
      dtype = keras.backend.standardize_dtype(inputs[name].dtype)
      if dtype not in allowed and not is_built:
        raise TypeError(
          f"{name} of Offloaded must be {' or '.join(allowed)}, got {dtype}. Give it unchanged batches of "
          "Dataset.offload or of rtf.as_offloaded; to get floats, add normalize to the layers."
        )
    shapes = {name: _static_shape(inputs[name]) for name in _DTYPES}
    fingerprint = self._checked_sizes(LAYERS, shapes, "[batch, 0, number]")[1]
    (number,) = self._checked_sizes(DRAWS, shapes, "[batch, number]")
    # If the last dimension is 3, these are channels of images, not the width of clips that are one pixel wide.
    forms = ["[batch, height, 3 * width]", "[batch, frames, height, 3 * width]"]
    are_clips = len(shapes[IMAGE] or ()) == 4 and shapes[IMAGE][-1] != 3
    *frames, height, width = self._checked_sizes(IMAGE, shapes, forms[are_clips])
    is_finished = fingerprint == number == 0
    if not is_finished and fingerprint != self._device_layers.fingerprint:
      raise ValueError(
        f"Offloaded has the layers {device_layers.shown(self._device_layers.fingerprint)}, but the batch was made for "
        f"{device_layers.shown(fingerprint)}. Give the same list to Dataset.offload and to Offloaded, or to "
        "with_offloaded."
      )
    if not is_finished and number != 1 + self._device_layers.num_draws:
      raise ValueError(
        f"draws of Offloaded must have {1 + self._device_layers.num_draws} columns, got {number}. Give it unchanged "
        "batches of Dataset.offload."
      )
    if width % 3 or not all(1 <= side <= device_layers.LARGEST_SIDE for side in (height, width // 3)):
      raise ValueError(
        f"{IMAGE} of Offloaded must be {forms[bool(frames)]}, with sides of 1 to {device_layers.LARGEST_SIDE:,} "
        f"pixels, got shape {shapes[IMAGE]}. Resize images in partial_fn of refurbish, or in Dataset.map."
      )
    return *frames, height, width // 3, is_finished

  def _checked_sizes(self, name, shapes, allowed):
    """All sizes except the batch's."""
    shape = shapes[name]
    if shape is None or len(shape) != allowed.count(",") + 1 or None in shape[1:]:
      raise ValueError(
        f"{name} of Offloaded must be {allowed}, with all sizes except the batch's known at tracing, got "
        f"{'an unknown shape' if shape is None else f'shape {shape}'}. Give it unchanged batches of Dataset.offload. "
        "If the model has already run on batches for other layers or with other images, compile it again, or make a "
        "new one, because its trace covers all of them."
      )
    return shape[1:]


def with_offloaded(layers: Sequence[Any], model: keras.Model) -> keras.Model:
  """Returns the model to train on batches of `Dataset.offload`: it finishes the images and calls `model` on them.

  >>> import keras, numpy as np
  >>> model = keras.Sequential([keras.Input([2, 2, 3]), keras.layers.Flatten(), keras.layers.Dense(1)])
  >>> layers = [rtf.augment.random_flip(), rtf.augment.normalize(0.5, 0.5)]
  >>> trained = rtf.keras.with_offloaded(layers, model)
  >>> trained.compile("sgd", "mse")
  >>> finished = {
  ...     "unfinished_image": np.zeros([4, 2, 6], np.uint8), "draws": np.zeros([4, 0], np.int32),
  ...     "layers": np.zeros([4, 0, 0], np.uint8)}
  >>> _ = trained.fit(finished, np.zeros(4), verbose=0)
  >>> trained.weights[0] is model.weights[0]
  True

  Both models share their weights. The returned model takes the batches of `Dataset.offload` in `fit`, and those of
  `rtf.as_offloaded` in `evaluate`, `predict` and `validation_data`. Save and export `model`, which the returned
  model also has as its attribute `model`. It predicts on plain images; if the layers normalize, normalize them first:
  `model.predict(rtf.augment.compose(layers[-1:])(images))`. If a batch has other entries, `model` is called on a dict
  of these entries and the images, `"image"`.

  Compile, save and load the returned model like any other; `keras.models.load_model` needs `import refurbish_tf` first.
  Under a distribution strategy, make both models in its scope.

  Args:
    layers: the list of layers of `rtf.augment` that is passed to `Dataset.offload`.
    model: any `keras.Model`: Sequential, functional, a subclass, or a model of `keras.applications`.

  Returns:
    A `keras.Model` of `rtf.keras.Offloaded(layers)` and `model`, not yet compiled.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of `rtf.augment`, or `model` is not a `keras.Model`. A call: as
      for `Offloaded`.
    ValueError: as for `Offloaded`.
  """
  if not isinstance(model, keras.Model):
    raise TypeError(
      f"model of with_offloaded must be a keras.Model, got {model!r}. Put layers into keras.Sequential([...]) first."
    )
  return WithOffloaded(Offloaded(layers), model)


# A class, because a functional model would silently cast float images to uint8, and match entries by name.
@keras.saving.register_keras_serializable("refurbish_tf")
class WithOffloaded(keras.Model):
  """The model that `with_offloaded` returns."""

  def __init__(self, finish, model, **kwargs):
    super().__init__(**kwargs)
    self.finish = finish
    self.model = model

  def build(self, input_shape):
    pass  # `model` is built when it is called, or loaded.

  def call(self, inputs, training=None):
    image = self.finish(inputs)
    others = {name: value for name, value in inputs.items() if name not in _DTYPES}
    return self.model({"image": image, **others} if others else image, training=training)

  def get_config(self):
    return {
      **super().get_config(),
      "finish": keras.saving.serialize_keras_object(self.finish),
      "model": keras.saving.serialize_keras_object(self.model),
    }

  @classmethod
  def from_config(cls, config, custom_objects=None):
    made = functools.partial(keras.saving.deserialize_keras_object, custom_objects=custom_objects)
    return cls(**{**config, **{name: made(config[name]) for name in ("finish", "model")}})


def _static_shape(array):
  shape = array.shape
  return None if getattr(shape, "rank", 0) is None else tuple(shape)
