"""Fits of a small model that record its training data and can be stopped, for tests of `rtf.keras`."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.checkpoints import with_checkpoints

N, BATCH, EPOCHS = 20, 4, 4
BACKEND = keras.backend.backend()
# How many epochs of a stage `fit` begins before training. Except on TensorFlow, it reads a batch to build the model.
NUM_BUILT = int(BACKEND != "tensorflow")
not_torch = pytest.mark.skipif(BACKEND == "torch", reason="PyTorch's executions have one step")
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="what only Keras on TensorFlow does")


def make_dataset(kind="range", *, r=3, n=N, batch=BATCH, symbolic=False, repeat=False, ahead=False, seed=7, store=None):
  def partial_fn(index, seed):
    return index, tf.random.stateless_normal([4], seed)

  def final_fn(index, x, seed):
    return {"index": index, "x": x + tf.random.stateless_normal([4], seed, stddev=0.1)}, tf.cast(index % 2, tf.float32)

  source = tf.data.Dataset.range(n)
  if kind == "stream":
    source = source.filter(lambda index: True)
  if kind == "stream of known length":
    source = source.filter(lambda index: True).apply(tf.data.experimental.assert_cardinality(n))
  dataset = source.refurbish(partial_fn, final_fn, r, seed=seed, store=store)
  if repeat:
    dataset = dataset.repeat()
  dataset = dataset.batch(batch)
  if ahead:
    # Reads to the end before the first batch is handed out, so that `batch` has dropped the stage's iterator by then.
    dataset = dataset.batch(n).unbatch().apply(tf.data.experimental.assert_cardinality(n // batch))
  return with_checkpoints(dataset.prefetch(2), symbolic)


def make_model(**options):
  """A model with every kind of state: an optimizer with moments, dropout, a metric and, on PyTorch, a module with
  buffers."""
  keras.utils.set_random_seed(1)
  indices, x = keras.Input([], name="index", dtype="int64"), keras.Input([4], name="x")
  y = keras.layers.Dense(1)(keras.layers.Dropout(0.5)(Recorder()(x, indices)))
  model = keras.Model({"index": indices, "x": x}, y)
  model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **options})
  return model


# The indices in the batches of one execution.
seen = []


class Recorder(keras.layers.Layer):
  def __init__(self):
    super().__init__()
    if BACKEND == "torch":
      import torch

      self.norm = torch.nn.BatchNorm1d(4)

  def call(self, x, indices, training=None):
    if not training or isinstance(x, keras.KerasTensor):
      return x

    def record(indices):
      seen.append(indices.tolist())
      return indices

    if BACKEND == "torch":
      record(indices)
      return self.norm(x)
    if BACKEND == "jax":
      import jax

      jax.debug.callback(record, indices, ordered=True)
      return x
    recorded = tf.numpy_function(record, [indices], tf.int64)
    with tf.control_dependencies([recorded]):
      return tf.identity(x)


class Steps(keras.callbacks.Callback):
  """Records the training data of each step of each epoch, and can stop training at one of the steps."""

  def __init__(self, trained, stop=None):
    super().__init__()
    self.trained = trained
    self.left = stop

  def on_epoch_begin(self, epoch, logs=None):
    self.epoch = epoch

  def on_train_batch_begin(self, batch, logs=None):
    seen.clear()

  def on_train_batch_end(self, batch, logs=None):
    if BACKEND == "jax":
      import jax

      jax.effects_barrier()
    if not seen:
      return
    self.trained[self.epoch, batch] = list(itertools.chain(*seen))
    if self.left is not None:
      self.left -= 1
      if self.left == 0:
        raise KeyboardInterrupt


def fit(model, *callbacks, epochs=EPOCHS, **how):
  """Trains the model on a new dataset of `make_dataset`."""
  return model.fit(make_dataset(), epochs=epochs, verbose=0, callbacks=list(callbacks), **how)


def assert_same(weights, others):
  for a, b in zip(weights, others, strict=True):
    np.testing.assert_array_equal(a, b)


def train(backup, trained, stop=None, *, save_freq="epoch", steps=None, compiled=None, dataset=None, **how):
  """Returns the history, or None if training was stopped, and the weights."""
  model = make_model(**(compiled or {}))
  callbacks = [rtf.keras.BackupAndRestore(backup, save_freq=save_freq), Steps(trained, stop)]
  try:
    dataset = make_dataset(**how) if dataset is None else dataset
    history = model.fit(dataset, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=callbacks).history
  except KeyboardInterrupt:
    history = None
  return history, model.get_weights()


def assert_epochs_whole(trained):
  for epoch in range(EPOCHS):
    indices = [index for (e, _), batch in trained.items() if e == epoch for index in batch]
    assert sorted(indices) == list(range(N)), epoch


def two_stages(seed=7):
  """A dataset of two stages; each batch has the indices of both."""
  both = tf.data.Dataset.zip(make_dataset(ahead=True, seed=seed), make_dataset(ahead=True, r=2, seed=seed and seed + 1))
  return both.map(lambda a, b: ({"index": N * a[0]["index"] + b[0]["index"], "x": a[0]["x"]}, a[1]))


def interrupted(tmp_path, stop=7, **how):
  train(tmp_path / "backup", {}, stop, save_freq=1, **how)
  return tmp_path / "backup"
