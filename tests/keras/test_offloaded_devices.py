"""`Offloaded` on Keras' other backends and on several devices: the bytes are the same, and are made on the device that
has the images."""

import json
import os
import pathlib
import sys

import pytest

import test_offloaded
from support import ROOT, cases
from support.processes import TIMEOUT, environment, outputs_of, run_forked

pytestmark = cases.slow

BEGIN = """
import json, os, re, sys
import keras, numpy as np
import tensorflow as tf
import refurbish_tf as rtf
import test_offloaded
from support import unfinished

SIDE, N = 16, 32
cases, with_policies, directory = json.loads(sys.argv[1])
policies = test_offloaded.augment.rand_augment(2 if with_policies else 1, 9)
final = [*test_offloaded.FINAL, test_offloaded.augment.normalize(0.5, 0.25)]
images = unfinished.images_like(np.random.default_rng(0), N, SIDE, SIDE)
# Policies take seconds to trace, and Keras traces often.
layers = [*policies, *final] if with_policies else final
entries, expected = unfinished.batch(layers, images, todo=np.arange(N) % 3 > 0)


def make_model():
  image = keras.Input([SIDE, SIDE, 3])
  inner = keras.Model(image, keras.layers.Dense(3)(keras.layers.Flatten()(image)))
  model = rtf.keras.with_offloaded(layers, inner)
  model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  return inner, model


def check_model(inner, model):
  labels = np.arange(N) % 3
  before = inner.get_weights()
  train = tf.data.Dataset.from_tensor_slices((entries, labels)).batch(N, drop_remainder=True)
  finished = tf.data.Dataset.from_tensor_slices((unfinished.finished(images), labels)).batch(N)
  history = model.fit(train, epochs=2, validation_data=finished, verbose=0, shuffle=False).history
  assert len(history["val_loss"]) == 2 and not np.array_equal(before[0], inner.get_weights()[0])
  predicted = inner.predict(expected, batch_size=N, verbose=0)
  np.testing.assert_allclose(model.predict(entries, batch_size=N, verbose=0), predicted, rtol=1e-5)
"""
MIRRORED = (
  """
import tensorflow as tf
device, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""
  + BEGIN
  + """
with strategy.scope():
  inner, model = make_model()
check_model(inner, model)
"""
)
JAX = (
  BEGIN
  + """
import jax
for name in cases:
  test_offloaded.check_case(name, lambda finish: jax.jit(finish.call))

inner, model = make_model()
if with_policies:  # With all cases. Without, it trains below, on two devices.
  check_model(inner, model)
model.predict(entries, verbose=0)
path = os.path.join(directory, "model.keras")
model.save(path)
loaded = keras.models.load_model(path)
np.testing.assert_array_equal(loaded.predict(entries, verbose=0), model.predict(entries, verbose=0))
try:
  rtf.keras.with_offloaded(final[1:], inner).predict(entries, verbose=0)
except ValueError as error:
  assert re.search("has the layers .random_flip.* but the batch was made for .ran", str(error)), error
else:
  raise AssertionError("nothing was refused")

assert len(jax.devices()) == 2
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
finish = rtf.keras.Offloaded([*policies, *final])
given, whole = unfinished.batch([*policies, *final], images, todo=np.arange(N) % 3 > 0)
given = jax.device_put(given, sharding)
program = jax.jit(finish.call, out_shardings=sharding).lower(given).compile()
# They agree on how many images are left to do, and exchange no pixel.
exchanged = re.findall(r"= (.*) (?:all-|reduce-scatter|collective-)[\\w-]*\\(", program.as_text())
assert exchanged and all(re.fullmatch(r"\\(?(?:\\w+\\[\\](?:, )?)+\\)?", each) for each in exchanged), exchanged
np.testing.assert_array_equal(program(given), whole)

keras.distribution.set_distribution(
    keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False))
check_model(*make_model())
"""
)
TORCH = (
  "import torch._dynamo"
  + BEGIN
  + """
for name in cases:
  test_offloaded.check_case(name, lambda finish: finish)
check_model(*make_model())
"""
)


def run(program, backend, directory, names=()):
  variables = {
    **environment(),
    "KERAS_BACKEND": backend,
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    "JAX_PLATFORMS": "cpu",
  }
  variables["PYTHONPATH"] = os.pathsep.join(
    [variables["PYTHONPATH"], str(ROOT / "tests"), str(pathlib.Path(__file__).parent)]
  )
  arguments = json.dumps([names, cases.exhaustive, str(directory)])
  outputs_of(["-c", program, arguments], env=variables, timeout=3 * TIMEOUT)


def run_mirrored(arguments):
  sys.argv = ["", arguments]
  exec(compile(MIRRORED, "mirrored", "exec"), {"__name__": "__main__"})


@cases.only_exhaustive
def test_replicas_of_a_mirrored_strategy(tmp_path):
  assert run_forked(run_mirrored, json.dumps([[], cases.exhaustive, str(tmp_path)])) == 0


def test_jax_makes_the_same_bytes_and_devices_exchange_nothing(tmp_path):
  pytest.importorskip("jax", reason="jax is not installed")
  run(JAX, "jax", tmp_path, list(test_offloaded.CASES) if cases.exhaustive else [])


@cases.only_exhaustive
def test_torch_makes_the_same_bytes(tmp_path):
  pytest.importorskip("torch", reason="torch is not installed")
  run(TORCH, "torch", tmp_path, list(test_offloaded.CASES))
