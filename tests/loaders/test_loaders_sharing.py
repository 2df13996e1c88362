"""Jobs in TensorFlow, PyTorch and JAX on one store prepare together, and hand out the same."""
import collections
import importlib.util
import multiprocessing

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.processes import TIMEOUT, end_of, start_forked

N, TURN, EPOCHS = 320, 8, 2
# Of the record of a sample: its index, the seed of its generation, and what was drawn with it.
INDEX, SEED, DRAWN = 8, 16, 24
READ = {"tensorflow": iter, "torch": lambda dataset: iter(rtf.torch_loader(dataset)),
        "jax": lambda dataset: iter(rtf.jax_loader(dataset))}


def _partial_fn(index, seed):
  drawn = tf.random.stateless_uniform([DRAWN], seed, maxval=256, dtype=tf.int32)
  seed = tf.bitcast(tf.cast(seed, tf.int64), tf.uint8)
  return tf.concat([tf.bitcast(index, tf.uint8), tf.reshape(seed, [SEED]), tf.cast(drawn, tf.uint8)], axis=0)


def _job(framework, turns, path, max_bytes, r, number):
  """Hands out a batch whenever it is told to, with how often it has called `partial_fn`. Checks that epochs end."""
  store = rtf.CacheStore(path, max_bytes=max_bytes)
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False  # It would read ahead, out of turn.
  dataset = tf.data.Dataset.range(N).refurbish(
      _partial_fn, r=r, seed=5, order_seed=number, store=store, num_parallel_calls=None).batch(TURN).with_options(options)
  for _ in range(EPOCHS):
    iterator = READ[framework](dataset)
    for _ in range(N // TURN):
      turns.recv()
      batch = next(iterator)
      module = type(batch).__module__
      store.verify()  # Writes what was put, for others to see.
      stage, = rtf.stats(dataset)
      turns.send((module, np.asarray(batch), stage.total.fresh))
    assert next(iterator, None) is None


def _calls(path, frameworks, r, room):
  """How often each job called `partial_fn`. Checks what they are handed out."""
  probe = rtf.CacheStore(str(path / "probe"))
  probe.put(0, tf.zeros([INDEX + SEED + DRAWN], tf.uint8))
  pipes = [multiprocessing.Pipe() for _ in frameworks]
  jobs = [start_forked(_job, framework, there, str(path / "store"), room * probe.stats().bytes, r, number)
          for number, (framework, (_, there)) in enumerate(zip(frameworks, pipes))]
  contents, calls = {}, [0] * len(jobs)
  uses = [collections.Counter() for _ in jobs]
  for _ in range(EPOCHS):
    seen = [[] for _ in jobs]
    for _ in range(N // TURN):
      for number, (framework, (here, _)) in enumerate(zip(frameworks, pipes)):
        here.send(None)
        assert here.poll(TIMEOUT), f"the job in {framework} hangs"
        module, batch, calls[number] = here.recv()
        assert module.split(".")[0].removesuffix("lib") == framework
        for sample in batch:
          generation = sample[:INDEX + SEED].tobytes()
          assert contents.setdefault(generation, sample.tobytes()) == sample.tobytes()
          uses[number][generation] += 1
          seen[number].append(int(sample[:INDEX].view(np.int64)[0]))
    assert all(sorted(epoch) == list(range(N)) for epoch in seen)
  assert [end_of(job) for job in jobs] == [0] * len(jobs)
  assert all(max(of_job.values()) <= r for of_job in uses)
  return calls


@pytest.mark.parametrize("r, room, kept", [
    (1, 64, 0), pytest.param(2, N // 2, N // 2 - N // 8, marks=cases.only_exhaustive)])
@pytest.mark.parametrize("frameworks", [("tensorflow", "jax", "tensorflow"), ("tensorflow", "torch", "jax")])
def test_each_sample_is_prepared_about_once_for_all_and_is_the_same(tmp_path, frameworks, r, room, kept):
  if "torch" in frameworks and importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed")
  calls = _calls(tmp_path, frameworks, r, room)
  alone = N + (EPOCHS - 1) * (N - kept * (1 - 1 / r))
  assert 0.95 * alone <= sum(calls) <= 1.1 * alone
  if cases.exhaustive:
    in_tensorflow = tmp_path / "tensorflow"
    in_tensorflow.mkdir()
    assert calls == _calls(in_tensorflow, ("tensorflow",) * len(frameworks), r, room)
