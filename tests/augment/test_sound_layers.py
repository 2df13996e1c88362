"""`time_mask` and `frequency_mask` equal torchaudio's masks for the same random numbers; what `time_shift` moves."""

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment

SEED = [7, 0]
SEEDS = [[number, 4] for number in range(12)]


def sound(*shape, dtype=np.float32):
  return np.random.default_rng(sum(shape)).integers(1, 120, shape).astype(dtype)


def mask_along_axis(spectrogram, mask_param, mask_value, axis, p, randoms):
  """torchaudio's function of this name, with its two random numbers as an argument."""
  length = spectrogram.shape[axis]
  mask_param = mask_param if p == 1 else min(mask_param, int(length * p))
  value = randoms[0] * mask_param
  min_value = randoms[1] * (length - value)
  places = np.arange(length).reshape([-1 if k == axis else 1 for k in range(spectrogram.ndim)])
  return np.where((places >= int(min_value)) & (places < int(min_value) + int(value)), mask_value, spectrogram)


@pytest.mark.parametrize(
  "shape, axis, param, number, p, value, dtype",
  [
    ((300, 80), 1, 3, 40, 1, -1.5, np.float32),  # More masks of a value than one pass takes.
    ((60, 11), 0, 40, 2, 0.25, 0, np.float32),
    ((7, 3), 0, 40, 2, 0.1, 0, np.float32),  # No frame may be masked.
    ((5, 3), 0, 40, 1, 1, 0, np.float32),  # Shorter than the mask.
    ((5, 3), 1, 40, 1, 1, 7.25, np.float32),
    ((60, 11, 3), 1, 6, 2, 1, 1e-3, np.float32),
    ((63, 11, 2), 0, 20, 3, 0.9, "mean", np.float32),
    ((1000,), 0, 300, 2, 1, -0.0, np.float32),
    ((60, 11, 2), 0, 9, 2, 1, -0.0, np.uint8),
    ((16_000,), 0, 3000, 2, 1, 0, np.int16),
  ],
)
def test_masks_are_torchaudios_for_the_same_random_numbers(shape, axis, param, number, p, value, dtype):
  layer = augment.frequency_mask(param, number, value) if axis else augment.time_mask(param, number, p, value)
  given, changed = sound(*shape, dtype=dtype), 0
  filled = np.mean(given, dtype=np.float64) if value == "mean" else value
  for seed in SEEDS:
    expected = given
    for randoms in (layer.draws(seed).numpy() / 2**31).reshape(-1, 2):
      expected = mask_along_axis(expected, param, dtype(filled), axis, p, randoms)
    np.testing.assert_array_equal(layer(given, seed).numpy(), expected, strict=True)
    changed += (expected != given).any()
  assert (changed > 6) == (p != 0.1)


@pytest.mark.parametrize("shape", [(40,), (41, 3), (40, 5, 2)], ids=str)
def test_shifts_roll_over_or_leave_a_value(shape):
  given = sound(*shape)
  for seed in SEEDS:
    layer = augment.time_shift(-0.5, 1)
    by = round((layer.draws(seed).numpy()[0] / 2**31 * 1.5 - 0.5) * shape[0])
    rolled = np.roll(given, by, 0)
    np.testing.assert_array_equal(layer(given, seed), rolled)
    for value in (0, -1.5, "mean"):
      made = augment.time_shift(-0.5, 1, False, value)(given, seed)
      rolled[slice(by) if by > 0 else slice(shape[0] + by, None)] = given.mean() if value == "mean" else value
      np.testing.assert_allclose(made, rolled, rtol=1e-6)


def test_batches_stages_and_unknown_lengths():
  layers = [augment.time_shift(), augment.time_mask(9, 2, 0.3), augment.random_apply([augment.frequency_mask(4)])]
  samples, whole = [sound(length, 8) for length in (30, 41, 17)], augment.compose(layers)
  batch = np.stack([sample[:17, :, np.newaxis] for sample in samples])
  alone = [whole(sample[:17], seed=augment.seed_at(SEED, b)) for b, sample in enumerate(samples)]
  np.testing.assert_array_equal(augment.compose(layers, clips=False)(batch, seed=SEED)[..., 0], alone)
  traced = tf.function(whole, autograph=False).get_concrete_function(tf.TensorSpec([None, 8]), seed=SEED)
  assert traced.structured_outputs.shape.as_list() == [None, 8]
  source = rtf.sources.data_source(samples, element_spec=tf.TensorSpec([None, 8]))
  for dataset in (source.refurbish([lambda sample: sample], layers, seed=3), source.refurbish(layers, r=1, seed=3)):
    ragged = next(iter(dataset.ragged_batch(3)))
    assert sorted(ragged.row_lengths().numpy()) == [17, 30, 41] and all((row.numpy() == 0).any() for row in ragged)
  cropped = augment.compose([augment.random_crop((12, 8)), augment.random_order([augment.time_mask(3)])])
  assert cropped(tf.cast(samples[0], tf.bfloat16), seed=SEED).shape == (12, 8)


def test_targets_follow_shifts():
  given, frames = sound(40, 6), np.arange(240).reshape(40, 6)
  for rollover in (True, False):
    shift = augment.time_shift(0.25, 0.25, rollover)
    _, followed = augment.compose([shift, augment.time_mask(9)], {1: "mask"})(given, frames, seed=SEED)
    np.testing.assert_array_equal(followed[10:], frames[:-10])
    np.testing.assert_array_equal(followed[:10], frames[-10:] * rollover)
  with pytest.raises(ValueError, match=r"the xyxy 1 cannot follow random_apply\(\[time_shift.*rollover=False"):
    augment.compose([augment.random_apply([augment.time_shift()])], {1: "xyxy"})


@pytest.mark.parametrize(
  "layer, given, error, match",
  [
    (lambda: augment.time_mask(-1), None, ValueError, "time_mask_param of time_mask must be a whole number from 0"),
    (lambda: augment.time_mask(9, mask_value="low"), None, TypeError, "mask_value of time_mask .* got 'low'"),
    (lambda: augment.time_mask(9), sound(32, 100, 40), ValueError, "at most 8 channels, got shape .*newaxis"),
    (lambda: augment.time_mask(9), np.float32(1), ValueError, r"must be \[samples\], \[time, mel\]"),
    (lambda: augment.frequency_mask(9), sound(9), ValueError, r"must be \[time, mel\], "),
    (lambda: augment.time_mask(9, mask_value="mean"), sound(9, 9, dtype=np.uint8), TypeError, "be float32 for fills"),
    (lambda: augment.random_flip(), sound(9, 9), ValueError, r"must be \[height, width, channels\]"),
  ],
)
def test_refuses(layer, given, error, match):
  with pytest.raises(error, match=match):
    layer()(given, SEED)
  with pytest.raises(tf.errors.InvalidArgumentError, match="must stay one column, got a width of 3"):
    augment.compose([augment.pad((1, 0)), augment.time_mask(9)])(sound(9), seed=SEED)
