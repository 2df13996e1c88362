"""A callback that logs what the stages do, and how long training waits for its input."""

import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, pipeline_warnings, native
from refurbish_tf.augment import composition
from refurbish_tf.keras.step import StepCallback
from refurbish_tf.stats import DERIVED, EpochStats, datasets, stats

# Images of 0 to 255 have a larger range; normalized ones usually have a range below 10.
_SMALL_RANGE = 32
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")


class RefurbishLogger(StepCallback):
  """Logs the counts of the stages, and how long training waited for input, to the history and TensorBoard.

  >>> import keras
  >>> train = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=7).batch(2)
  >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  >>> model.compile("sgd", "mse")
  >>> history = model.fit(train, epochs=3, verbose=0, callbacks=[rtf.keras.RefurbishLogger(train)])
  >>> history.history["refurbish_fresh"]
  [8, 4, 4]
  >>> len(history.history["input_wait_fraction"])
  3

  In the history that `fit` returns, each of these is a list with a value for each epoch of `fit`:

  - `input_wait_fraction`: the time that training waited for its input, divided by the time of the epoch without
    validation. It is also in the `logs` of the epoch, for the progress bar and for later callbacks, such as
    `CSVLogger`. Its meaning depends on where training runs; see `verdict`.
  - `input_wait_p50`, `input_wait_p95`, `input_wait_max`: the median, the 95th percentile and the maximum of the seconds
    that a call of the training step waited for its input (for all of its batches, with `steps_per_execution`). Waits
    come in bursts: a median near 0 does not mean that the input keeps up.
  - for each stage of the dataset that `rtf.stats` lists, its counts: `refurbish_fresh` and the other fields of
    `rtf.EpochStats`, `echo_fresh` ... `echo_factor` of `rtf.EchoStats`, `offload_batches` ... `offload_device_fraction`
    of `rtf.OffloadStats`.

  TensorFlow measures the waits of all pipelines in the process together: under a distribution strategy they are the sum
  over its devices, and the fraction is the mean.

  The `name` of a stage, if it has one, replaces `refurbish`, `echo` or `offload`. With `log_dir` all values are also
  written for TensorBoard, as `refurbish/fresh`, `input_wait/max` and so on, next to the values of
  `keras.callbacks.TensorBoard(log_dir)`. The callback takes about 0.1 ms per step.

  Attributes:
    verdict: after `fit`, a sentence on how much a faster input can save; printed unless `verbose` is 0. If there are
      several epochs, it ignores the first, which is slower. None before the end of `fit`, or if no step ran.

  Args:
    dataset: the `tf.data.Dataset` that is passed to `fit`, or any part of it after the stages.
    log_dir: a directory for TensorBoard, a str or a `pathlib.Path`, or None to write nothing.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`, or `log_dir` is not a path.
    ValueError: `log_dir` is on a file system that TensorFlow does not support, such as s3://.
    RuntimeError: this version of Keras is not supported, because its internals have changed.
  """

  verdict: str | None = None

  def __init__(self, dataset: tf.data.Dataset[Any], log_dir: str | os.PathLike[str] | None = None) -> None:
    super().__init__()
    stats(dataset)  # Raises if it is not a dataset with known stages.
    if log_dir is not None and not isinstance(log_dir, (str, os.PathLike)):
      raise TypeError(
        f"log_dir must be the path of a directory, or None to write nothing for TensorBoard, got {log_dir!r}."
      )
    if log_dir is not None:
      checks.check_file_system("log_dir", log_dir)
    self._dataset = dataset
    self._log_dir = log_dir
    self._writer = None

  def on_train_begin(self, logs=None):
    if self._log_dir is not None:
      self._writer = tf.summary.create_file_writer(os.path.join(os.fspath(self._log_dir), "train"))
    self.verdict = None
    _check_scale(self.model, self._dataset)
    self._times = []  # For each epoch, the seconds waited and the seconds in all.
    super().on_train_begin(logs)

  def on_epoch_begin(self, epoch, logs=None):
    super().on_epoch_begin(epoch, logs)
    self._before = stats(self._dataset)
    self._waits = []
    self._waited = _waited()
    self._began, self._ended = time.perf_counter(), None

  def run_step(self, function, *args):
    result = function(*args)
    waited = _waited()
    self._waits.append(waited - self._waited)
    self._waited = waited
    return result

  def on_test_begin(self, logs=None):
    # The training of an epoch ends when its validation begins. `evaluate` outside `fit` has no epoch.
    if self._step is not None and self._ended is None:
      self._ended = time.perf_counter()

  def on_epoch_end(self, epoch, logs=None):
    values = {}
    if self._waits:
      took = (self._ended or time.perf_counter()) - self._began
      # Under a distribution strategy, its devices wait at the same time.
      on_tensorflow = keras.backend.backend() == "tensorflow"
      number = self.model.distribute_strategy.num_replicas_in_sync if on_tensorflow else 1
      self._times.append((sum(self._waits) / number, took))
      median, high = np.percentile(self._waits, [50, 95]).tolist()
      values = {"input_wait": {"p50": median, "p95": high, "max": max(self._waits)}}
      logs["input_wait_fraction"] = _fraction(self._times[-1:])
    for before, after in zip(self._before, stats(self._dataset)):
      values[_unused(after.name, values)] = _difference(before.total, after.total)
    history = self.model.history.history
    for group, scalars in values.items():
      for name, value in scalars.items():
        history.setdefault(f"{group}_{name}", []).append(value)
    if self._waits:
      values["input_wait"]["fraction"] = logs["input_wait_fraction"]  # Keras puts `logs` into the history.
    if self._writer is not None:
      with self._writer.as_default():
        for group, scalars in values.items():
          for name, value in scalars.items():
            # Like tf.summary.scalar, which cannot be used unless TensorBoard is installed.
            tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), step=epoch, metadata=_SCALAR)
      self._writer.flush()

  def on_train_end(self, logs=None):
    super().on_train_end(logs)
    if self._times:
      self.verdict = _verdict(_fraction(self._times[1:] or self._times), _trains_on_cpu(self.model))
      if self.params["verbose"]:
        print(self.verdict)
    if self._writer is not None:
      self._writer.close()
      self._writer = None


def _check_scale(model, dataset):
  """Warns if a network scales images of 0 to 255 itself, but gets a small range, which looks nearly uniform to it."""
  ranges = []
  for stage in datasets("RefurbishLogger", dataset):
    if hasattr(stage, "given_functions"):
      specs = stage._input_dataset.element_spec, stage._partial.output_structure
      ranges += map(composition.normalized_range, stage.given_functions, specs)
  ranges = [each for each in ranges if each and each[1] - each[0] < _SMALL_RANGE]
  scaling = keras.layers.Normalization, keras.layers.Rescaling
  # The first layer that scales decides, if only layers such as RandomFlip come before it.
  is_own = lambda layer: isinstance(layer, keras.layers.Lambda) or not type(layer).__module__.startswith("keras.")
  decides = lambda layer: isinstance(layer, scaling) or layer.weights or is_own(layer)
  layer = next(filter(decides, _leaves(model)), None)
  if not isinstance(layer, scaling):
    return
  scales = (
    np.max(np.abs(layer.scale)) < 0.1
    if isinstance(layer, keras.layers.Rescaling)
    else not layer.invert and layer.input_mean is not None and np.max(layer.input_mean) > 10
  )
  if scales and ranges:
    low, high = ranges[0]
    pipeline_warnings.warn(
      f"The layer {layer.name} of the model scales images of 0 to 255, but normalize makes images of {low + 0.0:.3g} "
      f"to {high:.3g}, which would all look nearly the same to the network. Replace normalize by "
      "lambda image: tf.cast(image, tf.float32), or make the network with include_preprocessing=False, if it has "
      f"that argument. If this is intended, silence the warning: {pipeline_warnings.SILENCE}."
    )


def _leaves(layer):
  """Yields the layers of a model and its inner models, in order; none if their order or inputs are unknown."""
  is_known = isinstance(layer, keras.Sequential) or len(getattr(layer, "inputs", None) or ()) == 1
  for each in layer.layers if is_known else ():
    yield from _leaves(each) if isinstance(each, keras.Model) else [each]


def _waited():
  """The seconds that this process has waited for its pipelines."""
  return float(native.ops().refurbish_tf_input_wait())


def _trains_on_cpu(model):
  values = [variable.value for variable in model.trainable_variables]
  # On JAX the `device` of an array may be a sharding.
  devices = [
    device for value in values for device in (value.devices() if hasattr(value, "devices") else [value.device])
  ]
  return all("cpu" in str(device).lower() for device in devices)


def _fraction(times):
  waited, took = map(sum, zip(*times))
  return waited / took


def _verdict(fraction, on_processors):
  waited = f"Training waited for its input during {100 * fraction:.0f} % of its time"
  if not on_processors:
    return f"{waited}, which is about the most that a faster input can save."
  return (
    f"{waited}. It runs on the CPU cores that prepare the input, so a cheaper input may save more than that: try it "
    "for some epochs."
  )


def _difference(before, after):
  values = {name: value - getattr(before, name) for name, value in vars(after).items()}
  if isinstance(after, EpochStats):
    values["bytes"] = after.bytes  # The amount at the end, not a sum.
  counts = type(after)(**values)
  return {**values, **{name: getattr(counts, name) for name in DERIVED[type(after)]}}


def _unused(name, names):
  """`name`, with a number appended if another stage has this name."""
  number, candidate = 1, name
  while candidate in names:
    number += 1
    candidate = f"{name}_{number}"
  return candidate
