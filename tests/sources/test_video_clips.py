"""`rtf.sources.video_clips`: windows of frames by index, with the same frames as a decoder that begins at the first
one."""

import gc
import glob
import itertools
import pathlib
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal.processes import pool
from support import cases, checkpoints, videos
from support.datasets import read

pytest.importorskip("av", reason="not installed: av; pip install 'refurbish_tf[video]' does it")
from refurbish_tf.sources import video_frames

video_clips = rtf.sources.video_clips
module = sys.modules[video_clips.__module__]
LAYERS = [rtf.augment.random_resized_crop((16, 20))], [rtf.augment.random_flip()]


@pytest.fixture(autouse=True)
def nothing_is_open():
  yield
  for each in (video_frames._videos, video_frames._indices):
    each.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Five files of two classes: 60, 60 and 25 frames; 45 and 10."""
  directory = tmp_path_factory.mktemp("videos")
  for number, (name, length) in enumerate(
    [("a/1.mp4", 60), ("a/2.mkv", 60), ("a/3.mp4", 25), ("b/deep/4.mp4", 45), ("b/5.mp4", 10)]
  ):
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    videos.write(directory / name, length, seed=number)
  (directory / "a" / "readme.txt").write_text("no video")
  return directory


@pytest.fixture
def opened(monkeypatch):
  """Records the files that this process opens."""
  found, begin = [], video_frames._Video._open

  def counted(video):
    found.append(video._path)
    begin(video)

  monkeypatch.setattr(video_frames._Video, "_open", counted)
  return found


@pytest.mark.parametrize("kind", cases.some(videos.FORMATS, 4))
def test_frames_are_those_of_a_sequential_decoder(kind, tmp_path, opened):
  path = videos.write(tmp_path / kind, kind=kind)
  frames, _ = videos.decoded(path)
  rng = np.random.default_rng(1)
  for length, step in [(1, 1), (5, 1), (4, 7)]:
    begins = rng.permutation(len(frames) - (length - 1) * step)[:20]
    source = video_clips([path], length, frame_step=step, windows=[(0, begin) for begin in begins], processes=0)
    assert len(source) == len(begins) and source.element_spec == tf.TensorSpec([length, None, None, 3], tf.uint8)
    for begin, clip in zip(begins, source.as_numpy_iterator(), strict=True):
      np.testing.assert_array_equal(clip, frames[begin : begin + length * step : step])
  # For these kinds the decoder seeks; otherwise each window would be decoded from the beginning.
  assert len(opened) <= 60 and (
    len(opened) == 1 or kind not in ("closed.mp4", "open.mp4", "open.mkv", "vp9.webm", "hevc.mp4")
  )


def test_sizes_need_not_be_even(tmp_path, monkeypatch):
  monkeypatch.setitem(videos.FORMATS, "odd.mp4", ("libx264", videos.X264, "yuv444p"))
  path = videos.write(tmp_path / "odd.mp4", 9, (37, 51), kind="odd.mp4")
  (clip,) = video_clips([path], 9, processes=0).as_numpy_iterator()
  np.testing.assert_array_equal(clip, videos.decoded(path)[0])


def test_trimmed_frames_are_not_counted(tmp_path):
  path = videos.write(tmp_path / "trimmed.mp4")
  whole, _ = videos.decoded(path)
  videos.trimmed(path, 10, 1000)
  found = np.concatenate(list(video_clips([path], 5, processes=0).as_numpy_iterator()))
  np.testing.assert_array_equal(found, whole[10:40])


@pytest.mark.parametrize("kind", ["closed.mp4", "open.mkv"])
def test_frame_rate_selects_frames_by_their_times(kind, tmp_path):
  """This holds even if the file's own rate varies, or is the same as the given rate."""
  times = np.cumsum(np.random.default_rng(3).integers(10, 90, 60)).tolist()
  for own, rate in [(None, 30), (None, 12), (None, 29.97), (times, 10), (times, 50)]:
    path = videos.write(tmp_path / kind, kind=kind, times=own)
    frames, seconds = videos.decoded(path)
    wanted = np.arange(0, seconds[-1] - seconds[0] + 0.001, 1 / rate) + seconds[0]
    nearest = np.abs(np.subtract.outer(wanted, seconds)).argmin(1)
    source = video_clips([path], 4, frame_rate=rate, processes=0)
    assert len(source) == len(wanted) // 4 and (nearest.tolist() == list(range(60))) == (rate == 30)
    for place, clip in enumerate(source.as_numpy_iterator()):
      np.testing.assert_array_equal(clip, frames[nearest[4 * place : 4 * place + 4]])
    video_frames._indices.clear(), video_frames._videos.clear()


def test_a_frame_rate_needs_times(tmp_path):
  path = videos.write(tmp_path / "no_times.h264", kind="no_times.h264")
  with pytest.raises(ValueError, match="no_times.h264 has frames without a time of their own.*leave frame_rate out"):
    video_clips([path], 2, frame_rate=30, processes=0)


@pytest.mark.parametrize(
  "matrix",
  cases.some(
    itertools.chain(((a, 0, 0, d) for a in (1, -1) for d in (1, -1)), ((0, b, c, 0) for b in (1, -1) for c in (1, -1))),
    5,
  ),
)
def test_frames_are_turned_as_the_file_says(matrix, tmp_path):
  path = videos.write(tmp_path / "phone.mp4", 3)
  (a, b, c, d), plain = matrix, videos.decoded(path)[0]
  videos.turned(path, matrix)
  (clip,) = video_clips([path], 3, processes=0).as_numpy_iterator()
  y, x = np.mgrid[: plain.shape[1], : plain.shape[2]]
  across, down = a * x + c * y, b * x + d * y
  shown = np.zeros_like(clip)
  shown[:, down - down.min(), across - across.min()] = plain
  np.testing.assert_array_equal(clip, shown)


class TestFilesThatAreNotAsTheyShouldBe:
  def test_are_named_before_training(self, tmp_path):
    good = videos.write(tmp_path / "good.mp4", container_options={"movflags": "faststart"})
    content = pathlib.Path(good).read_bytes()
    for name, part in (
      ("cut.mp4", content[: len(content) * 2 // 3]),
      ("header.mp4", content[:300]),
      ("empty.mp4", b""),
      ("text.mp4", b"text" * 99),
    ):
      (tmp_path / name).write_bytes(part)
    wrong = {
      "cut.mp4": "is cut off: its header lists frames after its end",
      "header.mp4": "(cannot be read|has no video)",
      "empty.mp4": "is empty",
      "text.mp4": "cannot be read",
      "none.mp4": "cannot be read: No such file",
      "audio.mp4": "has no video",
      "cut.avi": r"is damaged: bytes are missing after frame \d",
    }
    videos.write_audio(tmp_path / "audio.mp4")
    avi = pathlib.Path(videos.write(tmp_path / "cut.avi", kind="b_frames.avi"))
    avi.write_bytes(avi.read_bytes()[: len(avi.read_bytes()) * 3 // 5])
    for name, told in wrong.items():
      with pytest.raises(ValueError, match=f"video_clips: {tmp_path}/{name} {told}.*Replace the file, or leave it out"):
        video_clips([good, tmp_path / name], 4, processes=0)
    with pytest.raises(ValueError, match="(?s)cut.mp4.*text.mp4.*And 2 more files"):
      video_clips([good, *(tmp_path / name for name in wrong)], 4, processes=0)

  @pytest.mark.parametrize("kind", ["open.mkv", "open.ts"])
  def test_truncated_files_keep_their_remaining_frames(self, kind, tmp_path):
    path = videos.write(tmp_path / kind, kind=kind)
    frames, _ = videos.decoded(path)
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(content[: len(content) * 2 // 3])
    source = video_clips([path], 4, processes=0)
    assert 0 < len(source) < 15
    for place, clip in enumerate(source.take(len(source) - 1).as_numpy_iterator()):
      np.testing.assert_array_equal(clip, frames[4 * place : 4 * place + 4])

  @pytest.mark.parametrize(
    "kind, damage", [("closed.mp4", bytes(1000)), ("b_frames.avi", np.random.default_rng(7).bytes(30))]
  )
  def test_a_damaged_file_loses_only_its_own_clips(self, tmp_path, kind, damage):
    path = videos.write(tmp_path / kind, kind=kind)
    frames, _ = videos.decoded(path)
    with open(path, "r+b") as file:
      file.seek(len(file.read()) // 2)
      file.write(damage)
    found, iterator = 0, iter(video_clips([path], 4, processes=0))
    for begin in range(0, 60, 4):
      try:
        np.testing.assert_array_equal(next(iterator), frames[begin : begin + 4])
        found += 1
      except tf.errors.UnknownError as error:
        assert f"video_clips: {path} is damaged near frame {begin}: " in error.message
    assert 5 <= found < 15

  def test_a_changed_file_is_an_error(self, tmp_path):
    path = videos.write(tmp_path / "changes.mp4")
    source = video_clips([path], 20, processes=0)
    next(iter(source))
    videos.write(path, 40, seed=1)
    with pytest.raises(tf.errors.UnknownError, match=f"{path} has 40 frames, but 60 are expected"):
      next(iter(source))
    np.testing.assert_array_equal(next(iter(video_clips([path], 40, processes=0))), videos.decoded(path)[0])

  def test_clips_with_frames_of_several_sizes_are_an_error(self, tmp_path):
    parts = [
      pathlib.Path(videos.write(tmp_path / f"{size}.h264", 12, size, kind="no_times.h264")).read_bytes()
      for size in [(48, 64), (32, 48)]
    ]
    (tmp_path / "both.h264").write_bytes(b"".join(parts))
    source = video_clips([tmp_path / "both.h264"], 8, windows=[(0, 0), (0, 8), (0, 14)], processes=0)
    iterator = iter(source)
    assert next(iterator).shape == (8, 48, 64, 3)
    with pytest.raises(tf.errors.UnknownError, match="has frames of several sizes: 48 x 64 and 32 x 48"):
      next(iterator)
    assert next(iterator).shape == (8, 32, 48, 3)


class TestFolders:
  def test_classes_and_windows(self, folder):
    source = video_clips(folder, 5, frame_step=2, step_between_clips=20, processes=0)
    assert source.class_names == ["a", "b"] and [pathlib.Path(path).name for path in source.video_paths] == [
      "1.mp4",
      "2.mkv",
      "3.mp4",
      "5.mp4",
      "4.mp4",
    ]
    assert source.windows.tolist() == [
      *([file, begin] for file in (0, 1) for begin in (0, 20, 40)),
      [2, 0],
      [3, 0],
      [4, 0],
      [4, 20],
    ]
    frames = [videos.decoded(path)[0] for path in source.video_paths]
    for (file, begin), (clip, label) in zip(source.windows, source.as_numpy_iterator(), strict=True):
      np.testing.assert_array_equal(clip, frames[file][begin : begin + 10 : 2])
      assert label == (file > 2)
    assert len(video_frames._videos) == video_frames._MOST_OPEN

  def test_files_are_split_and_not_clips(self, folder):
    whole = set(video_clips(folder, 4, processes=0).video_paths)
    train, validation = video_clips(folder, 4, validation_split=0.4, subset="both", seed=3, processes=0)
    assert set(train.video_paths) | set(validation.video_paths) == whole
    assert len(validation.video_paths) == 2 == 5 - len(train.video_paths)

  def test_files_without_a_clip_are_reported(self, folder):
    text = rtf.describe(video_clips(folder, 30, processes=0).refurbish(*LAYERS, r=2))
    assert text.startswith(
      f'video_clips "{folder}"\n  files   5 listed; left out: 1 .txt\n  short   2 of 5 files have no clip\n'
    )
    with pytest.raises(ValueError, match="must have at least 61 frames for one clip, got 5 files of at most 60"):
      video_clips(folder, 61, processes=0)

  def test_a_store_knows_its_files(self, folder, tmp_path):
    """The fingerprint depends on the names within the directory, which may move, and on the clips' contents."""
    shutil.copytree(folder, tmp_path / "moved")
    known = video_clips(folder, 5, processes=0).files_fingerprint()
    assert known == video_clips(tmp_path / "moved", 5, processes=2).files_fingerprint()
    others = [
      video_clips(folder, 5, processes=0, **other)
      for other in ({"frame_rate": 30}, {"step_between_clips": 4}, {"class_names": ["b", "a"]})
    ]
    videos.write(tmp_path / "moved" / "a" / "3.mp4", 26)
    others.append(video_clips(tmp_path / "moved", 5, processes=0))
    assert known not in [other.files_fingerprint() for other in others]


@pytest.mark.parametrize(
  "wrong, error, told",
  [
    ({"num_frames": 0}, ValueError, "num_frames must be"),
    ({"frame_step": 1.5}, TypeError, "frame_step must be"),
    ({"step_between_clips": 0}, ValueError, "step_between_clips must be"),
    ({"frame_rate": 0}, ValueError, "frame_rate must be frames per second"),
    ({"processes": -1}, ValueError, "processes must be"),
    ({"labels": [1]}, ValueError, "one label for each of 2 files, got shape"),
    ({"windows": [1, 2]}, ValueError, r"must be \[clips, 2\] whole.*shape \(2,\)"),
    ({"windows": [(2, 0)]}, ValueError, r"file from 0 to 1 .*\[\[2, 0\]\]"),
    ({"files": []}, TypeError, "at least one path"),
    ({"files": [3]}, TypeError, "a directory or a list"),
    ({"files": ["gs://a/b.mp4"]}, ValueError, "on this machine, got gs://a/b.mp4"),
    ({"files": "gs://a"}, ValueError, "on this machine"),
    ({"files": "a", "labels": [1]}, ValueError, "are for a list of paths"),
    ({"seed": 1}, ValueError, "are for a directory"),
  ],
)
def test_wrong_arguments(wrong, error, told):
  with pytest.raises(error, match=told):
    video_clips(**{"files": ["a.mp4", "b.mp4"], "num_frames": 4, **wrong})


def test_labels_of_a_list(folder):
  paths = sorted(glob.glob(f"{folder}/a/*.mp4"))
  for labels in ([b"x", b"y"], np.float32([[1, 2], [3, 4]])):
    found = [label for _, label in video_clips(paths, 20, labels=labels, processes=0).as_numpy_iterator()]
    np.testing.assert_array_equal(found, [labels[0]] * 3 + [labels[1]])


class TestStages:
  """The guarantees also hold with clips that processes decode."""

  def samples(self, folder, **options):
    source = video_clips(folder, 5, processes=options.pop("processes", 2))
    return source.refurbish(*LAYERS, r=3, seed=5, **options)

  def epochs(self, stage, number):
    return [[(int(label), clip.tobytes()) for clip, label in stage.as_numpy_iterator()] for _ in range(number)]

  def test_each_window_once_an_epoch_and_the_same_bytes_from_any_process(self, folder, tmp_path):
    here = self.samples(folder, processes=0)
    expected = self.epochs(here, 4)
    assert [len(epoch) for epoch in expected] == [12 + 12 + 5 + 9 + 2] * 4
    assert [epoch.fresh for epoch in rtf.stats(here)[0].epochs][1:] == [13, 13, 14]
    stage = self.samples(folder, store=rtf.CacheStore(tmp_path / "store"))
    assert self.epochs(stage, 4) == expected and pool.pool_of(2).num_alive() == 2
    unordered = self.samples(folder, deterministic=False)
    assert [sorted(epoch) for epoch in self.epochs(unordered, 4)] == list(map(sorted, expected))

  @cases.slow
  @pytest.mark.parametrize("at", [7, 55])
  def test_a_restart(self, folder, tmp_path, at):
    """Continues with a new stage, as in another process, and with another number of processes."""
    stage = self.samples(folder).repeat(3)
    expected = [clip.tobytes() for clip, _ in stage.as_numpy_iterator()]
    iterator = iter(checkpoints.with_checkpoints(self.samples(folder).repeat(3)))
    assert [next(iterator)[0].numpy().tobytes() for _ in range(at)] == expected[:at]
    path = checkpoints.save(iterator, tmp_path)
    restored = checkpoints.restore(checkpoints.with_checkpoints(self.samples(folder, processes=1).repeat(3)), path)
    assert [clip.numpy().tobytes() for clip, _ in restored] == expected[at:]

  @cases.slow
  @pytest.mark.parametrize("once", [True, False])
  def test_a_process_that_dies(self, folder, tmp_path, monkeypatch, once):
    """The first death costs no clip. If the second process also dies, only its own clip is lost."""
    monkeypatch.setattr(module, "_FRAMES", str(tmp_path / "deadly.py"))
    (tmp_path / "deadly.py").write_text(f"""
import json, os, pathlib, runpy
whole = runpy.run_path({video_frames.__file__!r})
def call(request, rng):
  wanted, mark = json.loads(request), pathlib.Path({str(tmp_path / "died")!r})
  if wanted.get("numbers", [0])[0] == 20 and wanted["path"].endswith("2.mkv") and not ({once} and mark.exists()):
    mark.touch()
    os._exit(9)
  return whole["call"](request, rng)
""")
    found, errors = read(self.samples(folder))
    assert len(found) == 40 - len(errors) and len(errors) == (not once) and (tmp_path / "died").exists()
    assert all(
      "a/2.mkv has ended the process that decodes it twice, with exit status 9" in str(error) for error in errors
    )

  def test_processes_forget_a_source_that_is_gone(self, folder):
    source = video_clips(folder, 5, processes=2)
    next(iter(source))
    calls = [each for each in pool.pool_of(2)._functions.values() if list(each.traced) == [source._clips.decoders]]
    assert len(calls) == 1
    del source, calls
    gc.collect()
    assert not any(
      type(owner).__name__ == "_Decoders" for each in pool.pool_of(2)._functions.values() for owner in each.traced
    )
