"""On a full disk, samples that do not fit are prepared again, and nothing else changes."""

import subprocess
import zlib

import pytest
import tensorflow as tf

from support import cases
from support.datasets import fresh
from support.stores import small_disk

N, R, EPOCHS = 300, 2.5, 8
KEPT = 0.6
# The bytes of the files of a store that hold no samples: index, claims and state.
FILES = 1030 << 10


def stage(store, size):
  return tf.data.Dataset.range(N).refurbish(
    lambda index, seed: (index, tf.random.stateless_uniform([size // 4], seed, 0, 99, tf.int32)),
    r=R,
    seed=1,
    store=store,
    num_parallel_calls=3,
  )


def trained(store, size):
  """Returns the samples of each epoch with their contents, and how many of them were fresh."""
  dataset = stage(store, size)
  epochs = [sorted((int(index), zlib.crc32(values.numpy())) for index, values in dataset) for _ in range(EPOCHS)]
  return epochs, fresh(dataset)


def disk_for_some(directory, size):
  """Mounts a file system with room for the fraction `KEPT` of the samples of this size."""
  return small_disk(directory / "disk", int(KEPT * N * size) + FILES)


@pytest.mark.parametrize("size", cases.some([2_000, 8_000, 80_000], 2))
def test_samples_that_do_not_fit_are_prepared_again(tmp_path, capfd, size):
  """Each epoch has the same samples as with room for all, but more of them are fresh. There is one warning."""
  expected, _ = trained(None, size)
  capfd.readouterr()
  with disk_for_some(tmp_path, size) as disk:
    got, prepared = trained(disk / "store", size)
  assert got == expected
  assert capfd.readouterr().err.count("No space left on device") == 1
  assert prepared[0] == N and N / R < min(prepared[1:]) < 0.8 * N and max(prepared) == N


def test_space_that_becomes_free_again_is_used(tmp_path):
  size = 8_000
  with disk_for_some(tmp_path, size) as disk:
    dataset = stage(disk / "store", size)
    for _ in range(3):
      for _ in dataset:
        pass
    subprocess.run(["mount", "-o", f"remount,size={4 * N * size >> 10}k", disk], check=True)
    for _ in range(4):
      for _ in dataset:
        pass
    assert fresh(dataset)[-1] == N / R
