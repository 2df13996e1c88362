"""Files in one directory per class, for `image_folder` and `video_clips`: the classes, labels and splits of Keras."""

import collections
import contextlib
import os
import re

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph, pipeline_warnings

SUBSETS = ("training", "validation", "both")
# The largest number of extensions shown: with dates or numbers after the dot, each file has its own.
EXTENSIONS_SHOWN = 5

# macOS adds the first to archives, with a hidden file for each file; Synology adds the second to directories, with
# thumbnails.
_OF_SYSTEMS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
_PART = re.compile(
  r"((images?|imgs?|data)[ _-])?(train|training|trainval|holdout|val|valid|validation|dev|eval|evaluation|test|testing)"
  r"([ _-]?(images?|imgs?|data|set|split))?\d*",
  re.IGNORECASE,
)
PARTS_AS_CLASSES = (
  "{method} treats each directory in {directory} as a class, and {names} seem to be parts of a data set: their labels "
  "say which part a file is from. Read one part, such as {method}({part!r}). If they are classes, pass them as "
  "class_names."
)

ONE_CLASS = (
  "{method} finds one class in {directory}, {name!r}, and all its files are in directories of their own, such as "
  "{inner}: all get label 0. If those are the classes, read {method}({deeper!r}). If it is one class, pass class_names."
)

# The calling function, what the files are, the ends of their names, and advice if there are no directories.
Kind = collections.namedtuple("Kind", "method what formats otherwise", defaults=[""])


def find(directory, class_names, validation_split, subset, seed, kind):
  """The files of a subset, or of both: a list of tuples of paths, labels, class names and a description or None."""
  if not isinstance(directory, (str, os.PathLike)) or not isinstance(os.fspath(directory), str):
    raise TypeError(f"directory must be a path, got {directory!r}.")
  directory = os.fspath(directory)
  checks.absolute_path("directory", os.fsencode(directory))
  checks.check_file_system("directory", directory)
  shown = checks.printable_path(directory)
  _check_split(validation_split, subset, seed)

  def is_taken(path):
    # macOS adds such a file, ._NAME, for each file NAME that it copies to another disk.
    return path.lower().endswith(kind.formats) and not os.path.basename(path).startswith("._")

  with _listing_errors(directory):
    files = _Files(directory)
    given, class_names = class_names, _checked_classes(directory, class_names, files.directories(directory))
    listed = [files.below(files.join(directory, name)) for name in class_names]
  found = [[path for path in each if is_taken(path)] for each in listed]
  left_out = [[os.path.basename(path) for path in each if not is_taken(path)] for each in listed]
  for name, taken, others in zip(class_names, found, left_out):
    # A hidden file, such as .gitkeep or .DS_Store, is not a photograph: the class is empty.
    if not taken and given is None and any(found) and all(other.startswith(".") for other in others):
      raise ValueError(
        f"directory {shown} has the class {name!r} without {kind.what}, which would still have a label. Remove the "
        f"directory if it is not a class. If only this part of the data has no {kind.what} of the class, pass all "
        "class_names, which keeps its label."
      )
    if not taken and not all(other.startswith(".") for other in others):
      raise ValueError(
        f"directory {shown} has the class {name!r} with no readable {kind.what}, only {_by_extension(others)}. Names "
        f"of {kind.what} must end in {', '.join(kind.formats)}. Convert the files to one of these formats; or move the "
        "directory away if it is not a class, or pass the classes as class_names."
      )
  paths = [path for each in found for path in each]
  labels = np.repeat(np.arange(len(found), dtype=np.int32), list(map(len, found)))
  if not paths:
    raise ValueError(
      f"directory {shown} has no {kind.what}. It must have a directory for each class, with files whose names end in "
      f"{', '.join(kind.formats)}.{kind.otherwise}"
    )
  parts = [name for name in class_names if _PART.fullmatch(name)]
  if given is None and len(parts) > 1:
    told = {"names": " and ".join(map(repr, parts)), "part": files.join(directory, parts[0])}
    pipeline_warnings.warn(PARTS_AS_CLASSES.format(method=kind.method, directory=shown, **told))
  if given is None and len(class_names) == 1:
    inner = {
      path[len(files.join(directory, class_names[0], "")) :].replace("\\", "/").partition("/")[0] for path in paths
    }
    if len(inner) > 1 and not any(name.lower().endswith(kind.formats) for name in inner):
      told = {"inner": ", ".join(sorted(inner)[:3]), "deeper": files.join(directory, class_names[0])}
      pipeline_warnings.warn(ONE_CLASS.format(method=kind.method, directory=shown, name=class_names[0], **told))
  if seed is not None:
    places = list(range(len(paths)))
    np.random.RandomState(seed).shuffle(places)
    paths, labels = [paths[place] for place in places], labels[places]
  description = None
  if any(left_out):
    counts = _by_extension([name for each in left_out for name in each])
    title = dataset_graph.stage_title(kind.method, shown)
    description = f"{title}\n  files   {len(paths):,} listed; left out: {counts}"
  if validation_split is None:
    return [(paths, labels, class_names, description)]
  at = len(paths) - int(validation_split * len(paths))
  parts = {"training": slice(None, at), "validation": slice(at, None)}
  wanted = [subset] if subset != "both" else list(parts)
  for name in wanted:
    if not paths[parts[name]]:
      raise ValueError(
        f"validation_split={validation_split} leaves none of the {len(paths):,} {kind.what} in {shown} for {name}."
      )
  return [(paths[parts[name]], labels[parts[name]], class_names, description) for name in wanted]


def _by_extension(names):
  """The number of files by extension, the most common first: "3 .heic, 1 .ds_store, 1 without an extension"."""
  # As for images, the extension begins at the last dot, even if the name begins with it.
  extensions = (name.lower().rpartition(".") for name in names)
  counts = collections.Counter(f"{dot}{end}" if dot and end else "without an extension" for _, dot, end in extensions)
  ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
  shown = [f"{count:,} {checks.printable_path(extension)}" for extension, count in ranked[:EXTENSIONS_SHOWN]]
  rest = sum(count for _, count in ranked[EXTENSIONS_SHOWN:])
  return ", ".join(shown + [f"{rest:,} others"] * bool(rest))


class _Files:
  """Lists directories of this machine, or of a file system that TensorFlow knows."""

  def __init__(self, directory):
    remote = checks.scheme_of(directory) is not None
    self._os = tf.io.gfile if remote else os
    self._path = tf.io.gfile if remote else os.path
    self.join = self._path.join
    if not self._path.isdir(directory):
      what = "does not exist" if remote or not os.path.islink(directory) else "is a broken link"
      what = "is not a directory" if self._path.exists(directory) else what
      raise ValueError(
        f"directory must have a directory for each class, but {checks.printable_path(directory)} {what}."
      )

  def directories(self, directory):
    """The sorted names of the directories in a directory, without hidden ones and those of operating systems."""
    names = sorted(name.rstrip("/") for name in self._os.listdir(directory))
    for name in names:
      path = self.join(directory, name)
      # If the link were left out, a class would be missing, and the labels of later classes would shift.
      if self._os is os and not name.startswith(".") and os.path.islink(path) and not os.path.exists(path):
        raise ValueError(f"{checks.printable_path(path)} is a broken link. Remove it, or mount what it points to.")
    return [
      name
      for name in names
      if not name.startswith(".") and name not in _OF_SYSTEMS and self._path.isdir(self.join(directory, name))
    ]

  def below(self, directory):
    """The sorted paths of the files in and below a directory, without those of operating systems."""

    def fail(error):
      raise error

    found = sorted(self._os.walk(directory, onerror=fail), key=lambda each: each[0])
    return [
      self.join(root, name)
      for root, _, names in found
      for name in sorted(names)
      if not set(_OF_SYSTEMS).intersection(root[len(directory) :].split("/"))
    ]


@contextlib.contextmanager
def _listing_errors(directory):
  """Turns errors of file systems into ValueErrors."""
  try:
    yield
  except (OSError, UnicodeEncodeError, tf.errors.OpError) as error:
    why = error.message if isinstance(error, tf.errors.OpError) else error
    if isinstance(error, UnicodeEncodeError):
      why = "names on a remote file system must be in UTF-8"
    raise ValueError(
      f"directory {checks.printable_path(directory)} cannot be listed: {why}. Pass a directory of this machine that "
      "you may read, or of a file system that TensorFlow supports and can reach."
    ) from error


def checked_names(class_names, found, what):
  """`class_names` as a list, or those found if it is None; raises an error unless they are strings, each only once."""
  class_names = found if class_names is None else class_names
  if not isinstance(class_names, (list, tuple)) or not all(isinstance(name, str) for name in class_names):
    raise TypeError(f"class_names must be a list of the names of {what}, got {class_names!r}.")
  if len(set(class_names)) != len(class_names):
    raise ValueError(f"class_names must have each of the {what} only once, got {class_names!r}.")
  return list(class_names)


def _checked_classes(directory, class_names, found):
  shown = checks.printable_path(directory)
  class_names = checked_names(class_names, found, f"directories in {shown}")
  missing = [name for name in class_names if name not in found]
  if missing:
    raise ValueError(
      f"class_names must be directories in {shown}, which has {', '.join(map(repr, found)) or 'none'}, got "
      f"{', '.join(map(repr, missing))}."
    )
  return class_names


def _check_split(validation_split, subset, seed):
  if seed is not None:
    checks.check_whole_number("seed", seed, 0, bits=32)
  if validation_split is None:
    if subset is not None:
      raise ValueError(f"subset={subset!r} also needs a validation_split, such as 0.2.")
    return
  checks.check_real("validation_split", validation_split, lambda value: 0 < value < 1, "a number above 0 and below 1")
  checks.check_choice("subset", subset, SUBSETS)
  if seed is None:
    raise ValueError(
      "seed must be given with validation_split, the same for both subsets: it shuffles the files before they are "
      "split."
    )
