"""Makes batches like those of `Dataset.offload`: the policy layers are done on some images, but not on the others."""

import numpy as np

from refurbish_tf import augment
from refurbish_tf.augment import device_layers
from refurbish_tf.augment.policy_layer import PolicyLayer
from refurbish_tf.augment.policy_layer import distortions_at

MEAN, STD = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]


def every_outcome():
  """Returns a layer with each distortion at each magnitude from 0 to 10, in both directions. As in RandAugment, few of
  them need tables."""
  pairs = [distortions_at(magnitude / 10) for magnitude in range(11)]
  outcomes = [(name, value) for pair in pairs for name, values in pair.items() for value in values if value is not None]
  return PolicyLayer("every_outcome", outcomes, range(1, len(outcomes) + 1))


def images_like(rng, n, height, width):
  """Images that are hard for tables and means: noise, smooth images, few values, one value, narrow ranges."""
  y, x = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[:, None]
  waves = rng.normal(size=(4, n, 1, 1, 3))
  smooth = 0.5 + 0.3 * np.sin(6 * waves[0] * x + 6 * waves[1] * y + waves[2]) + 0.2 * np.cos(9 * waves[3] * x * y)
  low, high = np.sort(rng.integers(0, 256, (n, 1, 1, 3, 2)), -1).transpose(4, 0, 1, 2, 3)
  images = np.where(rng.random((n, 1, 1, 1)) < 0.6, smooth * 255, low + smooth * (high - low))
  images = images + rng.normal(size=images.shape) * rng.choice([0, 0, 8], (n, 1, 1, 1))
  images = np.clip(images, 0, 255).astype(np.uint8)
  images[::7] = rng.integers(0, 256, images[::7].shape, np.uint8)
  images[3::29] = rng.integers(0, 256, (images[3::29].shape[0], 1, 1, 3), np.uint8)
  images[5::31] = rng.choice([0, 17, 255], images[5::31].shape).astype(np.uint8)
  return images


def without_table(layers, draws, todo):
  """Returns which images of a batch come too late for a table in their group, so that the host must finish them."""
  on_device, column, late = device_layers.DeviceLayers.of(layers, "test"), 0, np.zeros(len(draws), bool)
  for layer in on_device.layers:
    if layer.kind == "policy":
      outcomes = np.searchsorted(layer.numbers("edges"), draws[:, column], side="right")
      needed = np.isin(np.array(layer.arguments["operations"])[outcomes], list(device_layers.TABLE_DISTORTIONS)) & (
        todo > 0
      )
      for start in range(0, len(draws), device_layers.GROUP):
        late[start + np.flatnonzero((needed & ~late)[start : start + device_layers.GROUP])[on_device.num_tables :]] = (
          True
        )
    column += layer.num_draws
  return late


def batch(layers, images, draws=None, todo=1, seed=(7, 0)):
  """Returns the three entries, and the finished images: those of `compose(layers)`.

  Args:
    layers: layers of `rtf.augment`.
    images: uint8 `[n, H, W, 3]`.
    draws: int32 `[n, number]`; None: drawn from the seed.
    todo: 1 for images that `offload` would leave to the accelerator, otherwise 0. The host finishes images without a
      table.
    seed: for the draws.
  """
  on_device, whole = device_layers.DeviceLayers.of(layers, "test"), augment.compose(layers)
  images = np.asarray(images)
  if draws is None:
    draws = whole.draws(seed, len(images)).numpy()
  todo = np.broadcast_to(np.int32(todo), [len(images)])
  todo = np.where(without_table(layers, draws, todo), 0, todo).astype(np.int32)
  shared = device_layers.checked_layers(layers, "test")[: on_device.num_policy_layers]
  given = images
  if shared:
    number = sum(layer.num_draws for layer in on_device.layers[: on_device.num_policy_layers])
    done = augment.compose(shared).pixels(images, draws[:, :number]).numpy()
    given = np.where(todo[:, None, None, None] == 1, images, done)
  entries = {
    "unfinished_image": _rows(given),
    "draws": np.concatenate([todo[:, None], draws], axis=1),
    "layers": np.zeros([len(images), 0, on_device.fingerprint], np.int32),
  }
  return entries, whole.pixels(images, draws).numpy()


def finished(images):
  """Returns the entries of `rtf.as_offloaded`."""
  return {
    "unfinished_image": _rows(images),
    "draws": np.zeros([len(images), 0], np.int32),
    "layers": np.zeros([len(images), 0, 0], np.uint8),
  }


def _rows(images):
  n, height, width, channels = np.shape(images)
  return np.reshape(images, (n, height, width * channels))
