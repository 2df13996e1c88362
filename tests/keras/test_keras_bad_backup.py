"""`rtf.keras.BackupAndRestore` refuses backups of another fit, damaged backups, and state that it cannot save. A
refusal changes nothing."""

import contextlib
import shutil
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.fits import EPOCHS, NUM_BUILT, Recorder, Steps, assert_same, interrupted
from support.fits import make_dataset, make_model, not_torch, only_tensorflow, two_stages

pytestmark = cases.slow


@pytest.fixture(scope="module", name="backups")
def fixture_backups(tmp_path_factory):
  """Backups of a fit that was interrupted in its second epoch. The key says whether the whole epoch had been read."""
  return {ahead: interrupted(tmp_path_factory.mktemp("fit"), ahead=ahead) for ahead in (False, True)}


@pytest.fixture(name="backup")
def fixture_backup(request, backups, tmp_path):
  return shutil.copytree(backups[getattr(request, "param", False)], tmp_path / "backup")


def assert_refused(error, message, backup, model=None, dataset=None, epochs=EPOCHS, **how):
  """Checks the error, and that neither the model nor the backup is changed."""
  model, dataset = model or make_model(), dataset or make_dataset()
  weights, files = model.get_weights(), contents(backup)
  with pytest.raises(error, match=message):
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=[rtf.keras.BackupAndRestore(backup)], **how)
  assert_same(weights, model.get_weights())
  assert contents(backup) == files


def contents(directory):
  return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
  "backup, change, error, message",
  [
    (False, {"seed": 8}, tf.errors.InvalidArgumentError, "another pipeline: seed .* 8, .* 7 "),
    (False, {"r": 2}, tf.errors.InvalidArgumentError, "another pipeline: r .* 2, .* 3 "),
    (False, {"n": 19}, tf.errors.InvalidArgumentError, "another pipeline: num_samples .* 19, .* 20 "),
    (True, {"r": 2, "ahead": True}, tf.errors.InvalidArgumentError, "another pipeline: r .* 2, .* 3 "),
    (True, {"seed": 8, "ahead": True}, tf.errors.InvalidArgumentError, "another pipeline: seed .* 8, .* 7 "),
    (False, {"batch": 5}, ValueError, "backup_dir .*steps 5, but this one has 4"),
  ],
  indirect=["backup"],
)
def test_a_backup_of_another_dataset_is_refused(backup, change, error, message):
  assert_refused(error, message, backup, dataset=make_dataset(**change))


def test_a_backup_of_other_stages_is_refused(backup):
  assert_refused(
    ValueError,
    r"another pipeline, with the stages \['_RefurbishDataset'\], but this one has \['_RefurbishDataset', ",
    backup,
    dataset=two_stages(),
  )


@not_torch
def test_a_backup_of_other_executions_is_refused(backup):
  assert_refused(ValueError, "steps_per_execution 1, but this one has 5", backup, make_model(steps_per_execution=5))


def test_a_backup_of_another_model_is_refused_and_nothing_changed(backup):
  indices, x = keras.Input([], name="index", dtype="int64"), keras.Input([4], name="x")
  larger = keras.Model({"index": indices, "x": x}, keras.layers.Dense(1)(keras.layers.Dense(7)(Recorder()(x, indices))))
  larger.compile("adam", "mse", metrics=["mae"])
  assert_refused(ValueError, "backup_dir .*model whose weights", backup, larger)
  model, dataset = make_model(optimizer="sgd"), make_dataset()
  assert_refused(ValueError, "backup_dir .*model whose optimizer", backup, model, dataset)
  # The stage is not set back, and the next fit begins where it would have begun.
  assert len(rtf.stats(dataset)[0].epochs) == NUM_BUILT
  assert len(model.fit(dataset, epochs=1, verbose=0).history["loss"]) == 1


@cases.each_value
@pytest.mark.parametrize("name", ["state.json", "variables.index", "variables.data-00000-of-00001"])
@pytest.mark.parametrize("change", ["truncate", "remove"])
def test_a_damaged_backup_is_refused(backup, name, change):
  file = backup / "refurbish_tf_backup" / name
  content = file.read_bytes()
  file.unlink()
  if change == "truncate":
    file.write_bytes(content[:20])  # Cut near the beginning, because much of the file is only names.
  assert_refused(ValueError, "backup_dir.* is damaged ", backup)


def test_two_at_once_are_refused(tmp_path):
  callbacks = [rtf.keras.BackupAndRestore(tmp_path / name) for name in "ab"]
  with pytest.raises(RuntimeError, match="^callbacks .*BackupAndRestore"):
    make_model().fit(make_dataset(), verbose=0, callbacks=callbacks)


def test_epochs_and_versions_that_do_not_fit(backup):
  assert_refused(ValueError, "backup_dir .*epoch 1 .*epochs=1", backup, epochs=1)
  state = backup / "refurbish_tf_backup" / "state.json"
  text = state.read_text()
  for other in (3, 5):
    state.write_text(text.replace('"format": 4', f'"format": {other}'))
    assert_refused(
      ValueError, f"backup_dir .*a backup of format {other}, .*reads format 4. Use the one that wrote it", backup
    )
  state.write_text(text.replace('"epoch": 1', '"epoch": 0'))
  assert_refused(ValueError, "backup_dir .*epoch 0, .*epoch 2.*initial_epoch", backup, initial_epoch=2)


def two_fits(first, second, stop=None):
  """Returns the weights after a program of two fits. The second one is interrupted at step `stop`."""
  model, dataset = make_model(), make_dataset()
  how = {"delete_checkpoint": first == second}
  if first is not None:
    model.fit(dataset, epochs=2, verbose=0, callbacks=[rtf.keras.BackupAndRestore(first, **how)])
  callbacks = [rtf.keras.BackupAndRestore(second, **how), Steps({}, stop)]
  with contextlib.suppress(KeyboardInterrupt):
    model.fit(dataset, initial_epoch=2, epochs=EPOCHS, verbose=0, callbacks=callbacks)
  return model.get_weights()


def test_error_for_two_fits_on_one_directory_names_remedies(tmp_path):
  unbroken = two_fits(tmp_path / "a", tmp_path / "b")
  two_fits(tmp_path / "one", tmp_path / "one", stop=7)
  with pytest.raises(
    ValueError,
    match=(
      r"backup_dir .*epoch 3 \(from 0\).*epochs=2.*skip the fits before that one.*its own "
      r"directory.*delete_checkpoint=False"
    ),
  ):
    two_fits(tmp_path / "one", tmp_path / "one")
  two_fits(tmp_path / "c", tmp_path / "d", stop=7)
  for first, second in ((None, tmp_path / "one"), (tmp_path / "c", tmp_path / "d")):
    assert_same(two_fits(first, second), unbroken)


def test_a_pipeline_that_cannot_be_saved_says_so_at_the_first_step(tmp_path):
  generated = tf.data.Dataset.from_generator(
    lambda: iter([(np.zeros(4), 0.0)]), output_signature=(tf.TensorSpec([4]), tf.TensorSpec([]))
  )
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  with pytest.raises(tf.errors.FailedPreconditionError, match="(?s)stateful.*experimental_external_state_policy"):
    model.fit(generated.batch(1), verbose=0, callbacks=[rtf.keras.BackupAndRestore(tmp_path / "backup")])
  assert not (tmp_path / "backup" / "refurbish_tf_backup").exists()


def test_stateful_random_functions_are_saved_with_a_warning(tmp_path):
  """Most users write functions like these: Keras' random layers, tf.image.random_*."""
  flip = keras.layers.RandomFlip()
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")

  def fit(final_fn):
    images = tf.data.Dataset.range(8).map(lambda x: tf.cast(tf.fill([4, 4, 1], x), tf.float32))
    dataset = images.refurbish(lambda x: x, final_fn, r=2, seed=1).map(lambda x: (x[0, 0], 1.0)).batch(2)
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[rtf.keras.BackupAndRestore(tmp_path / "backup")])

  def nested(x):
    return tf.cond(x[0, 0, 0] > 3, lambda: tf.image.random_flip_left_right(x), lambda: x)

  def stateful(x, seed):
    # As in tf.image.resize_with_pad, assertions are control dependencies.
    with tf.control_dependencies([tf.debugging.assert_less(x, 300.0), calls.assign_add(1)]):
      x = tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), x.shape)
    return tf.image.stateless_random_brightness(x, 0.1, seed)

  calls = tf.Variable(0)
  for final_fn, operation in [
    (lambda x: flip(x, training=True), "StatelessRandomUniformV2 with a seed from a variable"),
    (lambda x: tf.image.random_brightness(x, 0.1), "RandomUniform"),
    (nested, "RandomUniform"),
  ]:
    with pytest.warns(UserWarning, match=f"its own random numbers, with {operation}\\.") as told:
      fit(final_fn)
    assert len([warning for warning in told if "draws" in str(warning.message)]) == 1
  with warnings.catch_warnings():
    warnings.filterwarnings("error", message=".*draws")
    fit(stateful)  # An assertion, a counter and a Python call are not random draws.
  assert int(calls) == 8


@only_tensorflow
def test_a_distribution_strategy_is_refused(tmp_path):
  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
  dataset = tf.data.Dataset.range(8).map(lambda x: (tf.cast([x], tf.float32), 1.0)).batch(2)
  with pytest.raises(RuntimeError, match="DistributedIterator.* lose the position in the data"):
    model.fit(dataset, verbose=0, callbacks=[rtf.keras.BackupAndRestore(tmp_path / "backup")])


@pytest.mark.parametrize("name", ["file", "file/backup"])
def test_a_file_as_backup_dir_is_refused_at_once(tmp_path, name):
  (tmp_path / "file").write_text("mine")
  with pytest.raises(ValueError, match=f"^backup_dir must be .*got .*{name}.*, but {tmp_path}/file is a file. Pass"):
    rtf.keras.BackupAndRestore(tmp_path / name)
  assert (tmp_path / "file").read_text() == "mine"
