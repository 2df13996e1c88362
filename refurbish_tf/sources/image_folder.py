"""Image files in one directory per class, read by index: `rtf.sources.image_folder`."""
from __future__ import annotations

import collections
import contextlib
import os
from typing import Any, Literal, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph, fingerprint, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops

# The formats of keras.utils.image_dataset_from_directory, and WebP, which rtf.augment.decode decodes as well.
FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
SUBSETS = ("training", "validation", "both")
# Where a name has a date or a number after its dot, each file has an extension of its own.
EXTENSIONS_SHOWN = 5


def image_folder(
    directory: str | os.PathLike[str], *, class_names: Sequence[str] | None = None, validation_split: float | None = None,
    subset: Literal["training", "validation", "both"] | None = None, seed: int | None = None,
    num_parallel_reads: int = tf.data.AUTOTUNE) -> Any:
  """A `tf.data.Dataset` of the image files below a directory, `(bytes of the file, label)`, read by index.

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

  It is the counterpart of `keras.utils.image_dataset_from_directory`: the same files in the same order with the same labels,
  and the same split for the same seed, as long as there are no WebP files, which Keras leaves out. But it reads files one
  by one, so `refurbish` reads only fresh ones, and it does not decode them: decoding belongs in `partial_fn`:
  `rtf.augment.decode_random_resized_crop` and `rtf.augment.decode` decode all of them.

  Each directory in `directory` is a class, except those whose names begin with a dot. Its files are those in it and
  below it whose names end in .bmp, .gif, .jpeg, .jpg, .png or .webp, in upper or lower case. `rtf.describe` counts the
  others, which are left out, by extension. Links to directories below it are not followed.

  Args:
    directory: a path, possibly on a remote file system that TensorFlow knows, such as gs://. A relative path starts
      from the working directory when the dataset is built.
    class_names: the names of the directories that are classes, a list; the label is the position in it. None for all in the
      order of their names.
    validation_split: the share of the files that is for validation, above 0 and below 1. `seed` shuffles the files, and
      the last ones are taken. None for no split.
    subset: with `validation_split`, "training" or "validation", or "both" for a tuple of the two.
    seed: a whole number from 0 to 2**32 - 1 that shuffles the files. Required with `validation_split`, the same for
      both subsets. None leaves the files in the order of the classes and names, which does no harm before `refurbish`,
      as that shuffles.
    num_parallel_reads: how many files are read at once, ahead of what is asked for: at most 1,024. tf.data.AUTOTUNE is 16.
      Object storage that answers in 30 ms returns 500 files a second to 16 readers. Files that were read ahead but are not
      asked for are dropped. What lies ready takes at most 16 MiB, or a sixteenth of the memory if files are larger.

  Returns:
    A `tf.data.Dataset` of `(file, label)`: the bytes, string `[]`, and the label, int32 `[]`. Its attributes `class_names` and
    `file_paths` are lists of strings.

  Raises:
    TypeError: an argument is of the wrong type.
    ValueError: `directory` does not exist, is not a directory, is on a web server or another file system that TensorFlow
      does not know, or cannot be listed, as without a network or a permission; it has no images, or none for a subset;
      a class has files, hidden ones aside, and all are left out; `class_names` has a name twice, or the name of no directory;
      `validation_split`, `subset` and `seed` do not go together; `num_parallel_reads` is out of range.
    tf.errors.NotFoundError and the like: when it runs, a file cannot be read, such as a link to what does not exist. The
      iterator goes on with the next file.
  """
  directory = _checked_path(directory)
  _check_split(validation_split, subset, seed)
  num_parallel_reads = checks.check_parallel_reads(num_parallel_reads)
  with _listing_errors(directory):
    files = _Files(directory)
    class_names = _checked_classes(directory, class_names, files.directories(directory))
    listed = [files.below(files.join(directory, name)) for name in class_names]
  found = [[path for path in each if _is_image(path)] for each in listed]
  left_out = [[os.path.basename(path) for path in each if not _is_image(path)] for each in listed]
  for name, images, others in zip(class_names, found, left_out):
    # A hidden file, as .gitkeep or .DS_Store, is no photograph: the class is empty.
    if not images and not all(other.startswith(".") for other in others):
      raise ValueError(
          f"directory {checks.printable_path(directory)} has the class {name!r}, all of whose files are left out: "
          f"{_by_extension(others)}. Names of images must end in {', '.join(FORMATS)}. Convert the files to one of these "
          "formats; or move the directory away if it is no class, or give the classes as class_names.")
  paths = [path for each in found for path in each]
  labels = np.repeat(np.arange(len(found), dtype=np.int32), list(map(len, found)))
  if not paths:
    raise ValueError(
        f"directory {checks.printable_path(directory)} has no images. It must have a directory for each class, with "
        f"files whose names end in {', '.join(FORMATS)}.")
  if seed is not None:
    places = list(range(len(paths)))
    np.random.RandomState(seed).shuffle(places)
    paths, labels = [paths[place] for place in places], labels[places]
  description = None
  if any(left_out):
    description = (
        f"{dataset_graph.stage_title('image_folder', checks.printable_path(directory))}\n"
        f"  files   {len(paths):,} listed; left out: {_by_extension([name for each in left_out for name in each])}")

  def dataset(part):
    return _ImageFilesDataset(directory, paths[part], labels[part], class_names, description, num_parallel_reads)

  if validation_split is None:
    return dataset(slice(None))
  at = len(paths) - int(validation_split * len(paths))
  parts = {"training": slice(None, at), "validation": slice(at, None)}
  wanted = [subset] if subset != "both" else list(parts)
  for name in wanted:
    if not paths[parts[name]]:
      raise ValueError(
          f"validation_split={validation_split} leaves none of the {len(paths):,} images in "
          f"{checks.printable_path(directory)} for {name}.")
  datasets = tuple(dataset(parts[name]) for name in wanted)
  return datasets if subset == "both" else datasets[0]


def _is_image(path):
  return path.lower().endswith(FORMATS)


def _by_extension(names):
  """How many of the files have which extension, the commonest first: "3 .heic, 1 .ds_store, 1 without an extension"."""
  # As for images, all from the last dot on, even of a name that begins with it.
  extensions = (name.lower().rpartition(".") for name in names)
  counts = collections.Counter(f"{dot}{end}" if dot and end else "without an extension" for _, dot, end in extensions)
  ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
  shown = [f"{count:,} {checks.printable_path(extension)}" for extension, count in ranked[:EXTENSIONS_SHOWN]]
  rest = sum(count for _, count in ranked[EXTENSIONS_SHOWN:])
  return ", ".join(shown + [f"{rest:,} others"] * bool(rest))


class _ImageFilesDataset(dataset_ops.DatasetSource):
  """Yields the bytes of files and their labels, by index."""

  def __init__(self, directory, paths, labels, class_names, description, num_parallel_reads):
    self._name = None
    self.class_names = list(class_names)
    self.file_paths = list(paths)
    if description:
      self.source_description = description
    self._directory, self._labels = os.fsencode(directory), labels
    # File names are bytes; not all of them are text.
    files = [checks.absolute_path("directory", os.fsencode(path)) for path in paths]
    super().__init__(native.ops().refurbish_tf_image_files_dataset(
        files=tf.constant(files, tf.string), labels=tf.constant(labels, tf.int32), num_parallel_reads=num_parallel_reads,
        **self._common_args))

  @property
  def element_spec(self):
    return tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32)

  def files_fingerprint(self):
    # Of the names relative to the directory, which may be moved.
    names = (os.fsencode(path)[len(self._directory):].lstrip(b"/") for path in self.file_paths)
    return fingerprint.of_strings(self._labels.tobytes(), *names)


class _Files:
  """Lists directories of this machine, or of a file system that TensorFlow knows."""

  def __init__(self, directory):
    remote = checks.scheme_of(directory) is not None
    self._os = tf.io.gfile if remote else os
    self._path = tf.io.gfile if remote else os.path
    self.join = self._path.join
    if not self._path.isdir(directory):
      what = "is not a directory" if self._path.exists(directory) else (
          "does not exist" if remote or not os.path.islink(directory) else "is a link to what does not exist")
      raise ValueError(f"directory must have a directory for each class, but {checks.printable_path(directory)} {what}.")

  def directories(self, directory):
    """The sorted names of the directories in it, without hidden ones."""
    names = sorted(name.rstrip("/") for name in self._os.listdir(directory))
    for name in names:
      path = self.join(directory, name)
      # A class would be missing, and the others' labels would move.
      if self._os is os and not name.startswith(".") and os.path.islink(path) and not os.path.exists(path):
        raise ValueError(
            f"{checks.printable_path(path)} is a link to what does not exist. Remove it, or mount what it points to.")
    return [name for name in names if not name.startswith(".") and self._path.isdir(self.join(directory, name))]

  def below(self, directory):
    """The sorted paths of the files in and below it."""

    def fail(error):
      raise error

    found = sorted(self._os.walk(directory, onerror=fail), key=lambda each: each[0])
    return [self.join(root, name) for root, _, names in found for name in sorted(names)]


@contextlib.contextmanager
def _listing_errors(directory):
  """Turns what file systems raise into ValueErrors."""
  try:
    yield
  except (OSError, UnicodeEncodeError, tf.errors.OpError) as error:
    why = error.message if isinstance(error, tf.errors.OpError) else error
    if isinstance(error, UnicodeEncodeError):
      why = "names on a remote file system must be in UTF-8"
    raise ValueError(
        f"directory {checks.printable_path(directory)} cannot be listed: {why}. Give a directory of this machine that you may read, "
        "or of a file system that TensorFlow knows and can reach.") from error


def _checked_path(directory):
  if not isinstance(directory, (str, os.PathLike)) or not isinstance(os.fspath(directory), str):
    raise TypeError(f"directory must be a path, got {directory!r}.")
  directory = os.fspath(directory)
  checks.absolute_path("directory", os.fsencode(directory))
  checks.check_file_system("directory", directory)
  return directory


def _checked_classes(directory, class_names, found):
  if class_names is None:
    return found
  if not isinstance(class_names, (list, tuple)) or not all(isinstance(name, str) for name in class_names):
    raise TypeError(f"class_names must be a list of the names of directories in {checks.printable_path(directory)}, got {class_names!r}.")
  missing = [name for name in class_names if name not in found]
  if missing:
    raise ValueError(
        f"class_names must be directories in {checks.printable_path(directory)}, which are "
        f"{', '.join(map(repr, found)) or 'none'}, got {', '.join(map(repr, missing))}.")
  if len(set(class_names)) != len(class_names):
    raise ValueError(f"class_names must have each name once, got {class_names!r}.")
  return list(class_names)


def _check_split(validation_split, subset, seed):
  if seed is not None:
    checks.check_whole_number("seed", seed, 0)
    if seed >= 2**32:
      raise ValueError(f"seed must be below 2**32, got {seed!r}.")
  if validation_split is None:
    if subset is not None:
      raise ValueError(f"subset={subset!r} needs a validation_split as well, such as 0.2.")
    return
  checks.check_real("validation_split", validation_split, lambda value: 0 < value < 1, "a number above 0 and below 1")
  checks.check_choice("subset", subset, SUBSETS)
  if seed is None:
    raise ValueError(
        "seed must be given with validation_split, the same for both subsets: it shuffles the files before they are "
        "split.")
