"""Compares the cost that rtf.recommend_split predicts with the cost of running its recommendation (Lee et al., section 4)."""

import statistics

import common
import samples
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

EPOCHS = 90
SAMPLING_RATE = 16_000
# Samples and, at most, bytes of a batch: malloc gives larger blocks back to the operating system each time.
BATCH = 128
BATCH_BYTES = 2**23


def measure(quick):
  """Yields the sections."""
  # Making the many pipelines takes long, however little they do.
  for section in (arrays,) if quick else (arrays, photographs, audio):
    common.say(section.__doc__)
    yield section(quick)


def arrays(quick):
  """32x32 arrays"""
  images, whence = samples.small(512 if quick else 50_000)
  layers = [rtf.augment.rand_augment(), rtf.augment.random_crop(4),
            rtf.augment.random_flip()]
  source = tf.data.Dataset.from_tensor_slices(images)
  return _section("arrays", arrays.__doc__, f"{whence}.", source, layers, quick)


def photographs(quick):
  """224x224 from JPEG"""
  files, whence = samples.photographs(16 if quick else 1500)
  # Repeated, so that many samples share the cost of an epoch. Behind a filter it is a stream, as files are.
  source = tf.data.Dataset.from_tensor_slices(np.array(files, object)).filter(lambda file: tf.strings.length(file) > 0)
  source = source.apply(tf.data.experimental.assert_cardinality(len(files))).repeat(1 if quick else 8)
  layers = [_decode, _resize, rtf.augment.rand_augment(),
            rtf.augment.random_crop(28), rtf.augment.random_flip()]
  text = f"{whence}{'' if quick else ', 8 times'}, a stream."
  return _section("photographs", photographs.__doc__, text, source, layers, quick)


def audio(quick):
  """1-D audio"""
  count = 64 if quick else 1024
  rng = np.random.default_rng(7)
  seconds = np.arange(SAMPLING_RATE, dtype=np.float32) / SAMPLING_RATE
  # Chords of four tones that fade.
  pitches, fading = rng.uniform(100, 2000, [count, 4, 1]), rng.uniform(1, 6, [count, 1])
  waves = np.stack([np.sin(2 * np.pi * pitch * seconds).sum(0) * np.exp(-fade * seconds)
                    for pitch, fade in zip(pitches, fading)]).astype(np.float32)
  source = tf.data.Dataset.from_tensor_slices(waves).repeat(1 if quick else 12)
  text = f"{len(source):,} synthetic sounds of a second, {SAMPLING_RATE:,} float32."
  layers = [_change_pitch, _filter, _add_noise, _shift, _change_gain]
  return _section("audio", audio.__doc__, text, source, layers, quick)


def _section(key, title, source_text, source, layers, quick):
  def recommend():
    return rtf.recommend_split(layers, source, epochs=EPOCHS, max_seconds=0.5 if quick else 20)

  standard, predicted, measured, picks = [], [], [], set()
  before = recommend()
  for _ in range(common.rounds(quick, 3)):
    batch = min(BATCH, int(BATCH_BYTES / before.layers[-1].sample_bytes))
    costs = common.cpu_of_epochs({"run": source.refurbish(**before).batch(batch)}, rounds=2 if quick else 5)
    measured.append(statistics.median(common.per_element(len(source), costs)["run"]))
    after, pick = recommend(), (before.best.split, before.r)
    same, = (row for row in after.predictions if (row.split, row.r) == pick)
    predicted.append(5e5 * (before.best.time + same.time))
    standard.append(5e5 * (before.best.time * before.best.gain + same.time * same.gain))
    picks.add(f"split {pick[0]}, r = {pick[1]:g}")
    before = after
  common.say(f"the last recommendation:\n{after}")
  quotients = common.quotients(measured, predicted)
  return common.Section(
      title,
      f"{source_text} Layers: {', '.join(layer.name for layer in after.layers)}. Recommended: "
      f"{'; '.join(sorted(picks))}. CPU time per sample. Predicted: t_p / r + t_f and reading, the mean of what is "
      f"said before and after each run. Measured: refurbish(**choice).batch({batch}), of five epochs after the first the "
      "median.",
      [common.Row(f"{key}_standard", "standard training, predicted", "µs", standard),
       common.Row(f"{key}_predicted", "recommended, predicted", "µs", predicted),
       common.Row(f"{key}_measured", "recommended, measured", "µs", measured),
       common.Row(f"{key}_quotient", "measured", "of the prediction", quotients),
       common.Row(key, f"{title}: measured and predicted apart", "of the smaller",
                  [max(q, 1 / q) for q in quotients], limit=1.1)])


def _decode(image):
  return tf.io.decode_jpeg(image, channels=3)


def _resize(image):
  return tf.cast(tf.image.resize(image, [224, 224], antialias=True) + 0.5, tf.uint8)


def _change_pitch(wave, seed):
  """Up or down by up to two semitones, by stretching the spectrum."""
  semitones = tf.random.stateless_uniform([], seed, -2, 3, tf.int32)
  factor = 2 ** (tf.cast(semitones, tf.float32) / 12)
  spectrum = tf.signal.rfft(wave)
  size = tf.shape(spectrum)[0]
  places = tf.minimum(tf.cast(tf.cast(tf.range(size), tf.float32) / factor, tf.int32), size - 1)
  return tf.reshape(tf.signal.irfft(tf.gather(spectrum, places)), [SAMPLING_RATE])


def _filter(wave, seed):
  """One of eight low-pass filters."""
  cutoff = 1000.0 * 2 ** (tf.cast(tf.random.stateless_uniform([], seed, 0, 8, tf.int32), tf.float32) / 4)
  spectrum = tf.signal.rfft(wave)
  frequency = tf.cast(tf.range(tf.shape(spectrum)[0]), tf.float32)
  response = 1 / (1 + (frequency / cutoff) ** 4)
  return tf.reshape(tf.signal.irfft(spectrum * tf.cast(response, tf.complex64)), [SAMPLING_RATE])


def _add_noise(wave, seed):
  return wave + 0.01 * tf.random.stateless_normal([SAMPLING_RATE], seed)


def _shift(wave, seed):
  """Shifts by up to a tenth of a second, around the end."""
  return tf.roll(wave, tf.random.stateless_uniform([], seed, -1600, 1601, tf.int32), 0)


def _change_gain(wave, seed):
  """One of 13 gains, in decibels."""
  decibels = tf.cast(tf.random.stateless_uniform([], seed, -6, 7, tf.int32), tf.float32)
  return wave * 10 ** (decibels / 20)
