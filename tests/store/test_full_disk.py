"""Training on a full disk is like training with a limit of the same size."""
import gc
import subprocess

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import fresh

N, R, EPOCHS = 300, 2.5, 8
KEPT = 0.6
# The files of a store that hold no samples: index, claims and state.
FILES = 1030 << 10


@pytest.fixture
def small_disk(tmp_path):
  """Makes a file system of that many bytes, if permitted."""
  mounted = []

  def mount(size):
    path = tmp_path / f"disk-{len(mounted)}"
    path.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size >> 10}k,mode=700", "none", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
      pytest.skip(f"may not mount a file system: {done.stderr.strip()}")
    mounted.append(path)
    return path

  yield mount
  gc.collect()  # Files that are still open.
  for path in mounted:
    subprocess.run(["umount", "-l", path], check=True)


def trained(store, size):
  """The number of fresh samples in each epoch."""
  def partial_fn(index, seed):
    return index, tf.random.stateless_uniform([size // 4], seed, 0, 99, tf.int32)

  dataset = tf.data.Dataset.range(N).refurbish(partial_fn, r=R, seed=1, store=store, num_parallel_calls=3)
  for _ in range(EPOCHS):
    assert sorted(int(index) for index, _ in dataset) == list(range(N))  # G1.
  return fresh(dataset)


@pytest.mark.parametrize("size", cases.some([2_000, 8_000, 80_000], 2))
def test_prepares_what_a_limit_of_the_same_size_would_have_prepared(small_disk, tmp_path, capfd, size):
  """Within 5 % in each epoch, except the one in which the disk fills up."""
  room = int(KEPT * N * size)
  # A quarter of it is for what is in transit.
  expected = trained(rtf.CacheStore(tmp_path / "limited", max_bytes=room * 4 // 3), size)
  capfd.readouterr()
  got = trained(small_disk(room + FILES) / "store", size)
  assert capfd.readouterr().err.count("No space left on device") == 1
  assert got[0] == N and got[1] <= 1.05 * expected[1]
  assert got[2:] == pytest.approx(expected[2:], rel=0.05)


def test_room_that_comes_back_is_used(small_disk):
  size = 8_000
  disk = small_disk(int(KEPT * N * size) + FILES)
  dataset = tf.data.Dataset.range(N).refurbish(
      lambda index, seed: tf.random.stateless_uniform([size // 4], seed, 0, 99, tf.int32), r=R, seed=1, store=disk / "store")
  for _ in range(3):
    for _ in dataset:
      pass
  subprocess.run(["mount", "-o", f"remount,size={4 * N * size >> 10}k", disk], check=True)
  for _ in range(4):
    for _ in dataset:
      pass
  assert fresh(dataset)[-1] == N / R
