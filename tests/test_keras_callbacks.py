"""rtf.keras: training goes on where it was stopped, killed at any time, and the logger tells what really was."""
import collections
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.backup import Backup
from support import cases

N, BATCH, EPOCHS = 20, 4, 4


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
    # All batches and their end are read before the first one comes out, so that `batch` has let go of the stage by then.
    dataset = dataset.batch(n).unbatch().apply(tf.data.experimental.assert_cardinality(n // batch))
  dataset = dataset.prefetch(2)
  options = tf.data.Options()
  options.experimental_symbolic_checkpoint = symbolic
  return dataset.with_options(options)


def make_model(**options):
  """A model with all that has a state: an optimizer with moments, dropout, a metric."""
  keras.utils.set_random_seed(1)
  indices, x = keras.Input([], name="index", dtype="int64"), keras.Input([4], name="x")
  y = keras.layers.Dense(8, "relu")(Recorder()(x, indices))
  y = keras.layers.Dense(1)(keras.layers.Dropout(0.5)(y))
  model = keras.Model({"index": indices, "x": x}, y)
  model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **options})
  return model


# The indices of the batches trained on, for the steps of one execution.
seen = []


class Recorder(keras.layers.Layer):
  def call(self, x, indices, training=None):
    if not training or isinstance(x, keras.KerasTensor):
      return x

    def record(indices):
      seen.append(indices.tolist())
      return indices

    recorded = tf.numpy_function(record, [indices], tf.int64)
    with tf.control_dependencies([recorded]):
      return tf.identity(x)


class Steps(keras.callbacks.Callback):
  """Remembers what was trained on in each step of each epoch, and stops training at one of them."""

  def __init__(self, trained, stop=None):
    super().__init__()
    self.trained = trained
    self.left = stop

  def on_epoch_begin(self, epoch, logs=None):
    self.epoch = epoch

  def on_train_batch_begin(self, batch, logs=None):
    seen.clear()

  def on_train_batch_end(self, batch, logs=None):
    if not seen:
      return
    self.trained[self.epoch, batch] = list(itertools.chain(*seen))
    if self.left is not None:
      self.left -= 1
      if self.left == 0:
        raise KeyboardInterrupt


def train(backup, trained, stop=None, *, save_freq="epoch", steps=None, compiled=None, dataset=None, **how):
  """The history, or None when it was stopped, and the weights."""
  model = make_model(**(compiled or {}))
  callbacks = [rtf.keras.RestoreDataset(backup, save_freq=save_freq), Steps(trained, stop)]
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


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Of a stream that Keras knows no length of.
@pytest.mark.parametrize("how", [
    {"save_freq": "epoch"}, {"save_freq": 2, "symbolic": True}, {"save_freq": 3, "steps": 5, "repeat": True},
    {"save_freq": 3, "compiled": {"steps_per_execution": 5}}, {"save_freq": 2, "kind": "stream"},
    {"save_freq": 1, "ahead": True},
    *(pytest.param(how, marks=cases.only_exhaustive) for how in (
        {"save_freq": 1}, {"save_freq": 1, "symbolic": True}, {"save_freq": 2, "kind": "stream of known length"},
        {"save_freq": 1, "steps": 5, "repeat": True, "symbolic": True}))], ids=str)
def test_a_stopped_fit_goes_on_as_if_it_had_not_been(tmp_path, how):
  unbroken = {}
  expected, weights = train(tmp_path / "none", unbroken, **how)
  assert_epochs_whole(unbroken)
  # Counted in executions, of which an epoch has one where it is one of five steps.
  for stops in cases.some([[1], [2, 1]] if "compiled" in how else [[1], [5, 1, 1, 8], [7, 3]], 1):
    backup, trained = tmp_path / "backup", {}
    for stop in stops:
      history, _ = train(backup, trained, stop, **how)
      assert history is None
    history, resumed = train(backup, trained, **how)
    assert_epochs_whole(trained)
    assert not backup.exists()
    if "kind" in how:
      # Of a stream, which of the fresh samples comes when depends on what is in the store.
      continue
    assert trained == unbroken
    for a, b in zip(weights, resumed):
      np.testing.assert_array_equal(a, b)
    for name, values in history.items():
      assert values == expected[name][-len(values):]


def evicted(dataset):
  return [epoch.evicted for epoch in rtf.stats(dataset)[0].epochs]


@pytest.mark.parametrize("kind, on_disk", [("range", False), ("range", True), ("stream", False)])
def test_a_backup_knows_the_schedule_when_all_of_its_epoch_had_been_read(tmp_path, kind, on_disk):
  how = {"kind": kind, "ahead": True}
  unbroken, trained = {}, {}
  expected = make_dataset(**how)
  train(tmp_path / "none", unbroken, dataset=expected)
  store = tmp_path / "store" if on_disk else None
  train(tmp_path / "backup", trained, 8, save_freq=1, dataset=make_dataset(**how, store=store))
  resumed = make_dataset(**how, store=store)
  train(tmp_path / "backup", trained, dataset=resumed)
  # What was left of the second epoch is in the backup.
  assert evicted(resumed) == evicted(expected)[2:]
  assert_epochs_whole(trained)
  if kind == "range":
    assert trained == unbroken


def test_a_backup_knows_the_seed_when_all_of_its_epoch_had_been_read(tmp_path):
  def drawn(number):
    tf.random.set_seed(number)
    return make_dataset(seed=None, ahead=True)

  def seed_of(dataset):
    return int(re.search(r"\bseed (-?\d+)", rtf.describe(dataset))[1])

  first, second, trained, unbroken = drawn(1), drawn(2), {}, {}
  assert seed_of(first) != seed_of(second)
  train(tmp_path / "backup", trained, 8, save_freq=1, dataset=first)
  train(tmp_path / "backup", trained, dataset=second)
  assert seed_of(first) == seed_of(second)
  train(tmp_path / "none", unbroken, seed=seed_of(first))
  assert trained == unbroken


def two_stages():
  """Each batch has the indices of both."""
  both = tf.data.Dataset.zip(make_dataset(ahead=True), make_dataset(ahead=True, r=2, seed=8))
  return both.map(lambda a, b: ({"index": N * a[0]["index"] + b[0]["index"], "x": a[0]["x"]}, a[1]))


def test_a_backup_knows_each_stage_when_all_of_its_epoch_had_been_read(tmp_path):
  unbroken, trained = {}, {}
  train(tmp_path / "none", unbroken, dataset=two_stages())
  train(tmp_path / "backup", trained, 8, save_freq=1, dataset=two_stages())
  train(tmp_path / "backup", trained, dataset=two_stages())
  assert trained == unbroken


def test_with_the_backup_of_keras_itself_the_data_begin_anew(tmp_path):
  """As docs/restart.md says: with the data of the first epoch. Epochs are whole, and samples reused from the next one on."""
  trained = {}
  for stop in (7, None):
    dataset = make_dataset()
    callbacks = [keras.callbacks.BackupAndRestore(str(tmp_path / "backup")), Steps(trained, stop)]
    try:
      make_model().fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
      assert (1, 1) in trained
      first = dict(trained)
  assert_epochs_whole(trained)
  assert [trained[1, step] for step in range(5)] == [first[0, step] for step in range(5)]
  assert [epoch.fresh for epoch in rtf.stats(dataset)[0].epochs] == [20, 6, 7]


def test_nothing_is_left_behind_by_an_interrupted_fit(tmp_path):
  """The next fit, with another callback or none, is not followed by the one that was interrupted."""
  model, trained = make_model(), {}
  logger = rtf.keras.RefurbishLogger(make_dataset())
  with pytest.raises(KeyboardInterrupt):
    model.fit(make_dataset(), epochs=2, verbose=0, callbacks=[
        rtf.keras.RestoreDataset(tmp_path / "first", save_freq=1), logger, Steps(trained, stop=3)])
  saved = (tmp_path / "first" / "refurbish_tf_backup" / "state.json").read_text()
  model.train_on_batch(*next(iter(make_dataset())))
  for callbacks in ([], [rtf.keras.RestoreDataset(tmp_path / "second", save_freq=1)], [logger], []):
    model.fit(make_dataset(), epochs=1, verbose=0, callbacks=callbacks)
    assert (tmp_path / "first" / "refurbish_tf_backup" / "state.json").read_text() == saved
  assert not isinstance(model.train_function, rtf.keras._Step)
  assert not (tmp_path / "second").exists()


def test_a_model_goes_on_that_keras_has_not_built(tmp_path):
  """With a training step of its own and metrics of its own."""
  class Own(keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = keras.layers.Dense(1)
      self.mean = keras.metrics.Mean(name="mean")

    def call(self, x):
      return self.dense(x)

    def train_step(self, data):
      x, y = data
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean((self(x["x"])[:, 0] - y) ** 2)
      self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
      self.mean.update_state(loss)
      return {"mean": self.mean.result()}

  def run(stop, backup):
    keras.utils.set_random_seed(1)
    model = Own()
    model(tf.zeros([1, 4]))
    model.compile("adam")

    class Stop(keras.callbacks.Callback):
      left = stop

      def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
          raise KeyboardInterrupt
    try:
      return model.fit(make_dataset(), epochs=3, verbose=0,
                       callbacks=[rtf.keras.RestoreDataset(backup, save_freq=2), Stop()]).history, model.get_weights()
    except KeyboardInterrupt:
      return None, None

  expected, weights = run(1000, tmp_path / "none")
  assert run(8, tmp_path / "backup") == (None, None)
  history, resumed = run(1000, tmp_path / "backup")
  for a, b in zip(weights, resumed):
    np.testing.assert_array_equal(a, b)
  assert history["mean"][-1] == expected["mean"][-1]


def interrupted(tmp_path, stop=7, **how):
  train(tmp_path / "backup", {}, stop, save_freq=1, **how)
  return tmp_path / "backup"


@pytest.mark.parametrize("change, error, message", [
    ({"seed": 8}, tf.errors.InvalidArgumentError, "another pipeline: of refurbish seed is 8, but it was 7"),
    ({"r": 2}, tf.errors.InvalidArgumentError, "another pipeline: of refurbish r is 2, but it was 3"),
    ({"n": 19}, tf.errors.InvalidArgumentError, "num_samples is 19, but it was 20"),
    ({"r": 2, "ahead": True}, tf.errors.InvalidArgumentError, "another pipeline: of refurbish r is 2, but it was 3"),
    ({"seed": 8, "ahead": True}, tf.errors.InvalidArgumentError, "another pipeline: of refurbish seed is 8, but it was 7"),
    ({"dataset": two_stages}, ValueError, "another number of refurbish stages, 1, but this one has 2. Build the pipeline"),
    ({"batch": 5}, ValueError, "of a fit with steps 5, but this one has 4. Give fit the same dataset, or delete it"),
    ({"compiled": {"steps_per_execution": 5}}, ValueError, "steps_per_execution 1, but this one has 5")])
def test_a_backup_of_another_fit_is_refused_and_the_model_untouched(tmp_path, change, error, message):
  ahead = {"ahead": change.get("ahead", False)}
  backup = interrupted(tmp_path, **ahead)
  model = make_model(**change.get("compiled", {}))
  before = model.get_weights()
  with pytest.raises(error, match=message):
    dataset = change["dataset"]() if "dataset" in change else make_dataset(
        **{name: value for name, value in change.items() if name != "compiled"})
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup)])
  for a, b in zip(before, model.get_weights()):
    np.testing.assert_array_equal(a, b)
  # The backup is still good.
  trained = {}
  train(backup, trained, save_freq=1, **ahead)
  assert min(trained) == (1, 1) and max(trained) == (3, 4)


def scale(layer):
  def build():
    keras.utils.set_random_seed(1)
    indices, x = keras.Input([], name="index", dtype="int64"), keras.Input([4], name="x")
    model = keras.Model({"index": indices, "x": x}, keras.layers.Dense(1)(layer(x)))
    model.compile("adam", "mse", metrics=["mae"])
    return model
  return build


@pytest.mark.parametrize("make, message", [
    (scale(keras.layers.Dense(7)), "a model of which the weights have other variables: .*call it on a batch before fit"),
    (lambda: make_model(optimizer="sgd"), "of which the optimizer have other variables")])
def test_a_backup_of_another_model_is_refused_and_nothing_changed(tmp_path, make, message):
  backup = interrupted(tmp_path)
  model, dataset = make(), make_dataset()
  before = model.get_weights()
  with pytest.raises(ValueError, match=message):
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup)])
  for a, b in zip(before, model.get_weights()):
    np.testing.assert_array_equal(a, b)
  # Neither is the stage set back, nor the next fit to begin elsewhere.
  assert rtf.stats(dataset)[0].epochs == ()
  assert len(model.fit(dataset, epochs=1, verbose=0).history["loss"]) == 1


def test_other_metrics_count_from_the_break_on(tmp_path):
  backup = interrupted(tmp_path)
  model = make_model(metrics=["mse"])
  history = model.fit(make_dataset(), epochs=EPOCHS, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup)]).history
  assert set(history) == {"loss", "mse"} and len(history["loss"]) == EPOCHS - 1


@cases.each_value
@pytest.mark.parametrize("name", ["state.json", "variables.index", "variables.data-00000-of-00001"])
@pytest.mark.parametrize("change", ["truncate", "remove"])
def test_a_damaged_backup_is_refused_and_the_model_untouched(tmp_path, name, change):
  backup = interrupted(tmp_path)
  file = backup / "refurbish_tf_backup" / name
  content = file.read_bytes()
  file.unlink()
  if change == "truncate":
    file.write_bytes(content[:len(content) // 8])  # The second half of the tensors is only their names.
  model = make_model()
  before = model.get_weights()
  with pytest.raises(ValueError, match="is damaged .*Delete it to begin anew"):
    model.fit(make_dataset(), epochs=EPOCHS, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup)])
  for a, b in zip(before, model.get_weights()):
    np.testing.assert_array_equal(a, b)


STAGE = {"state": [7, 7, 2, 1, N, N, 0], "reuse_factor": 3.0}


def with_state(position, value):
  state = list(STAGE["state"])
  state[position] = value
  return [{**STAGE, "state": state}]


@pytest.mark.parametrize("stages, message", [
    (None, "'NoneType' object is not iterable"), ([{}], "KeyError: 'state'"), ([None], "TypeError"),
    ([{**STAGE, "state": [7]}], r"its state has shape \[1\], but must have \[7\]"),
    ([{**STAGE, "state": [STAGE["state"]]}], r"its state has shape \[1,7\]"), ([{**STAGE, "state": ["7"] * 7}], ""),
    ([{**STAGE, "reuse_factor": [3.0]}], r"its reuse_factor has shape \[1\]"), ([{**STAGE, "reuse_factor": "3"}], ""),
    (with_state(0, 2**63), ""), (with_state(2, -1), "its next_epoch is -1"), (with_state(4, 0), "its num_samples is 0"),
    (with_state(5, N + 1), "its num_kept is 21"), (with_state(6, 2**44), "its origin is 17592186044416")], ids=str)
def test_a_damaged_state_of_a_stage_is_refused_and_nothing_changed(tmp_path, stages, message):
  backup = interrupted(tmp_path, ahead=True)
  file = backup / "refurbish_tf_backup" / "state.json"
  state = json.loads(file.read_text())
  assert state["stages"] == [STAGE]
  model, dataset = make_model(), make_dataset(ahead=True)
  before = model.get_weights()
  file.write_text(json.dumps({**state, "stages": stages}))
  with pytest.raises(ValueError, match=f"(?s)is damaged .*{message}.*Delete it to begin anew"):
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup)])
  for a, b in zip(before, model.get_weights()):
    np.testing.assert_array_equal(a, b)
  unused = make_dataset(ahead=True)
  for a, b in zip(dataset, unused):
    np.testing.assert_array_equal(a[0]["index"], b[0]["index"])


@pytest.mark.parametrize("reverse", [False, True])
def test_with_the_logger_the_order_of_the_callbacks_is_the_same(tmp_path, reverse):
  """Steps that are not run because they were done before are no steps that waited for nothing."""
  backup = interrupted(tmp_path, stop=9)
  dataset = make_dataset()
  logger = rtf.keras.RefurbishLogger(dataset)
  callbacks = [rtf.keras.RestoreDataset(backup), logger]
  model = make_model()
  history = model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks[::-1] if reverse else callbacks).history
  assert history["input_wait_p50"][0] > 0  # Of the resumed epoch one step was left.
  assert len(history["refurbish_fresh"]) == EPOCHS - 1


def test_two_at_once_are_refused(tmp_path):
  callbacks = [rtf.keras.RestoreDataset(tmp_path / name) for name in "ab"]
  with pytest.raises(RuntimeError, match="There are two RestoreDataset callbacks"):
    make_model().fit(make_dataset(), verbose=0, callbacks=callbacks)


def test_a_fit_that_is_told_to_stop_keeps_its_backup(tmp_path):
  """As by a handler of SIGTERM; it may be a machine that is taken away."""
  class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      if self.model.optimizer.iterations >= 8:
        self.model.stop_training = True

  unbroken, trained = {}, {}
  _, weights = train(tmp_path / "none", unbroken)
  make_model().fit(make_dataset(), epochs=EPOCHS, verbose=0, callbacks=[
      rtf.keras.RestoreDataset(tmp_path / "backup", save_freq=3), Steps(trained), Stop()])
  assert (tmp_path / "backup" / "refurbish_tf_backup").is_dir()
  _, resumed = train(tmp_path / "backup", trained)
  assert trained == unbroken
  for a, b in zip(weights, resumed):
    np.testing.assert_array_equal(a, b)


def test_the_program_may_change_its_directory(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)

  class Leave(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
      (tmp_path / "elsewhere").mkdir()
      os.chdir(tmp_path / "elsewhere")

  with pytest.raises(KeyboardInterrupt):
    make_model().fit(make_dataset(), epochs=2, verbose=0, callbacks=[
        rtf.keras.RestoreDataset("backup", save_freq=1), Leave(), Steps({}, stop=3)])
  assert (tmp_path / "backup" / "refurbish_tf_backup").is_dir()


def test_a_fit_killed_while_it_deletes_its_backup_leaves_a_whole_one_or_none(tmp_path, monkeypatch):
  backup = interrupted(tmp_path)
  files = {path.name for path in (backup / "refurbish_tf_backup").iterdir()}
  left = 0

  def killed_at_the_last(function):
    def call(*args, **how):
      nonlocal left
      left -= 1
      if left == 0:
        raise KeyboardInterrupt
      return function(*args, **how)
    return call

  for name in ("rename", "unlink", "rmdir"):
    monkeypatch.setattr(os, name, killed_at_the_last(getattr(os, name)))
  for number in itertools.count(1):
    copy = tmp_path / f"copy {number}"
    shutil.copytree(backup, copy)
    left = number
    try:
      Backup(copy).delete()
      break
    except KeyboardInterrupt:
      left = 0
      if Backup(copy).state() is not None:
        assert {path.name for path in (copy / "refurbish_tf_backup").iterdir()} == files
  assert number > len(files) and not copy.exists()


def test_files_of_others_in_the_directory_stay(tmp_path):
  (tmp_path / "latest").mkdir()
  train(tmp_path, {}, save_freq=1)
  assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_a_resumed_fit_that_is_interrupted_leaves_no_first_epoch_to_the_next(tmp_path):
  interrupted(tmp_path, stop=12)
  model = make_model()
  with pytest.raises(KeyboardInterrupt):
    model.fit(make_dataset(), epochs=EPOCHS, verbose=0, callbacks=[
        rtf.keras.RestoreDataset(tmp_path / "backup"), Steps({}, stop=1)])
  assert len(model.fit(make_dataset(), epochs=2, verbose=0).history["loss"]) == 2


def test_epochs_and_versions_that_do_not_fit(tmp_path):
  backup = interrupted(tmp_path)
  def fit(**arguments):
    make_model().fit(make_dataset(), verbose=0, callbacks=[rtf.keras.RestoreDataset(backup)], **arguments)

  with pytest.raises(ValueError, match="of epoch 1, but this fit has 1 of them, from 0 on. Ask for more"):
    fit(epochs=1)
  state = backup / "refurbish_tf_backup" / "state.json"
  text = state.read_text()
  state.write_text(text.replace('"format": 1', '"format": 2'))
  with pytest.raises(ValueError, match="format 2, but this refurbish_tf knows 1. Use the one that wrote it"):
    fit(epochs=4)
  state.write_text(text.replace('"epoch": 1', '"epoch": 0'))
  with pytest.raises(ValueError, match="is of epoch 0, but fit begins with epoch 2. Leave initial_epoch out"):
    fit(epochs=4, initial_epoch=2)


def test_a_pipeline_that_cannot_be_saved_says_so_at_the_first_step(tmp_path):
  generated = tf.data.Dataset.from_generator(
      lambda: iter([(np.zeros(4), 0.0)]), output_signature=(tf.TensorSpec([4]), tf.TensorSpec([])))
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  with pytest.raises(tf.errors.FailedPreconditionError, match="(?s)stateful.*experimental_external_state_policy"):
    model.fit(generated.batch(1), verbose=0, callbacks=[rtf.keras.RestoreDataset(tmp_path / "backup")])
  assert not (tmp_path / "backup" / "refurbish_tf_backup").exists()


def test_functions_that_draw_by_themselves_are_saved_and_told_of(tmp_path):
  """What most users have: Keras' random layers, tf.image.random_*."""
  flip = keras.layers.RandomFlip()
  def fit(final_fn):
    images = tf.data.Dataset.range(8).map(lambda x: tf.cast(tf.fill([4, 4, 1], x), tf.float32))
    dataset = images.refurbish(lambda x: x, final_fn, r=2, seed=1).map(lambda x: (x[0, 0], 1.0)).batch(2)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=[rtf.keras.RestoreDataset(tmp_path / "backup")])

  for final_fn in (lambda x: flip(x, training=True), lambda x: tf.image.random_brightness(x, 0.1)):
    with pytest.warns(UserWarning, match="does not repeat its draws") as told:
      fit(final_fn)
    assert len([warning for warning in told if "draws" in str(warning.message)]) == 1
  with warnings.catch_warnings():
    warnings.filterwarnings("error", message=".*draws")
    fit(lambda x, seed: tf.image.stateless_random_brightness(x, 0.1, seed))


def test_a_distribution_strategy_is_refused(tmp_path):
  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
  dataset = tf.data.Dataset.range(8).map(lambda x: (tf.cast([x], tf.float32), 1.0)).batch(2)
  with pytest.raises(RuntimeError, match="DistributedIterator of a distribution strategy. Leave the strategy out"):
    model.fit(dataset, verbose=0, callbacks=[rtf.keras.RestoreDataset(tmp_path / "backup")])


@pytest.mark.parametrize("arguments, error", [
    ({"backup_dir": 3}, TypeError), ({"backup_dir": ""}, TypeError), ({"backup_dir": "x", "save_freq": 0}, ValueError),
    ({"backup_dir": "x", "save_freq": "batch"}, ValueError), ({"backup_dir": "x", "save_freq": 1.5}, (TypeError, ValueError)),
    ({"backup_dir": "x", "save_freq": None}, (TypeError, ValueError))])
def test_bad_arguments_of_restore_dataset(arguments, error):
  with pytest.raises(error, match="must be"):
    rtf.keras.RestoreDataset(**arguments)


# Processes that are killed. ----------------------------------------------------


def train_until_killed(directory, kind, events, store):
  """In a process of its own: trains until that many things have happened: steps, and what is done to files of a backup."""
  directory = pathlib.Path(directory)
  left = events

  def happen():
    nonlocal left
    left -= 1
    if left == 0:
      os.kill(os.getpid(), signal.SIGKILL)

  rename, rmtree = pathlib.Path.rename, shutil.rmtree

  def renamed(path, target):
    happen()
    return rename(path, target)

  def removed(path, **how):
    happen()
    for child in path.iterdir() if path.is_dir() else ():
      child.unlink()
      happen()
    return rmtree(path, **how)

  class Log(Steps):
    def on_train_batch_end(self, batch, logs=None):
      super().on_train_batch_end(batch, logs)
      if not seen:
        return
      with open(directory / "trained", "a") as file:
        file.write(json.dumps([self.epoch, batch, self.trained[self.epoch, batch]]) + "\n")
      happen()

  pathlib.Path.rename, shutil.rmtree = renamed, removed
  model = make_model()
  model.fit(make_dataset(kind, store=store), epochs=EPOCHS, verbose=0,
            callbacks=[rtf.keras.RestoreDataset(directory / "backup", save_freq=3), Log({})])
  np.savez(directory / "weights.npz", *model.get_weights())


@pytest.mark.parametrize("kind, on_disk, kills, most", [
    ("range", False, 20 if cases.exhaustive else 5, 12), ("stream", True, 5 if cases.exhaustive else 2, 25)])
def test_killed_training_ends_as_an_unbroken_one(tmp_path, kind, on_disk, kills, most):
  """SIGKILL at random steps, and amid the writing of a backup: epochs are whole, and weights the same bit for bit."""
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["refurbish_tf"])
  store = tmp_path / "store" if on_disk else None

  def run(directory, events):
    directory.mkdir(exist_ok=True)
    process = context.Process(target=train_until_killed, args=(directory, kind, events, store))
    process.start()
    process.join(300)
    assert not process.is_alive()
    return process.exitcode

  numbers = random.Random(1)
  for _ in range(kills):
    assert run(tmp_path / "killed", numbers.randint(1, most)) == -signal.SIGKILL
    assert not (tmp_path / "killed" / "weights.npz").exists()
  assert run(tmp_path / "killed", 10**6) == 0
  # The steps since the last backup were done twice.
  trained = {(epoch, batch): indices for epoch, batch, indices in map(
      json.loads, (tmp_path / "killed" / "trained").read_text().splitlines())}
  assert_epochs_whole(trained)
  if kind == "range":
    assert run(tmp_path / "unbroken", 10**6) == 0
    with np.load(tmp_path / "killed" / "weights.npz") as killed, np.load(tmp_path / "unbroken" / "weights.npz") as unbroken:
      for name in unbroken.files:
        np.testing.assert_array_equal(killed[name], unbroken[name])


# The logger. ------------------------------------------------------------------


def test_history_agrees_with_counters_in_the_functions(tmp_path):
  calls = collections.Counter()

  def count(name):
    def function(x):
      calls[name] += 1
      return x
    return lambda x: tf.ensure_shape(tf.numpy_function(function, [x], tf.int64), [])

  def counted(name, n, r):
    return tf.data.Dataset.range(n).refurbish(count(f"{name} partial"), count(f"{name} final"), r, seed=1, name=name)

  stages = tf.data.Dataset.zip(counted("first", N, 2), counted("second", N, 5), counted("second", N, 1))
  dataset = stages.map(lambda x, *_: (tf.cast([x], tf.float32), 1.0)).batch(BATCH)
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  by_epoch = []

  class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      by_epoch.append(calls.copy())
      calls.clear()

  validation = tf.data.Dataset.from_tensors((tf.zeros([1, 1]), tf.zeros([1])))
  history = model.fit(
      dataset, epochs=EPOCHS, verbose=0, validation_data=validation,
      callbacks=[rtf.keras.RefurbishLogger(dataset, tmp_path), Epochs()]).history
  assert history["first_fresh"] == [epoch["first partial"] for epoch in by_epoch] == [20, 10, 10, 10]
  assert [a + b for a, b in zip(history["first_fresh"], history["first_cached"])] == [
      epoch["first final"] for epoch in by_epoch] == [20] * EPOCHS
  # Two of one name are numbered; they count together here.
  assert history["second_fresh"] == [20, 4, 4, 4] and history["second_2_fresh"] == [20] * EPOCHS
  assert [a + b for a, b in zip(history["second_fresh"], history["second_2_fresh"])] == [
      epoch["second partial"] for epoch in by_epoch]
  for name in ("evicted", "absent", "bytes", "fresh_wait", "store_wait"):
    assert len(history[f"first_{name}"]) == EPOCHS
  assert len(history["loss"]) == len(history["input_wait_p50"]) == EPOCHS
  # TensorBoard is told the same.
  file, = (tmp_path / "train").iterdir()
  written = collections.defaultdict(list)
  for event in tf.compat.v1.train.summary_iterator(str(file)):
    for value in event.summary.value:
      assert value.metadata.plugin_data.plugin_name == "scalars"
      written[value.tag].append((event.step, float(tf.make_ndarray(value.tensor))))
  assert "input_wait/max" in written and "first/fresh" in written and "second_2/cached" in written
  for tag, values in written.items():
    group, name = tag.split("/")
    assert [step for step, _ in values] == list(range(EPOCHS))
    np.testing.assert_allclose([value for _, value in values], history[f"{group}_{name}"], rtol=1e-6)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_a_stall_of_the_input_is_seen(steps_per_execution):
  """The wait of a training step for its input is what it is, though the step reads it within a graph."""
  ended = threading.Event()

  def slow(index):
    if index == 12:
      # Prefetching may be ahead of a slow step by any time, so the stall begins when the step before it has ended.
      assert ended.wait(60)
      ended.clear()
      time.sleep(0.5)
    return index

  def on_train_batch_end(batch, logs):
    del logs
    if batch == 11:
      ended.set()

  dataset = tf.data.Dataset.range(N).map(lambda x: tf.ensure_shape(tf.numpy_function(slow, [x], tf.int64), [])).map(
      lambda x: (tf.cast([x], tf.float32), 1.0)).batch(1)
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
  history = model.fit(dataset, epochs=2, verbose=0, callbacks=[
      rtf.keras.RefurbishLogger(dataset), keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)]).history
  for epoch in range(2):
    assert history["input_wait_max"][epoch] > 0.25
    assert history["input_wait_p50"][epoch] < 0.25
  assert set(history) == {"loss", "input_wait_p50", "input_wait_p95", "input_wait_max"}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Another number of batches in each epoch.
def test_the_echoing_factor_of_each_epoch():
  dataset = tf.data.Dataset.range(8).map(lambda x: (tf.cast([x], tf.float32), 1.0)).batch(2).echo(rtf.AUTOTUNE)
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  history = model.fit(dataset, epochs=3, verbose=0, callbacks=[rtf.keras.RefurbishLogger(dataset)]).history
  # Keras takes the number of steps of the first epoch for that of all.
  assert history["echo_fresh"][0] == 4
  assert history["echo_factor"] == [
      (fresh + repeated) / fresh for fresh, repeated in zip(history["echo_fresh"], history["echo_repeated"])]


def test_bad_arguments_of_the_logger():
  with pytest.raises(TypeError, match="takes a tf.data.Dataset, got list"):
    rtf.keras.RefurbishLogger([1])
  with pytest.raises(TypeError, match="log_dir must be"):
    rtf.keras.RefurbishLogger(make_dataset(), 3)


JAX = """
import keras, tensorflow as tf
import refurbish_tf as rtf
dataset = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=1).batch(2)
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(dataset, epochs=3, verbose=0, callbacks=[rtf.keras.RefurbishLogger(dataset)]).history
# With JAX, Keras reads a batch to build the model, which is an epoch that was stopped early: of what the next one has cached
# two to eight were prepared in it.
assert 4 <= history["refurbish_fresh"][0] <= 6 and history["refurbish_fresh"][1:] == [4, 4], history
assert min(history["input_wait_max"]) > 0
try:
  model.fit(dataset, verbose=0, callbacks=[rtf.keras.RestoreDataset("nowhere")])
except RuntimeError as error:
  print(error)
"""


def test_with_keras_on_jax():
  pytest.importorskip("jax")
  result = subprocess.run(
      [sys.executable, "-c", JAX], env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True, timeout=300)
  assert result.returncode == 0, result.stderr
  assert "works with Keras' TensorFlow backend, and this is jax" in result.stdout
