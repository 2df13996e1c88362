"""What a user of Keras sees: whole epochs of known length, no warnings, and partial_fn called no more often than promised."""
import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import warnings

import keras
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases

N = 50_000
BATCH = 128
STEPS = 391  # Of N / BATCH, rounded up.
EPOCHS = 3

# Said of every pipeline, also of one without a refurbish stage:
HARMLESS = (
    # Keras 3.15 of every tf.data.Dataset, unless fit is given shuffle=False.
    "`shuffle=True` was passed, but will be ignored since the data `x` was provided as a tf.data.Dataset.",
    # TensorFlow counts over all models of the process, of which other tests have made many.
    "triggered tf.function retracing",
)


def log_warnings(text):
  """The lines of TensorFlow's C++ log that are warnings or worse."""
  return [line for line in text.splitlines() if re.match(r"[WEF]\d{4} |.*: [WEF] (tensorflow|external)/", line)]


def harmful(messages):
  return [message for message in messages if not any(known in message for known in HARMLESS)]


class Output:
  """What was printed, and every warning: of Python, of Python's loggers and of the C++ log."""

  def __init__(self):
    self.printed = ""
    self.warnings = []


@contextlib.contextmanager
def recorded(capfd):
  output = Output()
  handler = logging.Handler(logging.WARNING)
  handler.emit = lambda record: output.warnings.append(record.getMessage())
  loggers = [logging.getLogger(name) for name in ("", "absl", "tensorflow")]
  capfd.readouterr()
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for logger in loggers:
      logger.addHandler(handler)
    try:
      yield output
    finally:
      for logger in loggers:
        logger.removeHandler(handler)
  output.printed, errors = capfd.readouterr()
  output.warnings = harmful(
      [*output.warnings, *(str(warning.message) for warning in caught), *log_warnings(errors)])


def assert_shows(printed, steps, epochs):
  """The progress bar knew the number of batches from the first one to the last, in every epoch."""
  assert printed.count("Epoch ") == epochs
  assert "Unknown" not in printed
  shown = re.findall(r"(\d+)/(\d+)", re.sub(r"Epoch \d+/\d+|\x1b\[[\d;]*m", "", printed))
  assert {total for _, total in shown} == {str(steps)}
  assert sum(step == str(steps) for step, _ in shown) >= epochs


def make_model():
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  return model


class Training:
  """A pipeline of N samples that counts how often each is prepared and used. Counted in variables: that is cheap."""

  def __init__(self, source=None, n=N, **options):
    self.n = n
    self.prepared = tf.Variable(tf.zeros([n], tf.int64))
    self.used = tf.Variable(tf.zeros([n], tf.int64))
    source = tf.data.Dataset.range(n) if source is None else source
    self.stage = source.refurbish(self.partial_fn, self.final_fn, seed=1, **options)

  def partial_fn(self, index):
    self.prepared.scatter_nd_add([[index]], [1])
    return index

  def final_fn(self, index):
    self.used.scatter_nd_add([[index]], [1])
    value = tf.reshape(tf.cast(index, tf.float32) / self.n, [1])
    return value, value

  @property
  def calls(self):
    return int(tf.reduce_sum(self.prepared))

  def assert_whole(self, epochs):
    assert set(self.used.numpy()) == {epochs}

  @property
  def stats(self):
    stage, = rtf.stats(self.stage)
    return stage


@pytest.mark.parametrize("prefetch", [False, True])
def test_fit(capfd, prefetch):
  """fit shows 391/391 in each epoch, warns of nothing and calls partial_fn N + (epochs - 1) * N / r times."""
  training = Training(r=2)
  train = training.stage.batch(BATCH)
  if prefetch:
    train = train.prefetch(tf.data.AUTOTUNE)
  with recorded(capfd) as output:
    make_model().fit(train, epochs=EPOCHS)
  assert_shows(output.printed, STEPS, EPOCHS)
  assert not output.warnings
  assert training.calls == N + (EPOCHS - 1) * N // 2
  training.assert_whole(EPOCHS)
  # Keras makes an iterator after the last epoch, too, which takes none.
  assert [epoch.fresh for epoch in training.stats.epochs] == [N] + [N // 2] * (EPOCHS - 1)


def test_fit_with_fractional_r(capfd):
  training = Training(n=1000, r=1.7)
  with recorded(capfd) as output:
    make_model().fit(training.stage.batch(100), epochs=6)
  assert_shows(output.printed, 10, 6)
  assert not output.warnings
  assert training.calls == 1000 + int(5 * 1000 / 1.7)
  training.assert_whole(6)


def test_fit_with_validation_data(capfd):
  """Reading validation data in between changes nothing, also when they are refurbished themselves."""
  training = Training(n=10_000, r=2)
  validation = Training(n=1000, r=4)
  with recorded(capfd) as output:
    make_model().fit(training.stage.batch(100), epochs=2, validation_data=validation.stage.batch(100))
  assert_shows(output.printed, 100, 2)
  assert "val_loss" in output.printed
  assert not output.warnings
  assert training.calls == 10_000 + 5_000
  training.assert_whole(2)
  assert validation.calls == 1000 + 1000 // 4
  validation.assert_whole(2)


@pytest.mark.parametrize("batch_first", [False, True])
def test_fit_with_repeat_and_steps_per_epoch(capfd, batch_first):
  """Epochs of .repeat() are epochs of the stage, and no input runs out."""
  n, batch, epochs = 6400, 64, 3
  training = Training(n=n, r=2)
  train = training.stage.batch(batch).repeat() if batch_first else training.stage.repeat().batch(batch)
  with recorded(capfd) as output:
    make_model().fit(train, epochs=epochs, steps_per_epoch=n // batch)
  assert_shows(output.printed, n // batch, epochs)
  assert not output.warnings
  # The prefetch at the end that tf.data puts there has gone on into the epoch after the last.
  assert [epoch.fresh for epoch in training.stats.epochs[:epochs]] == [n] + [n // 2] * (epochs - 1)
  assert [epoch.fresh + epoch.cached for epoch in training.stats.epochs[:epochs]] == [n] * epochs
  assert n + (epochs - 1) * n // 2 <= training.calls <= n + epochs * n // 2


def test_fit_with_repeat_calls_partial_fn_exactly(capfd):
  """As above, where nothing reads ahead: not one call too many."""
  n, batch, epochs = 1280, 64, 3
  prepared = tf.Variable(0)

  def partial_fn(index):
    prepared.assign_add(1)
    value = tf.reshape(tf.cast(index, tf.float32) / n, [1])
    return value, value

  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False
  train = tf.data.Dataset.range(n).refurbish(partial_fn, r=4, seed=1).batch(batch).repeat().with_options(options)
  with recorded(capfd) as output:
    make_model().fit(train, epochs=epochs, steps_per_epoch=n // batch)
  assert not output.warnings
  assert int(prepared) == n + (epochs - 1) * n // 4


def test_fit_with_fewer_steps_than_an_epoch(capfd):
  """Keras stops in the middle of an epoch and goes on there in its next one: all samples come, equally often."""
  training = Training(n=1000, r=2)
  with recorded(capfd) as output:
    make_model().fit(training.stage.batch(100), epochs=4, steps_per_epoch=5)
  assert not output.warnings
  assert_shows(output.printed, 5, 4)
  training.assert_whole(2)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras on any dataset of unknown length.
def test_fit_on_a_source_of_unknown_length(capfd):
  """The length is known after the first epoch: the next fit shows it from its first batch."""
  source = tf.data.Dataset.range(1000).filter(lambda index: True)
  training = Training(source, n=1000, r=2)
  train = training.stage.batch(100)
  model = make_model()
  model.fit(train, epochs=2, shuffle=False)
  training.assert_whole(2)
  with recorded(capfd) as output:
    model.fit(train, epochs=2)
  assert not output.warnings
  assert_shows(output.printed, 10, 2)
  training.assert_whole(4)
  assert training.calls == 1000 + 3 * 1000 // 2


def test_fit_reads_a_cached_stream_to_its_end(capfd):
  """Keras takes as many batches as there are and never asks for one more; a cache() upstream must be kept all the same."""
  read = tf.Variable(0)

  def count(index):
    read.assign_add(1)
    return index

  # The cache does not know the length of its input, so only the end tells it that it is complete.
  source = tf.data.Dataset.range(1024).map(count).filter(lambda index: True).cache()
  source = source.apply(tf.data.experimental.assert_cardinality(1024))
  training = Training(source, n=1024, r=2, num_parallel_calls=None)
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False  # It might read to the end by chance.
  with recorded(capfd) as output:
    make_model().fit(training.stage.batch(128).with_options(options), epochs=4)
  assert not output.warnings
  assert int(read) == 1024
  training.assert_whole(4)


def test_evaluate_and_predict(capfd):
  """predict and evaluate read whole epochs, too."""
  training = Training(n=1000, r=2)
  model = make_model()
  with recorded(capfd) as output:
    model.evaluate(training.stage.batch(100), verbose=0)
    predictions = model.predict(training.stage.map(lambda value, _: value).batch(100), verbose=0)
  assert not output.warnings
  assert predictions.shape == (1000, 1)
  training.assert_whole(2)


JAX_PROGRAM = """
import json
import keras
import tensorflow as tf
import refurbish_tf as rtf

N, EPOCHS = 1024, 3


def final_fn(index):
  # Sums of these tell whether every sample came once; float32 holds them exactly.
  seen = tf.cast(tf.stack([1, index, index * index % 251]), tf.float32)
  return seen / N, seen


class Seen(keras.metrics.Sum):
  def __init__(self, column):
    super().__init__(name=f"seen_{column}")
    self.column = column

  def update_state(self, y_true, y_pred, sample_weight=None):
    super().update_state(y_true[:, self.column])


def train_on(dataset):
  model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
  model.compile("sgd", "mse", metrics=[Seen(0), Seen(1), Seen(2)])
  return model.fit(dataset, epochs=EPOCHS, shuffle=False).history


dataset = tf.data.Dataset.range(N).refurbish(tf.identity, final_fn, r=2, seed=1).batch(100).prefetch(2)
history = train_on(dataset)
stage, = rtf.stats(dataset)
print("RESULT", json.dumps({
    "backend": keras.backend.backend(),
    "epochs": [[epoch.fresh, epoch.cached] for epoch in stage.epochs],
    "seen": [history[f"seen_{column}"] for column in range(3)]}))
"""


@cases.only_exhaustive  # In test_keras_logger.py a fit with JAX has a logger, too.
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed: `pip install jax` and run again")
def test_fit_with_jax():
  """Keras with another backend trains from the same dataset: on every sample once an epoch."""
  path = [str(pathlib.Path(rtf.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
  environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)}
  result = subprocess.run(
      [sys.executable, "-c", JAX_PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=False)
  assert result.returncode == 0, result.stderr
  found = json.loads(re.search(r"RESULT (.*)", result.stdout)[1])
  assert found["backend"] == "jax"
  n, epochs = 1024, 3
  for column, each in enumerate([lambda i: 1, lambda i: i, lambda i: i * i % 251]):
    assert found["seen"][column] == [sum(map(each, range(n)))] * epochs
  # With JAX Keras builds the model on a batch of its own, which is an epoch that was stopped early.
  begun = [fresh + cached for fresh, cached in found["epochs"]]
  assert begun[-epochs:] == [n] * epochs and len(begun) <= epochs + 1
  assert found["epochs"][-1] == [n // 2, n // 2]
  assert "Unknown" not in result.stdout
  assert not harmful(line for line in result.stderr.splitlines() if "Warning" in line or "refurbish" in line.lower())
