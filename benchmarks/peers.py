"""Images per second with refurbish, with its loaders, and with other libraries that augment on the CPU.

Each pipeline runs in its own process (peer_pipelines/), with the same images in memory and all cores.
`pip install -e '.[bench]'` installs the libraries; if one is missing or fails, its rows say so.
"""

import contextlib
import importlib.util
import json
import math
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import threading

import common
import samples
import tensorflow as tf

DIRECTORY = pathlib.Path(__file__).resolve().parent
REFURBISH = "refurbish"
TF_DATA = "tf_data"
TORCH_LOADER, JAX_LOADER = "torch_loader", "jax_loader"
# The pipelines with their own scripts; with_tf_data.py has all others.
PEERS = ("dali", "grain", "torch")
# By name: the title, and the modules that it needs in addition to refurbish_tf.
PIPELINES = {
  REFURBISH: ("refurbish, r = 3", ()),
  TORCH_LOADER: ("refurbish, r = 3, torch_loader", ("torch",)),
  JAX_LOADER: ("refurbish, r = 3, jax_loader", ("jax",)),
  TF_DATA: ("tf.data", ()),
  "tf_data_ops": ("tf.data, TensorFlow-op layers", ()),
  "dali": ("NVIDIA DALI", ("nvidia.dali",)),
  "grain": ("Grain", ("grain", "PIL")),
  "torch": ("PyTorch DataLoader", ("torch", "torchvision")),
  "tf_data_decoded": ("cache() of decoded images", ()),
  "refurbish_decoded": ("both: r = 3 after cache()", ()),
}
# Measured only with large images, because small images need no decoding.
ONLY_LARGE = ("tf_data_decoded", "refurbish_decoded")
OURS = (REFURBISH, TORCH_LOADER, JAX_LOADER)
# By loader: the library that its users would use otherwise, and the limit of that library's images per second relative
# to the loader's.
IN_PLACE_OF = {TORCH_LOADER: ("torch", 1 / 3), JAX_LOADER: ("grain", 1)}
PER_CPU_SECOND = "images/CPU s"
ROUNDS = 15
# Seconds after which a pipeline counts as hung.
EPOCH_SECONDS = 300
# Images per batch, as in peer_pipelines/epochs.py. Epochs have only whole batches, because some pipelines drop a
# smaller one.
BATCHES = {"small": 128, "large": 32}
# The side of a prepared photograph.
SIDE = 224


def measure(quick):
  """Yields the sections."""
  images, whence = samples.small((4 if quick else 100) * BATCHES["small"])
  yield _section(
    quick,
    "small",
    "32x32",
    images,
    whence,
    "two RandAugment operations at M = 9 of 10, crop with padding 4 and flip, to uint8. tf.data and refurbish crop and "
    "flip whole batches; both have native layers, except in the row with TensorFlow-op layers",
  )
  files, whence = samples.photographs((4 if quick else 40) * BATCHES["large"])
  yield _section(
    quick,
    "large",
    "224x224",
    files,
    whence,
    "decoding with a random resized crop, two RandAugment operations at M = 9 of 10; then crop with padding 4, flip "
    f"and normalize to float32. cache() keeps {_decoded_kilobytes(files):.0f} kB per image, refurbish at most "
    f"{SIDE * SIDE * 3 / 1000:.0f} kB",
  )


def _decoded_kilobytes(files):
  return sum(math.prod(tf.io.extract_jpeg_shape(file).numpy()) for file in files) / len(files) / 1000


def _section(quick, kind, size, images, whence, augmentation):
  common.say(f"{size}: all take turns")
  epochs, absent = run(kind, images, common.rounds(quick, ROUNDS), _pipelines(kind))
  speed = {key: [epoch["count"] / epoch["wall"] for epoch in measured] for key, measured in epochs.items()}
  cpu_speed = {key: [epoch["count"] / epoch["cpu"] for epoch in measured] for key, measured in epochs.items()}
  rows = []
  for speeds, suffix, unit in ((speed, "wall", "images/s"), (cpu_speed, "cpu", PER_CPU_SECOND)):
    rows += [
      common.Row(
        f"{kind}_{key}_{suffix}", f"{name}: {absent[key]}" if key in absent else name, unit, speeds.get(key, [])
      )
      for key, (name, _) in _pipelines(kind).items()
    ]
  if REFURBISH in speed:
    rows += [
      common.Row(
        f"{kind}_{key}",
        PIPELINES[key][0],
        "of refurbish's images/s",
        common.quotients(values, speed[REFURBISH]),
        limit=1,
      )
      for key, values in speed.items()
      if key not in OURS
    ]
  rows += _loader_rows(kind, speed)
  if kind == "large" and TF_DATA in speed:
    # Compares caches of decoded images, refurbish and both with plain tf.data. On a busy machine, more threads get more
    # of the CPU, so images/s say little there, while images per CPU second are still meaningful.
    rows += [
      common.Row(
        f"{kind}_{key}_of_tf_data_{suffix}",
        PIPELINES[key][0],
        f"of tf.data's {unit}",
        common.quotients(speeds[key], speeds[TF_DATA]),
      )
      for speeds, suffix, unit in ((speed, "wall", "images/s"), (cpu_speed, "cpu", PER_CPU_SECOND))
      for key in ("tf_data_decoded", REFURBISH, "refurbish_decoded")
      if key in speeds
    ]
  return common.Section(
    f"{size}: speed",
    f"{whence}, from memory, in random order: {augmentation}. Batches of {BATCHES[kind]}, read without a model. Each "
    "pipeline is written as its own documentation recommends and has a thread or a process per core; tf.data has "
    f"{common.PARALLEL_CALLS} calls at once and no autotuner. They take turns, epoch by epoch; the first does not "
    "count. CPU seconds include all processes of a pipeline. An epoch lasts until as many batches are ready as at its "
    "beginning. A peer above 1 is faster than refurbish.",
    rows,
    lambda row: row.unit in (PER_CPU_SECOND, f"of tf.data's {PER_CPU_SECOND}") and "_loader" not in row.name,
  )


def _loader_rows(kind, speed):
  """Compares each loader with the same pipeline without it, and with the library that it replaces."""
  rows = []
  for loader, (peer, most) in IN_PLACE_OF.items():
    for key, one, other, unit, limit in (
      (f"{loader}_of_bare", loader, REFURBISH, "of images/s without the loader", None),
      (f"{peer}_of_{loader}", peer, loader, f"of {loader}'s images/s", round(most, 3)),
    ):
      if one in speed and other in speed:
        rows.append(
          common.Row(f"{kind}_{key}", PIPELINES[one][0], unit, common.quotients(speed[one], speed[other]), limit)
        )
  return rows


def _pipelines(kind):
  return {key: value for key, value in PIPELINES.items() if kind == "large" or key not in ONLY_LARGE}


def run(kind, images, rounds, pipelines):
  """Runs epochs of all `pipelines`, a part of `PIPELINES` or others like it, in turns.

  Returns:
    A dict of lists of the answers of `epochs.serve` for each epoch, and a dict of why other pipelines are missing.
  """
  absent = {key: "not installed" for key, (_, modules) in pipelines.items() if not all(map(_installed, modules))}
  epochs = {key: [] for key in pipelines if key not in absent}
  with tempfile.TemporaryDirectory(prefix="refurbish-peers-") as directory, contextlib.ExitStack() as stack:
    path = pathlib.Path(directory, "images")
    path.write_bytes(pickle.dumps(images))
    started = {key: stack.enter_context(_started(key, kind, path, pathlib.Path(directory, key))) for key in epochs}
    for counted in [False] + [True] * rounds:
      for key in random.sample(list(epochs), len(epochs)):
        answer = _epoch(started[key])
        if answer is None:
          absent[key] = "failed: " + common.last_line(pathlib.Path(directory, key).read_text(errors="replace"))
          del epochs[key]
          common.say(f"{pipelines[key][0]} {absent[key]}")
        elif counted:
          epochs[key].append(answer)
  return epochs, absent


@contextlib.contextmanager
def _started(key, kind, images_path, errors):
  """Yields the process of a pipeline, which runs an epoch for each line of its input."""
  script = kind if kind == "sounds" else key if key in PEERS else "tf_data"
  with open(errors, "w") as stderr:
    process = subprocess.Popen(
      [
        sys.executable,
        str(DIRECTORY / "peer_pipelines" / f"with_{script}.py"),
        kind,
        str(images_path),
        key,
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=stderr,
      text=True,
      env=common.environment(),
    )
  try:
    yield process
  finally:
    # The process and its workers end when their input ends.
    with contextlib.suppress(BrokenPipeError):
      process.stdin.close()
    try:
      process.wait(timeout=20)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
    process.stdout.close()


def _epoch(process):
  """The process's measurement of an epoch; None if the process has failed."""
  try:
    process.stdin.write("\n")
    process.stdin.flush()
  except BrokenPipeError:
    return None
  # Kills a process that hangs, so that `readline` returns.
  watch = threading.Timer(EPOCH_SECONDS, process.kill)
  watch.start()
  line = process.stdout.readline()
  watch.cancel()
  return json.loads(line) if line else None


def _installed(module):
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # The package of the module is also missing.
    return False
