"""The programs of docs/video.md, on files as the page describes them."""

import json
import os
import re

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from support import cases, videos
from test_docs import run_program_of

pytestmark = cases.slow


def write_episodes(folder, lengths):
  """A LeRobot data set: two files of two episodes; an action is the number of its episode and frame."""
  rows, frames = [], []
  for number, length in enumerate(lengths):
    begin = sum(lengths[number - 1 : number]) if number % 2 else 0
    rows.append(
      {
        "episode_index": number,
        "length": length,
        "dataset_from_index": len(frames),
        "videos/observation.images.top/chunk_index": 0,
        "videos/observation.images.top/file_index": number // 2,
        "videos/observation.images.top/from_timestamp": begin / videos.RATE,
      }
    )
    frames += [{"action": [float(number), float(frame)]} for frame in range(length)]
  for name, table in (("meta/episodes", rows), ("data", frames)):
    (folder / name / "chunk-000").mkdir(parents=True)
    pq.write_table(pyarrow.Table.from_pylist(table), folder / name / "chunk-000" / "file-000.parquet")
  (folder / "meta" / "info.json").write_text(json.dumps({"fps": videos.RATE}))
  (folder / "videos" / "observation.images.top" / "chunk-000").mkdir(parents=True)
  for number in range(len(lengths) // 2):
    path = folder / "videos" / "observation.images.top" / "chunk-000" / f"file-{number:03}.mp4"
    videos.write(path, sum(lengths[2 * number : 2 * number + 2]), (96, 128), seed=number)


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
  pytest.importorskip("av")
  for name in ("walk/1.mp4", "walk/2.mkv", "run/3.mp4", "run/4.webm", "run/5.mp4"):
    os.makedirs(tmp_path / "videos" / name.split("/")[0], exist_ok=True)
    videos.write(
      tmp_path / "videos" / name, 100, (130, 160), kind="vp9.webm" if name.endswith("webm") else "closed.mp4"
    )
  write_episodes(tmp_path / "robot", [30, 21, 8, 19])
  monkeypatch.chdir(tmp_path)


def test_clips_of_a_folder():
  told = run_program_of("video.md", "train_video.py")
  # Four of the five files have two windows of 47 frames each.
  assert "  epoch   8 samples;" in told and "  sample  a clip of 24 frames" in told


def test_episodes_of_a_robot():
  """Each window is in one episode, and its actions are those of its frames."""
  check = """
seen = sorted((tuple(action.tolist()) for batch in train for action in batch[1].numpy()[:, 0]))
print("beginnings", seen, windows)
"""
  told = run_program_of(
    "video.md", "train_robot.py", smaller={"print(rtf.describe(train))\n": "print(rtf.describe(train))" + check}
  )
  begins = [(number, frame) for number, length in enumerate([30, 21, 8, 19]) for frame in range(0, length - 7, 8)]
  windows = [(number // 2, frame + (number % 2) * (30, 8)[number // 2]) for number, frame in begins]
  found, given = re.search(r"beginnings (\[.*\]) (\[.*\])", told).groups()
  np.testing.assert_array_equal(eval(found), begins)
  assert eval(given) == windows
