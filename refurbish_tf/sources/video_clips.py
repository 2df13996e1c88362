"""Clips of video files, read by index: `rtf.sources.video_clips`."""

import concurrent.futures
import fractions
import importlib.util
import json
import operator
import os
import pathlib
import pickle
import runpy
import threading
from typing import Any, Literal, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, fingerprint, machine
from refurbish_tf._internal.processes import pool
from . import class_folders
from .data_source import _DataSourceDataset
from .elements import as_array

FORMATS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm")
_AS_A_LIST = " Pass files without classes as a list, such as sorted(glob.glob(...))."
_FRAMES = str(pathlib.Path(__file__).with_name("video_frames.py"))
# How many files an error names.
_MOST_NAMED = 5
# Held while this process decodes, because PyAV's objects are not thread-safe.
_here = threading.Lock()


def video_clips(
  files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
  num_frames: int,
  *,
  frame_step: int = 1,
  step_between_clips: int | None = None,
  frame_rate: float | None = None,
  labels: Any = None,
  windows: Any = None,
  class_names: Sequence[str] | None = None,
  validation_split: float | None = None,
  subset: Literal["training", "validation", "both"] | None = None,
  seed: int | None = None,
  processes: int | None = None,
) -> Any:
  """Returns a `tf.data.Dataset` of clips of video files, uint8 `[num_frames, height, width, 3]`, read by index.

  >>> import av, os, tempfile
  >>> path = os.path.join(tempfile.mkdtemp(), "one.mp4")
  >>> with av.open(path, "w") as file:
  ...   stream = file.add_stream("mpeg4", rate=25, width=64, height=48)
  ...   for frame in [*(av.VideoFrame(64, 48) for _ in range(50)), None]:
  ...     file.mux(stream.encode(frame))
  >>> source = rtf.sources.video_clips([path], num_frames=16, labels=[3])
  >>> source.windows.tolist()
  [[0, 0], [0, 16], [0, 32]]
  >>> train = source.refurbish([rtf.augment.random_resized_crop(32)], [rtf.augment.random_flip()], r=3, seed=7)
  >>> [(clip.shape.as_list(), int(label)) for clip, label in train.take(1)]
  [([16, 32, 32, 3], 3)]

  A clip is a window of `num_frames` frames, `frame_step` apart. The first window of a file begins at its first frame,
  and another one every `step_between_clips` frames; frames after the last whole window are left out. Processes decode
  windows ahead, each from the last key frame before it. Frame k is the k-th frame that a decoder shows, whatever the
  format seeks by, turned as the file says. `pip install 'refurbish_tf[video]'` installs PyAV, which includes FFmpeg.

  A clip takes `num_frames * height * width * 3` bytes. Up to four clips per process are ready, in at most a sixteenth
  of the memory. A process takes about 200 MB, and keeps two files open.

  Args:
    files: a directory on this machine with a directory for each class, as for `rtf.sources.image_folder`, of files
      whose names end in .avi, .m4v, .mkv, .mov, .mp4, .mpeg, .mpg, .ts or .webm; or a list of paths.
    num_frames: the number of frames in a clip, a whole number of at least 1.
    frame_step: 2 takes every second frame.
    step_between_clips: frames from the beginning of a window to the beginning of the next one. None: as many as a
      window spans, so that no frame is in two.
    frame_rate: frames per second, as if each file had this rate: `num_frames` and the steps then count these frames,
      each of which is the one nearest in time. None: the frames as they are, even if the rate of a file varies.
    labels: for a list of paths, an array or list with a label for each.
    windows: `[clips, 2]` whole numbers, the position of a file and of the first frame of its window, in place of
      `step_between_clips`: the clips in this order. Files are then opened only when they are needed.
    class_names, validation_split, subset, seed: for a directory, as for `rtf.sources.image_folder`. Files are split,
      not clips.
    processes: how many processes decode. Layers of `rtf.augment.numpy_layer` with the same number share them. None: one
      for each CPU core. 0: none, for debugging.

  Returns:
    A `tf.data.Dataset` of `(clip, label)`, or of clips if a list has no labels. Its attributes are `class_names`,
    `video_paths`, and `windows`, int64 `[clips, 2]`, as above. `rtf.describe` counts files that have no clip.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range; `files` has no video, or only videos that
      are too short; a file cannot be read, has no video or ends before the frames in its header: all files are checked
      first.
    ImportError: PyAV is not installed.
    tf.errors.UnknownError: when it runs, a file is damaged, or has different frames than before; or a process that
      decodes it has died twice. The error names the file, and the iterator continues with the next clip. Damage that
      FFmpeg does not notice shows in the pixels.
  """
  for name, value in (("num_frames", num_frames), ("frame_step", frame_step)):
    checks.check_whole_number(name, value, 1)
  span = (num_frames - 1) * frame_step + 1
  step_between_clips = span if step_between_clips is None else step_between_clips
  processes = machine.processors() if processes is None else processes
  for name, value, least in (("step_between_clips", step_between_clips, 1), ("processes", processes, 0)):
    checks.check_whole_number(name, value, least)
  if frame_rate is not None:
    allowed = "frames per second, from 0.01 to 10,000, or None"
    checks.check_real("frame_rate", frame_rate, lambda value: 0.01 <= value <= 10_000, allowed)
  if importlib.util.find_spec("av") is None:
    raise ImportError("video_clips needs PyAV, which decodes video: pip install 'refurbish_tf[video]'.")
  of_directory = [class_names, validation_split, subset, seed]
  is_directory = isinstance(files, (str, os.PathLike))
  if any(each is not None for each in ([labels, windows] if is_directory else of_directory)):
    raise ValueError(
      "labels and windows of video_clips are for a list of paths; class_names, validation_split, subset and seed are "
      f"for a directory, got {'a directory' if is_directory else 'a list'}. Leave them out, or list the files with "
      "glob.glob."
    )
  _check_local([files] if is_directory else files)
  if is_directory:
    found = class_folders.find(files, *of_directory, class_folders.Kind("video_clips", "videos", FORMATS, _AS_A_LIST))
  else:
    found = [(list(map(os.fsdecode, files)), _checked_labels(labels, len(files)), None, None)]
  decoders, made = _Decoders(processes, frame_rate), []
  for paths, values, names, description in found:
    # Absolute, because processes may have another working directory.
    paths, counts = list(map(os.path.abspath, paths)), None
    if windows is None:
      counts = decoders.counts(paths)
      each = _windows_of(counts, span, step_between_clips)
    else:
      each = _checked_windows(windows, len(paths))
    each.setflags(write=False)
    clips = _Clips(paths, values, each, counts, decoders, frame_step * np.arange(num_frames))
    made.append(_VideoClipsDataset(clips, names, description))
  return tuple(made) if subset == "both" else made[0]


def _check_local(files):
  is_list = isinstance(files, (list, tuple, np.ndarray)) and len(files) > 0
  if not is_list or not all(isinstance(path, (str, os.PathLike)) for path in files):
    raise TypeError(
      f"files of video_clips must be a directory or a list of at least one path, got {files!r:.200}. Pass "
      "sorted(glob.glob(...))."
    )
  away = next(filter(checks.scheme_of, files), None)
  if away:
    raise ValueError(
      f"files of video_clips must be on this machine, got {checks.printable_path(away)}. Copy or mount them."
    )


def _checked_labels(labels, number):
  if labels is None:
    return None
  labels = as_array(labels, "labels of video_clips")
  if labels.shape[:1] != (number,):
    raise ValueError(
      f"labels of video_clips must have one label for each of {number:,} files, got shape {labels.shape}. Pass a list "
      "as long as files."
    )
  return labels


def _checked_windows(windows, num_files):
  windows = np.asarray(windows)
  are_pairs = windows.dtype.kind in "iu" and windows.shape == (len(windows), 2) and len(windows) > 0
  if not are_pairs or windows.min() < 0 or windows[:, 0].max() >= num_files:
    raise ValueError(
      f"windows of video_clips must be [clips, 2] whole numbers, pairs of a file from 0 to {num_files - 1:,} and a "
      f"frame from 0, got dtype {windows.dtype}, shape {windows.shape} and {windows[:3].tolist()}. Count both from 0."
    )
  return windows.astype(np.int64)


def _windows_of(counts, span, step):
  """All windows of files with these numbers of frames: pairs of a file and its first frame in the clip."""
  numbers = np.maximum(0, (counts - span) // step + 1)
  if not numbers.sum():
    raise ValueError(
      f"files of video_clips must have at least {span:,} frames for one clip, got {len(counts):,} files of at most "
      f"{counts.max():,}. Pass a smaller num_frames or frame_step."
    )
  first = np.repeat(np.cumsum(numbers) - numbers, numbers)
  return np.stack([np.repeat(np.arange(len(counts)), numbers), step * (np.arange(len(first)) - first)], axis=1)


class _Module:
  """Unpickled as a dict of what `video_frames.py` defines, without an import of the package and of TensorFlow."""

  def __reduce__(self):
    return runpy.run_path, (_FRAMES,)


class _Call:
  def __reduce__(self):
    return operator.getitem, (_Module(), "call")


class _Decoders:
  """Processes that count and decode frames."""

  def __init__(self, processes, frame_rate):
    self.processes, self._sent = processes, pool.Sent(pickle.dumps(_Call()))
    # The nearest fraction, so that decimals such as 29.97 and quotients such as 30000 / 1001 are exact.
    self.rate = frame_rate if frame_rate is None else str(fractions.Fraction(float(frame_rate)).limit_denominator(1001))
    # The processes stay as long as this object lives.
    self._sent.traced.add(self)

  def call(self, path, **wanted):
    """Returns an array. Raises ValueError if something is wrong with the file, RuntimeError if its processes die."""
    request = json.dumps({"path": path, "rate": self.rate, **wanted}).encode()
    whose = f"video_clips: {checks.printable_path(path)}"
    if not self.processes:
      from . import video_frames

      with _here:
        made = video_frames.call(request, None)
    else:
      try:
        with pool.UnderWay():
          call = pool.pool_of(self.processes).call
          (made,), _, _ = pool.apart(call, self.processes, self._sent, (0, 0), None, [request])
      except pool.Raised as raised:
        raise ValueError(f"{whose} raised {raised.name}:\n{raised.text}") from None
      except pool.Died as died:
        raise RuntimeError(
          f"{whose} has ended the process that decodes it twice, with {pool.told(died.code)}. Pass fewer processes if "
          "memory is short, or leave the file out."
        ) from None
    if isinstance(made, bytes):
      raise ValueError(f"{whose} {made.decode()}. Replace the file, or leave it out.")
    return made

  def counts(self, paths):
    """The numbers of frames of files, int64. Raises ValueError that names files that cannot be used."""

    def count(path):
      try:
        return int(self.call(path)), None
      except (ValueError, RuntimeError) as error:
        return 0, error

    with concurrent.futures.ThreadPoolExecutor(max(1, self.processes)) as threads:
      counted = list(threads.map(count, paths))
    errors = [error for _, error in counted if error]
    if errors:
      more = f"\nAnd {len(errors) - _MOST_NAMED:,} more files." if len(errors) > _MOST_NAMED else ""
      raise ValueError("\n".join(map(str, errors[:_MOST_NAMED])) + more)
    return np.array([number for number, _ in counted], np.int64)


class _Clips:
  """A Python source whose element i is the clip of window i."""

  def __init__(self, paths, labels, windows, counts, decoders, offsets):
    self.paths, self.labels, self.windows, self.decoders = paths, labels, windows, decoders
    # The number of frames of each file, or None if not counted; the frames of a clip, relative to its first one.
    self.counts, self.offsets = counts, offsets

  def __len__(self):
    return len(self.windows)

  def __getitem__(self, clip):
    file, first = self.windows[clip].tolist()
    count = None if self.counts is None else int(self.counts[file])
    made = self.decoders.call(self.paths[file], numbers=(first + self.offsets).tolist(), count=count)
    return made if self.labels is None else (made, self.labels[file])


class _VideoClipsDataset(_DataSourceDataset):
  """Yields clips and labels, by index."""

  def __init__(self, clips, class_names, description):
    self._clips, self.video_paths, self.windows, self.class_names = clips, clips.paths, clips.windows, class_names
    num_without = len(set(range(len(clips.paths))) - set(clips.windows[:, 0].tolist()))
    if num_without:
      description = description or f"video_clips\n  files   {len(clips.paths):,}"
      description += f"\n  short   {num_without:,} of {len(clips.paths):,} files have no clip"
    if description:
      self.source_description = description
    spec, labels = tf.TensorSpec([len(clips.offsets), None, None, 3], tf.uint8), clips.labels
    if labels is not None:
      spec = spec, tf.TensorSpec(labels.shape[1:], tf.string if labels.dtype == object else labels.dtype)
    # One more read than processes, so that a clip is copied while all of them decode.
    super().__init__(clips, spec, 1, clips.decoders.processes + 1)

  def files_fingerprint(self):
    # Names are relative to a common directory, which may be moved.
    common = os.path.commonpath(list(map(os.path.dirname, self.video_paths)))
    names = (os.fsencode(os.path.relpath(path, common)) for path in self.video_paths)
    facts = (None if each is None else np.asarray(each).tolist() for each in (self._clips.labels, self._clips.counts))
    return fingerprint.of_strings(
      repr([self._clips.decoders.rate, *facts]).encode() + self._clips.offsets.tobytes() + self.windows.tobytes(),
      *names,
    )
