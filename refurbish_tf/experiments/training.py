"""The networks that the experiments train."""

import contextlib

import keras
import tensorflow as tf

from refurbish_tf._internal import machine

# The best of 0.1, 0.2, 0.4 and 0.8 for small standard trainings.
LEARNING_RATE = 0.4
# The best of 0.01, 0.02, 0.05 and 0.1 for the baseline of echoing.
ECHOING_LEARNING_RATE = 0.02
WEIGHT_DECAY = 5e-4
MOMENTUM = 0.9
# The fraction of the steps in which the learning rate rises, if there is a warm-up.
WARM_UP = 0.2


def small_resnet(images, width=16):
  """A residual network of eight layers for images of about 32 x 32 pixels, for machines with few CPU cores.

  It is like the networks for CIFAR-10 in He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016, section
  4.2, but has one block in each of the three stages, and the first layer at half the resolution.
  """
  inputs = keras.Input(images.shape, dtype="uint8")
  x = _conv(keras.layers.Rescaling(1 / 64, offset=-2)(inputs), width, strides=2)
  for stage in range(3):
    x = _block(x, width * 2**stage, strides=2 if stage else 1)
  x = keras.layers.GlobalAveragePooling2D()(x)
  # Float32 even if the other layers compute with bfloat16.
  return keras.Model(inputs, keras.layers.Dense(images.classes, dtype="float32")(x))


def resnet9(images, width=64):
  """A residual network of nine layers that a GPU trains to 94 % of CIFAR-10 in seconds.

  It is the network of Page, *How to Train Your ResNet*, Myrtle.ai 2018.
  """
  inputs = keras.Input(images.shape, dtype="uint8")
  x = _conv(keras.layers.Rescaling(1 / 64, offset=-2)(inputs), width)
  for stage in (1, 2, 3):
    x = keras.layers.MaxPooling2D()(_conv(x, width * 2**stage))
    if stage != 2:
      x = x + _conv(_conv(x, width * 2**stage), width * 2**stage)
  x = keras.layers.GlobalMaxPooling2D()(x)
  # Float32 even if the other layers compute with bfloat16.
  x = keras.layers.Dense(images.classes, use_bias=False, dtype="float32")(x)
  return keras.Model(inputs, keras.layers.Rescaling(1 / 8, dtype="float32")(x))


def small_cnn(images):
  """A network of two convolutions, for many short trainings."""
  return keras.Sequential(
    [
      keras.Input(images.shape, dtype="uint8"),
      keras.layers.Rescaling(2 / 127.5, offset=-2),
      keras.layers.Conv2D(16, 5, strides=2, padding="same", activation="relu"),
      keras.layers.MaxPooling2D(),
      keras.layers.Conv2D(48, 3, padding="same", activation="relu"),
      keras.layers.MaxPooling2D(),
      keras.layers.Flatten(),
      keras.layers.Dense(images.classes),
    ]
  )


@contextlib.contextmanager
def computing_with(precision):
  """A context in which new models compute with `precision`, one of Keras' dtype policies."""
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(precision)
  try:
    yield
  finally:
    keras.config.set_dtype_policy(before)


def compiled(model, steps, learning_rate=LEARNING_RATE, warm_up=0, weight_decay=WEIGHT_DECAY):
  """Compiles a model for `steps` steps of SGD with Nesterov momentum and a cosine decay of the learning rate to 0.

  In the first `warm_up`, a fraction of the steps, the learning rate rises linearly from 0.
  """
  model.compile(
    keras.optimizers.SGD(
      cosine(learning_rate, steps, warm_up), momentum=MOMENTUM, nesterov=True, weight_decay=weight_decay
    ),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=jit_compile(),
    steps_per_execution=8,
  )
  return model


def cosine(learning_rate, steps, warm_up):
  """The learning rate's schedule for `compiled`."""
  rising = round(warm_up * steps)
  return keras.optimizers.schedules.CosineDecay(
    *((0.0, steps - rising, 0.0, "cosine", learning_rate, rising) if rising else (learning_rate, steps))
  )


def jit_compile():
  """The `jit_compile` of `Model.compile` for a model with the current dtype policy.

  In TensorFlow on a CPU, XLA takes longer to compile such models than it saves, unless they compute with bfloat16 and
  the CPU does not: TensorFlow's own convolutions then take ten times as long as XLA's. JAX is slow without XLA.
  """
  if keras.backend.backend() != "tensorflow" or tf.config.list_physical_devices("GPU"):
    return "auto"
  return "bfloat16" in keras.config.dtype_policy().name and not machine.has_bfloat16()


def restart(model, weights):
  """Resets a compiled model to `weights`, for another training without compiling it again, which takes seconds."""
  model.set_weights(weights)
  for variable in model.optimizer.variables:
    # The learning rate is a schedule, not a variable; all variables begin with 0.
    variable.assign(keras.ops.zeros(variable.shape, variable.dtype))


def _conv(x, filters, strides=1, size=3, activation=True):
  x = keras.layers.Conv2D(filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
  x = keras.layers.BatchNormalization(momentum=0.9)(x)
  return keras.layers.ReLU()(x) if activation else x


def _block(x, filters, strides):
  y = _conv(_conv(x, filters, strides), filters, activation=False)
  if strides > 1:
    x = _conv(x, filters, strides, size=1, activation=False)
  return keras.layers.ReLU()(y + x)
