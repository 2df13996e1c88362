"""What training jobs save by sharing a cache store on disk (OneAccess: Kakaraparthi et al., HotCloud 2019).

Each job is a process of its own, with the same functions, `r` and `seed`, and another `order_seed`. They run side by side
on the cores of this machine, without a model.
"""
import multiprocessing
import os
import shutil
import tempfile
import time

import common
import tensorflow as tf

import refurbish_tf as rtf

JOBS = 4
EPOCHS = 5


def measure(quick):
  """Yields the sections."""
  for section in (jobs,):
    common.say(section.__doc__)
    yield section(quick)


def jobs(quick):
  """Four jobs on one store"""
  count = 512 if quick else 10_000
  rows = []
  for r in (1, 2, 3):
    calls, cpu, cpu_apart = [], [], []
    for _ in range(1 if quick else 3):
      alone, together = _run(1, count, r), _run(JOBS, count, r)
      calls.append(sum(job["calls"] for job in together) / alone[0]["calls"])
      cpu.append(1e6 * sum(job["cpu"] for job in together) / (JOBS * EPOCHS * count))
      cpu_apart.append(1e6 * alone[0]["cpu"] / (EPOCHS * count))
    rows += [
        common.Row(f"cpu_alone_r{r}", f"r = {r}: one job", "µs", cpu_apart),
        common.Row(f"cpu_together_r{r}", f"r = {r}: each of {JOBS} jobs on one store", "µs", cpu),
        common.Row(f"calls_r{r}", f"Calls of partial_fn, r = {r}", "of one job alone", calls, limit=1.1)]
  return common.Section(
      jobs.__doc__,
      f"How often {JOBS} jobs call partial_fn together, against one job alone, over {EPOCHS} epochs of {count:,} images of "
      "32x32, and the CPU time per image and job. partial_fn is rand_augment(), final_fn random_crop(4) and "
      "random_flip(). With a store for each the first would be 4.", rows)


def _run(number, count, r):
  directory = tempfile.mkdtemp(prefix="refurbish-sharing-")
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["refurbish_tf"])
  try:
    with context.Manager() as manager:
      barrier = manager.Barrier(number)
      with context.Pool(number) as pool:
        path = os.path.join(directory, "store")
        return pool.starmap(
            _job, [(path, order_seed, count, r, barrier) for order_seed in range(number)], chunksize=1)
  finally:
    shutil.rmtree(directory)


def _job(path, order_seed, count, r, barrier):
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.rand_augment(), rtf.augment.random_crop(4),
       rtf.augment.random_flip()], at=2)
  images = tf.cast(tf.random.stateless_uniform([count, 32, 32, 3], [1, 2], 0, 256, tf.int32), tf.uint8)
  dataset = tf.data.Dataset.from_tensor_slices(images).refurbish(
      partial_fn, final_fn, r=r, seed=1, order_seed=order_seed, store=path).batch(128)
  barrier.wait()
  began = time.process_time()
  for _ in range(EPOCHS):
    for _ in dataset:
      pass
  cpu = time.process_time() - began
  return {"calls": rtf.stats(dataset)[0].total.fresh, "cpu": cpu}
