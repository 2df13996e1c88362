"""`rtf.keras` with Keras on TensorFlow, JAX and PyTorch, and Keras' distribution of a pipeline over processes."""

import itertools
import pathlib
import types

import keras
import pytest
import tensorflow as tf

from refurbish_tf.keras.reader import Reader
from support import cases
from support.fits import EPOCHS, N, make_dataset
from support.processes import environment_of, free_port, outputs_of, run_killed_fit
from support.warned import told

HERE = pathlib.Path(__file__).parent
STEPS = N // 4


@pytest.mark.parametrize(
  "backend, ahead, ends",
  [
    pytest.param("jax", True, [(0, 1), (1, 3), (1, STEPS)], marks=cases.slow),
    *(
      pytest.param(
        backend, ahead, [(0, 1), (1, 3), (1, STEPS), (2, 0), (EPOCHS - 1, STEPS)], marks=cases.only_exhaustive
      )
      for backend, ahead in (("tensorflow", False), ("jax", True), ("jax", False), ("torch", False))
    ),
  ],
)
def test_a_killed_fit_ends_as_an_unbroken_one(tmp_path, backend, ahead, ends):
  """The results are equal bit for bit after SIGKILL in mid-epoch, at an epoch's last step and between epochs."""
  pytest.importorskip(backend, reason=f"{backend} is not installed")
  assert f"on {backend}." in run_killed_fit(tmp_path, backend, ahead, ends)


PYTEST = """
import os, sys
if os.environ["KERAS_BACKEND"] == "torch":
  import torch._dynamo
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@cases.only_exhaustive
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_callbacks_on_other_backends(backend):
  pytest.importorskip(backend, reason=f"{backend} is not installed")
  files = [HERE / name for name in ("test_keras_callbacks.py", "test_keras_bad_backup.py")]
  outputs_of(
    ["-c", PYTEST, "-q", "-p", "no:cacheprovider", "-m", "", *files],
    env=environment_of(backend),
    cwd=HERE.parent,
    timeout=1800,
  )


class Fitted:
  """A model whose `fit` has a reader of this data."""

  steps_per_execution = 2

  def __init__(self, data):
    self.adapter = types.SimpleNamespace(_dataset=data)
    self.calls = []

  def fit(self):
    epoch_iterator = types.SimpleNamespace(data_adapter=self.adapter, steps_per_epoch=None)
    reader = Reader("BackupAndRestore", self, lambda iterator: 0, lambda *call: self.calls.append(call[:2]))
    assert epoch_iterator.data_adapter._dataset is reader
    return reader


def test_the_reader_knows_what_was_read_for_which_step():
  """This holds even if Keras drops an iterator that has read a batch ahead, as when epochs differ in length."""

  def run(number, iterator, batches):
    reader.begin_execution(number, "state", iterator)
    begun = reader.num_read
    assert [next(iterator) for _ in batches] == list(batches)
    reader.check_that_it_was_read(number)
    return begun

  def one_ahead():
    for batch, _ in itertools.pairwise(reader):
      yield int(batch)

  model = Fitted(tf.data.Dataset.range(10))
  reader = model.fit()
  first, second = one_ahead(), one_ahead()
  assert [run(0, first, [0, 1]), run(1, first, [2, 3]), run(2, second, [0, 1])] == [0, 2, 2]
  assert model.calls == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]
  for batches in [[], range(5)]:
    with pytest.raises(
      RuntimeError, match="cannot follow Keras .* one step ahead of training. Install a supported version"
    ):
      run(3, iter(reader), batches)
  with pytest.raises(TypeError, match="position in a tf.data.Dataset"):
    Fitted([1, 2]).fit()
  with pytest.raises(RuntimeError, match="something else called it"):
    Reader("BackupAndRestore", model, None, None)


# Each process reads its shard. A batch is one array over all processes.
DISTRIBUTED = """
import sys
import jax

port, process, processes, directory = int(sys.argv[1]), int(sys.argv[2]), 2, sys.argv[3]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
import keras, tensorflow as tf
keras.distribution.initialize(f"localhost:{port}", processes, process)
import refurbish_tf as rtf

keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
source = tf.data.Dataset.range(22)
share = source.take(len(source) // processes * processes).shard(processes, process)
train = share.refurbish(lambda i: tf.cast(i, tf.float32), r=2, seed=7, order_seed=process).batch(4, drop_remainder=True)
seen = []

class Model(keras.Sequential):
  def train_step(self, state, data):
    assert data[0].shape == (8, 1), data[0].shape
    jax.debug.callback(lambda x: seen.append(x[:, 0].astype(int).tolist()), data[0])
    return super().train_step(state, data)

class Epochs(keras.callbacks.Callback):
  def on_train_batch_end(self, batch, logs=None):
    jax.effects_barrier()

  def on_epoch_end(self, epoch, logs=None):
    # Process 0 is shown the whole batch. Of 11 samples each process leaves out 3.
    assert process or [len(batch) for batch in seen] == [8, 8], seen
    indices = sum(seen, [])
    assert process or len(set(indices)) == 16, seen
    assert process or sum(index % 2 for index in indices) == 8, seen
    seen.clear()

model = Model([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
logger = rtf.keras.RefurbishLogger(train)
pairs = train.map(lambda x: (x[:, None], x[:, None]))
history = model.fit(pairs, epochs=3, verbose=0, shuffle=False, callbacks=[Epochs(), logger])
print([each.numpy().tolist() for each in model.trainable_variables])
assert "It runs on the CPU cores" in logger.verdict
try:
  model.fit(train, verbose=0, callbacks=[rtf.keras.BackupAndRestore(f"{directory}/{process}")])
except RuntimeError as error:
  assert "would lose the position in the data" in str(error)
else:
  raise AssertionError
"""


@cases.only_exhaustive
def test_keras_data_parallel_over_two_processes(tmp_path):
  """As in docs/torch_jax.md, each process reads its shard, no sample comes twice, and a batch consists of the parts of
  all processes."""
  pytest.importorskip("jax", reason="jax is not installed")
  port = free_port()
  first, second = outputs_of(
    *(["-c", DISTRIBUTED, port, process, tmp_path] for process in range(2)), env=environment_of("jax")
  )
  assert first.splitlines()[-1] == second.splitlines()[-1]


class FakeDistribution(keras.distribution.DataParallel):
  """The distribution of one of several processes."""

  def __init__(self, auto_shard_dataset, processes=2):
    self._auto_shard_dataset = auto_shard_dataset
    self._is_multi_process = processes > 1


@pytest.mark.parametrize(
  "distribution, warned",
  [
    (None, False),
    (FakeDistribution(True), True),
    (FakeDistribution(False), False),
    (FakeDistribution(True, 1), False),
    (types.SimpleNamespace(_auto_shard_dataset=True, _is_multi_process=True), False),
  ],
)  # The last case is model parallelism.
def test_a_distribution_that_shards_after_refurbish_causes_a_warning(monkeypatch, distribution, warned):
  monkeypatch.setattr(keras.distribution, "distribution", lambda: distribution)
  found = told(make_dataset)
  assert len(found) == warned
  if warned:
    assert "auto_shard_dataset=False" in found[0] and "source.shard(processes, process).refurbish(...)" in found[0]
