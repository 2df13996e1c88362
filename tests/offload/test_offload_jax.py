"""Batches that a loop of JAX finishes on two devices."""

import importlib.util
import subprocess
import sys

import pytest

from support import cases
from support.processes import environment

PROGRAM = """
import os
os.environ["KERAS_BACKEND"] = "jax"  # Before Keras.
import jax, jax.numpy as jnp, numpy as np, tensorflow as tf
tf.config.set_visible_devices([], "GPU")
import refurbish_tf as rtf

random = np.random.default_rng(0)
images, labels = random.integers(0, 256, [512, 32, 32, 3], np.uint8), random.integers(0, 10, 512)
layers = [rtf.augment.random_crop(padding=4), rtf.augment.random_flip(), rtf.augment.normalize()]
train = tf.data.Dataset.from_tensor_slices((images, labels)).refurbish([rtf.augment.rand_augment()], None, r=3, seed=7)
train = train.offload(layers, 128, num_replicas=jax.device_count())
mesh, finish = jax.sharding.Mesh(jax.devices(), ["batch"]), rtf.keras.Offloaded(layers)
by_batch, everywhere = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (["batch"], []))

def loss(parameters, images, labels):
  return -jnp.take_along_axis(jax.nn.log_softmax(images.mean([1, 2]) @ parameters), labels[:, None], axis=1).mean()

step = jax.jit(lambda parameters, batch, labels: parameters - 0.1 * jax.grad(loss)(parameters, finish(batch), labels))
parameters = jax.device_put(jnp.zeros([3, 10]), everywhere)
for epoch in range(3):
  for batch, labels in rtf.jax_loader(train, by_batch):
    parameters = step(parameters, batch, labels)
print(f"trained on {jax.device_count()} devices, {rtf.stats(train)[-1].total.device_images} images finished there")
"""


@cases.only_exhaustive
@pytest.mark.skipif(
  importlib.util.find_spec("jax") is None, reason="not installed: jax; pip install -e '.[exhaustive]' does it"
)
def test_each_device_finishes_its_part():
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM],
    capture_output=True,
    text=True,
    check=False,
    env={**environment(), "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
  )
  assert (done.stdout, done.returncode) == ("trained on 2 devices, 1536 images finished there\n", 0), done.stderr
