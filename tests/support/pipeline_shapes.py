"""Stops and resumes pipelines of several shapes. A shape is the operations that follow a stage."""

import functools
import itertools
import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from support.checkpoints import final_fn, partial_fn, with_checkpoints
from support.loaders import numpy_loader
from support.pipelines import make_source

N = 10
MOST_STEPS = 500  # More than any pass has. Limits a pass that would not end.
OPERATIONS = {
  "filter": lambda dataset: dataset.filter(lambda x: True),
  "padded_batch": lambda dataset: dataset.padded_batch(4),
  "batch": lambda dataset: dataset.batch(3),
  "unbatch": lambda dataset: dataset.unbatch(),
  "repeat": lambda dataset: dataset.repeat(2),
  "prefetch": lambda dataset: dataset.prefetch(2),
  "shard": lambda dataset: dataset.shard(2, 0),
  "interleave": lambda dataset: tf.data.Dataset.range(2).interleave(lambda _: dataset, cycle_length=2),
}
WAYS = ("checkpoint", "loader", "fit")


def after(dataset, shape):
  return functools.reduce(lambda dataset, name: OPERATIONS[name](dataset), shape, dataset)


def build(shape, kind, symbolic):
  # With a buffer of one, the order of a stream does not depend on reading ahead.
  stage = make_source(kind, N).refurbish(partial_fn, final_fn, 2, seed=7, shuffle_buffer_size=1)
  return with_checkpoints(after(stage, shape), symbolic)


def values(elements):
  return [np.asarray(element).tolist() for element in elements]


class Fit:
  """The training data of `fit`, by epoch, from the epoch that it began with.

  It is stopped after `stop` steps, or in the step `stop_in[1]` of the epoch `stop_in[0]`, counted from 0.
  """

  class _Model(keras.Model):
    def __init__(self, fit):
      super().__init__()
      self.dense, self._fit = keras.layers.Dense(1), fit
      self.built = True

    def train_step(self, data):
      self._fit.epochs[-1].append(np.asarray(data).tolist())
      return {"loss": 0.0}

  class _Watch(keras.callbacks.Callback):
    def __init__(self, fit, stop, stop_in):
      super().__init__()
      self._fit, self._stop, self._stop_in = fit, stop, stop_in

    def on_epoch_begin(self, epoch, logs=None):
      self._epoch = epoch
      self._fit.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
      if len(self._fit.steps) == self._stop or (self._epoch, batch) == self._stop_in:
        raise KeyboardInterrupt

  def __init__(self, dataset, directory, stop=None, epochs=2, stop_in=None, former_dirs=None):
    self.epochs = []
    model = self._Model(self)
    model.compile(optimizer="sgd", run_eagerly=True)
    backup = rtf.keras.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False, former_dirs=former_dirs)
    try:
      model.fit(dataset, epochs=epochs, verbose=0, shuffle=False, callbacks=[backup, self._Watch(self, stop, stop_in)])
    except KeyboardInterrupt:
      pass

  @property
  def steps(self):
    return list(itertools.chain(*self.epochs))


def unbroken(way, shape, kind, symbolic, directory):
  """The elements of two passes."""
  dataset = build(shape, kind, symbolic)
  if way == "fit":
    return Fit(dataset, directory / "unbroken").steps
  if way == "loader":
    dataset = numpy_loader(dataset)
  passes = [values(itertools.islice(dataset, MOST_STEPS)) for _ in range(2)]
  return passes[0] + passes[1]


def stop(way, shape, kind, symbolic, directory, step):
  """Reads `step` steps and saves. Returns the elements and the dataset."""
  dataset = build(shape, kind, symbolic)
  if way == "fit":
    # Each backup is saved before a step, so `fit` runs the last step again when it resumes.
    return Fit(dataset, directory / "backup", stop=step + 1).steps[:-1], dataset
  if way == "loader":
    loader = numpy_loader(dataset)
    iterator = iter(loader)
    before = values(itertools.islice(iterator, step))
    np.save(directory / "state.npy", loader.state_dict()["state"])
    return before, (loader, iterator)
  iterator = iter(dataset)
  before = values(itertools.islice(iterator, step))
  tf.train.Checkpoint(iterator=iterator).write(str(directory / "checkpoint"))
  return before, dataset


def resume(way, shape, kind, symbolic, directory, dataset=None):
  """Returns the elements after the stop, or the text of the error if resuming is refused. `dataset`: the stopped one,
  in the same process."""
  dataset = build(shape, kind, symbolic) if dataset is None else dataset
  try:
    if way == "fit":
      return Fit(dataset, directory / "backup").steps
    if way == "loader":
      loader = dataset[0] if isinstance(dataset, tuple) else numpy_loader(dataset)
      loader.load_state_dict({"state": np.load(directory / "state.npy")})
      rest = values(itertools.islice(loader, MOST_STEPS))
      return rest + (values(itertools.islice(loader, MOST_STEPS)))
    iterator = iter(dataset)
    tf.train.Checkpoint(iterator=iterator).read(str(directory / "checkpoint")).assert_consumed()
    rest = values(itertools.islice(iterator, MOST_STEPS))
    del iterator
    return rest + values(itertools.islice(dataset, MOST_STEPS))
  except (tf.errors.OpError, ValueError) as error:
    return f"{type(error).__name__}: {error}"


def resume_all(directory):
  """Runs in a new process. Resumes each of the directories that stops.json lists, and writes the elements."""
  directory = pathlib.Path(directory)
  results = [resume(*case, pathlib.Path(path)) for *case, path in json.loads((directory / "stops.json").read_text())]
  (directory / "resumed.json").write_text(json.dumps(results))


if __name__ == "__main__":
  import sys

  resume_all(sys.argv[1])
