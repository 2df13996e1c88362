"""On a full disk, samples that do not fit are prepared again, and nothing else changes."""

import gc
import subprocess
import zlib

import pytest
import tensorflow as tf

from support import cases
from support.datasets import fresh

N, R, EPOCHS = 300, 2.5, 8
KEPT = 0.6
# The bytes of the files of a store that hold no samples: index, claims and state.
FILES = 1030 << 10


@pytest.fixture
def small_disk(tmp_path):
  """Returns a function that mounts a file system of a given size, if permitted."""
  mounted = []

  def mount(size):
    path = tmp_path / f"disk-{len(mounted)}"
    path.mkdir(mode=0o700)
    done = subprocess.run(
      ["mount", "-t", "tmpfs", "-o", f"size={size >> 10}k,mode=700", "none", path],
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode != 0:
      pytest.skip(f"may not mount a file system: {done.stderr.strip()}")
    mounted.append(path)
    return path

  yield mount
  gc.collect()  # Closes files that are still open.
  for path in mounted:
    subprocess.run(["umount", "-l", path], check=True)


def trained(store, size):
  """Returns the samples of each epoch with their contents, and how many of them were fresh."""

  def partial_fn(index, seed):
    return index, tf.random.stateless_uniform([size // 4], seed, 0, 99, tf.int32)

  dataset = tf.data.Dataset.range(N).refurbish(partial_fn, r=R, seed=1, store=store, num_parallel_calls=3)
  epochs = [sorted((int(index), zlib.crc32(values.numpy())) for index, values in dataset) for _ in range(EPOCHS)]
  return epochs, fresh(dataset)


@pytest.mark.parametrize("size", cases.some([2_000, 8_000, 80_000], 2))
def test_samples_that_do_not_fit_are_prepared_again(small_disk, capfd, size):
  """Each epoch has the same samples as with room for all, but more of them are fresh. There is one warning."""
  expected, _ = trained(None, size)
  capfd.readouterr()
  got, prepared = trained(small_disk(int(KEPT * N * size) + FILES) / "store", size)
  assert got == expected
  assert capfd.readouterr().err.count("No space left on device") == 1
  assert prepared[0] == N and N / R < min(prepared[1:]) < 0.8 * N and max(prepared) == N


def test_space_that_becomes_free_again_is_used(small_disk):
  size = 8_000
  disk = small_disk(int(KEPT * N * size) + FILES)
  dataset = tf.data.Dataset.range(N).refurbish(
    lambda index, seed: tf.random.stateless_uniform([size // 4], seed, 0, 99, tf.int32),
    r=R,
    seed=1,
    store=disk / "store",
  )
  for _ in range(3):
    for _ in dataset:
      pass
  subprocess.run(["mount", "-o", f"remount,size={4 * N * size >> 10}k", disk], check=True)
  for _ in range(4):
    for _ in dataset:
      pass
  assert fresh(dataset)[-1] == N / R
