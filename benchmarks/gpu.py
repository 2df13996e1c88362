"""Images per second on a machine with a GPU: Keras trainings with and without `offload`, and loaders for PyTorch and
JAX.

`KERAS_BACKEND` selects Keras' backend, TensorFlow or JAX.
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
import time

import common
import numpy as np
import samples

TRAINING = pathlib.Path(__file__).resolve().parent / "gpu_training.py"
# By name: Keras' model, the side of its images, and the batch size.
MODELS = {"ResNet-50": ("ResNet50", 224, 128), "a small network": ("small", 32, 512)}
# The steps of an epoch. The images are repeated to fill them.
STEPS = 100
# Trainings are measured with all cores, and with this number of cores.
FEW = 4
STANDARD, SHARE = "plain", "offload, share "
FRAMEWORKS = ("torch", "jax")
# The most seconds that a process may take.
LONGEST = 480


def measure(quick, only="", photographs=None, minutes=None):
  """Yields the sections. With `minutes`, yields only the most important ones, without figures from processes that do
  not end in time."""
  with tempfile.TemporaryDirectory(prefix="refurbish-gpu-") as directory:
    kept = functools.cache(lambda side: _kept(directory, quick, photographs, side))
    # JAX stores what it compiles here, so that later processes need not compile it again.
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(directory, "compiled")))
    rounds = 3 if minutes is None else 2
    titles = {f"Keras' fit, {name}": functools.partial(_fit, name, "reuse", rounds) for name in MODELS}
    titles |= {"Loaders to the GPU": functools.partial(_load, rounds)}
    if minutes is None:
      titles |= {
        f"RandAugment at every use, {name}": functools.partial(_fit, name, "policies", rounds) for name in MODELS
      }
      titles |= {"Offloaded by itself": _finish}
    chosen = {title: section for title, section in titles.items() if only.lower() in title.lower()}
    if not chosen:
      sys.exit(f"gpu --only {only!r}: no section has these words in its title. There are: {'; '.join(titles)}.")
    budget = (
      None if minutes is None else Budget(60 * minutes, [share for title in chosen for share in _shares(title, quick)])
    )
    run = lambda settings: _results(settings, quick, {"JAX_COMPILATION_CACHE_DIR": cache}, budget)
    sections = []
    for title, section in chosen.items():
      common.say(title)
      sections.append(section(title, quick, kept, run))
      yield sections[-1]
    if not any(row.values for measured in sections for row in measured.rows):
      sys.exit("gpu: nothing could be measured; the tables contain the errors of the processes.")


class Budget:
  """Divides seconds among processes, so that a slow process leaves enough for the next ones."""

  def __init__(self, seconds, shares, clock=time.monotonic):
    self._end, self._clock, self._shares = clock() + seconds, clock, list(shares)

  def next(self):
    """Seconds for the next process. Later processes also get the time that it does not use."""
    share, total = self._shares[0], sum(self._shares)
    del self._shares[0]
    return max(0.0, self._end - self._clock()) * share / total


def _shares(title, quick):
  """The weights by which the processes of a section divide its seconds. ResNet-50 needs three times as many seconds."""
  return [3 if "ResNet" in title else 1] * (len(FRAMEWORKS) if "Loaders" in title else len(_processors(quick)))


def _processors(quick):
  """The numbers of cores to measure with. All cores come first, because compiling is then fastest."""
  everything = len(os.sched_getaffinity(0))
  return [everything, FEW] if FEW < everything and not quick else [everything]


def _kept(directory, quick, photographs, side):
  """Writes the training images into a file for the processes. Returns its path, and the images in words."""
  if side == 32:
    count = 64 if quick else 16384
    images, whence = (
      np.random.default_rng(7).integers(0, 256, [count, 32, 32, 3], np.uint8),
      f"{count:,} images of random bytes",
    )
  elif photographs:
    images, whence = samples.of_folder(photographs)
  else:
    images, whence = samples.photographs(16 if quick else 4096)
  path = pathlib.Path(directory, str(side))
  path.write_bytes(pickle.dumps(images))
  return path, whence


def _settings(name, quick, path, rounds):
  model, side, batch = MODELS[name]
  small = dict(model="small", side=32, batch=8, steps=2, rounds=1) if quick else {}
  return {"model": model, "side": side, "batch": batch, "images": str(path), "steps": STEPS, "rounds": rounds, **small}


def _fit(name, ways, rounds, title, quick, kept, run):
  path, whence = kept(MODELS[name][1])
  settings = {**_settings(name, quick, path, rounds), "ways": ways}
  rows = []
  for number in _processors(quick):
    device, results = run({"part": "fit", "processors": number, "alone": rounds > 2, **settings})
    rows += _rows(results, number, settings["batch"])
  return common.Section(
    title,
    f"{device}. {whence}, in memory, to {settings['side']}x{settings['side']}, batches of {settings['batch']}, two "
    "RandAugment operations at magnitude 9, crop, flip and normalize; without offload, the last three run on whole "
    f"batches. The images are repeated until an epoch has {settings['steps']} steps. The model computes in bfloat16. "
    f"Wall-clock time of {settings['rounds']} epochs of each pipeline, after a first one, which fills the caches. A "
    "step by itself, measured without --minutes: with the same batch again and again, which the host sends each time. "
    "CPU cores at work: cores that the whole process kept busy.",
    rows,
  )


def _rows(results, processors, batch):
  seconds = {result["way"]: result["steps"] for result in results}
  rows = []
  for result in results:
    way, steps, key = result["way"], result["steps"], f"{result['way']}, {processors}"
    row = lambda what, unit, values, way=way, key=key: rows.append(
      common.Row(f"{key}, {what}", way, f"{unit}, {processors} CPU cores", values)
    )
    row("images", "images/s", [batch / each for each in steps])
    for what, baseline in ((f"over {STANDARD}", STANDARD), ("over share 0", way.partition(SHARE)[0] + SHARE + "0")):
      if seconds.get(baseline) and steps and way != baseline and (baseline == STANDARD or SHARE in way):
        row(what, what, common.quotients(seconds[baseline], steps))
    if result.get("alone"):
      row("alone", "a step by itself, ms", [1e3 * each for each in result["alone"]])
    if steps:
      row("busy", "at work", [result["processors"]])
    if result.get("peak"):
      row("memory", "GPU memory, GB", [result["peak"] / 1e9])
  return rows


def _load(rounds, title, quick, kept, run):
  path, whence = kept(224)
  settings = _settings("ResNet-50", quick, path, rounds)
  rows = []
  for framework in FRAMEWORKS:
    device, results = run(
      {"part": "load", "framework": framework, "processors": len(os.sched_getaffinity(0)), **settings}
    )
    for result in results:
      loader = f"rtf.{framework}_loader"
      name = f"{loader}: {result['way']}"
      rows.append(
        common.Row(
          f"{framework}, {result['way']}", name, "images/s", [settings["batch"] / each for each in result["steps"]]
        )
      )
      if "same" in result:
        rows.append(
          common.Row(f"{framework}, {result['way']}, same", name, "batches equal to the CPU's", [result["same"]])
        )
  return common.Section(
    title,
    f"{device}. {whence}, as for ResNet-50 with r = 3, without a model: batches of {settings['batch']}, "
    f"{settings['steps']} in an epoch, uint8. Wall-clock time of {settings['rounds']} epochs after a first one. Both "
    "pipelines have the same seed, and each batch of an epoch is compared with the one that the CPU reads.",
    rows,
  )


def _finish(title, quick, kept, run):
  rows = []
  for side, batch in ((32, 8),) if quick else ((224, 128), (32, 512)):
    device, results = run(
      {
        "part": "finish",
        "processors": len(os.sched_getaffinity(0)),
        "side": side,
        "batch": batch,
        "calls": 2 if quick else 50,
        "rounds": common.rounds(quick, 5),
      }
    )
    rows += [
      common.Row(
        f"{result['way']}, {side}",
        result["way"],
        f"µs a batch of {batch} at {side}x{side}",
        [1e6 * each for each in result["steps"]],
      )
      for result in results
    ]
  return common.Section(
    title,
    f"{device}. Wall-clock time of jitted calls on batches on the device: calls one after the other, and the host "
    "waits for the last. In TensorFlow, Keras' RandAugment is not compiled, because XLA does not support it.",
    rows,
  )


def _results(settings, quick, environment, budget):
  """Runs a process. Returns its device and its results. If it ended early, the last result says why and has no
  steps."""
  left = LONGEST if budget is None else budget.next()
  if left < 10:
    return "not started", [{"way": "not measured: no time was left", "steps": []}]
  common.say(f"{settings['part']}, {settings.get('model', '')}, {settings['processors']} CPU cores")
  with tempfile.TemporaryFile("w+") as errors:
    process = subprocess.Popen(
      [sys.executable, str(TRAINING), json.dumps(settings)],
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
      env={**environment, **common.environment()},
    )
    watch = threading.Timer(left, process.kill)
    watch.daemon = True  # The timer must not keep this program from exiting.
    watch.start()
    lines = []
    with process:
      for line in process.stdout:
        lines.append(json.loads(line))
        if len(lines) == 1 and lines[0]["device"] == "cpu" and not quick:
          process.kill()
          sys.exit(
            f"gpu: {lines[0]['backend']} finds no GPU here. KERAS_BACKEND chooses between tensorflow and jax; "
            "--quick runs all of it on the CPU, on little data."
          )
        common.say(line.strip())
    timed_out = not watch.is_alive()
    watch.cancel()
    errors.seek(0)
    last = common.last_line(errors.read())
  device = f"{lines[0]['device']}, {lines[0]['backend']}" if lines else "unknown"
  results = lines[1:]
  if process.returncode:
    why = f"stopped after {left:.0f} s" if timed_out else f"failed: {last}"
    results.append({"way": f"the next: {why}", "steps": []})
  return device, results
