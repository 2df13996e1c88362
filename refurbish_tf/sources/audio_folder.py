"""Sound files in one directory per class, read by index: `rtf.sources.audio_folder`."""

import os
from typing import Any, Literal, Sequence

import tensorflow as tf

from . import class_folders
from .image_folder import dataset_of_files

# What libsndfile reads. Keras' audio_dataset_from_directory reads only .wav.
FORMATS = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")


def audio_folder(
  directory: str | os.PathLike[str],
  *,
  class_names: Sequence[str] | None = None,
  validation_split: float | None = None,
  subset: Literal["training", "validation", "both"] | None = None,
  seed: int | None = None,
  num_parallel_reads: int = tf.data.AUTOTUNE,
) -> Any:
  """A `tf.data.Dataset` of the sound files below a directory, `(bytes of the file, label)`, read by index.

  >>> import os, tempfile
  >>> directory = tempfile.mkdtemp()
  >>> for name in ("no/1.wav", "yes/2.wav", "yes/3.wav"):
  ...   os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
  ...   tf.io.write_file(os.path.join(directory, name), tf.audio.encode_wav(tf.zeros([800, 1]), 16_000))
  >>> source = rtf.sources.audio_folder(directory)
  >>> source.class_names, [int(label) for _, label in source]
  (['no', 'yes'], [0, 1, 1])
  >>> train = source.refurbish([rtf.augment.decode_wav(16_000)], [rtf.augment.time_shift()], r=3, seed=7)
  >>> train.element_spec[0].shape
  TensorShape([None])

  It is `rtf.sources.image_folder` for sounds: the same arguments, attributes and errors, and files in the same order.
  It is the counterpart of `keras.utils.audio_dataset_from_directory`, which only finds .wav files, and decodes them
  at each use. Decoding belongs in `partial_fn`: `rtf.augment.decode_wav`, or soundfile in `rtf.augment.numpy_layer`.

  Names of sounds end in .aif, .aiff, .flac, .mp3, .oga, .ogg, .opus or .wav, in upper or lower case. `rtf.describe`
  counts the other files by extension.

  Args:
    directory: a path with a directory for each class.
    class_names, validation_split, subset, seed, num_parallel_reads: as for `rtf.sources.image_folder`.

  Returns:
    A `tf.data.Dataset` of `(file, label)`: the bytes, string `[]`, and the label, int32 `[]`. Its attributes
    `class_names` and `file_paths` are lists of strings.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range; `directory` has no sounds.
    tf.errors.NotFoundError and the like: when it runs, a file cannot be read. The iterator goes on with the next file.
  """
  kind = class_folders.Kind("audio_folder", "sounds", FORMATS)
  return dataset_of_files(directory, class_names, validation_split, subset, seed, num_parallel_reads, kind)
