"""What it brings on a machine with a GPU: trainings by Keras, with `fuse` and without, beside DALI.

Keras' backend is that of `KERAS_BACKEND`, TensorFlow or JAX.
"""
import functools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading

import common
import numpy as np
import samples

TRAINING = pathlib.Path(__file__).resolve().parent / "gpu_training.py"
# Keras' model, the side of its images, and the batch.
MODELS = {
    "ResNet-50": ("ResNet50", 224, 128), "a small network": ("small", 32, 512),
    "MobileNetV3": ("MobileNetV3Large", 224, 256), "EfficientNet-B0": ("EfficientNetB0", 224, 128)}
# Numbers of processors, besides all.
PROCESSORS = {"ResNet-50": (2,), "a small network": (2,), "MobileNetV3": (2, 4, 8), "EfficientNet-B0": (2, 4, 8)}
DALI = "ResNet-50"
STANDARD, SHARE = "standard", "fuse, share "
# Seconds that a process may take.
LONGEST = 480


def measure(quick, only="", photographs=None):
  """Yields the sections."""
  with tempfile.TemporaryDirectory(prefix="refurbish-gpu-") as directory:
    kept = functools.cache(lambda side: _kept(directory, quick, photographs, side))
    # What JAX has compiled for one process serves the next.
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(directory, "compiled")))
    run = lambda settings: _results(settings, quick, {"JAX_COMPILATION_CACHE_DIR": cache})
    training = lambda title, name, part="fit": lambda: _training(title, name, part, quick, kept, run)
    finish, dali = "Finish by itself", f"DALI's pipeline for GPUs, {DALI}"
    # The others would be no different there.
    names = list(MODELS)[:2] if quick else MODELS
    titles = {title: training(title, name) for name in names for title in [f"Keras' fit, {name}"]}
    titles |= {finish: lambda: _finish(finish, quick, run), dali: training(dali, DALI, "fit_from_dali")}
    chosen = {title: section for title, section in titles.items() if only.lower() in title.lower()}
    if not chosen:
      sys.exit(f"gpu --only {only!r}: no section has these words in its title. There are: {'; '.join(titles)}.")
    sections = []
    for title, section in chosen.items():
      common.say(title)
      sections.append(section())
      yield sections[-1]
    if not any(row.values for measured in sections for row in measured.rows):
      sys.exit("gpu: nothing could be measured; what the processes said stands in the tables.")


def _kept(directory, quick, photographs, side):
  """The path of a file with the images that are trained on, for the processes to read, and the images in words."""
  if side == 32:
    count = 64 if quick else 16384
    images, whence = np.random.default_rng(7).integers(0, 256, [count, 32, 32, 3], np.uint8), f"{count:,} images of random bytes"
  elif photographs:
    images, whence = samples.of_folder(photographs)
  else:
    images, whence = samples.photographs(16 if quick else 4096)
  path = pathlib.Path(directory, str(side))
  path.write_bytes(pickle.dumps(images))
  return path, whence


def _training(title, name, part, quick, kept, run):
  model, side, batch = MODELS[name]
  path, whence = kept(side)
  settings = {"part": part, "model": model, "side": side, "batch": batch, "images": str(path),
              "steps": 100 if side == 32 else 30, "rounds": 3, "is_quick": quick}
  if quick:
    settings.update(model="small", side=32, batch=8, steps=2, rounds=1)
  everything = len(os.sched_getaffinity(0))
  numbers = [*(number for number in PROCESSORS[name] if number < everything and not quick), everything]
  rows = []
  # All of them first, with which compiling takes the least.
  for number in reversed(numbers):
    device, results, failed = run({"processors": number, **settings})
    if failed:
      results.append({"way": f"the next: failed: {failed}", "batch": batch, "steps": []})
    rows = _rows(results, number) + rows
  return common.Section(
      title,
      f"{device}. {whence}, in memory, to {side}x{side}, batches of {batch}, two RandAugment operations at magnitude 9, crop, "
      "flip and normalize; without fuse these three on whole batches. The model computes in bfloat16. Of each way "
      f"{settings['rounds']} times {settings['steps']} steps by the clock, once its first batches are behind it. A step by "
      "itself: with one batch over and over, which the host sends each time. Processors at work: those that the whole process "
      "kept busy. GPU memory: the most allocated until then, by this way or one above it.", rows)


def _rows(results, processors):
  seconds = {result["way"]: result["steps"] for result in results}
  rows = []
  for result in results:
    way, key = result["way"], f"{result['way']}, {processors}"
    rows.append(common.Row(f"{key}, images", way, f"images/s, {processors} processors",
                           [result["batch"] / each for each in result["steps"]]))
    if seconds.get(STANDARD) and result["steps"]:
      rows.append(common.Row(f"{key}, gain", way, f"over standard, {processors} processors",
                             common.quotients(seconds[STANDARD], result["steps"])))
    zero = way.partition(SHARE)[0] + SHARE + "0"
    if SHARE in way and way != zero and zero in seconds:
      rows.append(common.Row(f"{key}, over share 0", way, f"over share 0, {processors} processors",
                             common.quotients(seconds[zero], result["steps"])))
    if result.get("alone"):
      rows.append(common.Row(f"{key}, alone", way, f"a step by itself, ms, {processors} processors",
                             [1e3 * each for each in result["alone"]]))
    if "processors" in result:
      rows.append(common.Row(f"{key}, busy", way, f"at work of {processors} processors", [result["processors"]]))
    if result.get("peak"):
      rows.append(common.Row(f"{key}, memory", way, f"GPU memory, GB, {processors} processors", [result["peak"] / 1e9]))
  return rows


def _finish(title, quick, run):
  rows = []
  for side, batch in ((32, 8),) if quick else ((224, 128), (32, 512)):
    device, results, failed = run({
        "part": "finish", "processors": len(os.sched_getaffinity(0)), "side": side, "batch": batch, "calls": 2 if quick else 50,
        "rounds": common.rounds(quick, 5)})
    if failed:
      results.append({"case": f"the next: failed: {failed}", "calls": []})
    rows += [common.Row(f"{result['case']}, {side}", result["case"], f"µs a batch of {batch} at {side}x{side}",
                        [1e6 * each for each in result["calls"]]) for result in results]
  return common.Section(
      title, f"{device}. Jitted, of batches that lie on the device, by the clock: calls one after the other, and the host waits "
      "for the last. In TensorFlow Keras' RandAugment is not compiled, as XLA does not take it.", rows)


def _results(settings, quick, environment):
  """Of a process: its device, what it told, and None or why it ended before its end."""
  common.say(f"{settings['part']}, {settings.get('model', '')}, {settings['processors']} processors")
  with tempfile.TemporaryFile("w+") as errors:
    process = subprocess.Popen(
        [sys.executable, str(TRAINING), json.dumps(settings)], stdout=subprocess.PIPE, stderr=errors, text=True,
        env={**environment, **common.environment()})
    watch = threading.Timer(LONGEST, process.kill)
    watch.daemon = True  # It must not keep this program waiting.
    watch.start()
    lines = []
    with process:
      for line in process.stdout:
        lines.append(json.loads(line))
        if len(lines) == 1 and lines[0]["device"] == "cpu" and not quick:
          process.kill()
          sys.exit(f"gpu: Keras on {lines[0]['backend']} finds no GPU here. KERAS_BACKEND chooses between tensorflow and jax; "
                   "--quick runs all of it on the CPU, on little data.")
        common.say(line.strip())
    timed_out = not watch.is_alive()
    watch.cancel()
    errors.seek(0)
    last = common.last_line(errors.read())
  why = None
  if process.returncode:
    why = f"took longer than {LONGEST} s" if timed_out else last
  device = f"{lines[0]['device']}, {lines[0]['backend']}" if lines else "unknown"
  return device, lines[1:], why


