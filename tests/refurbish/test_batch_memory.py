"""The memory of batches is aligned and reused. If there is too little memory, an error says so."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from support.datasets import resident, stats, stream
from test_batches import NATIVE, of_stage, of_tf_data


def test_an_oversized_batch_of_few_samples_fits_in_memory():
  """The number of samples is unknown in the first epoch."""
  batches = of_stage(stream(9).refurbish(lambda x: tf.repeat(x, 100), lambda x: x, 2, seed=1), 10**11)
  for _ in range(2):
    (batch,) = batches
    assert sorted(batch[:, 7].numpy()) == list(range(9))


NO_MEMORY = """
import resource
import tensorflow as tf
import refurbish_tf as rtf
enlarge = [rtf.augment.resize((1024, 1024))]
source = tf.data.Dataset.from_tensor_slices(tf.zeros([64, 8, 8, 3], tf.uint8))
stage = source.refurbish([lambda x: x], enlarge, 2, num_parallel_calls=2)
list(stage.batch(2))
status = dict(line.split(":") for line in open("/proc/self/status"))
resource.setrlimit(resource.RLIMIT_AS, (int(status["VmSize"].split()[0]) * 1024 + 100 * 2**20, -1))
batches = iter(stage.batch(64))
try:
  next(batches)
except tf.errors.ResourceExhaustedError as error:
  print(ascii(str(error)))
print(sum(1 for _ in stage.batch(4)))
"""


def test_no_memory_for_a_batch_is_an_error():
  """The iterator still yields smaller batches."""
  environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # An arena of a new thread takes up to 128 MiB of addresses.
  said, batches = subprocess.run(
    [sys.executable, "-c", NO_MEMORY], check=True, capture_output=True, text=True, env=environment
  ).stdout.splitlines()
  assert "of shape [64,1024,1024,3]. Pass a smaller batch_size." in said
  assert int(batches) == 16


@pytest.mark.parametrize("batch", [lambda stage: stage.batch(64), lambda stage: of_tf_data(stage, 64)])
def test_samples_that_come_and_go_leave_no_holes(batch):
  """In every epoch a store in memory uses little more memory than its samples."""
  number, shape = 20_000, [32, 32, 3]
  stage = tf.data.Dataset.range(number).refurbish(
    lambda x: (x, tf.fill(shape, tf.cast(x % 251, tf.uint8))), lambda x, image: (x, image, image[0, 0, 0]), 3, seed=1
  )
  for _ in batch(tf.data.Dataset.range(2000).refurbish(lambda x: tf.fill(shape, tf.cast(x, tf.uint8)), None, 3)):
    pass  # Starts TensorFlow's threads before memory is measured.
  before = resident()
  for _ in range(6):
    for x, image, value in batch(stage):
      assert (image.numpy() == (x.numpy() % 251)[:, None, None, None]).all() and (
        value.numpy() == x.numpy() % 251
      ).all()
  kept = stats(stage).total.bytes
  assert kept >= number // 2 * np.prod(shape)
  # Without slots it would be twice as much. Other code in this process also uses memory.
  assert resident() - before < 1.6 * kept


def test_memory_is_aligned_and_used_again():
  """Frameworks can use it without a copy, and it is not allocated for each batch. No thread begins a batch ahead."""
  images = np.zeros([400, 64, 64, 3], np.uint8)
  stage = tf.data.Dataset.from_tensor_slices(images).refurbish(NATIVE, NATIVE, 2, seed=1, num_parallel_calls=None)
  batches = of_stage(stage, 40)

  def address(batch):
    return np.asarray(memoryview(batch)).ctypes.data  # The memory of the tensor itself.

  addresses = [address(batch) for batch in batches]
  assert all(each % 64 == 0 for each in addresses)
  assert len(set(addresses)) <= 3
  held = list(batches)
  # Memory still in use is not overwritten.
  assert len(set(map(address, held))) == 10
