"""Transforms in Python, called by processes, beside plain tf.data and PyTorch's DataLoader with as many workers.

The DataLoader is left out where torch is not installed.
"""
import concurrent.futures
import importlib.util
import multiprocessing
import os
import pathlib
import resource
import time

import common
import numpy as np
import tensorflow as tf

from refurbish_tf import augment

SHAPE = (224, 224, 3)
PROCESSES = 2
# Milliseconds of a call, and how many images make a round of some seconds.
COSTS = {1: 1_500, 10: 300, 200: 24}
HERE, HERE_3, PLAIN, LOADER = "numpy_layer, r = 1", "numpy_layer, r = 3, from the second epoch on", "numpy_function", "DataLoader"


def measure(quick):
  """Yields the sections."""
  yield _clock(quick)
  yield _way(quick)


class Work:
  """Pure Python for so many milliseconds, which it has measured, then NumPy: a transform as Python has them."""

  def __init__(self, milliseconds):
    self.steps = 1
    while milliseconds and _seconds_of(self._loop) < milliseconds / 1e3 / 1.5:
      self.steps = int(self.steps * 1.5) + 1

  def _loop(self):
    total = 0
    for step in range(self.steps):
      total += step & 3
    return total

  def __call__(self, image, rng=None):
    self._loop()
    return np.ascontiguousarray(image[::-1] if rng is not None and rng.random() < 0.5 else image)


def _seconds_of(call):
  began = time.process_time()
  call()
  return time.process_time() - began


def _clock(quick):
  """Images by the clock."""
  rows = []
  for cost, count in COSTS.items():
    common.say(f"{cost} ms")
    count = 6 if quick else count
    images = np.random.default_rng(7).integers(0, 256, [count, *SHAPE], np.uint8)
    work = Work(0 if quick else cost)
    source = tf.data.Dataset.from_tensor_slices(images)
    layer = augment.numpy_layer(work, tf.TensorSpec(SHAPE, tf.uint8), processes=PROCESSES)
    plain = source.map(
        lambda image, work=work: tf.ensure_shape(tf.numpy_function(work, [image], tf.uint8), SHAPE), common.PARALLEL_CALLS)
    candidates = {
        PLAIN: _epoch_of(plain), HERE: _epoch_of(source.refurbish([layer], None, r=1, seed=7)),
        HERE_3: _epoch_of(source.refurbish([layer], None, r=3, seed=7))}
    if importlib.util.find_spec("torch"):
      candidates[LOADER] = _data_loader(images, work)
    rounds = common.rounds(quick, 5)
    measured, memory = {name: [] for name in candidates}, {name: [] for name in candidates}
    for epoch in candidates.values():  # Starts what there is to start, and fills the store.
      epoch()
    for number in range(rounds):
      for name in sorted(candidates, key=lambda name, number=number: hash((name, number))):
        if name in (HERE, HERE_3):
          # The processes have ended meanwhile, as they were not asked. Those of the DataLoader live on.
          _epoch_of(source.take(2 * PROCESSES).map(lambda image, layer=layer: layer(image, seed=[7, 0]), 2 * PROCESSES))()
        measured[name].append(_used_by(candidates[name]))
        if name != PLAIN:
          memory[name].append(_memory(is_ours=name != LOADER))
    for name, values in measured.items():
      # Of those that still live.
      rows.append(common.Row(f"{cost}ms_{name}_memory", f"{cost} ms: {name}", "MB of its processes", memory[name]))
      rows += [
          common.Row(f"{cost}ms_{name}", f"{cost} ms: {name}", "images/s", [count / clock for clock, _ in values]),
          common.Row(f"{cost}ms_{name}_cpu", f"{cost} ms: {name}", "CPU ms an image", [cpu / count * 1e3 for _, cpu in values])]
    clocks = {name: [clock for clock, _ in values] for name, values in measured.items()}
    bars = {10: [(HERE, PLAIN, 1 / 1.8), (HERE, LOADER, 1 / 0.95)], 200: [(HERE_3, HERE, 1 / 2.7)]}
    for name, beside, limit in bars.get(cost, []):
      rows.append(common.Row(
          f"{cost}ms_{name}_of_{beside}", f"{cost} ms: {name}" + ("" if beside in clocks else ": torch is not installed"),
          f"time, of {beside}", common.quotients(clocks[name], clocks[beside]) if beside in clocks else [], limit=limit))
  layer(np.zeros(SHAPE, np.uint8), seed=[7, 0])
  rows.append(common.Row("memory", "a process of numpy_layer", "MB", [_memory(is_ours=True, together=max)], limit=60))
  return common.Section(
      "Functions in Python", f"Images of uint8 {list(SHAPE)}, {PROCESSES} processes, {len(os.sched_getaffinity(0))} processors. CPU time is "
      "that of all processes.", rows)


def _epoch_of(dataset):
  def epoch():
    for _ in dataset:
      pass
  return epoch


def _repeated(call, count):
  def calls():
    for _ in range(count):
      call()
  return calls


def _data_loader(images, work):
  import torch

  class Images(torch.utils.data.Dataset):

    def __len__(self):
      return len(images)

    def __getitem__(self, index):
      return work(images[index], np.random.default_rng(index))

  loader = torch.utils.data.DataLoader(
      Images(), batch_size=None, num_workers=PROCESSES, persistent_workers=True, multiprocessing_context="fork")
  return _epoch_of(loader)


def _used_by(epoch):
  """Seconds by the clock, and CPU seconds of this process and those that it has started."""
  began, cpu = time.perf_counter(), _cpu()
  epoch()
  return time.perf_counter() - began, _cpu() - cpu


def _cpu():
  # Those that have ended, too.
  used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(each.ru_utime + each.ru_stime for each in used) + sum(_cpu_of(child) for child in _children())


def _children():
  return [int(child) for task in pathlib.Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]


def _cpu_of(process):
  try:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
  except OSError:
    return 0
  return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(is_ours, together=sum):
  """MB of processes, of shared pages their share: those that call functions for us, or the others."""
  sizes = []
  for child in _children():
    try:
      if (b"worker.py" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()) == is_ours:
        sizes.append(int(pathlib.Path(f"/proc/{child}/smaps_rollup").read_text().split("Pss:")[1].split()[0]) / 1e3)
    except OSError:
      pass  # It has just ended.
  return together(sizes or [0])


def _identity(image, rng=None):
  return image


def _way(quick):
  """The way there and back."""
  common.say("the way")
  count = 20 if quick else 2_000
  image = np.random.default_rng(7).integers(0, 256, SHAPE, np.uint8)
  repeated = tf.data.Dataset.from_tensors(image).repeat(count)
  layer = augment.numpy_layer(_identity, tf.TensorSpec(SHAPE, tf.uint8), processes=1)
  executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

  def by_executor(image):
    return executor.submit(_identity, image).result()

  sent = layer.sent()
  calls = {
      "numpy_layer": _repeated(lambda: layer.call(sent, (7, 0), None, [image]), count),
      "the standard library's pool": _repeated(lambda: by_executor(image), count),
      "map of numpy_layer": _epoch_of(repeated.map(lambda image: layer(image, seed=[7, 0]))),
      "map of the standard library's pool": _epoch_of(repeated.map(lambda image: tf.numpy_function(by_executor, [image], tf.uint8))),
      "map of numpy_function alone": _epoch_of(repeated.map(lambda image: tf.numpy_function(_identity, [image], tf.uint8)))}
  measured = {name: [] for name in calls}
  for epoch in calls.values():
    epoch()
  for _ in range(common.rounds(quick, 7)):
    for name, epoch in calls.items():
      measured[name].append(_used_by(epoch)[1] / count * 1e6)
  executor.shutdown()
  rows = [common.Row(f"way_{name}", name, "CPU µs an image", values, limit=300 if name == "numpy_layer" else None)
          for name, values in measured.items()]
  return common.Section(
      "The way to a process and back", f"An identity function, images of uint8 {list(SHAPE)}, 150 kB, one at a time. CPU time of both "
      "sides; `map` with what TensorFlow does around a function in Python.", rows)
