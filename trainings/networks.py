"""Small networks for images of any size. Two CPU cores take about a minute for 50,000 images of 32 x 32 pixels."""

import keras
import numpy as np

layers = keras.layers


def whitened(images, classes, widths=(32, 96, 128)):
  """A plain convolutional network whose first layer whitens patches of 2 x 2 pixels.

  It is the network of Jordan, *94% on CIFAR-10 in 3.29 Seconds on a Single GPU*, 2024, with fewer filters.

  Args:
    images: some training images, uint8 [count, height, width, 3], whose patches are whitened.
    classes: the number of classes.
    widths: the filters of the three groups.
  """
  inputs, x = _standardized(images)
  # This layer is not trained. Each direction comes with both signs, so that the activation does not lose it.
  first = layers.Conv2D(24, 2, use_bias=False, trainable=False)
  first.build(x.shape)
  first.set_weights([_whitening(np.array(keras.Model(inputs, x)(images)))])
  x = layers.Activation("gelu")(first(x))
  for width in widths:
    for size in (2, 1):
      x = layers.Conv2D(width, 3, padding="same", use_bias=False, kernel_initializer=_identity_first)(x)
      x = layers.MaxPooling2D()(x) if size == 2 else x
      # Biases learn 64 times as fast: `_Bias` multiplies both gradient and effect by 8.
      x = layers.BatchNormalization(momentum=0.6, epsilon=1e-5, center=False, scale=False)(x)
      x = layers.Activation("gelu")(_Bias(8.0)(x))
  x = layers.Dense(classes, use_bias=False, kernel_initializer=_uniform)(layers.GlobalMaxPooling2D()(x))
  return keras.Model(inputs, layers.Rescaling(1 / 9)(x))


def separable(images, classes, width=24):
  """Alternating depthwise and pointwise convolutions, as in Howard et al., *MobileNets*, 2017, but with seven of the
  fourteen layers."""

  def active(x):
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))

  inputs, x = _standardized(images)
  x = active(layers.Conv2D(width, 3, padding="same", use_bias=False)(x))
  for times, strides in ((2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1)):
    x = active(layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)(x))
    x = active(layers.Conv2D(width * times, 1, use_bias=False)(x))
  return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


class _Bias(keras.layers.Layer):
  """Adds a trained vector, multiplied by a constant."""

  def __init__(self, by):
    super().__init__()
    self._by = by

  def build(self, shape):
    self._bias = self.add_weight(shape=(shape[-1],), initializer="zeros", name="bias")

  def call(self, x):
    return x + self._by * self._bias


def _uniform(shape, dtype=None):
  return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")(shape, dtype)


def _identity_first(shape, dtype=None):
  """The first filters pass the channels on unchanged; the others are random."""
  kernel = np.array(_uniform(shape, dtype))
  same = min(shape[2:])
  kernel[..., :same] = 0
  kernel[1, 1, range(same), range(same)] = 1
  return keras.ops.convert_to_tensor(kernel)


def _standardized(images):
  """An input, and the input standardized by the mean and the standard deviation of `images` in each channel."""
  pixels = images.reshape(-1, 3).astype(np.float32)
  mean, spread = pixels.mean(0), pixels.std(0)
  inputs = keras.Input((*images.shape[1:],), dtype="uint8")
  return inputs, layers.Rescaling((1 / spread).tolist(), (-mean / spread).tolist())(inputs)


def _whitening(standardized):
  """A kernel [2, 2, 3, 24]: the directions of patches, each scaled to a variance of 1, and their opposites."""
  height, width = standardized.shape[1] - 1, standardized.shape[2] - 1
  patches = np.stack([standardized[:, i : i + height, j : j + width] for i in range(2) for j in range(2)], 3).reshape(
    -1, 12
  )
  variances, directions = np.linalg.eigh(np.cov(patches.T, bias=True))
  kernel = (directions / np.sqrt(variances + 5e-4)).reshape(2, 2, 3, 12)
  return np.concatenate([kernel, -kernel], -1)
