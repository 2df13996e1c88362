"""`rtf.keras.BackupAndRestore`: training continues where it was stopped or killed, at any time."""

import contextlib
import gc
import itertools
import os
import re
import shutil

import keras
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.keras import step
from refurbish_tf.keras.backup import Backup
from support import cases
from support.fits import BACKEND, EPOCHS, Steps, assert_epochs_whole, assert_same, fit, interrupted
from support.fits import make_dataset, make_model, not_torch, only_tensorflow, train, two_stages

pytestmark = cases.slow


@pytest.fixture(scope="module", name="unbroken")
def fixture_unbroken(tmp_path_factory):
  """Returns samples, history and weights of an unbroken fit. They do not depend on the source or on how it is read."""
  trained = {}
  history, weights = train(tmp_path_factory.mktemp("unbroken") / "none", trained)
  assert_epochs_whole(trained)
  return trained, history, weights


@pytest.fixture(scope="module", name="interrupted_fit")
def fixture_interrupted_fit(tmp_path_factory):
  return interrupted(tmp_path_factory.mktemp("interrupted"), stop=9)


@pytest.fixture(name="backup")
def fixture_backup(interrupted_fit, tmp_path):
  """The backup of a fit that was stopped before the last step of its second epoch."""
  return shutil.copytree(interrupted_fit, tmp_path / "backup")


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # A stream whose length Keras does not know.
@pytest.mark.parametrize(
  "how",
  [
    {"save_freq": "epoch"},
    {"save_freq": 2, "symbolic": True, "steps": 5, "repeat": True},
    pytest.param({"save_freq": 3, "compiled": {"steps_per_execution": 5}}, marks=not_torch),
    {"save_freq": 2, "kind": "stream"},
    *(
      pytest.param(how, marks=cases.only_exhaustive)
      for how in (
        {"save_freq": 1},
        {"save_freq": 2, "symbolic": True},
        {"save_freq": 2, "kind": "stream of known length"},
        {"save_freq": 3, "steps": 5, "repeat": True},
        {"save_freq": 1, "ahead": True},
        {"save_freq": 1, "steps": 5, "repeat": True, "symbolic": True},
      )
    ),
  ],
  ids=str,
)
def test_a_stopped_fit_resumes_as_if_it_had_not_stopped(tmp_path, unbroken, how):
  expected, history, weights = unbroken
  if BACKEND == "torch" and "steps" in how:
    # If steps are given, Keras makes fewer iterators, each of which draws a number, so the unbroken fit is repeated.
    history, weights = train(tmp_path / "none", {}, **how)
  # Stops are counted in executions; with five steps per execution an epoch has one.
  for stops in cases.some([[1], [2, 1]] if "compiled" in how else [[1], [5, 1, 1, 8], [7, 3], [7]], 1):
    backup, trained = tmp_path / "backup", {}
    for stop in stops:
      assert train(backup, trained, stop, **how)[0] is None
    found, resumed = train(backup, trained, **how)
    assert_epochs_whole(trained)
    assert not backup.exists()
    if "kind" in how:
      # With a stream, the order of fresh samples depends on the contents of the store.
      continue
    assert trained == expected or "compiled" in how
    assert list(itertools.chain(*trained.values())) == list(itertools.chain(*expected.values()))
    assert_same(resumed, weights)
    for name, values in found.items():
      assert values == history[name][-len(values) :]


@pytest.mark.parametrize("save_freq", ["epoch", 100])
def test_a_fit_killed_in_its_first_epoch_repeats_that_epoch(tmp_path, unbroken, save_freq):
  """The store on disk is warm, and by itself would continue with the next epoch. The fit is killed twice in its first
  epoch, then in its second."""
  trained = {}
  for stop in (2, 1, 7 if save_freq == 100 else 3, None):
    _, weights = train(tmp_path / "backup", trained, stop, save_freq=save_freq, store=str(tmp_path / "store"))
    gc.collect()
    assert (tmp_path / "backup").exists() == (stop is not None)
  assert trained == unbroken[0]
  assert_same(weights, unbroken[2])


@pytest.mark.parametrize("inputs", [[], [keras.Input([4])]], ids=["unbuilt", "built"])
def test_an_interrupted_fit_resumes_with_the_same_model_object(tmp_path, inputs):
  """In a notebook, the model already has all the variables that the first step creates."""

  def make():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([*inputs, keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model

  def fit(*callbacks):
    dataset = make_dataset().map(lambda x, y: (x["x"], y))
    model.fit(dataset, epochs=1, verbose=0, callbacks=[rtf.keras.BackupAndRestore(tmp_path / "backup"), *callbacks])
    return model.get_weights()

  model = make()
  expected = fit()
  model = make()
  with pytest.raises(KeyboardInterrupt):
    fit(stop_at(2))
  assert_same(fit(), expected)


def test_a_backup_restores_stages_and_seeds_after_a_fully_read_epoch(tmp_path):
  def drawn(number):
    tf.random.set_seed(number)
    return two_stages(seed=None)

  def seeds_of(dataset):
    return [int(seed) for seed in re.findall(r"\bseed (-?\d+)", rtf.describe(dataset))]

  first, second, trained, unbroken = drawn(1), drawn(2), {}, {}
  assert not set(seeds_of(first)) & set(seeds_of(second)) and len(set(seeds_of(first))) == 2
  train(tmp_path / "backup", trained, 8, save_freq=1, dataset=first)
  train(tmp_path / "backup", trained, dataset=second)
  assert seeds_of(first) == seeds_of(second)
  train(tmp_path / "none", unbroken, dataset=drawn(1))
  assert trained == unbroken


def test_nothing_is_left_behind_by_an_interrupted_fit(tmp_path):
  """The next fit, with another callback or none, does not continue the interrupted one."""
  model, trained = make_model(), {}
  logger = rtf.keras.RefurbishLogger(make_dataset())
  with pytest.raises(KeyboardInterrupt):
    fit(model, rtf.keras.BackupAndRestore(tmp_path / "first", save_freq=1), logger, Steps(trained, stop=3), epochs=2)
  saved = (tmp_path / "first" / "refurbish_tf_backup" / "state.json").read_text()
  model.train_on_batch(*next(make_dataset().as_numpy_iterator()))
  for callbacks in ([], [rtf.keras.BackupAndRestore(tmp_path / "second", save_freq=1)], [logger], []):
    fit(model, *callbacks, epochs=1)
    assert (tmp_path / "first" / "refurbish_tf_backup" / "state.json").read_text() == saved
  assert not isinstance(model.train_function, step._Step)
  assert not (tmp_path / "second").exists()


def stop_at(step):
  """Stops training at this step."""

  def on_train_batch_end(batch, logs):
    del batch, logs
    if next(steps) == step:
      raise KeyboardInterrupt

  steps = itertools.count(1)
  return keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)


@only_tensorflow
def test_an_unbuilt_model_resumes(tmp_path):
  """The model has its own training step and metrics."""

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

  def run(backup, *callbacks):
    keras.utils.set_random_seed(1)
    model = Own()
    model(tf.zeros([1, 4]))
    model.compile("adam")
    return model.fit(
      make_dataset(), epochs=3, verbose=0, callbacks=[rtf.keras.BackupAndRestore(backup, save_freq=2), *callbacks]
    ).history, model.get_weights()

  expected, weights = run(tmp_path / "none")
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / "backup", stop_at(8))
  history, resumed = run(tmp_path / "backup")
  assert_same(resumed, weights)
  assert history["mean"][-1] == expected["mean"][-1]


@only_tensorflow
def test_metrics_that_cannot_be_built_before_restoring_cause_a_warning(tmp_path):
  """The model's own training step takes four components; Keras supports three."""

  class Own(keras.Sequential):
    def train_step(self, data):
      return super().train_step(data[:2])

  def fit(*callbacks):
    model = Own([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    dataset = make_dataset().map(lambda x, y: (x["x"], y, y, y))
    return model.fit(
      dataset, epochs=2, verbose=0, callbacks=[rtf.keras.BackupAndRestore(tmp_path / "backup", save_freq=1), *callbacks]
    ).history

  with pytest.raises(KeyboardInterrupt):
    fit(stop_at(4))
  with pytest.warns(UserWarning, match="metrics .*ValueError"):
    assert len(fit()["mae"]) == 2


@pytest.mark.parametrize("reverse, metrics", [(False, ["mae"]), (True, ["mse"])])
def test_with_the_logger_the_order_of_the_callbacks_is_the_same(backup, reverse, metrics):
  """Steps that are skipped because they are done do not count as steps without a wait. Other metrics start again."""
  dataset = make_dataset()
  callbacks = [rtf.keras.BackupAndRestore(backup), rtf.keras.RefurbishLogger(dataset)]
  callbacks = callbacks[::-1] if reverse else callbacks
  history = make_model(metrics=metrics).fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks).history
  assert history["input_wait_p50"][0] > 0  # One step of the resumed epoch was left.
  for name in ("loss", "refurbish_fresh", *metrics):
    assert len(history[name]) == EPOCHS - 1


def test_a_fit_ended_by_stop_training_keeps_its_backup(tmp_path, unbroken, monkeypatch):
  """A handler of SIGTERM does so before a machine is shut down. The program may also change its directory."""

  class Stop(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
      os.chdir("/")

    def on_train_batch_end(self, batch, logs=None):
      if self.model.optimizer.iterations >= 8:
        self.model.stop_training = True

  trained = {}
  monkeypatch.chdir(tmp_path)
  fit(make_model(), rtf.keras.BackupAndRestore("backup", save_freq=3), Steps(trained), Stop())
  assert (tmp_path / "backup" / "refurbish_tf_backup").is_dir()
  (tmp_path / "backup" / "mine").mkdir()
  _, resumed = train(tmp_path / "backup", trained)
  assert trained == unbroken[0]
  assert_same(resumed, unbroken[2])
  # Other files in the directory stay.
  assert [path.name for path in (tmp_path / "backup").iterdir()] == ["mine"]


def before_each_change(happen, setattr=setattr):
  """Calls `happen` before Python renames or removes a file or a directory."""
  for name in ("rename", "unlink", "rmdir"):

    def change(*args, function=getattr(os, name), **how):
      happen()
      return function(*args, **how)

    setattr(os, name, change)


@pytest.mark.parametrize("saves", [False, True])
def test_a_fit_killed_while_it_deletes_or_saves_its_backup_leaves_a_whole_one(backup, tmp_path, monkeypatch, saves):
  """A fit that is killed while it deletes its backup may also leave none."""
  files = {path.name for path in (backup / "refurbish_tf_backup").iterdir()}
  model, iterator = make_model(), iter(make_dataset())
  left = 0

  def happen():
    nonlocal left
    left -= 1
    if left == 0:
      raise KeyboardInterrupt

  before_each_change(happen, monkeypatch.setattr)
  for number in itertools.count(1):
    copy = tmp_path / f"copy {number}"
    shutil.copytree(backup, copy)
    left = number
    try:
      if saves:
        new = Backup(copy)
        new.save_position(iterator)
        new.save(model, {})
      else:
        Backup(copy).delete()
      break
    except KeyboardInterrupt:
      left = 0
      path = Backup(copy)._path()
      if saves or path is not None:
        assert {file.name for file in path.iterdir()} == files
  assert number > len(files) and copy.exists() == saves


def test_an_interrupted_resumed_fit_does_not_affect_the_next_fit(backup):
  model = make_model()
  with pytest.raises(KeyboardInterrupt):
    fit(model, rtf.keras.BackupAndRestore(backup), Steps({}, stop=1))
  assert len(fit(model, epochs=2).history["loss"]) == 2


# Processes that are killed. ----------------------------------------------------


@pytest.mark.parametrize("name", ["state.json", "variables.data-00000-of-00001", "iterator.index"])
def test_the_previous_backup_is_used_if_the_latest_is_damaged(tmp_path, unbroken, name):
  def weights_after(stop, trained):
    model = make_model()
    with contextlib.suppress(KeyboardInterrupt):
      fit(model, rtf.keras.BackupAndRestore(tmp_path, save_freq=1, double_checkpoint=True), Steps(trained, stop))
    return model.get_weights()

  weights_after(7, {})
  file = tmp_path / "refurbish_tf_backup" / name
  content = file.read_bytes()
  file.write_bytes(content[:20] if name != "variables.data-00000-of-00001" else bytes(len(content)))
  trained = {}
  with pytest.warns(UserWarning, match="is damaged. fit resumes from the one before it"):
    assert_same(weights_after(None, trained), unbroken[2])
  # The seventh step was interrupted, and the latest backup is the one before that step.
  assert min(trained) == (1, 0)


def test_a_kept_backup_allows_more_epochs(tmp_path, unbroken):
  for epochs in (EPOCHS - 1, EPOCHS):
    model = make_model()
    fit(model, rtf.keras.BackupAndRestore(tmp_path, delete_checkpoint=False), epochs=epochs)
  assert_same(model.get_weights(), unbroken[2])
