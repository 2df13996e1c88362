"""`rtf.sources.audio_folder` and `rtf.augment.decode_wav`: those of Keras' function, and errors, not noise."""

import struct

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf

RATE = 16_000
MORE = b"JUNK" + struct.pack("<I", 6) + bytes(6)


def _wav(wave, rate=RATE):
  return tf.audio.encode_wav(np.reshape(wave, [len(wave), -1]), rate).numpy()


def _write(directory, count=6):
  """Sounds of two classes whose lengths and values tell which they are."""
  for number in range(count):
    path = directory / ("no", "yes")[number % 2] / f"{number}.wav"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_wav(np.full([100 + 10 * number], number / 8, np.float32)))


def test_sounds_are_those_of_keras(tmp_path):
  _write(tmp_path)
  ours = rtf.sources.audio_folder(tmp_path)
  theirs = keras.utils.audio_dataset_from_directory(str(tmp_path), batch_size=None, shuffle=False)
  assert ours.class_names == theirs.class_names == ["no", "yes"] and len(ours) == len(ours.file_paths) == 6
  for (wave, label), (expected, of_keras) in zip(ours.map(rtf.augment.compose([rtf.augment.decode_wav(RATE)])), theirs):
    assert np.array_equal(wave, expected[:, 0]) and label.numpy() == of_keras.numpy()
  parts = rtf.sources.audio_folder(tmp_path, validation_split=0.5, subset="both", seed=5)
  assert sorted(parts[0].file_paths + parts[1].file_paths) == sorted(ours.file_paths)


def test_files_of_other_formats_are_told(tmp_path):
  _write(tmp_path)
  (tmp_path / "yes" / "UPPER.FLAC").write_bytes(b"fLaC")
  (tmp_path / "yes" / "notes.txt").write_bytes(b"")
  source = rtf.sources.audio_folder(tmp_path)
  assert len(source) == 7 and "left out: 1 .txt" in rtf.describe(source)
  (tmp_path / "yes" / "UPPER.FLAC").rename(tmp_path / "yes" / "a.jpg")
  with pytest.raises(ValueError, match=r"audio_folder|has no sounds|class 'images' without sounds"):
    rtf.sources.audio_folder(tmp_path / "yes")


def test_decode_wav_returns_the_mean_or_all_channels():
  both = np.stack([np.linspace(-1, 0.99, 50), np.zeros(50)], 1).astype(np.float32)
  file = _wav(both)
  channels = rtf.augment.decode_wav(RATE, mono=False)(file)
  assert np.allclose(channels, both, atol=1 / 32_768)
  assert np.allclose(rtf.augment.decode_wav(RATE)(file), channels.numpy().mean(1), atol=1e-7)
  # A chunk before the format, as some recorders write it.
  assert np.array_equal(rtf.augment.decode_wav(RATE, mono=False)(file[:12] + MORE + file[12:]), channels)


@pytest.mark.parametrize(
  "made, told",
  [
    (lambda file: _wav(np.zeros(9, np.float32), 44_100), "44100"),
    (lambda file: file[:20] + b"\3" + file[21:], "pcm_s16le"),  # Floating point.
    (lambda file: file[:34] + b"\x18" + file[35:], "24"),
    (lambda file: b"fLaC" + file, "fLaC"),
    (lambda file: file[:30], "too short"),
    (lambda file: b"", "takes WAV files"),
  ],
)
def test_decode_wav_refuses_what_it_would_decode_wrongly(made, told):
  file = _wav(np.zeros(9, np.float32))
  decode = rtf.augment.decode_wav(RATE)
  assert decode(file).shape == [9]
  stage = tf.data.Dataset.from_tensors(made(file)).refurbish([decode], r=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s)sample 0 .*{told}"):
    next(iter(stage))


@pytest.mark.parametrize("wrong", [{"sample_rate": 0}, {"sample_rate": 16e3}, {"sample_rate": RATE, "mono": 1}])
def test_decode_wav_refuses_other_arguments(wrong):
  with pytest.raises((TypeError, ValueError), match=r"of decode_wav must be .*, got"):
    rtf.augment.decode_wav(**wrong)


def test_batches_of_sounds_of_different_lengths_have_the_elements(tmp_path):
  _write(tmp_path)
  stage = lambda: rtf.sources.audio_folder(tmp_path).refurbish([rtf.augment.decode_wav(RATE)], r=2, seed=1)
  waves = [wave for wave, _ in stage().as_numpy_iterator()]
  buckets = [batch for batch, _ in stage().bucket_by_sequence_length(lambda wave, _: tf.shape(wave)[0], [125], [3, 3])]
  batches = [batch for batch, _ in stage().ragged_batch(4)], [batch for batch, _ in stage().padded_batch(4)], buckets
  for of_kind in batches:
    rows = [np.array(row) for batch in of_kind for row in batch]
    assert sorted(np.trim_zeros(row, "b").tolist() for row in rows) == sorted(
      np.trim_zeros(each, "b").tolist() for each in waves
    )
  assert {len(batch[0]) for batch in buckets} == {120, 150}
