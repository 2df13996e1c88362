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
  """A `tf.data.Dataset` of the sound files below a directory, `(bytes of the file, label)`, read by index."""
  kind = class_folders.Kind("audio_folder", "sounds", FORMATS)
  return dataset_of_files(directory, class_names, validation_split, subset, seed, num_parallel_reads, kind)
