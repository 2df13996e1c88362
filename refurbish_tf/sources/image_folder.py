"""Image files in one directory per class, read by index: `rtf.sources.image_folder`."""

import os
from typing import Any, Literal, Sequence

import tensorflow as tf

from refurbish_tf._internal import checks, fingerprint, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops
from . import class_folders

# The formats of keras.utils.image_dataset_from_directory, and WebP, which rtf.augment.decode decodes as well.
FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


def image_folder(
  directory: str | os.PathLike[str],
  *,
  class_names: Sequence[str] | None = None,
  validation_split: float | None = None,
  subset: Literal["training", "validation", "both"] | None = None,
  seed: int | None = None,
  num_parallel_reads: int = tf.data.AUTOTUNE,
) -> Any:
  """Returns a `tf.data.Dataset` of the image files below a directory, `(bytes of the file, label)`, read by index.

  >>> import os, tempfile
  >>> directory = tempfile.mkdtemp()
  >>> for name in ("cats/1.png", "cats/2.png", "dogs/3.png"):
  ...   path = os.path.join(directory, name)
  ...   os.makedirs(os.path.dirname(path), exist_ok=True)
  ...   tf.io.write_file(path, tf.io.encode_png(tf.zeros([8, 8, 3], tf.uint8)))
  >>> source = rtf.sources.image_folder(directory)
  >>> source.class_names, [int(label) for _, label in source]
  (['cats', 'dogs'], [0, 0, 1])
  >>> train = source.refurbish(
  ...     [rtf.augment.decode((32, 32))], [rtf.augment.random_crop(padding=4)], r=3, seed=7)
  >>> len(train)
  3

  It is the counterpart of `keras.utils.image_dataset_from_directory`: the same files in the same order with the same
  labels, and the same split for the same seed, as long as there are no WebP files, which Keras leaves out. But it reads
  files one by one, so `refurbish` reads only fresh ones, and it does not decode them. Decode in `partial_fn`:
  `rtf.augment.decode_random_resized_crop` and `rtf.augment.decode` support all these formats.

  Each directory in `directory` is a class, except those that operating systems add, such as `__MACOSX`, `@eaDir` and
  `$RECYCLE.BIN`, and those whose names begin with a dot. Its images are all files in it and below it whose names end in
  .bmp, .gif, .jpeg, .jpg, .png or .webp, in upper or lower case. `rtf.describe` counts the other files by extension.
  Links to directories below it are not followed.

  Args:
    directory: a path, possibly on a remote file system that TensorFlow knows, such as gs://. A relative path starts
      from the working directory when the dataset is built.
    class_names: a list of the names of the directories that are classes; the label is the position in it. None for all
      in the order of their names. Classes without images are allowed only here.
    validation_split: the fraction of the files for validation, above 0 and below 1. `seed` shuffles the files, and the
      last ones are used. None for no split.
    subset: with `validation_split`, "training" or "validation", or "both" for a tuple of the two.
    seed: a whole number from 0 to 2**32 - 1 that shuffles the files. Required with `validation_split`, the same for
      both subsets. None leaves the files in the order of the classes and names, which does no harm before `refurbish`,
      because `refurbish` shuffles.
    num_parallel_reads: how many files are read ahead at once, at most 1,024. tf.data.AUTOTUNE is 16. Object
      storage that answers in 30 ms returns 500 files a second to 16 readers. Files that were read ahead but are not
      needed are dropped. They take at most 16 MiB, or a sixteenth of the memory if files are larger.

  Returns:
    A `tf.data.Dataset` of `(file, label)`: the bytes, string `[]`, and the label, int32 `[]`. Its attributes
    `class_names` and `file_paths` are lists of strings.

  Raises:
    TypeError: an argument is of the wrong type.
    ValueError: `directory` does not exist, is not a directory, is on a web server or another file system that
      TensorFlow does not support, or cannot be listed, for example without a network or a permission; it has no images,
      or none for a subset; a class has no images, unless it is in `class_names` and has no files but hidden ones;
      `class_names` has a name twice, or the name of no directory; `validation_split`, `subset` and `seed` do not go
      together; `num_parallel_reads` is out of range.
    tf.errors.NotFoundError and the like: when it runs, a file cannot be read, such as a broken link.
      The iterator continues with the next file.
  """
  kind = class_folders.Kind("image_folder", "images", FORMATS)
  return dataset_of_files(directory, class_names, validation_split, subset, seed, num_parallel_reads, kind)


def dataset_of_files(directory, class_names, validation_split, subset, seed, num_parallel_reads, kind):
  """`image_folder` for files of a `class_folders.Kind`."""
  num_parallel_reads = checks.check_parallel_reads(num_parallel_reads)
  found = class_folders.find(directory, class_names, validation_split, subset, seed, kind)
  made = tuple(_ImageFilesDataset(os.fspath(directory), *each, num_parallel_reads) for each in found)
  return made if subset == "both" else made[0]


class _ImageFilesDataset(dataset_ops.DatasetSource):
  """Yields the bytes of files and their labels, by index."""

  element_spec = (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32))

  def __init__(self, directory, paths, labels, class_names, description, num_parallel_reads, more=b""):
    self._name = None
    self._more = more  # Other things that elements are made of, as far as a fingerprint needs them.
    self.class_names = list(class_names)
    self.file_paths = list(paths)
    if description:
      self.source_description = description
    self._directory, self._labels = os.fsencode(directory), labels
    # File names are bytes; not all of them are text.
    files = [checks.absolute_path("directory", os.fsencode(path)) for path in paths]
    super().__init__(
      native.ops().refurbish_tf_image_files_dataset(
        files=tf.constant(files, tf.string),
        labels=tf.constant(labels, tf.int32),
        num_parallel_reads=num_parallel_reads,
        **self._common_args,
      )
    )

  def files_fingerprint(self):
    # Names are relative to the directory, which may be moved.
    names = (os.fsencode(path)[len(self._directory) :].lstrip(b"/") for path in self.file_paths)
    return fingerprint.of_strings(self._labels.tobytes() + self._more, *names)
