"""`rtf.jax_loader` over several devices and processes, and the position of its stages when an epoch is left early."""

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.loaders import values
from support.processes import environment, free_port, outputs_of

jax = pytest.importorskip("jax", reason="jax is not installed")

N = 16
# Each process reads its shard. A batch is one array over the devices of all processes.
SHARDED = """
import sys
import jax, numpy as np, tensorflow as tf
import refurbish_tf as rtf

port, index, processes, local = map(int, sys.argv[1:])
jax.config.update("jax_platforms", "cpu")
if processes > 1:
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"localhost:{port}", processes, index, local_device_ids=range(local))
assert jax.device_count() == local * processes and jax.process_count() == processes
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
dataset = tf.data.Dataset.range(16).shard(processes, index).refurbish(tf.identity, r=2, seed=1).batch(8 // processes)
loader = rtf.jax_loader(dataset.map(lambda x: {"index": x, "square": x * x}), sharding)
total = jax.jit(lambda batch: (batch["index"].sum(), batch["square"].sum()))
for epoch in range(2):
  sums, mine = np.zeros(2, int), []
  for batch in loader:
    assert batch["index"].shape == (8,) and batch["index"].sharding == sharding
    shards = batch["index"].addressable_shards
    assert len(shards) == local and all(shard.data.shape == (8 // local // processes,) for shard in shards)
    mine += [int(value) for shard in shards for value in shard.data]
    sums += [int(value) for value in total(batch)]
  assert sums.tolist() == [sum(range(16)), sum(i * i for i in range(16))], sums
  assert sorted(mine) == list(range(index, 16, processes)), mine
"""


@cases.slow
@pytest.mark.parametrize(
  "processes, local",
  [(2, 1), pytest.param(1, 4, marks=cases.only_exhaustive), pytest.param(2, 2, marks=cases.only_exhaustive)],
)
def test_a_batch_over_devices_of_all_processes(processes, local):
  port = free_port()
  outputs_of(
    *(["-c", SHARDED, port, index, processes, local] for index in range(processes)),
    env={**environment(), "XLA_FLAGS": f"--xla_force_host_platform_device_count={local}"},
  )


def make():
  return tf.data.Dataset.range(N).refurbish(tf.identity, r=2, seed=1)


def test_leaving_an_epoch_early_does_not_advance_the_stage():
  """Otherwise the pipeline's parallel map would begin the second epoch after the state is loaded."""

  def new():
    return rtf.jax_loader(make().map(tf.identity, num_parallel_calls=2).repeat(2).batch(4).prefetch(1))

  whole, loader = new(), new()
  expected = [values(whole), values(whole)]
  start = loader.state_dict()
  for _ in range(cases.examples(6)):
    left = iter(loader)
    for _ in range(2):
      next(left)
    loader.load_state_dict(start)
    assert left.position() is None  # Its iterator is gone, so nothing reads on.
    assert [values(loader), values(loader)] == expected
    with pytest.raises(RuntimeError, match=r"iter\(\) again"):
      next(left)
