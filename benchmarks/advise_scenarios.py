"""The inputs that the benchmark of rtf.advise measures: sources and layers. All is made here, for it to run anywhere."""
import dataclasses
import pathlib
import time

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.experiments.slow_disk import SlowDisk

SIDE = 224
# Photographs that are drawn, which takes long; the others are copies.
DIFFERENT = 16
# Bytes a second: less than a standard pipeline reads on two processors.
SLOW = 20e6
MEMORY, DISK = "memory", "disk"
# Ways as (kind, form, form_in, samples_in).
BATCHED = ("batched", None, None, None)
REFURBISH = {("refurbish", None, None, where) for where in (MEMORY, DISK)}


def _kept(*forms):
  """The ways that keep elements in one of these forms, with and without samples."""
  return {(kind, form, where, samples) for form in forms for where in (MEMORY, DISK)
          for kind, samples in (("kept", None), ("both", where))}


@dataclasses.dataclass(frozen=True)
class Scenario:
  """An input.

  Attributes:
    key, name: what it is called in the JSON, and elsewhere.
    source, layers, batch: as for rtf.advise.
    bytes: of a sample, where all is kept that can be.
    admits: the ways, at least, that must be considered.
    files: the directory of the source's files, None if it has none.
  """
  key: str
  name: str
  source: tf.data.Dataset
  layers: list
  batch: int
  bytes: int
  admits: set
  files: pathlib.Path = None


def scenarios(directory, quick, everything):
  """Yields them. `directory` is for their files."""
  yield photographs(directory / "350", 24 if quick else 384, 350)
  yield arrays(512 if quick else 12_800)
  yield slow_disk(24 if quick else 384)
  if everything:
    yield photographs(directory / "2000", 8 if quick else 64, 2_000)
    yield audio(32 if quick else 1_000)
    yield keras_layers(32 if quick else 1_000)
    yield python_layer(16 if quick else 200)


def layers_of_photographs(*beginning):
  """Decoding and a crop, or what is given in their place, and the layers behind them."""
  return [*(beginning or [rtf.augment.decode_and_crop(SIDE)]), *rtf.augment.rand_augment(), rtf.augment.random_crop(4),
          rtf.augment.random_flip(), rtf.augment.normalize()]


def draw_photographs(count, side):
  """JPEG files as bytes: colours that run into each other, and details of every size, finer ones weaker. Few differ."""
  random = np.random.default_rng(side)
  files = []
  for _ in range(min(count, DIFFERENT)):
    height, width = (int(side * share) for share in random.uniform([0.75, 0.95], [0.95, 1.05]))
    image = np.full([height, width, 3], 128, np.float32)
    for finest, strength in ((4, 50), (16, 15), (64, 10), (256, 10)):
      image += tf.image.resize(random.normal(0, strength, [finest, finest, 3]).astype(np.float32), [height, width]).numpy()
    files.append(tf.io.encode_jpeg(np.clip(image, 0, 255).astype(np.uint8), quality=90).numpy())
  return [files[number % DIFFERENT] for number in range(count)]


def photographs(directory, count, side):
  for number, file in enumerate(draw_photographs(count, side)):
    path = directory / str(number % 4) / f"{number:05}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file)
  return Scenario(
      f"photographs_{side}", f"{count} photographs of {side:,} pixels", rtf.sources.image_folder(directory),
      layers_of_photographs(), 32, 3 * (side**2 + SIDE**2), {BATCHED, *REFURBISH, *_kept("encoded", "decoded")}, directory)


def arrays(count):
  images = np.random.default_rng(7).integers(0, 256, [count, 32, 32, 3], np.uint8)
  layers = [*rtf.augment.rand_augment(), rtf.augment.random_crop(4), rtf.augment.random_flip(), rtf.augment.normalize()]
  return Scenario(
      "arrays", f"{count:,} arrays of 32x32", tf.data.Dataset.from_tensor_slices(images), layers, 128, 2 * images[0].nbytes,
      {BATCHED, *REFURBISH})


def slow_disk(count):
  disk = SlowDisk(draw_photographs(count, 350), SLOW)
  return Scenario(
      "slow_disk", f"{count} photographs on a disk of {SLOW / 1e6:.0f} MB/s", disk.source(), layers_of_photographs(), 32,
      3 * (350**2 + SIDE**2), {BATCHED, *REFURBISH, *_kept("encoded", "decoded")})


def audio(count):
  """Half a second of sound at 16 kHz each; noise and gain, then a spectrogram, of which bands and times are hidden."""

  def gain(wave, seed):
    return wave * tf.random.stateless_uniform([], seed, 0.5, 1.5)

  def noise(wave, seed):
    return wave + 0.01 * tf.random.stateless_normal(tf.shape(wave), seed)

  def spectrogram(wave):
    mel = tf.signal.linear_to_mel_weight_matrix(64, 257, 16_000)
    return tf.math.log(tf.abs(tf.signal.stft(wave, 400, 80, 512)) @ mel + 1e-3)

  def hidden(image, seed):
    begin = tf.cast(tf.random.stateless_uniform([2], seed) * tf.cast(tf.shape(image) - 8, tf.float32), tf.int32)
    rows, columns = (tf.range(tf.shape(image)[axis]) for axis in (0, 1))
    is_seen = [(places < begin[axis]) | (places >= begin[axis] + 8) for axis, places in enumerate((rows, columns))]
    return image * tf.cast(is_seen[0][:, None] & is_seen[1][None], tf.float32)

  waves = np.random.default_rng(7).normal(0, 0.1, [count, 8_000]).astype(np.float32)
  return Scenario(
      "audio", f"{count:,} sounds", tf.data.Dataset.from_tensor_slices(waves), [gain, noise, spectrogram, hidden], 32,
      2 * waves[0].nbytes, REFURBISH)


def keras_layers(count):
  import keras
  images = np.random.default_rng(7).integers(0, 256, [count, 96, 96, 3], np.uint8)
  layers = [
      keras.layers.RandomRotation(0.1), keras.layers.RandomContrast(0.2), lambda image: tf.cast(image, tf.uint8),
      rtf.augment.random_crop(8), rtf.augment.random_flip()]
  return Scenario(
      "keras", f"{count:,} arrays of 96x96, Keras' layers", tf.data.Dataset.from_tensor_slices(images), layers, 32,
      5 * images[0].nbytes, REFURBISH)


def python_layer(count):
  images = np.random.default_rng(7).integers(0, 256, [count, 96, 96, 3], np.uint8)
  layers = [
      rtf.augment.numpy_layer(_ten_milliseconds, tf.TensorSpec([96, 96, 3], tf.uint8), processes=2), rtf.augment.random_crop(8),
      rtf.augment.random_flip()]
  return Scenario(
      "python", f"{count:,} arrays of 96x96, 10 ms of Python", tf.data.Dataset.from_tensor_slices(images), layers, 16,
      2 * images[0].nbytes, REFURBISH)


def _ten_milliseconds(image, rng):
  began = time.process_time()
  image = image ^ np.uint8(rng.integers(256))
  while time.process_time() - began < 0.01:
    image.sum()
  return image
