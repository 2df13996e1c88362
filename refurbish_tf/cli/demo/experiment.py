"""The ways to augment, measured alike: the input alone, then in training."""
import dataclasses
import statistics
import time
from typing import Callable, Optional

import absl.logging
import keras
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import training
from refurbish_tf.experiments.pipelines import BATCH_SIZE
from refurbish_tf.experiments.pipelines import Pipelines
from refurbish_tf.experiments.pipelines import decoded
from refurbish_tf.experiments.pipelines import measure_input

MAGNITUDE = 9
PADDING = 4
LEARNING_RATE = 4e-3
STEPS_PER_EXECUTION = 8
ECHOING_FACTOR = 2
# Standard deviation of the validation accuracy between seeds, as found with the default settings on CIFAR-10.
TRAINING_NOISE = 0.01
# Of the input alone.
STEADY_EPOCHS = 5
MODEL = "5x5 convolution (16, stride 2), max-pool, 3x3 convolution (48), max-pool, dense"


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the command line sets."""
  epochs: int
  reuse: tuple
  seed: int


@dataclasses.dataclass(frozen=True)
class Costs:
  """CPU seconds per image of the parts of the augmentation, each alone in a map of its own."""
  decode: float
  partial: float  # Including the decoding.
  final: float

  def refurbished(self, r):
    return self.partial / r + self.final

  def echoed(self, e, where):
    """As `Dataset.echo` has it: decoded once, and augmented once or, "before_augment", each time."""
    once = self.decode if where == "before_augment" else self.partial + self.final
    return once / e + self.partial + self.final - once


@dataclasses.dataclass
class Row:
  """One way to augment and what was measured of it.

  Attributes:
    name: for people.
    kind: "standard", "refurbish", "echo" or "frozen".
    factor: r or e, 1 for standard, None for frozen.
    make: returns a new pipeline of (image, label), batched and prefetched.
    cost: from `Costs` to what an image costs at least, None where that is nothing.
    input_rate: images/s of the input alone.
    input_cpu: CPU seconds per image of the input alone.
    train_rate: images/s of training.
    fresh: samples prepared afresh in each epoch of training.
    seconds: duration of each epoch of training, validation not included.
    train_accuracy: on the augmented images, for each epoch.
    accuracy: on the validation images, after each epoch.
  """
  name: str
  kind: str
  factor: Optional[float]
  make: Callable
  cost: Optional[Callable] = None
  input_rate: float = 0.0
  input_cpu: float = 0.0
  train_rate: float = 0.0
  fresh: list = dataclasses.field(default_factory=list)
  seconds: list = dataclasses.field(default_factory=list)
  train_accuracy: list = dataclasses.field(default_factory=list)
  accuracy: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Result:
  """All rows, standard first, and what the parts of the augmentation cost alone."""
  rows: list
  costs: Costs
  train_images: int
  validation_images: int

  def limit(self, row):
    """How many times less CPU time than standard a row can cost; None if that is without limit."""
    return self.costs.refurbished(1) / row.cost(self.costs) if row.cost else None


def start_tensorflow():
  """Has TensorFlow look for its devices now, and warn no more of what is not ours."""
  tf.config.list_logical_devices()
  # TFDS makes use of its own deprecated attributes.
  absl.logging.set_verbosity(absl.logging.ERROR)
  # Several models traced in turn look to TensorFlow like one function that is traced again and again.
  tf.get_logger().setLevel("ERROR")


def run(images, settings, progress):
  """Measures every row.

  Rows take turns, epoch by epoch, so that whatever else the machine does meanwhile falls upon all of them alike.
  """
  ways = Pipelines(
      images,
      [augment.rand_augment_layer(MAGNITUDE), augment.rand_augment_layer(MAGNITUDE), augment.random_crop(PADDING),
       augment.random_flip()], at=2, seed=settings.seed)
  e = ECHOING_FACTOR

  rows = [Row("standard", "standard", 1, ways.standard, lambda costs: costs.refurbished(1))]
  rows += [
      Row(f"refurbish r={r:g}", "refurbish", r, lambda r=r: ways.refurbished(r),
          lambda costs, r=r: costs.refurbished(r))
      for r in settings.reuse]
  rows += [
      Row(name, "echo", e, lambda where=where: ways.echoed(e, where),
          lambda costs, where=where: costs.echoed(e, where))
      for name, where in (
          ("echo decoded", "before_augment"), ("echo augmented", "after_augment"), ("echo batches", "after_batch"))]
  rows += [Row("frozen cache*", "frozen", None, ways.cached)]

  alone = {row.name: row.make() for row in rows} | ways.parts()
  progress.begin((1 + STEADY_EPOCHS) * len(alone) + 2 * settings.epochs * len(rows))
  measured = measure_input(
      alone, 1 + STEADY_EPOCHS, on_batch=progress.within, on_turn=lambda epoch, name: progress.step(
          1, "input alone", f"epoch {epoch + 1} of {1 + STEADY_EPOCHS}, {name}"))
  del alone  # And what is cached there.
  # The first epoch fills caches and the store. Of the others the best, as in timeit: what else the machine does only
  # ever adds.
  best = {name: np.min(seconds[1:], axis=0) / len(images.train) for name, seconds in measured.items()}
  for row in rows:
    wall, row.input_cpu = best[row.name]
    row.input_rate = 1 / wall
  _train(rows, ways, settings, progress)
  return Result(
      rows, Costs(*(best[name][1] for name in ("decode", "partial_fn", "final_fn"))), train_images=len(images.train),
      validation_images=len(images.validation))


def _train(rows, ways, settings, progress):
  """Trains a model for every row and sets the rest of it."""
  images, count = ways.images, len(ways.images.train)
  # Decoded once and kept: what is compared is the training.
  validation = decoded(images.validation, images).batch(500).cache()
  pipelines = [row.make() for row in rows]
  models = [_model(images, settings, len(pipelines[0])) for _ in rows]
  clocks = [_Clock(progress) for _ in rows]
  for epoch in range(settings.epochs):
    for row, pipeline, model, clock in zip(rows, pipelines, models, clocks):
      progress.step(2, "training", f"epoch {epoch + 1} of {settings.epochs}, {row.name}")
      # An epoch at a time for the rows to take turns; otherwise this is model.fit(pipeline, epochs=settings.epochs).
      history = model.fit(
          pipeline, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, callbacks=[clock], verbose=0)
      row.train_accuracy += history.history["accuracy"]
      row.accuracy.append(model.evaluate(validation, verbose=0, return_dict=True)["accuracy"])
  for row, pipeline, clock in zip(rows, pipelines, clocks):
    row.seconds = clock.seconds
    # The first epoch traces the model and fills the store, so it counts only where there is no other.
    row.train_rate = count / statistics.median(clock.seconds[1:] or clock.seconds)
    row.fresh = _fresh(row, pipeline, count, settings.epochs)


def _fresh(row, pipeline, count, epochs):
  for stage in rtf.stats(pipeline):
    return [epoch.fresh for epoch in stage.epochs]
  # Without `refurbish` there is nothing to count: `map` prepares all samples, `cache` none after the first epoch.
  return [count] + [0] * (epochs - 1) if row.kind == "frozen" else [count // row.factor] * epochs


def _model(images, settings, steps):
  """A new model, the same for the same settings.

  Light, because a demo of the input must not be about the model, and because here both often share the same cores.
  """
  keras.utils.set_random_seed(settings.seed)
  model = training.small_cnn(images, reach=1)
  model.compile(
      keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(LEARNING_RATE, settings.epochs * steps)),
      keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
      # On a CPU, XLA takes longer to compile such a model than it saves.
      jit_compile=False,
      # Keras itself costs a millisecond a call, a good part of a step of such a model.
      steps_per_execution=STEPS_PER_EXECUTION)
  return model


class _Clock(keras.callbacks.Callback):
  """Seconds of each epoch, without what `fit` does before and after."""

  def __init__(self, progress):
    super().__init__()
    self.seconds = []
    self._progress = progress

  def on_epoch_begin(self, epoch, logs=None):
    self._begin = time.perf_counter()

  def on_train_batch_end(self, batch, logs=None):
    self._progress.within((batch + 1) / self.params["steps"])

  def on_epoch_end(self, epoch, logs=None):
    self.seconds.append(time.perf_counter() - self._begin)
