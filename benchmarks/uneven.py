"""Samples whose times differ a hundredfold, in order and as they come, and video clips, compared with a
DataLoader.

Each pipeline runs in its own process, `python uneven.py PIPELINE ARGUMENTS`. If its packages are not installed, its
rows say so: `pip install -e '.[bench,video]'`.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

from peer_pipelines.epochs import cpu_seconds

WORKERS, BATCH, ROUNDS = 16, 16, 3
# Of fifty samples, one takes a hundred times as long: the seconds of both, and how many of a thousand take them.
TIMES = [(0.01, 980), (1.0, 20)]
LOADERS = {
  "refurbish": ("refurbish, deterministic=False", {"is_ordered": False}),
  "refurbish_ordered": ("refurbish, in order", {"is_ordered": True}),
  "torch": ("DataLoader, in_order=False", {"is_ordered": False}),
  "torch_ordered": ("DataLoader, in order", {"is_ordered": True}),
}
CLIP_LOADERS = {
  "r1": ("refurbish, r = 1", {"r": 1}),
  "r2": ("refurbish, r = 2", {"r": 2}),
  "r3": ("refurbish, r = 3", {"r": 3}),
  "torch": ("DataLoader, torchvision.transforms.v2", {}),
}


def measure(quick):
  """Yields the sections."""
  yield _uneven(quick)
  yield _clips(quick)


def _uneven(quick):
  import common

  rows = []
  for key, (name, arguments) in LOADERS.items():
    common.say(name)
    done, why = _run(
      "uneven_" + key.partition("_")[0], number=64 if quick else 3000, rounds=common.rounds(quick, ROUNDS), **arguments
    )
    label = f"{name}: 1 in 50 takes 100 times as long{why}"
    rows += [
      common.Row(f"{key}_speed", label, "samples/s", [each["speed"] for each in done]),
      common.Row(f"{key}_wait", label, "longest wait, ms", [each["wait"] for each in done]),
      common.Row(
        f"{key}_time",
        label,
        "x the time of busy workers",
        [1 / each["busy"] for each in done],
        1 / 0.95 if key == "refurbish" else None,
      ),
    ]
  return common.Section(
    "Uneven times",
    f"{WORKERS} workers that sleep, in batches of {BATCH}, without reuse. The longest wait for a batch, and the "
    "fraction of time that workers spend preparing samples, until the last sample of the epoch begins. The bar is 0.95 "
    "of all workers.",
    rows,
    lambda row: not row.unit.startswith("x "),
  )


def _clips(quick):
  import common

  rows, baseline = [], None
  with tempfile.TemporaryDirectory() as folder:
    if importlib.util.find_spec("av"):
      _write_videos(folder, *((2, 48) if quick else (24, 150)))
    for key, (name, arguments) in CLIP_LOADERS.items():
      common.say(name)
      done, why = _run(
        "clips_torch" if key == "torch" else "clips", folder=folder, rounds=common.rounds(quick, ROUNDS), **arguments
      )
      speeds = [each["speed"] for each in done]
      baseline = baseline or speeds
      rows += [
        common.Row(f"clips_{key}_speed", name + why, "clips/s", speeds),
        common.Row(f"clips_{key}_cpu", name + why, "ms of CPU a clip", [each["cpu"] for each in done]),
        # The limit 0.5 means twice as many clips per second.
        common.Row(
          f"clips_{key}_time",
          name + why,
          "x the time of r = 1",
          common.quotients(baseline, speeds) if speeds else [],
          0.5 if key == "r3" else None,
        ),
      ]
  return common.Section(
    "Clips",
    "16 frames of 256x256, H.264 with a key frame every 30 frames: decoded, cropped and resized to 240x240 first; "
    "cropped to 224x224 and flipped at each use. Epochs after the first three; CPU time of all processes.",
    rows,
    lambda row: not row.unit.startswith("x "),
  )


def _run(function, **arguments):
  """The results of each round, or the reason why there are none."""
  import common

  needed = (
    ["torch"] * ("torch" in function)
    + ["torchvision", "av"] * (function == "clips_torch")
    + ["av"] * (function == "clips")
  )
  missing = [name for name in needed if importlib.util.find_spec(name) is None]
  if missing:
    return [], f" (not installed: {', '.join(missing)})"
  done = subprocess.run(
    [sys.executable, __file__, function, json.dumps(arguments)],
    capture_output=True,
    text=True,
    check=False,
    env=common.environment(),
  )
  return (
    (json.loads(done.stdout.splitlines()[-1]), "")
    if not done.returncode
    else ([], f" (failed: {common.last_line(done.stderr)})")
  )


# Functions that run in their own processes. ---------------------------------------------------------------------------


def _seconds_of(number):
  every = np.concatenate([np.full(many, seconds) for seconds, many in TIMES])
  return np.random.default_rng(7).permutation(np.resize(every, number))


def _prepared(seconds):
  """Sleeps, and returns when that began and ended."""
  began = time.monotonic()
  time.sleep(seconds)
  return np.array([began, time.monotonic()])


def _round(batches):
  found, arrived = [], []
  for batch in batches:
    found.append(np.asarray(batch))
    arrived.append(time.monotonic())
  began, ended = np.concatenate(found).T
  last = began.max()
  return {
    "speed": len(began) / (arrived[-1] - began.min()),
    # Leaves out the end of the epoch, where the consumer waits for the last samples, whether ordered or not.
    "wait": 1e3 * np.diff([each for number, each in enumerate(arrived) if number < 2 or each <= last]).max(),
    "busy": (np.minimum(ended, last) - began).sum() / WORKERS / (last - began.min()),
  }


def uneven_refurbish(number, rounds, is_ordered):
  import refurbish_tf  # noqa: F401  Adds the method.
  import tensorflow as tf

  def prepare(seconds):
    return tf.ensure_shape(tf.numpy_function(_prepared, [seconds], tf.float64), [2])

  dataset = (
    tf.data.Dataset.from_tensor_slices(_seconds_of(number))
    .refurbish(prepare, r=1, deterministic=is_ordered, num_parallel_calls=WORKERS)
    .batch(BATCH)
  )
  return [_round(dataset.as_numpy_iterator()) for _ in range(rounds)]


def uneven_torch(number, rounds, is_ordered):
  from torch.utils import data

  class Samples(data.Dataset):
    seconds = _seconds_of(number)

    def __len__(self):
      return number

    def __getitem__(self, place):
      return _prepared(self.seconds[place])

  loader = data.DataLoader(Samples(), BATCH, shuffle=True, num_workers=WORKERS, in_order=is_ordered)
  return [_round(loader) for _ in range(rounds)]


def _write_videos(folder, number, length):
  import av

  rng = np.random.default_rng(7)
  for place in range(number):
    noise = rng.integers(0, 256, [40 + length // 4, 40 + length // 4, 3], np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(f"{folder}/{place:02}.mp4", "w") as file:
      stream = file.add_stream(
        "libx264",
        rate=30,
        width=256,
        height=256,
        pix_fmt="yuv420p",
        options={"preset": "veryfast", "x264-params": "log-level=none"},
      )
      stream.codec_context.gop_size = 30
      for at in range(0, 2 * length, 2):
        file.mux(
          stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(noise[at : at + 256, at : at + 256]), "rgb24"))
        )
      file.mux(stream.encode(None))


def _epochs(batches, rounds, before):
  """Measures three epochs at a time, because the number of fresh samples varies from epoch to epoch."""
  for _ in itertools.chain.from_iterable(batches for _ in range(before)):
    pass
  found = []
  for _ in range(rounds):
    began, cpu = time.monotonic(), cpu_seconds()
    number = sum(len(batch) for _ in range(3) for batch in batches)
    found.append({"speed": number / (time.monotonic() - began), "cpu": 1e3 * (cpu_seconds() - cpu) / number})
  return found


def clips(folder, rounds, r):
  import refurbish_tf as rtf

  source = rtf.sources.video_clips(sorted(map(str, pathlib.Path(folder).glob("*.mp4"))), 16)
  dataset = (
    source.refurbish(
      [rtf.augment.random_resized_crop(240)], [rtf.augment.random_crop(224), rtf.augment.random_flip()], r=r
    )
    .batch(8)
    .prefetch(2)
  )
  return _epochs(dataset, rounds, 3)


def clips_torch(folder, rounds):
  """A DataLoader that decodes with the same function."""
  import torch
  from torch.utils import data
  from torchvision.transforms import v2
  from refurbish_tf.sources import video_frames

  paths = sorted(map(str, pathlib.Path(folder).glob("*.mp4")))
  windows = [
    (path, begin)
    for path in paths
    for begin in range(0, int(video_frames.call(json.dumps({"path": path, "rate": None}), None)) - 15, 16)
  ]
  transforms = v2.Compose([v2.RandomResizedCrop(240, antialias=True), v2.RandomCrop(224), v2.RandomHorizontalFlip()])

  class Clips(data.Dataset):
    def __len__(self):
      return len(windows)

    def __getitem__(self, place):
      path, begin = windows[place]
      frames = video_frames.call(
        json.dumps({"path": path, "rate": None, "numbers": list(range(begin, begin + 16)), "count": None}), None
      )
      return transforms(torch.from_numpy(frames).permute(0, 3, 1, 2))

  workers = len(os.sched_getaffinity(0))
  return _epochs(
    data.DataLoader(Clips(), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=True), rounds, 1
  )


if __name__ == "__main__":
  print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
