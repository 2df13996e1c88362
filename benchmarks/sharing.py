"""What training jobs save by sharing a cache store on disk (OneAccess: Kakaraparthi et al., HotCloud 2019).

Each job is its own process, with the same functions, `r` and `seed`, and a different `order_seed`. The jobs run at the
same time on the cores of this machine, without a model. `--only` selects a section.
"""

import importlib.util
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

import common
import samples
import sharing_jobs
import tensorflow as tf

import refurbish_tf as rtf

# Seconds of a step.
STEP = 0.02
PHASES = "At random phases, paced"
# When each job of a cell begins, in epochs of the first job; and its stores: pairs of r and the fraction of samples
# that is kept.
CELLS = (
  ((0, 0.5), ((1, 0),)),
  ((0, 0.13, 0.47, 0.8), ((1, 0), (2, 1 / 4))),
  ((0, 0.09, 0.3, 0.36, 0.53, 0.64, 0.81, 0.92), ((1, 0),)),
)
# The bar for the calls.
LIMIT = 1.1
PHOTOGRAPHS = "Photographs, r = 1, nothing kept, input-bound"
JOBS, SIDE, PHOTOGRAPHS_BATCH = 4, 224, 32
# How many samples fit into the ring: at least twice as many as all jobs prepare at the same time.
ROOM = 256
APART, TOGETHER = "apart", "together"
# By name: the role of the jobs, and whether there is a producer.
LOADERS = {"DataLoader, apart": ("alone", False), "DataLoader, TensorSocket": ("consumer", True)}


def measure(quick, only=""):
  """Yields the sections whose title contains `only`."""
  sections = {PHASES: cells, PHOTOGRAPHS: photographs}
  for title, section in sections.items():
    if only.lower() in title.lower():
      common.say(title)
      yield section(quick)


def cells(quick):
  """Measures the jobs that begin at random phases. Returns their section."""
  n, laps = (512, 2) if quick else (10_000, 5)
  rows = []
  for starts, stores in CELLS:
    for r, share in stores[-1:] if quick else stores:
      measured = sharing_jobs.measure(sharing_jobs.Cell(starts, r, share, n, laps, STEP))
      name = f"{len(starts)} at random phases, r = {r}, {share:g} kept"
      of_cell = [
        common.Row(common.key(f"phases {len(starts)} r{r} {share:g} {what}"), name, what, [figure], limit)
        for what, figure, limit in (
          ("calls", measured.calls, LIMIT),
          ("images/s", measured.images_per_second, None),
          ("wait, ms", 1000 * measured.longest_wait, None),
          ("pairs", measured.pairs, None),
        )
        if figure is not None
      ]  # `measured.pairs` is None without two epochs.
      common.say("  ".join([name, *map(str, of_cell)]))
      rows += of_cell
  return common.Section(
    PHASES,
    f"Jobs on one store, {n:,} samples, steps of {sharing_jobs.BATCH}, {laps} epochs of the first job while all run. "
    "The store has room for the kept share and the ring; with r = 1 all of it is the ring. Calls of partial_fn by all "
    "jobs, divided by the calls that the fastest would make alone in that time; images per second of all jobs; the "
    "longest wait of a step that is not an epoch's first; pairs that share a batch again in the next epoch, "
    f"relative to a uniform shuffle. A step takes {1000 * STEP:.0f} ms, as on an accelerator.",
    rows,
    lambda row: row.unit != "images/s",
  )


def photographs(quick):
  """Measures jobs on photographs: together on one store, apart, and with DataLoaders. Returns the section."""
  files, whence = samples.photographs(64 if quick else 1500)
  epochs, room = (2, 32) if quick else (4, ROOM)
  found = {APART: [], TOGETHER: [], **{way: [] for way in LOADERS}}
  has_tensorsocket = all(map(importlib.util.find_spec, ("tensorsocket", "torch", "torchvision")))
  with tempfile.TemporaryDirectory(prefix="refurbish-sharing-") as path:
    path = pathlib.Path(path)
    (path / "files").write_bytes(pickle.dumps(files))
    size = sharing_jobs.record_bytes(tf.zeros([SIDE, SIDE, 3], tf.uint8), path / "record")
    for number in range(common.rounds(quick, 3)):
      for way, jobs in found.items():
        if way not in LOADERS:
          jobs.append(_run(path / f"{way}-{number}", path / "files", epochs, room * size if way == TOGETHER else None))
        elif has_tensorsocket:
          jobs += _run_loaders(path / f"loaders-{number}", path / "files", epochs, *LOADERS[way])
  speed = {way: [_images_per_second(jobs) for jobs in rounds] for way, rounds in found.items()}

  calls = [sum(job["fresh"] for job in jobs) / len(files) / epochs for jobs in found[TOGETHER]]
  return common.Section(
    PHOTOGRAPHS,
    f"{whence}. partial_fn is decode_random_resized_crop({SIDE}) and rand_augment(), final_fn random_crop(padding=4), "
    f"random_flip() and normalize(), batches of {PHOTOGRAPHS_BATCH}, {JOBS} jobs on all cores, {epochs} epochs. "
    f"Together: on one store with room for {room} of them; apart: each in memory. DataLoaders crop and use "
    "RandAugment from torchvision, and yield uint8; a job has one process, and TensorSocket 0.0.5 two for all jobs, "
    "which get the same batches. Images per second: the images that one job gets.",
    [
      *(
        common.Row(
          f"photographs_{common.key(way)}",
          way + ("" if values else ": failed" if has_tensorsocket else ": not installed"),
          "images/s",
          values,
        )
        for way, values in speed.items()
      ),
      *(
        common.Row(
          f"photographs_{common.key(way)}_handed",
          way,
          "of the images handed out",
          [sum(count for _, count in job["batches"]) / len(files) / epochs for jobs in found[way] for job in jobs],
        )
        for way in LOADERS
        if found[way]
      ),
      *(
        common.Row(
          "photographs_tensorsocket_gain",
          "TensorSocket over DataLoader",
          "",
          common.quotients(*(speed[way] for way in reversed(LOADERS))),
        )
        for _ in range(all(len(jobs) == len(found[APART]) for jobs in found.values()))
      ),
      common.Row("photographs_gain", "together over apart", "", common.quotients(speed[TOGETHER], speed[APART])),
      common.Row("photographs_calls", "calls of all, over those of one alone", "", calls),
    ],
    lambda row: row.unit != "of the images handed out",
  )


def _run_loaders(path, files, epochs, role, has_producer):
  """Runs the jobs with PyTorch's DataLoader. Returns their batches, or an empty list if a job got none."""
  path.mkdir(exist_ok=True)
  script = pathlib.Path(__file__).parent / "peer_pipelines" / "with_tensorsocket.py"
  processes = [
    subprocess.Popen(
      [sys.executable, script, each, str(JOBS), files, str(epochs), path / f"{k}.json"],
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    for k, each in enumerate([role] * JOBS + ["producer"] * has_producer)
  ]
  try:
    # Waits for the producer alone if there is one, because a consumer whose producer has ended never returns.
    ended = [process.wait(sharing_jobs.PATIENCE) for process in (processes[JOBS:] or processes)]
    if any(ended):
      common.say(f"The jobs with DataLoaders ended with {ended}.")
      return []
    time.sleep(10 * has_producer)  # The consumers may still be reading what was sent.
  finally:
    for process in processes:
      process.kill()
      process.wait()
  outputs = [path / f"{k}.json" for k in range(JOBS)]
  return [[json.loads(output.read_text()) for output in outputs]] if all(map(pathlib.Path.exists, outputs)) else []


def _run(path, files, epochs, max_bytes):
  path.mkdir()
  sharing_jobs.run(_photographs_job, JOBS, path, files, epochs, max_bytes)
  return [json.loads((path / f"{k}.json").read_text()) for k in range(JOBS)]


def _images_per_second(jobs):
  """Images per second of all jobs, while all of them run."""
  begin, end = max(job["began"] for job in jobs), min(job["batches"][-1][0] for job in jobs)
  return sum(count for job in jobs for when, count in job["batches"] if begin < when <= end) / (end - begin)


def _photographs_job(k, barrier, path, files, epochs, max_bytes):
  layers = (
    [rtf.augment.decode_random_resized_crop(SIDE), *rtf.augment.rand_augment()],
    [rtf.augment.random_crop(padding=4), rtf.augment.random_flip(), rtf.augment.normalize()],
  )
  dataset = (
    tf.data.Dataset.from_tensor_slices(pickle.loads(files.read_bytes()))
    .refurbish(
      *layers, r=1, seed=1, order_seed=k, store=max_bytes and rtf.CacheStore(path / "store", max_bytes=max_bytes)
    )
    .batch(PHOTOGRAPHS_BATCH)
  )
  barrier.wait()
  batches, began = [], time.monotonic()
  for _ in range(epochs):
    for batch in dataset:
      batches.append((time.monotonic(), len(batch)))
  (path / f"{k}.json").write_text(
    json.dumps({"began": began, "batches": batches, "fresh": rtf.stats(dataset)[0].total.fresh})
  )
