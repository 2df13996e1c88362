"""`fit` of a stage: whole epochs of known length, no warnings, and no more calls of partial_fn than promised."""

import contextlib
import logging
import re
import types
import warnings

import keras
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.datasets import without_prefetch

# Warnings for every pipeline, even without a refurbish stage:
HARMLESS = (
  # Keras 3.15, for every tf.data.Dataset, unless fit gets shuffle=False.
  "`shuffle=True` was passed, but will be ignored since the data `x` was provided as a tf.data.Dataset.",
  # TensorFlow counts all models of the process, and other tests have made many.
  "triggered tf.function retracing",
  # Keras 3.12, when variables are converted to arrays.
  "__array__ implementation doesn't accept a copy keyword",
)


def log_warnings(text):
  """Returns the lines of TensorFlow's C++ log that are warnings or worse."""
  return [line for line in text.splitlines() if re.match(r"[WEF]\d{4} |.*: [WEF] (tensorflow|external)/", line)]


def harmful(messages):
  return [message for message in messages if not any(known in message for known in HARMLESS)]


@contextlib.contextmanager
def recorded(capfd):
  """Records printed text and all warnings: from Python, Python's loggers and the C++ log."""
  output = types.SimpleNamespace(printed="", warnings=[])
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
  output.warnings = harmful([*output.warnings, *(str(warning.message) for warning in caught), *log_warnings(errors)])


def fit(capfd, train, steps, epochs, model=None, **how):
  """Checks that the progress bar always knows the number of batches, and that there are no warnings."""
  with recorded(capfd) as output:
    (model or make_model()).fit(train, epochs=epochs, **how)
  assert not output.warnings
  assert output.printed.count("Epoch ") == epochs
  assert "Unknown" not in output.printed
  shown = re.findall(r"(\d+)/(\d+)", re.sub(r"Epoch \d+/\d+|\x1b\[[\d;]*m", "", output.printed))
  assert {total for _, total in shown} == {str(steps)}
  assert sum(step == str(steps) for step, _ in shown) >= epochs
  return output.printed


def make_model():
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  return model


class Training:
  """A pipeline of n samples that counts how often each is prepared and used. Variables are a cheap way to count."""

  def __init__(self, n, source=None, **options):
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
    (stage,) = rtf.stats(self.stage)
    return stage


@pytest.mark.parametrize("r, prefetch", [(2, False), (1.7, True)])
def test_fit(capfd, r, prefetch):
  """partial_fn is called N + (epochs - 1) * N / r times."""
  n, epochs = 5000, 3
  training = Training(n, r=r)
  train = training.stage.batch(128)
  fit(capfd, train.prefetch(tf.data.AUTOTUNE) if prefetch else train, 40, epochs)
  assert training.calls == n + int((epochs - 1) * n / r)
  training.assert_whole(epochs)
  # Keras also creates an iterator after the last epoch, but reads nothing from it.
  fresh = [epoch.fresh for epoch in training.stats.epochs]
  assert len(fresh) == epochs and sum(fresh) == training.calls and fresh[0] == n and fresh[1] == int(n / r)


def test_fit_with_validation_data(capfd):
  """Reading validation data in between changes nothing, even if it is refurbished."""
  training, validation = Training(1000, r=2), Training(200, r=4)
  printed = fit(capfd, training.stage.batch(50), 20, 2, validation_data=validation.stage.batch(50))
  assert "val_loss" in printed
  assert training.calls == 1000 + 500
  training.assert_whole(2)
  assert validation.calls == 200 + 200 // 4
  validation.assert_whole(2)


@pytest.mark.parametrize("batch_first, ahead", [(False, True), (True, False)])
def test_fit_with_repeat_and_steps_per_epoch(capfd, batch_first, ahead):
  """Epochs of .repeat() are epochs of the stage, and the input never runs out. Without prefetch, no more samples are
  prepared than necessary."""
  n, batch, epochs = 1280, 64, 3
  training = Training(n, r=4)
  train = training.stage.batch(batch).repeat() if batch_first else training.stage.repeat().batch(batch)
  fit(capfd, train if ahead else without_prefetch(train), n // batch, epochs, steps_per_epoch=n // batch)
  # The prefetch at the end has also read from the epoch after the last one.
  assert [epoch.fresh for epoch in training.stats.epochs[:epochs]] == [n] + [n // 4] * (epochs - 1)
  assert [epoch.fresh + epoch.cached for epoch in training.stats.epochs[:epochs]] == [n] * epochs
  calls = n + (epochs - 1) * n // 4
  assert calls <= training.calls <= calls + n // 4 * ahead


def test_fit_with_fewer_steps_than_an_epoch(capfd):
  """Keras stops in the middle of an epoch and continues there in its next one, so all samples come equally often."""
  training = Training(1000, r=2)
  fit(capfd, training.stage.batch(100), 5, 4, steps_per_epoch=5)
  training.assert_whole(2)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras' warning for any dataset of unknown length.
def test_fit_on_a_source_of_unknown_length(capfd):
  """The length is known after the first epoch, so the next fit shows it from its first batch."""
  training = Training(1000, tf.data.Dataset.range(1000).filter(lambda index: True), r=2)
  train, model = training.stage.batch(100), make_model()
  model.fit(train, epochs=2, shuffle=False)
  training.assert_whole(2)
  fit(capfd, train, 10, 2, model)
  training.assert_whole(4)
  assert training.calls == 1000 + 3 * 1000 // 2


def test_evaluate_and_predict(capfd):
  """predict and evaluate also read whole epochs."""
  training = Training(1000, r=2)
  model = make_model()
  with recorded(capfd) as output:
    model.evaluate(training.stage.batch(100), verbose=0)
    predictions = model.predict(training.stage.map(lambda value, _: value).batch(100), verbose=0)
  assert not output.warnings
  assert predictions.shape == (1000, 1)
  training.assert_whole(2)
