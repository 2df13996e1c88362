"""Measures the ways to augment under the same conditions: the input alone, then in training."""
import dataclasses
import statistics
import time
from typing import Callable

import absl.logging
import keras
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import results, training
from refurbish_tf.experiments.pipelines import Pipelines, decoded, measure_input

MAGNITUDE = 9
PADDING = 4
PHOTOGRAPH_SIZE = 224
PHOTOGRAPH_PADDING = 28
PHOTOGRAPH_BATCH_SIZE = 32
LEARNING_RATE = 4e-3
STEPS_PER_EXECUTION = 8
ECHOING_FACTOR = 2
# Epochs of the input alone, after the first one.
STEADY_EPOCHS = 5
# Of a step of the progress, on two idle cores; and before the first one.
SECONDS_PER_IMAGE, SECONDS_PER_PHOTOGRAPH, SECONDS_TO_START = 1e-4, 1e-3, 20
MODEL = "5x5 convolution (16, stride 2), max-pool, 3x3 convolution (48), max-pool, dense"


@dataclasses.dataclass(frozen=True)
class Settings:
  """The options of the command line."""
  epochs: int
  reuse: tuple
  seeds: int


@dataclasses.dataclass(frozen=True)
class Costs:
  """CPU seconds per image of the parts of the augmentation, each measured alone in a map of its own."""
  decode: float
  partial: float  # Including the decoding.
  final: float

  def refurbished(self, r):
    return self.partial / r + self.final

  def refurbished_decoded(self, r):
    """Behind a cache of decoded images."""
    return max(0.0, self.partial - self.decode) / r + self.final

  def echoed(self, e, where):
    """With `Dataset.echo`, an image is decoded once, and augmented once or, with "before_augment", `e` times."""
    once = self.decode if where == "before_augment" else self.partial + self.final
    return once / e + self.partial + self.final - once


@dataclasses.dataclass
class Training:
  """One training, with one seed.

  Attributes:
    fresh: samples prepared afresh in each epoch.
    seconds: duration of each epoch, validation not included.
    train_accuracy: on the augmented images, for each epoch.
    accuracy: on the validation images, after each epoch.
  """
  fresh: list = dataclasses.field(default_factory=list)
  seconds: list = dataclasses.field(default_factory=list)
  train_accuracy: list = dataclasses.field(default_factory=list)
  accuracy: list = dataclasses.field(default_factory=list)

  @property
  def epoch_seconds(self):
    """The median epoch. The first one traces the model and fills the store, so it only counts if there is no other."""
    return statistics.median(self.seconds[1:] or self.seconds)


@dataclasses.dataclass
class Row:
  """One way to augment and its measurements.

  Attributes:
    name: as printed.
    meaning: what it does to an image in each epoch, as printed, the end of a sentence.
    kind: "standard", "refurbish", "echo" or "cache".
    factor: r or e, 1 for standard, None for a cache.
    make: a function from `Pipelines` to a new pipeline of (image, label), batched and prefetched.
    cost: a function from `Costs` to the least cost of an image, None if that is zero.
    keeps_decoded: whether it caches the decoded images.
    input_rate: images/s of the input alone.
    input_cpu: CPU seconds per image of the input alone.
    kept_bytes: the most bytes of decoded and of partially augmented images that it keeps in memory.
    trainings: one for each seed.
  """
  name: str
  meaning: str
  kind: str
  factor: float | None
  make: Callable
  cost: Callable | None = None
  keeps_decoded: bool = False
  input_rate: float = 0.0
  input_cpu: float = 0.0
  kept_bytes: int = 0
  trainings: list = dataclasses.field(default_factory=list)

  def train_rate(self, images):
    """Images/s of training, the median of the seeds."""
    return images / statistics.median(training_.epoch_seconds for training_ in self.trainings)

  def final(self, column="accuracy"):
    """The mean, spread and number of the seeds' last values, as from `results.summary`."""
    values = [getattr(training_, column)[-1] for training_ in self.trainings]
    return (*results.mean_and_spread(values), len(values))


@dataclasses.dataclass(frozen=True)
class Result:
  """All rows, standard first, and the costs of the parts of the augmentation."""
  rows: list
  costs: Costs
  train_images: int

  def theory(self, row):
    """The gain in CPU time over standard if reuse itself cost nothing; None if the row has no cost."""
    return self.costs.refurbished(1) / row.cost(self.costs) if row.cost else None

  def training_gains(self, row):
    """How many times as fast as standard the row's training was, for each seed."""
    return [standard.epoch_seconds / own.epoch_seconds
            for standard, own in zip(self.rows[0].trainings, row.trainings)]


def start_tensorflow():
  """Makes TensorFlow find its devices now, and silences warnings that do not concern the user."""
  tf.config.list_logical_devices()
  # TFDS uses its own deprecated attributes.
  absl.logging.set_verbosity(absl.logging.ERROR)
  # TensorFlow takes several models that are traced in turn for one function that is retraced.
  tf.get_logger().setLevel("ERROR")


def run(images, settings, progress):
  """Measures every row, then trains it with every seed.

  Rows take turns, epoch by epoch, so that other work on the machine affects all of them alike.
  """
  rows = _rows(settings)
  progress.begin(_steps(rows, settings))
  costs = _measure(rows, _ways(images, seed=0), progress)
  _train(rows, images, settings, progress)
  return Result(rows, costs, len(images.train))


def expected_seconds(images, settings):
  """About how long `run` takes on two idle cores."""
  return SECONDS_TO_START + SECONDS_PER_IMAGE * len(images.train) * _steps(_rows(settings), settings)


def _rows(settings):
  e = ECHOING_FACTOR
  rows = _standard_and_refurbished(settings.reuse)
  rows += [
      Row(name, meaning, "echo", e, lambda ways, where=where: ways.echoed(e, where),
          lambda costs, where=where: costs.echoed(e, where))
      for name, where, meaning in (
          ("echo decoded", "before_augment", f"a random 1/{e} of the images is decoded; each is augmented {e} times"),
          ("echo augmented", "after_augment", f"a random 1/{e} of the images is augmented; each is used {e} times"),
          ("echo batches", "after_batch", f"a random 1/{e} of the images is augmented; each batch is used {e} times"))]
  return rows + [Row(
      "frozen "
      "cache", "Dataset.cache() after the augmentation: the same augmented images in every epoch; not recommended",
      "cache", None, Pipelines.cached)]


def run_photographs(images, reuse, progress):
  """Measures the input alone, and compares with the usual alternative for photographs: a cache of the decoded images."""
  ways = _OfFiles(
      dataclasses.replace(images, decode=tf.identity, shape=()),
      [augment.decode_and_crop(PHOTOGRAPH_SIZE, apply_exif_orientation=True), augment.rand_augment(2, MAGNITUDE),
       augment.random_crop(PHOTOGRAPH_PADDING), augment.random_flip(), augment.normalize()],
      at=3, seed=0, batch_size=min(PHOTOGRAPH_BATCH_SIZE, len(images.train)))
  rows = _photograph_rows(reuse)
  progress.begin(_input_steps(rows))
  costs = _measure(rows, ways, progress)
  # What a cache of the decoded images saves. The decoding of a whole image would be more.
  costs = dataclasses.replace(costs, decode=costs.partial - costs.decode)
  return Result(rows, costs, len(images.train))


class _OfFiles(Pipelines):
  """The first layer takes its part of a file or, with a cache of the decoded images, of such an image."""

  def decoded_once(self):
    return Pipelines(
        dataclasses.replace(self.images, decode=augment.decode(apply_exif_orientation=True), shape=(None, None, 3)),
        [augment.random_resized_crop(PHOTOGRAPH_SIZE, antialias=True), *self.layers[1:]], self.at, self.seed,
        self.batch_size).decoded_once()

  def parts(self):
    return super().parts() | {"decode": self.decoded_once().parts()["partial_fn"]}


def expected_photograph_seconds(images, reuse):
  """About how long `run_photographs` takes on two idle cores."""
  return SECONDS_TO_START + SECONDS_PER_PHOTOGRAPH * len(images.train) * _input_steps(_photograph_rows(reuse))


def _photograph_rows(reuse):
  r = max(reuse)
  return _standard_and_refurbished(reuse) + [
      Row("cache decoded", "Dataset.cache() of the decoded images: the decoding is saved, in every epoch", "cache", None,
          lambda ways: ways.decoded_once().standard(), lambda costs: costs.refurbished_decoded(1), keeps_decoded=True),
      Row(f"both, r={r:g}", f"refurbish r={r:g} behind a cache of the decoded images", "refurbish", r,
          lambda ways: ways.decoded_once().refurbished(r), lambda costs: costs.refurbished_decoded(r),
          keeps_decoded=True)]


def _standard_and_refurbished(reuse):
  rows = [Row(
      "standard", "every image is read, decoded and augmented anew in every epoch", "standard", 1, Pipelines.standard,
      lambda costs: costs.refurbished(1))]
  return rows + [
      Row(f"refurbish r={r:g}",
          "each partially augmented image is used r times, with a new final augmentation each time", "refurbish", r,
          lambda ways, r=r: ways.refurbished(r), lambda costs, r=r: costs.refurbished(r))
      for r in reuse]


def _ways(images, seed):
  return Pipelines(
      images,
      [augment.rand_augment(2, MAGNITUDE), augment.random_crop(PADDING),
       augment.random_flip()], at=2, seed=seed)


def _steps(rows, settings):
  """The steps of the progress bar in `run`. A training and its validation count twice."""
  return _input_steps(rows) + 2 * settings.seeds * settings.epochs * len(rows)


def _input_steps(rows):
  """The steps of the progress bar in `_measure`: an epoch of each row and of the three parts of the augmentation."""
  return (1 + STEADY_EPOCHS) * (len(rows) + 3)


def _measure(rows, ways, progress):
  """Sets the rates and bytes of the rows' inputs, and returns the costs of the parts."""
  count = len(ways.images.train)
  pipelines = {row.name: row.make(ways) for row in rows}
  measured = measure_input(
      pipelines | ways.parts(), 1 + STEADY_EPOCHS, on_batch=progress.within, on_turn=lambda epoch, name: progress.step(
          1, "input alone", f"epoch {epoch + 1}/{1 + STEADY_EPOCHS}, {name}"))
  # The first epoch fills caches and the store. The best of the others counts, as in timeit: other work on the machine
  # only adds time.
  best = {name: np.min(seconds[1:], axis=0) / count for name, seconds in measured.items()}
  for row in rows:
    wall, row.input_cpu = best[row.name]
    row.input_rate = 1 / wall
    row.kept_bytes = sum(max(epoch.bytes for epoch in stage.epochs) for stage in rtf.stats(pipelines[row.name]))
    if row.keeps_decoded:
      row.kept_bytes += int(ways.decoded_once().images.train.reduce(
          tf.constant(0, tf.int64), lambda total, sample: total + tf.size(sample[0], tf.int64)))
  return Costs(*(best[name][1] for name in ("decode", "partial_fn", "final_fn")))


def _train(rows, images, settings, progress):
  """Trains a model for every row with every seed."""
  # Decoded once and kept, as only the training is compared.
  validation = decoded(images.validation, images).batch(500).cache()
  models = None
  for seed in range(settings.seeds):
    ways = _ways(images, seed)
    pipelines = [row.make(ways) for row in rows]
    keras.utils.set_random_seed(seed)
    # The same initial weights for all rows.
    weights = training.small_cnn(images, reach=1).get_weights()
    models = models or [_model(images, settings.epochs * len(pipelines[0])) for _ in rows]
    for row, model in zip(rows, models):
      training.restart(model, weights)
      row.trainings.append(Training())
    for epoch in range(settings.epochs):
      for row, pipeline, model in zip(rows, pipelines, models):
        progress.step(
            2, "training", f"seed {seed + 1}/{settings.seeds}, epoch {epoch + 1}/{settings.epochs}, {row.name}")
        _train_epoch(model, pipeline, epoch, validation, row.trainings[-1], progress)
    for row, pipeline in zip(rows, pipelines):
      row.trainings[-1].fresh = _fresh(row, pipeline, len(images.train), settings.epochs)


def _train_epoch(model, pipeline, epoch, validation, to, progress):
  """Trains one epoch, so that the rows can take turns; otherwise as model.fit(pipeline, epochs=settings.epochs)."""
  clock = _Clock(progress)
  history = model.fit(pipeline, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, callbacks=[clock], verbose=0)
  to.seconds.append(clock.seconds)
  to.train_accuracy += history.history["accuracy"]
  to.accuracy.append(model.evaluate(validation, verbose=0, return_dict=True)["accuracy"])


def _fresh(row, pipeline, count, epochs):
  for stage in rtf.stats(pipeline):
    return [epoch.fresh for epoch in stage.epochs]
  # Without `refurbish` there is nothing to count: `map` prepares all samples, `cache` none after the first epoch.
  return [count] + [0] * (epochs - 1) if row.kind == "cache" else [count // row.factor] * epochs


def _model(images, steps):
  """A small model, as the demo is about the input, and both often share the same cores."""
  model = training.small_cnn(images, reach=1)
  model.compile(
      keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)),
      keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
      # On a CPU, XLA takes longer to compile such a model than it saves.
      jit_compile=False,
      # Keras takes a millisecond a call, a good part of a step of such a model.
      steps_per_execution=STEPS_PER_EXECUTION)
  return model


class _Clock(keras.callbacks.Callback):
  """Measures the seconds of an epoch, without the work of `fit` before and after."""

  def __init__(self, progress):
    super().__init__()
    self.seconds = 0.0
    self._progress = progress

  def on_epoch_begin(self, epoch, logs=None):
    self._begin = time.perf_counter()

  def on_train_batch_end(self, batch, logs=None):
    self._progress.within((batch + 1) / self.params["steps"])

  def on_epoch_end(self, epoch, logs=None):
    self.seconds = time.perf_counter() - self._begin
