"""Layers for sound, whose first axis is time: decoding, masks of spectrograms (SpecAugment), and shifts."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from refurbish_tf._internal.checks import checked_flag
from .layers import check_ordered, checked_probability, checked_real, checked_whole
from .native_layers import DrawingLayer


def decode_wav(sample_rate: int, mono: bool = True) -> Any:
  """Returns a layer that decodes a WAV file of 16-bit PCM, and refuses one with another sample rate.

  >>> file = tf.audio.encode_wav(tf.constant([[0.5, 0.0], [0.25, 0.25]]), 16_000)
  >>> rtf.augment.decode_wav(16_000)(file).numpy().tolist()
  [0.25, 0.25]

  `tf.audio.decode_wav` only returns the rate, and its one channel is the first one. Other files can be read by
  soundfile in `numpy_layer`, or converted: `ffmpeg -i OLD -ar 16000 -c:a pcm_s16le NEW.wav`.

  Args:
    sample_rate: samples a second that all files must have, a whole number of at least 1.
    mono: whether to return the mean of the channels.

  Returns:
    A function `layer(file)` of the bytes of a file, string `[]`. It returns the waveform, from -1 to 1, float32
    `[samples]`, or `[samples, channels]` without `mono`. It raises `tf.errors.InvalidArgumentError`, when it runs, for
    a damaged file, one with another sample rate, or of another format.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.
  """
  sample_rate = checked_whole("sample_rate of decode_wav", sample_rate, 1, 2**31, "Many recordings have 16,000 Hz.")
  mono = checked_flag("mono of decode_wav", mono, "Leave it out for the mean of the channels.")

  def decode(file):
    # TensorFlow's own errors do not say what to do. Format and bits are here unless another chunk comes first.
    head = tf.strings.substr(tf.strings.join([tf.strings.substr(file, 0, 36), b"\0" * 36]), 0, 36)
    kind, bits = (tf.io.decode_raw(head, tf.uint16)[place] for place in (10, 17))
    told = ["decode_wav takes WAV files of format 1, which is PCM, with 16 bits, got format", kind, "with bits:", bits]
    remedy = "Convert it by ffmpeg -c:a pcm_s16le, or read it by soundfile in rtf.augment.numpy_layer."
    is_wav = (tf.strings.substr(head, 0, 4) == b"RIFF") & (tf.strings.substr(head, 8, 4) == b"WAVE")
    start = ["decode_wav takes WAV files, got a file that begins with", tf.strings.substr(head, 0, 12), remedy]
    is_other = (
      (tf.strings.length(file) > 36) & (tf.strings.substr(head, 12, 4) == b"fmt ") & ((kind != 1) | (bits != 16))
    )
    with tf.control_dependencies([tf.debugging.Assert(is_wav, start), tf.debugging.Assert(~is_other, [*told, remedy])]):
      wave, rate = tf.audio.decode_wav(file)
    told = ["sample_rate of decode_wav is", sample_rate, "but the file has", rate, "Resample it by ffmpeg -ar."]
    with tf.control_dependencies([tf.debugging.Assert(rate == sample_rate, told)]):
      return tf.reduce_mean(wave, 1) if mono else tf.identity(wave)

  decode.__name__ = f"decode_wav({sample_rate}, mono={mono})"
  return decode


def time_mask(
  time_mask_param: int, num_masks: int = 1, p: float = 1.0, mask_value: float | Literal["mean"] = 0.0
) -> Any:
  """Returns a layer that masks random time intervals of a spectrogram.

  >>> rtf.augment.time_mask(4)(tf.ones([6, 2]), seed=[1, 0]).numpy()[:, 0].tolist()
  [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
  >>> layers = [rtf.augment.time_mask(40, num_masks=2, p=0.2), rtf.augment.frequency_mask(27, num_masks=2)]
  >>> rtf.augment.compose(layers)(tf.zeros([1000, 80]), seed=[7, 0]).shape
  TensorShape([1000, 80])

  It is torchaudio's `TimeMasking`, but time is the first axis. The width is drawn uniformly from 0 to just below
  `time_mask_param`; then the position is drawn. Masks may overlap. Targets stay as they are.

  Args:
    time_mask_param: a whole number of frames of at least 0.
    num_masks: a whole number from 1 to 64.
    p: the largest fraction of the frames that a mask may cover, a real number from 0 to 1. As in torchaudio, 1 is no
      limit: a mask may then cover all of a short spectrogram.
    mask_value: the value that fills masks, a real number in the units of the spectrogram; or "mean", as in torchaudio's
      `SpecAugment`: the mean of the spectrogram before this layer.

  Returns:
    A function `layer(spectrogram, seed)` like the one that `random_crop` returns, for `[time, mel]`, for `[time, mel,
    channels]` with at most 8 channels, which have the same masks, or for a batch `[batch, time, mel, channels]`. A
    `mask_value` other than 0 needs float32. It also takes waveforms `[samples]`. Native layers next to it in a list
    take `[time, mel]` as an image of one channel.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements Park et al., *SpecAugment*, Interspeech 2019, section 2.
  """
  p = checked_probability("time_mask", p, "Pass 0.2 to mask at most a fifth of the frames, or leave it out.")
  return _mask("time_mask", "time_mask_param", time_mask_param, num_masks, mask_value, p)


def frequency_mask(freq_mask_param: int, num_masks: int = 1, mask_value: float | Literal["mean"] = 0.0) -> Any:
  """Returns a layer that masks random frequency bands of a spectrogram, as torchaudio's `FrequencyMasking` does.

  >>> rtf.augment.frequency_mask(3, mask_value="mean")(tf.constant([[1.0, 2, 6]]), seed=[2, 0]).numpy().tolist()
  [[1.0, 3.0, 6.0]]

  `freq_mask_param` counts bands, along the second axis. Waveforms have none and are refused. See `time_mask` for the
  other arguments, the result, the errors and the paper.
  """
  return _mask("frequency_mask", "freq_mask_param", freq_mask_param, num_masks, mask_value)


def _mask(whose, name, widest, number, value, p=1.0):
  widest = checked_whole(f"{name} of {whose}", widest, 0, 2**31, "The paper uses 27 bands, and 70 to 100 frames.")
  number = checked_whole(f"num_masks of {whose}", number, 1, 64, "Leave it out for one.")
  fill = _fill(f"mask_value of {whose}", value)
  shown = f"{widest}, num_masks={number}, {f'p={p:g}, ' * (whose == 'time_mask')}mask_value={value!r}"
  return DrawingLayer(whose, f"number={number} widest={widest} part=0,{p!r}{fill}", shown)


def _fill(what, value):
  if value == "mean":
    return ""
  value = checked_real(what, value, -1e30, 1e30, 'Pass "mean" for the mean, or leave it out for 0.')
  return f" value={value or 0.0!r}"  # Not -0.0: in other dtypes, 0 is stored as zero bytes.


def time_shift(
  min_shift: float = -0.5, max_shift: float = 0.5, rollover: bool = True, fill_value: float | Literal["mean"] = 0.0
) -> Any:
  """Returns a layer that shifts sound in time by a random fraction of its length: later if it is above 0.

  >>> rtf.augment.time_shift(0.5, 0.5)(tf.constant([1.0, 2, 3, 4]), seed=[7, 0]).numpy().tolist()
  [3.0, 4.0, 1.0, 2.0]

  It is audiomentations' `Shift` in fractions, without a fade; `random_apply([time_shift()], p=0.5)` shifts half of the
  samples. Maps in `targets` follow; boxes and key points follow only without `rollover`.

  Args:
    min_shift, max_shift: the range of the fraction, real numbers from -1 to 1.
    rollover: whether sound that leaves at one end comes in at the other one.
    fill_value: the value that comes in without `rollover`, like `mask_value` of `time_mask`.

  Returns:
    A function `layer(sound, seed)` like the one that `time_mask` returns, which also takes `[samples, channels]`.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  ends = (("min_shift", min_shift), ("max_shift", max_shift))
  low, high = (checked_real(f"{name} of time_shift", end, -1, 1, "Pass 0.5 for half the length.") for name, end in ends)
  check_ordered("min_shift and max_shift of time_shift", low, high)
  rollover = checked_flag("rollover of time_shift", rollover, "Leave it out to roll over.")
  fill = _fill("fill_value of time_shift", fill_value)
  shown = f"{low:g}, {high:g}, rollover={rollover}, fill_value={fill_value!r}"
  return DrawingLayer("time_shift", f"shift={low!r},{high!r} rollover={rollover:d}{fill}", shown)
