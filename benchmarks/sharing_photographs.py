"""Photographs for jobs that share a store with r = 1, where nothing is kept, for `sharing`."""
import json
import os
import pathlib
import pickle
import re
import statistics
import time

import common
import samples
import sharing_jobs
import tensorflow as tf

import refurbish_tf as rtf

TITLE = "Photographs, r = 1, nothing kept, input-bound"
JOBS, SIDE, BATCH = 4, 224, 32
# The ring, in samples: at least twice what all have under way.
ROOM = 256
# As often as training ever uses a sample: from the second epoch on all are hits.
ONLY_HITS = 10**6
# Ways to run the jobs. All prepare in the first epoch.
APART, IN_MEMORY, ON_DISK, TOGETHER = "apart", "in memory", "on disk", "together"
LEAST_OF_BOUND = 0.85


def section(quick):
  """Images a second with sharing, beside those without and the bound."""
  files, whence = samples.photographs(64 if quick else 1500)
  epochs, room = (2, 32) if quick else (4, ROOM)
  rounds, parts = [], {"t_p": [], "t_f": [], "t_store": []}
  written, put = [], []
  with sharing_jobs.directory() as path:
    (path / "files").write_bytes(pickle.dumps(files))
    size = sharing_jobs.record_bytes(tf.zeros([SIDE, SIDE, 3], tf.uint8), path / "record")
    for number in range(common.rounds(quick, 3)):
      took = {way: _run(path / f"{way}-{number}", path / "files", way, epochs, room * size)
              for way in (APART, IN_MEMORY, ON_DISK, TOGETHER)}
      of_final = took[IN_MEMORY]["later"]["cpu"]
      of_partial = took[APART]["all"]["cpu"] - of_final
      # Of four uses one puts and three get.
      of_put, of_get = (took[ON_DISK][epoch]["cpu"] - took[without][epoch]["cpu"]
                        for epoch, without in (("first", APART), ("later", IN_MEMORY)))
      of_store = (of_put + (JOBS - 1) * of_get) / JOBS
      bound = JOBS * (of_partial + of_final) / (of_partial + JOBS * (of_final + of_store))
      gain = took[TOGETHER]["all"]["images"] / took[APART]["all"]["images"]
      rounds.append((took, bound, gain))
      for name, seconds in zip(parts, (of_partial, of_final, of_store)):
        parts[name].append(1e6 * seconds)
      together = took[TOGETHER]["jobs"]
      written.append(sum(job["written"] for job in together) / epochs / 1e6)
      put.append(sum(job["fresh"] for job in together) * size / epochs / 1e6)
  calls = [sum(job["fresh"] for job in took[TOGETHER]["jobs"]) / (epochs * len(files)) for took, *_ in rounds]
  return common.Section(
      TITLE,
      f"{whence}. partial_fn is decode_and_crop({SIDE}) and rand_augment(), final_fn random_crop(4), random_flip() and "
      f"normalize(), batches of {BATCH}, {JOBS} jobs on all cores, {epochs} epochs. Together: on one store with room for "
      f"{room} of them; apart: each in memory. t_p and t_f: CPU time of preparing and of finishing, t_store: of a fourth of a "
      "put and three fourths of a get, of which each is measured as the difference between stages, by four jobs at once. The "
      "bound is 4 (t_p + t_f) / (t_p + 4 (t_f + t_store)). A limit of 1.176 is 0.85 of it.",
      [common.Row("photographs_together", "Together", "images/s", [took[TOGETHER]["all"]["images"] for took, *_ in rounds]),
       common.Row("photographs_apart", "Apart", "images/s", [took[APART]["all"]["images"] for took, *_ in rounds]),
       *(common.Row(f"photographs_{name}", name, "µs of CPU an image", values) for name, values in parts.items()),
       common.Row("photographs_gain", "Together over apart", "", [gain for *_, gain in rounds]),
       common.Row("photographs_most", "The bound", "", [bound for _, bound, _ in rounds]),
       common.Row("photographs_bound", "The bound over the gain", "", [bound / gain for _, bound, gain in rounds],
                  limit=round(1 / LEAST_OF_BOUND, 3)),
       common.Row("photographs_calls", "Calls of all, over those of one alone", "", calls),
       common.Row("photographs_written", "Written to the device, by all", "MB an epoch", written),
       common.Row("photographs_put", "Records of what all prepared", "MB an epoch", put)])


def _run(path, files, way, epochs, max_bytes):
  path.mkdir()
  sharing_jobs.run(_job, JOBS, path, files, way, epochs, max_bytes)
  jobs = [json.loads((path / f"{k}.json").read_text()) for k in range(JOBS)]
  return {"jobs": jobs, "first": _rates(jobs, 0, 1), "later": _rates(jobs, 1, epochs), "all": _rates(jobs, 0, epochs)}


def _rates(jobs, first, last):
  """Images a second of all jobs, and the median of their seconds of CPU time an image, in these epochs.

  The images are those of the time in which all are in these epochs.
  """
  spans = [(job["marks"][first], job["marks"][last]) for job in jobs]
  begin, end = max(begin["when"] for begin, _ in spans), min(end["when"] for _, end in spans)
  images = sum(count for job in jobs for when, count in job["batches"] if begin < when <= end)
  cpu = statistics.median(
      (after["cpu"] - before["cpu"]) / (after["images"] - before["images"]) for before, after in spans)
  return {"images": images / (end - begin) if end > begin else float("nan"), "cpu": cpu}


def _job(k, barrier, path, files, way, epochs, max_bytes):
  layers = ([rtf.augment.decode_and_crop(SIDE), *rtf.augment.rand_augment()],
            [rtf.augment.random_crop(4), rtf.augment.random_flip(), rtf.augment.normalize()])
  stores = {
      APART: lambda: None,
      IN_MEMORY: lambda: None,
      ON_DISK: lambda: rtf.CacheStore(path / f"store-{k}"),
      TOGETHER: lambda: rtf.CacheStore(path / "store", max_bytes=max_bytes)}
  dataset = tf.data.Dataset.from_tensor_slices(pickle.loads(files.read_bytes())).refurbish(
      *layers, r=ONLY_HITS if way in (IN_MEMORY, ON_DISK) else 1, seed=1, order_seed=k, store=stores[way]()).batch(BATCH)
  barrier.wait()
  images, batches, written = 0, [], _written()

  def mark():
    return {"when": time.monotonic(), "cpu": time.process_time(), "images": images}

  marks = [mark()]
  for _ in range(epochs):
    for batch in dataset:
      images += len(batch)
      batches.append((time.monotonic(), len(batch)))
    marks.append(mark())
  (path / f"{k}.json").write_text(json.dumps({
      "marks": marks, "batches": batches, "written": _written() - written, "fresh": rtf.stats(dataset)[0].total.fresh}))


def _written():
  """Bytes that this process has had written to the device, so far."""
  return int(re.search(r"^write_bytes: (\d+)", pathlib.Path(f"/proc/{os.getpid()}/io").read_text(), re.MULTILINE)[1])
