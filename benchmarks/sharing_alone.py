"""What sharing costs a job that is alone: `python benchmarks/sharing_alone.py TREE TREE`, of this package.

Each TREE is a directory with the package built in it, such as a git worktree of an earlier commit; the first is what the
others are compared with. One job on a bounded store on disk in each of them, epoch by epoch side by side.
"""
import argparse
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

STORES = tuple((r, share) for r in (2, 3) for share in (1 / 4, 1 / 2))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("tree", nargs="+", type=pathlib.Path)
  parser.add_argument("--epochs", type=int, default=31, help="how many of each are counted")
  parser.add_argument("--samples", type=int, default=10_000)
  arguments = parser.parse_args()
  print(f"CPU time, µs an image of 32x32: median (least to greatest) of {arguments.epochs} epochs of {arguments.samples:,}")
  for r, share in STORES:
    costs = _side_by_side(arguments, r, share)
    for tree, cost in zip(arguments.tree, costs):
      of_first = statistics.median(c / b for c, b in zip(cost, costs[0]))
      print(f"r = {r}, room for {share:g}  {tree}: {statistics.median(cost):.2f} ({min(cost):.2f} to {max(cost):.2f}), "
            f"{of_first:.3f} of the first", flush=True)


def _side_by_side(arguments, r, share):
  """A list of the costs of its epochs for each tree."""
  with tempfile.TemporaryDirectory(prefix="refurbish-sharing-alone-") as directory:
    jobs = []
    for k, tree in enumerate(arguments.tree):
      options = [os.path.join(directory, str(k)), str(arguments.samples), str(r), str(share)]
      jobs.append(subprocess.Popen(
          [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(pathlib.Path(__file__).parent)]!r}; import sharing_alone; "
           f"sharing_alone.train({options!r})"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
          env={**os.environ, "PYTHONPATH": str(tree.resolve())}))
    costs = [[] for _ in jobs]
    # The store is full, and its schedule steady, after two epochs.
    for epoch in range(2 + arguments.epochs):
      for k in random.sample(range(len(jobs)), len(jobs)):
        jobs[k].stdin.write("epoch\n")
        jobs[k].stdin.flush()
        answer = jobs[k].stdout.readline()
        if not answer:
          raise SystemExit(f"The job of {arguments.tree[k]} failed.")
        if epoch >= 2:
          costs[k].append(1e6 * float(answer) / arguments.samples)
    for job in jobs:
      job.communicate()
    return costs


def train(options):
  """One epoch for each line of the standard input. Prints its seconds of CPU time."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel

  import refurbish_tf as rtf  # pylint: disable=import-outside-toplevel
  path, count, r, share = options[0], int(options[1]), int(options[2]), float(options[3])
  images = tf.cast(tf.random.stateless_uniform([count, 32, 32, 3], [1, 2], 0, 256, tf.int32), tf.uint8)
  probe = rtf.CacheStore(f"{path}-probe")
  probe.put(0, images[0])
  store = rtf.CacheStore(path, max_bytes=int(share * count) * probe.stats().bytes)
  partial_fn, final_fn = rtf.augment.split(
      [rtf.augment.rand_augment(), rtf.augment.random_crop(4),
       rtf.augment.random_flip()], at=2)
  dataset = tf.data.Dataset.from_tensor_slices(images).refurbish(partial_fn, final_fn, r=r, seed=1, store=store).batch(128)
  for _ in sys.stdin:
    began = time.process_time()
    for _ in dataset:
      pass
    # What is written in the background is part of it.
    while True:
      before = time.process_time()
      time.sleep(0.02)
      if time.process_time() - before < 0.0005:
        break
    print(time.process_time() - began, flush=True)


if __name__ == "__main__":
  main()
