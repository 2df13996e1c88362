"""`rtf.keras.RefurbishLogger`: the history of a fit reports what really happened."""

import collections
import csv
import threading
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.keras import logger as module
from support.datasets import in_python
from support.fits import BATCH, EPOCHS, N, make_dataset
from support.warned import told


def labelled(x, *_):
  return tf.cast([x], tf.float32), 1.0


def make_model(**how):
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse", **how)
  return model


def test_history_agrees_with_counters_in_the_functions(tmp_path):
  calls = collections.Counter()

  def count(name):
    def function(x):
      calls[name] += 1
      return x

    return in_python(function)

  def counted(name, n, r):
    return tf.data.Dataset.range(n).refurbish(count(f"{name} partial"), count(f"{name} final"), r, seed=1, name=name)

  stages = tf.data.Dataset.zip(counted("first", N, 2), counted("second", N, 5), counted("second", N, 1))
  dataset = stages.map(labelled).batch(BATCH)
  by_epoch = []

  class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      by_epoch.append(calls.copy())
      calls.clear()

  validation = tf.data.Dataset.from_tensors((tf.zeros([1, 1]), tf.zeros([1])))
  callbacks = [rtf.keras.RefurbishLogger(dataset, tmp_path), Epochs()]
  fit = make_model().fit(dataset, epochs=EPOCHS, verbose=0, validation_data=validation, callbacks=callbacks)
  history = fit.history
  assert history["first_fresh"] == [epoch["first partial"] for epoch in by_epoch] == [20, 10, 10, 10]
  assert (
    [a + b for a, b in zip(history["first_fresh"], history["first_cached"], strict=True)]
    == [epoch["first final"] for epoch in by_epoch]
    == [20] * EPOCHS
  )
  # Two stages of one name are numbered. The expected numbers count them together.
  assert history["second_fresh"] == [20, 4, 4, 4] and history["second_2_fresh"] == [20] * EPOCHS
  assert [a + b for a, b in zip(history["second_fresh"], history["second_2_fresh"], strict=True)] == [
    epoch["second partial"] for epoch in by_epoch
  ]
  for name in ("evicted", "missing", "bytes", "fresh_wait", "store_wait"):
    assert len(history[f"first_{name}"]) == EPOCHS
  assert len(history["loss"]) == len(history["input_wait_p50"]) == EPOCHS
  # TensorBoard gets the same numbers.
  (file,) = (tmp_path / "train").iterdir()
  written = collections.defaultdict(list)
  for event in tf.compat.v1.train.summary_iterator(str(file)):
    for value in event.summary.value:
      assert value.metadata.plugin_data.plugin_name == "scalars"
      written[value.tag].append((event.step, float(tf.make_ndarray(value.tensor))))
  assert (
    "input_wait/max" in written
    and "input_wait/fraction" in written
    and "first/fresh" in written
    and "second_2/cached" in written
  )
  for tag, values in written.items():
    group, name = tag.split("/")
    assert [step for step, _ in values] == list(range(EPOCHS))
    np.testing.assert_allclose([value for _, value in values], history[f"{group}_{name}"], rtol=1e-6)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_a_stall_of_the_input_is_seen(steps_per_execution):
  """The wait of a training step for its input is measured although the step reads it within a graph."""
  ended = threading.Event()

  def slow(index):
    if index == 12:
      # `prefetch` may be far ahead of a slow step, so the stall begins when the previous step has ended.
      assert ended.wait(60)
      ended.clear()
      time.sleep(0.5)
    return index

  def on_train_batch_end(batch, logs):
    del logs
    if batch in (11, 12 - steps_per_execution):  # Keras 3.10 reports the first step of an execution.
      ended.set()

  dataset = tf.data.Dataset.range(N).map(in_python(slow)).map(labelled).batch(1)
  ends = keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)
  model = make_model(steps_per_execution=steps_per_execution)
  history = model.fit(dataset, epochs=2, verbose=0, callbacks=[rtf.keras.RefurbishLogger(dataset), ends]).history
  for epoch in range(2):
    assert history["input_wait_max"][epoch] > 0.25
    assert history["input_wait_p50"][epoch] < 0.25
  assert set(history) == {"loss", "input_wait_fraction", "input_wait_p50", "input_wait_p95", "input_wait_max"}


@pytest.mark.parametrize(
  "on_processors, verbose, said",
  [
    (True, 0, ". It runs on the CPU cores that prepare the input"),
    (False, 1, ", which is about the most that a faster input can save."),
  ],
)
def test_input_wait_fraction_and_verdict(tmp_path, monkeypatch, capsys, on_processors, verbose, said):
  clock = types.SimpleNamespace(now=100.0, waited=5.0)
  monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))
  monkeypatch.setattr(module, "_waited", lambda: clock.waited)
  if not on_processors:
    monkeypatch.setattr(module, "_trains_on_cpu", lambda model: False)
  waits = [20, 10, 2]

  class Time(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
      clock.now += 10
      clock.waited += waits[self.epoch] * (batch == 2)  # Elements come in a burst: the median is 0.

    def on_test_batch_begin(self, batch, logs=None):
      clock.now += 1000
      clock.waited += 500

  dataset = tf.data.Dataset.range(8).map(labelled).batch(2)
  logger = rtf.keras.RefurbishLogger(dataset)
  assert logger.verdict is None
  callbacks = [logger, Time(), keras.callbacks.CSVLogger(tmp_path / "log.csv")]
  fit = make_model().fit(dataset, epochs=3, verbose=verbose, validation_data=dataset, callbacks=callbacks)
  history = fit.history
  assert history["input_wait_fraction"] == [0.5, 0.25, 0.05]
  assert history["input_wait_p50"] == [0, 0, 0]
  with open(tmp_path / "log.csv", encoding="utf-8") as file:
    assert [float(row["input_wait_fraction"]) for row in csv.DictReader(file)] == [0.5, 0.25, 0.05]
  # In all epochs but the first: 12 s of 80.
  assert logger.verdict.startswith(f"Training waited for its input during 15 % of its time{said}")
  printed = capsys.readouterr().out
  assert printed.count(logger.verdict) == printed.count("input_wait_fraction: 0.2500") == verbose


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # A different number of batches in each epoch.
def test_the_echoing_factor_of_each_epoch():
  dataset = tf.data.Dataset.range(8).map(labelled).batch(2).echo(rtf.AUTOTUNE)
  history = make_model().fit(dataset, epochs=3, verbose=0, callbacks=[rtf.keras.RefurbishLogger(dataset)]).history
  # Keras uses the first epoch's number of steps for all epochs.
  assert history["echo_fresh"][0] == 4
  assert history["echo_factor"] == [
    (fresh + repeated) / fresh for fresh, repeated in zip(history["echo_fresh"], history["echo_repeated"], strict=True)
  ]


def scaling(*layers):
  """Returns a network whose inner part scales its input."""
  inner = keras.Sequential([keras.Input([4, 4, 3]), *layers, keras.layers.Flatten()])
  return keras.Sequential([keras.Input([4, 4, 3]), keras.layers.RandomFlip(), inner, keras.layers.Dense(1)])


RESCALING, TO_NORMAL = keras.layers.Rescaling, keras.layers.Normalization


@pytest.mark.parametrize(
  "layers, normalize, is_warned",
  [
    ([RESCALING(1 / 255)], {}, True),
    ([RESCALING(1 / 127.5, -1), keras.layers.Conv2D(1, 1)], {}, True),
    ([TO_NORMAL(mean=[120.0] * 3, variance=[3000.0] * 3)], {}, True),
    ([RESCALING(1 / 255)], {"mean": 120, "std": 60}, True),
    ([RESCALING(1 / 255)], {"mean": 0, "std": 1, "max_pixel_value": 127.5}, True),
    # Images from 0 to 255 are right.
    ([RESCALING(1 / 255)], {"mean": 0, "std": 1 / 255}, False),
    ([RESCALING(1 / 255)], {"mean": 0, "std": 1, "max_pixel_value": 1}, False),
    # The layer does not scale images, or does not get the images themselves.
    ([TO_NORMAL(mean=[120.0] * 3, variance=[3000.0] * 3, invert=True)], {}, False),
    ([keras.layers.Conv2D(3, 1), RESCALING(1 / 255)], {}, False),
    ([RESCALING(255), RESCALING(1 / 255)], {}, False),
    ([RESCALING(2)], {}, False),
  ],
  ids=str,
)
def test_images_of_another_scale_than_the_network_expects(layers, normalize, is_warned):
  model = scaling(*layers)
  model.compile("sgd", "mse")
  images = tf.data.Dataset.from_tensor_slices((np.zeros([4, 4, 4, 3], np.uint8), np.zeros([4, 1])))
  train = images.refurbish([rtf.augment.random_flip()], [rtf.augment.normalize(**normalize)]).batch(2)
  warned = told(lambda: model.fit(train, verbose=0, callbacks=[rtf.keras.RefurbishLogger(train)]))
  assert [
    f"The layer {layers[0].name} of the model scales images of 0 to 255, but normalize makes images of " in text
    for text in warned
  ] == ([True] * is_warned)


def test_networks_with_unknown_layer_order_cause_no_warning():
  """Examples are a subclass, several inputs, and layers with an attribute named `layers`."""

  class Own(keras.Model):
    def __init__(self):
      super().__init__()
      self.scale, self.dense = RESCALING(1 / 255), keras.layers.Dense(1)

    def call(self, image):
      return self.dense(keras.layers.Flatten()(image))

  class Block(keras.layers.Dense):
    layers = {"a": 1}

  age = keras.Input([1], name="age")
  image = keras.Input([4, 4, 3], name="image")
  two = keras.Model(
    {"image": image, "age": age},
    keras.layers.Dense(1)(
      keras.layers.Concatenate()([TO_NORMAL(mean=[40.0], variance=[100.0])(age), keras.layers.Flatten()(image)])
    ),
  )
  images = tf.data.Dataset.from_tensor_slices(
    ({"image": np.zeros([4, 4, 4, 3], np.uint8), "age": np.zeros([4, 1])}, np.zeros([4, 1]))
  )
  both = images.refurbish([rtf.augment.random_flip()], [rtf.augment.normalize()], targets={"age": None}).batch(2)
  alone = both.map(lambda element, label: (element["image"], label))
  for model, train in ((two, both), (Own(), alone), (keras.Sequential([keras.layers.Flatten(), Block(1)]), alone)):
    model.compile("sgd", "mse")
    assert not told(
      lambda model=model, train=train: model.fit(train, verbose=0, callbacks=[rtf.keras.RefurbishLogger(both)])
    )


def test_the_images_that_either_side_finished():
  layers = [*rtf.augment.rand_augment(), rtf.augment.normalize()]

  def offloaded():
    images = tf.data.Dataset.from_tensor_slices((np.zeros([160, 4, 4, 3], np.uint8), np.zeros(160)))
    return images.refurbish(lambda *element: element, r=2, seed=3).offload(layers, 8, device_fraction=1)

  dataset, same = offloaded(), offloaded()
  done = [sum(int(sum(batch["draws"][:, 0])) for batch, _ in same) for _ in range(2)]
  model = keras.Sequential([keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  logger = rtf.keras.RefurbishLogger(dataset.prefetch(1))
  plain = dataset.map(lambda batch, label: (tf.cast(batch["draws"], tf.float32), label))
  history = model.fit(plain, epochs=2, verbose=0, callbacks=[logger]).history
  assert history["offload_batches"] == [20, 20]
  # The host finishes the images that come too late for a table.
  assert history["offload_device_images"] == done and 100 < done[0] != done[1]
  assert history["offload_host_images"] == [160 - number for number in done]
  assert history["offload_device_fraction"] == [number / 160 for number in done]
  assert all(value >= 0 for value in history["offload_host_wait"])
  assert history["refurbish_fresh"] == [160, 80]
  stage = rtf.stats(dataset)[1]
  assert stage.total.device_fraction == sum(done) / 320 and str(stage).splitlines()[1].endswith("device_fraction")
  assert rtf.OffloadStats(0, 0, 0, 0.0).device_fraction == 0


def test_bad_arguments_of_the_logger():
  with pytest.raises(TypeError, match="^dataset .*got list"):
    rtf.keras.RefurbishLogger([1])
  with pytest.raises(TypeError, match="^log_dir "):
    rtf.keras.RefurbishLogger(make_dataset(), 3)
